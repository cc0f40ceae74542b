"""Opening, locking and closing a store."""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, crash, snapshot_of
from support.values import (
    append_one,
    append_records,
    config_of,
    expected,
    fill,
    new_partition,
    read_all,
    write_store,
)


def test_open_missing_directory_creates_it(tmp_path: Path) -> None:
    """A missing store is made, with its parent directories."""
    with logstore.open(tmp_path / "a" / "b") as store:
        assert store.topics() == []
        assert not store.recovery_report
    assert (tmp_path / "a" / "b").is_dir()


def test_open_without_create_of_nothing_raises_store_not_found(tmp_path: Path) -> None:
    """`create=False` makes nothing, and the error names the missing store."""
    with pytest.raises(logstore.StoreNotFoundError) as caught:
        logstore.open(tmp_path / "none", create=False)
    assert caught.value.path == str(tmp_path / "none")
    assert str(tmp_path / "none") in str(caught.value)
    assert isinstance(caught.value, LookupError)
    assert not (tmp_path / "none").exists()


def test_open_read_only_of_nothing_raises_store_not_found(tmp_path: Path) -> None:
    """`read_only` never creates."""
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.open(tmp_path / "none", read_only=True)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("read_only", [False, True])
def test_open_of_a_file_raises_store_not_found(tmp_path: Path, read_only: bool) -> None:
    """A file is no store."""
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(logstore.StoreNotFoundError):
        logstore.open(tmp_path / "file", read_only=read_only)


def test_open_takes_text_and_path(tmp_path: Path) -> None:
    """A path is a str or a Path; `path` is the absolute one."""
    with logstore.open(str(tmp_path / "data")) as store:
        assert store.path == str(tmp_path / "data")
    with logstore.open(tmp_path / "data") as store:
        assert store.path == str(tmp_path / "data")


def test_open_relative_path_survives_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store keeps its directory when the process changes its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with logstore.open("data") as store:
        partition = new_partition(store)
        fill(partition, 3)
        os.chdir(tmp_path / "elsewhere")
        fill(partition, 3)
        partition.roll()
        fill(partition, 3)
    assert read_all(tmp_path / "data") == expected(1, 0, 9)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_reopen_after_clean_close_has_false_report(tmp_path: Path) -> None:
    """Nothing needs recovery after a clean close."""
    write_store(tmp_path, 20)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert store.recovery_report.actions == ()
        assert store.recovery_report.to_dict() == {"actions": []}
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 20)


def test_reopen_after_clean_close_reads_one_header(tmp_path: Path) -> None:
    """A clean reopening reads only the header of the last batch of a log file: nothing
    is appended after a batch whose offset has changed."""
    write_store(tmp_path, 200, segment_bytes=2000)
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == 200
        assert partition.durable_offset == 200
        assert len(partition.segments) > 3
        assert files.count("read", ".log") == 1
        append_one(partition)
        assert files.count("read", ".log") == 1


def test_reopen_without_a_change_leaves_the_files_alone(tmp_path: Path) -> None:
    """Opening and closing a store do not change its files."""
    write_store(tmp_path, 50, segment_bytes=1000)
    before = {k: v for k, v in snapshot_of(tmp_path).items() if k != ".lock"}
    logstore.open(tmp_path).close()
    after = {k: v for k, v in snapshot_of(tmp_path).items() if k != ".lock"}
    assert after == before


@pytest.mark.parametrize("clean", [True, False])
def test_read_only_changes_nothing(tmp_path: Path, clean: bool) -> None:
    """Reading changes no names, sizes and times of files."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store, segment_bytes=500, retention_ms=1000), 40)
        crash(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / ("live" if clean else "killed")
    log = sorted((path / "orders-0").glob("*.log"))[-1]
    if not clean:
        log.write_bytes(log.read_bytes()[:-3])
        for index in (path / "orders-0").glob("*.index"):
            index.unlink()
    before = snapshot_of(path)
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("orders")[0]
        count = 40 if clean else 39
        assert list(partition.read()) == expected(1, 0, count)
        assert list(partition.read_batches())
        assert partition.offset_for_time(0) == 0
        assert partition.segments
        assert store.topic("orders").apply_retention(dry_run=True)
    assert snapshot_of(path) == before


def test_read_only_makes_no_changing_call(tmp_path: Path) -> None:
    """A read-only store asks the system for nothing that could change a file."""
    with logstore.open(tmp_path) as writer:
        partition = new_partition(writer, segment_bytes=500)
        fill(partition, 30)
        files = FaultyFiles()
        with open_store(tmp_path, read_only=True, _files=files) as store:
            reader = store.topic("orders")[0]
            assert list(reader.read()) == expected(1, 0, 30)
            fill(partition, 30)
            assert reader.end_offset == 60
            assert reader.offset_for_time(1) == 0
    changing = {
        "create", "lock", "make_directory", "remove_directory", "rename", "reserve",
        "sync", "sync_directory", "truncate", "unlink", "write",
    }  # fmt: skip
    assert not changing & set(files.counts)


def test_read_only_refuses_every_change(tmp_path: Path) -> None:
    """Each method that would change something raises ReadOnlyError."""
    write_store(tmp_path, 3)
    with logstore.open(tmp_path, read_only=True) as store:
        topic = store.topic("orders")
        partition = topic[0]
        for change in (
            lambda: store.create_topic("new"),
            lambda: store.delete_topic("orders"),
            lambda: topic.add_partitions(1),
            lambda: topic.append(b"x"),
            lambda: topic.apply_retention(),
            lambda: partition.append(b"x"),
            lambda: partition.append_many([b"x"]),
            lambda: partition.append_batches(b""),
            lambda: partition.flush(),
            lambda: partition.roll(),
            lambda: partition.delete_before(1),
            lambda: partition.truncate_to(1),
        ):
            with pytest.raises(logstore.errors.ReadOnlyError):
                change()


def test_read_only_while_a_writer_works_sees_what_it_wrote(tmp_path: Path) -> None:
    """Readers need no lock and see each append when it has returned."""
    with logstore.open(tmp_path) as writer:
        partition = new_partition(writer)
        with logstore.open(tmp_path, read_only=True) as store:
            reader = store.topic("orders")[0]
            for count in range(5):
                assert reader.end_offset == count
                assert list(reader.read()) == expected(1, 0, count)
                append_one(partition)


def test_read_only_of_a_store_without_checkpoints_works(tmp_path: Path) -> None:
    """Segments alone are enough to read."""
    directory = write_store(tmp_path, 30, segment_bytes=700)
    for path in [*tmp_path.iterdir(), *directory.iterdir()]:
        if path.is_file() and path.suffix != ".log":
            path.unlink()
    assert read_all(tmp_path) == expected(1, 0, 30)


def test_second_writer_in_the_same_process_raises_store_locked(tmp_path: Path) -> None:
    """There is one writer, also within a process; the error names it."""
    with logstore.open(tmp_path):
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path)
        assert caught.value.holder_pid == os.getpid()
        assert caught.value.path == str(tmp_path)
        # The failed attempt must not have dropped the lock.
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(tmp_path)
    logstore.open(tmp_path).close()


def test_second_writer_by_another_spelling_raises_store_locked(tmp_path: Path) -> None:
    """A store is identified by its lock file, not by the text of its path."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with logstore.open(tmp_path / "data"):
        for path in (tmp_path / "link", f"{tmp_path}/./data/../data//"):
            with pytest.raises(logstore.StoreLockedError):
                logstore.open(path)


def test_lock_file_left_behind_does_not_lock(tmp_path: Path) -> None:
    """The lock ended with its process; the file alone means nothing."""
    write_store(tmp_path, 1)
    (tmp_path / ".lock").write_bytes(b"%d" % os.getpid())
    logstore.open(tmp_path).close()


def test_failed_open_lets_go_of_the_lock(tmp_path: Path) -> None:
    """A store that could not be opened can be opened after the cause is gone."""
    write_store(tmp_path, 3)
    files = FaultyFiles()
    files.fail("list", nth=1)
    with pytest.raises(logstore.StorageError):
        open_store(tmp_path, _files=files)
    logstore.open(tmp_path).close()


def test_two_threads_before_the_first_change_and_three_afterwards(
    tmp_path: Path,
) -> None:
    """One serves requests for snapshots, one requests of other processes, the third is
    shared by all partitions; a store that was opened for reading starts no thread."""
    tasks = Path("/proc/self/task")

    def threads() -> int:
        return len(list(tasks.iterdir()))

    before = threads()
    for _ in range(20):
        # Threads of stores of other tests end a moment after the store was closed.
        time.sleep(0.01)
        before = min(before, threads())
    with logstore.open(tmp_path) as store:
        assert threads() == before + 2
        for partition in store.create_topic("orders", partitions=3):
            partition.append(b"x")
        deadline = time.monotonic() + 60
        while threads() > before + 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert threads() == before + 3
    deadline = time.monotonic() + 60
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before
    with logstore.open(tmp_path, read_only=True) as store:
        assert [r.value for r in store.topic("orders")[0].read()] == [b"x"]
        assert threads() == before


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refuse every thread, like a limit on threads."""

    def refuse(*arguments: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)


CHANGES: dict[str, Callable[[logstore.Store], object]] = {
    "append": lambda s: append_one(s.topic("orders")[0]),
    "durable": lambda s: append_one(s.topic("orders")[0], durable=True),
    "append_many": lambda s: append_records(s.topic("orders")[0], 3),
    "roll": lambda s: s.topic("orders")[0].roll(),
    "delete_before": lambda s: s.topic("orders")[0].delete_before(1),
    "truncate_to": lambda s: s.topic("orders")[0].truncate_to(1),
    "create_topic": lambda s: s.create_topic("new"),
    "delete_topic": lambda s: s.delete_topic("orders"),
    "configure": lambda s: s.topic("orders").configure(config_of(2)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_first_change_that_gets_no_thread_is_refused_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Without a thread nothing would be synced in time. After an error that came later
    than the write, a repetition would append a record twice."""
    write_store(tmp_path, 5, call=1)
    with logstore.open(tmp_path) as store:
        before = snapshot_of(tmp_path)
        with monkeypatch.context() as patch:
            refuse_threads(patch)
            for _ in range(2):
                with pytest.raises(logstore.StorageError, match="thread") as caught:
                    CHANGES[change](store)
                assert "nothing was written" in str(caught.value)
                assert snapshot_of(tmp_path) == before
                assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)
        store.topic("orders").configure(config_of(flush_ms=5))
        partition = store.topic("orders")[0]
        assert append_one(partition) == 5
        deadline = time.monotonic() + 20
        while partition.durable_offset < 6 and time.monotonic() < deadline:
            time.sleep(0.002)
        assert partition.durable_offset == 6


@pytest.mark.parametrize("was_killed", [False, True])
def test_close_of_a_store_that_got_no_thread_gives_the_lock_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_killed: bool
) -> None:
    """There is no thread to wait for, nor one that could end a recovery."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 5)
        crash(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / ("killed" if was_killed else "live")
    refuse_threads(monkeypatch)
    store = logstore.open(path)
    with pytest.raises(logstore.StorageError, match="thread"):
        append_one(store.topic("orders")[0])
    store.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        store.topics()
    with logstore.open(path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 5)
    monkeypatch.undo()
    with logstore.open(path) as store:
        assert append_one(store.topic("orders")[0]) == 5
    assert read_all(path) == expected(1, 0, 6)


def test_store_config_is_checked_when_made() -> None:
    """A setting that cannot work is refused with its name and value."""
    for setting in (
        {"max_open_files": 7},
        {"max_open_files": True},
        {"min_free_bytes": -1},
        {"max_batch_decompressed_bytes": 0},
        {"flush_checkpoint_ms": "1"},
    ):
        ((name, value),) = setting.items()
        with pytest.raises(logstore.ConfigError) as caught:
            logstore.StoreConfig(**setting)
        assert caught.value.name == name
        assert caught.value.value == value
        assert name in str(caught.value)


def test_store_config_is_frozen_and_has_documented_defaults() -> None:
    """The defaults are the documented ones, and cannot be changed afterwards."""
    config = logstore.StoreConfig()
    assert config.min_free_bytes == 0
    assert config.max_batch_decompressed_bytes == 256 << 20
    with pytest.raises(AttributeError):
        config.min_free_bytes = 1  # type: ignore[misc]


def test_on_recovery_is_called_with_each_action(tmp_path: Path) -> None:
    """The callback gets the actions of the report as they happen."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 10)
        crash(tmp_path / "live", tmp_path / "killed")
    log = next((tmp_path / "killed" / "orders-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    heard: list[logstore.types.RecoveryAction] = []
    with logstore.open(tmp_path / "killed", on_recovery=heard.append) as store:
        assert tuple(heard) == store.recovery_report.actions
        assert store.recovery_report
        assert heard


def test_read_only_of_a_symlinked_root_works(tmp_path: Path) -> None:
    """The root itself may be named through a link."""
    write_store(tmp_path / "data", 5)
    (tmp_path / "link").symlink_to(tmp_path / "data")
    assert read_all(tmp_path / "link") == expected(1, 0, 5)


def test_partition_directory_that_is_a_symlink_is_not_followed(tmp_path: Path) -> None:
    """A link in place of a partition leads nowhere."""
    write_store(tmp_path / "data", 5)
    write_store(tmp_path / "other", 5)
    (tmp_path / "data" / "stolen-0").symlink_to(tmp_path / "other" / "orders-0")
    with logstore.open(tmp_path / "data") as store:
        assert store.topics() == ["orders"]


def test_partition_directory_removed_under_the_writer_is_an_error(
    tmp_path: Path,
) -> None:
    """A changed directory of a partition redirects no write."""
    with logstore.open(tmp_path / "data") as store:
        partition = new_partition(store)
        fill(partition, 3)
        (tmp_path / "data" / "orders-0").rename(tmp_path / "moved")
        with pytest.raises(logstore.StorageError):
            partition.roll()
            partition.flush()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "moved"]
        assert not (tmp_path / "data" / "orders-0").exists()
        (tmp_path / "moved").rename(tmp_path / "data" / "orders-0")
    assert read_all(tmp_path / "data") == expected(1, 0, 3)


def test_store_shows_what_its_documentation_promises_and_nothing_else(
    tmp_path: Path,
) -> None:
    """Names that its parts need are in `StoreContext`, which is private."""
    with logstore.open(tmp_path) as store:
        names = {name for name in dir(store) if not name.startswith("_")}
    assert names == {
        "close",
        "compact",
        "config",
        "create_topic",
        "delete_topic",
        "discard_staged",
        "last_publication",
        "metrics",
        "path",
        "producer",
        "publish",
        "published",
        "read_only",
        "recover",
        "recovery_report",
        "snapshot",
        "stage",
        "submit",
        "to_dataset",
        "topic",
        "topics",
    }
