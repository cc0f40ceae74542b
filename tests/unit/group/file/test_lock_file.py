"""The open lock file of a group: its locks are not inherited, its errors name it."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

import logstore
from logstore.group.file import lock_file as lock_file_module
from logstore.group.file.slots import LockFile, Slots
from logstore.io.directory import Directory
from logstore.io.files import Files

NAME = ".logstore-group-g"


def opened(root: Directory) -> Slots:
    return Slots(root, NAME, "g")


def held_after_the_end_of_a_parent(root: Directory) -> bool:
    """Whether the child of a process that has ended still holds a lock."""
    ready, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        one = opened(root)
        one.join(100)
        if os.fork() == 0:
            os.write(begin, b".")
            time.sleep(60)
            os._exit(1)
        time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return bool(LockFile(root, NAME).members())


def test_child_of_a_fork_does_not_hold_the_locks_on(root: Directory) -> None:
    """It closes the open file that it shares."""
    assert not held_after_the_end_of_a_parent(root)


def test_missing_hook_of_forks_is_found(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: the test above can fail."""
    monkeypatch.setattr(lock_file_module, "_close_in_child", lambda: None)
    assert held_after_the_end_of_a_parent(root)


def test_read_only_file_system_is_a_named_error(root: Directory) -> None:
    """The error names the lock file."""

    class ReadOnly(Files):
        def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
            raise OSError(30, os.strerror(30))

    other = Directory.open_root(ReadOnly(), root.path)
    with pytest.raises(logstore.StorageError, match="Read-only") as caught:
        Slots(other, NAME, "g")
    assert caught.value.filename == f"{root.path}/{NAME}.lock"


def test_lock_file_that_cannot_be_looked_at_is_a_named_error(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root.files, "stat", _refuse)
    with pytest.raises(logstore.StorageError, match=r"examine .*logstore-group-g"):
        opened(root)


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, "no memory")
