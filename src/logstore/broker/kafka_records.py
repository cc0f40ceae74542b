"""Kafka's records about groups, as `__consumer_offsets` and a group file have them.

A record's key begins with its type (an int16). Types 0 and 1 are a committed offset, 2
is a group with its members; 3 to 8 and 16 belong to the newer group protocol, the
others to share and streams groups. A value begins with its version; a record without
one (a tombstone) removes what its key names. The formats are in docs/format.md,
"Records about groups".

Bytes that do not follow them are a `MessageError`, which names the field. The values of
the newer protocol are in `consumer_records`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logstore.broker.fields import NUMBERS, MessageError, Reader, Writer, uuid_hex
from logstore.broker.placement import OFFSETS_TOPIC
from logstore.broker.schemas import message, messages
from logstore.errors import ConfigError
from logstore.io.layout import TopicPartition

__all__ = [
    "Assignment",
    "GroupKey",
    "GroupMember",
    "GroupMetadata",
    "MemberKey",
    "MessageError",
    "OffsetCommit",
    "OffsetKey",
    "OtherKey",
    "Subscription",
    "format_assignment",
    "format_group_key",
    "format_group_value",
    "format_offset_key",
    "format_offset_value",
    "offset_value_places",
    "format_subscription",
    "parse_assignment",
    "parse_group_value",
    "parse_key",
    "parse_offset_value",
    "parse_subscription",
]

# The types of records (Kafka's CoordinatorRecordType).
OFFSET_COMMIT_OLD: Final = 0
OFFSET_COMMIT: Final = 1
GROUP_METADATA: Final = 2
CONSUMER_GROUP: Final = 3
CONSUMER_PARTITIONS: Final = 4
CONSUMER_MEMBER: Final = 5
CONSUMER_TARGET: Final = 6
CONSUMER_TARGET_MEMBER: Final = 7
CONSUMER_ASSIGNMENT: Final = 8
_GROUP_TYPES: Final = frozenset(
    {GROUP_METADATA, CONSUMER_GROUP, CONSUMER_PARTITIONS, CONSUMER_TARGET}
)
_MEMBER_TYPES: Final = frozenset(
    {CONSUMER_MEMBER, CONSUMER_TARGET_MEMBER, CONSUMER_ASSIGNMENT}
)
_TYPES: Final = _GROUP_TYPES | _MEMBER_TYPES | {OFFSET_COMMIT_OLD, OFFSET_COMMIT}

# The newest version of the values of both classic records; from it on they are
# "flexible": compact lengths and tagged fields.
_VERSION_MAX: Final = 4
_FLEXIBLE: Final = 4
# A tagged field of logstore's in the value of a commit: see `OffsetCommit.proof`.
_PROOF_TAG: Final = 19539
_PROOF_BYTES: Final = 4
# The fixed fields of a commit: version and offset, leader epoch, times.
_COMMIT_HEAD: Final = struct.Struct(">hq")
_OFFSET_POS: Final = 2
_COMMIT_EPOCH: Final = struct.Struct(">i")
_COMMIT_TIME: Final = struct.Struct(">q")


# ------------------------------------------------------------------ the values


class OffsetKey(NamedTuple):
    """The key of a committed offset (type 0 or 1)."""

    group: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a record about a group (types 2, 3, 4, 6)."""

    type: int
    group: str


class MemberKey(NamedTuple):
    """The key of a record about a member of the newer protocol (types 5, 7, 8)."""

    type: int
    group: str
    member: str


class OtherKey(NamedTuple):
    """A key of another type, whose content is not read."""

    type: int


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A committed offset.

    Attributes:
        offset: the next one to be read.
        leader_epoch: that of the record before it; -1: unknown.
        metadata: the committer's text; at most 32,767 bytes of UTF-8 but in a value of
            version 4.
        commit_ms: when, in Unix ms; -1: unknown.
        expire_ms: when the offset may be forgotten, in Unix ms; None: as the broker's
            settings say (with logstore: never).
        topic_id: identifies the topic among all that have had its name: 32 hexadecimal
            digits; None: unknown.
        proof: checksum of the batch that ends directly below `offset`; None: unknown.
            Only logstore writes it.
    """

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    commit_ms: int = -1
    expire_ms: int | None = None
    topic_id: str | None = None
    proof: int | None = None


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group, in the group's record.

    Attributes:
        member_id: given by the group, new at each joining.
        instance_id: of a static member; else None.
        client_id, client_host: id stated by the client, and the client's address.
        rebalance_timeout_ms, session_timeout_ms: -1: unknown.
        subscription, assignment: bytes of the group's protocol type: see
            `parse_subscription`, `parse_assignment` for "consumer".
    """

    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int = -1
    session_timeout_ms: int = -1
    subscription: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A group and its members.

    Attributes:
        protocol_type: "consumer" for consumers, "connect" for Kafka Connect; "" for a
            group without members that only commits.
        generation: rises at each change of the members.
        protocol: the assignor's name; None without members.
        leader: the id of the member that assigns; None without members.
        state_ms: when the group came into its state, in Unix ms; -1: unknown.
    """

    group: str
    protocol_type: str = "consumer"
    generation: int = 0
    protocol: str | None = None
    leader: str | None = None
    state_ms: int = -1
    members: tuple[GroupMember, ...] = ()


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a consumer (ConsumerProtocolSubscription).

    Attributes:
        owned: the partitions that it holds (from version 1 on).
        generation: in which it got them; -1: unknown (from version 2 on).
        rack: None: unknown (from version 3 on).
    """

    topics: tuple[str, ...]
    user_data: bytes | None = None
    owned: tuple[TopicPartition, ...] = ()
    generation: int = -1
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """Assignment of a consumer (ConsumerProtocolAssignment)."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


# ------------------------------------------------------------------ keys


def parse_key(key: bytes) -> OffsetKey | GroupKey | MemberKey | OtherKey:
    """Parse the key of a record.

    Raises:
        MessageError: the key is shorter or longer than it states, or text in it is not
            UTF-8.
    """
    reader = Reader(key, "key")
    kind = reader.number("type", NUMBERS["int16"])
    if kind not in _TYPES:
        return OtherKey(kind)
    values = reader.message(messages(OFFSETS_TOPIC)[kind][0], kind).values()
    if kind <= OFFSET_COMMIT:
        return OffsetKey(*values)
    return (GroupKey if kind in _GROUP_TYPES else MemberKey)(kind, *values)


def format_offset_key(group: str, topic: str, partition: int) -> bytes:
    """The key of a committed offset (type 1).

    Raises:
        ConfigError: a name has more than 32,767 bytes as UTF-8, or `partition` is
            outside of [0, 2**31).
    """
    if not 0 <= partition < 1 << 31:
        raise ConfigError(
            f"partition {partition} is outside [0, {1 << 31}); nothing was written",
            name="partition",
            value=partition,
        )
    writer = Writer()
    writer.put("h", OFFSET_COMMIT)
    writer.string("group", group)
    writer.string("topic", topic)
    writer.put("i", partition)
    return bytes(writer.data)


def format_group_key(group: str) -> bytes:
    """The key of a group with its members (type 2).

    Raises:
        ConfigError: the name has more than 32,767 bytes as UTF-8.
    """
    writer = Writer()
    writer.put("h", GROUP_METADATA)
    writer.string("group", group)
    return bytes(writer.data)


# ------------------------------------------------------------------ offsets


def parse_offset_value(key: OffsetKey, value: bytes) -> OffsetCommit:
    """The commit whose key and value these are.

    Raises:
        MessageError: the value does not follow its format, or is newer.
    """
    table = messages(OFFSETS_TOPIC)[OFFSET_COMMIT][1]
    reader = Reader(value, table.name)
    values = reader.message(table)
    expire_ms, topic_id = values.get("expireTimestamp", -1), values.get("topicId")
    proof = reader.unknown.get(_PROOF_TAG, b"")
    return OffsetCommit(
        *key,
        values["offset"],
        values.get("leaderEpoch", -1),
        values["metadata"],
        values["commitTimestamp"],
        None if expire_ms < 0 else expire_ms,
        None if topic_id is None else uuid_hex(topic_id),
        int.from_bytes(proof, "big") if len(proof) == _PROOF_BYTES else None,
    )


def format_offset_value(commit: OffsetCommit, version: int | None = None) -> bytes:
    """The value of a commit.

    Args:
        version: 0 to 4; a field that it does not have is left out. None: the one that
            Kafka chooses: 4 with a topic's id (or a proof), else 1 with an expiry,
            else 3.

    Raises:
        ConfigError: the metadata have more than 32,767 bytes as UTF-8 (before version
            4), or a number does not fit.
    """
    if version is None:
        version = 3 if commit.expire_ms is None else 1
        if commit.topic_id is not None or commit.proof is not None:
            version = 4
    _check_version(version)
    if commit.offset < 0:
        raise _no_number(commit, f"offset={commit.offset}")
    try:
        head = _COMMIT_HEAD.pack(version, commit.offset)
        epoch = _COMMIT_EPOCH.pack(commit.leader_epoch) if version >= 3 else b""
        times = _COMMIT_TIME.pack(commit.commit_ms)
        if version == 1:
            times += _COMMIT_TIME.pack(
                -1 if commit.expire_ms is None else commit.expire_ms
            )
    except struct.error as error:
        raise _no_number(commit, error) from None
    text, tags = _commit_text(version >= _FLEXIBLE, commit.metadata, commit.topic_id)
    if commit.proof is not None and version >= _FLEXIBLE:
        tags = _tags(commit.topic_id, commit.proof)
    return head + epoch + text + times + tags


def offset_value_places(commit: OffsetCommit) -> tuple[int, int, int | None]:
    """Positions of the offset (8 bytes), the time (8) and the proof (4; None: there is
    no proof) in the value of a commit without an expiry."""
    is_flexible = commit.topic_id is not None or commit.proof is not None
    text, _ = _commit_text(is_flexible, commit.metadata, commit.topic_id)
    time_pos = _COMMIT_HEAD.size + _COMMIT_EPOCH.size + len(text)
    if commit.proof is None:
        return _OFFSET_POS, time_pos, None
    # Tags are in the order of their numbers; the proof's tag is the last one.
    tags = _tags(commit.topic_id, commit.proof)
    end = time_pos + _COMMIT_TIME.size + len(tags)
    return _OFFSET_POS, time_pos, end - _PROOF_BYTES


def _tags(topic_id: str | None, proof: int) -> bytes:
    """The tags of a commit with a proof."""
    fields = {_PROOF_TAG: proof.to_bytes(_PROOF_BYTES, "big")}
    if topic_id is not None:
        fields[0] = _uuid_bytes(topic_id)
    writer = Writer(True)
    writer.tags(fields)
    return bytes(writer.data)


@functools.lru_cache(maxsize=64)
def _commit_text(
    is_flexible: bool, metadata: str, topic_id: str | None
) -> tuple[bytes, bytes]:
    """The fields of a commit that rarely differ from the previous commit: the
    committer's text, and the tags."""
    text, tags = Writer(is_flexible), Writer(is_flexible)
    text.string("metadata", metadata)
    tags.tags({} if topic_id is None else {0: _uuid_bytes(topic_id)})
    return bytes(text.data), bytes(tags.data)


def _check_version(version: int) -> None:
    if not 0 <= version <= _VERSION_MAX:
        raise ConfigError(
            f"version={version} is outside [0, {_VERSION_MAX}]; nothing was written",
            name="version",
            value=version,
        )


def _no_number(value: object, error: object) -> ConfigError:
    return ConfigError(
        f"{value!r:.200} has a number outside of its field: {error}; nothing was "
        f"written",
        name=type(value).__name__,
        value=value,
    )


def _uuid_bytes(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) != 16:
        raise ConfigError(
            f"topic id {text!r:.80} does not have 32 hexadecimal digits; nothing "
            "was written",
            name="topic_id",
            value=text,
        )
    return data


# ------------------------------------------------------------------ groups


def parse_group_value(key: GroupKey, value: bytes) -> GroupMetadata:
    """The group whose key and value (of type 2) these are.

    Raises:
        MessageError: the value does not follow its format, or is newer.
    """
    values = messages(OFFSETS_TOPIC)[GROUP_METADATA][1].decode(value)
    members = tuple(
        GroupMember(
            member["memberId"],
            member.get("groupInstanceId"),
            member["clientId"],
            member["clientHost"],
            member.get("rebalanceTimeout", -1),
            member["sessionTimeout"],
            member["subscription"],
            member["assignment"],
        )
        for member in values["members"]
    )
    return GroupMetadata(
        key.group,
        values["protocolType"],
        values["generation"],
        values["protocol"],
        values["leader"],
        values.get("currentStateTimestamp", -1),
        members,
    )


def format_group_value(group: GroupMetadata, version: int = 3) -> bytes:
    """The value of a group.

    Args:
        version: 0 to 4; a field that it does not have is left out.

    Raises:
        ConfigError: a text has more than 32,767 bytes as UTF-8 (before version 4), or a
            number does not fit.
    """
    _check_version(version)
    writer = Writer(version >= _FLEXIBLE)
    try:
        writer.put("h", version)
        writer.string("protocol_type", group.protocol_type)
        writer.put("i", group.generation)
        writer.string("protocol", group.protocol)
        writer.string("leader", group.leader)
        if version >= 2:
            writer.put("q", group.state_ms)
        writer.length(len(group.members))
        for member in group.members:
            writer.string("member_id", member.member_id)
            if version >= 3:
                writer.string("instance_id", member.instance_id)
            writer.string("client_id", member.client_id)
            writer.string("client_host", member.client_host)
            if version >= 1:
                writer.put("i", member.rebalance_timeout_ms)
            writer.put("i", member.session_timeout_ms)
            writer.blob(member.subscription)
            writer.blob(member.assignment)
            writer.tags()
    except struct.error as error:
        raise _no_number(group, error) from None
    writer.tags()
    return bytes(writer.data)


# ------------------------------------------------------------------ consumers


def _topic_partitions(topics: list[dict[str, Any]]) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic["topic"], number)
        for topic in topics
        for number in topic["partitions"]
    )


def parse_subscription(data: bytes) -> Subscription:
    """The subscription of a member, if the group's protocol type is "consumer".

    Fields that a version after the known ones adds at the end are ignored.

    Raises:
        MessageError: the bytes do not follow the format.
    """
    values = message("ConsumerProtocolSubscription").decode(data)
    return Subscription(
        tuple(values["topics"]),
        values["userData"],
        _topic_partitions(values.get("ownedPartitions", [])),
        values.get("generationId", -1),
        values.get("rackId"),
    )


def parse_assignment(data: bytes) -> Assignment:
    """The assignment of a member, if the group's protocol type is "consumer". No bytes,
    as a member has until it is assigned anything, are no partitions.

    Raises:
        MessageError: the bytes do not follow the format.
    """
    if not data:
        return Assignment(())
    values = message("ConsumerProtocolAssignment").decode(data)
    return Assignment(
        _topic_partitions(values["assignedPartitions"]), values["userData"]
    )


def _put_partitions(writer: Writer, partitions: Sequence[TopicPartition]) -> None:
    by_topic: dict[str, list[int]] = {}
    for topic, number in partitions:
        by_topic.setdefault(topic, []).append(number)
    writer.put("i", len(by_topic))
    for topic, numbers in by_topic.items():
        writer.string("topic", topic)
        writer.put(f"i{len(numbers)}i", len(numbers), *numbers)


def format_subscription(subscription: Subscription) -> bytes:
    """The bytes of a subscription, version 3.

    Raises:
        ConfigError: a text has more than 32,767 bytes as UTF-8, or a number does not
            fit.
    """
    writer = Writer()
    try:
        writer.put("hi", 3, len(subscription.topics))
        for topic in subscription.topics:
            writer.string("topic", topic)
        writer.blob(subscription.user_data)
        _put_partitions(writer, subscription.owned)
        writer.put("i", subscription.generation)
        writer.string("rack", subscription.rack)
    except struct.error as error:
        raise _no_number(subscription, error) from None
    return bytes(writer.data)


def format_assignment(assignment: Assignment) -> bytes:
    """The bytes of an assignment, version 3.

    Raises:
        ConfigError: a text has more than 32,767 bytes as UTF-8, or a number does not
            fit.
    """
    writer = Writer()
    try:
        writer.put("h", 3)
        _put_partitions(writer, assignment.partitions)
        writer.blob(assignment.user_data)
    except struct.error as error:
        raise _no_number(assignment, error) from None
    return bytes(writer.data)
