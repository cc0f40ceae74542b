"""The writing side of the active segment.

`SegmentWriter` owns the descriptor, the state that decides when to roll and what to
index, the space reserved behind the log, and the index entries that are not in the
index files yet: they are written once the log they point at is synced.
"""

from __future__ import annotations

import errno
from typing import Any, Final, NamedTuple

from logstore import _binding as native
from logstore.config import StoreConfig, TopicConfig
from logstore.encoder import Encoder
from logstore.errors import DiskFullError, SyncFailedError, storage_error
from logstore.index import (
    INDEX_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    UNKNOWN_DIGEST,
    OffsetEntries,
    TimeEntries,
    add_closing_entry,
)
from logstore.layout import INDEX, TIME_INDEX
from logstore.segment import FRAME, FRAME_BYTES, LENGTH_END, Segment

__all__ = ["Mark", "SegmentWriter", "roll_limits"]

# Space is reserved in steps that grow with the segment between these bounds.
_RESERVE_MIN: Final = 64 * 1024
_RESERVE_MAX: Final = 16 << 20


def roll_limits(config: TopicConfig, jitter_ms: int = 0) -> native.RollLimits:
    """When a segment is full."""
    return native.RollLimits(
        config.segment_bytes,
        config.segment_ms - jitter_ms,
        0,
        config.index_interval_bytes,
        config.segment_index_bytes // INDEX_ENTRY_BYTES,
        config.segment_index_bytes // TIME_ENTRY_BYTES,
    )


class Mark(NamedTuple):
    """How an active segment is at one time, for `SegmentWriter.back_to`."""

    state: native.SegmentState
    index_count: int
    time_count: int

    @property
    def next_offset(self) -> int:
        return self.state.last_offset + 1


class SegmentWriter:
    """Appends to the active segment. Callers hold the partition's append lock.

    `state` is the truth of what is in the log. Readers see it when `show` was called:
    ``segment.size <= state.size``, and equal between two calls.

    Attributes:
        file, fd: the log, open for writing.
        dirty: the counts of index entries to go back to where a write failed and was
            not undone yet: the file may have bytes past ``state.size``; else None.
        is_cut: bytes were taken back that readers in other processes may have seen.
    """

    __slots__ = (
        "_first_frame",
        "_reserved",
        "config",
        "dirty",
        "fd",
        "file",
        "files",
        "index",
        "is_cut",
        "planner",
        "segment",
        "state",
        "store_config",
        "times",
    )

    def __init__(
        self,
        segment: Segment,
        file: native.OpenFile,
        state: native.SegmentState,
        index: OffsetEntries,
        times: TimeEntries,
        config: TopicConfig,
        store_config: StoreConfig,
        *,
        jitter_ms: int = 0,
    ) -> None:
        self.segment = segment
        self.file = file
        self.fd = file.fd
        self.files = segment.directory.files
        self.state = state
        self.index = index
        self.times = times
        self.config = config
        self.store_config = store_config
        self.planner = native.Planner(
            config.index_interval_bytes, roll_limits(config, jitter_ms)
        )
        self._reserved = state.size
        self._first_frame: tuple[int, bytes] | None = None
        self.dirty: tuple[int, int] | None = None
        self.is_cut = False
        segment.show_indexes(index, times)
        segment.time_digest = UNKNOWN_DIGEST
        segment.row = ""
        segment.live_state = state

    @property
    def path(self) -> str:
        return self.segment.path

    @property
    def next_offset(self) -> int:
        """The offset of what is appended next."""
        return int(self.state.raw.last_offset) + 1

    def show(self) -> None:
        """Let readers of this process see all that is in the log."""
        segment, state = self.segment, self.state
        # In this order: a reader that comes between them takes a batch that ends behind
        # the end of its segment for damage.
        segment.next_offset = state.last_offset + 1
        segment.size = state.size

    def reserve(self, size: int) -> None:
        """Make sure that `size` more bytes find room on the disk.

        Raises:
            DiskFullError: they do not; the file is as it was.
        """
        end = self.state.size + size
        if end <= self._reserved:
            return
        ahead = max(size, min(max(self.state.size, _RESERVE_MIN), _RESERVE_MAX))
        try:
            step = self._take(ahead) or (ahead > size and self._take(size))
        except OSError as error:
            raise storage_error(
                error, "append to", self.path, "Nothing was written."
            ) from error
        if not step:
            raise self.disk_full(size)
        self._reserved = self.state.size + step

    def _take(self, size: int) -> int:
        """Reserve `size` bytes behind the log; 0 where they are not to be had."""
        if self.store_config.min_free_bytes and not self.has_room(size):
            return 0
        try:
            self.files.reserve(self.fd, self.state.size, size)
        except OSError as error:
            if isinstance(storage_error(error, "", ""), DiskFullError):
                return 0
            raise
        return size

    def has_room(self, size: int) -> bool:
        """Whether the disk has `size` bytes above the reserve of the store."""
        try:
            free = self.files.free_bytes(self.fd)
        except OSError as error:
            raise storage_error(
                error, "append to", self.path, "Nothing was written."
            ) from error
        return free - size >= self.store_config.min_free_bytes

    def disk_full(self, size: int) -> DiskFullError:
        """The error for `size` bytes that find no room."""
        floor = self.store_config.min_free_bytes
        rule = f" and min_free_bytes={floor} are to stay so" if floor else ""
        try:
            free: int | str = self.files.free_bytes(self.fd)
        except OSError:
            free = "too few"
        return DiskFullError(
            f"cannot append {size} bytes to {self.path}: {free} bytes are free{rule}. "
            f"Nothing was written.",
            errno=errno.ENOSPC,
            path=self.path,
            action="append to",
        )

    def append(
        self, data: Any, size: int, now_ms: int, total: int = 0
    ) -> tuple[int, int]:
        """Write the batches of data[0, size) that belong into this segment.

        Args:
            total: bytes of the call that begins here, at the most. If they are more
                than one batch, the frame of the first is written last, by
                `write_first_frame`: until then there are zeros, which end the log for
                readers in other processes, and for recovery. 0: written as it is.

        Returns (bytes taken, native.STOP_*: why no more).

        Raises:
            StorageError: the write failed; the file is as it was.
            SyncFailedError: it failed, and so did undoing it; write no more.
        """
        state = self.state
        taken, stop = self.planner.plan(state, data, size, now_ms)
        if not taken:
            return 0, stop
        if state.size + taken > self._reserved:
            self.reserve(taken)
        self._write(native.buffer_of(data, taken), taken, total)
        return taken, stop

    def _write(self, data: memoryview, size: int, total: int = 0) -> None:
        """Write what was planned, and make it true of indexes and state.

        Whatever ends it early, also an exception from a signal handler, the segment is
        as it was, unless the last step is done: that is the commit. Where undoing it is
        interrupted, `dirty` says so.

        1. write; 2. index entries; 3. the state.
        """
        before = self.index.count, self.times.count
        pos = self.state.size
        try:
            if total and FRAME.unpack_from(data)[1] + LENGTH_END < total:
                self._first_frame = pos, bytes(data[:FRAME_BYTES])
                self.files.write(self.fd, data[FRAME_BYTES:], pos + FRAME_BYTES)
            else:
                self.files.write(self.fd, data, pos)
            index, times = self.planner.entries()
            if index:
                self.index.append(index)
                self.times.append(times)
            self.planner.commit(self.state)
        except BaseException as error:
            # First of all, and without a call that could be interrupted.
            self.dirty = before
            if self.state.size == pos + size:
                self.dirty = None  # it is in
            else:
                self.clean()
            if isinstance(error, OSError):
                raise storage_error(
                    error, "append to", self.path, "The log is as it was."
                ) from error
            raise

    def append_message(
        self, value: Any, key: Any, timestamp_ms: int, now_ms: int, encoder: Encoder
    ) -> bool:
        """Append one uncompressed message of magic 0 or 1 in one call into C.

        Returns False, with nothing done, where that is not possible: it is too large
        for the buffer or a limit, or belongs into a new segment. Raises as `append`.
        """
        planner = self.planner
        size = planner.plan_message(
            self.state, value, key, timestamp_ms, now_ms, encoder.magic,
            encoder.plain_attributes, self.config.max_message_bytes,
        )  # fmt: skip
        if size <= 0:
            return False
        segment = self.segment
        if segment.size + size > self._reserved:
            self.reserve(size)
        self._write(planner.message[:size], size)
        return True

    def write_first_frame(self) -> None:
        """Write what `append` held back: from here on all of it is there.

        Raises:
            StorageError: it failed; `back_to` undoes the call.
        """
        held = self._first_frame
        if held is None:
            return
        self._first_frame = None
        pos, frame = held
        try:
            self.files.write(self.fd, frame, pos)
        except OSError as error:
            raise storage_error(
                error, "append to", self.path, "The log is as it was."
            ) from error

    def clean(self) -> None:
        """Undo a write that failed."""
        counts = self.dirty
        if counts is not None:
            self.index.cut(counts[0])
            self.times.cut(counts[1])
            self.undo()
            self.dirty = None

    def undo(self) -> None:
        """Cut what a failed write may have left behind ``state.size``, for good: no
        power cut may bring back what the caller is told is not in the log."""
        # What begins with zeros was never seen.
        self.is_cut |= self._first_frame is None
        try:
            self.files.truncate(self.fd, self.state.size)
            self._reserved = self.state.size
            self.files.sync(self.fd)
        except OSError as error:
            raise SyncFailedError(
                f"an append to {self.path} failed and cannot be undone: the file may "
                f"have bytes past {self.state.size}. Open the store again to recover.",
                errno=error.errno,
                path=self.path,
                action="truncate",
            ) from error

    def mark(self) -> Mark:
        """The present state, for `back_to`."""
        return Mark(self.state.copy(), self.index.count, self.times.count)

    def differs_from(self, mark: Mark) -> bool:
        """Whether anything was done since a mark."""
        is_open = self.dirty is not None or self._first_frame is not None
        now = self.state.size, self.times.count, self.next_offset
        return is_open or now != (mark.state.size, mark.time_count, mark.next_offset)

    def back_to(self, mark: Mark) -> None:
        """Undo the appends since a mark. May be called again with the same one."""
        segment = self.segment
        # Until it is done this differs from the mark, wherever it is interrupted.
        self.dirty = mark.index_count, mark.time_count
        if segment.size > mark.state.size:
            segment.generation += 1
        self.state = segment.live_state = mark.state.copy()
        self.show()
        self.index.cut(mark.index_count)
        self.times.cut(mark.time_count)
        self.undo()
        self._first_frame = self.dirty = None

    def give_back_space(self) -> None:
        """Give back what was reserved behind the log."""
        if self._reserved > self.state.size:
            self.files.truncate(self.fd, self.state.size)
            self._reserved = self.state.size

    def write_indexes(
        self,
        index_count: int | None = None,
        time_count: int | None = None,
        *,
        sync: bool = False,
    ) -> None:
        """Bring the index files up to date with the first entries in memory.

        Only entries whose log is synced: none may point at log that may vanish.
        """
        if index_count is None:
            index_count = self.index.count
        if time_count is None:
            time_count = self.times.count
        self._write_index(INDEX, self.index, index_count, sync)
        self._write_index(TIME_INDEX, self.times, time_count, sync)

    def _write_index(
        self, suffix: str, entries: OffsetEntries | TimeEntries, count: int, sync: bool
    ) -> None:
        if count == entries.written and not sync:
            return
        directory, files = self.segment.directory, self.files
        name = self.segment.file(suffix)
        first, entries.written = entries.written, -1
        try:
            fd = directory.open(name, write=True)
        except FileNotFoundError:
            fd = directory.create(name)
            first = entries.synced = 0
        try:
            size = entries.entry_bytes
            if first < 0 or files.size(fd) != first * size:
                # What is durable and right stays: a state file may count on it.
                first = min(self._agreeing(name, entries, count), entries.synced)
                files.truncate(fd, first * size)
            if count > first:
                files.write(fd, entries.data(first, count), first * size)
            count = max(count, first)
            if sync:
                files.sync(fd)
                entries.synced = count
        finally:
            files.close(fd)
        entries.written = count

    def _agreeing(
        self, name: str, entries: OffsetEntries | TimeEntries, count: int
    ) -> int:
        """How many of the first entries an index file has as they must be."""
        data, size = self.segment.directory.read_file(name), entries.entry_bytes
        count = min(count, len(data) // size)
        wanted = entries.data(0, count)
        if data.startswith(wanted):
            return count
        places = range(0, count * size, size)
        return next(
            i // size for i in places if not data.startswith(wanted[i : i + size], i)
        )

    def seal(self) -> None:
        """Finish the segment, at a roll or at the close; its log is synced already.

        1. give back what was reserved behind the log: a full disk may lack just that;
        2. add the closing entry to the time index; 3. write and sync both indexes.
        """
        self.give_back_space()
        add_closing_entry(self.state, self.times)
        self.write_indexes(sync=True)
        self.segment.time_digest = self.times.digest()

    def release(self) -> None:
        """This segment is not written any more; its file stays open for readers. May be
        called again where it was interrupted."""
        segment = self.segment
        segment.descriptors.release(segment._serial)
        segment.max_timestamp = self.state.max_timestamp
        segment.max_timestamp_offset = self.state.max_timestamp_offset
        segment.row = ""
        segment.live_state = None
        segment.show_indexes(None, None)
