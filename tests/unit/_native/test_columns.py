"""Conversion into and from Arrow columns; timestamp types; disk space."""

import errno
import os
import random
import struct

import pytest
from unit._native.kafka_bytes import Guarded

from logstore._native._ls import ffi, lib


class Filled:
    """Records (key, value, timestamp type) in decoded columns, and Arrow's columns to
    be filled with them."""

    def __init__(self, records, *, capacity=None, room=None, view=False, bits=0xFF):
        rng, n = random.Random(7), len(records)
        buf = bytearray(b"\0")
        places = []
        for record in records:
            for data in record[:2]:
                buf += rng.randbytes(rng.randrange(3))
                places.append((len(buf), -1 if data is None else len(data)))
                buf += data or b""
        self.memory = Guarded(len(buf))
        self.buf = self.memory.at_end(bytes(buf))
        kinds = [kind for _, _, kind in records]
        self.arrays = {
            "offset": ffi.new("int64_t[]", [1000 + i for i in range(n)] or [0]),
            "timestamp": ffi.new("int64_t[]", self.times(kinds) or [0]),
            "key_pos": ffi.new("int32_t[]", [p for p, _ in places[::2]] or [0]),
            "key_len": ffi.new("int32_t[]", [n for _, n in places[::2]] or [0]),
            "value_pos": ffi.new("int32_t[]", [p for p, _ in places[1::2]] or [0]),
            "value_len": ffi.new("int32_t[]", [n for _, n in places[1::2]] or [0]),
            "timestamp_type": ffi.new("int8_t[]", kinds or [0]),
        }
        self.columns = ffi.new("ls_columns *", {**self.arrays, "count": n})
        self.capacity = n if capacity is None else capacity
        most = max(self.capacity, 1)
        self.bitmaps = [ffi.new("uint8_t[]", [bits] * (most // 8 + 2)) for _ in "123"]
        self.views = [Guarded(16 * most) for _ in "12"]
        self.data = [Guarded(4096) for _ in "12"]
        self.ends = [ffi.new("int32_t[]", most + 1) for _ in "12"]
        self.fixed = ffi.new("int64_t[]", most), ffi.new("int64_t[]", most)
        self.types = ffi.new("int32_t[]", most)
        self.rows = ffi.new("ls_arrow_rows *", {"capacity": self.capacity})
        self.rows.offset, self.rows.timestamp = self.fixed
        self.rows.timestamp_type, self.rows.timed = self.types, self.bitmaps[2]
        self.room = 4096 if room is None else room
        for which, column in enumerate((self.rows.key, self.rows.value)):
            column.validity = self.bitmaps[which]
            if view:
                size = 16 * most
                column.views = self.views[which].at_end(b"\xee" * size)
                column.buffer = 3
            else:
                column.offsets = self.ends[which]
                column.data = self.data[which].at_end(b"\xee" * self.room)
                column.data_capacity = self.room

    @staticmethod
    def times(kinds):
        """Some have no time: records of magic 0, and others."""
        return [
            -1 if kind < 0 or i % 7 == 3 else 5000 - i for i, kind in enumerate(kinds)
        ]

    def fill(self, first=0, n=None):
        n = self.columns.count - first if n is None else n
        return lib.ls_fill_rows(self.columns, first, n, self.buf, self.rows)

    def payload(self, which):
        """Keys (0) or values (1) as Python sees them."""
        column = (self.rows.key, self.rows.value)[which]
        found = []
        for at in range(self.rows.count):
            if column.views:
                data = self._viewed(bytes(ffi.buffer(column.views + 16 * at, 16)))
            else:
                begin, end = column.offsets[at], column.offsets[at + 1]
                data = bytes(ffi.buffer(column.data + begin, end - begin))
            is_valid = column.validity[at // 8] >> at % 8 & 1
            assert is_valid or data == b""
            found.append(data if is_valid else None)
        return found

    def _viewed(self, view):
        size, prefix, number, pos = struct.unpack("<i4sii", view)
        if size <= 12:
            assert view[4 + size :] == bytes(12 - size)  # Arrow compares whole views
            return view[4 : 4 + size]
        data = bytes(ffi.buffer(self.buf + pos, size))
        assert (number, prefix) == (3, data[:4])
        return data


def records_of(seed, count):
    rng = random.Random(seed)

    def data():
        size = rng.choice((0, 1, 3, 4, 7, 8, 9, 11, 12, 13, 40, 130))
        return None if rng.random() < 0.3 else rng.randbytes(size)

    return [(data(), data(), rng.choice((-1, 0, 1))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bits", [0, 0xFF])
@pytest.mark.parametrize("view", [False, True])
def test_fill_rows_appends_records(seed, bits, view):
    """The rows come in any number of calls, from any position; former bits have no
    effect."""
    rng = random.Random(seed)
    records = records_of(seed, 40 + seed)
    filled = Filled(records, view=view, bits=bits)
    at = 0
    while at < len(records):
        n = rng.randrange(1, 12)
        n = min(n, len(records) - at)
        assert filled.fill(at, n) == n
        at += n
    rows, n = filled.rows, len(records)
    assert rows.count == n
    assert list(rows.offset[0:n]) == list(range(1000, 1000 + n))
    kinds = [kind for _, _, kind in records]
    times = Filled.times(kinds)
    assert list(rows.timestamp[0:n]) == times
    assert list(rows.timestamp_type[0:n]) == kinds
    for which, column in enumerate((rows.key, rows.value)):
        wanted = [record[which] for record in records]
        assert filled.payload(which) == wanted
        assert column.nulls == wanted.count(None)
        assert column.apart == (sum(len(w or b"") > 12 for w in wanted) if view else 0)
    assert rows.untimed == times.count(-1)
    for i, time in enumerate(times):
        assert rows.timed[i // 8] >> i % 8 & 1 == (time >= 0)


@pytest.mark.parametrize("view", [False, True])
def test_fill_rows_of_every_length_copies_exactly(view):
    """The short copies change their way at several lengths."""
    values = [bytes([n % 251 + 1]) * n for n in range(80)]
    filled = Filled([(v, v[::-1], 0) for v in values], view=view)
    assert filled.fill() == 80
    assert filled.payload(0) == filled.payload(1) == values
    assert filled.rows.untimed == 11  # each seventh
    times = Filled([(b"k", b"v", 0)] * 3)
    assert times.fill() == 3
    assert times.rows.untimed == 0


def test_fill_rows_takes_as_many_as_there_is_room_for():
    """The limits are rows, and bytes of either column; a full column still takes rows
    without bytes."""
    records = [(b"ab", b"xyz", 0), (None, b"", 0), (b"c", b"wv", 0), (b"d", b"", 0)]
    assert Filled(records, capacity=3).fill() == 3
    assert Filled(records, capacity=0).fill() == 0
    for room, taken in ((5, 4), (4, 2), (3, 2), (2, 0), (0, 0)):
        filled = Filled(records, room=room)
        assert filled.fill() == taken == filled.rows.count
        assert filled.payload(1) == [r[1] for r in records[:taken]]


def test_fill_rows_never_passes_32_bit_positions():
    """This holds for any stated size of the memory."""
    filled = Filled([(b"a", b"b", 0)] * 2)
    filled.rows.value.data_capacity = 1 << 40
    filled.arrays["value_len"][0] = 2**31 - 1
    filled.ends[1][0] = 1
    assert filled.fill() == 0


def test_fill_rows_of_columns_that_are_not_wanted():
    """Unwanted columns are not touched."""
    filled = Filled(records_of(1, 20))
    rows = ffi.new("ls_arrow_rows *", {"capacity": 20, "offset": filled.fixed[0]})
    assert lib.ls_fill_rows(filled.columns, 5, 9, filled.buf, rows) == 9
    assert list(rows.offset[0:9]) == list(range(1005, 1014))


@pytest.mark.parametrize(
    ("first", "n", "count"), [(-1, 1, 0), (0, -1, 0), (3, 3, 0), (0, 6, 0), (0, 1, -1),
                              (0, 1, 6), (2**62, 2**62, 0)]
)  # fmt: skip
def test_fill_rows_that_the_columns_do_not_have_are_refused(first, n, count):
    filled = Filled(records_of(1, 5))
    filled.rows.count = count
    assert filled.fill(first, n) == lib.LS_E_ARGUMENT


def test_views_have_the_sizes_of_arrow():
    assert (lib.LS_VIEW_BYTES, lib.LS_VIEW_INLINE_MAX) == (16, 12)


def test_sum_lengths_leaves_nulls_out():
    """The sum does not overflow 32 bits."""
    assert lib.ls_sum_lengths(ffi.new("int32_t[]", [5, -1, 0, 7]), 4) == 12
    assert lib.ls_sum_lengths(ffi.new("int32_t[]", [2**31 - 1] * 9), 9) == 9 * (
        2**31 - 1
    )
    assert lib.ls_sum_lengths(ffi.NULL, 0) == 0


def test_smallest_number():
    """It is right for any count; for none it is the largest number of the type."""
    rng = random.Random(1)
    for count in range(1, 40):
        numbers = [rng.randrange(-(2**63), 2**63) for _ in range(count)]
        assert lib.ls_smallest(ffi.new("int64_t[]", numbers), count) == min(numbers)
    assert lib.ls_smallest(ffi.NULL, 0) == 2**63 - 1


# ------------------------------------------------------------------ from Arrow


def arrow_slices(ends, n, first=0, *, bitmap=None, large=1, **other):
    """(status, error, positions, lengths) of elements of a column whose data ends with
    the last of `ends`."""
    offsets = ffi.new("int64_t[]" if large else "int32_t[]", ends)
    validity = ffi.NULL if bitmap is None else ffi.from_buffer("uint8_t[]", bitmap)
    fields = {
        "validity": validity,
        "validity_bytes": len(bitmap or b""),
        "offsets": ffi.cast("uint8_t *", offsets),
        "offsets_bytes": ffi.sizeof(offsets),
        "data_bytes": max(ends[-1], 0),
        "large": large,
    }
    column = ffi.new("ls_arrow_binary *", {**fields, **other})
    pos = ffi.new("int64_t[]", max(n, 1))
    length = ffi.new("int32_t[]", max(n, 1))
    error = ffi.new("ls_error *")
    status = lib.ls_slices_from_arrow(column, first, n, pos, length, error)
    assert error.status == status
    return status, error, list(pos)[:n], list(length)[:n]


@pytest.mark.parametrize("large", [0, 1])
@pytest.mark.parametrize("first", [0, 3, 9])
def test_slices_from_arrow_are_those_of_the_column(large, first):
    """The column is a slice with nulls, which may have bytes too."""
    lengths = [3, 0, 5, 2, 8, 0, 1, 9, 4, 6, 7, 2]
    valid = [i % 3 != 1 for i in range(len(lengths))]
    ends = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    bitmap = bytearray(2)
    for i, is_valid in enumerate(valid):
        bitmap[i // 8] |= is_valid << i % 8
    n = len(lengths) - first
    status, _, pos, length = arrow_slices(ends, n, first, bitmap=bitmap, large=large)
    assert status == 0
    assert pos == ends[first:-1]
    assert length == [
        lengths[i] if valid[i] else -1 for i in range(first, len(lengths))
    ]
    status, _, _, length = arrow_slices(ends, n, first, large=large)
    assert (status, length) == (0, lengths[first:])


@pytest.mark.parametrize(
    ("ends", "other"),
    [
        ([5, 4], {}),
        ([-3, 4], {}),
        ([0, -1], {}),
        ([0, 11], {"data_bytes": 10}),
        ([11, 11], {"data_bytes": 10}),
        ([0, 2**63 - 1], {"data_bytes": 10}),
        ([-(2**63), 2**63 - 1], {"data_bytes": 10}),
        ([0, 4], {"offsets_bytes": 15}),
        ([0, 4], {"offsets_bytes": 0}),
        ([0, 4], {"offsets_bytes": -8}),
        ([0, 4], {"offsets": ffi.NULL}),
        ([0, 4], {"data_bytes": -1}),
        ([0, 4], {"bitmap": b""}),
    ],
)
def test_slices_from_arrow_that_lead_out_of_a_buffer_are_refused(ends, other):
    """Positions fall, are negative or past the data, or buffers are too short."""
    assert arrow_slices(ends, 1, **other)[0] == lib.LS_E_LENGTH


@pytest.mark.parametrize(
    ("n", "first"),
    [(-1, 0), (1, -1), (3, 0), (1, 2), (2**62, 0), (1, 2**63 - 1), (2**63 - 1, 1)],
)
def test_slices_from_arrow_that_the_column_does_not_have_are_refused(n, first):
    """The slice has more positions than the column, or an element ends after all
    numbers."""
    pos, length = ffi.new("int64_t[]", 1), ffi.new("int32_t[]", 1)
    offsets = ffi.new("int64_t[]", [0, 1, 2])
    column = ffi.new(
        "ls_arrow_binary *",
        {
            "offsets": ffi.cast("uint8_t *", offsets),
            "offsets_bytes": 24,
            "data_bytes": 2,
            "large": 1,
        },
    )
    error = ffi.new("ls_error *")
    status = lib.ls_slices_from_arrow(column, first, n, pos, length, error)
    assert status == lib.LS_E_LENGTH


def test_slices_from_arrow_of_2_gib_are_refused():
    """A length has 32 bits; the error contains the number of the element."""
    status, error, _, _ = arrow_slices([0, 1, 1 + 2**31], 2)
    assert (status, error.offset, error.found) == (lib.LS_E_TOO_LARGE, 1, 2**31)
    assert arrow_slices([0, 2**31 - 1], 1)[0] == 0


def test_slices_from_arrow_of_no_elements_need_no_buffer():
    """Arrow allows a missing buffer."""
    assert arrow_slices([0], 0, offsets=ffi.NULL, offsets_bytes=0)[0] == 0


# ------------------------------------------------------------------ disk space


def test_sys_reserve_keeps_the_length(tmp_path):
    """Blocks are reserved after the end, or the file system cannot do so."""
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    fd = os.open(path, os.O_RDWR)
    try:
        result = lib.ls_sys_reserve(fd, 3, 1 << 20)
        assert result in (0, -errno.EOPNOTSUPP)
        assert path.read_bytes() == b"abc"
        if result == 0:
            assert os.fstat(fd).st_blocks * 512 >= 1 << 20
    finally:
        os.close(fd)


def test_sys_write_back_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc" * 10_000)
    with open(path, "r+b") as file:
        assert lib.ls_sys_write_back(file.fileno(), 0, 30_000) in (0, -errno.EOPNOTSUPP)
    assert path.read_bytes() == b"abc" * 10_000
    assert lib.ls_sys_write_back(-1, 0, 10) < 0


def test_sys_reserve_of_a_bad_descriptor_tells_why():
    """The result is -errno, not an exception."""
    assert lib.ls_sys_reserve(-1, 0, 4096) == -errno.EBADF


def test_file_system_has_a_number(tmp_path):
    """The number is positive, of 32 bits; a descriptor that is not open gives a
    negative errno."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert 0 < lib.ls_sys_fs_type(fd) < 1 << 32
    finally:
        os.close(fd)
    assert lib.ls_sys_fs_type(-1) == -errno.EBADF
