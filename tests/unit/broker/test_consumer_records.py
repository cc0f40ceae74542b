"""The members of Kafka's newer group protocol."""

from __future__ import annotations

import struct

import pytest

from logstore.broker.consumer_records import (
    ConsumerMember,
    MemberAssignment,
    parse_consumer_member,
    parse_member_assignment,
)
from logstore.broker.fields import MessageError, Writer

MEMBER = ConsumerMember("static", None, "client", "/h", ("a", "b"), None, 300, "range")


def member(tags: dict[int, bytes]) -> bytes:
    """`MEMBER` as Kafka writes it."""
    writer = Writer(flexible=True)
    writer.put("h", 0)
    for text in ("static", None, "client", "/h"):
        writer.string("text", text)
    writer.length(2)
    for topic in ("a", "b"):
        writer.string("topic", topic)
    writer.string("pattern", None)
    writer.put("i", 300)
    writer.string("assignor", "range")
    writer.tags(tags)
    return bytes(writer.data)


@pytest.mark.parametrize(
    ("tags", "timeout_ms"),
    [
        ({}, None),
        ({0: b"\0"}, None),  # a struct that is null
        ({0: b"\1" + struct.pack(">i", 45_000) + b"\1\0"}, 45_000),
        ({1: b"later"}, None),
    ],
)
def test_member_has_a_session_timeout_if_it_speaks_the_classic_protocol(
    tags: dict[int, bytes], timeout_ms: int | None
) -> None:
    found = parse_consumer_member(member(tags))
    assert found.classic_timeout_ms == timeout_ms
    assert found == ConsumerMember(
        *(getattr(MEMBER, name) for name in MEMBER.__slots__[:-1]), timeout_ms
    )


def test_member_that_is_cut_anywhere_is_a_named_error() -> None:
    data = member({0: b"\1" + struct.pack(">i", 45_000) + b"\1\0"})
    for size in range(len(data)):
        with pytest.raises(MessageError):
            parse_consumer_member(data[:size])
    with pytest.raises(MessageError, match="left over"):
        parse_consumer_member(data + b"\0")


def test_assignment_tells_what_a_member_has_from_what_it_must_give_up() -> None:
    ids = [bytes([number]) * 16 for number in (1, 2)]
    writer = Writer(flexible=True)
    writer.put("hiib", 0, 7, 6, 1)
    for topics in ([(ids[0], (0, 3))], [(ids[1], (5,)), (ids[0], ())]):
        writer.length(len(topics))
        for topic_id, numbers in topics:
            writer.data += topic_id
            writer.length(len(numbers))
            writer.put(f"{len(numbers)}i", *numbers)
            writer.tags()
    writer.tags()
    first, second = (topic_id.hex() for topic_id in ids)
    assert parse_member_assignment(bytes(writer.data)) == MemberAssignment(
        7, 6, 1, ((first, 0), (first, 3)), ((second, 5),)
    )
