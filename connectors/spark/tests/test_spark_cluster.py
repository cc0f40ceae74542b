"""The source on a cluster: a master and workers as separate processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.spark_cluster import Cluster, Session

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

# A driver takes 10 s to start, and a minute on a busy machine.
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., logstore.Topic]
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
WAIT_S = 120
PARTITIONS = 2
COUNT = 2000

# The beginning of all drivers. A Python function reports where a task ran: it runs in
# the process of the source's reader, or in one on the same worker.
HEAD = """
import json, os, sys, time
import logstore.spark
from pyspark.sql import SparkSession, functions as F

master, path, folder = sys.argv[1:4]
spark = (
    SparkSession.builder.master(master)
    .appName("logstore cluster test")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m")
    .config("spark.sql.shuffle.partitions", "1")
    .config("spark.scheduler.minRegisteredResourcesRatio", "1")
    .config("spark.sql.warehouse.dir", os.path.join(folder, "warehouse"))
    .getOrCreate()
)
logstore.spark.register(spark)
spark.sparkContext.setLogLevel("ERROR")
deadline = time.monotonic() + 60
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus
while executors().size() < int(sys.argv[4]) + 1 and time.monotonic() < deadline:
    time.sleep(0.1)

def where(_):
    time.sleep(float(os.environ.get("TEST_NAP", "0.001")))
    return os.environ["TEST_WORKER"]

where = F.udf(where)
"""

BATCH = """
frame = (
    spark.read.format(SOURCE)
    .option("subscribe", "orders").option("minPartitions", 8).load(path)
    .select("partition", "offset", "value", where("offset").alias("worker"))
)
rows = [
    (r.partition, r.offset, bytes(r.value).decode(), r.worker) for r in frame.collect()
]
print(json.dumps(rows))
"""

STREAM = """
options = {"subscribe": "orders", "startingOffsets": "earliest", "minPartitions": "8"}
if len(sys.argv) > 5:
    options["maxOffsetsPerTrigger"] = sys.argv[5]
query = (
    spark.readStream.format(SOURCE).options(**options).load(path)
    .select("partition", "offset", where("offset").alias("worker"))
    .writeStream.format("parquet")
    .option("checkpointLocation", os.path.join(folder, "checkpoint"))
    .trigger(availableNow=True)
    .start(os.path.join(folder, "out"))
)
query.awaitTermination()
rows = spark.read.parquet(os.path.join(folder, "out")).collect()
print(json.dumps([tuple(r) for r in rows]))
"""


def program(source: str, *parts: str) -> str:
    """The program of a driver; `source` is the format that it reads."""
    return "".join([f"SOURCE = {source!r}\n", HEAD, *parts])


@pytest.fixture
def make_cluster(java_home: str, tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    """Start a cluster with the workers of these names; it is killed at the end."""
    clusters = []

    def make(*names: str, **settings: Any) -> Cluster:
        folder = tmp_path / f"cluster{len(clusters)}"
        folder.mkdir()
        cluster = Cluster(folder, java_home)
        clusters.append(cluster)
        cluster.start()
        cluster.start_workers(*names, **settings)
        return cluster

    yield make
    for cluster in clusters:
        cluster.stop()


def printed(result: subprocess.CompletedProcess[str]) -> list[Any]:
    """The output of a driver, line by line."""
    assert result.returncode == 0, result.stderr[-4000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


def in_log(rows: list[Any]) -> list[tuple[int, int]]:
    """Rows in the order of the log."""
    return sorted((row[0], row[1]) for row in rows)


def workers_of(rows: list[Any]) -> set[str]:
    return {row[-1] for row in rows}


def everything(topic: logstore.Topic) -> list[tuple[int, int]]:
    return [(p.number, offset) for p in topic for offset in range(p.end_offset)]


@pytest.mark.thorough
def test_all_workers_read_a_shared_store(
    make_cluster: Callable[..., Cluster],
    make_topic: MakeTopic,
    writer: logstore.Store,
    tmp_path: Path,
    source: str,
) -> None:
    """A batch, and a stream that continues from its checkpoint in another driver. The
    path is relative to the driver's directory; executors run in others."""
    topic = make_topic(partitions=PARTITIONS, count=COUNT)
    cluster = make_cluster("a", "b")
    arguments = [os.path.relpath(writer.path, tmp_path), str(tmp_path), "2"]
    batch, first = printed(
        cluster.run(program(source, BATCH, STREAM), *arguments, cwd=tmp_path)
    )
    assert in_log(batch) == in_log(first) == everything(topic)
    assert workers_of(batch) == workers_of(first) == {"a", "b"}
    assert all(value == f"orders-{p}@{o}" for p, o, value, _ in batch)

    topic[0].append_many([b"value"] * 1000)
    topic[1].append(b"value")
    (second,) = printed(cluster.run(program(source, STREAM), *arguments, cwd=tmp_path))
    assert in_log(second) == everything(topic)
    # The rows of the first run are still there, and were not written again.
    assert {tuple(row) for row in first} < {tuple(row) for row in second}


def commits(folder: Path) -> list[str]:
    """The batches that are complete."""
    found = folder / "checkpoint" / "commits"
    return [p.name for p in found.glob("*") if p.name.isdigit()]


@pytest.mark.thorough
def test_stream_survives_the_death_of_a_worker(
    make_cluster: Callable[..., Cluster],
    make_topic: MakeTopic,
    writer: logstore.Store,
    tmp_path: Path,
    source: str,
) -> None:
    """All its processes are killed while they read; their tasks are repeated."""
    topic = make_topic(partitions=PARTITIONS, count=COUNT)
    cluster = make_cluster("a", "b")
    cluster.env["TEST_NAP"] = "0.005"  # 20 s in all
    limit = ["1000"] if VERSION >= (4, 2) else []
    complete = []

    def is_at_work() -> bool:
        """Whether the second batch runs; with an older Spark, the only one."""
        return bool(commits(tmp_path) if limit else [*tmp_path.glob("out/*.parquet")])

    def kill_one(driver: Session) -> None:
        deadline = time.monotonic() + WAIT_S
        while not is_at_work():
            assert not driver.has_ended(), "the driver ended early"
            assert time.monotonic() < deadline, "the query does not begin"
            time.sleep(0.05)
        time.sleep(0.5)
        cluster.workers["b"].kill()
        complete.append(len(commits(tmp_path)))

    arguments = [writer.path, str(tmp_path), "2", *limit]
    result = cluster.run(
        program(source, STREAM), *arguments, cwd=tmp_path, while_running=kill_one
    )
    (rows,) = printed(result)
    assert in_log(rows) == everything(topic)
    assert complete[0] < len(commits(tmp_path)) == (4 if limit else 1)
    assert "Lost executor" in result.stderr
    # The first batch was complete before, with tasks of both.
    assert workers_of(rows) == ({"a", "b"} if limit else {"a"})


# A worker sees another directory at the path: another mount.
STRANGE = "mount --bind '{other}' '{path}' && exec \"$@\""


@pytest.fixture
def unshare() -> Callable[[Path, str], list[str]]:
    """The beginning of a command that runs with `other` in place of `path`."""

    def prefix(other: Path, path: str) -> list[str]:
        script = STRANGE.format(other=other, path=path)
        return ["unshare", "--mount", "sh", "-c", script, "sh"]

    if shutil.which("unshare") is None or os.geteuid() != 0:
        pytest.skip("only root can mount another directory for one process")
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True)
    if probe.returncode != 0:
        pytest.skip("mounts cannot be made here")
    return prefix


def two_places(folder: Path, *only_here: str) -> tuple[Path, Path]:
    """Directories of the driver and of a worker: a store and a copy of it, and two
    stores of one name; only the driver has the directories `only_here`."""
    shared, other = folder / "shared", folder / "other"
    here = [shared / name for name in ("copy", "store", *only_here)]
    for path in (*here, other / "store"):
        with logstore.open(path) as store:
            store.create_topic("orders")[0].append_many([b"value"] * 100)
    shutil.copytree(shared / "copy", other / "copy")
    return shared, other


FAILING = """
def batch(path):
    reader = spark.read.format(SOURCE).option("subscribe", "orders")
    reader.load(path).write.format("noop").mode("overwrite").save()

def stream(path):
    (
        spark.readStream.format(SOURCE).option("subscribe", "orders")
        .option("startingOffsets", "earliest").load(path)
        .writeStream.format("noop").trigger(availableNow=True)
        .option("checkpointLocation", os.path.join(folder, "checkpoint"))
        .start().awaitTermination()
    )

for query, name in zip([batch] * 3 + [stream], ["none", "copy", "store", "none"]):
    try:
        query(os.path.join(path, name))
        print(json.dumps("no error"))
    except Exception as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.thorough
def test_path_that_is_not_shared_is_refused(
    unshare: Callable[[Path, str], list[str]],
    make_cluster: Callable[..., Cluster],
    tmp_path: Path,
    source: str,
) -> None:
    """A worker has nothing there, or a copy, or a different store. The queries fail:
    they return neither its records, nor an empty result."""
    shared, other = two_places(tmp_path, "none")
    cluster = make_cluster("a", prefix=unshare(other, str(shared)))
    result = cluster.run(
        program(source, FAILING), str(shared), str(tmp_path), "1", cwd=tmp_path
    )
    none, copy, store, stream = printed(result)
    assert f"option path: there is no directory {shared}/none on host" in none
    assert f"option path: {shared}/copy on host" in copy
    assert "is not the directory that the driver saw" in copy
    assert "is not the directory that the driver saw" in store
    assert f"option path: there is no directory {shared}/none on host" in stream


SINK = """
options = {"subscribe": "orders", "startingOffsets": "earliest", "minPartitions": "8"}
if len(sys.argv) > 5:
    options["maxOffsetsPerTrigger"] = sys.argv[5]
query = (
    spark.readStream.format(SOURCE).options(**options).load(path)
    .select("value", "partition", where("offset").alias("worker"))
    .selectExpr("value", "partition", "CAST(worker AS string) AS key")
    .writeStream.format("logstore").option("topic", "copy").option("partitions", 2)
    .option("checkpointLocation", os.path.join(folder, "checkpoint"))
    .trigger(availableNow=True)
    .start(os.path.join(folder, "copy"))
)
query.awaitTermination()
"""


def copied(folder: Path) -> tuple[list[str], set[str]]:
    """The values that the sink has, sorted, and the workers that staged them."""
    with logstore.open(folder / "copy", read_only=True) as store:
        records = [record for p in store.topic("copy") for record in p.read()]
    values = sorted((record.value or b"").decode() for record in records)
    return values, {(record.key or b"").decode() for record in records}


def all_values(topic: logstore.Topic) -> list[str]:
    return sorted((r.value or b"").decode() for p in topic for r in p.read())


@pytest.mark.thorough
def test_all_workers_write_to_a_shared_store(
    make_cluster: Callable[..., Cluster],
    make_topic: MakeTopic,
    writer: logstore.Store,
    tmp_path: Path,
    source: str,
) -> None:
    """The driver publishes the records that workers have staged; a second driver
    continues."""
    topic = make_topic(partitions=PARTITIONS, count=COUNT)
    cluster = make_cluster("a", "b")
    arguments = [writer.path, str(tmp_path), "2"]
    printed(cluster.run(program(source, SINK), *arguments, cwd=tmp_path))
    values, workers = copied(tmp_path)
    assert values == all_values(topic)
    assert workers == {"a", "b"}
    topic[0].append_many([b"more"] * 1000)
    printed(cluster.run(program(source, SINK), *arguments, cwd=tmp_path))
    assert copied(tmp_path)[0] == all_values(topic)
    assert not logstore.verify(tmp_path / "copy").problems


@pytest.mark.thorough
def test_sink_writes_each_row_once_though_a_worker_dies(
    make_cluster: Callable[..., Cluster],
    make_topic: MakeTopic,
    writer: logstore.Store,
    tmp_path: Path,
    source: str,
) -> None:
    """Its staged records are discarded, and staged again by the other one."""
    topic = make_topic(partitions=PARTITIONS, count=COUNT)
    cluster = make_cluster("a", "b")
    cluster.env["TEST_NAP"] = "0.005"
    limit = ["1000"] if VERSION >= (4, 2) else []

    def kill_one(driver: Session) -> None:
        deadline = time.monotonic() + WAIT_S
        while not [*(tmp_path / "copy").glob(".logstore-*")]:
            assert not driver.has_ended(), "the driver ended early"
            assert time.monotonic() < deadline, "the query does not begin"
            time.sleep(0.05)
        time.sleep(4)
        cluster.workers["b"].kill()

    arguments = [writer.path, str(tmp_path), "2", *limit]
    result = cluster.run(
        program(source, SINK), *arguments, cwd=tmp_path, while_running=kill_one
    )
    printed(result)
    assert "Lost executor" in result.stderr
    assert copied(tmp_path)[0] == all_values(topic)


# A program submitted by a user: its functions are in a separate module, and it does not
# mention jars.
SUBMITTED = """
import json, sys
import logstore.spark
from pyspark.sql import SparkSession, functions as F
from of_the_user import place

path, choice = sys.argv[2:4]
builder = logstore.spark.session_defaults(SparkSession.builder)
spark = builder.getOrCreate()

def read(reader):
    return (
        reader.format("logstore").option("subscribe", "orders").option("reader", choice)
        .option("startingOffsets", "earliest").option("minPartitions", 8).load(path)
    )

where = F.udf(place)
frame = read(spark.read).select("partition", "offset", where("offset").alias("worker"))
rows = [tuple(row) for row in frame.collect()]
(
    read(spark.readStream).select("value")
    .writeStream.format("logstore").option("topic", "copy")
    .option("checkpointLocation", path + "-checkpoint").trigger(availableNow=True)
    .start(path + "-copy").awaitTermination()
)
damaged = None
try:
    damage = spark.read.format("logstore").option("subscribe", "damaged")
    damage.option("reader", choice).load(path).collect()
except Exception as error:
    damaged = str(error)
jars = str(spark.sparkContext._jsc.sc().listJars())
plan = str(frame._jdf.queryExecution().toString())
spark.stop()
print(json.dumps([rows, jars, "logstore-jvm" in plan, damaged]))
"""

MODULE = """
import os, time

def place(_):
    time.sleep(0.001)
    return os.environ["TEST_WORKER"]
"""


@pytest.mark.thorough
def test_program_that_is_submitted_reads_and_writes(
    make_cluster: Callable[..., Cluster],
    make_topic: MakeTopic,
    writer: logstore.Store,
    tmp_path: Path,
    source: str,
) -> None:
    """spark-submit is called with --py-files and --jars: the executors get the reader
    in Java besides the user's jar. Reads left to Python run the Python that the driver
    names, and that the workers' own environment does not."""
    topic = make_topic(partitions=PARTITIONS, count=COUNT)
    expected = everything(topic)
    damaged = make_topic("damaged", count=100)[0]
    writer.close()
    log = max(Path(damaged.path).glob("*.log"), key=lambda log: log.stat().st_size)
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    (tmp_path / "of_the_user.py").write_text(MODULE)
    archive, jar = tmp_path / "modules.zip", tmp_path / "of-the-user.jar"
    for path, name in ((archive, "of_the_user.py"), (jar, "of-the-user.txt")):
        with zipfile.ZipFile(path, "w") as file:
            file.writestr(name, MODULE)
    (tmp_path / "of_the_user.py").unlink()
    cluster = make_cluster("a", "b", env={"PYSPARK_PYTHON": ""})
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",  # for which the first task waits
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.log.level": "ERROR",
    }
    options = ["--py-files", str(archive), "--jars", str(jar)]
    for setting in settings.items():
        options += ["--conf", "=".join(setting)]
    choice = "jvm" if source == "logstore-jvm" else "python"
    result = cluster.run(
        SUBMITTED, writer.path, choice, cwd=tmp_path, submit_with=options
    )
    assert result.returncode == 0, result.stderr[-4000:]
    # spark-submit prints, too.
    rows, jars, is_java, error = json.loads(result.stdout.splitlines()[-1])
    assert in_log(rows) == expected
    assert workers_of(rows) == {"a", "b"}
    assert is_java == (choice == "jvm")
    assert "of-the-user.jar" in jars
    assert "CorruptRecordError" in error
    with logstore.open(f"{writer.path}-copy", read_only=True) as store:
        values = sorted(r.value or b"" for p in store.topic("copy") for r in p.read())
    assert values == sorted(b"orders-%d@%d" % place for place in expected)


FAILING_SINK = """
for name in ("copy", "store"):
    try:
        spark.range(100).selectExpr("CAST(id AS string) AS value").write.format(
            "logstore").option("topic", "orders").mode("append").save(
            os.path.join(path, name))
        print(json.dumps("no error"))
    except Exception as error:
        print(json.dumps(str(error)))
"""


@pytest.mark.thorough
def test_sink_whose_path_is_not_shared_is_refused(
    unshare: Callable[[Path, str], list[str]],
    make_cluster: Callable[..., Cluster],
    tmp_path: Path,
) -> None:
    """Nothing is written on either host."""
    shared, other = two_places(tmp_path)
    cluster = make_cluster("a", prefix=unshare(other, str(shared)))
    code = program("logstore", FAILING_SINK)
    result = cluster.run(code, str(shared), str(tmp_path), "1", cwd=tmp_path)
    for text in printed(result):
        assert "option path: " in text
        assert "is not the directory that the driver saw" in text
    for path in (shared / "copy", shared / "store", other / "copy", other / "store"):
        with logstore.open(path, read_only=True) as store:
            assert store.topic("orders")[0].end_offset == 100
        assert not [*path.glob(".logstore-staged-*")]
