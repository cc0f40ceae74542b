"""Appends to one partition, for other rooms of the package than its users."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from logstore import _native as native
from logstore.errors import ReadOnlyError
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.producers import Marker, SentBatch, sent_batch
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import as_offset
from logstore.record.batch import ABORT
from logstore.record.encoder import (
    as_bytes,
    check_payload_type,
    check_timestamp,
    pack_one,
    pack_rows,
)
from logstore.record.extras import arrow_module
from logstore.record.incoming import Prepared, prepare
from logstore.store.partition.partition_views import PartitionViews

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["NothingPrepared", "PartitionAppends"]


class NothingPrepared:
    """`Appender.prepared` of a store that was opened read-only."""

    def append(self, value: Any, key: Any, timestamp_ms: Any) -> int:
        return -1

    def append_many(self, values: Any, keys: Any, timestamps_ms: Any) -> range | None:
        return None

    def append_arrow(self, *batch: Any) -> range | None:
        return None

    def append_batches(self, data: Any, check_producers: bool) -> range | None:
        return None


class PartitionAppends:
    """The appends that a `Partition` is made of. `Topic`, named producers and
    `logstore.aio` call them, too (`partition.appends_of`).

    Attributes:
        prepared: appends that wait for nothing; they say so if nothing was done.
        short: the same, but appends of a shared store may wait.
        append_prepared, append_durable: prepared `append` of one record; without and
            with a sync.
    """

    __slots__ = (
        "_begin",
        "_files",
        "_views",
        "_writer",
        "append_durable",
        "append_prepared",
        "prepared",
        "short",
    )

    def __init__(
        self,
        log: PartitionWriter | ReadOnlyLog,
        views: PartitionViews,
        begin: Callable[[], None],
    ) -> None:
        writer = log if isinstance(log, PartitionWriter) else None
        self._writer, self._views, self._begin = writer, views, begin
        self._files = log.directory.files
        self.prepared: native.PreparedAppend | NothingPrepared = (
            NothingPrepared() if writer is None else writer.appends.prepared
        )
        self.short = self.prepared
        self.append_prepared = self.prepared.append
        self.append_durable = (
            self.append_prepared if writer is None else writer.syncs.shared.append
        )

    def writer(self) -> PartitionWriter:
        """The writer of the log.

        Raises:
            ReadOnlyError: the store was opened read-only.
            LogStoreError: the store is closed, or the topic was deleted.
        """
        self._begin()
        if self._writer is None:
            raise ReadOnlyError(
                f"{self._views.name} belongs to a store that was opened read-only; "
                f"nothing was written"
            )
        return self._writer

    @property
    def magic(self) -> int:
        """The format of its topic's records. Raises: as `writer`."""
        return self.writer().appends.encoder.magic

    # ------------------------------------------------------------ one record

    def append(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """See `Partition.append`: for appends that were not prepared. Returns (offset,
        timestamp stored)."""
        appends = self.writer().appends
        # The code of the caller (subclasses, `__index__`) runs before a lock is taken.
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        value, key = as_bytes(value), as_bytes(key)
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        if headers:
            rows = pack_rows(
                (value,),
                None if key is None else (key,),
                None if timestamp_ms is None else (timestamp_ms,),
                (headers,),
                magic=appends.encoder.magic,
            )
        else:
            rows = pack_one(value, key, timestamp_ms)
        base, _, now_ms = appends.append_rows(
            [rows], expected_offset=expected_offset, durable=bool(durable)
        )
        return base, appends.encoder.stored_timestamp(timestamp_ms, now_ms)

    def append_stamped(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        durable: bool,
    ) -> tuple[int, int]:
        """See `Partition.append`; returns (offset, timestamp stored)."""
        encoder = self.writer().appends.encoder
        if not headers and not encoder.log_append_time:
            stamp = timestamp_ms
            if stamp is None:
                stamp = self._files.now_ms()
            append = self.append_durable if durable else self.append_prepared
            offset = append(value, key, stamp)
            if offset >= 0:
                return offset, encoder.stored_timestamp(stamp, stamp)
        return self.append(value, key, timestamp_ms, headers, None, durable)

    def stamps(self, timestamp_ms: int | None) -> tuple[int, int] | None:
        """(timestamp of a record appended now, timestamp stored for it); None: only the
        append knows."""
        encoder = self.writer().appends.encoder
        if encoder.log_append_time:
            return None
        if timestamp_ms is None:
            timestamp_ms = self._files.now_ms()
        return timestamp_ms, encoder.stored_timestamp(timestamp_ms, timestamp_ms)

    # ------------------------------------------------------------ many

    def append_rows(
        self,
        groups: Sequence[native.EncodedColumns],
        expected_offset: Any,
        durable: bool,
    ) -> range:
        """Append the rows of all groups, or none."""
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        base, end, _ = self.writer().appends.append_rows(
            groups, expected_offset=expected_offset, durable=bool(durable)
        )
        return range(base, end)

    def append_batches(
        self,
        buffer: ReadableBuffer,
        *,
        check_producers: bool,
        transactions: bool,
        expected_offset: int | None,
        durable: bool,
    ) -> range:
        """See `Partition.append_batches`: for appends that were not prepared."""
        writer = self.writer()
        prepared = prepare(
            buffer,
            max_bytes=writer.context.config.max_message_bytes,
            decompressed_max=self._views.decompressed_max,
            is_append_time=writer.appends.append_time() is not None,
            where=writer.context.name,
            transactions=transactions,
            needs_keys=writer.appends.encoder.needs_keys,
        )

        def make(base: int, epoch: int) -> tuple[list[memoryview], int]:
            return prepared.place(base, epoch, writer.appends.append_time())

        return writer.appends.append_encoded(
            make,
            sent=_sent(prepared) if prepared.has_producer() else [],
            is_checked=check_producers,
            expected_offset=expected_offset,
            durable=durable,
        )

    def rows_at_once(
        self, values: Any, keys: Any, timestamps_ms: Any, headers: Any
    ) -> range | None:
        """Same as `Partition.append_many`, if no wait is needed; None: nothing was
        done."""
        appends = self.writer().appends
        magic = appends.encoder.magic
        rows = pack_rows(values, keys, timestamps_ms, headers, magic=magic)
        return appends.append_at_once(rows)

    def rows_of_arrow(self, batches: Iterable[Any]) -> list[native.EncodedColumns]:
        """Rows of record batches, as `Partition.append_arrow` takes them."""
        arrow, appends = arrow_module(), self.writer().appends
        magic, now_ms = appends.encoder.magic, self._files.now_ms()
        return [arrow.rows_of(batch, now_ms=now_ms, magic=magic) for batch in batches]

    # ------------------------------------------------------------ syncs

    def next_offset(self) -> int:
        """The offset up to which `Partition.flush` syncs."""
        writer = self.writer()
        self._views.check_alive()
        return writer.end_offset

    def sync_upto(self, end: int) -> None:
        """Return when everything below an offset is on stable storage, also because the
        store was closed. Raises: as `Partition.flush`."""
        assert self._writer is not None  # something was appended
        self._writer.syncs.sync(end)

    def synced(self, offsets: range, durable: bool) -> range:
        """Return the appended offsets, after a sync if `durable` is set."""
        if durable:
            self.writer().syncs.sync_appended(offsets.stop, durable)
        return offsets

    def check_may_sync(self) -> None:
        """Raise the error that keeps an append from being made durable."""
        self.writer().syncs.check_may_sync(True)


def _sent(prepared: Prepared) -> list[SentBatch]:
    """The checked batches as `SentBatch` objects, to update the producers' state."""
    markers = iter(prepared.markers)
    sent = []
    for header in prepared.headers():
        marker = None
        if header.is_control:
            control = next(markers)
            marker = Marker(control.type == ABORT, control.coordinator_epoch)
        sent.append(sent_batch(header, marker))
    return sent
