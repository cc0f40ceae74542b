"""The files that a store has open or makes: their number, names and modes."""

from __future__ import annotations

import gc
import os
import stat
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.children import descriptors_in
from support.damage import Unsynced
from support.values import (
    append_one,
    config_of,
    expected,
    fill,
    new_partition,
    write_store,
)


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
    gc.collect()  # files of other tests must not interfere
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        cycle()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_append_after_read_leaks_no_descriptor(tmp_path: Path) -> None:
    """The file opened by a reader is closed when the writer opens its own."""
    write_store(tmp_path, 10)
    before = len(os.listdir("/proc/self/fd"))
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert len(list(partition.read())) == 10
        append_one(partition)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("is_shared", [False, True])
def test_closed_store_that_has_published_has_no_descriptor(
    tmp_path: Path, is_shared: bool
) -> None:
    """It lets go of them when it is closed, and not when it is collected."""
    write_store(tmp_path, 10)
    before = len(descriptors_in(tmp_path))
    with logstore.open(tmp_path, shared=is_shared) as store:
        with store.stage("a", 1) as stage:
            stage.append_many(store.topic("orders")[0], [b"x"])
            staged = stage.finish()
        assert store.submit(staged, identity="a", sequence=1).is_new
    assert len(descriptors_in(tmp_path)) == before


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
    """Files handed over to readers by a roll count like files opened by the readers
    themselves, and so does the file of each writer."""
    config = logstore.StoreConfig(max_open_files=8)
    with open_store(tmp_path, config=config, _files=Unsynced()) as store:
        topic = store.create_topic("orders", 12, config_of(segment_bytes=100))

        def check(result: object) -> None:
            assert len(store._context.descriptors) <= 8
            # Plus the files of the store: its directory, and two files of its lock.
            assert len(descriptors_in(tmp_path)) <= 8 + 3

        for number in range(20):
            for partition in topic.partitions[: 12 if number % 5 == 4 else 3]:
                check(partition.append(b"%050d" % number))
        assert sum(len(partition.segments) for partition in topic) > 90
        # Without rolls all files belong to writers, which must give way.
        topic.configure(config_of())
        for partition in topic.partitions * 2:
            check(partition.append(b"x"))
        for partition in topic.partitions:
            check(next(partition.read()))
        for partition in topic.partitions:
            check(partition.append(b"x"))


def test_deleted_topic_holds_no_more_files_than_the_limit(tmp_path: Path) -> None:
    """This holds for any number of segments, and while its partitions are referenced or
    read: reads in progress continue, within the limit."""
    settings = config_of(segment_bytes=300, file_delete_delay_ms=0)
    with open_store(tmp_path, _files=Unsynced()) as store:
        for partition in store.create_topic("orders", 3, settings):
            fill(partition, 100)
            assert len(partition.segments) > 16
    config = logstore.StoreConfig(max_open_files=8)
    with open_store(tmp_path, config=config, _files=Unsynced()) as store:
        partitions = store.topic("orders").partitions
        readers = [partition.read() for partition in partitions]
        begun = [[next(reader)] for reader in readers]
        for partition in partitions:
            append_one(partition)
        store.delete_topic("orders")
        for found, reader in zip(begun, readers, strict=True):
            for record in reader:
                found.append(record)
                assert len(descriptors_in(tmp_path)) <= 8 + 3
            assert found == expected(1, 0, 100)
        assert len(descriptors_in(tmp_path)) <= 8 + 3


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
    """The root has only partition directories and files: a broker requires that."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store, segment_bytes=300), 30)
        names = {p.name for p in tmp_path.iterdir() if p.is_dir()}
        assert names == {"orders-0"}
    own = {p.name for p in tmp_path.iterdir() if p.name.startswith(".logstore")}
    assert all((tmp_path / name).is_file() for name in own)
    assert {p.name for p in tmp_path.iterdir() if p.is_dir()} == {"orders-0"}
