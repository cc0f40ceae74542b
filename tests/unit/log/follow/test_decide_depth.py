"""The depth of a look at a log, decided from its signs, names and state, without a
disk."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import STATE_FIELDS, PartitionState
from logstore.log.follow.decide import Depth, depth_of, goes_on, is_other_log
from logstore.log.follow.observed import ChangeStamps, Names

EPOCHS = ((0, 0),)
CUT_22 = Cuts().after(22)

SIGNS = ChangeStamps((1, 1), ((9, 9, 9, 9), None, None), 100, (1, 1, 1, 1))
BROKER_SIGNS = SIGNS._replace(writer=(None,), epochs=EPOCHS)
ENDED = SIGNS._replace(stamp="stamp")

DEPTHS: dict[str, tuple[ChangeStamps, dict[str, Any], Depth]] = {
    "as it was": (SIGNS, {}, Depth.END),
    "another directory": (SIGNS, {"place": (1, 2)}, Depth.FILES),
    "another writer": (SIGNS, {"writer": ((8, 8, 8, 8), None, None)}, Depth.FILES),
    "a broker": (SIGNS, {"writer": ((9, 9, 9, 9), None, (1, 1, 1, 1))}, Depth.FILES),
    "names have changed": (SIGNS, {"mtime_ns": 101}, Depth.NAMES),
    "names may have changed": (
        SIGNS._replace(mtime_ns=-1),
        {"mtime_ns": 100},
        Depth.NAMES,
    ),
    "the state has changed": (SIGNS, {"state": (2, 1, 1, 1)}, Depth.NAMES),
    "a segment follows": (SIGNS, {"has_next": True}, Depth.NAMES),
    "bytes that will be removed": (ENDED, {"mtime_ns": 101}, Depth.NOTHING),
    "bytes that were removed": (ENDED, {"stamp": "other"}, Depth.FILES),
    "a last file that is another": (ENDED, {"stamp": None}, Depth.FILES),
    "ended, and another writer": (ENDED, {"writer": (None, None, None)}, Depth.FILES),
    "the same epochs": (BROKER_SIGNS, {}, Depth.END),
    "an epoch below the end": (
        BROKER_SIGNS,
        {"epochs": ((0, 0), (1, 24))},
        Depth.FILES,
    ),
    "an epoch at the end": (BROKER_SIGNS, {"epochs": ((0, 0), (1, 25))}, Depth.END),
    "no epochs any more": (BROKER_SIGNS, {"epochs": ()}, Depth.END),
    "an epoch at the end, and a name": (
        BROKER_SIGNS,
        {"epochs": ((0, 0), (1, 25)), "mtime_ns": 101},
        Depth.NAMES,
    ),
}


@pytest.mark.parametrize("name", DEPTHS)
def test_look_goes_as_deep_as_its_signs_say(name: str) -> None:
    """The look goes no deeper than necessary: each step costs more than the one
    before."""
    before, now, depth = DEPTHS[name]
    assert depth_of(before, before._replace(**now), 25) is depth


@pytest.mark.parametrize(
    ("is_foreign", "bases", "log_start", "first"),
    [
        (False, [0, 10, 20], 0, 0),
        (False, [0, 10, 20, 30, 40], 0, 0),
        (False, [10, 20, 30], 0, 1),
        (False, [20], 0, 2),
        (False, [30], 0, None),
        (False, [0, 20], 0, None),
        (False, [0, 10, 30], 0, None),
        (False, [], 0, None),
        (False, [-20, -10, 0, 10, 20], -15, 0),
        (True, [0, 10, 20, 30], 0, 0),
        (True, [0, 5, 10, 20], 0, None),
        (True, [5, 10, 20], 0, None),
        (True, [10, 20, 30], 0, 1),
        # Segments were put back at the front; or a deletion has yet to remove it.
        (True, [-20, -10, 0, 10, 20], -15, None),
        (True, [-10, 0, 10, 20], 0, 0),
        (True, [-10, 0, 10, 20], -10, None),
    ],
)
def test_names_go_on_if_segments_were_added_behind_and_deleted_in_front(
    is_foreign: bool, bases: list[int], log_start: int, first: int | None
) -> None:
    """Any other change of the names needs a look at every file."""
    names = Names([0, 10, 20], is_foreign)
    assert goes_on(names, bases, log_start) == first


STATE = PartitionState(
    5, [], dict.fromkeys(STATE_FIELDS, 0), 7, CUT_22, True, "g", False, "id", 0, 3
)


@pytest.mark.parametrize(
    ("is_foreign", "changes", "is_other"),
    [
        (False, {}, False),
        (False, {"start_offset": 9}, False),
        (False, {"start_offset": 4}, True),
        (False, {"log_id": "other"}, True),
        (False, {"is_truncating": True}, True),
        (False, {"cuts": CUT_22.after(23)}, True),
        (False, {"compactions": 4}, True),
        (False, None, True),
        (True, {}, True),
        (True, None, False),
    ],
)
def test_state_says_whether_the_log_is_another_one(
    is_foreign: bool, changes: dict[str, Any] | None, is_other: bool
) -> None:
    """The state also shows a log that was cut, compacted or put back, or that will be
    cut."""
    was: Any = SimpleNamespace(log_id="id", cuts=CUT_22, compactions=3, start_offset=5)
    state = None if changes is None else dataclasses.replace(STATE, **changes)
    assert is_other_log(was, state, 0, is_foreign=is_foreign) is is_other
    was.log_id = ""
    if changes and "log_id" in changes:
        assert not is_other_log(was, state, 0, is_foreign=is_foreign)
