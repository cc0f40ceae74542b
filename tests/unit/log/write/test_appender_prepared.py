"""Appends of single records that the one before has prepared: one step of C, the same
bytes as the usual way, and the usual way whenever anything else must be done."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.errors import (
    ConfigError,
    DiskFullError,
    StorageError,
    StoreClosedError,
)
from logstore.store.opening import open_store
from support.damage import FaultyFiles
from support.prepared import (
    Prepared,
    T,
    close,
    partition_of,
    parts_of_no_log,
    unprepared,
    values,
)
from support.values import every_magic, new_partition


class Counted:
    """Counts the appends to a partition that were taken."""

    def __init__(self, partition: Any) -> None:
        self.taken = self.refused = 0
        self._append = partition._append_prepared
        # `Topic` calls one of these, users of the partition the other.
        partition._append_prepared = partition._appends.append_prepared = self

    def __call__(self, value: Any, key: Any, timestamp_ms: Any) -> int:
        offset: int = self._append(value, key, timestamp_ms)
        if offset < 0:
            self.refused += 1
        else:
            self.taken += 1
        return offset

    def last_was_taken(self, append: Callable[[], Any]) -> bool:
        before = self.taken
        append()
        return self.taken > before


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    partition = partition_of(tmp_path / "data")
    partition.append(b"first")
    yield partition
    with contextlib.suppress(StoreClosedError):
        close(partition)


def files_of(path: Path) -> dict[str, bytes]:
    """The bytes of the segments and their indexes."""
    suffixes = (".log", ".index", ".timeindex")
    found = sorted((path / "orders-0").iterdir())
    return {p.name: p.read_bytes() for p in found if p.suffix in suffixes}


# ------------------------------------------------------------------ the same bytes


@every_magic
@pytest.mark.parametrize("append_time", [False, True])
def test_prepared_appends_write_the_same_bytes_as_the_usual_way(
    tmp_path: Path, magic: int, append_time: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and keys have many lengths or are null; times go back; there are several
    segments and index entries; also when it is opened again."""
    if append_time and not magic:
        pytest.skip("magic 0 has no times")
    settings: dict[str, Any] = {"segment_bytes": 20_000, "index_interval_bytes": 700}
    if append_time:
        settings["message_timestamp_type"] = "LogAppendTime"
    found = []
    for way in ("step", "step with the lock", "usual"):
        is_prepared = way == "step"
        rng = random.Random(7)
        clock = iter(range(T, T + 10_000_000, 13))
        monkeypatch.setattr(time, "time_ns", lambda c=clock: next(c) * 1_000_000)
        path = tmp_path / way
        partition = partition_of(path, magic, **settings)
        counted = Counted(partition)
        prepared = Prepared(partition)
        prepared.is_off = way == "usual"
        lock = partition._writer._log.lock  # type: ignore[union-attr]
        if not is_prepared:
            counted._append = lambda value, key, timestamp_ms: -1
        for number in range(700):
            size = rng.choice([0, 1, 30, 200, 3000])
            value = rng.choice([None, bytes(size), b"v" * size])
            key = rng.choice([None, b"", b"k" * rng.randrange(30)])
            timestamp = T + rng.randrange(-1000, 100_000)
            if way == "step with the lock":
                with lock:
                    pass
            assert partition.append(value, key, timestamp_ms=timestamp) == number
        if is_prepared:
            assert counted.taken > 500
            assert counted.refused < 150
        if way == "step with the lock":
            assert prepared.taken == 0
            assert len([1 for one in prepared.held if one is not None]) > 500
        records = list(partition.read())
        assert [r.offset for r in records] == list(range(700))
        found.append((records, path))
        close(partition)
    left = found[0]
    for right in found[1:]:
        if append_time:  # the clock is read in all ways, but not as often
            assert [r.value for r in left[0]] == [r.value for r in right[0]]
        else:
            assert left[0] == right[0]
            assert files_of(left[1]) == files_of(right[1])
    for _, path in found:
        assert logstore.verify(path, deep=True).ok
        with logstore.open(path) as store:
            assert len(list(store.topic("orders")[0].read())) == 700


def test_lookups_use_the_entries_of_prepared_appends(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, index_interval_bytes=100)
    for number in range(500):
        partition.append(b"%d" % number, timestamp_ms=T + number)
    for number in (0, 1, 77, 498, 499):
        assert partition.get(number).value == b"%d" % number
        assert partition.offset_for_time(T + number) == number
    index = tmp_path / "orders-0" / f"{0:020d}.index"
    partition.roll()
    assert index.stat().st_size > 100 * 8


# ------------------------------------------------------------------ what ends it


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.roll(),
        lambda p: p.truncate_to(1),
        lambda p: p.delete_before(p.end_offset),
        lambda p: p._writer.configure(p._writer.context.config),
    ],
    ids=["roll", "truncate", "delete", "configure"],
)
def test_prepared_appends_end_with_the_next_use_of_the_lock(
    partition: logstore.Partition, change: Callable[[logstore.Partition], object]
) -> None:
    """The next record goes the usual way, and prepares again."""
    counted = Counted(partition)
    assert counted.last_was_taken(lambda: partition.append(b"second"))
    change(partition)
    before = partition.end_offset
    assert not counted.last_was_taken(lambda: partition.append(b"third"))
    assert counted.last_was_taken(lambda: partition.append(b"fourth"))
    assert partition.end_offset == before + 2
    assert values(partition)[-2:] == [b"third", b"fourth"]


def test_syncs_do_not_end_prepared_appends(partition: logstore.Partition) -> None:
    counted = Counted(partition)
    for number in range(1, 100):
        partition.append(b"%d" % number, durable=number % 3 == 0)
        if number % 7 == 0:
            partition.flush()
        if number % 3 == 0 or number % 7 == 0:
            assert partition.durable_offset == number + 1
    assert counted.refused == 0
    assert values(partition)[1:] == [b"%d" % n for n in range(1, 100)]


def test_sync_that_fails_ends_prepared_appends(partition: logstore.Partition) -> None:
    partition.append(b"second")
    null = os.open("/dev/null", os.O_RDWR)  # takes all, and syncs nothing
    os.dup2(null, partition._writer._log.active.writer.fd)  # type: ignore[union-attr]
    os.close(null)
    with pytest.raises(
        logstore.errors.SyncFailedError, match="offset 0 to 2 may be lost"
    ):
        partition.append(b"third", durable=True)
    for _ in range(2):
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.append(b"fourth")
    assert partition.end_offset == 3


def test_durable_append_inside_of_a_sync_is_refused_before_it_writes(
    tmp_path: Path,
) -> None:
    files, refused = FaultyFiles(), []

    def call_inside(method: str, name: str) -> None:
        if not refused and (method, name[-4:]) == ("sync", ".log"):
            with pytest.raises(logstore.errors.ReentrantCallError) as caught:
                partition.append(b"inside", durable=True)
            refused.append(caught.value)

    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        partition.append(b"first")
        files.before = call_inside
        partition.append(b"second", durable=True)
        assert refused
        assert values(partition) == [b"first", b"second"]


def test_durable_append_of_a_thread_that_syncs_is_refused_before_it_writes(
    partition: logstore.Partition,
) -> None:
    """This holds even if it holds no lock: between its turn and the sync. An append
    that is not durable, and would sync because of the number of records, leaves that to
    others."""
    syncs: Any = partition._writer.syncs  # type: ignore[union-attr]
    with syncs._turns.take(0) as is_mine:
        assert is_mine
        with pytest.raises(
            logstore.errors.ReentrantCallError, match="nothing was written"
        ):
            partition.append(b"inside", durable=True)
        with pytest.raises(
            logstore.errors.ReentrantCallError, match="nothing was written"
        ):
            partition.append_many([b"inside"], durable=True)
        syncs.sync_appended(partition.end_offset, False)
    assert values(partition) == [b"first"]
    assert partition.append(b"second", durable=True) == 1


def test_reads_do_not_end_prepared_appends(partition: logstore.Partition) -> None:
    counted = Counted(partition)
    for number in range(1, 50):
        partition.append(b"%d" % number)
        assert partition.get(number).value == b"%d" % number
        assert len(list(partition.fetch(0))) == number + 1
        assert partition.end_offset == number + 1
    assert counted.refused == 0


@pytest.mark.parametrize(
    ("value", "key", "named"),
    [
        (bytearray(b"x"), None, {}),
        (b"x", memoryview(b"y"), {}),
        (b"x", None, {"timestamp_ms": -1}),
        (b"x", None, {"expected_offset": 1}),
        (bytes(70_000), None, {}),
    ],
    ids=["bytearray", "memoryview", "no-time", "expected", "large"],
)
def test_other_records_go_the_usual_way(
    partition: logstore.Partition, value: Any, key: Any, named: dict[str, Any]
) -> None:
    counted = Counted(partition)
    assert not counted.last_was_taken(lambda: partition.append(value, key, **named))
    assert partition.get(1).value == bytes(value)


@pytest.mark.parametrize(
    ("value", "named", "error"),
    [
        ("text", {}, TypeError),
        (5, {}, TypeError),
        (b"x", {"timestamp_ms": -2}, ConfigError),
        (b"x", {"timestamp_ms": 1 << 63}, ConfigError),
        (b"x", {"timestamp_ms": "now"}, TypeError),
    ],
)
def test_wrong_arguments_raise_as_in_the_usual_way(
    partition: logstore.Partition, value: Any, named: dict[str, Any], error: type
) -> None:
    with pytest.raises(error, match="nothing was written"):
        partition.append(value, **named)
    assert values(partition) == [b"first"]


def test_record_above_the_limit_of_its_topic_raises(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, max_message_bytes=200)
    partition.append(b"x")
    with pytest.raises(logstore.errors.RecordTooLargeError):
        partition.append(bytes(300))
    assert partition.end_offset == 1


def test_syncs_come_after_as_many_records_as_the_topic_says(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, flush_messages=10)
    durable = []
    for _ in range(35):
        partition.append(b"x")
        durable.append(partition.durable_offset)
    assert durable == [n // 10 * 10 for n in range(1, 36)]


def test_syncs_come_in_time(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, flush_ms=20)
    for _ in range(3):
        for _ in range(5):
            partition.append(b"x")
        deadline = time.monotonic() + 20
        while partition.durable_offset < partition.end_offset:
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_closed_store_takes_no_prepared_append(partition: logstore.Partition) -> None:
    partition.append(b"second")
    close(partition)
    with pytest.raises(StoreClosedError):
        partition.append(b"third")


def test_failure_in_the_background_is_raised_by_the_next_append(
    partition: logstore.Partition,
) -> None:
    failure = StorageError("retention failed", action="delete", path="x")
    partition._writer.context.services.unreported.append(failure)  # type: ignore
    with pytest.raises(StorageError, match="retention failed"):
        partition.append(b"second")
    assert partition.append(b"second") == 1


def test_failure_that_comes_during_a_durable_append_is_raised_by_the_next_one(
    partition: logstore.Partition,
) -> None:
    """The record is in the log: its append makes it durable, and returns."""
    writer: Any = partition._writer
    turns, services = writer.syncs._turns, writer.context.services
    found: list[int] = []
    thread = threading.Thread(
        target=lambda: found.append(partition.append(b"second", durable=True))
    )
    with turns.take(0):
        thread.start()
        deadline = time.monotonic() + 20
        while not turns.waiting:
            assert time.monotonic() < deadline
        services.unreported.append(StorageError("failed", action="delete", path="x"))
    thread.join(20)
    assert found == [1]
    assert partition.durable_offset == 2
    with pytest.raises(StorageError, match="failed"):
        partition.append(b"third", durable=True)


def test_suspended_partition_takes_no_prepared_append(
    partition: logstore.Partition,
) -> None:
    writer: Any = partition._writer
    writer.health.suspended = StorageError("not now", action="append", path="x")
    writer.health.is_blocked = True
    with pytest.raises(StorageError, match="not now"):
        partition.append(b"second")
    writer.resume()
    assert partition.append(b"second") == 1


def test_waiting_reader_is_woken(partition: logstore.Partition) -> None:
    found: list[bytes | None] = []

    def follow() -> None:
        for record in partition.follow(1, timeout=20):
            found.append(record.value)
            if record.value == b"end":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(300):
        partition.append(b"%d" % number)
        if number % 100 == 0:
            time.sleep(0.02)
    partition.append(b"end")
    thread.join(20)
    assert found == [*(b"%d" % n for n in range(300)), b"end"]


def test_threads_append_at_once(partition: logstore.Partition) -> None:
    """Each record is there once, at the returned offset."""
    offsets: dict[int, bytes] = {}

    def append(name: int) -> None:
        for number in range(500):
            value = b"%d-%d" % (name, number)
            offsets[partition.append(value)] = value
            if number % 50 == 0:
                partition.flush()

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.offset: r.value for r in partition.read(1)} == offsets
    assert len(offsets) == 2000


# ------------------------------------------------------------ --- calls in between


def test_finalizers_that_append_between_keep_the_order(
    partition: logstore.Partition,
) -> None:
    """The garbage collector may run whenever an object is created."""
    inner: list[int] = []

    class Late:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            if len(inner) < 200:
                inner.append(partition.append(b"inner"))

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        outer = []
        for _ in range(300):
            Late()
            outer.append(partition.append(b"outer"))
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert inner
    assert values(partition)[1:].count(b"outer") == 300
    assert sorted(inner + outer) == list(range(1, partition.end_offset))
    assert all(partition.get(n).value == b"inner" for n in inner)


@pytest.mark.parametrize("answer", [OSError("no clock"), "late", -5])
def test_clock_that_fails_writes_nothing(
    partition: logstore.Partition, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append(b"second")

    def time_ns() -> Any:
        if isinstance(answer, OSError):
            raise answer
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(time, "time_ns", time_ns)
        if isinstance(answer, int):
            partition.append(b"third")  # the usual way may take any time
        else:
            with pytest.raises((OSError, TypeError)):
                partition.append(b"third")
    assert values(partition)[:2] == [b"first", b"second"]
    assert partition.append(b"fourth") == partition.end_offset - 1


def test_write_that_is_cut_short_is_undone(tmp_path: Path) -> None:
    """The limit of the file size is reached in the middle of a record, whose space is
    reserved already: the log is unchanged, the next append continues after the last
    record."""
    partition = partition_of(tmp_path)
    for _ in range(10):
        partition.append(bytes(100))
    counted = Counted(partition)
    size = partition.segments[0].size_bytes
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, before[1]))
    try:
        for _ in range(3):
            with pytest.raises((DiskFullError, StorageError)):
                partition.append(b"lost" * 25)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert counted.taken == 0
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    assert b"lost" not in log.read_bytes()
    for number in range(3):
        assert partition.append(b"kept") == 10 + number
    assert counted.taken == 2
    assert values(partition)[10:] == [b"kept"] * 3
    close(partition)
    assert logstore.verify(tmp_path).ok


def test_child_of_a_fork_takes_no_prepared_append(
    partition: logstore.Partition,
) -> None:
    partition.append(b"second")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            partition.append(b"third")
        except logstore.errors.ForkedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert values(partition) == [b"first", b"second"]
    assert partition.append(b"third") == 2


# ------------------------------------------------------------------ PreparedAppend


def test_prepared_append_without_preparation_takes_nothing() -> None:
    prepared = unprepared()
    assert prepared.append(b"x", None, None) == -1
    prepared.clear()
    assert prepared.append(b"x", None, None) == -1


def test_prepared_append_keeps_the_state_that_it_reads(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, 1)
    partition.append(b"first")
    log: Any = partition._writer.appends._log  # type: ignore[union-attr]
    active = log.active
    facts = active._facts
    assert facts in gc.get_referents(active.prepared)
    assert active.writer.state in gc.get_referents(facts)
    # A call that is undone gives the writer another state.
    saved = active.writer.state
    with log.lock:
        active.writer.back_to(active.writer.mark())
    assert active.writer.state is not saved
    assert saved in gc.get_referents(facts)
    partition.append(b"second")
    assert active.writer.state in gc.get_referents(facts)
    assert saved not in gc.get_referents(facts)
    assert values(partition) == [b"first", b"second"]


@pytest.mark.parametrize("arguments", [(), (b"x",), (b"x", None, None, None)])
def test_prepared_append_takes_three_arguments(arguments: tuple[Any, ...]) -> None:
    prepared = unprepared()
    with pytest.raises(TypeError):
        prepared.append(*arguments)
    with pytest.raises(TypeError):
        prepared.prepare(*arguments, None)


def test_prepared_append_of_wrong_parts_raises() -> None:
    right = parts_of_no_log()
    native.PreparedAppend(*right)
    others: dict[int, Any] = {
        0: object(), 1: object(), 2: threading.Lock(), 4: list, 5: [], 6: (), 8: None,
    }  # fmt: skip
    for at, other in others.items():
        with pytest.raises(TypeError):
            native.PreparedAppend(*right[:at], other, *right[at + 1 :])
    with pytest.raises(TypeError):
        native.PreparedAppend(*right[:3])


def test_prepare_takes_parts_with_the_fields_of_steps() -> None:
    prepared = unprepared()
    right: list[Any] = [
        native.WriterFields(), native.SegmentFields(), native.EntriesFields(),
        native.EntriesFields(),
    ]  # fmt: skip
    for at in range(4):
        with pytest.raises(TypeError):
            prepared.prepare(*right[:at], object(), *right[at + 1 :])
    prepared.prepare(*right)
    assert set(map(id, right)) <= set(map(id, gc.get_referents(prepared)))
    prepared.clear()


def test_prepared_appends_leave_nothing_behind(partition: logstore.Partition) -> None:
    """No references remain to values, keys and the objects that the log replaces with
    each record."""
    value, key = b"a value of its own", b"a key of its own"
    for _ in range(100):
        partition.append(value, key)
    gc.collect()
    before = len(gc.get_objects())
    counted = Counted(partition)
    for _ in range(2000):
        partition.append(value, key)
    gc.collect()
    assert counted.taken > 1900
    assert len(gc.get_objects()) - before < 100


@every_magic
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_metadata_have_the_timestamps_that_are_stored(
    tmp_path: Path, magic: int, kind: str
) -> None:
    """Appends to a topic are prepared, too."""
    if kind == "LogAppendTime" and not magic:
        pytest.skip("magic 0 has no times")
    config = logstore.TopicConfig(message_format=magic, message_timestamp_type=kind)
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=2, config=config)
        counted = [Counted(partition) for partition in topic]
        found = []
        for number in range(60):
            named = {} if number % 3 else {"timestamp_ms": T + number}
            if number % 5 == 0:
                named["durable"] = True
            key = b"%d" % number if number % 2 else None
            found.append(topic.append(b"v", key, **named))
        for metadata in found:
            record = topic[metadata.partition].get(metadata.offset)
            assert record.timestamp_ms == metadata.timestamp_ms
        if kind == "CreateTime":
            assert sum(each.taken for each in counted) > 30
