"""Rows of a record batch by partition."""

from __future__ import annotations

import pytest

from logstore import _native as native
from support.arrow import pa

routing = pytest.importorskip("logstore.record.arrow_routing")


def rows(batch: object, hashed_to: tuple[int, ...] | None) -> dict[int, list[object]]:
    """The values by partition; rows that the partitioner placed are in 7."""
    split = routing.split(batch, lambda key, size: 7, hashed_to, int)
    return {number: part.column("value").to_pylist() for number, part in split.items()}


def test_row_without_a_key_is_for_the_partitioner() -> None:
    """Kafka's hash does not define its partition. An explicit number overrides both."""
    keys = [b"a", None, b"b", None]
    batch = pa.record_batch(
        {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array([b"0", b"1", b"2", b"3"], pa.binary()),
            "partition": pa.array([None, None, None, 5], pa.int32()),
        }
    )
    expected: dict[int, list[object]] = {7: [b"1"], 5: [b"3"]}
    for key, value in ((b"a", b"0"), (b"b", b"2")):
        number = (native.murmur2(key) & 0x7FFFFFFF) % 3
        expected.setdefault(10 + number, []).append(value)
    assert rows(batch, (10, 11, 12)) == expected


def test_partitioner_is_asked_with_key_and_size_of_both() -> None:
    asked = []

    def choose(key: bytes | None, size: int) -> int:
        asked.append((key, size))
        return 0

    batch = pa.record_batch(
        {
            "key": pa.array([b"abc", None], pa.binary()),
            "value": pa.array([None, b"12"], pa.binary()),
        }
    )
    split = routing.split(batch, choose, None, int)
    assert asked == [(b"abc", 3), (None, 2)]
    assert split == {0: batch}
