"""Finds the segments that logstore's own writer begins, from its state.

A roll appends an entry to the state file of the partition; every other change of the
names in its directory is recorded first, in a state that is written whole. So while the
state has only grown, nothing else has happened, and a look at a roll costs the same
however many segments there are.
"""

from __future__ import annotations

from collections.abc import Sequence

from logstore import _native as native
from logstore.index import UNKNOWN_DIGEST, OffsetEntries, TimeEntries
from logstore.io.checkpoint.partition_state import PartitionState, StateGrowth
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG
from logstore.log.read.view import Segments
from logstore.log.recover import RecoveredLog
from logstore.segment import Segment

__all__ = ["begin_segment", "segments_of", "take_growth", "take_state"]


def begin_segment(
    directory: Directory,
    descriptors: Descriptors,
    loaded: RecoveredLog,
    last: Segment,
    base: int,
) -> Segment:
    """The segment that follows the last one of a log, before it is read.

    Raises:
        OSError: its file does not exist.
    """
    segment = Segment(
        directory,
        descriptors,
        base,
        0,
        base,
        is_contiguous=loaded.is_contiguous,
    )
    segment.file.inode = directory.stat(segment.file.name(LOG)).inode
    last.next_offset = max(last.next_offset, base)
    last.show_indexes(None, None)
    loaded.active_state = native.SegmentState(base)
    loaded.index, loaded.times = OffsetEntries(), TimeEntries()
    segment.show_indexes(loaded.index, loaded.times)
    return segment


def take_growth(
    growth: StateGrowth, loaded: RecoveredLog, segments: Sequence[Segment]
) -> bool:
    """Take over what was appended to the state. False: it names a segment that is not
    known, and nothing was changed."""
    digests = {row[0]: row[-1] for row in growth.sealed}
    bases = {*digests, growth.active["base_offset"]}
    first, newest_segments = min(bases), []
    for segment in reversed(segments):
        if segment.base_offset < first:
            break
        newest_segments.append(segment)
    if not bases <= {segment.base_offset for segment in newest_segments}:
        return False
    for segment in newest_segments:
        segment.time_digest = digests.get(segment.base_offset, segment.time_digest)
    loaded.durable_offset = max(loaded.durable_offset, growth.durable_offset)
    return True


def take_state(
    state: PartitionState, loaded: RecoveredLog, segments: Sequence[Segment]
) -> None:
    """Take over a state that was read whole, of a log that was not cut."""
    digests = {row[0]: row[-1] for row in state.sealed}
    for segment in segments[:-1]:
        segment.time_digest = digests.get(segment.base_offset, UNKNOWN_DIGEST)
    # Both from one state: together they bound the offsets without transactions. Entries
    # that follow it move only the durable offset: the writer admits transactions in a
    # whole state.
    loaded.foreign_end = state.foreign_end
    loaded.durable_offset = max(loaded.durable_offset, state.durable_offset)
    loaded.cuts, loaded.log_id = state.cuts, state.log_id


def segments_of(state: PartitionState, segments: Segments) -> Segments:
    """The segments without the first ones that the state says are deleted, whose files
    still had their names when these were read. The last one stays: the state may be
    later than the part of the log that was read."""
    base = state.sealed[0][0] if state.sealed else state.active["base_offset"]
    first = 0
    while first < len(segments) - 1 and segments[first].base_offset < base:
        first += 1
    return segments.since(first)
