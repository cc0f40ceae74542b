"""Decides how a read continues at damage: after it, or not at all.

The log was not changed under the read: `Cursor.on_damage` asks that before.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from logstore import _native as native
from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.log.read.corruption import Damaged, DamagePolicy
from logstore.log.read.damage import first_hidden, place_past, with_next_offset
from logstore.log.read.view import View
from logstore.log.resync import Sound, may_end_transaction, next_in_order
from logstore.segment import OffsetPosition, Segment, SegmentGoneError

__all__ = ["Met", "Resume", "after_damage"]


class Met(NamedTuple):
    """Damage that a read has met.

    Attributes:
        segment: which has it.
        error: what the read would raise.
        pos: where the damage begins; None: the segment cannot be read.
        last_offset: where the batch before it ends; `OFFSET_UNKNOWN`.
        offset: the first one that the read has not delivered.
        since: damage that lies wholly below it is ignored.
    """

    segment: Segment
    error: CorruptRecordError | UnsupportedError
    pos: int | None
    last_offset: int
    offset: int
    since: int


class Resume(NamedTuple):
    """How a read continues after damage.

    Attributes:
        place: in the same segment; None: in the next one.
        left_out: the damage that it leaves out; None: the damage does not affect the
            read.
        hides_end: whether that may have been the end of a transaction.
    """

    place: OffsetPosition | None
    left_out: Damaged | None = None
    hides_end: bool = False


def after_damage(met: Met, policy: DamagePolicy, view: View) -> Resume | Exception:
    """How a read of a view continues after damage, or the error that it must raise.

    Raises:
        Exception: of the function that the policy asks, or of the system.
    """
    segment, error, pos, last_offset, offset, since = met
    if offset <= since:
        place = place_past(segment, error, since, view)
        if place is not None:
            return Resume(place)
    first = begin = max(offset, last_offset + 1)
    if pos is not None and isinstance(error, CorruptRecordError):
        with contextlib.suppress(CorruptRecordError):
            begin = min(max(first_hidden(segment, pos, first), since), first)
        if begin < first:
            error.offset = begin
            error.goes_on_at(error.next_offset)
    is_below = since >= segment.next_offset
    if not (is_below or policy.skips):
        return with_next_offset(segment, error, first)
    intact: Sound | None = None
    if pos is not None:
        with contextlib.suppress(SegmentGoneError):
            intact = next_in_order(segment, pos, first)
    place = intact and OffsetPosition(intact.pos, native.OFFSET_UNKNOWN)
    if is_below:
        return Resume(place)
    damaged = _damaged(met, begin, intact, is_last=segment is view.segments[-1])
    following = damaged.next_offset
    if policy.skips and following is not None and following <= damaged.first:
        return Resume(place)  # no offset is missing between the batches around it
    if not policy.leaves_out(damaged):
        return with_next_offset(segment, error, first)
    hides_end = intact is None or may_end_transaction(
        segment, intact.pos if pos is None else pos, intact.pos
    )
    return Resume(place, damaged, hides_end)


def _damaged(met: Met, first: int, intact: Sound | None, *, is_last: bool) -> Damaged:
    """The damage as the policy, and the caller, see it."""
    next_offset: int | None
    if intact is not None:
        first_offset = intact.first_offset()
        next_offset = (
            intact.header.last_offset + 1 if first_offset < 0 else first_offset
        )
    else:
        next_offset = None if is_last else met.segment.next_offset
    if next_offset is not None and first >= next_offset:
        first = met.offset  # that of a batch whose content is damaged
    if type(met.error) is CorruptRecordError and next_offset is not None:
        met.error.goes_on_at(next_offset)
    return Damaged(first, next_offset, met.error)
