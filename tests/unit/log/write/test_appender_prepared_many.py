"""Small appends of many records that the one before has prepared: one step of C, the
same bytes as the usual way, and the usual way whenever anything else must be done."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit._native.kafka_bytes import message

import logstore
from logstore import _native as native
from logstore.errors import ConfigError, OffsetConflictError, StorageError
from support.prepared import (
    WAYS,
    Prepared,
    Rows,
    T,
    arrow,
    close,
    files_of,
    lists,
    partition_of,
    random_rows,
    unprepared,
    values,
)
from support.values import every_magic


@pytest.fixture
def partition(tmp_path: Path) -> Iterator[logstore.Partition]:
    partition = partition_of(tmp_path / "data")
    partition.append_many([b"first"])
    yield partition
    close(partition)


# ------------------------------------------------------------------ the same log


@pytest.mark.sampled(9)
@every_magic
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("append_time", [False, True])
def test_prepared_appends_write_the_same_bytes_as_the_usual_way(
    tmp_path: Path,
    magic: int,
    way: Callable[[Any, Rows], range],
    append_time: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and keys have many lengths or are null; times go back; there are calls of
    several batches, several segments, index entries."""
    settings: dict[str, Any] = {"segment_bytes": 1 << 20, "index_interval_bytes": 700}
    if append_time and not magic:
        pytest.skip("magic 0 has no times")
    if append_time:
        settings["message_timestamp_type"] = "LogAppendTime"
        monkeypatch.setattr(time, "time_ns", lambda: T * 1_000_000)
    found = []
    for is_prepared in (True, False):
        rng = random.Random(7)
        path = tmp_path / str(is_prepared)
        partition = partition_of(path, magic, **settings)
        prepared = Prepared(partition)
        prepared.is_off = not is_prepared
        rows: list[Any] = []
        for _ in range(60):
            more = random_rows(rng)
            at = len(rows)
            rows += zip(*more, strict=True)
            assert way(partition, more) == range(at, len(rows))
        assert prepared.taken > 25 if is_prepared else not prepared.taken
        read = [(r.value, r.key, r.timestamp_ms) for r in partition.read()]
        stamp = -1 if not magic else T if append_time else None
        assert read == [(v, k, t if stamp is None else stamp) for v, k, t in rows]
        assert len(partition.segments) > 2
        close(partition)
        assert logstore.verify(path, deep=True).ok
        found.append(files_of(path))
    assert found[0] == found[1]


@every_magic
@pytest.mark.parametrize("way", WAYS)
def test_calls_without_keys_and_times(
    tmp_path: Path, magic: int, way: Callable[[Any, Rows], range]
) -> None:
    partition = partition_of(tmp_path, magic)
    prepared = Prepared(partition)
    before = time.time_ns() // 1_000_000
    for _ in range(3):
        if way is arrow:
            partition.append_arrow(pa.record_batch({"value": pa.array([b"a", None])}))
        else:
            partition.append_many([b"a", None] if way is lists else (b"a", None))
    assert prepared.taken == 2
    assert values(partition) == [b"a", None] * 3
    for record in partition.read():
        assert record.key is None
        if magic:
            assert before <= record.timestamp_ms <= time.time_ns() // 1_000_000
    close(partition)


# ------------------------------------------------------------------ ------ combinations


def test_single_records_and_many_prepare_each_other(
    partition: logstore.Partition,
) -> None:
    prepared = Prepared(partition)
    for number in range(20):
        assert partition.append(b"one") == 1 + 3 * number
        assert partition.append_many([b"two", b"three"]).stop == 4 + 3 * number
    assert prepared.refused == 0
    assert values(partition)[1:] == [b"one", b"two", b"three"] * 20


def test_syncs_do_not_end_prepared_appends(partition: logstore.Partition) -> None:
    prepared = Prepared(partition)
    for number in range(1, 30):
        partition.append_many([b"x", b"y"], durable=number % 3 == 0)
        if number % 3 == 0:
            assert partition.durable_offset == partition.end_offset
    assert prepared.refused == 0


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
    prepared = Prepared(partition)
    partition.append_many([b"second", b"third"])
    assert prepared.taken == 1
    change(partition)
    end = partition.end_offset
    assert partition.append_many([b"a", b"b"]) == range(end, end + 2)
    assert prepared.taken == 1
    assert partition.append_many([b"c", b"d"]) == range(end + 2, end + 4)
    assert prepared.taken == 2
    assert values(partition)[-4:] == [b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    ("columns", "named"),
    [
        (([bytes(1000)] * 300,), {}),
        (([b""] * 9000,), {}),
    ],
    ids=["bytes", "rows"],
)
def test_others_go_the_usual_way(
    partition: logstore.Partition, columns: Any, named: dict[str, Any]
) -> None:
    prepared = Prepared(partition)
    end = partition.append_many(*columns, **named).stop
    assert prepared.taken == 0
    assert partition.end_offset == end > 2


@pytest.mark.parametrize(
    "columns",
    [
        ([b"x", bytearray(b"y")],),
        ([b"x", b"y"], [b"k", memoryview(b"y")]),
        ([b"x", b"y"], None, [T, None]),
        (iter([b"x", b"y"]),),
    ],
    ids=["bytearray", "memoryview", "no-time", "iterator"],
)
def test_what_python_has_to_pack_is_one_step_behind_that(
    partition: logstore.Partition, columns: Any
) -> None:
    prepared = Prepared(partition)
    assert partition.append_many(*columns) == range(1, 3)
    assert (prepared.taken, prepared.refused) == (1, 1)
    assert values(partition)[1:] == [b"x", b"y"]
    assert {r.timestamp_ms for r in partition.read(1)} != {0}


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        (([b"x", "text"],), TypeError),
        (([b"x", b"y"], [b"k"]), ConfigError),
        (([b"x", b"y"], None, [T, -2]), ConfigError),
        (([b"x", b"y"], None, [T, 1 << 63]), ConfigError),
        (([b"x", b"y"], None, [T, "now"]), TypeError),
        ((b"xy",), TypeError),
    ],
)
def test_wrong_arguments_raise_as_in_the_usual_way(
    partition: logstore.Partition, columns: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        partition.append_many(*columns)
    assert values(partition) == [b"first"]


@every_magic
@pytest.mark.parametrize("way", WAYS)
def test_record_above_the_limit_of_its_topic_raises(
    tmp_path: Path, magic: int, way: Callable[[Any, Rows], range]
) -> None:
    """A record that just fits is taken: the limits equal the limits of the usual
    way."""
    partition = partition_of(tmp_path, magic, max_message_bytes=300)
    fixed = partition.append_many([b"x"] * 2) and {0: 26, 1: 34, 2: 70}[magic]
    prepared = Prepared(partition)
    for size, fits in ((300 - fixed, True), (301 - fixed, False)):
        rows = ([b"x", bytes(size), b"y"], [b""] * 3, [T] * 3)
        before = partition.end_offset
        if fits:
            assert way(partition, rows) == range(before, before + 3)
            assert prepared.taken == 1
        else:
            with pytest.raises(logstore.errors.RecordTooLargeError):
                way(partition, rows)
            assert partition.end_offset == before
    close(partition)
    assert logstore.verify(tmp_path, deep=True).ok


def test_another_end_than_the_expected_raises(partition: logstore.Partition) -> None:
    with pytest.raises(OffsetConflictError):
        partition.append_many([b"x"], expected_offset=5)
    assert values(partition) == [b"first"]


def test_syncs_come_after_as_many_records_as_the_topic_says(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, flush_messages=10)
    durable = []
    for _ in range(12):
        partition.append_many([b"x"] * 3)
        durable.append(partition.durable_offset)
    assert durable == [0, 0, 0, 12, 12, 12, 12, 24, 24, 24, 24, 36]
    close(partition)


def test_failure_in_the_background_is_raised_by_the_next_append(
    partition: logstore.Partition,
) -> None:
    failure = StorageError("retention failed", action="delete", path="x")
    partition._writer.context.services.unreported.append(failure)  # type: ignore
    with pytest.raises(StorageError, match="retention failed"):
        partition.append_many([b"second"])
    assert partition.append_many([b"second"]) == range(1, 2)


def test_waiting_reader_is_woken(partition: logstore.Partition) -> None:
    found: list[bytes | None] = []

    def follow() -> None:
        for record in partition.follow(1, timeout=20):
            found.append(record.value)
            if record.value == b"end":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for number in range(100):
        partition.append_many([b"%d" % number] * 3)
        if number % 30 == 0:
            time.sleep(0.02)
    partition.append_many([b"end"])
    thread.join(20)
    assert found == [*(b"%d" % n for n in range(100) for _ in range(3)), b"end"]


# ------------------------------------------------------------ --- calls in between


def test_lists_that_change_while_the_clock_is_read(
    partition: logstore.Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their content after the clock was read is taken, or refused; never anything
    else."""
    rng = random.Random(3)
    outcomes = set()
    for _ in range(300):
        columns: list[Any] = [[b"v%d" % n for n in range(5)], [b"k"] * 5, [T] * 5]
        how = rng.randrange(4)
        one = rng.choice(columns)

        def time_ns(how: int = how, one: list[Any] = one) -> int:
            if how == 0:
                one.clear()
            elif how == 1:
                one.append(one[0])
            elif how == 2:
                one[1] = "text"
            monkeypatch.undo()
            return T * 1_000_000

        before = partition.end_offset
        monkeypatch.setattr(time, "time_ns", time_ns)
        try:
            offsets = partition.append_many(*columns)
        except (TypeError, ConfigError):
            offsets = range(before, before)
        finally:
            monkeypatch.undo()
        outcomes.add((how, len(offsets)))
        assert partition.end_offset == offsets.stop
        read = [(r.value, r.key) for r in partition.read(before)]
        if len(offsets):
            assert read == list(zip(columns[0], columns[1], strict=True))
    assert (3, 5) in outcomes
    assert {how for how, count in outcomes if count == 0} >= {0, 1, 2}


def test_clock_that_appends_itself(
    partition: logstore.Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The offsets of the outer call were known before the inner one."""
    inner: list[range] = []

    def time_ns() -> int:
        if len(inner) < 1:
            inner.append(range(0))
            inner.append(partition.append_many([b"inner"] * 2))
        return T * 1_000_000

    monkeypatch.setattr(time, "time_ns", time_ns)
    outer = partition.append_many([b"outer"] * 3)
    assert inner[1] == range(1, 3)
    assert outer == range(3, 6)
    assert values(partition)[1:] == [b"inner"] * 2 + [b"outer"] * 3


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
                inner.extend(partition.append_many([b"inner"] * 2))

    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        outer: list[int] = []
        for _ in range(300):
            Late()
            outer += partition.append_many([b"outer"] * 3)
    finally:
        gc.set_threshold(*before)
        gc.collect()
    assert inner
    assert sorted(inner + outer) == list(range(1, partition.end_offset))
    assert all(partition.get(n).value == b"inner" for n in inner)
    assert all(partition.get(n).value == b"outer" for n in outer)


def test_threads_append_at_once(partition: logstore.Partition) -> None:
    """The records of a call are consecutive, at the returned offsets."""
    offsets: dict[int, bytes] = {}

    def append(name: int) -> None:
        for number in range(300):
            column = [b"%d-%d-%d" % (name, number, n) for n in range(4)]
            offsets.update(zip(partition.append_many(column), column, strict=True))
            if number % 50 == 0:
                partition.flush()

    threads = [threading.Thread(target=append, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {r.offset: r.value for r in partition.read(1)} == offsets
    assert len(offsets) == 4800


# ------------------------------------------------------------------ what fails


@pytest.mark.parametrize("missing", [1, 50, 150, 5000, 0], ids=str)
@every_magic
def test_write_that_is_cut_short_is_undone(
    tmp_path: Path, magic: int, missing: int
) -> None:
    """The limit of the file size is reached within the records, whose space is reserved
    already: nothing of them stays, the next call continues after the last one."""
    partition = partition_of(tmp_path, magic)
    for _ in range(10):
        partition.append_many([bytes(1000)] * 20)
    prepared = Prepared(partition)
    size = partition.segments[0].size_bytes
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + missing, before[1]))
    try:
        for _ in range(3):
            with pytest.raises((logstore.DiskFullError, StorageError)):
                partition.append_many([b"lost" * 1000] * 40)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, was)
    assert prepared.taken == 0
    log = tmp_path / "orders-0" / f"{0:020d}.log"
    assert b"lost" not in log.read_bytes()
    for number in range(3):
        end = 200 + 2 * number
        assert partition.append_many([b"kept"] * 2) == range(end, end + 2)
    assert values(partition)[200:] == [b"kept"] * 6
    close(partition)
    assert logstore.verify(tmp_path, deep=True).ok


KILLED = """
import os, sys, logstore
config = logstore.TopicConfig(message_format=int(sys.argv[2]), flush_messages=1 << 40)
topic = logstore.open(sys.argv[1]).create_topic("orders", partitions=1, config=config)
partition = topic[0]
number = 0
while True:
    column = [b"%06d" % number + b"x" * 3000] * 60
    os.write(1, b"%d\\n" % partition.append_many(column).stop)
    number += 1
"""


@every_magic
def test_killed_process_leaves_whole_calls(tmp_path: Path, magic: int) -> None:
    """Calls of 180 kB are several batches: each call is in as a whole, or not at all;
    and all that have returned are in."""
    for round_ in range(5):
        path = tmp_path / str(round_)
        arguments = [sys.executable, "-c", KILLED, str(path), str(magic)]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(20):
                child.stdout.readline()
            time.sleep(0.003 * round_)
            child.kill()
            told = child.stdout.read().split(b"\n")[:-1]
        with logstore.open(path) as store:
            partition = store.topic("orders")[0]
            assert partition.end_offset % 60 == 0
            assert not told or partition.end_offset >= int(told[-1])
            for at, value in enumerate(values(partition)):
                assert value is not None
                assert int(value[:6]) == at // 60


def test_child_of_a_fork_takes_no_prepared_append(
    partition: logstore.Partition,
) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            partition.append_many([b"second"])
        except logstore.errors.ForkedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert partition.append_many([b"second"]) == range(1, 2)


# ------------------------------------------------------------------ PreparedAppend


def test_prepared_append_without_preparation_takes_nothing() -> None:
    rows = native.EncodedColumns(1, None, native.Slices.of_bytes([b"x"]))
    assert unprepared().append_many([b"x"], None, None) is None
    for is_held in (False, True):
        assert unprepared().append_rows(rows.address, -1, is_held) is None
    assert unprepared().append_batches(message(0, None, b"x"), True) is None
    with pytest.raises(TypeError):
        unprepared().append_batches(message(0, None, b"x"))  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        unprepared().watch()  # type: ignore[call-arg]


@pytest.mark.parametrize("arguments", [(), ([b"x"],), ([b"x"], None, None, None)])
def test_append_many_takes_three_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        unprepared().append_many(*arguments)


@pytest.mark.parametrize("address", [None, "0", -1, 1 << 64])
def test_append_rows_takes_an_address(address: Any) -> None:
    with pytest.raises((TypeError, OverflowError)):
        unprepared().append_rows(address, -1, False)


@pytest.mark.parametrize("rest", [(), (-1,), (1 << 63, False), (-1, False, None)])
def test_append_rows_takes_a_base_offset_and_whether_the_lock_is_held(
    rest: tuple[Any, ...],
) -> None:
    with pytest.raises((TypeError, OverflowError)):
        unprepared().append_rows(0, *rest)


def test_rows_at_the_expected_offset_are_one_step(
    partition: logstore.Partition,
) -> None:
    """An empty call is accepted; a wrong offset raises the error of the usual way."""
    prepared = Prepared(partition)
    assert partition.append_many([b"x", b"y"], expected_offset=1) == range(1, 3)
    assert partition.append(b"z", expected_offset=3) == 3
    assert (prepared.taken, prepared.refused) == (2, 0)
    assert partition.append_many([], expected_offset=4) == range(4, 4)
    for wrong in (-1, 3, 5, 1 << 70):
        with pytest.raises(OffsetConflictError):
            partition.append(b"w", expected_offset=wrong)
    assert values(partition) == [b"first", b"x", b"y", b"z"]


def test_rows_that_do_not_begin_at_the_expected_offset_are_not_taken(
    partition: logstore.Partition,
) -> None:
    """They are refused, too, if the thread says wrongly that it has the lock: that ends
    the steps."""
    prepared: Any = partition._prepared
    rows = native.EncodedColumns(
        2, None, native.Slices.of_bytes([b"x", b"y"]), timestamp_all=T
    )
    for base in (0, 2, 1 << 40):
        assert prepared.append_rows(rows.address, base, False) is None
    assert prepared.append_rows(rows.address, 1, False) == range(1, 3)
    assert prepared.append_rows(rows.address, -1, False) == range(3, 5)
    assert prepared.append_rows(rows.address, 5, True) is None
    assert prepared.append_rows(rows.address, 5, False) is None
    assert values(partition) == [b"first", b"x", b"y", b"x", b"y"]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_append_with_the_lock_is_a_step_as_well(tmp_path: Path, magic: int) -> None:
    """It comes after any other holder of the lock, and is no step at the first append
    of all. It wakes waiting readers, and the next append needs no lock."""
    partition = partition_of(tmp_path, magic)
    log: Any = partition._writer.appends._log  # type: ignore[union-attr]
    prepared = Prepared(partition)
    assert partition.append(b"a", b"k") == 0
    assert (prepared.refused, prepared.held) == (1, [])
    for number in range(1, 4):
        with log.lock:
            waiter = log.appended.register()
        assert partition.append(b"b", b"k", timestamp_ms=T + number) == 2 * number - 1
        assert waiter.wait(0)
        assert prepared.refused == number + 1
        assert prepared.held.pop() == range(2 * number - 1, 2 * number)
        assert partition._append_prepared(b"c", None, T) == 2 * number
    expected = [b"a"] + [b"b", b"c"] * 3
    assert values(partition) == expected
    close(partition)
    with logstore.open(tmp_path) as store:
        assert values(store["orders"][0]) == expected


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_rows_with_a_key_are_one_step_in_a_compacted_topic(
    tmp_path: Path, magic: int
) -> None:
    """Other rows raise, in any of the ways, and change nothing."""
    partition = partition_of(tmp_path, magic, cleanup_policy="compact")
    partition.append(b"first", b"k")
    prepared = Prepared(partition)
    assert partition._append_prepared(b"x", b"", None) == 1
    assert partition.append_many([b"y", b"z"], [b"k", b"l"]) == range(2, 4)
    assert prepared.taken == 1
    assert partition._append_prepared(b"x", None, None) == -1
    for call in (
        lambda: partition.append(b"x"),
        lambda: partition.append(bytearray(b"x")),
        lambda: partition.append_many([b"x"]),
        lambda: partition.append_many([b"x", b"y"], [b"k", None]),
    ):
        with pytest.raises(logstore.errors.InvalidRecordError, match="has no key"):
            call()
    assert values(partition) == [b"first", b"x", b"y", b"z"]


@pytest.mark.parametrize("way", [lists, arrow])
def test_prepared_appends_leave_nothing_behind(
    partition: logstore.Partition, way: Callable[[Any, Rows], range]
) -> None:
    """No references remain to values, keys and the objects that the log replaces with
    each call."""
    rows: Rows = ([b"a value of its own"] * 3, [b"a key of its own"] * 3, [T] * 3)
    gc.collect()
    before = [sys.getrefcount(column[0]) for column in rows]
    for _ in range(100):
        way(partition, rows)
    gc.collect()
    objects = len(gc.get_objects())
    prepared = Prepared(partition)
    for _ in range(2000):
        way(partition, rows)
    gc.collect()
    assert prepared.taken > 1900
    assert len(gc.get_objects()) - objects < 100
    assert [sys.getrefcount(column[0]) for column in rows] == before
