"""The facts that a walk over a `.log` file collects, and the findings that they give.

The walk (`LogWalk`) reads; nothing here does.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from logstore import _native as native
from logstore.log.recover.facts import LastBatch
from logstore.log.recover.plan import Tail
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
    "LogFacts",
    "SoundRun",
    "bad_batch",
    "bad_header",
    "far_offsets",
    "gap",
    "misplaced",
    "moved",
    "not_in_place",
    "not_looked_into",
    "other_end",
    "overlap",
    "torn_end",
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


@dataclasses.dataclass(slots=True)
class LogFacts:
    """A `.log` file as it was walked over from its first byte to its last.

    Attributes:
        base: base offset.
        next_offset: first offset after it; None: unknown.
        is_last: it is the last segment.
        is_index_rebuilt: opening builds its indexes, or does not use all of them.
        state: the state that its writer would have, for the expected index entries.
        size: bytes of the file when its end was decided.
        end: end of the intact log.
        batches: how many are intact.
        last_offset: last offset seen; ``base - 1`` while there is none.
        last_good: last offset before a batch that is out of order; before the segment
            while there is none.
        hidden: first offset of the intact batches that end after the size with which
            the segment was sealed: no reader sees them. None: there are none.
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
        findings: about its batches, in the order in which the walk met them.
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
    findings: list[Finding] = dataclasses.field(default_factory=list)

    def is_damaged_at(self, pos: int) -> bool:
        """Whether a position lies in a damaged part."""
        return self.is_damaged_between(pos, pos + 1)

    def is_damaged_between(self, first: int, end: int) -> bool:
        """Whether anything in a range of positions was damaged."""
        return any(low < end and first < high for low, high in self.gaps)


# ---------------------------------------------------------------------- the judges


def gap(
    path: str,
    position: int,
    end: int,
    fault: tuple[str, str],
    first: int,
    following: int | None,
) -> Finding:
    """Bytes that are no intact batch.

    Args:
        fault: the kind, and why the first of them is none.
        first: the first offset that is not read.
        following: the first offset after them; None: unknown.
    """
    kind, reason = fault
    to = "" if following is None else f" to {following - 1}"
    has_offsets = following is None or following > first
    what = f", offsets from {first}{to}," if has_offsets else " between offsets"
    text = (
        f"{path} is damaged at byte {position}: {reason}. {end - position} bytes{what} "
        f"cannot be read"
    )
    last = None if following is None else following - 1
    place = (position, first, last) if has_offsets else (position,)
    return Finding(CONTENTS, kind, PROBLEM, path, text, *place)


def misplaced(
    log: LogFacts,
    position: int,
    offsets: tuple[int, int],
    last_before: int,
    jumped_from: int | None,
    beyond: int | None = None,
) -> Finding:
    """An intact batch whose offsets do not follow: named by the first offset that is
    not read, from the last good one on.

    Args:
        offsets: its first and last one.
        last_before: of the batch before; below `log.base` if there is none.
        jumped_from: if the batch before jumps ahead, the last offset before that one;
            None if it does not.
        beyond: the first offset after this batch, and after the one before if the two
            have changed places; None: what is lost ends before that, or it is unknown.
    """
    first, last = offsets
    where = f"the batch before ends with {last_before}"
    if last_before < log.base:
        where = f"the segment begins at {log.base}"
    # After a gap, the offsets in the gap are those that cannot be read. Or the batch
    # before jumps ahead: then its offsets are wrong.
    is_gap = first > last_before + 1
    begin, end = log.last_good + 1, first - 1 if is_gap else last
    if log.next_offset is not None:
        end = min(end, log.next_offset - 1)  # no checksum covers the offset
    if jumped_from is not None and not is_gap and jumped_from < first:
        begin, end = jumped_from + 1, max(first - 1, jumped_from + 1)
    if beyond is not None and not is_gap:
        end = max(end, beyond - 1)
    text = (
        f"{log.path} at byte {position} has a batch of offsets {first} to {last}, but "
        f"{where}" + (": the log was written without gaps" if is_gap else "")
    )
    return _problem(OFFSETS, log.path, text, position, begin, end)


def not_in_place(
    log: LogFacts, position: int, offsets: tuple[int, int], last: int, before: int
) -> Finding:
    """An intact batch among damaged bytes whose offsets are missing before them.

    Args:
        offsets: its first and last one.
        last: where the batch before the damage ends.
        before: the last offset before the missing ones.
    """
    text = (
        f"{log.path} at byte {position} has a batch of offsets {offsets[0]} to "
        f"{offsets[1]} among damaged bytes, but the batch before them ends with {last}"
    )
    return _problem(OFFSETS, log.path, text, position, before + 1, offsets[1])


def contradict(log: LogFacts, following: int) -> None:
    """Shorten the finding about the last batch, which jumps ahead: the next batch has
    offsets from `following` on, so only those below are lost."""
    jump = log.findings[-1] if log.findings else None
    if jump is None or jump.kind != OFFSETS:
        return
    first, last = jump.first_offset, jump.last_offset
    if first is not None and last is not None:
        last = max(first, min(last, following - 1))
        log.findings[-1] = dataclasses.replace(jump, last_offset=last)


def forget(log: LogFacts, position: int) -> None:
    """Remove the last finding if it is about the order of the batch at a position. That
    has changed places with the next one, whose finding is about both."""
    last = log.findings[-1] if log.findings else None
    if last is not None and (last.kind, last.position) == (OFFSETS, position):
        log.findings.pop()


def far_offsets(log: LogFacts, position: int, last: int, limit: int) -> Finding:
    """Batches from a position on whose offsets, up to `last`, no index can have."""
    text = (
        f"{log.path} has offsets up to {last} from byte {position} on, which are more "
        f"than {limit} beyond its base offset {log.base}"
    )
    return Finding(CONTENTS, OFFSETS, PROBLEM, log.path, text, position)


def not_looked_into(
    path: str, severity: str, place: tuple[int, int, int], reason: object
) -> Finding:
    """A batch with a valid checksum that is not decompressed; `place`: its position,
    first and last offset."""
    text = f"the batch of {path} at byte {place[0]} was not looked into: {reason}"
    return Finding(CONTENTS, UNSUPPORTED, severity, path, text, *place)


def bad_batch(
    log: LogFacts, position: int, first: int, last: int, reason: str
) -> Finding:
    """A batch whose contents are wrong."""
    text = (
        f"batch of {log.path} at byte {position}, offsets {first} to {last}: {reason}"
    )
    # After a batch that is out of order, others have offsets that were read.
    begin = max(first, log.last_good + 1)
    return _problem(DAMAGED_BATCH, log.path, text, position, begin, last)


def bad_header(path: str, offset: int, reason: str) -> Finding:
    """A record with a header that cannot be decoded."""
    text = f"record {offset} of {path} has a bad header: {reason}"
    return _problem(DAMAGED_BATCH, path, text, None, offset, offset)


def torn_end(path: str, tail: Tail, last: int) -> Finding:
    """The bytes past the end of the log; `last`: of the intact batches among them, -1
    if there is none."""
    more = f", with intact batches up to offset {last} among them"
    text = (
        f"{path} ends with {tail.size} torn bytes at byte {tail.pos} ({tail.reason})"
        f"{more if last >= 0 else ''}; the log ends before offset {tail.first_offset}"
    )
    first = tail.first_offset
    place = tail.pos, first, last if last >= first else None
    return Finding(CONTENTS, TORN_TAIL, NOTE, path, text, *place)


def moved(log: LogFacts, last: LastBatch) -> Finding:
    """The last batch, which had other offsets when the log was closed."""
    assert log.next_offset is not None  # the end of the log when it was closed
    end = log.next_offset - 1
    text = (
        f"{log.path} at byte {last.pos} has a batch of offsets {last.first} to "
        f"{last.last}, but the log was closed when it ended with {end}"
    )
    return _problem(OFFSETS, log.path, text, last.pos, last.before + 1, end)


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
    """An intact segment that does not end where it was sealed, before `next_offset`."""
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
