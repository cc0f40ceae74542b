"""Directories that are not stores: the errors of opening one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

import logstore
from faults.checker import PATH, open_quietly
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import prepare_beside
from logstore.io.layout import OWNER
from support.disk import MemoryDisk
from support.power_cut import cuts
from support.values import append_records, config_of


def kept(path: Path) -> dict[str, tuple[int, int]]:
    return {str(f): (f.stat().st_size, f.stat().st_mtime_ns) for f in path.rglob("*")}


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("state", ["open", "closed", "unused", "kafka"])
def test_directory_of_a_partition_is_told_from_a_store(
    tmp_path: Path, read_only: bool, state: str
) -> None:
    """The error names the directory to open instead, and nothing is written."""
    with logstore.open(tmp_path / "s") as store:
        partition = store.create_topic("my-orders", 2, config_of())[1]
        if state != "unused":
            append_records(partition, 3)
        if state == "open":
            check_refused(tmp_path / "s", read_only)
    if state == "kafka":
        for name in (".logstore-owner", ".logstore-topics", ".lock"):
            (tmp_path / "s" / name).unlink()
        for file in (tmp_path / "s" / "my-orders-1").glob(".logstore*"):
            file.unlink()
    check_refused(tmp_path / "s", read_only)


def check_refused(store: Path, read_only: bool) -> None:
    path, before = store / "my-orders-1", kept(store)
    with pytest.raises(logstore.StoreNotFoundError) as caught:
        logstore.open(path, read_only=read_only)
    said = str(caught.value)
    assert "the directory of a partition; the store is its parent" in said
    assert f"logstore.open({str(store)!r}).topic('my-orders')[1]" in said
    assert caught.value.path == str(path)
    assert kept(store) == before
    with logstore.open(store, read_only=True) as found:
        assert found["my-orders"][1].path == str(path)


@pytest.mark.parametrize("content", [[], ["passwd", "hosts"], ["notes-1"], ["a.log"]])
def test_directory_with_nothing_of_a_log_is_no_store_for_reading(
    tmp_path: Path, content: list[str]
) -> None:
    path = tmp_path / "etc"
    path.mkdir(mode=0o700)
    for name in content:
        (path / name).write_bytes(b"x")
    before = kept(path)
    with pytest.raises(logstore.StoreNotFoundError, match="there is no store at") as e:
        logstore.open(path, read_only=True)
    assert e.value.path == str(path)
    assert kept(path) == before
    with logstore.open(path) as store:  # but one can be made there
        assert store.topics() == []
    with logstore.open(path, read_only=True) as store:
        assert store.topics() == []


def test_descriptors_of_a_refused_directory_are_closed(tmp_path: Path) -> None:
    with logstore.open(tmp_path / "s") as store:
        append_records(store.create_topic("orders")[0], 3)
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "s" / "orders-0"):
        with pytest.raises(logstore.StoreNotFoundError):
            logstore.open(path, read_only=True)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("name", ["orders-0", "data-1", "x"])
def test_empty_directory_of_any_name_becomes_a_store(tmp_path: Path, name: str) -> None:
    """The directory above it is no store."""
    (tmp_path / name).mkdir(mode=0o700)
    with logstore.open(tmp_path / name) as store:
        store.create_topic("orders")
    with logstore.open(tmp_path / name, read_only=True) as store:
        assert store.topics() == ["orders"]


def test_opening_and_verify_agree_about_what_a_store_is(tmp_path: Path) -> None:
    """Names of directories do not decide, nor do files of a log in the root of a store;
    directories that a broker is about to delete do."""
    for name, files, is_store in (
        ("names", ["dbus-1/system.conf", "notes"], False),
        ("broker", ["meta.properties"], True),
        ("log", ["orders-0/00000000000000000000.log"], True),
        ("empty partition", ["orders-0/.empty"], False),
        ("stray", ["meta.properties", "00000000000000000000.log"], True),
        ("going", [f"orders-0.{0:032x}-delete/00000000000000000000.log"], True),
        ("of logstore", [".logstore-topics"], True),
        ("begun", [".logstore-owner.tmp"], True),
        ("begun by a broker", ["meta.properties.tmp"], True),
        ("foreign", ["notes.tmp", ".logstore.txt"], False),
    ):
        for file in files:
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        (tmp_path / name).chmod(0o700)
        for look in (
            lambda path: logstore.open(path, read_only=True).close(),
            logstore.verify,
            logstore.metrics.of_directory,
        ):
            try:
                look(tmp_path / name)
            except logstore.StoreNotFoundError:
                assert not is_store, name
            else:
                assert is_store, name


def test_store_whose_creation_was_cut_can_be_read_and_opened() -> None:
    """A power cut in the first opening may leave any state: only an empty directory has
    no store to read."""
    disk = MemoryDisk()
    moments = disk.record()
    open_quietly(disk).create_topic("orders")
    seen = set()
    rng = random.Random(1)
    for moment in moments:
        for words, nodes in cuts(moment, rng, 12):
            left = MemoryDisk(nodes)
            left.make_root(PATH)
            names = left.list(left.open_root(PATH))
            seen.update([tuple(names)])
            for read_only in (True, False, True):
                if names or not read_only:
                    with open_quietly(left, read_only=read_only) as store:
                        assert not store.recovery_report.actions, (moment.what, words)
            assert logstore.verify(PATH, _files=left).ok, (moment.what, words)
    assert {(), (".logstore-owner.tmp",)} <= seen


@pytest.mark.parametrize(
    ("owner", "directory", "group"),
    [(0o660, 0o770, 0o060), (0o640, 0o750, 0o040), (0o600, 0o700, 0)],
)
def test_file_beside_those_of_the_owner_is_as_open_as_they_are(
    tmp_path: Path, owner: int, directory: int, group: int
) -> None:
    """The owner may be another user of the group, and must read it."""
    tmp_path.chmod(directory)
    (tmp_path / OWNER).touch()
    (tmp_path / OWNER).chmod(owner)
    root = Directory.open_root(Files(), str(tmp_path))
    prepare_beside(root, logstore.StoreConfig())
    assert root.access.group & 0o060 == group
    root.close()


def test_directory_that_others_may_write_to_gets_no_file_beside(
    tmp_path: Path,
) -> None:
    """A writable group is accepted only if the owner's files have the same."""
    (tmp_path / OWNER).touch(0o600)
    for mode in (0o777, 0o770):
        tmp_path.chmod(mode)
        root = Directory.open_root(Files(), str(tmp_path))
        with pytest.raises(logstore.ConfigError, match="is not written to"):
            prepare_beside(root, logstore.StoreConfig())
        root.close()
    tmp_path.chmod(0o700)
