"""Walks over a log whose end is not known: at opening, or if another process writes.

Whole batches with correct checksums are counted into the state and the indexes of their
segment, as they would have been when they were appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from logstore import _native as native
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.directory import Directory
from logstore.record.file_walk import larger_buffer
from logstore.segment import READ_BYTES

__all__ = ["TailScan", "scan_log", "take_batches"]


class TailScan(NamedTuple):
    """The result of `scan_log`.

    Attributes:
        pos: where the valid batches end.
        last_offset: of the last valid batch (without one, as passed in).
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
        return "a batch extends past the end of the file"


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
    # No `FileWalk`: bytes that are not a batch are a result here, not an error.
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
            buffer.c, n, last_offset=last_offset, checks=checks
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
        end_pos = pos + end
        zeros = stop == native.STOP_ZEROS and end == 0
        if error is not None or zeros or end_pos >= size or n == 0:
            return TailScan(end_pos, last_offset, batches, stop, error, size, wrappers)
        if end == 0:
            larger = larger_buffer(buffer, n, size - pos)
            if larger is None:
                return TailScan(
                    end_pos, last_offset, batches, stop, error, size, wrappers
                )
            buffer = larger
