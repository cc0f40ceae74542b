"""A partition: the open log that users append to and read from."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

from logstore import _native as native
from logstore._native.locks import Signal
from logstore.config import check_kind
from logstore.errors import (
    ConfigError,
    OffsetOutOfRangeError,
    ReadOnlyError,
    RecordNotFoundError,
    StorageError,
    UnsupportedError,
    storage_error,
)
from logstore.io.checkpoint.cuts import Cuts, LogMark
from logstore.log import retention
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.frames.log import Log
from logstore.log.read import reader
from logstore.log.read import transactions as producers
from logstore.log.read.fetch import fetch
from logstore.log.read.reader import ISOLATIONS, ON_CORRUPTION, check_choice
from logstore.log.read.view import Bounds, ChangedError, View
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import (
    Start,
    Time,
    as_integer,
    as_items,
    as_limit,
    as_offset,
    as_time_ms,
    as_timeout,
    is_time,
    refuse_pickling,
    to_milliseconds,
)
from logstore.record.batch import Chunk, RecordBatch
from logstore.record.decoder import ChunkReader, Wanted
from logstore.record.encoder import (
    as_bytes,
    check_payload_type,
    check_timestamp,
    pack_rows,
)
from logstore.record.extras import arrow_module, frames_module
from logstore.record.producer_batches import prepare
from logstore.record.record import Record
from logstore.segment import LOOKUP_BYTES, READ_BYTES, Segment, SegmentInfo

if TYPE_CHECKING:
    import pyarrow
    import pyarrow.dataset
    from _typeshed import ReadableBuffer

    from logstore.config import TopicConfig

__all__ = ["Partition"]

_Found = TypeVar("_Found")

# How long a follower in another process sleeps before it looks again: quickly at first,
# then less and less often while nothing is appended.
POLL_MIN_S = 0.001
POLL_MAX_S = 0.050
# Records that are decoded at a time; with several readers, the least for each.
_DECODED = 16384
_DECODED_MIN = 64


class _Source:
    """The log of a partition's views: a `logstore.log.read.view.Source`."""

    def __init__(
        self, log: PartitionWriter | ReadOnlyLog, guard: Callable[[], None]
    ) -> None:
        self._log = log
        self._guard = guard

    def look(self) -> Bounds:
        """The log as it is now."""
        self._guard()
        log = self._log
        if isinstance(log, ReadOnlyLog):
            return log.look()
        log.settle()
        # The cuts first: what is found after them may be of a later one, and then no
        # view of it continues. The list of segments last: it covers the end.
        cuts, end, durable = log.cuts, log.high_watermark, log.durable_offset
        segments = log.segments
        gone = None if segments else log.closed
        return Bounds(segments, log.start_offset, end, durable, cuts, gone=gone)

    def look_closely(self) -> Bounds:
        """The log as it is now, if something seems to be wrong with it."""
        self._guard()
        log = self._log
        return log.look_closely() if isinstance(log, ReadOnlyLog) else self.look()

    def is_as_it_was(self, life: int, serial: int) -> bool:
        """Whether certainly nothing was cut since a look that found these."""
        log = self._log
        if isinstance(log, ReadOnlyLog):
            return log.is_as_it_was(life, serial)
        return log.cuts.serial == serial


class Turn(NamedTuple):
    """A follower has reached the end of a view.

    Attributes:
        view: the view whose end it has reached.
        has_moved: it has advanced since the turn before; else it may wait.
    """

    view: View
    has_moved: bool


class Partition:
    """One partition of a topic: an append-only log of records.

    Made by `Store`, never by hand. Any number of threads may use it at once.

    Attributes:
        config: the settings of its topic.
        topic_id: distinguishes the topics that have had its name; "" for one without an
            id.
    """

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
        self._topic = topic
        self._number = number
        self.config = config
        self.topic_id = topic_id
        self._log = log
        self._writer = log if isinstance(log, PartitionWriter) else None
        self._guard = guard
        # The same for calls that write: it also raises what failed in the background.
        self._begin = begin or guard
        self._decompressed_max = decompressed_max
        self._name = f"{topic}-{number}"
        self._source = _Source(log, guard)
        self._stable = producers.StableOffset(log.directory)

    def __repr__(self) -> str:
        return f"<logstore.Partition {self._name} at {self.path}>"

    def __len__(self) -> int:
        """The number of offsets between its start and its end: the number of its
        records, unless compaction or transactions have left gaps."""
        log = self._refreshed()
        return max(log.high_watermark - log.start_offset, 0)

    def __bool__(self) -> bool:
        """True, also for an empty partition."""
        return True

    def __reduce__(self) -> NoReturn:
        name = f"{self._topic!r})[{self._number}]"
        refuse_pickling(self, os.path.dirname(self.path), f".topic({name}")

    # ------------------------------------------------------------ properties

    @property
    def topic(self) -> str:
        """Name of its topic."""
        return self._topic

    @property
    def number(self) -> int:
        """Its number in the topic, from 0."""
        return self._number

    @property
    def name(self) -> str:
        """``topic-number``, the name of its directory."""
        return self._name

    @property
    def path(self) -> str:
        """Absolute path of its directory."""
        return self._log.directory.path

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""
        return self._refreshed().start_offset

    @property
    def end_offset(self) -> int:
        """The next offset to be assigned; during a publication, the first one that it
        assigns."""
        return self._refreshed().high_watermark

    @property
    def durable_offset(self) -> int:
        """Every record below it is on stable storage: it survives a power failure."""
        return self._refreshed().durable_offset

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Its segments, oldest first; the last one is active."""
        log = self._refreshed()
        return _infos(log.segments, log.high_watermark)

    def mark(self) -> LogMark | None:
        """Identifies the log as it is now. Keep it with offsets that were read, and
        pass it to `unchanged_below` later, in any process.

        None if the cuts of the log are not recorded: this is so for the log of a
        broker, for one that an earlier version wrote last, and for one that is new and
        not synced yet.
        """
        known = self._history()
        return None if known is None else LogMark(known[0], known[1].serial)

    def unchanged_below(self, mark: LogMark) -> int | None:
        """The offset below which the log is what it was at the time of a mark, apart
        from records deleted at its start. It may have been cut there since, and have
        grown again. 0: it is another log.

        None if this is unknown: the log has been cut more than thirty times since, or
        its cuts are no longer recorded.
        """
        check_kind("mark", mark, LogMark)
        known = self._history()
        if known is None:
            return None
        log_id, cuts = known
        if log_id != mark.log_id:
            return 0
        return (
            cuts.lowest_since(mark.serial) if cuts.is_known_since(mark.serial) else None
        )

    def _history(self) -> tuple[str, Cuts] | None:
        """The id of the log, and how it was cut."""
        self._guard()
        self._check_alive()
        log = self._log
        if isinstance(log, ReadOnlyLog):
            return log.history()
        return log.log_id, log.cuts

    def _refreshed(self) -> PartitionWriter | ReadOnlyLog:
        self._guard()
        self._check_alive()
        log = self._log
        if isinstance(log, ReadOnlyLog):
            log.refresh()
        else:
            log.settle()
        return log

    def _write(self) -> PartitionWriter:
        self._begin()
        if self._writer is None:
            raise ReadOnlyError(
                f"{self._name} belongs to a store that was opened read-only; nothing "
                f"was written"
            )
        return self._writer

    # ------------------------------------------------------------ append

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
        return self._append_one(
            value, key, timestamp_ms, headers, expected_offset, durable
        )[0]

    def _append_one(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """(offset, timestamp stored)."""
        writer = self._write()
        # The code of the caller (subclasses, `__index__`) runs before a lock is taken.
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        value, key = as_bytes(value), as_bytes(key)
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        if not headers and writer.encoder.is_plain:
            return writer.append_one(
                value, key, timestamp_ms, expected_offset, bool(durable)
            )
        rows = pack_rows(
            (value,),
            None if key is None else (key,),
            None if timestamp_ms is None else (timestamp_ms,),
            (headers,) if headers else None,
            magic=writer.encoder.magic,
        )
        base, _, now_ms = writer.append_rows(
            [rows], expected_offset=expected_offset, durable=bool(durable)
        )
        return base, writer.encoder.stored_timestamp(timestamp_ms, now_ms)

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
        writer = self._write()
        rows = pack_rows(
            values, keys, timestamps_ms, headers, magic=writer.encoder.magic
        )
        return self._append_rows(writer, [rows], expected_offset, durable)

    @staticmethod
    def _append_rows(
        writer: PartitionWriter,
        groups: Sequence[native.Rows],
        expected_offset: Any,
        durable: bool,
    ) -> range:
        if expected_offset is not None:
            expected_offset = as_offset("expected_offset", expected_offset)
        base, end, _ = writer.append_rows(
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
        writer = self._write()
        groups = self.rows_of_arrow(arrow_module().tables_of(data))
        return self._append_rows(writer, groups, expected_offset, durable)

    def begin_append(self) -> PartitionWriter:
        """For `Topic`: the writer, if the store can be written to."""
        return self._write()

    def rows_of_arrow(self, batches: Iterable[Any]) -> list[native.Rows]:
        """For `Topic`: rows of record batches, as `append_arrow` takes them."""
        arrow, writer = arrow_module(), self._write()
        magic, now_ms = writer.encoder.magic, self._log.directory.files.now_ms()
        return [arrow.rows_of(batch, now_ms=now_ms, magic=magic) for batch in batches]

    def append_batches(
        self,
        buffer: ReadableBuffer,
        *,
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append whole Kafka batches as a producer sends them; offsets are assigned.

        Magic and codec stay as they are, whatever the topic's settings. Checksums and
        structure are checked first, inside compressed batches, too; a wrong largest
        timestamp in a header is corrected. Sequence numbers of idempotent producers are
        kept; repeated ones are not detected.

        Raises:
            CorruptRecordError: a damaged or partial batch, a timestamp below -1, a
                producer's sequence below 0; nothing was written.
            UnsupportedError: control batches and those of transactions.
            RecordTooLargeError: a batch beyond ``max_message_bytes``.
        """
        writer = self._write()
        prepared = prepare(
            buffer,
            max_bytes=self.config.max_message_bytes,
            decompressed_max=self._decompressed_max,
            is_append_time=writer.append_time() is not None,
            where=writer.name,
        )

        def make(base: int, epoch: int) -> tuple[list[memoryview], int]:
            return prepared.place(base, epoch, writer.append_time())

        base, end = writer.append_encoded(
            make, expected_offset=expected_offset, durable=durable
        )
        return range(base, end)

    def flush(self) -> None:
        """Return when everything appended so far is on stable storage.

        Raises:
            SyncFailedError: the sync failed; the partition takes no more appends.
        """
        writer = self._write()
        self._check_alive()
        writer.sync(writer.end_offset)

    # ------------------------------------------------------------ read

    def _view(self, durable_only: bool) -> View:
        """The log as it is now, for a call that begins.

        Raises: the reason why the log was closed, if it was: its topic was deleted.
        """
        self._check_alive()
        return self._view_of(self._source.look(), durable_only)

    def _stable_of(self, view: View, first: int, skip: bool) -> int:
        """The last stable offset of a view, for a read that begins at `first`.

        Raises:
            ChangedError: the log was changed meanwhile.
        """
        try:
            return self._stable.of(view, first, skip=skip)
        except StorageError:
            self._refreshed()  # raises if it was deleted meanwhile
            raise

    def _check_alive(self) -> None:
        writer = self._writer
        if writer is not None and writer.closed is not None:
            self._guard()
            raise writer.closed.with_traceback(None)

    def _view_of(self, seen: Bounds, durable_only: bool) -> View:
        end = seen.durable_offset if durable_only else seen.end_offset
        return View(
            self._name,
            seen.segments,
            seen.start_offset,
            max(seen.start_offset, end),
            seen.end_offset,
            self._decompressed_max,
            seen.cuts,
            seen.life,
            self._source,
        )

    def _resolve(self, view: View, start: Start, skip: bool) -> int:
        if start is None:
            return view.start_offset
        if is_time(start):
            return self._at_time(view, to_milliseconds("start", start), skip)
        offset = as_offset("start", start, or_time=True)
        view.check(offset)
        return offset

    def _at_time(self, view: View, timestamp_ms: int, skip: bool) -> int:
        found = reader.first_offset_at(view, timestamp_ms, skip=skip)
        return view.end_offset if found is None else found

    def _bounds(
        self,
        start: Start,
        stop: Start,
        durable_only: bool,
        isolation: str,
        *,
        skip: bool = False,
        to_stable: bool = False,
    ) -> tuple[View, int, int]:
        """(the log as it is now, the offset to begin at, the offset to stop at).

        Args:
            skip: leave out damaged data.
            to_stable: stop at the last stable offset also if the reader's filter would
                find the first open transaction by itself.
        """
        check_choice("isolation", isolation, ISOLATIONS)

        def bounds() -> tuple[View, int, int]:
            view = self._view(durable_only)
            first = self._resolve(view, start, skip)
            if stop is None:
                end = view.end_offset
            else:
                end = min(self._resolve_stop(view, stop, skip), view.end_offset)
            is_limited = to_stable or first > view.start_offset
            if isolation == "read_committed" and is_limited:
                end = min(end, self._stable_of(view, first, skip))
            return view, first, end

        return _unchanged(bounds)

    def _resolve_stop(self, view: View, stop: Start, skip: bool) -> int:
        if is_time(stop):
            return self._at_time(view, to_milliseconds("stop", stop), skip)
        return as_offset("stop", stop, or_time=True)

    def _reader(
        self,
        view: View,
        first: int,
        isolation: str,
        skip: bool,
        *,
        with_headers: bool = True,
        limit: int | None = None,
        share: int = 1,
    ) -> ChunkReader:
        """The decoder. It decodes not many more records at a time than are wanted, or
        than its share if several partitions are read at the same time."""
        wanted = self._wanted(view, first, isolation, skip)
        most = self._decompressed_max
        if limit is None and share == 1:
            return ChunkReader(most, with_headers=with_headers, wanted=wanted)
        capacity = _DECODED // share
        if limit is not None:
            capacity = min(capacity, limit)
        return ChunkReader(
            most,
            with_headers=with_headers,
            wanted=wanted,
            capacity=max(capacity, _DECODED_MIN),
        )

    def _wanted(
        self, view: View, first: int, isolation: str, skip: bool
    ) -> Wanted | None:
        if isolation == "read_committed":
            return producers.CommittedFilter(view, first, skip=skip)
        return None

    def read(
        self,
        start: Start = None,
        stop: Start = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
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
            on_corruption: ``"skip"`` leaves out damaged data.
            limit: end after this many records; None: any number.

        Raises:
            OffsetOutOfRangeError, TypeError, ConfigError: at the call.
            CorruptRecordError: after every record before the damage. A read that begins
                at the error's ``next_offset`` continues after the damage.
        """
        return self._read(start, stop, durable_only, isolation, on_corruption, limit)

    def _read(
        self,
        start: Start,
        stop: Start,
        durable_only: bool,
        isolation: str,
        on_corruption: str,
        limit: int | None,
        share: int = 1,
    ) -> Iterator[Record]:
        """As `read`, as one of `share` reads at the same time."""
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        limit, skip = as_limit(limit), on_corruption == "skip"
        view, first, end = self._bounds(start, stop, durable_only, isolation, skip=skip)
        found = self._reader(view, first, isolation, skip, limit=limit, share=share)
        size = max(READ_BYTES // share, LOOKUP_BYTES)
        records = reader.read_records(
            view, first, end, found, skip=skip, buffer_bytes=size
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
        offset = as_offset("offset", offset)

        def found() -> Record:
            view, first, end = self._bounds(
                offset, None, durable_only, isolation, to_stable=True
            )
            if first >= end:
                raise OffsetOutOfRangeError(
                    offset, view.start_offset, end, partition=self._name
                )
            decoder = self._reader(view, first, isolation, False, limit=1)
            records = reader.read_records(
                view, first, first + 1, decoder, buffer_bytes=LOOKUP_BYTES
            )
            for record in records:
                return record
            raise RecordNotFoundError(offset, partition=self._name)

        return _unchanged(found)

    def follow(
        self,
        start: Start = None,
        timeout: float | None = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
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
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        skip = on_corruption == "skip"
        turns = self._turns(start, durable_only, isolation, skip)
        records = self._follow(turns, as_timeout(timeout), durable_only)
        return reader.first_of(records, as_limit(limit))

    def _follow(
        self,
        turns: Iterator[Record | Turn],
        timeout: float | None,
        durable_only: bool,
    ) -> Iterator[Record]:
        """The records of turns, with a pause after a turn without records."""
        last, pause = time.monotonic(), POLL_MIN_S
        for found in turns:
            if type(found) is Record:
                yield found
            elif isinstance(found, Turn):
                if found.has_moved:
                    last, pause = time.monotonic(), POLL_MIN_S
                    continue
                left = None if timeout is None else timeout - (time.monotonic() - last)
                if left is not None and left <= 0:
                    return
                seconds = pause if left is None else min(pause, left)
                self._await(found.view, durable_only, seconds)
                pause = min(pause * 2, POLL_MAX_S)

    def _turns(
        self, start: Start, durable_only: bool, isolation: str, skip: bool
    ) -> Iterator[Record | Turn]:
        """The records from `start` on, up to the end of the log as it is at the call;
        then a `Turn`, then the records appended since, and so on without end."""
        view, first, end = self._bounds(start, None, durable_only, isolation, skip=skip)
        return self._turn_after_turn(view, first, end, durable_only, isolation, skip)

    def _turn_after_turn(
        self,
        view: View,
        offset: int,
        end: int,
        durable_only: bool,
        isolation: str,
        skip: bool,
    ) -> Iterator[Record | Turn]:
        """Reads from `offset` to `end` of a view, then in later ones of the same
        log."""
        closed: Exception | None = None
        while True:
            found = self._reader(view, offset, isolation, skip)
            before = offset
            cut: OffsetOutOfRangeError | None = None
            try:
                for record in reader.read_records(view, offset, end, found, skip=skip):
                    offset = record.offset + 1
                    yield record
                if not found.ended:
                    offset = max(offset, end)
            except OffsetOutOfRangeError as error:
                cut = error
            has_moved = cut is not None or offset > before
            if closed is not None and not has_moved:
                raise closed.with_traceback(None)
            yield Turn(view, has_moved)
            # Before the look, which then sees everything that the log had when it was
            # closed.
            closed = None if self._writer is None else self._writer.closed
            now = self._source.look()
            if closed is not None and not now.segments and view.segments:
                # Its writer has released the files; those of this view still exist, and
                # are those of the log up to the lowest cut since.
                low = now.cuts.lowest_since(view.cuts.serial)
                end = min(now.end_offset, view.segments[-1].next_offset, low)
                durable = min(end, now.durable_offset)
                now = now._replace(
                    segments=view.segments, end_offset=end, durable_offset=durable
                )
            if cut is not None and (now.life, now.cuts.serial) == (
                view.life,
                view.cuts.serial,
            ):
                raise cut  # it was deleted
            view.check_same(offset, now)
            view = self._view_of(now, durable_only)
            view.check(offset)
            end = view.end_offset
            if isolation == "read_committed" and offset > view.start_offset:
                try:
                    end = min(end, self._stable_of(view, offset, skip))
                except ChangedError:
                    end = offset  # the next look sees it

    def _await(self, view: View, durable_only: bool, seconds: float) -> None:
        """Sleep until there may be more than in a view."""
        writer = self._writer
        if writer is None:
            time.sleep(seconds)
        else:
            writer.wait_for_more(lambda: self.has_more(view, durable_only), seconds)

    @property
    def appended(self) -> Signal | None:
        """Set when there may be more to read; None if another process writes."""
        return None if self._writer is None else self._writer.appended

    def has_more(self, view: View, durable_only: bool) -> bool:
        """Whether there may be more than in a view, in the store that writes it."""
        writer = self._writer
        if writer is None or writer.closed is not None:
            return True
        end = writer.durable_offset if durable_only else writer.high_watermark
        is_cut = writer.cuts.serial != view.cuts.serial
        return is_cut or max(writer.start_offset, end) != view.end_offset

    def fetch(
        self,
        offset: int,
        max_bytes: int = 1 << 20,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
        limit: int | None = None,
    ) -> Chunk:
        """The records of one buffer: whole batches from the one that holds `offset`.

        A buffer of `max_bytes` is filled from the file; a batch that extends past its
        end is left for the next call. The buffer is doubled until a batch fits. With
        `limit`, iterating gives at most `limit` records, and `next_offset` is the
        offset after them; `buffer` still holds whole batches.

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
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        offset = as_offset("offset", offset)
        limit, skip = as_limit(limit), on_corruption == "skip"

        def fetched() -> Chunk:
            view, first, end = self._bounds(
                offset, None, durable_only, isolation, skip=skip, to_stable=True
            )
            wanted = self._wanted(view, first, isolation, skip)
            chunk = fetch(view, first, end, max_bytes, skip=skip, wanted=wanted)
            return chunk if limit is None else chunk.first(limit)

        return _unchanged(fetched)

    def read_batches(
        self,
        start: Start = None,
        stop: Start = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
        limit: int | None = None,
    ) -> Iterator[RecordBatch]:
        """The batches as they are on disk; the first one holds `start`.

        Control batches are among them, unless ``isolation="read_committed"``, which
        also leaves out those of aborted transactions. With `limit`, the last batch is
        the one that holds the last of the `limit` records. Raises: as `read`.
        """
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        limit = as_limit(limit)
        skip = on_corruption == "skip"
        view, first, end = self._bounds(start, stop, durable_only, isolation, skip=skip)
        wanted = self._wanted(view, first, isolation, skip)
        batches = reader.read_batches(view, first, end, skip=skip, wanted=wanted)
        return reader.first_batches(batches, limit, first)

    def read_arrow(
        self,
        start: Start = None,
        stop: Start = None,
        columns: Sequence[str] = ("offset", "timestamp", "key", "value"),
        batch_records: int = 65536,
        *,
        threads: int = 1,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
        limit: int | None = None,
    ) -> pyarrow.RecordBatchReader:
        """The records as a ``pyarrow.RecordBatchReader``.

        Args:
            start, stop, durable_only, isolation, on_corruption, limit: as in `read`.
            columns: which, of offset (int64), timestamp (timestamp[ms, UTC], null in
                magic 0), key, value (binary), timestampType (int32), headers
                (list<struct<key: string, value: binary>>).
            batch_records: records in each batch, at most.
            threads: how many read at the same time, 1 to 64; the order stays the same.
                With `limit`, one reads.

        Raises: as `read`; damage is raised after the batches before it.
        """
        arrow = arrow_module()
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        names = arrow.check_columns(as_items("columns", columns, of="names"))
        limit = as_limit(limit)
        batch_records = as_integer("batch_records", batch_records, "a number (int)")
        if not 1 <= batch_records <= 1 << 24:
            raise ConfigError(
                f"batch_records={batch_records} is outside [1, {1 << 24}]",
                name="batch_records",
                value=batch_records,
            )
        if threads != 1:
            frames_module("stream").usable_threads(threads)
            if limit is None:
                log = self._log_of(start, stop, durable_only, isolation, on_corruption)
                found = frames_module("interchange")
                return found.read_arrow([log], names, batch_records, threads)
        skip = on_corruption == "skip"
        view, first, end = self._bounds(start, stop, durable_only, isolation, skip=skip)
        found = self._reader(
            view,
            first,
            isolation,
            skip,
            with_headers="headers" in names,
            limit=limit,
        )
        runs = reader.read_columns(view, first, end, found, skip=skip)
        return arrow.reader_of(names, batch_records, reader.first_columns(runs, limit))

    def _log_of(
        self,
        start: Start,
        stop: Start,
        durable_only: bool,
        isolation: str,
        on_corruption: str,
    ) -> Log:
        """This partition as a scan of data frames sees it, as of now."""
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)
        skip = on_corruption == "skip"
        view, first, end = self._bounds(
            start, stop, durable_only, isolation, to_stable=True, skip=skip
        )

        def make_reader(offset: int, with_headers: bool) -> ChunkReader:
            return self._reader(
                view, offset, isolation, skip, with_headers=with_headers
            )

        return Log(self._topic, self._number, view, first, end, make_reader, skip)

    def __arrow_c_schema__(self) -> object:
        """The columns of `__arrow_c_stream__`, as a PyCapsule."""
        found = frames_module("interchange")
        return found.exported_schema(("offset", "timestamp", "key", "value"))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """All records as an Arrow stream, in a PyCapsule: with it ``pa.table(p)``,
        ``pl.DataFrame(p)``, ``pd.DataFrame.from_arrow(p)`` and DuckDB read a partition
        directly. Each call reads the log again, as it is then, in several threads.

        Args:
            requested_schema: a PyCapsule with the columns, and types, that the consumer
                would like; None: offset, timestamp, key, value.

        Raises: as `read_arrow`; the consumer raises an error met while reading, as its
        own error with the same text.
        """
        found = frames_module("interchange")
        return found.exported_stream(
            lambda names: found.read_arrow(
                [self._log_of(None, None, False, "read_uncommitted", "raise")], names
            ),
            ("offset", "timestamp", "key", "value"),
            requested_schema,
        )

    def to_dataset(
        self,
        *,
        threads: int | None = None,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
    ) -> pyarrow.dataset.Dataset:
        """The records as a ``pyarrow.dataset.Dataset``. Each scan reads them as they
        are then: only the columns that a query needs, and only the segments, and parts
        of them, that its conditions on offset, timestamp (from below), partition and
        topic select. DuckDB, Polars (``pl.scan_pyarrow_dataset``) and pyarrow push both
        down.

        Its columns are those of `read_arrow`, and topic (string), partition (int32).

        Args:
            threads: how many read at the same time, 1 to 64; None: one for each
                processor, 8 at most.
            durable_only, isolation, on_corruption: as in `read`.
        """
        check_choice("isolation", isolation, ISOLATIONS)
        check_choice("on_corruption", on_corruption, ON_CORRUPTION)

        def logs() -> list[Log]:
            return [self._log_of(None, None, durable_only, isolation, on_corruption)]

        return frames_module("dataset").LogDataset(logs, self._name, threads)

    def offset_for_time(self, timestamp_ms: int | Time) -> int | None:
        """The first offset whose record has a timestamp at or after this; None: none.

        "First" by offset: timestamps need not rise along the log.

        Args:
            timestamp_ms: Unix milliseconds, or a time as in `read`.
        """
        timestamp_ms = as_time_ms("timestamp_ms", timestamp_ms)
        return _unchanged(
            lambda: reader.first_offset_at(self._view(False), timestamp_ms)
        )

    def last_stable_offset(self) -> int:
        """First offset of the oldest open transaction, or the end (Kafka's LSO)."""
        return _unchanged(lambda: self._stable_of(self._view(False), 0, False))

    # ------------------------------------------------------------ keep and delete

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
            view = self._view(False)
            view.check(offset)
            return None if offset == view.end_offset else self._boundary(view, offset)

        return writer.truncate_to(offset, find)

    def _boundary(self, view: View, offset: int) -> tuple[int, int]:
        """(index of the segment, position) at which the batch of `offset` begins."""
        for batch in reader.read_batches(view, offset, view.end_offset):
            if batch.base_offset < offset:
                raise UnsupportedError(
                    f"{self._name} cannot be truncated to {offset}: it is inside the "
                    f"batch of offsets {batch.base_offset} to {batch.last_offset}. The "
                    f"nearest that can be are {batch.base_offset} and "
                    f"{batch.next_offset}",
                    offset=offset,
                )
            segment = view.from_offset(batch.base_offset)[0]
            return view.segments.index(segment), batch.position
        raise OffsetOutOfRangeError(
            offset, view.start_offset, view.end_offset, partition=self._name
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
        self._check_alive()
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
        return as_integer("now_ms", now_ms, "milliseconds (int)")

    def apply_due_retention(self) -> None:
        """Apply the retention of the settings, for the background of the store. If
        nothing can be due, it examines only the oldest segment."""
        self._check_alive()
        segments, now_ms = self._refreshed().segments, self._now_ms(None)
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
        log = self._refreshed()
        infos = _infos(log.segments, log.high_watermark)
        try:
            free_bytes = log.free_bytes()
        except OSError as error:
            raise storage_error(error, "look for space on", self.path) from error
        deletions = retention.plan(self._number, infos, policies, now_ms, free_bytes)
        if deletions and self._writer is not None and not dry_run:
            self._writer.delete_before(
                max(deletions[-1].segment.next_offset, self.start_offset),
                deletions[-1].reason,
            )
        return deletions


def _unchanged(ask: Callable[[], _Found]) -> _Found:
    """The result of a call that returns everything at once. If the log is changed
    during the call, nothing is lost: the call is repeated on the log as it is then."""
    while True:
        with contextlib.suppress(ChangedError):
            return ask()


def _infos(segments: Sequence[Segment], end: int) -> tuple[SegmentInfo, ...]:
    # Without those of a publication in progress.
    shown = [s for s in segments[1:] if s.base_offset <= end]
    segments = [*segments[:1], *shown]
    last = len(segments) - 1
    return tuple(
        segment.info(
            end if index == last else segments[index + 1].base_offset,
            is_active=index == last,
        )
        for index, segment in enumerate(segments)
    )
