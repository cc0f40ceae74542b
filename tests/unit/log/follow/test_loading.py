"""A log that is loaded again while its writer changes it, or while its state cannot be
read: only cuts that were recorded since the last look are reported."""

from __future__ import annotations

import errno
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import OffsetOutOfRangeError
from logstore.io.checkpoint.ownership import Ownership, OwnershipKey
from logstore.io.directory import Directory
from logstore.io.layout import OWNER, PARTITION_STATE
from logstore.log.follow import loading
from logstore.log.follow.change_stamps import PartitionStamp
from logstore.log.follow.loading import Loader
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.store.opening import open_store
from logstore.store.package_access import views_of
from support.damage import FaultyFiles, FullDisk, Unsynced
from support.values import config_of

CUT = 12


def test_cut_while_a_log_is_loaded_again_is_reported_where_it_was_made(
    tmp_path: Path,
) -> None:
    """The cut comes before each system call: the files are those after the cut, and the
    ends at 5 and 15 were seen. The end at 5 stands, and the cut was higher."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        for at in itertools.count(1):
            partition = store.create_topic("orders", config=config_of(2))[0]
            append(partition, b"old", 5)
            files, calls = FaultyFiles(), itertools.count(1)

            def step(method: str, name: str) -> None:
                if next(calls) == at:  # noqa: B023
                    partition.truncate_to(CUT)  # noqa: B023
                    append(partition, b"new", 20 - CUT)  # noqa: B023

            with open_store(tmp_path, read_only=True, _files=files) as reading:
                beside = reading.topic("orders")[0]
                follower = beside.follow(timeout=0.3, durable_only=False)
                found = [next(follower) for _ in range(5)]
                append(partition, b"old", 10)
                found += [next(follower) for _ in range(10)]
                # After a look that failed, the next one loads the log again.
                partition.roll()
                files.before = fail
                with pytest.raises(logstore.StorageError):
                    _ = beside.end_offset
                files.before = step
                assert beside.end_offset in (15, 20)
                files.before = None
                if next(calls) <= at:
                    break
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    next(follower)
                assert caught.value.cut_to == CUT
            store.delete_topic("orders")
    assert at > 10


@pytest.mark.parametrize("is_opened_before", [True, False])
def test_cut_of_long_ago_is_not_reported_after_the_state_was_missing(
    tmp_path: Path, is_opened_before: bool
) -> None:
    """A full disk has no room for the state of a log that a deletion has changed: it
    is removed, and written again before the next append."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = log_with_a_cut(store)
        state = tmp_path / "orders-0" / PARTITION_STATE
        with open_store(tmp_path, read_only=True) as reading:
            if is_opened_before:
                follower = reading.topic("orders")[0].follow(3, timeout=0.3)
                found = [next(follower).offset for _ in range(17)]
            refuse_states(files)
            partition.delete_before(10)
            assert not state.exists()
            beside = reading.topic("orders")[0]
            if not is_opened_before:
                follower = beside.follow(10, timeout=0.3)
                found = [next(follower).offset for _ in range(10)]
            assert (beside.start_offset, beside.end_offset) == (10, 20)
            files.heal()
            files.full = False
            append(partition, b"new", 3)
            assert state.exists()
            found += [record.offset for record in follower]
        assert found == list(range(found[0], 23))


def test_cut_after_the_state_was_missing_is_reported_though_the_bytes_are_the_same(
    tmp_path: Path,
) -> None:
    """The known cuts stay known while the state is missing: so the next one is seen in
    the state, and not only in changed bytes."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = log_with_a_cut(store)
        state = tmp_path / "orders-0" / PARTITION_STATE
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            follower = beside.follow(3, timeout=0.3)
            assert [next(follower).offset for _ in range(17)] == list(range(3, 20))
            refuse_states(files)
            partition.delete_before(10)
            assert not state.exists()
            assert (beside.start_offset, beside.end_offset) == (10, 20)
            files.heal()
            files.full = False
            last = list(partition.read(15))
            partition.truncate_to(15)
            for record in last:
                partition.append(record.value, timestamp_ms=record.timestamp_ms)
            assert list(partition.read(15)) == last
            with pytest.raises(OffsetOutOfRangeError) as caught:
                next(follower)
            assert caught.value.cut_to == 15


def refuse_states(files: FullDisk) -> None:
    """Fill the disk from now on, and refuse to write a state file."""
    files.full = True
    for name in (PARTITION_STATE, f"{PARTITION_STATE}.tmp"):
        files.fail("write", errno.ENOSPC, name=name)
    files.fail("create", errno.ENOSPC, name=f"{PARTITION_STATE}.tmp")


def test_state_that_is_being_overwritten_neither_cuts_a_log_nor_gives_back_its_head(
    tmp_path: Path,
) -> None:
    """On a full disk the state is overwritten in place. A reader that looks while half
    of it is written knows no more than before."""
    files = FullDisk()
    with open_store(tmp_path, _files=files) as store:
        partition = log_with_a_cut(store)
        partition.delete_before(3)
        state = tmp_path / "orders-0" / PARTITION_STATE
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            follower = beside.follow(timeout=0.3)
            found = [next(follower).offset for _ in range(17)]
            seen = []

            def look(method: str, name: str) -> None:
                if (method, name) == ("sync", PARTITION_STATE):
                    whole = state.read_bytes()
                    with state.open("r+b") as file:
                        file.write(whole[:100] + b"?" * 20)
                    for _ in range(2):
                        bounds = beside.start_offset, beside.end_offset
                        seen.append((*bounds, [r.offset for r in beside.read()]))
                    with state.open("r+b") as file:
                        file.write(whole)

            files.full, files.before = True, look
            files.fail("create", errno.ENOSPC, name=f"{PARTITION_STATE}.tmp")
            partition.delete_before(10)
            assert seen == [(3, 20, list(range(3, 20)))] * 2
            files.heal()
            files.full, files.before = False, None
            append(partition, b"new", 3)
            assert beside.start_offset == 10
            found += [record.offset for record in follower]
        assert found == list(range(3, 23))


def test_log_whose_owner_file_is_put_back_is_logstores_own_again(
    tmp_path: Path,
) -> None:
    """No file in the directory of the log has changed by then."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        append(store.create_topic("orders", config=config_of(2))[0], b"old", 5)
    aside = (tmp_path / OWNER).rename(tmp_path / "aside")
    with open_store(tmp_path, read_only=True) as reading:
        beside = reading.topic("orders")[0]
        log = beside._log
        assert (beside.end_offset, log.is_foreign) == (5, True)
        aside.rename(tmp_path / OWNER)
        assert (beside.end_offset, log.is_foreign) == (5, False)


def fail(method: str, name: str) -> None:
    """Fail a call of the system."""
    raise OSError(errno.EIO, "failed by a test")


def append(partition: logstore.Partition, value: bytes, count: int) -> None:
    for _ in range(count):
        partition.append(value)


def log_with_a_cut(store: logstore.Store) -> logstore.Partition:
    """A log of two segments, 0-10-20, that was cut to 2 long ago."""
    partition = store.create_topic("orders", config=config_of(2))[0]
    append(partition, b"old", 5)
    partition.truncate_to(2)
    append(partition, b"old", 8)
    partition.roll()
    append(partition, b"old", 10)
    partition.flush()
    return partition


@pytest.mark.parametrize("is_damaged", [False, True])
def test_load_examines_the_files_of_the_ownership_only_for_its_stamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_damaged: bool
) -> None:
    """The files are examined once before everything that it reads, and once after
    that."""
    with open_store(tmp_path) as store:
        append(store.create_topic("orders", config=config_of(2))[0], b"old", 5)
    if is_damaged:
        path = tmp_path / "orders-0" / f"{0:020d}.log"
        path.write_bytes(path.read_bytes()[:-1] + b"~")
    with open_store(tmp_path, read_only=True) as reading:
        log = views_of(reading.topic("orders")[0]).log
        assert isinstance(log, ReadOnlyLog)
        stamps = list[PartitionStamp]()

        def stamp(directory: Directory) -> PartitionStamp:
            stamps.append(now(directory))
            return stamps[-1]

        def fail(ownership: Ownership) -> OwnershipKey:
            raise AssertionError

        now = PartitionStamp.now
        monkeypatch.setattr(PartitionStamp, "now", stamp)
        monkeypatch.setattr(Ownership, "cache_key", fail)
        log._loader.load()
        assert len(stamps) == 2


def test_compactions_during_a_look_are_no_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread begins to look while segments are replaced, and compares the two states
    when the log has been compacted once more."""
    at_load, may_load = threading.Event(), threading.Event()
    at_comparison, may_compare = threading.Event(), threading.Event()
    rename, load, compare = Directory.rename, Loader.load, loading._compare
    steps: list[str] = []

    def renamed(self: Directory, old: str, new: str, *rest: Any, **given: Any) -> None:
        if old.endswith(".log") and not steps:
            steps.append("a look")
            assert beside.end_offset > 0
        elif old.endswith(".log.swap") and steps == ["a look"]:
            steps.append("the look of the thread")
            looker.start()
            assert at_load.wait(20)
        rename(self, old, new, *rest, **given)

    def loaded(self: Loader, *given: Any) -> Any:
        if threading.current_thread() is looker:
            at_load.set()
            assert may_load.wait(20)
        return load(self, *given)

    def compared(*given: Any, **options: Any) -> Any:
        if threading.current_thread() is looker:
            at_comparison.set()
            assert may_compare.wait(20)
        return compare(*given, **options)

    config = logstore.TopicConfig(
        message_format=2, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0
    )
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]

        def fill(count: int) -> None:
            for _ in range(count):
                key = b"%d" % (partition.end_offset % 50)
                partition.append(b"v", key)
            partition.roll()

        for _ in range(3):
            fill(40)
        active = partition.append(b"active", b"x")
        with open_store(tmp_path, read_only=True) as reading:
            beside = reading.topic("orders")[0]
            records = beside.read()
            assert next(records).offset == 0
            found: list[logstore.Record] = []
            looker = threading.Thread(target=lambda: found.extend(beside.read()))
            with monkeypatch.context() as patch:
                patch.setattr(Directory, "rename", renamed)
                patch.setattr(Loader, "load", loaded)
                patch.setattr(loading, "_compare", compared)
                partition.compact(force=True)
                may_load.set()
                assert at_comparison.wait(20)
                fill(60)
                partition.compact(force=True)
                may_compare.set()
                looker.join(20)
            assert steps == ["a look", "the look of the thread"]
            assert found
            *_, last = records
            assert last.offset >= active
