"""Filters as ranges of offsets."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from logstore import CorruptRecordError, TopicPartition
from pyspark_logstore.jvm.conditions import Condition, narrowed

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
START = {A0: 0, A1: 10, B0: 5}
END = {A0: 20, A1: 30, B0: 5}


def no_time(name: TopicPartition, millis: int) -> int | None:
    raise AssertionError("no time was asked for")


def spans(*conditions: Condition, find: Any = no_time) -> dict[TopicPartition, Any]:
    start, end = narrowed(conditions, START, END, find)
    assert start.keys() == end.keys()
    return {name: (start[name], end[name]) for name in start}


def test_nothing_is_left_of_an_empty_range() -> None:
    assert spans() == {A0: (0, 20), A1: (10, 30)}


def test_topics_and_partitions_are_selected() -> None:
    assert spans(Condition("topic", "=", ("b",))) == {}
    assert spans(Condition("topic", "<", ("b",))).keys() == {A0, A1}
    assert spans(Condition("partition", "in", (1, 7))).keys() == {A1}
    assert spans(Condition("partition", "not null", ())).keys() == {A0, A1}


def test_offsets_are_those_that_satisfy_all_conditions() -> None:
    """Every comparison, alone and with another one, against one by one."""
    operations = ["=", "<", "<=", ">", ">="]
    values = [-1, 0, 7, 12, 19, 20, 31]
    single = [Condition("offset", o, (v,)) for o in operations for v in values]
    rng = random.Random(3)
    for pair in [(c,) for c in single] + rng.sample(
        list(itertools.product(single, single)), 400
    ):
        found = spans(*pair)
        for name in (A0, A1):
            low, high = found.get(name, (0, 0))
            expected = [
                offset
                for offset in range(START[name], END[name])
                if all(condition.holds(offset) for condition in pair)
            ]
            assert list(range(low, high)) == expected


def test_times_only_leave_out_the_head() -> None:
    """In microseconds, rounded up; a later time may come before an earlier one."""
    asked = []

    def find(name: TopicPartition, millis: int) -> int | None:
        asked.append(millis)
        return {A0: 4, A1: None}[name]

    assert spans(Condition("timestamp", ">=", (5001,)), find=find) == {A0: (4, 20)}
    assert spans(Condition("timestamp", ">", (5000,)), find=find) == {A0: (4, 20)}
    assert set(asked) == {6}
    assert spans(Condition("timestamp", "<", (5000,))) == {A0: (0, 20), A1: (10, 30)}


def test_damage_that_a_look_for_a_time_meets_is_left_to_the_reader() -> None:
    def find(name: TopicPartition, millis: int) -> int | None:
        raise CorruptRecordError("damaged", path="x", position=0, offset=0)

    whole = {A0: (0, 20), A1: (10, 30)}
    assert spans(Condition("timestamp", ">=", (5000,)), find=find) == whole
