"""Lookups by time: the segments that are passed over, and the result."""

from __future__ import annotations

import contextlib
import datetime
import os
import random
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import errors
from logstore.log.read.corruption import Damaged
from logstore.log.read.time_lookup import LargestTimestamps
from logstore.log.read.view import Segments
from logstore.segment import SegmentGoneError
from support.values import new_partition


class OneSegment:
    """State of a segment for a lookup."""

    def __init__(self, max_timestamp: int | None, *, is_lost: bool = False) -> None:
        self.max_timestamp = max_timestamp
        self.is_lost = is_lost


def segments_of(*timestamps: int | None) -> Any:
    return listed(OneSegment(timestamp) for timestamp in timestamps)


def listed(segments: Iterable[Any]) -> Segments:
    """Segments of a log."""
    return Segments(segments)


def test_segments_that_end_before_a_time_are_older() -> None:
    """They come before one that reaches it; the last one may still grow."""
    largest = LargestTimestamps()
    segments = segments_of(10, 30, 20, 40, 50)
    expected = {0: 0, 10: 0, 11: 1, 30: 1, 31: 3, 40: 3, 41: 4, 51: 4, 2**62: 4}
    for timestamp, count in expected.items():
        assert largest.older(segments, timestamp) == count
    assert largest.older(Segments(), 5) == 0
    assert largest.older(listed(segments[:1]), 99) == 0


def test_unknown_and_lost_segments_are_not_passed_over() -> None:
    """A lookup must examine the first, and report the second."""
    largest = LargestTimestamps()
    assert largest.older(segments_of(10, None, 30, 40), 99) == 1
    lost = (OneSegment(10), OneSegment(20, is_lost=True), *segments_of(30, 40))
    assert largest.older(listed(lost), 99) == 1


def test_segment_that_was_cut_and_has_grown_is_looked_at_again() -> None:
    """It is the same object, with another timestamp."""
    largest = LargestTimestamps()
    segments = segments_of(10, 20, 30, 40)
    assert largest.older(segments, 25) == 2
    segments[1].max_timestamp = 90
    grown = listed((*segments[:2], *segments_of(50, 60)))
    assert largest.older(grown, 25) == 1
    assert largest.older(grown, 91) == 3


def test_segments_that_were_deleted_are_forgotten() -> None:
    """The largest timestamp may have been theirs."""
    largest = LargestTimestamps()
    segments = segments_of(90, 20, 30, 40)
    assert largest.older(segments, 50) == 0
    assert largest.older(listed(segments[1:]), 50) == 2
    assert largest.older(listed(segments[2:]), 35) == 1


def test_lookup_in_the_same_list_looks_at_no_segment() -> None:
    """Among thousands of segments that would cost more than the rest of a lookup."""
    largest = LargestTimestamps()
    segments = segments_of(10, 20, 30)
    assert largest.older(segments, 25) == 2
    for segment in segments:
        del segment.max_timestamp
    assert largest.older(segments, 15) == 1


def test_each_list_of_a_log_keeps_what_is_found_out(tmp_path: Path) -> None:
    """Each change of the log makes a new list."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(logstore.open(tmp_path))
        partition = new_partition(store, cleanup_policy="compact")
        partition.append(b"x", key=b"0")
        other = stack.enter_context(logstore.open(tmp_path, read_only=True))
        reader = other["orders"][0]
        logs: list[Any] = [partition._log, reader._log]

        def check(base_offsets: list[int]) -> None:
            len(reader)  # looks at the log
            for log in logs:
                assert [one.base_offset for one in log.segments] == base_offsets
                assert type(log.segments) is Segments

        check([0])
        for number in range(1, 5):
            partition.roll()
            partition.append(b"x", key=b"%d" % (number // 2))
            check([*range(number + 1)])
        partition.delete_before(1)
        check([1, 2, 3, 4])
        assert partition.compact()
        check([1, 4])
        partition.truncate_to(2)
        check([1])


def test_segments_are_not_held() -> None:
    """The files of a deleted segment are removed when it is no longer used."""
    largest = LargestTimestamps()
    segments = segments_of(10, 20, 30)
    assert largest.older(segments, 25) == 2
    (first, *_), segments = map(weakref.ref, segments), listed(segments[1:])
    assert first() is None
    assert largest.older(segments, 25) == 1


def test_deletion_after_a_lookup_removes_the_files(tmp_path: Path) -> None:
    """Without this they stayed until the next lookup: a full disk stayed full."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, file_delete_delay_ms=0)
        for number in range(4):
            partition.append(b"x", timestamp_ms=number)
            partition.roll()
        assert partition.offset_for_time(2) == 2
        assert partition.delete_before(3) == 3
        names = os.listdir(tmp_path / "orders-0")
    assert not [name for name in names if name.endswith(".deleted")]


def first_since(partition: Any, timestamp_ms: int) -> int | None:
    """The answer, from all records."""
    return next(
        (r.offset for r in partition.read() if r.timestamp_ms >= timestamp_ms), None
    )


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_first_record_since_a_time_is_that_of_a_scan(
    tmp_path: Path, magic: int, seed: int
) -> None:
    """Times go up and down; segments are rolled, deleted, cut, and grow again."""
    rng = random.Random(seed)
    now = 10**12
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, segment_bytes=2500)
        for _ in range(60):
            kind = rng.randrange(10)
            if kind < 7:
                now += rng.choice((1000, 1000, -900, 5000))
                times = [now + rng.randrange(500) for _ in range(rng.randrange(1, 30))]
                partition.append_many([b"value"] * len(times), timestamps_ms=times)
            elif kind == 7 and len(partition.segments) > 3:
                segment = rng.choice(partition.segments[1:])
                partition.truncate_to(segment.base_offset)
            elif kind == 8 and len(partition.segments) > 3:
                partition.delete_before(partition.segments[1].base_offset)
            for _ in range(3):
                timestamp = now + rng.randrange(-9000, 2000)
                expected = first_since(partition, timestamp)
                assert partition.offset_for_time(timestamp) == expected


T = 10**12
LOST = {"first": 0, "middle": 1, "before the last": -2, "last": -1}


def at_time(number: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp((T + number) / 1000, datetime.timezone.utc)


def told_by_reading(partition: Any, start: datetime.datetime) -> list[Any]:
    """The first offset of a read, and the ranges of damage that it left out before."""
    told: list[Any] = []

    def leave_out(damaged: Damaged) -> bool:
        told.append((damaged.first, damaged.next_offset))
        return True

    records = partition.read(start=start, on_corruption=leave_out)
    with contextlib.closing(records):
        return [next((record.offset for record in records), None), told]


def answer(call: Callable[[], Any]) -> tuple[Any, ...]:
    """Result of a call, or the facts of the damage that it raises."""
    try:
        return ("found", call())
    except (errors.CorruptRecordError, errors.UnsupportedError) as error:
        facts = (type(error), str(error), error.path, error.position, error.offset)
        return (*facts, getattr(error, "next_offset", None))


def scanned(partition: Any, number: int) -> int | None:
    """The first offset since a time, by a read of all records."""
    records = partition.read()
    return next((r.offset for r in records if r.timestamp_ms >= T + number), None)


@pytest.mark.parametrize("which", LOST)
@pytest.mark.parametrize("is_compacted", [False, True])
def test_lookup_says_of_a_lost_segment_what_a_read_says(
    tmp_path: Path, which: str, *, is_compacted: bool
) -> None:
    """The error and the left out range are the same. A segment that compaction has
    emptied is no loss."""
    policy = "compact" if is_compacted else "delete"
    config = logstore.TopicConfig(segment_bytes=2000, cleanup_policy=policy)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", config=config)[0]
        for number in range(400):
            key = b"%d" % (number % 150)
            partition.append(b"v%03d" % number * 10, key=key, timestamp_ms=T + number)
        if is_compacted:
            partition.compact()
    log = sorted((tmp_path / "a-0").glob("*.log"))[LOST[which]]
    base, is_empty = int(log.stem), log.stat().st_size == 0
    log.unlink()
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("a")[0]
        assert is_empty == (is_compacted and which in ("first", "middle"))
        if is_empty:
            first = next(record.offset for record in partition.read())
            assert told_by_reading(partition, at_time(0)) == [first, []]
        for number in (0, 60, 250, 360, 399):
            found = answer(lambda n=number: partition.offset_for_time(T + n))
            expected = answer(lambda n=number: scanned(partition, n))
            assert found == expected
            if expected[0] != "found":
                assert expected[0] is SegmentGoneError
                _, left_out = told_by_reading(partition, at_time(number))
                assert left_out == [(base, expected[-1] if which != "last" else None)]


def damage_frame(data: bytearray, pos: int) -> None:
    data[pos + 8] = 0x7F


def damage_magic(data: bytearray, pos: int) -> None:
    data[pos + 16] = 9


def damage_base_offset(data: bytearray, pos: int) -> None:
    data[pos + 2] = 1


def damage_crc(data: bytearray, pos: int) -> None:
    data[pos + 17] ^= 1


@pytest.mark.parametrize(
    "damage", [damage_frame, damage_magic, damage_base_offset, damage_crc]
)
def test_lookup_in_a_damaged_segment_says_what_a_read_says(
    tmp_path: Path, damage: Callable[[bytearray, int], None]
) -> None:
    """Damage after the record that is found does not concern the lookup; before it,
    the error and the range that is left out are a read's."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a")[0]
        for number in range(100):
            partition.append(b"value", timestamp_ms=T + number)
        name = partition.segments[0].path
    # A directory of another program, whose largest timestamp is not known.
    for path in [*tmp_path.rglob(".logstore*"), *tmp_path.rglob("*index")]:
        path.unlink()
    data, pos = bytearray(Path(name).read_bytes()), 0
    for _ in range(60):
        pos += 12 + int.from_bytes(data[pos + 8 : pos + 12], "big")
    damage(data, pos)
    Path(name).write_bytes(data)
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("a")[0]
        for number in (0, 10, 59, 60, 61, 90):
            found = answer(lambda n=number: partition.offset_for_time(T + n))
            assert found == answer(lambda n=number: scanned(partition, n))
            assert (found[0] == "found") == (number < 60)
            first, told = told_by_reading(partition, at_time(number))
            assert first == (number if number != 60 else 61)
            assert told == ([(60, 61)] if number >= 60 else [])
