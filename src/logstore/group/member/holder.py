"""The id of a member in its group, the partitions that it holds, and the check before
each commit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from logstore.errors import CommitFailedError, FencedError
from logstore.group.file.slots import ROWS_MAX
from logstore.group.file.state import AssignmentRow, GroupState
from logstore.group.member.next_generation import Topics
from logstore.group.member.open_group import OpenGroup
from logstore.io.layout import TopicPartition

__all__ = ["PartitionHolder"]


class PartitionHolder:
    """One member as a holder of partitions; for one thread at a time.

    A partition is held while `held` has it and the lock on its row is this member's.
    An interrupted call may leave locks of rows that `held` does not have:
    `release_strays` gives them back.

    Attributes:
        id: of the member; "" before it has joined, and after it was evicted.
        held: the partitions, with their rows.
    """

    def __init__(self, group: OpenGroup) -> None:
        self.id = ""
        self.held: dict[TopicPartition, AssignmentRow] = {}
        self._group = group
        self._slots = group.slots
        # The state for which it is known that the member has what it holds.
        self._checked_state: GroupState | None = None

    def take(
        self,
        partitions: Iterable[TopicPartition],
        rows: Mapping[TopicPartition, AssignmentRow],
    ) -> None:
        """Take partitions that have a row, if they are free."""
        for partition in partitions:
            row = rows.get(partition)
            if row is None or partition in self.held:
                continue
            if self._slots.take(row.number):
                self.held[partition] = row

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give partitions up."""
        for partition in partitions:
            row = self.held.pop(partition, None)
            if row is not None:
                self._slots.release(row.number)
        self._slots.wake()

    def release_strays(self) -> None:
        """Give back rows that a call has taken, or was to give back, and that was
        interrupted then, for the other members."""
        if len(self._slots.rows) > len(self.held):
            held = {row.number for row in self.held.values()}
            for number in self._slots.rows - held:
                self._slots.release(number)

    def forget(self) -> None:
        """Give up all partitions at once, and stop being a member."""
        # In this order: one that is interrupted is done again.
        self.held.clear()
        for row in list(self._slots.rows):
            self._slots.release(row)
        self.id = ""

    def surplus(
        self, topics_now: Callable[[], Topics]
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """(the partitions to give up, which the group has assigned to other members or
        to none; the partitions that are lost: the topic was deleted, or the group has
        gone on without this member)."""
        state = self._group.file.state
        me = state.member(self.id)
        target = set() if me is None else set(me.partitions)
        revoked: list[TopicPartition] = []
        lost: list[TopicPartition] = []
        for partition, row in self.held.items():
            if state.rows.get(partition, row) != row:
                lost.append(partition)
            elif partition not in target:
                now = topics_now().get(partition.topic)
                is_there = now is not None and now[0] == row.topic_id
                (revoked if is_there else lost).append(partition)
        return revoked, lost

    def holds(self, partition: TopicPartition, state: GroupState) -> bool:
        """Whether `check_holds` is known to find nothing wrong with one partition.

        Args:
            state: as the file has it.
        """
        row = self.held.get(partition)
        if row is None or state is not self._checked_state:
            return False
        now = state.rows.get(partition)
        return now is row or now == row

    def check_holds(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that this member holds partitions, after the end of the file was read.

        Raises:
            CommitFailedError: it does not have one of them.
            FencedError: the group has gone on without this member.
        """
        state = self._group.file.state
        if self.id and state is not self._checked_state:
            if state.member(self.id) is None:
                raise self._fenced("it was evicted, because it did not poll in time")
            self._checked_state = state
        for partition in partitions:
            row = self.held.get(partition)
            if row is None:
                raise CommitFailedError(
                    f"this consumer does not have partition {partition} of group "
                    f"{self._group.id!r:.100}: {self._who_has(partition)}. Nothing was "
                    f"committed",
                    group=self._group.id,
                )
            if state.rows.get(partition) != row:
                raise self._fenced(f"another member now has partition {partition}")

    def _fenced(self, why: str) -> FencedError:
        return FencedError(
            "this consumer is no longer a member of group "
            f"{self._group.id!r:.100}: {why}. Nothing was committed; the next "
            "poll joins again",
            group=self._group.id,
        )

    def _who_has(self, partition: TopicPartition) -> str:
        rows = self._group.file.state.rows
        row = rows.get(partition)
        if row is None and len(rows) >= ROWS_MAX:
            return f"members already have {ROWS_MAX} partitions, the maximum"
        if row is None or not self._slots.is_held(row.number):
            return "no member has it"
        slot = self._slots.holder(row.number)
        if slot is None:
            return "another member has it"
        return f"process {self._slots.info(slot).process.pid} has it"
