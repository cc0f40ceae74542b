"""Optimizations of ``logstore-jvm`` for Spark: filters, counts, statistics,
partitioning, metrics, triggers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.spark

JVM = "logstore-jvm"
BUCKETING = "spark.sql.sources.v2.bucketing.enabled"


@pytest.fixture(autouse=True)
def jar() -> None:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")


@pytest.fixture
def path(make_topic: Callable[..., logstore.Topic]) -> str:
    """Topics a (2 partitions) and b, 100 records each; the time is 1.7e12 + offset."""
    topic = make_topic("a", partitions=2, count=100)
    make_topic("b", count=100)
    return os.path.dirname(topic[0].path)


def frame_of(spark: Any, path: str, **options: Any) -> Any:
    reader = spark.read.format(JVM).option("subscribePattern", ".*").options(**options)
    return reader.load(path)


def plan_of(frame: Any) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("offset = 7", 3),
        ("7 = offset", 3),
        ("offset < 10", 30),
        ("offset <= 10", 33),
        ("offset > 89", 30),
        ("offset >= 89", 33),
        ("offset BETWEEN 10 AND 19", 30),
        ("offset >= 10 AND offset < 12 AND partition = 1", 2),
        ("partition = 1", 100),
        ("partition IN (0, 5)", 200),
        ("partition < 1", 200),
        ("topic = 'b'", 100),
        ("topic IN ('a', 'c')", 200),
        ("topic > 'a'", 100),
        ("topic = 'b' AND partition = 0 AND offset >= 99", 1),
        ("offset < 0", 0),
    ],
)
def test_filters_on_places_are_answered_by_the_ranges_that_are_read(
    spark: Any, path: str, condition: str, count: int
) -> None:
    """No filter is left in Spark's plan, and the count comes from logstore's."""
    frame = frame_of(spark, path).filter(condition)
    plan = plan_of(frame.select("value"))
    assert "PushedFilters: [" in plan
    assert not re.search(r"\bFilter\b", plan)
    assert len(frame.select("value").collect()) == count
    counted = frame.selectExpr("count(*)")
    assert "LocalTableScan" in plan_of(counted)
    assert counted.first()[0] == count


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("offset IN (3, 50)", 6),
        ("timestamp >= timestamp_millis(1700000000090)", 30),
        ("timestamp = timestamp_millis(1700000000090)", 3),
        ("timestamp < timestamp_millis(1700000000010)", 30),
        ("topic LIKE 'a%'", 200),
        ("offset = 3 OR partition = 1", 102),
        ("value IS NULL", 0),
    ],
)
def test_other_filters_are_left_to_spark(
    spark: Any, path: str, condition: str, count: int
) -> None:
    frame = frame_of(spark, path).filter(condition)
    assert re.search(r"\bFilter\b", plan_of(frame.select("value", "offset")))
    assert frame.count() == count
    assert "LocalTableScan" not in plan_of(frame.selectExpr("count(*)"))


@pytest.mark.parametrize(
    "query",
    [
        "headers.value",
        "headers.key",
        "headers[0].value",
        "transform(headers, h -> h.value)",
        "array_contains(headers.key, 'trace')",
        "size(headers)",
    ],
)
def test_part_of_a_column_is_what_the_python_source_gives(
    spark: Any, writer: logstore.Store, query: str
) -> None:
    """Spark asks for a part of the headers only, and gets whole columns."""
    config = logstore.TopicConfig(message_format=2)
    partition = writer.create_topic("orders", config=config)[0]
    partition.append(b"v", headers=[("trace", b"1"), ("other", None)])
    partition.append(b"v")
    found = []
    for name in ("logstore", JVM):
        reader = spark.read.format(name).option("subscribe", "orders")
        frame = reader.option("includeHeaders", "true").load(writer.path)
        found.append([row[0] for row in frame.selectExpr(query).collect()])
    assert found[0] == found[1]


def test_limit_and_columns_are_in_the_plan(spark: Any, path: str) -> None:
    frame = frame_of(spark, path).select("offset").limit(5)
    plan = plan_of(frame)
    assert "PushedLimit: 5" in plan
    assert re.search(r"BatchScan logstore-jvm\[offset#\d+L?\]", plan)
    assert len(frame.collect()) == 5


@pytest.mark.parametrize("what", ["min(offset)", "max(offset)", "count(*)", "count(1)"])
def test_counts_and_ends_are_answered_by_the_plan(
    spark: Any, path: str, what: str
) -> None:
    counted = frame_of(spark, path).filter("offset >= 40").selectExpr(what)
    assert "LocalTableScan" in plan_of(counted)
    expected = {"min(offset)": 40, "max(offset)": 99}.get(what, 180)
    assert counted.first()[0] == expected


def test_statistics_are_rows_and_bytes(spark: Any, path: str) -> None:
    """Spark asks for the rows only if it optimizes by cost."""
    before = spark.conf.get("spark.sql.cbo.enabled")
    spark.conf.set("spark.sql.cbo.enabled", "true")
    try:
        frame = frame_of(spark, path).filter("topic = 'a'")
        plan = frame._jdf.queryExecution().optimizedPlan()
        stats = plan.collectLeaves().apply(0).stats()
        assert str(stats.rowCount().get()) == "200"
        size = int(str(stats.sizeInBytes()))
    finally:
        spark.conf.set("spark.sql.cbo.enabled", before)
    assert size == sum(log.stat().st_size for log in Path(path).glob("a-*/*.log"))


@pytest.fixture
def bucketing(spark: Any) -> Iterator[None]:
    before = spark.conf.get(BUCKETING)
    spark.conf.set(BUCKETING, "true")
    yield
    spark.conf.set(BUCKETING, before)


def test_grouping_by_partition_needs_no_exchange_if_each_has_a_task(
    spark: Any, path: str, bucketing: None
) -> None:
    """If one task reads several, or several read one, the exchange stays."""
    counts = []
    for tasks, is_grouped in (("3", True), ("1", False), ("9", False)):
        frame = frame_of(spark, path, minPartitions=tasks)
        groups = frame.groupBy("topic", "partition").agg({"value": "count"})
        counts.append(sorted(map(tuple, groups.collect())))
        assert ("Exchange" not in plan_of(groups)) == is_grouped
        assert frame.groupBy("topic").count().count() == 2
        assert frame.select("topic").distinct().count() == 2
    assert counts == [[("a", 0, 100), ("a", 1, 100), ("b", 0, 100)]] * 3


def metrics_of(spark: Any) -> dict[str, str]:
    """Name and text of the metrics that Spark's page of its last query shows."""
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    executions = store.executionsList()
    last = executions.apply(executions.size() - 1)
    values = store.executionMetrics(last.executionId())
    found = {}
    for number in range(last.metrics().size()):
        metric = last.metrics().apply(number)
        value = values.get(metric.accumulatorId())
        if value.isDefined():
            found[metric.name()] = str(value.get())
    return found


def test_metrics_of_a_query_are_in_sparks_page(spark: Any, path: str) -> None:
    frame_of(spark, path).write.format("noop").mode("overwrite").save()
    metrics = metrics_of(spark)
    assert metrics["number of output rows"] == "300"
    size = sum(log.stat().st_size for log in Path(path).glob("*/*.log"))
    assert int(metrics["bytes of log files read"].replace(",", "")) == size
    assert metrics["ranges of offsets read by Python"] == "0"


def streamed(spark: Any, path: str, tmp_path: Path, **trigger: Any) -> list[Any]:
    """The progress of the batches of a query with at most 40 offsets in each."""
    query = (
        spark.readStream.format(JVM)
        .option("subscribePattern", ".*")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 40)
        .load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(**trigger)
        .start()
    )
    assert query.awaitTermination(120)
    return [p for p in query.recentProgress if p["numInputRows"]]


def test_lag_of_a_batch_is_in_sparks_page(
    spark: Any, path: str, tmp_path: Path
) -> None:
    progress = streamed(spark, path, tmp_path, availableNow=True)
    assert sum(p["numInputRows"] for p in progress) == 300
    name = "offsets behind the end after this batch, of the slowest partition"
    assert metrics_of(spark)[name] == "0"
    assert progress[0]["sources"][0]["metrics"]["maxOffsetsBehindLatest"] != "0"


def test_trigger_once_takes_one_batch_with_everything(
    spark: Any, path: str, tmp_path: Path
) -> None:
    """Limits do not apply to it, as with Spark's own sources; the next run
    continues."""
    assert [p["numInputRows"] for p in streamed(spark, path, tmp_path, once=True)] == [
        300
    ]
    assert streamed(spark, path, tmp_path, once=True) == []


def test_limit_of_bytes_and_a_minimum_with_a_delay_are_kept(
    spark: Any, tmp_path: Path, make_topic: Callable[..., logstore.Topic]
) -> None:
    """This holds in every version of Spark, as in the Python source from 4.2 on."""
    partition = make_topic("c", count=100)[0]
    size = sum(segment.size_bytes for segment in partition.segments)
    query = (
        spark.readStream.format(JVM)
        .option("subscribe", "c")
        .option("startingOffsets", "earliest")
        .option("maxBytesPerTrigger", size // 4)
        .option("minOffsetsPerTrigger", 50)
        .option("maxTriggerDelay", "2s")
        .load(os.path.dirname(partition.path))
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        first = [p["numInputRows"] for p in query.recentProgress if p["numInputRows"]]
        assert sum(first) <= 100
        assert max(first) <= 40
        query.processAllAvailable()
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("found", "advice"),
    [(None, "a JDK"), ("/elsewhere/other.jar", "--jars /elsewhere/other.jar")],
    ids=["not built", "not in the session"],
)
def test_auto_falls_back_with_exactly_one_warning(
    spark: Any,
    path: str,
    checked_early: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    found: str | None,
    advice: str,
) -> None:
    """Batch queries and streams share the warning; `jvm` is an error, `python` is
    silent."""
    from pyspark_logstore import early_checks
    from pyspark_logstore.jvm import session

    monkeypatch.setattr(session, "jar_path", lambda: found)
    monkeypatch.setattr(session, "_is_known", lambda context: False)
    monkeypatch.setattr(session, "_add_to_driver", lambda session, jar: None)
    monkeypatch.setattr(early_checks, "_is_warned", False)

    def load(choice: str, reader: Any) -> str:
        reader = reader.format("logstore").option("subscribe", "b")
        frame = reader.option("reader", choice).load(path)
        return str(frame._jdf.queryExecution().analyzed().toString())

    for reader in (spark.read, spark.readStream):
        assert JVM not in load("python", reader)
    assert not caplog.records
    for reader in (spark.read, spark.readStream, spark.read):
        assert JVM not in load("auto", reader)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert warning.startswith("option reader=auto: Python reads instead of Java: ")
    assert advice in warning
    for reader in (spark.read, spark.readStream):
        with pytest.raises(logstore.ConfigError, match=advice):
            load("jvm", reader)
