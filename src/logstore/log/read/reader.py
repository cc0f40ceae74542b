"""Reading a log: from a list of segments to runs of decoded records.

A read works on a `View`, the immutable list of segments and bounds at the time it
began, and takes no lock. Records appended or deleted meanwhile do not change what it
delivers. If the log is cut, the read delivers the part that is still the same log, and
then reports that the rest is gone. To do so it checks, after each call that reads
bytes, whether the log was cut before that call: those bytes may have been written after
the cut.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Final, TypeVar

from logstore import _native as native
from logstore.errors import (
    ConfigError,
    CorruptRecordError,
    OffsetOutOfRangeError,
    RecordTooLargeError,
    UnsupportedError,
)
from logstore.log.read.damage import (
    check_stop,
    check_wrapper,
    first_needed,
    make_batch,
    place_after,
    place_past,
    with_next_offset,
)
from logstore.log.read.view import ChangedError, View
from logstore.log.resync import next_valid_batch
from logstore.log.scan import WholeReads
from logstore.record.batch import RecordBatch
from logstore.record.decoder import (
    BatchFilter,
    ChunkReader,
    Columns,
    Damage,
    StopReading,
    iter_records,
)
from logstore.record.record import Record
from logstore.segment import READ_BYTES, OffsetPosition, Segment, SegmentGoneError

__all__ = ["SegmentWalk", "read_batches", "read_columns"]

Item = TypeVar("Item")

ISOLATIONS: Final = ("read_uncommitted", "read_committed")
ON_CORRUPTION: Final = ("raise", "skip")


def check_choice(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(
            f"{name}={value!r} is not one of {', '.join(allowed)}",
            name=name,
            value=value,
        )


def read_columns(
    view: View,
    start: int,
    stop: int,
    reader: ChunkReader,
    *,
    skip: bool = False,
    buffer_bytes: int = READ_BYTES,
    pool: native.BufferPool | None = None,
    keeps: bool = False,
) -> Iterator[Columns]:
    """Runs of decoded records with start <= offset < stop.

    The columns of a run become invalid when the next run is requested. With `skip`,
    damaged data is left out; otherwise the damage is raised after all records before
    it. Each read but the first is of `buffer_bytes`, or more if a batch needs it.

    Args:
        pool: gives buffers for the reads but the first, instead of `buffer_bytes`.
        keeps: each run has an `owner`, and the bytes of its records stay as they are
            while that lives: each read is into a buffer of its own.
    """
    buffer_bytes = buffer_bytes if pool is None else pool.capacity
    offset = start
    again: View | None = view
    buffer: native.Buffer | None = None
    is_to_end = stop >= view.end_offset
    while again is not None:
        if again is not view and reader.batch_filter is not None:
            reader.batch_filter.begin_again(again, offset)
        if again.compactions != view.compactions:
            reader.compacted_end = again.end_offset
            if is_to_end:
                stop = max(stop, again.end_offset)
        view, again = again, None
        segments, end = view.from_offset(offset), min(stop, view.end_offset)
        first = segments[0] if segments else None
        ended_at: int | None = None
        while segments and offset < end and not reader.ended and again is None:
            segment = segments.popleft()
            if segment is not first:
                again = view.now(offset)
                if again is not None:
                    break
            if ended_at is not None and ended_at != segment.base_offset:
                # The log was truncated during this read: the rest is another log.
                raise OffsetOutOfRangeError(
                    offset, view.start_offset, ended_at, partition=view.name
                )
            # A segment that is not the last ends where the next one begins.
            bound = min(end, segments[0].base_offset) if segments else end
            if buffer is None:
                # The first read may be all that is needed.
                buffer = native.Buffer(min(buffer_bytes, READ_BYTES))
            walk = SegmentWalk(
                view, segment, buffer, reader, skip, is_last=not segments
            )
            walk.buffer_bytes, walk.pool, walk.keeps = buffer_bytes, pool, keeps
            try:
                yield from walk.columns(offset, bound)
            except ChangedError as changed:
                again = view.if_cut(max(walk.offset, offset)) or changed.view
            except (CorruptRecordError, UnsupportedError) as error:
                again = view.again(max(walk.offset, offset), error)
                if again is None:
                    raise
            offset = max(walk.offset, offset)
            buffer = native.Buffer(READ_BYTES) if keeps else walk.buffer
            ended_at = walk.ended_at
    if not reader.ended:
        view.check_end(stop)


def read_records(
    view: View,
    start: int,
    stop: int,
    reader: ChunkReader,
    *,
    skip: bool = False,
    buffer_bytes: int = READ_BYTES,
) -> Iterator[Record]:
    """The same as `Record` objects."""
    runs = read_columns(view, start, stop, reader, skip=skip, buffer_bytes=buffer_bytes)
    return native.Flattened(map(iter_records, runs))


def first_of(items: Iterator[Item], limit: int | None) -> Iterator[Item]:
    """The first `limit` items; no item after them is requested. None: all."""
    return items if limit is None else itertools.islice(items, limit)


def first_columns(runs: Iterator[Columns], limit: int | None) -> Iterator[Columns]:
    """The first `limit` records of runs; None: all."""
    if limit is None:
        yield from runs
    elif limit:
        for run in runs:
            # Its reader has no other use for the number.
            run.decoder.count = min(run.decoder.count, limit)
            limit -= run.decoder.count
            yield run
            if limit == 0:
                return


def first_batches(
    batches: Iterator[RecordBatch], limit: int | None, start: int
) -> Iterator[RecordBatch]:
    """Whole batches up to the one that holds the last of `limit` records from `start`
    on; None: all."""
    if limit is None:
        yield from batches
    elif limit:
        for batch in batches:
            count = len(batch)
            if count and batch.base_offset < start:
                count = sum(record.offset >= start for record in batch)
            limit -= count
            yield batch
            if limit <= 0:
                return


class SegmentWalk:
    """One pass over a segment's records.

    Attributes:
        offset: the next to be delivered.
        buffer: what a call reads into; one of `buffer_bytes` takes its place when it
            has been used up.
        pool: gives buffers of `buffer_bytes`; None: they are new.
        keeps: a buffer is not read into again once its records were delivered.
    """

    def __init__(
        self,
        view: View,
        segment: Segment,
        buffer: native.Buffer,
        reader: ChunkReader,
        skip: bool,
        *,
        is_last: bool,
    ) -> None:
        self.view = view
        self.segment = segment
        self.is_last = is_last
        self.buffer = buffer
        self.buffer_bytes = buffer.capacity
        self.pool: native.BufferPool | None = None
        self.keeps = False
        self.reader = reader
        self.skip = skip
        self.offset = self.start = segment.base_offset
        self.reads = WholeReads()
        self.next_offset = segment.next_offset
        self.version = self.first_version = segment.version
        # One past the last offset, after a walk to the end of a contiguous segment.
        self.ended_at: int | None = None

    def columns(
        self, start: int, stop: int, place: OffsetPosition | None = None
    ) -> Iterator[Columns]:
        segment, reader = self.segment, self.reader
        self.offset = self.start = max(start, segment.base_offset)
        self.version = segment.version
        pos, before = place or self._locate(start)
        reader.begin(before, segment.checks)
        is_shown = False
        while True:
            if segment.version != self.version:
                # A failed append was undone; this walk may have read part of it.
                self._check_for_cut()
                self.version = segment.version
                pos, before = segment.locate(self.offset)
                reader.begin(before, segment.checks)
            if pos >= segment.size:
                self._check_for_cut()
                break
            if is_shown and self.keeps:
                # The one before belongs to readers that have seen its records.
                self.buffer, is_shown = self._new_buffer(), False
            try:
                n = segment.read(self.reads.room(self.buffer), pos)
            except CorruptRecordError as error:
                if not self.skip:
                    raise
                self._ask_again(error)
                self.offset = segment.next_offset
                return
            self._check_for_cut()
            if segment.version != self.version:
                continue
            buffer = self.buffer
            owner = buffer if self.keeps else None
            try:
                for run in reader.columns(
                    buffer.c, buffer.raw, n, 0, self.offset, stop, owner
                ):
                    is_shown = True
                    self.offset = int(run.decoder.offset[run.decoder.count - 1]) + 1
                    yield run
                self._check_bound(n)
                if reader.stop == native.STOP_OFFSET or self.offset >= stop:
                    self._check_beyond(n, pos, stop)
                    return
                if self.reads.is_short(buffer, n, reader.pos, reader.stop):
                    continue
                self.buffer = segment.next_buffer(
                    buffer, n, reader.pos, reader.stop, pos, self.offset
                )
                pos += reader.pos
                if self.buffer.capacity < self.buffer_bytes:
                    self.buffer, is_shown = self._new_buffer(), False
            except Damage as damage:
                pos = self._skip(
                    segment.error_of(damage, pos, self.offset), pos + damage.pos
                )
            except CorruptRecordError as error:
                pos = self._skip(error, pos + reader.pos)
        self._check_end(stop)

    def _new_buffer(self) -> native.Buffer:
        if self.pool is None:
            return native.Buffer(self.buffer_bytes)
        return self.pool.take()

    def _check_for_cut(self) -> None:
        """Raise `ChangedError` if the log was cut: the bytes that were read may have
        been written since."""
        again = self.view.if_cut(self.offset)
        if again is not None:
            raise ChangedError(again)

    def _locate(self, offset: int) -> OffsetPosition:
        try:
            return self.segment.locate(offset)
        except CorruptRecordError as error:
            if not self.skip:
                raise
            self._ask_again(error)
            return self.segment.start

    def _check_end(self, stop_offset: int) -> None:
        """Raise if the segment ends too early. A segment that is not the last may do so
        if its log may have gaps."""
        stop = min(stop_offset, self.segment.next_offset)
        segment, last = self.segment, self.reader.decoder.last_offset
        if last == native.OFFSET_UNKNOWN or not (segment.is_contiguous or self.is_last):
            return
        if self.skip:
            if last + 1 < stop:
                self._ask_again(segment.missing(segment.size, last + 1))
            return
        self.ended_at = last + 1
        if last + 1 < stop:
            raise segment.missing(segment.size, max(self.offset, last + 1))

    def _check_bound(self, n: int) -> None:
        """Raise `Damage` if a batch that was walked over ends after the end of its
        segment: its offset, which no checksum covers, may hide its records."""
        segment, last = self.segment, self.reader.decoder.last_offset
        bound = max(self.next_offset, segment.next_offset)
        if last < bound or last == native.OFFSET_UNKNOWN or self._was_cut():
            return
        pos = 0
        while True:
            scan = native.scan_batches(self.buffer.c, n, pos=pos, checks=0)
            for header in scan.headers:
                if header.last_offset >= bound:
                    raise segment.too_far(header.last_offset, header.pos, self.offset)
            pos = scan.pos
            if scan.stop != native.STOP_FULL:
                raise segment.too_far(last, 0, self.offset)

    def _check_beyond(self, n: int, buffer_pos: int, stop: int) -> None:
        """`check_stop` of the batch after the last one, if it is in the buffer."""
        scan = native.scan_batches(
            self.buffer.c, n, pos=self.reader.pos, checks=0, count_max=1
        )
        for header in scan.headers:
            if not self._was_cut():
                check_stop(
                    self.segment,
                    header,
                    self.buffer,
                    buffer_pos + header.pos,
                    self.reader.decoder.last_offset,
                    stop,
                    self.offset,
                )
                self._check_for_cut()

    def _was_cut(self) -> bool:
        """Whether a concurrent truncation may explain why the data has moved."""
        return self.segment.version != self.first_version

    def _ask_again(self, error: Exception) -> None:
        """Raise `ChangedError` if the apparent damage is a change of the log."""
        again = self.view.again(self.offset, error)
        if again is not None:
            raise ChangedError(again)

    def _skip(self, error: Exception, pos: int) -> int:
        """The position to continue at after damage at `pos`; raises `error` if the read
        must not continue."""
        if self.offset == self.start and isinstance(error, CorruptRecordError):
            place = place_past(self.segment, error, self.start, self.view)
            if place is not None:
                self._check_for_cut()
                self.reader.begin(place.last_offset, self.segment.checks)
                return place.pos
        if not self.skip or isinstance(error, RecordTooLargeError):
            try:
                raise with_next_offset(self.segment, error, self.offset)
            finally:
                # Otherwise this frame and the error would keep each other alive, and
                # with them the buffers of the read, until the garbage collector runs.
                del error
        self._ask_again(error)
        valid_batch = None
        with contextlib.suppress(SegmentGoneError):
            valid_batch = next_valid_batch(self.segment, pos, self.offset)
        if valid_batch is None:
            return self.segment.size
        self.reader.begin(native.OFFSET_UNKNOWN, self.segment.checks)
        return valid_batch.pos


# ---------------------------------------------------------------- batches and chunks


def read_batches(
    view: View,
    start: int,
    stop: int,
    *,
    skip: bool = False,
    batch_filter: BatchFilter | None = None,
) -> Iterator[RecordBatch]:
    """Batches from the one that holds `start` to the last that begins below `stop`.

    With `batch_filter`, only those that it selects, and no control batches.
    """
    offset, end = start, stop
    is_to_end = stop >= view.end_offset
    segments = view.from_offset(start)
    place: OffsetPosition | None = None
    first = segments[0] if segments else None
    again: View | None = None

    def check() -> None:
        changed = view.if_cut(offset)
        if changed is not None:
            raise ChangedError(changed)

    while segments and offset < end:
        segment = segments[0]
        is_last = len(segments) == 1
        try:
            again = None if segment is first else view.now(offset)
            if again is not None:
                raise ChangedError(again)
            place = place or segment.locate(offset)
            before = place.last_offset
            for header, buffer, file_pos in segment.headers(place, check=check):
                last_before, before = before, header.last_offset
                if header.last_offset < offset:
                    continue
                if header.last_offset >= segment.next_offset:
                    far = segment.too_far(header.last_offset, 0, offset)
                    raise segment.error_of(far, file_pos, offset)
                batch = None
                if header.base_offset < end:
                    if batch_filter and not _is_delivered(header, batch_filter):
                        continue
                    batch = make_batch(
                        segment, header, buffer, file_pos, view.decompressed_max
                    )
                    if header.base_offset < 0:
                        check_wrapper(segment, batch, last_before)
                if batch is None or batch.base_offset >= end:
                    check_stop(
                        segment, header, buffer, file_pos, last_before, end, offset
                    )
                    break
                offset = batch.next_offset
                yield batch
            else:
                check()
                # A contiguous segment reaches the next one; every log reaches its end.
                short_of = min(end, segment.next_offset)
                is_short = is_last and first_needed(segment, offset) < short_of
                if segment.is_contiguous and before != native.OFFSET_UNKNOWN:
                    is_short = is_short or before + 1 < short_of
                if is_short and not skip and batch_filter is None:
                    raise segment.missing(segment.size, offset)
                place = None
                segments.popleft()
                continue
            break
        except StopReading:
            return
        except ChangedError as changed:
            again = view.if_cut(offset) or changed.view
        except (CorruptRecordError, UnsupportedError) as error:
            again = view.again(offset, error)
            place = None
            if again is None and offset == start:
                place = place_past(segment, error, offset, view)
            if again is None and place is None:
                if not skip or isinstance(error, UnsupportedError):
                    raise with_next_offset(segment, error, offset) from error.__cause__
                place = place_after(segment, error, offset)
                if place is None:
                    segments.popleft()
        if again is not None:
            if is_to_end and again.compactions != view.compactions:
                stop = max(stop, again.end_offset)
            view, end, place = again, min(stop, again.end_offset), None
            if batch_filter is not None:
                batch_filter.begin_again(view, offset)
            segments = view.from_offset(offset)
            first = segments[0] if segments else None
    view.check_end(stop)


def _is_delivered(header: native.BatchHeader, batch_filter: BatchFilter) -> bool:
    if header.is_control:
        return False
    return not header.is_transactional or batch_filter(header)
