"""A query is killed again and again: the driver with Java, or Python's workers, at
random and in the middle of a publication; or the service that has the store open, to
which the query hands in; besides, tasks fail after they have staged their rows. Every
row is there once, in order.

``LOGSTORE_SPARK_KILLS`` is the number of kills (4), ``LOGSTORE_SPARK_SEED`` their seed.

The query is a separate program, this file: ``python <this file> <folder>``. It restarts
the query after a failure, and ends when the folder has a file ``stop``. Its rows are
the numbers from 0 on, `ROWS` of them in each batch.
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
from support.killed_query import KilledQuery, kill, run_until_stopped
from support.store_owner import StoreOwner

ROWS = 1000
# Even: the rows of a key all belong to one of the two tasks.
KEYS = 14
PARTITIONS = 3
WAIT_S = 180
PUBLICATION = ".logstore-publication"
VICTIMS = (
    "worker",
    "all workers",
    "all workers in a publication",
    "all workers in a publication",
    "driver",
    "driver in a publication",
)
VICTIMS_WITH_OWNER = (*VICTIMS, "owner", "owner in a publication")


def failing_source() -> Any:
    """The sink, in which every third task fails once, with its rows staged."""
    from pyspark import TaskContext

    from pyspark_logstore.source import DefaultSource
    from pyspark_logstore.write.options import parse_sink
    from pyspark_logstore.write.writer import StreamWriter

    base: Any = StreamWriter

    class Writer(base):  # type: ignore[misc]
        def write(self, iterator: Any) -> Any:
            message = super().write(iterator)
            task = TaskContext.get()
            number = message.batch_id + task.partitionId()
            if task.attemptNumber() == 0 and number % 3 == 0:
                raise RuntimeError("failed as asked")
            return message

    class Source(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "failing"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(schema, parse_sink(self.options, streaming=True), overwrite)

    return Source


def drive(folder: Path) -> None:
    """Run the query until it is stopped."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.streaming.minBatchesToRetain": "5",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(failing_source())

    def start() -> Any:
        return (
            spark.readStream.format("rate-micro-batch")
            .options(rowsPerBatch=ROWS, numPartitions=2)
            .load()
            .selectExpr(
                f"CAST(value % {KEYS} AS string) AS key",
                "CAST(value AS string) AS value",
            )
            .writeStream.format("failing")
            .options(topic="numbers", partitions=PARTITIONS, lockTimeout="20s")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .start(str(folder / "out"))
        )

    run_until_stopped(folder, start)


def ends(path: Path) -> list[int]:
    """The ends of the partitions, at one moment; empty if there is no topic yet."""
    try:
        with logstore.open(path, read_only=True) as store:
            partitions = list(store.topic("numbers"))
            while True:
                one = [p.end_offset for p in partitions]
                if one == [p.end_offset for p in partitions]:
                    return one
    except LookupError:
        return []


# ---------------------------------------------------------------- the test


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("victims", [VICTIMS, VICTIMS_WITH_OWNER], ids=["", "owner"])
def test_query_that_is_killed_writes_every_row_once(
    victims: tuple[str, ...], java_home: str, tmp_path: Path
) -> None:
    """Every row is there once, in order within a key; in between, half a batch is never
    visible. With a service that has the store, and without one."""
    kills = int(os.environ.get("LOGSTORE_SPARK_KILLS", "4"))
    rng = random.Random(int(os.environ.get("LOGSTORE_SPARK_SEED", "1")))
    if java_home:
        os.environ["JAVA_HOME"] = java_home
    out = tmp_path / "out"
    done: Counter[str] = Counter()
    owner = StoreOwner(out)
    with open(tmp_path / "log", "wb") as log:
        query = KilledQuery(Path(__file__), tmp_path, log)
        try:
            while sum(done.values()) < kills:
                # A query continues without it, too.
                if victims is VICTIMS_WITH_OWNER and rng.random() < 0.8:
                    owner.start()
                go_on(query, out)
                victim = rng.choice(victims)
                if strike(query, owner, victim, out, rng):
                    done[victim] += 1
            go_on(query, out)
            assert query.stop() == 0
        finally:
            query.end()
            owner.kill()
    found = check(out)
    failures = tmp_path / "failures"
    failed = failures.read_text().count("\n\n") if failures.exists() else 0
    print(f"{dict(done)}, {query.starts} starts, {failed} failures, {found} rows")


def go_on(query: KilledQuery, out: Path) -> None:
    """Wait until two more whole batches have arrived."""
    before = sum(ends(out))
    deadline = time.monotonic() + WAIT_S
    while (total := sum(ends(out))) < before + 2 * ROWS:
        assert total % ROWS == 0, f"a part of a batch: {total}"
        assert time.monotonic() < deadline, "nothing came"
        if not query.is_running:
            query.start()
        time.sleep(0.05)


def journal(out: Path) -> tuple[int, int]:
    """The state of the journal, which changes during a publication."""
    try:
        info = (out / PUBLICATION).stat()
    except FileNotFoundError:
        return 0, 0
    return info.st_ino, info.st_size


def strike(
    query: KilledQuery, owner: StoreOwner, victim: str, out: Path, rng: random.Random
) -> bool:
    """Kill the victim; False if the moment for it did not come."""
    if victim.endswith("publication"):
        deadline, before = time.monotonic() + 10, journal(out)
        while journal(out) == before:
            if time.monotonic() > deadline:
                return False
    else:
        time.sleep(rng.random() * 1.5)
    if victim.startswith("owner"):
        return owner.kill()
    if victim.startswith("driver"):
        query.kill_driver()
        return True
    workers = query.workers()
    if victim == "worker":
        workers = rng.sample(workers, min(len(workers), 1))
    for worker in workers:
        kill(worker)
    return bool(workers)


def check(out: Path) -> int:
    """Check that every number is there once, in order within a key; returns their
    count."""
    numbers = []
    with logstore.open(out, read_only=True) as store:
        topic = store.topic("numbers")
        assert len(topic) == PARTITIONS
        for partition in topic:
            last: dict[bytes | None, int] = {}
            for record in partition.read():
                number = int(record.value or b"")
                assert record.key == b"%d" % (number % KEYS)
                assert number > last.get(record.key, -1), f"{number} is out of order"
                last[record.key] = number
                numbers.append(number)
    assert sorted(numbers) == list(range(len(numbers)))
    assert len(numbers) % ROWS == 0
    assert logstore.verify(out).ok
    return len(numbers)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
