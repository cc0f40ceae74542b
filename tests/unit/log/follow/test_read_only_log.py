"""Following a log, in the writer's process and in other processes."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetOutOfRangeError, TopicNotFoundError
from logstore.store.opening import open_store
from support.damage import (
    CoarseTimes,
    FaultyFiles,
    Unsynced,
    append_garbage,
    crash,
    cut,
    frames,
    logs_in,
    stop_syncs,
)
from support.levels import stride
from support.read_ways import beside
from support.values import (
    append_one,
    append_records,
    config_of,
    every_format,
    expected,
    fill,
    new_partition,
    read_all,
)


def follower(path: Path, **options: object) -> logstore.Partition:
    """A reader of orders-0, as in another process."""
    return open_store(path, read_only=True, **options).topic("orders")[0]


@every_format
def test_reader_sees_each_append_at_once(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Every other reader sees appended records, across rolls."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, segment_bytes=500)
        reader = follower(tmp_path)
        for count in range(1, 60, 3):
            append_records(partition, 3)
            assert reader.end_offset == count + 2
            assert list(reader.read(count - 1)) == expected(magic, count - 1, count + 2)
        assert list(reader.read()) == expected(magic, 0, reader.end_offset)
        assert len(reader.segments) == len(partition.segments)


@pytest.mark.parametrize("step_ns", [1, 10**7, 10**18], ids="step{}".format)
def test_reader_sees_rolls_however_coarse_modification_times_are(
    tmp_path: Path, step_ns: int
) -> None:
    """A directory may have changed although its time stamp did not."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=150)
        append_one(partition)
        reader = follower(tmp_path, _files=CoarseTimes(step_ns))
        for end in range(1, 40):
            assert reader.end_offset == end
            append_one(partition)
        assert list(reader.read()) == expected(1, 0, 40)


@every_format
def test_half_a_batch_at_the_tail_is_not_there_yet(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A reader that looks while the file grows byte by byte sees whole batches only:
    never an error, never half a batch."""
    with logstore.open(tmp_path / "whole") as store:
        fill(new_partition(store, magic, codec), 15)
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store, magic, codec), 10)
        reader = follower(tmp_path / "live")
        source = logs_in(tmp_path / "whole" / "orders-0")[0].read_bytes()
        log = logs_in(tmp_path / "live" / "orders-0")[0]
        size = log.stat().st_size
        assert source[:size] == log.read_bytes()
        for end in range(size, len(source) + 1):
            append_garbage(log, source[end - 1 : end] if end > size else b"")
            count = reader.end_offset
            assert 10 <= count <= 15
            if end in (size, len(source)) or end % 16 == 0:
                assert list(reader.read(9)) == expected(magic, 9, count)
        assert reader.end_offset == 15
        cut(log, size)


def test_file_that_shrinks_under_a_reader_is_an_error_not_a_crash(
    tmp_path: Path,
) -> None:
    """The error names the offset of the missing bytes."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 9000, call=3000)
    partition = follower(tmp_path)
    records = partition.read()
    found = [next(records)]
    log = logs_in(tmp_path / "orders-0")[0]
    cut(log, frames(log)[8000].pos)
    with pytest.raises(logstore.CorruptRecordError) as caught:
        for record in records:
            found.append(record)
    assert found == expected(1, 0, len(found))
    assert caught.value.offset == len(found)


# Calls with more than one write: several runs in a segment, several segments.
MANY: dict[str, Callable[[logstore.Partition], object]] = {
    "runs": lambda p: p.append_many([bytes(60_000)] * 30),
    "segments": lambda p: append_records(p, 30, seed=1),
}
CHANGING = (
    "create",
    "rename",
    "reserve",
    "sync",
    "sync_directory",
    "truncate",
    "write",
)


class Watched(FaultyFiles):
    """Readers look before each call that changes something; the n-th of these calls
    fails (a write, when it is done), or is interrupted.

    Attributes:
        left: how many such calls are left until then.
        ends: ends of the log that the readers saw.
    """

    def __init__(self, nth: int, error: BaseException) -> None:
        super().__init__()
        self.left = nth
        self.ends: set[int] = set()
        self._error = error
        self._readers: list[logstore.Partition] = []
        self._path = Path()

    def let_look(self, path: Path, *readers: logstore.Partition) -> None:
        """From now on let these readers look, and one that opens the store at that
        moment."""
        self._path, self._readers = path, [*readers]
        self.before = self._look

    def _look(self, method: str, name: str) -> None:
        if method not in CHANGING:
            return
        self.before = None  # readers make calls, too
        for reader in (*self._readers, follower(self._path)):
            self.ends.add(len(list(reader.follow(timeout=0))))
            self.ends.add(reader.end_offset)
        self.before = self._look
        self.left -= 1
        if self.left == 0 and isinstance(self._error, OSError):
            self.fail(method, errno.EIO, times=1, done=method == "write")
        elif self.left == 0:
            raise self._error


@pytest.mark.parametrize(
    "error", [OSError(), KeyboardInterrupt()], ids=["fails", "is interrupted"]
)
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("call", MANY)
def test_no_reader_ever_sees_part_of_an_append(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    magic: int,
    error: BaseException,
) -> None:
    """Readers in this process, in another one, or opened right now see all of it or
    nothing, at any call, whether it succeeds or is undone. A follower gets the records
    that replace it."""
    stop_syncs(monkeypatch)
    small = {"segment_bytes": 1500, "max_message_bytes": 400}
    settings: Any = small if call == "segments" else {}
    nth, was_hit = 1, True
    while was_hit:
        path, files = tmp_path / str(nth), Watched(nth, error)
        with open_store(path, _files=files) as store:
            partition = new_partition(store, magic, **settings)
            append_records(partition, 5)
            beside = follower(path)
            records = beside.follow(timeout=0)
            assert [next(records).offset for _ in range(5)] == list(range(5))
            files.let_look(path, partition, beside)
            with contextlib.suppress(logstore.StorageError, KeyboardInterrupt):
                MANY[call](partition)
            files.before = None
            was_hit, end = files.left <= 0, partition.end_offset
            assert files.ends <= {5, 35}, nth
            assert end == 35 or (was_hit and end == 5)
            with contextlib.suppress(logstore.errors.SyncFailedError):
                append_records(partition, 3, seed=2)
            found = list(partition.read())
            assert list(beside.read()) == found
            assert list(records) == found[5:]
            if end == 5:
                assert found[5:] in ([], expected(magic, 5, 8, seed=2))
        nth += stride(6)
    assert nth > 5


def test_reader_of_a_torn_tail_ends_before_it(tmp_path: Path) -> None:
    """A killed writer's torn tail is the end of the log for a reader."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 20, call=1)
        crash(tmp_path / "live", tmp_path / "killed")
    log = logs_in(tmp_path / "killed" / "orders-0")[0]
    whole = log.read_bytes()
    last = frames(log)[-1]
    for size in range(last.pos, len(whole)):
        log.write_bytes(whole[:size])
        assert read_all(tmp_path / "killed") == expected(1, 0, 19)
    for tail in (bytes(100), b"garbage" * 30, whole[:90]):
        log.write_bytes(whole + tail)
        assert read_all(tmp_path / "killed") == expected(1, 0, 20)


# ---------------------------------------------------------------- follow


def test_follow_with_timeout_0_reads_what_is_there(tmp_path: Path) -> None:
    """The iterator ends when no more records come."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 10)
        assert list(partition.follow(timeout=0)) == expected(1, 0, 10)
        assert list(partition.follow(4, timeout=0)) == expected(1, 4, 10)
        assert list(partition.follow(partition.end_offset, timeout=0)) == []


def test_follow_goes_on_at_the_end_of_the_log(tmp_path: Path) -> None:
    """One iterator delivers existing and later records."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=300)
        fill(partition, 3)
        records = partition.follow()
        assert [next(records) for _ in range(3)] == expected(1, 0, 3)
        for end in range(4, 40):
            append_one(partition)
            assert next(records) == expected(1, end - 1, end)[0]


def test_follow_wakes_up_for_an_append(tmp_path: Path) -> None:
    """A follower that waits gets what another thread appends."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        found: list[logstore.Record] = []

        def consume() -> None:
            for record in partition.follow(timeout=30):
                found.append(record)
                if record.offset == 99:
                    return

        thread = threading.Thread(target=consume)
        thread.start()
        for _ in range(100):
            append_one(partition)
        thread.join(30)
        assert found == expected(1, 0, 100)


def test_follow_of_a_closed_store_raises_store_closed(tmp_path: Path) -> None:
    """A follower does not wait for ever on a store that is gone."""
    store = logstore.open(tmp_path)
    partition = new_partition(store)
    failed: list[Exception] = []

    def consume() -> None:
        try:
            list(partition.follow(timeout=30))
        except logstore.errors.StoreClosedError as error:
            failed.append(error)

    thread = threading.Thread(target=consume)
    thread.start()
    time.sleep(0.05)
    store.close()
    thread.join(20)
    assert len(failed) == 1


def test_follow_durable_only_stops_at_the_durable_offset(tmp_path: Path) -> None:
    """Records that a power cut may remove are delivered when they are durable."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        fill(partition, 5)
        assert list(partition.follow(durable_only=True, timeout=0)) == []
        partition.flush()
        fill(partition, 5)
        assert list(partition.follow(durable_only=True, timeout=0)) == expected(1, 0, 5)


def test_follow_of_compacted_gap_moves_on(tmp_path: Path) -> None:
    """A follower over an empty rolled segment delivers the records after it."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        records = partition.follow()
        for end in range(1, 6):
            append_one(partition)
            partition.roll()
            assert next(records).offset == end - 1
        partition.truncate_to(3)
        assert partition.end_offset == 3


def test_changes_within_one_tick_of_the_clock_are_seen(tmp_path: Path) -> None:
    """Deletions and topics change while the time of a directory stands still."""
    for turn in range(20):
        path = tmp_path / str(turn)
        with open_store(path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(1))[0]
            fill(partition, 30)
            partition.roll()
            reading = open_store(path, read_only=True, _files=CoarseTimes(10_000_000))
            with reading:
                reader = reading.topic("orders")[0]
                assert reader.end_offset == 30
                partition.delete_before(30)
                assert reading.topics() == ["orders"]
                store.create_topic("others")
                assert reader.start_offset == 30
                assert reading.topics() == ["orders", "others"]


CALLS: dict[str, Callable[[logstore.Partition], object]] = {
    "read": lambda p: p.read(),
    "follow": lambda p: p.follow(),
    "fetch": lambda p: p.fetch(0),
    "read_batches": lambda p: p.read_batches(),
    "read_arrow": lambda p: p.read_arrow(),
    "offset_for_time": lambda p: p.offset_for_time(0),
    "last_stable_offset": lambda p: p.last_stable_offset(),
    "start_offset": lambda p: p.start_offset,
    "end_offset": lambda p: p.end_offset,
    "durable_offset": lambda p: p.durable_offset,
    "segments": lambda p: p.segments,
    "mark": lambda p: p.mark(),
    "unchanged_below": lambda p: p.unchanged_below(logstore.types.LogMark("", 0)),
    "flush": lambda p: p.flush(),
    "retention": lambda p: p.apply_retention(dry_run=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_new_call_on_a_deleted_topic_is_a_named_error(
    tmp_path: Path, call: str
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders")[0]
        p.append(b"x")
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            CALLS[call](p)


def test_follower_that_waits_is_told_of_a_deletion_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders")[0]
        p.append(b"x")
        told: list[object] = []

        def follow() -> None:
            try:
                list(p.follow(timeout=30))
            except logstore.LogStoreError as error:
                told.append(type(error))

        thread = threading.Thread(target=follow)
        thread.start()
        time.sleep(0.1)
        store.delete_topic("orders")
        thread.join(10)
        assert told == [TopicNotFoundError]


@pytest.mark.parametrize("where", ["own", "other"])
def test_follower_of_what_is_durable_sleeps_until_it_is(
    tmp_path: Path, where: str
) -> None:
    """It uses no processor time while the only new records are not durable."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = new_partition(store)
        p.append(b"durable", durable=True)
        p.append(b"not yet")
        with beside(store, tmp_path, where) as reading:
            reader = reading.topic("orders")[0]
            follower = reader.follow(1, timeout=1, durable_only=True)
            begin = time.thread_time()
            assert list(follower) == []
            assert time.thread_time() - begin < 0.5


def test_follower_of_what_is_durable_gets_it_when_it_is(tmp_path: Path) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = new_partition(store)
        p.append(b"x")
        follower = p.follow(p.end_offset, timeout=20, durable_only=True)
        p.append(b"y")
        timer = threading.Timer(0.2, p.flush)
        timer.start()
        assert next(follower).value == b"y"
        timer.join()


def test_offset_that_is_not_durable_yet_is_one_of_the_log(tmp_path: Path) -> None:
    """A read there gives no error and no record so far."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = new_partition(store)
        p.append(b"x", durable=True)
        p.append_many([b"y"] * 3)
        for offset in range(1, 5):
            assert list(p.read(offset, durable_only=True)) == []
            assert list(p.read_batches(offset, durable_only=True)) == []
            assert list(p.follow(offset, timeout=0, durable_only=True)) == []
            assert p.fetch(offset, durable_only=True).next_offset == offset
            table = p.read_arrow(offset, durable_only=True).read_all()
            assert table.num_rows == 0
        for call in (p.read, p.read_batches, p.fetch, p.follow, p.read_arrow):
            with pytest.raises(OffsetOutOfRangeError):
                call(5, durable_only=True)
