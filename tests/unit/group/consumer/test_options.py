"""The arguments of a consumer, as plain values."""

from __future__ import annotations

from typing import Any

import pytest

import logstore
from logstore.group.consumer.options import (
    OffsetAndMetadata,
    as_commits,
    as_partition,
    as_partitions,
    as_subscription,
)
from logstore.group.member.next_generation import MemberSubscription
from logstore.io.layout import TopicPartition

MOST = (1 << 63) - 1
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_partition_that_is_named_twice_counts_once() -> None:
    """They keep the order of their first names; plain pairs are accepted, too."""
    assert as_partitions([B, ("t", 0), B, A]) == [B, A]
    assert all(type(one) is TopicPartition for one in as_partitions([("t", 0)]))
    assert as_subscription(["b", "a", "b"], None) == MemberSubscription(("b", "a"))


@pytest.mark.parametrize("wrong", ["t-0", ("t",), (0, "t"), ("t", "0"), ["t", 0], None])
def test_value_that_is_no_partition_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError):
        as_partition(wrong)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, OffsetAndMetadata(0)),
        (MOST, OffsetAndMetadata(MOST)),
        ((5,), OffsetAndMetadata(5)),
        ((5, "text"), OffsetAndMetadata(5, "text")),
        (OffsetAndMetadata(5, "x" * 4096, 7), OffsetAndMetadata(5, "x" * 4096, 7)),
        (OffsetAndMetadata(5, "ä" * 2048), OffsetAndMetadata(5, "ä" * 2048)),
    ],
)
def test_offset_to_be_committed_is_a_number_or_has_a_text(
    value: Any, expected: OffsetAndMetadata
) -> None:
    assert as_commits("g", {("t", 0): value}) == {A: expected}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, logstore.ConfigError),
        (MOST + 1, logstore.ConfigError),
        ((5, "", -2), logstore.ConfigError),
        ((5, "\ud800"), logstore.ConfigError),
        ((5, "x" * 4097), logstore.errors.OffsetMetadataTooLargeError),
        ((5, "ä" * 2049), logstore.errors.OffsetMetadataTooLargeError),
        ((5, None), TypeError),
        ((5, "", -1, 0), TypeError),
        ((), TypeError),
        ("5", TypeError),
    ],
)
def test_offset_that_cannot_be_committed_is_refused(
    value: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        as_commits("g", {A: value})
