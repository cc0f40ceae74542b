"""Writing under failure: a call is all or nothing, a failed sync ends the partition."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.layout import PARTITION_STATE
from logstore.record.encoder import BATCH_BYTES_TARGET
from logstore.store.opening import open_store
from support.appending import CALLS
from support.damage import FaultyFiles, logs_in
from support.values import (
    append_one,
    append_records,
    config_of,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


def append_until_it_fails(
    partition: logstore.Partition, call: Callable[[logstore.Partition], object]
) -> logstore.LogStoreError | None:
    """Append a few times; return the error of the first failure."""
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
    appends again once the cause is gone; a later opening finds nothing to repair."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
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
    """A half-written record is cut off before anything else."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
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
    """If the cut fails, too, nothing more is appended; a new opening recovers."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(store, magic)
    fill(partition, 7)
    files.fail("write", times=1, name=".log", short=9)
    files.fail("truncate", times=1, name=".log")
    with pytest.raises(logstore.errors.SyncFailedError):
        CALLS[call](partition)
    files.heal()
    for later in (*CALLS.values(), lambda p: p.roll(), lambda p: p.delete_before(1)):
        with pytest.raises(logstore.errors.SyncFailedError):
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
    """A sync that fails once is never tried again: now and later SyncFailedError, while
    reading continues and other partitions are not concerned."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    topic = store.create_topic(
        "orders",
        2,
        config_of(magic, flush_messages=9 if how == "flush_messages" else 99),
    )
    partition = topic[0]
    fill(partition, 8)
    files.fail("sync", times=1, name=".log")
    with pytest.raises(logstore.errors.SyncFailedError) as caught:
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
        with pytest.raises(logstore.errors.SyncFailedError):
            later(partition)
    assert files.count("sync", ".log") == 0
    found = list(partition.read())
    assert found == expected(magic, 0, len(found))
    assert len(found) >= 8
    assert append_one(topic[1], durable=True) == 0
    store.close()
    files.forget()
    with open_store(tmp_path, _files=files) as store:
        store.recover()
        # Bytes past the durable point are written again, not only synced again.
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
    """No caller waits for the timed flush; the next one gets its error."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, flush_ms=1)
        files.fail("sync", name=".log")
        append_one(partition)
        deadline = time.monotonic() + 20
        with pytest.raises(logstore.errors.SyncFailedError):
            while time.monotonic() < deadline:
                append_one(partition)
                time.sleep(0.002)
        files.heal()
        with pytest.raises(logstore.errors.SyncFailedError):
            append_one(partition)


def test_close_whose_sync_fails_raises_and_is_not_clean(tmp_path: Path) -> None:
    """A store that could not be made durable raises an error, releases its lock, and is
    not taken for cleanly closed."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
    partition = new_partition(store)
    fill(partition, 5)
    files.fail("sync", name=".log")
    with pytest.raises(logstore.errors.SyncFailedError):
        store.close()
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    files.heal()
    files.forget()
    with open_store(tmp_path, _files=files) as store:
        store.recover()
        assert files.count("read", ".log") > 0
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)


def test_roll_that_fails_halfway_does_not_count_as_synced(tmp_path: Path) -> None:
    """Offsets that are reused after a failed roll are synced like any others: a durable
    append never returns without its sync."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
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
    """Indexes and the durable point can be written again: appends continue without
    them."""
    files = FaultyFiles()
    store = open_store(
        tmp_path, _files=files, config=logstore.StoreConfig(flush_checkpoint_ms=0)
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
    """The next opening builds the index again."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files)
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
    """Before the first change the mark of a clean stop must be removed, or nothing
    changes."""
    directory = tmp_path / "orders-0"
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
    before = {p.name: p.read_bytes() for p in directory.iterdir()}
    files = FaultyFiles()
    files.fail("sync_directory")
    files.fail("write", name=".logstore-owner.tmp")
    with open_store(tmp_path, _files=files) as store:
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
    with open_store(tmp_path, _files=files) as store:
        assert (tmp_path / ".kafka_cleanshutdown").exists()
        append_one(store.topic("orders")[0])
        assert not (tmp_path / ".kafka_cleanshutdown").exists()
        order = [
            m + n for m, n in files.calls if m in ("unlink", "write", "sync_directory")
        ]
        gone = order.index("unlink.kafka_cleanshutdown")
        first = next(i for i, c in enumerate(order) if c.endswith(".log"))
        assert "sync_directory" in "".join(order[gone:first])


@every_magic
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=str)
def test_append_that_failed_after_a_reader_has_seen_it_is_recorded_as_cut(
    tmp_path: Path, magic: int, error: int
) -> None:
    """The record of the cut comes before other records of the same size take their
    offsets: nothing else shows a reader in another process that they differ. The disk
    may have had no room."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, magic)
        fill(partition, 10)
        partition.flush()
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            follower = beside.follow(timeout=0.3, durable_only=False)
            seen = [next(follower) for _ in range(10)]

            def look(method: str, name: str) -> None:
                """The bytes of the append are in the file, and it is undone now."""
                if method == "truncate" and len(seen) == 10:
                    seen.append(next(follower))

            files.fail("write", errno.EIO, name=".log", times=1, done=True)
            files.fail("create", error, name=f"{PARTITION_STATE}.tmp")
            files.fail("write", error, name=PARTITION_STATE)
            files.before = look
            with pytest.raises(logstore.StorageError):
                partition.append(b"old")
            assert seen[10].value == b"old"
            with pytest.raises(logstore.StorageError, match="state"):
                partition.append(b"new")
            assert partition.end_offset == 10
            files.heal()
            partition.append(b"new")
            with pytest.raises(OffsetOutOfRangeError) as caught:
                next(follower)
            assert caught.value.cut_to == 10
            assert [r.value for r in beside.read(10)] == [b"new"]


@pytest.mark.parametrize("count", [1, 2])
@every_magic
def test_cut_of_a_failed_append_is_recorded_before_a_byte_is_removed(
    tmp_path: Path, magic: int, count: int
) -> None:
    """A reader that looks in between would take the lower end for a separate cut, to
    the last end that it happens to have seen. A writer that is killed there has
    appended nothing: an opening removes the rest."""
    files, path, copy = FaultyFiles(), tmp_path / "data", tmp_path / "copy"
    with open_store(path, _files=files) as store:
        partition = new_partition(store, magic)
        fill(partition, 10)
        partition.flush()
        with open_store(path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            assert beside.end_offset == 10
            fill(partition, 30)
            assert beside.end_offset == 40
            mark = beside.mark()
            assert mark is not None
            steps = []

            def look(method: str, name: str) -> None:
                if name.endswith(".log") and method in ("truncate", "sync"):
                    steps.append((method, beside.end_offset))
                    steps.append(("cut", beside.unchanged_below(mark)))
                    if method == "truncate":
                        shutil.copytree(path, copy)

            # Of several batches, the frame of the first one is written last.
            files.fail("write", name=".log", nth=2 * count - 1, times=1, done=True)
            files.before = look
            with pytest.raises(logstore.StorageError):
                partition.append_many([b"o" * BATCH_BYTES_TARGET] * count)
            files.before = None
            assert steps[:2] == [("sync", 40 + count), ("cut", NO_CUT)]
            assert steps[2:] == [
                ("truncate", 40),
                ("cut", 40),
                ("sync", 40),
                ("cut", 40),
            ]
            assert append_one(partition) == 40
    assert read_all(path) == expected(magic, 0, 41)
    with logstore.open(copy) as store:
        assert list(store.topic("orders")[0].read()) == expected(magic, 0, 40)


@every_magic
def test_failed_append_whose_bytes_cannot_be_synced_is_cut(
    tmp_path: Path, magic: int
) -> None:
    """Its records do not come back at the next opening."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, magic)
        fill(partition, 7)
        files.fail("write", name=".log", times=1, done=True)
        files.fail("sync", name=".log", times=1)
        with pytest.raises(logstore.errors.SyncFailedError):
            append_one(partition)
        with pytest.raises(logstore.errors.SyncFailedError):
            append_one(partition)
    assert read_all(tmp_path) == expected(magic, 0, 7)
