"""`logstore-dump stat`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from support.cli import RECORDS, SMALL
from support.damage import flip_bit, frames, logs_in
from support.values import new_partition, timestamp_of, write_store


def test_stat_counts_records_by_magic_and_codec(run: Any, tmp_path: Path) -> None:
    """This holds for partitions and for files."""
    partition = write_store(tmp_path / "store", RECORDS, 2, "lz4", call=20, **SMALL)
    [line] = run("stat", partition.parent, "--format", "jsonl").json
    assert line["records"] == RECORDS
    assert line["recordsByMagic"] == {"2": RECORDS}
    assert line["recordsByCodec"] == {"lz4": RECORDS}
    assert (line["startOffset"], line["endOffset"]) == (0, RECORDS)
    assert line["segments"] == len(logs_in(partition))
    assert line["largestTimestamp"] == max(map(timestamp_of, range(RECORDS)))
    text = run("stat", partition).out
    assert f"{RECORDS} of magic 2" in text
    assert f"{RECORDS} lz4" in text
    path = logs_in(partition)[0]
    [line] = run("stat", path, "--format", "jsonl").json
    assert line["size"] == path.stat().st_size


def test_stat_of_damage_exits_one(run: Any, partition: Path) -> None:
    """Everything countable is printed before."""
    flip_bit(logs_in(partition)[1], 8 * 30)
    result = run("stat", partition)
    assert result.status == 1
    assert "records" in result.out
    assert result.err


def test_stat_sums_up(run: Any, store: Path) -> None:
    """A table with totals follows the partitions, sorted as requested."""
    with logstore.open(store) as opened:
        opened.topic("clicks")[1].append(b"one more")
    lines = run("stat", store, "--sort", "-records").lines
    assert lines[0] == "clicks-1"
    assert "in 1 segment" in lines[2]
    head = next(i for i, line in enumerate(lines) if line.startswith("partition"))
    assert [line.split()[:2] for line in lines[head + 1 : -1]] == [
        ["clicks-1", "4"],
        ["clicks-0", "3"],
        ["orders-0", "3"],
    ]
    assert lines[-1].split()[:3] == ["3", "partitions", "10"]


def test_stat_reads_on_behind_damage(run: Any, partition: Path) -> None:
    """`skip` is used: the batches after it count, and the end lists the missing
    ones."""
    log = logs_in(partition)[1]
    flip_bit(log, 8 * 30)
    first, following = frames(log)[:2]
    strict = run("stat", partition, "--format", "jsonl")
    [line] = strict.json
    assert (strict.status, line["records"]) == (1, first.offset)
    skipping = run("stat", partition, "--format", "jsonl", "--on-corruption", "skip")
    lost = following.offset - first.offset
    [line] = skipping.json
    assert (skipping.status, line["records"]) == (1, RECORDS - lost)
    assert f"missing in all: {lost} offsets of 1 partition" in skipping.err


@pytest.mark.parametrize(
    ("magic", "codec"), [(1, "none"), (1, "gzip"), (2, "none"), (2, "zstd")]
)
def test_first_time_of_stat_is_that_of_a_record(
    run: Any, tmp_path: Path, magic: int, codec: str
) -> None:
    """The smallest time at the beginning of a batch, not the largest time of a
    batch."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        for first in (5000, 1000, 9000):
            times = [first + 100 * i for i in range(10)]
            partition.append_many([b"v"] * 10, None, times)
    [line] = run("stat", tmp_path, "--format", "jsonl").json
    assert line["smallestFirstTimestamp"] == 1000
    is_message = (magic, codec) == (1, "none")  # a batch of one
    assert line["smallestBatchTimestamp"] == (1000 if is_message else 1900)
    assert line["largestTimestamp"] == 9900
    text = run("stat", tmp_path).out
    assert "time       1970-01-01T00:00:01.000Z to 1970-01-01T00:00:09.900Z" in text


def test_first_time_of_stat_is_the_time_of_appending(run: Any, tmp_path: Path) -> None:
    """The records have this time; the base of such a batch is another one."""
    settings = {"message_timestamp_type": "LogAppendTime"}
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, "none", **settings)
        partition.append_many([b"v"] * 3, None, [1, 2, 3])
        [first, *_] = partition.read()
    [line] = run("stat", tmp_path, "--format", "jsonl").json
    assert line["smallestFirstTimestamp"] == first.timestamp_ms > 3


def test_stat_of_a_format_without_times_has_none(run: Any, tmp_path: Path) -> None:
    """A dash as text."""
    write_store(tmp_path, RECORDS, 0, "none")
    [line] = run("stat", tmp_path, "--format", "jsonl").json
    assert line["smallestFirstTimestamp"] == line["largestTimestamp"] == -1
    assert "time       - to -" in run("stat", tmp_path).out


def test_horizon_of_a_compacted_batch_is_no_time_of_a_record(
    run: Any, tmp_path: Path
) -> None:
    """Compaction stores it in place of the time of the first record."""
    config = logstore.TopicConfig(
        cleanup_policy="compact", message_format=2, segment_bytes=300
    )
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("t", config=config)[0]
        for number in range(20):
            partition.append(None, b"%d" % number, timestamp_ms=5000 + number)
        partition.compact(force=True)
        batches = [b for b in partition.read_batches() if b.delete_horizon_ms]
        assert batches
    line = run("stat", tmp_path, "--format", "jsonl").json[0]
    times = line["smallestFirstTimestamp"], line["largestTimestamp"]
    assert times == (5000, 5019)
