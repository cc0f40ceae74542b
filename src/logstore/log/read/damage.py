"""Damage met by a read: what its error says, and from where reading can continue."""

from __future__ import annotations

import contextlib
from typing import Final

from logstore import _native as native
from logstore.config import StoreConfig
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StorageError,
    UnsupportedError,
)
from logstore.io.layout import LOG
from logstore.io.segment_place import FollowingSegments
from logstore.log.read.view import ChangedError, View
from logstore.log.resync import (
    Sound,
    first_at,
    is_contradicted,
    next_in_order,
    next_valid,
    passed_over,
)
from logstore.record.batch import RecordBatch
from logstore.record.decoder import (
    ChunkReader,
    Damage,
)
from logstore.record.file_walk import FileWalk
from logstore.segment import READ_BYTES, OffsetPosition, Segment

_NEXT: Final = "the next batch does not begin after its last offset, {}"
_BASE_BYTES: Final = 8


def place_past(
    segment: Segment, error: Exception, offset: int, view: View
) -> OffsetPosition | None:
    """The place after damage that lies wholly below `offset`: the next valid batch also
    ends below it, or begins at or below it. None: the damage affects a read that begins
    at `offset`, or this cannot be determined."""
    if not isinstance(error, CorruptRecordError) or offset <= segment.base_offset:
        return None
    if error.path != segment.path or error.position is None:
        return None
    if _is_behind_wrong(segment, error.position, offset, view.decompressed_max):
        return OffsetPosition(error.position, native.OFFSET_UNKNOWN)
    try:
        valid_batch = next_in_order(segment, error.position, segment.base_offset)
        if valid_batch is None:
            return None
        header, buffer = valid_batch.header, valid_batch.buffer
        first = header.base_offset
        if first < 0 <= offset <= header.last_offset:
            # The first offset of a wrapper is known only after opening it.
            limit = view.decompressed_max
            batch = make_batch(segment, header, buffer, valid_batch.pos, limit)
            first = batch.base_offset
    except (CorruptRecordError, UnsupportedError, RecordTooLargeError):
        return None
    if header.last_offset >= offset and not 0 <= first <= offset:
        return None
    place = OffsetPosition(valid_batch.pos, native.OFFSET_UNKNOWN)
    reach = _reach(segment, error.position)
    wrong = segment.first_header(error.position)
    if wrong is not None:
        reach = max(reach, wrong[0].last_offset)
    is_doubtful = reach >= min(offset, header.last_offset)
    # Batches may also have changed places, or a wrong offset may follow the damage.
    return None if is_doubtful and not _has(segment, place, offset) else place


def _is_behind_wrong(segment: Segment, pos: int, offset: int, limit: int) -> bool:
    """Whether the batch at `pos` is intact, and does not begin after an offset, and the
    one before it has a wrong offset, which no checksum covers: it ends elsewhere than
    its neighbours say, and has as many records as there are offsets between them."""
    if not segment.is_contiguous:
        return False
    before = segment.base_offset - 1
    with contextlib.suppress(CorruptRecordError, UnsupportedError, RecordTooLargeError):
        checked_header = segment.first_header(pos)
        first = (
            -1
            if checked_header is None
            else Sound(pos, *checked_header[:2]).least_offset()
        )
        if not before < first <= offset:
            return False
        for header, buffer, position in segment.headers(checks=0):
            if position + header.size < pos:
                before = header.last_offset
                continue
            if position + header.size > pos or header.last_offset == first - 1:
                return False
            moved = header._replace(last_offset=first - 1)
            batch = make_batch(segment, moved, buffer, position, limit)
            return batch.record_count == first - 1 - before
    return False


def _reach(segment: Segment, position: int) -> int:
    """The largest last offset of the batches before a position, as far as they can be
    walked over."""
    reach = -1
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        for header, _, pos in segment.headers(checks=0):
            if pos >= position:
                break
            reach = max(reach, header.last_offset)
    return reach


def first_hidden(segment: Segment, pos: int, offset: int) -> int:
    """The first offset that damage at `pos` hides from a read that has delivered what
    lies below `offset`.

    If two intact batches there have earlier offsets, several batches before have wrong
    ones, which did not contradict each other: the read has passed over records. So it
    has if a batch with earlier offsets lies among the damaged bytes.
    """
    if segment.is_contiguous:
        return offset
    checked_header = segment.first_header(pos)
    if checked_header is None:
        hidden = _passed_over(segment, pos, offset - 1)
        return offset if hidden is None else hidden[0] + 1
    if checked_header[0].last_offset >= offset:
        return offset
    following = first_at(segment, pos + checked_header[0].size)
    if following is None or following >= offset:
        return offset  # the batch there is the wrong one
    first = Sound(pos, *checked_header[:2]).least_offset()
    before = segment.base_offset - 1
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        for header, _, _ in segment.headers(checks=0):
            if header.last_offset >= first:
                break
            before = header.last_offset
    return min(before + 1, offset)


def check_gap(view: View, offset: int) -> None:
    """Raise if an offset that no batch has is not in a gap: a batch that has it is not
    in its place, but among the damaged bytes right after the gap.

    Raises:
        CorruptRecordError: the offset is not in a gap.
        ChangedError: the log was changed since the view was made.
    """
    segment = next(view.from_offset(offset))
    error: Exception | None = None
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        located_batch = None if segment.is_contiguous else segment.seek(None, offset)
        if located_batch is None:
            return
        pos, last = (
            located_batch[0].pos + located_batch[1].size,
            located_batch[1].last_offset,
        )
        if pos >= segment.size or segment.first_header(pos) is not None:
            return
        hidden = _passed_over(segment, pos, last)
        if hidden is None or not hidden[1].has(offset):
            return
        error = segment.error_of(Damage(_NEXT.format(last), 0, offset), pos, offset)
    if error is not None:
        changed = view.if_changed(error)
        raise error if changed is None else ChangedError(changed)


def _passed_over(segment: Segment, pos: int, last: int) -> tuple[int, Sound] | None:
    """`passed_over` of the damage at a position."""
    intact = next_valid(segment, pos, last)
    end = segment.size if intact is None else intact.pos
    return passed_over(segment, pos, end, last)


def _has(segment: Segment, place: OffsetPosition, offset: int) -> bool:
    """Whether a batch from a place on has an offset."""
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        located_batch = segment.seek(place, offset)
        first = (
            None if located_batch is None else first_at(segment, located_batch[0].pos)
        )
        return first is not None and first <= offset
    return False


def with_next_offset(segment: Segment, error: Exception, offset: int) -> Exception:
    """An error of damage, with the offset at which reading can continue after it, if
    that is known: at the next valid batch, or the next segment."""
    if type(error) is not CorruptRecordError or error.next_offset is not None:
        return error
    if error.path != segment.path or error.position is None:
        return error
    next_offset: int | None = None
    try:
        valid_batch = None
        if not segment.is_lost:
            valid_batch = next_in_order(segment, error.position, offset)
        if valid_batch is None:
            next_offset = segment.next_offset
        else:
            first = valid_batch.first_offset()
            next_offset = valid_batch.header.last_offset + 1 if first < 0 else first
    except (CorruptRecordError, StorageError):
        return error
    if next_offset > offset:
        error.goes_on_at(next_offset)
    return error


def confirmed(
    segment: Segment,
    buffer: native.Buffer,
    n: int,
    pos: int,
    before: int,
    offset: int,
    end: int,
    ahead: tuple[FollowingSegments, int],
) -> int:
    """How many of the first `n` bytes of a buffer may be decoded: up to the first batch
    whose offsets, which no checksum covers, the batch after it contradicts. In a log
    that may have gaps, nothing else shows a wrong offset.

    Args:
        pos: of the first byte in the file.
        before: the last offset of the batch before; `OFFSET_UNKNOWN`.
        offset: the first offset that was not delivered.
        end: one past the last offset in the segment.
        ahead: what may be read ahead, as in `Segment.read`.

    Raises:
        Damage: the first batch is contradicted.
    """
    walk = native.find_contradicted(buffer.c, n, last_offset=before)
    if walk.stop == native.STOP_FULL:
        last = native.first_header(buffer.c, n, pos=walk.pos, checks=0).headers
        behind = pos + walk.pos + last[0].size if last else segment.size
        walk = native.find_contradicted(
            buffer.c,
            n,
            pos=walk.pos,
            last_offset=walk.last_offset,
            following=_base_at(segment, behind, end, ahead),
        )
    if walk.stop != native.STOP_OFFSET:
        return n
    doubted = native.first_header(
        buffer.c, n, pos=walk.pos, checks=native.CHECK_CRC
    ).headers
    if not doubted:
        return n  # decoding it raises the damage
    batch = Sound(pos + walk.pos, doubted[0], buffer)
    last_offset, first = doubted[0].last_offset, max(offset, walk.last_offset + 1)
    if last_offset >= end and batch.end >= segment.size:
        damage = segment.too_far(last_offset, 0, first)
    elif is_contradicted(segment, batch, walk.last_offset):
        damage = Damage(_NEXT.format(last_offset), 0, first, is_order=True)
    else:
        return n
    if walk.pos == 0:
        raise damage
    return walk.pos


def _base_at(
    segment: Segment, pos: int, end: int, ahead: tuple[FollowingSegments, int]
) -> int:
    """The offset in the frame at a position, or `end` at the end of the segment."""
    if pos >= segment.size:
        return end
    buffer = native.Buffer(_BASE_BYTES)
    n = segment.read(buffer.view, pos, *ahead)
    base = int.from_bytes(buffer.raw[:n], "big", signed=True)
    return base if n == _BASE_BYTES else native.OFFSET_UNKNOWN


def first_behind(segment: Segment) -> native.BatchHeader | None:
    """The header of an intact batch that follows a segment in its file, which is only
    possible if bytes were inserted before it; else None."""
    file = segment.file
    if segment.place is not file:
        return None
    name = file.name(LOG)
    try:
        size = file.directory.stat(name).size
    except OSError:
        return None  # it has another name meanwhile
    if size <= segment.size:
        return None
    whole = Segment.of_file(
        file.directory, file.descriptors, name, segment.base_offset, size
    )
    checked_header = whole.first_header(segment.size)
    return None if checked_header is None else checked_header[0]


def check_last(segment: Segment, pos: int, offset: int) -> None:
    """Raise if there is a batch at `pos`, after the last offset of a segment that may
    have gaps: it is one of the records before the end, with a wrong offset.

    `offset` is the first offset that was not delivered.
    """
    following = segment.first_header(pos)
    if following is not None and following[0].last_offset >= segment.next_offset:
        far = segment.too_far(following[0].last_offset, 0, offset)
        raise segment.error_of(far, pos, offset)


def check_wrapper(segment: Segment, batch: RecordBatch, before: int) -> None:
    """Raise if a wrapper, whose first offset is known only now, does not follow."""
    base = batch.base_offset
    if before == native.OFFSET_UNKNOWN or base == before + 1:
        return
    if base <= before or segment.is_contiguous:
        reason = f"a batch begins at offset {base}, and the one before ends with"
        damage = Damage(f"{reason} {before}", 0, before + 1)
        raise segment.error_of(damage, batch.position, before + 1)


def unreadable(active: Segment, place: OffsetPosition) -> tuple[int, str] | None:
    """The position of the first batch, from a place on, that no reader can read
    although its checksum is right, and the reason; None without such a batch.

    No checksum covers the offset of a wrapper (magic 0 and 1): only the offsets of the
    messages inside determine what it must be. In logs that may have gaps, they do not.
    """
    if not active.is_contiguous:
        return None
    # Batches that decompress to more are left to readers, which have their own limit.
    limit = StoreConfig().max_batch_decompressed_bytes
    reader = ChunkReader(limit, with_headers=False)
    walk = FileWalk(active, place, native.Buffer(READ_BYTES))
    while walk.read():
        c, raw, last_offset = walk.buffer.c, walk.buffer.raw, walk.last_offset
        try:
            for _ in reader.columns(c, raw, walk.n, last_offset, active.checks):
                pass
        except Damage as damage:
            if damage.unsupported or damage.too_large is not None:
                return None
            return walk.pos + damage.pos, damage.reason
        last_offset = reader.decoder.last_offset
        walk.advance(reader.pos, reader.stop, last_offset, last_offset + 1)
    return None


def make_batch(
    segment: Segment,
    header: native.BatchHeader,
    buffer: native.Buffer,
    file_pos: int,
    limit: int,
    least: int = 0,
) -> RecordBatch:
    """A `RecordBatch` with its own copy of the bytes.

    `least` is the first offset that a wrapper may have, whose header does not have it.
    """
    data = buffer.raw[header.pos : header.pos + header.size]

    def named(damage: Damage) -> Exception:
        damage.pos = 0
        first = header.base_offset if header.base_offset >= 0 else least
        return with_next_offset(
            segment, segment.error_of(damage, file_pos, first), first
        )

    checks = segment.checks
    return RecordBatch(header._replace(pos=0), data, file_pos, limit, named, checks)
