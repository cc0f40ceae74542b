"""How far a group has come in one partition: the rows of all listings of groups, and of
what changes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from logstore.io.layout import TopicPartition

__all__ = ["GroupPartition", "GroupRows", "OffsetChange"]


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A partition of which a group has committed an offset, or that a member has.

    Attributes:
        topic, partition: which one. A topic of which only the id is known is that id
            in parentheses.
        offset: the committed one, the next to be read; None: none is committed.
        metadata: the text that was committed with it; "" without one.
        end: end of the log here; None: the partition is not here, or cannot be read.
        member: the id of the member that has it; None: no member.
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
        markers of transactions and gaps of compaction are among them. Negative if the
        log ends before the offset; None if one of both is unknown."""
        if self.offset is None or self.end is None:
            return None
        return self.end - self.offset


class GroupRows:
    """What the rows of a group say together."""

    __slots__ = ()

    partitions: tuple[GroupPartition, ...]

    @property
    def lag(self) -> int | None:
        """The sum over the partitions with a known one; None: none has."""
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
        """The ids of the members that have partitions, by partition."""
        return {
            TopicPartition(row.topic, row.partition): row.member
            for row in self.partitions
            if row.member is not None
        }


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A committed offset that is set.

    Attributes:
        topic, partition: which one.
        before: the offset that was committed; None: none was.
        after: the offset from now on.
        metadata: the text that is committed with it.
    """

    topic: str
    partition: int
    before: int | None
    after: int
    metadata: str = ""
