"""Batches of commits made from earlier ones, equal to batches made from scratch."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest

from logstore import _native as native
from logstore._native._ls import ffi, lib

HEADER_BYTES = 61
SIZE = HEADER_BYTES + 40


def expected(base: int, now_ms: int, offset: int, proof: int | None) -> bytes:
    """A batch of ones, except for the numbers and the CRC."""
    data = bytearray(b"\1" * SIZE)
    struct.pack_into(">q", data, 0, base)
    struct.pack_into(">qq", data, 27, now_ms, now_ms)
    struct.pack_into(">q", data, HEADER_BYTES, offset)
    struct.pack_into(">q", data, HEADER_BYTES + 10, now_ms)
    if proof is not None:
        struct.pack_into(">I", data, SIZE - 4, proof)
    struct.pack_into(">I", data, 17, crc32c.crc32c(bytes(data[21:])))
    return bytes(data)


def test_batch_has_its_numbers_and_nothing_else_is_changed() -> None:
    """The former numbers do not matter; the result belongs to the caller alone."""
    rng = random.Random(1)
    places = HEADER_BYTES, HEADER_BYTES + 10
    plain = native.CommitBatch(b"\1" * SIZE, *places)
    proven = native.CommitBatch(b"\1" * SIZE, *places, SIZE - 4)
    first = plain.renumbered(1, 2, 3, 0)
    for _ in range(100):
        base, offset = rng.randrange(1 << 63), rng.randrange(1 << 63)
        now_ms, proof = rng.randrange(-1, 1 << 42), rng.randrange(1 << 32)
        numbers = base, now_ms, offset
        assert plain.renumbered(*numbers, 0) == expected(*numbers, None)
        assert proven.renumbered(*numbers, proof) == expected(*numbers, proof)
    assert first == expected(1, 2, 3, None)


@pytest.mark.parametrize(
    "places",
    [
        (HEADER_BYTES - 1, HEADER_BYTES, 0),
        (HEADER_BYTES, HEADER_BYTES - 1, 0),
        (HEADER_BYTES, HEADER_BYTES, HEADER_BYTES - 1),
        (SIZE - 7, HEADER_BYTES, 0),
        (HEADER_BYTES, SIZE - 7, 0),
        (HEADER_BYTES, HEADER_BYTES, SIZE - 3),
        (-1, HEADER_BYTES, 0),
        (HEADER_BYTES, -1, 0),
        (HEADER_BYTES, HEADER_BYTES, -1),
    ],
)
def test_place_outside_of_the_records_is_refused(places: tuple[int, int, int]) -> None:
    """Nothing is written."""
    with pytest.raises(ValueError, match="outside of the records"):
        native.CommitBatch(b"\1" * SIZE, *places)
    batch = ffi.new("uint8_t[]", b"\1" * SIZE)
    c_places = ffi.new("int64_t[3]", places)
    assert lib.ls_group_renumber(batch, SIZE, c_places, 1, 2, 3, 4) == -1
    assert ffi.buffer(batch, SIZE)[:] == b"\1" * SIZE


def test_place_may_be_the_first_or_the_last_one() -> None:
    small = native.CommitBatch(bytes(SIZE), SIZE - 8, HEADER_BYTES, SIZE - 4)
    data = small.renumbered(0, 7, 0, 9)
    assert data[HEADER_BYTES : HEADER_BYTES + 8] == (7).to_bytes(8, "big")
    assert data[-4:] == (9).to_bytes(4, "big")


def test_moved_point_has_another_size_and_its_crc() -> None:
    """The object that holds the bytes stays the same."""
    assert (lib.LS_GROUP_POINT_BYTES, lib.LS_GROUP_POINT_SIZE_POS) == (48, 8)
    point = native.PointBytes()
    data = point.data
    data[:] = bytes(range(48))
    for size in (0, 1, 4711, (1 << 63) - 1):
        point.move(size)
        fields = bytes(range(8)) + struct.pack("<q", size) + bytes(range(16, 44))
        assert data == fields + struct.pack("<I", crc32c.crc32c(fields))
    assert point.data is data
    bare = ffi.new("uint8_t[48]")
    lib.ls_group_move_point(bare, 5)
    assert ffi.buffer(bare)[:16] == struct.pack("<qq", 0, 5)
