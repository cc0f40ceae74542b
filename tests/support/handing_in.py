"""Stores whose owner publishes for others, and processes that hand in."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Store, StoreConfig
from logstore.io.checkpoint.process_requests import (
    ProcessFile,
    ServedProcess,
    process_of,
)
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.wakeups import ServiceThread
from logstore.log.write.calls import Submission
from logstore.log.write.staged_files import Staged
from logstore.store.hand_in import requester
from logstore.types import Publication
from support.staging import stage
from support.values import config_of

SERVING = StoreConfig(publish_for_others=True)
DEAF = StoreConfig(publish_for_others=False)
# Far longer than any call takes: ends a test that hangs.
LONG_MS = 120_000


def waiting_in(path: str | Path) -> list[int]:
    """The numbers of requests that no owner has answered, process by process."""
    found: list[int] = []
    root = Directory.open_root(Files(), str(path))
    try:
        for unique in filter(None, map(process_of, sorted(os.listdir(path)))):
            with contextlib.suppress(FileNotFoundError):
                served = ServedProcess(root, unique)
                found += [one.slot.number for one in served.waiting()]
                served.abandon()
    finally:
        root.close()
    return found


def processes_in(path: str | Path) -> list[str]:
    """The ids of processes that have files of requests."""
    return list(filter(None, map(process_of, sorted(os.listdir(path)))))


@contextlib.contextmanager
def making(store: Store) -> Iterator[ProcessFile]:
    """The file of requests of a live process."""
    file = ProcessFile(store._context.root, os.urandom(16).hex(), {})
    try:
        yield file
    finally:
        file.close()


def left_by_ended(store: Store, *contents: bytes) -> str:
    """The id of a process that has ended, and has left requests."""
    with making(store) as file:
        assert all(file.put(content) for content in contents)
        return file.id


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
    """A store that publishes for others."""
    with logstore.open(path, config=SERVING) as store:
        yield store


@pytest.fixture
def reader(path: str) -> Iterator[Store]:
    with logstore.open(path, read_only=True) as store:
        yield store


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make an owner in this process look like one in another process."""
    monkeypatch.setattr(requester, "waits_for_itself", lambda *_: None)


def staged_by(store: Store, count: int = 2, sequence: int = 1) -> Staged:
    return stage(store, {store.topic("a")[0]: count}, sequence)


def asked_by(store: Store, sequence: int, identity: str = "x") -> bytes:
    """The content of a request to publish a record."""
    return Submission(staged_by(store, 1, sequence).logs, identity, sequence).packed()


def submit(store: Store, staged: Staged, sequence: int = 1, **more: Any) -> Publication:
    arguments = {"identity": "x", "timeout_ms": LONG_MS, **more}
    return store.submit([staged], sequence=sequence, **arguments)


def hold_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the owner's thread from working: requests wait."""
    monkeypatch.setattr(ServiceThread, "_run", lambda self: None)


def until(is_so: Callable[[], object]) -> None:
    """Wait for another thread; fail if it takes far too long."""
    end = time.monotonic() + LONG_MS / 1000
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.002)


class Later:
    """A call in a thread, and its outcome."""

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
