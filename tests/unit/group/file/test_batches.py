"""The batches of a group's file: most differ from the previous one in numbers only."""

from __future__ import annotations

import pytest

from logstore import _native as native
from logstore.broker.kafka_records import OffsetCommit
from logstore.group.file import batches as batches_module
from logstore.group.file.batches import Batches, Item
from logstore.io.layout import TopicPartition
from support.damage import FixedClock

NOW_MS = 1_700_000_000_000
KEY = b"key"


def made(batches: Batches, value: bytes | None, offset: int) -> bytes:
    data = batches.batch([(KEY, value, None)], offset)
    scan = native.first_header(native.pointer(data), len(data), checks=native.CHECK_ALL)
    assert scan.error is None
    assert scan.headers[0].base_offset == offset
    return data


@pytest.mark.parametrize("lengths", [(4, 4, 4), (4, 7, 4), (0, 1, 0), (300, 2, 300)])
def test_batch_is_the_same_whatever_was_written_before(
    lengths: tuple[int, ...],
) -> None:
    """The earlier batch has the same key, with a value of the same length or
    another."""
    clock = FixedClock(NOW_MS)
    batches = Batches(clock)
    for number, length in enumerate(lengths):
        clock.now += 1
        value, offset = bytes([number]) * length, 1000 * number
        assert made(batches, value, offset) == made(Batches(clock), value, offset)
        removed = made(batches, None, offset + 1)
        assert removed == made(Batches(clock), None, offset + 1)


def test_batch_of_an_offset_is_the_same_as_from_its_item() -> None:
    """Earlier commits make no difference, with a proof or without one."""
    clock = FixedClock(NOW_MS)
    batches, keys = Batches(clock), [TopicPartition("t", number) for number in range(3)]
    for number in range(100):
        clock.now += number % 3
        key, topic_id = keys[number % 3], ("", "ab" * 16)[number // 3 % 2]
        proof = (None, number, 0)[number // 6 % 3]
        offset, base = number << 30, 1000 * number
        data, item = batches.of_offset("g", key, offset, topic_id, proof, base)
        commit = OffsetCommit(
            "g", *key, offset, -1, "", clock.now, None, topic_id or None, proof
        )
        other = Batches(clock)
        assert other.items("g", [commit]) == [item]
        assert other.batch([item], base) == data


def test_only_so_many_batches_of_offsets_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches_module, "_KEYS_MAX", 3)
    batches = Batches(FixedClock(NOW_MS))
    for number in range(10):
        batches.of_offset("g", TopicPartition("t", number), 1, "", None, 0)
        assert len(batches._plain) <= 3


def test_items_are_a_state_then_commits_then_removals() -> None:
    batches = Batches(FixedClock(NOW_MS))
    commit = OffsetCommit("g", "t", 3, 4711)
    items: list[Item] = batches.items("g", [commit], [TopicPartition("t", 3)])
    assert [value is None for _, value, _ in items] == [False, True]
    assert items[0][0] == items[1][0]
    other = batches.items("g", [OffsetCommit("g", "t", 4, 4711)])
    assert other[0][0] != items[0][0]
    assert batches.items("g") == []
