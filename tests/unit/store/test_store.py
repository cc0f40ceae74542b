"""Opening, locking and closing a store."""

from __future__ import annotations

import _thread
import gc
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.store.store import open_store
from support.children import descriptors_in
from support.damage import FaultyFiles, Unsynced, crash, snapshot_of
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
    """A store that is not there is made, with the directories above it."""
    with logstore.open(tmp_path / "a" / "b") as store:
        assert store.topics() == []
        assert not store.recovery_report
    assert (tmp_path / "a" / "b").is_dir()


def test_open_without_create_of_nothing_raises_store_not_found(tmp_path: Path) -> None:
    """`create=False` makes nothing and says what is missing."""
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
    """A path is a str or a Path; the store tells its absolute one."""
    with logstore.open(str(tmp_path / "data")) as store:
        assert store.path == str(tmp_path / "data")
    with logstore.open(tmp_path / "data") as store:
        assert store.path == str(tmp_path / "data")


def test_open_relative_path_survives_chdir(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store stays where it was opened, wherever the process goes."""
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
    """Nothing is to be mended after a clean close."""
    write_store(tmp_path, 20)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert store.recovery_report.actions == ()
        assert store.recovery_report.to_dict() == {"actions": []}
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 20)


def test_reopen_after_clean_close_reads_no_log(tmp_path: Path) -> None:
    """A clean reopening looks at no byte of a log file."""
    write_store(tmp_path, 200, segment_bytes=2000)
    files = FaultyFiles()
    with open_store(tmp_path, files=files) as store:
        partition = store.topic("orders")[0]
        assert partition.end_offset == 200
        assert partition.durable_offset == 200
        assert len(partition.segments) > 3
        assert files.count("read", ".log") == 0
        append_one(partition)
        assert files.count("read", ".log") == 0


def test_reopen_without_a_change_leaves_the_files_alone(tmp_path: Path) -> None:
    """To open a store and close it again does not make it another one."""
    write_store(tmp_path, 50, segment_bytes=1000)
    before = {k: v for k, v in snapshot_of(tmp_path).items() if k != ".lock"}
    logstore.open(tmp_path).close()
    after = {k: v for k, v in snapshot_of(tmp_path).items() if k != ".lock"}
    assert after == before


@pytest.mark.parametrize("clean", [True, False])
def test_read_only_changes_nothing(tmp_path: Path, clean: bool) -> None:
    """Reading leaves names, sizes and times of all files as they were."""
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
        with open_store(tmp_path, read_only=True, files=files) as store:
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
            with pytest.raises(logstore.ReadOnlyError):
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
    """A store is known by its lock file, not by how its path is written."""
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    with logstore.open(tmp_path / "data"):
        for path in (tmp_path / "link", f"{tmp_path}/./data/../data//"):
            with pytest.raises(logstore.StoreLockedError):
                logstore.open(path)


def test_lock_file_left_behind_does_not_lock(tmp_path: Path) -> None:
    """The lock died with its process; the file alone says nothing."""
    write_store(tmp_path, 1)
    (tmp_path / ".lock").write_bytes(b"%d" % os.getpid())
    logstore.open(tmp_path).close()


def test_failed_open_lets_go_of_the_lock(tmp_path: Path) -> None:
    """A store that could not be opened can be opened when the cause is gone."""
    write_store(tmp_path, 3)
    files = FaultyFiles()
    files.fail("list", nth=1)
    with pytest.raises(logstore.StorageError):
        open_store(tmp_path, files=files)
    logstore.open(tmp_path).close()


def test_close_twice_is_fine(tmp_path: Path) -> None:
    """Closing a closed store does nothing."""
    store = logstore.open(tmp_path)
    store.close()
    store.close()


def test_close_that_was_interrupted_goes_on_when_it_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any of its system calls: then all is durable and marked as closed, and the
    lock is free."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    config = config_of(index_interval_bytes=50, segment_bytes=1000)
    nth, was_interrupted = 0, True
    while was_interrupted:
        nth += 1
        path, files, left = tmp_path / str(nth), FaultyFiles(), nth

        def interrupt(method: str, name: str) -> None:
            nonlocal left
            if threading.current_thread() is threading.main_thread():
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt

        store = open_store(path, files=files)
        for partition in store.create_topic("orders", 2, config):
            fill(partition, 30)
        files.before = interrupt
        try:
            store.close()
            was_interrupted = False
        except KeyboardInterrupt:
            store.close()
        with logstore.open(path) as store:
            assert not store.recovery_report, nth
            for partition in store.topic("orders"):
                assert list(partition.read()) == expected(1, 0, 30)
                assert append_one(partition) == 30
    assert nth > 20


def test_close_that_was_interrupted_while_it_waited_goes_on(tmp_path: Path) -> None:
    """The thread of the store is in the middle of a sync by time, and has to end."""
    files = FaultyFiles()
    syncing, go_on = threading.Event(), threading.Event()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def before(method: str, name: str) -> None:
        if (
            method == "sync"
            and threading.current_thread() is not threading.main_thread()
        ):
            syncing.set()
            while not store._context.is_closed and not go_on.is_set():
                time.sleep(0.001)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert go_on.wait(30)

    store = open_store(tmp_path, files=files)
    partition = new_partition(store, flush_ms=1)
    handler = signal.signal(signal.SIGUSR1, interrupt)
    try:
        files.before = before
        append_one(partition)
        assert syncing.wait(30)
        with pytest.raises(KeyboardInterrupt):
            store.close()
    finally:
        go_on.set()
        signal.signal(signal.SIGUSR1, handler)
    store.close()
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert append_one(store.topic("orders")[0]) == 1


@pytest.mark.parametrize("read_only", [False, True])
def test_closed_store_raises_store_closed_everywhere(
    tmp_path: Path, read_only: bool
) -> None:
    """Whatever is asked of a closed store or its parts raises StoreClosedError."""
    write_store(tmp_path, 3)
    store = logstore.open(tmp_path, read_only=read_only)
    topic = store.topic("orders")
    partition = topic[0]
    store.close()
    for use in (
        store.topics,
        lambda: store.topic("orders"),
        lambda: store.create_topic("new"),
        lambda: store.delete_topic("orders"),
        lambda: topic[0],
        lambda: topic.partitions,
        lambda: topic.append(b"x"),
        lambda: topic.add_partitions(1),
        lambda: topic.apply_retention(),
        lambda: partition.append(b"x"),
        lambda: partition.append_many([b"x"]),
        lambda: partition.append_batches(b""),
        lambda: partition.flush(),
        lambda: partition.read(),
        lambda: next(partition.follow()),
        lambda: partition.fetch(0),
        lambda: partition.read_batches(),
        lambda: partition.read_arrow(),
        lambda: partition.offset_for_time(0),
        lambda: partition.start_offset,
        lambda: partition.end_offset,
        lambda: partition.durable_offset,
        lambda: partition.segments,
        lambda: partition.roll(),
        lambda: partition.delete_before(0),
        lambda: partition.truncate_to(0),
    ):
        with pytest.raises(logstore.StoreClosedError):
            use()


def test_read_across_close_ends_with_a_named_error(tmp_path: Path) -> None:
    """A read that has begun when its store is closed delivers right records or says
    that the store is closed."""
    write_store(tmp_path, 400, segment_bytes=1000)
    store = logstore.open(tmp_path)
    records = store.topic("orders")[0].read()
    found = [next(records)]
    store.close()
    with pytest.raises(logstore.StoreClosedError):
        found.extend(records)
    assert found == expected(1, 0, len(found))


def test_close_during_a_read_does_not_close_the_file_under_it(tmp_path: Path) -> None:
    """A descriptor in use is not closed: its number could be another file's by then."""
    write_store(tmp_path, 100)
    files = FaultyFiles()
    closed: list[int] = []
    close = files.close
    files.close = lambda fd: (closed.append(fd), close(fd))[1]  # type: ignore[method-assign,func-returns-value]
    store = open_store(tmp_path, files=files)
    records = store.topic("orders")[0].read()
    reading, go_on = threading.Event(), threading.Event()
    in_use: list[int] = []
    read = files.read

    def slow_read(fd: int, buffer: object, pos: int) -> int:
        if threading.current_thread() is reader and not in_use:
            in_use.append(fd)
            closed.clear()
            reading.set()
            go_on.wait(10)
            assert fd not in closed
        return int(read(fd, buffer, pos))

    files.read = slow_read  # type: ignore[method-assign]
    found: list[object] = []

    def consume() -> None:
        try:
            found.extend(records)
        except (logstore.StoreClosedError, AssertionError) as error:
            found.append(error)

    reader = threading.Thread(target=consume)
    reader.start()
    assert reading.wait(10)
    closer = threading.Thread(target=store.close)
    closer.start()
    closer.join(0.3)
    go_on.set()
    closer.join(10)
    reader.join(10)
    assert not isinstance(found[-1], AssertionError)
    assert isinstance(found[-1], logstore.Record | logstore.StoreClosedError)


def test_open_store_leaks_no_descriptor(tmp_path: Path) -> None:
    """After the close, as many files are open as before the open."""
    write_store(tmp_path, 60, segment_bytes=500)

    def cycle() -> None:
        with logstore.open(tmp_path) as store:
            partition = store.topic("orders")[0]
            assert list(partition.read())
            append_one(partition)
            assert list(partition.read())
            partition.roll()
            append_one(partition)
            partition.delete_before(partition.start_offset + 7)
            partition.truncate_to(partition.end_offset - 1)
            assert list(partition.read())

    cycle()
    gc.collect()  # what other tests left behind is not to go in between
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        cycle()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_after_read_leaks_no_descriptor(tmp_path: Path) -> None:
    """The file that a reader had open is closed when the writer opens its own."""
    write_store(tmp_path, 10)
    before = len(os.listdir("/proc/self/fd"))
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert len(list(partition.read())) == 10
        append_one(partition)
    assert len(os.listdir("/proc/self/fd")) == before


def test_open_files_stay_below_the_limit(tmp_path: Path) -> None:
    """Many segments need no more descriptors than `max_open_files` says."""
    write_store(tmp_path, 300, segment_bytes=300)
    config = logstore.StoreConfig(max_open_files=8)
    with logstore.open(tmp_path, read_only=True, config=config) as store:
        partition = store.topic("orders")[0]
        assert len(partition.segments) > 30
        before = len(os.listdir("/proc/self/fd"))
        readers = [partition.read(start=start) for start in range(0, 300, 20)]
        for reader in readers:
            next(reader)
        assert len(os.listdir("/proc/self/fd")) <= before + 8
        assert [len(list(r)) for r in readers] == [
            299 - start for start in range(0, 300, 20)
        ]


def test_rolls_and_appends_keep_no_more_files_open_than_the_limit(
    tmp_path: Path,
) -> None:
    """What a roll hands over to readers counts like what they opened themselves, and so
    does the file of each writer."""
    config = logstore.StoreConfig(max_open_files=8)
    with open_store(tmp_path, config=config, files=Unsynced()) as store:
        topic = store.create_topic("orders", 12, config_of(segment_bytes=100))

        def check(result: object) -> None:
            assert len(store._context.descriptors) <= 8
            # Those of the store itself are its directory and its lock.
            assert len(descriptors_in(tmp_path)) <= 8 + 2

        for number in range(20):
            for partition in topic.partitions[: 12 if number % 5 == 4 else 3]:
                check(partition.append(b"%050d" % number))
        assert sum(len(partition.segments) for partition in topic) > 90
        # Without rolls all files are those of writers, which have to give way.
        topic.configure(config_of())
        for partition in topic.partitions * 2:
            check(partition.append(b"x"))
        for partition in topic.partitions:
            check(next(partition.read()))
        for partition in topic.partitions:
            check(partition.append(b"x"))


def test_deleted_topic_holds_no_more_files_than_the_limit(tmp_path: Path) -> None:
    """However many segments it has, and whoever refers to its partitions, or reads
    them: what has begun goes on, within the limit."""
    settings = config_of(segment_bytes=300, file_delete_delay_ms=0)
    with open_store(tmp_path, files=Unsynced()) as store:
        for partition in store.create_topic("orders", 3, settings):
            fill(partition, 100)
            assert len(partition.segments) > 16
    config = logstore.StoreConfig(max_open_files=8)
    with open_store(tmp_path, config=config, files=Unsynced()) as store:
        partitions = store.topic("orders").partitions
        readers = [partition.read() for partition in partitions]
        begun = [[next(reader)] for reader in readers]
        for partition in partitions:
            append_one(partition)
        store.delete_topic("orders")
        for found, reader in zip(begun, readers, strict=True):
            for record in reader:
                found.append(record)
                assert len(descriptors_in(tmp_path)) <= 8 + 2
            assert found == expected(1, 0, 100)
        assert len(descriptors_in(tmp_path)) <= 8 + 2


def test_files_are_private_whatever_the_umask(tmp_path: Path) -> None:
    """Files are 0600 and directories 0700, never wider."""
    old = os.umask(0)
    try:
        write_store(tmp_path / "data", 30, magic=2, segment_bytes=300)
    finally:
        os.umask(old)
    for path in [tmp_path / "data", *(tmp_path / "data").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_store_root_holds_no_directory_of_its_own(tmp_path: Path) -> None:
    """Beside partitions there are only files in the root: a broker wants it so."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store, segment_bytes=300), 30)
        names = {p.name for p in tmp_path.iterdir() if p.is_dir()}
        assert names == {"orders-0"}
    own = {p.name for p in tmp_path.iterdir() if p.name.startswith(".logstore")}
    assert all((tmp_path / name).is_file() for name in own)
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"orders-0"}


def test_no_thread_before_the_first_change_and_one_afterwards(tmp_path: Path) -> None:
    """A store that only reads has no thread; all partitions share one."""
    tasks = Path("/proc/self/task")

    def threads() -> int:
        return len(list(tasks.iterdir()))

    before = threads()
    for _ in range(20):
        # Those of stores of other tests end a moment after the store was closed.
        time.sleep(0.01)
        before = min(before, threads())
    with logstore.open(tmp_path) as store:
        assert threads() == before
        for partition in store.create_topic("orders", partitions=3):
            partition.append(b"x")
        assert threads() == before + 1
    deadline = time.monotonic() + 60
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before
    with logstore.open(tmp_path) as store:
        assert [r.value for r in store.topic("orders")[0].read()] == [b"x"]
        assert threads() == before


def refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the process may have so many and no more."""

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
    """Without one nothing would be synced in time. An error behind the write would have
    a record appended twice by who tries again."""
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
    """There is none to be waited for, nor one to end a recovery with."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 5)
        crash(tmp_path / "live", tmp_path / "killed")
    path = tmp_path / ("killed" if was_killed else "live")
    refuse_threads(monkeypatch)
    store = logstore.open(path)
    with pytest.raises(logstore.StorageError, match="thread"):
        append_one(store.topic("orders")[0])
    store.close()
    with pytest.raises(logstore.StoreClosedError):
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
    """Defaults are those that are documented, and cannot be changed afterwards."""
    config = logstore.StoreConfig()
    assert config.min_free_bytes == 0
    assert config.max_batch_decompressed_bytes == 256 << 20
    with pytest.raises(AttributeError):
        config.min_free_bytes = 1  # type: ignore[misc]


def test_on_recovery_is_called_with_each_action(tmp_path: Path) -> None:
    """The callback hears what the report says, while it happens."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 10)
        crash(tmp_path / "live", tmp_path / "killed")
    log = next((tmp_path / "killed" / "orders-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-1])
    heard: list[logstore.RecoveryAction] = []
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
    """What happens to a partition's directory leads no write elsewhere."""
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
    """What its parts need of it is in `StoreContext`, which nobody sees."""
    with logstore.open(tmp_path) as store:
        names = {name for name in dir(store) if not name.startswith("_")}
    assert names == {
        "close",
        "config",
        "create_topic",
        "delete_topic",
        "discard_staged",
        "last_publication",
        "metrics",
        "path",
        "publish",
        "published",
        "read_only",
        "recover",
        "recovery_report",
        "stage",
        "topic",
        "topics",
    }
