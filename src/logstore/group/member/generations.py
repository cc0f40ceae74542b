"""The next generation of a group: the rows of its partitions, and their members."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from logstore.group.errors import GroupError
from logstore.group.file.slots import ROWS_MAX, LockFile
from logstore.group.file.state import GroupState, Member, Row
from logstore.group.member.assignors import (
    Assignor,
    GroupSubscription,
    checked_assignment,
)
from logstore.io.layout import TopicPartition

__all__ = [
    "Subscription",
    "Topics",
    "assigned",
    "free_rows",
    "next_rows",
    "numbers_of",
    "partitions_of",
    "universe",
    "used_rows",
    "with_rows",
]

# Id and partitions of each topic, by name.
Topics = Mapping[str, tuple[str, tuple[int, ...]]]


class Subscription(NamedTuple):
    """The topics that a member asks for.

    Attributes:
        topics: by name.
        pattern: a regular expression that the names of others match; None: none.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def of(self, names: Iterable[str]) -> frozenset[str]:
        """Those of some names that it asks for.

        Raises:
            re.error, OverflowError, RecursionError: this Python cannot compile the
                pattern; one that a consumer of this process has was checked.
        """
        pattern = None if self.pattern is None else re.compile(self.pattern)
        return frozenset(
            name
            for name in names
            if name in self.topics or (pattern is not None and pattern.match(name))
        )


def universe(group: str, now: Topics, members: Iterable[Member]) -> Topics:
    """Those of the topics that exist that some members ask for.

    Raises:
        GroupError: a member has a pattern that this Python cannot compile, and so there
            is no telling what it is to have: another Python's member would find others.
    """
    wanted: set[str] = set()
    asked = {(one.topics, one.pattern): one.id for one in members}
    for (topics, pattern), member in asked.items():
        try:
            wanted |= Subscription(topics, pattern).of(now)
        except (re.error, OverflowError, RecursionError) as error:
            raise GroupError(
                f"member {member!r:.200} of group {group!r:.100} asks for topics by "
                f"the pattern {pattern!r:.180}, which Python "
                f"{platform.python_version()} cannot compile: {error}. "
                f"Nothing was changed; use one version of Python for all members, or "
                f"end that member",
                group=group,
            ) from error
    return {name: now[name] for name in sorted(wanted)}


def numbers_of(topics: Topics) -> dict[str, tuple[int, ...]]:
    """The numbers of the partitions of each topic."""
    return {name: numbers for name, (_, numbers) in topics.items()}


def partitions_of(topics: Topics) -> list[TopicPartition]:
    """All partitions."""
    return [
        TopicPartition(name, number)
        for name, (_, numbers) in topics.items()
        for number in numbers
    ]


def free_rows(taken: Collection[int]) -> Iterable[int]:
    """The numbers of rows that are not taken, in order."""
    return (number for number in range(ROWS_MAX) if number not in taken)


def used_rows(
    state: GroupState, locks: LockFile, mine: Collection[int]
) -> dict[TopicPartition, Row]:
    """The table without the rows of partitions that are not distributed, and that no
    member holds. A member that takes such a partition gets another row.

    Args:
        mine: as in `next_rows`.
    """
    held, alive = {*locks.held_rows(), *mine}, set(locks.members())
    is_distributed = any(member.slot in alive for member in state.members)
    topics = state.topics if is_distributed else {}
    return {
        one: row
        for one, row in state.rows.items()
        if row.number in held or one.partition in topics.get(one.topic, ())
    }


def with_rows(topics: Topics, rows: Mapping[TopicPartition, Row]) -> Topics:
    """Topics with those of their partitions alone that have a row."""
    found = {
        name: (topic_id, tuple(n for n in numbers if TopicPartition(name, n) in rows))
        for name, (topic_id, numbers) in topics.items()
    }
    return {name: topic for name, topic in found.items() if topic[1]}


def next_rows(
    state: GroupState,
    topics: Topics,
    locks: LockFile,
    mine: Collection[int],
    fenced: Collection[int],
) -> dict[TopicPartition, Row]:
    """The table of the next generation. If there are more partitions than rows, those
    without one are left out, until rows are free.

    A partition keeps its row as long as its topic is the same and its holder, if there
    is one, is not thrown out. A row that no partition of `topics` has is forgotten when
    it is free: as long as it is held, the one that holds it must find out.

    Args:
        mine: rows that this member holds.
        fenced: slots of members that are thrown out.
    """
    locked = set(locks.held_rows())
    rows: dict[TopicPartition, Row] = {}
    missing = []
    for one in partitions_of(topics):
        row = state.rows.get(one)
        topic_id = topics[one.topic][0]
        is_fenced = (
            row is not None
            and bool(fenced)
            and row.number in locked
            and locks.holder(row.number) in fenced
        )
        if row is not None and row.topic_id == topic_id and not is_fenced:
            rows[one] = row
        else:
            missing.append((one, topic_id))
    for one, row in state.rows.items():
        is_held = row.number in locked or row.number in mine
        if is_held and one.topic not in topics:
            rows[one] = row
    free = iter(free_rows({row.number for row in rows.values()} | locked | {*mine}))
    for (one, topic_id), number in zip(missing, free, strict=False):
        rows[one] = Row(number, topic_id)
    return rows


def assigned(
    members: Sequence[Member],
    topics: Topics,
    rows: Mapping[TopicPartition, Row],
    locks: LockFile,
    assignor: Assignor,
) -> tuple[Member, ...]:
    """The members with what each is to have. One that is idle keeps what it holds, and
    gets no more, unless all are.

    Raises:
        ConfigError: the assignor's answer is wrong.
    """
    if not members:
        return ()
    locked = set(locks.held_rows())
    is_left = not all(one.is_idle for one in members)
    kept: dict[str, tuple[TopicPartition, ...]] = {}
    for one in members:
        if one.is_idle and is_left:
            kept[one.id] = tuple(
                partition
                for partition in one.partitions
                if partition in rows and rows[partition].number in locked
            )
    fixed = {partition for has in kept.values() for partition in has}
    left = {
        name: tuple(n for n in numbers if TopicPartition(name, n) not in fixed)
        for name, (_, numbers) in topics.items()
    }
    subscriptions = [
        GroupSubscription(
            one.id,
            Subscription(one.topics, one.pattern).of(topics),
            one.partitions,
            one.instance,
        )
        for one in members
        if one.id not in kept
    ]
    found = checked_assignment(assignor, subscriptions, left) | kept
    return tuple(dataclasses.replace(one, partitions=found[one.id]) for one in members)
