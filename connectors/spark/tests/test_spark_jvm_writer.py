"""The format ``logstore-jvm`` during the work of a writer that appends, rolls,
publishes, deletes, cuts, stops anywhere and is killed: rows are a view of the log at
one moment.

``LOGSTORE_SPARK_SECONDS`` is the duration, ``LOGSTORE_SPARK_SEED`` the seed.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.levels import IS_ALL
from support.restless_writer import PARTITIONS, Account, RestlessWriter, account_of

pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1200)]

JVM, PYTHON = "logstore-jvm", "logstore"
SECONDS = int(os.environ.get("LOGSTORE_SPARK_SECONDS", "120" if IS_ALL else "5"))
SEED = int(os.environ.get("LOGSTORE_SPARK_SEED", "1"))
# The error of Spark if the machine was too busy to start a Python process in time.
NO_WORKER = "Python worker failed to connect back"
Rows = list[list[tuple[int, bytes]]]


@pytest.fixture(autouse=True)
def jar() -> None:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[RestlessWriter]:
    """The writer, of the store ``data``; it is killed at the end."""
    writer = RestlessWriter(tmp_path / "data", tmp_path / "journal", 100 * SEED)
    yield writer
    writer.kill()


def by_partition(rows: Any) -> Rows:
    """(offset, value) of each partition, in the order of the log."""
    found: Rows = [[] for _ in range(PARTITIONS)]
    for row in rows:
        found[row.partition].append((row.offset, bytes(row.value)))
    for each in found:
        each.sort()
    return found


def look(spark: Any, name: str, path: Path, options: dict[str, str]) -> Rows | str:
    """Rows of a batch query, or its error."""
    reader = spark.read.format(name).option("subscribe", "orders").options(**options)
    try:
        frame = reader.load(str(path)).select("partition", "offset", "value")
        return by_partition(frame.collect())
    except Exception as error:
        return str(error)


def kind_of(outcome: Rows | str) -> str:
    """The class of the error; "": none."""
    if not isinstance(outcome, str):
        return ""
    kinds = ("DataLossError", "OffsetOutOfRangeError", "ConfigError")
    return next((kind for kind in kinds if kind in outcome), outcome[:3000])


def is_changed(before: list[Account], after: list[Account]) -> bool:
    """Whether records may have been removed from the log in between."""
    return any(
        (a.cuts, a.pending, a.start_max) != (b.cuts, b.pending, b.start_max)
        or a.start != a.start_max
        or a.pending
        for a, b in zip(before, after, strict=True)
    )


def check_rows(
    rows: Rows, before: list[Account], after: list[Account], *, is_whole: bool
) -> None:
    """Check that each record has its expected value; without gaps, and up to the end of
    the log at the time, if nothing was removed from it meanwhile."""
    for number, (found, then, now) in enumerate(zip(rows, before, after, strict=True)):
        assert now.wrong(number, found) == ""
        if is_whole:
            first, last = (found[0][0], found[-1][0]) if found else (0, -1)
            assert [offset for offset, _ in found] == list(range(first, last + 1))
            assert then.start <= first <= now.start_max
            assert last < now.begun
            if (then.cuts, then.pending) == (now.cuts, now.pending) and not now.pending:
                assert then.written <= last + 1


def again(rows: Rows) -> dict[str, str]:
    """Options for the offsets of some rows."""
    starts = {n: each[0][0] if each else 0 for n, each in enumerate(rows)}
    ends = {n: each[-1][0] + 1 if each else 0 for n, each in enumerate(rows)}
    return {
        "startingOffsets": json.dumps({"orders": starts}),
        "endingOffsets": json.dumps({"orders": ends}),
    }


@pytest.mark.thorough
def test_batches_beside_a_writer_are_what_the_log_was(
    spark: Any, tmp_path: Path, beside: RestlessWriter
) -> None:
    """While it runs, Java returns one view, and Python then the same rows for the same
    offsets. After it was stopped or killed, in the middle of anything, both return the
    same."""
    path, journal = tmp_path / "data", tmp_path / "journal"
    rng = random.Random(SEED)
    done: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    for number in itertools.count():
        how = ("running", "stopped", "running", "killed")[number % 4]
        if number >= 4 and time.monotonic() > deadline:
            break
        time.sleep(rng.random() * 0.3)
        beside.check()
        fails = rng.choice(["true", "true", "false"])
        options = {
            "minPartitions": rng.choice(["1", "3", "8"]),
            "failOnDataLoss": fails,
        }
        if how == "stopped":
            beside.pause()
        elif how == "killed":
            beside.kill()
        before = account_of(journal)
        rows = look(spark, JVM, path, options)
        after = account_of(journal)
        if how == "running":
            if not isinstance(rows, str):
                has_lost = is_changed(before, after)
                whole = fails == "true" or not has_lost
                check_rows(rows, before, after, is_whole=whole)
                if whole and any(rows):
                    options = {**again(rows), "failOnDataLoss": "true"}
                    same = look(spark, PYTHON, path, options)
                    now = account_of(journal)
                    if is_changed(before, now):
                        if isinstance(same, str):
                            kinds = ("DataLossError", "OffsetOutOfRangeError")
                            assert kind_of(same) in (*kinds, "ConfigError"), same
                            done["gone before Python's look"] += 1
                    else:
                        assert rows == same
                        done["same as Python"] += 1
            else:
                assert kind_of(rows) == "DataLossError", rows
                assert fails == "true", rows
                assert is_changed(before, after), rows
        else:
            same = look(spark, PYTHON, path, options)
            if isinstance(rows, str) or isinstance(same, str):
                assert kind_of(rows) == kind_of(same), (rows, same)
            else:
                assert rows == same
                check_rows(rows, before, after, is_whole=True)
            if how == "stopped":
                beside.go_on()
            else:
                beside.start()
        done[f"{how} {kind_of(rows)}".strip()] += 1
        records = 0 if isinstance(rows, str) else sum(map(len, rows))
        done["records"] += records
    cuts = [max(account.cuts) for account in account_of(journal)]
    print(f"{dict(done)}, {cuts} cuts, {beside.kills} kills")
    assert done["records"]


def test_stream_beside_a_writer_delivers_each_record_once(
    spark: Any, tmp_path: Path, beside: RestlessWriter
) -> None:
    """A query is stopped at times and continues, with the other reader at times. It
    fails if records are gone, and then another one begins. The rows of a query are one
    view of the log, and each record is in it once."""
    path, journal = tmp_path / "data", tmp_path / "journal"
    rng = random.Random(SEED)
    done: Counter[str] = Counter()
    deadline = time.monotonic() + SECONDS
    for life in itertools.count():
        folder = tmp_path / f"life{life}"
        before = account_of(journal)
        is_over = False
        while not is_over and time.monotonic() < deadline:
            name = rng.choice([JVM, JVM, JVM, PYTHON])
            done[name] += 1
            query = start(spark, name, path, folder, rng)
            pause = time.monotonic() + rng.uniform(1, 8)
            complete = commits(folder)
            while query.isActive and (
                time.monotonic() < pause
                or (commits(folder) == complete and time.monotonic() < pause + 60)
            ):
                time.sleep(rng.random())
                if rng.random() < 0.2:
                    beside.kill()
                    beside.start()
            if query.isActive:
                query.stop()
            if query.exception() is not None:
                text = str(query.exception())
                if NO_WORKER in text:
                    done["no worker"] += 1
                    continue
                assert kind_of(text) == "DataLossError", text
                assert is_changed(before, account_of(journal)), text
                is_over = True
        done["lives"] += 1
        if (folder / "out" / "_spark_metadata").exists():
            # Without rows there is no file, and so no schema.
            reader = spark.read.schema("partition int, offset bigint, value binary")
            rows = by_partition(reader.parquet(str(folder / "out")).collect())
            check_stream(rows, account_of(journal))
            done["records"] += sum(map(len, rows))
        if time.monotonic() >= deadline:
            break
    cuts = [max(account.cuts) for account in account_of(journal)]
    print(f"{dict(done)}, {cuts} cuts, {beside.kills} kills")
    assert done["records"]


def commits(folder: Path) -> int:
    """The number of complete batches."""
    return len(list((folder / "checkpoint" / "commits").glob("[0-9]*")))


def start(spark: Any, name: str, path: Path, folder: Path, rng: random.Random) -> Any:
    frame = (
        spark.readStream.format(name)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("minPartitions", rng.choice(["1", "4"]))
    )
    if name == JVM and rng.random() < 0.5:
        frame = frame.option("maxOffsetsPerTrigger", rng.choice([100, 2_000]))
    return (
        frame.load(str(path))
        .select("partition", "offset", "value")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(processingTime=rng.choice(["0 seconds", "300 milliseconds"]))
        .start(str(folder / "out"))
    )


def check_stream(rows: Rows, now: list[Account]) -> None:
    """All offsets from the first to the last one, each once, of one log."""
    for number, (found, account) in enumerate(zip(rows, now, strict=True)):
        assert account.wrong(number, found) == ""
        if found:
            first, last = found[0][0], found[-1][0]
            assert [offset for offset, _ in found] == list(range(first, last + 1))
            assert last < account.begun
