"""The selection of records, and the beginning of the last N of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.selection import Selection, offset_from_end
from support.cli import RECORDS, SMALL, TXN
from support.damage import flip_bit, frames, logs_in
from support.values import few_formats, new_partition, write_store


class Watched:
    """A partition that counts the records and batches that are read of it."""

    def __init__(self, partition: logstore.Partition) -> None:
        self.partition = partition
        self.records = self.batches = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.partition, name)

    def read(self, *args: Any, **options: Any) -> Iterator[Any]:
        for record in self.partition.read(*args, **options):
            self.records += 1
            yield record

    def read_batches(self, *args: Any, **options: Any) -> Iterator[Any]:
        for batch in self.partition.read_batches(*args, **options):
            self.batches += 1
            yield batch


def begins_right(partition: Any, isolation: str) -> None:
    """Assert that any number of last records begins at the right offset."""
    records = partition.read(isolation=isolation, on_corruption="skip")
    offsets = [record.offset for record in records]
    for count in range(1, len(offsets) + 1):
        start = offset_from_end(partition, count, isolation)
        assert [offset for offset in offsets if offset >= start] == offsets[-count:]
    more = offset_from_end(partition, len(offsets) + 1, isolation)
    assert more == partition.start_offset
    assert offset_from_end(partition, 0, isolation) == partition.end_offset


@few_formats
@pytest.mark.parametrize("is_damaged", [False, True])
def test_last_records_begin_where_there_are_so_many(
    tmp_path: Path, magic: int, codec: str, is_damaged: bool
) -> None:
    """They may begin within a batch, and over damage."""
    path = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    if is_damaged:
        log = logs_in(path)[0]
        frame = frames(log)[-1]
        flip_bit(log, 8 * (frame.pos + frame.size - 1))
    with logstore.open(path.parent, read_only=True) as store:
        begins_right(store.topic("orders")[0], "read_uncommitted")


@few_formats
@pytest.mark.parametrize("remainder", [0, 1])
def test_last_records_begin_right_if_every_second_batch_is_damaged(
    tmp_path: Path, magic: int, codec: str, remainder: int
) -> None:
    """Damage is at every step of the search."""
    path = write_store(tmp_path / "store", RECORDS, magic, codec, **SMALL)
    for log in logs_in(path):
        for frame in frames(log)[remainder::2]:
            flip_bit(log, 8 * (frame.pos + frame.size - 1))
    with logstore.open(path.parent, read_only=True) as store:
        begins_right(store.topic("orders")[0], "read_uncommitted")


@pytest.mark.parametrize("number", range(6))
def test_last_records_leave_out_markers_behind_damage(
    tmp_path: Path, number: int
) -> None:
    """After damage, batches are counted, and markers are batches, too."""
    copy = tmp_path / "copy"
    shutil.copytree(TXN.parent, copy)
    logs = logs_in(copy / TXN.name)
    log, frame = [(log, frame) for log in logs for frame in frames(log)][number]
    flip_bit(log, 8 * (frame.pos + frame.size - 1))
    with logstore.open(copy, read_only=True) as store:
        begins_right(store.topic("txn")[0], "read_uncommitted")


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_last_records_leave_out_markers_and_aborted_ones(isolation: str) -> None:
    """Their offsets have no record."""
    with logstore.open(TXN.parent, read_only=True) as store:
        begins_right(store.topic("txn")[0], isolation)


def test_last_records_are_found_without_reading_them(tmp_path: Path) -> None:
    """The heads of compressed batches have their counts, and a log with no more offsets
    than are wanted is not even counted."""
    path = write_store(tmp_path / "store", RECORDS, 2, "zstd", call=10, **SMALL)
    with logstore.open(path.parent, read_only=True) as store:
        watched: Any = Watched(store.topic("orders")[0])
        assert offset_from_end(watched, 40, "read_uncommitted") == RECORDS - 40
        assert (watched.records, watched.batches) == (1, 4)
        watched.records = watched.batches = 0
        assert offset_from_end(watched, RECORDS, "read_uncommitted") == 0
        assert (watched.records, watched.batches) == (0, 0)


def test_last_ones_that_match_are_found_back_from_the_end(tmp_path: Path) -> None:
    """Bounds are respected; the start is returned if fewer match."""
    path = write_store(tmp_path / "store", RECORDS, 2, **SMALL)

    def even(record: logstore.Record) -> bool:
        return record.offset % 2 == 0

    with logstore.open(path.parent, read_only=True) as store:
        watched: Any = Watched(store.topic("orders")[0])

        def found(count: int, *between: int) -> int:
            start, stop = between or (0, RECORDS)
            return offset_from_end(
                watched,
                count,
                "read_uncommitted",
                start=start,
                stop=stop,
                matches=even,
            )

        assert found(3) == RECORDS - 6
        assert found(3, 10, 21) == 16
        assert found(100, 11, 21) == 11
        assert found(0, 11, 21) == 21
        assert found(5, 21, 11) == 21


def test_a_key_that_is_rare_is_found_without_reading_what_is_before(
    tmp_path: Path,
) -> None:
    """The log is read from the end, in parts that grow."""
    with logstore.open(tmp_path) as store:
        log = new_partition(store)
        log.append_many([b"x"] * 20_000, [b"a"] * 15_000 + [b"b"] + [b"c"] * 4_999)
    with logstore.open(tmp_path, read_only=True) as store:
        watched: Any = Watched(store.topic("orders")[0])
        found = offset_from_end(
            watched, 1, "read_uncommitted", matches=lambda record: record.key == b"b"
        )
        assert found == 15_000
        assert watched.records < 10_000


@pytest.mark.parametrize(
    ("topics", "assumes", "numbers"),
    [((0, 1, 2, 3, 4), True, (1,)), ((0, 1), False, (0, 1)), ((1,), False, (1,))],
)
def test_the_partition_of_a_key_is_that_of_kafka(
    topics: tuple[int, ...], assumes: bool, numbers: tuple[int, ...]
) -> None:
    """murmur2 of the key, as Kafka's own tests have it; without the option all."""

    class Topic:
        name, numbers = "orders", topics

    topic: Any = Topic
    selection = Selection(key=b"foobar", assumes_kafka=assumes)
    if assumes:
        # org.apache.kafka.common.utils.UtilsTest: murmur2("foobar") == -790332482
        assert (-790332482 & 0x7FFFFFFF) % len(topics) == numbers[0]
    assert selection.numbers(topic) == numbers


def test_a_partition_that_is_not_here_makes_the_place_of_a_key_unknown() -> None:
    """A broker of a cluster has only some of the partitions."""

    class Topic:
        name, numbers = "orders", (0, 2)

    topic: Any = Topic
    with pytest.raises(logstore.ConfigError, match="orders has partitions 0, 2 here"):
        Selection(key=b"k", assumes_kafka=True).numbers(topic)
