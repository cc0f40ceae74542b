"""The live records of a group, without a file."""

from __future__ import annotations

import pytest

import logstore
from logstore.broker.kafka_records import OffsetCommit
from logstore.group.file.batches import Batches, Item
from logstore.group.file.group_records import GroupRecords
from logstore.group.file.state import HEADER, GroupState
from logstore.io.files import Files
from logstore.record.record import Record
from support.groups import T0, T1

BATCHES = Batches(Files())
STATE = GroupState(3, "range", "commits")


def items_of(
    *offsets: int, group: str = "g", state: GroupState | None = None
) -> list[Item]:
    """Commits of T0, after a state if there is one."""
    commits = [OffsetCommit(group, *T0, offset, commit_ms=1) for offset in offsets]
    return BATCHES.items(group, commits, (), state)


def records_of(items: list[Item]) -> list[Record]:
    return [
        Record(number, 0, key, value, () if header is None else ((HEADER, header),))
        for number, (key, value, header) in enumerate(items)
    ]


def read(*items: Item, group: str = "g") -> GroupRecords:
    records = GroupRecords("/store/file", group)
    records.take_in(records_of(list(items)), 70)
    records.check(90)
    return records


def test_read_and_noted_records_say_the_same() -> None:
    """The state after an append equals the state after reading it."""
    items = items_of(4, 5, state=STATE) + BATCHES.items("g", (), [T1])
    noted = GroupRecords("/store/file", "g")
    noted.note(items, STATE)
    found = read(*items)
    assert found.items() == noted.items()
    assert found.state == noted.state == STATE
    assert found.commits() == noted.commits()
    assert [commit.offset for commit in found.commits()] == [5]


def test_records_that_count_say_the_same_in_another_file() -> None:
    """They are written in this form when the file is compacted."""
    found = read(*items_of(4, state=STATE), *items_of(9))
    again = read(*found.items())
    assert len(found.items()) == 2
    assert (again.state, again.commits()) == (found.state, found.commits())


def test_first_record_says_which_group_it_is() -> None:
    assert read(*items_of(4, group="h"), group="").group == "h"
    found = read(*items_of(4), *items_of(7, group="h"))
    assert [commit.offset for commit in found.commits()] == [4]


def test_another_file_begins_without_offsets() -> None:
    """The state of the group remains until a record replaces it."""
    found = read(*items_of(4, state=STATE))
    found.forget()
    assert (found.items(), found.state) == ([], STATE)


def test_state_that_is_removed_keeps_generation_and_way() -> None:
    """The next generation is higher, and commits in the same way."""
    state, key = items_of(state=STATE)[0], items_of(state=STATE)[0][0]
    found = read(state, (key, None, None))
    assert found.state == GroupState(3, way="commits")


@pytest.mark.parametrize(
    ("items", "position", "reason"),
    [
        (items_of(4, group="h"), 0, "those of other groups"),
        ([(b"\0\x09x", b"", None)], 0, "no record of a group"),
        ([(b"\0\1", b"", None)], 70, "malformed"),
        ([(items_of(state=STATE)[0][0], b"\0", None)], 90, "malformed"),
    ],
)
def test_wrong_record_is_damage(items: list[Item], position: int, reason: str) -> None:
    """The error has its position."""
    with pytest.raises(logstore.errors.CorruptCheckpointError, match=reason) as caught:
        read(*items)
    assert caught.value.position == position
    assert caught.value.path == "/store/file"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"\0", logstore.errors.CorruptCheckpointError),
        (b"\0\x63" + bytes(40), logstore.errors.UnsupportedError),
    ],
    ids=["malformed", "later"],
)
def test_offset_that_cannot_be_read_is_an_error_when_it_is_asked_for(
    value: bytes, error: type[Exception]
) -> None:
    """The other offsets count."""
    other = BATCHES.items("g", [OffsetCommit("g", *T1, 8, commit_ms=1)])
    found = read((items_of(4)[0][0], value, None), *other)
    with pytest.raises(error):
        found.committed(T0)
    commit = found.committed(T1)
    assert commit is not None
    assert commit.offset == 8
