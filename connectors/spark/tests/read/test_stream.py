"""The stream reader, called as Spark calls it, without a Java machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import ConfigError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark_logstore.read import stream
from pyspark_logstore.read.columns import source_schema
from pyspark_logstore.read.offsets import DataLossError
from pyspark_logstore.read.options import parse
from pyspark_logstore.read.stream import StreamReader

MakeTopic = Callable[..., logstore.Topic]
limits = stream.limits
needs_limits = pytest.mark.skipif(
    limits is None, reason="this Spark does not tell a source where a batch starts"
)
SCHEMA = source_schema(include_headers=False)


def reader_of(path: str, **options: str) -> StreamReader:
    """A reader as Spark makes it."""
    given = {"path": path, "subscribe": "orders", **options}
    return StreamReader(SCHEMA, parse(given, streaming=True))


def next_batch(reader: StreamReader, start: Any) -> Any:
    """The end of the next batch, passed through JSON as by Spark."""
    if limits is None:
        return json.loads(json.dumps(reader.latestOffset()))
    limit = reader.getDefaultReadLimit()
    end = reader.latestOffset(json.loads(json.dumps(start)), limit)
    return json.loads(json.dumps(end))


def plain(offsets: Any) -> Any:
    """The text of offsets without the marks of their logs."""
    return {topic: found for topic, found in offsets.items() if topic != "@logs"}


def offsets_read(reader: StreamReader, start: Any, end: Any) -> dict[str, list[int]]:
    """The offsets that the tasks of a batch deliver, by partition."""
    found: dict[str, list[int]] = {}
    for task in reader.partitions(start, end):
        for batch in reader.read(task):
            for row in batch.select(["topic", "partition", "offset"]).to_pylist():
                name = f"{row['topic']}-{row['partition']}"
                found.setdefault(name, []).append(row["offset"])
    return found


def test_query_reads_on_where_it_stopped(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Batch after batch delivers every record once."""
    topic = make_topic(partitions=2, count=30)
    reader = reader_of(writer.path, startingOffsets="earliest")
    start = reader.initialOffset()
    assert plain(start) == {"orders": {"0": 0, "1": 0}}
    end = next_batch(reader, start)
    assert offsets_read(reader, start, end)["orders-0"] == list(range(30))
    topic[1].append(b"value")
    after = next_batch(reader, end)
    assert offsets_read(reader, end, after) == {"orders-1": [30]}


@needs_limits
def test_nothing_new_is_the_same_offset_again(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The very same object is returned: Spark compares text."""
    make_topic(partitions=2, count=3)
    reader = reader_of(writer.path)
    start = json.loads('{"orders": {"1": 3, "0": 3}}')
    assert reader.latestOffset(start, limits.ReadAllAvailable()) is start


def test_stream_starts_with_what_is_new(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """This is the default; a repeated call returns the same."""
    topic = make_topic(count=5)
    reader = reader_of(writer.path)
    assert plain(reader.initialOffset()) == {"orders": {"0": 5}}
    topic[0].append(b"value")
    assert plain(reader.initialOffset()) == {"orders": {"0": 5}}


def test_new_partition_is_read_from_its_beginning(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """This holds even if the query started with the latest offsets."""
    topic = make_topic(count=5)
    reader = reader_of(writer.path)
    start = reader.initialOffset()
    topic.add_partitions(1)
    topic[1].append_many([b"a", b"b"])
    end = next_batch(reader, start)
    assert plain(end) == {"orders": {"0": 5, "1": 2}}
    assert offsets_read(reader, start, end) == {"orders-1": [0, 1]}


def test_new_topic_of_a_pattern_is_read(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """A pattern is matched again for every batch; Kafka's own topics never match."""
    make_topic("orders", count=1)
    given = {"path": writer.path, "subscribePattern": ".*"}
    reader = StreamReader(SCHEMA, parse(given, streaming=True))
    start = reader.initialOffset()
    make_topic("users", count=2)
    make_topic("__consumer_offsets", count=2)
    end = next_batch(reader, start)
    assert plain(end) == {"orders": {"0": 1}, "users": {"0": 2}}
    assert offsets_read(reader, start, end) == {"users-0": [0, 1]}


def test_new_partition_that_has_lost_its_beginning_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Records were added and deleted before the query saw the partition."""
    topic = make_topic(count=5)
    strict = reader_of(writer.path)
    start = strict.initialOffset()
    topic.add_partitions(1)
    topic[1].append_many([b"a", b"b", b"c"])
    topic[1].delete_before(2)
    end = next_batch(strict, start)
    with pytest.raises(
        DataLossError, match="orders-1 is new to the query and starts at 2"
    ):
        strict.partitions(start, end)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    assert offsets_read(lenient, start, end) == {"orders-1": [2]}


# ---------------------------------------------------------------------- admission


@needs_limits
def test_max_offsets_divides_the_backlog(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The shares are proportional, until everything is read."""
    topic = make_topic(partitions=2, count=10)
    topic[1].append_many([b"value"] * 80)
    reader = reader_of(
        writer.path, startingOffsets="earliest", maxOffsetsPerTrigger="20"
    )
    assert reader.getDefaultReadLimit() == limits.ReadMaxRows(20)
    start = end = reader.initialOffset()
    ends = []
    while (end := next_batch(reader, end)) not in ends:
        ends.append(end)
    assert plain(ends[0]) == {"orders": {"0": 2, "1": 18}}
    assert plain(ends[-1]) == {"orders": {"0": 10, "1": 90}}
    assert 5 <= len(ends) <= 7
    assert reader.latestOffset(start, limits.ReadAllAvailable()) == ends[-1]


@needs_limits
def test_new_partition_is_limited_too(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Its backlog counts from its beginning."""
    topic = make_topic(count=5)
    reader = reader_of(writer.path, maxOffsetsPerTrigger="4")
    start = reader.initialOffset()
    topic.add_partitions(1)
    topic[1].append_many([b"value"] * 10)
    assert plain(next_batch(reader, start)) == {"orders": {"0": 5, "1": 4}}


@needs_limits
def test_max_bytes_limits_a_batch(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The size is the approximate size on disk."""
    partition = make_topic(count=1000)[0]
    size = sum(segment.size_bytes for segment in partition.segments)
    reader = reader_of(
        writer.path, startingOffsets="earliest", maxBytesPerTrigger=str(size // 4)
    )
    assert reader.getDefaultReadLimit() == limits.ReadMaxBytes(size // 4)
    end = next_batch(reader, reader.initialOffset())
    assert 200 <= end["orders"]["0"] <= 300


@needs_limits
def test_min_offsets_hold_a_batch_back_until_the_delay(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch goes at once, as in the Kafka source."""
    now = [1000.0]
    monkeypatch.setattr(stream.time, "monotonic", lambda: now[0])
    topic = make_topic()
    reader = reader_of(
        writer.path,
        startingOffsets="earliest",
        minOffsetsPerTrigger="3",
        maxTriggerDelay="10s",
    )
    assert reader.getDefaultReadLimit() == limits.ReadMinRows(3)
    start = reader.initialOffset()
    assert next_batch(reader, start) == start
    topic[0].append(b"value")
    end = next_batch(reader, start)
    assert plain(end) == {"orders": {"0": 1}}
    topic[0].append_many([b"a", b"b"])
    now[0] += 9.9
    assert next_batch(reader, end) == end
    topic[0].append(b"c")
    assert plain(next_batch(reader, end)) == {"orders": {"0": 4}}
    end = next_batch(reader, end)
    topic[0].append(b"d")
    assert next_batch(reader, end) == end
    now[0] += 10
    assert plain(next_batch(reader, end)) == {"orders": {"0": 5}}


@pytest.mark.skipif(limits is not None, reason="this Spark can do it")
@pytest.mark.parametrize("name", ["maxOffsetsPerTrigger", "maxBytesPerTrigger"])
def test_limit_that_spark_cannot_keep_is_refused(name: str, tmp_path: Path) -> None:
    """It is not ignored: a batch without bounds may be far too large."""
    with pytest.raises(ConfigError, match=f"{name} needs Spark 4.2"):
        reader_of(str(tmp_path), **{name: "5"})


# ------------------------------------------------------------------- available now


@needs_limits
def test_available_now_ends_at_what_was_there_at_first(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Records added while it runs wait for the next run, and so do new partitions."""
    topic = make_topic(count=10)
    reader = reader_of(
        writer.path, startingOffsets="earliest", maxOffsetsPerTrigger="6"
    )
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    topic[0].append(b"before the first look")
    end = next_batch(reader, start)
    assert plain(end) == {"orders": {"0": 6}}
    topic[0].append_many([b"later"] * 5)
    topic.add_partitions(1)
    topic[1].append(b"later")
    end = next_batch(reader, end)
    assert plain(end) == {"orders": {"0": 11}}
    assert next_batch(reader, end) == end
    assert reader.reportLatestOffset() == plain(end)


@needs_limits
def test_available_now_takes_what_min_offsets_would_hold_back(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Nothing more comes, so waiting for more would leave it unread."""
    make_topic(count=10)
    reader = reader_of(
        writer.path,
        startingOffsets="earliest",
        minOffsetsPerTrigger="7",
        maxOffsetsPerTrigger="7",
    )
    reader.prepareForTriggerAvailableNow()
    end = next_batch(reader, next_batch(reader, reader.initialOffset()))
    assert plain(end) == {"orders": {"0": 10}}


# ---------------------------------------------------------------------------- losses


@needs_limits
def test_cut_tail_is_a_loss(make_topic: MakeTopic, writer: logstore.Store) -> None:
    """Records that were read are gone and may have been replaced."""
    partition = make_topic(count=0, message_format=2)[0]
    partition.append_many([b"a"] * 10)
    partition.append_many([b"b"] * 10)
    start = {"orders": {"0": 20}}
    partition.truncate_to(10)
    with pytest.raises(DataLossError, match="ends at 10 and was read up to 20"):
        next_batch(reader_of(writer.path), start)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    end = next_batch(lenient, start)
    assert plain(end) == {"orders": {"0": 10}}
    assert offsets_read(lenient, start, end) == {}


@needs_limits
def test_deleted_topic_is_a_loss(make_topic: MakeTopic, writer: logstore.Store) -> None:
    """The error names its partitions; otherwise the query continues with the others."""
    make_topic("orders", count=3)
    make_topic("users", count=3)
    start = {"orders": {"0": 1}, "users": {"0": 1}}
    strict = reader_of(writer.path, subscribe="orders,users")
    lenient = reader_of(writer.path, subscribe="orders,users", failOnDataLoss="false")
    end = next_batch(strict, start)
    writer.delete_topic("users")
    with pytest.raises(DataLossError, match="users-0: deleted since the last batch"):
        next_batch(strict, start)
    assert plain(next_batch(lenient, start)) == {"orders": {"0": 3}}
    # A batch that was planned before.
    with pytest.raises(DataLossError, match="users-0: deleted before it was read"):
        strict.partitions(start, end)
    assert offsets_read(lenient, start, end) == {"orders-0": [1, 2]}


def test_topic_created_again_is_read_from_the_new_files(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The files that were open are not read again."""
    make_topic(count=7)
    reader = reader_of(writer.path, startingOffsets="earliest", failOnDataLoss="false")
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert offsets_read(reader, start, end) == {"orders-0": list(range(7))}
    writer.delete_topic("orders")
    make_topic(count=3)
    end = next_batch(reader, start)
    assert plain(end) == {"orders": {"0": 3}}
    assert offsets_read(reader, start, end) == {"orders-0": [0, 1, 2]}


@needs_limits
def test_topic_created_again_under_a_query_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """This holds even if it has grown past the read offsets: these are other records
    now."""
    make_topic(count=3)
    reader = reader_of(writer.path, startingOffsets="earliest")
    end = next_batch(reader, reader.initialOffset())
    writer.delete_topic("orders")
    make_topic(count=9)
    with pytest.raises(DataLossError, match="orders-0: deleted and created again"):
        next_batch(reader, end)


def test_partition_that_a_batch_leaves_out_is_a_loss(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Spark before 4.2 shows a deletion in this way: the batch starts with it, and ends
    without."""
    make_topic(count=3)
    start, end = {"orders": {"0": 1}, "users": {"0": 1}}, {"orders": {"0": 3}}
    with pytest.raises(DataLossError, match="users-0: deleted since the last batch"):
        reader_of(writer.path).partitions(start, end)
    lenient = reader_of(writer.path, failOnDataLoss="false")
    assert offsets_read(lenient, start, end) == {"orders-0": [1, 2]}


def test_missing_topic_is_an_error_at_the_start(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The error lists existing ones."""
    make_topic()
    with pytest.raises(ConfigError, match="no topic order; its topics: orders"):
        reader_of(writer.path, subscribe="order").initialOffset()
    given = {"path": writer.path, "assign": '{"orders": [0, 3]}'}
    with pytest.raises(ConfigError, match="no partition orders-3"):
        StreamReader(SCHEMA, parse(given, streaming=True)).initialOffset()


# ----------------------------------------------------------- start of the query


def test_start_of_a_query_that_died_is_kept(
    make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """readerId keeps it until the first batch is complete, also for another process."""
    topic = make_topic(count=5)
    options = {"readerId": "clean", "stateDir": str(tmp_path)}
    first = reader_of(writer.path, **options)
    start = first.initialOffset()
    topic[0].append_many([b"a", b"b"])
    second = reader_of(writer.path, **options)
    assert second.initialOffset() == start
    end = next_batch(second, start)
    assert offsets_read(second, start, end) == {"orders-0": [5, 6]}
    second.commit(end)
    assert list(tmp_path.glob("clean*")) == []
    assert reader_of(writer.path, **options).initialOffset() == end


def test_start_that_moved_on_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """There is no readerId: the first batch ended before the new start."""
    topic = make_topic(count=5)
    reader = reader_of(writer.path)
    end = next_batch(reader, reader.initialOffset())
    topic[0].append(b"value")
    again = reader_of(writer.path)
    with pytest.raises(DataLossError, match="readerId and stateDir"):
        again.partitions(again.initialOffset(), end)


def test_state_that_cannot_be_used_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """The directory is missing, or a file has other contents."""
    make_topic()
    missing = str(tmp_path / "missing")
    with pytest.raises(ConfigError, match=r"option stateDir: .*missing"):
        reader_of(writer.path, readerId="a", stateDir=missing).initialOffset()
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ConfigError, match=r"a\.json does not hold offsets"):
        reader_of(writer.path, readerId="a", stateDir=str(tmp_path)).initialOffset()


def test_reader_leaves_the_store_untouched(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """No name, size or time changes."""
    make_topic(partitions=2, count=100)
    writer.close()

    def look() -> dict[str, tuple[int, int]]:
        return {
            path: (status.st_size, status.st_mtime_ns)
            for folder, _, names in os.walk(writer.path)
            for path in [folder, *(os.path.join(folder, name) for name in names)]
            for status in [os.stat(path)]
        }

    before = look()
    reader = reader_of(writer.path, startingOffsets="earliest", minPartitions="4")
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert sum(map(len, offsets_read(reader, start, end).values())) == 200
    reader.commit(end)
    reader.stop()
    assert look() == before


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_damage_far_below_its_start_does_not_stop_a_query(
    make_topic: MakeTopic, writer: logstore.Store, isolation: str
) -> None:
    """The log is of a broker, whose transactions are searched in all batches; a query
    that reaches the damage raises."""
    partition = make_topic(count=400, message_format=2, segment_bytes=8000)[0]
    batch = next(partition.read_batches(120))
    segment = next(s for s in partition.segments if s.next_offset > 120)
    path = Path(segment.path)
    writer.close()
    with path.open("r+b") as file:
        file.seek(batch.position + batch.size_bytes - 2)
        file.write(b"\xff\xfe")
    Path(writer.path, ".logstore-owner").unlink()
    given = {"isolation": isolation, "startingOffsets": '{"orders": {"0": 300}}'}
    reader = reader_of(writer.path, **given)
    start = reader.initialOffset()
    end = next_batch(reader, start)
    assert offsets_read(reader, start, end) == {"orders-0": [*range(300, 400)]}
    reader = reader_of(writer.path, isolation=isolation, startingOffsets="earliest")
    start = reader.initialOffset()
    end = next_batch(reader, start)
    with pytest.raises(logstore.CorruptRecordError):
        offsets_read(reader, start, end)
