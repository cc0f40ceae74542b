"""Finds where a log ends. This is the third step of a decision. `torn_tail` decides
what the bytes after the last valid batch are; the rest is decided here.
"""

from __future__ import annotations

from typing import Final

from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    LOST_SEGMENT,
    START_BEYOND_END,
    TORN_TAIL,
)
from logstore.log.recover.facts import (
    Facts,
    LastBatch,
    ReadIndexes,
    ReadLast,
    ReadLog,
    WalkFacts,
)
from logstore.log.recover.findings import EndUnknownError, Findings
from logstore.log.recover.plan import EXTRA_BYTES, OpeningFinding, Plan, UnservedTail
from logstore.log.recover.segments import PlannedSegments
from logstore.log.recover.torn_tail import is_torn_tail

__all__ = ["find_end"]

_BUILT_AGAIN: Final = (
    "{} or its time index is missing or short; built again from the log"
)

_OTHER_END: Final = "the last durable batch ends at offset {}, not {}"


def find_end(facts: Facts, findings: Findings, segments: PlannedSegments) -> Plan:
    """A plan with the end of the log, and the actions there. Adds findings, and sets
    the end of the last segment.

    Raises:
        EndUnknownError: the damage that was found hides it.
    """
    end = _LogEnd(facts, findings, segments)
    end.find()
    return Plan(
        start_offset=end.start_offset,
        durable_before=end.durable_before,
        durable_offset=end.durable_offset,
        end_offset=end.end_offset,
        tail=end.tail,
        is_tail_cut=end.is_tail_cut,
        rewritten_from=end.rewritten_from,
        active_walk=end.active_walk,
        is_indexed=end.is_indexed,
        is_index_written=end.is_index_written,
    )


class _LogEnd:
    """The end of one log.

    Invariant: start_offset <= durable_before <= durable_offset <= end_offset, and the
    last segment ends at `end_offset`.

    Attributes: as in `Plan`.
    """

    def __init__(
        self, facts: Facts, findings: Findings, segments: PlannedSegments
    ) -> None:
        self._facts = facts
        self._metadata = facts.metadata
        self._findings = findings
        self._segments = segments
        self._start = 0
        self.start_offset = self.durable_before = 0
        self.durable_offset = self.end_offset = 0
        self.tail: UnservedTail | None = None
        self.is_tail_cut = False
        self.rewritten_from: tuple[int, int] | None = None
        self.active_walk: ReadLog | None = None
        self.is_indexed = False
        self.is_index_written = False

    @property
    def _base(self) -> int:
        """Base offset of the last segment."""
        return self._segments.last.base_offset

    def find(self) -> None:
        """Set the end, by the last segment."""
        metadata, state = self._metadata, self._metadata.state
        start = metadata.log_start if state is None else state.start_offset
        if not self._segments.planned:
            point = max(metadata.recovery_point, metadata.announced)
            if point > start:
                self._lost_log(start, point)
            self._bounds(start, start, start)
            return
        self._start = max(start, self._segments.planned[0].base_offset)
        known_end = self._findings.known_end(0)
        if state is not None and state.active["base_offset"] == self._base:
            self._own_end(state)
        elif self._segments.last.is_lost:
            end = max(known_end, self._base)
            self._ends_at(self._segments.last.size, end, self._base)
        else:
            self._foreign_end()
        last = self._segments.last
        if last.next_offset < known_end:
            # A read that reaches the missing part must raise an error.
            self._ends_at(last.size, known_end, last.next_offset)

    def _lost_log(self, start: int, point: int) -> None:
        """There is no segment at all, although there were records."""
        self._findings.refuse(
            LOST_SEGMENT,
            -1,
            f"no segment is there; the log was flushed up to offset {point}",
            position=0,
            offset=start,
            name="",
            is_file=True,
        )

    # -- setting it

    def _bounds(
        self, start: int, durable: int, end: int, before: int | None = None
    ) -> None:
        before = durable if before is None else before
        self.start_offset, self.end_offset = start, end
        self.durable_before = min(max(before, start), end)
        self.durable_offset = min(max(durable, start), end)

    def _ends_at(
        self,
        size: int,
        end: int,
        durable: int | None = None,
        before: int | None = None,
    ) -> None:
        """Let the last segment end at a position, and the log at an offset.

        Args:
            durable: the durable offset when the plan has been carried out, by default
                the end.
            before: `durable_before` of the plan, by default the same.
        """
        self._segments.end_last_at(size, end)
        durable = end if durable is None else durable
        self._bounds(min(self._start, end), durable, end, before)

    # -- logstore's own log

    def _own_end(self, own: PartitionState) -> None:
        """The last segment is the active one of logstore's own state."""
        segment, clean = self._segments.last, self._metadata.clean
        base, durable, end = segment.base_offset, own.active["size"], own.durable_offset
        size = -1 if segment.is_lost else self._segments.size_of(base)
        if size < 0 and not segment.is_lost and not clean:
            # The log may continue past the durable point.
            raise EndUnknownError
        is_indexed = self._facts.are_indexed(ReadIndexes(base, segment.is_lost))
        self.is_indexed = is_indexed
        if own.is_truncating and size > durable:
            # Bytes that will be cut are not served.
            name, reason = self._findings.name_of(base), "a truncation was not finished"
            self.tail = UnservedTail(name, durable, size - durable, end, reason)
            size = durable
        if 0 <= size < durable:
            self._lost_end(size, durable, own)
        if size >= durable > 0 and not own.is_truncating:
            last = self._facts.last_batch(ReadLast(base))
            if not _agrees(last, own):
                if self._contradicts(size, last.position, own):
                    return
                # Or another program has put another batch there, or the index leads to
                # a wrong place.
                is_indexed &= _is_end(last.last_offset, own)
        is_whole = clean and size == durable
        point = self._metadata.closed_at
        if clean:
            point = max(point, self._metadata.recovery_point)
        if size == durable and point > end and not own.is_truncating:
            self._older_partition(durable, point, end)
            self._ends_at(durable, point)
            return
        is_closed = clean or self._metadata.closed_at >= 0
        if segment.is_lost and not is_closed and not own.is_truncating:
            # More was appended to it than the state says, perhaps durably.
            self._ends_at(durable, max(end + 1, self._metadata.announced), end)
            return
        is_cut = own.is_truncating and not self._facts.is_writable
        if size < durable or is_cut or (is_whole and is_indexed):
            self._ends_at(durable, max(end, self._metadata.announced))
            if is_whole:
                self._last_indexes(is_rebuilt=False, size=durable)
            return
        if clean and not is_whole:
            self._foreign_bytes(size, durable, end)
            self._ends_at(durable, end)
            return
        # If the index files do not reach the durable point, all of it is indexed.
        question = ReadLog(
            base,
            is_from_state=is_indexed,
            is_last=True,
            end=durable if own.is_truncating else -1,
        )
        self._tail(question, durable, end, is_rebuilt=is_whole)

    def _contradicts(self, size: int, position: int, own: PartitionState) -> bool:
        """Whether the durable part of the active segment, of `size` bytes, has another
        end than the own state says: then it is damage, however the store was stopped.
        No checksum covers the offset of a batch, and batches appended after one with an
        altered offset would be mistaken for the damage.

        Args:
            position: of the batch that does not agree.
        """
        base, durable, end = self._base, own.active["size"], own.durable_offset
        walk = self._facts.walk(ReadLog(base, end=durable))
        if walk.refusal is not None:
            self._findings.add_unreadable(base, walk.refusal)
            self._ends_at(durable, end)
            return True
        readable = size
        if walk.is_whole:
            last = walk.last_offset
            if _is_end(last, own):
                return False
            below = self._facts.walk(ReadLog(base, end=position))
            reason = _OTHER_END.format(last, end - 1)
            pos = min(position, below.pos)
            walk = walk._replace(
                pos=pos, last_offset=min(below.last_offset, end - 2), reason=reason
            )
            readable = pos  # readers do not see that it is wrong
        self._findings.add_corrupt(base, walk, size=size - walk.pos)
        self._ends_at(readable, end)
        return True

    def _foreign_bytes(self, size: int, durable: int, end: int) -> None:
        """Bytes after a clean end: logstore did not write them. They are neither cut
        nor served."""
        self._findings.refuse(
            CORRUPT,
            self._base,
            f"{size - durable} bytes after the end of a log that was closed",
            position=durable,
            offset=end,
            size=size - durable,
            detail=EXTRA_BYTES,
        )

    def _lost_end(self, size: int, durable: int, own: PartitionState) -> None:
        """Durable bytes of the last segment are gone."""
        path = self._findings.path_of(self._findings.name_of(self._base))
        self._findings.refuse(
            LOST_END,
            self._base,
            f"the file has {size} bytes, {durable} were durable",
            position=size,
            offset=max(own.start_offset, self._base),
            size=durable - size,
            first_offset=own.durable_offset,
            message=f"{durable - size} durable bytes are gone from the end of {path}; "
            f"the partition takes no appends",
        )

    def _older_partition(self, durable: int, point: int, end: int) -> None:
        """The whole partition is older than the store's checkpoints, for example
        after a backup of it alone was restored: offsets up to `point` were assigned
        before."""
        self._findings.refuse(
            LOST_END,
            self._base,
            f"the log and its state end at offset {end}; the store was closed when it "
            f"ended at {point}",
            position=durable,
            offset=end,
            more=" The partition takes no appends.",
        )

    # -- the log of another program

    def _foreign_end(self) -> None:
        """No state file of logstore has the last segment: check what Kafka checks."""
        metadata = self._metadata
        point = metadata.recovery_point
        if metadata.state is not None and not metadata.clean:
            # Kafka's point is of the last clean stop; the log may have become shorter.
            point = metadata.state.durable_offset
        if self._facts.is_writable and not metadata.clean:
            # Readers check what they read; the owner of the log must know of damage.
            self._segments.check_unflushed(point)
        if self._facts.is_writable and metadata.state is None:
            self._segments.check_ends()
        self._tail(ReadLog(self._base, is_last=True), 0, max(point, self._base))

    # -- the last bytes

    def _tail(
        self,
        question: ReadLog,
        durable_pos: int,
        durable_offset: int,
        *,
        is_rebuilt: bool = False,
    ) -> None:
        """Set the end by a walk over the last segment.

        Args:
            question: the walk.
            durable_pos, durable_offset: there is no torn tail below them.
            is_rebuilt: the indexes of the segment are built from this walk.
        """
        base, metadata, findings = self._base, self._metadata, self._findings
        floor = max(durable_offset, metadata.least_end)
        walk = self._facts.walk(question)
        is_torn_at_once = walk.refusal is None and not (walk.is_whole or walk.batches)
        if question.is_from_state and is_torn_at_once:
            # If durable bytes are gone, the bytes here are other ones: walk from byte
            # 0.
            question = question._replace(is_from_state=False)
            walk = self._facts.walk(question)
        self.active_walk = question
        if is_rebuilt:
            findings.add_rebuilt(base, _BUILT_AGAIN)
        if walk.refusal is not None:
            findings.add_unreadable(base, walk.refusal)
            if metadata.state is None or not metadata.clean:
                raise EndUnknownError
            self._ends_at(durable_pos, durable_offset)
            return
        end, is_short = walk.last_offset + 1, walk.last_offset + 1 < floor
        if walk.moved is not None:
            self._moved_batch(walk, walk.moved, floor)
            return
        if not walk.is_whole:
            is_torn = is_torn_tail(walk, durable_pos, floor, metadata)
            if findings.is_condemned(base) or not is_torn:
                # Records are served up to here; reading what follows raises an error.
                findings.add_corrupt(base, walk, size=walk.size - walk.pos)
                size = max(walk.size, durable_pos)
                self._ends_at(size, max(floor, end + 1, walk.readable_end))
                return
            self._torn_tail(walk)
        elif is_short and (walk.batches or metadata.clean or floor > durable_offset):
            self._below_recovery_point(walk, floor)
            self._ends_at(walk.pos, floor)
            return
        elif self._start > end and not findings.is_refused:
            self._start_beyond_end(end)
            end = self._start
        durable = durable_offset
        if self._facts.is_writable and not findings.is_refused:
            if not metadata.clean:
                self.rewritten_from = durable_pos, durable_offset
            durable = end
        self._ends_at(walk.pos, end, durable, durable_offset)
        if metadata.clean:
            self._last_indexes(is_rebuilt=is_rebuilt, size=walk.pos)

    def _moved_batch(self, walk: WalkFacts, last: LastBatch, end: int) -> None:
        """The last batch has another offset than when the log was closed at `end`."""
        reason = _OTHER_END.format(last.last, end - 1)
        walk = walk._replace(pos=last.pos, last_offset=last.before, reason=reason)
        self._findings.add_corrupt(self._base, walk, size=last.end - last.pos)
        self._ends_at(last.pos, end)  # readers do not see that it is wrong

    def _torn_tail(self, walk: WalkFacts) -> None:
        """The last segment ends past its durable point with a torn tail."""
        name, first = self._findings.name_of(self._base), walk.last_offset + 1
        size = walk.size - walk.pos
        self.tail = UnservedTail(name, walk.pos, size, first, walk.reason)
        self.is_tail_cut = not self._findings.is_refused
        if self.is_tail_cut:
            place = walk.pos, size, first, self._base
            self._findings.add(OpeningFinding(TORN_TAIL, name, walk.reason, *place))

    def _below_recovery_point(self, walk: WalkFacts, durable_offset: int) -> None:
        """A valid log ends before the offset that is known to be flushed. (An empty
        last segment may follow an unclean stop of Kafka.)"""
        end = walk.last_offset + 1
        self._findings.refuse(
            LOST_END,
            self._base,
            f"the log ends at offset {end}, {durable_offset} was durable",
            position=walk.pos,
            offset=end,
            more=" The partition takes no appends.",
        )

    def _start_beyond_end(self, end: int) -> None:
        """The log start offset lies beyond the end, because of another program: the log
        continues at its start, as with a broker."""
        start, base = self._start, self._base
        message = (
            f"the log of {self._facts.path} ends at offset {end}, and its start offset "
            f"is {start}: nothing of it can be read, and the next record gets offset "
            f"{start}"
        )
        self._findings.add(
            OpeningFinding(START_BEYOND_END, "", message, first_offset=start, base=base)
        )

    def _last_indexes(self, *, is_rebuilt: bool, size: int) -> None:
        """Missing indexes of the last segment of a closed log are written, as closing
        does it: there may be no append that would write them."""
        if not self._facts.is_writable or self._findings.is_refused or not size:
            return
        if self._segments.has_indexes(self._base) and not is_rebuilt:
            return
        if not is_rebuilt:
            self._findings.add_rebuilt(self._base, _BUILT_AGAIN)
        self.is_index_written = True


def _agrees(last: LogTail, own: PartitionState) -> bool:
    """Whether the batch that ends at the durable point is the one that the state
    means."""
    tail = own.tail
    if tail is not None and tail.last_offset == own.active["last_offset"]:
        return last == tail
    return _is_end(last.last_offset, own)


def _is_end(last: int, own: PartitionState) -> bool:
    """Whether the durable batches may end at this offset. If the log start was beyond
    the end of another program's log, the next record gets the offset of the start."""
    end = own.durable_offset
    return last == end - 1 or last < own.start_offset >= end
