"""Requests of the members of a group, with any group file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

import logstore
from logstore.group.file.state import AssignmentRow, GroupState, Member
from logstore.group.member.assignors import assignor_of
from logstore.group.member.next_generation import (
    GenerationPlanner,
    MemberSubscription,
    alone_rows,
    next_rows,
    universe,
)
from logstore.io.layout import TopicPartition
from support.groups import consumer, store_with

TOPICS = {name: (name * 8, (0, 1)) for name in ("a", "b", "c")}


def test_topics_are_those_that_some_member_asks_for() -> None:
    """Topics are matched by name or by pattern, as far as they exist."""
    members = [Member("m", 0, topics=("a", "x")), Member("n", 1, pattern="[cd]")]
    assert list(universe("g", TOPICS, members)) == ["a", "c"]
    assert MemberSubscription(("a",), "b").of(TOPICS) == {"a", "b"}


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "a{99999999999}", "(" * 50_000])
def test_pattern_that_cannot_be_compiled_names_its_member(pattern: str) -> None:
    """A later Python may accept it."""
    members = [Member("m", 0, topics=("a",)), Member("n-1", 1, pattern=pattern)]
    with pytest.raises(
        logstore.errors.GroupError, match=r"member 'n-1' of group 'g'.*com"
    ):
        universe("g", TOPICS, members)


def test_members_go_on_when_the_one_with_the_pattern_has_ended(tmp_path: Path) -> None:
    """Until then each call is an error, and changes nothing."""
    path = store_with(tmp_path / "s")
    one, two = consumer(path, topics=(), pattern="t"), consumer(path)
    one.poll()
    member = one._core.place.member

    def write() -> None:
        member.group.file.refresh_held(member.group.slots)
        state = member.group.file.state
        members = (dataclasses.replace(state.members[0], pattern="("),)
        new = dataclasses.replace(state, members=members)
        member.group.file.append(member.group.slots, state=new)

    member.group.slots.locked(write, 5)
    file = path / ".logstore-group-g"
    data = file.read_bytes()
    for _ in range(2):
        with pytest.raises(
            logstore.errors.GroupError, match="cannot compile"
        ) as caught:
            two.poll()
        assert caught.value.group == "g"
    assert file.read_bytes() == data
    one.close()
    two.poll()
    assert len(two.assignment()) == 2
    two.close()


class Locks:
    """Stands for the lock file: the rows that are held, and their holders."""

    def __init__(self, **holders: int) -> None:
        self.holders = {int(row[1:]): slot for row, slot in holders.items()}

    def held_rows(self) -> list[int]:
        return list(self.holders)

    def holder(self, row: int) -> int:
        return self.holders[row]

    def members(self) -> list[int]:
        return sorted({*self.holders.values()})

    rows: frozenset[int] = frozenset()

    @property
    def files(self) -> Locks:
        return self

    def now_ms(self) -> int:
        return 7


def rows_of(
    topic_id: str,
    locks: Locks,
    mine: tuple[int, ...] = (),
    fenced: tuple[int, ...] = (),
) -> dict[tuple[str, int], AssignmentRow]:
    """The next table of a topic with two partitions, which had the rows 0 and 1."""
    rows = {TopicPartition("t", n): AssignmentRow(n, "id") for n in range(2)}
    state = GroupState(1, rows=rows)
    topics = {"t": (topic_id, (0, 1))}
    return dict(next_rows(state, topics, cast(Any, locks), mine, fenced))


def test_partition_of_a_topic_that_was_made_again_gets_another_row() -> None:
    """Its holder has the partition of the former topic: it must notice."""
    assert rows_of("id", Locks(r0=5)) == {
        ("t", 0): AssignmentRow(0, "id"),
        ("t", 1): AssignmentRow(1, "id"),
    }
    other = rows_of("new", Locks(r0=5))
    assert other == {
        ("t", 0): AssignmentRow(1, "new"),
        ("t", 1): AssignmentRow(2, "new"),
    }
    assert rows_of("new", Locks(), mine=(1,)) == {
        ("t", 0): AssignmentRow(0, "new"),
        ("t", 1): AssignmentRow(2, "new"),
    }


def test_partition_whose_holder_is_thrown_out_gets_another_row() -> None:
    locks = Locks(r0=5, r1=6)
    found = rows_of("id", locks, fenced=(5,))
    assert found == {("t", 0): AssignmentRow(2, "id"), ("t", 1): AssignmentRow(1, "id")}


def test_row_that_is_held_stays_until_its_topic_is_given_up() -> None:
    rows = {
        TopicPartition("gone", 0): AssignmentRow(0, "a"),
        TopicPartition("gone", 1): AssignmentRow(1, ""),
    }
    state = GroupState(1, rows=rows)
    found = next_rows(state, {"t": ("id", (0,))}, cast(Any, Locks(r1=7)), (), ())
    assert found == {
        ("gone", 1): AssignmentRow(1, ""),
        ("t", 0): AssignmentRow(0, "id"),
    }


def test_generation_begins_if_members_or_topics_differ() -> None:
    """The same members with the same topics are no new generation; without members no
    assignor is asked, and none is named."""
    topics = {"a": ("id-a", (0,))}
    made = GenerationPlanner(
        "g", cast(Any, Locks()), lambda: topics, assignor_of("range")
    )
    me = Member("m", 0, topics=("a",))
    first = made.next(GroupState(), [me])
    assert first is not None
    assert (first.generation, first.assignor, first.since_ms) == (1, "range", 7)
    assert first.members[0].partitions == (("a", 0),)
    assert made.next(first, first.members) is None
    assert not made.has_changed(first)
    topics["a"] = ("another", (0,))
    assert made.has_changed(first)
    second = made.next(first, first.members)
    assert second is not None
    assert second.rows == {("a", 0): AssignmentRow(0, "another")}
    end = made.next(second, ())
    assert end is not None
    assert (end.generation, end.assignor, end.members) == (3, "", ())
    assert (end.rows, end.topics) == ({}, {})


def test_partitions_that_nobody_was_assigned_get_rows_that_are_free() -> None:
    """Rows that are held, or that members are about to take, stay; others are
    dropped."""
    old = {TopicPartition("old", n): AssignmentRow(n, "x") for n in range(3)}
    state = GroupState(1, rows=old, topics={"old": (1,)}, members=(Member("m", 5),))
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    locks = cast(Any, Locks(r2=5))
    found = alone_rows(state, {one: "id", two: "id"}, locks, mine=(3,))
    old_1, old_2 = TopicPartition("old", 1), TopicPartition("old", 2)
    assert found == {
        old_1: AssignmentRow(1, "x"),
        old_2: AssignmentRow(2, "x"),
        one: AssignmentRow(0, "id"),
        two: AssignmentRow(4, "id"),
    }
    state = dataclasses.replace(state, rows=found)
    assert alone_rows(state, {one: "id"}, locks, mine=()) is found
    # No assigned member is alive.
    state = dataclasses.replace(state, members=())
    found = alone_rows(state, {one: "new"}, locks, mine=())
    assert found == {old_2: AssignmentRow(2, "x"), one: AssignmentRow(0, "new")}
