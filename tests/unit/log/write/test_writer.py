"""Writing under failure: a call is all or nothing, a failed sync ends the partition."""

from __future__ import annotations

import contextlib
import errno
import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native.locks import new_group
from logstore.io.scheduler import Scheduler
from logstore.log.write.segment_appender import SegmentWriter
from logstore.log.write.syncs import Syncs
from logstore.store.store import open_store
from support.damage import FaultyFiles, FixedClock, FullDisk, Unsynced, logs_in
from support.values import (
    append_one,
    append_records,
    config_of,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)

CALLS: dict[str, Callable[[logstore.Partition], object]] = {
    "append": append_one,
    "append_many": lambda p: append_records(p, 4),
    "append_many-rolls": lambda p: append_records(p, 40),
}


def append_until_it_fails(
    partition: logstore.Partition, call: Callable[[logstore.Partition], object]
) -> logstore.LogStoreError | None:
    """Append a few times; the error of the first that fails."""
    for _ in range(25):
        before = partition.end_offset
        try:
            call(partition)
        except logstore.LogStoreError as error:
            assert partition.end_offset == before
            return error
    return None


@pytest.mark.sampled(30)
@every_magic
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize(
    ("method", "error", "kind"),
    [
        ("write", errno.EIO, logstore.StorageError),
        ("reserve", errno.EDQUOT, logstore.DiskFullError),
        ("create", errno.ENOSPC, logstore.DiskFullError),
        ("create", errno.EMFILE, logstore.StorageError),
        ("sync_directory", errno.EIO, logstore.StorageError),
    ],
    ids=str,
)
def test_failed_call_leaves_the_log_as_it_was(
    tmp_path: Path,
    magic: int,
    call: str,
    nth: int,
    method: str,
    error: int,
    kind: type[logstore.StorageError],
) -> None:
    """After a failure the log reads as before, here and in another reader, and takes
    appends again once the cause is gone; a later opening finds nothing to mend."""
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    partition = new_partition(store, magic, segment_bytes=600)
    fill(partition, 7)
    name = "orders-0" if method == "sync_directory" else ".log"
    files.fail(method, error, nth=nth, times=1, name=name)
    failed = append_until_it_fails(partition, CALLS[call])
    end = partition.end_offset
    assert list(partition.read()) == expected(magic, 0, end)
    assert read_all(tmp_path) == expected(magic, 0, end)
    if failed is not None:
        assert isinstance(failed, kind)
        assert failed.errno == error
        assert failed.filename.startswith(str(tmp_path))
    files.heal()
    for _ in range(3):
        assert append_one(partition, durable=True) == end
        end += 1
    assert append_records(partition, 30) == range(end, end + 30)
    assert list(partition.read()) == expected(magic, 0, end + 30)
    store.close()
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(magic, 0, end + 30)


@every_magic
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("short", [0, 1, 13, 40])
def test_short_write_that_fails_is_undone(
    tmp_path: Path, magic: int, call: str, short: int
) -> None:
    """Half a record that got into the file is cut again before anything else."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, magic)
        fill(partition, 7)
        size = logs_in(tmp_path / "orders-0")[0].stat().st_size
        files.fail("write", errno.ENOSPC, times=1, name=".log", short=short)
        with pytest.raises(logstore.DiskFullError):
            CALLS[call](partition)
        assert logs_in(tmp_path / "orders-0")[0].stat().st_size == size
        assert read_all(tmp_path) == expected(magic, 0, 7)
        CALLS[call](partition)
    assert read_all(tmp_path)[:8] == expected(magic, 0, 8)


@every_magic
@pytest.mark.parametrize("call", CALLS)
def test_failed_write_that_cannot_be_undone_ends_the_partition(
    tmp_path: Path, magic: int, call: str
) -> None:
    """When the cut fails, too, nothing more is appended; a new opening recovers."""
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    partition = new_partition(store, magic)
    fill(partition, 7)
    files.fail("write", times=1, name=".log", short=9)
    files.fail("truncate", times=1, name=".log")
    with pytest.raises(logstore.SyncFailedError):
        CALLS[call](partition)
    files.heal()
    for later in (*CALLS.values(), lambda p: p.roll(), lambda p: p.delete_before(1)):
        with pytest.raises(logstore.SyncFailedError):
            later(partition)
    assert list(partition.read()) == expected(magic, 0, 7)
    assert read_all(tmp_path) == expected(magic, 0, 7)
    store.close()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, 7)
        assert append_one(partition) == 7


@every_magic
@pytest.mark.parametrize("how", ["flush", "durable", "flush_messages", "roll"])
def test_failed_sync_ends_the_partition_for_writing(
    tmp_path: Path, magic: int, how: str
) -> None:
    """A sync that fails once is never tried again: now and later SyncFailedError,
    while reading goes on and other partitions are not concerned."""
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    topic = store.create_topic(
        "orders",
        2,
        config_of(magic, flush_messages=9 if how == "flush_messages" else 99),
    )
    partition = topic[0]
    fill(partition, 8)
    files.fail("sync", times=1, name=".log")
    with pytest.raises(logstore.SyncFailedError) as caught:
        if how == "flush":
            partition.flush()
        elif how == "roll":
            partition.roll()
        else:
            append_one(partition, durable=how == "durable")
    assert caught.value.errno == errno.EIO
    assert caught.value.filename == str(logs_in(tmp_path / "orders-0")[0])
    assert "may be lost" in str(caught.value)
    assert partition.durable_offset == 0
    files.forget()
    for later in (
        append_one,
        lambda p: append_records(p, 2),
        lambda p: p.append_batches(b""),
        lambda p: p.flush(),
        lambda p: p.roll(),
        lambda p: p.truncate_to(0),
        lambda p: p.delete_before(1),
    ):
        with pytest.raises(logstore.SyncFailedError):
            later(partition)
    assert files.count("sync", ".log") == 0
    found = list(partition.read())
    assert found == expected(magic, 0, len(found))
    assert len(found) >= 8
    assert append_one(topic[1], durable=True) == 0
    store.close()
    files.forget()
    with open_store(tmp_path, files=files) as store:
        store.recover()
        # What lies past the durable point is written again, not only synced again.
        assert files.count("write", ".log") >= 1
        assert files.count("sync", ".log") >= 1
        partition = store.topic("orders")[0]
        assert list(partition.read()) == found
        assert partition.durable_offset == len(found)
        append_one(partition, durable=True)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report


def test_failed_sync_of_the_background_thread_is_raised_by_the_next_append(
    tmp_path: Path,
) -> None:
    """Nobody waits for the timed flush; the next caller hears of its failure."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, flush_ms=1)
        files.fail("sync", name=".log")
        append_one(partition)
        deadline = time.monotonic() + 20
        with pytest.raises(logstore.SyncFailedError):
            while time.monotonic() < deadline:
                append_one(partition)
                time.sleep(0.002)
        files.heal()
        with pytest.raises(logstore.SyncFailedError):
            append_one(partition)


def test_close_whose_sync_fails_raises_and_is_not_clean(tmp_path: Path) -> None:
    """A store that could not be made durable says so, lets go of its lock, and is not
    taken for cleanly closed."""
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    partition = new_partition(store)
    fill(partition, 5)
    files.fail("sync", name=".log")
    with pytest.raises(logstore.SyncFailedError):
        store.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    files.heal()
    files.forget()
    with open_store(tmp_path, files=files) as store:
        store.recover()
        assert files.count("read", ".log") > 0
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)


def test_roll_that_fails_halfway_does_not_count_as_synced(tmp_path: Path) -> None:
    """Offsets taken back after a failed roll are synced like any others when they are
    given out again: a durable append never returns without its sync."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, segment_bytes=400)
        partition.append(bytes(50))
        files.fail("create", errno.ENOSPC, name=".log", times=1)
        with pytest.raises(logstore.DiskFullError):
            partition.append_many([bytes(50)] * 8)
        for _ in range(3):
            files.forget()
            partition.append(b"x", durable=True)
            assert files.count("sync", ".log") == 1


@pytest.mark.parametrize("method", ["write", "create", "sync", "truncate", "rename"])
@pytest.mark.parametrize("name", [".index", ".timeindex", ".logstore-state.tmp"])
def test_failure_on_an_index_or_the_durable_point_costs_no_record(
    tmp_path: Path, method: str, name: str
) -> None:
    """Indexes and the durable point can be made again: appends go on without."""
    files = FaultyFiles()
    store = open_store(
        tmp_path, files=files, config=logstore.StoreConfig(flush_checkpoint_ms=0)
    )
    partition = new_partition(store, segment_bytes=600, index_interval_bytes=100)
    fill(partition, 5)
    files.fail(method, errno.ENOSPC, name=name)
    for _ in range(20):
        append_records(partition, 3, durable=True)
    assert list(partition.read()) == expected(1, 0, 65)
    assert read_all(tmp_path) == expected(1, 0, 65)
    files.heal()
    store.close()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        for start in range(66):
            assert list(partition.read(start)) == expected(1, start, 65)


def test_close_whose_index_cannot_be_written_loses_nothing(tmp_path: Path) -> None:
    """The next opening makes the index anew."""
    files = FaultyFiles()
    store = open_store(tmp_path, files=files)
    partition = new_partition(store, index_interval_bytes=100)
    fill(partition, 30)
    files.fail("write", errno.ENOSPC, name="index")
    with contextlib.suppress(logstore.StorageError):
        store.close()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, 30)
        assert append_one(partition) == 30


def test_begin_writing_that_fails_writes_nothing(tmp_path: Path) -> None:
    """Before the first change the mark of a clean stop has to go, or nothing does."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    files = FaultyFiles()
    files.fail("sync_directory")
    files.fail("write", name=".logstore-owner.tmp")
    with open_store(tmp_path, files=files) as store:
        with pytest.raises(logstore.StorageError):
            append_one(store.topic("orders")[0])
        assert {p.name: p.read_bytes() for p in directory.iterdir()} == before
        files.heal()
        assert append_one(store.topic("orders")[0]) == 5


def test_clean_mark_is_gone_before_the_first_append_is_written(tmp_path: Path) -> None:
    """A marker that outlived later appends would hide a torn tail."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
    assert (tmp_path / ".kafka_cleanshutdown").exists()
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        append_one(store.topic("orders")[0])
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        order = [
            m + n for m, n in files.calls if m in ("unlink", "write", "sync_directory")
        ]
        gone = order.index("unlink.kafka_cleanshutdown")
        first = next(i for i, c in enumerate(order) if c.endswith(".log"))
        assert "sync_directory" in "".join(order[gone:first])


# ---------------------------------------------------------------- a full disk


@every_format
def test_full_disk_refuses_an_append_before_a_byte_is_written(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """DiskFullError, the file as it was; reading goes on; appending does when there is
    room again, without a gap in the offsets."""
    files = FullDisk()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, magic, codec, segment_bytes=4000)
        fill(partition, 20)
        files.full = True
        sizes = {p: p.stat().st_size for p in logs_in(tmp_path / "orders-0")}
        done = partition.end_offset
        with pytest.raises(logstore.DiskFullError) as caught:
            for _ in range(10_000):
                append_records(partition, 50)
                done = partition.end_offset
        assert caught.value.errno == errno.ENOSPC
        assert list(partition.read()) == expected(magic, 0, done)
        assert read_all(tmp_path) == expected(magic, 0, done)
        assert sizes
        files.full = False
        assert append_one(partition) == done
    assert read_all(tmp_path) == expected(magic, 0, done + 1)


def test_full_disk_does_not_prevent_opening_and_reading(tmp_path: Path) -> None:
    """A store opens on a full disk, for reading and for writing."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store, segment_bytes=500), 60)
    files = FullDisk()
    files.full = True
    with open_store(tmp_path, files=files) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 60)
    store = open_store(tmp_path, files=files)
    partition = store.topic("orders")[0]
    with pytest.raises(logstore.DiskFullError):
        append_one(partition)
    assert list(partition.read()) == expected(1, 0, 60)
    files.full = False
    append_one(partition)
    store.close()
    assert read_all(tmp_path) == expected(1, 0, 61)


@pytest.mark.parametrize("reopened", [False, True])
def test_full_disk_does_not_stop_retention(tmp_path: Path, reopened: bool) -> None:
    """Deleting segments needs no space; it gives some."""
    files = FullDisk()
    store = open_store(tmp_path, files=files)
    partition = new_partition(
        store, segment_bytes=500, retention_bytes=600, retention_ms=-1,
        file_delete_delay_ms=0,
    )  # fmt: skip
    fill(partition, 60)
    if reopened:
        store.close()
        store = open_store(tmp_path, files=files)
        partition = store.topic("orders")[0]
    partition_start = partition.start_offset
    files.full = True
    deleted = store.topic("orders").apply_retention()
    assert deleted
    start = partition.start_offset
    assert start > partition_start
    assert len(logs_in(tmp_path / "orders-0")) == len(partition.segments)
    assert list(partition.read()) == expected(1, start, 60)
    files.full = False
    store.close()
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert partition.start_offset == start
        assert list(partition.read()) == expected(1, start, 60)


def test_full_disk_does_not_stop_deletion_of_a_topic(tmp_path: Path) -> None:
    """The same for a whole topic."""
    files = FullDisk()
    with open_store(tmp_path, files=files) as store:
        fill(new_partition(store, file_delete_delay_ms=0), 60)
        files.full = True
        store.delete_topic("orders")
        assert store.topics() == []
        files.full = False
    with logstore.open(tmp_path) as store:
        assert store.topics() == []


def test_min_free_bytes_keeps_a_reserve(tmp_path: Path) -> None:
    """An append that would leave less than the reserve is refused with its name."""
    config = logstore.StoreConfig(min_free_bytes=1 << 62)
    with logstore.open(tmp_path, config=config) as store:
        partition = new_partition(store)
        for call in CALLS.values():
            with pytest.raises(logstore.DiskFullError, match="min_free_bytes"):
                call(partition)
        assert partition.end_offset == 0


# ---------------------------------------------------------------- durability


def test_concurrent_durable_appends_share_syncs(tmp_path: Path) -> None:
    """Callers that arrive while a sync goes on are served together by the next one."""
    files = FaultyFiles()
    threads, each = 8, 5
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store)
        append_one(partition, durable=True)
        files.forget()
        files.before = lambda method, name: (
            time.sleep(0.01) if (method, name[-4:]) == ("sync", ".log") else None
        )
        seen: list[int] = []

        def work() -> None:
            for _ in range(each):
                offset = partition.append(b"x", durable=True)
                assert partition.durable_offset > offset
                seen.append(offset)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(seen) == list(range(1, 1 + threads * each))
        syncs = files.count("sync", ".log")
        assert each <= syncs < threads * each
        assert partition.durable_offset == partition.end_offset


def test_durable_append_of_what_is_durable_already_syncs_nothing(
    tmp_path: Path,
) -> None:
    """A flush with nothing to flush costs no sync."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store)
        append_one(partition, durable=True)
        files.forget()
        partition.flush()
        partition.append_many([], durable=True)
        assert files.count("sync", ".log") == 0


def test_flush_messages_syncs_after_so_many_records(tmp_path: Path) -> None:
    """At most M records lie between durable and end."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, flush_messages=10)
        fill(partition, 9, call=1)
        assert files.count("sync", ".log") == 0
        append_one(partition)
        assert files.count("sync", ".log") == 1
        assert partition.durable_offset == 10
        append_records(partition, 35)
        assert partition.durable_offset == 45
        assert files.count("sync", ".log") == 2


def test_sync_beside_an_append_that_is_undone_later_counts(tmp_path: Path) -> None:
    """What the append found not yet durable may be so when it is undone."""
    files = FaultyFiles()
    syncing, go_on, is_over = threading.Event(), threading.Event(), threading.Event()
    config = logstore.TopicConfig(flush_messages=1 << 40, flush_ms=1 << 40)
    with open_store(tmp_path, files=files) as store:
        partition = store.create_topic("orders", config=config)[0]
        partition.append_many([b"x"] * 10)
        flusher = threading.Thread(target=partition.flush)

        def before(method: str, name: str) -> None:
            if threading.current_thread() is flusher:
                if method == "sync" and name.endswith(".log"):
                    syncing.set()
                    assert go_on.wait(10)
            elif method in ("write", "truncate") and not is_over.is_set():
                raise KeyboardInterrupt  # also while it is undone

        files.before = before
        flusher.start()
        assert syncing.wait(10)
        with pytest.raises(KeyboardInterrupt):
            partition.append_many([b"y"] * 10)
        go_on.set()
        flusher.join(10)
        assert not flusher.is_alive()
        is_over.set()
        assert partition.append(b"z") == 10
        assert partition.durable_offset == 10


def test_flush_ms_syncs_without_a_further_append(tmp_path: Path) -> None:
    """Records become durable by themselves after S."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, flush_ms=5)
        for end in (3, 6):
            append_records(partition, 3)
            deadline = time.monotonic() + 20
            while partition.durable_offset < end and time.monotonic() < deadline:
                time.sleep(0.002)
            assert partition.durable_offset == end


def is_durable_in_time(partition: logstore.Partition) -> bool:
    """Whether everything becomes durable without a further call."""
    deadline = time.monotonic() + 20
    while partition.durable_offset < partition.end_offset:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True


def test_shorter_flush_ms_counts_for_what_is_appended_next(tmp_path: Path) -> None:
    """Also where a sync was planned by the old settings, for an hour later; what was
    appended under those is durable at once."""
    hour = 3_600_000
    with open_store(tmp_path, files=Unsynced()) as store:
        partition = new_partition(store, flush_ms=hour)
        topic = store.topic("orders")
        for _ in range(2):
            append_one(partition)
            assert partition.durable_offset < partition.end_offset
            topic.configure(config_of(flush_ms=5))
            assert partition.durable_offset == partition.end_offset
            append_one(partition)
            assert is_durable_in_time(partition)
            topic.configure(config_of(flush_ms=hour))


def test_append_without_durable_syncs_nothing(tmp_path: Path) -> None:
    """An append is a write; syncs come by policy."""
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store)
        append_one(partition)
        files.forget()
        fill(partition, 50, call=1)
        assert files.count("sync") == 0
        assert files.count("write", ".log") == 50


# ---------------------------------------------------------------- behind the commit


def test_append_whose_sync_cannot_be_planned_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is to fail does so before the record is in: an error behind that would
    have it appended twice by who tries again. The next append plans its sync anew."""

    def refuse(self: Scheduler, delay_ms: int, task: object) -> None:
        raise error

    with open_store(tmp_path, files=Unsynced()) as store:
        append_one(store.create_topic("source", config=config_of(flush_ms=5))[0])
        batch = logs_in(tmp_path / "source-0")[0].read_bytes()
        calls: dict[str, Callable[[logstore.Partition], object]] = {
            **CALLS,
            "append_batches": lambda p: p.append_batches(batch),
        }
        for error in (RecursionError(), MemoryError(), KeyboardInterrupt()):
            for name, call in calls.items():
                topic = f"{name}-{type(error).__name__}"
                partition = store.create_topic(topic, 1, config_of(flush_ms=5))[0]
                with monkeypatch.context() as patch:
                    patch.setattr(Scheduler, "later", refuse)
                    for _ in range(2):
                        with pytest.raises(type(error)):
                            call(partition)
                        assert partition.end_offset == 0
                assert list(partition.read()) == []
                assert append_one(partition) == 0
                assert is_durable_in_time(partition)


def raises_in_deep_stack(call: Callable[[], object], spare: int) -> bool:
    """Whether a call finds too little room where the stack takes so many calls more."""
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(depth + spare)
        call()
    except RecursionError:
        return True
    finally:
        sys.setrecursionlimit(before)
    return False


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_deep_stack_is_not_taken_for_damage(tmp_path: Path, codec: str) -> None:
    """Neither in a batch nor in a state file."""
    config = logstore.TopicConfig(message_format=2, compression_type=codec)
    with open_store(tmp_path, files=Unsynced()) as store:
        partition = store.create_topic("orders", 1, config)[0]
        append_records(partition, 4)
        with store.stage() as stage:
            stage.append_many(partition, [b"x"])
            store.publish([stage.finish()], identity="test", sequence=1)
        calls: list[Callable[[], object]] = [
            lambda: list(partition.read()),
            lambda: store.published("test"),
        ]
        for call in calls:
            outcomes = {raises_in_deep_stack(call, spare) for spare in range(3, 60)}
            assert outcomes == {True, False}


DEEP: dict[str, Callable[[logstore.Partition], object]] = {
    **CALLS,
    "durable": lambda p: append_one(p, durable=True),
    "append_many-durable": lambda p: append_records(p, 4, durable=True),
}


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("flush_messages", [1 << 40, 2])
@pytest.mark.parametrize("call", DEEP)
def test_append_in_a_deep_stack_is_in_or_has_raised(
    tmp_path: Path, call: str, flush_messages: int, magic: int
) -> None:
    """Never both, whichever of its calls finds no room, that of a sync as well; and it
    is synced in time."""
    outcomes = set()
    settings: Any = {"flush_messages": flush_messages, "segment_bytes": 1000}
    # With index entries of each record, a sync goes deepest behind its end.
    config = config_of(magic, flush_ms=5, index_interval_bytes=1, **settings)
    with open_store(tmp_path, files=Unsynced()) as store:
        topic = store.create_topic("orders", 45, config)
        for spare, partition in enumerate(topic.partitions, 3):
            # So that all is there but the plan of a sync.
            append_one(partition)
            assert is_durable_in_time(partition)
            deep = functools.partial(DEEP[call], partition)
            has_raised = raises_in_deep_stack(deep, spare)
            assert has_raised == (partition.end_offset == 1), spare
            outcomes.add(has_raised)
            end = partition.end_offset
            assert append_one(partition) == end
            assert is_durable_in_time(partition)
            assert list(partition.read()) == expected(magic, 0, end + 1)
    assert outcomes == {True, False}


def no_memory(*arguments: object, **options: object) -> None:
    raise MemoryError


def test_append_that_is_in_does_not_raise_where_its_sync_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is left to the next one, or to the thread that syncs in time; only who asked
    for a sync, and has none, is told. Behind a sync there is nothing to tell."""
    files = Unsynced()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, flush_messages=2)
        append_one(partition)
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync", no_memory)
            assert append_one(partition) == 1
            assert partition.durable_offset == 0
            with pytest.raises(MemoryError):
                append_one(partition, durable=True)
            assert partition.durable_offset == 0
        with monkeypatch.context() as patch:
            patch.setattr(SegmentWriter, "write_indexes", no_memory)
            assert append_one(partition) == 3
            assert partition.durable_offset == 4
            assert append_one(partition, durable=True) == 4
            assert partition.durable_offset == 5
    assert read_all(tmp_path) == expected(1, 0, 5)


# ---------------------------------------------------------------- deleted topics

STALE: dict[str, Callable[[logstore.Topic, logstore.Partition], object]] = {
    "append": lambda t, p: p.append(b"x"),
    "append_many": lambda t, p: p.append_many([b"x"]),
    "topic.append": lambda t, p: t.append(b"x"),
    "flush": lambda t, p: (p.append(b"x"), p.flush()),
    "roll": lambda t, p: p.roll(),
    "delete_before": lambda t, p: p.delete_before(1),
    "truncate_to": lambda t, p: p.truncate_to(0),
    "add_partitions": lambda t, p: t.add_partitions(1),
    "index": lambda t, p: t[0],
}


@pytest.mark.parametrize("use", STALE)
def test_deleted_topic_takes_nothing_more(tmp_path: Path, use: str) -> None:
    """Objects of a deleted topic raise a LookupError and write nothing."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        topic = store.topic("orders")
        fill(partition, 3)
        store.delete_topic("orders")
        with pytest.raises(logstore.LogStoreError) as caught:
            STALE[use](topic, partition)
        assert isinstance(caught.value, LookupError)
        assert store.topics() == []


@pytest.mark.parametrize("use", ["append", "append_many", "roll", "truncate_to"])
def test_partition_of_a_deleted_topic_does_not_write_into_its_successor(
    tmp_path: Path, use: str
) -> None:
    """A topic created anew under the name is another one."""
    with logstore.open(tmp_path) as store:
        old = new_partition(store)
        topic = store.topic("orders")
        old.append(b"old")
        store.delete_topic("orders")
        new = new_partition(store)
        new.append(b"new")
        with pytest.raises(logstore.LogStoreError):
            STALE[use](topic, old)
        new.append(b"newer")
        assert [r.value for r in new.read()] == [b"new", b"newer"]
    assert [r.value for r in read_all(tmp_path)] == [b"new", b"newer"]


class NoReserve(FaultyFiles):
    """A file system that cannot set space aside."""

    def reserve(self, fd: int, pos: int, size: int) -> bool:
        """As where fallocate is not supported."""
        return False


@every_magic
def test_file_system_without_reserve_gets_the_same_log(
    tmp_path: Path, magic: int
) -> None:
    """Appends go on without, and one that fails in its write is undone."""
    files = NoReserve()
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, magic, segment_bytes=700)
        fill(partition, 30, call=4)
        files.fail("write", errno.ENOSPC, name=".log", short=9, times=1)
        with pytest.raises(logstore.DiskFullError):
            append_records(partition, 3)
        assert partition.end_offset == 30
        fill(partition, 5)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(magic, 0, 35)


def test_clock_that_goes_back_changes_no_offset_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    """Offsets rise, records stay readable, and ages are never negative enough to make
    retention delete what is new; a clock far ahead costs a roll, not a record."""
    clock = FixedClock(2_000_000_000_000)
    with open_store(tmp_path, files=clock) as store:
        config = logstore.TopicConfig(retention_ms=1000, segment_bytes=400)
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(10):
            partition.append(b"later")
        clock.now = 1_000_000_000_000
        for _ in range(10):
            partition.append(b"earlier")
        assert [r.offset for r in partition.read()] == list(range(20))
        assert partition.apply_retention() == []
        clock.now = 2_000_000_000_000
        assert partition.append(b"now") == 20
    with open_store(tmp_path, files=clock) as store:
        assert store.topic("orders")[0].end_offset == 21


def test_append_inside_of_a_call_of_another_store_is_refused_before_it_is_in(
    tmp_path: Path,
) -> None:
    """Its sync could be: another thread may have the lock that it needs, and this one
    must not wait for that while it holds others. Told behind the append, the caller
    would append again."""
    held = native.Mutex(5, "a lock of another store", new_group())
    config = logstore.TopicConfig(flush_messages=1)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", 1, config)[0]
        writer = partition._write()
        busy = threading.Event()

        def sync() -> None:
            with writer.sync_lock:
                busy.set()
                time.sleep(0.3)

        thread = threading.Thread(target=sync)
        thread.start()
        busy.wait()
        with held:
            with pytest.raises(logstore.ReentrantCallError, match="nothing was writt"):
                partition.append(b"x", durable=True)
            assert partition.end_offset == 0
            # This one is due to be synced, which is left to the store's thread.
            assert partition.append(b"y") == 0
        thread.join()
        partition.flush()
        assert [record.value for record in partition.read()] == [b"y"]


@pytest.mark.parametrize("call", ["append", "append_many", "flush"])
def test_log_that_is_cut_in_front_of_a_sync_takes_more_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """By another thread, between an append and the sync that it waits for: what was cut
    need not be synced."""
    sync = Syncs.sync

    with open_store(tmp_path) as store:
        partition = new_partition(store)
        append_one(partition)
        append_one(partition)

        def cut_and_sync(self: Syncs, upto: int) -> None:
            monkeypatch.undo()
            partition.truncate_to(1)
            sync(self, upto)

        monkeypatch.setattr(Syncs, "sync", cut_and_sync)
        if call == "append":
            assert partition.append(b"x", durable=True) == 2
        elif call == "append_many":
            assert partition.append_many([b"x"] * 4, durable=True) == range(2, 6)
        else:
            partition.flush()
        assert partition.end_offset == 1
        assert partition.append(b"x", durable=True) == 1
        assert partition.durable_offset == 2


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
@pytest.mark.parametrize("at", ["its begin", "its plan"])
def test_sync_by_time_that_has_no_memory_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    error: type[Exception],
) -> None:
    """At its begin, or where it finds the partition busy and plans to come again: it is
    the only one that is planned, and would not come any more."""
    files = FaultyFiles()
    busy, failed = threading.Event(), threading.Event()
    later, flush_due = Scheduler.later, Syncs.flush_due

    def begin(syncs: Syncs) -> None:
        if at == "its begin" and not failed.is_set():
            failed.set()
            raise error
        flush_due(syncs)

    def plan(self: Scheduler, delay_ms: int, task: Callable[[], None]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main and not failed.is_set():
            failed.set()
            raise error
        later(self, delay_ms, task)

    def before(method: str, name: str) -> None:
        # The append goes on when the sync has met it.
        if method == "write" and name.endswith(".log") and not busy.is_set():
            busy.set()
            assert failed.wait(20)

    monkeypatch.setattr(Syncs, "flush_due", begin)
    with open_store(tmp_path, files=files) as store:
        partition = new_partition(store, flush_ms=5)
        if at == "its plan":
            monkeypatch.setattr(Scheduler, "later", plan)
            files.before = before
        append_one(partition)
        assert is_durable_in_time(partition)
        assert failed.is_set()
