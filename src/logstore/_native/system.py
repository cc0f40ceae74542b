"""System calls of the C core (``ls_sys.c``). A refusal raises `OSError`, as with
the functions of `os`, and like those they are made again if a signal came first."""

from __future__ import annotations

import errno
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

from logstore._native._ls import ffi, lib
from logstore._native.core import WATCH_ENTRIES, allocate, bytes_of, pointer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

_INT32_MAX: Final = (1 << 31) - 1
# Of the names of entries: at least one fits.
REPORTS_BYTES: Final = 4096


# ------------------------------------------------------------------ bytes of a file


def read_at(fd: int, buffer: WriteableBuffer, pos: int) -> int:
    """Read into a buffer at byte `pos` of a file, as ``os.preadv`` of one buffer; what
    is cached is read with the GIL.

    Raises:
        OSError: the system refuses.
    """
    view, result = memoryview(buffer), -errno.EINTR
    # As `pointer` and `_made`, without their calls: a reader asks for each chunk.
    out = ffi.cast("uint8_t *", ffi.from_buffer("uint8_t[]", view))
    while result == -errno.EINTR:
        result = lib.ls_sys_read(fd, out, view.nbytes, pos)
    if result < 0:
        _refuse(result)
    return result


def write_at(fd: int, buffer: ReadableBuffer, pos: int) -> int:
    """Write a buffer at byte `pos` of a file, as ``os.pwrite``; little is written with
    the GIL.

    Raises:
        OSError: the system refuses.
    """
    if type(buffer) is not bytes:
        size = memoryview(buffer).nbytes
        return _made(lib.ls_sys_write, (fd, pointer(buffer), size, pos))
    size, result = len(buffer), -errno.EINTR
    # As `_made`, without its call: most small writes are of bytes.
    while result == -errno.EINTR:
        result = lib.ls_sys_write(fd, buffer, size, pos)
    if result < 0:
        _refuse(result)
    return result


# ------------------------------------------------------------------ not in os


def reserve(fd: int, pos: int, size: int) -> int:
    """fallocate with KEEP_SIZE; 0 or a negative errno."""
    return int(lib.ls_sys_reserve(fd, pos, size))


def write_back(fd: int, pos: int, size: int) -> int:
    """sync_file_range, which only starts the writing; 0 or a negative errno."""
    return int(lib.ls_sys_write_back(fd, pos, size))


def fs_type(fd: int) -> int:
    """The f_type of statfs, or a negative errno."""
    return int(lib.ls_sys_fs_type(fd))


def new_watch() -> int:
    """inotify_init1, not blocking.

    Raises:
        OSError: the system refuses.
    """
    return _made(lib.ls_sys_new_watch, ())


def add_watch(fd: int, path: str, what: int = WATCH_ENTRIES) -> int:
    """inotify_add_watch for events of a directory or a file, in addition to those
    it reports already: the number of the watch, the same for the same one.

    Raises:
        OSError: the system refuses.
    """
    return _made(lib.ls_sys_add_watch, (fd, os.fsencode(path), what))


def remove_watch(fd: int, number: int) -> None:
    """inotify_rm_watch.

    Raises:
        OSError: there is no such watch: its directory was removed, perhaps.
    """
    _made(lib.ls_sys_remove_watch, (fd, number))


def read_reports(fd: int, seconds: float | None, event: int = -1) -> bytes:
    """Wait at most `seconds` (None: no limit) until there are reports of watches,
    or until an eventfd is set, which is cleared then; and read those reports that
    `REPORTS_BYTES` have room for. Nothing: the wait has ended otherwise.

    Raises:
        OSError: the system refuses.
    """
    out, done = allocate("uint8_t[]", REPORTS_BYTES), -errno.EINTR
    end = None if seconds is None else time.monotonic() + seconds
    while done == -errno.EINTR:
        left_ms = -1
        if end is not None and seconds is not None:
            # Rounded up: the end would come in ever smaller steps.
            left_ms = max(min(math.ceil(seconds * 1000), _INT32_MAX), 0)
        done = lib.ls_sys_read_reports(fd, event, left_ms, out, REPORTS_BYTES)
        if end is not None and done == -errno.EINTR:
            seconds = end - time.monotonic()
    if done < 0:
        _refuse(done)
    return bytes_of(out, done)


# ------------------------------------------------------------------ many at once

STEP_LOCK: Final[int] = lib.LS_STEP_LOCK
STEP_UNLOCK: Final[int] = lib.LS_STEP_UNLOCK
STEP_FILE: Final[int] = lib.LS_STEP_FILE
STEP_BYTES: Final[int] = lib.LS_STEP_BYTES
STEP_WRITE: Final[int] = lib.LS_STEP_WRITE
STEP_SYNC: Final[int] = lib.LS_STEP_SYNC
STEP_STAMP: Final[int] = lib.LS_STEP_STAMP
# Bytes of a stamp, as `look` gives it.
STAMP_BYTES: Final = 32


class Step(NamedTuple):
    """A system call, and what must come of it (``ls_step``).

    Attributes:
        kind: ``STEP_LOCK``: the byte `pos` is free, and is locked for this open file;
            ``STEP_UNLOCK``: that lock is given back; ``STEP_FILE``: the file of a
            directory has these numbers; ``STEP_BYTES``: `data` is there at `pos`, at
            most 256 bytes; ``STEP_WRITE``: `data` is written there; ``STEP_SYNC``: the
            file, or the files of `Steps.set_files`; ``STEP_STAMP``: the file of a
            directory has this stamp.
        fd: of the file; of a directory, with ``STEP_FILE`` and ``STEP_STAMP``.
        data: with ``STEP_FILE``, the name; with ``STEP_STAMP``, the stamp and the name.
        size: that of the file; -1: any.
    """

    kind: int
    fd: int
    pos: int = 0
    data: bytes = b""
    size: int = -1
    device: int = 0
    inode: int = 0


class Steps:
    """System calls made in order, until one has an unexpected result; for one thread at
    a time.

    Raises:
        ValueError: a name has a NUL.
    """

    __slots__ = ("_c", "_data", "_error", "_files", "_results")

    def __init__(self, steps: Sequence[Step]) -> None:
        # Of the syncs of several files: their descriptors, and the results.
        self._files = self._results = ffi.new("int32_t[]", 0)
        self._c = ffi.new("ls_step[]", len(steps))
        self._data: list[bytes | bytearray] = [b""] * len(steps)
        self._error = ffi.new("int32_t *")
        for number, step in enumerate(steps):
            c_step = self._c[number]
            c_step.kind, c_step.fd, c_step.device, c_step.inode = (
                step.kind, step.fd, step.device, step.inode,
            )  # fmt: skip
            if step.kind in _NAMED:
                begin = STAMP_BYTES if step.kind == STEP_STAMP else 0
                if b"\0" in step.data[begin:]:
                    raise ValueError("embedded null byte")
                self.set_bytes(number, step.data + b"\0")
                if step.kind == STEP_FILE:
                    c_step.size = step.size
            else:
                self.set_bytes(number, step.data, step.pos)

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, number: int) -> Step:
        step, held = self._c[number], self._data[number]
        data = bytes(held[:-1] if step.kind in _NAMED else held)
        return Step(
            step.kind, step.fd, step.pos, data, step.size, step.device, step.inode
        )

    def set_bytes(
        self, number: int, data: bytes | bytearray, pos: int | None = None
    ) -> None:
        """Other data of a step, and another position; None: the same. A bytearray's
        content at the time of the call counts."""
        step = self._c[number]
        # The reference keeps the bytes in memory.
        self._data[number] = data
        step.data, step.size = ffi.from_buffer("uint8_t[]", data), len(data)
        if pos is not None:
            step.pos = pos

    def set_stamp(self, number: int, stamp: bytes) -> None:
        """Another stamp that a file must have."""
        self.set_bytes(number, stamp + self._data[number][STAMP_BYTES:])

    def set_append(self, number: int, data: bytes, pos: int) -> None:
        """Set the bytes that the step after one that looks at a file appends: the file
        must end at `pos`."""
        self._c[number].size = pos
        write = self._c[number + 1]
        # The reference keeps the bytes in memory.
        self._data[number + 1] = data
        write.data, write.size = ffi.from_buffer("uint8_t[]", data), len(data)
        write.pos = pos

    def set_files(self, number: int, fds: Sequence[int]) -> None:
        """The files that a ``STEP_SYNC`` syncs, all at the same time."""
        if len(fds) != len(self._files):
            self._files = ffi.new("int32_t[]", len(fds))
            self._results = ffi.new("int32_t[]", len(fds))
        step = self._c[number]
        for index, fd in enumerate(fds):
            self._files[index], self._results[index] = fd, -errno.ECANCELED
        step.data, step.size = ffi.cast("uint8_t *", self._files), 4 * len(fds)
        step.results = self._results

    def sync_results(self) -> list[int]:
        """The errors of these syncs as errno; 0: no error; ECANCELED: the file
        was not synced."""
        return [-result for result in self._results]

    def sync_one_by_one(self, sync: Callable[[int], None]) -> OSError | None:
        """Sync these files by a function, which may raise `OSError`, and note what
        comes of it. Returns the first error."""
        first: OSError | None = None
        for index, fd in enumerate(self._files):
            try:
                sync(fd)
                self._results[index] = 0
            except OSError as error:
                self._results[index] = -(error.errno or errno.EIO)
                first = first or error
        return first

    def make(self, end: int, begin: int = 0) -> tuple[int, int]:
        """Make the steps from number `begin` on, up to before `end`: (the number of the
        first without the result that it must have; `end`: all had it; its error as
        errno; 0: another result than required)."""
        done = lib.ls_sys_steps(self._c + begin, end - begin, self._error)
        return begin + done, self._error[0]


_NAMED: Final = (STEP_FILE, STEP_STAMP)


# ------------------------------------------------------------------ as in os


# `os` has them all. After one of these, a thread that reads records gives the
# interpreter lock back at once (ls_gil.h). They raise the audit events of `os`.


def open_at(
    dir_fd: int, name: str, flags: int, mode: int = 0o777, *, is_file: bool = False
) -> int:
    """Open a name of an open directory, as ``os.open``; the descriptor.

    Args:
        is_file: it must be a regular file; one that this makes has just this mode.

    Raises:
        OSError: the system refuses; EINVAL: it is not a regular file, and must be.
    """
    sys.audit("open", name, None, flags)
    call = lib.ls_sys_open_file if is_file else lib.ls_sys_open
    encoded, fd = _encoded(name), -errno.EINTR
    try:
        while fd == -errno.EINTR:
            fd = call(dir_fd, encoded, flags, mode)
        if fd < 0:
            _refuse(fd, name)
        return fd
    except BaseException:
        if fd >= 0:
            lib.ls_sys_close(fd)  # an interrupt came before the caller has it
        raise


def read_name(dir_fd: int, name: str, most: int) -> tuple[int, bytes]:
    """Open a regular file of a directory, read it if it has at most `most` bytes, and
    close it: how long it is, and its bytes.

    Raises:
        OSError: the system refuses; EINVAL: it is not a regular file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    sys.audit("open", name, None, flags)
    encoded, out, size = (
        _encoded(name),
        allocate("uint8_t[]", most),
        ffi.new("int64_t *"),
    )
    done = -errno.EINTR
    while done == -errno.EINTR:
        done = lib.ls_sys_read_name(dir_fd, encoded, out, most, size)
    if done < 0:
        _refuse(done, name)
    return size[0], ffi.buffer(out, done)[:]


def close(fd: int) -> None:
    """Close a descriptor, which is closed even if the system reports an error. The call
    is not repeated after a signal: the number may belong to another file by then.

    Raises:
        OSError: the system reports one, but for EINTR.
    """
    result = lib.ls_sys_close(fd)
    if result not in (0, -errno.EINTR):
        _refuse(result)


def sync_data(fd: int) -> None:
    """Sync data as ``os.fdatasync``. Raises: OSError."""
    _made(lib.ls_sys_sync, (fd,))


def sync_all(fd: int) -> None:
    """Sync as ``os.fsync``. Raises: OSError."""
    _made(lib.ls_sys_sync_all, (fd,))


def truncate(fd: int, size: int) -> None:
    """Set the size as ``os.ftruncate``. Raises: OSError."""
    sys.audit("os.truncate", fd, size)
    _made(lib.ls_sys_truncate, (fd, size))


def rename(from_fd: int, old: str, to_fd: int, new: str) -> None:
    """Rename as ``os.rename``, between open directories. Raises: OSError."""
    sys.audit("os.rename", old, new, from_fd, to_fd)
    names = _encoded(old), _encoded(new)
    _made(lib.ls_sys_rename, (from_fd, names[0], to_fd, names[1]), old, new)


def unlink(dir_fd: int, name: str) -> None:
    """Remove as ``os.unlink``. Raises: OSError."""
    sys.audit("os.remove", name, dir_fd)
    _made(lib.ls_sys_unlink, (dir_fd, _encoded(name)), name)


def stat(fd: int, name: str | None = None) -> Sequence[int]:
    """Examine an open file, or an entry of an open directory; a link is not followed.

    Returns size, times of modification and change in ns, device, inode, uid, gid, mode.

    Raises:
        OSError: the system refuses.
    """
    out = ffi.new("int64_t[8]")
    encoded, result = ffi.NULL if name is None else _encoded(name), -errno.EINTR
    # As `_made`, without its call: there are many of these.
    while result == -errno.EINTR:
        result = lib.ls_sys_stat(fd, encoded, out)
    if result < 0:
        _refuse(result, name)
    return ffi.unpack(out, 8)  # type: ignore[no-any-return]


def _encoded(name: str) -> bytes:
    # All encodings of file names agree in these characters.
    encoded = name.encode("ascii") if name.isascii() else os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


def _made(
    call: Callable[..., int], arguments: tuple[Any, ...], *names: str | None
) -> int:
    """The result of a call, which is made again if a signal came first."""
    result = -errno.EINTR
    while result == -errno.EINTR:
        result = call(*arguments)
    if result < 0:
        _refuse(result, *names)
    return result


def _refuse(result: int, name: str | None = None, other: str | None = None) -> NoReturn:
    raise OSError(-result, os.strerror(-result), name, None, other)


def _forget_returning() -> None:
    """In the child of a fork: the threads that were counted do not exist there."""
    lib.ls_sys_returning_writers(-lib.ls_sys_returning_writers(0))


os.register_at_fork(after_in_child=_forget_returning)
