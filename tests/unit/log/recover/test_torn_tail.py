"""Last bytes of a log: a torn tail, which is cut, or damage, which is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import (
    STATE_FIELDS,
    PartitionMetadata,
    PartitionState,
)
from logstore.log.recover.facts import WalkFacts
from logstore.log.recover.torn_tail import (
    is_torn_tail,
    may_be_unfinished,
    needs_more,
)

STATE = PartitionState(
    0,
    [],
    {**dict.fromkeys(STATE_FIELDS, 0), "base_offset": 10, "size": 50},
    0,
    Cuts(),
    True,
    "generation",
)
# A log that was not closed, last written by logstore, or by another program.
OWN = PartitionMetadata(STATE, False, 0, 0, is_own=True)
OTHER = PartitionMetadata(None, False, 10, 0, is_own=False)
# Its last valid batch ends at byte 60 with offset 15.
WALK = WalkFacts(80, 60, 15, reason="checksum")


@pytest.mark.parametrize("metadata", [OWN, OTHER], ids=["own", "other"])
def test_bad_bytes_above_the_durable_point_are_a_torn_tail(
    metadata: PartitionMetadata,
) -> None:
    """This includes bytes that begin exactly there."""
    assert is_torn_tail(WALK, 50, 15, metadata)
    assert is_torn_tail(WALK, 60, 16, metadata)


@pytest.mark.parametrize("metadata", [OWN, OTHER], ids=["own", "other"])
def test_bad_bytes_below_the_durable_point_are_damage(
    metadata: PartitionMetadata,
) -> None:
    """The point has a position and an offset: each of them counts."""
    assert not is_torn_tail(WALK, 61, 0, metadata)
    assert not is_torn_tail(WALK, 0, 17, metadata)


@pytest.mark.parametrize("metadata", [OWN, OTHER], ids=["own", "other"])
def test_closed_log_has_no_torn_tail(metadata: PartitionMetadata) -> None:
    """All of it was synced."""
    assert not is_torn_tail(WALK, 0, 0, replace(metadata, clean=True))


@pytest.mark.parametrize(
    ("found", "is_own_tail", "is_other_tail"),
    [
        ({"has_more": True}, False, False),
        ({"is_unsupported": True}, False, False),
        ({"is_unsupported": True, "is_unknown_magic": True}, True, False),
        ({"is_no_log": True}, True, False),
        ({"is_misplaced": True}, True, False),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else "",
)
def test_bytes_that_are_not_understood_are_damage(
    found: dict[str, Any], is_own_tail: bool, is_other_tail: bool
) -> None:
    """The program that wrote last decides which ones are understood."""
    walk = WALK._replace(**found)
    assert is_torn_tail(walk, 0, 0, OWN) == is_own_tail
    assert is_torn_tail(walk, 0, 0, OTHER) == is_other_tail
    # A damaged state file was also logstore's.
    bad = replace(OTHER, state_error=CorruptCheckpointError("bad", path="state"))
    assert is_torn_tail(walk, 0, 0, bad) == is_own_tail


@pytest.mark.parametrize(
    ("metadata", "changes", "pos", "is_identified", "is_needed"),
    [
        (OWN, {}, 60, False, False),
        (OWN, {"is_same_boot": True}, 60, False, True),
        (OWN, {"is_same_boot": True, "clean": True}, 60, False, False),
        (OWN, {"is_same_boot": True, "is_own": False}, 60, False, False),
        # The machine has run since, and only the identity shows that logstore wrote
        # here.
        (OTHER, {"is_own": True, "is_same_boot": True}, 60, False, False),
        (OTHER, {"is_own": True, "is_same_boot": True}, 60, True, True),
        # Another program wrote last.
        (OTHER, {}, 60, True, False),
        (OTHER, {"is_point_known": False}, 60, False, True),
        (OTHER, {"is_point_known": False, "clean": True}, 60, False, False),
        # A state that does not count any more shows which bytes were durable.
        (OTHER, {"stale": STATE}, 49, False, True),
        (OTHER, {"stale": STATE}, 50, False, False),
        (OTHER, {"stale": STATE, "is_point_known": False}, 50, False, True),
    ],
)
def test_intact_batch_after_a_bad_one_shows_damage(
    metadata: PartitionMetadata,
    changes: dict[str, Any],
    pos: int,
    is_identified: bool,
    is_needed: bool,
) -> None:
    """The bytes before it must be durable, or in a kernel that still runs."""
    known = replace(metadata, **changes)
    assert needs_more(known, 10, pos, is_identified=is_identified) == is_needed


def test_stale_state_of_another_segment_says_nothing() -> None:
    """Its active segment is no longer the last one."""
    known = replace(OTHER, stale=STATE)
    assert needs_more(known, 10, 0, is_identified=False)
    assert not needs_more(known, 20, 0, is_identified=False)


@pytest.mark.parametrize(
    ("metadata", "changes", "base", "pos", "is_possible"),
    [
        (OWN, {"is_same_boot": True}, 10, 60, True),
        # The state of logstore is missing, but logstore wrote last.
        (OTHER, {"is_own": True, "is_same_boot": True}, 10, 60, True),
        (OTHER, {}, 10, 60, False),
        (OTHER, {"stale": STATE}, 10, 49, False),
        (OTHER, {"stale": STATE}, 10, 50, True),
        (OTHER, {"stale": STATE}, 20, 50, False),
    ],
)
def test_call_that_was_not_finished_needs_a_writer_of_logstore(
    metadata: PartitionMetadata,
    changes: dict[str, Any],
    base: int,
    pos: int,
    is_possible: bool,
) -> None:
    """The bytes are past the durable point of its state, in the segment of that
    state."""
    known = replace(metadata, **changes)
    assert may_be_unfinished(known, base, pos) == is_possible
