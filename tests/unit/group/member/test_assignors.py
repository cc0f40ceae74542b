"""Assignors: every partition once, the numbers balanced, as few moves as possible."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence

import pytest

import logstore
from logstore.group.member.assignors import (
    Assignor,
    GroupSubscription,
    assignor_of,
    checked_assignment,
)
from logstore.io.layout import TopicPartition

NAMES = ["cooperative-sticky", "range", "roundrobin"]


def members(count: int, topics: Iterable[str] = ("t",)) -> list[GroupSubscription]:
    return [GroupSubscription(f"m{n}", frozenset(topics)) for n in range(count)]


def numbers(
    name: str, who: Sequence[GroupSubscription], partitions: Mapping[str, Sequence[int]]
) -> dict[str, list[str]]:
    found = checked_assignment(assignor_of(name), who, partitions)
    return {member: [str(one) for one in has] for member, has in found.items()}


def test_range_gives_consecutive_partitions_of_each_topic() -> None:
    """The first members get one more."""
    found = numbers("range", members(2, ["a", "b"]), {"a": range(3), "b": range(3)})
    assert found == {"m0": ["a-0", "a-1", "b-0", "b-1"], "m1": ["a-2", "b-2"]}


def test_roundrobin_gives_in_turn_over_all_topics() -> None:
    """Members that did not subscribe to a topic are left out."""
    who = [*members(2, ["a", "b"]), GroupSubscription("m2", frozenset("b"))]  # not "a"
    found = numbers("roundrobin", who, {"a": range(3), "b": range(3)})
    assert found == {"m0": ["a-0", "a-2", "b-2"], "m1": ["a-1", "b-0"], "m2": ["b-1"]}


def test_sticky_moves_only_what_must_move() -> None:
    """A third member gets two of six; the others keep two each."""
    first = checked_assignment(
        assignor_of("cooperative-sticky"), members(2), {"t": range(6)}
    )
    who = [one._replace(previous=first.get(one.member, ())) for one in members(3)]
    then = checked_assignment(assignor_of("cooperative-sticky"), who, {"t": range(6)})
    assert {len(has) for has in then.values()} == {2}
    assert set(then["m0"]) < set(first["m0"])
    assert set(then["m1"]) < set(first["m1"])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(30))
def test_every_partition_has_one_taker(name: str, seed: int) -> None:
    """Each partition with a subscriber is assigned; the order of the members does not
    matter."""
    rng = random.Random(seed)
    topics = {t: range(rng.randrange(1, 9)) for t in "abc"}
    who = [
        GroupSubscription(
            f"m{n}",
            frozenset(rng.sample("abc", rng.randrange(4))),
            tuple(
                TopicPartition(rng.choice("abcd"), rng.randrange(9)) for _ in range(3)
            ),
        )
        for n in range(rng.randrange(1, 6))
    ]
    found = checked_assignment(assignor_of(name), who, topics)
    given = [one for has in found.values() for one in has]
    wanted = set().union(*(one.topics for one in who))
    everything = {TopicPartition(t, n) for t in wanted for n in topics[t]}
    assert (len(given), set(given)) == (len(everything), everything)
    shuffled = rng.sample(who, len(who))
    assert checked_assignment(assignor_of(name), shuffled, topics) == found


@pytest.mark.parametrize("seed", range(20))
def test_sticky_is_balanced_over_a_history(seed: int) -> None:
    """This holds for members with the same topics; a member that stays keeps as many
    partitions as possible."""
    rng = random.Random(seed)
    topics = {"a": range(7), "b": range(5)}
    before: dict[str, tuple[TopicPartition, ...]] = {}
    for _ in range(8):
        who = [
            GroupSubscription(f"m{n}", frozenset("ab"), before.get(f"m{n}", ()))
            for n in rng.sample(range(8), rng.randrange(1, 8))
        ]
        found = checked_assignment(assignor_of("cooperative-sticky"), who, topics)
        sizes = [len(has) for has in found.values()]
        assert max(sizes) - min(sizes) <= 1
        for one in who:
            lost = set(one.previous) - set(found[one.member])
            assert not lost or len(one.previous) - len(lost) >= min(sizes)
        before = found


@pytest.mark.parametrize("name", NAMES)
def test_more_members_than_partitions_leave_some_without(name: str) -> None:
    """They stay members."""
    found = numbers(name, members(3), {"t": range(2)})
    assert sorted(map(len, found.values())) == [0, 1, 1]
    assert numbers(name, members(2), {}) == {"m0": [], "m1": []}


def test_static_members_keep_their_order() -> None:
    """The order does not depend on their ids."""
    who = [
        GroupSubscription("z", frozenset("t"), (), "first"),
        GroupSubscription("a", frozenset("t"), (), "second"),
    ]
    assert numbers("range", who, {"t": range(2)}) == {"z": ["t-0"], "a": ["t-1"]}


class Own:
    name = "own"

    def __init__(self, answer: Mapping[str, Iterable[tuple[str, int]]]) -> None:
        self.answer = answer

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        return {k: [TopicPartition(*one) for one in v] for k, v in self.answer.items()}


def test_own_assignor_may_leave_partitions_out() -> None:
    """It may leave members out, too."""
    own: Assignor = Own({"m1": [("t", 0)]})
    found = checked_assignment(assignor_of(own), members(2), {"t": range(3)})
    assert found == {"m0": (), "m1": (TopicPartition("t", 0),)}


@pytest.mark.parametrize(
    "answer",
    [
        {"m0": [("t", 0)], "m1": [("t", 0)]},
        {"m0": [("t", 9)]},
        {"m0": [("u", 0)]},
        {"m9": [("t", 0)]},
        {"m9": []},
    ],
)
def test_wrong_answer_is_refused(
    answer: Mapping[str, Iterable[tuple[str, int]]],
) -> None:
    """A partition twice, one that does not exist or is not subscribed, an unknown
    member."""
    with pytest.raises(logstore.ConfigError, match="is unchanged"):
        checked_assignment(Own(answer), members(2), {"t": range(3), "u": range(1)})


@pytest.mark.parametrize("given", ["sticky", None, 5, object()])
def test_unknown_assignor_is_refused(given: str) -> None:
    """The error has the names that there are."""
    with pytest.raises(logstore.ConfigError, match="cooperative-sticky, range"):
        assignor_of(given)
