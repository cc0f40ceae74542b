"""How long a small micro-batch takes, with the source in Python and the reader in Java.

    PYTHONPATH=src python -m bench.spark_trigger
    python -m bench.spark_trigger --rows 1000 --rounds 40 --json out.json

Each format has a separate topic and query, which runs all the time, with the sink
``noop``. In turn, rows are appended to the topic of one, and the time is taken until
its query has processed them (``processAllAvailable``: it looks every 10 ms), and what
Spark itself reports of that trigger: all of it (``triggerExecution``), the planning and
reading (``addBatch``), and its two writes into the checkpoint (``walCommit`` and
``commitOffsets``), which no source can make faster. Every row is counted.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any, Final

import logstore
import logstore.spark
from bench.spark_sessions import add_arguments, session, write_json

WARM_UP: Final = 8
PARTS: Final = ("triggerExecution", "addBatch", "walCommit", "commitOffsets")


class Follower:
    """The query of one format."""

    def __init__(
        self, spark: Any, folder: Path, store: logstore.Store, name: str
    ) -> None:
        self.name = name
        self._partition = store.create_topic(name)[0]
        self._rows = 0
        self.seconds: list[float] = []
        self.parts: dict[str, list[int]] = {part: [] for part in PARTS}
        frame = (
            spark.readStream.format(name)
            .option("subscribe", name)
            .option("startingOffsets", "earliest")
            .load(store.path)
        )
        self.query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
            .start()
        )

    def round(self, rows: int) -> None:
        """Append, wait, and check that all rows have been read."""
        began = time.perf_counter()
        self._partition.append_many([b"v" * 100] * rows)
        self.query.processAllAvailable()
        self.seconds.append(time.perf_counter() - began)
        self._rows += rows
        progress = [p for p in self.query.recentProgress if p["numInputRows"]]
        seen = progress[-1]["sources"][0]["endOffset"]
        if f'"0": {self._rows}' not in f"{seen}":
            raise AssertionError(f"{self.name} read up to {seen}, not {self._rows}")
        if sum(p["numInputRows"] for p in progress[-1:]) > rows:
            raise AssertionError(f"{self.name} read rows twice: {progress[-1]}")
        for part, values in self.parts.items():
            values.append(progress[-1]["durationMs"].get(part, 0))

    def forget(self) -> None:
        """Forget the measurements of the warm-up."""
        self.seconds.clear()
        for values in self.parts.values():
            values.clear()


def run(spark: Any, folder: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row of figures for each format."""
    names = ["logstore"]
    if logstore.spark.jar_path() is not None:
        names.append("logstore-jvm")
    with logstore.open(folder / "store") as store:
        followers = [Follower(spark, folder, store, name) for name in names]
        try:
            for number in range(args.warm_up + args.rounds):
                if number == args.warm_up:
                    for follower in followers:
                        follower.forget()
                for follower in followers[:: 1 if number % 2 else -1]:
                    follower.round(args.rows)
        finally:
            for follower in followers:
                follower.query.stop()
    rows = []
    for follower in followers:
        parts = {
            f"{part} ms": statistics.median(values)
            for part, values in follower.parts.items()
        }
        total = round(statistics.median(follower.seconds) * 1000, 1)
        rows.append({"source": follower.name, "all ms": total, **parts})
        print("  ".join(f"{name}: {value}" for name, value in rows[-1].items()))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_trigger")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--warm-up", type=int, default=WARM_UP)
    add_arguments(parser)
    args = parser.parse_args()
    with session(args) as (spark, folder):
        write_json(args, run(spark, folder, args))


if __name__ == "__main__":
    main()
