"""Tasks: planned and read as Spark does it, without a Java machine."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import logstore
from logstore import ConfigError, LogStoreError

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql import types

from pyspark_logstore.read import columns
from pyspark_logstore.read.columns import arrow_schema
from support.spark_reading import (
    SCHEMA,
    MakeTopic,
    offsets_of,
    reader_of,
    rows_of,
    schema_of,
)

# ----------------------------------------------------------------------- rows


def test_batches_have_just_the_schema_that_spark_expects(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Types, names and nullability; Spark 4.2 and later compare them."""
    make_topic(count=10, message_format=2)
    reader = reader_of(writer.path)
    (task,) = reader.partitions()
    (batch,) = reader.read(task)
    assert batch.schema == arrow_schema(SCHEMA)
    batch.validate(full=True)
    assert batch.column("timestamp").type == pa.timestamp("us", tz="UTC")


def test_rows_are_those_of_the_log(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Every column, nulls, and headers: null for a record without headers."""
    partition = make_topic("users", partitions=3, message_format=2)[2]
    headers = [("a", b"1"), ("a", None)]
    partition.append(b"value", b"key", timestamp_ms=1_700_000_000_123, headers=headers)
    partition.append(None, timestamp_ms=0)
    first, second = rows_of(reader_of(writer.path, subscribe="users"))
    assert first.pop("timestamp").timestamp() == 1_700_000_000.123
    assert first == {
        "key": b"key",
        "value": b"value",
        "topic": "users",
        "partition": 2,
        "offset": 0,
        "timestampType": 0,
        "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}],
    }
    assert second["key"] is second["value"] is second["headers"] is None
    assert second["timestamp"].timestamp() == 0


def test_record_without_timestamp_has_none(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Null, and -1 as its type: magic 0 has no timestamps."""
    make_topic(message_format=0)[0].append(b"value")
    (row,) = rows_of(reader_of(writer.path))
    assert row["timestamp"] is None
    assert row["timestampType"] == -1


def test_timestamp_that_spark_cannot_hold_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """It names the record; without the column it can be read."""
    partition = make_topic()[0]
    partition.append(b"value")
    partition.append(b"value", timestamp_ms=1 << 62)
    with pytest.raises(LogStoreError, match=f"offset 1 has the timestamp {1 << 62} ms"):
        rows_of(reader_of(writer.path))
    assert len(rows_of(reader_of(writer.path, schema_of("offset", "value")))) == 2


@pytest.mark.parametrize("time", [1 << 60, -(1 << 60)])
def test_timestamp_that_does_not_fit_names_its_own_record(time: int) -> None:
    """Not the record with the largest time: a time may be too far before 1970."""
    millis = pa.array([1_700_000_000_000, time, 1_700_000_000_001])
    batch = pa.record_batch(
        {
            "offset": pa.array([5, 6, 7]),
            "timestamp": millis.cast(pa.timestamp("ms", "UTC")),
        }
    )
    shaper = columns.BatchShaper(schema_of("offset", "timestamp"))
    with pytest.raises(LogStoreError, match=f"offset 6 has the timestamp {time} ms"):
        shaper.shape(batch, logstore.TopicPartition("orders", 0))


@pytest.mark.parametrize(
    "names",
    [
        ("offset",),
        ("topic",),
        ("partition", "value"),
        ("timestamp", "key"),
        ("headers",),
    ],
    ids=str,
)
def test_schema_chooses_columns(
    names: tuple[str, ...], make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Columns have the order of the user's schema."""
    make_topic(count=120, message_format=2)
    rows = rows_of(reader_of(writer.path, schema_of(*names)))
    assert len(rows) == 120
    assert all(tuple(row) == names for row in rows)


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        (("value", types.StringType()), "value string"),
        (("v", types.BinaryType()), "v binary"),
    ],
)
def test_other_schema_is_refused(field: Any, shown: str) -> None:
    """The error lists the existing columns."""
    schema = types.StructType([types.StructField(*field)])
    with pytest.raises(ConfigError, match=f"column {shown}; .*value binary"):
        reader_of("data", schema)
    with pytest.raises(ConfigError, match="needs columns"):
        reader_of("data", types.StructType([]))
    with pytest.raises(ConfigError, match="needs columns, each once"):
        reader_of("data", schema_of("offset", "offset"))


def test_large_batch_is_handed_on_in_pieces(
    make_topic: MakeTopic, writer: logstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pieces have about the configured size, and nothing is lost between them."""
    monkeypatch.setattr(columns, "SLICE_BYTES", 10_000)
    partition = make_topic()[0]
    partition.append_many([b"x" * 1000] * 100)
    partition.append(b"x" * 50_000)
    reader = reader_of(writer.path)
    (task,) = reader.partitions()
    batches = list(reader.read(task))
    assert [o for b in batches for o in b.column("offset").to_pylist()] == [*range(101)]
    assert len(batches) > 10


# ---------------------------------------------------------------------------- bounds


def test_start_and_end_are_offsets_or_times(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The end is exclusive; times select the first record at or after them."""
    make_topic(count=100)
    path, time_ms = writer.path, 1_700_000_000_000
    given = {
        "startingOffsets": '{"orders":{"0":10}}',
        "endingOffsets": '{"orders":{"0":20}}',
    }
    assert offsets_of(reader_of(path, **given)) == [*range(10, 20)]
    given = {
        "startingTimestamp": str(time_ms + 30),
        "endingTimestamp": str(time_ms + 33),
    }
    assert offsets_of(reader_of(path, **given)) == [30, 31, 32]
    given = {
        "startingTimestamp": "2023-11-14T22:13:20.030Z",
        "endingOffsetsByTimestamp": '{"orders":{"0":"2023-11-14T23:13:20.033+01:00"}}',
    }
    assert offsets_of(reader_of(path, **given)) == [30, 31, 32]
    given = {"startingOffsetsByTimestamp": f'{{"orders":{{"0":{time_ms + 98}}}}}'}
    assert offsets_of(reader_of(path, **given)) == [98, 99]
    late = {"startingTimestamp": str(time_ms + 1000)}
    with pytest.raises(ConfigError, match="no record at or after"):
        reader_of(path, **late).partitions()
    late["startingOffsetsByTimestampStrategy"] = "latest"
    assert offsets_of(reader_of(path, **late)) == []
    assert len(offsets_of(reader_of(path, endingTimestamp=str(time_ms + 1000)))) == 100


def test_start_behind_the_end_reads_nothing(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """One task delivers nothing."""
    make_topic(count=10)
    given = {
        "startingOffsets": '{"orders":{"0":9}}',
        "endingOffsets": '{"orders":{"0":3}}',
    }
    reader = reader_of(writer.path, **given)
    assert len(reader.partitions()) == 1
    assert offsets_of(reader) == []


def test_durable_only_leaves_out_what_is_not_synced(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """More may be left out: the durable point lags in another process."""
    partition = make_topic(count=10, flush_ms=(1 << 63) - 1)[0]
    partition.flush()
    partition.append(b"not durable")
    assert len(offsets_of(reader_of(writer.path))) == 11
    durable = reader_of(writer.path, durableOnly="true")
    assert len(offsets_of(durable)) <= 10


def test_assign_reads_those_partitions_only(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The rows are in order."""
    make_topic("orders", partitions=3, count=2)
    make_topic("users", partitions=2, count=2)
    reader = reader_of(writer.path, assign='{"users": [1], "orders": [2, 0]}')
    found = {(row["topic"], row["partition"]) for row in rows_of(reader)}
    assert found == {("users", 1), ("orders", 0), ("orders", 2)}


# ----------------------------------------------------------------------------- tasks


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_tasks_begin_where_batches_do(
    codec: str, make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """No batch is read by two tasks, and nothing is lost or read twice."""
    topic = make_topic(
        partitions=2, count=5000, message_format=2, compression_type=codec
    )
    reader = reader_of(writer.path, minPartitions="7")
    planned = reader.partitions()
    assert len(planned) == 7
    for task in planned:
        for found in task.ranges:
            batch = next(topic[found.partition.partition].read_batches(found.start))
            assert batch.base_offset == found.start
    rows = rows_of(reader, planned)
    assert [(r["partition"], r["offset"]) for r in rows] == [
        (n, o) for n in range(2) for o in range(5000)
    ]
    assert all(
        r["value"] == b"orders-%d@%d" % (r["partition"], r["offset"]) for r in rows
    )


def test_max_records_bounds_each_task(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The bound is exact."""
    make_topic(partitions=3, count=250)
    reader = reader_of(writer.path, maxRecordsPerPartition="100")
    planned = reader.partitions()
    assert all(sum(r.count for r in task.ranges) <= 100 for task in planned)
    assert len(planned) == 8
    assert len(offsets_of(reader, planned)) == 750
