"""The lock of a store: one writer, logstore or a Kafka broker.

Kafka's lock is a POSIX record lock on `.lock`, which the system drops when the process
dies. It does not exclude its own process, and closing any descriptor of the file drops
it: so this process remembers which lock files it holds, by device and inode, and opens
none of them twice.
"""

from __future__ import annotations

import contextlib
import os
import threading

from logstore._files import Directory
from logstore.errors import StoreLockedError, storage_error
from logstore.layout import LOCK

__all__ = ["StoreLock", "forget_locks", "holder_of"]

_held: set[tuple[int, int]] = set()
_guard = threading.Lock()


class StoreLock:
    """The writer's lock on a store's directory, taken when made.

    Raises:
        StoreLockedError: another process, or this one, has it.
        StorageError: the system refuses.
    """

    def __init__(self, root: Directory) -> None:
        self._files = root.files
        self._fd = -1
        with _guard:
            try:
                self._take(root)
            except OSError as error:
                raise storage_error(error, "lock", root.path_of(LOCK)) from error

    def _take(self, root: Directory) -> None:
        files = root.files
        with contextlib.suppress(FileNotFoundError):
            info = root.stat(LOCK)
            if (info.device, info.inode) in _held:
                raise _locked(root, os.getpid())
        try:
            fd = root.create(LOCK)
        except FileExistsError:
            fd = root.open(LOCK, write=True)
        try:
            holder = files.lock(fd)
            if holder is not None:
                raise _locked(root, holder or None)
            info = files.stat(fd)
        except BaseException:
            files.close(fd)
            raise
        self._fd = fd
        self._key = (info.device, info.inode)
        _held.add(self._key)

    def release(self) -> None:
        """Let others write. Releasing twice is fine."""
        with _guard:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                _held.discard(self._key)
                self._files.close(fd)


def holder_of(root: Directory) -> int | None:
    """The pid of the writer of a store (0 where it cannot be known); None: there is
    none.

    Takes no lock, and opens the lock file only where that drops none.

    Raises:
        OSError: as the system gives it; there may be no lock file at all.
    """
    with _guard:
        info = root.stat(LOCK)
        if (info.device, info.inode) in _held:
            return os.getpid()
        with root.opened(LOCK) as fd:
            return root.files.lock_holder(fd)


def _locked(root: Directory, pid: int | None) -> StoreLockedError:
    who = f"process {pid}" if pid else "another process"
    if pid == os.getpid():
        who = "this process"
    return StoreLockedError(
        f"store {root.path} is open for writing in {who}; open it with "
        f"read_only=True, or close it there",
        path=root.path,
        holder_pid=pid,
    )


def forget_locks() -> None:
    """After a fork, in the child: POSIX locks are not inherited."""
    global _guard
    _guard = threading.Lock()
    _held.clear()
