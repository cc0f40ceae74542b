"""Validity of positions in a copied store."""

from __future__ import annotations

from typing import Any

from logstore.broker.kafka_records import OffsetCommit
from logstore.group.consumer.lowering import lowered_commit
from logstore.io.layout import TopicPartition

COMMIT = OffsetCommit(
    "g", "t", 3, 4711, 7, "text", 1_700_000_000_000, None, "0a" * 16, proof=99
)


def test_position_above_the_end_becomes_the_end_without_what_was_known_of_it() -> None:
    """The proof and the epoch are of a batch that the copy does not have."""
    asked: list[Any] = []

    def lowered_to(*given: Any) -> int:
        asked.append(given)
        return 4000

    found = lowered_commit(COMMIT, lowered_to)
    assert asked == [(TopicPartition("t", 3), "0a" * 16, 4711, 1_700_000_000_000)]
    assert (found.offset, found.leader_epoch, found.proof) == (4000, -1, None)
    assert (found.metadata, found.topic_id) == ("text", "0a" * 16)
    assert (found.group, found.topic, found.partition) == ("g", "t", 3)


def test_position_that_the_log_has_stays_as_it_is() -> None:
    """This holds even in a store that is not a copy."""
    assert lowered_commit(COMMIT, lambda *given: None) is COMMIT
    assert lowered_commit(COMMIT, None) is COMMIT
