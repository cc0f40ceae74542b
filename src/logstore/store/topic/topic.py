"""A topic: its partitions, and the choice among them.

`routing` distributes records over them, `merging` combines them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from logstore.config import PARTITIONS_MAX, TopicConfig, check_int
from logstore.errors import (
    LogStoreError,
    PartitionNotFoundError,
    StoreClosedError,
    TopicNotFoundError,
)
from logstore.log import retention
from logstore.log.read.corruption import OnCorruption
from logstore.log.read.options import ReadOptions
from logstore.log.write.calls import OutdatedChoiceError
from logstore.record.arguments import (
    Start,
    as_items,
    as_timeout,
    refuse_pickling,
)
from logstore.record.encoder import check_payload_type
from logstore.record.extras import frames_module
from logstore.record.partitioner import KafkaPartitioner, Partitioner
from logstore.record.record import RecordMetadata, TopicRecord
from logstore.store.catalog.topic_settings import TopicSettings
from logstore.store.partition.arrow_source import ArrowSource
from logstore.store.partition.partition import Partition, appends_of, reads_of
from logstore.store.partition.shared_appends import HandInCalls
from logstore.store.topic import merging, routing

if TYPE_CHECKING:
    import pyarrow
    from _typeshed import ReadableBuffer

    from logstore.log.frames.log import Log

__all__ = ["Changes", "Topic", "context_of"]

TopicStart: TypeAlias = "Start | Mapping[int, Start]"


class Changes(Protocol):
    """Changes topics."""

    def configure(self, name: str, config: TopicConfig) -> None: ...

    def grow(self, name: str, count: int) -> int: ...


class TopicContext(Protocol):
    """The part of its store that a topic needs."""

    changes: Changes
    hand_in: HandInCalls | None

    @property
    def path(self) -> str: ...

    def check_open(self) -> None: ...

    def begin_call(self) -> None: ...

    def open_partition(self, topic: str, partition: int) -> Partition: ...

    def partition_numbers(self, topic: str) -> tuple[int, ...]: ...

    def settings_of(self, topic: str) -> TopicSettings: ...

    def topic_id(self, topic: str) -> str: ...


class Topic(ArrowSource):
    """A named set of partitions. Made by `Store`.

    Attributes:
        name: as given to `Store.create_topic`.
        partitioner: chooses the partition of `append`; may be replaced.
    """

    _COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")

    def __init__(self, context: TopicContext, name: str) -> None:
        self._context = context
        self._id = context.topic_id(name)
        self.name = name
        self.partitioner: Partitioner = KafkaPartitioner()

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of its partitions, in order; examines none of them.

        Raises:
            TopicNotFoundError: it was deleted.
        """
        numbers = self._context.partition_numbers(self.name)
        self._check_same()
        return numbers

    @property
    def id(self) -> str:
        """32 hexadecimal digits that no other topic has: it keeps them whatever becomes
        of its files, and a later topic of its name has others. Empty until the first
        append if only Kafka has used the topic, and has given it no id.

        Raises:
            TopicNotFoundError: it was deleted.
        """
        self._context.partition_numbers(self.name)
        self._check_same()
        return self._id

    def is_of(self, topic_id: str) -> bool:
        """Whether it is the topic with an id."""
        return self._id in ("", topic_id)

    def _check_same(self) -> None:
        """Raise if the name is that of another topic now."""
        now = self._context.topic_id(self.name)
        if now != self._id:
            if self._id:
                raise TopicNotFoundError(
                    f"topic {self.name} was deleted and created again: it has the "
                    f"id {now or 'of no logstore topic'}, and this object belongs "
                    f"to the topic with the id {self._id}. Ask the store for the "
                    "topic again",
                    topic=self.name,
                )
            self._id = now  # it has an id only since its first append

    @property
    def config(self) -> TopicConfig:
        """Its settings, with the format in which it is continued: of a topic without
        settings that is looked for in its logs, once."""
        self._check_same()
        return self._context.settings_of(self.name).append_config(self.name)

    @property
    def stored_config(self) -> TopicConfig | None:
        """The settings that it was given; None: only a broker has used it, and it has
        the defaults. No log is read."""
        self._check_same()
        settings = self._context.settings_of(self.name)
        return settings.config(self.name) if settings.has_config(self.name) else None

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, self._context.path, f".topic({self.name!r})")

    def __repr__(self) -> str:
        with contextlib.suppress(LogStoreError):
            return f"<logstore.Topic {self.name} with {len(self)} partitions>"
        return f"<logstore.Topic {self.name}>"  # of a store that is closed

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Its partitions, in the order of their numbers."""
        self._context.check_open()
        return tuple(
            self._context.open_partition(self.name, number) for number in self.numbers
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, number: int) -> Partition:
        """The partition of this number.

        Raises:
            PartitionNotFoundError: the topic has no such partition.
        """
        numbers = self.numbers
        # Usually they are 0, 1, 2, ..., and no search is needed. A float is not the
        # number of a partition, though it may be equal to one.
        is_listed = type(number) is int and 0 <= number < len(numbers)
        is_listed = is_listed and numbers[number] == number
        if not is_listed and not (hasattr(number, "__index__") and number in numbers):
            raise PartitionNotFoundError(
                f"topic {self.name} has no partition {number!r}; it has "
                f"{', '.join(map(str, numbers))}",
                topic=self.name,
                partition=number,
            )
        return self._context.open_partition(self.name, int(number))

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def configure(self, config: TopicConfig) -> None:
        """Replace the settings permanently; data on disk is not changed.

        Raises:
            ReadOnlyError, StorageError.
        """
        self._check_same()
        self._context.changes.configure(self.name, config)

    def add_partitions(self, count: int) -> int:
        """Add `count` partitions and return how many there are now.

        Keys hash to other partitions from then on.
        """
        check_int("count", count, 1, PARTITIONS_MAX)
        self._check_same()
        return self._context.changes.grow(self.name, count)

    def append(
        self,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        partition: int | None = None,
        durable: bool = False,
    ) -> RecordMetadata:
        """Append one record to the partition that the partitioner chooses.

        With a key: Kafka's murmur2. Without: round robin in batches.

        Args:
            partition: overrides the choice.
            others: as `Partition.append`.

        Raises: as `Partition.append`; `PartitionNotFoundError`.
        """
        check_payload_type(value, "value")
        check_payload_type(key, "key")
        if partition is None:
            hand_in = self._context.hand_in
            if hand_in is not None:
                stamp = hand_in.now_ms() if timestamp_ms is None else timestamp_ms
                return _append_shared(self, value, key, stamp, headers)
            size = routing.length_of(value) + routing.length_of(key)
            key_bytes = key if key is None else bytes(key)
            partition = routing.chosen(
                self.name, self.partitioner, self.numbers, key_bytes, size
            )
        appends = appends_of(self[partition])
        offset, stored = appends.append_stamped(
            value, key, timestamp_ms, headers, durable
        )
        return RecordMetadata(self.name, partition, offset, stored)

    def append_many(
        self,
        values: Iterable[ReadableBuffer | None],
        keys: Iterable[ReadableBuffer | None] | None = None,
        timestamps_ms: Iterable[int | None] | None = None,
        headers: Iterable[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        partition: int | None = None,
        durable: bool = False,
    ) -> tuple[tuple[int, range], ...]:
        """Append records to the partitions that the partitioner chooses, record by
        record. Records of one partition keep their order.

        Everything is checked first: if an argument cannot be stored, a record is too
        large, or a partition takes no appends, nothing is written. Only if the disk
        fails or is full between two partitions, or the call is interrupted there, some
        partitions have their records: the error's `appended` says which. For all or
        nothing in that case, too, see `Store.publish`.

        Args:
            values, keys, timestamps_ms, headers: as `Partition.append_many`.
            partition: all go to this one.
            durable: return after the syncs.

        Returns:
            (partition, range of offsets) of each partition that got records, by number.

        Raises: as `Partition.append_many`; `PartitionNotFoundError`.
        """
        columns = routing.columns_of(values, keys, timestamps_ms, headers)

        def append() -> tuple[tuple[int, range], ...]:
            routed, chosen_of = self._routed(columns, partition)
            targets = _targets(self, routed)
            done = routing.append_short(targets, columns, chosen_of)
            return done or routing.append_to(
                targets,
                {
                    number: routing.rows_for(targets[number], columns, routed[number])
                    for number in targets
                },
                durable=bool(durable),
                chosen_of=chosen_of,
            )

        return _while_outdated(append)

    def append_arrow(
        self, data: Any, *, partition: int | None = None, durable: bool = False
    ) -> tuple[tuple[int, range], ...]:
        """Append a ``pyarrow`` RecordBatch, Table or RecordBatchReader.

        Columns as in `Partition.append_arrow`, except that ``partition``, if it is not
        null, is the partition of the record; for the others the partitioner chooses.

        Args and result: as `append_many`.

        Raises: as `append_many` and `Partition.append_arrow`; `ConfigError` for a
        column ``partition`` that has no integers.
        """
        batches = routing.batches_of(data)

        def append() -> tuple[tuple[int, range], ...]:
            chosen_of: dict[str, int] = {}
            if partition is None:
                numbers = self.numbers
                chosen_of = {self.name: len(numbers)}
                partitioner = self.partitioner
                routed = routing.route_arrow(
                    batches,
                    routing.chooser(self.name, partitioner, numbers),
                    numbers if type(partitioner) is KafkaPartitioner else None,
                    lambda number: self[number].number,
                )
            else:
                routed = {self[partition].number: batches}
            targets = _targets(self, routed)
            return routing.append_to(
                targets,
                {
                    number: routing.arrow_rows_for(targets[number], routed[number])
                    for number in targets
                },
                durable=bool(durable),
                chosen_of=chosen_of,
            )

        return _while_outdated(append)

    def _routed(
        self, columns: routing.RecordColumns, partition: int | None
    ) -> tuple[Mapping[int, Sequence[int]], Mapping[str, int]]:
        """The places of the records of each partition, and for how many partitions the
        partitioner has chosen."""
        if partition is not None:
            places = range(len(columns.values))
            return ({self[partition].number: places} if places else {}), {}
        numbers = self.numbers
        routed = routing.route(columns, self.name, self.partitioner, numbers)
        return routed, {self.name: len(numbers)}

    def read(
        self,
        start: TopicStart = None,
        stop: TopicStart = None,
        *,
        order: str = "time",
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: OnCorruption = "raise",
        limit: int | None = None,
    ) -> Iterator[TopicRecord]:
        """The records of all partitions from `start` up to `stop` (exclusive).

        Works on the logs at the time of the call.

        Args:
            start, stop: as in `Partition.read`, for each partition; or a mapping from
                the numbers of partitions to such values: partitions that are not named
                are read from their start, to their end.
            order: "time": of the records that come next in each partition, the oldest
                first; records of one partition keep their order, also if their times do
                not rise. "partition": one partition after the other.
            others: as in `Partition.read`; `limit` counts over all partitions.

        Raises: as `Partition.read`; an error of one partition ends it.
        """
        merging.check_order(order)
        partitions = self.partitions
        # In order of time, each partition has a separate buffer: the more partitions,
        # the smaller.
        share = len(partitions) if order == "time" else 1
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        starts = merging.per_partition("start", start, partitions)
        stops = merging.per_partition("stop", stop, partitions)
        records = [
            merging.labelled(
                partition,
                reads_of(partition).records(
                    starts[partition.number],
                    stops[partition.number],
                    options,
                    share,
                ),
            )
            for partition in partitions
        ]
        return merging.merged(records, order, options.limit)

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
    ) -> Iterator[TopicRecord]:
        """Like `read`, followed by the records appended later to any partition, by any
        process; also to partitions that are added, from their start on.

        Args:
            start: as in `read`. ``{p.number: p.end_offset for p in topic}`` follows
                only new records.
            timeout: end after this many seconds without a record; None: never.
            order: order of the records that exist at each look: see `read`. Records
                appended later are delivered later.

        Raises: as `Partition.follow`.
        """
        merging.check_order(order)
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        partitions = self.partitions
        starts = merging.per_partition("start", start, partitions)
        cursors = {
            partition.number: merging.PartitionPosition(
                partition, starts[partition.number], options
            )
            for partition in partitions
        }

        def added() -> list[merging.PartitionPosition]:
            new = [n for n in self.numbers if n not in cursors]
            for number in new:
                cursors[number] = merging.PartitionPosition(self[number], None, options)
            return list(cursors.values())

        root = partitions[0]._views.log.directory.root
        records = merging.follow(added, root, order, as_timeout(timeout))
        return merging.first_of(records, options.limit)

    def read_arrow(
        self,
        start: TopicStart = None,
        stop: TopicStart = None,
        columns: Sequence[str] = _COLUMNS,
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
        """The records of all partitions as one ``pyarrow.RecordBatchReader``, partition
        by partition; each log is read as of the call.

        Args:
            start, stop: as in `read`.
            columns: as in `Partition.read_arrow`, and topic (string), partition
                (int32).
            batch_records: records in each batch, at most. It ends sooner if its keys
                or its values would have more than 8 MiB.
            view: as in `Partition.read_arrow`.
            threads: how many read at the same time, 1 to 64; the order stays the same.
                With `limit`, or a function as `on_corruption`, one reads.
            durable_only, isolation, on_corruption: as in `Partition.read`.
            limit: records at most, of all partitions together; None: all.
            text, json: as in `Partition.read_arrow`.

        Raises: as `Partition.read_arrow`, when the damaged partition's turn comes.
        """
        interchange = frames_module("interchange")
        options = ReadOptions.of(durable_only, isolation, on_corruption, limit)
        logs = self._logs(start, stop, options)
        if options.policy.asks:
            threads = min(threads, 1)
        reader: pyarrow.RecordBatchReader = interchange.read_arrow(
            logs,
            columns,
            batch_records,
            threads,
            options.limit,
            view=view,
            text=text,
            json=json,
        )
        return reader

    def _logs(
        self, start: TopicStart, stop: TopicStart, options: ReadOptions
    ) -> list[Log]:
        """The partitions as a scan of data frames sees them, as of now."""
        partitions = self.partitions
        starts = merging.per_partition("start", start, partitions)
        stops = merging.per_partition("stop", stop, partitions)
        return [
            partition._views.log_of(
                starts[partition.number], stops[partition.number], options
            )
            for partition in partitions
        ]

    def _logs_now(self, options: ReadOptions) -> list[Log]:
        return self._logs(None, None, options)

    def _table_name(self) -> str:
        return self.name

    def _partitions_now(self) -> Sequence[Any]:
        return self.partitions

    def apply_retention(
        self,
        now_ms: int | None = None,
        dry_run: bool = False,
        policies: Sequence[retention.RetentionPolicy] | None = None,
    ) -> list[retention.SegmentDeletion]:
        """Delete the segments that the topic's settings (or `policies`) select.

        Args:
            now_ms: the time to use, Unix milliseconds; None: now.
            dry_run: only report what would be deleted.
            policies: instead of the policies of `config`.

        Returns:
            The segments that were (or would be) deleted, oldest first within each
            partition.

        Raises:
            LogStoreError: the error of the first partition for which it failed, raised
                after it was applied to all others.
        """
        deletions: list[retention.SegmentDeletion] = []
        if policies is not None:
            policies = list(as_items("policies", policies, of="RetentionPolicy"))

        def apply(partition: Partition) -> None:
            deletions.extend(partition.apply_retention(now_ms, dry_run, policies))

        self._each(apply)
        return deletions

    def flush(self) -> None:
        """Flush all partitions.

        Raises:
            LogStoreError: the error of the first partition that cannot be flushed; the
                others are flushed.
        """
        self._each(lambda partition: partition.flush())

    def _each(self, act: Callable[[Partition], None]) -> None:
        """Call `act` with each partition. One that is damaged, or lost, does not
        prevent the call for the others; its error is raised at the end."""
        self._context.begin_call()
        self._check_same()
        failure: LogStoreError | None = None
        for number in self.numbers:
            try:
                act(self._context.open_partition(self.name, number))
            except StoreClosedError:
                raise
            except LogStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def context_of(topic: Topic) -> TopicContext:
    """The part of its store that a topic needs, for other rooms of the package."""
    return topic._context


def _targets(topic: Topic, chosen: Iterable[int]) -> dict[int, Partition]:
    """Partitions that were chosen from the existing ones, in order."""
    open_partition = topic._context.open_partition
    return {number: open_partition(topic.name, number) for number in sorted(chosen)}


def _append_shared(
    topic: Topic, value: Any, key: Any, stamp: int, headers: Any
) -> RecordMetadata:
    """`Topic.append` of a shared store: the owner checks the number of partitions."""
    ((number, span),) = topic.append_many(
        [value],
        None if key is None else [key],
        [stamp],
        [headers] if headers else None,
    )
    is_stamped = topic.config.message_timestamp_type == "LogAppendTime"
    return RecordMetadata(topic.name, number, span.start, -1 if is_stamped else stamp)


def _while_outdated(append: Callable[[], routing.Appended]) -> routing.Appended:
    """The result of an append, which chooses the partitions again if partitions were
    added meanwhile."""
    while True:
        with contextlib.suppress(OutdatedChoiceError):
            return append()
