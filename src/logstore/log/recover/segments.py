"""Compares the segments of a log with the state file. This is the second step of a
decision."""

from __future__ import annotations

import itertools
from typing import Final

from logstore.index import STALE_DIGEST
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    LOST_REPORTED_MAX,
    LOST_SEGMENT,
    TORN_TAIL,
)
from logstore.io.checkpoint.verdicts import NO_SEGMENT
from logstore.io.layout import INDEX, LOG, TIME_INDEX, segment_file
from logstore.log.recover.facts import Facts, ReadLog, Refusal, WalkFacts
from logstore.log.recover.findings import EndUnknownError, Findings
from logstore.log.recover.names import Operations
from logstore.log.recover.plan import (
    EXTRA_BYTES,
    FOREIGN_SEGMENT,
    OpeningFinding,
    PlannedSegment,
)

__all__ = ["PlannedSegments"]

_BUILT: Final = "built the missing index {} from the log"
_LEFT_OVER: Final = (
    "it does not follow the segment before: it is left over from a roll that was undone"
)


class PlannedSegments:
    """The segments of a log.

    Invariant: they are in the order of their base offsets, and each that has another
    one after it has the size that it must have, or, if no state file says that, the
    size of its file. The end of the last one is found in the next step (`log_end`).

    Attributes:
        planned: the segments.
        indexed, put_aside: as in `Plan`.
    """

    def __init__(
        self, facts: Facts, findings: Findings, operations: Operations
    ) -> None:
        self._facts = facts
        self._findings = findings
        self._metadata = facts.metadata
        self._state = facts.metadata.state
        self._names = operations.names
        self._logs = operations.logs
        # Base offsets of the sealed segments of which all batches were checked.
        self._walked: set[int] = set()
        self.planned: list[PlannedSegment] = []
        self.indexed: tuple[int, ...] = ()
        self.put_aside: tuple[int, ...] = ()

    @property
    def last(self) -> PlannedSegment:
        return self.planned[-1]

    def end_last_at(self, size: int, next_offset: int) -> None:
        """Set the end of the last segment."""
        self.planned[-1] = self.last._replace(size=size, next_offset=next_offset)

    def _end_at(self, slot: int, next_offset: int) -> None:
        self.planned[slot] = self.planned[slot]._replace(next_offset=next_offset)

    # -- names and sizes

    def find(self) -> None:
        """Find the segments, and the damage that names and sizes show.

        Raises:
            EndUnknownError: the size of one cannot be read.
        """
        state = self._state
        rows = {row[0]: row for row in state.sealed} if state else {}
        active = state.active["base_offset"] if state else -1
        # A missing segment stays in the list: reading it raises an error.
        bases = {*self._logs, *rows, *([active] if state else [])}
        known = {
            v.segment: v for v in self._findings.verdicts if v.kind == LOST_SEGMENT
        }
        bases |= known.keys() - {NO_SEGMENT}
        first, missing = min(rows, default=active), []
        for base in sorted(bases):
            if first < base < active and base not in rows:
                self._foreign_segment(base)
                continue
            is_lost = base not in self._logs
            if is_lost:
                missing.append(base)
                if len(missing) <= LOST_REPORTED_MAX:
                    self._lost_segment(base)
            size, next_offset = 0, base
            if base in rows:
                size, next_offset = rows[base][1:3]
                if not is_lost:
                    self._sealed_size(base, size)
            elif base in known and is_lost:
                # Not empty: a log of another program may have gaps.
                size = max(known[base].end_position, 1)
            elif not is_lost:
                size = self.size_of(base)
                if size < 0 and base != active:
                    # Otherwise its records would be missing without any report.
                    raise EndUnknownError
            transition = self._logs.get(base, "")
            self.planned.append(
                PlannedSegment(base, max(size, 0), next_offset, transition, is_lost)
            )
        self._more_lost_segments(missing[LOST_REPORTED_MAX:])
        for slot, after in enumerate(self.planned[1:]):
            if self.planned[slot].base_offset not in rows:
                self._end_at(slot, after.base_offset)

    def size_of(self, base: int) -> int:
        """Size of a `.log` file; -1, and damage, if the system refuses to say."""
        size, findings = self._facts.sizes[base], self._findings
        if not isinstance(size, Refusal):
            return size
        path = findings.path_of(findings.name_of(base))
        if findings.damage is None or findings.damage.path != path:
            findings.add_unreadable(base, size)
        return -1

    def _sealed_size(self, base: int, size: int) -> None:
        actual_size = self.size_of(base)
        if actual_size in (size, -1):
            return
        self._findings.refuse(
            LOST_END if actual_size < size else CORRUPT,
            base,
            f"a sealed segment has {actual_size} bytes, not {size}",
            position=min(actual_size, size),
            offset=base,
            size=abs(size - actual_size),
            detail=EXTRA_BYTES if actual_size > size else "",
        )

    def _foreign_segment(self, base: int) -> None:
        """A segment file between the sealed segments that is not one of them was put
        there later. It stays in place, and is not part of the log."""
        self._findings.refuse(
            CORRUPT,
            base,
            "a segment file of another log, between two of this one",
            position=0,
            offset=base,
            name=segment_file(base, LOG),
            is_file=True,
            detail=FOREIGN_SEGMENT,
        )

    def _lost_segment(self, base: int) -> None:
        self._findings.refuse(
            LOST_SEGMENT,
            base,
            "a segment file is gone",
            position=0,
            offset=base,
            name=segment_file(base, LOG),
            is_file=True,
        )

    def _more_lost_segments(self, bases: list[int]) -> None:
        """The lost segments that are not reported one by one: a state file may name
        millions of them."""
        if not bases:
            return
        first, last = (segment_file(base, LOG) for base in (bases[0], bases[-1]))
        message = (
            f"{len(bases)} more segment files of {self._facts.path} are gone, {first} "
            f"to {last}"
        )
        self._findings.add(
            OpeningFinding(LOST_SEGMENT, first, message, first_offset=bases[0])
        )

    # -- contents

    def undo_roll(self) -> None:
        """Put aside the segments that are left over from a roll that was undone:
        without a sync of the directory, a power failure may bring their names back.

        These are segments after the last one that the state knows of, if the previous
        segment is valid and does not end at the offset that they begin at.
        """
        own = self._state
        if own is None or self._metadata.clean or self._findings.damage is not None:
            return
        active = own.active["base_offset"]
        for slot, (segment, after) in enumerate(itertools.pairwise(self.planned)):
            base = segment.base_offset
            if base < active:
                continue
            walk = self._facts.walk(ReadLog(base, is_from_state=base == active))
            if not walk.is_whole or walk.size < own.active["size"]:
                return
            end = walk.last_offset + 1
            if end == after.base_offset:
                continue
            later = self.planned[slot + 1 :]
            if any(other.base_offset == end for other in later):
                # The log continues after the gap.
                self._foreign_before(slot, end)
            elif end < self._metadata.announced:
                self._announced_end(segment, walk)
            else:
                del self.planned[slot + 1 :]
                self._put_aside(later)
            return

    def _announced_end(self, segment: PlannedSegment, walk: WalkFacts) -> None:
        """A segment ends before the offset that was durable: what follows it is no
        roll that was undone."""
        end, announced = walk.last_offset + 1, self._metadata.announced
        self._findings.refuse(
            LOST_END,
            segment.base_offset,
            f"the segment ends at offset {end}, {announced} was durable",
            position=walk.pos,
            offset=end,
            more=" The partition takes no appends.",
        )

    def _foreign_before(self, slot: int, end: int) -> None:
        """Leave out the segments after a slot that begin before its end: they are of
        another log."""
        foreign = [s for s in self.planned[slot + 1 :] if s.base_offset < end]
        for segment in foreign:
            self._foreign_segment(segment.base_offset)
        del self.planned[slot + 1 : slot + 1 + len(foreign)]
        self._end_at(slot, end)

    def _put_aside(self, segments: list[PlannedSegment]) -> None:
        """Put aside segments of whose records none was acknowledged."""
        if self._findings.is_refused:
            return
        self.put_aside = tuple(segment.base_offset for segment in segments)
        for segment, base in zip(segments, self.put_aside, strict=True):
            name, place = self._findings.name_of(base), (0, segment.size, base, base)
            self._findings.add(OpeningFinding(TORN_TAIL, name, _LEFT_OVER, *place))

    def find_doubtful_indexes(self) -> None:
        """Find the sealed segments whose indexes are missing, or may be unfinished
        because sealing failed or the roll was interrupted."""
        if not self._facts.is_writable:
            return
        doubtful = [
            segment
            for segment in self.planned[:-1]
            if not segment.is_lost and self._is_doubtful(segment.base_offset)
        ]
        built = []
        for segment in doubtful:
            base = segment.base_offset
            walk = self._facts.walk(ReadLog(base))
            # If it is not valid, it is not changed, and readers use no index.
            if walk.refusal is None and self._check_valid(segment, walk):
                built.append(base)
                self._findings.add_rebuilt(base, _BUILT)
        self.indexed = tuple(built)

    def _check_valid(self, segment: PlannedSegment, walk: WalkFacts) -> bool:
        """Whether a sealed segment that was read is valid; else it is damage."""
        self._walked.add(segment.base_offset)
        if walk.is_whole and walk.last_offset < segment.next_offset:
            return True
        if walk.is_whole:
            reason = (
                f"offset {walk.last_offset} is past the end of its segment, "
                f"{segment.next_offset}"
            )
            walk = walk._replace(last_offset=segment.next_offset - 1, reason=reason)
        self._findings.add_corrupt(segment.base_offset, walk, size=walk.size - walk.pos)
        return False

    def has_indexes(self, base: int) -> bool:
        """Whether the index files of a segment are there."""
        return {segment_file(base, s) for s in (INDEX, TIME_INDEX)} <= self._names

    def _is_doubtful(self, base: int) -> bool:
        state, row = self._state, self._metadata.row(base)
        if state is not None and base >= state.active["base_offset"]:
            return True
        if row is not None and row[5] == STALE_DIGEST:
            return True
        return not self.has_indexes(base)

    def check_unflushed(self, point: int) -> None:
        """Check the sealed segments that end after the offset up to which the log was
        flushed. Their damage is not cut."""
        unflushed = [
            segment
            for segment in self.planned[:-1]
            if segment.next_offset > point and not segment.is_lost
        ]
        for segment in unflushed:
            if self._findings.damage is not None:
                return
            self._check(segment, self._facts.walk(ReadLog(segment.base_offset)))

    def check_ends(self) -> None:
        """Check the ends of the sealed segments, if no state says how long they are:
        bytes after their last batch are damage, also zeros."""
        for segment in self.planned[:-1]:
            if self._findings.damage is not None:
                return
            base = segment.base_offset
            if segment.is_lost or not segment.size or base in self._walked:
                continue
            walk = self._facts.walk(ReadLog(base, is_end=True))
            if not walk.is_whole:
                walk = self._facts.walk(ReadLog(base))  # or its index is wrong
            self._check(segment, walk)

    def _check(self, segment: PlannedSegment, walk: WalkFacts) -> None:
        if walk.refusal is not None:
            self._findings.add_unreadable(segment.base_offset, walk.refusal)
        else:
            self._check_valid(segment, walk)

    # -- digests

    def digests(self) -> tuple[frozenset[int], frozenset[int]]:
        """`digested` and `stale_digests` of the plan. The digest of a segment that is
        appended to, or does not exist, is stale."""
        bases = {
            base
            for name in self._names
            if (base := layout.parse_digest_file(name)) is not None
        }
        sealed = bases & {s.base_offset for s in self.planned[:-1] if not s.is_lost}
        if self._state is None and self._metadata.state_error is None:
            sealed = set()  # another program may have changed the segments
        stale = set() if self._findings.is_refused else bases - sealed
        return frozenset(sealed), frozenset(stale)
