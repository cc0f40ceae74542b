"""Partitions of a member: the ones that it has locked, according to the group."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore import TopicPartition
from logstore.errors import CommitFailedError, FencedError
from logstore.group.file.state import AssignmentRow, GroupState, Member
from logstore.group.member.holder import PartitionHolder
from logstore.group.member.open_group import OpenGroup
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files

A, B, C = (TopicPartition("t", number) for number in range(3))
ROWS = {A: AssignmentRow(0, "id"), B: AssignmentRow(1, "id")}
STATE = GroupState(1, members=(Member("me", 0, partitions=(A,)),), rows=ROWS)


def write(group: OpenGroup, state: GroupState) -> None:
    group.locked(lambda: group.append(state=state))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[OpenGroup]:
    root = Directory.open_root(Files(), str(tmp_path))
    group = OpenGroup(root, layout.group_file("g"), "g")
    write(group, STATE)
    yield group
    group.close()
    root.close()


@pytest.fixture
def holder(group: OpenGroup) -> PartitionHolder:
    """A member that has the partitions A and B."""
    group.slots.join(1000)
    holder = PartitionHolder(group)
    holder.id = "me"
    holder.take([A, B, C], ROWS)
    return holder


def test_holds_only_says_what_a_check_has_found(
    holder: PartitionHolder, group: OpenGroup
) -> None:
    """The state must be checked, and must have the same row for the partition."""
    state = group.file.state
    assert not holder.holds(A, state)
    holder.check_holds([A])
    assert holder.holds(A, state)
    assert holder.holds(B, state)
    assert not holder.holds(C, state)
    equal = dataclasses.replace(
        state, rows={A: AssignmentRow(0, "id"), B: AssignmentRow(3, "id")}
    )
    assert not holder.holds(A, equal)
    write(group, equal)
    holder.check_holds([A])
    assert holder.holds(A, group.file.state)
    assert not holder.holds(B, group.file.state)
    holder.release([A])
    assert not holder.holds(A, group.file.state)


def test_partition_without_a_row_or_of_another_member_is_not_taken(
    holder: PartitionHolder, group: OpenGroup, tmp_path: Path
) -> None:
    assert holder.held == ROWS
    assert group.slots.rows == {0, 1}
    root = Directory.open_root(Files(), str(tmp_path))
    other = OpenGroup(root, layout.group_file("g"), "g")
    beside = PartitionHolder(other)
    beside.take([A, B], ROWS)
    assert (beside.held, other.slots.rows) == ({}, set())
    holder.release([A, C])
    beside.take([A, B], ROWS)
    assert (beside.held, holder.held) == ({A: ROWS[A]}, {B: ROWS[B]})
    other.close()
    root.close()


def test_row_that_no_partition_has_is_given_back(
    holder: PartitionHolder, group: OpenGroup
) -> None:
    """A call that was interrupted may leave such a row."""
    group.slots.take(9)
    holder.release_strays()
    assert group.slots.rows == {0, 1}
    holder.forget()
    assert (holder.id, holder.held, group.slots.rows) == ("", {}, set())


def test_surplus_is_revoked_or_lost(holder: PartitionHolder, group: OpenGroup) -> None:
    """It is lost if its topic was made again, or the table gives it another row."""
    assert holder.surplus(lambda: {"t": ("id", (0, 1))}) == ([B], [])
    assert holder.surplus(lambda: {"t": ("other", (0, 1))}) == ([], [B])
    assert holder.surplus(dict) == ([], [B])
    write(group, dataclasses.replace(STATE, rows={A: AssignmentRow(5, "id")}))
    assert holder.surplus(lambda: {"t": ("id", (0, 1))}) == ([B], [A])


def test_commit_needs_the_partition_and_its_row(
    holder: PartitionHolder, group: OpenGroup
) -> None:
    holder.check_holds([A, B])
    with pytest.raises(CommitFailedError, match=r"t-2 .*: no member has it"):
        holder.check_holds([C])
    write(group, dataclasses.replace(STATE, rows={**ROWS, B: AssignmentRow(5, "id")}))
    holder.check_holds([A])
    with pytest.raises(FencedError, match="another member now has partition t-1"):
        holder.check_holds([B])
    write(group, GroupState(2))
    with pytest.raises(FencedError, match="evicted"):
        holder.check_holds([])
