"""Lookups by time: the segments that are passed over, and the record that is found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.read.time_lookup import LargestTimestamps
from support.values import new_partition


class OneSegment:
    """What a lookup knows of a segment."""

    def __init__(self, max_timestamp: int | None, *, is_lost: bool = False) -> None:
        self.max_timestamp = max_timestamp
        self.is_lost = is_lost


def segments_of(*timestamps: int | None) -> Any:
    return tuple(OneSegment(timestamp) for timestamp in timestamps)


def test_segments_that_end_before_a_time_are_older() -> None:
    """Those before one that reaches it; the last one may still grow."""
    largest = LargestTimestamps()
    segments = segments_of(10, 30, 20, 40, 50)
    expected = {0: 0, 10: 0, 11: 1, 30: 1, 31: 3, 40: 3, 41: 4, 51: 4, 2**62: 4}
    for timestamp, count in expected.items():
        assert largest.older(segments, timestamp) == count
    assert largest.older((), 5) == 0
    assert largest.older(segments[:1], 99) == 0


def test_unknown_and_lost_segments_are_not_passed_over() -> None:
    """Someone has to look at the first, and to report the second."""
    largest = LargestTimestamps()
    assert largest.older(segments_of(10, None, 30, 40), 99) == 1
    lost = (OneSegment(10), OneSegment(20, is_lost=True), *segments_of(30, 40))
    assert largest.older(lost, 99) == 1  # type: ignore[arg-type]


def test_segment_that_was_cut_and_has_grown_is_looked_at_again() -> None:
    """It is the same object, with another timestamp."""
    largest = LargestTimestamps()
    segments = segments_of(10, 20, 30, 40)
    assert largest.older(segments, 25) == 2
    segments[1].max_timestamp = 90
    grown = (*segments[:2], *segments_of(50, 60))
    assert largest.older(grown, 25) == 1
    assert largest.older(grown, 91) == 3


def test_segments_that_were_deleted_are_forgotten() -> None:
    """The largest timestamp may have been theirs."""
    largest = LargestTimestamps()
    segments = segments_of(90, 20, 30, 40)
    assert largest.older(segments, 50) == 0
    assert largest.older(segments[1:], 50) == 2
    assert largest.older(segments[2:], 35) == 1


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
