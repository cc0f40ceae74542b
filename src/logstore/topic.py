"""A topic: its partitions, and the choice among them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from logstore import retention
from logstore.config import PARTITIONS_MAX, TopicConfig, check_int
from logstore.encoder import check_payload_type
from logstore.errors import (
    ConfigError,
    LogStoreError,
    PartitionNotFoundError,
    StoreClosedError,
)
from logstore.partition import Partition
from logstore.partitioners import KafkaPartitioner, Partitioner
from logstore.records import RecordMetadata

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Topic"]


class Owner(Protocol):
    """What a topic needs of its store."""

    def check_open(self) -> None: ...

    def begin_call(self) -> None: ...

    def open_partition(self, topic: str, partition: int) -> Partition: ...

    def partition_numbers(self, topic: str) -> tuple[int, ...]: ...

    def topic_config(self, topic: str) -> TopicConfig: ...

    def configure_topic(self, topic: str, config: TopicConfig) -> None: ...

    def grow_topic(self, topic: str, count: int) -> int: ...


class Topic:
    """A named set of partitions. Made by `Store`.

    Attributes:
        name: as given to `Store.create_topic`.
        partitioner: chooses the partition of `append`; may be replaced.
    """

    def __init__(self, owner: Owner, name: str) -> None:
        self._owner = owner
        self.name = name
        self.partitioner: Partitioner = KafkaPartitioner()

    def _numbers(self) -> tuple[int, ...]:
        return self._owner.partition_numbers(self.name)

    @property
    def config(self) -> TopicConfig:
        """Its settings."""
        return self._owner.topic_config(self.name)

    def __repr__(self) -> str:
        with contextlib.suppress(LogStoreError):
            return f"<logstore.Topic {self.name} with {len(self)} partitions>"
        return f"<logstore.Topic {self.name}>"  # of a store that is closed

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Its partitions, in the order of their numbers."""
        self._owner.check_open()
        return tuple(
            self._owner.open_partition(self.name, number) for number in self._numbers()
        )

    def __len__(self) -> int:
        return len(self._numbers())

    def __getitem__(self, number: int) -> Partition:
        """The partition of this number.

        Raises:
            PartitionNotFoundError: there is none.
        """
        numbers = self._numbers()
        # Usually they are 0, 1, 2, ...: no search then. A float is no number of a
        # partition, though it may be equal to one.
        is_there = type(number) is int and 0 <= number < len(numbers)
        is_there = is_there and numbers[number] == number
        if not is_there and not (hasattr(number, "__index__") and number in numbers):
            raise PartitionNotFoundError(
                f"topic {self.name} has no partition {number!r}; it has "
                f"{', '.join(map(str, numbers))}",
                topic=self.name,
                partition=number,
            )
        return self._owner.open_partition(self.name, int(number))

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def configure(self, config: TopicConfig) -> None:
        """Replace the settings, for good; what is on disk stays as it is.

        Raises:
            ReadOnlyError, StorageError.
        """
        self._owner.configure_topic(self.name, config)

    def add_partitions(self, count: int) -> int:
        """Add `count` partitions and return how many there are now.

        Keys hash to other partitions from then on.
        """
        check_int("count", count, 1, PARTITIONS_MAX)
        return self._owner.grow_topic(self.name, count)

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
            numbers = self._numbers()
            hashed = None if key is None else bytes(key)
            size = _length(value) + _length(key)
            chosen = self.partitioner.partition(hashed, size, len(numbers))
            if not 0 <= chosen < len(numbers):
                raise ConfigError(
                    f"the partitioner of topic {self.name} chose {chosen!r}, of "
                    f"{len(numbers)} partitions; nothing was written",
                    name="partitioner",
                    value=chosen,
                )
            partition = numbers[chosen]
        target = self[partition]
        offset, stored = target._append_one(
            value, key, timestamp_ms, headers, None, durable
        )
        return RecordMetadata(self.name, partition, offset, stored)

    def apply_retention(
        self,
        now_ms: int | None = None,
        dry_run: bool = False,
        policies: Sequence[retention.RetentionPolicy] | None = None,
    ) -> list[retention.Deletion]:
        """Delete the segments that the topic's settings (or `policies`) let go.

        Args:
            now_ms: the time to reckon with, Unix milliseconds; None: now.
            dry_run: only tell what would be deleted.
            policies: instead of those that `config` asks for.

        Returns:
            What was (or would be) deleted, oldest first within each partition.

        Raises:
            LogStoreError: of the first partition where it failed, when it was applied
                to all others.
        """
        deletions: list[retention.Deletion] = []
        if policies is not None:
            policies = list(policies)

        def apply(partition: Partition) -> None:
            deletions.extend(partition.apply_retention(now_ms, dry_run, policies))

        self._each(apply)
        return deletions

    def flush(self) -> None:
        """Flush all partitions.

        Raises:
            LogStoreError: of the first that cannot be flushed; the others are.
        """
        self._each(lambda partition: partition.flush())

    def _each(self, act: Callable[[Partition], None]) -> None:
        """Do something with each partition. One that is damaged, or lost, does not keep
        the others from it; its error is raised at the end."""
        self._owner.begin_call()
        failure: LogStoreError | None = None
        for number in self._numbers():
            try:
                act(self._owner.open_partition(self.name, number))
            except StoreClosedError:
                raise
            except LogStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure


def _length(data: Any) -> int:
    return 0 if data is None else memoryview(data).nbytes
