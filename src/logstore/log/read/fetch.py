"""Whole batches in one buffer, as a fetch of Kafka's protocol gives them."""

from __future__ import annotations

from logstore import _native as native
from logstore.errors import CorruptRecordError
from logstore.log.read.corruption import RAISE, DamagePolicy
from logstore.log.read.cursor import Cursor, SegmentChunk
from logstore.log.read.damage import check_last, with_next_offset
from logstore.log.read.view import View
from logstore.record.batch import Chunk
from logstore.record.decoder import (
    BatchFilter,
    ChunkReader,
    Damage,
    StopReading,
    damage_of,
)

__all__ = ["fetch"]


def fetch(
    view: View,
    offset: int,
    stop: int,
    max_bytes: int,
    *,
    policy: DamagePolicy = RAISE,
    batch_filter: BatchFilter | None = None,
) -> Chunk:
    """The whole batches of one buffer of `max_bytes`, from the one that holds `offset`.

    Reads one segment at a time, as Kafka does. A batch that is larger gets a buffer of
    its size. Damage is met only at the beginning; wrappers of magic 0 and 1 are
    decoded to find it, and no other batches. The call decides which transactional
    batches are delivered, so that a chunk gives the same records whenever it is
    iterated over; the chunk ends before the first batch for which this cannot be
    decided.

    Raises:
        ChangedError: the log was changed. The caller must repeat the call: an empty
            chunk need not mean the end of the log.
    """
    cursor = Cursor(
        view,
        offset,
        stop,
        policy,
        buffer_bytes=max_bytes,
        first_bytes=max_bytes,
        follows=False,
        is_exact=True,
    )
    while (read := cursor.next_chunk()) is not None:
        try:
            end, last, why = _whole_batches(cursor, read)
        except Damage as damage:
            cursor.damaged(damage, read.last_offset)
            continue
        except CorruptRecordError as error:
            cursor.on_damage(error, error.position, read.last_offset)
            continue
        if end == 0:
            cursor.advance(0, why, read.last_offset)
            continue
        delivered: dict[int, bool] | None = None
        if batch_filter is not None:
            delivered, end, last = _decided(
                read.buffer, end, offset, last, batch_filter
            )
            if end == 0:
                cursor.end(batch_filter.undecided, read.last_offset)
        cursor.check_for_change()

        def named(damage: Damage, read: SegmentChunk = read) -> Exception:
            error = read.segment.error_of(damage, read.pos, offset)
            return with_next_offset(read.segment, error, damage.offset)

        return Chunk(
            read.buffer.raw[:end],
            offset,
            stop,
            last + 1 if end else offset,
            view.decompressed_max,
            named,
            delivered,
            read.last_offset,
            read.checks,
        )
    return Chunk(
        b"",
        offset,
        stop,
        max(stop, offset),  # there is no record before it
        view.decompressed_max,
        lambda damage: damage,
    )


def _decided(
    buffer: native.Buffer, end: int, offset: int, last: int, batch_filter: BatchFilter
) -> tuple[dict[int, bool], int, int]:
    """(whether to deliver each batch of a transaction, by its last offset; the end and
    the last offset of the batches before the first undecided one)."""
    delivered: dict[int, bool] = {}
    before = 0, offset - 1
    for header in native.Headers(buffer.c, end, checks=0):
        if header.is_transactional and not header.is_control:
            try:
                is_delivered = header.last_offset >= offset and batch_filter(header)
            except StopReading:
                return delivered, *before
            delivered[header.last_offset] = is_delivered
        before = header.pos + header.size, header.last_offset
    return delivered, end, last


def _whole_batches(cursor: Cursor, read: SegmentChunk) -> tuple[int, int, int]:
    """(end, last offset) of the whole batches in the buffer that end below the end of
    the read, and why there are no more: native.STOP_*.

    Raises:
        Damage, CorruptRecordError: at the beginning.
    """
    end, last, _, stop, error, has_wrappers = native.walk_batches(
        read.buffer.c,
        read.n,
        last_offset=read.last_offset,
        checks=read.checks,
    )
    if end and last >= read.bound:
        end, last = _up_to(read.buffer, read.n, read.bound)
        stop = native.STOP_OFFSET
    elif end == 0 and error is not None:
        raise damage_of(error, offset=cursor.offset)
    is_last = last + 1 == read.segment.next_offset
    if end and is_last and read.pos + end < read.segment.size:
        check_last(read.segment, read.pos + end, last + 1)
    if end and has_wrappers:
        end, last = _whole_wrappers(cursor, read, end, last)
    return end, last, stop


def _whole_wrappers(
    cursor: Cursor, read: SegmentChunk, end: int, last: int
) -> tuple[int, int]:
    """(end, last offset) of the batches before the first wrapper that cannot be
    decoded: no checksum covers its offset, and the next fetch would begin after the
    records that it hides.

    Raises:
        Damage: it is the first of all.
    """
    buffer, raw = read.buffer, read.buffer.raw
    reader = ChunkReader(cursor.view.decompressed_max, with_headers=False)
    first, checks = cursor.offset, read.checks
    try:
        for _ in reader.columns(buffer.c, raw, end, read.last_offset, checks, first):
            pass
    except Damage as damage:
        if damage.unsupported or damage.too_large is not None:
            return end, last  # the limit is for the caller that decodes the chunk
        end, last = 0, -1
        for header in native.Headers(buffer.c, damage.pos, checks=0):
            end, last = header.pos + header.size, header.last_offset
        if last < first:
            raise
    return end, last


def _up_to(buffer: native.Buffer, n: int, stop: int) -> tuple[int, int]:
    """(end, last offset) of the batches in a buffer that end below `stop`."""
    end, last = 0, -1
    for header in native.Headers(buffer.c, n, checks=0):
        if header.last_offset >= stop:
            break
        end, last = header.pos + header.size, header.last_offset
    return end, last
