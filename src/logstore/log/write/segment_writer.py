"""The writing side of the active segment.

`SegmentWriter` owns the descriptor, the state that decides when to roll and what to
index, the space reserved after the log, and the index entries that are not in the
index files yet: they are written once the log they point at is synced.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    DiskFullError,
    SyncFailedError,
    is_disk_full,
    storage_error,
)
from logstore.index import (
    INDEX_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    UNKNOWN_DIGEST,
    OffsetEntries,
    TimeEntries,
    add_closing_entry,
)
from logstore.io.layout import INDEX, TIME_INDEX
from logstore.record.file_walk import FRAME, FRAME_BYTES, LENGTH_END
from logstore.segment import Segment

__all__ = ["Mark", "SegmentWriter", "roll_limits"]

# Space is reserved in steps that grow with the segment between these bounds.
_RESERVE_MIN: Final = 64 * 1024
_RESERVE_MAX: Final = 16 << 20


def roll_limits(config: TopicConfig, jitter_ms: int = 0) -> native.RollLimits:
    """The limits at which a segment is full."""
    return native.RollLimits(
        config.segment_bytes,
        config.roll_ms - jitter_ms,
        0,
        config.index_interval_bytes,
        config.segment_index_bytes // INDEX_ENTRY_BYTES,
        config.segment_index_bytes // TIME_ENTRY_BYTES,
    )


class Mark(NamedTuple):
    """The state of an active segment at one time, for `SegmentWriter.back_to`."""

    state: native.SegmentState
    index_count: int
    time_count: int

    @property
    def next_offset(self) -> int:
        return self.state.last_offset + 1


class SegmentWriter(native.WriterFields):
    """Appends to the active segment. Callers hold the partition's append lock.

    `state` defines the content of the log. Readers see it after a call of `show`:
    ``segment.size <= state.size``, and they are equal between two calls.

    Attributes:
        file, fd: the log, open for writing.
        dirty: the counts of index entries to return to, if a write failed and is not
            undone yet: the file may have bytes past ``state.size``; else None.

    Args:
        before_cut: called with the state that stays, which is durable, before bytes are
            removed that readers in other processes may have seen.
    """

    __slots__ = (
        "_before_cut",
        "_first_frame",
        "_reserved",
        "config",
        "fd",
        "file",
        "files",
        "index",
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
        before_cut: Callable[[native.SegmentState], None],
        *,
        jitter_ms: int = 0,
    ) -> None:
        self.segment = segment
        self.file = file
        self.fd = file.fd
        self.files = segment.file.directory.files
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
        self.dirty = None
        self._before_cut = before_cut
        segment.show_indexes(index, times)
        segment.time_digest = UNKNOWN_DIGEST
        segment.row = ""
        segment.live_state = state

    @property
    def path(self) -> str:
        return self.segment.path

    @property
    def next_offset(self) -> int:
        """The offset of the next record."""
        return int(self.state.raw.last_offset) + 1

    def show(self) -> int:
        """Let readers of this process see all that is in the log; returns its end."""
        segment, raw = self.segment, self.state.raw
        # In this order: a reader between the two lines would report a batch that ends
        # after its segment as damage.
        end = segment.next_offset = int(raw.last_offset) + 1
        segment.size = int(raw.size)
        return end

    def reserve(self, size: int) -> None:
        """Make sure that the disk has room for `size` more bytes.

        Raises:
            DiskFullError: it has no room; the file is unchanged.
        """
        if self.has_reserved(size):
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

    def has_reserved(self, size: int) -> bool:
        """Whether the disk has room for `size` more bytes for certain."""
        return bool(self.state.raw.size + size <= self._reserved)

    def _take(self, size: int) -> int:
        """Reserve `size` bytes after the log; return 0 if they are not available."""
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
        """Whether the disk has `size` bytes more than the reserve of the store."""
        try:
            free = self.files.free_bytes(self.fd)
        except OSError as error:
            raise storage_error(
                error, "append to", self.path, "Nothing was written."
            ) from error
        return free - size >= self.store_config.min_free_bytes

    def disk_full(self, size: int) -> DiskFullError:
        """The error for `size` bytes that do not fit on the disk."""
        code, end = errno.ENOSPC, self.state.size + size
        limit = self.files.resource_limits()[1]
        if limit is not None and end > limit:
            code = errno.EFBIG
            why = (
                f"the file would have {end} bytes, more than the limit of this "
                f"process ({limit})"
            )
        else:
            why = self._why_full(size)
        return DiskFullError(
            f"cannot append {size} bytes to {self.path}: {why}. Nothing was written.",
            errno=code,
            path=self.path,
            action="append to",
        )

    def _why_full(self, size: int) -> str:
        """Why there is no room for `size` bytes on the file system."""
        floor = self.store_config.min_free_bytes
        try:
            free = self.files.free_bytes(self.fd)
        except OSError:
            return "there is no room"
        if free - size >= floor:
            return f"the system refuses them, as with a quota, though {free} are free"
        rule = f" and min_free_bytes={floor} must stay free" if floor else ""
        return f"{free} bytes are free{rule}"

    def append(
        self,
        data: Any,
        size: int,
        now_ms: int,
        total: int = 0,
        *,
        is_in_parts: bool = False,
    ) -> tuple[int, int]:
        """Write the batches of data[0, size) that belong into this segment.

        Args:
            total: bytes of the call that begins here, at most. If they are more than
                one batch, `write_first_frame` writes the frame of the first one last:
                until then zeros in its place end the log for readers in other
                processes, and for recovery. 0: all is written at once.
            is_in_parts: as in `native.Planner.plan`.

        Returns (bytes taken, native.STOP_*: why no more).

        Raises:
            StorageError: the write failed; the file is unchanged.
            SyncFailedError: the write failed, and so did its undo; write no more.
        """
        state = self.state
        planned, stop = self.planner.plan(
            state, data, size, now_ms, is_in_parts=is_in_parts
        )
        if not planned:
            return 0, stop
        if state.size + planned > self._reserved:
            self.reserve(planned)
        self._write(native.buffer_of(data, planned), planned, total)
        return planned, stop

    def _write(self, data: memoryview, size: int, total: int = 0) -> None:
        """Write the planned batches, and update the indexes and the state.

        1. write; 2. update the index entries; 3. update the state (commit).

        If anything ends the call before the commit, also an exception from a signal
        handler, the segment is unchanged. If the undo is interrupted, `dirty` is set.
        """
        before = self.index.count, self.times.count
        raw, pos = self.state.raw, self.state.size
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
            # This comes first and makes no call that could be interrupted: what is
            # committed is never undone.
            if raw.size != pos + size:
                self.dirty = before
            self.undo_failed(error)
            raise

    def undo_failed(self, error: BaseException) -> None:
        """Undo a write that failed with an error, if `dirty` says that this is due.

        Raises:
            StorageError: that error, if the system gave it.
            SyncFailedError: so did the undo; write no more.
        """
        self.clean()
        if isinstance(error, OSError):
            raise storage_error(
                error, "append to", self.path, "The log is as it was."
            ) from error

    @property
    def reserved(self) -> int:
        """The size up to which the disk has room for the file for certain."""
        return self._reserved

    def write_first_frame(self) -> None:
        """Write the frame that `append` held back: it makes all of the call visible.

        Raises:
            StorageError: the write failed; `back_to` undoes the call.
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
        """Cut, durably, the bytes that a failed write may have left after
        ``state.size``: no power failure may bring back records that were reported as
        not appended."""
        try:
            # No reader has seen bytes that begin with zeros.
            if self._first_frame is None:
                self._sync_before_cut()
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

    def _sync_before_cut(self) -> None:
        """Sync, and call `before_cut`. If the sync fails, the file is cut at once: its
        bytes must not come back at the next opening. Raises: OSError."""
        try:
            self.files.sync(self.fd)
        except OSError:
            self.files.truncate(self.fd, self.state.size)
            raise
        self._before_cut(self.state)

    def mark(self) -> Mark:
        """The current state, for `back_to`."""
        return Mark(self.state.copy(), self.index.count, self.times.count)

    def differs_from(self, mark: Mark) -> bool:
        """Whether anything has changed since a mark."""
        is_open = self.dirty is not None or self._first_frame is not None
        now = self.state.size, self.times.count, self.next_offset
        return is_open or now != (mark.state.size, mark.time_count, mark.next_offset)

    def back_to(self, mark: Mark) -> None:
        """Undo the appends since a mark. May be called again with the same one."""
        segment = self.segment
        # Until the undo is complete, `differs_from(mark)` is true, also after an
        # interrupt.
        self.dirty = mark.index_count, mark.time_count
        if segment.size > mark.state.size:
            segment.version += 1
        self.state = segment.live_state = mark.state.copy()
        self.show()
        self.index.cut(mark.index_count)
        self.times.cut(mark.time_count)
        self.undo()
        self._first_frame = self.dirty = None

    def give_back_space(self) -> None:
        """Give back the space that was reserved after the log."""
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
        """Update the index files with the first entries in memory.

        Pass only entries whose log is synced: an entry must not point at bytes of the
        log that may be lost.

        Raises:
            OSError: as the system gives it. If the disk is full, the requested cuts of
                both files are made nevertheless.
        """
        if index_count is None:
            index_count = self.index.count
        if time_count is None:
            time_count = self.times.count
        try:
            self._write_index(INDEX, self.index, index_count, sync)
        except OSError as error:
            if is_disk_full(error):
                self._write_index(TIME_INDEX, self.times, time_count, sync)
            raise
        self._write_index(TIME_INDEX, self.times, time_count, sync)

    def has_many_unwritten(self, mark: Mark) -> bool:
        """Whether the index entries up to a mark that are not in the index files are
        enough to write them, by the rule of `native.SharedSync`."""
        index, times = self.index.written, self.times.written
        return (
            min(index, times) < 0
            or mark.index_count - index >= native.UNWRITTEN_MAX
            or mark.time_count - times >= native.UNWRITTEN_MAX
        )

    def _write_index(
        self, suffix: str, entries: OffsetEntries | TimeEntries, count: int, sync: bool
    ) -> None:
        if count == entries.written and not sync:
            return
        directory, files = self.segment.file.directory, self.files
        name = self.segment.file.name(suffix)
        first, entries.written = entries.written, -1
        try:
            fd = directory.open(name, write=True)
        except FileNotFoundError:
            fd = directory.create(name)
            first = entries.synced = 0
        try:
            size = entries.entry_bytes
            if first < 0 or files.size(fd) != first * size:
                # Entries that are durable and right stay: a state file may rely on
                # them.
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
        """How many of the first entries of an index file are correct."""
        data, size = self.segment.file.directory.read_file(name), entries.entry_bytes
        count = min(count, len(data) // size)
        expected = entries.data(0, count)
        if data.startswith(expected):
            return count
        places = range(0, count * size, size)
        return next(
            i // size for i in places if not data.startswith(expected[i : i + size], i)
        )

    def seal(self) -> None:
        """Finish the segment, at a roll or at the close; its log is synced already.

        1. give back the space reserved after the log: a full disk may need it; 2. add
        the closing entry to the time index; 3. write and sync both indexes.
        """
        self.give_back_space()
        add_closing_entry(self.state, self.times)
        self.write_indexes(sync=True)
        self.segment.time_digest = self.times.digest()

    def release(self) -> None:
        """Stop writing to this segment; its file stays open for readers. May be called
        again after an interrupt."""
        segment = self.segment
        self.dirty = None  # what is not undone now is left to the next opening
        segment.file.descriptors.release(segment.file.serial)
        segment.max_timestamp = self.state.max_timestamp
        segment.max_timestamp_offset = self.state.max_timestamp_offset
        segment.row = ""
        segment.live_state = None
        segment.show_indexes(None, None)
