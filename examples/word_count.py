"""Count the words of a stream: python examples/word_count.py

Lines are appended to a topic, and a streaming query counts their words into another
one: each count that has changed, with the word as its key. It runs twice, each time to
the end of what there is (AvailableNow), with more lines in between: the second run goes
on where the checkpoint of the first one says.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import spark_session

import logstore

SENTENCES = (
    "a log is a file to which one only appends",
    "a record that was appended is never changed",
    "an offset is the place of a record in its log",
    "who reads a log keeps the offset of the next record",
)


def lines(count: int, seed: int) -> Iterator[bytes]:
    """Sentences by chance, the same ones for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        yield chance.choice(SENTENCES).encode()


def append_lines(path: Path, count: int, seed: int) -> None:
    """Append lines to the topic ``lines``; the store is closed again at the end."""
    with logstore.open(path) as store:
        topic = store.create_topic("lines", partitions=2, exist_ok=True)
        for number, line in enumerate(lines(count, seed)):
            topic.append(line, partition=number % 2)


def word_counts(spark: Any, path: Path) -> Any:
    """The query: how often each word has come."""
    return (
        spark.readStream.format("logstore")
        .option("subscribe", "lines")
        .option("startingOffsets", "earliest")
        .load(str(path))
        .selectExpr("explode(split(CAST(value AS string), ' ')) AS word")
        .groupBy("word")
        .count()
    )


# ----------------------------------------------------- where the results go: a sink


def start_sink(counts: Any, folder: Path) -> Any:
    """Start the query, with the counts that have changed in each of its batches. A
    batch that Spark does again is not written again: its number is the txnVersion."""

    def write_batch(batch: Any, number: int) -> None:
        (
            batch.selectExpr("word AS key", "CAST(count AS string) AS value")
            .write.mode("append")
            .format("logstore")
            .option("topic", "counts")
            .option("txnAppId", "word-count")
            .option("txnVersion", number)
            .save(str(folder / "store"))
        )

    return (
        counts.writeStream.outputMode("update")
        .foreachBatch(write_batch)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def read_sink(spark: Any, folder: Path) -> dict[str, int]:
    """The newest count of each word. Counts only grow."""
    rows = (
        spark.read.format("logstore")
        .option("subscribe", "counts")
        .load(str(folder / "store"))
        .selectExpr(
            "CAST(key AS string) AS word",
            "CAST(CAST(value AS string) AS bigint) AS count",
        )
        .groupBy("word")
        .max("count")
    )
    return dict(sorted(tuple(row) for row in rows.collect()))


# ----------------------------------------------------------------------------- main


def run(folder: Path, count: int) -> None:
    """Both runs, and what they have counted."""
    spark = spark_session.start("word count")
    for seed in (1, 2):
        append_lines(folder / "store", count // 2, seed)
        query = start_sink(word_counts(spark, folder / "store"), folder)
        query.awaitTermination()
        words = read_sink(spark, folder)
        print(f"run {seed}: {sum(words.values())} words so far", flush=True)
    for word, times in sorted(words.items(), key=lambda each: (-each[1], each[0])):
        print(f"{times:8} {word}")
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="Count the words of a stream.")
    parser.add_argument("--lines", type=int, default=10_000, help="how many")
    parser.add_argument("--dir", type=Path, help="keep store and results there")
    args = parser.parse_args()
    if args.dir is not None:
        args.dir.mkdir(parents=True)  # an error where it exists: it may have results
        run(args.dir.resolve(), args.lines)
    else:
        with tempfile.TemporaryDirectory(prefix="word-count-") as folder:
            run(Path(folder), args.lines)


if __name__ == "__main__":
    main()
