"""Averages by the minute, without what comes too late: python examples/late_readings.py

Sensors append readings with the time at which they were taken. A streaming query
averages them by sensor and minute. With a watermark of two minutes it waits that long
for readings that come late: then a minute is over, is written, and is forgotten, and
what still comes for it is dropped. Three runs, each to the end of what there is; in the
second one some readings are late.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import spark_session

import logstore

NOON_MS = 1_700_049_600_000  # 2023-11-15 12:00:00 UTC
SENSORS = ("attic", "cellar")
WATERMARK = "2 minutes"


class Reading(NamedTuple):
    """What a sensor measured, and when: seconds after noon."""

    sensor: str
    second: int
    degrees: float


def usual(begin: int, end: int, every: int) -> list[Reading]:
    """Readings of all sensors, from minute `begin` up to minute `end`, exclusive."""
    return [
        Reading(sensor, second, 15.0 + 5 * number + second // 60)
        for second in range(begin * 60, end * 60, every)
        for number, sensor in enumerate(SENSORS)
    ]


def runs(every: int) -> list[list[Reading]]:
    """What is appended before each run."""
    # The first run ends at most a minute before minute 10, so that the watermark is in
    # minute 7: all minutes up to 6 are over.
    late_enough = Reading("attic", 8 * 60 + 1, 100.0)
    too_late = [Reading("cellar", 2 * 60 + 30, 100.0), Reading("attic", 60, 100.0)]
    return [
        usual(0, 10, every),
        [late_enough, *too_late, *usual(10, 15, every)],
        usual(15, 20, every),
    ]


def append(path: Path, readings: Iterable[Reading]) -> None:
    """Append readings to the topic ``readings``: each sensor has a partition."""
    with logstore.open(path) as store:
        topic = store.create_topic("readings", len(SENSORS), exist_ok=True)
        for reading in readings:
            topic.append(
                b"%.1f" % reading.degrees,
                key=reading.sensor.encode(),
                timestamp_ms=NOON_MS + 1000 * reading.second,
                partition=SENSORS.index(reading.sensor),
            )


def averages(spark: Any, path: Path) -> Any:
    """The query: by sensor and minute, once a minute is over."""
    from pyspark.sql import functions as F

    return (
        spark.readStream.format("logstore")
        .option("subscribe", "readings")
        .option("startingOffsets", "earliest")
        .load(str(path))
        .selectExpr(
            "timestamp",
            "CAST(key AS string) AS sensor",
            "CAST(CAST(value AS string) AS double) AS degrees",
        )
        .withWatermark("timestamp", WATERMARK)
        .groupBy("sensor", F.window("timestamp", "1 minute").alias("minute"))
        .agg(F.avg("degrees").alias("degrees"), F.count("*").alias("readings"))
        .selectExpr("sensor", "minute.start AS minute", "degrees", "readings")
    )


# ----------------------------------------------------- where the results go: a sink


def start_sink(minutes: Any, folder: Path) -> Any:
    """Start the query, with each minute written once, when it is over: to the topic
    ``minutes`` of the same store, a record with the minute as its timestamp."""
    return (
        minutes.selectExpr(
            "sensor AS key",
            "to_json(named_struct('degrees', degrees, 'readings', readings)) AS value",
            "minute AS timestamp",
        )
        .writeStream.outputMode("append")
        .format("logstore")
        .option("topic", "minutes")
        .option("partitions", len(SENSORS))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start(str(folder / "store"))
    )


def read_sink(spark: Any, folder: Path) -> list[Any]:
    """All minutes that were written, in order."""
    rows = (
        spark.read.format("logstore")
        .option("subscribe", "minutes")
        .load(str(folder / "store"))
        .selectExpr(
            "CAST(key AS string) AS sensor",
            "timestamp AS minute",
            "from_json(CAST(value AS string), 'degrees DOUBLE, readings BIGINT') AS v",
        )
        .selectExpr("sensor", "minute", "v.degrees", "v.readings")
    )
    return sorted(rows.collect(), key=lambda row: (row.sensor, row.minute))


# ----------------------------------------------------------------------------- main


def dropped(query: Any) -> int:
    """How much came too late in a run. Spark counts it after it has put together what
    one task has for one sensor and minute."""
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


def run(folder: Path, every: int) -> None:
    """All runs, and the minutes that were over at the end."""
    spark = spark_session.start("late readings")
    for number, readings in enumerate(runs(every), 1):
        append(folder / "store", readings)
        query = start_sink(averages(spark, folder / "store"), folder)
        # trigger(availableNow=True) does the same from Spark 4.2 on. Before, it leaves
        # out the batch without records that writes what is over by then.
        query.processAllAvailable()
        query.stop()
        print(
            f"run {number}: {len(readings)} readings, {dropped(query)} came too late; "
            f"{len(read_sink(spark, folder))} minutes are over",
            flush=True,
        )
    for row in read_sink(spark, folder):
        minute = f"{row.minute:%H:%M}"
        print(f"{row.sensor:>8} {minute} {row.degrees:6.2f} ({row.readings} readings)")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Averages by the minute, without what comes too late."
    )
    parser.add_argument(
        "--every", type=int, default=1, metavar="SECONDS", help="time between readings"
    )
    parser.add_argument("--dir", type=Path, help="keep store and results there")
    args = parser.parse_args()
    if args.dir is not None:
        args.dir.mkdir(parents=True)  # an error where it exists: it may have results
        run(args.dir.resolve(), args.every)
    else:
        with tempfile.TemporaryDirectory(prefix="late-readings-") as folder:
            run(Path(folder), args.every)


if __name__ == "__main__":
    main()
