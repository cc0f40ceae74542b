"""The ids of a log, derived from facts."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.io.checkpoint.topic_identity import TopicIdentity, derived_id, log_id_of
from logstore.io.layout import TopicPartition
from logstore.store.catalog.identifying import (
    Identified,
    IdentityFacts,
    decide,
    may_be_changed,
)

KEY = TopicPartition("t", 1)
ID, OTHER = "1" * 32, "2" * 32
LOG, EARLIER = "a" * 32, "b" * 32
DERIVED = log_id_of(ID, 1)

# A log that was opened again after a clean close.
USUAL = IdentityFacts(
    KEY, ID, False, True, True, TopicIdentity(ID, "t", 1, "", LOG), True, True, LOG,
    None,
)  # fmt: skip


def decided(**facts: Any) -> Identified:
    return decide(USUAL._replace(**facts))


def test_log_that_all_files_agree_on_has_nothing_to_be_written() -> None:
    """`.logstore-topic`, the topics file and the state agree."""
    assert decided() == Identified(LOG, is_identified=True)


@pytest.mark.parametrize(
    ("facts", "log_id"),
    [
        ({"found": None}, LOG),
        ({"found": None, "recorded": None, "earlier": EARLIER}, EARLIER),
        ({"recorded": None, "earlier": EARLIER}, EARLIER),
        ({"recorded": None}, LOG),
        ({"recorded": ""}, LOG),
        ({"found": None, "recorded": None}, DERIVED),
        ({"found": None, "recorded": ""}, DERIVED),
    ],
)
def test_log_id_is_that_of_the_state_then_of_the_identity(
    facts: dict[str, Any], log_id: str
) -> None:
    """An id of an earlier release stays; without any it is derived from the topic's."""
    assert decided(**facts).log_id == log_id


@pytest.mark.parametrize(
    "facts",
    [
        {"found": None},
        {"is_noted": False},
        {"found": TopicIdentity(ID, "earlier-name", 1, "", LOG)},
        {"found": TopicIdentity(ID, "t", 0, "", LOG)},
        {"recorded": EARLIER},
    ],
)
def test_file_that_says_something_else_is_written_again(facts: dict[str, Any]) -> None:
    """It is rewritten before the next append."""
    found = decided(**facts)
    assert not found.is_identified
    assert not found.is_foreign


def test_directory_of_an_earlier_topic_is_foreign() -> None:
    """It was restored; its log keeps its id."""
    found = decided(topic_id=OTHER)
    assert found == Identified(LOG, is_identified=False, is_foreign=True)


def test_copied_directory_has_a_log_of_its_own() -> None:
    """The id differs from the id of the original log."""
    topic_id = derived_id(ID, "t")
    found = decided(
        topic_id=topic_id, found=TopicIdentity(ID, "s", 1, "", LOG), recorded=LOG
    )
    assert found == Identified(log_id_of(topic_id, 1), is_identified=False)


@pytest.mark.parametrize(
    ("facts", "is_renewed"),
    [
        ({}, True),
        ({"is_own": False}, False),
        ({"has_own_files": False}, False),
        ({"has_settings": True}, False),
        ({"is_new_id": False}, False),
    ],
)
def test_id_is_renewed_only_where_logstore_had_written_one(
    facts: dict[str, Any], is_renewed: bool
) -> None:
    """An empty topic, and one that only Kafka has used, never had an id."""
    lost = {"is_new_id": True, "has_settings": False, "is_noted": False, "found": None}
    assert decided(**{**lost, **facts}).is_renewed is is_renewed


@pytest.mark.parametrize(
    ("facts", "is_cut"),
    [
        ({}, False),
        ({"found": None}, False),
        ({"recorded": None}, True),
        ({"recorded": None, "found": None, "earlier": EARLIER}, True),
        ({"recorded": None, "found": None}, False),
    ],
)
def test_log_whose_state_does_not_count_is_cut_if_logstore_knew_it(
    facts: dict[str, Any], is_cut: bool
) -> None:
    """Another program may have changed it; a log that logstore never had has no readers
    to notice it."""
    assert decided(**facts).is_cut is is_cut


@pytest.mark.parametrize(
    ("recorded", "earlier", "found", "may_be"),
    [
        (LOG, None, USUAL.found, False),
        ("", None, None, False),
        (None, EARLIER, None, True),
        (None, "", None, True),
        (None, None, USUAL.found, True),
        (None, None, None, False),
    ],
)
def test_log_may_be_changed_by_another_program_if_its_state_does_not_count(
    recorded: str | None,
    earlier: str | None,
    found: TopicIdentity | None,
    may_be: bool,
) -> None:
    """A log to which logstore has never written has nothing to lose. The opening for
    writing and a reader of a copy decide in the same way."""
    assert may_be_changed(recorded, earlier, found) is may_be
    facts = {"recorded": recorded, "earlier": earlier, "found": found}
    assert decided(**facts).is_cut is may_be
