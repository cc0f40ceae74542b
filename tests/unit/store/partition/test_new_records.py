"""Events that wake a follower or a consumer that waits for records."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore import Partition, Store
from logstore import _native as native
from logstore.io import layout, wakeups
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.wakeups import Watch
from logstore.store.opening import open_store
from logstore.store.partition import new_records as module
from logstore.store.partition.new_records import NewRecords

LONG_S = 60.0


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Store]:
    with logstore.open(tmp_path) as store:
        store.create_topic("orders", 2)
        yield store


@pytest.fixture
def reader(writer: Store) -> Iterator[Store]:
    with logstore.open(writer.path, read_only=True) as store:
        yield store


def root_of(store: Store) -> Directory:
    return store._context.root


def settle(new_records: NewRecords, *partitions: Partition, **options: Any) -> None:
    """Wait until there is no news."""
    while new_records.wait([p._views for p in partitions], 0, **options):
        pass


def test_waiter_is_told_of_each_publication(tmp_path: Path) -> None:
    """This includes one that only its journal shows, when the journal begins, and when
    another one replaces it."""
    root = Directory.open_root(Files(), str(tmp_path))
    new_records = NewRecords(root)
    sequence = 0
    for _ in range(2):
        with logstore.open(tmp_path) as store:
            for _ in range(3):
                settle(new_records)
                sequence += 1
                store.publish([], identity="x", sequence=sequence, metadata=b"m")
                assert new_records.wait([], LONG_S)
    new_records.close()
    root.close()


def test_waiter_is_told_of_writes_to_a_journal_that_was_replaced(
    tmp_path: Path,
) -> None:
    """Writes to the first journal are reported, too."""
    root = Directory.open_root(Files(), str(tmp_path))
    new_records = NewRecords(root)
    journal = tmp_path / layout.PUBLICATION
    for _ in range(2):
        (tmp_path / "other").touch()
        (tmp_path / "other").rename(journal)
        settle(new_records)
        journal.open("ab").write(b"x")
        assert new_records.wait([], 0)
    new_records.close()
    root.close()


@pytest.mark.parametrize("side", ["writer", "reader"])
def test_waiter_is_told_of_appends_to_its_partitions(
    writer: Store, reader: Store, side: str
) -> None:
    """Appends to each of its partitions, and no others, in this process or another
    one."""
    one, two = writer.topic("orders").partitions
    store = {"writer": writer, "reader": reader}[side]
    first, second = store.topic("orders").partitions
    new_records = NewRecords(root_of(store))
    for partition in (one, two):
        settle(new_records, first, second)
        partition.append(b"x")
        assert new_records.wait([first._views, second._views], LONG_S)
    settle(new_records, first)
    two.append(b"x")
    assert not new_records.wait([first._views], 0)
    new_records.close()


def test_waiter_is_not_told_of_commits_of_groups(writer: Store, reader: Store) -> None:
    """They are written to files of the store, and are no records."""
    writer.topic("orders")[0].append(b"x")
    consumer = logstore.Consumer(writer, group="g", reset="earliest")
    consumer.subscribe(["orders"])
    while not consumer.poll(timeout_ms=100):
        pass
    consumer.commit()
    new_records = NewRecords(root_of(reader))
    partition = reader.topic("orders")[0]
    settle(new_records, partition)
    consumer.seek(logstore.TopicPartition("orders", 0), 0)
    consumer.commit()
    assert not new_records.wait([partition._views], 0)
    consumer.close()
    new_records.close()


def test_waiter_returns_at_once_if_it_waits_for_something_else(
    writer: Store, reader: Store
) -> None:
    """There may have been earlier changes: other partitions, watches, directories."""
    one, two = (p._views for p in reader.topic("orders").partitions)
    new_records = NewRecords(root_of(reader))
    group = Watch(root_of(reader), native.WATCH_CLOSES, ".lock")
    for views, options in (
        ([one], {}),
        ([one, two], {}),
        ([one], {"more": [group]}),
        ([one], {"more": [group], "incarnation": ["id"]}),
        ([one], {"more": [group], "incarnation": ["other id"]}),
    ):
        assert new_records.wait(views, LONG_S, **options)
        while new_records.wait(views, 0, **options):
            pass  # the writer's thread may still read earlier news
        assert new_records.is_reporting
    new_records.close()
    assert not new_records.is_reporting


def test_waiter_in_the_store_that_writes_leaves_nothing_behind(writer: Store) -> None:
    """No descriptor is left, and after the close, nothing that appends would wake."""
    partition = writer.topic("orders")[0]
    signal = partition._views.appended
    assert signal is not None
    before = len(os.listdir("/proc/self/fd"))
    with closing(NewRecords(root_of(writer))) as new_records:
        new_records.wait([partition._views], 0)
        assert len(os.listdir("/proc/self/fd")) == before
        assert len(signal.waiters) == 1
    assert len(signal.waiters) == 0


def test_followers_that_end_leave_nothing_behind(writer: Store) -> None:
    """They end by time, by `close`, or are forgotten."""
    topic = writer.topic("orders")
    signals = [p._views.appended for p in topic.partitions]
    for follow in (topic[0].follow, topic.follow):
        end = topic[0].end_offset
        topic[0].append(b"x")
        follower = follow({0: end} if follow == topic.follow else end, timeout=0.05)
        next(follower)
        assert list(follower) == []
        follower = follow(timeout=LONG_S)
        next(follower)
        del follower
    assert [len(signal.waiters) for signal in signals if signal] == [0, 0]


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Sleeps of this thread, expected to be empty."""
    sleeps: list[float] = []
    mine = threading.current_thread()

    def sleep(seconds: float) -> None:
        if threading.current_thread() is mine:
            sleeps.append(seconds)
        else:
            time.sleep(seconds)

    clock = SimpleNamespace(monotonic=time.monotonic, sleep=sleep)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(wakeups, "time", clock)
    return sleeps


def test_reports_in_quick_succession_wake_after_the_interval(
    writer: Store, reader: Store, slept: list[float]
) -> None:
    """A process that appends records one by one does not wake a reader for each."""
    one = writer.topic("orders")[0]
    views = [reader.topic("orders")[0]._views]
    for interval_s, sleeps in ((LONG_S, [LONG_S]), (0.0, [])):
        new_records = NewRecords(root_of(reader), interval_s)
        new_records.wait(views, 0)
        slept.clear()
        one.append(b"x")
        assert new_records.wait(views, LONG_S)
        assert slept == []
        one.append(b"x")
        assert new_records.wait(views, LONG_S)
        assert slept == sleeps
        new_records.close()


class Refusing(Files):
    """A system that reports no changes."""

    def new_watch(self) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_waiter_pauses_where_nothing_is_reported(
    writer: Store, slept: list[float]
) -> None:
    """The pauses grow until they are restarted."""
    with open_store(writer.path, read_only=True, _files=Refusing()) as store:
        views = [store.topic("orders")[0]._views]
        new_records = NewRecords(root_of(store))
        new_records.restart_pauses()
        for _ in range(9):
            assert new_records.wait(views, LONG_S)
        assert slept == [0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
        new_records.restart_pauses()
        assert new_records.wait(views, LONG_S)
        assert new_records.wait(views, 0)
        assert slept[8:] == [0.001, 0]


def test_sleep_ends_although_reports_may_be_lost(
    writer: Store, reader: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not every file system reports each change."""
    monkeypatch.setattr(module, "WATCHED_S_MAX", 0.02)
    views = [reader.topic("orders")[0]._views]
    new_records = NewRecords(root_of(reader))
    settle(new_records, reader.topic("orders")[0])
    begun = time.monotonic()
    for seconds in (None, LONG_S):
        while new_records.wait(views, seconds):
            pass  # the writer may sync in the background
    assert time.monotonic() - begun < LONG_S
    new_records.close()
