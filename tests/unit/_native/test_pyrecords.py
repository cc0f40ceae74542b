"""Python objects of columns, and columns of Python objects (pyrecords.c)."""

import contextlib
import gc
import random
import struct
import sys
import tracemalloc
from typing import Any, NamedTuple

import pytest
from unit._native.kafka_bytes import T

from logstore._native import _records
from logstore._native._ls import ffi

MANY = 100_000


class Row(NamedTuple):
    """What the reader makes, without its enums."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Any = ()
    kind: Any = 0


class Columns:
    """Columns of (offset, timestamp, key, value) in memory of their own."""

    def __init__(self, rows):
        data = bytearray()
        keys, values = [], []
        for _, _, key, value in rows:
            for part, places in ((key, keys), (value, values)):
                data += b"~"
                places.append((len(data), -1 if part is None else len(part)))
                data += part or b""
        self.count = len(rows)
        self.base = ffi.from_buffer(bytes(data or b"~"))
        self.arrays = [
            ffi.new(kind, list(values) or [0])
            for kind, values in (
                ("int64_t[]", [r[0] for r in rows]),
                ("int64_t[]", [r[1] for r in rows]),
                ("int32_t[]", [p for p, _ in keys]),
                ("int32_t[]", [n for _, n in keys]),
                ("int32_t[]", [p for p, _ in values]),
                ("int32_t[]", [n for _, n in values]),
            )
        ]

    @property
    def addresses(self):
        return [int(ffi.cast("uintptr_t", a)) for a in (self.base, *self.arrays)]

    def make(self, headers=(), kinds=0, *, kind=Row, count=None):
        count = self.count if count is None else count
        return _records.make(kind, count, *self.addresses, headers, kinds)


ROWS = [
    (5, T, b"key", b"value"),
    (6, T, None, b"value"),
    (7, T + 1, b"key", None),
    (8, -1, None, None),
    (9, -1, b"", b""),
    (2**63 - 1, -(2**63), b"\0", b"\xff" * 300),
    (-(2**63), 2**63 - 1, b"k" * 70_000, b"v" * 1_000_000),
]


def counts(*things):
    """Reference counts, all with the same extra ones."""
    return [sys.getrefcount(thing) for thing in things]


# ------------------------------------------------------------------ make


def test_make_gives_a_record_for_each_row():
    """Null is None, empty is empty, and the numbers keep their ends."""
    made = Columns(ROWS).make()
    assert type(made) is list
    assert made == [(*row, (), 0) for row in ROWS]
    assert {type(record) for record in made} == {Row}
    assert made[0].value == b"value"
    assert made[0]._replace(key=b"x") == (5, T, b"x", b"value", (), 0)


def test_make_of_nothing_is_an_empty_list():
    """Also with empty lists."""
    assert Columns([]).make() == []
    assert Columns([]).make([], []) == []
    assert Columns(ROWS).make(count=0) == []


@pytest.mark.parametrize("seed", range(5))
def test_make_equals_the_rows(seed):
    """Random rows; timestamps that repeat and do not."""
    rng = random.Random(seed)
    rows = [
        (
            rng.getrandbits(rng.choice((1, 31, 33, 62))),
            T + rng.randrange(3),
            *(rng.choice((None, rng.randbytes(rng.randrange(40)))) for _ in "kv"),
        )
        for _ in range(500)
    ]
    headers = [((b"name", rng.randbytes(3)),) * rng.randrange(3) for _ in rows]
    kinds = [rng.choice(("create", "append")) for _ in rows]
    made = Columns(rows).make(headers, kinds)
    assert made == [
        (*row, h, k) for row, h, k in zip(rows, headers, kinds, strict=True)
    ]


def test_make_takes_one_object_for_all_or_a_list():
    """Only a list, and what derives from it, has one for each; they are not copied."""

    class Names(list):
        pass

    shared = ((b"a", b"b"),)
    each = [object() for _ in ROWS]
    made = Columns(ROWS).make(shared, Names(each))
    assert all(record.headers is shared for record in made)
    assert [record.kind for record in made] == each
    made = Columns(ROWS).make(each, tuple(each))
    assert [record.headers for record in made] == each
    assert all(record.kind == tuple(each) for record in made)
    longer = Columns(ROWS).make([*each, None], 0)
    assert [record.headers for record in longer] == each


def test_make_shares_a_timestamp_among_neighbours():
    """Records that were appended together."""
    made = Columns(ROWS).make()
    assert made[0].timestamp is made[1].timestamp
    assert made[1].timestamp != made[2].timestamp


def test_made_records_are_like_plain_tuples():
    """Equality, order and hash, in both directions."""
    rows = ROWS[:5]
    made = Columns(rows).make()
    plain = [(*row, (), 0) for row in rows]
    built = [Row(*row) for row in rows]
    for record, other, same in zip(made, plain, built, strict=True):
        assert record == other == same
        assert hash(record) == hash(other) == hash(same)
        assert {other: 1}[record] == 1
        assert {record: 1}[same] == 1
        assert record < (*other, 1)
        assert tuple(record) == other
        assert sys.getsizeof(record) == sys.getsizeof(same)
    assert len({*made, *plain, *built}) == len(rows)


def test_made_records_are_not_tracked_by_the_collector():
    """Nothing in them can refer back to them."""
    made = Columns(ROWS).make(((b"a", None),), 0)
    assert not any(gc.is_tracked(record) for record in made)
    gc.collect()
    assert made == [(*row, ((b"a", None),), 0) for row in ROWS]


def test_made_records_survive_a_busy_collector():
    """A collection at each allocation."""
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        made = Columns(ROWS * 50).make([()] * 350, [0] * 350)
    finally:
        gc.set_threshold(*before)
    assert made == [(*row, (), 0) for row in ROWS * 50]


def test_make_with_a_list_too_short_raises():
    """Of headers or of kinds."""
    columns = Columns(ROWS)
    short = [()] * (len(ROWS) - 1)
    with pytest.raises(ValueError, match="shorter"):
        columns.make(short, 0)
    with pytest.raises(ValueError, match="shorter"):
        columns.make((), short)


def test_make_with_wrong_arguments_raises():
    """Too few, no numbers, a negative count."""
    columns = Columns(ROWS)
    good = [Row, columns.count, *columns.addresses, (), 0]
    with pytest.raises(TypeError):
        _records.make(*good[:-1])
    with pytest.raises(TypeError):
        _records.make(*good, 0)
    for place in range(1, 9):
        with pytest.raises(TypeError):
            _records.make(*good[:place], "1", *good[place + 1 :])
    with pytest.raises(SystemError):
        columns.make(count=-1)


def test_make_keeps_reference_counts():
    """Of the type, of what is shared, and of what is in a list."""
    columns = Columns([(i, T, b"key", b"value") for i in range(3)])
    shared = (object(),)
    each = [[0], [1], [2]]
    lone = each[1]

    class Fresh(Row):
        __slots__ = ()

    before = counts(Fresh, shared, each, lone)
    for _ in range(MANY):
        columns.make(shared, each, kind=Fresh)
    for _ in range(1000):
        with pytest.raises(ValueError, match="shorter"):
            columns.make(shared, each[:2], kind=Fresh)
    assert counts(Fresh, shared, each, lone) == before
    made = columns.make(shared, each, kind=Fresh)
    during = counts(Fresh, shared, each, lone)
    assert [d - b for d, b in zip(during, before, strict=True)] == [3, 3, 0, 1]
    assert counts(made[0].key) == counts(made[0].value)
    del made
    assert counts(Fresh, shared, each, lone) == before


# ------------------------------------------------------------------ pack


def unpacked(packed):
    """(data, lengths as a tuple)."""
    data, lengths = packed
    assert type(data) is bytes
    assert type(lengths) is bytes
    return data, struct.unpack(f"={len(lengths) // 4}i", lengths)


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
def test_pack_gives_data_and_lengths(kind, items):
    """-1 is null."""
    data, lengths = unpacked(_records.pack(kind(items)))
    assert data == b"".join(item or b"" for item in items)
    assert lengths == tuple(-1 if item is None else len(item) for item in items)


@pytest.mark.parametrize(
    "other",
    ["text", 5, bytearray(b"abc"), memoryview(b"abc"), [b"a"], object(), True],
    ids=lambda other: type(other).__name__,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_pack_of_anything_but_bytes_is_none(other, place):
    """The caller has a slower way for it."""
    items = [b"a", None]
    items.insert(place, other)
    assert _records.pack(items) is None
    assert _records.pack(tuple(items)) is None


def test_pack_of_a_subclass_of_bytes_is_none():
    """It may say something else about itself: the slower way asks."""

    class Name(bytes):
        def __len__(self):
            return 1 << 40

    assert _records.pack([b"a", Name(b"abc")]) is None


def test_pack_of_subclasses_of_list_and_tuple_takes_what_is_in_them():
    """No Python code runs: whatever they say about themselves."""

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

    assert unpacked(_records.pack(Names([b"ab", None]))) == (b"ab", (2, -1))
    assert unpacked(_records.pack(Pair(b"ab", None))) == (b"ab", (2, -1))
    assert unpacked(_records.pack(Odd([b"ab", None]))) == (b"ab", (2, -1))


@pytest.mark.parametrize(
    "items",
    [None, 5, b"abc", "abc", {b"a": 1}, {b"a"}, iter([b"a"]), range(3), object()],
    ids=lambda items: type(items).__name__,
)
def test_pack_of_other_containers_raises(items):
    """Our own mistake."""
    with pytest.raises(SystemError):
        _records.pack(items)


def test_pack_takes_one_argument():
    """By position."""
    with pytest.raises(TypeError):
        _records.pack()
    with pytest.raises(TypeError):
        _records.pack([], [])
    with pytest.raises(TypeError):
        _records.pack(items=[])


def test_pack_keeps_reference_counts():
    """Of the items and what holds them, also where it gives up."""
    item = b"an item of its own " * 2
    items = [item, None, b""]
    bad = (item, "text")
    before = counts(item, items, bad)
    for _ in range(MANY):
        _records.pack(items)
        _records.pack(bad)
    for _ in range(1000):
        with pytest.raises(SystemError):
            _records.pack({item})
    assert counts(item, items, bad) == before
    packed = _records.pack(items)
    assert counts(*packed) == counts(*(bytes(bytearray(part)) for part in packed))


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("what", ["make", "make short", "pack", "pack bad", "raise"])
def test_memory_stays_the_same_over_many_calls(what):
    """Nothing is left behind, where it succeeds and where it does not."""
    columns = Columns([(i + 500, T + i, b"key %d" % i, b"v" * 40) for i in range(2)])
    items = [b"item", None]
    bad = [*items, 5]
    calls = {
        "make": lambda: columns.make([()] * 2, 0),
        "make short": lambda: columns.make([()], 0),
        "pack": lambda: _records.pack(items),
        "pack bad": lambda: _records.pack(bad),
        "raise": lambda: _records.pack(5),
    }

    def repeat(count):
        for _ in range(count):
            with contextlib.suppress(SystemError, ValueError):
                calls[what]()

    tracemalloc.start()
    try:
        repeat(100)
        gc.collect()
        before, _ = tracemalloc.get_traced_memory()
        repeat(MANY)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # One object left by each call would be a megabyte and more.
    assert after - before < 20_000
