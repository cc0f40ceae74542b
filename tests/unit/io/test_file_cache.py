"""The open files of a store."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files, held_open


@pytest.mark.parametrize("step", ["_open", "_writers", "_indexes"])
def test_file_that_could_not_be_forgotten_is_forgotten_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A finalizer that runs in a deep stack may have no room for it, at any step."""

    class NoRoom(dict[int, int]):
        def pop(self, *arguments: int | None) -> None:
            raise RecursionError

    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    directory = Directory.open_root(Files(), os.fspath(tmp_path))
    descriptors = Descriptors(Files(), 10)
    fds = [
        descriptors.borrow(owner, directory, lambda: ("a", "b")).fd for owner in (1, 2)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(descriptors, step, NoRoom())
        with pytest.raises(RecursionError):
            descriptors.forget(1)
    descriptors.forget(2)
    assert len(descriptors) == 0
    for fd in fds:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


class Writer:
    """A writer that rests as soon as it may."""

    def __init__(self, descriptors: Descriptors, owner: int) -> None:
        self.descriptors, self.owner = descriptors, owner
        self.is_asked, self.may_rest = threading.Event(), threading.Event()

    def rest(self) -> bool:
        self.descriptors.release(self.owner)
        self.is_asked.set()
        return self.may_rest.wait(60)


def test_file_of_a_writer_that_rests_while_another_thread_evicts_it_leaves_the_set_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two removes the file."""
    (tmp_path / "a").write_bytes(b"x")
    directory = Directory.open_root(Files(), os.fspath(tmp_path))
    descriptors = Descriptors(Files(), 2)
    writers = [Writer(descriptors, owner) for owner in (1, 2)]
    for writer in writers:
        file = held_open(Files(), directory.open("a"))
        descriptors.insert(writer.owner, file, writer.rest)
    writers[1].may_rest.set()
    resting = threading.Thread(target=descriptors.make_room)

    class Asked(OrderedDict[int, Any]):
        """The other thread continues between the choice of a file and its removal."""

        def __contains__(self, owner: object) -> bool:
            is_writer = super().__contains__(owner)
            if threading.current_thread() is not resting:
                writers[0].may_rest.set()
                resting.join(0.1)
            return is_writer

    monkeypatch.setattr(descriptors, "_writers", Asked(descriptors._writers))
    resting.start()
    assert writers[0].is_asked.wait(60)
    descriptors.borrow(3, directory, lambda: ("a",))
    resting.join()
    assert [owner for owner in (1, 2, 3) if descriptors.kept(owner)] == [3]


def test_index_that_is_kept_again_counts_once() -> None:
    """Only the size of its last content: others have room as well."""
    descriptors = Descriptors(Files(), 10)
    for round_ in range(4):
        descriptors.keep_index(1, ".index", f"first {round_}", 20 << 20)
    descriptors.keep_index(2, ".index", "second", 40 << 20)
    assert descriptors.index(1, ".index") == "first 3"
    assert descriptors.index(2, ".index") == "second"


def test_index_that_was_not_used_for_the_longest_time_makes_room() -> None:
    """The cache keeps 64 MiB, and one index of any size."""
    descriptors = Descriptors(Files(), 10)
    for owner in (1, 2, 3):
        descriptors.keep_index(owner, ".index", owner, 20 << 20)
    assert descriptors.index(1, ".index") == 1
    descriptors.keep_index(4, ".index", 4, 20 << 20)
    kept = [owner for owner in (1, 2, 3, 4) if descriptors.index(owner, ".index")]
    assert kept == [1, 3, 4]
    descriptors.keep_index(5, ".index", 5, 100 << 20)
    kept = [n for n in range(1, 6) if descriptors.index(n, ".index")]
    assert kept == [5]
