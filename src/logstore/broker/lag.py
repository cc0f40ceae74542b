"""How far a group has read each partition: the rows of group listings, and of changes
of committed offsets.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.io.layout import TopicPartition

__all__ = ["GroupPartition", "GroupRows", "OffsetChange"]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition with an offset committed by a group, or assigned to a member.

    Attributes:
        topic, partition: topic name and partition number. If only the topic's id is
            known, that id in parentheses.
        offset: the committed offset, the next to read; None: no commit.
        metadata: the text that was committed with it; "" without one.
        end: end of the log here; None: the partition is not here, or cannot be read.
        member: the id of the member that it is assigned to; None: no member.
        leader_epoch: of the record before the offset; -1: unknown.
        commit_ms: when it was committed, in Unix ms; -1: unknown.
        expire_ms: when it may be forgotten, in Unix ms; None: not stated.
        topic_id: identifies the topic that the offset belongs to, 32 hexadecimal
            digits; None: not stated.
    """

    topic: str
    partition: int
    offset: int | None = None
    metadata: str = ""
    end: int | None = None
    member: str | None = None
    leader_epoch: int = -1
    commit_ms: int = -1
    expire_ms: int | None = None
    topic_id: str | None = None

    @property
    def lag(self) -> int | None:
        """Offsets from the committed one to the end, as Kafka's tool counts them:
        transaction markers and compaction gaps are included. Negative if the log ends
        before the committed offset; None if either is unknown."""
        if self.offset is None or self.end is None:
            return None
        return self.end - self.offset


class GroupRows:
    """Totals over the rows of a group."""

    __slots__ = ()

    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int | None:
        """The sum over the partitions with a known lag; None: no lag is known."""
        known = [row.lag for row in self.partitions if row.lag is not None]
        return sum(known) if known else None

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The committed offsets, by partition."""
        return {
            TopicPartition(row.topic, row.partition): row.offset
            for row in self.partitions
            if row.offset is not None
        }

    @property
    def assignment(self) -> dict[TopicPartition, str]:
        """The ids of the members that hold partitions, by partition."""
        return {
            TopicPartition(row.topic, row.partition): row.member
            for row in self.partitions
            if row.member is not None
        }


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A change of a committed offset.

    Attributes:
        topic, partition: topic name and partition number.
        before: the offset committed before; None: no commit.
        after: the new committed offset.
        metadata: the text committed with it.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    metadata: str = ""
