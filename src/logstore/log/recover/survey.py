"""Collects the facts that a decision about a partition needs, and writes nothing.

Names and sizes are always needed. Which batches are read depends on the decision: it
runs on facts whose answers are read when it asks for them (`_Answers`), and the facts
that are returned have these answers. So the reads and the decision agree.

The last segment is walked over once. The results of a walk are kept (`Reading`) for the
log that opens, and for the indexes that are built.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
from collections.abc import Callable
from typing import Final, TypeVar

from logstore import _native as native
from logstore.errors import CorruptRecordError, StorageError, UnsupportedError
from logstore.index import OffsetEntries, TimeEntries
from logstore.io import layout
from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.partition_state import PartitionState, segment_state
from logstore.io.layout import DELETED, INDEX, LOG, SWAP, TIME_INDEX, segment_file
from logstore.log.read.damage import unreadable
from logstore.log.recover.context import RecoveryContext
from logstore.log.recover.facts import (
    Facts,
    LastBatch,
    Question,
    ReadIndexes,
    ReadLast,
    ReadLog,
    Refusal,
    WalkFacts,
)
from logstore.log.recover.make_plan import make_plan
from logstore.log.recover.names import (
    below_the_state,
    classify,
    committed_swaps,
    readable,
)
from logstore.log.recover.plan import Plan
from logstore.log.recover.standing import standings_of
from logstore.log.recover.torn_tail import may_be_unfinished, needs_more
from logstore.log.resync import (
    Sound,
    is_behind_torn,
    is_unfinished,
    next_valid,
)
from logstore.log.scan import TailScan, scan_log
from logstore.segment import (
    OffsetPosition,
    Segment,
    SegmentGoneError,
)

__all__ = ["Reading", "Survey", "survey"]

_Q = TypeVar("_Q", bound=Question)
_A = TypeVar("_A")

# Entries of sealed segments are kept up to this size in all; others are read again.
_KEPT_BYTES_MAX: Final = 64 << 20
# The last offset that an index of a segment has, above the segment's name.
_RELATIVE_MAX: Final = (1 << 31) - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """Results of a walk over a segment.

    Attributes:
        state: of the segment, after the last valid batch.
        index, times: its entries.
    """

    state: native.SegmentState
    index: OffsetEntries
    times: TimeEntries


@dataclasses.dataclass(frozen=True, slots=True)
class Survey:
    """The facts about a partition, and objects that are kept for the opened log.

    Attributes:
        plan: made of the facts.
        readings: the kept ones, by the walk of `facts` that made them.
        loaded: the index files of the last segment, if they count.
    """

    facts: Facts
    plan: Plan
    readings: dict[ReadLog, Reading]
    loaded: tuple[OffsetEntries, TimeEntries] | None


def survey(context: RecoveryContext) -> Survey:
    """Collect the facts about a partition.

    Raises:
        OSError: its directory cannot be read.
    """
    return _Surveyor(context).survey()


class _Answers(dict[_Q, _A]):
    """The answers to questions; each is found when it is first asked."""

    def __init__(self, answer: Callable[[_Q], _A]) -> None:
        super().__init__()
        self._answer = answer

    def __missing__(self, question: _Q) -> _A:
        self[question] = answer = self._answer(question)
        return answer


class _Surveyor:
    def __init__(self, context: RecoveryContext) -> None:
        self.context = context
        self.state = context.metadata.state
        self.readings: dict[ReadLog, Reading] = {}
        self.loaded: tuple[OffsetEntries, TimeEntries] | None = None
        self.kept_bytes = 0
        self.transitions: dict[int, str] = {}
        self.names: frozenset[str] = frozenset()

    def survey(self) -> Survey:
        context, directory = self.context, self.context.directory
        names = context.names
        if names is None:
            names = frozenset(directory.names())
        self.names = names
        swapping = context.metadata.swapping
        bases = committed_swaps(names, swapping)
        swap_ends = {base: self.swap_end(base) for base in bases}
        self.transitions = classify(names, readable(swap_ends), swapping).logs
        walks, indexes = _Answers(self.walk), _Answers(self.are_indexed)
        lasts = _Answers(self.last_batch)
        facts = Facts(
            directory.path,
            context.metadata,
            context.writable,
            names,
            swap_ends,
            {base: self.size(base) for base in self.transitions},
            walks,
            indexes,
            lasts,
            standings_of(context, self.logs(), walks.__getitem__, self.segment),
        )
        plan = make_plan(facts)
        facts = dataclasses.replace(
            facts, walks=dict(walks), indexes=dict(indexes), lasts=dict(lasts)
        )
        return Survey(facts, plan, self.readings, self.loaded)

    def name(self, base: int) -> str:
        return segment_file(base, LOG) + self.transitions.get(base, "")

    def logs(self) -> dict[int, str]:
        """Base offset -> name of the `.log` files that no interrupted deletion has."""
        deleted = below_the_state(self.state, self.transitions)
        return {b: self.name(b) for b in self.transitions if b not in deleted}

    def swap_end(self, base: int) -> int | Refusal:
        """The offset after the valid part of a `.log.swap`; at least the end that the
        own state gives it: it also replaces segments of which no record stayed."""
        rows = self.state.sealed if self.state else []
        least = max((row[2] for row in rows if row[0] == base), default=0)
        state = native.SegmentState(base)
        try:
            with self.context.directory.opened(segment_file(base, LOG) + SWAP) as fd:
                size = self.context.directory.files.size(fd)
                scan_log(self.context.directory, fd, size, state)
        except OSError as error:
            return Refusal.of(error, "read")
        return max(int(state.last_offset) + 1, least)

    def size(self, base: int) -> int | Refusal:
        """Size of a `.log` file, which must be a regular one."""
        try:
            return self.read_log(base, self.context.directory.files.size)
        except OSError as error:
            return Refusal.of(error, "open")

    def read_log(self, base: int, read: Callable[[int], _A]) -> _A:
        """The result of a call with the descriptor of a `.log` file. Its writer may
        have deleted it since the names were read: then it has another name for a
        while."""
        name, directory = self.name(base), self.context.directory
        try:
            with directory.opened(name) as fd:
                return read(fd)
        except FileNotFoundError:
            if self.context.writable:
                raise
        with directory.opened(name + DELETED) as fd:
            return read(fd)

    def segment(self, base: int) -> Segment:
        return Segment(
            self.context.directory,
            self.context.descriptors,
            base,
            0,
            base,
            transition=self.transitions.get(base, ""),
            is_contiguous=self.state is not None and self.state.is_contiguous,
        )

    def own(self, base: int) -> PartitionState | None:
        """The own state, if this is its active segment."""
        state = self.state
        is_active = state is not None and state.active["base_offset"] == base
        return state if is_active else None

    # -- walking

    def walk(self, question: ReadLog) -> WalkFacts:
        begin = self.begin(question)

        def read(fd: int) -> tuple[int, TailScan, Reading]:
            size = self.context.directory.files.size(fd)
            if question.end >= 0:
                size = min(size, question.end)
            return (size, *self.scan(question, fd, size, begin))

        try:
            size, scan, reading = self.read_log(question.base, read)
            has_more, is_misplaced, readable_end = self.behind(question, scan)
            moved = None
            if scan.is_whole or is_misplaced:
                moved = self.moved(question, scan, reading, readable_end)
        except OSError as error:
            return WalkFacts(0, 0, -1, refusal=Refusal.of(error, "read"))
        except SegmentGoneError:
            missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return WalkFacts(0, 0, -1, refusal=Refusal.of(missing, "read"))
        self.keep(question, reading)
        fault = scan.error
        status = 0 if fault is None else fault.status
        return WalkFacts(
            size,
            scan.pos,
            scan.last_offset,
            scan.batches,
            "" if scan.is_whole else scan.reason,
            fault is not None and fault.is_unsupported,
            status == native.E_MAGIC,
            scan.pos == 0 and status in (native.E_NO_MAGIC, native.E_LENGTH),
            has_more,
            is_misplaced,
            readable_end,
            moved,
        )

    def behind(self, question: ReadLog, scan: TailScan) -> tuple[bool, bool, int]:
        """`has_more`, `is_misplaced` and `readable_end` of a walk; False, False and -1
        if they are not needed."""
        metadata = self.context.metadata
        # A log that logstore has closed ends where its state says.
        is_known = metadata.clean and metadata.is_written
        if scan.is_whole or not question.is_last or is_known:
            return False, False, -1
        segment = self.segment(question.base)
        segment.size, segment.next_offset = scan.size, native.OFFSET_MAX
        is_misplaced, has_more, readable_end = False, False, -1
        if not metadata.is_written:
            is_misplaced = segment.first_header(scan.pos) is not None
        find = _readable_end if is_misplaced else _intact_end
        readable_end = find(segment, scan)
        is_identified = layout.TOPIC_IDENTITY in self.names
        if needs_more(metadata, question.base, scan.pos, is_identified=is_identified):
            intact = next_valid(segment, scan.pos, scan.last_offset)
            is_partial = scan.error is None and scan.stop == native.STOP_PARTIAL
            has_more = intact is not None and not (
                (
                    may_be_unfinished(metadata, question.base, scan.pos)
                    and is_unfinished(segment, scan.pos, scan.last_offset, intact)
                )
                or (is_partial and not is_behind_torn(segment, scan.pos, intact))
            )
        return has_more, is_misplaced, readable_end

    def moved(
        self, question: ReadLog, scan: TailScan, reading: Reading, readable_end: int
    ) -> LastBatch | None:
        """`moved` of a walk that only the offset of a batch may have ended."""
        end = self.context.metadata.closed_end if self.state is None else None
        if not question.is_last or end is None:
            return None
        if max(scan.last_offset + 1, readable_end) <= end:
            return None
        segment, index = self.segment(question.base), reading.index
        segment.size = scan.size
        # The last entry may be of the last batch.
        place = index.entry(index.count - 2)[1] if index.count > 1 else 0
        last = _last_batch(segment, place)
        if last is None or not (scan.is_whole or last.pos == scan.pos):
            return None
        return last if last.has_moved(end) else None

    def begin(self, question: ReadLog) -> native.SegmentState:
        """The state from which to walk over a segment."""
        own = self.own(question.base)
        if own is not None and question.is_from_state:
            return segment_state(own.active)
        if question.is_end:
            return self.before_end(question.base)
        if own is not None:
            created_ms = own.active["created_ms"]
        else:
            created_ms = 0
            with contextlib.suppress(OSError):
                info = self.context.directory.stat(self.name(question.base))
                created_ms = info.mtime_ns // 1_000_000
        return native.SegmentState(question.base, created_ms)

    def before_end(self, base: int) -> native.SegmentState:
        """The state at the last entry of the index of a sealed segment."""
        segment, state = self.segment(base), native.SegmentState(base)
        size = self.size(base)
        segment.size = size if isinstance(size, int) else 0
        index = OffsetEntries.load(segment.index_bytes(INDEX), segment.size)
        if index.count:
            # If the entry is wrong, the walk from here does not find whole batches.
            state.raw.size = index.entry(index.count - 1)[1]
        return state

    def scan(
        self, question: ReadLog, fd: int, size: int, begin: native.SegmentState
    ) -> tuple[TailScan, Reading]:
        segment = self.segment(question.base)

        def scanned(reading: Reading, end: int) -> TailScan:
            return scan_log(
                self.context.directory,
                fd,
                end,
                reading.state,
                index=reading.index,
                times=reading.times,
                interval=self.context.config.index_interval_bytes,
                checks=segment.checks,
                on_checked=self.context.on_checked,
            )

        def walk(end: int) -> tuple[TailScan, Reading]:
            reading = Reading(begin.copy(), OffsetEntries(), TimeEntries())
            if question.is_last and question.is_from_state and self.loaded is not None:
                index, times = self.loaded
                reading = Reading(begin.copy(), index.copy(), times.copy())
            scan = scanned(reading, end)
            if not scan.is_whole and self.context.writable:
                # Memory may be at fault: it is damage only if a second read of the disk
                # shows it.
                self.context.directory.files.forget_cached(fd, scan.pos, end - scan.pos)
                again = scanned(reading, end)
                scan = again._replace(
                    batches=scan.batches + again.batches,
                    has_wrappers=scan.has_wrappers or again.has_wrappers,
                )
            return scan, reading

        scan, reading = walk(size)
        if not (question.is_last and scan.has_wrappers):
            return scan, reading
        own = self.own(question.base)
        place = segment.start
        if own is not None and own.active["size"]:
            place = OffsetPosition(own.active["size"], own.durable_offset - 1)
        segment.size = scan.pos
        damage = unreadable(segment, place)
        if damage is None:
            return scan, reading
        # Only as far as a reader could read.
        scan, reading = walk(damage[0])
        return scan._replace(size=size, why=damage[1]), reading

    def keep(self, question: ReadLog, reading: Reading) -> None:
        if not question.is_last:
            if question.is_from_state or question.is_end:
                return
            entries = reading.index, reading.times
            size = sum(index.count * index.entry_bytes for index in entries)
            if self.kept_bytes + size > _KEPT_BYTES_MAX:
                return
            self.kept_bytes += size
        self.readings[question] = reading

    # -- the index files of the last segment

    def are_indexed(self, question: ReadIndexes) -> bool:
        """Whether the index files of the active segment reach the durable point, with
        the content that the own state says."""
        own = self.own(question.base)
        assert own is not None  # asked only then
        segment = self.segment(question.base)
        state = segment_state(own.active)
        segment.size = state.size
        index = OffsetEntries.load(segment.index_bytes(INDEX), state.size)
        times = TimeEntries.load(segment.index_bytes(TIME_INDEX))
        count, time_count = state.raw.index_entries, state.raw.time_entries
        if index.count < count or times.count < time_count:
            return False
        index.cut(count)
        times.cut(time_count)
        if own.is_truncating or times.digest() != own.time_digest:
            return False  # or they were not synced before the state was written
        is_clean = self.context.metadata.clean
        if not is_clean and (question.is_lost or not _is_borne_out(segment, index)):
            return False
        index.synced, times.synced = count, time_count
        self.loaded = index, times
        return True

    def last_batch(self, question: ReadLast) -> LogTail:
        """The batch that ends at the durable point, from the last place before it on
        that the own state or the offset index has."""
        own, base = self.own(question.base), question.base
        assert own is not None  # asked only then
        size, place = own.active["size"], 0
        if own.tail is not None and own.tail.last_offset >= base:
            place = own.tail.position
        if own.tail is None or own.tail.last_offset != own.durable_offset - 1:
            segment = self.segment(base)
            segment.size = size
            index = OffsetEntries.load(segment.index_bytes(INDEX), size)
            if index.count:
                place = max(place, index.entry(index.count - 1)[1])
        tail = LogTail.find(self.context.directory, base, place, size)
        return tail or LogTail(-1, place, 0)


def _last_batch(segment: Segment, pos: int) -> LastBatch | None:
    """The last batch of a segment, from the batch at `pos` on; None if the file does
    not end with it, or it does not say which offsets it has."""
    before, last = segment.base_offset - 1, None
    place = OffsetPosition(pos, native.OFFSET_UNKNOWN)
    with contextlib.suppress(CorruptRecordError, UnsupportedError):
        for header, buffer, position in segment.headers(place, checks=0):
            before = before if last is None else last.last
            first, end = header.base_offset, position + header.size
            if first < 0 and end == segment.size:
                first = Sound(position, header, buffer).first_offset()
            last = LastBatch(position, end, first, header.last_offset, before)
    if last is None or last.end != segment.size or last.first < 0:
        return None
    return last


def _readable_end(segment: Segment, scan: TailScan) -> int:
    """Determine `WalkFacts.readable_end` if the offsets continue, but are too far from
    the segment's name for an index."""
    place, last = OffsetPosition(scan.pos, scan.last_offset), -1
    try:
        for header, _, pos in segment.headers(place, checks=native.CHECK_ALL):
            if pos + header.size == segment.size:
                last = header.last_offset
    except (CorruptRecordError, UnsupportedError):
        return -1
    return last + 1 if last > scan.last_offset else -1


def _intact_end(segment: Segment, scan: TailScan) -> int:
    """Determine `WalkFacts.readable_end` after damage: one past the last offset of the
    intact batches there."""
    pos, last = scan.pos, scan.last_offset
    end = -1
    while True:
        intact = next_valid(segment, pos, last)
        if intact is None:
            return end
        pos, place = intact.end, OffsetPosition(intact.pos, native.OFFSET_UNKNOWN)
        with contextlib.suppress(CorruptRecordError, UnsupportedError):
            for header, _, position in segment.headers(place, checks=native.CHECK_ALL):
                if header.last_offset - segment.base_offset > _RELATIVE_MAX:
                    return end
                pos, last = position + header.size, header.last_offset
                end = last + 1


def _is_borne_out(segment: Segment, index: OffsetEntries) -> bool:
    """Whether the log agrees with the last entry. Index files are not synced with the
    log: after a power failure they may contain anything."""
    if not index.count:
        return True
    relative, pos = index.entry(index.count - 1)
    try:
        first = segment.first_header(pos)
    except (CorruptRecordError, StorageError):
        return False  # the walk over all of it finds out why
    return first is not None and first[0].last_offset == segment.base_offset + relative
