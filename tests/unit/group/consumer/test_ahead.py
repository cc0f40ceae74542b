"""Records that a consumer has read and has not delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from logstore.errors import StorageError
from logstore.group.consumer.ahead import Ahead


class Reader:
    """Stands for a partition with some records."""

    def __init__(self, key: str, count: int) -> None:
        self.key = key
        self.position = 0
        self.is_paused = False
        self.left = [f"{key}{number}" for number in range(count)]
        self.read: list[str] = []

    @property
    def ahead(self) -> int:
        return len(self.read)

    def read_ahead(self, limit: int) -> bool:
        self.read, self.left = self.left[:limit], self.left[limit:]
        return bool(self.read)

    def next_ahead(self) -> str | None:
        return self.read.pop(0) if self.read else None

    def take_ahead(self, limit: int) -> list[str]:
        found, self.read = self.read[:limit], self.read[limit:]
        self.position += len(found)
        return found


def filled(readers: Sequence[Reader], limit: int, broken: str = "") -> Ahead:
    def read(reader: Reader, most: int) -> bool:
        if reader.key == broken:
            raise StorageError("broken", path="/a", action="read")
        return reader.read_ahead(most)

    ahead = Ahead()
    has_any = ahead.fill(cast(Any, readers), cast(Any, read), limit)
    assert has_any is bool(ahead)
    return ahead


def readers(*counts: int) -> list[Reader]:
    return [Reader(key, count) for key, count in zip("abc", counts, strict=False)]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(1, [1, 0, 0]), (3, [3, 0, 0]), (4, [3, 1, 0]), (5, [3, 2, 0]), (9, [3, 2, 4])],
)
def test_limit_is_that_of_all_partitions_together(
    limit: int, expected: list[int]
) -> None:
    found = readers(3, 2, 5)
    filled(found, limit)
    assert [one.ahead for one in found] == expected


def test_records_are_delivered_partition_by_partition() -> None:
    """A paused one keeps its records."""
    found = readers(2, 0, 2)
    ahead = filled(found, 10)
    delivered = [ahead.next()]
    found[0].is_paused = True
    delivered += [ahead.next(), ahead.next(), ahead.next()]
    assert delivered == ["a0", "c0", "c1", None]
    found[0].is_paused = False
    assert [ahead.next(), ahead.next()] == ["a1", None]
    assert not ahead


def test_many_are_delivered_up_to_a_limit_with_the_positions_before() -> None:
    found = readers(3, 3, 3)
    ahead = filled(found, 10)
    found[1].is_paused = True
    before: list[Any] = []
    records = ahead.many(4, cast(Any, before))
    assert records == {"a": ["a0", "a1", "a2"], "c": ["c0"]}
    assert before == [(found[0], 0), (found[2], 0)]
    assert ahead.many(9, cast(Any, before)) == {"c": ["c1", "c2"]}
    assert before[2:] == [(found[2], 1)]


def test_error_of_a_partition_waits_for_the_records_before_it() -> None:
    """The next call raises it again."""
    found = readers(2, 2, 2)
    ahead = filled(found, 10, broken="b")
    assert [ahead.next() for _ in range(3)] == ["a0", "a1", None]
    with pytest.raises(StorageError):
        filled(found, 10, broken="a")
