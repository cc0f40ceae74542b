"""A query from ``logstore-jvm`` into a store is killed again and again: the driver, its
executors, or the process that plans; it continues with either reader. Every row is in
the sink once.

``LOGSTORE_SPARK_KILLS`` is the number of kills (4), ``LOGSTORE_SPARK_SEED`` their seed.

The query is a separate program, this file: ``python <this file> <folder>``. It has two
executors in separate processes (local-cluster), restarts the query after a failure, and
ends when the folder has a file ``stop``.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.killed_query import KilledQuery, below, kill, run_until_stopped

# A driver and its executors take minutes to start on a busy machine.
WAIT_S = 600
PARTITIONS = 2
JVM, PYTHON = "logstore-jvm", "logstore"
EXECUTOR, HELPER = "CoarseGrainedExecutorBackend", "pyspark_logstore.jvm.helper"
VICTIMS = ("driver", "driver", "executor", "executors", "helpers")


def drive(folder: Path) -> None:
    """Run the query until it is stopped."""
    from pyspark.sql import SparkSession

    import logstore.spark

    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }.items():
        builder = builder.config(name, value)
    spark = logstore.spark.session_defaults(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def start() -> Any:
        name = random.choice([JVM, JVM, PYTHON])
        with open(folder / "starts", "a") as starts:
            starts.write(f"{name}\n")
        return (
            spark.readStream.format(name)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .option("minPartitions", 4)
            .load(str(folder / "data"))
            .select("partition", "key", "value")
            .writeStream.format("logstore")
            .options(topic="copy", partitions=PARTITIONS, lockTimeout="20s")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start(str(folder / "out"))
        )

    run_until_stopped(folder, start)


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_query_that_is_killed_delivers_every_row_once(
    java_home: str, tmp_path: Path
) -> None:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")
    kills = int(os.environ.get("LOGSTORE_SPARK_KILLS", "4"))
    rng = random.Random(int(os.environ.get("LOGSTORE_SPARK_SEED", "1")))
    if java_home:
        os.environ["JAVA_HOME"] = java_home
    done: Counter[str] = Counter()
    config = logstore.TopicConfig(segment_bytes=20_000, message_format=2)
    with (
        logstore.open(tmp_path / "data") as store,
        open(tmp_path / "log", "wb") as log,
    ):
        topic = store.create_topic("orders", PARTITIONS, config)
        query = KilledQuery(Path(__file__), tmp_path, log)
        try:
            while sum(done.values()) < kills:
                go_on(query, topic, tmp_path, 500)
                victim = rng.choice(VICTIMS)
                time.sleep(rng.random())
                if strike(query, victim, rng):
                    done[victim] += 1
            # Started again after the last kill, it repeats nothing.
            go_on(query, topic, tmp_path, 500)
            go_on(query, topic, tmp_path, 0)
            assert query.stop() == 0
        finally:
            query.end()
        for partition in topic:
            assert copied(tmp_path, partition.number) == [
                (record.key, record.value) for record in partition.read()
            ]
        total = sum(partition.end_offset for partition in topic)
    assert logstore.verify(tmp_path / "out").ok
    starts = Counter((tmp_path / "starts").read_text().split())
    print(f"{dict(done)}, {dict(starts)} starts, {total} rows")


def go_on(query: KilledQuery, topic: logstore.Topic, folder: Path, wanted: int) -> None:
    """Append, and wait until the given number of rows has arrived; 0: all of them."""
    before = sum(len(copied(folder, n)) for n in range(PARTITIONS))
    deadline = time.monotonic() + WAIT_S
    while True:
        came = sum(len(copied(folder, n)) for n in range(PARTITIONS))
        total = sum(partition.end_offset for partition in topic)
        if came == total if wanted == 0 else came >= before + wanted:
            return
        assert time.monotonic() < deadline, "nothing came"
        if not query.is_running:
            query.start()
        # Rows are left to be read, but not more than Spark can read.
        if wanted and total - came < 3_000:
            for partition in topic:
                first = partition.end_offset
                values = [b"%d" % n for n in range(first, first + 50)]
                partition.append_many(values, [b"key"] * 50)
        time.sleep(0.1)


def copied(folder: Path, number: int) -> list[tuple[bytes | None, bytes | None]]:
    """(key, value) of a partition of the sink, which may not exist yet."""
    try:
        with logstore.open(folder / "out", read_only=True) as store:
            partition = store.topic("copy")[number]
            return [(record.key, record.value) for record in partition.read()]
    except LookupError:
        return []


def strike(query: KilledQuery, victim: str, rng: random.Random) -> bool:
    """Kill the victim; False if there was no such process."""
    if victim == "driver":
        query.kill_driver()
        return True
    what = HELPER if victim == "helpers" else EXECUTOR
    found = below(query.pid).items()
    victims = sorted(pid for pid, command in found if what in command)
    if victim == "executor":
        victims = rng.sample(victims, min(len(victims), 1))
    for each in victims:
        kill(each)
    return bool(victims)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
