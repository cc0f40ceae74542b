"""Compaction, truncation and retention of one partition: at a call, and in the
background."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from logstore.config import TopicConfig, check_int
from logstore.errors import UnsupportedError, storage_error, storage_errors
from logstore.io.layout import DAMAGED, OFFSET_MAX, TopicPartition
from logstore.log import retention
from logstore.log.compact.compactor import (
    CompactionOptions,
    CompactionReport,
    check_compaction,
    compact,
)
from logstore.log.compact.dry_log import DryLog
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.read import reader
from logstore.log.read.view import View, slot_of
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import as_integer, as_items
from logstore.store.partition.partition_views import PartitionViews, infos_of

__all__ = ["COMPACTION_BYTES", "PartitionUpkeep"]

# For the keys and the buffers of a compaction, by default.
COMPACTION_BYTES: Final = 64 << 20


class PartitionUpkeep:
    """Changes to a partition other than appends, for `Partition` and for the background
    of its store. Made for one call."""

    __slots__ = ("_begin", "_config", "_log", "_stable", "_views", "_writer")

    def __init__(
        self,
        log: PartitionWriter | ReadOnlyLog,
        config: TopicConfig,
        views: PartitionViews,
        begin: Callable[[], None],
        stable: Callable[[], int],
    ) -> None:
        self._log, self._config, self._views = log, config, views
        self._writer = log if isinstance(log, PartitionWriter) else None
        # Checks that the store can be used.
        self._begin = begin
        # The last stable offset.
        self._stable = stable

    # ------------------------------------------------------------ compaction

    def compact(
        self, options: CompactionOptions, log: PartitionWriter | None
    ) -> CompactionReport:
        """See `Partition.compact`.

        Args:
            log: None: of a store that was opened read-only, as a dry run.
        """
        if log is not None:
            return compact(log, options)
        self._begin()
        directory = self._log.directory
        key = TopicPartition(self._views.topic, self._views.number)
        with storage_errors("read", directory.path):
            dry = DryLog(directory, key, self._config, self._views.refreshed_bounds)
        return compact(dry, options)

    def compact_due(self) -> None:
        """Compact it if its settings ask for it: an error is for the next call of a
        user."""
        self._views.check_alive()
        check_compaction(self._config, self._views.name, COMPACTION_BYTES, None)
        assert self._writer is not None
        compact(self._writer, self.compaction(COMPACTION_BYTES, None))

    def compaction(self, max_memory: int, now_ms: int | None) -> CompactionOptions:
        """How a log is compacted if its settings ask for it."""
        return CompactionOptions(
            force=False,
            max_memory=max_memory,
            max_bytes_per_s=None,
            now_ms=self._now_ms(now_ms),
            is_clock=now_ms is None,
            dry_run=False,
            stable=self._stable,
            decompressed_max=self._views.decompressed_max,
        )

    # ------------------------------------------------------------ truncation

    def truncate_to(
        self, writer: PartitionWriter, offset: int, reason: str = "asked for"
    ) -> int:
        """Same as `Partition.truncate_to`, with the reason to record."""

        def find() -> tuple[int, int] | None:
            view = self._views.now(False)
            view.check(offset)
            return None if offset == view.end_offset else self._boundary(view, offset)

        return writer.truncate_to(offset, find, reason)

    def _boundary(self, view: View, offset: int) -> tuple[int, int]:
        """(index of the segment, position) at which the batch of `offset` begins."""
        for batch in reader.read_batches(view, offset, view.end_offset):
            if batch.base_offset < offset:
                raise UnsupportedError(
                    f"{self._views.name} cannot be truncated to {offset}: it is "
                    f"inside the batch of offsets {batch.base_offset} to "
                    f"{batch.last_offset}. The nearest possible offsets are "
                    f"{batch.base_offset} and {batch.next_offset}",
                    offset=offset,
                )
            return slot_of(view.segments, batch.base_offset), batch.position
        # In the gap that an earlier cut has left at the end.
        return len(view.segments) - 1, view.segments[-1].size

    # ------------------------------------------------------------ retention

    def apply_retention(
        self,
        now_ms: int | None,
        policies: Sequence[retention.RetentionPolicy] | None,
        *,
        dry_run: bool,
    ) -> list[retention.SegmentDeletion]:
        """See `Partition.apply_retention`."""
        if policies is None:
            policies = retention.policies_of(self._config)
        else:
            policies = list(as_items("policies", policies, of="RetentionPolicy"))
        return self._retain(self._now_ms(now_ms), policies, dry_run)

    def apply_due_retention(self) -> None:
        """Apply the retention of the settings. If nothing can be due, it examines only
        the oldest segment."""
        self._views.check_alive()
        segments, now_ms = self._views.refreshed().segments, self._now_ms(None)
        policies = retention.policies_of(self._config)
        if policies and segments:
            oldest = segments[0].info(
                segments[0].next_offset, is_active=len(segments) == 1
            )
            size = sum(segment.size for segment in segments)
            if retention.may_be_due(self._config, oldest, size, now_ms):
                self._retain(now_ms, policies, False)

    def _retain(
        self,
        now_ms: int,
        policies: Sequence[retention.RetentionPolicy],
        dry_run: bool,
    ) -> list[retention.SegmentDeletion]:
        bounds, writer = self._views.refreshed(), self._writer
        infos = infos_of(bounds.segments, bounds.end_offset)
        del bounds  # it would keep the files of a topic that is deleted meanwhile
        try:
            free_bytes = self._log.free_bytes()
        except OSError as error:
            # A finalizer, or another thread, may have deleted the topic meanwhile.
            self._views.check_alive()
            path = self._log.directory.path
            raise storage_error(error, "check the free space of", path) from error
        # A reader relies on the verdicts that an opening for writing has recorded.
        is_damaged = (
            self._log.directory.exists(DAMAGED)
            if writer is None
            else writer.health.damage is not None
        )
        deletions = retention.plan(
            self._views.number,
            infos,
            policies,
            now_ms,
            free_bytes,
            keeps_active=is_damaged,
        )
        if deletions and writer is not None and not dry_run:
            start = self._views.refreshed().start_offset
            last = deletions[-1]
            writer.delete_before(max(last.segment.next_offset, start), last.reason)
        return deletions

    def _now_ms(self, now_ms: int | None) -> int:
        if now_ms is None:
            return self._log.directory.files.now_ms()
        now_ms = as_integer("now_ms", now_ms, "milliseconds (int)")
        check_int("now_ms", now_ms, 0, OFFSET_MAX)
        return now_ms
