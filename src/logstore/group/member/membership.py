"""A member of a consumer group: joins it, learns what it is to have, and takes it.

The kernel's locks say what is (who lives, who holds a partition); the group's file says
what is to be (who is to hold it). The member that finds a difference, of any cause,
begins the next generation, under the mutex, after it has read the file again. Every
member gives up first what it is to have no longer, and then takes what is free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import LogStoreError
from logstore.group.errors import (
    CommitFailedError,
    FencedError,
    GroupError,
    InconsistentAssignorError,
    MemberIdInUseError,
)
from logstore.group.file.group_file import GroupFile, record_id
from logstore.group.file.slots import MEMBERS_MAX, ROWS_MAX, BusyError, Slots, clock_ms
from logstore.group.file.state import (
    BY_COMMITS,
    BY_TRANSACTIONS,
    GroupState,
    Member,
    Row,
)
from logstore.group.member.assignors import Assignor
from logstore.group.member.generations import (
    Subscription,
    Topics,
    assigned,
    free_rows,
    next_rows,
    numbers_of,
    partitions_of,
    universe,
    used_rows,
    with_rows,
)
from logstore.group.member.others import Others
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition

__all__ = ["Membership"]

# How long a call waits for the mutex, and how long a poll does, which may come again.
_WAIT_S: Final = 10.0
_POLL_WAIT_S: Final = 0.02

_Result = TypeVar("_Result")


class Membership:
    """One member; for one thread at a time.

    Attributes:
        group: the id of the group.
        id: that of the member; "" before it has joined, and after it was thrown out.
        held: the partitions that it has, with their rows.
        file: the group's file.
        slots: its open lock file.
        others: what it sees of the other members.

    Args:
        topics_now: returns the topics that the store has now.
        instance: the name of a static member; None for another.
        interval_ms: after so long without a poll it counts as stuck.
        evicts: whether it throws out members that are stuck.

    Raises:
        StorageError: the system refuses.
    """

    def __init__(
        self,
        root: Directory,
        group: str,
        topics_now: Callable[[], Topics],
        assignor: Assignor,
        *,
        instance: str | None,
        interval_ms: int,
        evicts: bool,
    ) -> None:
        name = layout.group_file(group)
        self.group = group
        self.id = ""
        self.held: dict[TopicPartition, Row] = {}
        self.slots = Slots(root, name, group)
        self.file = GroupFile(root, name, record_id(group), write=True)
        self.others = Others(self.slots, group, evicts=evicts)
        self._files = root.files
        self._topics_now = topics_now
        self._assignor = assignor
        self._instance = instance
        self._interval_ms = interval_ms
        self._wanted = Subscription()
        # The state for which it is known that the member has what it holds.
        self._checked_state: GroupState | None = None
        self._has_told_of_rows = False

    @property
    def generation(self) -> int:
        """That of the group, as far as it was read."""
        return self.file.state.generation

    def _locked(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, with the mutex and the end of the file read."""

        def read_and_work() -> _Result:
            self.file.refresh_held(self.slots)
            return work()

        return self._with_mutex(read_and_work)

    def _with_mutex(self, work: Callable[[], _Result]) -> _Result:
        try:
            return self.slots.locked(work, _WAIT_S)
        except BusyError:
            pids = sorted(self.slots.info(slot).process.pid for slot in self._others())
            raise CommitFailedError(
                f"the mutex of group {self.group!r:.100} was not free for "
                f"{_WAIT_S:.0f} s: one of the processes {pids} holds it and does not "
                f"go on. Nothing was changed; continue or end that process",
                group=self.group,
            ) from None

    def _others(self) -> list[int]:
        return self.slots.members()

    # ------------------------------------------------------------ joining

    def subscribe(self, wanted: Subscription) -> None:
        """Ask for other topics from the next `check` on."""
        self._wanted = wanted

    def join_alone(self) -> None:
        """Be a member that is assigned nothing, and takes what it is told to.

        Raises:
            GroupError: the group has no slot left.
        """
        if self.slots.slot is None:
            self._locked(self._take_slot)

    def _take_slot(self) -> int:
        slot = self.slots.slot
        if slot is None:
            slot = self._take_new_slot()
        if slot is None:
            raise GroupError(
                f"group {self.group!r:.100} has {MEMBERS_MAX} members, which is the "
                f"most that it may have",
                group=self.group,
            )
        return slot

    def _take_new_slot(self) -> int | None:
        """With the end of the file read. The slot of a member that has ended stays free
        as long as the file has that member, which would seem to live."""
        state, now_ms = self.file.state, self._files.now_ms()
        named = {one.slot for one in state.members}
        slot = self.slots.join(self._interval_ms, named)
        if slot is None and named and named.isdisjoint(self._others()):
            new = dataclasses.replace(
                state, generation=state.generation + 1, assignor="", members=(),
                topics={}, since_ms=now_ms,
            )  # fmt: skip
            self.file.append(self.slots, state=new)
            slot = self.slots.join(self._interval_ms)
        return slot

    def look(self) -> None:
        """Read what the group has written. If it has gone on without this member, that
        has nothing from here on, and `check` joins as a new one.

        Raises: as `GroupFile.refresh`.
        """
        self.slots.polled()
        self.file.refresh()
        self._release_strays()
        if self.id and self.file.state.member(self.id) is None:
            self.forget()

    def _release_strays(self) -> None:
        """Give back rows that a call has taken, or was to give back, and that was
        interrupted then, for the other members."""
        if len(self.slots.rows) > len(self.held):
            held = {row.number for row in self.held.values()}
            for number in self.slots.rows - held:
                self.slots.release(number)

    def check(self) -> None:
        """After a `look`: begin the next generation if there is a reason.

        Raises:
            MemberIdInUseError, InconsistentAssignorError, GroupError: it cannot join.
            others: as `GroupFile.refresh`.
        """
        state = self.file.state
        stuck = self.others.stuck(state, self.id)
        idle = self.others.idle(state, self.id)
        if not self.id or stuck or idle or self._has_changed(state):
            with contextlib.suppress(BusyError):  # the next check tries it again
                self.slots.locked(lambda: self._settle(stuck, idle), _POLL_WAIT_S)

    def forget(self) -> None:
        """Give up all partitions at once: the group has gone on without this member."""
        # In this order: one that is interrupted is done again.
        self.held.clear()
        for row in list(self.slots.rows):
            self.slots.release(row)
        self.id = ""

    def _has_changed(self, state: GroupState) -> bool:
        me = state.member(self.id)
        if me is None or me.is_idle or (me.topics, me.pattern) != self._wanted:
            return True
        alive = {self.slots.slot, *self._others()}
        if any(member.slot not in alive for member in state.members):
            return True
        topics = self._universe(state.members)
        return numbers_of(topics) != state.topics or any(
            state.rows[one].topic_id != topics[one.topic][0]
            for one in partitions_of(topics)
            if one in state.rows
        )

    def _universe(self, members: Iterable[Member]) -> Topics:
        """The topics that some members ask for."""
        return universe(self.group, self._topics_now(), members)

    # ------------------------------------------------------------ generations

    def _settle(self, stuck: Collection[str], idle: Collection[str]) -> None:
        """With the mutex: begin the next generation, if it differs from this one.

        Args:
            stuck: members to be thrown out, if they are still stuck.
            idle: members that get nothing more, if they still have not taken it.
        """
        self.file.refresh_held(self.slots)
        slot = self._take_slot()
        state = self.file.state
        gone = self._gone(state, stuck)
        members = [
            dataclasses.replace(one, is_idle=one.is_idle or one.id in idle)
            for one in state.members
            if one.id not in gone
        ]
        at = next((at for at, one in enumerate(members) if one.id == self.id), -1)
        if at < 0:
            self._check_may_join(state, members)
            name = self._instance or "consumer"
            me = Member(f"{name}-{slot}-{os.urandom(8).hex()}", slot, self._instance)
            at = len(members)
            members.append(me)
        me = members[at] = dataclasses.replace(
            members[at],
            topics=self._wanted.topics,
            pattern=self._wanted.pattern,
            is_idle=False,
        )
        fenced = {one.slot for one in state.members if gone.get(one.id)}
        topics, rows = self._next_rows(state, members, fenced)
        is_same = (
            tuple(members) == state.members
            and numbers_of(topics) == state.topics
            and all(state.rows.get(one) == rows[one] for one in partitions_of(topics))
        )
        self.id = me.id
        if is_same:
            return
        new = dataclasses.replace(
            state,
            generation=state.generation + 1,
            assignor=self._assignor.name,
            members=self._assigned(members, topics, rows),
            rows=rows,
            topics=numbers_of(topics),
            since_ms=self._files.now_ms(),
        )
        self.file.append(self.slots, state=new)
        self.others.forget_free()
        self.slots.wake()

    def _gone(self, state: GroupState, stuck: Collection[str]) -> dict[str, bool]:
        """The other members that have ended (False), or are still stuck and are thrown
        out (True), by id."""
        alive, at_ms = set(self._others()), clock_ms(self._files)
        gone: dict[str, bool] = {}
        for member in state.members:
            if member.id == self.id:
                continue
            if member.slot not in alive:
                gone[member.id] = False  # its slot may be this member's now
                continue
            info = self.slots.info(member.slot)
            stuck_ms = info.stuck_ms(at_ms)
            if member.id in stuck and stuck_ms is not None:
                gone[member.id] = True
                logger.warning(
                    "group %s: process %d is thrown out: it has not polled for %d ms "
                    "(on_stuck='evict')",
                    self.group[:100],
                    info.process.pid,
                    stuck_ms + info.interval_ms,
                )
        return gone

    def _check_may_join(self, state: GroupState, members: Sequence[Member]) -> None:
        for member in members:
            if self._instance is not None and member.instance == self._instance:
                pid = self.slots.info(member.slot).process.pid
                self.slots.leave()
                raise MemberIdInUseError(
                    f"group {self.group!r:.100} has a static member "
                    f"{self._instance!r:.100}, in process {pid}; end that one, or give "
                    f"this one another name",
                    group=self.group,
                    instance=self._instance,
                    holder_pid=pid,
                )
        if members and state.assignor != self._assignor.name:
            self.slots.leave()
            raise InconsistentAssignorError(
                f"the members of group {self.group!r:.100} use the assignor "
                f"{state.assignor!r}, and this one has {self._assignor.name!r}; all "
                f"must use the same",
                group=self.group,
                expected=state.assignor,
            )

    def _next_rows(
        self, state: GroupState, members: Iterable[Member], fenced: Collection[int]
    ) -> tuple[Topics, dict[TopicPartition, Row]]:
        """The topics that members are to have, and the table. Partitions that no row is
        left for have no reader, and are looked at again by each `check`."""
        wanted = self._universe(members)
        rows = next_rows(state, wanted, self.slots, self.slots.rows, fenced)
        topics = with_rows(wanted, rows)
        if topics != wanted and not self._has_told_of_rows:
            left_out = set(partitions_of(wanted)) - set(partitions_of(topics))
            logger.warning(
                "group %s asks for %d partitions more than the %d that it may have: "
                "no member reads %s and others",
                self.group[:100],
                len(left_out),
                ROWS_MAX,
                min(left_out),
            )
        self._has_told_of_rows = topics != wanted
        return topics, rows

    def _assigned(
        self,
        members: Sequence[Member],
        topics: Topics,
        rows: Mapping[TopicPartition, Row],
    ) -> tuple[Member, ...]:
        return assigned(members, topics, rows, self.slots, self._assignor)

    # ------------------------------------------------------------ partitions

    def surplus(self) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The partitions to give up, because others are to have them; and those that
        are lost: the topic was deleted, or the group has gone on without this one."""
        state = self.file.state
        me = state.member(self.id)
        target = set() if me is None else set(me.partitions)
        revoked: list[TopicPartition] = []
        lost: list[TopicPartition] = []
        for one, row in self.held.items():
            if state.rows.get(one, row) != row:
                lost.append(one)
            elif one not in target:
                now = self._topics_now().get(one.topic)
                is_there = now is not None and now[0] == row.topic_id
                (revoked if is_there else lost).append(one)
        return revoked, lost

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Give partitions up."""
        for one in partitions:
            row = self.held.pop(one, None)
            if row is not None:
                self.slots.release(row.number)
        self.slots.wake()

    def take(self) -> list[TopicPartition]:
        """Take the partitions that this member is to have, as far as they are free.
        What was committed for them is read after that, and so it is the last."""
        me = self.file.state.member(self.id)
        missing = [] if me is None else [p for p in me.partitions if p not in self.held]
        if not missing:
            return []
        rows, locked = self.file.state.rows, set(self.slots.held_rows())
        if all(rows[one].number in locked for one in missing if one in rows):
            return []
        try:
            return self.slots.locked(self._take_held, _POLL_WAIT_S)
        except BusyError:
            return []

    def _take_held(self) -> list[TopicPartition]:
        self.file.refresh_held(self.slots)
        state = self.file.state
        me = state.member(self.id)
        if me is None:
            return []  # the next check joins again
        taken = []
        for one in me.partitions:
            row = state.rows.get(one)
            if one in self.held or row is None:
                continue
            if self.slots.take(row.number):
                self.held[one] = row
                taken.append(one)
        return taken

    def take_alone(
        self, wanted: Iterable[TopicPartition], topics: Topics
    ) -> list[TopicPartition]:
        """Take partitions that no member was assigned; those that were free."""
        wanted = list(wanted)

        def work() -> list[TopicPartition]:
            self._take_slot()
            state = self.file.state
            rows, locked = dict(state.rows), set(self.slots.held_rows())
            ids = {one: topics[one.topic][0] for one in wanted}
            if any(one not in rows or rows[one].topic_id != ids[one] for one in wanted):
                rows = used_rows(state, self.slots, self.slots.rows)
            used = {row.number for row in rows.values()} | locked | self.slots.rows
            free = iter(free_rows(used))
            for one in wanted:
                row = rows.get(one)
                if row is not None and row.topic_id == ids[one]:
                    continue
                number = next(free, None)
                if number is not None:
                    rows[one] = Row(number, ids[one])
            if rows != state.rows:
                new = dataclasses.replace(state, rows=rows)
                self.file.append(self.slots, state=new)
            taken = []
            for one in wanted:
                row = rows.get(one)
                if row is None or one in self.held:
                    continue
                if self.slots.take(row.number):
                    self.held[one] = row
                    taken.append(one)
            return taken

        return self._locked(work)

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

        keys = [TopicPartition(one.topic, one.partition) for one in commits]
        try:
            self.check_holds(keys)
            is_plain = self.in_way(way) is None
        except (CommitFailedError, FencedError):
            is_plain = False  # found again below, with the mutex, and raised there
        if is_plain and self.file.append_at_once(self.slots, commits, durable=durable):
            return

        def work() -> None:
            self.check_holds(keys)
            self.file.append(self.slots, commits, state=self.in_way(way))

        self._locked(work)
        if durable:
            self.file.sync(self.slots, self.file.end)

    def begin_transaction(self, partitions: Sequence[TopicPartition]) -> None:
        """Raise unless this member has partitions, and the group commits by
        transactions, durably from now on.

        Raises: as `commit`.
        """

        def work() -> bool:
            self.check_holds(partitions)
            state = self.in_way(BY_TRANSACTIONS)
            if state is not None:
                self.file.append(self.slots, state=state)
            return state is not None

        if self._locked(work):
            self.file.sync(self.slots, self.file.end)

    def sync(self) -> None:
        """Make durable what was committed."""
        self.file.sync(self.slots, self.file.end)

    def check_holds_now(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise unless this member has partitions at this moment.

        Raises: CommitFailedError, FencedError.
        """
        self._locked(lambda: self.check_holds(partitions))

    def in_way(self, way: str) -> GroupState | None:
        """The state to be written with a commit; None: it stays as it is.

        Raises:
            CommitFailedError: the group commits in the other way.
        """
        state = self.file.state
        if state.way == way:
            return None
        if state.way:
            raise CommitFailedError(
                f"group {self.group!r:.100} commits by {state.way}, and this is one of "
                f"{way}: both together would let records come twice or never. Nothing "
                f"was committed; use another group, or reset the offsets of this one",
                group=self.group,
            )
        return dataclasses.replace(state, way=way)

    def check_holds(self, partitions: Iterable[TopicPartition]) -> None:
        """With the end of the file read: raise unless this member has partitions.

        Raises: CommitFailedError, FencedError.
        """
        state = self.file.state
        if self.id and state is not self._checked_state:
            if state.member(self.id) is None:
                raise self._fenced("it was thrown out, because it did not poll in time")
            self._checked_state = state
        for one in partitions:
            row = self.held.get(one)
            if row is None:
                raise CommitFailedError(
                    f"this consumer does not have partition {one} of group "
                    f"{self.group!r:.100}: {self._who_has(one)}. Nothing was committed",
                    group=self.group,
                )
            if state.rows.get(one) != row:
                raise self._fenced(f"another member has partition {one} by now")

    def _fenced(self, why: str) -> FencedError:
        return FencedError(
            f"group {self.group!r:.100} has gone on without this consumer: {why}. "
            f"Nothing was committed; the next poll joins again",
            group=self.group,
        )

    def _who_has(self, one: TopicPartition) -> str:
        rows = self.file.state.rows
        row = rows.get(one)
        if row is None and len(rows) >= ROWS_MAX:
            return f"members have {ROWS_MAX} others, which is the most"
        if row is None or not self.slots.is_held(row.number):
            return "no member has it"
        slot = self.slots.holder(row.number)
        if slot is None:
            return "another member has it"
        return f"process {self.slots.info(slot).process.pid} has it"

    # ------------------------------------------------------------ the end

    def leave(self) -> None:
        """Leave the group: the others begin the next generation at once."""
        try:
            if self.id and self.slots.fd >= 0:
                self.slots.locked(self._leave_held, _WAIT_S)
        except (LogStoreError, BusyError) as error:
            # Its locks end in any case, and the others see that.
            logger.warning("group %s: cannot leave it: %s", self.group[:100], error)
        finally:
            self.id = ""
            self.held.clear()
            if self.slots.fd >= 0:
                self.slots.leave()
                self.slots.wake()

    def close(self) -> None:
        """Leave the group, and close its files."""
        try:
            self.leave()
        finally:
            self.slots.close()
            self.file.close()

    def _leave_held(self) -> None:
        self.file.refresh_held(self.slots)
        state = self.file.state
        alive = set(self._others())
        members = [m for m in state.members if m.id != self.id and m.slot in alive]
        if state.member(self.id) is None:
            return
        topics, rows = self._next_rows(state, members, ())
        new = dataclasses.replace(
            state,
            generation=state.generation + 1,
            assignor=state.assignor if members else "",
            members=self._assigned(members, topics, rows),
            rows=rows,
            topics=numbers_of(topics),
            since_ms=self._files.now_ms(),
        )
        self.file.append(self.slots, state=new)
