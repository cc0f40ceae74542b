"""Stage, publish, abort: the writers called like by Spark, without Spark."""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import ConfigError, LogStoreError, StoreLockedError, StoreNotFoundError
from support.store_owner import StoreOwner

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    StringType,
    StructField,
    StructType,
)

from pyspark_logstore.stores import NotSharedError
from pyspark_logstore.write import writer as sink
from pyspark_logstore.write.options import parse_sink
from pyspark_logstore.write.writer import (
    BatchWriter,
    RewoundError,
    StagedTask,
    StreamRowWriter,
    StreamWriter,
)

VALUE = StructType([StructField("value", BinaryType())])
TOPIC = StructType([*VALUE, StructField("topic", StringType())])
HEADER = [StructField("key", StringType()), StructField("value", BinaryType())]
HEADERS = StructType([*VALUE, StructField("headers", ArrayType(StructType(HEADER)))])


def batch_writer(path: Path, schema: StructType = VALUE, **given: str) -> BatchWriter:
    options = parse_sink(
        {"path": str(path), "topic": "orders", **given}, streaming=False
    )
    return BatchWriter(schema, options, overwrite=False)


def stream_writer(path: Path, **given: str) -> Any:
    options = parse_sink(
        {"path": str(path), "topic": "orders", **given}, streaming=True
    )
    return StreamWriter(VALUE, options, False)


@pytest.fixture
def micro_batch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the batch that tasks belong to."""

    def tell(batch_id: int, query_id: str = "query-1") -> None:
        monkeypatch.setattr(sink, "_micro_batch", lambda: (query_id, batch_id))

    return tell


def rows(*values: bytes) -> Iterator[Any]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def written(path: Path, topic: str = "orders") -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [r.value for p in store.topic(topic) for r in p.read()]


def staged_files(path: Path) -> list[str]:
    return sorted(n for n in os.listdir(path) if n.startswith(".logstore-staged-"))


# ------------------------------------------------------------------ planning


def test_store_and_topic_are_made_as_the_options_say(tmp_path: Path) -> None:
    """They are made when the write is planned; existing ones are not changed."""
    path = tmp_path / "new" / "data"
    batch_writer(path, partitions="3", messageFormat="2", compressionType="lz4")
    with logstore.open(path, read_only=True) as store:
        topic = store.topic("orders")
        assert len(topic) == 3
        assert topic.config == logstore.TopicConfig(
            message_format=2, compression_type="lz4"
        )
    batch_writer(path, partitions="5", messageFormat="1")
    with logstore.open(path, read_only=True) as store:
        assert len(store.topic("orders")) == 3
    batch_writer(path, HEADERS, topic="with-headers")
    with logstore.open(path, read_only=True) as store:
        assert store.topic("with-headers").config.message_format == 2


def test_topic_is_not_made_where_that_is_not_wanted(
    tmp_path: Path, writer: logstore.Store
) -> None:
    """No store is made either; the error names the existing topics."""
    writer.create_topic("bills")
    with pytest.raises(ConfigError, match="createTopic=false; its topics: bills") as c:
        batch_writer(Path(writer.path), createTopic="false")
    assert c.value.name == "topic"
    assert writer.topics() == ["bills"]
    with pytest.raises(StoreNotFoundError):
        batch_writer(tmp_path / "none", createTopic="false")
    # No topic to make is named.
    options = parse_sink({"path": str(tmp_path / "none")}, streaming=False)
    with pytest.raises(StoreNotFoundError):
        BatchWriter(TOPIC, options, False)
    assert not (tmp_path / "none").exists()


def test_topic_of_magic_0_is_refused(writer: logstore.Store) -> None:
    """The error comes when the write is planned."""
    config = logstore.TopicConfig(message_format=0)
    writer.create_topic("orders", config=config)
    with pytest.raises(
        ConfigError, match=r"message_format=0, but the sink needs 1 or 2"
    ):
        batch_writer(Path(writer.path))


def test_overwrite_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    """Records of a log cannot be replaced."""
    options = parse_sink({"path": str(tmp_path / "d"), "topic": "t"}, streaming=False)
    for kind in (BatchWriter, StreamWriter, StreamRowWriter):
        with pytest.raises(ConfigError, match=r"Allowed are mode append") as caught:
            kind(VALUE, options, True)
        assert caught.value.name == "mode"
    assert not (tmp_path / "d").exists()


# ------------------------------------------------------------------ batches


def test_nothing_is_there_before_the_commit_and_all_of_it_after(tmp_path: Path) -> None:
    """The order is the tasks', whatever order they ran in; the pickled writer
    commits."""
    path = tmp_path / "data"
    writer = pickle.loads(pickle.dumps(batch_writer(path)))
    second = writer.write(rows(b"c", b"d"))
    first = writer.write(rows(b"a", b"b"))
    empty = writer.write(iter(()))
    assert written(path) == []
    assert len(staged_files(path)) == 2
    messages = pickle.loads(pickle.dumps([first, empty, second]))
    writer.commit(messages)
    assert written(path) == [b"a", b"b", b"c", b"d"]
    assert staged_files(path) == []
    writer.abort(messages)  # after a commit whose answer was lost
    assert written(path) == [b"a", b"b", b"c", b"d"]


def test_abort_removes_what_was_staged(tmp_path: Path, writer: logstore.Store) -> None:
    """This works even if another process has the store; failed tasks have no files."""
    path = Path(writer.path)
    writer.create_topic("orders")
    batch = batch_writer(path)
    messages = [batch.write(rows(b"a")), None, batch.write(rows(b"b"))]
    assert len(staged_files(path)) == 2
    batch.abort(messages)
    assert staged_files(path) == []
    assert written(path) == []


def test_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    """Its rows do not appear either, when its next attempt is published."""
    path = tmp_path / "data"
    writer = batch_writer(path)

    def failing() -> Iterator[Any]:
        yield from rows(*[b"v" * 1000] * 5000)
        raise RuntimeError("task")

    with pytest.raises(RuntimeError, match="task"):
        writer.write(failing())
    assert staged_files(path) == []
    writer.commit([writer.write(rows(b"a"))])
    assert written(path) == [b"a"]


def test_txn_is_written_once(tmp_path: Path) -> None:
    """The same version again does nothing; a lower one is an error, or left out."""
    path = tmp_path / "data"

    def run(version: int, *values: bytes, app: str = "load", **given: str) -> None:
        txn = {"txnAppId": app, "txnVersion": str(version)}
        writer = batch_writer(path, **txn, **given)
        writer.commit([writer.write(rows(*values))])

    run(3, b"a")
    run(3, b"a")
    run(4, b"b")
    run(3, b"c", app="other")
    assert written(path) == [b"a", b"b", b"c"]
    with pytest.raises(RewoundError, match=r"txnVersion is an old one.*allowRewind"):
        run(3, b"a")
    run(3, b"a", allowRewind="true")
    assert written(path) == [b"a", b"b", b"c"]
    with logstore.open(path, read_only=True) as store:
        assert store.published("spark-txn:load") == 4
    batch = batch_writer(path)
    for _ in range(2):  # without one, repetitions are not noticed
        batch.commit([batch.write(rows(b"d"))])
    assert written(path) == [b"a", b"b", b"c", b"d", b"d"]


def test_commit_sweeps_what_nobody_came_for(tmp_path: Path) -> None:
    """Staged files of all writers are removed after a week."""
    path = tmp_path / "data"
    writer = batch_writer(path)
    old, new = (writer.write(rows(b"%d" % n)).staged.files[0] for n in range(2))
    day = 24 * 3600
    os.utime(path / old, (time.time() - 7 * day - 60,) * 2)
    os.utime(path / new, (time.time() - 7 * day + 600,) * 2)
    writer.commit([writer.write(rows(b"a"))])
    assert staged_files(path) == [new]


def test_task_that_sees_another_directory_says_so(tmp_path: Path) -> None:
    """The path is not shared between driver and executors."""
    path = tmp_path / "data"
    writer = batch_writer(path)
    path.rename(tmp_path / "moved")
    with pytest.raises(NotSharedError, match="there is no directory"):
        writer.write(rows(b"a"))
    batch_writer(path)
    with pytest.raises(NotSharedError, match="is not the directory"):
        writer.write(rows(b"a"))


# ------------------------------------------------------------------ streams


def test_batch_that_is_repeated_does_nothing(tmp_path: Path, micro_batch: Any) -> None:
    """Each repetition has a new writer and new staged files, as in Spark."""
    path = tmp_path / "data"
    for batch_id in (0, 0, 1, 1, 1, 2):
        micro_batch(batch_id)
        message = stream_writer(path).write(rows(b"%d" % batch_id))
        stream_writer(path).commit([message], batch_id)
    assert written(path) == [b"0", b"1", b"2"]
    assert staged_files(path) == []
    with logstore.open(path, read_only=True) as store:
        assert store.published("spark-query:query-1") == 2
    micro_batch(0, "query-2")
    message = stream_writer(path).write(rows(b"other"))
    stream_writer(path).commit([message], 0)
    assert written(path)[-1] == b"other"


def test_checkpoint_that_was_set_back_is_an_error(
    tmp_path: Path, micro_batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The option leaves out the earlier batches."""
    path = tmp_path / "data"
    for batch_id in (5, 4):
        micro_batch(batch_id)
        message = stream_writer(path).write(rows(b"%d" % batch_id))
        if batch_id == 5:
            stream_writer(path).commit([message], 5)
    with pytest.raises(RewoundError, match=r"set back.*allowRewind") as caught:
        stream_writer(path).commit([message], 4)
    assert (caught.value.sequence, caught.value.last) == (4, 5)
    assert written(path) == [b"5"]
    stream_writer(path, allowRewind="true").commit([message], 4)
    assert "skipped" in caplog.text
    assert written(path) == [b"5"]
    assert staged_files(path) == []


def test_commit_removes_what_earlier_batches_left(
    tmp_path: Path, micro_batch: Any
) -> None:
    """Attempts of killed tasks are removed; attempts of the same batch, or of other
    queries, are not."""
    path = tmp_path / "data"
    micro_batch(0)
    stream_writer(path).write(rows(b"killed"))
    micro_batch(0, "query-2")
    other = stream_writer(path).write(rows(b"other")).staged.files[0]
    micro_batch(1)
    twin = stream_writer(path).write(rows(b"1")).staged.files[0]
    message = stream_writer(path).write(rows(b"1"))
    stream_writer(path).commit([message], 1)
    assert staged_files(path) == sorted([other, twin])
    assert written(path) == [b"1"]


def test_batch_without_rows_needs_no_lock(tmp_path: Path, micro_batch: Any) -> None:
    """It is not remembered either."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        store.create_topic("orders")
    micro_batch(0)
    with StoreOwner(path, takes_requests=False):
        message = stream_writer(path).write(iter(()))
        stream_writer(path, lockTimeout="0").commit([message], 0)
        stream_writer(path, lockTimeout="0").commit([], 0)
        with pytest.raises(StoreLockedError):
            stream_writer(path, lockTimeout="0").commit(
                [stream_writer(path).write(rows(b"a"))], 0
            )


def test_task_that_does_not_know_its_batch_stages_nothing(tmp_path: Path) -> None:
    """Without an identity, a repeated batch would be written twice."""
    writer = stream_writer(tmp_path / "data")
    with pytest.raises(LogStoreError, match=r"sql\.streaming\.queryId"):
        writer.write(rows(b"a"))
    assert staged_files(tmp_path / "data") == []


def test_messages_of_other_batches_are_not_published(
    tmp_path: Path, micro_batch: Any
) -> None:
    """They are refused from any source."""
    path = tmp_path / "data"
    micro_batch(3)
    message = stream_writer(path).write(rows(b"a"))
    with pytest.raises(LogStoreError, match="nothing was published"):
        stream_writer(path).commit([message], 4)
    other = StagedTask(message.staged, "query-2", 3)
    with pytest.raises(LogStoreError, match="nothing was published"):
        stream_writer(path).commit([message, other], 3)
    assert written(path) == []


# ------------------------------------------------------------------ the lock


@pytest.mark.parametrize("is_broker", [False, True])
def test_commit_waits_for_the_lock_and_then_says_who_has_it(
    is_broker: bool, tmp_path: Path, micro_batch: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Everything is left in a state in which the batch can be repeated. The wait is
    logged once."""
    path = tmp_path / "data"
    micro_batch(0)
    message = stream_writer(path).write(rows(b"a"))
    with StoreOwner(path, takes_requests=False, is_broker=is_broker) as owner:
        begun = time.monotonic()
        with pytest.raises(StoreLockedError) as caught:
            stream_writer(path, lockTimeout="1300ms").commit([message], 0)
        assert time.monotonic() - begun >= 1.3
        assert caught.value.holder_pid == owner.pid
        for word in (
            f"process {owner.pid}", "1.3 s", "lockTimeout", str(path), "continues",
            "it takes no requests",
        ):  # fmt: skip
            assert word in str(caught.value)
        stream_writer(path).abort([message], 0)
        texts = [r.getMessage() for r in caplog.records]
        (wait,) = [text for text in texts if "waiting for its lock" in text]
        assert f"process {owner.pid}, which takes no requests" in wait
    assert staged_files(path) == []
    message = stream_writer(path).write(rows(b"a"))
    stream_writer(path).commit([message], 0)
    assert written(path) == [b"a"]


def test_commit_succeeds_when_the_lock_comes_in_time(
    tmp_path: Path, micro_batch: Any
) -> None:
    """A service opens the store only while it writes."""
    path = tmp_path / "data"
    micro_batch(0)
    message = stream_writer(path).write(rows(b"a"))
    with StoreOwner(path, takes_requests=False) as owner:
        timer = threading.Timer(0.5, owner.stop)
        timer.start()
        stream_writer(path, lockTimeout="60s").commit([message], 0)
        timer.join()
    assert written(path) == [b"a"]


def test_planning_waits_for_the_lock_only_where_something_is_to_be_made(
    tmp_path: Path,
) -> None:
    """An existing topic needs no lock; a missing one does."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        store.create_topic("orders")
    with StoreOwner(path, takes_requests=False):
        batch_writer(path, lockTimeout="0")
        with pytest.raises(StoreLockedError, match="lockTimeout"):
            batch_writer(path, topic="new", lockTimeout="0")


def test_two_sinks_of_one_store_take_turns(tmp_path: Path) -> None:
    """They are in one process or in two: a commit holds the lock only while it
    publishes."""
    path = tmp_path / "data"
    writers = [batch_writer(path, lockTimeout="60s") for _ in range(4)]
    messages = [w.write(rows(b"%d" % n)) for n, w in enumerate(writers)]
    threads = [
        threading.Thread(target=w.commit, args=([m],))
        for w, m in zip(writers, messages, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(value or b"" for value in written(path)) == [b"0", b"1", b"2", b"3"]
