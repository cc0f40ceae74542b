"""Damage to files, and failures of the system calls of a store.

Functions damage a file of a store that is not open (or of a copy of one that is).
`FaultyFiles` is a `Files` that counts calls and fails chosen ones.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import crc32c
import pytest
import xxhash

from logstore import _native as native
from logstore.io.files import Files
from logstore.io.layout import LOCK_RECORD
from logstore.io.stamps import FileInfo

# ---------------------------------------------------------------- files


def overwrite(path: Path, pos: int, data: bytes) -> None:
    """Put `data` at byte `pos`."""
    with path.open("r+b") as file:
        file.seek(pos)
        file.write(data)


def flip_bit(path: Path, bit: int) -> None:
    """Flip one bit, counted from the start of the file."""
    byte = path.read_bytes()[bit // 8]
    overwrite(path, bit // 8, bytes([byte ^ (1 << bit % 8)]))


def cut(path: Path, size: int) -> None:
    """Keep the first `size` bytes."""
    os.truncate(path, size)


def zero(path: Path, begin: int, end: int) -> None:
    """Fill bytes [begin, end) with zeros; the file grows if it must."""
    overwrite(path, begin, bytes(end - begin))


def restart_machine(store: Path) -> None:
    """Make the owner file of a store one of an earlier boot: after a power cut, any
    page that was not synced may be missing. A damaged owner file is not changed."""
    path = store / ".logstore-owner"
    try:
        value = json.loads(path.read_bytes().partition(b"\n")[2])
    except (FileNotFoundError, ValueError):
        return
    body = json.dumps({**value, "boot": "00" * 16}, separators=(",", ":")).encode()
    path.write_bytes(b"xxh64 %016x\n%s\n" % (xxhash.xxh64_intdigest(body), body))


def append_garbage(path: Path, data: bytes = b"\xa5\x5a garbage \xff" * 7) -> None:
    """Append bytes that are not a batch."""
    with path.open("ab") as file:
        file.write(data)


class Frame(NamedTuple):
    """A batch in a `.log` file."""

    pos: int
    size: int
    offset: int
    magic: int


def frames_in(data: bytes) -> list[Frame]:
    """The batches in intact bytes, by their length fields alone."""
    frames = []
    pos = 0
    while pos < len(data):
        offset = int.from_bytes(data[pos : pos + 8], "big", signed=True)
        size = 12 + int.from_bytes(data[pos + 8 : pos + 12], "big")
        frames.append(Frame(pos, size, offset, data[pos + 16]))
        pos += size
    assert pos == len(data)
    return frames


def frames(path: Path) -> list[Frame]:
    """The batches of an intact `.log` file."""
    return frames_in(path.read_bytes())


def fixed_crc(batch: bytes) -> bytes:
    """The same batch with the checksum that belongs to its bytes."""
    if batch[16] == 2:
        crc = crc32c.crc32c(batch[21:])
        return batch[:17] + crc.to_bytes(4, "big") + batch[21:]
    crc = zlib.crc32(batch[16:])
    return batch[:12] + crc.to_bytes(4, "big") + batch[16:]


def fix_crc(path: Path, frame: Frame) -> None:
    """Make the checksum of a batch right for its current contents."""
    data = path.read_bytes()
    overwrite(path, frame.pos, fixed_crc(data[frame.pos : frame.pos + frame.size]))


def logs_in(partition: Path) -> list[Path]:
    """The `.log` files of a partition, oldest first."""
    return sorted(partition.glob("*.log"))


def snapshot_of(path: Path) -> dict[str, tuple[int, int]]:
    """Names, sizes and modification times under a directory, itself included, except
    for the file in which each owner describes itself."""
    return {
        str(p.relative_to(path)): (p.lstat().st_size, p.lstat().st_mtime_ns)
        for p in [path, *path.rglob("*")]
        if p.name != LOCK_RECORD
    }


def crash(store: Path, to: Path) -> Path:
    """Copy a store that is open, as a kill at this moment would leave it."""
    shutil.copytree(store, to, symlinks=True)
    return to


# ---------------------------------------------------------------- calls

_COUNTED = (
    "create", "list", "lock", "make_directory", "move", "open", "open_directory",
    "read", "remove_directory", "rename", "reserve", "set_modified", "stat",
    "stat_name", "sync",
    "sync_directory", "truncate", "unlink", "write",
)  # fmt: skip


class _Fault:
    def __init__(
        self, error: int, nth: int, times: int, name: str, done: bool, short: int
    ) -> None:
        self.error = error
        self.skip = nth - 1
        self.times = times
        self.name = name
        self.done = done
        self.short = short


# The thread of an owner that looks for requests of other processes, whenever it likes.
SERVES = "requests in "


class FaultyFiles(Files):
    """Counts calls, and fails the calls that `fail` names, except in the thread that
    serves other processes.

    Attributes:
        counts: calls by name of the method.
        calls: (method, name of the file) of each call, in order.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.calls: list[tuple[str, str]] = []
        self.before: Callable[[str, str], None] | None = None
        self._names: dict[int, str] = {}
        self._faults: dict[str, list[_Fault]] = {}

    def fail(
        self,
        method: str,
        error: int = errno.EIO,
        *,
        nth: int = 1,
        times: int = 1 << 60,
        name: str = "",
        done: bool = False,
        short: int = -1,
    ) -> None:
        """Fail the n-th call from now on, and `times` - 1 after it.

        Args:
            name: only calls on files whose name ends so.
            done: make the call first, and then fail.
            short: of a write, the number of bytes written before it fails.
        """
        fault = _Fault(error, nth, times, name, done, short)
        self._faults.setdefault(method, []).append(fault)

    def at_call(self, nth: int, act: Callable[[], object]) -> None:
        """Call `act` once: before the n-th call from now on."""
        left = nth

        def before(method: str, name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                act()

        self.before = before

    def heal(self) -> None:
        """Fail no more calls."""
        self._faults.clear()

    def forget(self) -> None:
        """Count from 0 again."""
        self.counts.clear()
        self.calls.clear()

    def count(self, method: str, name: str = "") -> int:
        """Calls of a method on files whose name ends so."""
        return sum(m == method and n.endswith(name) for m, n in self.calls)

    def _fault(self, method: str, name: str) -> _Fault | None:
        for fault in self._faults.get(method, ()):
            if not name.endswith(fault.name):
                continue
            if fault.skip > 0:
                fault.skip -= 1
            elif fault.times > 0:
                fault.times -= 1
                return fault
        return None

    def _name(self, method: str, args: tuple[Any, ...]) -> str:
        if method in ("make_directory", "remove_directory", "unlink", "stat_name"):
            return str(args[1])
        if method in ("open", "create", "open_directory", "rename", "move"):
            return str(args[1])
        return self._names.get(args[0], "") if args else ""

    def close(self, fd: int) -> None:
        self._names.pop(fd, None)
        super().close(fd)


def _wrapped(method: str) -> Callable[..., Any]:
    original = getattr(Files, method)

    def call(self: FaultyFiles, *args: Any, **options: Any) -> Any:
        if threading.current_thread().name.startswith(SERVES):
            return original(self, *args, **options)
        name = self._name(method, args)
        self.counts[method] += 1
        self.calls.append((method, name))
        if self.before is not None:
            self.before(method, name)
        fault = self._fault(method, name)
        if fault is not None and fault.short >= 0:
            fd, data, pos = args
            original(self, fd, bytes(data)[: fault.short], pos)
        elif fault is None or fault.done:
            result = original(self, *args, **options)
            if method in ("open", "create", "open_directory"):
                self._names[result] = name
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error))
        return result

    call.__name__ = method
    return call


for _method in _COUNTED:
    setattr(FaultyFiles, _method, _wrapped(_method))


class Unsynced(Files):
    """Syncs nothing: makes tests faster that do not depend on durability."""

    def sync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, dir_fd: int) -> None:
        """Do nothing."""


def stop_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off syncs like `Unsynced`, for all kinds of `Files`."""
    for name in ("sync_data", "sync_all"):
        monkeypatch.setattr(native, name, lambda fd: None)


class FullDisk(FaultyFiles):
    """A disk without a free byte: files can be created, renamed, overwritten and
    removed, but none can grow."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False

    def write(self, fd: int, data: Any, pos: int) -> None:
        self._check(pos + memoryview(data).nbytes > os.fstat(fd).st_size)
        super().write(fd, data, pos)

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        self._check(pos + size > os.fstat(fd).st_size)
        return super().reserve(fd, pos, size)

    def free_bytes(self, fd: int) -> int:
        return 0 if self.full else super().free_bytes(fd)

    def _check(self, grows: bool) -> None:
        if self.full and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FixedClock(FaultyFiles):
    """A wall clock that stands still at a given time."""

    def __init__(self, now_ms: int) -> None:
        super().__init__()
        self.now = now_ms

    def now_ms(self) -> int:
        return self.now


class CountedReads(Files):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, fd: int, buffer: Any, pos: int) -> int:
        n = super().read(fd, buffer, pos)
        self.read_bytes += n
        return n


class CoarseTimes(FaultyFiles):
    """A file system with coarse timestamps, as many have."""

    def __init__(self, step_ns: int) -> None:
        super().__init__()
        self.step_ns = step_ns

    def stat(self, fd: int) -> FileInfo:
        return self._coarse(super().stat(fd))

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        return self._coarse(super().stat_name(dir_fd, name))

    def _coarse(self, info: FileInfo) -> FileInfo:
        return info._replace(
            mtime_ns=info.mtime_ns // self.step_ns * self.step_ns,
            ctime_ns=info.ctime_ns // self.step_ns * self.step_ns,
        )


def move_batches(log: Path, offsets: Sequence[int]) -> list[int]:
    """Give the batches of a log these offsets, which no checksum covers; returns their
    positions."""
    places = [frame.pos for frame in frames(log)]
    data = bytearray(log.read_bytes())
    for position, offset in zip(places, offsets, strict=True):
        data[position : position + 8] = offset.to_bytes(8, "big")
    log.write_bytes(data)
    return places
