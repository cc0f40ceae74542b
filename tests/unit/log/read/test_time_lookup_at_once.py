"""Lookups by time that need only the indexes and one or two reads: the answer of a
scan, or none, and then the usual way."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.errors import LogStoreError
from logstore.index import OffsetEntries, TimeEntries
from logstore.log.read.time_lookup import first_offset_at

T = 1_700_000_000_000


def partition_of(store: logstore.Store, magic: int, **settings: Any) -> Any:
    config = logstore.TopicConfig(message_format=magic, **settings)
    return store.create_topic("orders", partitions=1, config=config)[0]


def times_of(partition: Any) -> list[int]:
    return [record.timestamp_ms for record in partition.read()]


def since(times: list[int], timestamp: int, start: int = 0) -> int | None:
    return next((i + start for i, t in enumerate(times) if t >= timestamp), None)


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("per_call", [1, 40, 700])
@pytest.mark.parametrize("value_bytes", [10, 2000])
def test_first_record_since_each_time_is_found_at_once(
    tmp_path: Path, magic: int, per_call: int, value_bytes: int
) -> None:
    """Batches are small and large; the process writes or reads; the segment is the
    first or the last; the record is the first one or the one after a deletion."""
    rng = random.Random(1)
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, magic, segment_bytes=1 << 20)
        calls = 2100 // per_call
        for call in range(calls):
            first = T + call * per_call * 10
            times = [first + i * 10 for i in range(per_call)]
            partition.append_many([bytes(value_bytes)] * per_call, timestamps_ms=times)
        times, asked = times_of(partition), 0
        for reader in (
            partition,
            logstore.open(tmp_path, read_only=True).topic("orders")[0],
        ):
            # Files that were written a moment ago may change unseen, and are looked at
            # again.
            deadline = time.monotonic() + 60
            while reader._views.find_since(T) is None:
                assert time.monotonic() < deadline
                reader.offset_for_time(T)
                time.sleep(0.002)
            for _ in range(150):
                timestamp = T + rng.randrange(-5, len(times) * 10 - 9)
                expected = since(times, timestamp)
                assert reader._views.find_since(timestamp) in (expected, None)
                asked += reader._views.find_since(timestamp) is not None
                assert reader.offset_for_time(timestamp) == expected
            assert reader.offset_for_time(times[-1] + 1) is None
        assert asked > 270
        partition.delete_before(len(times) // 2 + 3)
        left = times[partition.start_offset :]
        for timestamp in (T, left[0], left[0] + 1, left[-1]):
            expected = since(left, timestamp, partition.start_offset)
            assert partition.offset_for_time(timestamp) == expected


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("append_time", [False, True])
def test_any_order_of_times_has_the_answer_of_a_scan(
    tmp_path: Path, magic: int, codec: str, append_time: bool
) -> None:
    rng = random.Random(magic)
    settings: dict[str, Any] = {"segment_bytes": 60_000, "compression_type": codec}
    if append_time and magic:
        settings["message_timestamp_type"] = "LogAppendTime"
    if not magic and codec != "none":
        pytest.skip("magic 0 has no times, compressed or not")
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, magic, **settings)
        for _ in range(60):
            count = rng.choice([1, 5, 60])
            stamps = [T + rng.randrange(10_000) for _ in range(count)]
            values = [bytes(rng.randrange(200)) for _ in range(count)]
            if not magic:
                partition.append_many(values)
            else:
                partition.append_many(values, timestamps_ms=stamps)
        times = times_of(partition)
        low, high = min(times), max(times)
        for _ in range(200):
            timestamp = rng.randrange(low - 5, high + 5)
            expected = since(times, timestamp)
            assert partition._views.find_since(timestamp) in (expected, None)
            assert partition.offset_for_time(timestamp) == expected
        for timestamp in (-(1 << 63), -1, 0, (1 << 63) - 1, 1 << 63, -(1 << 70)):
            assert partition.offset_for_time(timestamp) == since(times, timestamp)


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("per_call", [1, 300])
def test_flipped_bits_give_no_wrong_answer(
    tmp_path: Path, magic: int, per_call: int
) -> None:
    """Bits flip in the log and in both indexes: a result found at once is right, or
    there is no such result."""
    rng = random.Random(5)
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, magic)
        for call in range(900 // per_call):
            times = [T + (call * per_call + i) * 10 for i in range(per_call)]
            partition.append_many([bytes(100)] * per_call, timestamps_ms=times)
        times = times_of(partition)
    names = [
        tmp_path / "orders-0" / f"{0:020d}{s}" for s in (".log", ".index", ".timeindex")
    ]
    found = 0
    for name in names:
        good = name.read_bytes()
        for _ in range(40):
            bad = bytearray(good)
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
            name.write_bytes(bad)
            os.utime(name)
            with logstore.open(tmp_path, read_only=True) as store:
                reader = store.topic("orders")[0]
                # The usual way may report the damage.
                with contextlib.suppress(LogStoreError):
                    for _ in range(20):
                        timestamp = T + rng.randrange(9000)
                        expected = since(times, timestamp)
                        offset = reader._views.find_since(timestamp)
                        assert offset in (expected, None)
                        found += offset is not None
                        assert reader.offset_for_time(timestamp) == expected
        name.write_bytes(good)
    assert found > 500


def test_records_that_are_not_committed_are_not_found(tmp_path: Path) -> None:
    """A lookup at once ends where readers end."""
    with logstore.open(tmp_path) as store:
        partition = partition_of(store, 1)
        for number in range(50):
            partition.append(b"x", timestamp_ms=T + number)
        views = partition._views
        segments = views.log.segments
        assert views._find_since(segments, 0, 50, T + 40) == 40
        assert views._find_since(segments, 0, 40, T + 40) is None
        assert views._find_since(segments, 45, 50, T + 40) == 45
        assert views._find_since((), 0, 0, T) is None
        assert first_offset_at(views.now(False), T + 40, views._times) == 40


@pytest.mark.parametrize(
    ("times", "count", "offsets", "offset_count"),
    [
        ("text", 0, b"", 0),
        (b"", 1, b"", 0),
        (b"", -1, b"", 0),
        (b"", 0, None, 0),
        (b"", 0, b"1234567", 1),
        (bytes(23), 2, b"", 0),
    ],
)
def test_wrong_entries_raise(
    times: Any, count: int, offsets: Any, offset_count: int
) -> None:
    with pytest.raises((TypeError, ValueError)):
        native.find_offset_since(
            0, TimeEntries(times, count), OffsetEntries(offsets, offset_count), 0, 10,
            100, 15, 0, T,
        )  # fmt: skip
