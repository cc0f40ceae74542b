"""Opening after a crash: what is kept, what is cut, what is refused, what is told."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.io.layout import TORN_PREFIX
from logstore.store.store import open_store
from support.damage import (
    FaultyFiles,
    Unsynced,
    append_garbage,
    crash,
    cut,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    snapshot_of,
    zero,
)
from support.values import (
    append_one,
    every_format,
    every_magic,
    expected,
    few_formats,
    fill,
    new_partition,
    read_all,
    write_store,
)

COUNT = 30


def killed_store(
    path: Path,
    magic: int = 1,
    codec: str = "none",
    *,
    durable: int = 0,
    count: int = COUNT,
    call: int = 1,
    **settings: int,
) -> Path:
    """A store as a kill leaves it, with `count` records, the first `durable` synced."""
    config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with open_store(path / "live", config=config, files=Unsynced()) as store:
        partition = new_partition(store, magic, codec, **settings)
        fill(partition, durable, call=call)
        if durable:
            partition.flush()
        fill(partition, count - durable, call=call)
        crash(path / "live", path / "killed")
    shutil.rmtree(path / "live")
    return path / "killed"


def the_log(store: Path) -> Path:
    return logs_in(store / "orders-0")[-1]


def labels(store: logstore.Store) -> list[str]:
    return [action.label for action in store.recovery_report.actions]


@every_format
def test_killed_writer_loses_nothing(tmp_path: Path, magic: int, codec: str) -> None:
    """Records that were appended are there after a kill, and are durable after the
    opening; the log goes on where it ended."""
    path = killed_store(tmp_path, magic, codec, call=4, segment_bytes=700)
    assert read_all(path) == expected(magic, 0, COUNT)
    files = FaultyFiles()
    with open_store(path, files=files) as store:
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
    """Zeros, garbage, old blocks: cut, kept aside, and nothing of it ever served."""
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
    """What is kept of torn tails: the end of the name after the position -> bytes."""
    return {
        found.name.partition("-torn-")[2].partition("-")[2].partition(".")[2]: (
            found.read_bytes()
        )
        for found in (path / "orders-0").glob(".logstore-torn-*")
    }


def test_tail_torn_again_at_the_same_place_is_kept_beside_the_first(
    tmp_path: Path,
) -> None:
    """Each gets a number; one that is there already is not kept twice."""
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
    """By the opening after the one that was killed; no half copy stays."""
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
    """The log may have been cut all the same: its bytes must be somewhere."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path), b"the tail")
    files = FaultyFiles()
    files.fail(method, name=".log", times=1)
    with open_store(path, files=files) as store:
        assert "tail-kept" in labels(store)
        assert kept_in(path) == {"": b"the tail"}
    with logstore.open(path) as store:
        assert append_one(store.topic("orders")[0]) == COUNT
    assert kept_in(path) == {"": b"the tail"}


@every_format
def test_flipped_bit_above_the_durable_point_cuts_there(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Pages reach the disk in any order: a sound batch behind a bad one proves nothing,
    and is not served."""
    path = killed_store(tmp_path, magic, codec, durable=10, call=5)
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
    batches = list(
        logstore.open(path, read_only=True).topic("orders")[0].read_batches()
    )
    bad = next(b for b in batches if b.base_offset >= 15)
    zero(the_log(path), bad.position, bad.position + bad.size_bytes)
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, bad.base_offset)


DAMAGE: dict[str, Callable[[Path, logstore.RecordBatch], None]] = {
    "flip": lambda log, b: flip_bit(log, 8 * (b.position + b.size_bytes - 1)),
    "zeros": lambda log, b: zero(log, b.position, b.position + b.size_bytes),
    "length": lambda log, b: overwrite(log, b.position + 8, b"\x7f\xff\xff\xff"),
    "cut": lambda log, b: cut(log, b.position + 5),
    "cut between": lambda log, b: cut(log, b.position),
}


@few_formats
@pytest.mark.parametrize("how", DAMAGE)
@pytest.mark.parametrize("clean", [False, True], ids=["killed", "closed"])
def test_damage_below_the_durable_point_is_loud_and_nothing_is_cut(
    tmp_path: Path, magic: int, codec: str, how: str, clean: bool
) -> None:
    """What was promised is not dropped in silence: reads raise where the damage is,
    the file stays as it is; appends are refused where opening sees it (it does not read
    what was durable)."""
    if clean:
        write_store(tmp_path / "killed", COUNT, magic, codec)
        path = tmp_path / "killed"
    else:
        path = killed_store(tmp_path, magic, codec, durable=25, call=5)
    log = the_log(path)
    batches = list(
        logstore.open(path, read_only=True).topic("orders")[0].read_batches()
    )
    bad = next(b for b in batches if b.base_offset >= 10)
    DAMAGE[how](log, bad)
    data = log.read_bytes()
    for read_only in (True, False, False):
        with logstore.open(path, read_only=read_only) as store:
            partition = store.topic("orders")[0]
            found = []
            with pytest.raises(logstore.CorruptRecordError) as caught:
                for record in partition.read():
                    found.append(record)
            assert found == expected(magic, 0, bad.base_offset)
            assert caught.value.path == str(log)
            assert caught.value.offset == bad.base_offset
            assert partition.end_offset >= (COUNT if clean else 25)
            if not read_only and how.startswith("cut"):
                assert store.recovery_report
                with pytest.raises(logstore.CorruptRecordError):
                    append_one(partition)
        assert log.read_bytes() == data


def test_closed_store_that_lost_its_end_is_damaged_and_not_shorter(
    tmp_path: Path,
) -> None:
    """Cut at any batch of any segment, the end offset stays, the rest is an error."""
    directory = write_store(tmp_path / "data", COUNT, segment_bytes=500)
    for log in logs_in(directory):
        for frame in frames(log)[::2]:
            target = tmp_path / "try"
            shutil.copytree(tmp_path / "data", target)
            cut(target / "orders-0" / log.name, frame.pos)
            with logstore.open(target) as store:
                assert {a.label for a in store.recovery_report.actions} == {"lost-end"}
                partition = store.topic("orders")[0]
                assert partition.end_offset == COUNT
                with pytest.raises(logstore.CorruptRecordError):
                    list(partition.read())
                with pytest.raises(logstore.CorruptRecordError):
                    append_one(partition)
                found = partition.read(0, frame.offset)
                assert list(found) == expected(1, 0, frame.offset)
            shutil.rmtree(target)


def test_closed_store_that_lost_a_segment_is_damaged(tmp_path: Path) -> None:
    """Any segment that is gone is missed: the first, one in the middle, the last."""
    directory = write_store(tmp_path / "data", COUNT, segment_bytes=500)
    for log in logs_in(directory):
        target = tmp_path / "try"
        shutil.copytree(tmp_path / "data", target)
        (target / "orders-0" / log.name).unlink()
        for read_only in (True, False):
            with logstore.open(target, read_only=read_only) as store:
                partition = store.topic("orders")[0]
                assert (partition.start_offset, partition.end_offset) == (0, COUNT)
                with pytest.raises(logstore.CorruptRecordError):
                    list(partition.read())
                if not read_only:
                    assert "lost-segment" in labels(store)
                    with pytest.raises(logstore.CorruptRecordError):
                        append_one(partition)
        shutil.rmtree(target)


def test_closed_store_that_grew_is_damaged_and_serves_what_it_had(
    tmp_path: Path,
) -> None:
    """Nobody of us wrote behind the end of a closed log."""
    directory = write_store(tmp_path, COUNT)
    log = logs_in(directory)[0]
    append_garbage(log)
    with logstore.open(tmp_path) as store:
        assert store.recovery_report
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        with pytest.raises(logstore.CorruptRecordError):
            append_one(partition)


GARBAGE = b"\1garbage" * 9


def no_state(log: Path) -> bytes:
    """logstore's own state is gone, too."""
    (log.parent / ".logstore-state").unlink()
    return GARBAGE


def another_program(log: Path) -> bytes:
    """Nothing says that logstore was the last writer."""
    (log.parents[1] / ".logstore-owner").unlink()
    return no_state(log)


# What comes behind the end of a log that was closed.
HURT: dict[str, Callable[[Path], bytes]] = {
    "garbage": lambda log: GARBAGE,
    "zeros": lambda log: bytes(300),
    "a batch again": lambda log: log.read_bytes()[: frames(log)[0].size],
    "no state": no_state,
    "another program": another_program,
}


@pytest.mark.parametrize("hurt", HURT)
def test_damage_seen_in_a_closed_store_is_not_forgotten(
    tmp_path: Path, hurt: str
) -> None:
    """Where another partition is written to then, and the store is killed, or closed
    without its marks, what lies behind the end of a closed log is no torn tail."""
    live, store = tmp_path / "live", tmp_path / "store"
    write_store(live, COUNT)
    with logstore.open(live) as opened:
        fill(opened.create_topic("other")[0], 3)
    log = logs_in(live / "orders-0")[-1]
    sound = log.read_bytes()
    append_garbage(log, HURT[hurt](log))
    damaged = log.read_bytes()
    with open_store(live, files=Unsynced()) as opened:
        with pytest.raises(logstore.CorruptRecordError):
            append_one(opened.topic("orders")[0])
        fill(opened.topic("other")[0], 3)
        crash(live, store)
    for path in (store, live):
        log = logs_in(path / "orders-0")[-1]
        for _ in range(2):
            assert not logstore.verify(path).ok
            with logstore.open(path, read_only=True) as opened:
                assert list(opened.topic("orders")[0].read(0, COUNT)) == expected(
                    1, 0, COUNT
                )
            with open_store(path, files=Unsynced()) as opened:
                assert set(labels(opened)) == {"corrupt"}
                with pytest.raises(logstore.CorruptRecordError):
                    append_one(opened.topic("orders")[0])
                fill(opened.topic("other")[0], 1)
            assert log.read_bytes() == damaged
    # By a repair, or by hand, it is a log as others are.
    assert logstore.repair(store, "cut").ok
    logs_in(live / "orders-0")[-1].write_bytes(sound)
    for path in (store, live):
        with open_store(path, files=Unsynced()) as opened:
            fill(opened.topic("orders")[0], 5)
            copy = crash(path, tmp_path / f"{path.name}-killed")
        append_garbage(logs_in(copy / "orders-0")[-1], GARBAGE)
        assert logstore.verify(copy).ok
        with open_store(copy, files=Unsynced()) as opened:
            assert labels(opened) == ["torn-tail"]
            assert list(opened.topic("orders")[0].read()) == expected(1, 0, COUNT + 5)


def test_a_partition_older_than_its_closed_store_stays_so(tmp_path: Path) -> None:
    """Offsets were given out that it does not have: also behind an unclean stop."""
    directory = write_store(tmp_path / "live", COUNT)
    shutil.copytree(directory, tmp_path / "old")
    with logstore.open(tmp_path / "live") as opened:
        fill(opened.topic("orders")[0], 5)
        fill(opened.create_topic("other")[0], 3)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "old", directory)
    with open_store(tmp_path / "live", files=Unsynced()) as opened:
        opened.topic("orders")[0]
        assert labels(opened) == ["lost-end"]
        fill(opened.topic("other")[0], 3)
        crash(tmp_path / "live", tmp_path / "store")
    with logstore.open(tmp_path / "store") as opened:
        assert labels(opened) == ["lost-end"]
        with pytest.raises(logstore.CorruptRecordError):
            append_one(opened.topic("orders")[0])


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
    open_store(tmp_path / "count", files=files).close()
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
                # Nothing that a forgotten store does later comes to the disk.
                raise OSError(errno.EIO, "killed")
            left.pop()

        files.before = stop
        with contextlib.suppress(KeyboardInterrupt):
            open_store(target, files=files).close()
        shutil.copytree(target, tmp_path / "again")
        with logstore.open(tmp_path / "again") as store:
            partition = store.topic("orders")[0]
            assert list(partition.read()) == expected(1, 0, COUNT), k
            append_one(partition)
        shutil.rmtree(target)
        shutil.rmtree(tmp_path / "again")


def test_torn_tail_on_a_full_disk_is_left_and_can_be_read(tmp_path: Path) -> None:
    """Where the tail cannot be put aside it is not cut; reading works."""
    path = killed_store(tmp_path)
    append_garbage(the_log(path))
    size = the_log(path).stat().st_size
    files = FaultyFiles()
    files.fail("write", 28)
    with open_store(path, files=files) as store:
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
    """Records behind the durable point are not on stable storage as long as the tail
    behind them is not put aside: nobody is told that they are."""
    path = killed_store(tmp_path, durable=10)
    append_garbage(logs_in(path / "orders-0")[-1], b"torn")
    files = FaultyFiles()
    before = snapshot_of(path / "orders-0")
    with open_store(path, files=files) as store:

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
    """What a crash left waiting is no part of the log."""
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
    """At whichever call the making of a store and a topic stops, a later opening
    works."""
    files = FaultyFiles()
    with open_store(tmp_path / "count", files=files) as store:
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
                # Nothing that a forgotten store does later comes to the disk.
                raise OSError(errno.EIO, "killed")
            left.pop()

        files.before = stop
        try:
            with open_store(target, files=files) as store:
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


# ---------------------------------------------------------------- own state


@every_magic
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_own_state_may_be_deleted(tmp_path: Path, magic: int, clean: bool) -> None:
    """It all may go at the price of a longer opening."""
    if clean:
        write_store(tmp_path / "killed", COUNT, magic, segment_bytes=500)
        path = tmp_path / "killed"
    else:
        path = killed_store(tmp_path, magic, durable=10, segment_bytes=500)
    for own in path.rglob(".logstore*"):
        own.unlink()
    assert read_all(path) == expected(magic, 0, COUNT)
    with logstore.open(path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(magic, 0, COUNT)
        assert append_one(partition) == COUNT
    assert len(read_all(path)) == COUNT + 1


@pytest.mark.parametrize("name", [".logstore-owner", ".logstore-topics", "state"])
@pytest.mark.parametrize("how", ["cut", "flip", "empty", "version", "not json"])
def test_own_state_damaged_is_reported_and_costs_no_record(
    tmp_path: Path, name: str, how: str
) -> None:
    """A state file is believed with its checksum only."""
    write_store(tmp_path, COUNT, segment_bytes=500)
    path = tmp_path / name
    if name == "state":
        path = tmp_path / "orders-0" / ".logstore-state"
    data = path.read_bytes()
    wrong = {
        "cut": data[: len(data) // 2],
        "flip": data[:-5] + bytes([data[-5] ^ 1]) + data[-4:],
        "empty": b"",
        "version": data.replace(b'"version":1', b'"version":9'),
        "not json": b"{",
    }[how]
    path.write_bytes(wrong)
    assert read_all(tmp_path) == expected(1, 0, COUNT)
    with logstore.open(tmp_path) as store:
        assert "state-damaged" in labels(store)
        assert str(path) in {a.path for a in store.recovery_report.actions}
        partition = store.topic("orders")[0]
        assert list(partition.read()) == expected(1, 0, COUNT)
        assert append_one(partition) == COUNT


@pytest.mark.parametrize(
    "trace", ["marker gone", "marker changed", "points changed", "points gone"]
)
def test_own_state_is_stale_after_another_program_wrote(
    tmp_path: Path, trace: str
) -> None:
    """When Kafka's own files are not as logstore left them, the directory is taken as
    Kafka would take it, and the report says so."""
    directory = write_store(tmp_path, COUNT)
    data = logs_in(write_store(tmp_path / "more", COUNT + 5))[0].read_bytes()
    shutil.rmtree(tmp_path / "more")
    logs_in(directory)[0].write_bytes(data)
    marker = tmp_path / ".kafka_cleanshutdown"
    points = tmp_path / "recovery-point-offset-checkpoint"
    if trace == "marker gone":
        marker.unlink()
    elif trace == "marker changed":
        marker.write_bytes(b'{"version":0,"brokerEpoch":7}')
    elif trace == "points changed":
        points.write_text(f"0\n1\norders 0 {COUNT + 5}\n")
    else:
        points.unlink()
    with logstore.open(tmp_path) as store:
        assert "other-writer" in labels(store)
        partition = store.topic("orders")[0]
        assert partition.end_offset == COUNT + 5
        assert list(partition.read()) == expected(1, 0, COUNT + 5)
        append_one(partition)
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report


def test_unknown_magic_of_another_writer_is_not_cut(tmp_path: Path) -> None:
    """Where another program wrote last, a newer magic is not ours to drop."""
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
        with pytest.raises(logstore.UnsupportedError):
            for record in partition.read():
                found.append(record)
        assert found == expected(1, 0, COUNT)
        with pytest.raises(logstore.UnsupportedError):
            append_one(partition)
    assert log.read_bytes() == data


def test_bad_kafka_checkpoint_is_reported_and_taken_as_empty(tmp_path: Path) -> None:
    """As Kafka does; nothing is lost by it."""
    write_store(tmp_path, COUNT)
    for own in tmp_path.rglob(".logstore*"):
        own.unlink()
    (tmp_path / "recovery-point-offset-checkpoint").write_bytes(b"rubbish\n")
    with logstore.open(tmp_path) as store:
        assert "state-damaged" in labels(store)
        assert list(store.topic("orders")[0].read()) == expected(1, 0, COUNT)


def test_report_is_plain_data(tmp_path: Path) -> None:
    """to_dict gives what json can write."""
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
