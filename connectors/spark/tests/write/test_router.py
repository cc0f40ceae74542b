"""Columns accepted by the sink, and the routing of rows, without Spark itself."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pytest

import logstore
from logstore import ConfigError

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.types import Row

from pyspark_logstore.write.router import Router, check_sink_schema
from pyspark_logstore.write.row_batches import BATCH_ROWS, batches_of

MakeTopic = Callable[..., logstore.Topic]
PAIR = (("key", types.StringType()), ("value", types.BinaryType()))
TYPES = {
    "binary": types.BinaryType(),
    "string": types.StringType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "map": types.MapType(types.StringType(), types.BinaryType()),
    "strings": types.ArrayType(types.StringType()),
    "headers": types.ArrayType(
        types.StructType([types.StructField(*field) for field in PAIR])
    ),
    "others": types.ArrayType(
        types.StructType([types.StructField(n, types.StringType()) for n, _ in PAIR])
    ),
}
ALL = (
    "value binary, key binary, headers headers, topic string, partition int, "
    "timestamp timestamp"
)


def schema(text: str) -> Any:
    """Names and types; only Spark itself reads its own notation."""
    pairs = [field.split(" ") for field in text.split(", ")]
    return types.StructType([types.StructField(n, TYPES[kind]) for n, kind in pairs])


@pytest.mark.parametrize(
    ("ddl", "topic"),
    [(ALL, ""), ("value string, key string", "orders"), ("value binary", "orders")],
)
def test_columns_of_the_kafka_sink_are_taken(ddl: str, topic: str) -> None:
    """A timestamp is accepted, too."""
    check_sink_schema(schema(ddl), topic)


@pytest.mark.parametrize(
    ("ddl", "name", "says"),
    [
        ("value binary, value binary", "columns", "several"),
        ("key binary", "value", "needs a column value; there are key"),
        ("value int", "value", "is int; allowed is string or binary"),
        ("value binary, key bigint", "key", "is bigint; allowed is string or binary"),
        ("value binary, topic binary", "topic", "allowed is string"),
        ("value binary, partition bigint", "partition", "allowed is int"),
        ("value binary, timestamp bigint", "timestamp", "allowed is timestamp"),
        ("value binary, timestamp timestamp_ntz", "timestamp", "allowed is timestamp"),
        ("value binary, headers map", "headers", "allowed is array<str"),
        ("value binary, headers strings", "headers", "allowed is array<struct"),
        (
            "value binary, headers others",
            "headers",
            "allowed is array<struct",
        ),
    ],
)
def test_other_columns_are_refused_with_those_that_are_allowed(
    ddl: str, name: str, says: str
) -> None:
    """Nothing is written before."""
    with pytest.raises(ConfigError, match=says) as caught:
        check_sink_schema(schema(ddl), "orders")
    assert caught.value.name == name


def test_other_columns_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """Spark's Kafka sink ignores them, too, of any type, also twice; columns that the
    source does not deliver cause a warning, because one may be a typing error."""
    check_sink_schema(schema(ALL + ", offset bigint, timestampType int"), "orders")
    assert not caplog.records
    check_sink_schema(
        schema("value binary, Value int, keys map, keys strings, offset map"), "orders"
    )
    (record,) = caplog.records
    assert "ignores the columns Value, keys; those it knows are value" in (
        record.getMessage()
    )


def test_topic_has_to_be_said_somewhere() -> None:
    """An option or a column names it."""
    with pytest.raises(ConfigError, match="option topic or a column topic"):
        check_sink_schema(schema("value binary"), "")


# ----------------------------------------------------------------------- routing


def route(router: Router, **columns: Any) -> list[tuple[str, int, list[bytes | None]]]:
    """(topic, partition, values) of each piece."""
    types = {
        "value": pa.binary(),
        "key": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
    }
    batch = pa.record_batch({n: pa.array(v, types[n]) for n, v in columns.items()})
    return [
        (partition.topic, partition.number, piece.column("value").to_pylist())
        for partition, piece in router.pieces(batch)
    ]


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_key_decides_as_in_append(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The partition is the one of `Topic.append` for the key, in the order of rows."""
    topic = make_topic(partitions=5)
    keys = [b"key-%d" % (n % 40) for n in range(200)]
    expected: dict[int, list[bytes]] = {}
    for key, value in zip(keys, numbered(200), strict=True):
        where = topic.append(value, key=key).partition
        expected.setdefault(where, []).append(value)
    found = route(Router("orders", 3, writer), value=numbered(200), key=keys)
    assert {number: values for _, number, values in found} == expected


def test_rows_without_a_key_stay_together_and_take_turns(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The rows of a batch go to one partition, the next batch to the next one; tasks
    begin at different ones."""
    make_topic(partitions=3)
    for task in range(4):
        router = Router("orders", task, writer)
        for turn in range(5):
            (found,) = route(router, value=numbered(10))
            assert found == ("orders", (task + turn) % 3, numbered(10))
    router = Router("orders", 0, writer)
    assert route(router, value=[]) == []
    assert route(router, value=[b"a"]) == [("orders", 0, [b"a"])]
    assert route(router, value=[b"b", b"c"], key=[None, None]) == [
        ("orders", 1, [b"b", b"c"])
    ]


def test_partition_goes_before_key(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """If it is null, the key or the turn decides."""
    topic = make_topic(partitions=4)
    hashed = topic.append(b"", key=b"k").partition
    found = route(
        Router("orders", 2, writer),
        value=numbered(5),
        key=[b"k", b"k", None, None, b"k"],
        partition=[(hashed + 1) % 4, None, 3, None, None],
    )
    expected: dict[int, list[bytes]] = {}
    order = [(hashed + 1) % 4, hashed, 3, 2, hashed]
    for number, value in zip(order, numbered(5), strict=True):
        expected.setdefault(number, []).append(value)
    assert {number: values for _, number, values in found} == expected
    only = Router("orders", 0, writer)
    assert route(only, value=numbered(3), partition=[1, 3, 1]) == [
        ("orders", 1, [b"0", b"2"]),
        ("orders", 3, [b"1"]),
    ]
    assert route(only, value=[b"x"], partition=[None]) == [("orders", 1, [b"x"])]


def test_partition_of_another_topic_does_not_count(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Rows of the source that the option sends to another topic: their key decides, or
    the turn. In their own topic, the column counts."""
    topic = make_topic("clean", partitions=2)
    hashed = topic.append(b"", key=b"k").partition
    found = route(
        Router("clean", 1, writer),
        value=numbered(5),
        key=[b"k", None, None, b"k", None],
        partition=[7, 7, 0, 1 - hashed, 0],
        topic=["orders", "orders", "clean", "clean", None],
    )
    expected: dict[int, list[bytes]] = {}
    order = [hashed, 1, 0, 1 - hashed, 0]
    for number, value in zip(order, numbered(5), strict=True):
        expected.setdefault(number, []).append(value)
    assert {number: values for _, number, values in found} == expected


def test_columns_that_are_ignored_are_dropped_first(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """They cost nothing, and two of one name do no harm."""
    make_topic()
    columns = [pa.array([1]), pa.array([b"a"]), pa.array(["x"]), pa.array(["y"])]
    batch = pa.RecordBatch.from_arrays(columns, ["offset", "value", "n", "n"])
    ((_, rows),) = Router("orders", 0, writer).routed([batch])
    assert rows.to_pylist() == [{"value": b"a"}]
    rows_40 = [Row(offset=1, value=b"a", n={})]
    (found,) = batches_of(rows_40, schema("offset bigint, value binary, n map"))
    assert found.to_pylist() == [{"value": b"a"}]


@pytest.mark.parametrize("wrong", [4, -1])
def test_partition_that_is_not_there_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store, wrong: int
) -> None:
    """The error names the topic and its number of partitions."""
    make_topic(partitions=4)
    router = Router("orders", 0, writer)
    with pytest.raises(ConfigError, match=rf"has {wrong}, .* orders has 4 .* 0 to 3"):
        route(router, value=numbered(3), partition=[0, None, wrong])


def test_topic_column_sends_rows_to_several_topics(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Each topic has its own number of partitions; the option overrides the column."""
    make_topic("orders", partitions=2)
    make_topic("bills", partitions=7)
    hashed = [writer.topic("bills").append(b"", key=b"k%d" % n) for n in range(6)]
    names = ["orders", "bills"] * 6
    keys = [b"k%d" % (n // 2) for n in range(12)]
    found = route(Router("", 0, writer), value=numbered(12), key=keys, topic=names)
    got = {(t, p, v) for t, p, values in found for v in values}
    assert {(p, v) for t, p, v in got if t == "bills"} == {
        (hashed[n].partition, b"%d" % (2 * n + 1)) for n in range(6)
    }
    assert {v for t, p, v in got if t == "orders"} == {
        b"%d" % n for n in range(0, 12, 2)
    }
    found = route(
        Router("orders", 0, writer), value=[b"a"], topic=["bills"], key=[b"k"]
    )
    assert [t for t, _, _ in found] == ["orders"]


def test_topic_that_is_null_or_not_there_is_an_error(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The column names topics; it does not make them."""
    make_topic()
    router = Router("", 0, writer)
    with pytest.raises(ConfigError, match="null in 1 of 2 rows"):
        route(router, value=[b"a", b"b"], topic=["orders", None])
    with pytest.raises(ConfigError, match=r"column topic has '\.\./x'.*create it"):
        route(router, value=[b"a"], topic=["../x"])


def test_rows_for_many_partitions_are_gathered_before_they_are_shared_out(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """Otherwise each partition gets a small batch of each; the order stays. Rows for a
    single partition are not copied."""
    make_topic(partitions=20)

    def batches() -> Any:
        for first in range(0, 30_000, 1_000):
            numbers = [b"%d" % n for n in range(first, first + 1_000)]
            batch = pa.record_batch({"value": numbers, "key": numbers})
            yield batch
        yield batch.slice(0, 0)

    found: dict[int, list[bytes]] = {}
    pieces = 0
    for partition, rows in Router("orders", 0, writer).routed(batches()):
        pieces += 1
        found.setdefault(partition.number, []).extend(rows.column("value").to_pylist())
    assert pieces == 2 * 20
    assert sum(map(len, found.values())) == 30_000
    for number, values in found.items():
        assert values == sorted(values, key=int)
        hashed = logstore.KafkaPartitioner().partition(values[0], 1, 20)
        assert hashed == number
    alone = [batch.select(["value"]) for batch in batches()]
    routed = [rows for _, rows in Router("orders", 0, writer).routed(alone)]
    assert [rows.num_rows for rows in routed] == [1_000] * 30
    assert list(Router("orders", 0, writer).routed([])) == []


def test_destination_is_written_as_its_topic_is_set(
    make_topic: MakeTopic, writer: logstore.Store
) -> None:
    """The current settings are used, without reading its log."""
    topic = make_topic(partitions=2, message_format=1)
    router = Router("orders", 1, writer)
    topic.configure(logstore.TopicConfig(message_format=2, compression_type="lz4"))
    ((destination, rows),) = router.pieces(pa.record_batch({"value": [b"a"]}))
    assert destination == ("orders", 1, topic.config)
    with writer.stage() as stage:
        stage.append_arrow(destination, rows)
        staged = stage.finish()
    assert [(log.partition, log.magic) for log in staged.logs] == [(1, 2)]
    writer.publish([staged])
    assert [r.value for r in topic[1].read()] == [b"a"]


# ------------------------------------------------------------------ rows as batches


def test_rows_become_batches_of_their_schema() -> None:
    """Spark 4.0 passes them so: local times without a zone, headers as rows."""
    moment = datetime.datetime(2024, 2, 29, 12, 30, 0, 5000)
    rows = [
        Row(
            value=b"%d" % n,
            headers=[Row(key="a", value=None)] if n else None,
            timestamp=moment if n else None,
        )
        for n in range(BATCH_ROWS + 1)
    ]
    kind = schema("value binary, headers headers, timestamp timestamp")
    first, second = batches_of(rows, kind)
    assert (first.num_rows, second.num_rows) == (BATCH_ROWS, 1)
    assert first.slice(0, 2).to_pylist() == [
        {"value": b"0", "headers": None, "timestamp": None},
        {
            "value": b"1",
            "headers": [{"key": "a", "value": None}],
            "timestamp": moment.astimezone(datetime.timezone.utc),
        },
    ]
    assert list(batches_of([], kind)) == []
