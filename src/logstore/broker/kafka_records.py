"""Kafka's records about groups, as `__consumer_offsets` and a group file have them.

A record's key begins with its type (an int16). Types 0 and 1 are a committed offset, 2
is a group with its members; 3 to 8 and 16 belong to the newer group protocol, the
others to share and streams groups. A value begins with its version; a record without
one (a tombstone) removes what its key names. The formats are in docs/format.md,
"Records about groups".

Bytes that do not follow them are a `GroupRecordError`, which names the field. The
values of the newer protocol are in `consumer_records`.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from logstore.broker.fields import GroupRecordError, Reader, Writer, versioned
from logstore.errors import ConfigError
from logstore.io.layout import TopicPartition

__all__ = [
    "Assignment",
    "GroupKey",
    "GroupMember",
    "GroupMetadata",
    "GroupRecordError",
    "MemberKey",
    "OffsetCommit",
    "OffsetKey",
    "OtherKey",
    "Subscription",
    "format_assignment",
    "format_group_key",
    "format_group_value",
    "format_offset_key",
    "format_offset_value",
    "format_subscription",
    "parse_assignment",
    "parse_group_value",
    "parse_key",
    "parse_offset_value",
    "parse_subscription",
    "record_type",
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

# The newest version of the values of both classic records; from it on they are
# "flexible": compact lengths and tagged fields.
_VERSION_MAX: Final = 4
_FLEXIBLE: Final = 4
# A tagged field of logstore's in the value of a commit: see `OffsetCommit.proof`.
_PROOF_TAG: Final = 19539
_PROOF_BYTES: Final = 4
# The fixed fields of a commit: version and offset, leader epoch, times.
_COMMIT_HEAD: Final = struct.Struct(">hq")
_COMMIT_EPOCH: Final = struct.Struct(">i")
_COMMIT_TIME: Final = struct.Struct(">q")
_NO_ID: Final = "0" * 32


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
        client_id, client_host: as the client says, and where it is.
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
    """What a consumer asks for (ConsumerProtocolSubscription).

    Attributes:
        owned: the partitions that it has (from version 1 on).
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
    """What a consumer gets (ConsumerProtocolAssignment)."""

    partitions: tuple[TopicPartition, ...]
    user_data: bytes | None = None


# ------------------------------------------------------------------ keys


def record_type(key: bytes) -> int:
    """The type of a record, from its key.

    Raises:
        GroupRecordError: the key is shorter than that.
    """
    return Reader(key, "key").int16("type")


def parse_key(key: bytes) -> OffsetKey | GroupKey | MemberKey | OtherKey:
    """What a record is about.

    Raises:
        GroupRecordError: it is shorter or longer than it states, or no text.
    """
    reader = Reader(key, "key")
    kind = reader.int16("type")
    if kind in (OFFSET_COMMIT_OLD, OFFSET_COMMIT):
        offset_key = OffsetKey(
            reader.string("group"), reader.string("topic"), reader.int32("partition")
        )
        if offset_key.partition < 0:
            raise reader.error(
                "partition", f"it is {offset_key.partition}", reader.pos - 4
            )
        reader.end()
        return offset_key
    if kind in _GROUP_TYPES:
        group_key = GroupKey(kind, reader.string("group"))
        reader.end()
        return group_key
    if kind in _MEMBER_TYPES:
        member_key = MemberKey(kind, reader.string("group"), reader.string("member"))
        reader.end()
        return member_key
    return OtherKey(kind)


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
        GroupRecordError: the value does not follow its format, or is newer.
    """
    name = "OffsetCommitValue"
    reader, version = versioned(value, name, _VERSION_MAX, _FLEXIBLE)
    offset = reader.int64("offset")
    if offset < 0:
        raise reader.error("offset", f"it is {offset}", reader.pos - 8)
    epoch = reader.int32("leaderEpoch") if version >= 3 else -1
    metadata = reader.string("metadata")
    commit_ms = reader.int64("commitTimestamp")
    expire_ms = reader.int64("expireTimestamp") if version == 1 else -1
    begin = reader.pos
    tags = reader.tags("tags")
    topic_id, proof = tags.get(0), tags.get(_PROOF_TAG, b"")
    if topic_id is not None and len(topic_id) != 16:
        raise reader.error("topicId", f"it has {len(topic_id)} bytes", begin)
    reader.end()
    identity = None if topic_id is None else topic_id.hex()
    return OffsetCommit(
        *key,
        offset,
        epoch,
        metadata,
        commit_ms,
        None if expire_ms < 0 else expire_ms,
        None if identity == _NO_ID else identity,
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
    """The fields of a commit that are mostly those of the one before: the committer's
    text, and the tags."""
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
            f"topic id {text!r:.80} has no 32 hexadecimal digits; nothing was written",
            name="topic_id",
            value=text,
        )
    return data


# ------------------------------------------------------------------ groups


def parse_group_value(key: GroupKey, value: bytes) -> GroupMetadata:
    """The group whose key and value (of type 2) these are.

    Raises:
        GroupRecordError: the value does not follow its format, or is newer.
    """
    reader, version = versioned(value, "GroupMetadataValue", _VERSION_MAX, _FLEXIBLE)
    protocol_type = reader.string("protocolType")
    generation = reader.int32("generation")
    protocol = reader.nullable_string("protocol")
    leader = reader.nullable_string("leader")
    state_ms = reader.int64("currentStateTimestamp") if version >= 2 else -1

    def member() -> GroupMember:
        found = GroupMember(
            reader.string("memberId"),
            reader.nullable_string("groupInstanceId") if version >= 3 else None,
            reader.string("clientId"),
            reader.string("clientHost"),
            reader.int32("rebalanceTimeout") if version >= 1 else -1,
            reader.int32("sessionTimeout"),
            reader.blob("subscription"),
            reader.blob("assignment"),
        )
        reader.tags("members.tags")
        return found

    # Two numbers, and seven lengths of a byte in version 4.
    members = reader.array("members", 15, member)
    reader.tags("tags")
    reader.end()
    return GroupMetadata(
        key.group, protocol_type, generation, protocol, leader, state_ms, members
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


def _topic_partitions(reader: Reader, field: str) -> tuple[TopicPartition, ...]:
    def topic() -> list[TopicPartition]:
        name = reader.string(f"{field}.topic")
        return [
            TopicPartition(name, number)
            for number in reader.numbers(f"{field}.partitions")
        ]

    return tuple(one for many in reader.array(field, 6, topic) for one in many)


def _consumer_protocol(data: bytes, name: str) -> tuple[Reader, int]:
    """Versions that are newer than known have the fields of the known ones first."""
    reader = Reader(data, name)
    version = reader.int16("version")
    if version < 0:
        raise reader.error("version", f"it is {version}", 0)
    return reader, version


def parse_subscription(data: bytes) -> Subscription:
    """The subscription of a member, if the group's protocol type is "consumer".

    What a version after the known ones adds at the end is left out.

    Raises:
        GroupRecordError: the bytes do not follow the format.
    """
    reader, version = _consumer_protocol(data, "ConsumerProtocolSubscription")
    return Subscription(
        reader.array("topics", 2, lambda: reader.string("topics")),
        reader.nullable_blob("userData"),
        _topic_partitions(reader, "ownedPartitions") if version >= 1 else (),
        reader.int32("generationId") if version >= 2 else -1,
        reader.nullable_string("rackId") if version >= 3 else None,
    )


def parse_assignment(data: bytes) -> Assignment:
    """The assignment of a member, if the group's protocol type is "consumer". No bytes,
    as a member has until it is assigned anything, are no partitions.

    Raises:
        GroupRecordError: the bytes do not follow the format.
    """
    if not data:
        return Assignment(())
    reader, _ = _consumer_protocol(data, "ConsumerProtocolAssignment")
    return Assignment(
        _topic_partitions(reader, "assignedPartitions"),
        reader.nullable_blob("userData"),
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
