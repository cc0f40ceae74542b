"""Repeated batches: from a task, a commit, a run that is started again, or from another
query on a copy of the checkpoint. Without a Java machine."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import ConfigError, LogStoreError

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_logstore import DefaultSource
from pyspark_logstore.write import writer as sink
from pyspark_logstore.write.memory import RUNS_MAX, Memory
from pyspark_logstore.write.options import parse_sink
from pyspark_logstore.write.writer import (
    BatchWriter,
    CopiedCheckpointError,
    RewoundError,
    StreamWriter,
)

VALUE = StructType([StructField("value", BinaryType())])
QUERY = "spark-query:query-1"


def rows(*values: bytes) -> Iterator[Any]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def batch_writer(path: Path, **given: str) -> BatchWriter:
    options = parse_sink(
        {"path": str(path), "topic": "orders", **given}, streaming=False
    )
    return BatchWriter(VALUE, options, overwrite=False)


def written(path: Path) -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [r.value for p in store.topic("orders") for r in p.read()]


def staged_files(path: Path) -> list[str]:
    return [n for n in os.listdir(path) if n.startswith(".logstore-staged-")]


Run = Callable[..., None]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run one batch of one run of the query, like Spark: staged, then committed by
    another writer."""

    def batch(run_id: str, batch_id: int, *values: bytes, **given: str) -> None:
        monkeypatch.setattr(sink, "_micro_batch", lambda: ("query-1", batch_id))
        monkeypatch.setattr(sink, "_run_id", lambda: run_id)
        options = parse_sink(
            {"path": str(tmp_path / "data"), "topic": "orders", **given},
            streaming=True,
        )
        message = StreamWriter(VALUE, options, False).write(rows(*values))
        StreamWriter(VALUE, options, False).commit([message], batch_id)

    return batch


# ------------------------------------------------------------- copies of a checkpoint


def test_query_on_a_copy_of_a_checkpoint_is_told_where_its_rows_are_others(
    tmp_path: Path, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Its batch has a number that was published: it is no repetition of the published
    batch, so it is not left out silently."""
    path = tmp_path / "data"
    run("run-a", 0, b"0")
    run("run-a", 1, b"a1")
    for values in ((b"b1", b"b2"), (b"b1 is longer",)):
        with pytest.raises(CopiedCheckpointError, match="on a copy of this") as caught:
            run("run-b", 1, *values)
        assert (caught.value.identity, caught.value.last) == (QUERY, 1)
        for word in (f"{len(values)} rows", "1 rows of 2 bytes", "allowRewind=true"):
            assert word in str(caught.value)
    assert written(path) == [b"0", b"a1"]
    run("run-a", 2, b"a2")  # the other one continues
    run("run-b", 2, b"b2 is longer", allowRewind="true")
    assert "skipped" in caplog.text
    assert written(path) == [b"0", b"a1", b"a2"]


def test_run_that_another_one_has_overtaken_publishes_nothing(
    tmp_path: Path, run: Run
) -> None:
    """This holds for any batch: of two queries on copies of one checkpoint, one fails,
    so that the error is noticed."""
    path = tmp_path / "data"
    run("run-a", 0, b"0")
    run("run-b", 1, b"b1")
    for batch_id in (1, 2, 7):
        for rewind in ("false", "true"):
            with pytest.raises(CopiedCheckpointError, match="copies of one checkpoint"):
                run("run-a", batch_id, b"a%d" % batch_id, allowRewind=rewind)
    run("run-b", 2, b"b2")
    assert written(path) == [b"0", b"b1", b"b2"]


def test_batch_of_equal_size_on_a_copy_is_told_at_the_next_batch_of_the_other(
    tmp_path: Path, run: Run
) -> None:
    """It cannot be distinguished from a repetition at once: it has as many rows, and
    bytes. Its query counts as the query that was started again, and the other one
    fails."""
    path = tmp_path / "data"
    run("run-a", 0, b"a0")
    run("run-b", 0, b"b0")
    assert written(path) == [b"a0"]
    with pytest.raises(CopiedCheckpointError, match="copies of one checkpoint"):
        run("run-a", 1, b"a1")
    run("run-b", 1, b"b1")
    assert written(path) == [b"a0", b"b1"]


def test_query_that_is_started_again_goes_on(tmp_path: Path, run: Run) -> None:
    """It repeats the batch that it had published when it died, or begins with the next
    one; any number of times, and its stored note stays small."""
    path = tmp_path / "data"
    expected = []
    for number in range(2 * RUNS_MAX):
        run_id = f"{number:08d}-1111-2222-3333-444444444444"
        if number:
            run(run_id, number - 1, b"%d" % (number - 1))
        run(run_id, number, b"%d" % number)
        run(run_id, number, b"%d" % number)
        expected.append(b"%d" % number)
    assert written(path) == expected
    with logstore.open(path, read_only=True) as store:
        last = store.last_publication(QUERY)
    assert last is not None
    assert len(last.note) < 1000
    assert Memory.of_note(last.note).runs[-1] == run_id
    assert len(Memory.of_note(last.note).runs) == RUNS_MAX
    with pytest.raises(RewoundError):
        run("new", 3, b"3")


@pytest.mark.parametrize(
    "note",
    ["", "null", "[]", "{}", '{"runs":5,"bytes":1}', '{"runs":["x"]}', "[" * 999],
)
def test_store_that_does_not_know_of_runs_is_written_to(
    note: str, tmp_path: Path, run: Run
) -> None:
    """The store is of an earlier version, or the identity is another program's."""
    path = tmp_path / "data"
    batch_writer(path)
    with logstore.open(path) as store:
        with store.stage(QUERY, 4) as stage:
            stage.append_many(store.topic("orders")[0], [b"4"])
            staged = stage.finish()
        store.publish([staged], identity=QUERY, sequence=4, note=note)
    run("run-a", 4, b"4 of another size")
    run("run-a", 5, b"5")
    assert written(path) == [b"4", b"5"]


@pytest.mark.parametrize("run_id", ["", "\u2603" * 5000, "\ud800"], ids=ascii)
def test_run_id_that_is_none_of_sparks_changes_nothing(
    run_id: str, tmp_path: Path, run: Run
) -> None:
    """Without one, batches are distinguished by rows alone."""
    run(run_id, 0, b"a")
    run(run_id, 0, b"a")
    with pytest.raises(CopiedCheckpointError):
        run(run_id, 0, b"b", b"c")
    run(run_id, 1, b"d")
    assert written(tmp_path / "data") == [b"a", b"d"]


def test_application_that_repeats_a_version_with_other_rows_is_warned(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """txnAppId and txnVersion identify the write as the same: it does nothing."""
    path = tmp_path / "data"
    for values in ((b"a",), (b"a",), (b"b", b"c")):
        writer = batch_writer(path, txnAppId="load", txnVersion="1")
        with caplog.at_level(logging.WARNING):
            writer.commit([writer.write(rows(*values))])
        assert ("the new rows are skipped" in caplog.text) == (len(values) == 2)
    assert written(path) == [b"a"]
    assert staged_files(path) == []


# --------------------------------------------------------------- repetitions


def test_messages_are_committed_once(tmp_path: Path) -> None:
    """This holds even without an identity: the staged files are gone."""
    path = tmp_path / "data"
    writer = batch_writer(path)
    message = writer.write(rows(b"a"))
    writer.commit([message])
    with pytest.raises(LogStoreError):
        writer.commit([message])
    assert written(path) == [b"a"]
    message = writer.write(rows(b"b"))
    with pytest.raises(LogStoreError):
        writer.commit([message, message])
    writer.abort([message, message, None])
    with pytest.raises(LogStoreError):
        writer.commit([message])
    writer.abort([message])
    with pytest.raises(LogStoreError, match="without the messages of all tasks"):
        writer.commit([None])
    assert written(path) == [b"a"]
    assert staged_files(path) == []


def test_writer_is_used_twice(tmp_path: Path) -> None:
    """A speculative task, and a repeated one: only committed records count."""
    path = tmp_path / "data"
    writer = batch_writer(path)
    first, second = writer.write(rows(b"a")), writer.write(rows(b"a"))
    writer.commit([second])
    assert written(path) == [b"a"]
    writer.abort([first])
    assert staged_files(path) == []


def test_topic_made_anew_between_tasks_and_commit_is_named(tmp_path: Path) -> None:
    """Records staged for one topic do not get into another."""
    path = tmp_path / "data"
    writer = batch_writer(path)
    message = writer.write(rows(b"a"))
    with logstore.open(path) as store:
        store.delete_topic("orders")
        store.create_topic("orders")
    with pytest.raises(logstore.TopicNotFoundError, match="orders"):
        writer.commit([message])
    assert written(path) == []


# ------------------------------------------------------------------------ identities


@pytest.mark.parametrize(
    "app",
    [
        "20251122084530123456",
        "load-20251122084530123456789012345678901234567890",
        "a:20251122084530123456,[20251122084530123456",
        "[[[[[[[[[[{{{{{{{{{",
        "]}",
        '"\\',
        "\u2603 \U0001f4a9 \u202e \u0000\u0001\n",
        "x" * 900,
        "\U0001f4a9" * 900,
        "NaN",
    ],
    ids=ascii,
)
def test_application_may_have_any_name(app: str, tmp_path: Path) -> None:
    """A time with microseconds, brackets, any script; and the store stays usable for
    all other names."""
    path = tmp_path / "data"
    for version in ("1", "1", "2"):
        given = {"path": str(path), "topic": "orders", "txnAppId": app}
        source = DefaultSource({**given, "txnVersion": version})
        writer = source.writer(VALUE, False)
        writer.commit([writer.write(rows(version.encode()))])
    other = batch_writer(path, txnAppId="other", txnVersion="7")
    other.commit([other.write(rows(b"other"))])
    assert written(path) == [b"1", b"2", b"other"]
    with logstore.open(path) as store:
        assert store.published("spark-txn:" + app.strip()) == 2


@pytest.mark.parametrize(
    "app", ["", " ", "x" * 901, "\ud800", "x\udfff", None], ids=ascii
)
def test_name_that_no_application_can_have_is_told_at_once(
    app: Any, tmp_path: Path
) -> None:
    """The error comes before anything is made, not when the first batch is
    committed."""
    path = tmp_path / "data"
    given = {"path": str(path), "topic": "orders", "txnVersion": "1", "txnAppId": app}
    with pytest.raises(ConfigError) as caught:
        DefaultSource(given).writer(VALUE, False)
    assert caught.value.name == "txnAppId"
    assert not path.exists()
