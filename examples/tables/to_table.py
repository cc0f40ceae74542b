"""Puts a topic into a table of Delta or Iceberg, each record once.

spark-submit runs it, with the packages and settings of the table's format: they are on
the page docs/spark-tables.md. ``stream`` goes on where its checkpoint says, ``merge``
adds what the table does not have, ``check`` counts.
"""

from __future__ import annotations

import argparse
from typing import Any

from pyspark.sql import SparkSession

import logstore.spark

COLUMNS = "key, value, topic, partition, offset, timestamp"


def make_table(spark: Any, table: str, format: str, location: str = "") -> None:
    """Create the table, or name one that is at the location, unless it exists."""
    where = f"LOCATION '{location}'" if location else ""
    spark.sql(
        f"""
        CREATE TABLE IF NOT EXISTS {table} (
            key binary, value binary,
            topic string, partition int, offset bigint, timestamp timestamp
        ) USING {format} {where}
        """
    )


def stream_into(
    spark: Any, store: str, topic: str, table: str, format: str, checkpoint: str, n: int
) -> Any:
    """Start the stream. It ends where the topic ends now; `n` offsets are a batch."""
    return (
        spark.readStream.format("logstore-jvm")
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", n)
        .load(store)
        .selectExpr(*COLUMNS.split(", "))
        .writeStream.format(format)
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .toTable(table)
    )


def merge_into(spark: Any, store: str, topic: str, table: str, since: str) -> None:
    """Add the records since a time that the table does not have."""
    (
        spark.read.format("logstore")
        .option("subscribe", topic)
        .option("startingTimestamp", since)
        .option("startingOffsetsByTimestampStrategy", "latest")
        .load(store)
        .selectExpr(*COLUMNS.split(", "))
        .createOrReplaceTempView("records")
    )
    spark.sql(
        f"""
        MERGE INTO {table} AS there USING records
        ON there.topic = records.topic
            AND there.partition = records.partition
            AND there.offset = records.offset
        WHEN NOT MATCHED THEN INSERT *
        """
    )


def check(spark: Any, table: str) -> str:
    """How many rows the table has, and how many records these are."""
    counts = f"count(*), count(DISTINCT topic, partition, offset) FROM {table}"
    rows, records = spark.sql(f"SELECT {counts}").first()
    return f"{rows} rows of {records} records"


# ----------------------------------------------------------------------------- main


def parser_of_arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Put a topic into a table.")
    actions = parser.add_subparsers(dest="action", required=True)
    for name in ("stream", "merge", "check"):
        action = actions.add_parser(name)
        action.add_argument("table", help="its name in SQL, as lake.db.orders")
        action.add_argument("--format", choices=("delta", "iceberg"), required=True)
        action.add_argument("--location", default="", help="the directory of the table")
        if name != "check":
            action.add_argument("--store", required=True, help="its directory")
            action.add_argument("--topic", required=True)
        if name == "stream":
            action.add_argument("--checkpoint", required=True, help="its directory")
            action.add_argument("--batch", type=int, default=1_000_000, help="offsets")
        if name == "merge":
            action.add_argument("--since", required=True, help="a time with a zone")
    return parser


def main() -> None:
    args = parser_of_arguments().parse_args()
    spark = logstore.spark.session_defaults(SparkSession.builder).getOrCreate()
    make_table(spark, args.table, args.format, args.location)
    if args.action == "stream":
        query = stream_into(
            spark,
            args.store,
            args.topic,
            args.table,
            args.format,
            args.checkpoint,
            args.batch,
        )
        query.awaitTermination()
    elif args.action == "merge":
        merge_into(spark, args.store, args.topic, args.table, args.since)
    else:
        print(f"{args.table}: {check(spark, args.table)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
