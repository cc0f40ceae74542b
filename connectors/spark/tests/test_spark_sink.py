"""``df.write.format("logstore")`` with Spark itself."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

pytestmark = pytest.mark.spark

HEADERS = "array<struct<key:string,value:binary>>"


def write(frame: Any, path: Path, **options: str) -> None:
    given = {"topic": "orders", **options}
    given = {name: value for name, value in given.items() if value}
    frame.write.format("logstore").options(**given).mode("append").save(str(path))


def values(path: Path, topic: str = "orders") -> list[list[bytes | None]]:
    """The values in each partition."""
    with logstore.open(path, read_only=True) as store:
        return [[r.value for r in p.read()] for p in store.topic(topic)]


def test_frame_is_written_in_order(spark: Any, tmp_path: Path) -> None:
    """The store and the topic did not exist."""
    frame = spark.range(25_000, numPartitions=2).selectExpr(
        "CAST(id AS string) AS value"
    )
    write(frame, tmp_path / "data")
    (found,) = values(tmp_path / "data")
    assert found == [b"%d" % n for n in range(25_000)]


@pytest.mark.parametrize("codec", ["none", "zstd", "lz4"])
def test_every_column_is_stored_and_read_back(
    spark: Any, tmp_path: Path, codec: str
) -> None:
    """Key, value, headers, timestamp, topic, partition; nulls stay nulls."""
    frame = spark.range(200).selectExpr(
        "IF(id % 5 = 0, NULL, CAST(id AS string)) AS value",
        "IF(id % 3 = 0, NULL, CAST(id % 17 AS string)) AS key",
        "IF(id % 2 = 0, NULL, array(struct('n' AS key, CAST('v' AS binary) AS value),"
        " struct('m' AS key, CAST(NULL AS binary) AS value))) AS headers",
        "IF(id < 100, 'orders', 'bills') AS topic",
        "IF(id % 7 = 0, CAST(id % 3 AS int), NULL) AS partition",
        "timestamp_millis(1700000000000 + id) AS timestamp",
    )
    config = logstore.TopicConfig(message_format=2, compression_type=codec)
    path = tmp_path / "data"
    with logstore.open(path) as store:
        for topic in ("orders", "bills"):
            store.create_topic(topic, 3, config)
    write(frame, path, topic="")
    read = (
        spark.read.format("logstore")
        .options(subscribe="orders,bills", includeHeaders="true")
        .load(str(path))
    )
    expected = frame.selectExpr(
        "CAST(value AS binary) AS value", "CAST(key AS binary) AS key", "headers",
        "topic", "timestamp",
    )  # fmt: skip
    got = read.select(expected.columns)
    order = ["timestamp"]
    assert got.sort(order).collect() == expected.sort(order).collect()
    given = frame.where("partition IS NOT NULL").select("timestamp", "partition")
    assert given.join(read, ["timestamp", "partition"]).count() == given.count() > 0


@pytest.mark.parametrize(
    ("magic", "codec"), [("1", "none"), ("1", "gzip"), ("2", "none"), ("2", "snappy")]
)
def test_keys_hash_as_in_append(
    spark: Any, tmp_path: Path, magic: str, codec: str
) -> None:
    """Messages and batches, plain and compressed: each record is in the partition that
    `Topic.append` chooses for its key, in the order of the rows; and `verify` finds no
    problem."""
    path = tmp_path / "data"
    frame = spark.range(3000, numPartitions=2).selectExpr(
        "concat('key-', id % 100) AS key", "CAST(id AS string) AS value"
    )
    write(frame, path, partitions="5", messageFormat=magic, compressionType=codec)
    expected: list[list[bytes | None]] = [[] for _ in range(5)]
    for n in range(3000):
        number = logstore.KafkaPartitioner().partition(b"key-%d" % (n % 100), 1, 5)
        expected[number].append(b"%d" % n)
    assert values(path) == expected
    assert logstore.verify(path).ok
    with logstore.open(path, read_only=True) as store:
        batches = [b for p in store.topic("orders") for b in p.read_batches()]
    assert {batch.magic for batch in batches} == {int(magic)}
    if codec != "none":
        assert {batch.compression for batch in batches} == {codec}


def test_messages_reach_the_user(spark: Any, tmp_path: Path) -> None:
    """Messages of the planner, of tasks, and about Spark's modes."""
    frame = spark.range(10).selectExpr("CAST(id AS string) AS value")
    path = tmp_path / "data"
    with pytest.raises(Exception, match="did you mean topic"):
        write(frame, path, topics="a", topic="")
    with pytest.raises(Exception, match="needs a column value; there are other"):
        write(frame.selectExpr("value AS other"), path)
    with pytest.raises(Exception, match="the sink cannot overwrite"):
        frame.write.format("logstore").option("topic", "orders").mode("overwrite").save(
            str(path)
        )
    assert not path.exists()
    with pytest.raises(Exception, match=r"column partition has 1, .* allowed are 0"):
        write(frame.selectExpr("value", "1 AS partition"), path)
    with pytest.raises(Exception, match="message_format=2"):
        write(
            frame.selectExpr(
                "value",
                "array(struct('n' AS key, CAST('v' AS binary) AS value)) AS headers",
            ),
            path,
        )
    assert values(path) == [[]]
    assert not [n for n in os.listdir(path) if n.startswith(".logstore-staged")]


def test_part_of_the_tasks_fails_and_nothing_is_written(
    spark: Any, tmp_path: Path
) -> None:
    """Either all rows are written, or none; and no file is left."""
    path = tmp_path / "data"
    frame = spark.range(40_000, numPartitions=4).selectExpr(
        "IF(id = 39999, raise_error('broken'), CAST(id AS string)) AS value"
    )
    with pytest.raises(Exception, match="broken"):
        write(frame, path)
    assert values(path) == [[]]


def test_txn_is_written_once(spark: Any, tmp_path: Path) -> None:
    """A job that is run again does nothing."""
    path = tmp_path / "data"
    for version in ("1", "1", "2"):
        frame = spark.range(10).selectExpr(f"'{version}' AS value")
        write(frame, path, txnAppId="job", txnVersion=version)
    assert values(path) == [[b"1"] * 10 + [b"2"] * 10]


READER = """
import sys
import logstore
path, batch = sys.argv[1], int(sys.argv[2])
polls, totals = 0, set()
with logstore.open(path, read_only=True) as store:
    partitions = list(store.topic("orders"))
    while sum(p.end_offset for p in partitions) < 6 * batch:
        one = [p.end_offset for p in partitions]
        read = sum(1 for _ in partitions[-1].read(max(0, one[-1] - 5)))
        two = [p.end_offset for p in partitions]
        if one == two:  # ends only rise: this is how they stood all the time between
            polls += 1
            totals.add(sum(one))
            assert sum(one) % batch == 0, one
            assert read <= 5, read
            if polls == 1:  # not before: the first look imports the engine
                print("begun", flush=True)
print(polls, sorted(totals))
"""


def test_no_reader_sees_a_part(spark: Any, tmp_path: Path) -> None:
    """Another process, which reads all partitions again and again, always finds whole
    batches."""
    path = tmp_path / "data"
    rows = 30_000
    frame = spark.range(rows, numPartitions=2).selectExpr(
        "CAST(id AS string) AS key", "CAST(id AS string) AS value"
    )
    with logstore.open(path) as store:
        store.create_topic("orders", 3)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", READER, str(path), str(rows)]
    reader = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    try:
        assert reader.stdout is not None
        reader.stdout.readline()
        for _ in range(6):
            assert reader.poll() is None, "the reader has failed"
            write(frame, path)
            time.sleep(0.1)
        out, errors = reader.communicate(timeout=60)
    finally:
        reader.kill()
    assert reader.returncode == 0, errors.decode()
    polls, totals = out.decode().split(" ", 1)
    assert int(polls) > 20
    assert eval(totals)[0] == 0
    assert len(eval(totals)) >= 4
