"""Locks on single bytes of files, and the process that has them: a part of the seam to
the operating system (`logstore.io.files`)."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["FLOCK", "ByteLocks", "ProcessId", "read_text"]

# Of Linux 3.15 and later; not every build of Python names them.
_F_OFD_GETLK: Final = 36
_F_OFD_SETLK: Final = 37

# struct flock of Linux on 64 bit: type, whence, start, len, pid.
FLOCK: Final = struct.Struct("hhqqi4x")


def read_text(path: str) -> str:
    """Read a file of /proc: its size is unknown, so read until it ends."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
    finally:
        os.close(fd)
    return b"".join(parts).decode("utf-8", "surrogateescape")


class ProcessId(NamedTuple):
    """The result of `Files.process_id`.

    Attributes:
        pid: its number, which another process may have later.
        start: when it began, in clock ticks since the machine started; 0 unknown.
        boot: 16 bytes, others after each start of the machine; zeros: unknown.
    """

    pid: int
    start: int
    boot: bytes


class ByteLocks:
    """Locks that belong to an open file (OFD locks): they exclude two open files of one
    process, too, and a child of a fork shares them."""

    def lock_byte(self, fd: int, pos: int) -> bool:
        """Take the exclusive lock on one byte, which belongs to the open file (an OFD
        lock); False if another open file has it. A byte need not exist in the file."""
        return self._set_byte(fd, pos, fcntl.F_WRLCK)

    def unlock_byte(self, fd: int, pos: int) -> None:
        """Release that lock; one that is not held is not an error."""
        self._set_byte(fd, pos, fcntl.F_UNLCK)

    def _set_byte(self, fd: int, pos: int, kind: int) -> bool:
        asked = FLOCK.pack(kind, os.SEEK_SET, pos, 1, 0)
        try:
            fcntl.fcntl(fd, _F_OFD_SETLK, asked)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            return False
        return True

    def locked_bytes(self, fd: int, begin: int, end: int) -> Sequence[int]:
        """The bytes in [begin, end) on which other open files have a lock, in order.
        Takes no lock; a file that is open for reading is enough."""
        locked_numbers: list[int] = []
        ranges = [(begin, end)]
        while ranges:
            first, stop = ranges.pop()
            if first >= stop:
                continue
            asked = FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, stop - first, 0)
            answer = fcntl.fcntl(fd, _F_OFD_GETLK, asked)
            kind, _, start, length, _ = FLOCK.unpack(answer)
            if kind == fcntl.F_UNLCK:
                continue
            # One of the locks in the range, which may reach beyond it; 0: to the end.
            low = max(start, first)
            high = min(start + length, stop) if length else stop
            locked_numbers += range(low, high)
            ranges += [(first, low), (high, stop)]
        return sorted(locked_numbers)

    def forget_cached(self, fd: int, pos: int, size: int) -> None:
        """Let the next read of a range come from the disk, if the system can: a
        page that was not written back stays. An error is ignored, too."""
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, pos, max(size, 0), os.POSIX_FADV_DONTNEED)

    def boot_id(self) -> bytes:
        """16 bytes that are others after each start of the machine; empty: unknown."""
        return _boot_id()

    def process_id(self) -> ProcessId:
        """Identifies this process among all that this machine ever runs."""
        pid = os.getpid()
        return ProcessId(pid, _start_of("self"), self.boot_id() or bytes(16))

    def host(self) -> str:
        """The name of this machine."""
        return os.uname().nodename

    def is_running(self, process: ProcessId) -> bool:
        """Whether a process is visibly still running: one of another user
        may be hidden."""
        boot = self.process_id().boot
        return process.boot == boot and process.start == _start_of(process.pid) != 0


@functools.lru_cache(maxsize=1)
def _boot_id() -> bytes:
    try:
        text = read_text("/proc/sys/kernel/random/boot_id").strip().replace("-", "")
        boot_id = bytes.fromhex(text)
    except (OSError, ValueError):
        return b""
    return boot_id if len(boot_id) == 16 else b""


def _start_of(pid: int | str) -> int:
    """When a process began, in clock ticks since the machine started; 0: unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # The name in parentheses may have spaces, and more of them.
        after = read_text(f"/proc/{pid}/stat").rpartition(")")[2]
        return int(after.split()[19])
    return 0
