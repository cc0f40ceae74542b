"""The messages that Kafka keeps in the records of its internal topics."""

from __future__ import annotations

from typing import Final

from logstore.cli.kafka.messages import Array, Field, Message, Struct

__all__ = [
    "ASSIGNMENT",
    "CONTROL",
    "GROUP",
    "LEADER_CHANGE",
    "SHARE",
    "SUBSCRIPTION",
    "TRANSACTION",
]

_NO_TOPIC: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_GROUP = (Field("group", "string"),)
_GROUP_ID = (Field("groupId", "string"),)
_MEMBER = (*_GROUP_ID, Field("memberId", "string"))
_PARTITIONS = Field("partitions", Array("int32"))
_TOPIC_IDS = Array(Struct("TopicPartitions", (Field("topicId", "uuid"), _PARTITIONS)))
_TARGET_IDS = Array(Struct("TopicPartition", (Field("topicId", "uuid"), _PARTITIONS)))
_TOPICS = Array(Struct("TopicPartition", (Field("topic", "string"), _PARTITIONS)))
_OFFSET_KEY = (*_GROUP, Field("topic", "string"), Field("partition", "int32"))
_PAIRS = Array(Struct("KeyValue", (Field("key", "string"), Field("value", "string"))))
_ASSIGNMENT_EPOCH = (Field("assignmentEpoch", "int32"),)


def _nullable(name: str, kind: str = "string", since: int = 0) -> Field:
    return Field(name, kind, since, is_nullable=True)


_OFFSET_VALUE = Message(
    "OffsetCommitValue",
    (
        Field("offset", "int64"),
        Field("leaderEpoch", "int32", 3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", 1, 1),
        Field("topicId", "uuid", 4, tag=0, default=_NO_TOPIC, release="4.2"),
    ),
    4,
    4,
)
_LEGACY_OFFSET_VALUE = Message(
    "LegacyOffsetCommitValue",
    (
        Field("offset", "int64"),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
    ),
)
_GROUP_VALUE = Message(
    "GroupMetadataValue",
    (
        Field("protocolType", "string"),
        Field("generation", "int32"),
        _nullable("protocol"),
        _nullable("leader"),
        Field("currentStateTimestamp", "int64", 2),
        Field(
            "members",
            Array(
                Struct(
                    "MemberMetadata",
                    (
                        Field("memberId", "string"),
                        _nullable("groupInstanceId", since=3),
                        Field("clientId", "string"),
                        Field("clientHost", "string"),
                        Field("rebalanceTimeout", "int32", 1),
                        Field("sessionTimeout", "int32"),
                        Field("subscription", "bytes"),
                        Field("assignment", "bytes"),
                    ),
                )
            ),
        ),
    ),
    4,
    4,
)
_CLASSIC_MEMBER = Struct(
    "ClassicMemberMetadata",
    (
        Field("sessionTimeoutMs", "int32"),
        Field(
            "supportedProtocols",
            Array(
                Struct(
                    "ClassicProtocol",
                    (Field("name", "string"), Field("metadata", "bytes")),
                )
            ),
        ),
    ),
)
_MEMBER_VALUE = (
    _nullable("instanceId"),
    _nullable("rackId"),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", Array("string")),
    _nullable("subscribedTopicRegex"),
    Field("rebalanceTimeoutMs", "int32"),
    _nullable("serverAssignor"),
    Field(
        "classicMemberMetadata",
        _CLASSIC_MEMBER,
        is_nullable=True,
        tag=0,
        default={"sessionTimeoutMs": 0, "supportedProtocols": []},
    ),
)
_RACKS = Array(
    Struct(
        "PartitionMetadata",
        (Field("partition", "int32"), Field("racks", Array("string"))),
    )
)
_TOPIC_METADATA = Struct(
    "TopicMetadata",
    (
        Field("topicId", "uuid"),
        Field("topicName", "string"),
        Field("numPartitions", "int32"),
        Field("partitionMetadata", _RACKS),
    ),
)
_CURRENT = (
    Field("memberEpoch", "int32"),
    Field("previousMemberEpoch", "int32"),
    Field("state", "int8"),
    Field("assignedPartitions", _TOPIC_IDS),
)
_SHARE_MEMBER = (
    _nullable("rackId"),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("subscribedTopicNames", Array("string")),
)
_NAMED_TOPIC = (Field("topicId", "uuid"), Field("topicName", "string"))
_NAMED_TOPICS = Array(Struct("TopicPartitionsInfo", (*_NAMED_TOPIC, _PARTITIONS)))
_TASK = (Field("subtopologyId", "string"), _PARTITIONS)
_TASKS = Array(Struct("TaskIds", _TASK))
_EPOCH_TASKS = Array(
    Struct(
        "TaskIds",
        (
            *_TASK,
            Field(
                "assignmentEpochs", Array("int32"), is_nullable=True, tag=0, default=[]
            ),
        ),
    )
)
_TOPIC_INFOS = Array(
    Struct(
        "TopicInfo",
        (
            Field("name", "string"),
            Field("partitions", "int32"),
            Field("replicationFactor", "int16"),
            Field("topicConfigs", _PAIRS),
        ),
    )
)
_COPARTITION = Array(
    Struct(
        "CopartitionGroup",
        (
            Field("sourceTopics", Array("int16")),
            Field("sourceTopicRegex", Array("int16")),
            Field("repartitionSourceTopics", Array("int16")),
        ),
    )
)
_SUBTOPOLOGIES = Array(
    Struct(
        "Subtopology",
        (
            Field("subtopologyId", "string"),
            Field("sourceTopics", Array("string")),
            Field("sourceTopicRegex", Array("string")),
            Field("stateChangelogTopics", _TOPIC_INFOS),
            Field("repartitionSinkTopics", Array("string")),
            Field("repartitionSourceTopics", _TOPIC_INFOS),
            Field("copartitionGroups", _COPARTITION),
        ),
    )
)
_ENDPOINT = Struct("Endpoint", (Field("host", "string"), Field("port", "uint16")))
_STREAMS_MEMBER = (
    _nullable("instanceId"),
    _nullable("rackId"),
    Field("clientId", "string"),
    Field("clientHost", "string"),
    Field("rebalanceTimeoutMs", "int32"),
    Field("topologyEpoch", "int32"),
    Field("processId", "string"),
    Field("userEndpoint", _ENDPOINT, is_nullable=True),
    Field("clientTags", _PAIRS),
)


def _value(name: str, *fields: Field) -> Message:
    return Message(f"{name}Value", fields, 0)


def _key(name: str, *fields: Field) -> Message:
    return Message(f"{name}Key", fields)


def _both(name: str, key: tuple[Field, ...], *value: Field) -> tuple[Message, Message]:
    return _key(name, *key), _value(name, *value)


# Key and value of each type of record in `__consumer_offsets`, by the number with which
# the key begins.
GROUP: Final[dict[int, tuple[Message, Message]]] = {
    0: (_key("LegacyOffsetCommit", *_OFFSET_KEY), _LEGACY_OFFSET_VALUE),
    1: (_key("OffsetCommit", *_OFFSET_KEY), _OFFSET_VALUE),
    2: (_key("GroupMetadata", *_GROUP), _GROUP_VALUE),
    3: _both(
        "ConsumerGroupMetadata",
        _GROUP_ID,
        Field("epoch", "int32"),
        Field("metadataHash", "int64", tag=0, default=0, release="4.2"),
    ),
    4: _both(
        "ConsumerGroupPartitionMetadata",
        _GROUP_ID,
        Field("topics", Array(_TOPIC_METADATA)),
    ),
    5: _both("ConsumerGroupMemberMetadata", _MEMBER, *_MEMBER_VALUE),
    6: _both("ConsumerGroupTargetAssignmentMetadata", _GROUP_ID, *_ASSIGNMENT_EPOCH),
    7: _both(
        "ConsumerGroupTargetAssignmentMember",
        _MEMBER,
        Field("topicPartitions", _TARGET_IDS),
    ),
    8: _both(
        "ConsumerGroupCurrentMemberAssignment",
        _MEMBER,
        *_CURRENT,
        Field("partitionsPendingRevocation", _TOPIC_IDS),
    ),
    10: _both("ShareGroupMemberMetadata", _MEMBER, *_SHARE_MEMBER),
    11: _both(
        "ShareGroupMetadata",
        _GROUP_ID,
        Field("epoch", "int32"),
        Field("metadataHash", "int64"),
    ),
    12: _both("ShareGroupTargetAssignmentMetadata", _GROUP_ID, *_ASSIGNMENT_EPOCH),
    13: _both(
        "ShareGroupTargetAssignmentMember",
        _MEMBER,
        Field("topicPartitions", _TARGET_IDS),
    ),
    14: _both("ShareGroupCurrentMemberAssignment", _MEMBER, *_CURRENT),
    15: _both(
        "ShareGroupStatePartitionMetadata",
        _GROUP_ID,
        Field("initializingTopics", _NAMED_TOPICS),
        Field("initializedTopics", _NAMED_TOPICS),
        Field("deletingTopics", Array(Struct("TopicInfo", _NAMED_TOPIC))),
    ),
    16: _both(
        "ConsumerGroupRegularExpression",
        (*_GROUP_ID, Field("regularExpression", "string")),
        Field("topics", Array("string")),
        Field("version", "int64"),
        Field("timestamp", "int64"),
    ),
    17: _both(
        "StreamsGroupMetadata",
        _GROUP_ID,
        Field("epoch", "int32"),
        Field("metadataHash", "int64"),
        Field("validatedTopologyEpoch", "int32", tag=0, default=-1),
        Field("lastAssignmentConfigs", _PAIRS, is_nullable=True, tag=1, default=[]),
    ),
    19: _both("StreamsGroupMemberMetadata", _MEMBER, *_STREAMS_MEMBER),
    20: _both("StreamsGroupTargetAssignmentMetadata", _GROUP_ID, *_ASSIGNMENT_EPOCH),
    21: _both(
        "StreamsGroupTargetAssignmentMember",
        _MEMBER,
        Field("activeTasks", _TASKS),
        Field("standbyTasks", _TASKS),
        Field("warmupTasks", _TASKS),
    ),
    22: _both(
        "StreamsGroupCurrentMemberAssignment",
        _MEMBER,
        Field("memberEpoch", "int32"),
        Field("previousMemberEpoch", "int32"),
        Field("state", "int8"),
        Field("activeTasks", _EPOCH_TASKS),
        Field("standbyTasks", _EPOCH_TASKS),
        Field("warmupTasks", _EPOCH_TASKS),
        Field("activeTasksPendingRevocation", _EPOCH_TASKS),
        Field("standbyTasksPendingRevocation", _EPOCH_TASKS),
        Field("warmupTasksPendingRevocation", _EPOCH_TASKS),
    ),
    23: _both(
        "StreamsGroupTopology",
        _GROUP_ID,
        Field("epoch", "int32"),
        Field("subtopologies", _SUBTOPOLOGIES),
    ),
}

# The same in `__transaction_state`.
TRANSACTION: Final[dict[int, tuple[Message, Message]]] = {
    0: (
        _key("TransactionLog", Field("transactionalId", "string")),
        Message(
            "TransactionLogValue",
            (
                Field("producerId", "int64"),
                Field("previousProducerId", "int64", 1, tag=0, default=-1),
                Field("nextProducerId", "int64", 1, tag=1, default=-1),
                Field("producerEpoch", "int16"),
                Field("nextProducerEpoch", "int16", 1, tag=3, default=-1),
                Field("transactionTimeoutMs", "int32"),
                Field("transactionStatus", "int8"),
                Field(
                    "transactionPartitions",
                    Array(
                        Struct(
                            "PartitionsSchema",
                            (
                                Field("topic", "string"),
                                Field("partitionIds", Array("int32")),
                            ),
                        )
                    ),
                    is_nullable=True,
                ),
                Field("transactionLastUpdateTimestampMs", "int64"),
                Field("transactionStartTimestampMs", "int64"),
                Field("clientTransactionVersion", "int16", 1, tag=2, default=0),
            ),
            1,
            1,
        ),
    ),
}

_SHARE_KEY = (*_GROUP_ID, Field("topicId", "uuid"), Field("partition", "int32"))
_DELIVERED = Field("deliveryCompleteCount", "int32", tag=0, default=-1)
_BATCHES = Field(
    "stateBatches",
    Array(
        Struct(
            "StateBatch",
            (
                Field("firstOffset", "int64"),
                Field("lastOffset", "int64"),
                Field("deliveryState", "int8"),
                Field("deliveryCount", "int16"),
            ),
        )
    ),
)
# The same in `__share_group_state`.
SHARE: Final[dict[int, tuple[Message, Message]]] = {
    0: _both(
        "ShareSnapshot",
        _SHARE_KEY,
        Field("snapshotEpoch", "int32"),
        Field("stateEpoch", "int32"),
        Field("leaderEpoch", "int32"),
        Field("startOffset", "int64"),
        _DELIVERED,
        Field("createTimestamp", "int64"),
        Field("writeTimestamp", "int64"),
        _BATCHES,
    ),
    1: _both(
        "ShareUpdate",
        _SHARE_KEY,
        Field("snapshotEpoch", "int32"),
        Field("leaderEpoch", "int32"),
        Field("startOffset", "int64"),
        _DELIVERED,
        _BATCHES,
    ),
}

# The subscription and the assignment of a consumer in a classic group.
SUBSCRIPTION: Final = Message(
    "ConsumerProtocolSubscription",
    (
        Field("topics", Array("string")),
        _nullable("userData", "bytes"),
        Field("ownedPartitions", _TOPICS, 1),
        Field("generationId", "int32", 2),
        _nullable("rackId", since=3),
    ),
    newest=3,
)
ASSIGNMENT: Final = Message(
    "ConsumerProtocolAssignment",
    (Field("assignedPartitions", _TOPICS), _nullable("userData", "bytes")),
    newest=3,
)

_VERSION = Field("version", "int16")
_VERSION_RANGE = Struct(
    "KRaftVersionFeature",
    (Field("minSupportedVersion", "int16"), Field("maxSupportedVersion", "int16")),
)
_VOTER = Struct(
    "Voter",
    (
        Field("voterId", "int32"),
        Field("voterDirectoryId", "uuid"),
        Field(
            "endpoints",
            Array(
                Struct(
                    "Endpoint",
                    (
                        Field("name", "string"),
                        Field("host", "string"),
                        Field("port", "uint16"),
                    ),
                )
            ),
        ),
        Field("kRaftVersionFeature", _VERSION_RANGE),
    ),
)
_VOTERS = Array(Struct("Voter", (Field("voterId", "int32"),)))
# The value of the record with which a leader begins; only in the text of 4.2.
LEADER_CHANGE: Final = Message(
    "LeaderChange:",
    (
        _VERSION,
        Field("leaderId", "int32"),
        Field("voters", _VOTERS),
        Field("grantingVoters", _VOTERS),
    ),
    0,
)
# The values of KRaft's control records, by their type, and their names in the text.
CONTROL: Final[dict[int, Message]] = {
    3: Message(
        "SnapshotHeader", (_VERSION, Field("lastContainedLogTimestamp", "int64")), 0
    ),
    4: Message("SnapshotFooter", (_VERSION,), 0),
    5: Message("KRaftVersion", (_VERSION, Field("kRaftVersion", "int16")), 0),
    6: Message("KRaftVoters", (_VERSION, Field("voters", Array(_VOTER))), 0),
}
