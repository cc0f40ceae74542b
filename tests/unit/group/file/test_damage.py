"""Damage of a group's file, and the remains of an interrupted append."""

from __future__ import annotations

import pytest

import logstore
from logstore.group.file.damage import TrailingBytes, may_be_torn, whole_batch
from logstore.group.file.durable_point import FileId, GroupDurablePoint
from logstore.record.decoder import Damage
from support.transactions import batch

OFFSET = 0x0102030405060708
FIRST = batch(OFFSET, [(b"k", b"v")], -1, control=False, sequence=-1)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, len(FIRST) - 1])
def test_beginning_of_the_batch_may_be_torn(size: int) -> None:
    """Zeros may be in its place: the file system had not written more."""
    assert may_be_torn(FIRST[:size], OFFSET)
    assert may_be_torn(bytes(size), OFFSET)
    if size == 0 or size >= 8:
        assert may_be_torn(FIRST[:size] + bytes(100), OFFSET)
    assert may_be_torn(bytes(8) + FIRST[8 : 8 + size], OFFSET)


def test_bytes_that_no_append_begins_with_are_damage() -> None:
    other = batch(OFFSET + 1, [(b"k", b"v")], -1, control=False, sequence=-1)
    assert not may_be_torn(other, OFFSET)
    assert not may_be_torn(b"\xff", OFFSET)
    assert not may_be_torn(FIRST[:16] + b"\1", OFFSET)  # it writes magic 2 alone
    assert not may_be_torn(FIRST[:7] + b"\0", OFFSET)


def test_whole_batch_behind_a_torn_one_is_found() -> None:
    """Another append followed: it is damage, and nothing is cut."""
    second = batch(OFFSET + 1, [(b"k", b"v")], -1, control=False, sequence=-1)
    assert whole_batch(FIRST) is None  # at the beginning, not after another
    assert whole_batch(FIRST[:-1]) is None
    assert whole_batch(FIRST[:-1] + second) == len(FIRST) - 1
    assert whole_batch(bytes(30) + second + b"\0") == 30
    assert whole_batch(FIRST[:-1] + second[:-1]) is None


FILE = FileId(5, b"a" * 12)
UNKNOWN = GroupDurablePoint(FileId(), 0, is_of_this_boot=False)
GARBAGE = b"\1" * 60


def rest(data: bytes, pos: int = 100, *, unsupported: bool = False) -> TrailingBytes:
    """The bytes after a batch that ends at `pos`."""
    damage = Damage("it fails", 0, unsupported=True) if unsupported else None
    return TrailingBytes(pos, data, OFFSET, damage)


@pytest.mark.parametrize(
    ("found", "point", "reason"),
    [
        # Cut short, and covered by no sync: a crash, or an append in progress.
        (rest(FIRST[:20]), UNKNOWN, ""),
        (rest(FIRST[:20]), GroupDurablePoint(FILE, 100, is_of_this_boot=True), ""),
        (
            rest(FIRST[:20]),
            GroupDurablePoint(FILE, 101, is_of_this_boot=True),
            "durable",
        ),
        (
            rest(FIRST[:20]),
            GroupDurablePoint(FILE, 101, is_of_this_boot=False),
            "durable",
        ),
        # The point of another file does not count; only its inode number may be the
        # same.
        (rest(FIRST[:20]), GroupDurablePoint(FILE._replace(inode=6), 999, True), ""),
        (rest(FIRST[:20]), GroupDurablePoint(FileId(5, b"b" * 12), 999, True), ""),
        # Until a first batch was read, the file is identified by the number alone.
        (
            rest(FIRST[:20], 0),
            GroupDurablePoint(FileId(5, b"b" * 12), 9, True),
            "durable",
        ),
        # An append leaves this only if the machine has stopped since the last sync.
        (rest(GARBAGE), UNKNOWN, "no append began there"),
        (rest(GARBAGE), GroupDurablePoint(FILE, 100, True), "no append began there"),
        (rest(GARBAGE), GroupDurablePoint(FILE, 100, False), ""),
        (rest(bytes(30) + FIRST), UNKNOWN, "whole batch follows at byte 130"),
        (rest(bytes(30) + FIRST), GroupDurablePoint(FILE, 100, False), ""),
    ],
)
def test_rest_is_damage_or_is_cut_off(
    found: TrailingBytes, point: GroupDurablePoint, reason: str
) -> None:
    """The decision depends on the durable point, the identity of the file, and the
    beginning of the rest."""
    if not reason:
        found.check("/file", FILE, point)
        return
    with pytest.raises(logstore.errors.CorruptCheckpointError, match=reason) as caught:
        found.check("/file", FILE, point)
    assert (caught.value.path, caught.value.position) == ("/file", found.pos)


def test_rest_of_a_later_version_is_no_damage() -> None:
    """It is damage if a sync has covered it: then all of it was read before."""
    found = rest(GARBAGE, unsupported=True)
    with pytest.raises(
        logstore.errors.UnsupportedError, match="unknown format: it fails"
    ):
        found.check("/file", FILE, UNKNOWN)
    with pytest.raises(logstore.errors.CorruptCheckpointError, match="were durable"):
        found.check("/file", FILE, GroupDurablePoint(FILE, 101, is_of_this_boot=True))
    found.check("/file", FILE, GroupDurablePoint(FILE, 100, is_of_this_boot=False))
