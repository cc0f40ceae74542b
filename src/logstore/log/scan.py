"""Walks over a log whose end is not known: at opening, or if another process writes.

Whole batches with correct checksums are counted into the state and the indexes of their
segment, as they would have been when they were appended. `WholeReads` is for all walks:
it says how much to read at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.directory import Directory
from logstore.segment import FRAME, FRAME_BYTES, LENGTH_END, READ_BYTES, Segment

__all__ = ["TailScan", "WholeReads", "scan_log", "take_batches"]

# The most of a read that a walk may read again, as a part of it.
_AGAIN: Final = 32


class WholeReads:
    """How much a walk reads at once, so that it reads little twice.

    The batch that a read ends in has to be read again. That is half of each read if the
    batches have 1 MiB and a buffer has twice as much. So if a batch would be read again
    of which a considerable part was read, the next read is of as many batches as fit
    into the buffer, if they all have its length. The length is not trusted: if it is
    wrong, the walk reads less, or reads again.
    """

    __slots__ = ("_batch_bytes",)

    def __init__(self) -> None:
        self._batch_bytes = 0  # 0: reads fill their buffer

    def room(self, buffer: native.Buffer) -> memoryview:
        """The part of a buffer to read into."""
        view, length = buffer.view, self._batch_bytes
        if not 0 < length < len(view):
            return view
        return view[: len(view) // length * length]

    def is_short(self, buffer: native.Buffer, n: int, end: int, stop: int) -> bool:
        """Learn from a walk over the first `n` bytes of a buffer, which ended at `end`
        for the reason `stop`. True: not even one batch was there, and there may be one
        if the same place is read again."""
        if stop == native.STOP_END:
            return False
        before, self._batch_bytes = self._batch_bytes, 0
        if stop != native.STOP_PARTIAL:
            return False
        if end == 0 and 0 < before < buffer.capacity:
            return True
        if n - end >= max(n // _AGAIN, FRAME_BYTES):
            self._batch_bytes = FRAME.unpack_from(buffer.raw, end)[1] + LENGTH_END
        return False


class TailScan(NamedTuple):
    """The result of `scan_log`.

    Attributes:
        pos: where the valid batches end.
        last_offset: of the last valid batch (if there is none, as passed in).
        batches: how many were walked over.
        stop: native.STOP_*; 0 when `error` is set.
        error: the damage at `pos`.
        size: bytes of the file.
        has_wrappers: whether a compressed batch of magic 0 or 1 was among them. No
            checksum covers its offset: only a reader can check it.
        why: the damage at `pos`, if C code did not find it.
    """

    pos: int
    last_offset: int
    batches: int
    stop: int
    error: native.NativeError | None
    size: int
    has_wrappers: bool
    why: str = ""

    @property
    def is_whole(self) -> bool:
        return self.pos == self.size

    @property
    def reason(self) -> str:
        if self.error is not None:
            return self.error.reason
        if self.why:
            return self.why
        if self.stop == native.STOP_ZEROS:
            return "zeros instead of a batch"
        return "a batch goes on past the end of the file"


def take_batches(
    planner: native.Planner,
    state: native.SegmentState,
    data: Any,
    size: int,
    index: OffsetEntries | None,
    times: TimeEntries | None,
    now_ms: int = 0,
) -> tuple[int, int]:
    """Count whole batches as the next of a segment, with their index entries.

    Returns (bytes that belong to the segment, why the rest does not).

    Raises:
        native.NativeError: a batch cannot be counted; those before it are counted.
    """
    done = stop = 0
    while done < size:
        planned, stop = planner.plan(
            state, data + done, size - done, now_ms, is_in_parts=True
        )
        if not planned:
            break
        entries, time_entries = planner.entries()
        planner.commit(state)
        if index is not None:
            index.append(entries)
        if times is not None:
            times.append(time_entries)
        done += planned
    return done, stop


def scan_log(
    directory: Directory,
    fd: int,
    size: int,
    state: native.SegmentState,
    *,
    index: OffsetEntries | None = None,
    times: TimeEntries | None = None,
    interval: int = 4096,
    checks: int = native.CHECK_ALL,
    on_checked: Callable[[int], None] | None = None,
) -> TailScan:
    """Check the batches of an open `.log` file from ``state.size`` on, with checksums.

    Advances `state` and adds the index entries of the batches that were walked over;
    calls `on_checked` with the bytes of each buffer. Never raises for invalid bytes.
    """
    files = directory.files
    planner = native.Planner(interval, None)
    # A reader that follows scans a few bytes at a time.
    buffer = native.Buffer(
        min(4 * READ_BYTES, max(size - state.size, READ_BYTES // 16))
    )
    last_offset = state.last_offset
    batches = 0
    wrappers = False
    while True:
        pos = state.size
        n = files.read(fd, buffer.view[: max(0, min(buffer.capacity, size - pos))], pos)
        end, last_offset, count, stop, error, has_wrappers = native.walk_batches(
            buffer.c, n, pos=0, last_offset=last_offset, checks=checks
        )
        wrappers |= has_wrappers
        batches += count
        try:
            planned, why = take_batches(planner, state, buffer.c, end, index, times)
            if planned < end:
                base = state.raw.base_offset
                raise native.NativeError(native.E_OFFSET, planned, -1, base, why)
        except native.NativeError as refused:
            last_offset = state.last_offset
            return TailScan(
                state.size, last_offset, batches, 0, refused, size, wrappers
            )
        if on_checked is not None:
            on_checked(end)
        at = pos + end
        zeros = stop == native.STOP_ZEROS and end == 0
        if error is not None or zeros or at >= size or n == 0:
            return TailScan(at, last_offset, batches, stop, error, size, wrappers)
        if end == 0:
            length = Segment.frame_bytes(buffer, n)
            if not buffer.capacity < length <= size - pos:
                return TailScan(at, last_offset, batches, stop, error, size, wrappers)
            buffer = native.Buffer(length)
