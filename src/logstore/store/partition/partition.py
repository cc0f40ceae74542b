"""A partition: the open log that users append to and read from."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from logstore.config import check_kind
from logstore.io.checkpoint.cuts import LogMark
from logstore.log import retention
from logstore.log.compact.compactor import (
    CompactionProgress,
    CompactionReport,
    check_compaction,
)
from logstore.log.follow.byte_ranges import ByteRanges
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.frames.log import Log
from logstore.log.read.corruption import OnCorruption
from logstore.log.read.options import ReadOptions
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import (
    Start,
    Time,
    as_offset,
    as_time_ms,
    refuse_pickling,
)
from logstore.record.batch import Chunk, RecordBatch
from logstore.record.encoder import pack_rows
from logstore.record.extras import arrow_module
from logstore.record.record import Record
from logstore.segment import SegmentInfo
from logstore.store.partition.arrow_source import ArrowSource
from logstore.store.partition.partition_reads import PartitionReads
from logstore.store.partition.partition_upkeep import COMPACTION_BYTES, PartitionUpkeep
from logstore.store.partition.partition_views import (
    PartitionViews,
    infos_of,
    unchanged,
)
from logstore.store.partition.shared_appends import Appends, HandInCalls, appends_to

if TYPE_CHECKING:
    import pyarrow
    from _typeshed import ReadableBuffer

    from logstore.config import TopicConfig

__all__ = ["Partition", "appends_of", "reads_of", "upkeep_of"]


class Partition(ArrowSource):
    """One partition of a topic: an append-only log of records.

    Made by `Store`, never by hand. Any number of threads may use it at once.

    Attributes:
        config: the settings of its topic. If `Topic.configure` raised an error that
            says so: the ones before.
        topic_id: distinguishes topics that have had its name; "" for one without an id.
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
        hand_in: HandInCalls | None = None,
    ) -> None:
        self.config = config
        self.topic_id = topic_id
        self._log = log
        self._writer = log if isinstance(log, PartitionWriter) else None
        # As the guard, for calls that write: it also raises what failed in the
        # background.
        self._begin = begin or guard
        self._views = PartitionViews(topic, number, log, guard, decompressed_max)
        self._reads = PartitionReads(self._views)
        self._appends = appends_to(
            log, self._views, config, topic_id, self._begin, hand_in
        )
        self._prepared = self._appends.short
        self._append_prepared = self._prepared.append
        self._append_durable = self._appends.append_durable

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
        """Identifies the current state of the log. Keep it with offsets that were read,
        and pass it to `unchanged_below` later, in any process.

        None if the cuts of the log are not recorded: for the log of a broker, for a log
        that an earlier version wrote last, and for a new log that is not synced yet.
        """
        history = self._views.history()
        return None if history is None else LogMark(history[0], history[1].serial)

    def unchanged_below(self, mark: LogMark) -> int | None:
        """The offset below which the log is unchanged since the time of a mark, apart
        from records deleted at its start. It may have been cut there since, and have
        grown again. 0: it is another log.

        None if unknown: it was cut more than thirty times since, or no cut is recorded.
        """
        check_kind("mark", mark, LogMark)
        return self._reads.unchanged_below(mark)

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

        Works on the log at the time of the call: it stops at the end that the log has
        then, and a deletion meanwhile does not affect it.

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
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        return self._reads.records(start, stop, options)

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
        options = ReadOptions.of(durable_only, isolation, limit=1)
        return self._reads.record(offset, options)

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
                ``p.end_offset`` follows only new records.
            timeout: end after this many seconds without a record; None: never.
            others: as in `read`.

        Raises: as `read`; `OffsetOutOfRangeError` when the next offset to read was
        deleted or truncated meanwhile; `StoreClosedError` when the store is closed;
        `TopicNotFoundError` when the topic was deleted, or, in another process,
        `PartitionNotFoundError`.
        """
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        return self._reads.follow(start, timeout, options)

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
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        return self._reads.chunk(offset, max_bytes, options)

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
        """The batches, unchanged from disk; the first one holds `start`.

        Control batches are among them, unless ``isolation="read_committed"``, which
        also leaves out batches of aborted transactions. With `limit`, the last batch is
        the one that holds the last of the `limit` records. Raises: as `read`.
        """
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        return self._reads.batches(start, stop, options)

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
        text: bool = False,
        json: Mapping[str, str] | None = None,
    ) -> pyarrow.RecordBatchReader:
        """The records as a ``pyarrow.RecordBatchReader``.

        Args:
            start, stop, durable_only, isolation, on_corruption, limit: as in `read`.
            columns: which, of offset (int64), timestamp (timestamp[ms, UTC], null if
                missing), key, value (binary), timestampType (int32), headers
                (list<struct<key: string, value: binary>>).
            batch_records: records in each batch, at most. It ends sooner if its keys
                or its values would have more than 8 MiB.
            view: keys and values as ``binary_view``, without a copy: they point into
                the bytes that were read. A batch may then be smaller. As long as any
                part of it is in use, it keeps these bytes in memory, up to 6 MiB.
            threads: how many read at the same time, 1 to 64; the order stays the same.
                With `limit`, or a function as `on_corruption`, one reads.
            text, json: as in `to_table`.

        Raises: as `read`; damage is raised after the batches before it.
        """
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        return self._reads.arrow(
            start, stop, columns, batch_records, options, view, threads, text, json
        )

    def byte_ranges(
        self, start: int, stop: int, *, isolation: str = "read_uncommitted"
    ) -> ByteRanges | None:
        """Where in the files the records start <= offset < stop are, for a reader in
        another process or language (docs/spark.md, "How the reader in Java works").

        None if the log does not hold all of them now, or if the store was not opened
        with ``read_only``.

        Args:
            isolation: with ``read_committed``, the result also has the outcome of the
                transactions in the range, and the log is read as far as necessary.
        """
        return self._reads.byte_ranges(start, stop, isolation)

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

    # ------------------------------------------------------------ appends

    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> int:
        """Append one record and return its offset.

        When it returns, the operating system has the record: it survives the death of
        this process. With `durable`, it survives a power failure.

        Args:
            value, key: bytes, bytearray, memoryview or None.
            timestamp_ms: Unix milliseconds; None: now. Not stored in magic 0, nor if
                the topic has ``message_timestamp_type="LogAppendTime"``.
            headers: (name, value) pairs; need ``message_format=2``.
            expected_offset: append only if this is the next offset.
            durable: return after a sync (shared with concurrent callers).

        Raises:
            TypeError, ConfigError, UnsupportedError: an argument that cannot be stored.
            RecordTooLargeError: beyond ``max_message_bytes``.
            OffsetConflictError: `expected_offset` is not the next.
            DiskFullError, StorageError: the log is unchanged by the call.
            SyncFailedError: this partition takes no more appends.
        """
        if not headers and expected_offset is None:
            append = self._append_durable if durable else self._append_prepared
            offset = append(value, key, timestamp_ms)
            if offset >= 0:
                return offset
        return self._appends.append(
            value, key, timestamp_ms, headers, expected_offset, durable
        )[0]

    def append_many(
        self,
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append records, all or none, and return their offsets.

        Args:
            values: one value per record.
            keys, timestamps_ms, headers: None, or one element per record.
            expected_offset, durable: as in `append`.

        Raises: as `append`; `RecordTooLargeError` when one record cannot fit.
        """
        if headers is None and expected_offset is None:
            if durable:
                self._appends.check_may_sync()
            offsets = self._prepared.append_many(values, keys, timestamps_ms)
            if offsets is not None:
                return self._appends.synced(offsets, durable)
        magic = self._appends.magic
        rows = pack_rows(values, keys, timestamps_ms, headers, magic=magic)
        return self._appends.append_rows([rows], expected_offset, durable)

    def append_arrow(
        self, data: Any, *, expected_offset: int | None = None, durable: bool = False
    ) -> range:
        """Append a ``pyarrow`` RecordBatch, Table or RecordBatchReader, all or none.

        Columns: ``value`` and, if present, ``key`` (binary, large_binary or string),
        ``timestamp`` (any timestamp type, or int64 milliseconds; null is now),
        ``headers`` (list of struct(key, value); ``message_format=2``). ``topic``,
        ``partition``, ``offset``, ``timestampType`` are ignored.

        Raises: as `append_many`; `ConfigError` for another column, or for one whose
        positions point outside its buffers (pyarrow does not check data received over
        IPC); `RecordTooLargeError` for an element of 2 GiB or more.
        """
        arrow = arrow_module()
        batch = arrow.exported(data) if expected_offset is None else None
        if batch is not None:
            if durable:
                self._appends.check_may_sync()
            offsets = self._prepared.append_arrow(*batch)
            if offsets is not None:
                return self._appends.synced(offsets, durable)
        groups = self._appends.rows_of_arrow(arrow.tables_of(data))
        return self._appends.append_rows(groups, expected_offset, durable)

    def append_batches(
        self,
        buffer: ReadableBuffer,
        *,
        check_producers: bool = True,
        transactions: bool = False,
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append whole Kafka batches as a producer sends them; offsets are assigned.

        Magic and codec are kept, whatever the topic's settings. Checksums and
        structure are checked first, inside compressed batches, too; a wrong largest
        timestamp in a header is corrected.

        Args:
            transactions: take batches of transactions and the control batches that end
                them, for a copy of a broker's log. Each aborted transaction gets an
                entry in the transaction index, synced before its marker is in the log.
                Readers with ``isolation="read_committed"`` stop at a transaction until
                its marker is appended: nothing else ends it.
            check_producers: check the sequences of idempotent producers as a broker
                does. A batch that is one of the last five of its producer is not
                appended again: its offsets are returned, also if `expected_offset` is
                another one.

        Raises:
            OutOfOrderSequenceError: batches of a producer are missing before one of
                these, or a part of it is there; nothing was written.
            DuplicateSequenceError: a batch is there already, and its offsets are no
                longer known; or some of these are there, and some are not.
            InvalidProducerEpochError: a later epoch of the producer has appended.
            CorruptRecordError: a damaged or partial batch, a timestamp below -1, a
                producer's sequence below 0; nothing was written.
            CorruptIndexError: the transaction index that an aborted transaction belongs
                into is damaged: build it with `rebuild_index`; nothing was written.
            UnsupportedError: batches of transactions and control batches, without
                `transactions`; control batches that end no transaction; a batch outside
                of the transaction that its producer has open.
            RecordTooLargeError: a batch beyond ``max_message_bytes``.
        """
        if expected_offset is None:
            if durable:
                self._appends.check_may_sync()
            offsets = self._prepared.append_batches(buffer, bool(check_producers))
            if offsets is not None:
                return self._appends.synced(offsets, durable)
        return self._appends.append_batches(
            buffer,
            check_producers=check_producers,
            transactions=transactions,
            expected_offset=expected_offset,
            durable=durable,
        )

    def flush(self) -> None:
        """Return when everything appended so far is on stable storage.

        Raises:
            SyncFailedError: the sync failed; the partition takes no more appends.
        """
        self._appends.sync_upto(self._appends.next_offset())

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        self._appends.writer().roll()

    def delete_before(self, offset: int) -> int:
        """Make `offset` the start of the log and return it.

        A segment is deleted when all its records are below `offset`. Reads that have
        begun continue.

        Raises:
            OffsetOutOfRangeError: outside [start_offset, end_offset].
        """
        return self._appends.writer().delete_before(
            as_offset("offset", offset), "asked for"
        )

    def truncate_to(self, offset: int) -> int:
        """Remove every record from `offset` on and return the new end.

        Raises:
            UnsupportedError: `offset` is inside a batch; names the two nearest.
            OffsetOutOfRangeError: outside [start_offset, end_offset].
        """
        writer = self._appends.writer()
        return upkeep_of(self).truncate_to(writer, as_offset("offset", offset))

    def compact(
        self,
        *,
        force: bool = False,
        max_memory: int = COMPACTION_BYTES,
        max_bytes_per_s: int | None = None,
        now_ms: int | None = None,
        dry_run: bool = False,
        on_progress: Callable[[CompactionProgress], None] | None = None,
    ) -> CompactionReport:
        """Remove the records that a later one of the same key supersedes, in the sealed
        segments, as Kafka's cleaner does. Offsets, timestamps and order stay.

        Does nothing if ``min_cleanable_dirty_ratio`` is not exceeded, nor
        ``max_compaction_lag_ms``. Appends and reads continue meanwhile. The last record
        of a key is always kept, unless it is a tombstone that was first compacted
        ``delete_retention_ms`` ago. Records of aborted transactions are removed.

        Args:
            force: compact in any case. The active segment is not compacted: `roll`
                ends it.
            max_memory: bytes for the keys and for buffers, 6 MiB or more. If more keys
                are there than have room (16 bytes each), the log is rewritten several
                times.
            max_bytes_per_s: read no more than this many bytes in a second.
            now_ms: the time, Unix milliseconds, used unchecked; None: the time of the
                system. If that is more than a day later than the last change of
                every file of the log, tombstones go by the time of the newest one.
            dry_run: change nothing; the report is what would be done. Also of a store
                that was opened read-only. At most 2^32 - 1 offsets.
            on_progress: called in this thread, now and then.

        Raises:
            ConfigError: the topic's ``cleanup_policy`` has no "compact"; a bad number.
            CorruptRecordError, UnsupportedError, RecordTooLargeError: a batch cannot be
                read.
            DiskFullError: a tenth more than the largest new segment may need is not
                free. Nothing was written.
            StorageError: segments compacted before stay so; the log is intact.
            SyncFailedError: the log is intact; it takes no more appends.
            TopicNotFoundError, StoreClosedError: it was deleted or closed meanwhile.
            ReentrantCallError: it is called from `on_progress` of the same partition.
        """
        self._views.check_alive()
        check_compaction(self.config, self.name, max_memory, max_bytes_per_s)
        is_dry = self._writer is None and dry_run
        log = None if is_dry else self._appends.writer()
        upkeep = upkeep_of(self)
        options = upkeep.compaction(max_memory, now_ms)._replace(
            force=bool(force),
            max_bytes_per_s=max_bytes_per_s,
            dry_run=bool(dry_run),
            on_progress=on_progress,
        )
        return upkeep.compact(options, log)

    def apply_retention(
        self,
        now_ms: int | None = None,
        dry_run: bool = False,
        policies: Sequence[retention.RetentionPolicy] | None = None,
    ) -> list[retention.SegmentDeletion]:
        """Delete the segments that the topic's settings (or `policies`) select.

        See `Topic.apply_retention`.
        """
        self._views.check_alive()
        if not dry_run:
            self._appends.writer()
        return upkeep_of(self).apply_retention(now_ms, policies, dry_run=dry_run)


def appends_of(partition: Partition) -> Appends:
    """The appends of a partition, for other rooms of the package."""
    return partition._appends


def reads_of(partition: Partition) -> PartitionReads:
    """The reads of a partition, for its topic."""
    return partition._reads


def upkeep_of(partition: Partition) -> PartitionUpkeep:
    """Compaction and retention of a partition, for the background of its store."""
    log, config = partition._log, partition.config
    views, begin = partition._views, partition._begin
    return PartitionUpkeep(log, config, views, begin, partition.last_stable_offset)
