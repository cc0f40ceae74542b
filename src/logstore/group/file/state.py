"""The state of a group in its file: its members, and its table of partitions.

It is one record, Kafka's about a group, so that Kafka's tools show the members and
their assigned partitions. Fields that Kafka's record lacks are in a header, as JSON
(docs/format.md, "`.logstore-group-*`").
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from logstore.broker.kafka_records import (
    Assignment,
    GroupKey,
    GroupMember,
    GroupMetadata,
    MessageError,
    Subscription,
    format_assignment,
    format_group_value,
    format_subscription,
    parse_assignment,
    parse_group_value,
    parse_subscription,
)
from logstore.group.file.slots import MEMBERS_MAX, ROWS_MAX
from logstore.io.layout import PARTITION_MAX, TopicPartition

__all__ = [
    "BY_COMMITS",
    "BY_TRANSACTIONS",
    "HEADER",
    "GroupState",
    "LaterVersionError",
    "Member",
    "AssignmentRow",
    "format_state",
    "parse_state",
]

HEADER: Final = "logstore"
VERSION: Final = 1

# The two ways in which a group commits; "" until its first commit.
BY_COMMITS: Final = "commits"
BY_TRANSACTIONS: Final = "transactions"
_WAYS: Final = ("", BY_COMMITS, BY_TRANSACTIONS)


class LaterVersionError(ValueError):
    """A later version of logstore has written the record."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group.

    Attributes:
        id: another one at each joining.
        slot: its byte in the lock file.
        instance: the name of a static member; None for another.
        topics: the topics that it asks for by name.
        pattern: a regular expression of others that it asks for; None: none.
        partitions: its assigned partitions.
        is_idle: others have taken what it did not take in time: it gets no more until
            it has polled again.
    """

    id: str
    slot: int
    instance: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()
    is_idle: bool = False


@dataclass(frozen=True, slots=True)
class AssignmentRow:
    """A row of the table of partitions: the number of its byte in the lock file, and
    the id of the topic that it is for ("" if that has no id)."""

    number: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group at one generation.

    Attributes:
        generation: rises with each change of members or topics.
        assignor: name of the one that all members use; "" before the first.
        way: how the group commits: `BY_COMMITS`, `BY_TRANSACTIONS`, or "" so far.
        members: in the order of their joining.
        rows: of the partitions that members have or had.
        topics: the topics that are distributed, with the numbers of their partitions.
        since_ms: since when this is so, Unix milliseconds; -1 unknown.
    """

    generation: int = 0
    assignor: str = ""
    way: str = ""
    members: tuple[Member, ...] = ()
    rows: Mapping[TopicPartition, AssignmentRow] = field(default_factory=dict)
    topics: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    since_ms: int = -1

    def member(self, id: str) -> Member | None:
        """The member with an id; None if no member has it."""
        return next((member for member in self.members if member.id == id), None)

    def assigned(self) -> dict[TopicPartition, Member]:
        """The member that each partition is assigned to."""
        return {
            partition: member
            for member in self.members
            for partition in member.partitions
        }


def format_state(group: str, state: GroupState) -> tuple[bytes, bytes]:
    """The value of the record, and that of its header."""
    members = tuple(
        GroupMember(
            member.id,
            member.instance,
            "logstore",
            "localhost",
            subscription=format_subscription(Subscription(member.topics)),
            assignment=format_assignment(Assignment(member.partitions)),
        )
        for member in state.members
    )
    value = GroupMetadata(
        group,
        "consumer",
        state.generation,
        state.assignor or None,
        state.members[0].id if state.members else None,
        state.since_ms,
        members,
    )
    more = {
        "version": VERSION,
        "way": state.way,
        "members": [
            [member.slot, member.pattern, int(member.is_idle)]
            for member in state.members
        ],
        "rows": [
            [row.number, partition.topic, partition.partition, row.topic_id]
            for partition, row in state.rows.items()
        ],
        "topics": {name: list(numbers) for name, numbers in state.topics.items()},
    }
    return format_group_value(value), json.dumps(more, separators=(",", ":")).encode()


def parse_state(group: str, value: bytes, header: bytes | None) -> GroupState:
    """The state of a record.

    Args:
        header: None for a record of Kafka's own: its members are a broker's.

    Raises:
        LaterVersionError: a later version has written it.
        ValueError: it does not follow the format.
    """
    try:
        metadata = parse_group_value(GroupKey(2, group), value)
    except MessageError as error:
        if error.is_newer:
            raise LaterVersionError(str(error)) from error
        raise
    generation = max(metadata.generation, 0)
    if header is None:
        return GroupState(generation, since_ms=metadata.state_ms)
    try:
        more = json.loads(header)
        version = more["version"]
        if not _is_number(version, 1, 1 << 31):
            raise ValueError(f"its version is {version!r:.40}")
        if version > VERSION:
            raise LaterVersionError(f"its version is {version}, not {VERSION}")
        return GroupState(
            generation,
            metadata.protocol or "",
            _checked(more["way"], more["way"] in _WAYS),
            _members(metadata, more["members"]),
            _rows(more["rows"]),
            _topics(more["topics"]),
            metadata.state_ms,
        )
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"its header does not follow the format: {error!r}") from error


def _is_number(value: object, least: int, end: int) -> bool:
    return type(value) is int and least <= value < end


def _checked(value: Any, is_right: bool) -> Any:
    if not is_right:
        raise ValueError(f"its header has {value!r:.40}")
    return value


def _members(metadata: GroupMetadata, more: Any) -> tuple[Member, ...]:
    _checked(len(more), len(more) == len(metadata.members))
    members = []
    for member, (slot, pattern, is_idle) in zip(metadata.members, more, strict=True):
        _checked(slot, _is_number(slot, 0, MEMBERS_MAX))
        _checked(pattern, pattern is None or isinstance(pattern, str))
        parsed_member = Member(
            member.member_id,
            slot,
            member.instance_id,
            parse_subscription(member.subscription).topics,
            pattern,
            parse_assignment(member.assignment).partitions,
            bool(is_idle),
        )
        members.append(parsed_member)
    return tuple(members)


def _rows(more: Any) -> dict[TopicPartition, AssignmentRow]:
    rows: dict[TopicPartition, AssignmentRow] = {}
    numbers: set[int] = set()
    for number, topic, partition, topic_id in more:
        _checked(number, _is_number(number, 0, ROWS_MAX) and number not in numbers)
        _checked(topic, isinstance(topic, str))
        _checked(partition, _is_number(partition, 0, PARTITION_MAX + 1))
        _checked(topic_id, isinstance(topic_id, str))
        numbers.add(number)
        rows[TopicPartition(topic, partition)] = AssignmentRow(number, topic_id)
    return rows


def _topics(more: Any) -> dict[str, tuple[int, ...]]:
    _checked(more, isinstance(more, dict))
    for numbers in more.values():
        for number in numbers:
            _checked(number, _is_number(number, 0, PARTITION_MAX + 1))
    return {name: tuple(numbers) for name, numbers in more.items()}
