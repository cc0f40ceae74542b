"""A store's files held in memory: quick to copy, to damage, and to discard.

No faults and no model of a disk: written bytes are there, and nothing is lost. Damage
is done to the bytes before the store is opened.

`support.disk.MemoryDisk` has both, and keeps each moment of a disk: its contents are
immutable, and a log of 3,000 batches takes ten times as long to write there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any

from logstore.io.files import Files
from logstore.io.stamps import FileInfo

__all__ = ["ROOT", "MemoryFiles"]

# The path of the one store that a `MemoryFiles` holds.
ROOT = "/store"

_TIME_NS = 1_700_000_000_000_000_000


class _File:
    """A file; content given as `bytes` is copied at the first write to it."""

    __slots__ = ("data", "inode")

    def __init__(self, data: bytes | bytearray, inode: int) -> None:
        self.data = data
        self.inode = inode


class MemoryFiles(Files):
    """The store at `ROOT`: its own files, and directories with files in them."""

    def __init__(self, tree: Mapping[str, bytes | None] | None = None) -> None:
        """`tree`: path below the root -> bytes, or None for an empty directory."""
        self._inodes = 1
        self.root: dict[str, Any] = {}
        self._open: dict[int, Any] = {}
        self._next_fd = 1000
        for path, data in (tree or {}).items():
            self.put(path, data)

    def put(self, path: str, data: bytes | None) -> None:
        """Make a file, or (without data) a directory; there is one level of them."""
        directory, _, name = path.rpartition("/")
        if data is None:
            self.root.setdefault(path, {})
            return
        inside = self.root.setdefault(directory, {}) if directory else self.root
        inside[name] = self._new(data)

    def tree(self) -> dict[str, bytes | None]:
        """All files, in the form that the constructor takes."""
        found: dict[str, bytes | None] = {}
        for name, entry in self.root.items():
            if isinstance(entry, _File):
                found[name] = bytes(entry.data)
                continue
            found[name] = None
            for inner, file in entry.items():
                found[f"{name}/{inner}"] = bytes(file.data)
        return found

    def _new(self, data: bytes | bytearray = b"") -> _File:
        self._inodes += 1
        return _File(data, self._inodes)

    def _fd(self, entry: Any) -> int:
        self._next_fd += 1
        self._open[self._next_fd] = entry
        return self._next_fd

    def _entry(self, dir_fd: int, name: str) -> Any:
        if name == ".":
            return self._open[dir_fd]
        try:
            return self._open[dir_fd][name]
        except KeyError:
            raise _error(errno.ENOENT, name) from None

    # -- directories

    def make_root(self, path: str) -> None:
        assert path == ROOT

    def open_root(self, path: str) -> int:
        if path != ROOT:
            raise _error(errno.ENOENT, path)
        return self._fd(self.root)

    def open_directory(self, dir_fd: int, name: str) -> int:
        entry = self._entry(dir_fd, name)
        if not isinstance(entry, dict):
            raise _error(errno.ENOTDIR, name)
        return self._fd(entry)

    def make_directory(self, dir_fd: int, name: str) -> None:
        if name in self._open[dir_fd]:
            raise _error(errno.EEXIST, name)
        self._open[dir_fd][name] = {}

    def remove_directory(self, dir_fd: int, name: str) -> None:
        if self._entry(dir_fd, name):
            raise _error(errno.ENOTEMPTY, name)
        del self._open[dir_fd][name]

    def list(self, dir_fd: int, *, directories: bool = False) -> list[str]:
        inside = self._open[dir_fd]
        return sorted(n for n in inside if not directories or type(inside[n]) is dict)

    def sync_directory(self, dir_fd: int) -> None:
        """Nothing is ever lost here."""

    # -- files

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        entry = self._entry(dir_fd, name)
        if isinstance(entry, dict):
            raise _error(errno.EISDIR if write else errno.EINVAL, name)
        return self._fd(entry)

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        inside = self._open[dir_fd]
        if name not in inside:
            inside[name] = self._new()
        elif exclusive:
            raise _error(errno.EEXIST, name)
        else:
            inside[name] = self._new()
        return self._fd(inside[name])

    def close(self, fd: int) -> None:
        del self._open[fd]

    def read(self, fd: int, buffer: Any, pos: int) -> int:
        view = memoryview(buffer).cast("B")
        data = self._open[fd].data[pos : pos + len(view)]
        view[: len(data)] = data
        return len(data)

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        file = self._open[fd]
        if not isinstance(file.data, bytearray):
            file.data = bytearray(file.data)
        if pos > len(file.data):
            file.data.extend(bytes(pos - len(file.data)))
        file.data[pos : pos + len(data)] = data

    def sync(self, fd: int) -> None:
        """Nothing is ever lost here."""

    def truncate(self, fd: int, size: int) -> None:
        file = self._open[fd]
        file.data = bytearray(file.data[:size].ljust(size, b"\0"))

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        return True

    def write_back(self, fd: int, pos: int, size: int) -> None:
        """There is nowhere to write to."""

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        entry = self._entry(dir_fd, old)
        del self._open[dir_fd][old]
        self._open[dir_fd][new] = entry

    def move(self, dir_fd: int, old: str, to_fd: int, new: str) -> None:
        entry = self._entry(dir_fd, old)
        del self._open[dir_fd][old]
        self._open[to_fd][new] = entry

    def unlink(self, dir_fd: int, name: str) -> None:
        self._entry(dir_fd, name)
        del self._open[dir_fd][name]

    def links(self, dir_fd: int, name: str) -> int:
        return 1

    def links_of(self, fd: int, dir_fd: int, name: str) -> int:
        return 1

    def file_system_id(self, fd: int) -> str:
        return ""

    def stat(self, fd: int) -> FileInfo:
        return self._info(self._open[fd])

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        return self._info(self._entry(dir_fd, name))

    def size(self, fd: int) -> int:
        return len(self._open[fd].data)

    def free_bytes(self, fd: int) -> int:
        return 1 << 40

    def lock(self, fd: int) -> int | None:
        # Locks are remembered by device and inode; any value serves.
        return None

    def unlock_file(self, fd: int) -> None:
        pass

    def lock_file(self, fd: int) -> bool:
        return True

    def _info(self, entry: Any) -> FileInfo:
        if isinstance(entry, dict):
            return FileInfo(0, _TIME_NS, _TIME_NS, id(self), id(entry), False, True)
        size = len(entry.data)
        return FileInfo(size, _TIME_NS, _TIME_NS, id(self), entry.inode, True, False)


def _error(code: int, name: str) -> OSError:
    return OSError(code, os.strerror(code), name)
