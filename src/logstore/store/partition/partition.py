"""A partition: the open log that users append to and read from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from logstore.errors import UnsupportedError
from logstore.log import retention
from logstore.log.compact.compactor import (
    CompactionProgress,
    CompactionReport,
    check_compaction,
)
from logstore.log.producers import Marker, SentBatch, sent_batch
from logstore.log.read import reader
from logstore.log.read.view import View
from logstore.record.arguments import as_offset
from logstore.record.batch import ABORT
from logstore.record.encoder import pack_rows
from logstore.record.extras import arrow_module
from logstore.record.producer_batches import Prepared, prepare
from logstore.store.partition.partition_appends import PartitionAppends
from logstore.store.partition.partition_upkeep import COMPACTION_BYTES, PartitionUpkeep
from logstore.store.partition.readable_partition import ReadablePartition

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


__all__ = ["Partition", "appends_of", "upkeep_of"]


class Partition(ReadablePartition):
    """One partition of a topic: an append-only log of records.

    Made by `Store`, never by hand. Any number of threads may use it at once.

    Attributes:
        config: the settings of its topic. If `Topic.configure` raised an error that
            says so: the ones before.
        topic_id: distinguishes the topics that have had its name; "" for one without an
            id.
    """

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._appends = PartitionAppends(self._log, self._views, self._begin)
        self._append_prepared = self._appends.append_prepared
        self._append_durable = self._appends.append_durable
        self._prepared = self._appends.prepared

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
            DiskFullError, StorageError: the log is as it was before the call.
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
        magic = self._appends.writer().appends.encoder.magic
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

        Magic and codec stay as they are, whatever the topic's settings. Checksums and
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
        writer = self._appends.writer()
        prepared = prepare(
            buffer,
            max_bytes=self.config.max_message_bytes,
            decompressed_max=self._views.decompressed_max,
            is_append_time=writer.appends.append_time() is not None,
            where=writer.context.name,
            transactions=transactions,
            needs_keys=writer.appends.encoder.needs_keys,
        )

        sent: list[SentBatch] = []
        if prepared.has_producer():
            sent = _sent(prepared)

        def make(base: int, epoch: int) -> tuple[list[memoryview], int]:
            return prepared.place(base, epoch, writer.appends.append_time())

        return writer.appends.append_encoded(
            make,
            sent=sent,
            is_checked=check_producers,
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
        offset = as_offset("offset", offset)

        def find() -> tuple[int, int] | None:
            view = self._views.now(False)
            view.check(offset)
            return None if offset == view.end_offset else self._boundary(view, offset)

        return writer.truncate_to(offset, find)

    def _boundary(self, view: View, offset: int) -> tuple[int, int]:
        """(index of the segment, position) at which the batch of `offset` begins."""
        for batch in reader.read_batches(view, offset, view.end_offset):
            if batch.base_offset < offset:
                raise UnsupportedError(
                    f"{self._views.name} cannot be truncated to {offset}: it is inside "
                    f"the batch of offsets {batch.base_offset} to {batch.last_offset}. "
                    f"The nearest that can be are {batch.base_offset} and "
                    f"{batch.next_offset}",
                    offset=offset,
                )
            segment = view.from_offset(batch.base_offset)[0]
            return view.segments.index(segment), batch.position
        # In the gap that an earlier cut has left at the end.
        return len(view.segments) - 1, view.segments[-1].size

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
        ``max_compaction_lag_ms``. Appends and reads go on meanwhile. The last record of
        a key is always kept, unless it is a tombstone that was first compacted
        ``delete_retention_ms`` ago. Records of aborted transactions are removed.

        Args:
            force: compact in any case. The active segment is not compacted: `roll`
                ends it.
            max_memory: bytes for the keys and for buffers, 6 MiB or more. If more keys
                are there than have room (16 bytes each), the log is rewritten several
                times.
            max_bytes_per_s: read no more than so many bytes in a second.
            now_ms: the time, Unix milliseconds, which is taken as it is; None: that of
                the system. If that is more than a day later than the last change of
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
            StorageError: what was compacted before stays so; the log is intact.
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
    ) -> list[retention.Deletion]:
        """Delete the segments that the topic's settings (or `policies`) select.

        See `Topic.apply_retention`.
        """
        self._views.check_alive()
        if not dry_run:
            self._appends.writer()
        return upkeep_of(self).apply_retention(now_ms, policies, dry_run=dry_run)


def appends_of(partition: Partition) -> PartitionAppends:
    """The appends of a partition, for other rooms of the package."""
    return partition._appends


def upkeep_of(partition: Partition) -> PartitionUpkeep:
    """Compaction and retention of a partition, for the background of its store."""
    return PartitionUpkeep(
        partition._log,
        partition.config,
        partition._views,
        partition._begin,
        partition.last_stable_offset,
    )


def _sent(prepared: Prepared) -> list[SentBatch]:
    """Checked batches, for what is known of their producers."""
    markers = iter(prepared.markers)
    sent = []
    for header in prepared.headers():
        marker = None
        if header.is_control:
            control = next(markers)
            marker = Marker(control.type == ABORT, control.coordinator_epoch)
        sent.append(sent_batch(header, marker))
    return sent
