"""Damage under a read: what an error says, and where a read can go on."""

from __future__ import annotations

from logstore import _native as native
from logstore.config import StoreConfig
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StorageError,
    UnsupportedError,
)
from logstore.log.read.view import View
from logstore.log.resync import next_sound_batch
from logstore.record.batch import RecordBatch
from logstore.record.decoder import (
    ChunkReader,
    Damage,
)
from logstore.segment import READ_BYTES, Place, Segment


def first_needed(segment: Segment, offset: int) -> int:
    """The first offset from `offset` on that a segment must have: what is missing in
    front of it may be a gap."""
    return offset if segment.is_gapless else max(offset, segment.base_offset)


def place_past(
    segment: Segment, error: Exception, offset: int, view: View
) -> Place | None:
    """The place behind damage that lies wholly below `offset`: the next sound batch
    ends below it too, or begins at or below it. None: the damage concerns who wants to
    begin there, or nobody can tell."""
    if not isinstance(error, CorruptRecordError) or offset <= segment.base_offset:
        return None
    if error.path != segment.path or error.position is None:
        return None
    try:
        found = next_sound_batch(segment, error.position, segment.base_offset)
        if found is None:
            return None
        header, buffer = found.header, found.buffer
        first = header.base_offset
        if first < 0 <= offset <= header.last_offset:
            # A wrapper tells its first offset only when it is opened.
            limit = view.decompressed_max
            batch = make_batch(segment, header, buffer, found.pos, limit)
            first = batch.base_offset
    except (CorruptRecordError, UnsupportedError, RecordTooLargeError):
        return None
    if header.last_offset >= offset and not 0 <= first <= offset:
        return None
    return Place(found.pos, native.OFFSET_UNKNOWN)


def told(segment: Segment, error: Exception, offset: int) -> Exception:
    """An error of damage, with where reading can go on behind it, where that is known:
    at the next sound batch, or the next segment."""
    if type(error) is not CorruptRecordError or error.next_offset is not None:
        return error
    if error.path != segment.path or error.position is None:
        return error
    behind: int | None = None
    try:
        found = None
        if not segment.is_lost:
            found = next_sound_batch(segment, error.position, offset)
        if found is None:
            behind = segment.next_offset
        else:
            first = found.first_offset()
            behind = found.header.last_offset + 1 if first < 0 else first
    except (CorruptRecordError, StorageError):
        return error
    if behind > offset:
        error.goes_on_at(behind)
    return error


def place_behind(
    segment: Segment, error: CorruptRecordError, offset: int
) -> Place | None:
    """Where a segment goes on behind damage; None where it does not."""
    if error.position is None or error.path != segment.path:
        return None
    try:
        found = next_sound_batch(segment, error.position, offset)
    except CorruptRecordError:
        # Where it was replaced right now, the next read says so.
        return segment.start if segment.is_retired else None
    return found and Place(found.pos, native.OFFSET_UNKNOWN)


def check_wrapper(segment: Segment, batch: RecordBatch, before: int) -> None:
    """Raise where a wrapper, whose first offset is known only now, does not follow."""
    base = batch.base_offset
    if before == native.OFFSET_UNKNOWN or base == before + 1:
        return
    if base <= before or segment.is_gapless:
        reason = f"a batch begins at offset {base}, and the one before ends with"
        damage = Damage(f"{reason} {before}", 0, before + 1)
        raise segment.error_of(damage, batch.position, before + 1)


def unreadable(active: Segment, place: Place) -> tuple[int, str] | None:
    """Where, from a place on, a batch begins that no reader can read although its
    checksum is right, and why; None where there is none.

    The offset of a wrapper (magic 0 and 1) is under no checksum: only the offsets of
    the messages inside say what it must be. Where logs may have gaps, they do not.
    """
    if not active.is_gapless:
        return None
    # A batch that decompresses to more is left to readers: they have their own limit.
    limit = StoreConfig().max_batch_decompressed_bytes
    reader = ChunkReader(limit, with_headers=False)
    buffer = native.Buffer(READ_BYTES)
    pos = place.pos
    reader.begin(place.last_offset, active.checks)
    while pos < active.size:
        n = active.read(buffer.view, pos)
        try:
            for _ in reader.columns(buffer.c, buffer.raw, n, 0, 0, native.OFFSET_MAX):
                pass
            offset = reader.decoder.last_offset + 1
            buffer = active.next_buffer(buffer, n, reader.pos, reader.stop, pos, offset)
        except Damage as damage:
            if damage.unsupported or damage.too_large is not None:
                return None
            return pos + damage.pos, damage.reason
        pos += reader.pos
    return None


def make_batch(
    segment: Segment,
    header: native.BatchHeader,
    buffer: native.Buffer,
    file_pos: int,
    limit: int,
) -> RecordBatch:
    """A `RecordBatch` with its own copy of the bytes."""
    data = buffer.raw[header.pos : header.pos + header.size]

    def named(damage: Damage) -> Exception:
        damage.pos = 0
        return segment.error_of(damage, file_pos, max(header.base_offset, 0))

    return RecordBatch(header._replace(pos=0), data, file_pos, limit, named)


def error_with_next_offset(
    view: View, error: CorruptRecordError | UnsupportedError, offset: int
) -> Exception:
    """`told`, for an error of whichever segment of a view."""
    for segment in view.from_offset(offset):
        if segment.path == error.path:
            return told(segment, error, offset)
    return error
