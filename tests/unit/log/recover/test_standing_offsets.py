"""Memory of a batch with a wrong offset, which no checksum covers: the next batch
contradicts it, and either of them may be the damaged one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

import logstore
from logstore.io.checkpoint.recovery_report import CORRUPT, DAMAGE_GONE
from logstore.store.opening import open_store
from support.damage import Unsynced, crash, flip_bit, frames, logs_in, overwrite, zero
from support.killed import killed_store, labels, the_log
from support.values import (
    append_one,
    expected,
    few_formats,
    fill,
    new_partition,
    read_all,
)

COUNT = 30
BACK = "is gone: whole batches are in its place"
MARKS = (
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
)


def copied(path: Path, magic: int, codec: str = "none", **settings: int) -> Path:
    """A copy of a closed store that leaves out the files of the root."""
    with open_store(path / "store", _files=Unsynced()) as store:
        fill(new_partition(store, magic, codec, **settings), COUNT, call=2)
    forget_marks(path / "store")
    return path / "store"


def forget_marks(store: Path) -> None:
    for name in MARKS:
        (store / name).unlink(missing_ok=True)


def is_refused(store: Path) -> list[str]:
    """Labels of an opening after which appends are refused."""
    with open_store(store, _files=Unsynced()) as opened:
        with pytest.raises(logstore.LogStoreError):
            append_one(opened.topic("orders")[0])
        return labels(opened)


def goes_on(store: Path, magic: int, records: int = COUNT) -> None:
    """Check that the next opening reports that the damage is gone, and continue."""
    with open_store(store, _files=Unsynced()) as opened:
        gone = [a for a in opened.recovery_report.actions if a.label == DAMAGE_GONE]
        assert gone
        assert all(a.message.endswith(BACK) for a in gone)
        assert append_one(opened.topic("orders")[0]) == records
    assert read_all(store)[:records] == expected(magic, 0, records)
    assert logstore.verify(store).ok


@few_formats
def test_altered_offset_of_a_killed_store_that_is_put_back_is_gone(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The end that the log had with the wrong offset is not an end that it has lost."""
    store = killed_store(tmp_path, magic, codec, durable=10, count=COUNT, call=2)
    log = the_log(store)
    before, at = log.read_bytes(), frames(log)[-4].pos + 7
    overwrite(log, at, b"\xfe")
    assert CORRUPT in is_refused(store)
    overwrite(log, at, before[at : at + 1])
    goes_on(store, magic)


@few_formats
@pytest.mark.parametrize(("place", "new"), [(-4, b"\xfe"), (-3, b"\x01")])
def test_altered_offset_that_is_put_back_is_gone(
    tmp_path: Path, magic: int, codec: str, place: int, new: bytes
) -> None:
    """The batch whose bytes have changed is the one at the damage, or the one before;
    until it is right again, no mark removes the damage."""
    store = copied(tmp_path, magic, codec)
    log = the_log(store)
    before, at = log.read_bytes(), frames(log)[place].pos + 7
    overwrite(log, at, new)
    assert CORRUPT in is_refused(store)
    forget_marks(store)
    assert CORRUPT in is_refused(store)
    overwrite(log, at, before[at : at + 1])
    assert log.read_bytes() == before
    goes_on(store, magic)


@pytest.mark.parametrize("place", [0, 1])
def test_altered_offset_at_a_large_batch_that_is_put_back_is_gone(
    tmp_path: Path, place: int
) -> None:
    """More bytes lie between the two offsets than a digest covers."""
    with open_store(tmp_path / "store", _files=Unsynced()) as store:
        partition = new_partition(store, 2)
        partition.append(b"first")
        partition.append(bytes(100_000))
        partition.append(b"last")
        partition.append(b"end")
    forget_marks(tmp_path / "store")
    log = the_log(tmp_path / "store")
    at = frames(log)[1 + place].pos + 7
    good = log.read_bytes()[at : at + 1]
    overwrite(log, at, b"\0" if place else b"\xfe")
    assert CORRUPT in is_refused(tmp_path / "store")
    overwrite(log, at, good)
    with open_store(tmp_path / "store", _files=Unsynced()) as store:
        assert DAMAGE_GONE in labels(store)
        assert append_one(store.topic("orders")[0]) == 4


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_altered_offset_and_more_damage_are_gone_when_both_are(
    tmp_path: Path, order: Sequence[int]
) -> None:
    """The end from the wrong offset applies to no other damage, and the remaining
    damage is found."""
    store = copied(tmp_path, 2)
    log = the_log(store)
    offset, bit = frames(log)[-4].pos + 7, 8 * (frames(log)[-8].pos + 40)
    good = log.read_bytes()[offset : offset + 1]
    overwrite(log, offset, b"\xfe")
    assert CORRUPT in is_refused(store)
    flip_bit(log, bit)
    assert CORRUPT in is_refused(store)
    for number, which in enumerate(order):
        if which:
            flip_bit(log, bit)
        else:
            overwrite(log, offset, good)
        if not number:
            assert CORRUPT in is_refused(store)
    goes_on(store, 2)


def test_damage_at_the_batch_that_contradicts_stays(tmp_path: Path) -> None:
    """The wrong offset is put back, but the other batch has lost its head since."""
    store = copied(tmp_path, 2)
    log = the_log(store)
    offset, behind = frames(log)[-4].pos + 7, frames(log)[-3].pos
    good = log.read_bytes()
    overwrite(log, offset, b"\xfe")
    assert CORRUPT in is_refused(store)
    zero(log, behind, behind + 30)
    overwrite(log, offset, good[offset : offset + 1])
    assert CORRUPT in is_refused(store)
    crash(store, tmp_path / "again")
    assert CORRUPT in is_refused(tmp_path / "again")
    overwrite(log, behind, good[behind : behind + 30])
    goes_on(store, 2)


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_altered_offset_at_the_end_of_a_segment_stays_until_it_is_put_back(
    tmp_path: Path, magic: int
) -> None:
    """It is above the beginning of the next segment: no bytes after it could have been
    cut off, so no opening reports that the damage is gone."""
    store = copied(tmp_path, magic, segment_bytes=600)
    log = logs_in(store / "orders-0")[1]
    at = frames(log)[-1].pos + 7
    good = log.read_bytes()[at : at + 1]
    overwrite(log, at, b"\xfe")
    for _ in range(2):
        found = is_refused(store)
        assert CORRUPT in found
        assert DAMAGE_GONE not in found
    overwrite(log, at, good)
    goes_on(store, magic)
