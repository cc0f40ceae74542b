"""Lists of timestamps as int64."""

import struct

import pytest

from logstore._native import _records

MIN, MAX = -(2**63), 2**63 - 1
OTHERS = (None, -2, MIN, MAX + 1, 1 << 70, True, 1.5, "1", b"1")


def test_pack_times_gives_their_int64():
    times = [0, -1, 1, 1_700_000_000_000, MAX]
    packed = struct.pack("=5q", *times)
    assert _records.pack_times(times) == packed
    assert _records.pack_times(tuple(times)) == packed
    assert _records.pack_times([]) == b""


@pytest.mark.parametrize("other", OTHERS)
def test_pack_times_of_anything_else_is_none(other):
    """Someone has to look at it, and to say what is wrong."""
    assert _records.pack_times([5, other]) is None
    assert _records.pack_times((other, 5)) is None


@pytest.mark.parametrize("items", [None, 5, "text", {1: 2}, range(3)])
def test_pack_times_of_no_list_raises(items):
    with pytest.raises(SystemError):
        _records.pack_times(items)
