"""The progress of a group."""

from __future__ import annotations

from logstore.broker.lag import GroupPartition, GroupRows
from logstore.io.layout import TopicPartition


class Rows(GroupRows):
    def __init__(self, *partitions: GroupPartition) -> None:
        self.partitions = partitions


def test_lag_is_the_sum_of_those_that_are_known() -> None:
    """A partition that is absent, or without an offset, does not hide the others."""
    known = [GroupPartition("t", 0, 5, end=9), GroupPartition("t", 1, 7, end=5)]
    unknown = [GroupPartition("t", 2, 5), GroupPartition("t", 3, end=9)]
    assert [one.lag for one in (*known, *unknown)] == [4, -2, None, None]
    assert Rows(*known).lag == 2
    assert Rows(*known, *unknown).lag == 2
    assert Rows(*unknown).lag is None
    assert Rows().lag is None
    assert Rows(GroupPartition("t", 0, 5, end=5)).lag == 0


def test_offsets_and_members_are_those_that_there_are() -> None:
    rows = Rows(
        GroupPartition("t", 0, 5, member="m"),
        GroupPartition("t", 1, 0),
        GroupPartition("t", 2, member="n"),
    )
    assert rows.offsets == {TopicPartition("t", 0): 5, TopicPartition("t", 1): 0}
    found = {TopicPartition("t", 0): "m", TopicPartition("t", 2): "n"}
    assert rows.assignment == found
