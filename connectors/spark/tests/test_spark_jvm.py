"""The format ``logstore-jvm`` compared with ``logstore``: the same rows, the same
errors."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.broker import foreign, with_random_transactions
from support.levels import IS_ALL
from support.values import FORMATS

pyspark = pytest.importorskip("pyspark", reason="pyspark is not installed")
pytestmark = pytest.mark.spark

JVM, PYTHON = "logstore-jvm", "logstore"
# Each makes some stores; undamaged ones get several queries.
SEEDS = range(20261124, 20261124 + (34 if IS_ALL else 1))
STORES, QUERIES = (20 if IS_ALL else 8), 5
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


@pytest.fixture(autouse=True)
def jar() -> None:
    import logstore.spark

    if logstore.spark.jar_path() is None:
        pytest.skip("the reader in Java is not built here: no JDK, or no Spark")


def random_store(path: Path, rng: random.Random) -> logstore.Store:
    """Topics of all formats, with small segments; some with their head deleted, or
    their tail cut and grown again; some records have no time, no key, no value."""
    store, times = logstore.open(path), range(10**6, 2 * 10**6)
    for topic in "ab"[: rng.randrange(1, 3)]:
        magic, codec = rng.choice(FORMATS)
        config = logstore.TopicConfig(
            message_format=magic,
            compression_type=codec,
            segment_bytes=rng.choice([500, 5_000, 1 << 20]),
            index_interval_bytes=rng.choice([1, 100, 4096]),
            flush_messages=rng.choice([7, 1 << 40]),
        )
        partitions = rng.randrange(1, 4)
        for partition in store.create_topic(topic, partitions, config):
            for _ in range(rng.randrange(0, 20)):
                count = rng.randrange(1, 30)
                headers = [
                    rng.choice([(), (("h", b"1"), ("", None))]) for _ in range(count)
                ]
                partition.append_many(
                    [
                        rng.choice([None, b"", rng.randbytes(rng.randrange(60))])
                        for _ in range(count)
                    ],
                    [rng.choice([None, b"", b"key"]) for _ in range(count)],
                    [rng.choice([-1, *rng.choices(times, k=4)]) for _ in range(count)],
                    **({"headers": headers} if magic == 2 else {}),
                )
            if len(partition) > 5 and rng.random() < 0.3:
                partition.delete_before(rng.randrange(partition.end_offset))
            if len(partition) > 5 and rng.random() < 0.3:
                partition.append(b"to be cut")
                partition.truncate_to(partition.end_offset - 1)
                partition.append(b"after the cut")
    return store


def damage(path: Path, rng: random.Random) -> None:
    """Change some bytes of a log."""
    logs = [log for log in path.rglob("*.log") if log.stat().st_size]
    if logs:
        log = rng.choice(sorted(logs))
        data = bytearray(log.read_bytes())
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.choice([0, 0x7F, 0xFF])
        log.write_bytes(data)


def random_query(rng: random.Random, *, is_damaged: bool) -> Callable[[Any], Any]:
    """Columns and filters of a query, as a function of the whole frame. A query of a
    damaged store reads everything: Java does not notice damage in bytes that it need
    not read."""
    columns = rng.sample(COLUMNS, rng.randrange(1, len(COLUMNS) + 1))
    number = rng.randrange(0, 300)
    time = f"timestamp_millis({rng.randrange(10**6, 2 * 10**6)})"
    conditions = rng.sample(
        [
            f"offset >= {number}",
            f"{number} > offset",
            f"offset BETWEEN {number} AND {number + 50}",
            f"offset IN ({number}, {number + 7}, 3)",
            "partition = 1",
            "partition != 0",
            "topic = 'a'",
            "topic > 'a' OR offset < 9",
            f"timestamp >= {time}",
            f"timestamp < {time}",
            f"timestamp = {time}",
            "timestamp is null",
            "key IS NOT NULL",
            "length(value) > 20",
        ],
        0 if is_damaged else rng.choice([0, 0, 1, 1, 2, 3]),
    )
    aggregate = rng.choice(["", "", "count", "ends", "groups"])
    if is_damaged:
        aggregate = rng.choice(["", "", "lengths"])

    def apply(frame: Any) -> Any:
        for condition in conditions:
            frame = frame.filter(condition)
        if aggregate == "count":
            return frame.selectExpr("count(*)")
        if aggregate == "ends":
            return frame.selectExpr("min(offset)", "max(offset)", "count(*)")
        if aggregate == "lengths":
            return frame.selectExpr("count(*)", "sum(length(key))")
        if aggregate == "groups":
            return frame.groupBy("topic", "partition").count()
        return frame.select(*columns)

    return apply


def outcome(frame: Any, query: Callable[[Any], Any]) -> tuple[list[Any], str]:
    """(sorted rows, "") or ([], the text of the error)."""
    try:
        return sorted(map(repr, query(frame).collect())), ""
    except Exception as error:
        return [], str(error)


def same_error(of_jvm: str, of_python: str) -> bool:
    """Whether the message that Java passes on is in Python's traceback."""
    found = re.search(r"RuntimeException: (\w+): (.*)", of_jvm)
    if not found:
        return False
    kind, message = found.groups()
    return f"{kind}: {message}" in of_python


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_both_readers_give_the_same(spark: Any, tmp_path: Path, seed: int) -> None:
    """Random stores and queries; damaged ones give the same error."""
    rng = random.Random(seed)
    errors = queries = 0
    for number in range(STORES):
        path = tmp_path / str(number)
        store = random_store(path, rng)
        is_damaged = rng.random() < 0.4
        if rng.random() < 0.7 or is_damaged:
            store.close()
        if is_damaged:
            damage(path, rng)
        options = {
            "subscribePattern": ".*",
            "includeHeaders": rng.choice(["true", "false"]),
            "isolation": rng.choice(["read_committed", "read_uncommitted"]),
            "onCorruption": rng.choice(["raise", "raise", "skip"]),
            # Of several tasks, the first that fails is reported.
            "minPartitions": "1" if is_damaged else rng.choice(["1", "3", "8"]),
        }
        frames = [
            spark.read.format(name).options(**options).load(str(path))
            for name in (JVM, PYTHON)
        ]
        if not is_damaged:
            frames[1].cache()  # it is read once for all queries
        for _ in range(1 if is_damaged else QUERIES):
            query = random_query(rng, is_damaged=is_damaged)
            (rows, error), (expected, problem) = (outcome(f, query) for f in frames)
            where = f"{number}: {options}, {frames[0]}"
            assert bool(error) == bool(problem), (where, error[:2000], problem[:2000])
            if error:
                assert same_error(error, problem), (where, error, problem)
            else:
                assert rows == expected, where
            errors += bool(error)
            queries += 1
        frames[1].unpersist()
        store.close()
    print(f"seed {seed}: {queries} queries, {errors} errors")
    assert errors


def transactional_store(path: Path, rng: random.Random) -> None:
    """A broker's log with transactions of several producers, some aborted or open."""
    with logstore.open(path) as store:
        config = logstore.TopicConfig(
            message_format=2,
            compression_type=rng.choice(["none", "lz4", "zstd"]),
            segment_bytes=rng.choice([700, 1 << 20]),
        )
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(rng.randrange(1, 60)):
            count = rng.choice([1, 1, 3])
            partition.append_many([rng.randbytes(rng.randrange(40))] * count)
    with_random_transactions(foreign(path), rng, rng.choice([0.2, 0.5, 1.0]))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(20270401, 20270401 + (25 if IS_ALL else 1)))
def test_both_readers_agree_on_transactions(
    spark: Any, tmp_path: Path, seed: int
) -> None:
    """Java leaves out markers and aborted records, and Python decides which these are;
    Python reads only the records after the start of an open transaction."""
    rng = random.Random(seed)
    for number in range(12 if IS_ALL else 4):
        path = tmp_path / str(number)
        transactional_store(path, rng)
        for isolation in ("read_committed", "read_uncommitted"):
            options = {
                "subscribe": "orders",
                "isolation": isolation,
                "minPartitions": rng.choice(["1", "3"]),
            }
            first = rng.randrange(40)
            rows = [
                spark.read.format(name)
                .options(**options)
                .load(str(path))
                .filter(f"offset >= {first}")
                .orderBy("offset")
                .collect()
                for name in (JVM, PYTHON)
            ]
            assert rows[0] == rows[1], (number, options, first)


@pytest.mark.thorough
def test_query_moves_between_the_readers_on_its_checkpoint(
    spark: Any, tmp_path: Path, make_topic: Callable[..., logstore.Topic]
) -> None:
    """It moves both ways, and back: every record is delivered once."""
    topic = make_topic(partitions=2, count=100)
    path = os.path.dirname(topic[0].path)
    for name in (PYTHON, JVM, PYTHON, JVM, JVM):
        frame = (
            spark.readStream.format(name)
            .option("subscribe", "orders")
            .option("startingOffsets", "earliest")
            .load(path)
        )
        query = (
            frame.selectExpr("partition", "offset")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        assert query.awaitTermination(120)
        for partition in topic:
            partition.append_many([b"x"] * 10)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    expected = [(p, offset) for p in range(2) for offset in range(140)]
    assert sorted(map(tuple, rows)) == expected


def test_stream_takes_what_its_options_admit(
    spark: Any, tmp_path: Path, make_topic: Callable[..., logstore.Topic]
) -> None:
    """This holds in every version of Spark: Java gets the start of a batch. Its lag is
    in the progress."""
    path = os.path.dirname(make_topic(count=100)[0].path)
    query = (
        spark.readStream.format(JVM)
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 30)
        .load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    progress = [p for p in query.recentProgress if p["numInputRows"]]
    assert [p["numInputRows"] for p in progress] == [30, 30, 30, 10]
    lags = [p["sources"][0]["metrics"]["maxOffsetsBehindLatest"] for p in progress]
    assert lags == ["70", "40", "10", "0"]


def rows_between(frame: Any, change: Callable[[], None]) -> Iterator[int]:
    """The offsets of a frame; after the first task, `change` is called."""
    is_changed = False
    for row in frame.select("offset").toLocalIterator():
        yield row.offset
        if not is_changed:
            change()
            is_changed = True


@pytest.mark.parametrize("fails", ["true", "false"])
def test_tail_that_is_cut_after_the_plan_is_a_loss(
    spark: Any,
    fails: str,
    make_topic: Callable[..., logstore.Topic],
) -> None:
    """This holds even if it has grown again: the new records were not planned."""
    partition = make_topic(count=1000)[0]
    partition.flush()

    def change() -> None:
        partition.truncate_to(700)
        partition.append_many([b"other"] * 600)

    frame = (
        spark.read.format(JVM)
        .option("subscribe", "orders")
        .option("minPartitions", 4)
        .option("failOnDataLoss", fails)
        .load(os.path.dirname(partition.path))
    )
    if fails == "true":
        with pytest.raises(Exception, match="DataLossError"):
            list(rows_between(frame, change))
    else:
        assert list(rows_between(frame, change)) == list(range(700))


def test_segments_that_are_deleted_after_the_plan_are_read_as_long_as_they_are_there(
    spark: Any, make_topic: Callable[..., logstore.Topic]
) -> None:
    """A reader may have them open: their files have another name for a while."""
    partition = make_topic(count=1000)[0]
    frame = (
        spark.read.format(JVM)
        .option("subscribe", "orders")
        .option("minPartitions", 4)
        .option("failOnDataLoss", "false")
        .load(os.path.dirname(partition.path))
    )
    offsets = list(rows_between(frame, lambda: partition.delete_before(600) and None))
    assert offsets in (
        list(range(1000)),
        [o for o in range(1000) if o < 250 or o >= partition.start_offset],
    )


def test_wrong_options_are_errors_of_load(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="subscribe"):
        spark.read.format(JVM).load(str(tmp_path))
    reader = spark.read.format(JVM).option("subscribe", "t")
    with pytest.raises(Exception, match="offset int"):
        reader.schema("offset int").load(str(tmp_path))


def test_count_and_ends_are_answered_by_the_plan(
    spark: Any, make_topic: Callable[..., logstore.Topic]
) -> None:
    """Nothing is read: the bytes may be damaged. A filter on a value reads them."""
    partition = make_topic(count=1000)[0]
    frame = (
        spark.read.format(JVM)
        .option("subscribe", "orders")
        .load(os.path.dirname(partition.path))
    )
    ends = frame.filter("offset >= 10").selectExpr(
        "count(*)", "min(offset)", "max(offset)"
    )
    assert "LocalTableScan" in ends._jdf.queryExecution().toString()
    assert tuple(ends.first()) == (990, 10, 999)
    valued = frame.filter("length(value) > 0").selectExpr("count(*)")
    assert "LocalTableScan" not in valued._jdf.queryExecution().toString()
    assert valued.first()[0] == 1000


def test_option_chooses_the_reader(
    spark: Any,
    checked_early: None,
    make_topic: Callable[..., logstore.Topic],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from pyspark_logstore import early_checks
    from pyspark_logstore.jvm import NOT_BUILT

    path = os.path.dirname(make_topic(count=10)[0].path)

    def plan(choice: str) -> str:
        reader = spark.read.format("logstore").option("subscribe", "orders")
        frame = reader.option("reader", choice).load(path)
        assert frame.count() == 10
        return str(frame._jdf.queryExecution().toString())

    assert JVM not in plan("python")
    assert JVM in plan("jvm")
    assert JVM in plan("auto")
    monkeypatch.setattr(early_checks, "add_reader", lambda session: NOT_BUILT)
    monkeypatch.setattr(early_checks, "_is_warned", False)
    assert JVM not in plan("auto")
    assert JVM not in plan("auto")
    warnings = [r.getMessage() for r in caplog.records if "reader" in r.getMessage()]
    assert len(warnings) == 1
    assert "`python -m logstore.spark` builds it" in warnings[0]
    with pytest.raises(logstore.ConfigError, match="python -m logstore"):
        plan("jvm")
