"""A member of a consumer group: joins it, learns its partitions, and takes them.

The kernel's locks say which members live and which partitions each holds; the group's
file says which partitions are assigned to each. The member that finds a difference, of
any cause, begins the next generation, under the mutex, after it has read the file
again. Every member first gives up what is assigned to it no longer, and then takes what
is free.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Sequence

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import (
    CommitFailedError,
    FencedError,
    GroupError,
    InconsistentAssignorError,
    LogStoreError,
    MemberIdInUseError,
)
from logstore.group.file.slots import MEMBERS_MAX
from logstore.group.file.state import (
    BY_COMMITS,
    BY_TRANSACTIONS,
    GroupState,
    Member,
)
from logstore.group.member.assignors import Assignor
from logstore.group.member.holder import PartitionHolder
from logstore.group.member.liveness import Liveness
from logstore.group.member.next_generation import (
    GenerationPlanner,
    MemberSubscription,
    Topics,
    alone_rows,
)
from logstore.group.member.open_group import OpenGroup
from logstore.io.layout import TopicPartition

__all__ = ["Membership"]


class Membership:
    """One member; for one thread at a time.

    It changes the group's file with the mutex alone, by the file's content then: a
    generation that it begins differs from the last one, and a commit is of partitions
    that it holds.

    Attributes:
        group: the files of the group.
        holder: its id, and the partitions that it holds.
        others: the other members.

    Args:
        topics_now: returns the topics that the store has now.
        instance: the name of a static member; None for another.
        interval_ms: after so long without a poll it counts as stuck.
        evicts: whether it throws out members that are stuck.
    """

    def __init__(
        self,
        group: OpenGroup,
        topics_now: Callable[[], Topics],
        assignor: Assignor,
        *,
        instance: str | None,
        interval_ms: int,
        evicts: bool,
    ) -> None:
        self.group = group
        self.holder = PartitionHolder(group)
        self.liveness = Liveness(group.slots, group.id, evicts=evicts)
        self._planner = GenerationPlanner(group.id, group.slots, topics_now, assignor)
        self._instance = instance
        self._interval_ms = interval_ms
        self._wanted = MemberSubscription()

    # ------------------------------------------------------------ joining

    def subscribe(self, wanted: MemberSubscription) -> None:
        """Ask for other topics from the next `check` on."""
        self._wanted = wanted

    def _take_slot(self) -> int:
        slot = self.group.slots.slot
        if slot is None:
            slot = self._take_new_slot()
        if slot is None:
            raise GroupError(
                f"group {self.group.id!r:.100} already has {MEMBERS_MAX} members, "
                "the maximum",
                group=self.group.id,
            )
        return slot

    def _take_new_slot(self) -> int | None:
        """Take a slot, after the end of the file was read. The slot of a member that
        has ended stays free as long as the file has that member, which would seem to
        live."""
        slots, state = self.group.slots, self.group.file.state
        named = {member.slot for member in state.members}
        slot = slots.join(self._interval_ms, named)
        if slot is None and named and named.isdisjoint(slots.members()):
            self.group.append(state=self._planner.next(state, ()))
            slot = slots.join(self._interval_ms)
        return slot

    def look(self) -> None:
        """Read what the group has written. If it has gone on without this member, that
        has nothing from here on, and `check` joins as a new one.

        Raises: as `GroupFile.refresh`.
        """
        self.group.slots.polled()
        self.group.file.refresh()
        self.holder.release_strays()
        if self.holder.id and self.group.file.state.member(self.holder.id) is None:
            self.holder.forget()

    def check(self) -> None:
        """After a `look`: begin the next generation if there is a reason.

        Raises:
            MemberIdInUseError, InconsistentAssignorError, GroupError: it cannot join.
            others: as `GroupFile.refresh`.
        """
        state, own = self.group.file.state, self.holder.id
        stuck = self.liveness.stuck(state, own)
        idle = self.liveness.idle(state, own)
        if stuck or idle or self._has_changed(state):
            self.group.try_locked(lambda: self._settle(stuck, idle))

    def _has_changed(self, state: GroupState) -> bool:
        me = state.member(self.holder.id)
        return (
            me is None
            or me.is_idle
            or (me.topics, me.pattern) != self._wanted
            or bool(self.liveness.ended(state, me.id))
            or self._planner.has_changed(state)
        )

    def _settle(self, stuck: frozenset[str], idle: frozenset[str]) -> None:
        """Begin the next generation, if it differs from this one; with the mutex.

        Args:
            stuck: members to be thrown out, if they are still stuck.
            idle: members that get nothing more.
        """
        slot = self._take_slot()
        state = self.group.file.state
        ended = self.liveness.ended(state, self.holder.id)
        evicted = self.liveness.evicted(state, stuck - ended)
        members = {
            member.id: dataclasses.replace(
                member, is_idle=member.is_idle or member.id in idle
            )
            for member in state.members
            if member.id not in ended and member not in evicted
        }
        me = members.get(self.holder.id)
        if me is None:
            self._check_may_join(state, members.values())
            name = self._instance or "consumer"
            me = Member(f"{name}-{slot}-{os.urandom(8).hex()}", slot, self._instance)
        members[me.id] = dataclasses.replace(
            me, topics=self._wanted.topics, pattern=self._wanted.pattern, is_idle=False
        )
        fenced = {member.slot for member in evicted}
        new = self._planner.next(state, tuple(members.values()), fenced)
        self.holder.id = me.id
        if new is not None:
            self.group.append(state=new)
            self.liveness.forget_free()
            self.group.slots.wake()

    def _check_may_join(self, state: GroupState, members: Collection[Member]) -> None:
        slots, assignor = self.group.slots, self._planner.assignor.name
        for member in members:
            if self._instance is not None and member.instance == self._instance:
                pid = slots.info(member.slot).process.pid
                slots.leave()
                raise MemberIdInUseError(
                    f"group {self.group.id!r:.100} has a static member "
                    f"{self._instance!r:.100}, in process {pid}; end that "
                    "process, or use another name here",
                    group=self.group.id,
                    instance=self._instance,
                    holder_pid=pid,
                )
        if members and state.assignor != assignor:
            slots.leave()
            raise InconsistentAssignorError(
                f"the members of group {self.group.id!r:.100} use the assignor "
                f"{state.assignor!r}, and this one has {assignor!r}; all "
                f"must use the same",
                group=self.group.id,
                expected=state.assignor,
            )

    # ------------------------------------------------------------ partitions

    def surplus(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The partitions to give up, and the lost ones: `PartitionHolder.surplus`."""
        return self.holder.surplus(self._planner.topics_now)

    def take(self) -> None:
        """Take the partitions that are assigned to this member, if they are
        free. Their committed offsets are read after that, so that they are the
        latest."""
        state, held = self.group.file.state, self.holder.held
        me = state.member(self.holder.id)
        missing = (
            []
            if me is None
            else [partition for partition in me.partitions if partition not in held]
        )
        if not missing:
            return
        locked = set(self.group.slots.held_rows())
        rows = [
            state.rows[partition].number
            for partition in missing
            if partition in state.rows
        ]
        if not locked.issuperset(rows):
            self.group.try_locked(self._take_held)

    def _take_held(self) -> None:
        state = self.group.file.state
        me = state.member(self.holder.id)
        if me is not None:  # else the next check joins again
            self.holder.take(me.partitions, state.rows)

    def take_alone(self, wanted: Iterable[TopicPartition], topics: Topics) -> None:
        """Take partitions that no member was assigned, if they are free."""
        ids = {partition: topics[partition.topic][0] for partition in wanted}

        def take() -> None:
            self._take_slot()
            state, slots = self.group.file.state, self.group.slots
            rows = alone_rows(state, ids, slots, slots.rows)
            if rows != state.rows:
                self.group.append(state=dataclasses.replace(state, rows=rows))
            self.holder.take(ids, rows)

        self.group.locked(take)

    # ------------------------------------------------------------ commits

    def commit(
        self, commits: Sequence[OffsetCommit], *, durable: bool, way: str = BY_COMMITS
    ) -> None:
        """Commit offsets of partitions that this member has.

        Raises:
            CommitFailedError: it does not have one of them, or the group commits in the
                other way; nothing was committed.
            FencedError: the group has gone on without it; nothing was committed.
            DiskFullError, StorageError: nothing was committed.
            SyncFailedError: it is committed, and may be lost in a power failure.
        """
        group, holder = self.group, self.holder
        keys = [TopicPartition(commit.topic, commit.partition) for commit in commits]
        try:
            holder.check_holds(keys)
            is_plain = self._in_way(way) is None
        except (CommitFailedError, FencedError):
            is_plain = False  # found again below, with the mutex, and raised there
        if is_plain and group.file.append_at_once(
            group.slots, commits, durable=durable
        ):
            return

        def work() -> None:
            holder.check_holds(keys)
            group.append(commits, self._in_way(way))

        group.locked(work)
        if durable:
            group.sync()

    def begin_transaction(self, partitions: Sequence[TopicPartition]) -> None:
        """Check that this member has partitions, and let the group commit by
        transactions, durably from now on.

        Raises: as `commit`.
        """

        def work() -> bool:
            self.holder.check_holds(partitions)
            state = self._in_way(BY_TRANSACTIONS)
            if state is not None:
                self.group.append(state=state)
            return state is not None

        if self.group.locked(work):
            self.group.sync()

    def check_holds_now(self, partitions: Iterable[TopicPartition]) -> None:
        """Check that this member has partitions at this moment.

        Raises: as `PartitionHolder.check_holds`.
        """
        self.group.locked(lambda: self.holder.check_holds(partitions))

    def _in_way(self, way: str) -> GroupState | None:
        """The state to write with a commit; None: it does not change.

        Raises:
            CommitFailedError: the group commits in the other way.
        """
        state = self.group.file.state
        if state.way == way:
            return None
        if state.way:
            raise CommitFailedError(
                f"group {self.group.id!r:.100} commits by {state.way}, and this "
                f"is one of {way}: mixing both would repeat or lose records. "
                "Nothing was committed; use another group, or reset the offsets "
                "of this one",
                group=self.group.id,
            )
        return dataclasses.replace(state, way=way)

    # ------------------------------------------------------------ the end

    def leave(self) -> None:
        """Leave the group: the others begin the next generation at once."""
        slots = self.group.slots
        try:
            if self.holder.id and slots.fd >= 0:
                self.group.locked(self._leave_held)
        except LogStoreError as error:
            # Its locks end in any case, and the others see that.
            logger.warning("group %s: cannot leave it: %s", self.group.id[:100], error)
        finally:
            self.holder.forget()
            if slots.fd >= 0:
                slots.leave()
                slots.wake()

    def _leave_held(self) -> None:
        state, own = self.group.file.state, self.holder.id
        if state.member(own) is None:
            return
        gone = {own, *self.liveness.ended(state, own)}
        members = [member for member in state.members if member.id not in gone]
        self.group.append(state=self._planner.next(state, members))
