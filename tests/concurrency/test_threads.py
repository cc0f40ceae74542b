"""Several threads on one store: ordered or named errors, never a wrong record."""

from __future__ import annotations

import gc
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.directory import Directory
from logstore.segment import Segment
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.values import (
    config_of,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


def run_all(*works: Callable[[], None]) -> None:
    """Run each in its own thread; raise the first error."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(w,)) for w in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


@every_magic
def test_appends_of_many_threads_are_all_there_once(tmp_path: Path, magic: int) -> None:
    """Each gets its own offset, and that record is at that offset."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, segment_bytes=5000, flush_messages=100)
        written: dict[int, bytes] = {}

        def writer(name: int) -> Callable[[], None]:
            def work() -> None:
                rng = random.Random(name)
                for i in range(150):
                    value = b"%d/%d" % (name, i)
                    if rng.random() < 0.5:
                        written[partition.append(value)] = value
                    else:
                        for offset in partition.append_many([value, value]):
                            written[offset] = value

            return work

        run_all(*(writer(n) for n in range(4)))
        found = {r.offset: r.value for r in partition.read()}
        assert found == written
        assert sorted(found) == list(range(partition.end_offset))
    assert {r.offset: r.value for r in read_all(tmp_path)} == written


@every_magic
def test_readers_beside_a_writer_see_a_growing_prefix(
    tmp_path: Path, magic: int
) -> None:
    """Every read returns the log up to its end at the begin of the read, or further."""
    count = 400
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, segment_bytes=3000, flush_messages=40)
        want = expected(magic, 0, count)
        done = threading.Event()

        def write() -> None:
            fill(partition, count, call=2)
            done.set()

        def read() -> None:
            rng = random.Random(threading.get_ident())
            while not done.is_set():
                end = partition.end_offset
                start = rng.randint(0, end)
                found = list(partition.read(start))
                assert found == want[start : start + len(found)]
                assert start + len(found) >= end
                assert partition.start_offset <= partition.durable_offset
                assert partition.durable_offset <= partition.end_offset

        def follow() -> None:
            records = partition.follow(timeout=30)
            assert [next(records) for _ in range(count)] == want

        run_all(write, read, read, follow)


def test_readers_beside_deletion_finish_or_are_told(tmp_path: Path) -> None:
    """A read that has begun delivers all records to the end; one that begins too late
    gets the new start."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=1000, file_delete_delay_ms=0)
        fill(partition, 200)
        want = expected(1, 0, 600)
        done = threading.Event()

        def write() -> None:
            while partition.end_offset < 600:
                fill(partition, 10)
                partition.delete_before(max(0, partition.end_offset - 100))
            done.set()

        def read() -> None:
            while not done.is_set():
                start = partition.start_offset
                try:
                    records = partition.read(start)
                except logstore.OffsetOutOfRangeError:
                    assert partition.start_offset > start
                    continue
                found = list(records)
                assert found == want[start : start + len(found)]
                assert len(found) >= 90

        run_all(write, read)
        assert list(partition.read()) == expected(1, partition.start_offset, 600)


def test_truncation_beside_readers_is_never_a_wrong_record(tmp_path: Path) -> None:
    """Readers get a prefix of an old or the new log, or a named error."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=2000)
        fill(partition, 100)
        want = expected(1, 0, 100)
        done = threading.Event()

        def write() -> None:
            for _ in range(12):
                partition.truncate_to(60)
                fill(partition, 40)
            done.set()

        def read() -> None:
            while not done.is_set():
                try:
                    found = list(partition.read())
                except logstore.OffsetOutOfRangeError:
                    continue
                assert found == want[: len(found)]
                assert len(found) >= 60

        run_all(write, read, read)


def test_close_beside_everything_is_a_named_error(tmp_path: Path) -> None:
    """Threads that use a store while it is closed end with StoreClosedError, and all
    acknowledged records are there."""
    for _ in range(8):
        path = tmp_path / str(_)
        store = logstore.open(path)
        topic = store.create_topic("orders", config=config_of(segment_bytes=2000))
        partition = topic[0]
        fill(partition, 50)
        told = [0]
        started = threading.Barrier(4)

        def until_closed(
            use: Callable[[], object], started: threading.Barrier = started
        ) -> Callable[[], None]:
            def work() -> None:
                started.wait()
                with pytest.raises(logstore.errors.StoreClosedError):
                    while True:
                        use()

            return work

        def append(
            told: list[int] = told, partition: logstore.Partition = partition
        ) -> None:
            told[0] = partition.append(b"x", durable=True) + 1

        def close(
            store: logstore.Store = store, started: threading.Barrier = started
        ) -> None:
            started.wait()
            store.close()

        run_all(
            until_closed(append),
            until_closed(lambda p=partition: list(p.read())),
            until_closed(lambda p=partition: list(p.fetch(0))),
            close,
        )
        assert len(read_all(path)) >= told[0]
        with logstore.open(path) as store:
            assert not store.recovery_report


def test_topics_made_and_deleted_by_many_threads(tmp_path: Path) -> None:
    """Creating, using and deleting topics at the same time."""
    with logstore.open(tmp_path) as store:

        def work(name: int) -> Callable[[], None]:
            def run() -> None:
                for i in range(5):
                    topic = store.create_topic(f"t{name}", 2)
                    assert topic.append(b"%d" % i).offset == 0
                    assert f"t{name}" in store.topics()
                    store.delete_topic(f"t{name}")

            return run

        run_all(*(work(n) for n in range(4)))
        assert store.topics() == []


def test_one_topic_created_by_many_threads_is_created_once(tmp_path: Path) -> None:
    """All get the same topic with exist_ok; without it, one does."""
    with logstore.open(tmp_path) as store:
        found: list[logstore.Topic] = []
        run_all(*[lambda: found.append(store.create_topic("a", 3, exist_ok=True))] * 6)
        assert len({id(topic) for topic in found}) == 1
        outcomes: list[str] = []

        def create() -> None:
            try:
                store.create_topic("b")
                outcomes.append("made")
            except logstore.TopicExistsError:
                outcomes.append("exists")

        run_all(*[create] * 6)
        assert sorted(outcomes) == ["exists"] * 5 + ["made"]


def test_partitioner_shared_by_threads_keeps_its_balance(tmp_path: Path) -> None:
    """Appends without a key from many threads spread over all partitions."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 4, config_of())

        def work() -> None:
            for _ in range(200):
                topic.append(bytes(500))

        run_all(work, work, work)
        counts = [p.end_offset for p in topic]
        assert sum(counts) == 600
        assert max(counts) - min(counts) <= 66


@pytest.mark.parametrize("what", ["values", "keys", "timestamps", "headers", "arrow"])
def test_slow_iterable_keeps_nobody_waiting(tmp_path: Path, what: str) -> None:
    """Items from a socket or a queue are awaited before the partition's lock is taken:
    meanwhile others append to the same partition, and everything is synced by time,
    which one thread does for all partitions."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        topic = store.create_topic("orders", 2, config_of(2, flush_ms=5))
        partition, other = topic.partitions

        def appends_and_syncs() -> None:
            partition.append(b"durable", durable=True)
            for one in (partition, other):
                one.append(b"by time")
                while one.durable_offset < one.end_offset:
                    time.sleep(0.002)

        def slow(*items: Any) -> Any:
            for item in items:
                thread = threading.Thread(target=appends_and_syncs, daemon=True)
                thread.start()
                thread.join(20)
                assert not thread.is_alive()
                yield item

        def slow_reader() -> Any:
            pa = pytest.importorskip("pyarrow")
            schema = pa.schema([("value", pa.binary())])
            batches = (pa.record_batch([[value]], schema) for value in (b"a", b"b"))
            return pa.RecordBatchReader.from_batches(schema, slow(*batches))

        two = [b"a", b"b"]
        calls: dict[str, Callable[[], range]] = {
            "values": lambda: partition.append_many(slow(*two)),
            "keys": lambda: partition.append_many(two, slow(b"k", None)),
            "timestamps": lambda: partition.append_many(two, None, slow(1, None)),
            "headers": lambda: partition.append_many(
                two, headers=slow((), [("name", b"x")])
            ),
            "arrow": lambda: partition.append_arrow(slow_reader()),
        }
        partition.append(b"a sync of this is due")
        assert calls[what]() == range(5, 7)
        assert [record.value for record in partition.read(5)] == two


@pytest.mark.parametrize("call", ["configure", "delete_topic", "close"])
def test_first_append_beside_a_call_on_the_store_does_not_lock_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The append holds its partition and begins writing; the call holds the store and
    wants the partition."""
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")
    store = logstore.open(tmp_path)
    topic = store.topic("orders")
    partition = topic[0]
    inside, begin = threading.Event(), store._context.state.begin_writing

    def slow(**options: bool) -> None:
        if threading.current_thread() is appender:
            inside.set()
            until = time.monotonic() + 2
            is_free = True
            while is_free and time.monotonic() < until:
                with store._context.lock.attempt() as is_free:
                    pass
                time.sleep(0.001)
        begin(**options)

    monkeypatch.setattr(store._context.state, "begin_writing", slow)
    appender = threading.Thread(target=partition.append, args=(b"x",), daemon=True)
    calls = {
        "configure": lambda: topic.configure(topic.config),
        "delete_topic": lambda: store.delete_topic("orders"),
        "close": store.close,
    }
    caller = threading.Thread(target=calls[call], daemon=True)
    appender.start()
    assert inside.wait(10)
    caller.start()
    for thread in (appender, caller):
        thread.join(10)
        assert not thread.is_alive()
    store.close()


def test_collector_that_comes_while_a_file_is_opened_does_not_lock_up(
    tmp_path: Path,
) -> None:
    """It may collect a segment, which gives its file back: to a set of files whose lock
    the same thread holds."""
    with logstore.open(tmp_path) as writing:
        fill(new_partition(writing, segment_bytes=700), 40)
    files = FaultyFiles()
    got: list[logstore.Record] = []
    with open_store(tmp_path, read_only=True, _files=files) as store:
        partition = store.topic("orders")[0]
        known = partition.segments
        old = []
        for _ in known:
            segment = Segment(
                Directory.open_root(files, partition.path),
                store._context.descriptors,
                0,
                99,
                1,
            )
            assert segment.read(memoryview(bytearray(8)), 0) == 8
            old.append(segment)
        del segment

        def collect(method: str, name: str) -> None:
            if method == "open" and name.endswith(".log") and old:
                lost: list[object] = [old.pop()]
                lost.append(lost)
                del lost
                gc.collect()

        files.before = collect
        reader = threading.Thread(
            target=lambda: got.extend(partition.read()), daemon=True
        )
        reader.start()
        reader.join(120)  # each collection examines all objects left by other tests
        assert not reader.is_alive()
        assert got == expected(1, 0, 40)
        assert len(known) > 3
        # Entries for which no file was opened are still there.
        assert len(store._context.descriptors) <= len(known) + len(old)
