"""How fast Spark writes a store, compared with Parquet and the fastest possible sink.

    PYTHONPATH=src python -m bench.spark_sink
    python -m bench.spark_sink --records 1000000 --rounds 3 --json out.json

Contestants take turns in one session (``local[N]``) and write the same rows, a key of 8
bytes and a value of 100, from a frame that Java holds in memory:

- **logstore**: the sink, durable when it is done; magic 2, uncompressed;
- **ceiling**: a Python sink whose tasks only count their rows. The target is 0.8 of
  its rate;
- **bytes**: a Python sink whose tasks write the bytes of their batches to a file each,
  unchanged, and sync it: nothing that is durable does less;
- **parquet**: ``df.write.parquet``, uncompressed, not synced.

Then a stream of small batches (``rate-micro-batch``) into the sink, and into one that
does nothing (``noop``, without Python): the time of a trigger. Written rows are
counted. CPU seconds are summed over the Python and Java processes below this one, per
million rows.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import logstore
import logstore.spark
from bench.rounds import Contestant, Ring
from bench.spark_sessions import add_arguments, cpu_seconds, session, write_json

VALUE_BYTES: Final = 100


def rows_of(spark: Any, count: int, tasks: int, *, keyed: bool) -> Any:
    """A frame in Java's memory. Without keys the rows of a batch stay together."""
    key = (
        "substr(CAST(1000000000 + id AS string), 3)"
        if keyed
        else "CAST(NULL AS string)"
    )
    filler = "x" * (VALUE_BYTES - 8)
    frame = spark.range(count, numPartitions=tasks).selectExpr(
        f"CAST({key} AS binary) AS key",
        "CAST(concat(substr(CAST(1000000000 + id AS string), 3), "
        f"'{filler}') AS binary) AS value",
    )
    frame = frame.persist()
    assert frame.count() == count
    return frame


def counting_sink() -> Any:
    """A sink whose tasks count their rows."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        WriterCommitMessage,
    )

    class Writer(DataSourceArrowWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            sum(batch.num_rows for batch in iterator)
            return WriterCommitMessage()

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer()

    return Ceiling


def bytes_sink() -> Any:
    """A sink whose tasks write the buffers of their batches, and sync them."""
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        WriterCommitMessage,
    )

    class Writer(DataSourceArrowWriter):
        def __init__(self, path: str) -> None:
            self._path = path

        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            os.makedirs(self._path, exist_ok=True)
            with open(os.path.join(self._path, uuid.uuid4().hex), "wb") as file:
                for batch in iterator:
                    for column in batch.columns:
                        for buffer in column.buffers():
                            if buffer is not None:
                                file.write(buffer)
                file.flush()
                os.fdatasync(file.fileno())
            return WriterCommitMessage()

    class Bytes(DataSource):
        @classmethod
        def name(cls) -> str:
            return "bytes"

        def writer(self, schema: Any, overwrite: bool) -> Any:
            return Writer(self.options["path"])

    return Bytes


class Write(Contestant):
    """One way to write a frame; each round into a separate directory."""

    def __init__(
        self, name: str, folder: Path, records: int, write: Callable[[str], Any]
    ) -> None:
        self.name = name
        self._folder = folder / name
        self._records = records
        self._write = write
        self.cpu: dict[str, list[float]] = {"java": [], "python": []}

    def amount(self) -> int:
        return self._records

    def before(self) -> None:
        self._cpu = cpu_seconds()

    def work(self) -> None:
        self._write(str(self._folder))

    def after(self, result: Any) -> None:
        now = cpu_seconds()
        for kind, values in self.cpu.items():
            values.append((now[kind] - self._cpu[kind]) / self._records * 1e6)
        if self.name == "logstore":
            with logstore.open(self._folder, read_only=True) as store:
                found = sum(p.end_offset for p in store.topic("bench"))
            if found != self._records:
                raise AssertionError(f"{found} records were written")
        if self.name == "bytes":
            size = sum(file.stat().st_size for file in self._folder.iterdir())
            if size < self._records * VALUE_BYTES:
                raise AssertionError(f"{size} bytes were written")
        shutil.rmtree(self._folder, ignore_errors=True)


def run_writes(
    spark: Any, folder: Path, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    spark.dataSource.register(counting_sink())
    spark.dataSource.register(bytes_sink())
    for partitions in args.partitions:
        for keyed in (False, True):
            frame = rows_of(spark, args.records, args.tasks, keyed=keyed)
            options = {
                "topic": "bench",
                "partitions": str(partitions),
                "messageFormat": "2",
                "segmentBytes": str(256 << 20),
            }

            def mine(path: str, frame: Any = frame, given: Any = options) -> None:
                frame.write.format("logstore").options(**given).mode("append").save(
                    path
                )

            def ceiling(path: str, frame: Any = frame) -> None:
                frame.write.format("ceiling").mode("append").save(path)

            def plain(path: str, frame: Any = frame) -> None:
                frame.write.format("bytes").mode("append").save(path)

            def parquet(path: str, frame: Any = frame) -> None:
                frame.write.option("compression", "none").parquet(path)

            ways = {
                "logstore": mine,
                "ceiling": ceiling,
                "bytes": plain,
                "parquet": parquet,
            }
            writes = [Write(n, folder, args.records, way) for n, way in ways.items()]
            entered = Ring(writes)
            entered.warm_up()
            for write in writes:
                write.cpu = {"java": [], "python": []}
            for _ in range(args.rounds):
                entered.round()
            frame.unpersist()
            for write, outcome in zip(writes, entered.outcomes, strict=True):
                yield {
                    "partitions": partitions,
                    "keys": "keyed" if keyed else "no keys",
                    "sink": outcome.name,
                    "million rows/s": round(outcome.rate / 1e6, 2),
                    "to ceiling": round(outcome.ratio_to(entered.outcomes[1]), 2),
                    "to bytes": round(outcome.ratio_to(entered.outcomes[2]), 2),
                    "to parquet": round(outcome.ratio_to(entered.outcomes[3]), 2),
                    "python s/M": round(statistics.median(write.cpu["python"]), 3),
                    "java s/M": round(statistics.median(write.cpu["java"]), 3),
                }


def run_stream(
    spark: Any, folder: Path, sink: str, rows: int, args: argparse.Namespace
) -> dict[str, Any]:
    """The times of the triggers of one query, without the first few."""
    place = folder / f"stream-{sink}-{rows}"
    query = (
        spark.readStream.format("rate-micro-batch")
        .options(rowsPerBatch=rows, numPartitions=2)
        .load()
        .selectExpr("CAST(value AS string) AS key", "CAST(value AS string) AS value")
        .writeStream.format(sink)
        .options(checkpointLocation=str(place / "checkpoint"), topic="bench")
        .option("partitions", "2")
        .start(*([str(place / "out")] if sink == "logstore" else []))
    )
    progress: dict[int, Any] = {}
    while len(progress) < args.triggers + 5 and query.isActive:
        for one in query.recentProgress:
            progress[one["batchId"]] = one
        query.awaitTermination(1)
    if query.exception() is not None:
        raise query.exception()
    query.stop()
    times = [one["durationMs"] for batch, one in sorted(progress.items()) if batch >= 5]
    found = {
        "rows a batch": rows,
        "sink": sink,
        "triggers": len(times),
        "trigger ms": statistics.median(one["triggerExecution"] for one in times),
        "addBatch ms": statistics.median(one["addBatch"] for one in times),
        "checkpoint ms": statistics.median(
            one["walCommit"] + one["commitOffsets"] for one in times
        ),
    }
    if sink == "logstore":
        with logstore.open(place / "out", read_only=True) as store:
            total = sum(p.end_offset for p in store.topic("bench"))
        if total % rows:
            raise AssertionError(f"{total} records are no whole batches")
    return found


def show(row: dict[str, Any]) -> dict[str, Any]:
    print("  ".join(f"{value!s:>12}" for value in row.values()), flush=True)
    return row


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    with session(args) as (spark, folder):
        rows = [show(row) for row in run_writes(spark, folder, args)]
        for count in (1_000, 100_000):
            for sink in ("noop", "logstore"):
                rows.append(show(run_stream(spark, folder, sink, count, args)))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_sink")
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, nargs="+", default=[2, 50])
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--triggers", type=int, default=30)
    add_arguments(parser)
    args = parser.parse_args()
    write_json(args, run(args))


if __name__ == "__main__":
    main()
