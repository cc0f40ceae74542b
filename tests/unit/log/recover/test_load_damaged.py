"""Opening a log with damage below its durable point: it is reported, nothing is cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import logstore
from logstore.errors import UnsupportedError
from logstore.store.opening import open_store
from support.damage import (
    Unsynced,
    append_garbage,
    crash,
    cut,
    flip_bit,
    frames,
    logs_in,
    overwrite,
    zero,
)
from support.killed import COUNT, killed_store, labels, the_log
from support.transactions import batch
from support.values import append_one, expected, few_formats, fill, write_store

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
    """Promised data is not dropped silently: reads raise at the damage, the file is not
    changed; appends are refused if opening sees it (it does not read durable data)."""
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


@pytest.mark.parametrize(
    ("is_clean", "point"),
    # After an unclean stop, what is above the recovery point may be torn.
    [(False, None), (False, 20), (False, 40)]
    + [(True, point) for point in (None, 0, 3, 20, 40)],
)
def test_log_of_a_broker_does_not_end_at_the_damage_of_its_last_segment(
    tmp_path: Path, point: int | None, is_clean: bool
) -> None:
    """The stop may be clean, and the recovery point anywhere: `verify` lists the
    damaged offsets, and reading continues after them."""
    directory = tmp_path / "t-0"
    directory.mkdir()
    rows = [batch(n, [(b"k", b"v")], -1, control=False) for n in range(40)]
    for bad in (5, 25):
        rows[bad] = rows[bad][:-1] + bytes([rows[bad][-1] ^ 1])
    (directory / f"{0:020d}.log").write_bytes(b"".join(rows))
    if is_clean:
        (tmp_path / ".kafka_cleanshutdown").write_bytes(b'{"version":0}')
    if point is not None:
        text = f"0\n1\nt 0 {point}\n"
        (tmp_path / "recovery-point-offset-checkpoint").write_text(text)
    lost = [p.first_offset for p in logstore.verify(tmp_path).problems]
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        found = [record.offset for record in partition.read(on_corruption="skip")]
        assert partition.end_offset == 40
    assert (lost, found) == ([5, 25], [n for n in range(40) if n not in lost])


def five(number: int) -> bytes:
    """Batch `number` of a log in batches of five records."""
    return batch(5 * number, [(b"k", b"v")] * 5, -1, control=False)


OF_BROKER: dict[str, tuple[bytes, str]] = {
    "damaged": (five(4)[:-1] + b"\xff", "corrupt"),
    "twice": (five(4) * 2, "corrupt"),
    "of a later format": (five(4)[:16] + b"\x03" + five(4)[17:], "unsupported"),
}


@pytest.mark.parametrize("what", OF_BROKER)
@pytest.mark.parametrize("base", [0, 15])
def test_log_of_a_killed_broker_without_a_recovery_point_is_cut_by_no_opening(
    tmp_path: Path, what: str, base: int
) -> None:
    """Intact batches follow the bad one: each opening and `verify` find it, and a read
    ends with an error."""
    bad, label = OF_BROKER[what]
    directory = tmp_path / "t-0"
    directory.mkdir(mode=0o700)
    batches = [*map(five, range(4)), bad, *map(five, range(5, 10))]
    if base:
        head = directory / f"{0:020d}.log"
        head.write_bytes(b"".join(batches[: base // 5]))
    log = directory / f"{base:020d}.log"
    log.write_bytes(b"".join(batches[base // 5 :]))
    data = log.read_bytes()
    for _ in range(3):
        assert not logstore.verify(tmp_path).ok
        with logstore.open(tmp_path) as store:
            assert label in labels(store)
        assert log.read_bytes() == data
        with logstore.open(tmp_path, read_only=True) as store:
            found = []
            with pytest.raises((logstore.CorruptRecordError, UnsupportedError)):
                for record in store.topic("t")[0].read():
                    found.append(record.offset)
        assert found == list(range(25 if what == "twice" else 20))


def test_intact_batch_too_far_from_the_name_of_its_segment_is_not_cut(
    tmp_path: Path,
) -> None:
    """Brokers up to 1.1 compacted such segments, and later ones split them."""
    directory = tmp_path / "t-0"
    directory.mkdir(mode=0o700)
    log = directory / f"{0:020d}.log"
    data = b"".join(
        batch(offset, [(b"k", b"v")], -1, control=False, sequence=0)
        for offset in (0, 1 << 31)
    )
    log.write_bytes(data)
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    for _ in range(2):
        assert not logstore.verify(tmp_path).ok
        with logstore.open(tmp_path) as store:
            assert "torn-tail" not in labels(store)
            with pytest.raises(logstore.LogStoreError):
                store.topic("t")[0].append(b"x")
        assert log.read_bytes() == data


@few_formats
def test_log_of_a_killed_writer_does_not_end_at_the_damage_of_its_last_segment(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A block of the file is there twice: no record is lost, and a read that leaves out
    the damage delivers all of them."""
    path = killed_store(tmp_path, magic, codec, call=5)
    log = the_log(path)
    data = log.read_bytes()
    log.write_bytes(data[:40] + data)
    assert [p.first_offset for p in logstore.verify(path).problems] == [None]
    for read_only in (True, False):
        with logstore.open(path, read_only=read_only) as store:
            partition = store.topic("orders")[0]
            assert partition.end_offset == COUNT
            found = list(partition.read(on_corruption="skip"))
            assert found == expected(magic, 0, COUNT)
            with pytest.raises(logstore.CorruptRecordError):
                list(partition.read())
    assert log.read_bytes() == data[:40] + data


def test_closed_store_that_lost_its_end_is_damaged_and_not_shorter(
    tmp_path: Path,
) -> None:
    """The cut is at any batch of any segment: the end offset stays, the rest is an
    error."""
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
    """Any missing segment is noticed: the first, one in the middle, the last."""
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
    """None of our writers wrote after the end of a closed log."""
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
    """Remove logstore's own state, too."""
    (log.parent / ".logstore-state").unlink()
    return GARBAGE


def another_program(log: Path) -> bytes:
    """Remove the marks of logstore as the last writer."""
    (log.parents[1] / ".logstore-owner").unlink()
    return no_state(log)


# Bytes after the end of a log that was closed.
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
    """If another partition is written to then, and the store is killed, or closed
    without its marks, the bytes after the end of a closed log are no torn tail."""
    live, store = tmp_path / "live", tmp_path / "store"
    write_store(live, COUNT)
    with logstore.open(live) as opened:
        fill(opened.create_topic("other")[0], 3)
    log = logs_in(live / "orders-0")[-1]
    sound = log.read_bytes()
    append_garbage(log, HURT[hurt](log))
    damaged = log.read_bytes()
    with open_store(live, _files=Unsynced()) as opened:
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
            with open_store(path, _files=Unsynced()) as opened:
                assert set(labels(opened)) == {"corrupt"}
                with pytest.raises(logstore.CorruptRecordError):
                    append_one(opened.topic("orders")[0])
                fill(opened.topic("other")[0], 1)
            assert log.read_bytes() == damaged
    # After a repair, also by hand, it is a log like others.
    assert logstore.repair(store, "cut").ok
    logs_in(live / "orders-0")[-1].write_bytes(sound)
    for path in (store, live):
        with open_store(path, _files=Unsynced()) as opened:
            fill(opened.topic("orders")[0], 5)
            copy = crash(path, tmp_path / f"{path.name}-killed")
        append_garbage(logs_in(copy / "orders-0")[-1], GARBAGE)
        assert logstore.verify(copy).ok
        with open_store(copy, _files=Unsynced()) as opened:
            assert labels(opened) == ["torn-tail"]
            assert list(opened.topic("orders")[0].read()) == expected(1, 0, COUNT + 5)


def test_a_partition_older_than_its_closed_store_stays_so(tmp_path: Path) -> None:
    """It lacks offsets that were assigned: also after an unclean stop."""
    directory = write_store(tmp_path / "live", COUNT)
    shutil.copytree(directory, tmp_path / "old")
    with logstore.open(tmp_path / "live") as opened:
        fill(opened.topic("orders")[0], 5)
        fill(opened.create_topic("other")[0], 3)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "old", directory)
    with open_store(tmp_path / "live", _files=Unsynced()) as opened:
        opened.topic("orders")[0]
        assert labels(opened) == ["lost-end"]
        fill(opened.topic("other")[0], 3)
        crash(tmp_path / "live", tmp_path / "store")
    with logstore.open(tmp_path / "store") as opened:
        assert labels(opened) == ["lost-end"]
        with pytest.raises(logstore.CorruptRecordError):
            append_one(opened.topic("orders")[0])
