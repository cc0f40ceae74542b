"""Decides how far a log is compacted, whether it is worth it, and in which groups.

All rules are the same as in Kafka's cleaner (docs/compaction.md). Nothing here reads a
file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from logstore.config import TopicConfig
from logstore.io.layout import OFFSET_MAX

__all__ = ["CompactionPlan", "GroupLimits", "SegmentFacts", "groups", "plan"]

# Offsets in an index are relative to the base of their segment, in 31 bits.
_RELATIVE_MAX: Final = (1 << 31) - 1


class SegmentFacts(NamedTuple):
    """A segment, for the decision.

    Attributes:
        base_offset, next_offset: of its name; of the next segment.
        size, index_bytes, time_index_bytes: of its files.
        largest_ms: largest timestamp of its records; without timestamps, the time of
            the last change of the file. Only determined if it decides.
        first_ms: largest timestamp of its first batch; 0 or less: unknown.
        modified_ns: time of the last change of its log, in ns since 1970.
    """

    base_offset: int
    next_offset: int
    size: int
    index_bytes: int = 0
    time_index_bytes: int = 0
    largest_ms: int = -1
    first_ms: int = -1
    modified_ns: int = 0


class CompactionPlan(NamedTuple):
    """The decision about a log.

    Attributes:
        first_dirty: the first offset that was not compacted yet.
        end: the first offset that must not be compacted: the base of a segment.
        clean_bytes, dirty_bytes: of the segments before `first_dirty`, and from there
            to `end`.
        is_due: the settings ask for it.
        has_moved: the checkpoint of the first dirty offset was not valid.
    """

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    is_due: bool
    has_moved: bool

    @property
    def dirty_ratio(self) -> float:
        """The share of the dirty bytes; 0.0 without any bytes."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0


def plan(
    segments: Sequence[SegmentFacts],
    *,
    checkpoint: int | None,
    start: int,
    end: int,
    stable: int,
    config: TopicConfig,
    now_ms: int,
) -> CompactionPlan:
    """Decide about a log.

    Args:
        segments: of the log, in order; the last one is active.
        checkpoint: the first dirty offset after the last compaction; None: the log was
            never compacted.
        start, end: of the log; `end` is lower during a publication.
        stable: the last stable offset.
        now_ms: wall clock, Unix milliseconds.
    """
    first_dirty = start if checkpoint is None else checkpoint
    is_valid = start <= first_dirty <= end
    first_dirty = first_dirty if is_valid else start
    sealed = segments[:-1]
    dirty = [s for s in sealed if s.next_offset > first_dirty]
    bound = min(stable, end, segments[-1].base_offset if segments else start)
    if config.min_compaction_lag_ms > 0:
        young = now_ms - config.min_compaction_lag_ms
        bound = min(
            bound, next((s.base_offset for s in dirty if s.largest_ms > young), bound)
        )
    # Whole segments only: the one that the bound lies in stays.
    last = first_dirty
    dirty_bytes = 0
    for segment in dirty:
        if segment.next_offset > bound:
            break
        last, dirty_bytes = segment.next_offset, dirty_bytes + segment.size
    clean_bytes = sum(s.size for s in segments if s.base_offset < first_dirty)
    decided = CompactionPlan(
        first_dirty, last, clean_bytes, dirty_bytes, False, not is_valid
    )
    is_due = decided.dirty_ratio > config.min_cleanable_dirty_ratio
    oldest = min((s.first_ms for s in dirty if s.first_ms > 0), default=OFFSET_MAX)
    is_late = oldest < now_ms - config.max_compaction_lag_ms
    return decided._replace(is_due=dirty_bytes > 0 and (is_due or is_late))


class GroupLimits(NamedTuple):
    """The limits of a new segment, in bytes."""

    segment_bytes: int
    index_bytes: int


def groups(
    segments: Iterable[SegmentFacts], limits: GroupLimits
) -> list[list[SegmentFacts]]:
    """The segments in groups; each becomes one segment.

    Sizes are the sizes of the old files, and at most 2^31 - 1 offsets lie between the
    first base and the last offset.
    """
    result: list[list[SegmentFacts]] = []
    size = index = times = 0
    for segment in segments:
        fits = bool(result) and (
            size + segment.size <= limits.segment_bytes
            and index + segment.index_bytes <= limits.index_bytes
            and times + segment.time_index_bytes <= limits.index_bytes
            and (
                segment.size == 0
                or segment.next_offset - 1 - result[-1][0].base_offset <= _RELATIVE_MAX
            )
        )
        if fits:
            result[-1].append(segment)
        else:
            result.append([segment])
            size = index = times = 0
        size += segment.size
        index += segment.index_bytes
        times += segment.time_index_bytes
    return result
