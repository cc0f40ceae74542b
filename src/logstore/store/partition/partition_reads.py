"""Reads of one partition: each begins with a view of the log, taken at the call."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from logstore import _native as native
from logstore.errors import ConfigError, OffsetOutOfRangeError, RecordNotFoundError
from logstore.io.checkpoint.cuts import LogMark
from logstore.io.wakeups import INTERVAL_S_MIN
from logstore.log.follow.byte_ranges import ByteRanges, byte_ranges
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.read import reader
from logstore.log.read.damage import check_gap
from logstore.log.read.fetch import fetch
from logstore.log.read.options import ReadOptions
from logstore.record.arguments import (
    ISOLATIONS,
    Start,
    as_integer,
    as_items,
    as_offset,
    as_timeout,
    check_choice,
)
from logstore.record.batch import Chunk, RecordBatch
from logstore.record.extras import arrow_batches_module, frames_module
from logstore.record.record import Record
from logstore.segment import LOOKUP_BYTES, READ_BYTES
from logstore.store.partition.new_records import NewRecords
from logstore.store.partition.partition_views import PartitionViews, Turn, unchanged

if TYPE_CHECKING:
    import pyarrow

__all__ = ["PartitionReads"]


class PartitionReads:
    """The reads that a `Partition` is made of. `Topic` calls them, too
    (`partition.reads_of`). Any thread may call them.

    Each has the arguments and the errors of the method of `Partition`.
    """

    __slots__ = ("_views",)

    def __init__(self, views: PartitionViews) -> None:
        self._views = views

    def records(
        self, start: Start, stop: Start, options: ReadOptions, share: int = 1
    ) -> Iterator[Record]:
        """Same as `Partition.read`, as one of `share` simultaneous reads."""
        view, first, end, decoder = self._views.reading(
            start, stop, options, share=share
        )
        size = max(READ_BYTES // share, LOOKUP_BYTES)
        return reader.read_records(
            view, first, end, decoder, options=options, buffer_bytes=size
        )

    def record(self, offset: int, options: ReadOptions) -> Record:
        """See `Partition.get`."""

        def lookup() -> Record:
            view, first, end, decoder = self._views.reading(
                offset, None, options, to_stable=True
            )
            if first >= end:
                raise OffsetOutOfRangeError(
                    offset, view.start_offset, end, partition=self._views.name
                )
            runs = reader.read_columns(
                view, first, first + 1, decoder, buffer_bytes=LOOKUP_BYTES
            )
            # To its end: the next batch may show that this one has a wrong offset.
            records = [record for run in runs for record in native.decoded_records(run)]
            if not records:
                check_gap(view, offset)
                raise RecordNotFoundError(offset, partition=self._views.name)
            return records[0]

        return unchanged(lookup)

    def follow(
        self, start: Start, timeout: float | None, options: ReadOptions
    ) -> Iterator[Record]:
        """See `Partition.follow`."""
        turns = self._views.turns(start, options)
        runs = self._paused(turns, as_timeout(timeout))
        return reader.first_of(native.Flattened(runs), options.limit)

    def _paused(
        self, turns: Iterator[Iterator[Record] | Turn], timeout: float | None
    ) -> Iterator[Iterator[Record]]:
        """The runs of turns, with a pause after a turn without records."""
        views, last = self._views, time.monotonic()
        with closing(
            NewRecords(views.log.directory.root, INTERVAL_S_MIN)
        ) as new_records:
            for item in turns:
                if not isinstance(item, Turn):
                    yield item
                    continue
                if item.has_moved:
                    last = time.monotonic()
                    new_records.restart_pauses()
                    continue
                now = time.monotonic()
                remaining = None if timeout is None else timeout - (now - last)
                if remaining is not None and remaining <= 0:
                    return
                new_records.wait([views], remaining)

    def chunk(self, offset: int, max_bytes: int, options: ReadOptions) -> Chunk:
        """See `Partition.fetch`."""
        if type(max_bytes) is not int:
            max_bytes = as_integer("max_bytes", max_bytes, "a number of bytes (int)")
        if max_bytes < 1:
            raise ConfigError(
                f"max_bytes={max_bytes} is not positive",
                name="max_bytes",
                value=max_bytes,
            )
        if type(offset) is not int:
            offset = as_offset("offset", offset)

        def fetched() -> Chunk:
            policy = options.policy
            view, first, end, batch_filter = self._views.filtered(
                offset, None, options, to_stable=True
            )
            return fetch(
                view, first, end, max_bytes, policy=policy, batch_filter=batch_filter
            )

        chunk = unchanged(fetched)
        return chunk if options.limit is None else chunk.first(options.limit)

    def batches(
        self, start: Start, stop: Start, options: ReadOptions
    ) -> Iterator[RecordBatch]:
        """See `Partition.read_batches`."""
        view, first, end, batch_filter = self._views.filtered(start, stop, options)
        batches = reader.read_batches(
            view, first, end, policy=options.policy, batch_filter=batch_filter
        )
        return reader.first_batches(batches, options.limit, first)

    def arrow(
        self,
        start: Start,
        stop: Start,
        columns: Sequence[str],
        batch_records: int,
        options: ReadOptions,
        view: bool,
        threads: int,
        text: bool,
        json: Mapping[str, str] | None,
    ) -> pyarrow.RecordBatchReader:
        """See `Partition.read_arrow`."""
        arrow = arrow_batches_module()
        names = arrow.check_columns(as_items("columns", columns, of="names"))
        arrow.check_view(view)
        batch_records = as_integer("batch_records", batch_records, "a number (int)")
        if not 1 <= batch_records <= 1 << 24:
            raise ConfigError(
                f"batch_records={batch_records} is outside [1, {1 << 24}]",
                name="batch_records",
                value=batch_records,
            )
        if threads != 1:
            frames_module("stream").usable_threads(threads)
        if options.limit is not None or options.policy.asks:
            threads = 1
        if threads != 1 or text or json is not None:
            return frames_module("interchange").read_arrow(
                [self._views.log_of(start, stop, options)],
                names,
                batch_records,
                threads,
                options.limit,
                view=view,
                text=text,
                json=json,
            )
        log_view, first, end, decoder = self._views.reading(
            start, stop, options, with_headers="headers" in names
        )
        memory = arrow.Memory(view=view)
        runs = reader.read_columns(
            log_view,
            first,
            end,
            decoder,
            policy=options.policy,
            pool=memory.reads,
            keeps=memory.view,
        )
        runs = reader.first_columns(runs, options.limit)
        return arrow.reader_of(names, batch_records, memory, runs)

    def byte_ranges(self, start: int, stop: int, isolation: str) -> ByteRanges | None:
        """See `Partition.byte_ranges`."""
        check_choice("isolation", isolation, ISOLATIONS)
        views = self._views
        view = views.now(False)
        log = views.log
        if not isinstance(log, ReadOnlyLog):
            return None
        if isolation == "read_uncommitted":
            return byte_ranges(log, view, start, stop)
        return byte_ranges(log, view, start, stop, lambda: views.stable_of(view, start))

    def unchanged_below(self, mark: LogMark) -> int | None:
        """See `Partition.unchanged_below`."""
        history = self._views.history()
        if history is None:
            return None
        log_id, cuts = history
        if log_id != mark.log_id:
            return 0
        return (
            cuts.lowest_since(mark.serial) if cuts.is_known_since(mark.serial) else None
        )
