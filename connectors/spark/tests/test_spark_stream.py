"""``spark.readStream.format("logstore")`` with Spark itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

from pyspark_logstore.lag import LagListener, lags_of

pytestmark = pytest.mark.spark
MakeTopic = Callable[..., logstore.Topic]
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
needs_limits = pytest.mark.skipif(
    VERSION < (4, 2), reason="this Spark does not tell a source where a batch starts"
)
WAIT_S = 60


def stream(spark: Any, path: str, **options: str) -> Any:
    given = {"subscribe": "orders", "startingOffsets": "earliest", **options}
    return spark.readStream.format("logstore").options(**given).load(path)


def run(frame: Any, folder: Path) -> Any:
    """Run a query to the end of the available records; its output and checkpoint
    stay."""
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    try:
        query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    return query


def output(spark: Any, folder: Path) -> list[tuple[int, int]]:
    """(partition, offset) of all rows that were written, sorted."""
    rows = spark.read.parquet(str(folder / "out")).select("partition", "offset")
    return sorted(tuple(row) for row in rows.collect())


def all_of(topic: logstore.Topic) -> list[tuple[int, int]]:
    return [
        (p.number, offset)
        for p in topic
        for offset in range(p.start_offset, p.end_offset)
    ]


def wait_for(condition: Callable[[], bool], query: Any) -> None:
    """Wait until a condition holds; raise the error of a failed query."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if query.exception() is not None:
            raise query.exception()
        assert time.monotonic() < deadline, "nothing came"
        time.sleep(0.05)


def test_query_goes_on_where_it_stopped(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """There are several runs on one checkpoint, also after one that could not report
    its end: every record comes once."""
    topic = make_topic(partitions=2, count=50)
    frame = stream(spark, writer.path)
    run(frame, tmp_path)
    assert output(spark, tmp_path) == all_of(topic)
    topic[1].append_many([b"value"] * 7)
    topic.add_partitions(1)
    topic[2].append(b"value")
    run(frame, tmp_path)
    assert output(spark, tmp_path) == all_of(topic)
    # The state of a crash: the last batch was written, and its commit was not.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(
        (p for p in commits.iterdir() if p.name.isdigit()), key=lambda p: int(p.name)
    )
    last.unlink()
    commits.joinpath(f".{last.name}.crc").unlink(missing_ok=True)
    topic[0].append(b"value")
    run(frame, tmp_path)
    if VERSION < (4, 2):  # which repeats the last batch, and leaves the rest
        run(frame, tmp_path)
    assert output(spark, tmp_path) == all_of(topic)


@needs_limits
def test_limit_makes_several_batches(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Batches have at most that size, with the lag in the progress."""
    topic = make_topic(partitions=2, count=50)
    query = run(stream(spark, writer.path, maxOffsetsPerTrigger="40"), tmp_path)
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in progress] == [40, 40, 20]
    assert output(spark, tmp_path) == all_of(topic)
    (lag,) = lags_of(progress[0])
    assert (lag.min, lag.max, lag.avg, lag.total) == (30, 30, 30.0, 60)
    assert lag.by_partition == {"orders-0": 30, "orders-1": 30}


def test_running_query_sees_what_is_appended(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """New records, and new partitions, while it runs; the listener reports the lag."""
    topic = make_topic(count=10)
    lags: list[Any] = []
    listener = LagListener(lags.append)
    spark.streams.addListener(listener)
    query = (
        stream(spark, writer.path)
        .writeStream.format("memory")
        .queryName("running")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        wait_for(lambda: spark.table("running").count() == 10, query)
        topic[0].append(b"value")
        topic.add_partitions(1)
        topic[1].append_many([b"a", b"b"])
        wait_for(lambda: spark.table("running").count() == 13, query)
        if VERSION >= (4, 2):
            wait_for(lambda: bool(lags) and "orders-1" in lags[-1].by_partition, query)
            assert lags[-1].max == 0
            assert listener.newest(query.id) == [lags[-1]]
    finally:
        query.stop()
        spark.streams.removeListener(listener)


@pytest.mark.thorough
def test_retention_overtakes_a_query(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """It fails and names the deleted offsets; with failOnDataLoss=false it continues
    after them."""
    partition = make_topic(count=100)[0]
    run(stream(spark, writer.path), tmp_path)
    partition.append_many([b"value"] * 100)
    partition.delete_before(150)
    with pytest.raises(Exception, match="offsets 100 to 149 were deleted"):
        run(stream(spark, writer.path), tmp_path)
    run(stream(spark, writer.path, failOnDataLoss="false"), tmp_path)
    expected = [*range(100), *range(150, 200)]
    assert output(spark, tmp_path) == [(0, offset) for offset in expected]


def test_stream_starts_at_a_time_with_a_zone(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """It starts with the first record at or after it; `load()` refuses a text without a
    zone."""
    make_topic(count=50)
    start = {"startingTimestamp": "2023-11-14T23:13:20.030+01:00"}
    run(stream(spark, writer.path, **start), tmp_path)
    assert output(spark, tmp_path) == [(0, offset) for offset in range(30, 50)]
    with pytest.raises(Exception, match=r"has no zone.* such as 2026-01-31T12"):
        stream(spark, writer.path, startingTimestamp="2023-11-14")


def test_wrong_option_is_an_error_of_load(spark: Any, tmp_path: Path) -> None:
    """The error has its name, and the allowed ones; there is no query then."""
    with pytest.raises(Exception, match="did you mean maxOffsetsPerTrigger"):
        stream(spark, str(tmp_path), maxOffsetsPerTriger="5")
