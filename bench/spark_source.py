"""How fast Spark reads a store, compared with the fastest possible Python source.

    PYTHONPATH=src python -m bench.spark_source
    python -m bench.spark_source --records 1000000 --rounds 3 --json out.json

Contestants take turns in one session (``local[N]``), on the same records:

- **logstore**: the source, ``spark.read.format("logstore")``;
- **logstore-jvm**: its reader in Java, if it was built; **plan**: a count that its
  plan answers without reading, as Parquet's does from the footer of the file;
- **ceiling**: a Python source whose tasks give one Arrow batch, made before, again
  and again: what Spark itself costs. The target is 0.85 of its rate;
- **parquet**: ``spark.read.parquet`` of the same rows, uncompressed: Spark's own
  reader, without Python;
- **kafka** (with ``--kafka``): ``spark.read.format("kafka")``, Spark's connector for a
  Kafka 3.9.1 on the same cores, which needs Maven.

Each is asked for all rows (sink ``noop``), for ``count(*)`` and for
``sum(length(value))``; the sums are checked. CPU seconds are summed over the Python and
Java processes below this one, per million rows. The load of the machine is shown with
them: above the number of cores, rates say little, and ratios not much.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

import logstore
import logstore.spark
from bench.rounds import Contestant, Ring
from bench.spark_sessions import add_arguments, cpu_seconds, session, write_json
from pyspark_logstore.read.columns import arrow_schema

VALUE_BYTES: Final = 100
NEVER: Final = (1 << 63) - 1
SCHEMAS: Final = {
    "four": "key binary, value binary, offset bigint, timestamp timestamp",
    "all": (
        "key binary, value binary, topic string, partition int, offset bigint, "
        "timestamp timestamp, timestampType int"
    ),
}
CEILING_BATCH: Final = 8192


def all_rows(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def count(frame: Any) -> int:
    return int(frame.count())


def value_bytes(frame: Any) -> int:
    return int(frame.selectExpr("sum(length(value))").first()[0])


ACTIONS: Final[dict[str, Callable[[Any], int | None]]] = {
    "all rows": all_rows,
    "count(*)": count,
    "sum(length(value))": value_bytes,
}


class Query(Contestant):
    """One action on one frame."""

    def __init__(self, name: str, frame: Any, action: str, records: int) -> None:
        self.name = name
        self._frame = frame
        self._action = action
        self._records = records
        self.cpu: dict[str, list[float]] = {"java": [], "python": []}

    def amount(self) -> int:
        return self._records

    def before(self) -> None:
        self._cpu = cpu_seconds()

    def work(self) -> int | None:
        return ACTIONS[self._action](self._frame)

    def after(self, result: int | None) -> None:
        now = cpu_seconds()
        for kind, values in self.cpu.items():
            values.append((now[kind] - self._cpu[kind]) / self._records * 1e6)
        each = {"all rows": 0, "count(*)": 1, "sum(length(value))": VALUE_BYTES}
        expected = each[self._action] * self._records
        if (result or 0) != expected:
            raise AssertionError(f"{self.name} gave {result}, not {expected}")


def write_store(path: Path, records: int, partitions: int) -> None:
    """The records: keys of 8 bytes, values of 100, in batches of 1,000."""
    config = logstore.TopicConfig(
        message_format=2, flush_messages=NEVER, flush_ms=NEVER, segment_bytes=256 << 20
    )
    noise = os.urandom(VALUE_BYTES - 8)
    with logstore.open(path) as store:
        topic = store.create_topic("bench", partitions, config)
        for first in range(0, records // partitions, 1000):
            keys = [n.to_bytes(8, "big") for n in range(first, first + 1000)]
            batch = pa.record_batch(
                {
                    "key": pa.array(keys, pa.binary()),
                    "value": pa.array([key + noise for key in keys], pa.binary()),
                }
            )
            for partition in topic:
                partition.append_arrow(batch)


def ceiling_source(ddl: str, tasks: list[int]) -> Any:
    """A source whose tasks return the given numbers of rows, from one batch."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

    class Reader(DataSourceReader):
        def __init__(self, schema: Any) -> None:
            self._schema = schema

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(rows) for rows in tasks]

        def read(self, partition: InputPartition) -> Iterator[Any]:
            n = CEILING_BATCH
            columns = {
                "key": pa.array([b"k" * 8] * n, pa.binary()),
                "value": pa.array([b"v" * VALUE_BYTES] * n, pa.binary()),
                "topic": pa.array(["bench"] * n),
                "partition": pa.array([1] * n, pa.int32()),
                "offset": pa.array(range(n), pa.int64()),
                "timestamp": pa.array([0] * n, pa.timestamp("us", tz="UTC")),
                "timestampType": pa.array([0] * n, pa.int32()),
            }
            schema = arrow_schema(self._schema)
            arrays = [columns[name] for name in schema.names]
            batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
            left = partition.value
            while left:
                yield batch.slice(0, min(left, n))
                left -= min(left, n)

    class Ceiling(DataSource):
        @classmethod
        def name(cls) -> str:
            return "ceiling"

        def schema(self) -> str:
            return ddl

        def reader(self, schema: Any) -> Any:
            return Reader(schema)

    return Ceiling


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    rows = []
    with contextlib.ExitStack() as stack:
        jars = spark_kafka().connector_jars() if args.kafka else []
        spark, folder = stack.enter_context(session(args, jars))
        write_store(folder / "store", args.records, args.partitions)
        others = {}
        if args.kafka:
            store = stack.enter_context(logstore.open(folder / "store", read_only=True))
            topic = spark_kafka().topic_of(store.topic("bench"), folder / "kafka")
            options = stack.enter_context(topic)
            others["kafka"] = spark.read.format("kafka").options(**options).load()
        for schema in args.schema:
            rows += run_schema(spark, folder, schema, others, args)
    return rows


def spark_kafka() -> Any:
    """The module of Spark's Kafka connector, which needs modules of the tests."""
    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))
    return importlib.import_module("bench.peers.spark_kafka")


def run_schema(
    spark: Any,
    folder: Path,
    schema: str,
    others: dict[str, Any],
    args: argparse.Namespace,
) -> list[dict[str, Any]]:
    """All actions on the columns of one schema; `others` are frames with these columns
    that take part, too, by name."""
    ddl = SCHEMAS[schema]
    reader = spark.read.format("logstore").option("subscribe", "bench").schema(ddl)
    mine = reader.load(str(folder / "store"))
    mine.write.mode("overwrite").option("compression", "none").parquet(
        str(folder / schema)
    )
    tasks = mine.rdd.getNumPartitions()
    shares = [args.records // tasks] * tasks
    shares[0] += args.records - sum(shares)
    spark.dataSource.register(ceiling_source(ddl, shares))
    frames = {
        "logstore": mine,
        "ceiling": spark.read.format("ceiling").load(),
        "parquet": spark.read.parquet(str(folder / schema)),
    }
    planned = None
    if logstore.spark.jar_path() is not None:
        reader = spark.read.format("logstore-jvm").option("subscribe", "bench")
        planned = reader.schema(ddl).load(str(folder / "store"))
        # Of all rows: a count that the plan answers reads nothing.
        options = reader.option("onCorruption", "skip").schema(ddl)
        frames["logstore-jvm"] = options.load(str(folder / "store"))
    for name, frame in others.items():
        frames[name] = frame.select(mine.columns)
    rows = []
    for action in ACTIONS:
        asked = dict(frames)
        if action == "count(*)" and planned is not None:
            asked["logstore-jvm, plan"] = planned
        queries = [Query(n, f, action, args.records) for n, f in asked.items()]
        entered = Ring(queries)
        entered.warm_up()
        for query in queries:
            query.cpu = {"java": [], "python": []}
        for _ in range(args.rounds):
            entered.round()
        for query, outcome in zip(queries, entered.outcomes, strict=True):
            rows.append(
                {
                    "columns": schema,
                    "action": action,
                    "source": outcome.name,
                    "tasks": tasks,
                    "million rows/s": round(outcome.rate / 1e6, 2),
                    "to ceiling": round(outcome.ratio_to(entered.outcomes[1]), 2),
                    "python s/M": round(statistics.median(query.cpu["python"]), 3),
                    "java s/M": round(statistics.median(query.cpu["java"]), 3),
                }
            )
            print(
                "  ".join(f"{value!s:>12}" for value in rows[-1].values()), flush=True
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_source")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--schema", nargs="+", choices=SCHEMAS, default=list(SCHEMAS))
    parser.add_argument("--kafka", action="store_true", help="also Spark's connector")
    add_arguments(parser)
    args = parser.parse_args()
    write_json(args, run(args))


if __name__ == "__main__":
    main()
