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
import itertools
import os
import re
import resource
import stat as stat_module
import struct
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from logstore import _native as native

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "PRIVATE",
    "Access",
    "FileInfo",
    "Files",
    "Look",
    "Space",
    "Waitable",
    "look_of",
    "settled",
]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
DIRECTORY_ENTRIES_MAX = 4_000_000

# File systems tell time by ticks, up to 10 ms apart: what happens within one leaves no
# trace in a time that was noted in it.
_TICK_MS: Final = 20

# Of a file: inode, mtime_ns, ctime_ns, size. A backup that is copied over it may leave
# the inode as it is, and bring time and size of what was saved; nobody sets a ctime.
Look: TypeAlias = tuple[int, int, int, int]

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Waitable(Protocol):
    """What a thread can wait for."""

    def wait(self, seconds: float | None) -> bool: ...


class FileInfo(NamedTuple):
    """What `Files.stat` tells of a file."""

    size: int
    mtime_ns: int
    ctime_ns: int
    device: int
    inode: int
    is_file: bool
    is_directory: bool
    uid: int = -1  # the owner, and
    gid: int = -1  # its group; -1 unknown
    mode: int = 0  # permission bits


def look_of(info: FileInfo) -> Look:
    """What of a file changes when it is replaced, written over, or grows."""
    return info.inode, info.mtime_ns, info.ctime_ns, info.size


class Space(NamedTuple):
    """What `Files.space` tells of a file system; -1 where it keeps no count."""

    bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class Access(NamedTuple):
    """Whom new files of a store belong to, beside the user of this process.

    Attributes:
        group: what the group may do with a directory: bits out of 0o070.
        uid, gid: the owner they are given to (by root); -1: they stay as they are.
    """

    group: int = 0
    uid: int = -1
    gid: int = -1

    @property
    def file_mode(self) -> int:
        return FILE_MODE | (self.group & 0o060)

    @property
    def directory_mode(self) -> int:
        return DIRECTORY_MODE | self.group


PRIVATE = Access()


def _info(result: os.stat_result) -> FileInfo:
    return FileInfo(
        result.st_size,
        result.st_mtime_ns,
        result.st_ctime_ns,
        result.st_dev,
        result.st_ino,
        stat_module.S_ISREG(result.st_mode),
        stat_module.S_ISDIR(result.st_mode),
        result.st_uid,
        result.st_gid,
        result.st_mode & 0o777,
    )


class Files:
    """System calls of a store. Stateless: one object may serve any number of stores."""

    # -- directories

    def make_root(self, path: str) -> bool:
        """Create a directory with its parents; False if it is there already."""
        if os.path.isdir(path):
            return False
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_root(parent)
        fd = os.open(parent or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            made = False
            with contextlib.suppress(FileExistsError):
                self.make_directory(fd, os.path.basename(path))
                made = True
            os.fsync(fd)
        finally:
            os.close(fd)
        return made

    def open_root(self, path: str) -> int:
        """Open the directory of a store (the only call that takes a whole path)."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, dir_fd: int, name: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(name, flags, dir_fd=dir_fd)

    def make_directory(self, dir_fd: int, name: str) -> None:
        """Create a directory of mode 0700, whatever the umask."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)
        # A umask may have taken bits of the owner away; then it cannot be opened.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=dir_fd)
        try:
            mode = stat_module.S_IMODE(os.fstat(fd).st_mode)
            if mode & 0o777 != DIRECTORY_MODE:
                os.chmod(f"/proc/self/fd/{fd}", DIRECTORY_MODE | (mode & 0o7000))
        finally:
            os.close(fd)

    def remove_directory(self, dir_fd: int, name: str) -> None:
        os.rmdir(name, dir_fd=dir_fd)

    def list(self, dir_fd: int) -> list[str]:
        """Names in a directory, sorted.

        More than `DIRECTORY_ENTRIES_MAX` are an OSError that says so, before memory is
        taken for all of them.
        """
        with os.scandir(dir_fd) as entries:
            names = [
                entry.name for entry in itertools.islice(entries, DIRECTORY_ENTRIES_MAX)
            ]
            if next(entries, None) is not None:
                raise OSError(f"more than {DIRECTORY_ENTRIES_MAX} names in a directory")
        return sorted(names)

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
        """Create a file of mode 0600, whatever the umask, for reading and writing;
        EEXIST if `exclusive` and there.

        Without `exclusive` whatever has the name is unlinked first: a file that
        somebody else put there is never written into.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
        try:
            fd = os.open(name, flags, FILE_MODE, dir_fd=dir_fd)
        except FileExistsError:
            if exclusive:
                raise
            os.unlink(name, dir_fd=dir_fd)
            fd = os.open(name, flags, FILE_MODE, dir_fd=dir_fd)
        try:
            if os.fstat(fd).st_mode & 0o777 != FILE_MODE:
                os.fchmod(fd, FILE_MODE)
        except BaseException:
            os.close(fd)
            raise
        return fd

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
        code = -native.reserve(fd, pos, size)
        if code in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            return False
        if code:
            raise OSError(code, os.strerror(code))
        return True

    def write_back(self, fd: int, pos: int, size: int) -> None:
        """Let the system begin to write a range to the disk: a later sync waits less.
        Nothing is durable by it, so a failure is no news either."""
        native.write_back(fd, pos, size)

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

    def set_access(self, fd: int, access: Access) -> None:
        """Give a new file or directory to whom it shall belong."""
        if access.uid >= 0:
            os.fchown(fd, access.uid, access.gid)
        mode = os.fstat(fd).st_mode
        wanted = access.file_mode
        if stat_module.S_ISDIR(mode):
            # Setgid, which hands the group down, stays.
            wanted = access.directory_mode | (mode & 0o7000)
        os.fchmod(fd, wanted)

    def free_bytes(self, fd: int) -> int:
        """Bytes that this user may still write on the file system of `fd`."""
        return self.space(fd).free_bytes

    # -- what a file is on, and who asks

    def space(self, fd: int) -> Space:
        """Size and room of the file system of `fd`, for this user."""
        result = os.fstatvfs(fd)
        counts = (result.f_files, result.f_favail) if result.f_files else (-1, -1)
        size = result.f_frsize
        return Space(result.f_blocks * size, result.f_bavail * size, *counts)

    def file_system(self, fd: int) -> int:
        """The number of the kind of file system (f_type of statfs); 0 unknown."""
        return max(native.fs_type(fd), 0)

    def mounts(self, fd: int) -> tuple[int, str]:
        """The id of the mount of `fd` (-1 unknown), and the mounts that this process
        sees as /proc/self/mountinfo has them ("" where there is no /proc)."""
        try:
            about = _read_text(f"/proc/self/fdinfo/{fd}")
            table = _read_text("/proc/self/mountinfo")
        except OSError:
            return -1, ""
        found = re.search(r"^mnt_id:\s*([0-9]+)$", about, re.MULTILINE)
        return (int(found[1]) if found else -1), table

    def user(self) -> int:
        """The effective user id of this process."""
        return os.geteuid()

    def resource_limits(self) -> tuple[int | None, int | None]:
        """(open files, bytes of a file) that this process may have; None: any."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = None if soft == resource.RLIM_INFINITY else soft
        return files, _file_size_limit()

    # -- lock

    def lock(self, fd: int) -> int | None:
        """Take Kafka's lock (a POSIX record lock). None: taken; else the holder's pid
        (0 when it cannot be known)."""
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            with contextlib.suppress(OSError):
                return self.lock_holder(fd) or 0
            return 0
        return None

    def lock_file(self, fd: int) -> bool:
        """Take the lock that belongs to an open file (`flock`); False where another one
        has it. True, too, where the file system has none."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        return True

    def unlock_file(self, fd: int) -> None:
        """Let go of that lock, for all who share the open file (a child of a fork)."""
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_holder(self, fd: int) -> int | None:
        """The pid that holds the lock (0 where it cannot be known); None: nobody.
        Takes nothing; a lock of this process itself does not show."""
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        kind, _, _, _, pid = _FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    # -- clock

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds: for timestamps and ages of records."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never go back: for intervals."""
        return time.monotonic()

    def wait(self, waiter: Waitable, seconds: float | None) -> bool:
        """Wait at most `seconds`; True if woken before."""
        return waiter.wait(seconds)


def _file_size_limit() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


# struct flock of Linux on 64 bit: type, whence, start, len, pid.
_FLOCK = struct.Struct("hhqqi4x")


def _read_text(path: str) -> str:
    """A file of /proc: its size is not known, so it is read until it ends."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "surrogateescape")


def settled(mtime_ns: int, files: Files) -> int:
    """A time of change to be noted and compared later; -1 where it is so young that a
    change to come may leave it as it is."""
    age_ms = files.now_ms() - mtime_ns // 1_000_000
    return -1 if 0 <= age_ms < _TICK_MS else mtime_ns
