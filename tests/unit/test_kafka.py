"""The public tables of Kafka's messages. tests/interop/test_kafka_text.py compares
their values with Kafka's."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from support.golden import SLICE
from support.group_records import MADE_BY_KAFKA

OFFSETS = "__consumer_offsets"


def test_records_of_a_broker_are_read_into_values() -> None:
    """The example is the docstring's of the module."""
    tables = logstore.kafka.messages(OFFSETS)
    found = {}
    with logstore.open(SLICE / "2.8.2" / "clean", read_only=True) as store:
        for record in store.topic(OFFSETS).read():
            assert record.key
            assert record.value
            key, value = tables[int.from_bytes(record.key[:2], "big")]
            place = key.decode(record.key)
            found[place["group"]] = place, value.decode(record.value)
    assert found.keys() == {"golden-group", "second.group"}
    place, values = found["golden-group"]
    assert list(place) == ["group", "topic", "partition"]
    assert list(values) == ["offset", "leaderEpoch", "metadata", "commitTimestamp"]
    assert place["topic"] == "edge"
    assert values["offset"] >= 0


def test_fields_that_a_later_release_has_added_are_left_out() -> None:
    """The caller passes `release`; the newest known one is the default."""
    value = logstore.kafka.messages(OFFSETS)[1][1]
    data = MADE_BY_KAFKA["offset4"]
    assert value.decode(data)["topicId"] == "AAECAwQFBgcICQoLDA0ODw"
    assert value.decode(data, release="4.2") == value.decode(data)
    assert "topicId" not in value.decode(data, release="3.9")


def test_new_fields_of_a_broker_of_4_4_are_read() -> None:
    """Fields that 4.3 has added are in its records, and left out for 4.2."""
    tables = logstore.kafka.messages(OFFSETS)
    found: dict[int, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    with logstore.open(SLICE / "4.4.0" / "clean", read_only=True) as store:
        for record in store.topic(OFFSETS).read():
            assert record.key
            kind = int.from_bytes(record.key[:2], "big")
            if record.value is not None:
                value = tables[kind][1]
                both = (
                    value.decode(record.value),
                    value.decode(record.value, release="4.2"),
                )
                found.setdefault(kind, []).append(both)
    for kind in (6, 12):  # the targets of a consumer group and of a share group
        new, old = found[kind][0]
        assert new.pop("assignmentTimestamp") > 1_795_000_000_000
        assert new == old
    new, old = found[8][0]
    (assigned,) = new["assignedPartitions"]
    assert assigned.pop("assignmentEpochs") == [2, 2, 2]
    assert new == old


def test_version_is_given_for_bytes_that_do_not_begin_with_it() -> None:
    """Control records have their version among the fields."""
    message = logstore.kafka.message("SnapshotFooterRecord")
    assert message.decode(b"\0\3\0", 0) == {"version": 3}
    assert (message.name, message.newest) == ("SnapshotFooterRecord", 0)


def test_error_has_the_place_and_the_words_of_kafka() -> None:
    """The field, its position, the error, and the message of Kafka's classes."""
    value = logstore.kafka.messages(OFFSETS)[1][1]
    data = MADE_BY_KAFKA["offset3"]
    with pytest.raises(logstore.kafka.MessageError) as caught:
        value.decode(data[:-1])
    error = caught.value
    assert (error.field, error.position) == ("OffsetCommitValue.commitTimestamp", 21)
    assert error.java == "null"
    assert not error.is_newer
    assert str(error) == (
        "OffsetCommitValue.commitTimestamp at byte 21: 8 bytes are stated, 7 are left"
    )
    with pytest.raises(logstore.kafka.MessageError, match="0 to 4 are known") as caught:
        value.decode(b"\0\5" + data[2:])
    assert caught.value.is_newer


def test_names_that_are_not_known_are_a_key_error() -> None:
    """This holds for names of topics, and of messages."""
    with pytest.raises(KeyError, match="orders"):
        logstore.kafka.messages("orders")
    with pytest.raises(KeyError, match="OffsetCommitValue"):
        logstore.kafka.message("OffsetCommitValue")
