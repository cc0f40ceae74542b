"""Appends to partitions of a store that is open for sharing: they are handed in to the
process that has the store's lock.

The records are encoded here, with offsets from 0 on, as for a publication; the owner
moves them to their offsets.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import (
    LogStoreError,
    OffsetConflictError,
    PublicationUnknownError,
    ReadOnlyError,
    SyncFailedError,
    UnsupportedError,
)
from logstore.io.checkpoint.answers import Answer
from logstore.io.layout import TopicPartition
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.write.calls import Append, OutdatedChoiceError
from logstore.log.write.staged_files import StagedLog
from logstore.log.write.staging import Stage
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import as_offset
from logstore.record.encoder import (
    BATCH_BYTES_TARGET,
    Encoder,
    check_payload_type,
    pack_rows,
)
from logstore.record.extras import arrow_module
from logstore.record.incoming import prepare
from logstore.store.partition.partition_appends import (
    NothingPrepared,
    PartitionAppends,
)
from logstore.store.partition.partition_views import PartitionViews

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "Appends",
    "HandInCalls",
    "SharedAppends",
    "append_shared",
    "appends_to",
    "begin_append",
]

Appended: TypeAlias = tuple[tuple[int, range], ...]
Appends: TypeAlias = "PartitionAppends | SharedAppends"

# A caller has named the partition.
_NOT_CHOSEN: Final[Mapping[str, int]] = MappingProxyType({})
# More is staged in files, which the request names.
_DATA_MAX: Final = 1 << 20


class HandInCalls:
    """Functions by which a shared store hands in its appends.

    Args:
        ask: hands in, and returns the owner's answer.
        begin: hands in, and returns a function that waits for it; is given the time
            from which on the wait counts, by `time.monotonic`.
        stage: makes a stage for records too large for a request.
        discard: removes staged files.
        now_ms: the time.
    """

    __slots__ = ("ask", "begin", "discard", "now_ms", "stage")

    def __init__(
        self,
        ask: Callable[[Append], Answer],
        begin: Callable[[Append, float], Callable[[], Answer]],
        stage: Callable[[], Stage],
        discard: Callable[[Iterable[StagedLog]], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.ask, self.begin, self.stage, self.now_ms = ask, begin, stage, now_ms
        self.discard = discard


class ShortAppends(NothingPrepared):
    """Appends that may wait, of records that the core encodes in one call: lists of
    bytes, not compressed. They say so if nothing was done, for any other records."""

    def __init__(self, appends: SharedAppends, begin: Callable[[], None]) -> None:
        self._appends, self._begin = appends, begin
        config = appends.config
        is_plain = config.compression_type == "none" and not config.compacts
        # The usual way raises the errors of records of magic 0.
        self._is_usual = not is_plain or config.message_format == 0
        self._limits = (
            config.message_format, config.max_message_bytes, BATCH_BYTES_TARGET,
        )  # fmt: skip

    def append(self, value: Any, key: Any, timestamp_ms: Any) -> int:
        """See `PreparedAppend.append`."""
        keys = None if key is None else (key,)
        stamps = None if timestamp_ms is None else (timestamp_ms,)
        span = self.append_many((value,), keys, stamps)
        return -1 if span is None else span.start

    def append_many(
        self,
        values: Any,
        keys: Any,
        timestamps_ms: Any,
        partitions: Mapping[str, int] = _NOT_CHOSEN,
    ) -> range | None:
        """See `PreparedAppend.append_many`.

        Args:
            partitions: how many the topic had when this one was chosen.

        Raises:
            OutdatedChoiceError: the topic's number of partitions has changed.
        """
        if self._is_usual:
            return None
        appends = self._appends
        hand_in = appends.hand_in
        data = native.encode_lists(
            values, keys, timestamps_ms, hand_in.now_ms(), *self._limits
        )
        if data is None:
            return None
        self._begin()
        log = appends.log(self._limits[0], len(values), len(data), 0)
        spans = _spans_in(hand_in.ask(Append((log,), data, dict(partitions))))
        return spans[TopicPartition(log.topic, log.partition)]


class SharedAppends:
    """Appends to a partition of a store open for sharing; see `PartitionAppends`."""

    def __init__(
        self,
        views: PartitionViews,
        config: TopicConfig,
        topic_id: str,
        begin: Callable[[], None],
        hand_in: HandInCalls,
    ) -> None:
        self._views, self._begin = views, begin
        self.config, self.topic_id, self.hand_in = config, topic_id, hand_in
        if config.message_timestamp_type != "CreateTime":
            # The owner stamps them.
            config = dataclasses.replace(config, message_timestamp_type="CreateTime")
        self._encoded_as = config
        # Encoders that no thread uses.
        self._encoders: list[Encoder] = []
        self.short = ShortAppends(self, begin)
        self.append_durable = self.short.append
        self.prepared = NothingPrepared()
        self.append_prepared = self.prepared.append

    @property
    def topic(self) -> str:
        """Topic name, as the destination of a stage."""
        return self._views.topic

    @property
    def number(self) -> int:
        """Partition number, as the destination of a stage."""
        return self._views.number

    @property
    def magic(self) -> int:
        """The format of its topic's records."""
        self._begin()
        if self.config.message_format == 0:
            raise UnsupportedError(
                f"{self._views.name} has message_format=0, but shared appends "
                "need 1 or 2. Nothing was written"
            )
        return self.config.message_format

    def writer(self) -> NoReturn:
        """Raise: no other change can be handed in.

        Raises:
            ReadOnlyError: always.
        """
        self._begin()
        path = self._views.log.directory.root.path
        raise ReadOnlyError(
            f"{self._views.name} belongs to a store that was opened with "
            f"shared=True, which can only append: use logstore.open({path!r}). "
            "Nothing was written"
        )

    def append(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """See `Partition.append`. Returns (offset, timestamp stored); the timestamp is
        -1 if the owner sets it when it writes the record."""
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        stamp = self.hand_in.now_ms() if timestamp_ms is None else timestamp_ms
        rows = pack_rows(
            (value,),
            None if key is None else (key,),
            (stamp,),
            (headers,) if headers else None,
            magic=self.magic,
        )
        span = self.append_rows([rows], expected_offset, durable)
        is_stamped = self.config.message_timestamp_type == "LogAppendTime"
        return span.start, -1 if is_stamped else stamp

    def append_stamped(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        durable: bool,
    ) -> tuple[int, int]:
        """See `append`."""
        return self.append(value, key, timestamp_ms, headers, None, durable)

    def stamps(self, timestamp_ms: int | None) -> tuple[int, int] | None:
        """See `PartitionAppends.stamps`."""
        if self.config.message_timestamp_type == "LogAppendTime":
            return None
        if timestamp_ms is None:
            timestamp_ms = self.hand_in.now_ms()
        return timestamp_ms, timestamp_ms

    def append_rows(
        self,
        groups: Sequence[native.EncodedColumns],
        expected_offset: Any,
        durable: bool,
    ) -> range:
        """Append the rows of all groups, or none."""
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        rows = {self.number: (self, list(groups))}
        for _, span in append_shared(rows, {}, expected_offset):
            return span
        return self._appended_nothing(expected_offset)

    def _appended_nothing(self, expected_offset: int | None) -> range:
        """Return, or raise, the same as a writer for no records."""
        end = self._views.refreshed().end_offset
        if expected_offset not in (None, end):
            assert expected_offset is not None
            raise OffsetConflictError(expected_offset, end, partition=self._views.name)
        return range(end, end)

    def append_batches(
        self,
        buffer: ReadableBuffer,
        *,
        check_producers: bool,
        transactions: bool,
        expected_offset: int | None,
        durable: bool,
    ) -> range:
        """See `Partition.append_batches`; only for batches without a producer."""
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        prepared = prepare(
            buffer,
            max_bytes=self.config.max_message_bytes,
            decompressed_max=self._views.decompressed_max,
            is_append_time=False,
            where=self._views.name,
            transactions=transactions,
            needs_keys=self.config.compacts,
        )
        if prepared.has_producer():
            raise UnsupportedError(
                f"batches of producers and transactions cannot be handed in to "
                f"{self._views.name}: append them in the process that has the store "
                f"open for writing. Nothing was written"
            )
        magics = {header.magic for header in prepared.headers()}
        if not magics:
            return self._appended_nothing(expected_offset)
        if len(magics) > 1 or 0 in magics:
            raise UnsupportedError(
                f"batches of several formats, or of magic 0, cannot be handed in to "
                f"{self._views.name}; nothing was written"
            )
        parts, records = prepared.place(0, 0, None)
        data, magic, logs = b"".join(parts), magics.pop(), list[StagedLog]()
        if len(data) > _DATA_MAX:
            with self.hand_in.stage() as stage:
                stage.add_batches(self, data, magic, records)
                logs += stage.finish().logs
            data = b""
        else:
            logs.append(self.log(magic, records, len(data), 0))
        asked = Append(tuple(logs), data, {}, expected_offset)
        ((_, span),) = _appended(self.hand_in, asked, partial(self.hand_in.ask, asked))
        return span

    def log(self, magic: int, records: int, size: int, pos: int) -> StagedLog:
        """The part of a request that is for this partition."""
        runs = ((pos, size),)
        return StagedLog(
            self.topic, self.number, magic, records, "", False, 0, runs, self.topic_id
        )

    def encoded(self, groups: Iterable[native.EncodedColumns]) -> tuple[bytes, int]:
        """(whole batches with offsets from 0 on, how many records)."""
        now_ms = self.hand_in.now_ms()
        try:
            encoder = self._encoders.pop()
        except IndexError:
            encoder = Encoder(self._encoded_as)
        parts, count = list[bytes](), 0
        for rows in groups:
            encoder.measure(rows)
            rows.set_time(now_ms)
            for run, size in encoder.encode(rows, count, now_ms, 0):
                parts.append(native.bytes_of(run, size))
            rows.rewind()  # they may be staged
            count += rows.count
        # After an error or an interrupt, another one is made.
        self._encoders.append(encoder)
        return b"".join(parts), count

    def rows_at_once(
        self, values: Any, keys: Any, timestamps_ms: Any, headers: Any
    ) -> range | None:
        """Nothing is done at once here."""
        return None

    def rows_of_arrow(self, batches: Iterable[Any]) -> list[native.EncodedColumns]:
        """Rows of record batches, as `Partition.append_arrow` takes them."""
        arrow, magic, now_ms = arrow_module(), self.magic, self.hand_in.now_ms()
        return [arrow.rows_of(batch, now_ms=now_ms, magic=magic) for batch in batches]

    def next_offset(self) -> int:
        """0: all appended records are durable."""
        self._begin()
        self._views.check_alive()
        return 0

    def sync_upto(self, end: int) -> None:
        """Do nothing: all appended records are durable."""

    def synced(self, offsets: range, durable: bool) -> range:
        """The same offsets: all appended records are durable."""
        return offsets

    def check_may_sync(self) -> None:
        """Do nothing: the owner raises any error that prevents a durable append."""


def appends_to(
    log: PartitionWriter | ReadOnlyLog,
    views: PartitionViews,
    config: TopicConfig,
    topic_id: str,
    begin: Callable[[], None],
    hand_in: HandInCalls | None,
) -> Appends:
    """The appends of a partition; `hand_in` is that of a shared store."""
    if hand_in is None:
        return PartitionAppends(log, views, begin)
    return SharedAppends(views, config, topic_id, begin, hand_in)


def append_shared(
    rows: Mapping[int, tuple[SharedAppends, list[native.EncodedColumns]]],
    partitions: Mapping[str, int],
    expected_offset: int | None = None,
) -> Appended:
    """Append to partitions of one topic, to all or to none.

    Args:
        rows: by number of the partition.
        partitions: how many the topic had when they were chosen.

    Returns:
        (partition, range of offsets) of each that got records, by number.

    Raises:
        OutdatedChoiceError: it has another number of partitions now.
        LogStoreError: as the owner has raised it.
    """
    asked = _asked(rows, partitions, expected_offset)
    if asked is None:
        return ()
    hand_in = _hand_in_of(rows)
    return _appended(hand_in, asked, partial(hand_in.ask, asked))


def begin_append(
    rows: Mapping[int, tuple[SharedAppends, list[native.EncodedColumns]]],
    partitions: Mapping[str, int],
    expected_offset: int | None,
    since: float,
) -> Callable[[], Appended]:
    """Begin such an append. Returns a function that waits for the result, and is called
    once, by the same thread.

    Args:
        since: the time of the call, by `time.monotonic`: it may have waited for
            earlier calls.
    """
    asked = _asked(rows, partitions, expected_offset)
    if asked is None:
        return tuple
    hand_in = _hand_in_of(rows)
    return partial(_appended, hand_in, asked, hand_in.begin(asked, since))


def _hand_in_of(
    rows: Mapping[int, tuple[SharedAppends, list[native.EncodedColumns]]],
) -> HandInCalls:
    """The `HandInCalls` of partitions of one store."""
    return next(iter(rows.values()))[0].hand_in


def _asked(
    rows: Mapping[int, tuple[SharedAppends, list[native.EncodedColumns]]],
    partitions: Mapping[str, int],
    expected_offset: int | None,
) -> Append | None:
    """The request that is handed in for an append; None: it has no records."""
    logs, parts, size, large = list[StagedLog](), list[bytes](), 0, False
    for appends, groups in rows.values():
        batches, count = appends.encoded(groups)
        if count:
            magic = appends.config.message_format
            logs.append(appends.log(magic, count, len(batches), size))
            parts.append(batches)
            size += len(batches)
        large = large or size > _DATA_MAX
        if large:
            parts.clear()
    if not logs:
        return None
    if large:
        logs = _staged(rows)
    data = b"".join(parts)
    return Append(tuple(logs), data, dict(partitions), expected_offset)


def _staged(
    rows: Mapping[int, tuple[SharedAppends, list[native.EncodedColumns]]],
) -> list[StagedLog]:
    """The logs of records that are staged in files."""
    with _hand_in_of(rows).stage() as stage:
        for appends, groups in rows.values():
            stage.add(appends, groups)
        return list(stage.finish().logs)


def _spans_in(answer: Answer) -> Mapping[TopicPartition, range]:
    """The offsets in an answer.

    Raises:
        OutdatedChoiceError: partitions were chosen among another number of them.
    """
    if answer.is_outdated:
        raise OutdatedChoiceError("the topic now has another number of partitions")
    return dict(answer.offsets)


def _appended(
    hand_in: HandInCalls, asked: Append, get: Callable[[], Answer]
) -> Appended:
    """The result of an append. Removes its staged files if it was certainly not
    written."""
    try:
        spans = _spans_in(get())
    except BaseException as error:
        staged = [log for log in asked.logs if log.file]
        if staged and _is_certain(error):
            hand_in.discard(staged)
        raise
    return tuple(sorted([(key.partition, span) for key, span in spans.items()]))


def _is_certain(error: BaseException) -> bool:
    """Whether an error, or an interrupt, says that nothing was written."""
    outcome = getattr(error, "outcome", None)
    if outcome is not None:
        return bool(outcome == "not written")
    is_unknown = isinstance(error, SyncFailedError | PublicationUnknownError)
    return isinstance(error, LogStoreError) and not is_unknown
