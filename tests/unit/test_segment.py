"""The conditions for a new segment, and the information about segments."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.segment import Segment
from logstore.store.opening import open_store
from support.damage import FixedClock, logs_in
from support.values import append_one, every_magic, expected, fill, new_partition

# A magic 1 message without key has 34 bytes besides its value.
VALUE = bytes(89 - 34)


def bases(partition: logstore.Partition) -> list[int]:
    return [s.base_offset for s in partition.segments]


def append_at(partition: logstore.Partition, *stamps: int) -> None:
    for stamp in stamps:
        partition.append(VALUE, timestamp_ms=stamp)


@pytest.mark.parametrize(
    ("limit", "want"), [(178, [0, 2, 4]), (177, [0, 1, 2, 3, 4]), (179, [0, 2, 4])]
)
@pytest.mark.parametrize("many", [False, True])
def test_roll_by_size_at_the_byte(
    tmp_path: Path, limit: int, want: list[int], many: bool
) -> None:
    """178 bytes hold two batches of 89, 177 hold one."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=limit)
        if many:
            partition.append_many([VALUE] * 5, timestamps_ms=[1] * 5)
        else:
            append_at(partition, 1, 1, 1, 1, 1)
        assert bases(partition) == want


@pytest.mark.parametrize(("difference", "want"), [(1000, [0]), (1001, [0, 1])])
@pytest.mark.parametrize("many", [False, True])
def test_roll_by_time_is_strict_and_by_record_time(
    tmp_path: Path, difference: int, want: list[int], many: bool
) -> None:
    """A difference of segment_ms does not roll, one more does. The latest record of a
    call decides for all."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_ms=1000)
        if many:
            append_at(partition, 500)
            partition.append_many([VALUE] * 2, timestamps_ms=[501, 500 + difference])
        else:
            append_at(partition, 500, 500 + difference)
        assert bases(partition) == want


def test_roll_by_time_counts_from_the_first_record(tmp_path: Path) -> None:
    """Later and older timestamps in between do not matter, and never roll."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_ms=1000)
        append_at(partition, 5000, 10, 5999, 6000, 1, 6001, 6002, 7001, 7002)
        assert bases(partition) == [0, 5, 8]


def test_roll_by_time_counts_from_the_first_record_after_a_reopening(
    tmp_path: Path,
) -> None:
    """The first timestamp is remembered, or found again."""
    with logstore.open(tmp_path) as store:
        append_at(new_partition(store, segment_ms=1000), 5000, 10)
    with logstore.open(tmp_path) as store:
        append_at(store.topic("orders")[0], 6000)
    for own in (tmp_path / "orders-0").glob(".logstore*"):
        own.unlink()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        append_at(partition, 6000)
        assert bases(partition) == [0]
        append_at(partition, 6001)
        assert bases(partition) == [0, 4]


def test_roll_of_untimed_segment_goes_by_the_wall_clock(tmp_path: Path) -> None:
    """Magic 0 has no timestamps: then the age of the segment counts."""
    clock = FixedClock(1_000_000)
    with open_store(tmp_path, _files=clock) as store:
        partition = new_partition(store, 0, segment_ms=1000)
        append_one(partition)
        clock.now += 1000
        append_one(partition)
        assert bases(partition) == [0]
        clock.now += 1
        append_one(partition)
        assert bases(partition) == [0, 2]


def test_idle_log_does_not_roll(tmp_path: Path) -> None:
    """There is no timer; the timestamps of the records count."""
    clock = FixedClock(1_000_000)
    with open_store(tmp_path, _files=clock) as store:
        partition = new_partition(store, segment_ms=1000)
        append_at(partition, 5)
        clock.now += 10**9
        append_at(partition, 5, 6)
        assert bases(partition) == [0]


@pytest.mark.parametrize(
    ("index_bytes", "rising", "first"),
    [(48, False, 7), (55, False, 7), (56, False, 8), (48, True, 4), (60, True, 5)],
)
def test_roll_when_an_index_is_full(
    tmp_path: Path, index_bytes: int, rising: bool, first: int
) -> None:
    """An offset index of n slots is full with n entries, a time index with n - 1: its
    last slot is kept for the closing entry."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(
            store, segment_index_bytes=index_bytes, index_interval_bytes=0
        )
        append_at(partition, *([*range(1, 21)] if rising else [1] * 20))
        assert bases(partition)[1] == first
        partition.roll()
        for log in logs_in(tmp_path / "orders-0")[:-1]:
            for suffix in (".index", ".timeindex"):
                assert log.with_suffix(suffix).stat().st_size <= index_bytes


@pytest.mark.parametrize("index_bytes", [4, 8, 12, 23])
def test_index_without_room_rolls_at_every_append(
    tmp_path: Path, index_bytes: int
) -> None:
    """The smallest setting works, though it makes little sense."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_index_bytes=index_bytes)
        append_at(partition, 1, 2, 3)
        partition.append_many([VALUE] * 3, timestamps_ms=[4, 5, 6])
        assert bases(partition) == list(range(6))
        assert len(list(partition.read())) == 6


def test_roll_when_a_relative_offset_would_overflow(tmp_path: Path) -> None:
    """A segment spans 2^31 offsets at the most."""
    last = (1 << 31) - 1
    with logstore.open(tmp_path / "from") as store:
        append_at(new_partition(store), 1)
    data = bytearray(logs_in(tmp_path / "from" / "orders-0")[0].read_bytes())
    data[0:8] = (last - 1).to_bytes(8, "big")
    directory = tmp_path / "to" / "orders-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(data)
    with logstore.open(tmp_path / "to") as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == last
        assert partition.append(b"at the limit", timestamp_ms=1) == last
        assert partition.append(b"beyond", timestamp_ms=1) == last + 1
        assert bases(partition) == [0, last + 1]
        assert [r.offset for r in partition.read(5)] == [last - 1, last, last + 1]
        assert [r.offset for r in partition.read(last + 1)] == [last + 1]


def test_roll_by_hand_begins_a_segment_unless_the_active_one_is_empty(
    tmp_path: Path,
) -> None:
    """Rolling twice is rolling once."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.roll()
        fill(partition, 3)
        partition.roll()
        partition.roll()
        assert bases(partition) == [0, 3]
        fill(partition, 3)
        assert list(partition.read()) == expected(1, 0, 6)
        assert partition.durable_offset == 3


def test_jitter_rolls_earlier_never_later(tmp_path: Path) -> None:
    """A segment is rolled between segment_ms - jitter and segment_ms."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_ms=1000, segment_jitter_ms=400)
        stamp = 0
        for _ in range(300):
            append_at(partition, stamp)
            stamp += 10
        edges = [
            r.timestamp_ms for r in partition.read() if r.offset in bases(partition)
        ]
        steps = {b - a for a, b in itertools.pairwise(edges)}
        assert all(600 < step <= 1010 for step in steps)
        assert len(steps) > 1


@every_magic
def test_segment_info_tells_what_is_in_it(tmp_path: Path, magic: int) -> None:
    """Bases, ends, sizes and largest timestamps agree with the records."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store, magic, segment_bytes=500), 60)
        for read_only in (False, True):
            if read_only:
                store.close()
                store = logstore.open(tmp_path, read_only=True)
            partition = store.topic("orders")[0]
            segments = partition.segments
            assert isinstance(segments, tuple)
            assert [s.is_active for s in segments] == [False] * (len(segments) - 1) + [
                True
            ]
            for segment in segments:
                assert segment.path == str(
                    tmp_path / "orders-0" / f"{segment.base_offset:020d}.log"
                )
                assert segment.size_bytes == Path(segment.path).stat().st_size
                records = list(partition.read(segment.base_offset, segment.next_offset))
                assert records == expected(
                    magic, segment.base_offset, segment.next_offset
                )
                assert segment.max_timestamp_ms == max(r.timestamp_ms for r in records)
        store.close()


def test_reserved_space_is_given_back_at_roll_and_close(tmp_path: Path) -> None:
    """A sealed or closed log takes no more space than it needs."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        for _ in range(3):
            partition.append_many([bytes(1000)] * 300)
            partition.roll()
        partition.append(b"x")
    for log in logs_in(tmp_path / "orders-0"):
        status = log.stat()
        assert status.st_blocks * 512 <= status.st_size + 8192


def test_time_is_found_in_a_segment_that_grows_during_a_lookup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread refreshes the end after this one has read the headers for the
    largest time: later lookups must not skip the segment."""
    headers, looks = Segment.headers, []

    def then_grow(segment: Segment, *place: Any) -> Iterator[Any]:
        yield from headers(segment, *place)
        if not looks:
            looks.append(0)
            append_at(partition, 5000)
            assert beside.end_offset == 3

    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        append_at(partition, 1000)
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            assert beside.end_offset == 1
            append_at(partition, 1001)
            assert beside.end_offset == 2
            monkeypatch.setattr(Segment, "headers", then_grow)
            assert beside.offset_for_time(9999) is None
            assert looks
            partition.roll()
            append_at(partition, 9000)
            assert beside.end_offset == 4
            assert beside.offset_for_time(4000) == 2
