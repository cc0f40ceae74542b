"""Into and from Arrow columns; timestamps types; disk space."""

import errno
import os
import random

import pytest
from unit._native.kafka_bytes import Guarded

from logstore._native._ls import ffi, lib


def gather(values, *, at=0, filled=b"", capacity=None, validity=True, bits=0xFF):
    """ls_gather of values that stand apart in a buffer; all that it writes."""
    rng = random.Random(7)
    buf = bytearray()
    positions = []
    for value in values:
        buf += rng.randbytes(rng.randrange(3))
        positions.append(len(buf))
        buf += value or b""
    memory = Guarded(max(len(buf), 1))
    source = memory.at_end(bytes(buf))
    total = sum(len(v) for v in values if v is not None)
    capacity = len(filled) + total if capacity is None else capacity
    target = Guarded(max(capacity, 1))
    data = target.at_end(filled + bytes(capacity - len(filled)))
    offsets = ffi.new("int32_t[]", at + len(values) + 1)
    offsets[at] = len(filled)
    bitmap = ffi.new("uint8_t[]", [bits] * ((at + len(values)) // 8 + 2))
    result = lib.ls_gather(
        source,
        ffi.new("int32_t[]", positions or [0]),
        ffi.new("int32_t[]", [-1 if v is None else len(v) for v in values] or [0]),
        len(values),
        data,
        capacity,
        offsets,
        bitmap if validity else ffi.NULL,
        at,
    )
    return result, bytes(ffi.buffer(data, capacity)), list(offsets), list(bitmap)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("bits", [0, 0xFF])
def test_gather_appends_data_offsets_and_validity(seed, bits):
    """Behind any number of elements; other bits stay as they are."""
    rng = random.Random(seed)
    values = [
        None if rng.random() < 0.3 else rng.randbytes(rng.choice((0, 1, 5, 40, 300)))
        for _ in range(rng.randrange(40))
    ]
    at = rng.randrange(20)
    filled = rng.randbytes(rng.randrange(9))
    nulls, data, offsets, bitmap = gather(values, at=at, filled=filled, bits=bits)
    assert nulls == values.count(None)
    assert data == filled + b"".join(v or b"" for v in values)
    end = len(filled)
    for i, value in enumerate(values):
        end += len(value or b"")
        assert offsets[at + i + 1] == end
    for bit in range(len(bitmap) * 8):
        is_set = bitmap[bit // 8] >> bit % 8 & 1
        if at <= bit < at + len(values):
            assert is_set == (values[bit - at] is not None)
        else:
            assert is_set == bits & 1


def test_gather_of_every_length_copies_exactly():
    """The short copies change their way at several lengths."""
    values = [bytes([n % 251 + 1]) * n for n in range(300)]
    assert gather(values, validity=False)[1] == b"".join(values)


def test_gather_without_validity_still_counts_nulls():
    """A column that cannot have any."""
    assert gather([b"a", None, b"c"], validity=False)[0] == 1


def test_gather_into_too_little_space_is_refused():
    """One byte too few."""
    assert gather([b"abc", b"de"], capacity=4)[0] == lib.LS_E_NO_SPACE
    assert gather([b"abc", b"de"], capacity=5)[0] == 0
    offsets = ffi.new("int32_t[]", [0, 0])
    refused = lib.ls_gather(
        b"a", offsets, offsets, -1, ffi.NULL, 0, offsets, ffi.NULL, 0
    )
    assert refused == lib.LS_E_ARGUMENT


def test_gather_beyond_32_bit_offsets_is_refused():
    """However large the memory is said to be; nothing is written."""
    lengths = ffi.new("int32_t[]", [2**31 - 1, 1])
    offsets = ffi.new("int32_t[]", 3)
    status = lib.ls_gather(
        ffi.NULL, lengths, lengths, 2, ffi.NULL, 1 << 40, offsets, ffi.NULL, 0
    )
    assert status == lib.LS_E_NO_SPACE


def test_sum_lengths_leaves_nulls_out():
    """And does not overflow 32 bits."""
    assert lib.ls_sum_lengths(ffi.new("int32_t[]", [5, -1, 0, 7]), 4) == 12
    assert lib.ls_sum_lengths(ffi.new("int32_t[]", [2**31 - 1] * 9), 9) == 9 * (
        2**31 - 1
    )
    assert lib.ls_sum_lengths(ffi.NULL, 0) == 0


def test_widen_keeps_the_sign():
    """Timestamp types are -1, 0 and 1."""
    out = ffi.new("int32_t[]", 40)
    lib.ls_widen(out, ffi.new("int8_t[]", [-1, 0, 1, 127, -128] * 8), 40)
    assert list(out) == [-1, 0, 1, 127, -128] * 8


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
    """A slice of a column with nulls, which may have bytes too."""
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
    """Falling and negative positions, those behind the data, buffers too short."""
    assert arrow_slices(ends, 1, **other)[0] == lib.LS_E_LENGTH


@pytest.mark.parametrize(
    ("n", "first"),
    [(-1, 0), (1, -1), (3, 0), (1, 2), (2**62, 0), (1, 2**63 - 1), (2**63 - 1, 1)],
)
def test_slices_from_arrow_that_the_column_does_not_have_are_refused(n, first):
    """More than it has positions; an element that ends behind all numbers."""
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
    """A length has 32 bits; which element it was is told."""
    status, error, _, _ = arrow_slices([0, 1, 1 + 2**31], 2)
    assert (status, error.offset, error.found) == (lib.LS_E_TOO_LARGE, 1, 2**31)
    assert arrow_slices([0, 2**31 - 1], 1)[0] == 0


def test_slices_from_arrow_of_no_elements_need_no_buffer():
    """As Arrow allows it."""
    assert arrow_slices([0], 0, offsets=ffi.NULL, offsets_bytes=0)[0] == 0


# ------------------------------------------------------------------ disk space


def test_sys_reserve_keeps_the_length(tmp_path):
    """Blocks behind the end; or the file system cannot."""
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
    """-errno, not an exception."""
    assert lib.ls_sys_reserve(-1, 0, 4096) == -errno.EBADF


def test_file_system_has_a_number(tmp_path):
    """A positive one of 32 bits; a descriptor that is not open is a negative errno."""
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        assert 0 < lib.ls_sys_fs_type(fd) < 1 << 32
    finally:
        os.close(fd)
    assert lib.ls_sys_fs_type(-1) == -errno.EBADF
