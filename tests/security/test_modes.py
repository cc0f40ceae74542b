"""Modes of files: for the owner, for the group if configured, never wider."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore import StoreConfig
from support.damage import append_garbage, crash, logs_in
from support.users import NOBODY, as_user, needs_root, shared_place
from support.values import append_records, expected, fill, new_partition, read_all

UMASKS = [0o000, 0o022, 0o077, 0o777]


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def modes_of(store: Path) -> dict[str, int]:
    """Permission bits of everything in a store, and of the store itself."""
    return {
        str(p.relative_to(store)): stat.S_IMODE(p.lstat().st_mode)
        for p in [store, *store.rglob("*")]
    }


def live_a_life(store: Path, config: StoreConfig | None = None) -> None:
    """Make every kind of file: segments, indexes, state, checkpoints, copies of torn
    tails, files that wait for deletion."""
    with logstore.open(store, config=config) as opened:
        partition = new_partition(opened, 2, segment_bytes=600, index_interval_bytes=0)
        append_records(partition, 20)
        partition.flush()
        partition.delete_before(7)
        append_records(partition, 20)
        with umask(0o077):  # the copying is the test's
            torn = crash(store, store.with_name("torn"))
        opened.create_topic("gone")[0].append(b"x")
        opened.delete_topic("gone")
    append_garbage(logs_in(torn / "orders-0")[-1])
    (torn / ".lock").unlink()
    with logstore.open(torn, config=config) as opened:
        assert "torn-tail" in {a.label for a in opened.recovery_report.actions}
        opened.topic("orders")[0].append(b"x")
    logstore.rebuild_index(torn, store_config=config)


def check_modes(store: Path, file: int, directory: int) -> None:
    for path in (store, store.with_name("torn")):
        found = modes_of(path)
        assert any(".logstore-torn-" in n for n in found) is (path != store)
        wrong = {
            name: oct(mode)
            for name, mode in found.items()
            if mode & 0o777 != (directory if (path / name).is_dir() else file)
        }
        assert wrong == {}


@pytest.mark.parametrize("mask", UMASKS, ids="{:03o}".format)
def test_files_are_for_their_owner_alone_whatever_the_umask(
    tmp_path: Path, mask: int
) -> None:
    """0600 and 0700 exactly: no umask widens them, and none locks the owner out."""
    with umask(mask):
        live_a_life(tmp_path / "data")
    check_modes(tmp_path / "data", 0o600, 0o700)


@needs_root
def test_umask_that_takes_everything_does_not_stop_an_ordinary_user() -> None:
    """The same for a user that the modes do restrict."""

    def work(place: Path) -> None:
        with umask(0o777):
            live_a_life(place / "data")
        check_modes(place / "data", 0o600, 0o700)
        assert len(read_all(place / "data")) == 33

    with shared_place(NOBODY) as place:
        as_user(NOBODY, work, place)


@pytest.mark.parametrize("mask", UMASKS, ids="{:03o}".format)
@pytest.mark.parametrize(
    ("root", "file", "directory"),
    [
        (None, 0o640, 0o750),  # created by the opening
        (0o700, 0o600, 0o700),
        (0o710, 0o600, 0o710),
        (0o750, 0o640, 0o750),
        (0o755, 0o640, 0o750),  # nothing for others, whatever they have on the root
        (0o770, 0o660, 0o770),
    ],
    ids=["new", "0700", "0710", "0750", "0755", "0770"],
)
def test_group_gets_what_it_has_on_the_root_and_never_more(
    tmp_path: Path, mask: int, root: int | None, file: int, directory: int
) -> None:
    """`group_access` follows the mode of the store's directory."""
    store = tmp_path / "data"
    if root is not None:
        store.mkdir()
        store.chmod(root)
    with umask(mask):
        live_a_life(store, StoreConfig(group_access=True))
    if root is not None:
        assert stat.S_IMODE(store.stat().st_mode) == root
        store.chmod(directory)
        store.with_name("torn").chmod(directory)
    else:
        assert stat.S_IMODE(store.stat().st_mode) == 0o750
    check_modes(store, file, directory)


def test_setgid_of_the_root_is_handed_down(tmp_path: Path) -> None:
    """Files of a partition, too, belong to the group of the store."""
    store = tmp_path / "data"
    store.mkdir()
    store.chmod(0o2770)
    with logstore.open(store, config=StoreConfig(group_access=True)) as opened:
        fill(new_partition(opened), 3)
    assert stat.S_IMODE((store / "orders-0").stat().st_mode) == 0o2770


def test_left_over_temporary_file_is_replaced_not_written_into(tmp_path: Path) -> None:
    """A `.tmp` with wide modes, or with a second name, is not written into."""
    with logstore.open(tmp_path / "data") as opened:
        fill(new_partition(opened), 3)
    outside = tmp_path / "outside"
    outside.write_bytes(b"mine")
    for name in (".logstore-owner.tmp", "orders-0/.logstore-state.tmp"):
        os.link(outside, tmp_path / "data" / name)
    with logstore.open(tmp_path / "data") as opened:
        append_records(opened.topic("orders")[0], 3)
    assert outside.read_bytes() == b"mine"
    assert read_all(tmp_path / "data") == expected(1, 0, 6)
    assert not list((tmp_path / "data").rglob("*.tmp"))


def test_existing_files_keep_their_modes(tmp_path: Path) -> None:
    """Existing files, of Kafka for example, are not changed."""
    with logstore.open(tmp_path / "data") as opened:
        fill(new_partition(opened), 3)
    log = logs_in(tmp_path / "data" / "orders-0")[0]
    log.chmod(0o644)
    with logstore.open(tmp_path / "data") as opened:
        append_records(opened.topic("orders")[0], 3)
    assert stat.S_IMODE(log.stat().st_mode) == 0o644
