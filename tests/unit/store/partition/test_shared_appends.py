"""Appends to a shared store: requests of the short way and of the usual one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Store, TopicConfig
from logstore.config import StoreConfig
from logstore.io.checkpoint.answers import Answer
from logstore.io.layout import TopicPartition
from logstore.log.write.calls import Append, OutdatedChoiceError
from logstore.record.encoder import pack_rows
from logstore.store.partition.partition import Partition, appends_of
from logstore.store.partition.shared_appends import SharedAppends, begin_append
from support.values import config_of

SERVING = StoreConfig(publish_for_others=True)
TOPICS = {
    "one": config_of(1),
    "two": config_of(2),
    "packed": config_of(2, "lz4"),
    "stamped": TopicConfig(message_format=2, message_timestamp_type="LogAppendTime"),
    "compacted": TopicConfig(message_format=2, cleanup_policy="compact"),
    "zero": config_of(0),
}


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Store]:
    """A shared store with an owner in the same process."""
    with logstore.open(tmp_path, config=SERVING) as owner:
        for name, config in TOPICS.items():
            owner.create_topic(name, 2, config)
        with logstore.open(tmp_path, shared=True) as store:
            yield store


def shared_of(partition: Partition) -> SharedAppends:
    appends = appends_of(partition)
    assert isinstance(appends, SharedAppends)
    return appends


class Noted:
    """Records requests, and answers them."""

    def __init__(self, appends: SharedAppends) -> None:
        self.asked: list[Append] = []
        self._key = TopicPartition(appends.topic, appends.number)
        appends.hand_in.begin = lambda asked, since: self(asked)
        appends.hand_in.ask = lambda asked: self(asked)()
        appends.hand_in.now_ms = lambda: 1_700_000_000_000

    def __call__(self, asked: Append) -> Any:
        self.asked.append(asked)
        offsets = ((self._key, range(7, 7 + sum(log.records for log in asked.logs))),)
        return lambda: Answer(None, 0, offsets, is_new=True)


@pytest.mark.parametrize("name", ["one", "two", "stamped"])
@pytest.mark.parametrize(
    "columns",
    [
        ([b"v"],), ([b"v", None, b""],), ([b"v"] * 2000,), ((b"v", b"w"), (b"k", None)),
        ([b"v", b"w"], None, [5, -1]), ([b"v", b"w"], [None, b"k"], (7, 8)),
    ],
    ids=["one", "null", "many", "keys", "times", "all"],
)  # fmt: skip
def test_short_way_hands_in_what_the_usual_one_does(
    shared: Store, name: str, columns: Any
) -> None:
    """The same bytes of the same records."""
    appends = shared_of(shared.topic(name)[0])
    noted = Noted(appends)
    all_columns = (*columns, None, None)[:3]
    assert appends.short.append_many(*all_columns) == range(7, 7 + len(columns[0]))
    rows = pack_rows(*all_columns, None, magic=appends.magic)
    appends.append_rows([rows], None, False)
    short, usual = noted.asked
    assert short == usual


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("packed", ([b"v"],)), ("compacted", ([b"v"], [b"k"])), ("zero", ([b"v"],)),
        ("two", ([],)), ("two", (["text"],)), ("two", ([b"v"], [5])),
        ("two", ([bytes(300_000)],)), ("two", ([b"v"], None, ["now"])),
        ("two", (iter([b"v"]),)),
    ],
)  # fmt: skip
def test_all_else_goes_the_usual_way(shared: Store, name: str, columns: Any) -> None:
    """The short way makes no request."""
    appends = shared_of(shared.topic(name)[0])
    noted = Noted(appends)
    assert appends.short.append_many(*(*columns, None, None)[:3]) is None
    assert noted.asked == []


def test_one_record_is_appended_by_either_way(shared: Store) -> None:
    """The short way accepts mutable bytes and headers."""
    partition = shared.topic("two")[1]
    assert partition.append(b"0") == 0
    assert partition.append(bytearray(b"1"), timestamp_ms=5) == 1
    assert partition.append(b"2", b"k", headers=[("h", b"x")]) == 2
    assert partition.append(None, b"k", timestamp_ms=6, durable=True) == 3
    assert partition.append_many((b"4", memoryview(b"5"))) == range(4, 6)
    assert partition.append_many([b"6"], [b"k"], [8]) == range(6, 7)
    found = [(r.value, r.key, r.timestamp_ms) for r in partition.read()]
    assert [value for value, _, _ in found] == [
        b"0", b"1", b"2", None, b"4", b"5", b"6",
    ]  # fmt: skip
    assert [found[n][1] for n in (0, 2, 3, 6)] == [None, b"k", b"k", b"k"]
    assert [found[n][2] for n in (1, 3, 6)] == [5, 6, 8]
    with pytest.raises(TypeError):
        partition.append("text")  # type: ignore[arg-type]
    with pytest.raises(logstore.errors.UnsupportedError):
        shared.topic("zero")[0].append(b"v")
    with pytest.raises(logstore.errors.InvalidRecordError):
        shared.topic("compacted")[0].append(b"v")
    assert shared.topic("packed")[0].append_many([b"v"] * 9) == range(9)


def test_owner_gives_its_time_to_records_of_the_short_way(shared: Store) -> None:
    partition = shared.topic("stamped")[0]
    assert partition.append(b"v", timestamp_ms=5) == 0
    assert next(partition.read()).timestamp_ms > 5


def test_closed_store_hands_in_nothing_by_the_short_way(shared: Store) -> None:
    partition = shared.topic("two")[0]
    noted = Noted(shared_of(partition))
    shared.close()
    for append in (partition.append, lambda value: partition.append_many([value])):
        with pytest.raises(logstore.errors.StoreClosedError):
            append(b"v")
    assert noted.asked == []


def test_topic_says_for_how_many_partitions_it_has_chosen(shared: Store) -> None:
    """This includes one partition that gets all records; but not a choice of the
    caller."""
    topic = shared.topic("two")
    noted = Noted(shared_of(topic[0]))
    topic.append(b"v", b"k")
    topic.append_many([b"v"] * 3)
    topic.append(b"v", partition=0)
    topic.append_many([b"v"], headers=[[("h", b"x")]], partition=0)
    chosen = [asked.partitions for asked in noted.asked]
    assert chosen == [{"two": 2}, {"two": 2}, {}, {}]


def test_outdated_choice_is_raised_by_the_short_way(shared: Store) -> None:
    appends = shared_of(shared.topic("two")[0])
    with pytest.raises(OutdatedChoiceError):
        appends.short.append_many([b"v"], None, None, {"two": 3})
    assert appends.short.append_many([b"v"], None, None, {"two": 2}) == range(1)


def test_records_that_cannot_be_encoded_leave_the_encoder_as_it_was(
    shared: Store,
) -> None:
    """The next call makes another one."""
    appends = shared_of(shared.topic("two")[0])
    rows = pack_rows([bytes(2_000_000)], None, None, None, magic=2)
    with pytest.raises(logstore.errors.RecordTooLargeError):
        appends.append_rows([rows], None, False)
    rows = pack_rows([b"v"], None, None, None, magic=2)
    for number in range(3):
        assert appends.append_rows([rows], None, False) == range(number, number + 1)
    assert len(appends._encoders) == 1


def test_records_of_several_partitions_are_one_request(shared: Store) -> None:
    """Their batches follow each other; partitions without records have none."""
    topic = shared.topic("two")
    mine = [shared_of(topic[number]) for number in (0, 1)]
    noted = Noted(mine[0])

    def rows(*values: bytes) -> list[Any]:
        return [pack_rows(values, None, None, None, magic=2)]

    def begun(parts: Mapping[int, list[Any]]) -> Any:
        of_parts = {number: (mine[number], part) for number, part in parts.items()}
        return begin_append(of_parts, {}, None, time.monotonic())

    begun({0: rows(b"a"), 1: rows(b"b", b"c")})
    begun({0: rows(), 1: rows(b"b")})
    assert begun({0: rows()})() == ()
    both, second = noted.asked
    assert [(log.partition, log.records) for log in both.logs] == [(0, 1), (1, 2)]
    (first, size), (pos, rest) = both.logs[0].runs[0], both.logs[1].runs[0]
    assert (first, pos, size + rest) == (0, size, len(both.data))
    assert [log.partition for log in second.logs] == [1]
