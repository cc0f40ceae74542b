"""The values of the newer group protocol in `__consumer_offsets` (docs/format.md,
"Records about groups"): a group's epoch, its members, and what each of them has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from logstore.broker.fields import uuid_hex
from logstore.broker.kafka_records import (
    CONSUMER_ASSIGNMENT,
    CONSUMER_GROUP,
    CONSUMER_MEMBER,
)
from logstore.broker.placement import OFFSETS_TOPIC
from logstore.broker.schemas import messages

__all__ = [
    "ConsumerMember",
    "MemberAssignment",
    "parse_consumer_member",
    "parse_epoch",
    "parse_member_assignment",
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


def _values(kind: int, value: bytes) -> dict[str, Any]:
    return messages(OFFSETS_TOPIC)[kind][1].decode(value)


def parse_epoch(value: bytes, kind: int = CONSUMER_GROUP) -> int:
    """The epoch of a group or of its target assignment (types 3 and 6).

    Raises:
        MessageError: the value does not follow its format, or is newer.
    """
    epoch: int = next(iter(_values(kind, value).values()))
    return epoch


def parse_consumer_member(value: bytes) -> ConsumerMember:
    """A member of the newer group protocol (type 5).

    Raises:
        MessageError: the value does not follow its format, or is newer.
    """
    values = _values(CONSUMER_MEMBER, value)
    classic = values.pop("classicMemberMetadata", None)
    values["subscribedTopicNames"] = tuple(values["subscribedTopicNames"])
    timeout_ms = classic["sessionTimeoutMs"] if classic else None
    return ConsumerMember(*[*values.values(), timeout_ms])


def _by_topic_id(topics: list[dict[str, Any]]) -> tuple[tuple[str, int], ...]:
    return tuple(
        (uuid_hex(topic["topicId"]), number)
        for topic in topics
        for number in topic["partitions"]
    )


def parse_member_assignment(value: bytes) -> MemberAssignment:
    """The partitions that a member of the newer group protocol has (type 8).

    Raises:
        MessageError: the value does not follow its format, or is newer.
    """
    values = _values(CONSUMER_ASSIGNMENT, value)
    return MemberAssignment(
        values["memberEpoch"],
        values["previousMemberEpoch"],
        values["state"],
        _by_topic_id(values["assignedPartitions"]),
        _by_topic_id(values["partitionsPendingRevocation"]),
    )
