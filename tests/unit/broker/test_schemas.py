"""The tables of Kafka's messages: each can be read, and reads a message of its form."""

from __future__ import annotations

import random
from typing import Any

import pytest

from logstore.broker.fields import Field, Message, MessageError
from logstore.broker.schemas import message, messages
from support.kafka_messages import random_message

TOPICS = {
    "__consumer_offsets": {*range(9), *range(10, 18), *range(19, 24)},
    "__transaction_state": {0},
    "__share_group_state": {0, 1},
}
OTHERS = (
    "ConsumerProtocolSubscription",
    "ConsumerProtocolAssignment",
    "LeaderChangeMessage",
    "SnapshotHeaderRecord",
    "SnapshotFooterRecord",
    "KRaftVersionRecord",
    "VotersRecord",
    "TopicRecord",
    "RemoveTopicRecord",
)
ALL = {
    **{
        one.name: one
        for topic in TOPICS
        for pair in messages(topic).values()
        for one in pair
    },
    **{name: message(name) for name in OTHERS},
}


def strictly(kind: Message, data: bytes) -> dict[str, Any] | None:
    """The values of a random message; None: it has a negative offset or partition."""
    try:
        return kind.decode(data)
    except MessageError as error:
        if "it is -" not in str(error):
            raise
    return None


@pytest.mark.parametrize("topic", TOPICS)
def test_types_of_records_are_those_of_kafka(topic: str) -> None:
    """A type is the number with which a key begins; key and value have its name."""
    tables = messages(topic)
    assert tables.keys() == TOPICS[topic]
    for kind, (key, value) in tables.items():
        assert key.newest == kind
        assert key.name.removesuffix("Key") == value.name.removesuffix("Value")


@pytest.mark.parametrize("name", ALL)
def test_message_of_any_version_is_read_in_both_ways(name: str) -> None:
    """Strictly, and as Kafka's classes read, which accept no less: the same values."""
    kind, rng = ALL[name], random.Random(7)
    newest = kind.newest + 2 if kind.is_open else kind.newest
    found = 0
    for _ in range(60):
        data = random_message(rng, kind, rng.randint(0, newest))
        values = strictly(kind, data)
        if values is None:
            continue
        found += 1
        if int.from_bytes(data[:2], "big") <= kind.newest:
            assert kind.decode(data, errors="replace") == values
    assert found > 5


def test_fields_of_a_table() -> None:
    """Each part of its notation."""
    topic_id = Field("topicId", "uuid", None, False, 4, 1 << 15, 0, "A" * 22, "4.2")
    assert ALL["OffsetCommitValue"].fields == (
        Field("offset", "uint63"),
        Field("leaderEpoch", "int32", since=3),
        Field("metadata", "string"),
        Field("commitTimestamp", "int64"),
        Field("expireTimestamp", "int64", since=1, until=1),
        topic_id,
    )
    value = ALL["OffsetCommitValue"]
    assert (value.newest, value.flexible, value.is_open) == (4, 4, False)
    group = ALL["StreamsGroupMetadataValue"]
    epoch, configs, stored, failed = group.fields[2:]
    assert (epoch.tag, epoch.default, epoch.is_nullable) == (0, -1, False)
    assert (configs.tag, configs.default, configs.is_nullable) == (1, [], True)
    assert configs.type == "array"
    assert (stored.tag, stored.release) == (failed.tag - 1, "4.4") == (2, "4.4")
    assert configs.item is not None
    pair = configs.item.type
    assert not isinstance(pair, str)
    assert (pair.name, [field.name for field in pair.fields]) == (
        "KeyValue",
        ["key", "value"],
    )
    classic = ALL["ConsumerGroupMemberMetadataValue"].fields[-1]
    assert classic.default == {"sessionTimeoutMs": 0, "supportedProtocols": []}
    assert isinstance(ALL["ConsumerProtocolSubscription"], Message)
    assert ALL["ConsumerProtocolSubscription"].is_open
