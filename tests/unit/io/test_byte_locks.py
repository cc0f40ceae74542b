"""Locks on single bytes, and the process that has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.io.byte_locks import ByteLocks, ProcessId

LOCKS = ByteLocks()


def test_this_process_is_running() -> None:
    me = LOCKS.process_id()
    assert me.pid == os.getpid()
    assert me.start > 0
    assert LOCKS.is_running(me)


@pytest.mark.parametrize("field", ["start", "boot"])
def test_process_of_the_same_number_is_another_one(field: str) -> None:
    """The other process began at another time, or in another run of the machine."""
    me = LOCKS.process_id()
    other = {"start": me.start + 1, "boot": bytes(15) + b"\1"}
    assert not LOCKS.is_running(me._replace(**{field: other[field]}))


def test_process_of_which_the_start_is_unknown_is_not_running() -> None:
    me = LOCKS.process_id()
    assert not LOCKS.is_running(me._replace(start=0))


def test_process_that_has_ended_is_not_running() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as child:
        after = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2]
        boot = LOCKS.process_id().boot
        found = ProcessId(child.pid, int(after.split()[19]), boot)
        assert LOCKS.is_running(found)
        child.kill()
    assert not LOCKS.is_running(found)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (0, 100, [3, 4, 9, 40]),
        (3, 10, [3, 4, 9]),
        (4, 9, [4]),
        (5, 9, []),
        (40, 41, [40]),
        (41, 100, []),
        (7, 7, []),
    ],
)
def test_locks_of_other_open_files_are_listed_in_order(
    tmp_path: Path, begin: int, end: int, expected: list[int]
) -> None:
    """Locks of several files are listed, without the locks of the asking file."""
    path = tmp_path / "file"
    path.touch()
    fds = [os.open(path, os.O_RDWR) for _ in range(3)]
    try:
        for fd, pos in ((0, 40), (1, 4), (0, 3), (1, 9), (2, 6)):
            assert LOCKS.lock_byte(fds[fd], pos)
        assert LOCKS.locked_bytes(fds[2], begin, end) == expected
    finally:
        for fd in fds:
            os.close(fd)


def test_byte_has_one_holder_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    first, second = os.open(path, os.O_RDWR), os.open(path, os.O_RDWR)
    try:
        assert LOCKS.lock_byte(first, 7)
        assert LOCKS.lock_byte(first, 7)
        assert not LOCKS.lock_byte(second, 7)
        assert LOCKS.lock_byte(second, 8)
        LOCKS.unlock_byte(first, 7)
        assert LOCKS.lock_byte(second, 7)
        LOCKS.unlock_byte(first, 7)  # it does not have it
        assert not LOCKS.lock_byte(first, 7)
    finally:
        os.close(first)
        os.close(second)
