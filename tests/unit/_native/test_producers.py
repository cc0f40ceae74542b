"""The table of producers whose next batches C appends itself."""

from __future__ import annotations

import struct

import pytest

from logstore import _native as native
from logstore._native._ls import ffi, lib
from logstore._native.producers import ProducerTable
from support.producing import sent

NOW, DAY = 1_700_000_000_000, 86_400_000
LAST = 2**31 - 1


def table_of(*producers: tuple[int, int, int]) -> ProducerTable:
    """Make a table of (id, epoch, last sequence)."""
    table = ProducerTable()
    for producer_id, epoch, last in producers:
        table.set(producer_id, epoch, last, NOW)
    return table


def check(table: ProducerTable, data: bytes, now_ms: int = NOW) -> bool:
    return bool(
        lib.ls_check_sequences(table._raw, len(table), data, len(data), now_ms, DAY)
    )


def add(table: ProducerTable, data: bytes, base: int) -> None:
    placed = bytearray(data)
    native.place_batches(native.pointer(placed), len(placed), base, 0, -1)
    lib.ls_add_sequences(table._raw, len(table), bytes(placed), len(placed))


def one(producer: int, epoch: int, sequence: int, count: int = 1) -> bytes:
    return sent(producer, epoch, sequence, count, timestamp_ms=NOW)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (one(7, 2, 5), True),
        (one(7, 2, 5, 3) + one(7, 2, 8), True),
        (one(7, 2, 5, 3) + one(8, 0, 0, 2) + one(-1, -1, -1) + one(7, 2, 8), True),
        (one(7, 2, 4), False),
        (one(7, 2, 6), False),
        (one(7, 1, 5), False),
        (one(7, 3, 0), False),
        (one(7, 2, 5) + one(7, 2, 5), False),
        (one(7, 2, 5) + one(9, 0, 0), False),
        (one(-1, -1, -1), True),
        (b"", True),
    ],
)
def test_next_batches_are_those_that_follow_the_table(
    data: bytes, expected: bool
) -> None:
    """A check changes nothing: a second one gives the same result."""
    table = table_of((7, 2, 4), (8, 0, LAST))
    assert check(table, data) is expected
    assert check(table, data) is expected
    assert not table.has_batches


def test_producer_that_has_expired_is_left_to_the_caller() -> None:
    table = table_of((7, 0, 4))
    assert check(table, one(7, 0, 5), NOW + DAY - 1)
    assert not check(table, one(7, 0, 5), NOW + DAY)


def test_batches_that_were_added_are_handed_over_once() -> None:
    """The last five of each producer, with their offsets, over the largest sequence."""
    table = table_of((7, 0, LAST - 1), (8, 1, 3))
    add(table, one(7, 0, LAST, 3) + one(-1, -1, -1) + one(8, 1, 4), 10)
    assert table.has_batches
    assert [tuple(b) for b in table.batches()] == [
        (7, 0, LAST, 3, NOW, 12),
        (8, 1, 4, 1, NOW, 14),
    ]
    assert check(table, one(7, 0, 2))
    for n in range(2, 9):
        add(table, one(7, 0, n), 20 + n)
    found = [b for b in table.batches() if b.producer_id == 7]
    assert [b.first_sequence for b in found] == [4, 5, 6, 7, 8]
    assert [b.last_offset for b in found] == [24, 25, 26, 27, 28]
    table.taken()
    assert not table.has_batches
    assert list(table.batches()) == []
    assert check(table, one(7, 0, 9))


def test_table_has_room_for_some_producers() -> None:
    """The oldest producer makes room; a removed one is unknown."""
    table = ProducerTable()
    for n in range(len(table) + 1):
        table.set(n, 0, 0, NOW)
    assert not check(table, one(0, 0, 1))
    assert all(check(table, one(n, 0, 1)) for n in range(1, len(table) + 1))
    table.set(5, 0, 6, NOW)
    assert check(table, one(5, 0, 7))
    table.remove(5)
    table.remove(5)
    assert not check(table, one(5, 0, 7))
    table.clear()
    assert not check(table, one(6, 0, 1))


def test_count_that_is_full_is_left_to_the_caller() -> None:
    table = table_of((7, 0, 4))
    table._raw[0].count = LAST
    assert not check(table, one(7, 0, 5))


def test_partial_batches_are_not_read_beyond_their_buffer() -> None:
    """The caller has checked them; a length that leads out ends the walk."""
    data = one(7, 0, 5)
    table = table_of((7, 0, 4))
    for size in range(len(data)):
        lib.ls_check_sequences(table._raw, len(table), data, size, NOW, DAY)
    far = data[:8] + struct.pack(">I", 0xFFFFFFFF) + data[12:]
    assert check(table, far)
    assert table.address == int(ffi.cast("uintptr_t", table._raw))


def test_table_takes_memory_with_its_first_producer() -> None:
    """Most logs have no producer that numbers its records."""
    table = ProducerTable()
    watched: list[tuple[object, ...]] = []

    class Prepared:
        def watch(self, *given: object) -> None:
            watched.append(given)

    table.show_to(Prepared(), DAY)  # type: ignore[arg-type]
    table.clear()
    table.remove(7)
    assert not table.has_batches
    assert (table.address, watched) == (0, [])
    table.set(7, 0, 0, NOW)
    assert watched == [(table, table.address, len(table), DAY)]
    table.set(8, 0, 0, NOW)
    assert len(watched) == 1
    assert check(table, one(7, 0, 1))
