"""One segment: a `.log` file with its indexes, as its readers see it.

Readers hold a `Segment`: the place of the file, the size of its log, and lookups that
check the entries of an index against the log. (`logstore.log.write.segment_writer`
has the writing side, `logstore.log.scan` the walk over a log whose end is unknown.)

Positions and sizes are bytes of the `.log` file; offsets are log offsets.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from typing import Final

from logstore import _native as native
from logstore._native import Record
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StorageError,
    UnsupportedError,
    storage_error,
)
from logstore.index import (
    UNKNOWN_DIGEST,
    OffsetEntries,
    TimeEntries,
)
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import INDEX, LOG, TIME_INDEX
from logstore.io.segment_info import OffsetPosition, SegmentInfo
from logstore.io.segment_place import FollowingSegments, LocalFile, Place
from logstore.record.decoder import Damage
from logstore.record.file_walk import FileWalk, larger_buffer

__all__ = [
    "OffsetPosition",
    "Segment",
    "SegmentGoneError",
    "SegmentInfo",
    "SegmentReplacedError",
]

# Read this much at a time: it stays in the second-level cache while it is decoded.
READ_BYTES: Final = 256 * 1024
LOOKUP_BYTES: Final = 16 * 1024


class SegmentGoneError(CorruptRecordError):
    """The file of this segment does not exist: it was deleted, or lost."""


class SegmentReplacedError(CorruptRecordError):
    """Another file is in the place of this segment's file."""


class Segment(native.SegmentFields):
    """A segment as readers see it.

    Attributes:
        base_offset: its name.
        size: bytes of whole batches; a reader never reads past it.
        next_offset: one past the last offset in it.
        max_timestamp, max_timestamp_offset: largest record timestamp and the last
            offset of the first batch that has it; None until they are looked up.
        time_digest: digest of its time index file, if logstore recorded it: the file
            counts only if it has this digest (else UNKNOWN_DIGEST). The offset index
            needs none: its entries are checked against the log.
        version: increases when its writer cuts the file; earlier reads are void.
        file: its file in the directory of the log.
        place: the source of its bytes: `file`, unless they are far away, or `REPLACED`.
        is_lost: its file is missing, and should not be.
        row: its row in the state file if it is sealed and the row was written before;
            "" if the row must be made again.
        is_contiguous: the first batch begins at the base offset, every other one at the
            end of the batch before. logstore writes so, and this is checked. Kafka's
            compaction leaves gaps. Also, the leader epoch of every batch is 0.

    Args:
        transition, log_name: as in `LocalFile`.
    """

    __slots__ = (
        "__weakref__",
        "base_offset",
        "file",
        "is_contiguous",
        "is_lost",
        "live_index",
        "live_state",
        "live_times",
        "max_timestamp",
        "max_timestamp_offset",
        "place",
        "row",
        "time_digest",
        "version",
    )

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        base_offset: int,
        size: int,
        next_offset: int,
        *,
        max_timestamp: int | None = None,
        max_timestamp_offset: int = -1,
        transition: str = "",
        log_name: str = "",
        is_contiguous: bool = False,
    ) -> None:
        self.is_contiguous = is_contiguous
        self.file = LocalFile(
            directory,
            descriptors,
            base_offset,
            transition=transition,
            log_name=log_name,
        )
        self.place: Place = self.file
        self.base_offset = base_offset
        self.size = size
        self.next_offset = next_offset
        self.max_timestamp = max_timestamp
        self.max_timestamp_offset = max_timestamp_offset
        self.version = 0
        self.is_lost = False
        self.live_index: OffsetEntries | None = None
        self.live_times: TimeEntries | None = None
        self.time_digest = UNKNOWN_DIGEST
        self.live_state: native.SegmentState | None = None
        self.row = ""

    @classmethod
    def of_file(
        cls,
        directory: Directory,
        descriptors: Descriptors,
        name: str,
        base_offset: int,
        size: int,
    ) -> Segment:
        """A log that may have any name, and whose end offset is unknown."""
        end = native.OFFSET_MAX
        return cls(directory, descriptors, base_offset, size, end, log_name=name)

    def __repr__(self) -> str:
        return (
            f"Segment({self.path!r}, size={self.size}, next_offset={self.next_offset})"
        )

    @property
    def path(self) -> str:
        return self.file.path

    # -- bytes

    def read(
        self,
        view: memoryview,
        pos: int,
        rest: FollowingSegments = (),
        stop: int = native.OFFSET_MAX,
    ) -> int:
        """Fill `view` from byte `pos`, not past `size`; return the bytes read.

        `rest` and `stop`: as in `Place.read`, for reading ahead.
        """
        room = self.size - pos
        if room <= 0:
            return 0
        if len(view) > room:
            view = view[:room]
        try:
            return self.place.read(self, view, pos, rest, stop)
        except FileNotFoundError as error:
            # Its writer has deleted it from the head of the log, or it is lost
            # (`View.again` decides).
            reason = "the segment file is gone"
            raise self._gone(SegmentGoneError, reason, pos) from error
        except StorageError:
            raise
        except OSError as error:
            if error.errno == errno.ESTALE:
                # Positions in it are no longer valid.
                reason = "the segment file was replaced by another one"
                raise self._gone(SegmentReplacedError, reason, pos) from error
            raise storage_error(error, "read", self.path) from error

    # -- its errors

    def error_of(self, damage: Damage, file_pos: int, offset: int) -> Exception:
        """The error for damage found in a buffer that was read at `file_pos`.

        `offset` is the first offset not delivered, used if the damage has no offset.
        """
        position = file_pos + damage.pos
        first = offset if damage.offset < 0 else damage.offset
        large = damage.too_large
        if large is not None:
            # Make a new error: the raised one keeps the memory of the decompression.
            return RecordTooLargeError(
                f"{self.path} at byte {position} (offset {first}): {large}",
                limit_name=large.limit_name,
                limit=large.limit,
                size=large.size,
            )
        if damage.unsupported:
            return UnsupportedError(
                f"cannot read {self.path} at byte {position} (offset {first}): "
                f"{damage.reason}. The file is intact; read it with a newer "
                "version",
                path=self.path,
                position=position,
                offset=first,
            )
        return CorruptRecordError(
            damage.reason, path=self.path, position=position, offset=first
        )

    def _gone(
        self, kind: type[CorruptRecordError], reason: str, pos: int
    ) -> CorruptRecordError:
        return kind(
            reason,
            path=self.path,
            position=pos,
            offset=self.base_offset,
            next_offset=self.next_offset,
        )

    def too_far(self, last_offset: int, pos: int, offset: int) -> Damage:
        """The damage of a batch at `pos` that ends after the end of its segment. No
        checksum covers its offset: the batch there is not the expected one."""
        return Damage(
            f"offset {last_offset} is past the end of its segment, {self.next_offset}",
            pos,
            offset,
        )

    def check_end(
        self,
        last_offset: int,
        buffer: native.Buffer,
        n: int,
        pos: int,
        file_pos: int,
        before: int,
    ) -> None:
        """Raise if batches end after the end of their segment, with the place of the
        first one that does.

        Args:
            last_offset: of the last one.
            buffer: its first `n` bytes have them, from `pos` on; they were read at
                `file_pos`.
            before: where the batch before them ends; `OFFSET_UNKNOWN`.
        """
        if last_offset < self.next_offset:
            return
        for header in native.Headers(buffer.c, n, pos=pos, checks=0):
            pos, last_offset = header.pos, header.last_offset
            if last_offset >= self.next_offset:
                break
            before = last_offset
        first = max(self.base_offset, before + 1)
        raise self.error_of(self.too_far(last_offset, pos, first), file_pos, first)

    def missing(self, position: int, offset: int) -> CorruptRecordError:
        """The error for a part of the log that is missing."""
        # The end of the segment is unknown if only its file is read.
        is_known = self.next_offset != native.OFFSET_MAX
        before = f"offset {self.next_offset}" if is_known else "the end of a batch"
        return CorruptRecordError(
            f"the file ends or is empty before {before}",
            path=self.path,
            position=position,
            offset=offset,
        )

    # -- batches

    @property
    def checks(self) -> int:
        """The checks of its batches."""
        return native.CHECK_ALL | (native.CHECK_OWN if self.is_contiguous else 0)

    def headers(
        self,
        place: OffsetPosition | None = None,
        *,
        checks: int | None = None,
        buffer: native.Buffer | None = None,
    ) -> Iterator[tuple[native.BatchHeader, native.Buffer, int]]:
        """The headers of all batches from a place (the start of the segment) on:
        (header, buffer, file position).

        `header.pos` is its place in the buffer, which the next run reuses.

        Raises:
            CorruptRecordError, UnsupportedError: after the headers before the damage.
        """
        walk = FileWalk(self, place or self.start, buffer or native.Buffer(READ_BYTES))
        while walk.read():
            headers = walk.headers(self.checks if checks is None else checks)
            for header in headers:
                yield header, walk.buffer, walk.pos + header.pos
            walk.take(headers)

    def seek(
        self, place: OffsetPosition | None, offset: int, reads_max: int | None = None
    ) -> tuple[OffsetPosition, native.BatchHeader] | None:
        """The first batch with a last offset >= `offset`, from a place on (None: that
        of `locate`): its place and header. None if no such batch is found, or not in
        the first `reads_max` reads.

        Raises:
            CorruptRecordError, UnsupportedError: damage before it.
        """
        buffer, reads = native.Buffer(LOOKUP_BYTES), 0
        if place is None:
            walk = self.walk_from(offset, buffer)
        else:
            walk = FileWalk(self, place, buffer)
        while reads != reads_max and walk.read():
            scan = native.seek_batch(
                walk.buffer.c,
                walk.n,
                last_offset=walk.last_offset,
                checks=self.checks,
                offset=offset,
            )
            if scan.headers:
                batch_place = OffsetPosition(walk.pos + scan.pos, scan.last_offset)
                return batch_place, scan.headers[0]
            walk.take(scan, offset)
            reads += 1
        return None

    def first_header(
        self,
        pos: int,
        buffer: native.Buffer | None = None,
        rest: FollowingSegments = (),
        stop: int = native.OFFSET_MAX,
    ) -> tuple[native.BatchHeader, native.Buffer, int] | None:
        """The header of the batch at `pos`, checksum checked; the buffer with the
        batch, and the number of bytes in it. None if there is no batch.

        `buffer` is used if the batch fits. `rest`, `stop`: as in `read`.
        """
        buffer = buffer or native.Buffer(LOOKUP_BYTES)
        while True:
            n = self.read(buffer.view, pos, rest, stop)
            scan = native.first_header(buffer.c, n, checks=native.CHECK_CRC)
            if scan.headers:
                return scan.headers[0], buffer, n
            larger = larger_buffer(buffer, n, self.size - pos)
            if larger is None or scan.stop != native.STOP_PARTIAL:
                return None
            buffer = larger

    # -- lookups

    def offset_entries(self) -> OffsetEntries:
        if self.live_index is not None:
            return self.live_index
        entries: OffsetEntries | None = self.file.cached_index(INDEX)
        if entries is None:
            entries = OffsetEntries.load(self.index_bytes(INDEX), self.size)
            self.file.keep_index(INDEX, entries, entries.memory_bytes)
        return entries

    def time_entries(self) -> TimeEntries:
        """Entries of the time index. If another program wrote it, only the entries
        that a walk over the log confirms."""
        if self.live_times is not None:
            return self.live_times
        entries: TimeEntries | None = self.file.cached_index(TIME_INDEX)
        if entries is None:
            entries = TimeEntries.load(self.index_bytes(TIME_INDEX), self.time_digest)
            if self.time_digest == UNKNOWN_DIGEST and not self.is_contiguous:
                headers = (header for header, _, _ in self.headers(checks=0))
                with contextlib.suppress(CorruptRecordError, UnsupportedError, OSError):
                    entries.keep_confirmed(headers, self.base_offset)
            self.file.keep_index(TIME_INDEX, entries, entries.memory_bytes)
        return entries

    def show_indexes(
        self, index: OffsetEntries | None, times: TimeEntries | None
    ) -> None:
        """Use these entries for lookups from now on; None: the index files."""
        self.live_index, self.live_times = index, times

    def index_bytes(self, suffix: str) -> bytes:
        """The content of an index file; b"" if it cannot be read: readers then scan."""
        try:
            return self.place.index_bytes(self, suffix)
        except OSError:
            return b""

    @property
    def start(self) -> OffsetPosition:
        """The place of its first batch."""
        return OffsetPosition(0, self.base_offset - 1)

    def bytes_below(self, stop: int) -> int:
        """The end of the batches with offsets below `stop`, or a position after it, by
        the index, which is not checked."""
        if stop >= self.next_offset:
            return self.size
        entries = self.offset_entries()
        # The batch of the next entry may begin below it: it ends before the one after.
        slot = entries.floor(stop - self.base_offset)[0] + 2
        return entries.entry(slot)[1] if slot < entries.count else self.size

    def find(self, offset: int) -> Record | None:
        """The record at an offset, found by one read of this file; None if that fails:
        a reader then has to search, and finds the reason.

        The caller checks afterwards whether the segment was cut meanwhile.
        """
        file = self.place.open_file(self)
        if file is None:
            return None
        limits = self.base_offset, self.next_offset, self.size, self.checks
        return self.offset_entries().find(file.fd, limits, offset)

    def find_since(self, start: int, timestamp: int) -> int | None:
        """First offset from `start` on whose record has this timestamp or a later one;
        None as in `find`."""
        file = self.place.open_file(self)
        if file is None:
            return None
        limits = self.base_offset, self.next_offset, self.size, self.checks
        times, offsets = self.time_entries(), self.offset_entries()
        return times.find(file.fd, offsets, limits, start, timestamp)

    def locate(self, offset: int) -> OffsetPosition:
        """Where to begin reading so that no record at or after `offset` is missed.

        The place of a batch that begins at or before `offset`. An index entry is used
        only if its place has a batch with a valid checksum that does so; else the
        entries before it are tried, and finally the start of the segment. One with
        another last offset than the entry says may have a wrong one, and hide the
        offset: the walk from the entry before shows that. Brokers write such entries.
        """
        walk = self.walk_from(offset, native.Buffer(LOOKUP_BYTES))
        return OffsetPosition(walk.pos, walk.last_offset)

    def walk_at(
        self, place: OffsetPosition | None, offset: int, buffer: native.Buffer
    ) -> FileWalk:
        """A walk from the first batch with a last offset >= `offset`, which is sought
        from a place on: little is read to find it. Raises: as `seek`."""
        located_batch = self.seek(place, offset)
        end = OffsetPosition(self.size, offset - 1)
        return FileWalk(
            self, located_batch[0] if located_batch else end, buffer, checks=self.checks
        )

    def walk_from(
        self,
        offset: int,
        buffer: native.Buffer,
        rest: FollowingSegments = (),
        stop: int = native.OFFSET_MAX,
    ) -> FileWalk:
        """A walk from there on. It has the bytes that were read to find the place, if
        any were. `rest`, `stop`: as in `read`."""
        is_doubtful, relative = False, offset - self.base_offset
        for last, pos in self.offset_entries().upto(relative) if relative > 0 else ():
            first = self.first_header(pos, buffer, rest, stop)
            walk, last_offset = self._walk_before(pos, offset, first)
            is_said = last_offset == self.base_offset + last
            if walk is not None and (is_said or is_doubtful):
                return walk
            is_doubtful = walk is not None and not self.is_contiguous
        return FileWalk(self, self.start, buffer, checks=self.checks)

    def _walk_before(
        self,
        pos: int,
        offset: int,
        first: tuple[native.BatchHeader, native.Buffer, int] | None,
    ) -> tuple[FileWalk | None, int]:
        """(a walk from `pos` on, if a batch there begins at or before `offset`; where
        the batch ends)."""
        if first is None:
            return None, native.OFFSET_UNKNOWN
        base, last = first[0].base_offset, first[0].last_offset
        # The first offset of a wrapper is unknown; a last one below is sufficient.
        is_before = self.base_offset <= last and (last if base < 0 else base) <= offset
        if not is_before:
            return None, last
        before = native.OFFSET_UNKNOWN if base < 0 else base - 1
        walk = FileWalk(self, (pos, before), first[1], checks=self.checks)
        walk.n, walk.is_filled = first[2], True
        return walk, last

    def locate_time(self, timestamp: int) -> OffsetPosition:
        """Where to begin reading so that no record since `timestamp` is missed."""
        if timestamp <= -(1 << 63):
            return self.start  # no record is older
        for entry in self.time_entries().upto(timestamp - 1):
            place = self._place_of_time_entry(*entry)
            if place is not None:
                return place
        return self.start

    def _place_of_time_entry(
        self, timestamp: int, relative: int
    ) -> OffsetPosition | None:
        """Where the batch of a time index entry begins, if it agrees with the entry."""
        offset = self.base_offset + relative
        if offset >= self.next_offset:
            return None
        with contextlib.suppress(CorruptRecordError, UnsupportedError):
            located_batch = self.seek(None, offset)
            if (
                located_batch is not None
                and located_batch[1].max_timestamp == timestamp
            ):
                return located_batch[0]
        return None

    def largest_timestamp(self) -> int:
        """Largest timestamp of its records, -1 without timestamps; looked up once.

        The last entry of the time index counts if the log confirms it and no later
        batch has a larger one; else all headers are read.
        """
        if self.live_state is not None:
            return self.live_state.max_timestamp
        if self.max_timestamp is not None:
            return self.max_timestamp
        size = self.size
        entries = self.time_entries()
        largest, place = -1, self.start
        if entries.count:
            timestamp, relative = entries.entry(entries.count - 1)
            entry_place = self._place_of_time_entry(timestamp, relative)
            if entry_place is not None:
                largest, place = timestamp, entry_place
        for header, _, _ in self.headers(place):
            if header.max_timestamp > largest:
                largest = header.max_timestamp
                self.max_timestamp_offset = header.last_offset
        self.max_timestamp = largest
        if self.size != size:
            self.max_timestamp = None  # another thread has found that it has grown
        return largest

    def info(self, next_offset: int, *, is_active: bool) -> SegmentInfo:
        try:
            modified_ns = self.file.directory.stat(self.file.name(LOG)).mtime_ns
        except OSError:
            modified_ns = 0
        try:
            largest = self.largest_timestamp()
        except (CorruptRecordError, UnsupportedError, StorageError):
            largest = -1
        return SegmentInfo(
            self.base_offset,
            next_offset,
            self.size,
            largest,
            modified_ns // 1_000_000,
            is_active,
            self.path,
        )
