"""The generations of a group: the rows of its partitions, and their members."""

from __future__ import annotations

import dataclasses
import platform
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from logstore._native.locks import logger
from logstore.errors import GroupError
from logstore.group.file.slots import ROWS_MAX, LockFile, Slots
from logstore.group.file.state import AssignmentRow, GroupState, Member
from logstore.group.member.assignors import (
    Assignor,
    GroupSubscription,
    checked_assignment,
)
from logstore.io.layout import TopicPartition

__all__ = [
    "GenerationPlanner",
    "MemberSubscription",
    "Topics",
    "alone_rows",
    "next_rows",
    "universe",
]

# Id and partitions of each topic, by name.
Topics = Mapping[str, tuple[str, tuple[int, ...]]]


class MemberSubscription(NamedTuple):
    """The topics that a member asks for.

    Attributes:
        topics: by name.
        pattern: a regular expression that the names of others match; None: none.
    """

    topics: tuple[str, ...] = ()
    pattern: str | None = None

    def of(self, names: Iterable[str]) -> frozenset[str]:
        """The names that it asks for, of some names.

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
    """The existing topics that any of the members asks for.

    Raises:
        GroupError: this Python cannot compile the pattern of a member, and another
            Python's member would find other topics by it.
    """
    wanted: set[str] = set()
    asked = {
        (subscriber.topics, subscriber.pattern): subscriber.id for subscriber in members
    }
    for (topics, pattern), member in asked.items():
        try:
            wanted |= MemberSubscription(topics, pattern).of(now)
        except (re.error, OverflowError, RecursionError) as error:
            raise GroupError(
                f"member {member!r:.200} of group {group!r:.100} subscribes to "
                f"the topic pattern {pattern!r:.180}, which Python "
                f"{platform.python_version()} cannot compile: {error}. Nothing "
                "was changed; use one version of Python for all members, or end "
                "that member",
                group=group,
            ) from error
    return {name: now[name] for name in sorted(wanted)}


def _numbers_of(topics: Topics) -> dict[str, tuple[int, ...]]:
    """The numbers of the partitions of each topic."""
    return {name: numbers for name, (_, numbers) in topics.items()}


def _partitions_of(topics: Topics) -> list[TopicPartition]:
    """All partitions."""
    return [
        TopicPartition(name, number)
        for name, (_, numbers) in topics.items()
        for number in numbers
    ]


def _free_rows(taken: Collection[int]) -> Iterable[int]:
    """The numbers of rows that are not taken, in order."""
    return (number for number in range(ROWS_MAX) if number not in taken)


def alone_rows(
    state: GroupState,
    wanted: Mapping[TopicPartition, str],
    locks: LockFile,
    mine: Collection[int],
) -> Mapping[TopicPartition, AssignmentRow]:
    """The table with rows for partitions that no member was assigned, as far as there
    are any; the table of `state` itself if it has them.

    If it lacks one, the rows of partitions that are not distributed, and that no member
    holds, are forgotten. A member that takes such a partition gets another row.

    Args:
        wanted: the ids of the topics of the partitions.
        mine: rows that this member holds.
    """

    def missing(rows: Mapping[TopicPartition, AssignmentRow]) -> list[TopicPartition]:
        return [
            partition
            for partition, topic_id in wanted.items()
            if partition not in rows or rows[partition].topic_id != topic_id
        ]

    if not missing(state.rows):
        return state.rows
    held = {*locks.held_rows(), *mine}
    alive = set(locks.members())
    is_distributed = any(member.slot in alive for member in state.members)
    topics = state.topics if is_distributed else {}
    rows = {
        partition: row
        for partition, row in state.rows.items()
        if row.number in held or partition.partition in topics.get(partition.topic, ())
    }
    free = _free_rows({row.number for row in rows.values()} | held)
    new = zip(missing(rows), free, strict=False)
    return {
        **rows,
        **{
            partition: AssignmentRow(number, wanted[partition])
            for partition, number in new
        },
    }


def _with_rows(topics: Topics, rows: Mapping[TopicPartition, AssignmentRow]) -> Topics:
    """The topics with the partitions that have a row, and no others."""
    kept_topics = {
        name: (topic_id, tuple(n for n in numbers if TopicPartition(name, n) in rows))
        for name, (topic_id, numbers) in topics.items()
    }
    return {name: topic for name, topic in kept_topics.items() if topic[1]}


def next_rows(
    state: GroupState,
    topics: Topics,
    locks: LockFile,
    mine: Collection[int],
    fenced: Collection[int],
) -> dict[TopicPartition, AssignmentRow]:
    """The table of the next generation. If there are more partitions than rows, those
    without one are left out, until rows are free.

    A partition keeps its row as long as its topic is the same and its holder, if there
    is one, is not thrown out. A row that no partition of `topics` has is forgotten when
    it is free: its holder, if there is one, must find out first.

    Args:
        mine: rows that this member holds.
        fenced: slots of members that are thrown out.
    """
    locked = set(locks.held_rows())
    rows: dict[TopicPartition, AssignmentRow] = {}
    missing = []
    for partition in _partitions_of(topics):
        row = state.rows.get(partition)
        topic_id = topics[partition.topic][0]
        is_fenced = (
            row is not None
            and bool(fenced)
            and row.number in locked
            and locks.holder(row.number) in fenced
        )
        if row is not None and row.topic_id == topic_id and not is_fenced:
            rows[partition] = row
        else:
            missing.append((partition, topic_id))
    for partition, row in state.rows.items():
        is_held = row.number in locked or row.number in mine
        if is_held and partition.topic not in topics:
            rows[partition] = row
    free = iter(_free_rows({row.number for row in rows.values()} | locked | {*mine}))
    for (partition, topic_id), number in zip(missing, free, strict=False):
        rows[partition] = AssignmentRow(number, topic_id)
    return rows


def _assigned(
    members: Sequence[Member],
    topics: Topics,
    rows: Mapping[TopicPartition, AssignmentRow],
    locks: LockFile,
    assignor: Assignor,
) -> tuple[Member, ...]:
    """The members with the partitions that are assigned to them. A member that is idle
    keeps what it holds and gets no more, unless all members are idle.

    Raises:
        ConfigError: the assignor's answer is wrong.
    """
    if not members:
        return ()
    locked = set(locks.held_rows())
    is_left = not all(member.is_idle for member in members)
    kept: dict[str, tuple[TopicPartition, ...]] = {}
    for holder in members:
        if holder.is_idle and is_left:
            kept[holder.id] = tuple(
                partition
                for partition in holder.partitions
                if partition in rows and rows[partition].number in locked
            )
    fixed = {partition for has in kept.values() for partition in has}
    left = {
        name: tuple(n for n in numbers if TopicPartition(name, n) not in fixed)
        for name, (_, numbers) in topics.items()
    }
    subscriptions = [
        GroupSubscription(
            member.id,
            MemberSubscription(member.topics, member.pattern).of(topics),
            member.partitions,
            member.instance,
        )
        for member in members
        if member.id not in kept
    ]
    assignment = checked_assignment(assignor, subscriptions, left) | kept
    return tuple(
        dataclasses.replace(member, partitions=assignment[member.id])
        for member in members
    )


class GenerationPlanner:
    """Begins the generations of one group, for one member.

    A generation is right for its members as long as the topics that they ask for are as
    they were: `has_changed` shows when it is not.

    Args:
        group: the id of the group.
        slots: the member's open lock file.
        topics_now: returns the topics that the store has now.
        assignor: distributes the partitions.
    """

    def __init__(
        self,
        group: str,
        slots: Slots,
        topics_now: Callable[[], Topics],
        assignor: Assignor,
    ) -> None:
        self.topics_now = topics_now
        self.assignor = assignor
        self._group = group
        self._slots = slots
        self._has_told_of_rows = False

    def has_changed(self, state: GroupState) -> bool:
        """Whether topics were added, deleted, recreated or got partitions since
        the generation of `state` began."""
        topics = universe(self._group, self.topics_now(), state.members)
        return _numbers_of(topics) != state.topics or any(
            state.rows[partition].topic_id != topics[partition.topic][0]
            for partition in _partitions_of(topics)
            if partition in state.rows
        )

    def next(
        self,
        state: GroupState,
        members: Sequence[Member],
        fenced: Collection[int] = (),
    ) -> GroupState | None:
        """The generation after `state`, with these members; None: it would be the same.
        Partitions without a free row have no reader: `has_changed` is true as long as
        there are any.

        Args:
            fenced: as in `next_rows`.

        Raises:
            GroupError: as `universe`.
            ConfigError: the answer of the assignor is wrong.
        """
        slots = self._slots
        wanted = universe(self._group, self.topics_now(), members)
        rows = next_rows(state, wanted, slots, slots.rows, fenced)
        topics = _with_rows(wanted, rows)
        self._warn_of_rows(wanted, topics)
        if (
            tuple(members) == state.members
            and _numbers_of(topics) == state.topics
            and all(
                state.rows.get(partition) == rows[partition]
                for partition in _partitions_of(topics)
            )
        ):
            return None
        return dataclasses.replace(
            state,
            generation=state.generation + 1,
            assignor=self.assignor.name if members else "",
            members=_assigned(members, topics, rows, slots, self.assignor),
            rows=rows,
            topics=_numbers_of(topics),
            since_ms=slots.files.now_ms(),
        )

    def _warn_of_rows(self, wanted: Topics, topics: Topics) -> None:
        """Warn of partitions without a row, once until all have one."""
        if topics != wanted and not self._has_told_of_rows:
            left_out = set(_partitions_of(wanted)) - set(_partitions_of(topics))
            logger.warning(
                "group %s subscribes to %d partitions more than its limit of %d: "
                "no member reads %s and others",
                self._group[:100],
                len(left_out),
                ROWS_MAX,
                min(left_out),
            )
        self._has_told_of_rows = topics != wanted
