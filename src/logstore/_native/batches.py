"""Walks over the headers of batches; the records are not read."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from logstore._native._ls import ffi, lib
from logstore._native.core import (
    CHECK_ALL,
    OFFSET_MAX,
    OFFSET_UNKNOWN,
    STOP_FULL,
    STOP_OFFSET,
    BatchHeader,
    NativeError,
    allocate,
    native_error,
)

# The fields of `ls_batch`, the same as in `BatchHeader`, and four bytes of padding.
_BATCH: Final = struct.Struct("=7q4iI6i4x")


def headers_of(batches: Any, count: int = 1) -> list[BatchHeader]:
    """The headers of an array of `count` ``ls_batch``."""
    data = ffi.buffer(batches, count * _BATCH.size)
    return [*map(BatchHeader._make, _BATCH.iter_unpack(data))]


class Scan(NamedTuple):
    """The result of one walk over batch headers."""

    headers: list[BatchHeader]
    pos: int  # where the walk ended: the first byte not walked over
    last_offset: int
    stop: int
    error: NativeError | None


def scan_batches(
    data: Any,
    size: int,
    *,
    pos: int = 0,
    last_offset: int = -1,
    checks: int = CHECK_ALL,
    count_max: int = 1024,
) -> Scan:
    """Headers of up to `count_max` batches of data[pos, size).

    `data` is a pointer or a `Buffer`'s ``c``. Never raises for bad bytes: see `error`.
    """
    out = allocate("ls_batch[]", count_max)
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    status = lib.ls_scan_batches(data, size, checks, out, count_max, walk)
    error = native_error(status, walk.error) if status < 0 else None
    headers = headers_of(out, walk.count)
    return Scan(headers, walk.pos, walk.last_offset, walk.stop, error)


class Headers:
    """The headers of all batches of data[pos, size), in order; for one iteration.

    Attributes:
        pos, last_offset, stop, error: of the walk, as in `Scan`; valid once the
            iteration has reached its end.
    """

    __slots__ = ("_data", "_size", "checks", "error", "last_offset", "pos", "stop")

    def __init__(
        self,
        data: Any,
        size: int,
        *,
        pos: int = 0,
        last_offset: int = -1,
        checks: int = CHECK_ALL,
    ) -> None:
        self._data, self._size = data, size
        self.pos, self.last_offset, self.checks = pos, last_offset, checks
        self.stop = STOP_FULL
        self.error: NativeError | None = None

    def __iter__(self) -> Iterator[BatchHeader]:
        return itertools.chain.from_iterable(self._runs())

    def _runs(self) -> Iterator[list[BatchHeader]]:
        while self.stop == STOP_FULL:
            scan = scan_batches(
                self._data,
                self._size,
                pos=self.pos,
                last_offset=self.last_offset,
                checks=self.checks,
            )
            yield scan.headers
            self.pos, self.last_offset = scan.pos, scan.last_offset
            self.stop, self.error = scan.stop, scan.error


def first_header(data: Any, size: int, *, pos: int = 0, checks: int) -> Scan:
    """The header of the batch at `pos` alone."""
    return scan_batches(data, size, pos=pos, checks=checks, count_max=1)


def seek_batch(
    data: Any,
    size: int,
    *,
    last_offset: int,
    checks: int = CHECK_ALL,
    offset: int,
) -> Scan:
    """Walk to the first batch whose last offset is at or after `offset`.

    If it was found, `headers` has it, `stop` is `STOP_OFFSET`, `pos` is its beginning
    and `last_offset` that of the batch before.
    """
    batch = ffi.new("ls_batch *")
    walk = ffi.new("ls_walk *", {"last_offset": last_offset})
    status = lib.ls_seek_batch(data, size, checks, offset, batch, walk)
    error = native_error(status, walk.error) if status < 0 else None
    headers = headers_of(batch) if walk.stop == STOP_OFFSET else []
    return Scan(headers, walk.pos, walk.last_offset, walk.stop, error)


def find_contradicted(
    data: Any,
    size: int,
    *,
    pos: int = 0,
    last_offset: int,
    following: int = OFFSET_UNKNOWN,
) -> Scan:
    """Walk by the frames alone to the first batch whose offsets the batch after it
    contradicts: `stop` is `STOP_OFFSET` there.

    The stop is `STOP_FULL` before the last whole batch if the offset after it is
    neither in data[pos, size) nor given as `following`.
    """
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    lib.ls_find_contradicted(data, size, following, walk)
    return Scan([], walk.pos, walk.last_offset, walk.stop, None)


def last_batch(data: Any, size: int) -> tuple[int, Scan]:
    """The position of the last whole batch of data[0, size), by the frames alone, or
    -1; and the walk to there without headers."""
    batch = ffi.new("ls_batch *")
    walk = ffi.new("ls_walk *", {"last_offset": OFFSET_UNKNOWN})
    status = lib.ls_seek_batch(data, size, 0, OFFSET_MAX, batch, walk)
    error = native_error(status, walk.error) if status < 0 else None
    scan = Scan([], walk.pos, walk.last_offset, walk.stop, error)
    return (int(batch.pos) if walk.batches else -1), scan


class WalkResult(NamedTuple):
    """The result of a walk that keeps no headers: as `Scan`, with the number of batches
    and whether a compressed one of magic 0 or 1 was among them."""

    pos: int
    last_offset: int
    batches: int
    stop: int
    error: NativeError | None
    has_wrappers: bool


def walk_batches(
    data: Any,
    size: int,
    *,
    pos: int = 0,
    last_offset: int = -1,
    checks: int = CHECK_ALL,
) -> WalkResult:
    """Walk over all batches of data[pos, size). Never raises for bad bytes."""
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    status = lib.ls_scan_batches(data, size, checks, ffi.NULL, 0, walk)
    error = native_error(status, walk.error) if status < 0 else None
    return WalkResult(
        walk.pos, walk.last_offset, walk.count, walk.stop, error, bool(walk.wrappers)
    )


def shift_offsets(
    data: Any,
    size: int,
    *,
    shift: int,
    last_offset: int,
    leader_epoch: int,
    magic: int,
    max_bytes: int,
    timestamp: int,
    stamps_all: bool,
) -> Scan:
    """Move the offsets of the batches of data[0, size) in place, whole batches only.

    Args:
        shift: is added to each offset.
        last_offset: last offset of the batch before, without the shift.
        leader_epoch: written into batches of magic 2.
        magic: the magic of all the batches.
        max_bytes: limit of a batch.
        timestamp: written into all batches (`stamps_all`), or into those whose
            attributes say that they have the time of their append.

    Returns a walk without headers. Never raises for bad bytes: see `error`.
    """
    how = ffi.new(
        "ls_shift *",
        {
            "offsets": shift,
            "max_bytes": max_bytes,
            "timestamp": timestamp,
            "stamps_all": int(stamps_all),
            "leader_epoch": leader_epoch,
            "magic": magic,
        },
    )
    walk = ffi.new("ls_walk *", {"pos": 0, "last_offset": last_offset})
    status = lib.ls_shift_offsets(data, size, how, walk)
    error = native_error(status, walk.error) if status < 0 else None
    return Scan([], walk.pos, walk.last_offset, walk.stop, error)
