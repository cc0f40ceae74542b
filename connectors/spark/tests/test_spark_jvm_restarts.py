"""A query that failed in the middle of a batch continues with the other reader."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.spark

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.spark

JVM, PYTHON = "logstore-jvm", "logstore"
WAIT_S = 120


def run(spark: Any, name: str, path: str, folder: Path, fails_at: int = -1) -> None:
    """Run the query to its end, or to the row at which it fails."""
    value = f"IF(offset = {fails_at}, raise_error('as asked'), CAST(value AS string))"
    query = (
        spark.readStream.format(name)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("minPartitions", 6)
        .load(path)
        .selectExpr("partition", "offset", f"{value} AS value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    if fails_at < 0:
        assert query.awaitTermination(WAIT_S)
    else:
        with pytest.raises(Exception, match="as asked"):
            query.awaitTermination(WAIT_S)


@pytest.mark.parametrize(
    ("first", "second"), [(JVM, PYTHON), (PYTHON, JVM), (JVM, JVM)]
)
@pytest.mark.thorough
def test_batch_that_failed_is_done_again_by_either_reader(
    spark: Any,
    tmp_path: Path,
    make_topic: Callable[..., logstore.Topic],
    first: str,
    second: str,
) -> None:
    """The offsets are the same, although the log has grown; every record comes once."""
    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    topic = make_topic(partitions=2, count=100)
    path = os.path.dirname(topic[0].path)
    run(spark, first, path, tmp_path)
    batches = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    for partition in topic:
        partition.append_many([b"later"] * 50)
    run(spark, first, path, tmp_path, fails_at=130)
    offsets = tmp_path / "checkpoint" / "offsets" / str(len(batches))
    planned = offsets.read_text()
    assert '"0":150' in planned.replace(" ", "")
    for partition in topic:
        partition.append_many([b"last"] * 50)
    run(spark, second, path, tmp_path)
    # Before Spark 4.2, a run of the Python source does only the batch that failed.
    run(spark, second, path, tmp_path)
    # The rest of the line is the time at which the batch was planned.
    assert offsets.read_text().splitlines()[2:] == planned.splitlines()[2:]
    rows = spark.read.parquet(str(tmp_path / "out")).select("partition", "offset")
    expected = [(p, offset) for p in range(2) for offset in range(200)]
    assert sorted(map(tuple, rows.collect())) == expected
