"""Lists of bytes and of timestamps as columns for C (pyrecords_rows.c)."""

import ctypes
import struct
from typing import NamedTuple

import pytest

from logstore._native import _records
from support.references import MANY, counts, growth

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
    """The caller takes a slower way, which reports the error."""
    assert _records.pack_times([5, other]) is None
    assert _records.pack_times((other, 5)) is None


@pytest.mark.parametrize("items", [None, 5, "text", {1: 2}, range(3)])
def test_pack_times_of_no_list_raises(items):
    with pytest.raises(SystemError):
        _records.pack_times(items)


# ------------------------------------------------------------------ point


def unpacked(pointed):
    """(data, lengths as a tuple)."""
    items, address, positions, lengths = pointed
    assert type(items) is tuple
    assert type(positions) is type(lengths) is bytes
    found = struct.unpack(f"={len(lengths) // 4}i", lengths)
    places = struct.unpack(f"={len(positions) // 8}q", positions)
    assert len(found) == len(places) == len(items)
    data = b"".join(
        ctypes.string_at(address + place, max(length, 0))
        for place, length in zip(places, found, strict=True)
    )
    return data, found


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(
    "items",
    [
        [],
        [None],
        [b""],
        [b"a"],
        [None, b"", b"abc", None, b"d"],
        [b"x" * 1_000_000, None, b"y" * 3],
        [bytes([i % 256]) * (i % 50) for i in range(5000)],
    ],
    ids=["none", "null", "empty", "one", "mixed", "large", "many"],
)
def test_point_gives_data_and_lengths(kind, items):
    """-1 is null."""
    data, lengths = unpacked(_records.point(kind(items)))
    assert data == b"".join(item or b"" for item in items)
    assert lengths == tuple(-1 if item is None else len(item) for item in items)


@pytest.mark.parametrize(
    "other",
    ["text", 5, bytearray(b"abc"), memoryview(b"abc"), [b"a"], object(), True],
    ids=lambda other: type(other).__name__,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_point_of_anything_but_bytes_is_none(other, place):
    """The caller has a slower way for it."""
    items = [b"a", None]
    items.insert(place, other)
    assert _records.point(items) is None
    assert _records.point(tuple(items)) is None


def test_point_of_a_subclass_of_bytes_is_none():
    """A subclass may override its methods: the slower way calls them."""

    class Name(bytes):
        def __len__(self):
            return 1 << 40

    assert _records.point([b"a", Name(b"abc")]) is None


def test_point_of_subclasses_of_list_and_tuple_takes_what_is_in_them():
    """No Python code runs: overridden methods have no effect."""

    class Names(list):
        def __len__(self):
            raise AssertionError

        def __getitem__(self, place):
            raise AssertionError

    class Pair(NamedTuple):
        first: bytes
        second: bytes | None

    class Odd(tuple):
        __slots__ = ()

        def __len__(self):
            return 1 << 40

    assert unpacked(_records.point(Names([b"ab", None]))) == (b"ab", (2, -1))
    assert unpacked(_records.point(Pair(b"ab", None))) == (b"ab", (2, -1))
    assert unpacked(_records.point(Odd([b"ab", None]))) == (b"ab", (2, -1))


@pytest.mark.parametrize(
    "items",
    [None, 5, b"abc", "abc", {b"a": 1}, {b"a"}, iter([b"a"]), range(3), object()],
    ids=lambda items: type(items).__name__,
)
def test_point_of_other_containers_raises(items):
    """Such a call is our own mistake."""
    with pytest.raises(SystemError):
        _records.point(items)


def test_point_takes_one_argument():
    """The argument is positional."""
    with pytest.raises(TypeError):
        _records.point()
    with pytest.raises(TypeError):
        _records.point([], [])
    with pytest.raises(TypeError):
        _records.point(items=[])


def test_point_keeps_reference_counts():
    """Counts of the items and of their container stay correct, even on failure."""
    item = b"an item of its own " * 2
    items = [item, None, b""]
    bad = (item, "text")
    before = counts(item, items, bad)
    for _ in range(MANY):
        _records.point(items)
        _records.point(bad)
    for _ in range(1000):
        with pytest.raises(SystemError):
            _records.point({item})
    assert counts(item, items, bad) == before
    kept, _, *parts = _records.point(items)
    fresh = [bytes(bytearray(part)) for part in parts]
    assert counts(*parts) == counts(*fresh)
    assert counts(item) == [before[0] + 1]
    del kept
    assert counts(item, items, bad) == before


def test_point_copies_no_bytes_and_keeps_the_items():
    """A later change of the list has no effect."""
    item = b"an item of its own" * 3
    items = [item]
    pointed = _records.point(items)
    items[0] = b"other"
    assert pointed[0] == (item,)
    assert pointed[1] == id(item) + bytes.__basicsize__ - 1
    whole = (b"a", None)
    assert _records.point(whole)[0] is whole


@pytest.mark.parametrize("what", ["point", "point bad", "raise"])
def test_memory_stays_the_same_over_many_calls(what):
    """No memory is left, on success and on failure."""
    items = [b"item", None]
    bad = [*items, 5]
    calls = {
        "point": lambda: _records.point(items),
        "point bad": lambda: _records.point(bad),
        "raise": lambda: _records.point(5),
    }
    assert growth(calls[what]) < 20_000
