"""The records of several partitions as one stream: by time, or one after the other."""

from __future__ import annotations

import heapq
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final

from logstore._native import topic_record
from logstore.errors import PartitionNotFoundError
from logstore.io.directory import Directory
from logstore.io.wakeups import INTERVAL_S_MIN
from logstore.log.read.options import ReadOptions
from logstore.log.read.reader import first_of
from logstore.log.read.view import Bounds
from logstore.record.arguments import Start, check_choice
from logstore.record.record import Record, TopicRecord
from logstore.store.partition.new_records import NewRecords
from logstore.store.partition.partition import Partition
from logstore.store.partition.partition_views import Turn

__all__ = [
    "PartitionPosition",
    "check_order",
    "first_of",
    "follow",
    "labelled",
    "merged",
    "per_partition",
]

_TIME_OF: Final = operator.attrgetter("timestamp_ms")
_ORDERS: Final = ("time", "partition")


def check_order(order: str) -> None:
    """Raise `ConfigError` unless it is a valid order."""
    check_choice("order", order, _ORDERS)


def per_partition(
    name: str, argument: Any, partitions: Sequence[Partition]
) -> dict[int, Start]:
    """The value of an argument for each partition, by number.

    Raises:
        PartitionNotFoundError: it names one that does not exist.
    """
    numbers = [partition.number for partition in partitions]
    if not isinstance(argument, Mapping):
        return dict.fromkeys(numbers, argument)
    starts: dict[int, Start] = dict(argument)
    for number in starts:
        if number not in numbers:
            topic = partitions[0].topic if partitions else ""
            raise PartitionNotFoundError(
                f"{name} names partition {number!r} of topic {topic}, which has "
                f"{', '.join(map(str, numbers))}",
                topic=topic,
                partition=number,
            )
    return {number: starts.get(number) for number in numbers}


def labelled(partition: Partition, records: Iterator[Record]) -> Iterator[TopicRecord]:
    """Records with the topic and partition that they are from."""
    return map(partial(topic_record, partition.topic, partition.number), records)


def merged(
    records: Sequence[Iterator[TopicRecord]], order: str, limit: int | None = None
) -> Iterator[TopicRecord]:
    """The records of several partitions as one stream."""
    if order == "partition":
        return first_of(itertools.chain.from_iterable(records), limit)
    # If times are equal, the partition with the lower number comes first.
    return first_of(heapq.merge(*records, key=_TIME_OF), limit)


class PartitionPosition:
    """The position of a follower of a topic in one partition.

    Attributes:
        partition: the partition.
        turn: the last end that it has reached; None before the first.
    """

    def __init__(
        self,
        partition: Partition,
        start: Start,
        options: ReadOptions,
        look: Callable[[], Bounds] | None = None,
    ) -> None:
        self.partition = partition
        self.turn: Turn | None = None
        views = partition._views
        self._items = views.turns(start, options, look)

    @property
    def has_moved(self) -> bool:
        return self.turn is None or self.turn.has_moved

    def records(self) -> Iterator[TopicRecord]:
        """The records up to the current end."""
        for item in self._items:
            if isinstance(item, Turn):
                self.turn = item
                return
            yield from labelled(self.partition, item)


def follow(
    cursors: Callable[[], list[PartitionPosition]],
    root: Directory,
    order: str,
    timeout: float | None,
) -> Iterator[TopicRecord]:
    """The records of all partitions, and those appended later.

    Args:
        cursors: returns the cursors of all partitions that exist now.
        root: the directory of the store.
        timeout: end after this many seconds in which none has advanced.
    """
    last = time.monotonic()
    with closing(NewRecords(root, INTERVAL_S_MIN)) as new_records:
        while True:
            now = cursors()
            yield from merged([cursor.records() for cursor in now], order)
            if any(cursor.has_moved for cursor in now):
                last = time.monotonic()
                new_records.restart_pauses()
                continue
            idle = time.monotonic() - last
            if timeout is not None and idle >= timeout:
                return
            remaining = None if timeout is None else timeout - idle
            new_records.wait([cursor.partition._views for cursor in now], remaining)
