"""The second step of a decision: the segments, compared with the state file."""

from __future__ import annotations

import itertools

from logstore.index import STALE_DIGEST
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    INDEX_REBUILT,
    LOST_END,
    LOST_REPORTED_MAX,
    LOST_SEGMENT,
    TORN_TAIL,
    UNSUPPORTED,
)
from logstore.io.checkpoint.verdicts import NO_SEGMENT
from logstore.io.layout import INDEX, LOG, TIME_INDEX, segment_file
from logstore.log.recover.draft import Draft, EndUnknownError
from logstore.log.recover.facts import Facts, ReadLog, Refusal, Walk
from logstore.log.recover.plan import EXTRA_BYTES, FOREIGN_SEGMENT, PlannedSegment

__all__ = ["SegmentsDraft"]


class SegmentsDraft(Draft):
    """A draft with the segments of the log."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        state = self.state
        self.time_digests = {row[0]: row[5] for row in state.sealed} if state else {}
        # Base offsets of the sealed segments whose batches were all asked for.
        self.walked: set[int] = set()

    def listed_segments(self) -> None:
        """The segments in order; all but the last have the size of their file."""
        state = self.state
        rows = {row[0]: row for row in state.sealed} if state else {}
        active = state.active["base_offset"] if state else -1
        # A missing segment stays in the list: reading it raises an error.
        bases = {*self.logs, *rows, *([active] if state else [])}
        known = {v.segment: v for v in self.verdicts if v.kind == LOST_SEGMENT}
        bases |= known.keys() - {NO_SEGMENT}
        first, missing = min(rows, default=active), []
        for base in sorted(bases):
            if first < base < active and base not in rows:
                self.foreign_segment(base)
                continue
            is_lost = base not in self.logs
            if is_lost:
                missing.append(base)
                if len(missing) <= LOST_REPORTED_MAX:
                    self.lost_segment(base)
            size, next_offset = 0, base
            if base in rows:
                size, next_offset = rows[base][1:3]
                if not is_lost:
                    self.sealed_size(base, size)
            elif base in known and is_lost:
                # Not empty: a log of another program may have gaps.
                size = max(known[base].end_position, 1)
            elif not is_lost:
                size = self.size_of(base)
                if size < 0 and base != active:
                    # Otherwise its records would be missing without any report.
                    raise EndUnknownError
            transition = self.logs.get(base, "")
            self.segments.append(
                PlannedSegment(base, max(size, 0), next_offset, transition, is_lost)
            )
        self.more_lost_segments(missing[LOST_REPORTED_MAX:])
        for slot, after in enumerate(self.segments[1:]):
            if self.segments[slot].base_offset not in rows:
                self.change(slot, next_offset=after.base_offset)

    def size_of(self, base: int) -> int:
        """Size of a `.log` file; -1, and damage, if the system does not tell."""
        size = self.facts.sizes[base]
        if isinstance(size, Refusal):
            self.unreadable(base, size)
            return -1
        return size

    def sealed_size(self, base: int, size: int) -> None:
        actual_size = self.size_of(base)
        if actual_size in (size, -1):
            return
        self.refuse(
            LOST_END if actual_size < size else CORRUPT,
            self.name_of(base),
            f"a sealed segment has {actual_size} bytes, not {size}",
            position=min(actual_size, size),
            offset=base,
            base=base,
            size=abs(size - actual_size),
            detail=EXTRA_BYTES if actual_size > size else "",
        )

    def foreign_segment(self, base: int) -> None:
        """A segment file between the sealed segments that is not one of them was put
        there later. It stays in place, and is not part of the log."""
        name = segment_file(base, LOG)
        reason = "a segment file that is not of this log, between two that are"
        self.refuse(
            CORRUPT,
            name,
            reason,
            position=0,
            offset=base,
            base=base,
            is_file=True,
            detail=FOREIGN_SEGMENT,
        )

    def lost_segment(self, base: int) -> None:
        self.refuse(
            LOST_SEGMENT,
            segment_file(base, LOG),
            "a segment file is gone",
            position=0,
            offset=base,
            base=base,
            is_file=True,
        )

    def more_lost_segments(self, bases: list[int]) -> None:
        """The lost segments that are not reported one by one: a state file may name
        millions of them."""
        if not bases:
            return
        first, last = (segment_file(base, LOG) for base in (bases[0], bases[-1]))
        message = (
            f"{len(bases)} more segment files of {self.facts.path} are gone, {first} "
            f"to {last}"
        )
        self.add_finding(LOST_SEGMENT, first, message, first_offset=bases[0])

    def undone_roll(self) -> None:
        """Segments that a roll began and that were undone: without a sync of the
        directory, a power failure may bring their names back.

        These are segments after the last one that the state knows of, if the previous
        segment is valid and does not end at the offset that they begin at.
        """
        own = self.state
        if own is None or self.metadata.clean or self.damage is not None:
            return
        active = own.active["base_offset"]
        for slot, (segment, after) in enumerate(itertools.pairwise(self.segments)):
            base = segment.base_offset
            if base < active:
                continue
            walk = self.facts.walk(ReadLog(base, is_from_state=base == active))
            if not walk.is_whole or walk.size < own.active["size"]:
                return
            end = walk.last_offset + 1
            if end != after.base_offset:
                if any(one.base_offset == end for one in self.segments[slot + 1 :]):
                    # What follows is of the log, and not what comes between.
                    self._foreign_before(slot, end)
                    return
                if end < self.metadata.announced:
                    self.announced_end(segment, walk)
                    return
                leftovers = self.segments[slot + 1 :]
                del self.segments[slot + 1 :]
                if not self.is_refused:
                    for leftover in leftovers:
                        self.roll_leftover(leftover)
                    bases = tuple(leftover.base_offset for leftover in leftovers)
                    self.result["put_aside"] = bases
                return

    def announced_end(self, segment: PlannedSegment, walk: Walk) -> None:
        """A segment ends before the offset that was durable: what follows it is no
        roll that was undone."""
        end, announced = walk.last_offset + 1, self.metadata.announced
        self.refuse(
            LOST_END,
            self.name_of(segment.base_offset),
            f"the segment ends at offset {end}, {announced} was durable",
            position=walk.pos,
            offset=end,
            base=segment.base_offset,
            more=" The partition takes no appends.",
        )

    def _foreign_before(self, slot: int, end: int) -> None:
        """Segments behind that in a slot, which ends there, that begin before its end:
        they are of another log."""
        foreign = [s for s in self.segments[slot + 1 :] if s.base_offset < end]
        for segment in foreign:
            self.foreign_segment(segment.base_offset)
        del self.segments[slot + 1 : slot + 1 + len(foreign)]
        self.change(slot, next_offset=end)

    def roll_leftover(self, segment: PlannedSegment) -> None:
        """None of the records of this segment was acknowledged."""
        base = segment.base_offset
        self.add_finding(
            TORN_TAIL,
            self.name_of(base),
            "it does not follow the segment before: it is left over from a roll that "
            "was undone",
            position=0,
            size=segment.size,
            first_offset=base,
            base=base,
        )

    def sealed_indexes(self) -> None:
        """The sealed segments whose indexes are missing, or may be unfinished because
        sealing failed or the roll was interrupted."""
        if not self.facts.is_writable:
            return
        doubtful = [
            segment
            for segment in self.segments[:-1]
            if not segment.is_lost and self.is_doubtful(segment.base_offset)
        ]
        built = []
        for segment in doubtful:
            base = segment.base_offset
            walk = self.facts.walk(ReadLog(base))
            # If it is not valid, it stays as it is, and readers use no index.
            if walk.refusal is None and self.check_valid(segment, walk):
                built.append(base)
                self.index_rebuilt(base, "built the missing index {} from the log")
        self.result["indexed"] = tuple(built)

    def check_valid(self, segment: PlannedSegment, walk: Walk) -> bool:
        """Whether a sealed segment that was read is valid; else it is damage."""
        self.walked.add(segment.base_offset)
        if walk.is_whole and walk.last_offset < segment.next_offset:
            return True
        if walk.is_whole:
            reason = (
                f"offset {walk.last_offset} lies after the end of its segment, "
                f"{segment.next_offset}"
            )
            walk = walk._replace(last_offset=segment.next_offset - 1, reason=reason)
        self.corrupt(segment.base_offset, walk, size=walk.size - walk.pos)
        return False

    def is_doubtful(self, base: int) -> bool:
        state = self.state
        if state is not None:
            is_stale = self.time_digests.get(base) == STALE_DIGEST
            if is_stale or base >= state.active["base_offset"]:
                return True
        return not {segment_file(base, s) for s in (INDEX, TIME_INDEX)} <= self.names

    def index_rebuilt(self, base: int, text: str) -> None:
        name = self.name_of(base, INDEX)
        self.add_finding(
            INDEX_REBUILT, name, text.format(name), first_offset=base, base=base
        )

    def corrupt(self, base: int, walk: Walk, *, size: int) -> None:
        """Damage that must not be cut."""
        first = walk.last_offset + 1
        self.refuse(
            UNSUPPORTED if walk.is_unsupported else CORRUPT,
            self.name_of(base),
            walk.reason,
            position=walk.pos,
            offset=first,
            base=base,
            size=size,
            more=" Nothing was cut; the partition takes no appends.",
        )

    def change(
        self, slot: int, *, size: int | None = None, next_offset: int | None = None
    ) -> None:
        """Change the end of a segment."""
        segment = self.segments[slot]
        self.segments[slot] = segment._replace(
            size=segment.size if size is None else size,
            next_offset=segment.next_offset if next_offset is None else next_offset,
        )

    def digests(self) -> None:
        """The sealed segments that have a digest. The digest of a segment that is
        appended to, or does not exist, is stale."""
        bases = {
            base
            for name in self.names
            if (base := layout.parse_digest_file(name)) is not None
        }
        sealed = bases & {s.base_offset for s in self.segments[:-1] if not s.is_lost}
        if self.state is None and self.metadata.state_error is None:
            sealed = set()  # another program may have changed the segments
        self.result["digested"] = frozenset(sealed)
        if not self.is_refused:
            self.result["stale_digests"] = frozenset(bases - sealed)
