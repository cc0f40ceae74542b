"""logstore and Spark: python examples/demo_spark.py (what ``make demo-spark`` runs).

A stream from one store into another one, each row exactly once: the query stops, more
records are appended, and it goes on where it stopped. Each copied record is compared
with the one that was read.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import spark_session
from demo import PARTITIONS, check, key_of, runs, show, time_of, value_of
from demo_screen import Screen, plural

import logstore

MORE: Final = 1000  # records of each partition that come while the query is stopped
GO_ON: Final = """\
[bold]Go on:[/] docs/spark.md has every option; examples/word_count.py and
examples/late_readings.py are streams of one command each."""


def append(topic: logstore.Topic, records: int) -> None:
    """Append records to all partitions, behind those that are there."""
    ends = [partition.end_offset for partition in topic]
    for number, run in runs(records):
        offsets = range(ends[number] + run.start, ends[number] + run.stop)
        topic[number].append_many(
            [value_of(number, offset) for offset in offsets],
            keys=[key_of(offset) for offset in offsets],
            timestamps_ms=[time_of(offset) for offset in offsets],
        )


def run_query(screen: Screen, spark: Any, folder: Path) -> int:
    """Run the query to the end of what there is; how many rows it has read."""
    begun = time.perf_counter()
    query = (
        spark.readStream.format("logstore")
        .option("subscribe", "demo")
        .option("startingOffsets", "earliest")
        .load(str(folder / "source"))
        .select("key", "value", "partition", "timestamp")
        .writeStream.format("logstore")
        .option("topic", "copy")
        .option("partitions", PARTITIONS)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "copy"))
    )
    query.awaitTermination()
    seconds = time.perf_counter() - begun
    rows = sum(progress.numInputRows for progress in query.recentProgress)
    screen.done(
        f"{plural(rows, 'row')} from store to store in {seconds:.1f} s: "
        f"{rows / seconds:,.0f} rows/s"
    )
    return int(rows)


def compare(folder: Path) -> int:
    """Compare each record that the query has written with the one it has read; how
    many there are."""
    records = 0
    with (
        logstore.open(folder / "source", read_only=True) as source,
        logstore.open(folder / "copy", read_only=True) as copy,
    ):
        for p, q in zip(source.topic("demo"), copy.topic("copy"), strict=True):
            check(p.end_offset == q.end_offset, f"{q.end_offset} of {p.end_offset}")
            for record, copied in zip(p.read(), q.read(), strict=True):
                same = copied._replace(offset=record.offset) == record
                check(same, f"{copied} is not {record}")
                records += 1
    return records


def run(screen: Screen, folder: Path, records: int) -> None:
    """All steps."""
    screen.step("Start Spark")
    spark = spark_session.start("logstore demo")
    screen.done(f"Spark {spark.version} with two cores")
    try:
        screen.step("Stream from store to store")
        with logstore.open(folder / "source") as store:
            append(store.create_topic("demo", partitions=PARTITIONS), records)
        rows = run_query(screen, spark, folder)
        check(rows == records, f"{rows} rows of {records} records")
        screen.step("Append while the query is stopped, and start it again")
        with logstore.open(folder / "source") as store:
            append(store.topic("demo"), MORE * PARTITIONS)
        rows = run_query(screen, spark, folder)
        check(rows == MORE * PARTITIONS, f"{rows} rows of {MORE * PARTITIONS} records")
        copied = compare(folder)
        screen.done(
            "every record compared with its copy",
            f"{plural(copied, 'record')} streamed from store to store, each once, "
            "over a restart",
        )
    finally:
        spark.stop()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demo; 0, or 1 when a copy is not what was read."""
    parser = argparse.ArgumentParser(description="Show logstore and Spark at work.")
    parser.add_argument(
        "--records", metavar="N", type=int, default=400_000, help="how many"
    )
    args = parser.parse_args(argv)
    return show(lambda screen, folder: run(screen, Path(folder), args.records), GO_ON)


if __name__ == "__main__":
    sys.exit(main())
