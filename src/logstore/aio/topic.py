"""A topic for tasks of asyncio."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from logstore.aio.blocking import same
from logstore.aio.commits import Ends
from logstore.aio.follower import Follower, SomePartitions
from logstore.aio.partition import Partition, Services
from logstore.aio.wakes import FollowedPlace
from logstore.config import TopicConfig
from logstore.log.read.corruption import OnCorruption
from logstore.log.read.options import ReadOptions
from logstore.log.retention import RetentionPolicy, SegmentDeletion
from logstore.log.write.calls import OutdatedChoiceError
from logstore.record.arguments import as_timeout
from logstore.record.encoder import as_bytes, check_payload_type
from logstore.record.partitioner import Partitioner
from logstore.record.record import RecordMetadata, TopicRecord
from logstore.store.partition.partition import Partition as BlockingPartition
from logstore.store.topic import merging, routing
from logstore.store.topic.topic import Topic as BlockingTopic
from logstore.store.topic.topic import TopicStart, context_of

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Topic"]

_Appended = tuple[tuple[int, range], ...]


class Topic:
    """A named set of partitions, for tasks of one event loop. Made by
    `logstore.aio.Store`.

    Calls that wait are awaited. Calls that only read are plain methods, as in
    `logstore.Topic`.

    Attributes:
        blocking: the `logstore.Topic`, whose methods block the thread.
    """

    __slots__ = ("__weakref__", "_partition_of", "_services", "blocking")

    def __init__(
        self,
        services: Services,
        blocking: BlockingTopic,
        partition_of: Callable[[BlockingPartition], Partition],
    ) -> None:
        self.blocking = blocking
        self._services = services
        self._partition_of = partition_of

    def __repr__(self) -> str:
        return repr(self.blocking).replace("logstore.", "logstore.aio.", 1)

    @property
    def name(self) -> str:
        """Name given to `Store.create_topic`."""
        return self.blocking.name

    @property
    def id(self) -> str:
        """See `logstore.Topic.id`."""
        return self.blocking.id

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its partitions, in order; examines none of them."""
        return self.blocking.numbers

    @property
    def config(self) -> TopicConfig:
        """Its settings; as `logstore.Topic.config`."""
        return self.blocking.config

    @property
    def stored_config(self) -> TopicConfig | None:
        """The settings that it was given; as `logstore.Topic.stored_config`."""
        return self.blocking.stored_config

    @property
    def partitioner(self) -> Partitioner:
        """Chooses the partition of `append`; may be replaced."""
        return self.blocking.partitioner

    @partitioner.setter
    def partitioner(self, partitioner: Partitioner) -> None:
        self.blocking.partitioner = partitioner

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """All partitions, in the order of their numbers."""
        return tuple(map(self._partition_of, self.blocking.partitions))

    def __getitem__(self, number: int) -> Partition:
        """The partition of this number: the same object while it is in use.

        It is opened if it was not used before, which takes the time of a few system
        calls; if the store is read-only, also that of reading the end of the log.

        Raises:
            PartitionNotFoundError: the topic has no such partition.
        """
        return self._partition_of(self.blocking[number])

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    __len__ = same(BlockingTopic.__len__)
    __arrow_c_schema__ = same(BlockingTopic.__arrow_c_schema__)
    __arrow_c_stream__ = same(BlockingTopic.__arrow_c_stream__)
    read = same(BlockingTopic.read)
    read_arrow = same(BlockingTopic.read_arrow)
    _repr_html_ = same(BlockingTopic._repr_html_)
    to_dataset = same(BlockingTopic.to_dataset)
    to_table = same(BlockingTopic.to_table)
    to_pandas = same(BlockingTopic.to_pandas)
    to_polars = same(BlockingTopic.to_polars)
    head = same(BlockingTopic.head)

    # ------------------------------------------------------------ appends

    async def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        partition: int | None = None,
        durable: bool = False,
    ) -> RecordMetadata:
        """Append one record to the partition that the partitioner chooses; see
        `Partition.append`.

        Args, Raises: as `logstore.Topic.append`; `EventLoopError`.
        """
        self._services.check()
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        topic = self.blocking
        while (hand_in := context_of(topic).hand_in) is not None:
            stamp = hand_in.now_ms() if timestamp_ms is None else timestamp_ms
            with contextlib.suppress(OutdatedChoiceError):
                return await self._append_shared(value, key, stamp, headers, partition)
        if partition is None:
            size = routing.length_of(value) + routing.length_of(key)
            key_bytes = key if key is None else bytes(key)
            partition = routing.chosen(
                topic.name, topic.partitioner, topic.numbers, key_bytes, size
            )
        offset, stored = await self[partition].append_stamped(
            value, key, timestamp_ms, headers, durable
        )
        return RecordMetadata(self.name, partition, offset, stored)

    async def _append_shared(
        self,
        value: Any,
        key: Any,
        stamp: int,
        headers: Any,
        partition: int | None,
    ) -> RecordMetadata:
        """`append` of a shared store: the owner checks the number of partitions."""
        topic, chosen_of = self.blocking, dict[str, int]()
        value, key = as_bytes(value), as_bytes(key)
        if partition is None:
            numbers = topic.numbers
            chosen_of[topic.name] = len(numbers)
            size = len(value or b"") + len(key or b"")
            partition = routing.chosen(
                topic.name, topic.partitioner, numbers, key, size
            )
        target = self[partition]
        row = (value,), (key,), (stamp,), (tuple(headers),) if headers else None
        span = await target.append_shared(row, None, chosen_of)
        is_stamped = target.config.message_timestamp_type == "LogAppendTime"
        stored = -1 if is_stamped else stamp
        return RecordMetadata(topic.name, partition, span.start, stored)

    async def append_many(
        self,
        values: Iterable[ReadableBuffer | None],
        keys: Iterable[ReadableBuffer | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        partition: int | None = None,
        durable: bool = False,
    ) -> _Appended:
        """Append records to the partitions that the partitioner chooses, record by
        record. A thread does it, and calls the partitioner; with `durable`, it shares
        the syncs of other tasks.

        Args, Returns, Raises: as `logstore.Topic.append_many`; `EventLoopError`.
        """
        self._services.check()
        # The caller may change its lists while the thread works.
        columns = routing.columns_of(values, keys, timestamps_ms, headers)
        call = partial(self.blocking.append_many, *columns, partition=partition)
        return await self._appended(call, durable)

    async def append_arrow(
        self, data: Any, *, partition: int | None = None, durable: bool = False
    ) -> _Appended:
        """Append a ``pyarrow`` RecordBatch, Table or RecordBatchReader; see
        `append_many`.

        Args, Returns, Raises: as `logstore.Topic.append_arrow`; `EventLoopError`.
        """
        self._services.check()
        call = partial(self.blocking.append_arrow, data, partition=partition)
        return await self._appended(call, durable)

    async def _appended(
        self, call: Callable[[], _Appended], durable: bool
    ) -> _Appended:
        def ends(appended: _Appended) -> Ends:
            if not durable:
                return ()
            return [(self.blocking[number], span.stop) for number, span in appended]

        return await self._services.commits.call(call, ends)

    async def flush(self) -> None:
        """Return when everything appended so far to any partition is on stable storage;
        as `logstore.Topic.flush`."""
        await self._services.run(self.blocking.flush)

    # ------------------------------------------------------------ following

    def follow(
        self,
        start: TopicStart = None,
        timeout: float | None = None,
        *,
        order: str = "time",
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Follower[TopicRecord]:
        """The records of all partitions, then records appended later to any of them, by
        any process: an asynchronous iterator; see `Partition.follow`. Added partitions
        are followed, too, from their start on, within a second.

        Args, Raises: as `logstore.Topic.follow`; `EventLoopError`.
        """
        merging.check_order(order)
        timeout = as_timeout(timeout)
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        starts = merging.per_partition("start", start, self.blocking.partitions)

        def partitions() -> list[tuple[BlockingPartition, FollowedPlace]]:
            return [(each.blocking, each.place) for each in self.partitions]

        followed = SomePartitions(partitions, starts, order, options)
        return Follower(self._services.binding, followed, timeout, options.limit)

    # ------------------------------------------------------------ other changes

    async def configure(self, config: TopicConfig) -> None:
        """Replace the settings permanently; as `logstore.Topic.configure`."""
        await self._services.run(self.blocking.configure, config)

    async def add_partitions(self, count: int) -> int:
        """Add `count` partitions and return how many there are now."""
        return await self._services.run(self.blocking.add_partitions, count)

    async def apply_retention(
        self,
        now_ms: int | None = None,
        dry_run: bool = False,
        policies: Sequence[RetentionPolicy] | None = None,
    ) -> list[SegmentDeletion]:
        """Delete the segments that the topic's settings (or `policies`) select; as
        `logstore.Topic.apply_retention`."""
        return await self._services.run(
            self.blocking.apply_retention, now_ms, dry_run, policies
        )
