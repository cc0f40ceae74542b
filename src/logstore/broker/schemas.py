"""The tables of Kafka's messages: what is in the records of its internal topics, and in
what they contain.

An entry has the type of a record, its name, the fields of its key in parentheses, the
versions of its value (a `+` after them: later ones only add fields at the end), the
first flexible one, and the fields of the value. A field has a name, a type (`[]`: an
array; `?`: it may be null), the versions that have it, its tag, its default if that is
not 0 or empty, and the release of Kafka that added it.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final

from logstore.broker.fields import NEVER, NUMBERS, Field, Message, Struct

__all__ = ["message", "messages"]

_RECORDS: Final = {
    "__consumer_offsets": """
0 LegacyOffsetCommit (group string, topic string, partition uint31):
    offset uint63, metadata string, commitTimestamp int64
1 OffsetCommit (group string, topic string, partition uint31) 0-4 flexible 4+:
    offset uint63, leaderEpoch int32 3+, metadata string, commitTimestamp int64,
    expireTimestamp int64 1-1, topicId uuid 4+ tag 0 from 4.2
2 GroupMetadata (group string) 0-4 flexible 4+:
    protocolType string, generation int32, protocol string?, leader string?,
    currentStateTimestamp int64 2+, members []MemberMetadata
3 ConsumerGroupMetadata (groupId string) flexible 0+:
    epoch int32, metadataHash int64 tag 0 from 4.2
4 ConsumerGroupPartitionMetadata (groupId string) flexible 0+:
    topics []TopicMetadata
5 ConsumerGroupMemberMetadata (groupId string, memberId string) flexible 0+:
    instanceId string?, rackId string?, clientId string, clientHost string,
    subscribedTopicNames []string, subscribedTopicRegex string?,
    rebalanceTimeoutMs int32, serverAssignor string?,
    classicMemberMetadata ClassicMemberMetadata? tag 0
6 ConsumerGroupTargetAssignmentMetadata (groupId string) flexible 0+:
    assignmentEpoch int32, assignmentTimestamp int64 tag 0 from 4.3
7 ConsumerGroupTargetAssignmentMember (groupId string, memberId string) flexible 0+:
    topicPartitions []TopicPartition
8 ConsumerGroupCurrentMemberAssignment (groupId string, memberId string) flexible 0+:
    memberEpoch int32, previousMemberEpoch int32, state int8,
    assignedPartitions []TopicPartitions.epochs,
    partitionsPendingRevocation []TopicPartitions.epochs
10 ShareGroupMemberMetadata (groupId string, memberId string) flexible 0+:
    rackId string?, clientId string, clientHost string, subscribedTopicNames []string
11 ShareGroupMetadata (groupId string) flexible 0+:
    epoch int32, metadataHash int64
12 ShareGroupTargetAssignmentMetadata (groupId string) flexible 0+:
    assignmentEpoch int32, assignmentTimestamp int64 tag 0 from 4.3
13 ShareGroupTargetAssignmentMember (groupId string, memberId string) flexible 0+:
    topicPartitions []TopicPartition
14 ShareGroupCurrentMemberAssignment (groupId string, memberId string) flexible 0+:
    memberEpoch int32, previousMemberEpoch int32, state int8,
    assignedPartitions []TopicPartitions
15 ShareGroupStatePartitionMetadata (groupId string) flexible 0+:
    initializingTopics []TopicPartitionsInfo, initializedTopics []TopicPartitionsInfo,
    deletingTopics []TopicInfo
16 ConsumerGroupRegularExpression (groupId string, regularExpression string)
    flexible 0+: topics []string, version int64, timestamp int64
17 StreamsGroupMetadata (groupId string) flexible 0+:
    epoch int32, metadataHash int64, validatedTopologyEpoch int32 tag 0 = -1,
    lastAssignmentConfigs []KeyValue? tag 1,
    storedDescriptionTopologyEpoch int32 tag 2 = -1 from 4.4,
    failedDescriptionTopologyEpoch int32 tag 3 = -1 from 4.4
19 StreamsGroupMemberMetadata (groupId string, memberId string) flexible 0+:
    instanceId string?, rackId string?, clientId string, clientHost string,
    rebalanceTimeoutMs int32, topologyEpoch int32, processId string,
    userEndpoint Endpoint?, clientTags []KeyValue
20 StreamsGroupTargetAssignmentMetadata (groupId string) flexible 0+:
    assignmentEpoch int32, assignmentTimestamp int64 tag 0 from 4.3
21 StreamsGroupTargetAssignmentMember (groupId string, memberId string) flexible 0+:
    activeTasks []TaskIds, standbyTasks []TaskIds, warmupTasks []TaskIds
22 StreamsGroupCurrentMemberAssignment (groupId string, memberId string) flexible 0+:
    memberEpoch int32, previousMemberEpoch int32, state int8,
    activeTasks []TaskIds.epochs, standbyTasks []TaskIds.epochs,
    warmupTasks []TaskIds.epochs, activeTasksPendingRevocation []TaskIds.epochs,
    standbyTasksPendingRevocation []TaskIds.epochs,
    warmupTasksPendingRevocation []TaskIds.epochs
23 StreamsGroupTopology (groupId string) flexible 0+:
    epoch int32, subtopologies []Subtopology
""",
    "__transaction_state": """
0 TransactionLog (transactionalId string) 0-1 flexible 1+:
    producerId int64, previousProducerId int64 1+ tag 0 = -1,
    nextProducerId int64 1+ tag 1 = -1, producerEpoch int16,
    nextProducerEpoch int16 1+ tag 3 = -1, transactionTimeoutMs int32,
    transactionStatus int8, transactionPartitions []PartitionsSchema?,
    transactionLastUpdateTimestampMs int64, transactionStartTimestampMs int64,
    clientTransactionVersion int16 1+ tag 2
""",
    "__share_group_state": """
0 ShareSnapshot (groupId string, topicId uuid, partition int32) flexible 0+:
    snapshotEpoch int32, stateEpoch int32, leaderEpoch int32, startOffset int64,
    deliveryCompleteCount int32 tag 0 = -1, createTimestamp int64,
    writeTimestamp int64, stateBatches []StateBatch
1 ShareUpdate (groupId string, topicId uuid, partition int32) flexible 0+:
    snapshotEpoch int32, leaderEpoch int32, startOffset int64,
    deliveryCompleteCount int32 tag 0 = -1, stateBatches []StateBatch
""",
}

# The subscription and the assignment of a consumer in a classic group, the values of
# control records, and the records of KRaft's metadata log that `verify` reads.
_OTHERS: Final = """
ConsumerProtocolSubscription 0-3+:
    topics []string, userData bytes?, ownedPartitions []TopicPartition.name 1+,
    generationId int32 2+, rackId string? 3+
ConsumerProtocolAssignment 0-3+:
    assignedPartitions []TopicPartition.name, userData bytes?
LeaderChangeMessage flexible 0+:
    version int16, leaderId int32, voters []Voter.id, grantingVoters []Voter.id
SnapshotHeaderRecord flexible 0+: version int16, lastContainedLogTimestamp int64
SnapshotFooterRecord flexible 0+: version int16
KRaftVersionRecord flexible 0+: version int16, kRaftVersion int16
VotersRecord flexible 0+: version int16, voters []Voter
TopicRecord 0-0+ flexible 0+: name string, topicId uuid
RemoveTopicRecord 0-0+ flexible 0+: topicId uuid
FeatureLevelRecord 0-0+ flexible 0+: name string, featureLevel int16
"""

# The structs in messages. Two of the same name differ in a suffix after a point.
_STRUCTS: Final = """
ClassicMemberMetadata: sessionTimeoutMs int32, supportedProtocols []ClassicProtocol
ClassicProtocol: name string, metadata bytes
CopartitionGroup:
    sourceTopics []int16, sourceTopicRegex []int16, repartitionSourceTopics []int16
Endpoint: host string, port uint16
Endpoint.voter: name string, host string, port uint16
KRaftVersionFeature: minSupportedVersion int16, maxSupportedVersion int16
KeyValue: key string, value string
MemberMetadata:
    memberId string, groupInstanceId string? 3+, clientId string, clientHost string,
    rebalanceTimeout int32 1+, sessionTimeout int32, subscription bytes,
    assignment bytes
PartitionMetadata: partition int32, racks []string
PartitionsSchema: topic string, partitionIds []int32
StateBatch:
    firstOffset int64, lastOffset int64, deliveryState int8, deliveryCount int16
Subtopology:
    subtopologyId string, sourceTopics []string, sourceTopicRegex []string,
    stateChangelogTopics []TopicInfo.configs, repartitionSinkTopics []string,
    repartitionSourceTopics []TopicInfo.configs, copartitionGroups []CopartitionGroup
TaskIds: subtopologyId string, partitions []int32
TaskIds.epochs:
    subtopologyId string, partitions []int32, assignmentEpochs []int32? tag 0
TopicInfo: topicId uuid, topicName string
TopicInfo.configs:
    name string, partitions int32, replicationFactor int16, topicConfigs []KeyValue
TopicMetadata:
    topicId uuid, topicName string, numPartitions int32,
    partitionMetadata []PartitionMetadata
TopicPartition: topicId uuid, partitions []int32
TopicPartition.name: topic string, partitions []int32
TopicPartitions: topicId uuid, partitions []int32
TopicPartitions.epochs:
    topicId uuid, partitions []int32, assignmentEpochs []int32? tag 0 from 4.3
TopicPartitionsInfo: topicId uuid, topicName string, partitions []int32
Voter:
    voterId int32, voterDirectoryId uuid, endpoints []Endpoint.voter,
    kRaftVersionFeature KRaftVersionFeature
Voter.id: voterId int32
"""

_ENTRY: Final = re.compile(
    r"^(?:(?P<type>\d+) )?(?P<name>[\w.]+)(?: \((?P<key>.+)\))?"
    r"(?: 0-(?P<newest>\d+)(?P<open>\+)?)?(?:\s+flexible (?P<flexible>\d+)\+)?:"
    r"(?P<fields>(?:.+|\n +)+)",
    re.MULTILINE,
)
_FIELD: Final = re.compile(
    r"(?P<name>\w+) (?P<array>\[\])?(?P<type>[\w.]+)(?P<nullable>\?)?"
    r"(?: (?P<since>\d+)(?:\+|-(?P<until>\d+)))?(?: tag (?P<tag>\d+))?"
    r"(?: = (?P<default>-?\d+))?(?: from (?P<release>[\d.]+))?"
)
_STRUCT_TEXTS: Final = {
    entry["name"]: entry["fields"] for entry in _ENTRY.finditer(_STRUCTS)
}
_NO_UUID: Final = "A" * 22


@functools.cache
def _struct(name: str) -> Struct:
    return Struct(name.partition(".")[0], _fields(_STRUCT_TEXTS[name]))


def _fields(text: str) -> tuple[Field, ...]:
    return tuple(_field(field_text) for field_text in re.split(r",\s+", text.strip()))


def _field(text: str) -> Field:
    part = _FIELD.fullmatch(text)
    assert part is not None, text
    name = part["name"]
    kind = _struct(part["type"]) if part["type"] in _STRUCT_TEXTS else part["type"]
    item = Field(f"{name} element", kind) if part["array"] else None
    kind = "array" if item else kind
    return Field(
        name,
        kind,
        item,
        part["nullable"] is not None,
        int(part["since"] or 0),
        int(part["until"] or NEVER),
        int(part["tag"] or -1),
        None if part["tag"] is None else int(part["default"] or 0) or _default(kind),
        part["release"] or "",
    )


def _default(kind: str | Struct) -> Any:
    """The default that Kafka gives to a field of a type."""
    if isinstance(kind, Struct):
        return {field.name: _default(field.type) for field in kind.fields}
    if kind in NUMBERS:
        return 0
    return {"uuid": _NO_UUID, "array": [], "string": "", "bytes": b""}[kind]


def _message(entry: re.Match[str], name: str) -> Message:
    return Message(
        name,
        _fields(entry["fields"]),
        int(entry["newest"] or 0),
        entry["open"] is not None,
        int(entry["flexible"] or NEVER),
    )


@functools.cache
def messages(topic: str) -> dict[int, tuple[Message, Message]]:
    """Key and value of the records of an internal topic, by the type of a record: the
    number with which its key begins.

    Args:
        topic: ``__consumer_offsets``, ``__transaction_state`` or
            ``__share_group_state``.

    Raises:
        KeyError: the records of the topic are not known.
    """
    return {
        int(entry["type"]): (
            Message(f"{entry['name']}Key", _fields(entry["key"]), int(entry["type"])),
            _message(entry, f"{entry['name']}Value"),
        )
        for entry in _ENTRY.finditer(_RECORDS[topic])
    }


@functools.cache
def message(name: str) -> Message:
    """A message by the name that Kafka has for it, for messages outside of the records
    of internal topics: ``ConsumerProtocolSubscription`` and
    ``ConsumerProtocolAssignment``, which a group's record contains as bytes, and the
    values of KRaft's control records, as ``VotersRecord``.

    Raises:
        KeyError: it is not known.
    """
    entries = {entry["name"]: entry for entry in _ENTRY.finditer(_OTHERS)}
    return _message(entries[name], name)
