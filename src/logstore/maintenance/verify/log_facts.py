"""The facts that a walk over a `.log` file collects, and the findings that they give.

The walk (`LogWalk`) reads and notes what it meets: a `Fault` is a value. `judged` says
what these are, when it is over; it reads nothing, and changes nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from logstore import _native as native
from logstore.log.recover.facts import LastBatch
from logstore.log.recover.plan import UnservedTail
from logstore.maintenance.finding import (
    CONTENTS,
    DAMAGED_BATCH,
    NOTE,
    OFFSETS,
    PROBLEM,
    TORN_TAIL,
    UNSUPPORTED,
    Finding,
)

__all__ = [
    "BadBatch",
    "BadHeader",
    "FarOffsets",
    "Fault",
    "Gap",
    "LogFacts",
    "Misplaced",
    "Moved",
    "NotInPlace",
    "NotLookedInto",
    "SoundRun",
    "TornEnd",
    "judged",
    "other_end",
    "overlap",
]


class SoundRun(NamedTuple):
    """Intact batches, one right after the other, with offsets in order.

    Attributes:
        begin, end: bytes of the file.
        first: first offset; -1 if the batch does not have it (a wrapper).
        last: last offset, inclusive.
        head_bytes, head_last: size and last offset of its first batch.
    """

    begin: int
    end: int
    first: int
    last: int
    head_bytes: int
    head_last: int

    @property
    def lowest(self) -> int:
        """The first offset, or if it is unknown the last offset of its first batch."""
        return self.first if self.first >= 0 else self.head_last

    @property
    def is_single(self) -> bool:
        """Whether it is one batch."""
        return self.end - self.begin == self.head_bytes


# ---------------------------------------------------------------------- the faults


class Gap(NamedTuple):
    """Bytes that are not an intact batch.

    Attributes:
        position, end: of these bytes.
        kind, reason: the fault of the first of them.
        first: the first offset that is not read.
        following: the first offset after them; None: unknown.
        is_contradicted: whether they follow a batch that jumps ahead, and `following`
            shows that its offsets are wrong.
    """

    position: int
    end: int
    kind: str
    reason: str
    first: int
    following: int | None
    is_contradicted: bool = False


class Misplaced(NamedTuple):
    """An intact batch whose offsets do not follow.

    Attributes:
        first, last: its offsets.
        last_before: of the batch before; below the base of the log for the first batch.
        last_good: the last offset before a batch that is out of order.
        jumped_from: if the batch before jumps ahead, the last offset before it;
            None if it does not.
        beyond: the first offset after this batch, and after the one before if the two
            have changed places; None: what is lost ends before that, or it is unknown.
        swapped_with: position of the batch before, if the two have changed places.
        is_contradicted: whether this batch shows that the one before, which jumps
            ahead, has wrong offsets.
    """

    position: int
    first: int
    last: int
    last_before: int
    last_good: int
    jumped_from: int | None = None
    beyond: int | None = None
    swapped_with: int | None = None
    is_contradicted: bool = False


class NotInPlace(NamedTuple):
    """An intact batch among damaged bytes whose offsets are missing before them.

    Attributes:
        first, last: its offsets.
        last_before: where the batch before the damage ends.
        missing_from: the first missing offset.
    """

    position: int
    first: int
    last: int
    last_before: int
    missing_from: int


class NotLookedInto(NamedTuple):
    """A batch with a valid checksum that is not decompressed.

    Attributes:
        first, last: its offsets.
        severity: whether no reader can (`PROBLEM`), or a limit forbids it (`NOTE`).
    """

    severity: str
    position: int
    first: int
    last: int
    reason: object


class BadBatch(NamedTuple):
    """A batch whose contents are wrong. `last_good`: as of `Misplaced`."""

    position: int
    first: int
    last: int
    reason: str
    last_good: int


class BadHeader(NamedTuple):
    """A record with a header that cannot be decoded."""

    offset: int
    reason: str


class FarOffsets(NamedTuple):
    """Batches from a position on whose offsets, up to `last`, no index can have: they
    are more than `limit` beyond the base offset."""

    position: int
    last: int
    limit: int


class TornEnd(NamedTuple):
    """The bytes past the end of the log; `last`: of the intact batches among them, -1
    without any."""

    tail: UnservedTail
    last: int


class Moved(NamedTuple):
    """The last batch, which had other offsets when the log was closed."""

    batch: LastBatch


Fault: TypeAlias = (
    "Gap | Misplaced | NotInPlace | NotLookedInto | BadBatch | BadHeader | FarOffsets"
    " | TornEnd | Moved"
)


@dataclasses.dataclass(slots=True)
class LogFacts:
    """The facts of a walk over a `.log` file, from its first byte to its last.

    Attributes:
        base: base offset.
        next_offset: first offset after it; None: unknown.
        is_last: it is the last segment.
        is_index_rebuilt: opening builds its indexes, or does not use all of them.
        state: the state that its writer would have, for the expected index entries.
        size: bytes of the file when its end was decided.
        end: end of the intact log.
        batches: how many are intact.
        last_offset: last offset seen; ``base - 1`` before the first.
        last_good: last offset before a batch that is out of order; before the segment
            before the first.
        hidden: first offset of the intact batches that end after the size with which
            the segment was sealed: no reader sees them. None: no such batches.
        is_deep: whether the contents of compressed batches were checked.
        is_intact: whether nothing in it was damaged.
        is_skipped: whether a part before the present run was damaged.
        is_deleted: whether the file was deleted before it could be opened.
        is_foreign: whether it holds data that is not understood and must not be cut.
        is_unreadable: whether the system refused to read it.
        runs: the intact batches, run by run, also those past the end of the log.
        gaps: position ranges that are damaged.
        bad_ranges: position ranges of intact batches whose contents are wrong, and
        bad_offsets: offsets of records that are wrong.
        jumps: position -> first offset of intact wrappers that do not follow the batch
            before them.
        faults: what is wrong with its batches, in the order in which the walk met them.
    """

    path: str
    name: str
    base: int
    next_offset: int | None
    is_last: bool
    is_index_rebuilt: bool
    state: native.SegmentState
    size: int = 0
    end: int = 0
    batches: int = 0
    last_offset: int = -1
    last_good: int = -1
    hidden: int | None = None
    is_deep: bool = False
    is_intact: bool = True
    is_skipped: bool = False
    is_deleted: bool = False
    is_foreign: bool = False
    is_unreadable: bool = False
    runs: list[SoundRun] = dataclasses.field(default_factory=list)
    gaps: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    bad_ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    bad_offsets: list[int] = dataclasses.field(default_factory=list)
    jumps: dict[int, int] = dataclasses.field(default_factory=dict)
    faults: list[Fault] = dataclasses.field(default_factory=list)

    def is_damaged_at(self, pos: int) -> bool:
        """Whether a position lies in a damaged part."""
        return self.is_damaged_between(pos, pos + 1)

    def is_damaged_between(self, first: int, end: int) -> bool:
        """Whether anything in a range of positions was damaged."""
        return any(low < end and first < high for low, high in self.gaps)


# ---------------------------------------------------------------------- the judges


def judged(log: LogFacts) -> list[Finding]:
    """The findings about the faults of a log, in order. The loss by a batch that jumps
    ahead is known only when the batch after it is: that may shorten its finding, or the
    finding about the two of them replaces it."""
    findings: list[Finding] = []
    before = -1  # the finding about the batch before
    for fault in log.faults:
        if isinstance(fault, Misplaced) and fault.swapped_with is not None:
            _forget(findings, before, fault.swapped_with)
        if isinstance(fault, Misplaced | Gap) and fault.is_contradicted:
            _shorten(findings, before, fault)
        findings.append(_JUDGES[type(fault)](log, fault))
        if not isinstance(fault, NotInPlace):
            before = len(findings) - 1
    return findings


def _gap(log: LogFacts, gap: Gap) -> Finding:
    to = "" if gap.following is None else f" to {gap.following - 1}"
    has_offsets = gap.following is None or gap.following > gap.first
    what = f", offsets from {gap.first}{to}," if has_offsets else " between offsets"
    text = (
        f"{log.path} is damaged at byte {gap.position}: {gap.reason}. "
        f"{gap.end - gap.position} bytes{what} cannot be read"
    )
    last = None if gap.following is None else gap.following - 1
    place = (gap.position, gap.first, last) if has_offsets else (gap.position,)
    return Finding(CONTENTS, gap.kind, PROBLEM, log.path, text, *place)


def _misplaced(log: LogFacts, batch: Misplaced) -> Finding:
    """Named by the first offset that is not read, from the last good one on."""
    first, last, jumped_from = batch.first, batch.last, batch.jumped_from
    where = f"the batch before ends with {batch.last_before}"
    if batch.last_before < log.base:
        where = f"the segment begins at {log.base}"
    # After a gap, the offsets in the gap cannot be read. Or the batch
    # before jumps ahead: then its offsets are wrong.
    is_gap = first > batch.last_before + 1
    begin, end = batch.last_good + 1, first - 1 if is_gap else last
    if log.next_offset is not None:
        end = min(end, log.next_offset - 1)  # no checksum covers the offset
    if jumped_from is not None and not is_gap and jumped_from < first:
        begin, end = jumped_from + 1, max(first - 1, jumped_from + 1)
    if batch.beyond is not None and not is_gap:
        end = max(end, batch.beyond - 1)
    text = (
        f"{log.path} at byte {batch.position} has a batch of offsets {first} to "
        f"{last}, but {where}"
        + (": the log was written without gaps" if is_gap else "")
    )
    return _problem(OFFSETS, log.path, text, batch.position, begin, end)


def _shorten(findings: list[Finding], index: int, fault: Misplaced | Gap) -> None:
    """Shorten the finding about the last batch, which jumps ahead: only offsets below
    the next one are lost."""
    jump = findings[index] if findings else None
    following = fault.first if isinstance(fault, Misplaced) else fault.following
    if jump is None or jump.kind != OFFSETS or following is None:
        return
    first, last = jump.first_offset, jump.last_offset
    if first is not None and last is not None:
        last = max(first, min(last, following - 1))
        findings[index] = dataclasses.replace(jump, last_offset=last)


def _forget(findings: list[Finding], index: int, position: int) -> None:
    """Remove the finding there if it is about the order of the batch at a position:
    that has changed places with the next one, whose finding is about both."""
    last = findings[index] if findings else None
    if last is not None and (last.kind, last.position) == (OFFSETS, position):
        findings.pop(index)


def _not_in_place(log: LogFacts, batch: NotInPlace) -> Finding:
    text = (
        f"{log.path} at byte {batch.position} has a batch of offsets {batch.first} to "
        f"{batch.last} among damaged bytes, but the batch before them ends with "
        f"{batch.last_before}"
    )
    begin = batch.missing_from
    return _problem(OFFSETS, log.path, text, batch.position, begin, batch.last)


def _far_offsets(log: LogFacts, far: FarOffsets) -> Finding:
    text = (
        f"{log.path} has offsets up to {far.last} from byte {far.position} on, which "
        f"are more than {far.limit} beyond its base offset {log.base}"
    )
    return Finding(CONTENTS, OFFSETS, PROBLEM, log.path, text, far.position)


def _not_looked_into(log: LogFacts, batch: NotLookedInto) -> Finding:
    text = (
        f"the batch of {log.path} at byte {batch.position} was not looked into: "
        f"{batch.reason}"
    )
    place = batch.position, batch.first, batch.last
    return Finding(CONTENTS, UNSUPPORTED, batch.severity, log.path, text, *place)


def _bad_batch(log: LogFacts, batch: BadBatch) -> Finding:
    first, last = batch.first, batch.last
    text = (
        f"batch of {log.path} at byte {batch.position}, offsets {first} to {last}: "
        f"{batch.reason}"
    )
    # After a batch that is out of order, others have offsets that were read.
    begin = max(first, batch.last_good + 1)
    return _problem(DAMAGED_BATCH, log.path, text, batch.position, begin, last)


def _bad_header(log: LogFacts, header: BadHeader) -> Finding:
    offset = header.offset
    text = f"record {offset} of {log.path} has a bad header: {header.reason}"
    return _problem(DAMAGED_BATCH, log.path, text, None, offset, offset)


def _torn_end(log: LogFacts, end: TornEnd) -> Finding:
    tail, last = end
    more = f", with intact batches up to offset {last} among them"
    text = (
        f"{log.path} ends with {tail.size} torn bytes at byte {tail.pos} "
        f"({tail.reason}){more if last >= 0 else ''}; the log ends before offset "
        f"{tail.first_offset}"
    )
    first = tail.first_offset
    place = tail.pos, first, last if last >= first else None
    return Finding(CONTENTS, TORN_TAIL, NOTE, log.path, text, *place)


def _moved(log: LogFacts, moved: Moved) -> Finding:
    batch = moved.batch
    assert log.next_offset is not None  # the end of the log when it was closed
    end = log.next_offset - 1
    text = (
        f"{log.path} at byte {batch.pos} has a batch of offsets {batch.first} to "
        f"{batch.last}, but the log was closed when it ended with {end}"
    )
    return _problem(OFFSETS, log.path, text, batch.pos, batch.before + 1, end)


_JUDGES: Final[dict[type, Callable[[LogFacts, Any], Finding]]] = {
    Gap: _gap,
    Misplaced: _misplaced,
    NotInPlace: _not_in_place,
    NotLookedInto: _not_looked_into,
    BadBatch: _bad_batch,
    BadHeader: _bad_header,
    FarOffsets: _far_offsets,
    TornEnd: _torn_end,
    Moved: _moved,
}


def overlap(log: LogFacts, last_before: int) -> Finding:
    """A segment that begins below the end of the segments before it."""
    text = (
        f"{log.path} begins at offset {log.base}, which is in the segments before: "
        f"they end with {last_before}"
    )
    last = log.last_offset
    if log.next_offset is not None:
        last = min(last, log.next_offset - 1)  # the next segment has the others
    return _problem(OFFSETS, log.path, text, 0, last_before + 1, last)


def other_end(log: LogFacts, next_offset: int) -> Finding:
    """An intact segment that does not end at its sealed end, before `next_offset`."""
    last = log.last_offset
    text = f"{log.path} ends with offset {last}, not {next_offset - 1}"
    offsets = min(last + 1, next_offset), max(last, next_offset - 1)
    return _problem(OFFSETS, log.path, text, log.end, *offsets)


def _problem(
    kind: str, path: str, text: str, position: int | None, first: int, last: int
) -> Finding:
    """A problem; without a last offset if none is lost."""
    end = last if last >= first else None
    return Finding(CONTENTS, kind, PROBLEM, path, text, position, first, end)
