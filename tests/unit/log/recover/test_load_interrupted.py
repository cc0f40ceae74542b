"""Another opening after an opening, a roll or a deletion that a kill cut off."""

from __future__ import annotations

import contextlib
import errno
import shutil
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, append_garbage, snapshot_of
from support.killed import COUNT, killed_store, the_log
from support.values import append_one, every_magic, expected, new_partition, read_all


@every_magic
def test_second_opening_has_nothing_to_mend(tmp_path: Path, magic: int) -> None:
    """Recovery is done once, and leaves the same store to the next."""
    path = killed_store(tmp_path, magic, durable=10)
    append_garbage(the_log(path))
    logstore.open(path).close()
    before = snapshot_of(path / "orders-0")
    with logstore.open(path) as store:
        assert not store.recovery_report
    assert snapshot_of(path / "orders-0") == before


def test_recovery_that_is_killed_is_done_again(tmp_path: Path) -> None:
    """Cut off at any call, a recovery leaves a store that the next one can open."""
    path = killed_store(tmp_path, durable=10, segment_bytes=700)
    append_garbage(the_log(path))
    files = FaultyFiles()
    shutil.copytree(path, tmp_path / "count")
    open_store(tmp_path / "count", _files=files).close()
    total = len(files.calls)
    for k in range(0, total, 5):
        target = tmp_path / "try"
        shutil.copytree(path, target)
        files = FaultyFiles()
        left = [None] * k

        def stop(method: str, name: str, left: list[str | None] = left) -> None:
            if not left:
                left.append("over")
                raise KeyboardInterrupt
            if left[-1] == "over":
                # Later writes of a forgotten store do not reach the disk.
                raise OSError(errno.EIO, "killed")
            left.pop()

        files.before = stop
        with contextlib.suppress(KeyboardInterrupt):
            open_store(target, _files=files).close()
        shutil.copytree(target, tmp_path / "again")
        with logstore.open(tmp_path / "again") as store:
            partition = store.topic("orders")[0]
            assert list(partition.read()) == expected(1, 0, COUNT), k
            append_one(partition)
        shutil.rmtree(target)
        shutil.rmtree(tmp_path / "again")


@pytest.mark.parametrize("leftover", ["empty", "zeros"])
def test_new_segment_without_data_is_an_empty_active_segment(
    tmp_path: Path, leftover: str
) -> None:
    """A kill right after a roll leaves a file of no bytes, or of zeros."""
    path = killed_store(tmp_path)
    new = path / "orders-0" / f"{COUNT:020d}.log"
    new.write_bytes(b"" if leftover == "empty" else bytes(4096))
    assert read_all(path) == expected(1, 0, COUNT)
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        assert append_one(partition) == COUNT
    assert read_all(path) == expected(1, 0, COUNT + 1)


def test_deleted_and_temporary_leftovers_are_ignored_and_removed(
    tmp_path: Path,
) -> None:
    """Files that a crash left are not part of the log."""
    path = killed_store(tmp_path)
    data = the_log(path).read_bytes()
    for name in (
        f"{5:020d}.log.deleted",
        f"{5:020d}.log.cleaned",
        ".logstore-state.tmp",
    ):
        (path / "orders-0" / name).write_bytes(data)
    assert read_all(path) == expected(1, 0, COUNT)
    with logstore.open(path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, COUNT)
        names = {p.name for p in (path / "orders-0").iterdir()}
        assert f"{5:020d}.log.cleaned" not in names
    assert read_all(path) == expected(1, 0, COUNT)


def test_killed_on_the_very_first_open_opens_again(tmp_path: Path) -> None:
    """The creation of a store and a topic may stop at any call: a later opening
    works."""
    files = FaultyFiles()
    with open_store(tmp_path / "count", _files=files) as store:
        append_one(new_partition(store))
    for k in range(len(files.calls)):
        target = tmp_path / str(k)
        files = FaultyFiles()
        left = [None] * k

        def stop(method: str, name: str, left: list[str | None] = left) -> None:
            if not left:
                left.append("over")
                raise KeyboardInterrupt
            if left[-1] == "over":
                # Later writes of a forgotten store do not reach the disk.
                raise OSError(errno.EIO, "killed")
            left.pop()

        files.before = stop
        try:
            with open_store(target, _files=files) as store:
                append_one(new_partition(store))
        except (KeyboardInterrupt, logstore.StorageError):
            pass
        copy = tmp_path / f"copy{k}"
        if target.exists():
            shutil.copytree(target, copy)
        with logstore.open(copy) as store:
            topic = store.create_topic("other", exist_ok=True)
            assert topic.append(b"x").offset == 0
            for name in set(store.topics()) - {"other"}:
                found = [r for p in store.topic(name) for r in p.read()]
                assert found in ([], expected(1, 0, 1))
