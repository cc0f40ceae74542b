"""Reads the partitions of a consumer in turn."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from logstore.errors import (
    LogStoreError,
    OffsetOutOfRangeError,
    TopicNotFoundError,
    again,
)
from logstore.group.consumer.ahead import Ahead
from logstore.group.consumer.assigned_partitions import AssignedPartitions
from logstore.group.consumer.group_place import GroupPlace
from logstore.group.consumer.reading import LASTING, Before, PartitionReader
from logstore.io.layout import TopicPartition
from logstore.record.record import TopicRecord

__all__ = ["Fetcher"]

_Result = TypeVar("_Result")


class Fetcher:
    """Reads what a consumer has; for one thread at a time.

    Each call begins with another partition, so none waits for ever. Records that a call
    has read of other partitions are returned before the error of one is raised. A
    position that is not in the log any more is replaced, or its error stays until a
    `seek`.

    Attributes:
        ahead: records that `fill` has read for tasks.
    """

    def __init__(self, place: GroupPlace, partitions: AssignedPartitions) -> None:
        self.ahead = Ahead()
        self._place = place
        self._readers = partitions.readers
        self._given_up = partitions.given_up
        self._turn = 0  # which partition is asked first
        self._current: PartitionReader | None = None  # whose records are delivered

    def collect(
        self, limit: int, before: Before
    ) -> dict[TopicPartition, list[TopicRecord]]:
        """Records that are there now, at most `limit`.

        Args:
            before: gets the readers that it reads, with their positions before.

        Raises: the error of a partition that needs a `seek`, or what reading it met, if
        no other partition has given records before.
        """
        records_by_key: dict[TopicPartition, list[TopicRecord]] = {}
        before.clear()
        for reader in self._in_turn():
            before.append((reader, reader.position))
            try:
                records = self._read(reader, partial(reader.take, limit))
            except LogStoreError:
                if records_by_key:
                    break  # the next call meets it again
                raise
            if records:
                records_by_key[reader.key] = records
                limit -= len(records)
                if limit <= 0:
                    break
        return records_by_key

    def _in_turn(self) -> list[PartitionReader]:
        """The partitions to be read, each time another one first.

        Raises: the error of one that needs a `seek`.
        """
        readers = []
        for reader in self._readers.values():
            if not reader.is_paused:
                self.place(reader)
                if reader.position is not None:
                    readers.append(reader)
        if len(readers) > 1:
            self._turn = (self._turn + 1) % len(readers)
            readers = readers[self._turn :] + readers[: self._turn]
        return readers

    def place(self, reader: PartitionReader) -> None:
        """Give a reader its position, if unset, and begin there.

        Raises: why that cannot be; it needs a `seek`.
        """
        if reader.log.has_begun and reader.error is None:
            return

        def begin() -> None:
            if reader.position is None:
                self._place.positions.begin(reader)
            reader.log.begin(reader.position)

        self._read(reader, begin)

    def _read(
        self, reader: PartitionReader, work: Callable[[], _Result]
    ) -> _Result | None:
        """The result of `work`.

        Raises: the error of a partition that needs a `seek`.
        """
        result = None if reader.error is not None else self._guarded(reader, work)
        if reader.error is not None:
            raise again(reader.error)
        return result

    def _guarded(
        self, reader: PartitionReader, work: Callable[[], _Result]
    ) -> _Result | None:
        """The result of `work`; None if the partition is gone, or its error is kept."""
        try:
            return work()
        except TopicNotFoundError as error:
            cause: LogStoreError = error
            place = self._place
            if not (reader.log.has_seen() and place.positions.has_topic(reader)):
                # Of a subscription, the next look at the group drops it.
                place.check_at = 0.0
                if place.wanted is None:
                    reader.error = error
                return None
        except OffsetOutOfRangeError as error:
            cause = error
            if self._place.options.reset == "error":
                reader.error = error
        except LASTING as error:
            reader.error = error
            return None
        # The committed offset may be of another log, or lowered meanwhile.
        reader.is_disproved = True
        if reader.has_delivered and getattr(cause, "cut_to", 0) is not None:
            self._given_up.add(reader.key)
        if reader.error is None:
            go_on = self._place.positions.go_on
            self._guarded(reader, partial(go_on, reader, cause))
        return None if reader.error is not None else self._guarded(reader, work)

    def next_read(self) -> TopicRecord | None:
        """The next record, if it was read ahead."""
        reader = self._current
        return None if reader is None or reader.is_paused else reader.next_ahead()

    def not_delivered(self, record: TopicRecord) -> None:
        """Deliver the record again that was delivered last."""
        if self._current is not None:
            self._current.back_to(record.offset)

    def read_ahead(self, limit: int) -> bool:
        """Read at most `limit` records of one partition for `next_read`; whether there
        are any.

        Raises: as `collect`.
        """
        current = self._current
        if current is not None and current.ahead and not current.is_paused:
            return True
        self._current = None
        for reader in self._in_turn():
            if self._read(reader, partial(reader.read_ahead, limit)):
                self._current = reader
                return True
        return False

    def fill(self, limit: int) -> bool:
        """Read at most `limit` records for `ahead`, in place of its former ones; return
        whether there are any.

        Raises: as `collect`.
        """

        def read(reader: PartitionReader, most: int) -> bool | None:
            return self._read(reader, partial(reader.read_ahead, most))

        return self.ahead.fill(self._in_turn(), read, limit)
