"""Stores whose owner publishes for others, and those who hand in."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Publication, Store, StoreConfig
from logstore.io import layout
from logstore.io.checkpoint.requests import is_request
from logstore.io.wakeups import ServiceThread
from logstore.log.write.staged_files import Staged
from logstore.store.hand_in import submitting
from support.staging import stage
from support.values import config_of

SERVING = StoreConfig(publish_for_others=True)
DEAF = StoreConfig(publish_for_others=False)
# Far beyond what any of it takes: it is the end of a test that hangs.
LONG_MS = 120_000


def requests_in(path: str | Path) -> list[str]:
    """The files of requests, also those that are being written."""
    return [n for n in os.listdir(path) if n.startswith(layout.REQUEST_PREFIX)]


def waiting_in(path: str | Path) -> list[str]:
    """The requests that have their names."""
    return list(filter(is_request, requests_in(path)))


def made(path: Path, partitions: int = 1) -> str:
    """A store with a topic, closed."""
    with logstore.open(path / "store") as store:
        store.create_topic("a", partitions, config_of(2))
    return str(path / "store")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return made(tmp_path)


@pytest.fixture
def owner(path: str) -> Iterator[Store]:
    """It publishes for others."""
    with logstore.open(path, config=SERVING) as store:
        yield store


@pytest.fixture
def reader(path: str) -> Iterator[Store]:
    with logstore.open(path, read_only=True) as store:
        yield store


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner in this process is taken for one in another process."""
    monkeypatch.setattr(submitting, "waits_for_itself", lambda *_: None)


def staged_by(store: Store, count: int = 2, sequence: int = 1) -> Staged:
    return stage(store, {store.topic("a")[0]: count}, sequence)


def submit(store: Store, staged: Staged, sequence: int = 1, **more: Any) -> Publication:
    arguments = {"identity": "x", "timeout_ms": LONG_MS, **more}
    return store.submit([staged], sequence=sequence, **arguments)


def hold_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's thread does nothing: requests wait."""
    monkeypatch.setattr(ServiceThread, "_run", lambda self: None)


def until(is_so: Callable[[], object]) -> None:
    """Wait for another thread; fail if it takes far too long."""
    end = time.monotonic() + LONG_MS / 1000
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


class Later:
    """A call in a thread, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self._call()
        except BaseException as error:
            self.error = error

    def get(self) -> Any:
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self.result
