"""A partition as its readers see it: `Partition` (partition.py) adds what writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NoReturn

from logstore import _native as native
from logstore.config import check_kind
from logstore.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    RecordNotFoundError,
)
from logstore.io.checkpoint.cuts import LogMark
from logstore.io.wakeups import INTERVAL_S_MIN
from logstore.log.follow.byte_ranges import ByteRanges, byte_ranges
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.frames.log import Log
from logstore.log.read import reader
from logstore.log.read.corruption import OnCorruption
from logstore.log.read.fetch import fetch
from logstore.log.read.options import ReadOptions
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import (
    ISOLATIONS,
    Start,
    Time,
    as_integer,
    as_items,
    as_limit,
    as_offset,
    as_time_ms,
    as_timeout,
    check_choice,
    refuse_pickling,
)
from logstore.record.batch import Chunk, RecordBatch
from logstore.record.extras import arrow_batches_module, frames_module
from logstore.record.record import Record
from logstore.segment import LOOKUP_BYTES, READ_BYTES, SegmentInfo

if TYPE_CHECKING:
    import pyarrow

    from logstore.config import TopicConfig

from logstore.store.partition.arrow_source import ArrowSource
from logstore.store.partition.new_records import NewRecords
from logstore.store.partition.partition_views import (
    PartitionViews,
    Turn,
    infos_of,
    unchanged,
)

__all__ = ["ReadablePartition"]


class ReadablePartition(ArrowSource):
    """What can be read of one partition.

    Attributes:
        config: the settings of its topic.
        topic_id: distinguishes the topics that have had its name; "" for one without an
            id.
    """

    _COLUMNS = ("offset", "timestamp", "key", "value")

    def __init__(
        self,
        topic: str,
        number: int,
        config: TopicConfig,
        log: PartitionWriter | ReadOnlyLog,
        guard: Callable[[], None],
        decompressed_max: int,
        topic_id: str = "",
        begin: Callable[[], None] | None = None,
    ) -> None:
        self.config = config
        self.topic_id = topic_id
        self._log = log
        self._writer = log if isinstance(log, PartitionWriter) else None
        # As the guard, for calls that write: it also raises what failed in the
        # background.
        self._begin = begin or guard
        self._views = PartitionViews(topic, number, log, guard, decompressed_max)

    def __repr__(self) -> str:
        return f"<logstore.Partition {self._views.name} at {self.path}>"

    def __len__(self) -> int:
        """The number of offsets between its start and its end: the number of its
        records, unless compaction or transactions have left gaps."""
        log = self._views.refreshed()
        return max(log.end_offset - log.start_offset, 0)

    def __bool__(self) -> bool:
        """True, also for an empty partition."""
        return True

    def __reduce__(self) -> NoReturn:
        name = f"{self._views.topic!r})[{self._views.number}]"
        refuse_pickling(self, os.path.dirname(self.path), f".topic({name}")

    @property
    def topic(self) -> str:
        """Name of its topic."""
        return self._views.topic

    @property
    def number(self) -> int:
        """Its number in the topic, from 0."""
        return self._views.number

    @property
    def name(self) -> str:
        """``topic-number``, the name of its directory."""
        return self._views.name

    @property
    def path(self) -> str:
        """Absolute path of its directory."""
        return self._log.directory.path

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""
        return self._views.refreshed().start_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be assigned; during a publication, the first one that it
        assigns."""
        return self._views.refreshed().end_offset

    @property
    def durable_offset(self) -> int:
        """Every record below it is on stable storage: it survives a power failure."""
        return self._views.durable_offset()

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Its segments, oldest first; the last one is active."""
        log = self._views.refreshed()
        return infos_of(log.segments, log.end_offset)

    def mark(self) -> LogMark | None:
        """Identifies the log as it is now. Keep it with offsets that were read, and
        pass it to `unchanged_below` later, in any process.

        None if the cuts of the log are not recorded: this is so for the log of a
        broker, for one that an earlier version wrote last, and for one that is new and
        not synced yet.
        """
        history = self._views.history()
        return None if history is None else LogMark(history[0], history[1].serial)

    def unchanged_below(self, mark: LogMark) -> int | None:
        """The offset below which the log is what it was at the time of a mark, apart
        from records deleted at its start. It may have been cut there since, and have
        grown again. 0: it is another log.

        None if this is unknown: the log has been cut more than thirty times since, or
        its cuts are no longer recorded.
        """
        check_kind("mark", mark, LogMark)
        history = self._views.history()
        if history is None:
            return None
        log_id, cuts = history
        if log_id != mark.log_id:
            return 0
        return (
            cuts.lowest_since(mark.serial) if cuts.is_known_since(mark.serial) else None
        )

    def read(
        self,
        start: Start = None,
        stop: Start = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Iterator[Record]:
        """The records from `start` up to `stop` (exclusive), in order.

        Works on the log as it is at the call: it ends at the end that the log has then,
        and a deletion meanwhile does not affect it.

        Args:
            start, stop: an offset; a time (the first record at or after it): a
                `datetime`, a `date` or an ISO 8601 text, in local time if it has no
                zone; None: the start of the log, and its end.
            durable_only: stop at `durable_offset`.
            isolation: ``"read_committed"`` leaves out aborted transactions and stops at
                the first one that is still open. Control records are never delivered.
            on_corruption: ``"skip"`` leaves out damaged data. A function is called with
                a `Damaged` for each part that cannot be read, in the order of the
                offsets, in this thread; True leaves it out, False raises its error.
                An exception of the function ends the read.
            limit: end after this many records; None: any number.

        Raises:
            OffsetOutOfRangeError, TypeError, ConfigError: at the call.
            CorruptRecordError: after every record before the damage. A read that begins
                at the error's ``next_offset`` continues after the damage.
        """
        options = ReadOptions.of(durable_only, isolation, on_corruption)
        return self._read(start, stop, options, limit)

    def _read(
        self,
        start: Start,
        stop: Start,
        options: ReadOptions,
        limit: int | None,
        share: int = 1,
    ) -> Iterator[Record]:
        """As `read`, as one of `share` reads at the same time."""
        limit = as_limit(limit)
        view, first, end = self._views.bounds(start, stop, options)
        decoder = self._views.decoder(view, first, options, limit=limit, share=share)
        size = max(READ_BYTES // share, LOOKUP_BYTES)
        records = reader.read_records(
            view, first, end, decoder, policy=options.policy, buffer_bytes=size
        )
        return reader.first_of(records, limit)

    def get(
        self,
        offset: int,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
    ) -> Record:
        """The record at an offset; the fast way to a single one.

        Raises:
            OffsetOutOfRangeError: outside [start_offset, end_offset).
            RecordNotFoundError: in a gap that compaction left, at a marker of a
                transaction, or, with ``"read_committed"``, in one that was aborted.
            CorruptRecordError: it is damaged.
        """
        if type(offset) is not int:
            offset = as_offset("offset", offset)
        if isolation == "read_uncommitted":
            record = self._views.find(offset, durable_only)
            if record is not None:
                return record
        options = ReadOptions.of(durable_only, isolation)

        def lookup() -> Record:
            view, first, end = self._views.bounds(offset, None, options, to_stable=True)
            if first >= end:
                raise OffsetOutOfRangeError(
                    offset, view.start_offset, end, partition=self._views.name
                )
            decoder = self._views.decoder(view, first, options, limit=1)
            records = reader.read_records(
                view, first, first + 1, decoder, buffer_bytes=LOOKUP_BYTES
            )
            # To its end: the next batch may show that this one has a wrong offset.
            for record in list(records):
                return record
            raise RecordNotFoundError(offset, partition=self._views.name)

        return unchanged(lookup)

    def follow(
        self,
        start: Start = None,
        timeout: float | None = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Iterator[Record]:
        """Like `read`, followed by the records appended later, by any process.

        Args:
            start: an offset, a time, or None: the start of the log.
                ``p.end_offset`` follows only what is new.
            timeout: end after this many seconds without a record; None: never.
            others: as in `read`.

        Raises: as `read`; `OffsetOutOfRangeError` when the next offset to read was
        deleted or truncated meanwhile; `StoreClosedError` when the store is closed;
        `TopicNotFoundError` when the topic was deleted, or, in another process,
        `PartitionNotFoundError`.
        """
        options = ReadOptions.of(durable_only, isolation, on_corruption)
        turns = self._views.turns(start, options)
        runs = self._follow(turns, as_timeout(timeout))
        return reader.first_of(native.Flattened(runs), as_limit(limit))

    def _follow(
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

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Chunk:
        """The records of one buffer: whole batches from the one that holds `offset`.

        A buffer of `max_bytes` is filled from the file; a batch that extends past its
        end is left for the next call. If the first batch is larger, the buffer is as
        large as that. With `limit`, iterating gives at most `limit` records, and
        `next_offset` is the offset after them; `buffer` still holds whole batches.

        Returns a `Chunk`, empty at the end of the log.

        Raises:
            OffsetOutOfRangeError, CorruptRecordError.
        """
        max_bytes = as_integer("max_bytes", max_bytes, "a number of bytes (int)")
        if max_bytes < 1:
            raise ConfigError(
                f"max_bytes={max_bytes} is not positive",
                name="max_bytes",
                value=max_bytes,
            )
        offset, limit = as_offset("offset", offset), as_limit(limit)
        options = ReadOptions.of(durable_only, isolation, on_corruption)

        def fetched() -> Chunk:
            view, first, end = self._views.bounds(offset, None, options, to_stable=True)
            chunk = fetch(
                view,
                first,
                end,
                max_bytes,
                policy=options.policy,
                batch_filter=self._views.batch_filter(view, first, options),
            )
            return chunk if limit is None else chunk.first(limit)

        return unchanged(fetched)

    def read_batches(
        self,
        start: Start = None,
        stop: Start = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Iterator[RecordBatch]:
        """The batches as they are on disk; the first one holds `start`.

        Control batches are among them, unless ``isolation="read_committed"``, which
        also leaves out those of aborted transactions. With `limit`, the last batch is
        the one that holds the last of the `limit` records. Raises: as `read`.
        """
        limit = as_limit(limit)
        options = ReadOptions.of(durable_only, isolation, on_corruption)
        view, first, end = self._views.bounds(start, stop, options)
        batch_filter = self._views.batch_filter(view, first, options)
        batches = reader.read_batches(
            view, first, end, policy=options.policy, batch_filter=batch_filter
        )
        return reader.first_batches(batches, limit, first)

    def read_arrow(
        self,
        start: Start = None,
        stop: Start = None,
        columns: Sequence[str] = ("offset", "timestamp", "key", "value"),
        batch_records: int = 65536,
        *,
        view: bool = False,
        threads: int = 1,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> pyarrow.RecordBatchReader:
        """The records as a ``pyarrow.RecordBatchReader``.

        Args:
            start, stop, durable_only, isolation, on_corruption, limit: as in `read`.
            columns: which, of offset (int64), timestamp (timestamp[ms, UTC], null in
                magic 0), key, value (binary), timestampType (int32), headers
                (list<struct<key: string, value: binary>>).
            batch_records: records in each batch, at most. It ends sooner if its keys
                or its values would have more than 8 MiB.
            view: keys and values as ``binary_view``, without a copy: they point into
                the bytes that were read. A batch may then be smaller. As long as any
                part of it is in use, it keeps these bytes in memory, up to 6 MiB.
            threads: how many read at the same time, 1 to 64; the order stays the same.
                With `limit`, or a function as `on_corruption`, one reads.

        Raises: as `read`; damage is raised after the batches before it.
        """
        arrow = arrow_batches_module()
        names = arrow.check_columns(as_items("columns", columns, of="names"))
        limit = as_limit(limit)
        arrow.check_view(view)
        batch_records = as_integer("batch_records", batch_records, "a number (int)")
        if not 1 <= batch_records <= 1 << 24:
            raise ConfigError(
                f"batch_records={batch_records} is outside [1, {1 << 24}]",
                name="batch_records",
                value=batch_records,
            )
        options = ReadOptions.of(durable_only, isolation, on_corruption)
        if threads != 1:
            frames_module("stream").usable_threads(threads)
            if limit is None and not options.policy.asks:
                log = self._views.log_of(start, stop, options)
                interchange = frames_module("interchange")
                return interchange.read_arrow(
                    [log], names, batch_records, threads, view=view
                )
        log_view, first, end = self._views.bounds(start, stop, options)
        decoder = self._views.decoder(
            log_view, first, options, with_headers="headers" in names, limit=limit
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
        runs = reader.first_columns(runs, limit)
        return arrow.reader_of(names, batch_records, memory, runs)

    def byte_ranges(
        self, start: int, stop: int, *, isolation: str = "read_uncommitted"
    ) -> ByteRanges | None:
        """Where in the files the records start <= offset < stop are, for a reader in
        another process or language (docs/spark.md, "How the reader in Java works").

        None if there are not all of them in the log as it is now, or if the store was
        not opened with ``read_only``.

        Args:
            isolation: with ``read_committed``, the result also has what became of the
                transactions in the range, and the log is read as far as necessary.
        """
        views = self._views
        check_choice("isolation", isolation, ISOLATIONS)
        view = views.now(False)
        log = self._log
        if not isinstance(log, ReadOnlyLog):
            return None
        if isolation == "read_uncommitted":
            return byte_ranges(log, view, start, stop)
        return byte_ranges(log, view, start, stop, lambda: views.stable_of(view, start))

    def _logs_now(self, options: ReadOptions) -> list[Log]:
        return [self._views.log_of(None, None, options)]

    def _table_name(self) -> str:
        return self._views.name

    def offset_for_time(self, timestamp_ms: int | Time) -> int | None:
        """The first offset whose record has a timestamp at or after this; None: none.

        "First" by offset: timestamps need not rise along the log.

        Args:
            timestamp_ms: Unix milliseconds, or a time as in `read`.
        """
        return self._views.offset_for_time(as_time_ms("timestamp_ms", timestamp_ms))

    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, or the end (Kafka's LSO)."""
        return unchanged(lambda: self._views.stable_of(self._views.now(False), 0))
