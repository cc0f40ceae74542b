"""Whole batches in one buffer, as a fetch of Kafka's protocol gives them."""

from __future__ import annotations

from logstore import _native as native
from logstore.errors import (
    CorruptRecordError,
    UnsupportedError,
)
from logstore.log.read.damage import (
    check_follows,
    check_last,
    error_with_next_offset,
    first_needed,
    place_after,
    place_past,
)
from logstore.log.read.view import ChangedError, View
from logstore.record.batch import Chunk
from logstore.record.decoder import (
    BatchFilter,
    Damage,
    StopReading,
)
from logstore.segment import OffsetPosition, Segment

__all__ = ["fetch"]


def fetch(
    view: View,
    offset: int,
    stop: int,
    max_bytes: int,
    *,
    skip: bool = False,
    batch_filter: BatchFilter | None = None,
) -> Chunk:
    """The whole batches of one buffer of `max_bytes`, from the one that holds `offset`.

    Reads one segment at a time, as Kafka does. The buffer is doubled until a batch
    fits. With `skip`, a damaged batch at the beginning is left out. The call decides
    which transactional batches are delivered, so that a chunk gives the same records
    whenever it is iterated over; the chunk ends before the first batch for which this
    cannot be decided.

    Raises:
        ChangedError: the log was changed, and `offset` is still part of it. The caller
            must repeat the call: in the view of the error, which a cut may have
            shortened, an empty chunk need not mean the end of the log.
    """
    resume_place: tuple[Segment, OffsetPosition] | None = None
    while True:
        again: View | None
        try:
            chunk = _fetch(view, offset, stop, max_bytes, batch_filter, resume_place)
            again = view.if_cut(offset)
            if again is None:
                return chunk
        except ChangedError as changed:
            again = view.if_cut(offset) or changed.view
        except (CorruptRecordError, UnsupportedError) as error:
            again = view.again(offset, error)
            past = None if again is not None else _past(view, error, offset)
            if past is not None:
                resume_place = past
            elif again is None:
                if isinstance(error, UnsupportedError) or not skip:
                    raise error_with_next_offset(
                        view, error, offset
                    ) from error.__cause__
                if error.position is None:
                    raise
                offset, resume_place = _after_damage(view, error, offset)
        if again is not None:
            raise ChangedError(again)


def _past(
    view: View, error: CorruptRecordError | UnsupportedError, offset: int
) -> tuple[Segment, OffsetPosition] | None:
    """The place to begin at if the damage lies below `offset`; None if it does not."""
    for segment in view.from_offset(offset):
        if segment.path == error.path:
            place = place_past(segment, error, offset, view)
            return None if place is None else (segment, place)
    return None


def _after_damage(
    view: View, error: CorruptRecordError, offset: int
) -> tuple[int, tuple[Segment, OffsetPosition] | None]:
    """(the first offset after damage that may be intact, where to look for it)."""
    for segment in view.from_offset(offset):
        if segment.path == error.path:
            place = place_after(segment, error, offset)
            if place is not None:
                return offset, (segment, place)
            return max(segment.next_offset, offset + 1), None
    return view.end_offset, None


def _fetch(
    view: View,
    offset: int,
    stop: int,
    max_bytes: int,
    batch_filter: BatchFilter | None,
    resume_place: tuple[Segment, OffsetPosition] | None,
) -> Chunk:
    limit = view.decompressed_max
    for segment in view.from_offset(offset):
        place = None
        if offset < stop and resume_place is not None and resume_place[0] is segment:
            place = segment.seek(resume_place[1], offset)
        elif offset < stop:
            place = segment.seek(segment.locate(offset), offset)
        if place is None:
            must = segment.is_contiguous or segment is view.segments[-1]
            if must and first_needed(segment, offset) < min(stop, segment.next_offset):
                raise segment.missing(segment.size, offset)
            continue
        pos, before = place
        buffer, end, last = _whole_batches(segment, place, offset, stop, max_bytes)
        if end == 0:
            break
        end, last = _without_doubtful(segment, buffer, end, last, place, offset)

        def named(
            damage: Damage, segment: Segment = segment, pos: int = pos
        ) -> Exception:
            return segment.error_of(damage, pos, offset)

        delivered: dict[int, bool] | None = None
        if batch_filter is not None:
            delivered, end, last = _decided(buffer, end, offset, last, batch_filter)
            if end == 0:
                break
        data, checks = buffer.raw[:end], segment.checks
        return Chunk(
            data, offset, stop, last + 1, limit, named, delivered, before, checks
        )
    return Chunk(b"", offset, stop, offset, limit, lambda damage: damage)


def _decided(
    buffer: native.Buffer, end: int, offset: int, last: int, batch_filter: BatchFilter
) -> tuple[dict[int, bool], int, int]:
    """(whether to deliver each batch of a transaction, by its last offset; the end and
    the last offset of the batches before the first undecided one)."""
    delivered: dict[int, bool] = {}
    pos = done = 0
    before = offset - 1
    while True:
        scan = native.scan_batches(buffer.c, end, pos=pos, checks=0)
        for header in scan.headers:
            if header.is_transactional and not header.is_control:
                try:
                    is_delivered = header.last_offset >= offset and batch_filter(header)
                except StopReading:
                    return delivered, done, before
                delivered[header.last_offset] = is_delivered
            done, before = header.pos + header.size, header.last_offset
        pos = scan.pos
        if scan.stop != native.STOP_FULL:
            return delivered, end, last


def _whole_batches(
    segment: Segment, place: OffsetPosition, offset: int, stop: int, max_bytes: int
) -> tuple[native.Buffer, int, int]:
    """(buffer, end, last offset) of the whole batches from a place on that end below
    `stop`; end is 0 if the first one does not."""
    pos, before = place
    size = max_bytes
    while True:
        buffer = native.Buffer(min(size, segment.size - pos))
        n = segment.read(buffer.view, pos)
        end, last, _, _, error, _ = native.walk_batches(
            buffer.c, n, pos=0, last_offset=before, checks=segment.checks
        )
        bound = min(stop, segment.next_offset)
        if end and last < bound:
            return buffer, end, last
        if end:
            end, last, far = _up_to(buffer, n, bound)
            if end == 0 and far >= segment.next_offset:
                raise segment.error_of(segment.too_far(far, 0, offset), pos, offset)
            return buffer, end, last
        if error is not None:
            damage = Damage(
                error.reason, error.pos, offset, unsupported=error.is_unsupported
            )
            raise segment.error_of(damage, pos, offset)
        if n < buffer.capacity or pos + n >= segment.size:
            raise segment.missing(pos, offset)
        size = max(2 * size, segment.frame_bytes(buffer, n))


def _without_doubtful(
    segment: Segment,
    buffer: native.Buffer,
    end: int,
    last: int,
    place: OffsetPosition,
    offset: int,
) -> tuple[int, int]:
    """(end, last offset) without the last batch, if the next one shows that its offset
    is wrong, or has one behind the segment: the next fetch would begin after the
    records that it hides.

    Raises:
        CorruptRecordError: it is the only one.
    """
    pos = place.pos + end
    try:
        check_follows(segment, pos, last, offset)
        if last + 1 >= segment.next_offset:
            check_last(segment, pos, offset)
    except CorruptRecordError:
        end_before, last_before = _up_to(buffer, end, last)[:2]
        if end_before == 0 or last_before < offset:
            raise
        return end_before, last_before
    return end, last


def _up_to(buffer: native.Buffer, n: int, stop: int) -> tuple[int, int, int]:
    """(end, last offset) of the batches in a buffer that end below `stop`, and the last
    offset of the one after them."""
    pos, end, last = 0, 0, -1
    while True:
        scan = native.scan_batches(buffer.c, n, pos=pos, checks=0)
        for header in scan.headers:
            if header.last_offset >= stop:
                return end, last, header.last_offset
            end, last = header.pos + header.size, header.last_offset
        pos = scan.pos
        if scan.stop != native.STOP_FULL:
            return end, last, -1
