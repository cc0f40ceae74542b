"""Zeros before intact batches: damage, or a call that was not finished.

A writer of logstore writes the frame of the first of several batches last.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from logstore.io.checkpoint.recovery_report import CORRUPT, TORN_TAIL
from logstore.store.opening import open_store
from support.damage import Unsynced, crash, frames, zero
from support.killed import killed_store, labels, the_log
from support.values import every_format, new_partition, write_store

COUNT = 30
# Bytes of the frame that begins a batch, or a message.
FRAME = 17
MARKS = (
    ".logstore-owner",
    ".kafka_cleanshutdown",
    "recovery-point-offset-checkpoint",
)


def killed(path: Path, magic: int = 1, codec: str = "none") -> Path:
    return killed_store(path, magic, codec, durable=10, count=COUNT, call=2)


def zeroed(store: Path, place: int, size: int) -> tuple[int, bytes]:
    """Put zeros over the first `size` bytes of a batch; returns its position, and the
    log."""
    log = the_log(store)
    pos = frames(log)[place].pos
    zero(log, pos, pos + size)
    return pos, log.read_bytes()


def forget_marks(store: Path) -> None:
    """Let the store be a copy that leaves out the files of the root."""
    for name in MARKS:
        (store / name).unlink(missing_ok=True)


def found(store: Path) -> list[str]:
    """Labels that an opening for writing finds."""
    with open_store(store, _files=Unsynced()) as opened:
        return labels(opened)


@pytest.mark.parametrize("size", [512, 0], ids=["a sector", "a whole batch"])
@pytest.mark.parametrize("magic", [1, 2])
def test_zeros_before_intact_batches_are_damage(
    tmp_path: Path, magic: int, size: int
) -> None:
    """The frame alone is zeros while a call of several batches is not finished."""
    store = killed(tmp_path, magic)
    place = -12 if size else -4
    _, before = zeroed(store, place, size or frames(the_log(store))[place].size)
    assert found(store) == [CORRUPT]
    assert the_log(store).read_bytes() == before


@every_format
def test_zeros_over_the_head_of_an_acknowledged_batch_are_damage(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """The lengths of a message may stay right: its fields are not zeros in the next
    message."""
    store = killed(tmp_path, magic, codec)
    for place, size in itertools.product(range(-5, -1), (22, 30)):
        target = tmp_path / f"{place}-{size}"
        shutil.copytree(store, target)
        _, before = zeroed(target, place, size)
        assert found(target) == [CORRUPT]
        assert the_log(target).read_bytes() == before


@every_format
@pytest.mark.parametrize("size", [FRAME, 30])
def test_zeros_in_a_copy_of_a_closed_store_are_damage(
    tmp_path: Path, magic: int, codec: str, size: int
) -> None:
    """The marks are missing, too: an unfinished call would be past the durable point of
    the state."""
    store = write_store(tmp_path / "store", COUNT, magic, codec, call=2).parent
    forget_marks(store)
    _, before = zeroed(store, -3, size)
    assert CORRUPT in found(store)
    assert the_log(store).read_bytes() == before


def test_zeros_in_the_log_of_a_broker_are_damage(tmp_path: Path) -> None:
    """A broker leaves no call unfinished as logstore does."""
    store = killed(tmp_path)
    forget_marks(store)
    for own in store.rglob(".logstore*"):
        own.unlink()
    _, before = zeroed(store, -4, FRAME)
    assert CORRUPT in found(store)
    assert the_log(store).read_bytes() == before


@every_format
@pytest.mark.parametrize("is_copy", [False, True])
def test_call_of_several_batches_that_was_not_finished_is_a_torn_tail(
    tmp_path: Path, magic: int, codec: str, is_copy: bool
) -> None:
    """The frame of its first batch is zeros, and the rest of it is whole. `is_copy`: of
    the killed store, without its marks; the state has the durable point.

    `is_copy`: of the killed store, without its marks; the state says what was durable.
    """
    store = killed(tmp_path, magic, codec)
    pos, _ = zeroed(store, -4, FRAME)
    if is_copy:
        forget_marks(store)
    assert TORN_TAIL in found(store)
    assert the_log(store).stat().st_size == pos


@pytest.mark.parametrize("magic", [0, 1])
def test_call_with_fields_of_zeros_that_was_not_finished_is_a_torn_tail(
    tmp_path: Path, magic: int
) -> None:
    """All of its messages have the timestamp 0 and an empty key."""
    with open_store(tmp_path / "live", _files=Unsynced()) as store:
        partition = new_partition(store, magic)
        partition.append_many([b"v"] * 4, [b""] * 4, timestamps_ms=[0] * 4)
        crash(tmp_path / "live", tmp_path / "killed")
    pos, _ = zeroed(tmp_path / "killed", -4, FRAME)
    assert found(tmp_path / "killed") == [TORN_TAIL]
    assert the_log(tmp_path / "killed").stat().st_size == pos
