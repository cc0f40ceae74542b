"""The first steps of a user: the README's example, typing errors, damage."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import ConfigError

pytestmark = pytest.mark.spark
README = Path(__file__).parents[3] / "README.md"
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fill(path: Path, partitions: int = 4, count: int = 20) -> None:
    """The README's quickstart: a store with the topic orders."""
    with logstore.open(path) as store:
        config = logstore.TopicConfig(message_format=2)
        topic = store.create_topic("orders", partitions, config, exist_ok=True)
        for number, p in enumerate(topic):
            p.append_many(
                [b"%d-%d" % (number, n) for n in range(count)],
                [b"key-%d" % n for n in range(count)],
                [1_700_000_000_000 + n for n in range(count)],
            )


def records(path: Path, topic: str) -> list[Any]:
    with logstore.open(path, read_only=True) as store:
        return sorted(
            (r.value, r.key, r.timestamp_ms)
            for p in store.topic(topic)
            for r in p.read()
        )


def test_readme_example_works_as_it_stands(spark: Any, tmp_path: Path) -> None:
    """A stream of a store's topic is written to another one, with all columns of the
    source: value, key and timestamp arrive, the others are ignored."""
    (block,) = (
        b
        for b in BLOCK.findall(README.read_text(encoding="utf-8"))
        if "spark.readStream" in b and "writeStream" in b
    )
    path = tmp_path / "data"
    fill(path)
    for name in ("data", "checkpoint"):
        block = block.replace(f'"{name}"', repr(str(tmp_path / name)))
    exec(compile(block, str(README), "exec"), {"spark": spark})
    found = records(path, "clean")
    assert found == records(path, "orders")
    assert len(found) == 80


def test_batch_of_the_source_is_written_as_it_comes(spark: Any, tmp_path: Path) -> None:
    """The topic and the columns are the same, including headers: the column partition
    counts there."""
    fill(tmp_path / "a")
    frame = spark.read.format("logstore").option("includeHeaders", True)
    frame = frame.option("subscribe", "orders").load(str(tmp_path / "a"))
    assert set(frame.columns) > {"offset", "timestampType", "partition", "headers"}
    frame = frame.selectExpr("*", "1 AS extra")
    frame.write.format("logstore").option("topic", "orders").option(
        "partitions", 4
    ).mode("append").save(str(tmp_path / "b"))
    assert records(tmp_path / "a", "orders") == records(tmp_path / "b", "orders")
    with logstore.open(tmp_path / "b", read_only=True) as store:
        for number, p in enumerate(store.topic("orders")):
            assert {r.value.split(b"-")[0] for r in p.read() if r.value} == {
                b"%d" % number
            }


def test_load_finds_a_wrong_option_by_itself(spark: Any, tmp_path: Path) -> None:
    """This holds even in a session that was not set up for logstore: Spark asks for the
    schema."""
    for read in (spark.read, spark.readStream):
        reader = read.format("logstore").option("path", str(tmp_path))
        reader = reader.option("subscribe", "orders")
        with pytest.raises(Exception, match="did you mean startingOffsets"):
            reader.option("startingOfsets", "earliest").load()


def wrong_places(folder: Path) -> list[tuple[dict[str, str], str]]:
    """Options that name missing things, and a part of the error."""
    fill(folder / "data")
    (folder / "other").mkdir()
    (folder / "other" / "file").write_text("text")
    return [
        ({"path": f"{folder}/none", "subscribe": "orders"}, "there is no store at"),
        ({"path": f"{folder}/other", "subscribe": "orders"}, "there is no store at"),
        ({"path": f"{folder}/data", "subscribe": "bills"}, "has no topic bills"),
        ({"path": f"{folder}/data", "assign": '{"orders": [9]}'}, "orders-9"),
    ]


def test_load_finds_by_itself_what_is_not_there(
    spark: Any, tmp_path: Path, source: str
) -> None:
    """This holds even in a session that was not set up for logstore, for both
    readers."""
    for options, error in wrong_places(tmp_path):
        for read in (spark.read, spark.readStream):
            with pytest.raises(Exception, match=error):
                read.format(source).options(**options).load()
    # A missing topic may be created later.
    options = {"path": str(tmp_path / "data"), "subscribePattern": "later.*"}
    assert spark.read.format(source).options(**options).load().count() == 0
    spark.readStream.format(source).options(**options).load()


def test_load_raises_the_error_of_what_is_not_there(
    spark: Any, tmp_path: Path, checked_early: None, source: str
) -> None:
    """If `session_defaults` or `register` was called: also with a schema, with the
    class of the error."""
    for options, error in wrong_places(tmp_path):
        for read in (spark.read, spark.readStream):
            reader = read.format(source).schema("value binary").options(**options)
            with pytest.raises((ConfigError, logstore.StoreNotFoundError), match=error):
                reader.load()
    data = {"path": str(tmp_path / "data"), "subscribe": "orders"}
    for read in (spark.read, spark.readStream):
        with pytest.raises(ConfigError, match="a column value string"):
            read.format(source).schema("value string").options(**data).load()
        with pytest.raises(ConfigError, match="did you mean startingOffsets"):
            read.format(source).options(**data).load(startingOfsets="earliest")
    with pytest.raises(ConfigError, match="not named: orders-1, orders-2, orders-3"):
        spark.read.format(source).options(**data).load(
            startingOffsets='{"orders": {"0": 1}}'
        )
    frame = spark.readStream.format(source).options(**data).load()
    with pytest.raises(logstore.StoreNotFoundError):
        frame.writeStream.format("logstore").option("createTopic", False).start(
            str(tmp_path / "out"), topic="clean"
        )
    with pytest.raises(ConfigError, match="bad topic name"):
        frame.writeStream.format("logstore").start(str(tmp_path / "out"), topic="a b")
    with pytest.raises(ConfigError, match="it only reads"):
        frame.writeStream.format("logstore-jvm").start(str(tmp_path / "out"))
    assert not spark.streams.active
    assert not (tmp_path / "out").exists()


def test_load_and_start_raise_config_errors(
    spark: Any, tmp_path: Path, checked_early: None
) -> None:
    """If `session_defaults` or `register` was called: before there is a query, also
    with a schema, and for errors of a stream only."""
    fill(tmp_path / "data")
    stream = (
        spark.readStream.format("logstore")
        .option("path", str(tmp_path / "data"))
        .option("subscribe", "orders")
    )
    with pytest.raises(ConfigError, match="a stream has no end"):
        stream.schema("value binary").load(endingOffsets="latest")
    with pytest.raises(ConfigError, match="onCorruption='ignore': allowed are raise"):
        spark.read.format("logstore").load(
            str(tmp_path / "data"), subscribe="orders", onCorruption="ignore"
        )
    frame = (
        spark.readStream.format("logstore")
        .option("subscribe", "orders")
        .load(str(tmp_path / "data"))
    )
    sink = frame.writeStream.format("logstore").option(
        "checkpointLocation", str(tmp_path / "checkpoint")
    )
    with pytest.raises(ConfigError, match="did you mean partitions"):
        sink.option("topic", "clean").start(str(tmp_path / "out"), partition="3")
    with pytest.raises(ConfigError, match="needs a column value"):
        frame.select("key").writeStream.format("logstore").start("out", topic="clean")
    assert not spark.streams.active
    assert not (tmp_path / "checkpoint").exists()
    assert not (tmp_path / "out").exists()
    query = (
        frame.writeStream.format("logstore")
        .option("topic", "clean")
        .trigger(availableNow=True)
        .start(str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
    )
    query.awaitTermination()
    foreach = frame.writeStream.foreachBatch(lambda batch, number: None)
    foreach.option("checkpointLocation", str(tmp_path / "other")).trigger(
        availableNow=True
    ).start().awaitTermination()


def damage(path: Path, offset: int) -> range:
    """Damage the batch of an offset in partition 0; returns its contents."""
    with logstore.open(path, read_only=True) as store:
        p = store.topic("orders")[0]
        batch = next(p.read_batches(offset))
        place = batch.position + batch.size_bytes - 2
        lost = range(batch.base_offset, batch.next_offset)
        (segment,) = (
            s.path for s in p.segments if s.base_offset <= offset < s.next_offset
        )
    with open(segment, "r+b") as file:
        file.seek(place)
        file.write(b"\xff\xfe")
    return lost


def offsets(frame: Any) -> list[int]:
    return sorted(row[0] for row in frame.select("offset").collect())


def test_damage_ends_a_query_or_is_skipped(
    spark: Any, tmp_path: Path, make_topic: Callable[..., logstore.Topic],
    writer: logstore.Store,
) -> None:  # fmt: skip
    """Batch and stream; all other records are delivered."""
    make_topic(count=400, message_format=2)
    path = Path(writer.path)
    writer.close()
    lost = damage(path, 120)
    want = [o for o in range(400) if o not in lost]
    read = spark.read.format("logstore").option("subscribe", "orders")
    with pytest.raises(Exception, match="checksum differs"):
        read.load(str(path)).collect()
    assert offsets(read.option("onCorruption", "skip").load(str(path))) == want
    query = (
        spark.readStream.format("logstore")
        .option("subscribe", "orders")
        .option("startingOffsets", "earliest")
        .option("onCorruption", "skip")
        .load(str(path))
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    assert offsets(spark.read.parquet(str(tmp_path / "rows"))) == want
