"""Walks over headers, from Python."""

from __future__ import annotations

import pytest
from unit._native.kafka_bytes import message, plain_batch

from logstore import _native as native
from logstore._native._ls import ffi, lib

COUNTS = (3, 2, 4, 1)
BASES = (10, 13, 15, 19)
BATCHES = [plain_batch(base, n) for base, n in zip(BASES, COUNTS, strict=True)]
DATA = b"".join(BATCHES)


@pytest.mark.parametrize("offset", range(8, 20))
def test_batch_that_is_sought_comes_with_the_end_of_the_one_before(
    offset: int,
) -> None:
    """The value -1 is the offset with which the walk began."""
    number = next(n for n in range(4) if BASES[n] + COUNTS[n] > offset)
    scan = native.seek_batch(
        native.pointer(DATA), len(DATA), last_offset=-1, offset=offset
    )
    assert scan.pos == sum(map(len, BATCHES[:number]))
    assert scan.last_offset == (BASES[number] - 1 if number else -1)
    assert [h.base_offset for h in scan.headers] == [BASES[number]]


def test_batch_that_is_not_there_ends_the_walk_behind_the_last_one() -> None:
    scan = native.seek_batch(native.pointer(DATA), len(DATA), last_offset=-1, offset=20)
    assert (scan.headers, scan.pos, scan.last_offset) == ([], len(DATA), 19)
    assert scan.stop == native.STOP_END
    assert scan.error is None


@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 1025, 2500])
def test_headers_are_those_of_all_batches(count: int) -> None:
    """However many there are; then the attributes show why the walk ended."""
    entries = [message(offset, None, b"value") for offset in range(count)]
    data = b"".join(entries)
    for tail, stop in ((b"", native.STOP_END), (b"\0" * 20, native.STOP_ZEROS)):
        headers = native.Headers(data + tail, len(data + tail))
        assert [header.base_offset for header in headers] == list(range(count))
        found = headers.pos, headers.last_offset, headers.stop, headers.error
        assert found == (len(data), count - 1, stop, None)


def test_headers_before_damage_come_first() -> None:
    """The error is known after the iteration."""
    entries = [message(offset, None, b"value") for offset in range(1500)]
    data = bytearray(b"".join(entries))
    bad = 1400 * len(entries[0])
    data[bad + len(entries[0]) - 1] ^= 1
    headers = native.Headers(native.pointer(data), len(data))
    assert len(list(headers)) == 1400
    assert (headers.pos, headers.error.pos) == (bad, bad)
    assert headers.error.status == native.E_CRC


def test_headers_begin_behind_a_batch() -> None:
    """The last offset is that of the batch before."""
    entries = [message(offset, None, b"value") for offset in (3, 4, 4)]
    data, size = b"".join(entries), len(entries[0])
    headers = native.Headers(data, len(data), pos=size, last_offset=3)
    assert [(header.pos, header.base_offset) for header in headers] == [(size, 4)]
    assert headers.error.status == native.E_OFFSET
    headers = native.Headers(data, len(data), pos=size, last_offset=4, checks=0)
    assert [header.base_offset for header in headers] == [4, 4]


@pytest.mark.parametrize("count", [1, 255, 256, 257, 600])
def test_seek_finds_the_first_batch_that_ends_at_an_offset_or_above(count: int) -> None:
    """It finds the batch even in front of damage; the walk stays before the batch."""
    entries = [message(2 * n, None, b"value") for n in range(count)]
    data, size = b"".join(entries) + b"\x7f" * 60, len(entries[0])
    for offset in {0, 1, 2, count, 2 * count - 3, 2 * count - 2}:
        wanted = max(offset, 0) + 1 >> 1
        if wanted >= count:
            continue
        found = native.seek_batch(data, len(data), last_offset=-1, offset=offset)
        assert [header.base_offset for header in found.headers] == [2 * wanted]
        assert (found.pos, found.stop) == (wanted * size, native.STOP_OFFSET)
        assert found.last_offset == (2 * wanted - 2 if wanted else -1)
    found = native.seek_batch(data, len(data), last_offset=-1, offset=2 * count - 1)
    assert (found.headers, found.pos) == ([], count * size)
    assert found.last_offset == 2 * count - 2
    assert found.error.status < 0


def test_seek_trusts_no_offset_of_a_damaged_batch() -> None:
    """Its checks are the checks of a walk; no batch has the largest offset."""
    wrong = bytearray(message(5, None, b"value"))
    wrong[-1] ^= 1
    data = message(3, None, b"value") + bytes(wrong)
    found = native.seek_batch(data, len(data), last_offset=-1, offset=5)
    assert (found.headers, found.error.status) == ([], native.E_CRC)
    data = message(3, None, b"value") + message((1 << 63) - 1, None, b"value")
    at, walk = native.last_batch(data, len(data))
    assert (at, walk.pos) == (len(data) // 2, len(data))


@pytest.mark.parametrize("size", [-1, 1 << 31])
def test_seek_refuses_a_size_that_is_none(size: int) -> None:
    """It is refused like by the other walks; the batch is not written to."""
    batch, walk = ffi.new("ls_batch *", {"pos": 7}), ffi.new("ls_walk *")
    status = lib.ls_seek_batch(b"", size, native.CHECK_ALL, 0, batch, walk)
    assert (status, walk.error.status) == (lib.LS_E_ARGUMENT, lib.LS_E_ARGUMENT)
    assert (batch.pos, walk.stop) == (7, 0)
    found = native.seek_batch(b"", size, last_offset=-1, offset=0)
    assert (found.headers, found.error.status) == ([], lib.LS_E_ARGUMENT)
