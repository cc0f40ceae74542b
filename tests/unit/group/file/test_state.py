"""State of a group in its file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from logstore.group.file.slots import MEMBERS_MAX, ROWS_MAX
from logstore.group.file.state import (
    BY_COMMITS,
    AssignmentRow,
    GroupState,
    LaterVersionError,
    Member,
    format_state,
    parse_state,
)
from logstore.io.layout import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
STATE = GroupState(
    7,
    "range",
    BY_COMMITS,
    (
        Member("m", 3, "static", ("t",), None, (A,)),
        Member("n", 1023, None, (), "t.*", (B,), is_idle=True),
    ),
    {A: AssignmentRow(0, "0a" * 16), B: AssignmentRow(5, "")},
    {"t": (0, 1)},
    1_700_000_000_000,
)
VALUE, HEADER = format_state("g", STATE)


def changed(*path: Any, to: Any) -> bytes:
    """The header with another value in one place."""
    more = json.loads(HEADER)
    place = more
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return json.dumps(more).encode()


def test_state_is_read_as_it_was_written() -> None:
    assert parse_state("g", VALUE, HEADER) == STATE
    empty = GroupState()
    assert parse_state("g", *format_state("g", empty)) == empty
    assert STATE.assigned() == {A: STATE.members[0], B: STATE.members[1]}
    assert STATE.member("n") is STATE.members[1]
    assert STATE.member("x") is None


def test_record_of_a_broker_says_its_generation_alone() -> None:
    found = parse_state("g", VALUE, None)
    assert found == GroupState(7, since_ms=STATE.since_ms)


@pytest.mark.parametrize(
    "header",
    [
        changed("rows", 1, 0, to=0),  # the row of the first partition
        changed("rows", 0, 0, to=-1),
        changed("rows", 0, 0, to=ROWS_MAX),
        changed("rows", 0, 0, to=True),
        changed("rows", 0, 1, to=5),
        changed("rows", 0, 2, to=1 << 31),
        changed("rows", 0, 3, to=None),
        changed("members", 0, 0, to=MEMBERS_MAX),
        changed("members", 0, 0, to="0"),
        changed("members", 0, 1, to=5),
        changed("members", to=[[0, None, 0]]),
        changed("topics", to=[]),
        changed("topics", "t", 0, to=-1),
        changed("way", to="both"),
        changed("version", to=0),
        changed("version", to="1"),
        b"{}",
        b"[]",
        b"no JSON",
    ],
)
def test_header_that_contradicts_itself_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError) as caught:
        parse_state("g", VALUE, header)
    assert not isinstance(caught.value, LaterVersionError)


def test_later_version_is_told_from_damage() -> None:
    with pytest.raises(LaterVersionError):
        parse_state("g", VALUE, changed("version", to=2))


def test_state_of_the_largest_numbers_is_read() -> None:
    rows = {TopicPartition("t", (1 << 31) - 1): AssignmentRow(ROWS_MAX - 1, "")}
    state = dataclasses.replace(STATE, rows=rows, topics={"t": ((1 << 31) - 1,)})
    assert parse_state("g", *format_state("g", state)) == state
