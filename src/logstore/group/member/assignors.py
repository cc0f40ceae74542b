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
        assignment: dict[str, list[TopicPartition]] = {
            member.member: [] for member in members
        }
        for topic in sorted(partitions):
            takers = [member.member for member in members if topic in member.topics]
            if not takers:
                continue
            numbers = list(partitions[topic])
            each, more = divmod(len(numbers), len(takers))
            begin = 0
            for index, taker in enumerate(takers):
                end = begin + each + (index < more)
                assignment[taker] += [
                    TopicPartition(topic, n) for n in numbers[begin:end]
                ]
                begin = end
        return assignment


class RoundRobinAssignor:
    """The members get one partition after the other, in turn."""

    name = "roundrobin"

    def assign(
        self,
        members: Sequence[GroupSubscription],
        partitions: Mapping[str, Sequence[int]],
    ) -> Mapping[str, Iterable[TopicPartition]]:
        assignment: dict[str, list[TopicPartition]] = {
            member.member: [] for member in members
        }
        turn = 0
        for partition in _all(partitions):
            for step in range(len(members)):
                taker = members[(turn + step) % len(members)]
                if partition.topic in taker.topics:
                    assignment[taker.member].append(partition)
                    turn = (turn + step + 1) % len(members)
                    break
        return assignment


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
            topic: [member.member for member in members if topic in member.topics]
            for topic in partitions
        }
        free = dict.fromkeys(
            candidate for candidate in everything if takers[candidate.topic]
        )
        assignment: dict[str, list[TopicPartition]] = {
            member.member: [] for member in members
        }
        for subscriber in members:
            for partition in sorted(subscriber.previous):
                if partition in free and partition.topic in subscriber.topics:
                    del free[partition]
                    assignment[subscriber.member].append(partition)
        order = {member.member: index for index, member in enumerate(members)}

        def least(topic: str) -> str:
            return min(
                takers[topic],
                key=lambda member_id: (len(assignment[member_id]), order[member_id]),
            )

        for partition in free:
            assignment[least(partition.topic)].append(partition)

        def one_move() -> bool:
            """Move one partition from the member with the most that can give one to a
            member with at least two fewer."""
            takers_now: dict[str, str] = {}
            for giver in sorted(
                assignment, key=lambda id: (-len(assignment[id]), order[id])
            ):
                for partition in reversed(assignment[giver]):
                    taker = takers_now.get(partition.topic)
                    if taker is None:
                        taker = takers_now[partition.topic] = least(partition.topic)
                    if len(assignment[giver]) - len(assignment[taker]) >= 2:
                        assignment[giver].remove(partition)
                        assignment[taker].append(partition)
                        return True
            return False

        while one_move():
            pass  # each one makes the numbers more equal, so this ends
        return {id: sorted(has) for id, has in assignment.items()}


_ASSIGNORS: Final[dict[str, Assignor]] = {
    assignor.name: assignor
    for assignor in (
        CooperativeStickyAssignor(),
        RangeAssignor(),
        RoundRobinAssignor(),
    )
}


def assignor_of(assignor: str | Assignor) -> Assignor:
    """The assignor of a name, or an assignor that the caller has written.

    Raises:
        ConfigError: no assignor has this name, or it is not an assignor.
    """
    if isinstance(assignor, str):
        named_assignor = _ASSIGNORS.get(assignor)
        if named_assignor is not None:
            return named_assignor
    else:
        name = getattr(assignor, "name", None)
        if (
            isinstance(name, str)
            and name
            and callable(getattr(assignor, "assign", None))
        ):
            return assignor
    raise ConfigError(
        f"assignor={assignor!r:.100} is neither one of "
        f"{', '.join(sorted(_ASSIGNORS))} nor an object with a name and a method "
        "`assign`",
        name="assignor",
        value=assignor,
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
    topics = {subscription.member: subscription.topics for subscription in members}
    left = set(_all(partitions))
    assignment: dict[str, tuple[TopicPartition, ...]] = dict.fromkeys(topics, ())
    answer = assignor.assign(
        sorted(members, key=lambda subscription: subscription.order), partitions
    )
    for member, assigned_keys in answer.items():
        has = tuple(TopicPartition(*key) for key in assigned_keys)
        for partition in has:
            if partition not in left or partition.topic not in topics.get(member, ()):
                raise ConfigError(
                    f"assignor {assignor.name!r} assigned partition {partition} to "
                    f"member {member!r}, which is unknown, did not ask for it, or "
                    "is not the first to get it; the group is unchanged",
                    name="assignor",
                    value=assignor.name,
                )
            left.discard(partition)
        if member not in assignment:
            raise ConfigError(
                f"assignor {assignor.name!r} names member {member!r}, which is "
                "not in the group; the group is unchanged",
                name="assignor",
                value=assignor.name,
            )
        assignment[member] = has
    return assignment
