"""Directories of Kafka brokers, read with Spark: the same records as a consumer got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.golden import (
    TIMESTAMP_TYPES,
    ExpectedRecord,
    Scenario,
    all_scenarios,
    comparable_value,
    fingerprint,
)

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.spark

SCENARIOS = all_scenarios()
NO_TIMESTAMP = TIMESTAMP_TYPES["NoTimestampType"]
# Dates outside the range of Python are compared as numbers.
MILLIS = "unix_millis(timestamp) AS millis"


def options_of(scenario: Scenario, isolation: str) -> dict[str, str]:
    return {
        "path": str(scenario.directory),
        "subscribePattern": ".*",
        "includeHeaders": "true",
        "isolation": isolation,
        "minPartitions": "2",
        "startingOffsets": "earliest",
    }


def expected_of(scenario: Scenario, isolation: str) -> dict[str, list[ExpectedRecord]]:
    found = {
        golden.name: golden.records(isolation)
        for golden in scenario.partitions
        if not golden.topic.startswith("__")
    }
    return {name: records for name, records in found.items() if records}


def delivered(frame: Any) -> dict[str, list[ExpectedRecord]]:
    """The rows by partition, in the form of the expected files."""
    found: dict[str, list[ExpectedRecord]] = {}
    rows = frame.selectExpr("*", MILLIS).drop("timestamp")
    for row in rows.orderBy("topic", "partition", "offset").toLocalIterator():
        record = ExpectedRecord(
            row.offset,
            NO_TIMESTAMP if row.millis is None else row.millis,
            row.timestampType,
            None if row.key is None else bytes(row.key),
            comparable_value(None if row.value is None else bytes(row.value)),
            tuple(
                (h.key, None if h.value is None else bytes(h.value))
                for h in row.headers or ()
            ),
        )
        found.setdefault(f"{row.topic}-{row.partition}", []).append(record)
    return found


@pytest.mark.sampled(8)
@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_batch_of_a_kafka_directory_is_what_a_consumer_got(
    spark: Any, source: str, scenario: Scenario, isolation: str
) -> None:
    """Every record with all of its fields; nothing in the directory changes."""
    before = fingerprint(scenario.directory)
    reader = spark.read.format(source).options(**options_of(scenario, isolation))
    assert delivered(reader.load()) == expected_of(scenario, isolation)
    assert fingerprint(scenario.directory) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_stream_of_a_kafka_directory_is_what_a_consumer_got(
    spark: Any, source: str, scenario: Scenario, tmp_path: Path
) -> None:
    """The same records, by a query that ends at the ends of the partitions."""
    options = options_of(scenario, "read_committed")
    frame = spark.readStream.format(source).options(**options).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"))
    )
    query.awaitTermination(120)
    query.stop()
    found = delivered(spark.read.parquet(str(tmp_path / "out")))
    assert found == expected_of(scenario, "read_committed")
