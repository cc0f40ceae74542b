"""``df.writeStream.format("logstore")`` with Spark itself."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyspark

pytestmark = pytest.mark.spark
VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
MakeTopic = Callable[..., logstore.Topic]
WAIT_S = 60


def run(
    frame: Any,
    folder: Path,
    sink: str = "logstore",
    mode: str = "append",
    **options: str,
) -> Any:
    """Run a query to the end of the available records."""
    given = {"topic": "copy", "checkpointLocation": str(folder / "checkpoint")}
    query = (
        frame.writeStream.format(sink)
        .options(**{**given, **options})
        .outputMode(mode)
        .trigger(availableNow=True)
        .start(str(folder / "out"))
    )
    try:
        assert query.awaitTermination(WAIT_S)
    finally:
        query.stop()
    return query


def source(spark: Any, path: str) -> Any:
    """The records of a topic in two columns."""
    options = {"subscribe": "orders", "startingOffsets": "earliest"}
    return (
        spark.readStream.format("logstore")
        .options(**options)
        .load(path)
        .select("key", "value")
    )


def copied(folder: Path) -> list[bytes | None]:
    with logstore.open(folder / "out", read_only=True) as store:
        return [r.value for p in store.topic("copy") for r in p.read()]


def all_of(topic: logstore.Topic) -> list[bytes | None]:
    return [r.value for p in topic for r in p.read()]


def staged_files(folder: Path) -> list[str]:
    return [n for n in os.listdir(folder / "out") if n.startswith(".logstore-staged-")]


def forget_last_commit(folder: Path) -> None:
    """Restore the state of a crash: the sink has the last batch, and Spark does not
    know."""
    commits = folder / "checkpoint" / "commits"
    numbers = [int(p.name) for p in commits.iterdir() if p.name.isdigit()]
    last = commits / str(max(numbers))
    last.unlink()
    commits.joinpath(f".{last.name}.crc").unlink(missing_ok=True)


def faulty_source(folder: Path, *, rows: bool = False) -> Any:
    """The sink, which fails once if a file requests it. Made in a function, so that
    Spark's workers get it by value."""
    from pyspark_logstore.source import DefaultSource
    from pyspark_logstore.write.options import parse_sink
    from pyspark_logstore.write.writer import StreamRowWriter, StreamWriter

    base: Any = StreamRowWriter if rows else StreamWriter
    where = str(folder)

    def fail_if_asked(when: str) -> None:
        try:
            os.unlink(os.path.join(where, when))
        except FileNotFoundError:
            return
        raise RuntimeError(f"failed as asked: {when}")

    class Writer(base):  # type: ignore[misc]
        def write(self, iterator: Any) -> Any:
            message = super().write(iterator)
            fail_if_asked("after-staging")
            return message

        def commit(self, messages: Any, batchId: int) -> None:
            fail_if_asked("before-publishing")
            super().commit(messages, batchId)
            fail_if_asked("after-publishing")

    class Source(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return "faulty_rows" if rows else "faulty"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:
            return Writer(schema, parse_sink(self.options, streaming=True), overwrite)

    return Source


def test_query_writes_every_record_once(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """There are several runs on one checkpoint, also after one that could not report
    its end."""
    topic = make_topic(count=50)
    frame = source(spark, writer.path)
    run(frame, tmp_path)
    assert copied(tmp_path) == all_of(topic)
    forget_last_commit(tmp_path)
    run(frame, tmp_path)
    assert copied(tmp_path) == all_of(topic)
    topic[0].append_many([b"more"] * 7)
    run(frame, tmp_path)
    assert copied(tmp_path) == all_of(topic)
    assert staged_files(tmp_path) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "when", ["after-staging", "before-publishing", "after-publishing"]
)
def test_query_that_fails_goes_on_without_loss_or_repetition(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path, when: str
) -> None:
    """A task fails after it has staged its rows; a commit fails before it publishes,
    and after it did, when Spark calls abort for rows that are in the logs already."""
    topic = make_topic(count=50)
    spark.dataSource.register(faulty_source(tmp_path))
    frame = source(spark, writer.path)
    (tmp_path / when).touch()
    with pytest.raises(Exception, match=f"failed as asked: {when}"):
        run(frame, tmp_path, "faulty")
    published = 50 if when == "after-publishing" else 0
    assert copied(tmp_path) == all_of(topic)[:published]
    topic[0].append(b"last")
    run(frame, tmp_path, "faulty")
    if VERSION < (4, 2):  # which repeats the last batch, and leaves the rest
        run(frame, tmp_path, "faulty")
    assert copied(tmp_path) == all_of(topic)
    assert staged_files(tmp_path) == []


@pytest.mark.thorough
def test_rows_without_arrow_are_written_too(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Spark 4.0 has rows for streams: the same records, with headers and times."""
    make_topic(count=30)
    spark.dataSource.register(faulty_source(tmp_path, rows=True))
    frame = source(spark, writer.path).selectExpr(
        "value",
        "CAST(key AS string) AS key",
        "timestamp_millis(1700000000123 + CAST(CAST(key AS string) AS bigint)) "
        "AS timestamp",
        "array(struct('n' AS key, key AS value)) AS headers",
    )
    run(frame, tmp_path, "faulty_rows")
    with logstore.open(tmp_path / "out", read_only=True) as store:
        found = list(store.topic("copy")[0].read())
    assert [(r.key, r.timestamp_ms, r.headers) for r in found] == [
        (b"%d" % n, 1_700_000_000_123 + n, (("n", b"%d" % n),)) for n in range(30)
    ]


@pytest.mark.thorough
def test_batches_without_rows_are_no_trouble(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """All rows are filtered out; the next batch is written."""
    topic = make_topic(count=10)
    frame = source(spark, writer.path).where("CAST(value AS string) = 'wanted'")
    run(frame, tmp_path)
    topic[0].append(b"wanted")
    run(frame, tmp_path)
    assert copied(tmp_path) == [b"wanted"]


def test_what_would_break_the_promise_is_refused(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Complete output, update output and asynchronous progress (which Spark may refuse
    itself) are refused before a row is written."""
    make_topic(count=10)
    frame = source(spark, writer.path)
    with pytest.raises(Exception, match="the sink cannot overwrite"):
        run(frame.groupBy("value").count().select("value"), tmp_path, mode="complete")
    with pytest.raises(Exception, match="does not support Update mode"):
        run(frame.groupBy("value").count().select("value"), tmp_path, mode="update")
    with pytest.raises(Exception, match=r"(?i)async ?progress ?tracking"):
        run(frame, tmp_path / "2", asyncProgressTrackingEnabled="true")
    assert not (tmp_path / "out").exists()


@pytest.mark.thorough
def test_query_beside_a_service_fails_and_can_be_started_again(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """A service has the target open for writing: the error names its process; after
    that the query continues with the same batch."""
    topic = make_topic(count=20)
    frame = source(spark, writer.path)
    run(frame, tmp_path)
    topic[0].append(b"more")
    with logstore.open(tmp_path / "out") as service:
        with pytest.raises(Exception, match=f"process {os.getpid()}, for 0.2 s"):
            run(frame, tmp_path, lockTimeout="200ms")
        service.topic("copy")[0].append(b"of the service")
    run(frame, tmp_path)
    assert copied(tmp_path) == [*all_of(topic)[:20], b"of the service", b"more"]


@pytest.mark.thorough
def test_checkpoint_that_was_set_back_is_an_error(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Spark would write other rows under a used number; the option leaves those batches
    out."""
    topic = make_topic(count=5)
    frame = source(spark, writer.path)
    for _ in range(2):
        run(frame, tmp_path)
        topic[0].append(b"more")
    for _ in range(2):  # back to before the first of the two batches
        forget_last_commit(tmp_path)
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.joinpath("1").unlink()
    offsets.joinpath(".1.crc").unlink(missing_ok=True)
    with pytest.raises(Exception, match=r"The checkpoint was set back.*allowRewind"):
        run(frame, tmp_path)
    assert len(copied(tmp_path)) == 6
    run(frame, tmp_path, allowRewind="true")
    assert len(copied(tmp_path)) == 6


@pytest.mark.thorough
def test_query_on_a_copy_of_the_checkpoint_loses_nothing_in_silence(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Started again on its checkpoint, it continues; one on a copy fails if its batch
    is not the one that was published."""
    topic = make_topic(count=10)
    frame = source(spark, writer.path)
    run(frame, tmp_path)
    copy = str(tmp_path / "copy")
    shutil.copytree(tmp_path / "checkpoint", copy)
    topic[0].append_many([b"first"] * 5)
    run(frame, tmp_path)
    forget_last_commit(tmp_path)
    run(frame, tmp_path)  # the same batch, by a later run
    topic[0].append(b"second")
    with pytest.raises(Exception, match="on a copy of this checkpoint"):
        run(frame, tmp_path, checkpointLocation=copy)
    run(frame, tmp_path)
    assert copied(tmp_path) == all_of(topic)
    with logstore.open(tmp_path / "out", read_only=True) as store:
        query = json.loads((tmp_path / "checkpoint" / "metadata").read_text())["id"]
        last = store.last_publication(f"spark-query:{query}")
    assert last is not None
    assert len(set(json.loads(last.note)["runs"])) >= 3  # Spark passes the ids of runs


@pytest.mark.skipif(VERSION < (4, 2), reason="no start of a batch before Spark 4.2")
def test_source_that_was_cut_and_has_grown_between_two_runs_is_a_loss(
    spark: Any, make_topic: MakeTopic, writer: logstore.Store, tmp_path: Path
) -> None:
    """Its offsets mean other records; with failOnDataLoss=false these are read."""
    partition = make_topic(count=100, message_format=2)[0]
    run(source(spark, writer.path), tmp_path)
    partition.truncate_to(50)
    partition.append_many([b"new %d" % n for n in range(80)])
    partition.flush()
    with pytest.raises(Exception, match="tail was cut at 50"):
        run(source(spark, writer.path), tmp_path)
    options = {"subscribe": "orders", "failOnDataLoss": "false"}
    frame = spark.readStream.format("logstore").options(**options).load(writer.path)
    run(frame.select("key", "value"), tmp_path)
    found = copied(tmp_path)
    assert found[100:] == [b"new %d" % n for n in range(80)]
