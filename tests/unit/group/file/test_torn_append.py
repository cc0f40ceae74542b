"""What an append to a group's file leaves that was cut short."""

from __future__ import annotations

import pytest

from logstore.group.file.torn_append import may_be_torn, whole_batch
from support.transactions import batch

OFFSET = 0x0102030405060708
FIRST = batch(OFFSET, [(b"k", b"v")], -1, control=False, sequence=-1)


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 16, 17, len(FIRST) - 1])
def test_beginning_of_the_batch_may_be_torn(size: int) -> None:
    """And zeros in its place: a file system had no time for more."""
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
    """Then something was appended since: it is damage, and nothing is cut."""
    second = batch(OFFSET + 1, [(b"k", b"v")], -1, control=False, sequence=-1)
    assert whole_batch(FIRST) is None  # at the beginning it is none behind another
    assert whole_batch(FIRST[:-1]) is None
    assert whole_batch(FIRST[:-1] + second) == len(FIRST) - 1
    assert whole_batch(bytes(30) + second + b"\0") == 30
    assert whole_batch(FIRST[:-1] + second[:-1]) is None
