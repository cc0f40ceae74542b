"""Room for what is written: a full disk refuses an append, and nothing else."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import logstore
from logstore.store.store import open_store
from support.appending import CALLS
from support.damage import FaultyFiles, FullDisk, logs_in
from support.values import (
    append_one,
    append_records,
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
    read_all,
)


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
