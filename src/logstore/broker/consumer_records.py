"""The values of the newer group protocol in `__consumer_offsets` (docs/format.md,
"Records about groups"): a group's epoch, its members, and what each of them has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logstore.broker.fields import Reader, versioned

__all__ = [
    "ConsumerMember",
    "MemberAssignment",
    "parse_consumer_member",
    "parse_epoch",
    "parse_member_assignment",
    "parse_target_assignment",
]


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    """A member of the newer group protocol.

    Attributes:
        pattern: a regular expression of topics; None or "": none.
        classic_timeout_ms: session timeout of a member that speaks the classic
            protocol; None: it speaks the newer one.
    """

    instance_id: str | None
    rack: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    pattern: str | None
    rebalance_timeout_ms: int
    assignor: str | None
    classic_timeout_ms: int | None = None


@dataclass(frozen=True, slots=True)
class MemberAssignment:
    """The partitions of a member of the newer group protocol, by topic id.

    Attributes:
        epoch, previous_epoch: of the member.
        state: 0 STABLE, 1 UNREVOKED_PARTITIONS, 2 UNRELEASED_PARTITIONS, 127 UNKNOWN.
        assigned, revoked: (topic id, partition) that it has, and has to give up.
    """

    epoch: int
    previous_epoch: int
    state: int
    assigned: tuple[tuple[str, int], ...]
    revoked: tuple[tuple[str, int], ...]


def parse_epoch(value: bytes) -> int:
    """The epoch of a group or of its target assignment (types 3 and 6).

    Raises:
        GroupRecordError: the value does not follow its format, or is newer.
    """
    reader, _ = versioned(value, "ConsumerGroupMetadataValue", 0, 0)
    epoch = reader.int32("epoch")
    reader.tags("tags")
    reader.end()
    return epoch


def parse_consumer_member(value: bytes) -> ConsumerMember:
    """A member of the newer group protocol (type 5).

    Raises:
        GroupRecordError: the value does not follow its format, or is newer.
    """
    reader, _ = versioned(value, "ConsumerGroupMemberMetadataValue", 0, 0)
    fields: list[Any] = [
        reader.nullable_string("instanceId"),
        reader.nullable_string("rackId"),
        reader.string("clientId"),
        reader.string("clientHost"),
        reader.array("subscribedTopicNames", 1, lambda: reader.string("topics")),
        reader.nullable_string("subscribedTopicRegex"),
        reader.int32("rebalanceTimeoutMs"),
        reader.nullable_string("serverAssignor"),
    ]
    classic = reader.tags("tags").get(0)
    reader.end()
    if classic is not None and classic[:1] == b"\1":
        # A struct that may be null: 1, then its fields.
        inner = Reader(classic, "ClassicMemberMetadata")
        inner.int8("present")
        fields.append(inner.int32("sessionTimeoutMs"))
    return ConsumerMember(*fields)


def _by_topic_id(reader: Reader, field: str) -> tuple[tuple[str, int], ...]:
    def topic() -> list[tuple[str, int]]:
        identity = reader.uuid(f"{field}.topicId")
        numbers = reader.numbers(f"{field}.partitions")
        reader.tags(f"{field}.tags")
        return [(identity, number) for number in numbers]

    return tuple(one for many in reader.array(field, 18, topic) for one in many)


def parse_target_assignment(value: bytes) -> tuple[tuple[str, int], ...]:
    """(topic id, partition) of the partitions that a member is to have (type 7).

    Raises:
        GroupRecordError: the value does not follow its format, or is newer.
    """
    reader, _ = versioned(value, "ConsumerGroupTargetAssignmentMemberValue", 0, 0)
    partitions = _by_topic_id(reader, "topicPartitions")
    reader.tags("tags")
    reader.end()
    return partitions


def parse_member_assignment(value: bytes) -> MemberAssignment:
    """The partitions that a member of the newer group protocol has (type 8).

    Raises:
        GroupRecordError: the value does not follow its format, or is newer.
    """
    reader, _ = versioned(value, "ConsumerGroupCurrentMemberAssignmentValue", 0, 0)
    assignment = MemberAssignment(
        reader.int32("memberEpoch"),
        reader.int32("previousMemberEpoch"),
        reader.int8("state"),
        _by_topic_id(reader, "assignedPartitions"),
        _by_topic_id(reader, "partitionsPendingRevocation"),
    )
    reader.tags("tags")
    reader.end()
    return assignment
