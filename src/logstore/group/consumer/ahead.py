"""Records that a consumer has read, of any of its partitions, and has not delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from logstore.errors import LogStoreError
from logstore.group.consumer.reading import Before, PartitionReader
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord

__all__ = ["Ahead"]


class Ahead:
    """The partitions with such records, in the order in which they are delivered."""

    def __init__(self) -> None:
        self._readers: list[PartitionReader] = []

    def __bool__(self) -> bool:
        return bool(self._readers)

    def clear(self) -> None:
        """Deliver nothing of them before they are read again."""
        self._readers = []

    def fill(
        self,
        readers: Iterable[PartitionReader],
        read: Callable[[PartitionReader, int], bool | None],
        limit: int,
    ) -> bool:
        """Read at most `limit` records; whether there are any.

        Args:
            read: reads at most this many of one partition; whether it has any.

        Raises: what `read` raises, if no other partition has any before it.
        """
        filled_readers: list[PartitionReader] = []
        for reader in readers:
            try:
                has_any = read(reader, limit)
            except LogStoreError:
                if filled_readers:
                    break  # the next call meets it again
                raise
            if has_any:
                filled_readers.append(reader)
                limit -= reader.ahead
                if limit <= 0:
                    break
        self._readers = filled_readers
        return bool(filled_readers)

    def next(self) -> TopicRecord | None:
        """Deliver one of them."""
        index = 0
        while index < len(self._readers):
            if self._readers[index].is_paused:
                index += 1
                continue
            record = self._readers[index].next_ahead()
            if record is not None:
                return record
            del self._readers[index]
        return None

    def many(
        self, limit: int, before: Before
    ) -> dict[TopicPartition, list[TopicRecord]]:
        """Deliver at most `limit` of them.

        Args:
            before: gets the positions before it.
        """
        records_by_key: dict[TopicPartition, list[TopicRecord]] = {}
        for reader in self._readers:
            if reader.is_paused or not reader.ahead:
                continue
            before.append((reader, reader.position))
            records = records_by_key[reader.key] = reader.take_ahead(limit)
            limit -= len(records)
            if limit <= 0:
                break
        return records_by_key
