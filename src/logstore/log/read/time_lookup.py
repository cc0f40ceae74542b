"""The first record since a time: which segment has it, and where in the segment."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Sequence
from typing import Final

from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.log.read.corruption import RAISE, DamagePolicy
from logstore.log.read.cursor import Cursor
from logstore.log.read.reader import decoded
from logstore.log.read.view import ChangedError, Segments, View, slot_of
from logstore.record.decoder import ChunkReader
from logstore.segment import LOOKUP_BYTES, Segment

__all__ = ["TIMESTAMP_MAX", "TIMESTAMP_MIN", "LargestTimestamps", "first_offset_at"]

TIMESTAMP_MIN: Final = -(1 << 63)
TIMESTAMP_MAX: Final = (1 << 63) - 1


class LargestTimestamps:
    """The largest timestamp in each segment or one before it, for the sealed segments
    at the start of a log: a lookup by time among thousands of segments is a binary
    search. Any thread may call it.

    They are kept in the list of segments. In a new list only the segments after the
    first one that differs from the last list are looked at, and the one before that,
    which may have been cut and have grown since. A segment that is lost, or whose
    largest timestamp is unknown, ends them. The last list is held weakly: the files of
    a deleted segment go with its last user.
    """

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: tuple[list[weakref.ref[Segment]], list[int]] = ([], [])

    def older(self, segments: Segments, timestamp: int) -> int:
        """How many segments at the start of a log have only records before a time."""
        largest = segments.largest
        if largest is None:
            references, largest = self._kept
            known = [reference() for reference in references]
            largest = segments.largest = self._of(segments, known, largest)
            self._kept = [weakref.ref(segment) for segment in segments], largest
        return bisect.bisect_left(largest, timestamp)

    @staticmethod
    def _of(
        segments: Segments,
        known: Sequence[Segment | None],
        largest: list[int],
    ) -> list[int]:
        same = 0
        for segment, before in zip(segments, known, strict=False):
            if segment is not before:
                break
            same += 1
        largest = largest[: max(same - 1, 0)]
        for segment in segments[len(largest) : -1]:
            timestamp = segment.max_timestamp
            if timestamp is None or segment.is_lost:
                break
            largest.append(max(timestamp, largest[-1]) if largest else timestamp)
        return largest


def first_offset_at(
    view: View,
    timestamp: int,
    largest: LargestTimestamps,
    policy: DamagePolicy = RAISE,
) -> int | None:
    """The first offset whose record has a timestamp >= `timestamp`; None for none.

    "First" by offset, not by time: timestamps need not rise. Damage that is left out
    does not count.

    Raises:
        ChangedError: the log was changed; the result may be wrong.
        CorruptRecordError, UnsupportedError: damage that is not left out, and that a
            read from the segment on meets before such a record.
    """
    if timestamp > TIMESTAMP_MAX:
        return None  # no record can have it
    timestamp = max(timestamp, TIMESTAMP_MIN)
    segments = view.segments
    slot = max(slot_of(segments, view.start_offset), largest.older(segments, timestamp))
    first: int | None = None
    for number in range(slot, len(segments)):
        segment = segments[number]
        if first is not None or segment.base_offset >= view.end_offset:
            break
        if _may_have(segment, timestamp):
            first = _first_in(view, segment, timestamp, policy)
    again = view.if_changed()
    if again is not None:
        raise ChangedError(again)
    return first


def _may_have(segment: Segment, timestamp: int) -> bool:
    """Whether a segment may have a record since a time. One that is lost or damaged
    may: a read of it handles the damage."""
    try:
        return segment.is_lost or segment.largest_timestamp() >= timestamp
    except (CorruptRecordError, UnsupportedError):
        return True


def _first_in(
    view: View, segment: Segment, timestamp: int, policy: DamagePolicy
) -> int | None:
    """The same in one segment."""
    reader = ChunkReader(view.decompressed_max, with_headers=False, capacity=_RECORDS)
    # Records that a publication has not committed may be removed again.
    stop = view.end_offset
    if segment is not view.segments[-1]:
        stop = min(stop, segment.next_offset)
    place = segment.locate_time(timestamp)
    cursor = Cursor(
        view,
        max(view.start_offset, segment.base_offset),
        stop,
        policy,
        first_bytes=LOOKUP_BYTES,  # it is most probably near the entry of the index
        follows=False,
        place=place,
    )
    for run in decoded(cursor, reader):
        times = run.decoder.unpack(run.decoder.arrays.timestamp)
        for index, record_time in enumerate(times):
            if record_time >= timestamp:
                return int(run.decoder.arrays.offset[index])
    return None


_RECORDS: Final = 1024
