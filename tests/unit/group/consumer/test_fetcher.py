"""Partitions are read in turn, and none hides the error of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.errors import (
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    StorageError,
    TopicNotFoundError,
)
from logstore.group.consumer.fetcher import Fetcher


class Reader:
    """Stands for a partition: raises `fault`, or has records without an end."""

    def __init__(self, key: str, fault: LogStoreError | None = None) -> None:
        self.key = key
        self.fault = fault
        self.position = 0
        self.is_paused = self.is_disproved = False
        self.has_delivered = True
        self.error: LogStoreError | None = None
        self.log = SimpleNamespace(has_begun=True, has_seen=lambda: True)

    def take(self, limit: int) -> list[str]:
        if self.fault is not None:
            raise self.fault
        self.position += limit
        return [self.key] * limit


class Positions:
    """Stands for the positions of a consumer: one is always found."""

    def __init__(self) -> None:
        self.has_topic = lambda reader: True

    def go_on(self, reader: Reader, error: LogStoreError) -> None:
        reader.fault = None


def made(*readers: Reader, **options: Any) -> tuple[Fetcher, Any, Any]:
    options = {"reset": "earliest", **options}
    place = SimpleNamespace(
        positions=Positions(),
        wanted=None,
        check_at=9.0,
        options=SimpleNamespace(**options),
    )
    partitions = SimpleNamespace(
        readers={reader.key: reader for reader in readers}, given_up=set()
    )
    return Fetcher(cast(Any, place), cast(Any, partitions)), place, partitions


def keys_of(fetcher: Fetcher, limit: int) -> list[Any]:
    return list(fetcher.collect(limit, []))


def test_each_call_begins_with_another_partition() -> None:
    fetcher, _, partitions = made(*map(Reader, "abc"))
    assert {*(keys_of(fetcher, 1)[0] for _ in range(3))} == {*"abc"}
    partitions.readers["b"].is_paused = True
    assert {*(keys_of(fetcher, 1)[0] for _ in range(3))} == {*"ac"}


def test_error_of_a_partition_comes_after_the_records_of_others() -> None:
    """The former positions are only of the partitions that were read."""
    broken = StorageError("broken", path="/a", action="read")
    a, b = Reader("a"), Reader("b", broken)
    a.take = lambda limit: ["a"]  # type: ignore[method-assign]
    fetcher, _, _ = made(a, b)
    outcomes = []
    for _ in range(2):
        before: list[Any] = [1]
        try:
            outcomes.append(list(fetcher.collect(9, before)))
            assert before == [(a, 0), (b, 0)]
        except StorageError:
            outcomes.append(["broken"])
            assert before == [(b, 0)]
    assert sorted(outcomes) == [["a"], ["broken"]]


def test_damage_is_raised_until_a_seek() -> None:
    """It is not read again."""
    damage = CorruptRecordError("damaged", path="/a", position=0, offset=0)
    reader = Reader("a", damage)
    fetcher, _, _ = made(reader)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            fetcher.collect(1, [])
        reader.fault = None
    reader.error = None
    assert keys_of(fetcher, 1) == ["a"]


@pytest.mark.parametrize("cut_to", [5, None])
def test_position_that_is_not_in_the_log_is_replaced(cut_to: int | None) -> None:
    """Records delivered after a cut must not be published; a later start of the log
    revokes none of them."""
    gone = OffsetOutOfRangeError(9, 0, 7, partition="a", cut_to=cut_to)
    reader = Reader("a", gone)
    fetcher, _, partitions = made(reader)
    assert keys_of(fetcher, 1) == ["a"]
    assert reader.is_disproved
    assert partitions.given_up == ({"a"} if cut_to is not None else set())
    reader.fault = gone
    fetcher, place, _ = made(reader)
    place.options.reset = "error"
    for _ in range(2):
        with pytest.raises(OffsetOutOfRangeError):
            fetcher.collect(1, [])


def test_partition_of_a_topic_that_is_gone_gives_nothing() -> None:
    """If it is subscribed, the next check of the group drops it; else it is an
    error."""
    reader = Reader("a", TopicNotFoundError("gone", topic="t"))
    fetcher, place, _ = made(reader)
    place.positions.has_topic = lambda reader: False
    place.wanted = object()
    assert keys_of(fetcher, 1) == []
    assert place.check_at == 0
    place.wanted = None
    with pytest.raises(TopicNotFoundError):
        fetcher.collect(1, [])
