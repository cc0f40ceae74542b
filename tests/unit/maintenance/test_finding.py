"""The classification of findings as damage to records."""

from __future__ import annotations

import pytest

from logstore.maintenance import finding as kinds
from logstore.maintenance.finding import (
    BROKER,
    CHANGES,
    CONTENTS,
    LOSES,
    NOTE,
    OK,
    PROBLEM,
    REFUSES,
    WARNS,
    Finding,
)

LOG = f"/s/orders-0/{0:020d}.log"


@pytest.mark.parametrize(
    ("kind", "path", "touches"),
    [
        (kinds.ZEROS, LOG, True),
        (kinds.DIGEST, LOG, True),
        (kinds.LOST_SEGMENT, "/s/orders-0", True),
        (kinds.UNSUPPORTED, LOG, True),
        (kinds.UNSUPPORTED, "/s/orders-0/.logstore-state", False),
        (kinds.UNREADABLE, "/s/orders-0", True),
        (kinds.UNREADABLE, f"/s/orders-0/{0:020d}.index", False),
        (kinds.NOT_REGULAR, LOG, True),
        (kinds.TIME_INDEX_FAULT, f"/s/orders-0/{0:020d}.timeindex", False),
        (kinds.CHECKPOINT, "/s/leader-epoch-checkpoint", False),
        (kinds.GROUP, "/s/.logstore-group-g", False),
    ],
)
def test_problem_touches_records_by_its_kind_and_place(
    kind: str, path: str, touches: bool
) -> None:
    """An unreadable or unknown file touches them if it is a log."""
    assert Finding(CONTENTS, kind, PROBLEM, path, "").touches_records is touches
    assert not Finding(CONTENTS, kind, NOTE, path, "").touches_records


@pytest.mark.parametrize(
    ("severity", "is_problem"),
    [
        (OK, False),
        (NOTE, False),
        (WARNS, False),
        (CHANGES, False),
        (PROBLEM, True),
        (LOSES, True),
        (REFUSES, True),
    ],
)
def test_problem_is_what_is_wrong_or_lost_or_refused(
    severity: str, is_problem: bool
) -> None:
    assert Finding(BROKER, "kind", severity, LOG, "").is_problem is is_problem


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (kinds.ZEROS, kinds.TAKE_OUT),
        (kinds.LOST_BYTES, kinds.DO_WITHOUT),
        (kinds.NOT_REGULAR, kinds.LEAVE),
        (kinds.UNSUPPORTED, ""),
        (kinds.OFFSET_INDEX, kinds.BUILD),
        (kinds.CHECKPOINT, kinds.PUT_ASIDE),
        (kinds.TORN_TAIL, kinds.CUT),
        (kinds.ZERO_TAIL, kinds.CUT),
        (kinds.LEFTOVER, ""),
    ],
)
def test_remedy_of_a_kind(kind: str, remedy: str) -> None:
    """Data in an unknown format is not changed, and a note needs no remedy."""
    assert Finding(CONTENTS, kind, PROBLEM, LOG, "").remedy == remedy
