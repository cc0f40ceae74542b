"""Assignors: distribute the partitions of a group over its members.

An assignor is asked once for each generation, by the member that begins it, and its
answer is written into the group's file: so all members act on the same one. It must be
a function of its arguments, and all members of a group must use one of the same name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from logstore.errors import ConfigError
from logstore.io.layout import TopicPartition

__all__ = [
    "Assignor",
    "CooperativeStickyAssignor",
    "GroupSubscription",
    "RangeAssignor",
    "RoundRobinAssignor",
    "assignor_of",
    "checked_assignment",
]


class GroupSubscription(NamedTuple):
    """A member of a group, as an assignor sees it.

    Attributes:
        member: its id.
        topics: that it may get partitions of.
        previous: the partitions that it was assigned before, and may still hold.
        instance: the name of a static member, which it keeps when it joins again; None
            for another.
    """

    member: str
    topics: frozenset[str]
    previous: tuple[TopicPartition, ...] = ()
    instance: str | None = None

    @property
    def order(self) -> tuple[str, str]:
        """Sorts members: the same order for all, and for a static member the same as
        before."""
        return self.instance or self.member, self.member


class Assignor(Protocol):
    """Distributes the partitions of a group's topics.

    Attributes:
        name: all members of a group must have an assignor of one name.
    """

    name: str

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """The partitions of each member, by its id.

        Args:
            members: in the order of `GroupSubscription.order`; at least one.
            partitions: the numbers of the partitions of each topic, in order.

        A partition goes to one member, or to none; a member gets partitions of the
        topics that it asked for only.
        """


def _all(partitions: Mapping[str, Sequence[int]]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, number)
        for topic in sorted(partitions)
        for number in partitions[topic]
    ]


class RangeAssignor:
    """Gives every member a range of consecutive partitions of each topic, the first
    ones one more. Topics with as many partitions are distributed alike."""

    name = "range"

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {one.member: [] for one in members}
        for topic in sorted(partitions):
            takers = [one.member for one in members if topic in one.topics]
            if not takers:
                continue
            numbers = list(partitions[topic])
            each, more = divmod(len(numbers), len(takers))
            at = 0
            for index, taker in enumerate(takers):
                end = at + each + (index < more)
                found[taker] += [TopicPartition(topic, n) for n in numbers[at:end]]
                at = end
        return found


class RoundRobinAssignor:
    """The members get one partition after the other, in turn."""

    name = "roundrobin"

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        found: dict[str, list[TopicPartition]] = {one.member: [] for one in members}
        turn = 0
        for partition in _all(partitions):
            for step in range(len(members)):
                taker = members[(turn + step) % len(members)]
                if partition.topic in taker.topics:
                    found[taker.member].append(partition)
                    turn = (turn + step + 1) % len(members)
                    break
        return found


class CooperativeStickyAssignor:
    """Every member keeps its partitions while the numbers stay balanced: as few
    partitions as possible change hands."""

    name = "cooperative-sticky"

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        everything = _all(partitions)
        takers: dict[str, list[str]] = {
            topic: [one.member for one in members if topic in one.topics]
            for topic in partitions
        }
        free = dict.fromkeys(one for one in everything if takers[one.topic])
        found: dict[str, list[TopicPartition]] = {one.member: [] for one in members}
        for one in members:
            for partition in sorted(one.previous):
                if partition in free and partition.topic in one.topics:
                    del free[partition]
                    found[one.member].append(partition)
        order = {one.member: index for index, one in enumerate(members)}

        def least(topic: str) -> str:
            return min(takers[topic], key=lambda one: (len(found[one]), order[one]))

        for partition in free:
            found[least(partition.topic)].append(partition)

        def one_move() -> bool:
            """Move one partition from the member with the most that can give one to a
            member with at least two fewer."""
            takers_now: dict[str, str] = {}
            for giver in sorted(found, key=lambda id: (-len(found[id]), order[id])):
                for partition in reversed(found[giver]):
                    taker = takers_now.get(partition.topic)
                    if taker is None:
                        taker = takers_now[partition.topic] = least(partition.topic)
                    if len(found[giver]) - len(found[taker]) >= 2:
                        found[giver].remove(partition)
                        found[taker].append(partition)
                        return True
            return False

        while one_move():
            pass  # each one makes the numbers more equal, so this ends
        return {id: sorted(has) for id, has in found.items()}


_ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        CooperativeStickyAssignor(),
        RangeAssignor(),
        RoundRobinAssignor(),
    )
}


def assignor_of(given: str | Assignor) -> Assignor:
    """The assignor of a name, or an assignor that the caller has written.

    Raises:
        ConfigError: no assignor has this name, or it is not an assignor.
    """
    if isinstance(given, str):
        found = _ASSIGNORS.get(given)
        if found is not None:
            return found
    else:
        name = getattr(given, "name", None)
        if isinstance(name, str) and name and callable(getattr(given, "assign", None)):
            return given
    raise ConfigError(
        f"assignor={given!r:.100} is neither one of "
        f"{', '.join(sorted(_ASSIGNORS))} nor an object with a name and a method "
        "`assign`",
        name="assignor",
        value=given,
    )


def checked_assignment(
    assignor: Assignor,
    members: Sequence[GroupSubscription],
    partitions: Mapping[str, Sequence[int]],
) -> dict[str, tuple[TopicPartition, ...]]:
    """The answer of an assignor.

    Raises:
        ConfigError: it gives a partition to two members, one that is not there, one of
            a topic that the member did not ask for, or names a member that is not
            there.
    """
    topics = {one.member: one.topics for one in members}
    left = set(_all(partitions))
    found: dict[str, tuple[TopicPartition, ...]] = dict.fromkeys(topics, ())
    answer = assignor.assign(sorted(members, key=lambda one: one.order), partitions)
    for member, given in answer.items():
        has = tuple(TopicPartition(*one) for one in given)
        for one in has:
            if one not in left or one.topic not in topics.get(member, ()):
                raise ConfigError(
                    f"assignor {assignor.name!r} assigned partition {one} to "
                    f"member {member!r}, which is unknown, did not ask for it, or "
                    "is not the first to get it; the group is unchanged",
                    name="assignor",
                    value=assignor.name,
                )
            left.discard(one)
        if member not in found:
            raise ConfigError(
                f"assignor {assignor.name!r} names member {member!r}, which is "
                "not in the group; the group is unchanged",
                name="assignor",
                value=assignor.name,
            )
        found[member] = has
    return found
