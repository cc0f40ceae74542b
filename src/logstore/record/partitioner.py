"""Partitioners: they choose the partition of a record."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, Protocol

import xxhash
from sortedcontainers import SortedDict

from logstore import _native as native
from logstore._native.locks import RANK_LEAF
from logstore.errors import ConfigError
from logstore.record.extras import arrow_module

__all__ = ["ConsistentHashPartitioner", "KafkaPartitioner", "Partitioner"]

# Bytes of records without a key that go to one partition before the next one is used,
# so that batches and index entries stay large (Kafka's batch.size).
STICKY_BYTES: Final = 16 * 1024
_POINTS_PER_WEIGHT: Final = 128


class Partitioner(Protocol):
    """Chooses a partition. Any thread may call it."""

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        """The partition for a record.

        Args:
            key: of the record, or None.
            size: bytes of key and value.
            partitions: number of partitions (>= 1).
        """


class KafkaPartitioner:
    """Kafka's own: murmur2 of the key; without a key, round robin in batches."""

    def __init__(self) -> None:
        self._lock = native.Mutex(RANK_LEAF, "a partitioner")
        self._bytes = 0
        self._next = 0

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        """See `Partitioner.partition`."""
        if key is not None:
            return (native.murmur2(key) & 0x7FFFFFFF) % partitions
        with self._lock:
            if self._bytes >= STICKY_BYTES:
                self._bytes = 0
                self._next += 1
            self._bytes += size
            return self._next % partitions

    def spread(self, sizes: Iterable[int], partitions: int) -> list[int]:
        """The partitions of records without keys, one after the other, as `partition`
        chooses them.

        Args:
            sizes: bytes of each.
        """
        chosen: list[int] = []
        with self._lock:
            waiting, place = self._bytes, self._next
            for size in sizes:
                if waiting >= STICKY_BYTES:
                    waiting, place = 0, place + 1
                waiting += size
                chosen.append(place % partitions)
            self._bytes, self._next = waiting, place
        return chosen

    @staticmethod
    def partitions_of(keys: Any, partitions: int) -> Any:
        """The partition of each key of a ``pyarrow`` array, as `partition` chooses it.

        Args:
            keys: a binary or string array.
            partitions: number of partitions (>= 1).

        Returns:
            An int32 array; -1 for a null key.

        Raises:
            UnsupportedError: pyarrow is not installed.
            TypeError: the array is of another type.
        """
        return arrow_module().partitions_of(keys, partitions)


class ConsistentHashPartitioner:
    """Weighted consistent hashing of keys (xxh64 on a ring).

    A partition that is added or whose weight changes takes keys from the others in
    proportion; all other keys keep their partition. Records without a key are
    partitioned as by `KafkaPartitioner`.

    Args:
        weights: share of each partition (> 0); partitions without a weight have 1.0. A
            weight of 0 excludes a partition.
    """

    def __init__(self, weights: Mapping[int, float] | None = None) -> None:
        self.weights = dict(weights or {})
        for partition, weight in self.weights.items():
            if not 0 <= weight <= 1e6:
                raise ConfigError(
                    f"weight {weight!r} of partition {partition} is outside [0, 1e6]",
                    name="weights",
                    value=weight,
                )
        self._rings: dict[int, SortedDict[int, int]] = {}
        self._unkeyed = KafkaPartitioner()

    def _ring(self, partitions: int) -> SortedDict[int, int]:
        ring = self._rings.get(partitions)
        if ring is None:
            ring = SortedDict()
            for partition in range(partitions):
                weight = self.weights.get(partition, 1.0)
                for point in range(round(_POINTS_PER_WEIGHT * weight)):
                    place = xxhash.xxh64_intdigest(struct.pack(">ii", partition, point))
                    ring.setdefault(place, partition)
            if not ring:
                raise ConfigError(
                    f"all {partitions} partitions have weight 0", name="weights"
                )
            self._rings[partitions] = ring
        return ring

    def partition(self, key: bytes | None, size: int, partitions: int) -> int:
        """See `Partitioner.partition`."""
        if key is None:
            return self._unkeyed.partition(None, size, partitions)
        ring = self._ring(partitions)
        slot = ring.bisect_left(xxhash.xxh64_intdigest(key))
        return int(ring.peekitem(slot if slot < len(ring) else 0)[1])
