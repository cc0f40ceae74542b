"""Recovery of many partitions: when first used, or all at once, several at a time."""

from __future__ import annotations

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from logstore.types import RecoveryProgress
from support.damage import FaultyFiles, Unsynced, append_garbage, crash, logs_in
from support.values import append_one, config_of, expected, fill

PARTITIONS = 6
COUNT = 20


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A store whose writer was killed, with a torn tail in each partition."""
    with open_store(tmp_path / "live", _files=Unsynced()) as store:
        config = config_of(1, segment_bytes=400)
        for partition in store.create_topic("orders", PARTITIONS, config).partitions:
            fill(partition, COUNT, call=5)
        path = crash(tmp_path / "live", tmp_path / "killed")
    for number in range(PARTITIONS):
        append_garbage(logs_in(path / f"orders-{number}")[-1])
    return path


def torn(path: Path) -> list[int]:
    """Partitions with a saved torn tail."""
    return sorted(int(p.parent.name[-1]) for p in path.glob("orders-*/.logstore-torn*"))


def labels(report: logstore.types.RecoveryReport) -> list[tuple[str, int]]:
    return [(action.label, action.partition) for action in report.actions]


ALL = [("torn-tail", number) for number in range(PARTITIONS)]


def test_partition_is_mended_when_it_is_first_used(killed: Path) -> None:
    """Opening recovers no partition; using one recovers it; closing recovers all."""
    files = FaultyFiles()
    with open_store(killed, _files=files) as store:
        assert files.count("read", ".log") == 0
        assert torn(killed) == []
        assert list(store.topic("orders")[3].read()) == expected(1, 0, COUNT)
        assert torn(killed) == [3]
        append_one(store.topic("orders")[3])
    assert torn(killed) == list(range(PARTITIONS))
    with logstore.open(killed) as store:
        assert not store.recovery_report
        assert store.topic("orders")[3].end_offset == COUNT + 1


def test_asking_for_the_report_completes_the_recovery(killed: Path) -> None:
    """The report covers all partitions, in their order, whatever was used before."""
    with logstore.open(killed) as store:
        store.topic("orders")[4]
        assert labels(store.recovery_report) == ALL
        assert torn(killed) == list(range(PARTITIONS))


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_recover_mends_all_and_tells_how_far_it_is(killed: Path, threads: int) -> None:
    """Progress rises to its end; it and the actions come in the caller's thread."""
    seen: list[RecoveryProgress] = []
    callers: set[threading.Thread] = set()

    def note(what: Any) -> None:
        callers.add(threading.current_thread())
        if isinstance(what, RecoveryProgress):
            seen.append(what)

    config = logstore.StoreConfig(recovery_threads=threads)
    with logstore.open(
        killed, config=config, on_progress=note, on_recovery=note
    ) as store:
        assert torn(killed) == list(range(PARTITIONS))
        assert callers == {threading.current_thread()}
        assert seen == sorted(seen)
        assert seen[0] == (0, PARTITIONS, 0)
        assert seen[-1][:2] == (PARTITIONS, PARTITIONS)
        assert seen[-1].bytes_checked > 0
        assert labels(store.recover()) == ALL


def test_recovery_that_is_interrupted_goes_on_later(killed: Path) -> None:
    """An exception out of the callback ends it; no partition is half recovered."""
    with logstore.open(killed) as store:
        with pytest.raises(KeyboardInterrupt):
            store.recover(interrupt_at_once)
        for partition in store.topic("orders").partitions:
            assert list(partition.read()) == expected(1, 0, COUNT)
            append_one(partition)
        assert {label for label, _ in labels(store.recovery_report)} == {"torn-tail"}


def interrupt_at_once(progress: RecoveryProgress) -> None:
    if progress.partitions_done:
        raise KeyboardInterrupt


def test_one_partition_that_cannot_be_read_does_not_stop_the_others(
    killed: Path,
) -> None:
    """It is reported; the others are recovered and take appends."""
    with open_store(killed, _files=FailingList("orders-2")) as store:
        assert ("unreadable", 2) in labels(store.recovery_report)
        with pytest.raises(logstore.StorageError):
            store.topic("orders")[2]
        append_one(store.topic("orders")[1])
    assert not (killed / ".kafka_cleanshutdown").exists()
    with logstore.open(killed) as store:
        assert append_one(store.topic("orders")[2]) == COUNT


class FailingList(FaultyFiles):
    """A disk on which one directory cannot be opened."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.fail("open_directory", name=name)


def test_clean_store_opens_without_a_look_at_its_partitions(tmp_path: Path) -> None:
    """The number of partitions does not matter; the store is clean again after one of
    them was used."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        for partition in store.create_topic("orders", PARTITIONS).partitions:
            fill(partition, COUNT)
        store.topic("orders")[1].delete_before(3)
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        assert files.count("open_directory") == 0
        append_one(store.topic("orders")[5])
    points = (tmp_path / "recovery-point-offset-checkpoint").read_text()
    assert points.splitlines()[2:] == [
        f"orders {number} {COUNT + (number == 5)}" for number in range(PARTITIONS)
    ]
    starts = (tmp_path / "log-start-offset-checkpoint").read_text()
    assert starts.splitlines()[2:] == ["orders 1 3"]
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert store.topic("orders")[1].start_offset == 3


def test_deleting_a_topic_needs_no_look_at_its_partitions(killed: Path) -> None:
    """Directories to be deleted need no repair."""
    with logstore.open(killed) as store:
        store.delete_topic("orders")
        assert torn(killed) == []
        assert store.topics() == []
    with logstore.open(killed) as store:
        assert not store.recovery_report


def test_partition_that_the_system_refused_once_is_tried_again(killed: Path) -> None:
    """There may have been no descriptor: the partition is intact."""
    files = FaultyFiles()
    with open_store(killed, _files=files) as store:
        topic = store.topic("orders")
        files.fail("list", errno.EMFILE)
        for _ in range(2):
            with pytest.raises(logstore.StorageError, match="Too many open files"):
                topic[0]
        files.heal()
        assert list(topic[0].read()) == expected(1, 0, COUNT)
        assert append_one(topic[0]) == COUNT
        assert ("unreadable", 0) not in labels(store.recovery_report)
    with logstore.open(killed) as store:
        assert not store.recovery_report
        assert list(store.topic("orders")[0].read()) == expected(1, 0, COUNT + 1)
