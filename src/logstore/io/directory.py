"""Directories by their descriptors: names are resolved in the opened directory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore.errors import StoreClosedError
from logstore.io.files import PRIVATE, Access, Files, held_open, keeps
from logstore.io.own_copy import open_own
from logstore.io.stamps import FileInfo, FileStamp, Look, LookNames, stamp_of

__all__ = ["NOT_A_FILE", "Directory"]

# Errors of opening a link, a socket or FIFO, or a directory of a file's name.
NOT_A_FILE: Final = (errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EISDIR)


class _Use:
    """`Directory.use`: a reader enters several in each look at a log, so it is not made
    of a generator."""

    __slots__ = ("_directory", "_file")

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._file: native.OpenFile | None = None

    def __enter__(self) -> int:
        # The reference keeps the descriptor open during the block.
        file = self._file = self._directory.held()
        return file.fd

    def __exit__(self, *error: object) -> None:
        self._file = None


# The methods of which `Directory.look` and `Directory.read_small` are made.
_LOOK_CALLS: Final = (
    "_stamp", "close", "look", "now_ms", "open_directory", "stat", "stat_name",
)  # fmt: skip
_READ_CALLS: Final = ("close", "open", "read", "size")


class _Opened:
    """`Directory.opened`."""

    __slots__ = ("_directory", "_file", "_name", "_write")

    def __init__(self, directory: Directory, name: str, write: bool) -> None:
        self._directory = directory
        self._name = name
        self._write = write
        self._file: native.OpenFile | None = None

    def __enter__(self) -> int:
        fd = self._directory.open(self._name, write=self._write)
        file = self._file = held_open(self._directory.files, fd)
        return file.fd

    def __exit__(self, *error: object) -> None:
        self._file = None


class Directory:
    """A directory and the calls on its entries.

    The root of a store keeps its descriptor open; a partition's directory is opened
    relative to the root for each call, so that a hundred thousand partitions need no
    descriptors, and one that was renamed or removed raises an error instead of leading
    to another place. (Kept open for a whole look of a reader, it could be one that a
    backup has replaced, and that is losing its files.) `path` is for messages; it is
    never used to open a file. `access` is the owner and mode of new entries in it.
    `moved_to`: the new name, if the owner renames the directory or has renamed it.
    `parent`: the directory that it is in; None for the root of a store.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "access",
        "files",
        "moved_to",
        "name",
        "parent",
        "path",
    )

    def __init__(
        self,
        files: Files,
        path: str,
        *,
        file: native.OpenFile | None = None,
        parent: Directory | None = None,
    ) -> None:
        self.files = files
        self.path = path
        self.access: Access = parent.access if parent else PRIVATE
        self.name = os.path.basename(path)
        self.moved_to = ""
        self._file = file
        self.parent = parent

    @classmethod
    def open_root(cls, files: Files, path: str) -> Directory:
        return cls(files, path, file=held_open(files, files.open_root(path)))

    def child(self, name: str) -> Directory:
        """A directory in this one (its existence is not checked before it is used)."""
        return Directory(self.files, os.path.join(self.path, name), parent=self)

    def use(self) -> _Use:
        """A context manager: the descriptor for the length of a block.

        Methods that are called often do the same without it: `held`, and drop the
        reference also if an error keeps the frame.
        """
        return _Use(self)

    def held(self) -> native.OpenFile:
        """The open directory; dropping the last reference closes it."""
        file = self._file
        if file is not None:
            return file
        if self.parent is None:
            raise StoreClosedError(f"the store at {self.path} is closed")
        with self.parent.use() as parent_fd:
            if self.moved_to:
                fd = self._open_moved(parent_fd)
            else:
                fd = self.files.open_directory(parent_fd, self.name)
        return held_open(self.files, fd)

    def _open_moved(self, parent_fd: int) -> int:
        """The directory under its new name, or under the old one before the renaming.
        After it, another directory may have the old name, so the new name is tried
        first, and again after the old one was opened."""
        with contextlib.suppress(FileNotFoundError):
            return self.files.open_directory(parent_fd, self.moved_to)
        try:
            fd = self.files.open_directory(parent_fd, self.name)
        except FileNotFoundError:
            return self.files.open_directory(parent_fd, self.moved_to)
        try:
            moved = self.files.open_directory(parent_fd, self.moved_to)
        except FileNotFoundError:
            return fd
        self.files.close(fd)
        return moved

    @property
    def root(self) -> Directory:
        """The directory of the store."""
        return self if self.parent is None else self.parent.root

    def close(self) -> None:
        """Release the descriptor; it is closed when no call uses it any more."""
        self._file = None

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def names(self) -> list[str]:
        with self.use() as fd:
            return self.files.list(fd)

    def directories(self) -> list[str]:
        """The names of directories in it."""
        with self.use() as fd:
            return self.files.list(fd, directories=True)

    def infos(self) -> dict[str, FileInfo]:
        """The infos of all its entries, by name; without entries removed meanwhile."""
        infos = {}
        with self.use() as fd:
            for name in self.files.list(fd):
                with contextlib.suppress(FileNotFoundError):
                    infos[name] = self.files.stat_name(fd, name)
        return infos

    def exists(self, name: str) -> bool:
        return self.stamp(name) is not None

    def info(self) -> FileInfo:
        """The info of the directory itself."""
        file = self.held()
        try:
            return self.files.stat(file.fd)
        finally:
            del file

    def stat(self, name: str) -> FileInfo:
        file = self.held()
        try:
            return self.files.stat_name(file.fd, name)
        finally:
            del file

    def stamp(self, name: str) -> FileStamp | None:
        """A value that changes when a file is replaced, overwritten, or grows; None if
        there is no file."""
        try:
            info = self.stat(name)
        except FileNotFoundError:
            return None
        return stamp_of(info)

    def look(self, names: LookNames, before: Look | None = None) -> Look:
        """Examine this directory, files in it, and files next to it (none if it is a
        root), in one call. Not for a directory that this process renames.

        Args:
            before: another look at these names: the result, if nothing has changed.

        Raises:
            FileNotFoundError: the directory does not exist.
        """
        files, parent = self.files, self.parent
        # The reference keeps the descriptor open during the call.
        if parent is None:
            file, name = self.held(), "."
        else:
            file, name = parent._file or parent.held(), self.name
        known = before.data if before is not None and before.names is names else None
        if keeps(type(files), _LOOK_CALLS):
            begun_ms, data = native.look(
                file.fd, name, names.encoded, len(names.names), known
            )
        else:
            begun_ms, data = files.now_ms(), files.look(file.fd, name, names)
        if before is not None and data == known:
            return before
        return Look(names, data, begun_ms)

    def free_bytes(self) -> int:
        """Bytes that this user may still write on its file system."""
        with self.use() as fd:
            return self.files.free_bytes(fd)

    def rename(self, old: str, new: str) -> None:
        file = self.held()
        try:
            self.files.rename(file.fd, old, new)
        finally:
            del file

    def move(self, old: str, to: Directory, new: str) -> None:
        """Rename a file into another directory of the same file system."""
        with self.use() as fd, to.use() as to_fd:
            self.files.move(fd, old, to_fd, new)

    def unlink(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            file = self.held()
            try:
                self.files.unlink(file.fd, name)
            finally:
                del file
        except FileNotFoundError:
            if not missing_ok:
                raise

    def make(self, name: str) -> None:
        """Create a directory in this one."""
        with self.use() as fd:
            self.files.make_directory(fd, name)
            if self.access != PRIVATE:
                child_fd = self.files.open_directory(fd, name)
                try:
                    self.files.set_access(child_fd, self.access)
                finally:
                    self.files.close(child_fd)

    def remove(self, name: str) -> None:
        with self.use() as fd:
            self.files.remove_directory(fd, name)

    def sync(self) -> None:
        with self.use() as fd:
            self.files.sync_directory(fd)

    def open(self, name: str, *, write: bool = False, keep_links: bool = False) -> int:
        """Descriptor of an existing regular file; the caller closes it.

        With `write`, a file that has several names is replaced by its own copy first,
        so that nothing changes under the other names (`cp -al` of a store).

        Args:
            keep_links: all names continue to name one file.
        """
        file = self.held()
        try:
            while True:
                fd = self.files.open(file.fd, name, write=write)
                if not write or keep_links:
                    return fd
                try:
                    links = self.files.links_of(fd, file.fd, name)
                except BaseException:
                    self.files.close(fd)
                    raise
                if links == 1:
                    return fd
                self.files.close(fd)
                if links:
                    return open_own(self.files, file.fd, name)
                # Another process has replaced it meanwhile: this was the original.
        finally:
            del file

    def create(self, name: str, *, exclusive: bool = True) -> int:
        file = self.held()
        try:
            file_fd = self.files.create(file.fd, name, exclusive=exclusive)
        finally:
            del file
        if self.access != PRIVATE:
            try:
                self.files.set_access(file_fd, self.access)
            except BaseException:
                self.files.close(file_fd)
                raise
        return file_fd

    def opened(self, name: str, *, write: bool = False) -> _Opened:
        """A context manager: the descriptor of an existing regular file for the length
        of a block."""
        return _Opened(self, name, write)

    def read_small(self, name: str, most: int) -> tuple[int, bytes]:
        """The size of a regular file, and its bytes if it has at most `most`.

        Raises:
            OSError: as the system gives it; one of `NOT_A_FILE`: it is no such file.
        """
        if keeps(type(self.files), _READ_CALLS):
            file = self.held()
            try:
                return native.read_name(file.fd, name, most)
            finally:
                del file
        # One of them is replaced: this is the same, call by call.
        with self.opened(name) as fd:
            size = self.files.size(fd)
            buffer = bytearray(size if size <= most else 0)
            n = self.files.read(fd, buffer, 0)
        return size, bytes(memoryview(buffer)[:n])

    def read_file(
        self,
        name: str,
        limit: int = 64 << 20,
        size_of: Callable[[int], int] | None = None,
    ) -> bytes:
        """The whole of a small file, or its first `size_of(descriptor)` bytes; raises
        EFBIG beyond `limit` bytes."""
        with self.opened(name) as fd:
            size = (size_of or self.files.size)(fd)
            if size > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", name)
            buffer = bytearray(size)
            n = self.files.read(fd, buffer, 0)
            return bytes(memoryview(buffer)[:n])

    def write_file(self, name: str, data: bytes, *, sync: bool = True) -> None:
        """Replace a small file so that a crash leaves the whole old or new file.

        1. Write `name`.tmp. 2. Sync it. 3. Rename it to `name`. 4. Sync the directory.

        Args:
            sync: without it the caller does step 4.
        """
        temporary = f"{name}.tmp"
        fd = self.create(temporary, exclusive=False)
        try:
            self.files.write(fd, data, 0)
            self.files.sync(fd)
        finally:
            self.files.close(fd)
        self.rename(temporary, name)
        if sync:
            self.sync()
