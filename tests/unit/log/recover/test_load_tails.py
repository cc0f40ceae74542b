"""Opening after a kill: a torn tail above the durable point is cut and kept aside.

Everything before it is there; a tail that cannot be put aside stays.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.io.layout import TORN_PREFIX
from logstore.store.opening import open_store
from support.damage import (
    FaultyFiles,
    append_garbage,
    crash,
    cut,
    flip_bit,
    frames,
    logs_in,
    restart_machine,
    snapshot_of,
    zero,
)
from support.killed import COUNT, killed_store, labels, the_log
from support.values import (
    append_one,
    every_format,
    every_magic,
    expected,
    fill,
    read_all,
)


@every_format
def test_killed_writer_loses_nothing(tmp_path: Path, magic: int, codec: str) -> None:
    """Records that were appended are there after a kill, and are durable after the
    opening; the log continues at its end."""
    path = killed_store(tmp_path, magic, codec, call=4, segment_bytes=700)
    assert read_all(path) == expected(magic, 0, COUNT)
    files = FaultyFiles()
    with open_store(path, _files=files) as store:
        assert not store.recover()
        assert files.count("sync", ".log") >= 1
        partition = store.topic("orders")[0]
        assert (partition.durable_offset, partition.end_offset) == (COUNT, COUNT)
        assert list(partition.read()) == expected(magic, 0, COUNT)
        assert append_one(partition) == COUNT
    assert read_all(path) == expected(magic, 0, COUNT + 1)


@every_format
def test_last_batch_cut_anywhere_is_a_torn_tail(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The tail goes, is kept aside and reported; everything before it is there."""
    path = killed_store(tmp_path, magic, codec, durable=20, count=25, call=5)
    log = the_log(path)
    data = log.read_bytes()
    last = [f for f in frames(log) if f.pos < len(data)][-1]
    batches = list(
        logstore.open(path, read_only=True).topic("orders")[0].read_batches()
    )
    end = batches[-1].base_offset
    step = max(1, last.size // 12)
    for size in (*range(last.pos + 1, len(data), step), len(data) - 1):
        target = tmp_path / "try"
        shutil.copytree(path, target)
        cut(the_log(target), size)
        assert read_all(target) == expected(magic, 0, end)
        with logstore.open(target) as store:
            assert labels(store) == ["torn-tail"]
            action = store.recovery_report.actions[0]
            assert (action.topic, action.partition) == ("orders", 0)
            assert action.path == str(the_log(target))
            assert (action.position, action.bytes) == (last.pos, size - last.pos)
            assert action.first_offset == end
            assert action.kept_at is not None
            assert Path(action.kept_at).read_bytes() == data[last.pos : size]
            assert str(size - last.pos) in action.message
            partition = store.topic("orders")[0]
            assert list(partition.read()) == expected(magic, 0, end)
            assert append_one(partition) == end
        with logstore.open(target) as store:
            assert not store.recovery_report
        assert read_all(target) == expected(magic, 0, end + 1)
        shutil.rmtree(target)


TAILS: dict[str, Callable[[bytes], bytes]] = {
    "zeros": lambda data: bytes(500),
    "one zero": lambda data: b"\0",
    "garbage": lambda data: b"\xde\xad\xbe\xef" * 50,
    "an old batch": lambda data: data[: len(data) // 30],
    "the whole log again": lambda data: data,
    "the last batch again": lambda data: data[-60:],
    "a huge length": lambda data: (COUNT).to_bytes(8, "big")
    + b"\x7f\xff\xff\xff" + bytes(9),
    "a negative length": lambda data: (COUNT).to_bytes(8, "big") + b"\xff" * 40,
    "a length of zero": lambda data: (COUNT).to_bytes(8, "big") + bytes(40),
    "magic 3": lambda data: (COUNT).to_bytes(8, "big") + (60).to_bytes(4, "big")
    + b"\x01\x02\x03\x04\x03" + bytes(100),
}  # fmt: skip


@every_magic
@pytest.mark.parametrize("tail", TAILS)
def test_anything_behind_the_last_batch_is_a_torn_tail(
    tmp_path: Path, magic: int, tail: str
) -> None:
    """Zeros, garbage and old blocks are cut, kept aside, and never served."""
    path = killed_store(tmp_path, magic)
    log = the_log(path)
    data = log.read_bytes()
    extra = TAILS[tail](data)
    append_garbage(log, extra)
    assert read_all(path) == expected(magic, 0, COUNT)
    with logstore.open(path) as store:
        assert labels(store) == ["torn-tail"]
        action = store.recovery_report.actions[0]
        assert (action.position, action.bytes) == (len(data), len(extra))
        assert Path(str(action.kept_at)).read_bytes() == extra
        assert log.read_bytes() == data
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, COUNT)
        append_one(partition)
    assert read_all(path) == expected(magic, 0, COUNT + 1)


def kept_in(path: Path) -> dict[str, bytes]:
    """Torn tails that were kept: the end of the name after the position -> bytes."""
    return {
        found.name.partition("-torn-")[2].partition("-")[2].partition(".")[2]: (
            found.read_bytes()
        )
        for found in (path / "orders-0").glob(".logstore-torn-*")
    }


def test_tail_torn_again_at_the_same_place_is_kept_beside_the_first(
    tmp_path: Path,
) -> None:
    """Each tail gets a number; an existing one is not kept twice."""
    path = killed_store(tmp_path)
    tails = [b"first", b"another", b"first", b"fir", b"the third"]
    for number, tail in enumerate(tails):
        append_garbage(the_log(path), tail)
        with logstore.open(path) as store:
            (action,) = store.recovery_report.actions
            assert Path(str(action.kept_at)).read_bytes() == tail
            crash(path, tmp_path / f"again-{number}")  # it is not clean
        path = tmp_path / f"again-{number}"
    assert kept_in(path) == {
        "": b"first",
        "2": b"another",
        "3": b"fir",
        "4": b"the third",
    }


def test_copy_of_a_torn_tail_that_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """The opening after the killed one makes it; no half copy stays."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path), b"the tail")
    base, size = the_log(path).stem, the_log(path).stat().st_size - len(b"the tail")
    half = path / "orders-0" / f".logstore-torn-{base}-{size}"
    half.write_bytes(b"the t")
    logstore.open(path).close()
    logstore.open(path).close()
    assert read_all(path) == expected(1, 0, COUNT)
    assert kept_in(path) == {"": b"the tail"}


@pytest.mark.parametrize("method", ["truncate", "sync"])
def test_kept_tail_stays_where_cutting_it_fails(tmp_path: Path, method: str) -> None:
    """The log may have been cut nevertheless: its bytes must be somewhere."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path), b"the tail")
    files = FaultyFiles()
    files.fail(method, name=".log", times=1)
    with open_store(path, _files=files) as store:
        assert "tail-kept" in labels(store)
        assert kept_in(path) == {"": b"the tail"}
    with logstore.open(path) as store:
        assert append_one(store.topic("orders")[0]) == COUNT
    assert kept_in(path) == {"": b"the tail"}


@every_format
def test_flipped_bit_above_the_durable_point_cuts_there(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Pages reach the disk in any order: an intact batch after a bad one proves
    nothing, and is not served."""
    path = killed_store(tmp_path, magic, codec, durable=10, call=5)
    restart_machine(path)
    batches = list(
        logstore.open(path, read_only=True).topic("orders")[0].read_batches()
    )
    bad = next(b for b in batches if b.base_offset >= 15)
    flip_bit(the_log(path), 8 * (bad.position + bad.size_bytes - 1))
    assert read_all(path) == expected(magic, 0, bad.base_offset)
    with logstore.open(path) as store:
        assert labels(store) == ["torn-tail"]
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, bad.base_offset)
        fill(partition, 20)
    assert read_all(path) == expected(magic, 0, bad.base_offset + 20)


@every_format
def test_zeroed_block_above_the_durable_point_cuts_there(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A hole in the unsynced part (as ext4 leaves it) is the end of the log."""
    path = killed_store(tmp_path, magic, codec, durable=10, call=5)
    restart_machine(path)
    batches = list(
        logstore.open(path, read_only=True).topic("orders")[0].read_batches()
    )
    bad = next(b for b in batches if b.base_offset >= 15)
    zero(the_log(path), bad.position, bad.position + bad.size_bytes)
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, bad.base_offset)


def test_torn_tail_on_a_full_disk_is_left_and_can_be_read(tmp_path: Path) -> None:
    """A tail that cannot be put aside is not cut; reading works."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path))
    size = the_log(path).stat().st_size
    files = FaultyFiles()
    files.fail("write", 28)
    with open_store(path, _files=files) as store:
        assert store.recovery_report
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        with pytest.raises(logstore.StorageError):
            append_one(partition)
        files.heal()
    assert the_log(path).stat().st_size == size
    with logstore.open(path) as store:
        assert append_one(store.topic("orders")[0]) == COUNT


@pytest.mark.parametrize("sync", ["flush", "topic.flush", "durable"])
def test_flush_of_what_a_full_disk_kept_from_being_mended_is_an_error(
    tmp_path: Path, sync: str
) -> None:
    """Records after the durable point are not on stable storage as long as the tail
    after them is not put aside: no call reports that they are."""
    path = killed_store(tmp_path, durable=10)
    append_garbage(logs_in(path / "orders-0")[-1], b"torn")
    files = FaultyFiles()
    before = snapshot_of(path / "orders-0")
    with open_store(path, _files=files) as store:

        def is_full(method: str, name: str) -> None:
            if method == "create" and name.startswith(TORN_PREFIX):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        files.before = is_full
        topic = store.topic("orders")
        partition = topic[0]
        calls: dict[str, Callable[[], object]] = {
            "flush": partition.flush,
            "topic.flush": topic.flush,
            "durable": lambda: append_one(partition, durable=True),
        }
        for _ in range(2):
            assert (partition.durable_offset, partition.end_offset) == (10, COUNT)
            with pytest.raises(logstore.DiskFullError):
                calls[sync]()
        assert list(partition.read()) == expected(1, 0, COUNT)
    assert snapshot_of(path / "orders-0") == before
    with logstore.open(path) as store:
        assert [a.label for a in store.recovery_report.actions] == ["torn-tail"]
        partition = store.topic("orders")[0]
        partition.flush()
        assert partition.durable_offset == partition.end_offset == COUNT


def test_unknown_magic_of_another_writer_is_not_cut(tmp_path: Path) -> None:
    """If another program wrote last, a newer magic is not ours to drop."""
    path = killed_store(tmp_path)
    log = the_log(path)
    append_garbage(log, TAILS["magic 3"](b""))
    for own in path.rglob(".logstore*"):
        own.unlink()
    data = log.read_bytes()
    with logstore.open(path) as store:
        assert "unsupported" in labels(store)
        partition = store.topic("orders")[0]
        found = []
        with pytest.raises(logstore.errors.UnsupportedError):
            for record in partition.read():
                found.append(record)
        assert found == expected(1, 0, COUNT)
        with pytest.raises(logstore.errors.UnsupportedError):
            append_one(partition)
    assert log.read_bytes() == data


def test_report_is_plain_data(tmp_path: Path) -> None:
    """to_dict gives values that json can write."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path))
    with logstore.open(path) as store:
        (action,) = store.recovery_report.to_dict()["actions"]
        assert set(action) == {
            "label", "topic", "partition", "path", "position", "bytes", "first_offset",
            "kept_at", "message",
        }  # fmt: skip
        assert os.path.isabs(action["path"])
        assert isinstance(store.recovery_report.actions, tuple)
        with pytest.raises(AttributeError):
            store.recovery_report.actions = ()  # type: ignore[misc]


def test_many_partitions_recover_each_alone(tmp_path: Path) -> None:
    """Eight torn tails are eight actions, and one partition that cannot be read does
    not stop the rest."""
    with logstore.open(tmp_path / "live") as store:
        topic = store.create_topic("orders", 8)
        for partition in topic:
            fill(partition, 10)
        crash(tmp_path / "live", tmp_path / "killed")
    for number in range(8):
        append_garbage(logs_in(tmp_path / "killed" / f"orders-{number}")[0])
    log = logs_in(tmp_path / "killed" / "orders-3")[0]
    log.unlink()
    log.symlink_to(tmp_path / "elsewhere")
    with logstore.open(tmp_path / "killed") as store:
        torn = {a.partition for a in store.recovery_report.actions if a.kept_at}
        assert torn == set(range(8)) - {3}
        assert 3 in {a.partition for a in store.recovery_report.actions}
        for number in torn:
            assert append_one(store.topic("orders")[number]) == 10
        with pytest.raises(logstore.LogStoreError):
            append_one(store.topic("orders")[3])
    assert not (tmp_path / "elsewhere").exists()


@every_magic
@pytest.mark.parametrize("lost", [1, 7, 64])
def test_durable_bytes_that_are_gone_are_not_taken_for_a_torn_tail(
    tmp_path: Path, magic: int, lost: int
) -> None:
    """Other bytes of the log are at the durable point then, and no valid batch: that is
    damage before them. Nothing is cut, and nothing is appended that a reader would find
    only after an older record of the same offset."""
    path = killed_store(tmp_path, magic, "none", durable=20, count=26, call=1)
    log = the_log(path)
    data = log.read_bytes()
    batches = frames(log)
    durable = batches[20].pos
    assert len(data) - lost > durable
    for at in range(0, durable - lost, max(1, durable // 20)):
        target = tmp_path / "try"
        shutil.copytree(path, target)
        damaged = data[:at] + data[at + lost :]
        the_log(target).write_bytes(damaged)
        with logstore.open(target) as store:
            assert labels(store) in (["corrupt"], ["unsupported"])
            with pytest.raises(logstore.LogStoreError):
                append_one(store.topic("orders")[0])
        assert the_log(target).read_bytes() == damaged
        shutil.rmtree(target)
