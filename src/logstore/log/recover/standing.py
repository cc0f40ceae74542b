"""Checks whether the recorded damage of a partition is still there, and records the
damage that an opening for writing has found.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

from logstore.errors import LogStoreError, storage_error
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    LOST_END,
    LOST_SEGMENT,
    UNREADABLE,
    UNSUPPORTED,
)
from logstore.io.checkpoint.state_fields import VERDICTS_MAX
from logstore.io.checkpoint.verdicts import (
    DIGEST_BYTES,
    NO_SEGMENT,
    ClosedEnd,
    Verdict,
    digest_at,
    forget_verdicts,
    mark_damaged,
    write_verdicts,
)
from logstore.io.layout import CLOSED, DAMAGED, LOG, segment_file
from logstore.log.recover.context import RecoveryContext
from logstore.log.recover.facts import Facts, ReadLog, Standing, WalkFacts
from logstore.log.recover.plan import (
    CASES,
    TAKES_NO_APPENDS,
    UNREAD_VERDICT,
    OpeningFinding,
    Plan,
    PlannedSegment,
)
from logstore.segment import Segment, SegmentGoneError

__all__ = ["record_verdicts", "standings_of"]

logger = logging.getLogger("logstore")

_BACK: Final = ", is gone: whole batches are in its place"


# ------------------------------------------------------------------------- asking


def standings_of(
    context: RecoveryContext,
    logs: Mapping[int, str],
    walk: Callable[[ReadLog], WalkFacts],
    segment: Callable[[int], Segment],
) -> tuple[Standing, ...]:
    """Check each verdict on a partition against the bytes.

    Args:
        logs: base offset -> name of the `.log` files in use. Those whose deletion was
            committed are not.
        walk: answers a question.
        segment: the segment of a base offset; its size is not known.
    """
    rows = context.metadata.verdicts.rows
    contradictions = frozenset(v for v in rows if _is_contradiction(v, logs, segment))
    return tuple(_standing(context, v, logs, walk, contradictions) for v in rows)


def _is_contradiction(
    verdict: Verdict, logs: Mapping[int, str], segment: Callable[[int], Segment]
) -> bool:
    """Whether the batch at the damage is intact, and begins below the end of the one
    before: then either may have the wrong offset, which no checksum covers."""
    if verdict.kind != CORRUPT or verdict.detail or verdict.segment not in logs:
        return False
    damaged_segment = segment(verdict.segment)
    damaged_segment.size = max(verdict.end_position, verdict.position)
    with contextlib.suppress(LogStoreError, SegmentGoneError, OSError):
        checked_header = damaged_segment.first_header(verdict.position)
        if checked_header is not None:
            header = checked_header[0]
            first = header.last_offset if header.base_offset < 0 else header.base_offset
            return first < verdict.good_end
    return False


def _standing(
    context: RecoveryContext,
    verdict: Verdict,
    logs: Mapping[int, str],
    walk: Callable[[ReadLog], WalkFacts],
    contradictions: Set[Verdict],
) -> Standing:
    """`contradictions`: the verdicts that the bytes of the batch before may end."""
    directory = context.directory
    path = directory.path_of(verdict.name) if verdict.name else directory.path
    what = f"the damage of {path} at byte {verdict.position}, offset {verdict.good_end}"
    name = logs.get(verdict.segment)
    is_below = _start(context) >= max(verdict.end_offset, verdict.good_end + 1)
    if is_below and name is None:
        # If the file still exists, the start alone does not show a deletion.
        return Standing(verdict, False, f"{what}, was deleted: the log starts above it")
    if verdict.segment == NO_SEGMENT:
        end = max(verdict.end_offset, context.metadata.recovery_point)
        if logs and _reaches(walk(ReadLog(max(logs))), end):
            return Standing(verdict, False, f"{what}, is gone: its segments are there")
        return Standing(verdict)
    if name is None:
        if verdict.kind == LOST_SEGMENT:
            return Standing(verdict)
        lost = _missing(verdict)
        return Standing(verdict, False, f"{what}, is gone with its file{lost}")
    try:
        with directory.opened(name) as fd:
            size = directory.files.size(fd)
        is_at_end = verdict.kind == CORRUPT and size == verdict.position
        if is_at_end and not verdict.size:
            # The last batch of a segment ended above the beginning of the next one.
            facts = walk(ReadLog(verdict.segment))
            if facts.is_whole and facts.last_offset < verdict.end_offset:
                return Standing(verdict, False, what + _BACK)
            return Standing(verdict)
        if size <= verdict.position and verdict.kind not in (LOST_END, LOST_SEGMENT):
            lost = _missing(verdict)
            return Standing(
                verdict, False, f"{what}, was cut off by another program{lost}"
            )
        is_same = _is_same(context, verdict, name, size)
    except OSError:
        return Standing(verdict)  # unknown
    is_last = verdict.segment == max(logs)
    is_end_of_log = verdict.kind == LOST_END and verdict.end_position == size
    if is_end_of_log and not is_last:
        # Later segments were missing, and nothing of this file.
        is_same = not _reaches(walk(ReadLog(max(logs))), verdict.end_offset)
    if verdict.kind == LOST_END and is_last and _was_closed_at(context, verdict, size):
        # A recovery point, which has no checksum, was higher, and no longer is.
        return Standing(verdict, False, f"{what}, is gone: the log was closed there")
    if is_same and verdict.kind != UNSUPPORTED and verdict not in contradictions:
        return Standing(verdict)
    end = verdict.end_offset
    if end in {v.good_end + 1 for v in contradictions}:
        end = 0  # only a wrong offset said so
    facts = walk(ReadLog(verdict.segment))
    if (
        facts.refusal is None
        and (facts.is_whole or verdict.end_position)
        and facts.pos >= verdict.end_position
        # A segment before others may end before they begin.
        and (facts.last_offset + 1 >= end or not is_last)
    ):
        return Standing(verdict, False, what + _BACK)
    if facts.is_whole and not context.metadata.is_written:
        lost = _missing(verdict)
        message = f"{what}, is gone: another program has written in its place{lost}"
        return Standing(verdict, False, message)
    return Standing(verdict)


def _was_closed_at(context: RecoveryContext, verdict: Verdict, size: int) -> bool:
    """Whether the store was closed, and not written to since, with the log as long as
    now: `size` bytes of its last segment, up to the lost end."""
    metadata = context.metadata
    state = metadata.state
    return (
        state is not None
        and metadata.clean
        and state.durable_offset == verdict.good_end
        and state.active["base_offset"] == verdict.segment
        and state.active["size"] == size
        and metadata.least_end <= verdict.good_end
    )


def _reaches(facts: WalkFacts, end: int) -> bool:
    """Whether a segment is whole, and ends at an offset or above."""
    return facts.is_whole and facts.last_offset + 1 >= end


def _is_same(context: RecoveryContext, verdict: Verdict, name: str, size: int) -> bool:
    """Whether a file of `size` bytes has the same damage.

    Raises:
        OSError: as the system gives it.
    """
    if verdict.kind == LOST_SEGMENT:
        return False
    if verdict.kind == LOST_END:
        return size <= verdict.position
    end = verdict.position + verdict.size
    if not verdict.detail and end < size and verdict.size < DIGEST_BYTES:
        return False  # the file has more of the bytes that were cut off
    digest = digest_at(context.directory, name, verdict.position, end)
    return (verdict.size, verdict.digest) == digest


def _missing(verdict: Verdict) -> str:
    """Which offsets went with the damage."""
    if verdict.end_offset <= verdict.good_end:
        return f"; what followed offset {verdict.good_end} is missing"
    return f"; offsets {verdict.good_end} to {verdict.end_offset - 1} are missing"


def _start(context: RecoveryContext) -> int:
    state = context.metadata.state
    return context.metadata.log_start if state is None else state.start_offset


# ------------------------------------------------------------------------- writing


def record_verdicts(
    context: RecoveryContext, facts: Facts, plan: Plan
) -> LogStoreError | None:
    """Record the damage in `.logstore-damaged`, durably, before anything else of the
    partition is written. Without damage, remove the file, also durably: the log is
    about to be written to.

    Returns the error if it cannot be written: then nothing may be appended, and the
    store gets no mark of a clean stop, so that the next opening looks again.

    Raises:
        OSError: it cannot be removed.
    """
    directory, metadata = context.directory, context.metadata
    verdicts = metadata.verdicts
    if plan.damage is None:
        if facts.names & {DAMAGED, CLOSED}:
            forget_verdicts(directory)
        return None
    rows = list(plan.verdicts)
    known = {verdict.place for verdict in rows}
    try:
        segments = {segment.base_offset: segment for segment in plan.segments}
        for finding in (*plan.findings, *_lost(plan)):
            segment = segments.get(finding.base)
            new = _verdict(context, facts, plan, finding, segment)
            if new is not None and new.place not in known:
                known.add(new.place)
                rows.append(new)
        del rows[VERDICTS_MAX:]
        if not rows or verdicts.fault:
            return None  # the system refuses, or the file says enough
        closed = verdicts.closed
        if metadata.clean and (closed is None or closed.size < -1):
            active = None if metadata.state is None else metadata.state.active
            closed = ClosedEnd.of(metadata.store_epoch, active)
        if tuple(rows) != verdicts.rows or closed != verdicts.closed:
            write_verdicts(directory, rows, closed)
            directory.unlink(CLOSED, missing_ok=True)
        else:
            mark_damaged(directory, is_damaged=True)
    except OSError as error:
        failed = storage_error(error, "record the damage of", directory.path)
        logger.warning(
            "%s. Nothing is appended to it; the store is not marked as closed", failed
        )
        return failed
    return None


def _lost(plan: Plan) -> Iterator[OpeningFinding]:
    """A finding for each lost segment, even if one finding covers several: each is
    remembered separately, in case others are put back."""
    lost = (segment.base_offset for segment in plan.segments if segment.is_lost)
    for base in itertools.islice(lost, VERDICTS_MAX):
        name = segment_file(base, LOG)
        message = "a segment file is gone"
        yield OpeningFinding(
            LOST_SEGMENT, name, message, 0, first_offset=base, base=base
        )


def _verdict(
    context: RecoveryContext,
    facts: Facts,
    plan: Plan,
    finding: OpeningFinding,
    segment: PlannedSegment | None,
) -> Verdict | None:
    """The verdict for a finding; None if the finding is not recorded."""
    is_damage = CASES[finding.label] == TAKES_NO_APPENDS
    if not is_damage or finding.label == UNREADABLE or finding.detail == UNREAD_VERDICT:
        return None
    base = finding.base
    if base < 0 and finding.name:
        return None  # a summary of many lost segments
    position = max(finding.position, 0)
    size, digest, end_position = 0, "", 0
    actual = facts.sizes.get(base, 0)
    if base in facts.sizes and isinstance(actual, int):
        name = segment_file(base, LOG)
        if name not in facts.names:
            name = finding.name
        end_position = max(actual, position + finding.size)
        size, digest = digest_at(context.directory, name, position, actual)
    elif segment is not None:
        end_position = segment.size
    return Verdict(
        finding.label,
        finding.detail,
        base,
        position,
        size,
        digest,
        max(finding.first_offset, 0),
        end_position,
        _end_offset(context, plan) if segment is None else segment.next_offset,
        _reason(context, plan, finding),
        getattr(sys.modules.get("logstore"), "__version__", ""),
        context.directory.files.now_ms(),
    )


def _end_offset(context: RecoveryContext, plan: Plan) -> int:
    """The end that the log must have had, if there is no segment that says it."""
    return max(plan.end_offset, context.metadata.recovery_point)


def _reason(context: RecoveryContext, plan: Plan, finding: OpeningFinding) -> str:
    """The reason of a finding, without its consequences."""
    damage, path = plan.damage, context.directory.path_of(finding.name)
    is_it = damage is not None and (damage.label, damage.path) == (finding.label, path)
    return damage.reason if damage is not None and is_it else finding.message
