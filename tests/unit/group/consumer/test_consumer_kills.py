"""A member is killed at one of its system calls: its commits count, and the group
continues."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetAndMetadata
from logstore.group.file import group_file as group_file_module
from logstore.io.files import Files
from logstore.store.opening import open_store
from support.groups import T0, T1, consumer, drain, store_with
from support.levels import some

# Commits in the life of a member, and a size small enough that it compacts the group's
# file.
COMMITS = 6
COMPACT_BYTES = 500


class Killing(Files):
    """Kills this process before its n-th call on a group's files, or after it."""

    def __init__(self, nth: int) -> None:
        self.count = 0
        self.nth = nth
        self._names: dict[int, str] = {}
        for name in dir(Files):
            method = getattr(self, name)
            if not name.startswith("_") and callable(method):
                setattr(self, name, self._counted(method))

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            if self.count == self.nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return method(*arguments, **named)

        return counted


def live(path: Path, files: Killing, said: int) -> None:
    """The life of a member; `said` gets the number of each commit that has returned."""
    with open_store(str(path), read_only=True, _files=files) as store:
        one = consumer(store)
        one.poll()
        for number in range(1, COMMITS + 1):
            one.commit({T0: number, T1: number}, durable=number % 2 == 0)
            os.write(said, bytes([number]))
        one.close()
    os.write(said, files.count.to_bytes(4, "big"))


def killed_at(path: Path, nth: int) -> bytes:
    """Output of a member before it was killed; 0: it is not killed."""
    ready, said = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            live(path, Killing(nth), said)
        finally:
            os._exit(0)
    os.close(said)
    os.waitpid(pid, 0)
    data = b""
    while part := os.read(ready, 100):
        data += part
    os.close(ready)
    return data


def test_kill_at_each_call_loses_no_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits that have returned count, and the one in progress may; no others do."""
    monkeypatch.setattr(group_file_module, "_REWRITE_BYTES", COMPACT_BYTES)
    whole = killed_at(store_with(tmp_path / "whole"), 0)
    assert whole[:COMMITS] == bytes(range(1, COMMITS + 1))
    total = int.from_bytes(whole[COMMITS:], "big")
    assert total > 100
    for nth in some(range(1, total + 1), 25):
        path = store_with(tmp_path / str(nth))
        said = killed_at(path, nth)
        done = max(said[:COMMITS], default=0)
        with consumer(path) as other:
            drain(other)
            found = [other.committed(key) for key in (T0, T1)]
            assert len(other.assignment()) == 2, nth
            assert found[0] == found[1], nth
            offset = 0 if found[0] is None else found[0].offset
            assert offset in (done, done + 1), nth
            other.commit()
            assert other.committed(T0) == OffsetAndMetadata(10)
        with logstore.open(path) as store:
            store.topic("t")[0].append(b"x")
