"""A partition for tasks of asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from logstore.aio.blocking import same
from logstore.aio.commits import Commits, Ends, Line
from logstore.aio.follower import Follower, OnePartition
from logstore.aio.loops import Binding
from logstore.aio.wakes import FollowedPlace, Wakes
from logstore.config import TopicConfig
from logstore.log.compact.compactor import CompactionProgress, CompactionReport
from logstore.log.read.corruption import OnCorruption
from logstore.log.read.options import ReadOptions
from logstore.log.retention import RetentionPolicy, SegmentDeletion
from logstore.record.arguments import Start, as_timeout
from logstore.record.encoder import (
    Column,
    as_bytes,
    as_column,
    as_columns,
    check_payload_type,
    check_timestamp,
    pack_rows,
)
from logstore.record.extras import arrow_module
from logstore.record.record import Record
from logstore.segment import SegmentInfo
from logstore.store.partition.partition import Partition as BlockingPartition
from logstore.store.partition.partition import appends_of
from logstore.store.partition.shared_appends import SharedAppends, begin_append

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Partition", "Services", "fixed_columns"]

_Result = TypeVar("_Result")

# More records than this are packed by the thread.
_PACKED_MAX = 1024


class Services:
    """The parts that all partitions of a store share.

    Attributes:
        binding: the event loop.
        commits: the group commit.
        wakes: wakes followers.
        run: makes a blocking call in another thread.
        check: raises unless the store can be used.
    """

    def __init__(
        self,
        binding: Binding,
        commits: Commits,
        wakes: Wakes,
        check: Callable[[], None],
    ) -> None:
        self.binding = binding
        self.commits = commits
        self.wakes = wakes
        self.check = check

    async def run(self, call: Callable[..., _Result], *args: Any) -> _Result:
        """Make a blocking call in another thread. It is completed if the
        task is cancelled, also if it still waits for a thread then."""
        self.check()
        made = self.binding.loop().run_in_executor(None, partial(call, *args))
        return await asyncio.shield(made)


class Partition:
    """One partition of a topic, for tasks of one event loop. Made by
    `logstore.aio.Store`.

    Calls that wait are awaited. Calls that only read are plain methods, as in
    `logstore.Partition`: a read of 256 KiB takes less time than a change of threads. A
    read of much that is not in the page cache can be left to ``asyncio.to_thread``.

    Appends that the tasks of a loop begin on a partition are in the log in the order in
    which they began, except appends by `Topic.append_many`.

    Attributes:
        blocking: the `logstore.Partition`, whose methods block the thread.
    """

    __slots__ = (
        "__weakref__",
        "_append",
        "_appends",
        "_line",
        "_place",
        "_services",
        "blocking",
    )

    def __init__(self, services: Services, blocking: BlockingPartition) -> None:
        self.blocking = blocking
        self._services = services
        self._appends = appends_of(blocking)
        self._append = self._appends.append_prepared
        # Appends that the thread has not finished: later ones come after them.
        self._line = Line()
        self._place: FollowedPlace | None = None

    def __repr__(self) -> str:
        return f"<logstore.aio.Partition {self.name} at {self.path}>"

    # ------------------------------------------------------------ passed through

    @property
    def config(self) -> TopicConfig:
        """The settings of its topic."""
        return self.blocking.config

    @property
    def topic(self) -> str:
        """Name of its topic."""
        return self.blocking.topic

    @property
    def topic_id(self) -> str:
        """Distinguishes the topics that have had its name."""
        return self.blocking.topic_id

    @property
    def number(self) -> int:
        """Its number in the topic, from 0."""
        return self.blocking.number

    @property
    def name(self) -> str:
        """``topic-number``, the name of its directory."""
        return self.blocking.name

    @property
    def path(self) -> str:
        """Absolute path of its directory."""
        return self.blocking.path

    @property
    def start_offset(self) -> int:
        """First offset that can be read."""
        return self.blocking.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last record that can be read."""
        return self.blocking.end_offset

    @property
    def durable_offset(self) -> int:
        """Everything below it is on stable storage."""
        return self.blocking.durable_offset

    @property
    def segments(self) -> tuple[SegmentInfo, ...]:
        """Its segments, in order."""
        return self.blocking.segments

    __len__ = same(BlockingPartition.__len__)
    __bool__ = same(BlockingPartition.__bool__)
    __arrow_c_schema__ = same(BlockingPartition.__arrow_c_schema__)
    __arrow_c_stream__ = same(BlockingPartition.__arrow_c_stream__)
    read = same(BlockingPartition.read)
    get = same(BlockingPartition.get)
    fetch = same(BlockingPartition.fetch)
    read_batches = same(BlockingPartition.read_batches)
    read_arrow = same(BlockingPartition.read_arrow)
    _repr_html_ = same(BlockingPartition._repr_html_)
    to_dataset = same(BlockingPartition.to_dataset)
    to_table = same(BlockingPartition.to_table)
    to_pandas = same(BlockingPartition.to_pandas)
    to_polars = same(BlockingPartition.to_polars)
    head = same(BlockingPartition.head)
    offset_for_time = same(BlockingPartition.offset_for_time)
    last_stable_offset = same(BlockingPartition.last_stable_offset)

    # ------------------------------------------------------------ appends

    async def append(
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

        With `durable`, all tasks that wait share one sync. The record itself is
        appended before the event loop continues, unless that has to wait (for a sync, a
        new segment, another thread), or `expected_offset` is given, or more than 16 KiB
        must be compressed: then a thread does it.

        If the task is cancelled, the record is wholly in the log or not at all. It is
        not if the task had not begun; it may be, and is durable by ``flush_ms``, if it
        had.

        Args, Raises: as `logstore.Partition.append`; `EventLoopError`.
        """
        self._services.check()
        if not headers and expected_offset is None and not self._line.count:
            offset = self._at_once(self._append, value, key, timestamp_ms)
            if offset >= 0:
                if durable:
                    await self._services.commits.sync(self.blocking, offset + 1)
                return offset
        # The caller may change mutable arguments while a thread works.
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        value, key = as_bytes(value), as_bytes(key)
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        headers = _fixed_headers(headers)
        if isinstance(self._appends, SharedAppends):
            row = (value,), (key,), (timestamp_ms,), (headers,) if headers else None
            return (await self.append_shared(row, expected_offset)).start
        if expected_offset is None and not self._line.count:
            keys = None if key is None else (key,)
            stamps = None if timestamp_ms is None else (timestamp_ms,)
            columns = (value,), keys, stamps, (headers,) if headers else None
            offsets = self._at_once(self._appends.rows_at_once, *columns)
            if offsets is not None:
                return await self._committed(offsets.start, offsets.stop, durable)
        call = partial(
            self.blocking.append,
            value,
            key,
            timestamp_ms=timestamp_ms,
            headers=headers,
            expected_offset=expected_offset,
        )
        return await self.in_turn(call, lambda offset: offset + 1, durable)

    async def append_stamped(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        headers: Any,
        durable: bool,
    ) -> tuple[int, int]:
        """Same as `append`, for `Topic`; returns (offset, timestamp stored)."""
        self._services.check()
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        stamps = self._appends.stamps(timestamp_ms)
        if stamps is not None:
            stamp, stored = stamps
            offset = await self.append(
                value, key, timestamp_ms=stamp, headers=headers, durable=durable
            )
            return offset, stored
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        call = partial(
            self._appends.append_stamped,
            as_bytes(value),
            as_bytes(key),
            timestamp_ms,
            _fixed_headers(headers),
            False,
        )
        return await self.in_turn(call, lambda done: done[0] + 1, durable)

    async def append_shared(
        self,
        columns: tuple[Any, Any, Any, Any],
        expected_offset: int | None = None,
        chosen_of: Mapping[str, int] = MappingProxyType({}),
    ) -> range:
        """Append columns of records to a partition of a shared store, for `Topic`. All
        records that tasks hand in at the same time are written in one commit.

        Raises:
            OutdatedChoiceError: a topic has not as many partitions as `chosen_of` says.
        """
        appends = self._appends
        assert isinstance(appends, SharedAppends)
        rows = pack_rows(*columns, magic=appends.magic)
        mine = {self.number: (appends, [rows])}
        now = time.monotonic()
        begin = partial(begin_append, mine, chosen_of, expected_offset, now)
        appended = await self._services.commits.begin(begin, self._line)
        return appended[0][1] if appended else range(0)

    async def append_many(
        self,
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append records, all or none, and return their offsets; see `append`.

        More than 256 KiB are appended by a thread.

        Args, Raises: as `logstore.Partition.append_many`; `EventLoopError`.
        """
        self._services.check()
        is_free = expected_offset is None and not self._line.count
        if headers is None and is_free:
            append_many = self._appends.prepared.append_many
            offsets = self._at_once(append_many, values, keys, timestamps_ms)
            if offsets is not None:
                return await self._committed(offsets, offsets.stop, durable)
        columns = fixed_columns(values, keys, timestamps_ms, headers)
        if isinstance(self._appends, SharedAppends):
            return await self.append_shared(columns, expected_offset)
        if is_free and 0 < len(columns[0]) <= _PACKED_MAX:
            offsets = self._at_once(self._appends.rows_at_once, *columns)
            if offsets is not None:
                return await self._committed(offsets, offsets.stop, durable)
        call = partial(
            self.blocking.append_many, *columns, expected_offset=expected_offset
        )
        return await self.in_turn(call, _stop_of, durable)

    async def append_arrow(
        self, data: Any, *, expected_offset: int | None = None, durable: bool = False
    ) -> range:
        """Append a ``pyarrow`` RecordBatch, Table or RecordBatchReader, all or none;
        see `append`.

        Args, Raises: as `logstore.Partition.append_arrow`; `EventLoopError`.
        """
        self._services.check()
        if expected_offset is None and not self._line.count:
            batch = arrow_module().exported(data)
            if batch is not None:
                append_arrow = self._appends.prepared.append_arrow
                offsets = self._at_once(append_arrow, *batch)
                if offsets is not None:
                    return await self._committed(offsets, offsets.stop, durable)
        call = partial(
            self.blocking.append_arrow, data, expected_offset=expected_offset
        )
        return await self.in_turn(call, _stop_of, durable)

    async def append_batches(
        self,
        buffer: ReadableBuffer,
        *,
        check_producers: bool = True,
        transactions: bool = False,
        expected_offset: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append whole Kafka batches as a producer sends them; see `append`.

        Args, Raises: as `logstore.Partition.append_batches`; `EventLoopError`.
        """
        self._services.check()
        data = bytes(memoryview(buffer))
        if expected_offset is None and not self._line.count:
            append_batches = self._appends.prepared.append_batches
            offsets = self._at_once(append_batches, data, bool(check_producers))
            if offsets is not None:
                return await self._committed(offsets, offsets.stop, durable)
        call = partial(
            self.blocking.append_batches,
            data,
            check_producers=check_producers,
            transactions=transactions,
            expected_offset=expected_offset,
        )
        return await self.in_turn(call, _stop_of, durable)

    async def flush(self) -> None:
        """Return when everything appended so far is on stable storage. Tasks that wait
        share one sync.

        Raises: as `logstore.Partition.flush`; `EventLoopError`.
        """
        self._services.check()
        call = self._appends.next_offset
        await self.in_turn(call, lambda end: end, True)

    def _at_once(self, append: Callable[..., _Result], *args: Any) -> _Result:
        """Call `append`, and wake the followers that wait in this loop: if the log had
        to wake a follower, each append would wait for the follower's lock."""
        self._services.binding.loop()
        place = self._place
        if place is None or not place.take_bell():
            return append(*args)
        try:
            return append(*args)
        finally:
            place.wake()

    async def _committed(self, result: _Result, end: int, durable: bool) -> _Result:
        """The result of an append, after the sync if `durable` is set."""
        if durable:
            await self._services.commits.sync(self.blocking, end)
        return result

    async def in_turn(
        self, call: Callable[[], _Result], end: Callable[[_Result], int], durable: bool
    ) -> _Result:
        """Let the thread append, after the appends that it was given before, for
        `Producer`."""

        def ends(result: _Result) -> Ends:
            return ((self.blocking, end(result)),) if durable else ()

        return await self._services.commits.call(call, ends, self._line)

    # ------------------------------------------------------------ following

    @property
    def place(self) -> FollowedPlace:
        """Place where its followers wait, for `Topic`."""
        if self._place is None:
            self._place = self._services.wakes.place_of(self.blocking)
        return self._place

    def follow(
        self,
        start: Start = None,
        timeout: float | None = None,
        *,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Follower[Record]:
        """The records from `start` on, then records appended later, by any process: an
        asynchronous iterator.

        It needs no thread, and wakes when there is something to read. It lets other
        tasks run after 256 records. A task that is cancelled while it waits loses no
        record: iterate over the same object again.

        Args, Raises: as `logstore.Partition.follow`; `EventLoopError`.
        """
        timeout = as_timeout(timeout)
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        followed = OnePartition(self.blocking, self.place, start, options)
        return Follower(self._services.binding, followed, timeout, options.limit)

    # ------------------------------------------------------------ other changes

    async def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        await self._services.run(self.blocking.roll)

    async def delete_before(self, offset: int) -> int:
        """Make `offset` the start of the log and return it; as
        `logstore.Partition.delete_before`."""
        return await self._services.run(self.blocking.delete_before, offset)

    async def truncate_to(self, offset: int) -> int:
        """Remove every record from `offset` on and return the new end; as
        `logstore.Partition.truncate_to`."""
        return await self._services.run(self.blocking.truncate_to, offset)

    async def apply_retention(
        self,
        now_ms: int | None = None,
        dry_run: bool = False,
        policies: Sequence[RetentionPolicy] | None = None,
    ) -> list[SegmentDeletion]:
        """Delete the segments that the topic's settings (or `policies`) select; as
        `logstore.Partition.apply_retention`."""
        return await self._services.run(
            self.blocking.apply_retention, now_ms, dry_run, policies
        )

    async def compact(
        self,
        *,
        force: bool = False,
        max_memory: int = 64 << 20,
        max_bytes_per_s: int | None = None,
        now_ms: int | None = None,
        dry_run: bool = False,
        on_progress: Callable[[CompactionProgress], None] | None = None,
    ) -> CompactionReport:
        """Remove the records that a later one of the same key supersedes; as
        `logstore.Partition.compact`. `on_progress` is called in another thread."""
        return await self._services.run(
            partial(
                self.blocking.compact,
                force=force,
                max_memory=max_memory,
                max_bytes_per_s=max_bytes_per_s,
                now_ms=now_ms,
                dry_run=dry_run,
                on_progress=on_progress,
            )
        )


def _stop_of(offsets: range) -> int:
    return offsets.stop


def _fixed_headers(
    headers: Any,
) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of a record, which do not change any more. The append refuses what is
    no header."""
    if not headers:
        return ()
    fixed = []
    for pair in as_column(headers, "headers", "(str, bytes | None) pairs"):
        try:
            name, value = pair
        except (TypeError, ValueError):
            fixed.append(pair)
            continue
        is_payload = isinstance(value, (bytearray, memoryview))
        fixed.append((name, bytes(value) if is_payload else value))
    return tuple(fixed)


def fixed_columns(
    values: Any, keys: Any, timestamps_ms: Any, headers: Any
) -> tuple[Column, Column | None, Column | None, Column | None]:
    """Copy the arguments of `append_many`, so that the caller cannot change them."""
    value_list, key_list, stamps, header_list = as_columns(
        values, keys, timestamps_ms, headers
    )
    if key_list is not None:
        key_list = _fixed_payloads(key_list, "key")
    if header_list is not None:
        header_list = tuple(_fixed_headers(each) for each in header_list)
    return _fixed_payloads(value_list, "value"), key_list, stamps, header_list


def _fixed_payloads(column: Column, what: str) -> Column:
    if {bytes, type(None)}.issuperset(map(type, column)):
        return column
    for index, item in enumerate(column):
        check_payload_type(item, what, index)
    return tuple(map(as_bytes, column))
