"""``df.writeStream.format("logstore")`` with Spark itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

pytestmark = pytest.mark.spark
WAIT_S = 60


def run(frame: Any, folder: Path, **options: str) -> Any:
    """Run a query to the end of what there is."""
    given = {"topic": "copy", "checkpointLocation": str(folder / "checkpoint")}
    query = (
        frame.writeStream.format("logstore")
        .options(**{**given, **options})
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    return query


def source(spark: Any, path: str) -> Any:
    """The records of a topic in two columns."""
    options = {"subscribe": "orders", "startingOffsets": "earliest"}
    return (
        spark.readStream.format("logstore")
        .options(**options)
        .load(path)
        .select("key", "value")
    )


def test_query_writes_every_record_once(
    spark: Any, make_topic: Any, writer: logstore.Store, tmp_path: Path
) -> None:
    """Run after run on one checkpoint."""
    topic = make_topic(count=50)
    for more in (0, 7):
        for n in range(more):
            topic[0].append(b"more %d" % n)
        run(source(spark, writer.path), tmp_path)
        expected = [r.value for r in topic[0].read()]
        with logstore.open(tmp_path / "out", read_only=True) as store:
            assert [r.value for r in store.topic("copy")[0].read()] == expected
