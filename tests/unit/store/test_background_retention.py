"""Retention that a store applies by itself, and its errors."""

from __future__ import annotations

import dataclasses
import errno
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore import StoreConfig, TopicConfig
from logstore.io.files import Files
from logstore.io.scheduler import Scheduler
from logstore.store.opening import open_store
from support.damage import FaultyFiles, flip_bit, logs_in
from support.values import config_of

SOON = StoreConfig(retention_check_ms=20)
OLD = TopicConfig(segment_bytes=100, retention_ms=1000, file_delete_delay_ms=0)


def fill(partition: logstore.Partition, count: int = 5) -> None:
    """Fill a partition with segments of one old record each."""
    for _ in range(count):
        partition.append(bytes(66), timestamp_ms=1_000_000)


def wait_for(is_there: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not is_there():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def test_store_applies_the_retention_of_a_topic_by_itself(tmp_path: Path) -> None:
    with logstore.open(tmp_path, config=SOON) as store:
        partition = store.create_topic("orders", config=OLD)[0]
        other = store.create_topic("kept", config=config_of(segment_bytes=100))[0]
        fill(partition)
        fill(other)
        wait_for(lambda: partition.start_offset == 5)
        fill(partition)  # and again
        wait_for(lambda: partition.start_offset == 10)
        assert other.start_offset == 0
        assert len(other.segments) == 5


def test_store_that_is_only_opened_applies_retention(tmp_path: Path) -> None:
    """No append and no other use of the partition is needed."""
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", config=OLD)[0])
        assert len(store.topic("orders")[0].segments) == 5
    with logstore.open(tmp_path, config=SOON):
        wait_for(lambda: len(logs_in(tmp_path / "orders-0")) == 1)
    with logstore.open(tmp_path) as store:
        assert store.topic("orders")[0].start_offset == 5


def test_retention_that_is_set_later_is_applied(tmp_path: Path) -> None:
    with logstore.open(tmp_path, config=SOON) as store:
        topic = store.create_topic("orders", config=config_of(segment_bytes=100))
        fill(topic[0])
        topic.configure(config_of(segment_bytes=100, retention_bytes=250))
        wait_for(lambda: topic[0].start_offset == 2)


def test_topic_keeps_everything_unless_told_otherwise(tmp_path: Path) -> None:
    """Records of 1970 in a topic with default settings; there is no thread for it."""
    with logstore.open(tmp_path, config=SOON) as store:
        topic = store.create_topic("orders")
        for _ in range(3):
            topic[0].append(b"x", timestamp_ms=1)
            topic[0].roll()
        assert topic.config.retention_ms == -1
        assert not store._topics.retention._has_begun
        assert topic.apply_retention() == []
        assert len(topic[0].segments) == 4


def test_topic_without_settings_gets_the_defaults_of_the_store(tmp_path: Path) -> None:
    defaults = TopicConfig(message_format=2, retention_ms=5_000)
    config = StoreConfig(topic_defaults=defaults)
    with logstore.open(tmp_path, config=config) as store:
        assert store.create_topic("a").config == defaults
        assert store.create_topic("b", config=TopicConfig()).config == TopicConfig()
    with logstore.open(tmp_path) as store:  # they were saved
        assert store.topic("a").config == defaults
        assert store.create_topic("c").config == TopicConfig()


class NoSpaceKnown(Files):
    """The system does not report free space, which retention needs."""

    is_failing = True

    def free_bytes(self, fd: int) -> int:
        if self.is_failing:
            raise OSError(errno.EIO, "no answer")
        return super().free_bytes(fd)


def failing_store(tmp_path: Path) -> tuple[NoSpaceKnown, logstore.Store]:
    files = NoSpaceKnown()
    store = open_store(tmp_path, _files=files, config=SOON)
    partition = store.create_topic(
        "orders", config=dataclasses.replace(OLD, retention_ms=-1)
    )[0]
    fill(partition)
    store.topic("orders").configure(OLD)
    wait_for(lambda: bool(store._topics.retention._unreported))
    return files, store


CALLS: dict[str, Callable[[logstore.Store], object]] = {
    "topics": lambda store: store.topics(),
    "topic": lambda store: store.topic("orders"),
    "create_topic": lambda store: store.create_topic("more"),
    "stage": lambda store: store.stage(),
    "recover": lambda store: store.recover(),
    "append": lambda store: store._topics.open_partition(
        "orders", 0
    ).append(b"not in"),
    "Topic.append": lambda store: store.topic("orders").append(b"not in"),
    "Topic.flush": lambda store: store.topic("orders").flush(),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_failure_is_raised_by_the_next_call_and_by_one(
    tmp_path: Path, name: str
) -> None:
    """The failing call does nothing, and the next one works. Repeated failures of the
    same kind are logged, and not raised each time."""
    files, store = failing_store(tmp_path)
    with store:
        end = store._topics.open_partition("orders", 0).end_offset
        with pytest.raises(
            logstore.StorageError, match=r"retention of orders-0: "
        ) as e:
            CALLS[name](store)
        assert e.value.errno == 5
        time.sleep(0.1)  # some rounds more
        assert store.topics() == ["orders"]
        partition = store.topic("orders")[0]
        assert partition.end_offset == end
        partition.append(b"in")
        files.is_failing = False
        wait_for(lambda: partition.start_offset == end)


def test_failure_that_comes_back_is_raised_again(tmp_path: Path) -> None:
    files, store = failing_store(tmp_path)
    with store:
        with pytest.raises(logstore.StorageError):
            store.topics()
        files.is_failing = False
        partition = store.topic("orders")[0]
        wait_for(lambda: partition.start_offset == 5)
        files.is_failing = True
        with pytest.raises(logstore.StorageError, match="in the background"):
            for _ in range(1000):
                fill(partition, 1)
                time.sleep(0.01)


def test_readers_are_not_told(tmp_path: Path) -> None:
    """A read is right or wrong by itself; the failure is logged."""
    _, store = failing_store(tmp_path)
    with store:
        partition = store._topics.open_partition("orders", 0)
        assert len(list(partition.read())) == 5
        assert len(list(partition.follow(timeout=0))) == 5
        with pytest.raises(logstore.StorageError):
            store.topics()


def test_failure_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "logstore"):
        _, store = failing_store(tmp_path)
        store.close()  # raises nothing: all is durable
    assert "the retention of orders-0 failed" in caplog.text


def test_damaged_partition_keeps_retention_from_no_other(tmp_path: Path) -> None:
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", 2, config=OLD)
        fill(topic[0])
        fill(topic[1])
    flip_bit(sorted((tmp_path / "orders-0").glob("*.log"))[-1], 50)
    with logstore.open(tmp_path, config=SOON) as store:
        topic = store._topics.find("orders")
        wait_for(lambda: topic[1].start_offset == 5)


def test_store_with_retention_is_collected_and_ends_its_thread(tmp_path: Path) -> None:
    store = logstore.open(tmp_path, config=SOON)
    store.create_topic("orders", config=OLD)
    keeper = store._topics.retention._keeper
    wait_for(lambda: keeper._thread_id is not None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del store
        wait_for(lambda: gc.collect() >= 0 and keeper._stopped)
    logstore.open(tmp_path).close()


def test_no_thread_to_be_had_keeps_nobody_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with logstore.open(tmp_path) as store:
        fill(store.create_topic("orders", config=OLD)[0])

    def refuse(self: Scheduler) -> None:
        raise logstore.StorageError("no thread")

    with monkeypatch.context() as patch:
        patch.setattr(Scheduler, "start", refuse)
        store = logstore.open(tmp_path, config=SOON)
    with store:
        with pytest.raises(logstore.StorageError, match="no thread"):
            store.topics()
        partition = store.topic("orders")[0]
        fill(partition, 1)  # the first change tries again
        wait_for(lambda: partition.start_offset > 0)


def test_close_does_not_wait_for_a_round(tmp_path: Path) -> None:
    """It only waits for the current partition."""
    files = FaultyFiles()
    store = open_store(tmp_path, _files=files, config=SOON)
    topic = store.create_topic("orders", 50, config=OLD)
    for partition in topic:
        fill(partition, 2)
    begun = threading.Event()
    files.before = lambda method, name: begun.set() if method == "rename" else None
    assert begun.wait(30)
    store.close()
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
