"""The third step of a decision: where the log ends. Whether its last bytes are a torn
tail or damage is decided here, and only here."""

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
from logstore.io.layout import INDEX, TIME_INDEX, segment_file
from logstore.log.recover.draft import EndUnknownError
from logstore.log.recover.facts import (
    Facts,
    ReadIndexes,
    ReadLast,
    ReadLog,
    Refusal,
    Walk,
)
from logstore.log.recover.plan import EXTRA_BYTES, Tail
from logstore.log.recover.segments import SegmentsDraft

__all__ = ["EndDraft"]

_BUILT_AGAIN: Final = (
    "{} or its time index is missing or short; built again from the log"
)


class EndDraft(SegmentsDraft):
    """A draft with the end of the log."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts)
        self.start = 0

    def log_end(self) -> None:
        state = self.state
        start = self.metadata.log_start if state is None else state.start_offset
        if not self.segments:
            if max(self.metadata.recovery_point, self.metadata.announced) > start:
                self.lost_log(start)
            self.bounds(start, start, start)
            return
        self.start = max(start, self.segments[0].base_offset)
        if state is not None and (
            state.active["base_offset"] == self.segments[-1].base_offset
        ):
            self.own_end(state)
        elif self.segments[-1].is_lost:
            base = self.segments[-1].base_offset
            self.ends_at(self.segments[-1].size, self.known_end(base), base)
        else:
            self.foreign_end()
        end = self.known_end(0)
        if self.segments[-1].next_offset < end:
            # A read that reaches the missing part must raise an error.
            self.ends_at(self.segments[-1].size, end, self.segments[-1].next_offset)

    def lost_log(self, start: int) -> None:
        """There is no segment at all, although there were records."""
        point = max(self.metadata.recovery_point, self.metadata.announced)
        self.refuse(
            LOST_SEGMENT,
            "",
            f"no segment is there; the log was flushed up to offset {point}",
            position=0,
            offset=start,
            is_file=True,
        )

    def bounds(self, start: int, durable: int, end: int) -> None:
        """Invariant: start_offset <= durable_offset <= end_offset."""
        durable = min(max(durable, start), end)
        self.result.update(
            start_offset=start,
            durable_offset=durable,
            end_offset=end,
        )
        self.result.setdefault("durable_before", durable)

    def ends_at(self, size: int, end: int, durable: int | None = None) -> None:
        """The last segment ends at a position, and the log at an offset."""
        self.change(-1, size=size, next_offset=end)
        self.bounds(min(self.start, end), end if durable is None else durable, end)

    def own_end(self, own: PartitionState) -> None:
        """The last segment is the active one of logstore's own state."""
        segment, clean = self.segments[-1], self.metadata.clean
        base, durable, end = segment.base_offset, own.active["size"], own.durable_offset
        size = -1 if segment.is_lost else self.known_size(base)
        if size < 0 and not segment.is_lost and not clean:
            # The log may continue past the durable point.
            raise EndUnknownError
        is_indexed = self.facts.are_indexed(ReadIndexes(base, segment.is_lost))
        self.result["is_indexed"] = is_indexed
        if own.is_truncating and size > durable:
            # Bytes that are to be cut are not served.
            name, reason = self.name_of(base), "a truncation was not finished"
            self.result["tail"] = Tail(name, durable, size - durable, end, reason)
            size = durable
        if 0 <= size < durable:
            self.lost_end(base, size, durable, own)
        if size >= durable > 0 and not own.is_truncating:
            last = self.facts.last_batch(ReadLast(base))
            if not _agrees(last, own):
                if self.contradicts(base, size, last.position, own):
                    return
                # Or another program has put another batch there, or the index leads to
                # a wrong place.
                is_indexed &= _is_end(last.last_offset, own)
        is_whole = clean and size == durable
        point = self.metadata.closed_at
        if clean:
            point = max(point, self.metadata.recovery_point)
        if size == durable and point > end and not own.is_truncating:
            self.older_partition(base, durable, point, end)
            self.ends_at(durable, point)
            return
        is_closed = clean or self.metadata.closed_at >= 0
        if segment.is_lost and not is_closed and not own.is_truncating:
            # More was appended to it than the state says, perhaps durably.
            self.ends_at(durable, max(end + 1, self.metadata.announced), end)
            return
        is_cut = own.is_truncating and not self.facts.is_writable
        if size < durable or is_cut or (is_whole and is_indexed):
            self.ends_at(durable, max(end, self.metadata.announced))
            if is_whole:
                self.last_indexes(is_rebuilt=False, size=durable)
            return
        if clean and not is_whole:
            self.foreign_bytes(base, size, durable, end)
            self.ends_at(durable, end)
            return
        # If the index files do not reach the durable point, all of it is indexed.
        question = ReadLog(
            base,
            is_from_state=is_indexed,
            is_last=True,
            end=durable if own.is_truncating else -1,
        )
        self.tail(question, durable, end, is_rebuilt=is_whole)

    def contradicts(
        self, base: int, size: int, position: int, own: PartitionState
    ) -> bool:
        """Whether the durable part of the active segment, of `size` bytes, has another
        end than the own state says: then it is damage, however the store was stopped.
        No checksum covers the offset of a batch, and what was appended behind one that
        was altered would be taken for the damage.

        Args:
            position: of the batch that does not agree.
        """
        durable, end = own.active["size"], own.durable_offset
        walk = self.facts.walk(ReadLog(base, end=durable))
        if walk.refusal is not None:
            self.unreadable(base, walk.refusal)
            self.ends_at(durable, end)
            return True
        readable = size
        if walk.is_whole:
            last = walk.last_offset
            if _is_end(last, own):
                return False
            below = self.facts.walk(ReadLog(base, end=position))
            reason = f"the last durable batch ends at offset {last}, not {end - 1}"
            pos = min(position, below.pos)
            walk = walk._replace(
                pos=pos, last_offset=min(below.last_offset, end - 2), reason=reason
            )
            readable = pos  # readers do not see that it is wrong
        self.corrupt(base, walk, size=size - walk.pos)
        self.ends_at(readable, end)
        return True

    def known_size(self, base: int) -> int:
        """Size of the last `.log` file; -1 if the system does not tell."""
        size = self.facts.sizes[base]
        if not isinstance(size, Refusal):
            return size
        if self.damage is None or self.damage.path != self.path_of(self.name_of(base)):
            self.unreadable(base, size)
        return -1

    def foreign_bytes(self, base: int, size: int, durable: int, end: int) -> None:
        """Bytes after a clean end: logstore did not write them. They are neither cut
        nor served."""
        self.refuse(
            CORRUPT,
            self.name_of(base),
            f"{size - durable} bytes after the end of a log that was closed",
            position=durable,
            offset=end,
            base=base,
            size=size - durable,
            detail=EXTRA_BYTES,
        )

    def lost_end(self, base: int, size: int, durable: int, own: PartitionState) -> None:
        name = self.name_of(base)
        self.refuse(
            LOST_END,
            name,
            f"the file has {size} bytes, {durable} were durable",
            position=size,
            offset=max(own.start_offset, base),
            base=base,
            size=durable - size,
            first_offset=own.durable_offset,
            message=f"{durable - size} durable bytes are gone from the end of "
            f"{self.path_of(name)}; the partition takes no appends",
        )

    def older_partition(self, base: int, durable: int, point: int, end: int) -> None:
        """The whole partition is older than the store's checkpoints, for example
        after a backup of it alone was restored: offsets up to `point` were assigned
        before."""
        self.refuse(
            LOST_END,
            self.name_of(base),
            f"the log and its state end at offset {end}; the store was closed when it "
            f"ended at {point}",
            position=durable,
            offset=end,
            base=base,
            more=" The partition takes no appends.",
        )

    def foreign_end(self) -> None:
        """No state file of logstore has the last segment: check what Kafka checks."""
        metadata = self.metadata
        point = metadata.recovery_point
        if metadata.state is not None and not metadata.clean:
            # Kafka's point is of the last clean stop; the log may have become shorter.
            point = metadata.state.durable_offset
        if self.facts.is_writable and not metadata.clean:
            # Readers check what they read; the owner of the log must know of damage.
            self.unflushed_segments(point)
        if self.facts.is_writable and metadata.state is None:
            self.sealed_ends()
        segment = self.segments[-1]
        durable = max(point, segment.base_offset)
        self.tail(ReadLog(segment.base_offset, is_last=True), 0, durable)

    def unflushed_segments(self, point: int) -> None:
        """Sealed segments that may not have been flushed. Their damage is not cut."""
        unflushed = [
            segment
            for segment in self.segments[:-1]
            if segment.next_offset > point and not segment.is_lost
        ]
        for segment in unflushed:
            if self.damage is not None:
                return
            walk = self.facts.walk(ReadLog(segment.base_offset))
            if walk.refusal is not None:
                self.unreadable(segment.base_offset, walk.refusal)
            else:
                self.check_valid(segment, walk)

    def sealed_ends(self) -> None:
        """The ends of sealed segments of which no own state says how long they are:
        what follows their last batch is damage, as zeros are."""
        for segment in self.segments[:-1]:
            if self.damage is not None:
                return
            base = segment.base_offset
            if segment.is_lost or not segment.size or base in self.walked:
                continue
            walk = self.facts.walk(ReadLog(base, is_end=True))
            if not walk.is_whole:
                walk = self.facts.walk(ReadLog(base))  # or its index is wrong
            if walk.refusal is not None:
                self.unreadable(base, walk.refusal)
            else:
                self.check_valid(segment, walk)

    def tail(
        self,
        question: ReadLog,
        durable_pos: int,
        durable_offset: int,
        *,
        is_rebuilt: bool = False,
    ) -> None:
        """The end of the last segment, whose batches were checked.

        `durable_pos` and `durable_offset`: there is no torn tail below them.
        """
        base, clean = question.base, self.metadata.clean
        floor = max(durable_offset, self.metadata.least_end)
        walk = self.facts.walk(question)
        is_torn_at_once = walk.refusal is None and not (walk.is_whole or walk.batches)
        if question.is_from_state and is_torn_at_once:
            # If durable bytes are gone, what is here now are others of them.
            question = question._replace(is_from_state=False)
            walk = self.facts.walk(question)
        self.result["active_walk"] = question
        if is_rebuilt:
            self.index_rebuilt(base, _BUILT_AGAIN)
        if walk.refusal is not None:
            self.unreadable(base, walk.refusal)
            if self.state is None or not clean:
                raise EndUnknownError
            self.ends_at(durable_pos, durable_offset)
            return
        end = walk.last_offset + 1
        if not walk.is_whole:
            # The damage may be in the offset of a batch: after a clean stop there is no
            # torn tail, whatever the offset of the last batch is.
            below = walk.pos < durable_pos or end < floor or clean
            if below or self.is_condemned(base) or self.is_foreign(walk):
                # Records are served up to here; reading what follows raises an error.
                self.corrupt(base, walk, size=walk.size - walk.pos)
                size = max(walk.size, durable_pos)
                self.ends_at(size, max(floor, end + 1, walk.readable_end))
                return
            self.torn_tail(base, walk)
        elif end < floor and (walk.batches or clean or floor > durable_offset):
            self.below_recovery_point(base, walk, floor)
            self.ends_at(walk.pos, floor)
            return
        elif self.start > end and not self.is_refused:
            self.start_beyond_end(end)
            end = self.start
        durable = durable_offset
        self.result["durable_before"] = min(max(durable, min(self.start, end)), end)
        if self.facts.is_writable and not self.is_refused:
            if not clean:
                self.result["rewritten_from"] = durable_pos, durable_offset
            durable = end
        self.ends_at(walk.pos, end, durable)
        if clean:
            self.last_indexes(is_rebuilt=is_rebuilt, size=walk.pos)

    def is_foreign(self, walk: Walk) -> bool:
        """Whether the log ends with bytes that are not understood, or that are no torn
        tail: these are not cut. If logstore wrote this log last, a magic above 2 is
        garbage, since it writes none. A broker keeps, and serves, an intact batch
        whatever its offset is."""
        if walk.has_more:
            return True
        if self.metadata.is_written:
            return walk.is_unsupported and not walk.is_unknown_magic
        return walk.is_unsupported or walk.is_no_log or walk.is_misplaced

    def torn_tail(self, base: int, walk: Walk) -> None:
        """After a stop that was not clean, the last segment ends past its durable point
        with bytes that are no valid batch."""
        name, first = self.name_of(base), walk.last_offset + 1
        size = walk.size - walk.pos
        self.result["tail"] = Tail(name, walk.pos, size, first, walk.reason)
        if not self.is_refused:
            self.result["is_tail_cut"] = True
            self.add_finding(
                TORN_TAIL,
                name,
                walk.reason,
                position=walk.pos,
                size=size,
                first_offset=first,
                base=base,
            )

    def below_recovery_point(self, base: int, walk: Walk, durable_offset: int) -> None:
        """A valid log ends before the offset that is known to be flushed. (An empty
        last segment may follow an unclean stop of Kafka.)"""
        end = walk.last_offset + 1
        self.refuse(
            LOST_END,
            self.name_of(base),
            f"the log ends at offset {end}, {durable_offset} was durable",
            position=walk.pos,
            offset=end,
            base=base,
            more=" The partition takes no appends.",
        )

    def start_beyond_end(self, end: int) -> None:
        """The log start offset lies beyond the end, as another program has left them:
        the log goes on at its start, as a broker lets it."""
        self.add_finding(
            START_BEYOND_END,
            "",
            f"the log of {self.facts.path} ends at offset {end}, and its start offset "
            f"is {self.start}: nothing of it can be read, and the next record gets "
            f"offset {self.start}",
            size=0,
            first_offset=self.start,
            base=self.segments[-1].base_offset,
        )

    def last_indexes(self, *, is_rebuilt: bool, size: int) -> None:
        """Missing indexes of the last segment of a closed log are written, as closing
        does it: there may be no append that would write them."""
        if not self.facts.is_writable or self.is_refused or not size:
            return
        base = self.segments[-1].base_offset
        files = {segment_file(base, suffix) for suffix in (INDEX, TIME_INDEX)}
        if files <= self.names and not is_rebuilt:
            return
        if not is_rebuilt:
            self.index_rebuilt(base, _BUILT_AGAIN)
        self.result["is_index_written"] = True


def _agrees(last: LogTail, own: PartitionState) -> bool:
    """Whether the batch that ends at the durable point is the one that the state
    means."""
    tail = own.tail
    if tail is not None and tail.last_offset == own.active["last_offset"]:
        return last == tail
    return _is_end(last.last_offset, own)


def _is_end(last: int, own: PartitionState) -> bool:
    """Whether the durable batches may end at this offset. If the log start was behind
    the end of another program's log, the next record gets the offset of the start."""
    end = own.durable_offset
    return last == end - 1 or last < own.start_offset >= end
