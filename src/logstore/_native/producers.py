"""The producers whose batches C appends by itself (``ls_producer``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from logstore._native._ls import ffi, lib
from logstore._native._records import PreparedAppend

__all__ = ["ProducerTable", "TableBatch"]

# More producers than that, one after the other, go the usual way: C searches all.
_PRODUCERS_MAX: Final = 64
_BATCHES: Final[int] = lib.LS_PRODUCER_BATCHES


class TableBatch(NamedTuple):
    """A batch that C has appended.

    Attributes:
        timestamp_ms: the largest one of the last batch of the producer.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    size: int
    timestamp_ms: int
    last_offset: int


class ProducerTable:
    """Producers of one log. A thread with the log's lock may change it; C does so in
    `PreparedAppend`. It takes memory (7 KiB) when it gets its first producer: most logs
    never get one."""

    __slots__ = ("_next", "_raw", "_slots", "_watcher")

    def __init__(self) -> None:
        self._raw: Any = ()
        # The places of producers, by id; where the next one goes.
        self._slots: dict[int, int] = {}
        self._next = 0
        self._watcher: tuple[PreparedAppend, int] | None = None

    def show_to(self, prepared: PreparedAppend, expiry_ms: int) -> None:
        """From its first producer on, C appends their batches."""
        self._watcher = prepared, expiry_ms

    def _make(self) -> None:
        self._raw = ffi.new("ls_producer[]", _PRODUCERS_MAX)
        self.clear()
        if self._watcher is not None:
            prepared, expiry_ms = self._watcher
            prepared.watch(self, self.address, len(self), expiry_ms)

    def clear(self) -> None:
        """No producer is known."""
        for producer in self._raw:
            producer.id = -1
            producer.count = 0
        self._slots.clear()

    def remove(self, producer_id: int) -> None:
        """A producer is not known; its batches have been taken."""
        slot = self._slots.pop(producer_id, None)
        if slot is not None:
            self._raw[slot].id = -1

    def set(
        self, producer_id: int, epoch: int, last_sequence: int, timestamp_ms: int
    ) -> None:
        """Set what the next batch of a producer must follow. The batches of the one
        whose place it takes have been taken."""
        if not self._raw:
            self._make()
        slot = self._slots.get(producer_id)
        if slot is None:
            slot = self._next
            self._next = (slot + 1) % _PRODUCERS_MAX
            self._slots.pop(self._raw[slot].id, None)
            self._slots[producer_id] = slot
        producer = self._raw[slot]
        producer.id = producer_id
        producer.epoch = epoch
        producer.last_sequence = last_sequence
        producer.timestamp = timestamp_ms
        producer.count = 0

    @property
    def has_batches(self) -> bool:
        """Whether C has appended batches since they were taken."""
        return any(self._raw[slot].count for slot in self._slots.values())

    def batches(self) -> Iterator[TableBatch]:
        """The last five batches of each producer that C has appended since they were
        taken, in their order."""
        for slot in self._slots.values():
            producer = self._raw[slot]
            for number in range(max(producer.count - _BATCHES, 0), producer.count):
                batch = producer.batches[number % _BATCHES]
                yield TableBatch(
                    producer.id,
                    producer.epoch,
                    batch.first_sequence,
                    batch.size,
                    producer.timestamp,
                    batch.last_offset,
                )

    def taken(self) -> None:
        """The batches so far are known."""
        for slot in self._slots.values():
            self._raw[slot].count = 0

    @property
    def address(self) -> int:
        """Address of the structs, which live as long as this; 0: none made yet."""
        return int(ffi.cast("uintptr_t", self._raw)) if self._raw else 0

    def __len__(self) -> int:
        return _PRODUCERS_MAX
