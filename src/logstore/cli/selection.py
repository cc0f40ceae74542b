"""Selects the records to show: ``--key``, ``--grep``, ``--last``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import click

import logstore

_Item = TypeVar("_Item")
# Least number of offsets in a step of the search, if not every record counts.
_FIRST_REACH: Final = 1000

# Where a step ends in damage, each further step reads all of that damage again, up to
# its end: so the next one is larger.
_GROWTH: Final = 4
_GROWTH_IN_DAMAGE: Final = 64

Matches = Callable[["logstore.Record"], bool]
OnDamage = Callable[["logstore.types.Damaged"], bool]


class Selection(NamedTuple):
    """The records that are shown.

    Attributes:
        key: exactly the key of each; None: any.
        pattern: has a match in the key or the value of each; None: none is needed.
        last: how many of the last records of each partition or file; None: all.
        assumes_kafka: look only into the partition to which Kafka's partitioner sends
            `key`.
    """

    key: bytes | None = None
    pattern: re.Pattern[bytes] | None = None
    last: int | None = None
    assumes_kafka: bool = False

    @property
    def matches(self) -> Matches | None:
        """Whether a record has the key and the match; None if every record does."""
        key, pattern = self.key, self.pattern
        if pattern is None:
            return None if key is None else lambda record: record.key == key
        search = pattern.search

        def matches(record: logstore.Record) -> bool:
            if key is not None and record.key != key:
                return False
            return any(
                data is not None and search(data) for data in (record.key, record.value)
            )

        return matches

    def of(self, records: Iterator[logstore.Record]) -> Iterator[logstore.Record]:
        """The records that match."""
        matches = self.matches
        return records if matches is None else filter(matches, records)

    def numbers(self, topic: logstore.Topic) -> tuple[int, ...]:
        """The numbers of the partitions of a topic to look into.

        Raises:
            ConfigError: a partition is not here, so that the number of them, and with
                it the partition of the key, is unknown.
        """
        numbers = topic.numbers
        if not self.assumes_kafka:
            return numbers
        if numbers != tuple(range(len(numbers))):
            raise logstore.ConfigError(
                f"topic {topic.name} has partitions {', '.join(map(str, numbers))} "
                "here: not all of them, so the partition of a key is not known; omit "
                "--assume-partitioner",
                name="--assume-partitioner",
                value="kafka",
            )
        partitioner = logstore.KafkaPartitioner()
        return (partitioner.partition(self.key, 0, len(numbers)),)


EVERY_RECORD: Final = Selection()


def selection_of(arguments: dict[str, Any]) -> Selection:
    """The selection that the options of a subcommand make.

    Raises:
        click.UsageError: a partitioner, but no key.
    """
    key = arguments["key"]
    if arguments["assume_partitioner"] is not None and key is None:
        raise click.UsageError("--assume-partitioner needs --key")
    return Selection(
        key,
        arguments["grep"],
        arguments["last"],
        arguments["assume_partitioner"] is not None,
    )


def shown(items: Iterator[_Item], skip: int, limit: int | None) -> Iterator[_Item]:
    """The items that remain after ``--skip`` and ``--limit``."""
    return itertools.islice(
        items, skip, None if limit is None else min(skip + limit, (1 << 63) - 1)
    )


def offset_from_end(
    partition: logstore.Partition,
    count: int,
    isolation: str,
    *,
    start: int | None = None,
    stop: int | None = None,
    matches: Matches | None = None,
    on_damage: OnDamage = lambda damaged: True,
) -> int:
    """The offset of the `count`-th last record; the start if there are fewer.

    Compaction, transactions and damage leave offsets without a record, and not every
    record has to match, so it looks further and further back until there are enough, at
    no part of the log twice.

    Args:
        start, stop: look between these offsets; None: in the whole log.
        matches: which records count; None: every one.
        on_damage: as `on_corruption` of a read; the same damage may be met again.
    """
    start = max(start or 0, partition.start_offset)
    end = partition.end_offset
    stop = end if stop is None else min(stop, end)
    if not count:
        return max(start, stop)
    missing, reach = count, count if matches is None else max(count, _FIRST_REACH)
    first, is_in_damage = stop, False

    def met(damaged: logstore.types.Damaged) -> bool:
        nonlocal is_in_damage
        is_in_damage = is_in_damage or damaged.first <= first
        return on_damage(damaged)

    # No offset has two records.
    while stop - start > missing:
        first, is_in_damage = max(stop - reach, start), False
        if matches is None:
            match_count = _count_records(partition, first, stop, isolation, met)
        else:
            match_count = sum(
                map(matches, _read(partition, first, stop, isolation, met))
            )
        if match_count >= missing:
            records = _read(partition, first, stop, isolation, met)
            if matches is not None:
                records = filter(matches, records)
            record = next(itertools.islice(records, match_count - missing, None), None)
            return first if record is None else record.offset
        missing, stop = missing - match_count, first
        reach *= _GROWTH_IN_DAMAGE if is_in_damage else _GROWTH
    return start


def _read(
    partition: logstore.Partition,
    first: int,
    stop: int,
    isolation: str,
    on_damage: OnDamage,
) -> Iterator[logstore.Record]:
    kind: Any = isolation
    return partition.read(first, stop, isolation=kind, on_corruption=on_damage)


def _count_records(
    partition: logstore.Partition,
    first: int,
    stop: int,
    isolation: str,
    on_damage: OnDamage,
) -> int:
    """The number of records between two offsets. Where batches are compressed, their
    heads have it: to decompress them is most of the work of reading, and the records
    are read once more to be shown. Elsewhere records are counted sooner than batches,
    unless damage would be read twice.
    """
    is_damaged = False

    def met(damaged: logstore.types.Damaged) -> bool:
        nonlocal is_damaged
        is_damaged = True
        return on_damage(damaged)

    options: dict[str, Any] = {"isolation": isolation, "on_corruption": met}
    batches = partition.read_batches(first, stop, **options)
    first_batch = next(batches, None)
    if first_batch is None:
        return 0
    if not is_damaged and (first_batch.compression == "none" or first_batch.magic < 2):
        return sum(1 for _ in _read(partition, first, stop, isolation, on_damage))
    return sum(
        _records_between(batch, first, stop)
        for batch in itertools.chain([first_batch], batches)
        if not batch.is_control
    )


def _records_between(batch: logstore.RecordBatch, first: int, stop: int) -> int:
    """How many records of a batch have their offset in a range."""
    if first <= batch.base_offset and batch.last_offset < stop:
        return len(batch)
    try:
        return sum(first <= record.offset < stop for record in batch)
    except logstore.LogStoreError:
        return 0  # reading leaves it out, too
