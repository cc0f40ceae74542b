"""A named producer for tasks of asyncio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from logstore.aio.partition import Partition, Services, fixed_columns
from logstore.store.publication.producer import Producer as BlockingProducer

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["Destination", "Producer"]

# A partition, or (topic, number).
Destination: TypeAlias = "Partition | tuple[str, int]"


class Producer:
    """Appends records with sequences, for tasks of one event loop. Made by
    `logstore.aio.Store.producer`.

    A task that was cancelled, or failed, repeats its call with the same `sequence` and
    the same records: records already in the log are not appended again, and their
    offsets are returned. See `logstore.Producer`.

    Attributes:
        blocking: the `logstore.Producer`, whose methods block the thread.
    """

    __slots__ = ("_partition_of", "_services", "blocking")

    def __init__(
        self,
        services: Services,
        blocking: BlockingProducer,
        partition_of: Callable[[tuple[str, int]], Partition],
    ) -> None:
        self.blocking = blocking
        self._services = services
        self._partition_of = partition_of

    def __repr__(self) -> str:
        return repr(self.blocking).replace("logstore.", "logstore.aio.", 1)

    @property
    def name(self) -> str:
        """Name given to `Store.producer`."""
        return self.blocking.name

    @property
    def producer_id(self) -> int:
        """Producer id in its batches."""
        return self.blocking.producer_id

    @property
    def epoch(self) -> int:
        """Epoch in its batches: the newest one of the name, unless the name was taken
        over."""
        return self.blocking.epoch

    def _target(self, partition: Destination) -> Partition:
        self._services.check()
        if isinstance(partition, Partition):
            return partition
        return self._partition_of(partition)

    async def last_sequence(self, partition: Destination) -> int | None:
        """The sequence of the last record that this name, in any epoch, has in a
        partition; None if it has no record there.

        Args, Raises: as `logstore.Producer.last_sequence`; `EventLoopError`.
        """
        target = self._target(partition)
        return await self._services.run(self.blocking.last_sequence, target.blocking)

    async def append(
        self,
        partition: Destination,
        value: ReadableBuffer | None,
        key: ReadableBuffer | None = None,
        *,
        timestamp_ms: int | None = None,
        headers: Sequence[tuple[str, ReadableBuffer | None]] = (),
        sequence: int | None = None,
        durable: bool = False,
    ) -> int:
        """Append one record and return its offset; see `append_many`."""
        offsets = await self.append_many(
            partition,
            (value,),
            None if key is None else (key,),
            None if timestamp_ms is None else (timestamp_ms,),
            (headers,) if headers else None,
            sequence=sequence,
            durable=durable,
        )
        return offsets.start

    async def append_many(
        self,
        partition: Destination,
        values: Sequence[ReadableBuffer | None],
        keys: Sequence[ReadableBuffer | None] | None = None,
        timestamps_ms: Sequence[int | None] | None = None,
        headers: Sequence[Sequence[tuple[str, ReadableBuffer | None]]] | None = None,
        *,
        sequence: int | None = None,
        durable: bool = False,
    ) -> range:
        """Append records, all or none, or find them there, and return their offsets.
        The thread of the store does it; tasks that wait for a sync share it.

        Args, Raises: as `logstore.Producer.append_many`; `EventLoopError`.
        """
        target = self._target(partition)
        call = partial(
            self.blocking.append_many,
            target.blocking,
            *fixed_columns(values, keys, timestamps_ms, headers),
            sequence=sequence,
        )
        return await target.in_turn(call, lambda offsets: offsets.stop, durable)
