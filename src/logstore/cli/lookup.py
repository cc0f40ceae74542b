"""Where a time begins in a partition that may be damaged.

A time is the first record at or after it. Of damaged records no time is known: the
first one that can be read is taken, and the damage before it is given with it, since it
may have held an earlier one. What the largest time of a segment, or the entries of a
time index, show to be older is not among it.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import NamedTuple

import logstore
from logstore.cli.params import milliseconds_of


class Damaged(NamedTuple):
    """Offsets that cannot be read: [first, next_offset), and the error that says so."""

    first: int
    next_offset: int
    error: logstore.CorruptRecordError


class Beginning(NamedTuple):
    """Where a time begins.

    Attributes:
        offset: that of the first record at or after it that can be read; the end of the
            log if there is none.
        damage: before that offset, where no time is known.
        is_unsure: no older record lies between the damage and that offset, so the
            records of that time may begin in the damage.
    """

    offset: int
    damage: tuple[Damaged, ...] = ()
    is_unsure: bool = False


def beginning(partition: logstore.Partition, when: datetime.datetime) -> Beginning:
    """Look up a time, over damage.

    Raises:
        LogStoreError: the partition cannot be read, for another reason than damage.
    """
    # Before the lookup: what is appended during it may be at or after the time.
    end = partition.end_offset
    try:
        return Beginning(_first(partition, when, "raise", end))
    except logstore.CorruptRecordError as error:
        met = error.offset
    offset = _first(partition, when, "skip", end)
    damage = tuple(_damage(partition, when, met, offset))
    start = damage[-1].next_offset if damage else offset
    older = partition.read(start, offset, on_corruption="skip", limit=1)
    return Beginning(offset, damage, bool(damage) and next(older, None) is None)


def _first(
    partition: logstore.Partition, when: datetime.datetime, mode: str, end: int
) -> int:
    records = partition.read(when, on_corruption=mode, limit=1)
    return next((record.offset for record in records), end)


def _damage(
    partition: logstore.Partition, when: datetime.datetime, met: int, stop: int
) -> Iterator[Damaged]:
    """The damage below `stop` that may have held a record at or after a time. `met`:
    the offset at which a lookup failed."""
    since = milliseconds_of(when)
    for segment in partition.segments:
        if segment.next_offset <= met or 0 <= segment.max_timestamp_ms < since:
            continue
        # A lookup that failed at or after `stop` failed at the largest time of the
        # segment, before it came to the batches of that segment in their order.
        begin = segment.base_offset if met >= stop else met
        begin = max(begin, segment.base_offset, partition.start_offset)
        yield from _damage_between(partition, begin, min(segment.next_offset, stop))


def _damage_between(
    partition: logstore.Partition, begin: int, end: int
) -> Iterator[Damaged]:
    while begin < end:
        try:
            for _ in partition.read(begin, end):
                pass
            return
        except logstore.CorruptRecordError as error:
            following = next_readable(partition, error)
            following = min(end if following is None else following, end)
            yield Damaged(max(error.offset, begin), following, error)
            if following <= begin:
                return
            begin = following


def next_readable(
    partition: logstore.Partition, error: logstore.CorruptRecordError
) -> int | None:
    """The first offset after damage that can be read; None if there is none."""
    if error.next_offset is not None:
        return error.next_offset
    try:
        for batch in partition.read_batches(error.offset, on_corruption="skip"):
            if batch.base_offset >= error.offset:
                return batch.base_offset
    except logstore.LogStoreError:
        return None
    return None
