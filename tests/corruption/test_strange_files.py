"""Strange things in a store: a special file is never opened blindly, nothing hangs,
nothing outside the store is touched."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from support.damage import crash, logs_in
from support.values import (
    append_one,
    expected,
    fill,
    new_partition,
    read_all,
    write_store,
)


def make_fifo(path: Path, outside: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path, outside: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def make_link(path: Path, outside: Path) -> None:
    path.symlink_to(outside)


def make_directory(path: Path, outside: Path) -> None:
    path.mkdir()


KINDS: dict[str, Callable[[Path, Path], None]] = {
    "fifo": make_fifo,
    "socket": make_socket,
    "symlink": make_link,
    "directory": make_directory,
}


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A file that no store may touch."""
    path = tmp_path / "outside"
    path.write_bytes(b"mine")
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex"])
@pytest.mark.parametrize("which", [0, -1], ids=["sealed", "active"])
def test_thing_in_place_of_a_segment_file(
    tmp_path: Path, outside: Path, kind: str, suffix: str, which: int
) -> None:
    """In place of a log it is an error, in place of an index it is not."""
    directory = write_store(tmp_path / "data", 30, segment_bytes=500)
    path = logs_in(directory)[which].with_suffix(suffix)
    path.unlink()
    KINDS[kind](path, outside)
    for read_only in (True, False):
        with logstore.open(tmp_path / "data", read_only=read_only) as store:
            partition = store.topic("orders")[0]
            if suffix == ".log":
                with pytest.raises(logstore.LogStoreError):
                    list(partition.read())
                if not read_only:
                    assert store.recovery_report
                    with pytest.raises(logstore.LogStoreError):
                        append_one(partition)
            else:
                for start in (0, 10, 29):
                    assert list(partition.read(start)) == expected(1, start, 30)
                assert partition.offset_for_time(1) == 0
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name",
    ["00000000000000000005.log.bak", "00000000000000000005.log~", "5.log",
     "99999999999999999999.log", "00000000000000000005.txt", "-5.log", "core",
     "0000000000000000000\uff15.log", "00000000000000000005.LOG"],
)  # fmt: skip
def test_stray_thing_in_a_partition_is_ignored(
    tmp_path: Path, outside: Path, kind: str, name: str
) -> None:
    """Anything whose name is not one of Kafka's is ignored, whatever it is."""
    directory = write_store(tmp_path / "data", 10)
    KINDS[kind](directory / name, outside)
    with logstore.open(tmp_path / "data") as store:
        assert not store.recovery_report
        partition = store.topic("orders")[0]
        append_one(partition)
        assert list(partition.read()) == expected(1, 0, 11)
    assert os.path.lexists(directory / name)
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [".logstore-state", ".logstore-state.tmp", "leader-epoch-checkpoint"]
)
def test_thing_in_place_of_a_state_file_leads_nowhere(
    tmp_path: Path, outside: Path, kind: str, name: str
) -> None:
    """A link is not followed, a pipe does not block; the records can be read."""
    directory = write_store(tmp_path / "data", 10, 2)
    (directory / name).unlink(missing_ok=True)
    KINDS[kind](directory / name, outside)
    assert read_all(tmp_path / "data") == expected(2, 0, 10)
    try:
        with logstore.open(tmp_path / "data") as store:
            assert list(store.topic("orders")[0].read()) == expected(2, 0, 10)
            append_one(store.topic("orders")[0])
    except logstore.LogStoreError:
        pass
    assert read_all(tmp_path / "data")[:10] == expected(2, 0, 10)
    assert outside.read_bytes() == b"mine"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", [".lock", ".logstore-owner", ".logstore-topics", ".logstore-owner.tmp",
             ".kafka_cleanshutdown", "recovery-point-offset-checkpoint"],
)  # fmt: skip
def test_thing_in_place_of_a_file_of_the_root_leads_nowhere(
    tmp_path: Path, outside: Path, kind: str, name: str
) -> None:
    """The same in the root; opening works or raises a named error."""
    write_store(tmp_path / "data", 10)
    (tmp_path / "data" / name).unlink(missing_ok=True)
    KINDS[kind](tmp_path / "data" / name, outside)
    try:
        with logstore.open(tmp_path / "data") as store:
            append_one(store.topic("orders")[0])
    except logstore.LogStoreError:
        pass
    assert outside.read_bytes() == b"mine"
    with contextlib.suppress(logstore.LogStoreError):
        assert read_all(tmp_path / "data")[:10] == expected(1, 0, 10)


def test_torn_tail_is_not_written_through_a_link(tmp_path: Path, outside: Path) -> None:
    """A link at the path for the torn tail is not followed."""
    with logstore.open(tmp_path / "live") as store:
        fill(new_partition(store), 10)
        crash(tmp_path / "live", tmp_path / "killed")
    log = logs_in(tmp_path / "killed" / "orders-0")[0]
    size = log.stat().st_size
    with log.open("ab") as file:
        file.write(b"torn")
    kept = log.parent / f".logstore-torn-{0:020d}-{size}"
    kept.symlink_to(outside)
    with logstore.open(tmp_path / "killed") as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 10)
    assert outside.read_bytes() == b"mine"


def test_deletion_of_a_topic_removes_only_what_is_in_its_directory(
    tmp_path: Path, outside: Path
) -> None:
    """A link in a partition directory is removed as a link."""
    with logstore.open(tmp_path / "data") as store:
        fill(new_partition(store, file_delete_delay_ms=0), 5)
        (tmp_path / "data" / "orders-0" / "link").symlink_to(outside)
        (tmp_path / "data" / "orders-0" / "dirlink").symlink_to(tmp_path)
        store.delete_topic("orders")
    assert outside.read_bytes() == b"mine"
    assert tmp_path.is_dir()


def test_records_are_never_unpickled_or_run(tmp_path: Path) -> None:
    """Values that would run code in a pickle loader are bytes like any others."""
    bomb = b"cos\nsystem\n(S'touch %s'\ntR." % str(tmp_path / "hit").encode()
    with logstore.open(tmp_path / "data") as store:
        partition = new_partition(store, 2)
        partition.append(bomb, bomb, headers=[(bomb.decode(), bomb)])
    for name in (".logstore-owner", ".logstore-topics", "orders-0/.logstore-state"):
        (tmp_path / "data" / name).write_bytes(bomb)
    assert read_all(tmp_path / "data")[0].value == bomb
    logstore.open(tmp_path / "data").close()
    assert not (tmp_path / "hit").exists()
