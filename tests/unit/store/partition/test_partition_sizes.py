"""Sizes: limits of records, batches and segments, to the byte."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import logstore
from support.damage import frames, logs_in
from support.values import (
    append_records,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


def _size_of(path: Path) -> int:
    return frames(logs_in(path / "orders-0")[-1])[-1].size


@every_magic
def test_record_of_max_message_bytes_fits_and_one_more_does_not(
    tmp_path: Path, magic: int
) -> None:
    """The limit is on the whole message or batch, to the byte."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, max_message_bytes=500)
        partition.append(bytes(300), b"key")
        overhead = _size_of(tmp_path) - 300
        partition.append(bytes(500 - overhead), b"key")
        assert _size_of(tmp_path) == 500
        partition.append_many([bytes(500 - overhead)], [b"key"])
        assert _size_of(tmp_path) == 500
        for call in (
            lambda: partition.append(bytes(501 - overhead), b"key"),
            lambda: partition.append_many([bytes(501 - overhead)], [b"key"]),
            lambda: partition.append_many([b"a", b"b", bytes(600), b"c"]),
        ):
            with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
                call()
            assert caught.value.limit_name == "max_message_bytes"
            assert caught.value.limit == 500
            assert "max_message_bytes=500" in str(caught.value)
        assert caught.value.size is not None
        assert caught.value.size > 500
        assert partition.end_offset == 3
        assert partition.append(b"next") == 3


@every_format
def test_append_many_keeps_every_batch_within_the_limit(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Records are spread over batches none of which is beyond the limit."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, max_message_bytes=400)
        for round_ in range(3):
            append_records(partition, 100 + round_)
        values = [os.urandom(300) for _ in range(10)]
        partition.append_many(values)
        assert [r.value for r in partition.read(303)] == values
        assert list(partition.read(0, 303)) == expected(magic, 0, 303)
        for log in logs_in(tmp_path / "orders-0"):
            assert max(frame.size for frame in frames(log)) <= 400


@every_format
def test_incompressible_record_at_the_limit_is_stored(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A record that fits uncompressed is stored, though a codec would make it
    larger."""
    overhead = {0: 26, 1: 34, 2: 61 + 9}[magic]
    value = os.urandom(2000 - overhead)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, max_message_bytes=2000)
        assert partition.append(value) == 0
        assert partition.append_many([b"small", value, b"small"]) == range(1, 4)
        assert [r.value for r in partition.read()] == [value, b"small", value, b"small"]


@every_format
def test_incompressible_record_beyond_the_limit_raises(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A record that fits neither way is refused with the limit's name, and nothing is
    left."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, max_message_bytes=2000)
        fill(partition, 2)
        for call in (
            lambda: partition.append(os.urandom(2000)),
            lambda: partition.append_many([b"x", os.urandom(2000), b"y"]),
        ):
            with pytest.raises(logstore.errors.RecordTooLargeError) as caught:
                call()
            assert caught.value.limit_name == "max_message_bytes"
        fill(partition, 2)
        assert list(partition.read()) == expected(magic, 0, 4)
    assert read_all(tmp_path) == expected(magic, 0, 4)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressible_record_beyond_the_limit_fits_when_compressed(
    tmp_path: Path, codec: str
) -> None:
    """The limit counts stored bytes, as Kafka's does."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, codec, max_message_bytes=50_000)
        partition.append(bytes(500_000))
        assert [r.value for r in partition.read()] == [bytes(500_000)]


@every_format
def test_large_records_come_back(tmp_path: Path, magic: int, codec: str) -> None:
    """Records larger than all buffers survive, between small ones."""
    values = [
        b"a",
        os.urandom(900_000),
        b"b",
        bytes(1_000_000),
        b"",
        os.urandom(40_000),
    ]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, segment_bytes=1_500_000)
        partition.append_many(values)
        for value in values:
            partition.append(value)
        assert [r.value for r in partition.read()] == values * 2
        assert [r.value for r in partition.read(7, 9)] == (values * 2)[7:9]
    with logstore.open(tmp_path) as store:
        assert [r.value for r in store.topic("orders")[0].read()] == values * 2


def test_append_many_with_many_index_entries_stays_in_its_segment(
    tmp_path: Path,
) -> None:
    """An append that takes several calls into C, for its index entries, is no reason to
    roll."""
    config = logstore.TopicConfig(index_interval_bytes=1)
    with logstore.open(tmp_path / "store") as store:
        log = store.create_topic("t", config=config)[0]
        log.append_many([b"x"] * 9_000)
        log.append(b"y")
        assert [r.value for r in log.read()] == [b"x"] * 9_000 + [b"y"]
    assert len(list((tmp_path / "store" / "t-0").glob("*.log"))) == 1


@every_format
def test_append_many_across_segments_is_one_range(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A call larger than a segment rolls as often as it must."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(
            store, magic, codec, segment_bytes=700, max_message_bytes=300
        )
        fill(partition, 3)
        assert append_records(partition, 200) == range(3, 203)
        assert len(partition.segments) >= 5
        assert list(partition.read()) == expected(magic, 0, 203)
        bases = [s.base_offset for s in partition.segments]
        assert [s.next_offset for s in partition.segments] == [*bases[1:], 203]
        for log in logs_in(tmp_path / "orders-0"):
            assert log.stat().st_size <= 700
    assert read_all(tmp_path) == expected(magic, 0, 203)


@every_magic
def test_batch_larger_than_a_segment_gets_its_own(tmp_path: Path, magic: int) -> None:
    """A record beyond segment_bytes is accepted if it is a legal message."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, segment_bytes=100)
        values = [b"a", bytes(5000), b"b"]
        for value in values:
            partition.append(value)
        assert [r.value for r in partition.read()] == values
        assert [s.base_offset for s in partition.segments][:3] == [0, 1, 2]
