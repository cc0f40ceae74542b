"""State of a partition for a repair."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.maintenance import finding as kinds
from logstore.maintenance.finding import CONTENTS, NOTE, PROBLEM, Finding
from logstore.maintenance.repair.assessment import Assessment

INDEX = f"/p/{7:020d}.index"
LOG = f"/p/{7:020d}.log"


def assessed(*findings: Finding, **context: Any) -> Assessment:
    known = {"state": None, "recovery_point": 0, "announced": 0, **context}
    return Assessment(cast(Any, SimpleNamespace(**known)), [], list(findings), [], [])


def found(kind: str, path: str, severity: str = PROBLEM, at: int | None = 0) -> Finding:
    return Finding(CONTENTS, kind, severity, path, f"{kind} of {path}", position=at)


@pytest.mark.parametrize(
    ("durable", "start", "point", "announced", "floor"),
    [(5, 0, 0, 0, 5), (5, 9, 0, 0, 9), (5, 0, 8, 0, 8), (5, 0, 8, 11, 11)],
)
def test_offsets_are_taken_up_to_whatever_says_so(
    durable: int, start: int, point: int, announced: int, floor: int
) -> None:
    """The state, Kafka's recovery point, and the durable point announced to other
    processes."""
    state = SimpleNamespace(durable_offset=durable, start_offset=start)
    context = {"recovery_point": point, "announced": announced}
    assert assessed(state=state, **context).floor == floor
    assert assessed(**context).floor == max(point, announced)


def test_torn_tail_is_damage_for_a_repair_and_no_problem() -> None:
    assert not assessed().has_damage
    assert not assessed(found(kinds.LEFTOVER, LOG, NOTE)).has_damage
    for kind in (kinds.TORN_TAIL, kinds.ZERO_TAIL):
        seen = assessed(found(kind, LOG, NOTE))
        assert seen.has_damage
        assert seen.problems == []


def test_index_that_is_wrong_or_refused_is_built() -> None:
    """An index of a log that cannot be read is not built: the contents of the log are
    unknown."""
    refused = found(kinds.UNREADABLE, LOG)
    seen = assessed(
        found(kinds.OFFSET_INDEX, INDEX), found(kinds.UNREADABLE, INDEX), refused
    )
    assert seen.bad_indexes() == {7}
    assert seen.refused() == [refused]
    assert seen.bad_files() == {}


def test_reason_of_a_range_is_that_of_the_finding_in_it() -> None:
    seen = assessed(found(kinds.DAMAGED_BATCH, LOG, at=50))
    reason = f"damaged-batch of {LOG}"
    assert seen.reason(LOG, 50, 60, "other") == reason
    assert seen.reason(LOG, 40, 50, "other") == "other"
    assert seen.reason(INDEX, 50, 60, "other") == "other"
