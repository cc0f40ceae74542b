"""Kafka's records about groups: bytes of Kafka's own classes, and malformed bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import logstore
from logstore.broker import consumer_records
from logstore.broker import kafka_records as records
from logstore.broker.consumer_records import ConsumerMember, MemberAssignment
from logstore.broker.kafka_records import (
    Assignment,
    GroupKey,
    GroupMember,
    GroupMetadata,
    MemberKey,
    MessageError,
    OffsetCommit,
    OffsetKey,
    OtherKey,
    Subscription,
)
from logstore.broker.schemas import messages
from logstore.io.layout import TopicPartition
from support.golden import SLICE
from support.group_records import MADE_BY_KAFKA

TOPIC_ID = "000102030405060708090a0b0c0d0e0f"
OFFSET_KEY = OffsetKey("g", "t", 3)
GROUP_KEY = GroupKey(2, "g")
COMMIT = OffsetCommit(
    "g", "t", 3, 4711, 7, "müll", 1700000000123, 1700000999999, TOPIC_ID
)
MEMBER = GroupMember(
    "member-1", "static", "client", "/127.0.0.1", 300000, 45000, b"\1\2\3", b""
)
GROUP = GroupMetadata("g", "consumer", 3, "range", "member-1", 1700000000456, (MEMBER,))
PARTITIONS = tuple(
    TopicPartition(topic, number) for topic, number in (("t", 0), ("t", 2), ("u", 1))
)
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "key": records.parse_key,
    "offset": lambda data: records.parse_offset_value(OFFSET_KEY, data),
    "group": lambda data: records.parse_group_value(GROUP_KEY, data),
    "subscription": records.parse_subscription,
    "assignment": records.parse_assignment,
    "epoch": consumer_records.parse_epoch,
    "target-epoch": lambda data: consumer_records.parse_epoch(data, 6),
    "streams": messages("__consumer_offsets")[17][1].decode,
    "member": consumer_records.parse_consumer_member,
    "target": messages("__consumer_offsets")[7][1].decode,
    "current": consumer_records.parse_member_assignment,
}


@pytest.mark.parametrize("metadata", ["", "m\u00fcll", "x" * 200])
@pytest.mark.parametrize("topic_id", [None, TOPIC_ID])
@pytest.mark.parametrize("proof", [None, 0x01020304])
def test_places_in_the_value_of_a_commit(
    metadata: str, topic_id: str | None, proof: int | None
) -> None:
    """A value with other numbers at these places is the value of another commit."""
    first, second = (
        OffsetCommit("g", "t", 3, offset, 7, metadata, time, None, topic_id, other)
        for offset, time, other in ((1, 2, proof), (1 << 40, 1 << 41, proof and 5))
    )
    offset_pos, time_pos, proof_pos = records.offset_value_places(first)
    assert (proof_pos is None) == (proof is None)
    data = bytearray(records.format_offset_value(first))
    data[offset_pos : offset_pos + 8] = (1 << 40).to_bytes(8, "big")
    data[time_pos : time_pos + 8] = (1 << 41).to_bytes(8, "big")
    if proof_pos is not None:
        data[proof_pos : proof_pos + 4] = (5).to_bytes(4, "big")
    assert data == records.format_offset_value(second)


def made(name: str) -> bytes:
    return MADE_BY_KAFKA[name]


def parser_of(name: str) -> Callable[[bytes], Any]:
    if name.startswith("target-epoch"):
        return PARSERS["target-epoch"]
    kind = name.split("-", maxsplit=1)[0].rstrip("0123456789")
    return PARSERS[kind]


def has_result(parse: Callable[[bytes], Any], data: bytes) -> bool:
    """Whether bytes give a value, or the named error at one of them."""
    try:
        parse(data)
    except MessageError as error:
        return 0 <= error.position <= len(data)
    return True


def version_of_commit(version: int) -> OffsetCommit:
    """`COMMIT` without the fields that a version does not have."""
    return dataclasses.replace(
        COMMIT,
        leader_epoch=7 if version >= 3 else -1,
        expire_ms=COMMIT.expire_ms if version == 1 else None,
        topic_id=TOPIC_ID if version == 4 else None,
    )


def version_of_group(version: int) -> GroupMetadata:
    member = dataclasses.replace(
        MEMBER,
        instance_id="static" if version >= 3 else None,
        rebalance_timeout_ms=300000 if version >= 1 else -1,
    )
    state_ms = GROUP.state_ms if version >= 2 else -1
    return dataclasses.replace(GROUP, state_ms=state_ms, members=(member,))


# ------------------------------------------------------------------ Kafka's bytes


@pytest.mark.parametrize("version", range(5))
def test_offset_value_of_each_version_is_what_kafka_writes(version: int) -> None:
    """Each version of a committed offset is read, and written, as Kafka does."""
    commit, data = version_of_commit(version), made(f"offset{version}")
    assert records.parse_offset_value(OFFSET_KEY, data) == commit
    assert records.format_offset_value(commit, version) == data


@pytest.mark.parametrize("version", range(5))
def test_group_value_of_each_version_is_what_kafka_writes(version: int) -> None:
    """Each version of a group with members is read, and written, as Kafka does."""
    group, data = version_of_group(version), made(f"group{version}")
    assert records.parse_group_value(GROUP_KEY, data) == group
    assert records.format_group_value(group, version) == data


def test_values_without_their_optional_fields_are_read() -> None:
    """No topic id, no leader, no members: null and absent are not empty."""
    commit = records.parse_offset_value(OFFSET_KEY, made("offset4-no-topic"))
    assert commit == OffsetCommit("g", "t", 3, 1, -1, "", 2, None, None)
    group = records.parse_group_value(GROUP_KEY, made("group3-empty"))
    assert group == GroupMetadata("g", "", 0, None, None, 5, ())
    assert records.format_group_value(group) == made("group3-empty")


def test_version_written_without_a_choice_is_that_of_kafka() -> None:
    """1 with an expiry, 4 with a topic's id, else 3."""
    for version in (1, 3, 4):
        commit = version_of_commit(version)
        assert records.format_offset_value(commit)[:2] == bytes([0, version])


@pytest.mark.parametrize("version", range(4))
def test_consumer_protocol_of_each_version_is_read(version: int) -> None:
    """Subscriptions and assignments of every client's version are read."""
    subscription = records.parse_subscription(made(f"subscription{version}"))
    assert subscription == Subscription(
        ("t", "u"),
        b"\t",
        PARTITIONS if version >= 1 else (),
        5 if version >= 2 else -1,
        "rack" if version >= 3 else None,
    )
    assignment = records.parse_assignment(made(f"assignment{version}"))
    assert assignment == Assignment(PARTITIONS)


def test_consumer_protocol_is_written_as_kafka_writes_it() -> None:
    """The newest versions are the same bytes."""
    subscription = Subscription(("t", "u"), b"\t", PARTITIONS, 5, "rack")
    assert records.format_subscription(subscription) == made("subscription3")
    assert records.format_assignment(Assignment(PARTITIONS)) == made("assignment3")


def test_consumer_protocol_of_a_later_version_is_read_as_far_as_known() -> None:
    """Kafka promises that later versions only add fields at the end."""
    later = b"\0\x09" + made("subscription3")[2:] + b"more"
    assert records.parse_subscription(later).rack == "rack"
    later = b"\0\x09" + made("assignment3")[2:] + b"more"
    assert records.parse_assignment(later).partitions == PARTITIONS


def test_assignment_without_bytes_is_empty() -> None:
    """A member that was not yet assigned anything has an empty assignment."""
    assert records.parse_assignment(b"") == Assignment(())


def test_newer_protocol_is_read() -> None:
    """The records of the newer group protocol that name members and partitions."""
    assert consumer_records.parse_epoch(made("epoch")) == 12
    assert consumer_records.parse_epoch(made("epoch-hash")) == 12
    assert consumer_records.parse_epoch(made("target-epoch"), 6) == 13
    assert consumer_records.parse_epoch(made("target-epoch-time"), 6) == 13
    # A tag of one type says nothing about the same tag of the other.
    with_tag = made("target-epoch")[:-1] + b"\1\1\3abc"
    assert consumer_records.parse_epoch(with_tag, 6) == 13
    with_tag = made("target-epoch")[:-1] + b"\1\0\3abc"
    with pytest.raises(MessageError, match="assignmentTimestamp at byte 9: 8 bytes"):
        consumer_records.parse_epoch(with_tag, 6)
    with pytest.raises(MessageError, match="metadataHash at byte 9: it has 3 bytes"):
        consumer_records.parse_epoch(with_tag + b"more!", 3)
    member = ConsumerMember(None, "r", "c", "/h", ("t",), "x.*", 300000, "uniform")
    assert parser_of("member")(made("member")) == member
    with_classic = dataclasses.replace(member, classic_timeout_ms=45000)
    assert parser_of("member")(made("member-classic")) == with_classic
    both = ((TOPIC_ID, 0), (TOPIC_ID, 3))
    topic_id = "AAECAwQFBgcICQoLDA0ODw"  # as Kafka writes it
    target = {"topicPartitions": [{"topicId": topic_id, "partitions": [0, 3]}]}
    assert parser_of("target")(made("target-member")) == target
    current = MemberAssignment(4, 3, 1, both[:1], both[1:])
    assert parser_of("current")(made("current")) == current
    with_epochs = MemberAssignment(4, 3, 1, both, ())
    assert parser_of("current")(made("current-epochs")) == with_epochs


def test_fields_of_a_later_release_are_left_out_for_an_earlier_one() -> None:
    """Releases 4.3 and 4.4 have added fields, as Kafka 4.4 writes them."""
    tables = messages("__consumer_offsets")
    target, current, streams = (tables[kind][1] for kind in (6, 8, 17))
    data = made("target-epoch-time")
    epoch = {"assignmentEpoch": 13}
    assert target.decode(data, release="4.2") == epoch
    timed = {**epoch, "assignmentTimestamp": 1700000000789}
    assert target.decode(data, release="4.3") == target.decode(data) == timed
    data = made("current-epochs")
    (old,) = current.decode(data, release="4.2")["assignedPartitions"]
    (new,) = current.decode(data)["assignedPartitions"]
    assert new == {**old, "assignmentEpochs": [4, 2]}
    data = made("streams")
    assert streams.decode(data, release="4.3") == {"epoch": 2, "metadataHash": 7}
    assert streams.decode(data) == {
        "epoch": 2,
        "metadataHash": 7,
        "storedDescriptionTopologyEpoch": 5,
        "failedDescriptionTopologyEpoch": 6,
    }


def test_keys_are_what_kafka_writes() -> None:
    """Each kind of key is read; keys that logstore writes are the same bytes."""
    assert records.parse_key(made("key-offset")) == OFFSET_KEY
    assert records.parse_key(made("key-offset-old")) == OFFSET_KEY
    assert records.parse_key(made("key-group")) == GroupKey(2, "grün")
    assert records.parse_key(made("key-epoch")) == GroupKey(3, "g")
    assert records.parse_key(made("key-member")) == MemberKey(5, "g", "m")
    assert records.parse_key(made("key-current")) == MemberKey(8, "g", "m")
    assert records.format_offset_key("g", "t", 3) == made("key-offset")
    assert records.format_group_key("grün") == made("key-group")


def test_keys_of_unknown_types_are_no_error() -> None:
    """Share groups, streams groups, and types of later brokers."""
    assert records.parse_key(made("key-share")) == OtherKey(11)
    assert records.parse_key(b"\x7f\xff") == OtherKey(32767)
    assert records.parse_key(b"\xff\xff") == OtherKey(-1)


def test_records_of_a_broker_come_back_byte_for_byte() -> None:
    """Records that a real broker wrote are equal after parsing and formatting."""
    seen = set()
    with logstore.open(SLICE / "2.8.2" / "clean", read_only=True) as store:
        for record in store.topic("__consumer_offsets")[0].read():
            assert record.key is not None
            assert record.value is not None
            key = records.parse_key(record.key)
            assert isinstance(key, OffsetKey)
            commit = records.parse_offset_value(key, record.value)
            seen.add((commit.group, commit.topic))
            assert records.format_offset_key(*key) == record.key
            assert records.format_offset_value(commit) == record.value
    assert seen == {("golden-group", "edge"), ("second.group", "edge")}


# ------------------------------------------------------------------ bad bytes


@pytest.mark.parametrize("name", sorted(MADE_BY_KAFKA))
def test_bytes_that_end_early_are_a_named_error(name: str) -> None:
    """Every proper beginning of every record is refused, with the field's name."""
    data, parse = made(name), parser_of(name)
    parse(data)
    for size in range(len(data)):
        if name.startswith("assignment") and not size:
            continue  # no partitions
        if name == "key-share" and size >= 2:
            continue  # only its type is read
        with pytest.raises(MessageError) as caught:
            parse(data[:size])
        assert caught.value.position <= size
        assert caught.value.field in str(caught.value)
        assert not caught.value.is_newer


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in sorted(MADE_BY_KAFKA)
        if not name.startswith(("subscription", "assignment", "key-share"))
    ],
)
def test_bytes_that_are_left_over_are_a_named_error(name: str) -> None:
    """A record ends where its fields end."""
    with pytest.raises(MessageError, match="1 bytes are left over"):
        parser_of(name)(made(name) + b"\0")


@pytest.mark.parametrize("name", ["offset3", "group3", "member", "current", "epoch"])
def test_newer_version_is_told_from_damage(name: str) -> None:
    """An unknown version is no damage; a negative one is."""
    with pytest.raises(MessageError, match="are known") as caught:
        parser_of(name)(b"\0\x05" + made(name)[2:])
    assert caught.value.is_newer
    with pytest.raises(MessageError, match="are known") as caught:
        parser_of(name)(b"\xff\xff" + made(name)[2:])
    assert not caught.value.is_newer


@pytest.mark.parametrize("name", sorted(MADE_BY_KAFKA))
def test_changed_byte_gives_a_value_or_a_named_error(name: str) -> None:
    """Each byte is replaced by other values."""
    data, parse = made(name), parser_of(name)
    for pos in range(len(data)):
        for byte in (0x00, 0x7F, 0x80, 0xFF, data[pos] ^ 1):
            changed = data[:pos] + bytes([byte]) + data[pos + 1 :]
            assert has_result(parse, changed)


@given(kind=st.sampled_from(sorted(PARSERS)), data=st.binary(max_size=200))
def test_arbitrary_bytes_give_a_value_or_a_named_error(kind: str, data: bytes) -> None:
    """Nothing but the named error, whatever the bytes are."""
    assert has_result(PARSERS[kind], data)


@given(
    kind=st.sampled_from(sorted(set(PARSERS) - {"key"})),
    version=st.integers(0, 4),
    data=st.binary(max_size=100),
)
def test_arbitrary_fields_give_a_value_or_a_named_error(
    kind: str, version: int, data: bytes
) -> None:
    """The same after a version that is known."""
    assert has_result(PARSERS[kind], bytes([0, version]) + data)


@pytest.mark.parametrize("count", ["7fffffff", "00ffffff", "fffffffe"])
def test_counts_that_cannot_be_are_refused_before_anything_is_made(count: str) -> None:
    """A count of two thousand million members needs no memory."""
    head = made("group3-empty")[:-4]
    with pytest.raises(MessageError, match=r"GroupMetadataValue\.members"):
        PARSERS["group"](head + bytes.fromhex(count) + b"\0" * 64)
    with pytest.raises(MessageError, match="topics"):
        PARSERS["subscription"](b"\0\0" + bytes.fromhex(count) + b"\0" * 64)
    partitions = b"\0\0" + b"\0\0\0\1" + b"\0\1t" + bytes.fromhex(count) + b"\0" * 64
    with pytest.raises(MessageError, match="partitions"):
        PARSERS["assignment"](partitions)


def test_fields_that_contradict_themselves_are_named_errors() -> None:
    """Null instead of a text, lengths past 32 bits, tags out of order, ..."""
    offset = made("offset4-no-topic")
    fields = offset[:-1]
    cases = [
        ("offset", made("offset3").replace(b"\0\5m", b"\xff\xff"), "is null"),
        ("offset", made("offset3").replace(b"m\xc3\xbc", b"m\xff\xff"), "not UTF-8"),
        ("offset", b"\0\3" + b"\xff" * 8 + offset[10:], "it is -1"),
        ("offset", fields + b"\x80" * 5 + b"\0", "32 bits"),
        ("offset", fields + b"\xff\xff\xff\xff\x7f", "32 bits"),
        ("offset", fields + b"\2\1\0\1\0", "tag 1 is out of order"),
        ("offset", fields + b"\1\0\3abc", "it has 3 bytes"),
        ("key", made("key-offset")[:-4] + b"\xff\xff\xff\xff", "it is -1"),
        ("group", made("group3-empty")[:-4] + b"\xff\xff\xff\xff", "is null"),
        ("assignment", b"\xff\xff", "it is -1"),
        ("assignment", b"\0\0\0\0\0\1\0\1t\xff\xff\xff\xff" + b"\0" * 4, "is null"),
        ("group", made("group0")[:-4] + b"\xff\xff\xff\xff", "is null"),
    ]
    for kind, data, reason in cases:
        with pytest.raises(MessageError, match=reason):
            PARSERS[kind](data)


def test_unknown_tags_are_left_out() -> None:
    """Tagged fields are how Kafka adds fields without a new version."""
    data = made("offset4-no-topic")[:-1] + b"\2\0\x10" + bytes(range(16)) + b"\5\1x"
    assert records.parse_offset_value(OFFSET_KEY, data).topic_id == TOPIC_ID
    no_id = made("offset4-no-topic")[:-1] + b"\1\0\x10" + bytes(16)
    assert records.parse_offset_value(OFFSET_KEY, no_id).topic_id is None


# ------------------------------------------------------------------ bad values


def test_values_that_do_not_fit_are_refused() -> None:
    """A value that a record cannot hold is a `ConfigError`; nothing is cut."""
    long, far = "x" * 32768, 1 << 31
    commit, group, subscription, assignment = (
        records.format_offset_value,
        records.format_group_value,
        records.format_subscription,
        records.format_assignment,
    )
    changed = dataclasses.replace
    cases: list[tuple[str, Callable[[], bytes]]] = [
        ("group", lambda: records.format_offset_key(long, "t", 0)),
        ("partition", lambda: records.format_offset_key("g", "t", far)),
        ("partition", lambda: records.format_offset_key("g", "t", -1)),
        ("group", lambda: records.format_group_key("ü" * 16384)),
        ("group", lambda: records.format_group_key("\ud800")),
        ("metadata", lambda: commit(changed(COMMIT, metadata=long), 3)),
        ("OffsetCommit", lambda: commit(changed(COMMIT, offset=1 << 63))),
        ("OffsetCommit", lambda: commit(changed(COMMIT, offset=-1))),
        ("topic_id", lambda: commit(changed(COMMIT, topic_id="00"))),
        ("topic_id", lambda: commit(changed(COMMIT, topic_id="?"))),
        ("version", lambda: commit(COMMIT, 5)),
        ("version", lambda: group(GROUP, -1)),
        ("GroupMetadata", lambda: group(changed(GROUP, generation=far))),
        ("Assignment", lambda: assignment(Assignment((TopicPartition("t", far),)))),
        ("Subscription", lambda: subscription(Subscription((), generation=far))),
        ("rack", lambda: subscription(Subscription((), rack=long))),
    ]
    for name, call in cases:
        with pytest.raises(logstore.ConfigError) as caught:
            call()
        assert caught.value.name == name


def test_long_metadata_fit_in_the_newest_version() -> None:
    """Version 4 has no limit of 32,767 bytes."""
    commit = dataclasses.replace(COMMIT, metadata="ü" * 20000, expire_ms=None)
    data = records.format_offset_value(commit, 4)
    assert records.parse_offset_value(OFFSET_KEY, data) == commit
