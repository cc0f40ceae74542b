"""The records of several partitions as one stream: by time, or one after the other."""

from __future__ import annotations

import heapq
import itertools
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from logstore._native import topic_record
from logstore._native.locks import wait_for_any
from logstore.errors import PartitionNotFoundError
from logstore.io.watch import DirectoryWatch
from logstore.log.read.corruption import DamagePolicy
from logstore.log.read.reader import first_of
from logstore.log.read.view import Bounds
from logstore.record.arguments import Start, check_choice
from logstore.record.record import Record, TopicRecord
from logstore.store.partition import Partition
from logstore.store.partition_views import Turn
from logstore.store.readable_partition import POLL_MAX_S, POLL_MIN_S

__all__ = [
    "Cursor",
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
    name: str, given: Any, partitions: Sequence[Partition]
) -> dict[int, Start]:
    """The value of an argument for each partition, by number.

    Raises:
        PartitionNotFoundError: it names one that does not exist.
    """
    numbers = [partition.number for partition in partitions]
    if not isinstance(given, Mapping):
        return dict.fromkeys(numbers, given)
    starts: dict[int, Start] = dict(given)
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


class Cursor:
    """The position of a follower of a topic in one partition.

    Attributes:
        partition: the partition.
        turn: the last end that it has reached; None before the first.
    """

    def __init__(
        self,
        partition: Partition,
        start: Start,
        durable_only: bool,
        isolation: str,
        policy: DamagePolicy,
        look: Callable[[], Bounds] | None = None,
    ) -> None:
        self.partition = partition
        self.turn: Turn | None = None
        views = partition._views
        self._items = views.turns(start, durable_only, isolation, policy, look)

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
    cursors: Callable[[], list[Cursor]],
    order: str,
    timeout: float | None,
    durable_only: bool,
) -> Iterator[TopicRecord]:
    """The records of all partitions, and those appended later.

    Args:
        cursors: returns those of all partitions that exist now.
        timeout: end after this many seconds in which none has advanced.
    """
    last, pause = time.monotonic(), POLL_MIN_S
    watch: DirectoryWatch | None = None
    while True:
        now = cursors()
        yield from merged([cursor.records() for cursor in now], order)
        if any(cursor.has_moved for cursor in now):
            last, pause = time.monotonic(), POLL_MIN_S
            continue
        remaining = None if timeout is None else timeout - (time.monotonic() - last)
        if remaining is not None and remaining <= 0:
            return
        watch = _watch_of(now, watch)
        if watch is not None:
            watch.wait(pause, remaining)
        else:
            seconds = pause if remaining is None else min(pause, remaining)
            _wait(now, durable_only, seconds)
        pause = min(pause * 2, POLL_MAX_S)


def _watch_of(
    cursors: Sequence[Cursor], watch: DirectoryWatch | None
) -> DirectoryWatch | None:
    """The watch of all partitions that another process writes; None if there are none.
    The present one, if no partition was added."""
    directories = [
        directory
        for cursor in cursors
        if cursor.partition._views.writer is None
        for directory in cursor.partition._log.directory.with_parents()
    ]
    if not directories:
        return None
    if watch is not None and set(watch.directories) == set(directories):
        return watch
    return DirectoryWatch(directories)


def _wait(cursors: Sequence[Cursor], durable_only: bool, seconds: float) -> None:
    """Sleep until one of the partitions, which this store writes, may have more."""
    signals = [
        signal
        for cursor in cursors
        if (signal := cursor.partition._views.appended) is not None
    ]

    def has_more() -> bool:
        return any(
            cursor.partition._views.has_more(cursor.turn.view, durable_only)
            for cursor in cursors
            if cursor.turn is not None
        )

    wait_for_any(signals, has_more, seconds)
