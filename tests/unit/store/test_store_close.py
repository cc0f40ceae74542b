"""Closing a store: once, interrupted, and while it is read."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from pathlib import Path

import pytest

import logstore
from logstore.io.lock import StoreLock
from logstore.store.context import StoreContext
from logstore.store.opening import open_store
from logstore.store.topic.open_topics import OpenTopics
from support.damage import FaultyFiles, snapshot_of, stop_syncs
from support.values import (
    append_one,
    config_of,
    expected,
    fill,
    new_partition,
    write_store,
)


def test_close_twice_is_fine(tmp_path: Path) -> None:
    """Closing a closed store does nothing."""
    store = logstore.open(tmp_path)
    store.close()
    store.close()


def test_close_that_was_interrupted_goes_on_when_it_is_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt comes before any of its system calls: afterwards all is durable and
    marked as closed, and the lock is free."""
    stop_syncs(monkeypatch)
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

        store = open_store(path, _files=files)
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
    """The thread of the store is in the middle of a sync by time, and must end."""
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

    store = open_store(tmp_path, _files=files)
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
    """Every call on a closed store or its parts raises StoreClosedError."""
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
        with pytest.raises(logstore.errors.StoreClosedError):
            use()


def test_read_across_close_ends_with_a_named_error(tmp_path: Path) -> None:
    """A read that has begun before the store is closed delivers right records or raises
    the named error."""
    write_store(tmp_path, 400, segment_bytes=1000)
    store = logstore.open(tmp_path)
    records = store.topic("orders")[0].read()
    found = [next(records)]
    store.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        found.extend(records)
    assert found == expected(1, 0, len(found))


def test_close_during_a_read_does_not_close_the_file_under_it(tmp_path: Path) -> None:
    """A descriptor in use is not closed: its number could be another file's by then."""
    write_store(tmp_path, 100)
    files = FaultyFiles()
    closed: list[int] = []
    close = files.close
    files.close = lambda fd: (closed.append(fd), close(fd))[1]  # type: ignore[method-assign,func-returns-value]
    store = open_store(tmp_path, _files=files)
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
        except (logstore.errors.StoreClosedError, AssertionError) as error:
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
    assert isinstance(found[-1], logstore.Record | logstore.errors.StoreClosedError)


@pytest.mark.parametrize("step", ["stop_rounds", "let_go"])
def test_opening_that_was_refused_and_interrupted_leaves_the_files_of_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its objects are closed when it is collected, without the lock."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(2))[0]
        publish(store, partition, 1)
        before = snapshot_of(tmp_path)
        kind = {"stop_rounds": OpenTopics, "let_go": StoreContext}[step]
        original, calls = getattr(kind, step), 0

        def interrupted(self: object, *arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls == 1:
                raise KeyboardInterrupt
            original(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(kind, step, interrupted)
            with pytest.raises(KeyboardInterrupt):
                logstore.open(tmp_path)
            gc.collect()
        assert calls == 2, "it was not closed"
        assert snapshot_of(tmp_path) == before
        publish(store, partition, 2)


def test_close_that_was_interrupted_without_the_lock_leaves_the_files_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interrupt came when the lock was released, and another store has it now."""
    first = logstore.open(tmp_path)
    publish(first, first.create_topic("orders", config=config_of(2))[0], 1)
    release = StoreLock.release

    def interrupted(self: StoreLock) -> None:
        release(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreLock, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.close()
    with logstore.open(tmp_path) as store:
        publish(store, store.topic("orders")[0], 2)
        before = snapshot_of(tmp_path)
        first.close()
        assert snapshot_of(tmp_path) == before
        publish(store, store.topic("orders")[0], 3)


def publish(store: logstore.Store, partition: logstore.Partition, number: int) -> None:
    """Publish one record: the store has a journal from then on."""
    with store.stage("test", number) as stage:
        stage.append_many(partition, [b"x"])
        staged = stage.finish()
    assert store.publish([staged], identity="test", sequence=number).is_new


def test_child_of_a_fork_closes_the_store_that_another_thread_changes(
    tmp_path: Path,
) -> None:
    """The other thread is in the middle of a creation and holds the locks of the store:
    the child has no such thread, and does not wait for it."""
    files = FaultyFiles()
    creating, go_on = threading.Event(), threading.Event()

    def wait(method: str, name: str) -> None:
        if method == "make_directory":
            creating.set()
            assert go_on.wait(30)

    with open_store(tmp_path, _files=files) as store:
        files.before = wait
        thread = threading.Thread(target=store.create_topic, args=("orders",))
        thread.start()
        assert creating.wait(30)
        child = os.fork()
        if child == 0:
            signal.alarm(20)  # it would wait for ever
            store.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        go_on.set()
        thread.join()
        assert append_one(store.topic("orders")[0]) == 0
