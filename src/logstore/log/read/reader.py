"""Runs of decoded records, and batches, from the chunks of a cursor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeVar

from logstore import _native as native
from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.log.read.corruption import RAISE, DamagePolicy
from logstore.log.read.cursor import Cursor, SegmentChunk
from logstore.log.read.damage import check_wrapper, make_batch
from logstore.log.read.options import ReadOptions
from logstore.log.read.view import ChangedError, View
from logstore.record.batch import RecordBatch
from logstore.record.decoder import (
    BatchFilter,
    ChunkReader,
    Damage,
    StopReading,
    damage_of,
)
from logstore.record.record import Record

__all__ = ["decoded", "headers_in", "read_batches", "read_columns", "read_records"]

Item = TypeVar("Item")


def read_columns(
    view: View,
    start: int,
    stop: int,
    reader: ChunkReader,
    *,
    policy: DamagePolicy = RAISE,
    buffer_bytes: int | None = None,
    pool: native.BufferPool | None = None,
    keeps: bool = False,
) -> Iterator[native.Columns]:
    """Runs of decoded records with start <= offset < stop.

    The columns of a run become invalid when the next run is requested. Damage that is
    not left out is raised after all records before it. Each read but the first is of
    `buffer_bytes`, or more if a batch needs it.

    Args:
        pool: gives buffers for the reads but the first, instead of `buffer_bytes`.
        keeps: each run has an `owner`, and the bytes of its records do not change while
            that lives: each read is into a separate buffer.
    """
    cursor = Cursor(
        view,
        start,
        stop,
        policy,
        buffer_bytes=buffer_bytes,
        pool=pool,
        keeps=keeps,
    )
    return decoded(cursor, reader, keeps=keeps)


def decoded(
    cursor: Cursor, reader: ChunkReader, *, keeps: bool = False
) -> Iterator[native.Columns]:
    """The same, of the chunks of a cursor."""
    view = cursor.view
    for chunk in cursor.chunks():
        if cursor.view is not view:
            view = cursor.view
            if reader.batch_filter is not None:
                reader.batch_filter.begin_again(view, cursor.offset)
        buffer = chunk.buffer
        runs = reader.columns(
            buffer.c,
            buffer.raw,
            chunk.n,
            chunk.last_offset,
            chunk.checks,
            cursor.offset,
            chunk.bound,
            owner=buffer if keeps else None,
        )
        try:
            for run in runs:
                cursor.offset = (
                    int(run.decoder.arrays.offset[run.decoder.count - 1]) + 1
                )
                yield run
        except Damage as damage:
            cursor.damaged(damage, reader.decoder.last_offset)
        except ChangedError as changed:
            cursor.changed(changed.view)
        else:
            if reader.ended:
                if reader.batch_filter is not None:
                    cursor.end(
                        reader.batch_filter.undecided, reader.decoder.last_offset
                    )
                return
            cursor.advance(reader.pos, reader.stop, reader.decoder.last_offset)
    reader.compacted_end = cursor.compacted_end


def read_records(
    view: View,
    start: int,
    stop: int,
    reader: ChunkReader,
    *,
    options: ReadOptions,
    buffer_bytes: int | None = None,
) -> Iterator[Record]:
    """The same as `Record` objects."""
    runs = read_columns(
        view, start, stop, reader, policy=options.policy, buffer_bytes=buffer_bytes
    )
    records = native.Flattened(map(native.decoded_records, runs))
    return first_of(records, options.limit)


def first_of(items: Iterator[Item], limit: int | None) -> Iterator[Item]:
    """The first `limit` items; no item after them is requested. None: all."""
    return items if limit is None else itertools.islice(items, limit)


def first_columns(
    runs: Iterator[native.Columns], limit: int | None
) -> Iterator[native.Columns]:
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


def headers_in(
    cursor: Cursor,
) -> Iterator[tuple[native.BatchHeader, SegmentChunk, int]]:
    """The headers of the batches of a cursor that end at its offset or above, in order,
    each with its chunk and the offset where the batch before it ends."""
    for chunk in cursor.chunks():
        part, last, end = cursor.part, chunk.last_offset, chunk.segment.next_offset
        assert part is not None
        headers = native.Headers(
            chunk.buffer.c, chunk.n, last_offset=last, checks=chunk.checks
        )
        damage: Damage | None = None
        for header in headers:
            pos = header.pos
            if header.base_offset >= chunk.bound:
                stop = native.STOP_OFFSET
                break
            far = header.last_offset
            if far >= end and part.is_too_far(far):
                damage = chunk.segment.too_far(far, pos, cursor.offset)
                break
            if far >= cursor.offset:
                yield header, chunk, last
                if cursor.chunk is not chunk:
                    break
            last = far
        else:
            pos, last, stop = headers.pos, headers.last_offset, headers.stop
            if headers.error is not None:
                damage = damage_of(headers.error, offset=max(last + 1, -1))
        if cursor.chunk is not chunk:
            continue
        if damage is None:
            cursor.advance(pos, stop, last)
        else:
            cursor.damaged(damage, last)


def read_batches(
    view: View,
    start: int,
    stop: int,
    *,
    policy: DamagePolicy = RAISE,
    batch_filter: BatchFilter | None = None,
) -> Iterator[RecordBatch]:
    """Batches from the one that holds `start` to the last that begins below `stop`.

    With `batch_filter`, only the batches that it selects, and no control batches.
    """
    cursor = Cursor(view, start, stop, policy)
    for header, chunk, before in headers_in(cursor):
        if cursor.view is not view:
            view = cursor.view
            if batch_filter is not None:
                batch_filter.begin_again(view, cursor.offset)
        try:
            if batch_filter is not None and not _is_delivered(header, batch_filter):
                continue
        except StopReading:
            cursor.end(batch_filter.undecided if batch_filter else None, before)
            return
        except ChangedError as changed:
            cursor.changed(changed.view)
            continue
        pos = chunk.pos + header.pos
        try:
            batch = make_batch(
                chunk.segment,
                header,
                chunk.buffer,
                pos,
                view.decompressed_max,
                max(cursor.offset, before + 1),
            )
            if header.base_offset < 0:
                check_wrapper(chunk.segment, batch, before)
            is_beyond = batch.base_offset >= chunk.bound
        except (CorruptRecordError, UnsupportedError) as error:
            cursor.on_damage(error, pos, before)
            continue
        if is_beyond:
            cursor.advance(header.pos, native.STOP_OFFSET, before)
            continue
        cursor.offset = batch.next_offset
        yield batch


def _is_delivered(header: native.BatchHeader, batch_filter: BatchFilter) -> bool:
    if header.is_control:
        return False
    return not header.is_transactional or batch_filter(header)
