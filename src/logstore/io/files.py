"""The one seam to the operating system: files, directories, locks and the clock.

Every system call that touches a store, and every reading of a clock, goes through one
`Files` object, so that a test can fail the n-th call, record the calls, or use an
in-memory disk instead. Names are opened relative to a directory descriptor, never
through symbolic links, so that a change to the path of a store while it is open cannot
lead a call elsewhere.

Methods raise plain `OSError`; the callers know what it means and convert it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import resource
import select
import stat as stat_module
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from logstore import _native as native
from logstore.io.byte_locks import FLOCK, ByteLocks, ProcessId, read_text
from logstore.io.links import Links
from logstore.io.stamps import (
    NO_FILE,
    FileInfo,
    FileStamp,
    LookNames,
    place_bytes,
    stamp_bytes,
    stamp_of,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = [
    "PRIVATE",
    "held_open",
    "replaced_calls",
    "Access",
    "Files",
    "ProcessId",
    "Report",
    "Space",
    "Waitable",
]

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
DIRECTORY_ENTRIES_MAX = 4_000_000

_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Waitable(Protocol):
    """An object that a thread can wait for."""

    def wait(self, seconds: float | None) -> bool: ...


class Space(NamedTuple):
    """The result of `Files.space`; -1 if the file system does not count it."""

    bytes: int
    free_bytes: int
    inodes: int
    free_inodes: int


class Access(NamedTuple):
    """Access to new files of a store, besides that of this process's user.

    Attributes:
        group: group permissions of a directory: bits out of 0o070.
        uid, gid: the owner that root gives them to; -1: unchanged.
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

_new: Final = tuple.__new__
_KIND: Final = stat_module.S_IFMT(0o777777)


def _info(numbers: Sequence[int]) -> FileInfo:
    """Build a `FileInfo` from the numbers of `native.stat`."""
    size, mtime_ns, ctime_ns, device, inode, uid, gid, mode = numbers
    kind = mode & _KIND
    # Without the call of `FileInfo`: a reader looks at files in each refresh.
    return _new(
        FileInfo,
        (
            size,
            mtime_ns,
            ctime_ns,
            device,
            inode,
            kind == stat_module.S_IFREG,
            kind == stat_module.S_IFDIR,
            uid,
            gid,
            mode & 0o777,
        ),
    )


class Files(ByteLocks, Links):
    """System calls of a store. Stateless: one object may serve any number of stores."""

    # -- directories

    def make_root(self, path: str) -> bool:
        """Create a directory with its parents; False if it exists already."""
        if os.path.isdir(path):
            return False
        parent = os.path.dirname(path)
        if parent and not os.path.isdir(parent):
            self.make_root(parent)
        fd = os.open(parent or ".", os.O_RDONLY | os.O_CLOEXEC)
        try:
            is_created = False
            with contextlib.suppress(FileExistsError):
                self.make_directory(fd, os.path.basename(path))
                is_created = True
            os.fsync(fd)
        finally:
            os.close(fd)
        return is_created

    def open_root(self, path: str) -> int:
        """Open the directory of a store (the only call that takes a whole path)."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_directory(self, dir_fd: int, name: str) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        return native.open_at(dir_fd, name, flags)

    def make_directory(self, dir_fd: int, name: str) -> None:
        """Create a directory of mode 0700, whatever the umask."""
        os.mkdir(name, DIRECTORY_MODE, dir_fd=dir_fd)
        # A umask may have removed bits of the owner; then it cannot be opened.
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

    def list(self, dir_fd: int, *, directories: bool = False) -> list[str]:
        """Names in a directory, sorted; with `directories` only directories.

        Raises an OSError with an explanation for more than `DIRECTORY_ENTRIES_MAX`
        names, before it takes memory for all of them.
        """
        # Opened again: two threads, or a process and its child, that list by the same
        # descriptor have one position in the directory, and each gets a part.
        own_fd = Files.open_directory(self, dir_fd, ".")
        try:
            with os.scandir(own_fd) as entries:
                names = [
                    entry.name
                    for entry in itertools.islice(entries, DIRECTORY_ENTRIES_MAX)
                    # Most file systems give the kind with the name: no call for each.
                    if not directories or entry.is_dir(follow_symlinks=False)
                ]
                if next(entries, None) is not None:
                    most = DIRECTORY_ENTRIES_MAX
                    raise OSError(f"more than {most} names in a directory")
        finally:
            os.close(own_fd)
        return sorted(names)

    def sync_directory(self, dir_fd: int) -> None:
        native.sync_all(dir_fd)

    # -- files

    def open(self, dir_fd: int, name: str, *, write: bool = False) -> int:
        """Open an existing regular file; EINVAL for any other kind of file."""
        flags = (os.O_RDWR if write else os.O_RDONLY) | _FLAGS
        return native.open_at(dir_fd, name, flags, is_file=True)

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        """Create a file of mode 0600, whatever the umask, for reading and writing;
        EEXIST if `exclusive` and the name exists.

        Without `exclusive`, anything of that name is unlinked first: logstore never
        writes into a file that another program put there.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _FLAGS
        try:
            return native.open_at(dir_fd, name, flags, FILE_MODE, is_file=True)
        except FileExistsError:
            if exclusive:
                raise
            native.unlink(dir_fd, name)
            return native.open_at(dir_fd, name, flags, FILE_MODE, is_file=True)

    def close(self, fd: int) -> None:
        """Close a descriptor. Its error is ignored: all data that must be durable was
        synced before, and the descriptor is closed in any case."""
        with contextlib.suppress(OSError):
            native.close(fd)

    def read(self, fd: int, buffer: WriteableBuffer, pos: int) -> int:
        """Fill `buffer` from byte `pos`; return the bytes read, fewer at the end."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            n = native.read_at(fd, view[done:], pos + done)
            if n == 0:
                break
            done += n
        return done

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        """Write all of `data` at byte `pos`; after an error, part may be written."""
        done, size = native.write_at(fd, data, pos), len(data)
        while done < size:
            done += native.write_at(fd, data[done:], pos + done)

    def sync(self, fd: int) -> None:
        native.sync_data(fd)

    def truncate(self, fd: int, size: int) -> None:
        native.truncate(fd, size)

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        """Reserve disk space for a range without changing the file's length.

        Returns False if the file system cannot; raises ENOSPC, EDQUOT or EFBIG if there
        is no space (also for RLIMIT_FSIZE, which fallocate itself does not check).
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
        """Let the system start writing a range to the disk, so that a later sync waits
        less. It makes nothing durable, so its error is ignored, too."""
        native.write_back(fd, pos, size)

    def rename(self, dir_fd: int, old: str, new: str) -> None:
        native.rename(dir_fd, old, dir_fd, new)

    def move(self, dir_fd: int, old: str, to_fd: int, new: str) -> None:
        """Rename a file into another directory of the same file system."""
        native.rename(dir_fd, old, to_fd, new)

    def unlink(self, dir_fd: int, name: str) -> None:
        native.unlink(dir_fd, name)

    def stat(self, fd: int) -> FileInfo:
        return _info(native.stat(fd))

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        return _info(native.stat(dir_fd, name))

    def look(self, dir_fd: int, name: str, names: LookNames) -> bytes:
        """The bytes of a `Look` at a directory in an open one, with other methods of
        this object. (`Directory.look` asks the core instead if none is replaced.)

        The directory is opened for this ("." is the open one), so all files in it are
        of the one that has the name at the call, and what was changed before the call
        is seen. Names that do not exist are no errors.

        Raises:
            FileNotFoundError: there is no directory of this name.
        """
        fd = dir_fd if name == "." else self.open_directory(dir_fd, name)
        try:
            place = self.stat(fd)
            parts = [place_bytes(place)]
            for entry_name in names.names:
                if entry_name == ".":
                    stamp: FileStamp | None = stamp_of(place)
                elif entry_name.startswith("../"):
                    stamp = self._stamp(dir_fd, entry_name.removeprefix("../"))
                else:
                    stamp = self._stamp(fd, entry_name)
                parts.append(stamp_bytes(stamp or NO_FILE))
        finally:
            if fd != dir_fd:
                self.close(fd)
        return b"".join(parts)

    def _stamp(self, dir_fd: int, name: str) -> FileStamp | None:
        try:
            return stamp_of(self.stat_name(dir_fd, name))
        except FileNotFoundError:
            return None

    def make_steps(
        self, steps: native.Steps, end: int, begin: int = 0
    ) -> tuple[int, OSError | None]:
        """Make some calls, from number `begin` on up to before `end`, in one
        call, until one has another result than it must.

        Returns the number of that call, and its error; None: an unexpected result.
        `end`: all had the right one.
        """
        kind = type(self)
        if (
            # One by one: a commit of a group is not to wait for a loop here.
            kind.write is _own_write
            and kind.sync is _own_sync
            and kind.read is _own_read
            and kind.stat_name is _own_stat_name
            and kind.lock_byte is _own_lock_byte
            and kind.unlock_byte is _own_unlock_byte
        ):
            done, error = steps.make(end, begin)
            return done, OSError(error, os.strerror(error)) if error else None
        # One of them is replaced: this is the same, call by call.
        for number in range(begin, end):
            step = steps[number]
            try:
                if step.kind == native.STEP_SYNC and step.size:
                    failed = steps.sync_one_by_one(self.sync)
                    if failed is not None:
                        return number, failed
                elif not self._made(step):
                    return number, None
            except OSError as error:
                return number, error
        return end, None

    def _made(self, step: native.Step) -> bool:
        """Make one of them; whether it has the result that it must have."""
        kind, fd, pos, data, size, device, inode = step
        if kind == native.STEP_LOCK:
            return self.lock_byte(fd, pos)
        if kind == native.STEP_UNLOCK:
            self.unlock_byte(fd, pos)
        elif kind == native.STEP_FILE:
            try:
                info = self.stat_name(fd, os.fsdecode(data))
            except FileNotFoundError:
                return False
            is_same = (info.device, info.inode) == (device, inode)
            return is_same and size in (-1, info.size)
        elif kind == native.STEP_STAMP:
            name = os.fsdecode(data[native.STAMP_BYTES :])
            stamp = self._stamp(fd, name) or NO_FILE
            return data.startswith(stamp_bytes(stamp))
        elif kind == native.STEP_BYTES:
            there = bytearray(len(data))
            return self.read(fd, there, pos) == len(data) and there == data
        elif kind == native.STEP_WRITE:
            self.write(fd, data, pos)
        else:
            self.sync(fd)
        return True

    def size(self, fd: int) -> int:
        return native.stat(fd)[0]

    def set_access(self, fd: int, access: Access) -> None:
        """Set the owner and the permissions of a new file or directory."""
        if access.uid >= 0:
            os.fchown(fd, access.uid, access.gid)
        mode = os.fstat(fd).st_mode
        permissions = access.file_mode
        if stat_module.S_ISDIR(mode):
            # Keep setgid, which passes the group on to new entries.
            permissions = access.directory_mode | (mode & 0o7000)
        os.fchmod(fd, permissions)

    def set_modified(self, fd: int, mtime_ns: int) -> None:
        """Set the time of the last change of a file, in ns since 1970."""
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def free_bytes(self, fd: int) -> int:
        """Bytes that this user may still write on the file system of `fd`."""
        return self.space(fd).free_bytes

    # -- the file system of a file, and this process

    def space(self, fd: int) -> Space:
        """Size and free space of the file system of `fd`, for this user."""
        result = os.fstatvfs(fd)
        counts = (result.f_files, result.f_favail) if result.f_files else (-1, -1)
        size = result.f_frsize
        return Space(result.f_blocks * size, result.f_bavail * size, *counts)

    def file_system(self, fd: int) -> int:
        """The number of the kind of file system (f_type of statfs); 0 unknown."""
        return max(native.fs_type(fd), 0)

    def mounts(self, fd: int) -> tuple[int, str]:
        """The id of the mount of `fd` (-1 unknown), and the mounts that this process
        sees, as in /proc/self/mountinfo ("" if there is no /proc)."""
        try:
            about = read_text(f"/proc/self/fdinfo/{fd}")
            table = read_text("/proc/self/mountinfo")
        except OSError:
            return -1, ""
        match = re.search(r"^mnt_id:\s*([0-9]+)$", about, re.MULTILINE)
        return (int(match[1]) if match else -1), table

    def user(self) -> int:
        """The effective user id of this process."""
        return os.geteuid()

    def user_tables(self) -> tuple[str, str]:
        """The contents of /etc/passwd and /etc/group ("" without them). No service for
        names is asked: that would take a socket."""
        try:
            return read_text("/etc/passwd"), read_text("/etc/group")
        except OSError:
            return "", ""

    def resource_limits(self) -> tuple[int | None, int | None]:
        """(open files, bytes of a file) that this process may have; None: no limit."""
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = None if soft == resource.RLIM_INFINITY else soft
        return files, _file_size_limit()

    # -- lock

    def lock(self, fd: int) -> int | None:
        """Take Kafka's lock (a POSIX record lock). Returns None if taken, else the
        holder's pid (0 if it is unknown)."""
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
        """Take the lock that belongs to an open file (`flock`); False if another open
        file has it. Also True if the file system has no such locks."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
        return True

    def unlock_file(self, fd: int) -> None:
        """Release that lock, also for a child of a fork that shares the open file."""
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)

    def lock_holder(self, fd: int) -> int | None:
        """The pid that holds the lock (0 if it is unknown); None if it is free. Takes
        no lock; does not report a lock of this process itself."""
        asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        answer = fcntl.fcntl(fd, fcntl.F_GETLK, asked)
        kind, _, _, _, pid = FLOCK.unpack(answer)
        return None if kind == fcntl.F_UNLCK else max(pid, 0)

    # -- clock

    def now_ms(self) -> int:
        """Wall clock, Unix milliseconds: for timestamps and ages of records."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never decrease: for intervals."""
        return time.monotonic()

    def wait(self, waiter: Waitable, seconds: float | None) -> bool:
        """Wait at most `seconds`; True if woken before."""
        return waiter.wait(seconds)

    # -- changes by other processes

    def new_watch(self) -> int:
        """A descriptor that reports changes of the files given to `watch`."""
        return native.new_watch()

    def watch(
        self, fd: int, watched_fd: int, what: int = native.WATCH_ENTRIES, name: str = ""
    ) -> int:
        """Report what happens to an open file or directory, or to one in it that has
        this name, in addition to earlier requests; only changes that are
        made on this host. Returns the number of the watch, the same for the same one.

        Args:
            what: by default each entry of a directory that is written to, made, renamed
                or removed.
        """
        path = f"/proc/self/fd/{watched_fd}"
        return native.add_watch(fd, f"{path}/{name}" if name else path, what)

    def unwatch(self, fd: int, number: int) -> None:
        """Report no more changes of a directory or file."""
        native.remove_watch(fd, number)

    def reports(self, fd: int) -> Sequence[Report] | None:
        """The reports since the last call; None: the system had no room for all of
        them."""
        reports: list[Report] = []
        while True:
            try:
                data = os.read(fd, _REPORTS_BYTES)
            except BlockingIOError:
                break
            reports += _reports_in(data)
            if len(data) < _REPORTS_BYTES // 2:
                break  # these were all
        return _unless_lost(reports)

    def reports_within(
        self, fd: int, seconds: float | None, event: int
    ) -> Sequence[Report] | None:
        """Wait as `reports`, but at most `seconds` until there are any, or `set_event`
        was called, which is forgotten then. Reports for which one read has no room are
        left for the next call."""
        if keeps(type(self), ("reports", "wait_for_any", "clear_event")):
            return _unless_lost(_reports_in(native.read_reports(fd, seconds, event)))
        # One of them is replaced: this is the same, call by call.
        ready = self.wait_for_any([fd, event], seconds)
        if event in ready:
            self.clear_event(event)
        return self.reports(fd) if fd in ready else ()

    def new_event(self) -> int:
        """A descriptor that is readable once `set_event` was called."""
        return os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def set_event(self, fd: int) -> None:
        """Wake the threads that wait for an event, now or later."""
        os.eventfd_write(fd, 1)

    def clear_event(self, fd: int) -> None:
        """Forget that `set_event` was called."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(fd)

    def wait_for_any(self, fds: Iterable[int], seconds: float | None) -> Sequence[int]:
        """Wait at most `seconds` for readable descriptors; returns them."""
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return [fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)]


def _file_size_limit() -> int | None:
    soft = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


# struct inotify_event without its name: number of the watch, what happened, cookie,
# bytes of the name. The number of reports for which there was no room.
_REPORT = struct.Struct("iIII")
_LOST = -1
_REPORTS_BYTES = 1 << 16
# Number of the watch, what has happened (bits), name of the entry or "".
Report = tuple[int, int, str]


def _reports_in(data: bytes) -> list[Report]:
    """The reports that a read has returned."""
    reports: list[Report] = []
    pos = 0
    while pos < len(data):
        number, changes, _, name_bytes = _REPORT.unpack_from(data, pos)
        pos += _REPORT.size + name_bytes
        # A report of a watched file has no name.
        name = data[pos - name_bytes : pos].rstrip(b"\0") if name_bytes else b""
        reports.append((number, changes, os.fsdecode(name) if name else ""))
    return reports


def _unless_lost(reports: list[Report]) -> Sequence[Report] | None:
    return None if _LOST in [report[0] for report in reports] else reports


# Methods for which C makes the same calls by itself (`native.PreparedAppend`), in its
# order.
_OWN_CALLS: Final = (Files.lock, Files.monotonic, Files.now_ms, Files.sync, Files.write)


# Methods for which C makes the same calls in `Files.make_steps`.
_own_write: Final = Files.write
_own_sync: Final = Files.sync
_own_read: Final = Files.read
_own_stat_name: Final = Files.stat_name
_own_lock_byte: Final = Files.lock_byte
_own_unlock_byte: Final = Files.unlock_byte


def replaced_calls(files: Files) -> tuple[Callable[..., Any] | None, ...]:
    """The methods `lock`, `monotonic`, `now_ms`, `sync` and `write` of an object that
    has replaced them: C calls these; None for the others."""
    methods = [getattr(files, own.__name__) for own in _OWN_CALLS]
    return tuple(
        None if getattr(method, "__func__", None) is own else method
        for method, own in zip(methods, _OWN_CALLS, strict=True)
    )


# What `keeps` has found out: readers ask it in each look at a log.
_kept: Final[dict[tuple[type[Files], tuple[str, ...]], bool]] = {}


def keeps(kind: type[Files], methods: tuple[str, ...]) -> bool:
    """Whether a class has replaced none of some methods: then one call of C may do what
    they do together."""
    known = _kept.get((kind, methods))
    if known is None:
        names = ("__getattribute__", *methods)
        known = all(getattr(kind, name) is getattr(Files, name) for name in names)
        _kept[kind, methods] = known
    return known


def held_open(files: Files, fd: int) -> native.OpenFile:
    """An open descriptor; dropping the last reference to the result closes it."""
    is_own = type(files).close is Files.close
    return native.OpenFile(fd, None if is_own else files.close)
