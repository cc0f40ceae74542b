"""The one seam to the operating system: files, directories, locks and the clock.

Every system call that touches a store, and every look at a clock, goes through one
`Files` object, so that a test can fail the n-th call, record what was asked, or put an
in-memory disk behind it. Names are opened relative to a directory descriptor, never
through symbolic links, so that what happens to the path of a store while it is open
cannot lead a call elsewhere.

Methods raise plain `OSError`; callers, who know what it means, give it a name.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import stat as stat_module
import struct
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from logstore import _binding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer

__all__ = ["Directory", "FileInfo", "Files"]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class FileInfo(NamedTuple):
    """What `Files.stat` tells of a file."""

    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    is_file: bool
    is_directory: bool


def _info(result: os.stat_result) -> FileInfo:
    return FileInfo(
        result.st_size,
        result.st_mtime_ns,
        result.st_ctime_ns,
        result.st_dev,
        result.st_ino,
        stat_module.S_ISREG(result.st_mode),
        stat_module.S_ISDIR(result.st_mode),
    )


class Files:
    """System calls of a store. Stateless: one object may serve any number of stores."""

    # -- directories

    def make_root(self, path: str) -> None:
        """Create a directory with its parents; nothing if it is there."""
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_root(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, DIRECTORY_MODE)
        fd = os.open(parent or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def open_root(self, path: str) -> int:
        """Open the directory of a store (the only call that takes a whole path)."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, dir_fd: int, name: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, dir_fd=dir_fd)

    def make_directory(self, dir_fd: int, name: str) -> None:
        os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)

    def remove_directory(self, dir_fd: int, name: str) -> None:
        os.rmdir(name, dir_fd=dir_fd)

    def list(self, dir_fd: int) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(dir_fd))

    def sync_directory(self, dir_fd: int) -> None:
        os.fsync(dir_fd)

    # -- files

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        """Open a regular file that exists; anything else of that name is EINVAL."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | _FLAGS
        fd = os.open(name, flags, dir_fd=dir_fd)
        try:
            regular = stat_module.S_ISREG(os.fstat(fd).st_mode)
        except BaseException:
            os.close(fd)
            raise
        if not regular:
            os.close(fd)
            raise OSError(errno.EINVAL, "not a regular file", name)
        return fd

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        """Create a file for reading and writing; EEXIST if `exclusive` and there.

        Without `exclusive` an existing file is emptied.
        """
        flags = os.O_RDWR | os.O_CREAT | _FLAGS
        flags |= os.O_EXCL if exclusive else os.O_TRUNC
        return os.open(name, flags, FILE_MODE, dir_fd=dir_fd)

    def close(self, fd: int) -> None:
        """Close a descriptor. What it says is no news: whatever has to be on the disk
        was synced before, and the descriptor is gone in any case."""
        with contextlib.suppress(OSError):
            os.close(fd)

    def read(self, fd: int, buffer: WriteableBuffer, pos: int) -> int:
        """Fill `buffer` from byte `pos` on; return the bytes read, short at the end."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            n = os.preadv(fd, [view[done:]], pos + done)
            if n == 0:
                break
            done += n
        return done

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        """Write all of `data` at byte `pos`; after an error part of it may be there."""
        done = os.pwrite(fd, data, pos)
        while done < len(data):
            done += os.pwrite(fd, data[done:], pos + done)

    def sync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        """Take disk space for a range without changing the file's length.

        Returns False where the file system cannot; raises ENOSPC, EDQUOT or EFBIG when
        there is none (also for RLIMIT_FSIZE, which fallocate itself does not look at).
        """
        limit = _file_size_limit()
        if limit is not None and pos + size > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        code = -_binding.reserve(fd, pos, size)
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        if code:
            raise OSError(code, os.strerror(code))
        return True

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def move(self, dir_fd: int, old: str, to_fd: int, new: str) -> None:
        """Rename a file into another directory of the same file system."""
        os.rename(old, new, src_dir_fd=dir_fd, dst_dir_fd=to_fd)

    def unlink(self, dir_fd: int, name: str) -> None:
        os.unlink(name, dir_fd=dir_fd)

    def stat(self, fd: int) -> FileInfo:
        return _info(os.fstat(fd))

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        return _info(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def free_bytes(self, fd: int) -> int:
        """Bytes that this user may still write on the file system of `fd`."""
        result = os.fstatvfs(fd)
        return result.f_bavail * result.f_frsize

    # -- lock

    def lock(self, fd: int) -> int | None:
        """Take Kafka's lock (a POSIX record lock). None: taken; else the holder's pid
        (0 when it cannot be known)."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return _lock_holder(fd)
        return None

    # -- clock

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds: for timestamps and ages of records."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back: for intervals."""
        return time.monotonic()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Wait for `event` at most `seconds`; True if it was set."""
        return event.wait(seconds)


def _file_size_limit() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


# struct flock of Linux on 64 bit: type, whence, start, len, pid.
_FLOCK = struct.Struct("hhqqi4x")


def _lock_holder(fd: int) -> int:
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        kind, _, _, _, pid = _FLOCK.unpack(answer)
    except (OSError, struct.error):
        return 0
    return pid if kind != fcntl.F_UNLCK and pid > 0 else 0


class Directory:
    """A directory and the calls on what is in it.

    The root of a store keeps its descriptor open; a partition's directory is opened
    relative to the root for each call, so that a hundred thousand partitions need no
    descriptors, and one that was renamed or removed is an error and not another place.
    `path` is for messages; it is never used to open anything.
    """

    __slots__ = ("__weakref__", "_fd", "_parent", "files", "name", "path")

    def __init__(
        self, files: Files, path: str, *, fd: int = -1, parent: Directory | None = None
    ) -> None:
        self.files = files
        self.path = path
        self.name = os.path.basename(path)
        self._fd = fd
        self._parent = parent

    @classmethod
    def open_root(cls, files: Files, path: str) -> Directory:
        return cls(files, path, fd=files.open_root(path))

    def child(self, name: str) -> Directory:
        """A directory in this one (whether it is there shows when it is used)."""
        return Directory(self.files, os.path.join(self.path, name), parent=self)

    @contextlib.contextmanager
    def use(self) -> Iterator[int]:
        """The descriptor for the length of a block."""
        if self._parent is None:
            yield self._fd
            return
        with self._parent.use() as parent_fd:
            fd = self.files.open_directory(parent_fd, self.name)
        try:
            yield fd
        finally:
            self.files.close(fd)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self.files.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError, TypeError):
            self.close()

    def path_of(self, name: str) -> str:
        return os.path.join(self.path, name)

    def names(self) -> list[str]:
        with self.use() as fd:
            return self.files.list(fd)

    def exists(self, name: str) -> bool:
        try:
            self.stat(name)
        except FileNotFoundError:
            return False
        return True

    def info(self) -> FileInfo:
        """Of the directory itself."""
        with self.use() as fd:
            return self.files.stat(fd)

    def stat(self, name: str) -> FileInfo:
        with self.use() as fd:
            return self.files.stat_name(fd, name)

    def free_bytes(self) -> int:
        """Bytes that this user may still write on its file system."""
        with self.use() as fd:
            return self.files.free_bytes(fd)

    def rename(self, old: str, new: str) -> None:
        with self.use() as fd:
            self.files.rename(fd, old, new)

    def move(self, old: str, to: Directory, new: str) -> None:
        """Rename a file into another directory of the same file system."""
        with self.use() as fd, to.use() as to_fd:
            self.files.move(fd, old, to_fd, new)

    def unlink(self, name: str, *, missing_ok: bool = False) -> None:
        try:
            with self.use() as fd:
                self.files.unlink(fd, name)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def make(self, name: str) -> None:
        with self.use() as fd:
            self.files.make_directory(fd, name)

    def remove(self, name: str) -> None:
        with self.use() as fd:
            self.files.remove_directory(fd, name)

    def sync(self) -> None:
        with self.use() as fd:
            self.files.sync_directory(fd)

    def open(self, name: str, *, write: bool = False) -> int:
        """Descriptor of an existing regular file; the caller closes it."""
        with self.use() as fd:
            return self.files.open(fd, name, write=write)

    def create(self, name: str, *, exclusive: bool = True) -> int:
        with self.use() as fd:
            return self.files.create(fd, name, exclusive=exclusive)

    @contextlib.contextmanager
    def opened(self, name: str, *, write: bool = False) -> Iterator[int]:
        """The descriptor of an existing regular file for the length of a block."""
        fd = self.open(name, write=write)
        try:
            yield fd
        finally:
            self.files.close(fd)

    def read_file(self, name: str, limit: int = 64 << 20) -> bytes:
        """The whole of a small file; EFBIG beyond `limit` bytes."""
        with self.opened(name) as fd:
            size = self.files.size(fd)
            if size > limit:
                raise OSError(errno.EFBIG, f"larger than {limit} bytes", name)
            buffer = bytearray(size)
            n = self.files.read(fd, buffer, 0)
            return bytes(memoryview(buffer)[:n])

    def write_file(self, name: str, data: bytes) -> None:
        """Replace a small file so that a crash leaves the old or the new, whole.

        1. write `name`.tmp; 2. sync it; 3. rename it to `name`; 4. sync the directory.
        """
        temporary = f"{name}.tmp"
        fd = self.create(temporary, exclusive=False)
        try:
            self.files.write(fd, data, 0)
            self.files.sync(fd)
        finally:
            self.files.close(fd)
        self.rename(temporary, name)
        self.sync()
