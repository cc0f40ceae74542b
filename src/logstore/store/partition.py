"""A partition: the open log that users append to and read from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore import _native as native
from logstore.config import check_int
from logstore.errors import (
    ReadOnlyError,
    UnsupportedError,
    storage_error,
    storage_errors,
)
from logstore.io.layout import OFFSET_MAX, TopicPartition
from logstore.log import retention
from logstore.log.compact.compactor import (
    CompactionOptions,
    CompactionProgress,
    CompactionReport,
    check_compaction,
    compact,
)
from logstore.log.compact.dry_log import DryLog
from logstore.log.producers import Marker, SentBatch, sent_batch
from logstore.log.read import reader
from logstore.log.read.view import View
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import (
    as_integer,
    as_items,
    as_offset,
)
from logstore.record.batch import ABORT
from logstore.record.encoder import (
    as_bytes,
    check_payload_type,
    check_timestamp,
    pack_rows,
)
from logstore.record.extras import arrow_module
from logstore.record.producer_batches import Prepared, prepare

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


from logstore.store.partition_views import infos_of
from logstore.store.readable_partition import ReadablePartition

__all__ = ["Partition"]


# For the keys and the buffers of a compaction, by default.
_COMPACTION_BYTES: Final = 64 << 20


class _NothingPrepared:
    """`Appender.prepared` of a store that was opened read-only."""

    def append(self, value: Any, key: Any, timestamp_ms: Any) -> int:
        return -1

    def append_many(self, values: Any, keys: Any, timestamps_ms: Any) -> range | None:
        return None

    def append_arrow(self, *batch: Any) -> range | None:
        return None

    def append_batches(self, data: Any, check_producers: bool) -> range | None:
        return None


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
        writer = self._writer
        self._prepared = (
            _NothingPrepared() if writer is None else writer.appends.prepared
        )
        self._append_prepared = self._prepared.append
        self._append_durable = (
            self._append_prepared if writer is None else writer.syncs.shared.append
        )

    def _write(self) -> PartitionWriter:
        self._begin()
        if self._writer is None:
            raise ReadOnlyError(
                f"{self._views.name} belongs to a store that was opened read-only; "
                f"nothing was written"
            )
        return self._writer

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
        return self._append_usual(
            value, key, timestamp_ms, headers, expected_offset, durable
        )[0]

    def append_stamped(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        durable: bool,
    ) -> tuple[int, int]:
        """For `Topic`: as `append`; returns (offset, timestamp stored)."""
        encoder = self._write().appends.encoder
        if not headers and not encoder.log_append_time:
            stamp = timestamp_ms
            if stamp is None:
                stamp = self._log.directory.files.now_ms()
            append = self._append_durable if durable else self._append_prepared
            offset = append(value, key, stamp)
            if offset >= 0:
                return offset, encoder.stored_timestamp(stamp, stamp)
        return self._append_usual(value, key, timestamp_ms, headers, None, durable)

    @property
    def at_once(self) -> native.PreparedAppend | _NothingPrepared:
        """For `logstore.aio`: appends that wait for nothing; they say so if nothing was
        done."""
        return self._prepared

    def rows_at_once(
        self, values: Any, keys: Any, timestamps_ms: Any, headers: Any
    ) -> range | None:
        """For `logstore.aio`: as `append_many`, if nothing has to be waited for; None:
        nothing was done."""
        appends = self._write().appends
        magic = appends.encoder.magic
        rows = pack_rows(values, keys, timestamps_ms, headers, magic=magic)
        return appends.append_at_once(rows)

    def stamps(self, timestamp_ms: int | None) -> tuple[int, int] | None:
        """For `logstore.aio`: the timestamp of a record that is appended now, and what
        is stored of it; None: only the append knows."""
        encoder = self._write().appends.encoder
        if encoder.log_append_time:
            return None
        if timestamp_ms is None:
            timestamp_ms = self._log.directory.files.now_ms()
        return timestamp_ms, encoder.stored_timestamp(timestamp_ms, timestamp_ms)

    def next_offset(self) -> int:
        """For `logstore.aio`: the offset up to which `flush` syncs."""
        writer = self._write()
        self._views.check_alive()
        return writer.end_offset

    def sync_upto(self, end: int) -> None:
        """For `logstore.aio`: return when everything below an offset is on stable
        storage, also because the store was closed. Raises: as `flush`."""
        assert self._writer is not None  # something was appended
        self._writer.syncs.sync(end)

    def _append_usual(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """(offset, timestamp stored)."""
        appends = self._write().appends
        # The code of the caller (subclasses, `__index__`) runs before a lock is taken.
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        value, key = as_bytes(value), as_bytes(key)
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        if not headers and appends.encoder.is_plain:
            return appends.append_one(
                value, key, timestamp_ms, expected_offset, bool(durable)
            )
        rows = pack_rows(
            (value,),
            None if key is None else (key,),
            None if timestamp_ms is None else (timestamp_ms,),
            (headers,) if headers else None,
            magic=appends.encoder.magic,
        )
        base, _, now_ms = appends.append_rows(
            [rows], expected_offset=expected_offset, durable=bool(durable)
        )
        return base, appends.encoder.stored_timestamp(timestamp_ms, now_ms)

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
                self._write().syncs.check_may_sync(durable)  # it may raise
            offsets = self._prepared.append_many(values, keys, timestamps_ms)
            if offsets is not None:
                return self._synced(offsets, durable)
        writer = self._write()
        rows = pack_rows(
            values, keys, timestamps_ms, headers, magic=writer.appends.encoder.magic
        )
        return self._append_rows(writer, [rows], expected_offset, durable)

    def _synced(self, offsets: range, durable: bool) -> range:
        """Offsets that were appended, behind a sync if it was asked for."""
        if durable:
            self._write().syncs.sync_appended(offsets.stop, durable)
        return offsets

    @staticmethod
    def _append_rows(
        writer: PartitionWriter,
        groups: Sequence[native.Rows],
        expected_offset: Any,
        durable: bool,
    ) -> range:
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        base, end, _ = writer.appends.append_rows(
            groups, expected_offset=expected_offset, durable=bool(durable)
        )
        return range(base, end)

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
                self._write().syncs.check_may_sync(durable)  # it may raise
            offsets = self._prepared.append_arrow(*batch)
            if offsets is not None:
                return self._synced(offsets, durable)
        writer = self._write()
        groups = self.rows_of_arrow(arrow.tables_of(data))
        return self._append_rows(writer, groups, expected_offset, durable)

    def begin_append(self) -> PartitionWriter:
        """For `Topic`: the writer, if the store can be written to."""
        return self._write()

    def rows_of_arrow(self, batches: Iterable[Any]) -> list[native.Rows]:
        """For `Topic`: rows of record batches, as `append_arrow` takes them."""
        arrow, appends = arrow_module(), self._write().appends
        magic, now_ms = appends.encoder.magic, self._log.directory.files.now_ms()
        return [arrow.rows_of(batch, now_ms=now_ms, magic=magic) for batch in batches]

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
                self._write().syncs.check_may_sync(durable)  # it may raise
            offsets = self._prepared.append_batches(buffer, bool(check_producers))
            if offsets is not None:
                return self._synced(offsets, durable)
        writer = self._write()
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
        writer = self._write()
        self._views.check_alive()
        writer.syncs.sync(writer.end_offset)

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        self._write().roll()

    def delete_before(self, offset: int) -> int:
        """Make `offset` the start of the log and return it.

        A segment is deleted when all its records are below `offset`. Reads that have
        begun continue.

        Raises:
            OffsetOutOfRangeError: outside [start_offset, end_offset].
        """
        return self._write().delete_before(as_offset("offset", offset), "asked for")

    def truncate_to(self, offset: int) -> int:
        """Remove every record from `offset` on and return the new end.

        Raises:
            UnsupportedError: `offset` is inside a batch; names the two nearest.
            OffsetOutOfRangeError: outside [start_offset, end_offset].
        """
        writer = self._write()
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
        max_memory: int = _COMPACTION_BYTES,
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
        key = TopicPartition(self.topic, self.number)
        log: PartitionWriter | DryLog
        if self._writer is None and dry_run:
            self._begin()
            with storage_errors("read", self.path):
                bounds = self._views.refreshed_bounds()
                log = DryLog(self._log.directory, key, self.config, bounds)
        else:
            log = self._write()
        options = self._compaction(max_memory, now_ms)._replace(
            force=bool(force),
            max_bytes_per_s=max_bytes_per_s,
            dry_run=bool(dry_run),
            on_progress=on_progress,
        )
        return compact(log, options)

    def compact_due(self) -> None:
        """Compact it if its settings ask for it, for the background of the store: what
        has failed there is for the next call of a user."""
        self._views.check_alive()
        check_compaction(self.config, self.name, _COMPACTION_BYTES, None)
        assert self._writer is not None
        compact(self._writer, self._compaction(_COMPACTION_BYTES, None))

    def _compaction(self, max_memory: int, now_ms: int | None) -> CompactionOptions:
        """How a log is compacted if its settings ask for it."""
        return CompactionOptions(
            force=False,
            max_memory=max_memory,
            max_bytes_per_s=None,
            now_ms=self._now_ms(now_ms),
            is_clock=now_ms is None,
            dry_run=False,
            stable=self.last_stable_offset,
            decompressed_max=self._views.decompressed_max,
        )

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
            self._write()
        if policies is None:
            policies = retention.policies_of(self.config)
        else:
            policies = list(as_items("policies", policies, of="RetentionPolicy"))
        return self._retain(self._now_ms(now_ms), policies, dry_run)

    def _now_ms(self, now_ms: int | None) -> int:
        if now_ms is None:
            return self._log.directory.files.now_ms()
        now_ms = as_integer("now_ms", now_ms, "milliseconds (int)")
        check_int("now_ms", now_ms, 0, OFFSET_MAX)
        return now_ms

    def apply_due_retention(self) -> None:
        """Apply the retention of the settings, for the background of the store. If
        nothing can be due, it examines only the oldest segment."""
        self._views.check_alive()
        segments, now_ms = self._views.refreshed().segments, self._now_ms(None)
        policies = retention.policies_of(self.config)
        if policies and segments:
            oldest = segments[0].info(
                segments[0].next_offset, is_active=len(segments) == 1
            )
            size = sum(segment.size for segment in segments)
            if retention.may_be_due(self.config, oldest, size, now_ms):
                self._retain(now_ms, policies, False)

    def _retain(
        self,
        now_ms: int,
        policies: Sequence[retention.RetentionPolicy],
        dry_run: bool,
    ) -> list[retention.Deletion]:
        log = self._views.refreshed()
        infos = infos_of(log.segments, log.high_watermark)
        try:
            free_bytes = log.free_bytes()
        except OSError as error:
            # A finalizer, or another thread, may have deleted the topic meanwhile.
            self._views.check_alive()
            raise storage_error(error, "look for space on", self.path) from error
        is_damaged = self._writer is not None and self._writer.health.damage is not None
        deletions = retention.plan(
            self._views.number,
            infos,
            policies,
            now_ms,
            free_bytes,
            keeps_active=is_damaged,
        )
        if deletions and self._writer is not None and not dry_run:
            self._writer.delete_before(
                max(deletions[-1].segment.next_offset, self.start_offset),
                deletions[-1].reason,
            )
        return deletions


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
