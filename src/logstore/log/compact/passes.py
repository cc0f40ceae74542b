"""One pass of a compaction: a map of keys, and the rewriting of all segments below its
end.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from typing import Final

from logstore import _native as native
from logstore.errors import DiskFullError, LogStoreError, StorageError, storage_error
from logstore.index import TxnEntry
from logstore.io.layout import OFFSET_MAX
from logstore.log.compact.batches import BUFFER_BYTES, BatchWalk
from logstore.log.compact.dry_log import DryContext
from logstore.log.compact.outcomes import LogOutcomes
from logstore.log.compact.output import Output
from logstore.log.compact.plan import (
    CompactionPlan,
    GroupLimits,
    SegmentFacts,
    groups,
)
from logstore.log.write.context import LogContext
from logstore.log.write.log_bounds import LogBounds
from logstore.log.write.replacement import Replacement
from logstore.segment import Segment

__all__ = ["BUFFERS_BYTES", "CutError", "Pass", "Steps", "CompactionWork"]

# This share of a group's space must be free in addition: batches may grow.
_SPARE: Final = 10
_MS: Final = 1_000_000
_AHEAD_MS: Final = 24 * 60 * 60 * 1000
# Of `max_memory`, for buffers and columns.
BUFFERS_BYTES: Final = 3 * BUFFER_BYTES

Steps = Generator[int, None, None]


class CutError(Exception):
    """The log was cut, or has lost segments, since it was looked at."""


class CompactionWork:
    """The state that the passes of one compaction share.

    Attributes:
        output: the segment that is being written.
        replacement: replaces segments; None: nothing is changed.
        removed, tombstones: records that were removed, and those without a value.
        saved: bytes that the log is smaller by.
        memory: bytes of memory that were taken, at the most.
        replaced: base offsets of the segments that were replaced, or would be.
    """

    def __init__(
        self,
        context: LogContext | DryContext,
        *,
        max_memory: int,
        decompressed_max: int,
        now_ms: int,
        is_clock: bool,
        replacement: Replacement | None,
    ) -> None:
        self.context = context
        self.directory = context.directory
        self.max_memory = max_memory
        self.decompressed_max = decompressed_max
        self.now_ms = now_ms
        self.is_clock = is_clock
        self.replacement = replacement
        # One for all passes: it decides which class a key is in.
        self.secret = os.urandom(native.SECRET_BYTES)
        self.output: Output | None = None
        self.memory = 0
        self.replaced: set[int] = set()
        self.begin_count()

    def begin_count(self) -> None:
        """Nothing was removed so far."""
        self.removed = self.tombstones = self.saved = 0

    def count(
        self,
        before: native.CompactedCounts,
        now: native.CompactedCounts,
        saved: int,
        segments: Sequence[Segment],
    ) -> None:
        """Some segments were rewritten."""
        self.removed += now.removed - before.removed
        self.tombstones += now.tombstones - before.tombstones
        self.saved += saved
        self.replaced.update(segment.base_offset for segment in segments)


class Pass:
    """One map, and the rewriting of all segments below its end.

    Attributes:
        end: all offsets below it are compacted by this pass.
        needed_end: its decisions hold as long as nothing was cut below this offset,
            which is `end` or more: a full map also has some of the keys after `end`,
            and later markers decide about the transactions below it.
    """

    def __init__(
        self,
        work: CompactionWork,
        bounds: LogBounds,
        facts: Sequence[SegmentFacts],
        decided: CompactionPlan,
        outcomes: LogOutcomes,
        classes: tuple[int, int] = (1, 0),
    ) -> None:
        """Args:
        classes: into how many classes the keys are divided, and the number of the
            one that this pass is about.
        """
        self._work = work
        self._bounds = bounds
        self._facts = facts
        self._decided = decided
        self._aborted = outcomes.aborted
        self.end = decided.first_dirty
        self.needed_end = max(decided.end, outcomes.end)
        config = work.context.config
        horizon_ms = min(work.now_ms + config.delete_retention_ms, OFFSET_MAX)
        core = native.Compaction(
            native.OffsetMap(
                decided.first_dirty,
                # No more keys than offsets. One class may have more than its share.
                decided.end - decided.first_dirty,
                work.max_memory - BUFFERS_BYTES,
                work.secret,
                classes=classes[0],
                class_number=classes[1],
            ),
            outcomes.native,
            now_ms=self._removal_ms(),
            horizon_ms=horizon_ms,
        )
        self._core = core
        self._walk = BatchWalk(core, config, work.decompressed_max)

    def _removal_ms(self) -> int:
        """The time by which delete horizons have passed. If the clock is more than a
        day ahead of every file of the log, it may be wrong: then the time of the newest
        file. A tombstone that stays for longer does no harm."""
        now_ms = self._work.now_ms
        if not self._facts:
            return now_ms
        newest_ms = max(f.modified_ns for f in self._facts) // _MS
        is_ahead = self._work.is_clock and now_ms - newest_ms > _AHEAD_MS
        return newest_ms if is_ahead else now_ms

    def _sealed(self) -> list[Segment]:
        """The segments that may be compacted."""
        return [
            s for s in self._bounds.segments[:-1] if s.next_offset <= self._decided.end
        ]

    def map_keys(self) -> Generator[int, None, bool]:
        """Map the keys of the dirty segments. Returns False if they are too many: the
        pass ends before the first that did not fit."""
        for segment in self._sealed():
            if segment.next_offset <= self._decided.first_dirty:
                continue
            is_in = yield from self._walk.map_segment(segment)
            self._note_memory()
            if not is_in:
                self.end = self._core.map.end_offset
                if (
                    self.end <= self._decided.first_dirty
                    and self._work.replacement is not None
                ):
                    raise StorageError(
                        f"a batch of {self._work.context.name} at offset {self.end} "
                        f"has more keys than max_memory={self._work.max_memory} has "
                        f"room for. Nothing was replaced",
                        path=segment.path,
                        action="compact",
                    )
                return False
        self._core.map.reached(self._decided.end)
        self.end = self._core.map.end_offset
        return True

    def _note_memory(self) -> None:
        self._work.memory = max(self._work.memory, self._walk.memory_bytes)

    # ------------------------------------------------------------ groups

    def rewrite_all(self) -> Steps:
        """Rewrite the segments below the end of the map."""
        config = self._work.context.config
        facts = [
            f
            for f in self._facts[:-1]
            if f.base_offset < self.end and f.next_offset <= self._decided.end
        ]
        limits = GroupLimits(config.segment_bytes, config.segment_index_bytes)
        by_base = {s.base_offset: s for s in self._bounds.segments}
        legacy_ms = self._legacy_horizon_ms(config.delete_retention_ms)
        grouped = groups(facts, limits)
        if self._work.replacement is not None:
            self._check_room(max((_size(group) for group in grouped), default=0))
        for group in grouped:
            segments = [by_base[f.base_offset] for f in group]
            yield from self._rewrite(group, segments, legacy_ms)

    def _legacy_horizon_ms(self, retention_ms: int) -> int:
        """Tombstones of magic 0 and 1 in files that were changed later than this stay:
        that time before the last change of the last clean segment."""
        clean = [f for f in self._facts if f.base_offset < self._decided.first_dirty]
        return clean[-1].modified_ns // _MS - retention_ms if clean else 0

    def _check_room(self, size: int) -> None:
        """Raise `DiskFullError` if a group of this size, and a tenth, has no room."""
        needed = size + size // _SPARE
        directory, context = self._work.directory, self._work.context
        assert isinstance(context, LogContext)  # not in a dry run
        floor = context.services.store_config.min_free_bytes
        try:
            free = directory.free_bytes()
        except OSError as error:
            raise storage_error(error, "examine", directory.path) from error
        if free - needed < floor:
            rule = f" and min_free_bytes={floor} must stay free" if floor else ""
            raise DiskFullError(
                f"cannot compact {context.name}: a new segment may take {needed} "
                f"bytes, and {free} are free{rule}. No segment was replaced.",
                path=directory.path,
                action="compact",
            )

    def _rewrite(
        self,
        group: Sequence[SegmentFacts],
        segments: Sequence[Segment],
        legacy_ms: int,
    ) -> Steps:
        """Write the remaining records of a group into one segment, and replace the
        group by it."""
        work, core = self._work, self._core
        before = core.counts
        if work.replacement is None:
            written = _Counter()
            yield from self._filter(group, segments, legacy_ms, written.write)
            if len(group) > 1 or _has_changed(before, core.counts):
                work.count(before, core.counts, _size(group) - written.size, segments)
            return
        self._check_room(_size(group))
        directory, config = work.directory, work.context.config
        try:
            output = work.output = Output(
                directory, group[0].base_offset, config.index_interval_bytes
            )
            yield from self._filter(group, segments, legacy_ms, output.write)
            if len(group) == 1 and not _has_changed(before, core.counts):
                output.discard()
                work.output = None
                return
            new = output.finish(group[-1].modified_ns, self._aborted_in(group))
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(
                error, "compact", directory.path, "No segment was replaced."
            ) from error
        if not work.replacement.swap(self._bounds, segments, new, self.needed_end):
            raise CutError
        work.output = None
        work.count(before, core.counts, _size(group) - new.size, segments)

    def _filter(
        self,
        group: Sequence[SegmentFacts],
        segments: Sequence[Segment],
        legacy_ms: int,
        write: Callable[[memoryview | bytes], None],
    ) -> Steps:
        for facts, segment in zip(group, segments, strict=True):
            self._core.keep_tombstones(facts.modified_ns // _MS > legacy_ms)
            yield from self._walk.filter_segment(segment, write)
            self._note_memory()

    def _aborted_in(self, group: Sequence[SegmentFacts]) -> list[TxnEntry]:
        """The aborted transactions whose markers are in a group."""
        begin, end = group[0].base_offset, group[-1].next_offset
        return [e for e in self._aborted if begin <= e.last_offset < end]


class _Counter:
    """Counts the bytes of a dry run."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: memoryview | bytes) -> None:
        self.size += len(data)


def _size(group: Sequence[SegmentFacts]) -> int:
    return sum(facts.size for facts in group)


def _has_changed(before: native.CompactedCounts, now: native.CompactedCounts) -> bool:
    """Whether a group has changed."""
    return now != before._replace(records=now.records)
