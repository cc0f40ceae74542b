"""What the members of a group ask for, whatever the group's file has."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import logstore
from logstore.group.file.state import Member
from logstore.group.member.generations import Subscription, universe
from support.groups import consumer, store_with

TOPICS = {name: (name * 8, (0, 1)) for name in ("a", "b", "c")}


def test_topics_are_those_that_some_member_asks_for() -> None:
    """By name or by pattern, as far as they exist."""
    members = [Member("m", 0, topics=("a", "x")), Member("n", 1, pattern="[cd]")]
    assert list(universe("g", TOPICS, members)) == ["a", "c"]
    assert Subscription(("a",), "b").of(TOPICS) == {"a", "b"}


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "a{99999999999}", "(" * 50_000])
def test_pattern_that_cannot_be_compiled_names_its_member(pattern: str) -> None:
    """A later Python may know it."""
    members = [Member("m", 0, topics=("a",)), Member("n-1", 1, pattern=pattern)]
    with pytest.raises(logstore.GroupError, match=r"member 'n-1' of group 'g'.*com"):
        universe("g", TOPICS, members)


def test_members_go_on_when_the_one_with_the_pattern_has_ended(tmp_path: Path) -> None:
    """Until then each call is an error, and changes nothing."""
    path = store_with(tmp_path / "s")
    one, two = consumer(path, topics=(), pattern="t"), consumer(path)
    one.poll()
    member = one._core.member

    def write() -> None:
        member.file.refresh_held(member.slots)
        state = member.file.state
        members = (dataclasses.replace(state.members[0], pattern="("),)
        new = dataclasses.replace(state, members=members)
        member.file.append(member.slots, state=new)

    member.slots.locked(write, 5)
    file = path / ".logstore-group-g"
    data = file.read_bytes()
    for _ in range(2):
        with pytest.raises(logstore.GroupError, match="cannot compile") as caught:
            two.poll()
        assert caught.value.group == "g"
    assert file.read_bytes() == data
    one.close()
    two.poll()
    assert len(two.assignment()) == 2
    two.close()
