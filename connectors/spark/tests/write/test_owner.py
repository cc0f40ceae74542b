"""The sink while a service has the store: it hands in its publications."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import StoreLockedError
from logstore.errors import PublicationConflictError
from support.store_owner import StoreOwner

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_logstore.write import writer as sink
from pyspark_logstore.write.memory import CopiedCheckpointError
from pyspark_logstore.write.options import parse_sink
from pyspark_logstore.write.writer import BatchWriter, RewoundError, StreamWriter

VALUE = StructType([StructField("value", BinaryType())])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def owner(path: Path) -> Iterator[StoreOwner]:
    """A service that has the store open for writing."""
    with StoreOwner(path) as owner:
        yield owner
        if owner._process is not None:
            owner.go_on()


@pytest.fixture(autouse=True)
def micro_batch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the batch, and the run of the query, that tasks belong to."""

    def tell(batch_id: int, run_id: str = "run-1") -> None:
        monkeypatch.setattr(sink, "_micro_batch", lambda: ("query-1", batch_id))
        monkeypatch.setattr(sink, "_run_id", lambda: run_id)

    tell(0)
    return tell


def writer(path: Path, *, streaming: bool = True, **given: str) -> Any:
    given = {"path": str(path), "topic": "orders", "lockTimeout": "20s", **given}
    options = parse_sink(given, streaming=streaming)
    return (StreamWriter if streaming else BatchWriter)(VALUE, options, False)


def rows(*values: bytes) -> Iterator[Any]:
    yield pa.record_batch({"value": pa.array(values, pa.binary())})


def commit(path: Path, batch_id: int, *values: bytes, **given: str) -> None:
    """Stage and commit one batch of the query."""
    one = writer(path, **given)
    one.commit([one.write(rows(*values))], batch_id)


def written(path: Path) -> list[bytes | None]:
    with logstore.open(path, read_only=True) as store:
        return [r.value for p in store.topic("orders") for r in p.read()]


def staged_files(path: Path) -> list[str]:
    return sorted(n for n in os.listdir(path) if n.startswith(".logstore-staged-"))


def has_no_staged_files(path: Path) -> bool:
    """Whether all staged files are removed; an owner answers before it removes them."""
    deadline = time.monotonic() + 30
    while staged_files(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_service_creates_the_topic_and_publishes(
    path: Path, owner: StoreOwner, micro_batch: Any
) -> None:
    """The options are applied, without a wait for the lock. The service keeps the
    store."""
    begun = time.monotonic()
    for number in range(5):
        micro_batch(number)
        commit(path, number, b"%d" % number, partitions="2", messageFormat="2")
    assert time.monotonic() - begun < 15
    assert sorted(written(path)) == [b"0", b"1", b"2", b"3", b"4"]
    with logstore.open(path, read_only=True) as store:
        assert len(store.topic("orders")) == 2
        assert store.topic("orders").config.message_format == 2
        last = store.last_publication("spark-query:query-1")
        assert last is not None
        assert last.sequence == 4
    assert has_no_staged_files(path)
    with pytest.raises(StoreLockedError):
        logstore.open(path, lock_timeout_ms=0)


def test_two_queries_ask_for_the_same_topic(path: Path, owner: StoreOwner) -> None:
    """One of them has it created."""
    threads = [threading.Thread(target=writer, args=(path,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with logstore.open(path, read_only=True) as store:
        assert store.topics() == ["orders"]


def test_batch_that_is_repeated_is_written_once(
    path: Path, owner: StoreOwner, micro_batch: Any
) -> None:
    """The service repeats it before and after its restart, and the sink with the
    lock."""
    commit(path, 0, b"a")
    commit(path, 0, b"a")
    # An owner that is killed before leaves the file of the second.
    assert has_no_staged_files(path)
    owner.kill()
    commit(path, 0, b"a")
    owner.start()
    micro_batch(0, "run-2")
    commit(path, 0, b"a")
    assert written(path) == [b"a"]
    assert has_no_staged_files(path)


def test_batch_before_the_last_one_is_refused_or_left_out(
    path: Path, owner: StoreOwner, micro_batch: Any
) -> None:
    """The rule is the same as with the lock."""
    micro_batch(5)
    commit(path, 5, b"five")
    micro_batch(4)
    with pytest.raises(RewoundError, match="The checkpoint was set back"):
        commit(path, 4, b"four")
    commit(path, 4, b"four", allowRewind="true")
    assert written(path) == [b"five"]


def test_copy_of_a_checkpoint_is_noticed(
    path: Path, owner: StoreOwner, micro_batch: Any
) -> None:
    """By the number of rows, and by the runs of the query."""
    commit(path, 0, b"a")
    with pytest.raises(CopiedCheckpointError, match="Another query runs on a copy"):
        commit(path, 0, b"a", b"b")
    micro_batch(1, "run-2")
    commit(path, 1, b"b")
    micro_batch(2, "run-1")
    with pytest.raises(CopiedCheckpointError, match="copies of one checkpoint"):
        commit(path, 2, b"c")
    assert written(path) == [b"a", b"b"]


@pytest.mark.parametrize("has_other_rows", [False, True])
def test_query_that_publishes_between_look_and_request_is_noticed(
    has_other_rows: bool,
    path: Path,
    owner: StoreOwner,
    micro_batch: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This holds if its batch has another number of rows. One with as many may be the
    same batch, which an owner has published and not answered."""
    submit = logstore.Store.submit

    def submit_late(self: Any, staged: Any, **named: Any) -> Any:
        monkeypatch.setattr(logstore.Store, "submit", submit)
        commit(path, 0, *([b"b", b"c"] if has_other_rows else [b"b"]))
        return self.submit(staged, **named)

    monkeypatch.setattr(logstore.Store, "submit", submit_late)
    if has_other_rows:
        with pytest.raises(CopiedCheckpointError):
            commit(path, 0, b"a")
        assert written(path) == [b"b", b"c"]
    else:
        commit(path, 0, b"a")
        assert written(path) == [b"b"]


def test_batch_write_is_handed_in(path: Path, owner: StoreOwner) -> None:
    """Each write without a name, and a write with a name once."""
    for _ in range(2):
        one = writer(path, streaming=False)
        one.commit([one.write(rows(b"a"))])
    for _ in range(2):
        one = writer(path, streaming=False, txnAppId="app", txnVersion="3")
        one.commit([one.write(rows(b"b"))])
    assert sorted(written(path)) == [b"a", b"a", b"b"]
    assert has_no_staged_files(path)


def test_service_that_does_not_answer_is_named(
    path: Path, owner: StoreOwner, micro_batch: Any
) -> None:
    """The error comes after lockTimeout; the request was withdrawn, and the batch can
    be repeated."""
    one = writer(path, lockTimeout="1s")
    message = one.write(rows(b"a"))
    owner.pause()
    begun = time.monotonic()
    with pytest.raises(StoreLockedError) as caught:
        one.commit([message], 0)
    assert 1 <= time.monotonic() - begun < 10
    assert caught.value.holder_pid == owner.pid
    assert "does not answer requests" in str(caught.value)
    owner.go_on()
    one.abort([message], 0)
    time.sleep(0.3)
    assert written(path) == []
    commit(path, 0, b"a")
    assert written(path) == [b"a"]


def test_commit_outlives_the_service(path: Path, owner: StoreOwner) -> None:
    """It is killed while the request waits: the sink takes the lock, and publishes."""
    one = writer(path)
    message = one.write(rows(b"a"))
    owner.pause()
    thread = threading.Thread(target=one.commit, args=([message], 0))
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    owner.kill()
    thread.join(20)
    assert not thread.is_alive()
    commit(path, 0, b"a")
    assert written(path) == [b"a"]
    # The lock is free.
    logstore.open(path, lock_timeout_ms=0).close()


def test_error_of_the_service_is_that_of_the_commit(
    path: Path, owner: StoreOwner
) -> None:
    """Its rows are for a topic that is deleted meanwhile."""
    one = writer(path)
    message = one.write(rows(b"a"))
    owner.stop()
    with logstore.open(path) as store:
        store.delete_topic("orders")
    owner.start()
    with pytest.raises(logstore.LogStoreError) as caught:
        one.commit([message], 0)
    assert not isinstance(caught.value, PublicationConflictError)
    assert "orders" in str(caught.value)
