"""Directories by their descriptors: names are resolved in the opened directory."""

from __future__ import annotations

import contextlib
import errno
import os
from typing import Final

from logstore import _native as native
from logstore._native.locks import Signal
from logstore.errors import StoreClosedError, is_disk_full
from logstore.io.files import PRIVATE, Access, Files
from logstore.io.layout import own_copy_file
from logstore.io.stamps import FileInfo, FileStamp, Look, LookNames, stamp_of

__all__ = ["NOT_A_FILE", "Directory", "UnknownContentError", "held_open"]

# Errors of opening a link, a socket or FIFO, or a directory of a file's name.
NOT_A_FILE: Final = (errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.EISDIR)
_COPY_BYTES: Final = 1 << 20
# The pause of a process while another one makes a copy.
_TURN_S: Final = 0.001


class UnknownContentError(OSError):
    """A file has its old content or the new one, or, after a power failure, a mixture:
    the system refused a step from which on it may have changed."""


def held_open(files: Files, fd: int) -> native.OpenFile:
    """An open descriptor; dropping the last reference to the result closes it."""
    is_own = type(files).close is Files.close
    return native.OpenFile(fd, None if is_own else files.close)


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
    never used to open a file. `access` is the owner and mode of what is made in it.
    `moved_to`: the new name, if the owner renames the directory or has renamed it.
    """

    __slots__ = (
        "__weakref__",
        "_file",
        "_parent",
        "access",
        "files",
        "moved_to",
        "name",
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
        self._parent = parent

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
        if self._parent is None:
            raise StoreClosedError(f"the store at {self.path} is closed")
        with self._parent.use() as parent_fd:
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

    def with_parents(self) -> list[Directory]:
        """This directory and those above it, up to the root of the store."""
        above = [] if self._parent is None else self._parent.with_parents()
        return [self, *above]

    @property
    def root(self) -> Directory:
        """The directory of the store."""
        return self if self._parent is None else self._parent.root

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
        """The infos of all that is in it, by name; not of what goes away meanwhile."""
        found = {}
        with self.use() as fd:
            for name in self.files.list(fd):
                with contextlib.suppress(FileNotFoundError):
                    found[name] = self.files.stat_name(fd, name)
        return found

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
        """Examine this directory, files in it, and files beside it (none if it is a
        root), in one call. Not for a directory that this process renames.

        Args:
            before: another look at these names: the result, if nothing has changed.

        Raises:
            FileNotFoundError: the directory does not exist.
        """
        files, parent = self.files, self._parent
        # The reference keeps the descriptor open during the call.
        file, name = (parent.held(), self.name) if parent else (self.held(), ".")
        known = before.data if before is not None and before.names is names else None
        if type(files) is Files:
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

    def rename_deleted(self, name: str, new: str) -> bool:
        """Rename a file that is to be deleted later. If a full disk has no room for the
        new name, remove the file at once. Returns whether it was renamed."""
        try:
            self.rename(name, new)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.unlink(name)
            return False
        return True

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
            keep_links: let all names stay those of one file.
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
                    return self._open_own(file.fd, name)
                # Another process has replaced it meanwhile: this was the original.
        finally:
            del file

    def _open_own(self, dir_fd: int, name: str) -> int:
        """Open a file for writing after replacing it by its own copy.

        1. Copy it to a temporary name. 2. Sync that. 3. Rename it to `name`. 4. Sync
        the directory. Of processes that do this at the same time, one does it.
        """
        files = self.files
        turn = held_open(files, files.open_directory(dir_fd, "."))
        while not files.lock_file(turn.fd):
            files.wait(Signal().register(), _TURN_S)
        try:
            if files.links(dir_fd, name) < 2:
                return files.open(dir_fd, name, write=True)
            original = held_open(files, files.open(dir_fd, name))
            temporary = own_copy_file(name)
            fd = files.create(dir_fd, temporary, exclusive=False)
            try:
                buffer, pos = memoryview(bytearray(_COPY_BYTES)), 0
                while (n := files.read(original.fd, buffer, pos)) > 0:
                    files.write(fd, buffer[:n], pos)
                    pos += n
                files.set_mode_of(fd, original.fd)
                files.sync(fd)
                files.rename(dir_fd, temporary, name)
                files.sync_directory(dir_fd)
            except BaseException:
                files.close(fd)
                with contextlib.suppress(OSError):
                    files.unlink(dir_fd, temporary)
                raise
            return fd
        finally:
            files.unlock_file(turn.fd)

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
        if type(self.files) is Files:
            file = self.held()
            try:
                return native.read_name(file.fd, name, most)
            finally:
                del file
        # Other methods may be replaced: this is the same, call by call.
        with self.opened(name) as fd:
            size = self.files.size(fd)
            buffer = bytearray(size if size <= most else 0)
            n = self.files.read(fd, buffer, 0)
        return size, bytes(memoryview(buffer)[:n])

    def read_file(self, name: str, limit: int = 64 << 20) -> bytes:
        """The whole of a small file; raises EFBIG beyond `limit` bytes."""
        with self.opened(name) as fd:
            size = self.files.size(fd)
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
        self._put_in_place(name, data)
        if sync:
            self.sync()

    def _put_in_place(self, name: str, data: bytes) -> None:
        """Steps 1 to 3. If one fails, the file is unchanged."""
        temporary = f"{name}.tmp"
        fd = self.create(temporary, exclusive=False)
        try:
            self.files.write(fd, data, 0)
            self.files.sync(fd)
        finally:
            self.files.close(fd)
        self.rename(temporary, name)

    def overwrite_file(self, name: str, data: bytes) -> None:
        """Replace a small file in place, for a full disk: this needs no space if the
        file has that much. A power failure can leave the old bytes, the new ones, or a
        mixture.

        Raises:
            UnknownContentError: from its first change on.
            OSError: as the system gives it; the file is unchanged.
        """
        files = self.files
        with self.opened(name, write=True) as fd:
            # Not what it has already: xfs refuses that, too, when it is full.
            grows = files.size(fd) < len(data)
            if grows and not files.reserve(fd, 0, len(data)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
            try:
                files.write(fd, data, 0)
                files.truncate(fd, len(data))
                files.sync(fd)
            except OSError as error:
                raise UnknownContentError(*error.args) from error

    def write_file_anyway(self, name: str, data: bytes) -> None:
        """As `write_file`; if a full disk has no room for that, as
        `overwrite_file`.

        Raises:
            UnknownContentError: from the first change of the file on.
            OSError: as the system gives it; the file is unchanged.
        """
        try:
            self._put_in_place(name, data)
        except OSError as error:
            if not is_disk_full(error):
                raise
            self.unlink(f"{name}.tmp", missing_ok=True)
            try:
                self.overwrite_file(name, data)
            except FileNotFoundError:
                raise error from None
            return
        try:
            self.sync()
        except OSError as error:
            raise UnknownContentError(*error.args) from error
