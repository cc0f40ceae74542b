"""Batches of producers that are appended in one step of C, as in the usual way, which
takes all batches that are not plain."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit._native.kafka_bytes import message, plain_batch

import logstore
from support.prepared import (
    Prepared,
    T,
    close,
    files_of,
    partition_of,
    random_rows,
)
from support.values import every_magic


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    partition = partition_of(tmp_path / "data")
    partition.append_many([b"first"])
    yield partition
    close(partition)


def sent(path: Path, magic: int, rng: random.Random, codec: str = "none") -> bytes:
    """Batches of a producer: the log of another store, with its offsets."""
    config = {"message_format": magic, "compression_type": codec}
    with logstore.open(path) as store:
        topic = store.create_topic(
            "t", partitions=1, config=logstore.TopicConfig(**config)
        )
        for _ in range(rng.randrange(1, 4)):
            topic[0].append_many(*random_rows(rng))
    return (path / "t-0" / f"{0:020d}.log").read_bytes()


@pytest.mark.sampled(12)
@every_magic
@pytest.mark.parametrize("append_time", [False, True])
@pytest.mark.parametrize("topic_magic", [1, 2])
@pytest.mark.parametrize("codec", ["none", "gzip"])
def test_batches_are_written_as_in_the_usual_way(
    tmp_path: Path,
    magic: int,
    append_time: bool,
    topic_magic: int,
    codec: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Magic and codec of the batches may differ from the topic's."""
    settings: dict[str, Any] = {"segment_bytes": 300_000, "index_interval_bytes": 700}
    settings["compression_type"] = codec
    if append_time:
        settings["message_timestamp_type"] = "LogAppendTime"
    monkeypatch.setattr(time, "time_ns", lambda: T * 1_000_000)
    rng = random.Random(5)
    calls = [sent(tmp_path / f"from{n}", magic, rng) for n in range(20)]
    found = []
    for is_prepared in (True, False):
        path = tmp_path / str(is_prepared)
        partition = partition_of(path, topic_magic, **settings)
        prepared = Prepared(partition)
        prepared.is_off = not is_prepared
        for call in calls:
            before = partition.end_offset
            assert partition.append_batches(call).start == before
            end = partition.end_offset
            assert partition.append(b"x" * 10, timestamp_ms=T) == end
        assert prepared.taken > 3 if is_prepared else not prepared.taken
        found.append(list(partition.read()))
        close(partition)
        assert logstore.verify(path, deep=True).ok
        found.append(files_of(path))
        epochs = path / "orders-0" / "leader-epoch-checkpoint"
        found.append(epochs.read_text())
    assert found[:3] == found[3:]


def test_batches_that_are_not_plain_go_the_usual_way(
    partition: logstore.Partition, tmp_path: Path
) -> None:
    plain = plain_batch(0, 5)
    partition.append_batches(plain)
    prepared = Prepared(partition)
    packed = sent(tmp_path / "packed", 2, random.Random(3), "gzip")
    for data in (packed, plain + packed, bytearray(plain), memoryview(plain)):
        before = partition.end_offset
        assert partition.append_batches(data).start == before
        assert partition.end_offset > before
    assert prepared.taken == 0
    partition.append_batches(plain)
    assert prepared.taken == 1


@pytest.mark.parametrize("place", [20, -1, 100])
def test_damaged_batch_is_refused(partition: logstore.Partition, place: int) -> None:
    plain = plain_batch(0, 5)
    partition.append_batches(plain)
    end = partition.end_offset
    damaged = bytearray(plain)
    damaged[place] ^= 1
    for data in (bytes(damaged), plain[:-1], plain + b"x"):
        with pytest.raises(logstore.CorruptRecordError, match="nothing was written"):
            partition.append_batches(data)
    assert partition.append_batches(b"") == range(end, end)
    assert partition.end_offset == end


def test_batches_with_an_older_time_than_a_topic_takes_are_refused(
    tmp_path: Path,
) -> None:
    """The usual way refuses them, too; a topic that stamps them itself accepts them."""
    old = message(0, b"k", b"v", timestamp=-5)
    for kind, is_taken in (("CreateTime", False), ("LogAppendTime", True)):
        partition = partition_of(tmp_path / kind, message_timestamp_type=kind)
        partition.append_batches(message(0, b"k", b"v", timestamp=5))
        if is_taken:
            assert partition.append_batches(old) == range(1, 2)
        else:
            with pytest.raises(logstore.CorruptRecordError):
                partition.append_batches(old)
        close(partition)
