"""One open file of a group's lock file: its bytes, and locks of single bytes.

The locks belong to the open file (OFD locks): they exclude two members of one process,
too, and end with the process, whatever ends it. An open file is shared with the child
of a fork, which would hold the locks after the end of its parent: so the child closes
it at once (`os.register_at_fork`).
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

from logstore import _native as native
from logstore.errors import storage_error, storage_errors
from logstore.io.checkpoint.place import is_left_over
from logstore.io.directory import Directory
from logstore.io.files import held_open
from logstore.io.stamps import FileInfo

__all__ = ["OpenLockFile"]


class OpenLockFile:
    """An open file whose errors name it; for one thread at a time.

    Invariant: its locks are this process's alone; they end when it is closed.

    Attributes:
        path: of the file.
        files: makes the system calls.

    Args:
        write: open it for locks and writes; it is created if it does not exist.

    Raises:
        FileNotFoundError: it does not exist, and `write` is False.
        StorageError: the system refuses, here and in each call.
    """

    def __init__(self, root: Directory, name: str, *, write: bool) -> None:
        self.path = root.path_of(name)
        self.files = root.files
        self._root = root
        self._name = name
        try:
            fd = self._open_or_create() if write else root.open(name)
            self._file = held_open(self.files, fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise storage_error(error, "open", self.path) from error
        if write:
            with storage_errors("examine", self.path):
                self._identity = _identity(self.files.stat(self.fd))
            _open_files.add(self)

    def _open_or_create(self) -> int:
        while True:
            try:
                # Members of this store may use it under all of its names.
                keep_links = not is_left_over(self._root, self._name)
                return self._root.open(self._name, write=True, keep_links=keep_links)
            except FileNotFoundError:
                pass
            try:
                return self._root.create(self._name)
            except FileExistsError:
                continue

    @property
    def fd(self) -> int:
        """The descriptor; -1 once it is closed."""
        return self._file.fd

    def close(self) -> None:
        """Close it; its locks, if it has any, end with it."""
        self._file.close()

    def has_its_name(self) -> bool:
        """Whether the file, opened with `write`, was not removed or replaced since."""
        try:
            return _identity(self._root.stat(self._name)) == self._identity
        except FileNotFoundError:
            return False
        except OSError as error:
            raise storage_error(error, "examine", self.path) from error

    def name_step(self) -> native.Step:
        """The system call that `has_its_name` makes."""
        device, inode = self._identity
        name, root_fd = os.fsencode(self._name), self._root.held().fd
        return native.Step(
            native.STEP_FILE, root_fd, data=name, device=device, inode=inode
        )

    # ------------------------------------------------------------ locks

    def lock(self, byte: int) -> bool:
        """Lock a byte; False if another open file has it locked."""
        try:
            return self.files.lock_byte(self.fd, byte)
        except OSError as error:
            raise storage_error(error, "lock", self.path) from error

    def unlock(self, byte: int) -> None:
        """Unlock a byte; one that is not locked is not an error."""
        if self.fd < 0:
            return
        try:
            self.files.unlock_byte(self.fd, byte)
        except OSError as error:
            raise storage_error(error, "unlock", self.path) from error

    def locked(self, begin: int, end: int) -> Sequence[int]:
        """The bytes from `begin` up to before `end` that other open files have
        locked."""
        with storage_errors("examine the locks of", self.path):
            return self.files.locked_bytes(self.fd, begin, end)

    # ------------------------------------------------------------ bytes

    def read(self, pos: int, size: int) -> bytes:
        """The bytes at a position; zeros after the end of the file."""
        data = bytearray(size)
        with storage_errors("read", self.path):
            self.files.read(self.fd, data, pos)
        return bytes(data)

    def write(self, data: bytes, pos: int) -> None:
        """Write bytes at a position."""
        try:
            self.files.write(self.fd, data, pos)
        except OSError as error:
            raise storage_error(error, "write", self.path) from error

    def sync(self) -> None:
        """Make durable what was written."""
        try:
            self.files.sync(self.fd)
        except OSError as error:
            raise storage_error(error, "sync", self.path) from error


def _identity(info: FileInfo) -> tuple[int, int]:
    return info.device, info.inode


_open_files: weakref.WeakSet[OpenLockFile] = weakref.WeakSet()


def _close_in_child() -> None:
    """A child that kept the open file would hold its parent's locks on."""
    for file in list(_open_files):
        file.close()
    _open_files.clear()


os.register_at_fork(after_in_child=lambda: _close_in_child())
