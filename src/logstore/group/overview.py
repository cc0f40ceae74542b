"""The consumer groups of a store, as anyone may look at them: live members, offsets,
lag. It takes no lock.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from logstore.broker.kafka_records import OffsetCommit
from logstore.broker.lag import GroupPartition, GroupRows
from logstore.errors import LogStoreError, storage_errors
from logstore.group.consumer.lowering import is_of, lowered_commit
from logstore.group.consumer.transaction import GroupPositions, identity_of_file
from logstore.group.file.group_file import GroupFile
from logstore.group.file.slots import SlotInfo, clock_ms, lock_file_of
from logstore.group.file.state import BY_TRANSACTIONS, Member
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.log.frames.notebook import Cell, shown
from logstore.store.opening import open_store
from logstore.store.package_access import lowered_in_copy
from logstore.store.partition.partition import Partition
from logstore.store.store import Store

__all__ = [
    "ConsumerGroup",
    "ConsumerGroups",
    "LiveMember",
    "Logs",
    "groups",
    "groups_and_errors",
    "groups_of",
]

_EMPTY: Final = "Empty"
_STABLE: Final = "Stable"
# A batch is written at once: it is rarely seen half.
_ATTEMPTS: Final = 10
_REBALANCING: Final = "Rebalancing"


@dataclass(frozen=True, slots=True)
class LiveMember:
    """A member of a group that lives: it has the lock of its slot.

    Attributes:
        member_id: another one at each joining; "" for one that was assigned its
            partitions by its program (`Consumer.assign`).
        instance_id: the name of a static member; None for another.
        slot: its number, 0 to 1,023.
        pid: process that joined.
        has_ended: that process has ended: a child that it forked without Python holds
            its locks on. End the child, too.
        since_ms: when it joined, in Unix ms.
        stuck_ms: for how many ms longer than allowed it has not polled; None: it is not
            stuck.
        topics: the topics that it asks for by name.
        pattern: a regular expression of others that it asks for; None: none.
        partitions: its assigned partitions; it takes them when their former member
            has given them up (`GroupPartition.member` is the present holder).
    """

    member_id: str
    instance_id: str | None
    slot: int
    pid: int
    has_ended: bool
    since_ms: int
    stuck_ms: int | None
    topics: tuple[str, ...]
    pattern: str | None
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroup(GroupRows):
    """A consumer group of a store.

    Attributes:
        group: its id.
        state: ``"Empty"``: no member lives. ``"Stable"``: every member holds its
            assigned partitions. ``"Rebalancing"``: not yet.
        generation: rises with each change of members or topics.
        assignor: the name of the one that the members use; None: none yet.
        way: ``"commits"`` or ``"transactions"``, as the group commits; "" so far.
        state_ms: since when this generation is, in Unix ms; -1: unknown.
        members: by slot.
        partitions: committed offsets, and partitions assigned to members, by topic
            and number. `end`: None also if the offset does not count: the topic was
            made again since, or the log was cut below it and has grown.
    """

    group: str
    state: str
    generation: int
    assignor: str | None
    way: str
    state_ms: int
    members: tuple[LiveMember, ...]
    partitions: tuple[GroupPartition, ...]

    @property
    def stuck(self) -> int:
        """How many of its members are stuck."""
        return sum(member.stuck_ms is not None for member in self.members)


class ConsumerGroups(list[ConsumerGroup]):
    """The groups of a store, by id.

    Attributes:
        problems: the files of groups that could not be read, a sentence each.
    """

    def __init__(self, found: Iterable[ConsumerGroup] = ()) -> None:
        super().__init__(found)
        self.problems: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Render for notebooks: a table of the groups, and their problems."""
        number = Cell.number
        rows = [
            [
                Cell(group.group),
                Cell(group.state),
                number(len(group.members)),
                number(group.stuck),
                number(len(group.partitions)),
                number(-1 if group.lag is None else group.lag),
            ]
            for group in self
        ]
        head = ("group", "state", "members", "stuck", "partitions", "lag")
        title = "\n".join([f"{len(self)} consumer groups", *self.problems])
        return shown(title, head, rows)


def groups(path: str | os.PathLike[str]) -> ConsumerGroups:
    """The consumer groups of a store.

    Nothing is written and no lock is taken; members and an owner of the store may work
    meanwhile. Members' locks show what they hold, so it is true for this machine
    alone: in a copy of the directory no member lives.

    Raises:
        StoreNotFoundError: there is no store.
        StorageError: the system refuses to list the directory.
    """
    return groups_and_errors(path)[0]


def groups_and_errors(
    path: str | os.PathLike[str],
) -> tuple[ConsumerGroups, dict[str, LogStoreError]]:
    """The result of `groups`, with the error of each unreadable file, by its name."""
    with open_store(path, read_only=True) as store:
        return groups_of(store, _Logs(store))


def groups_of(
    store: Store, logs: Logs
) -> tuple[ConsumerGroups, dict[str, LogStoreError]]:
    """The groups of an open store, with the error of each file that could not be read,
    by its name."""
    consumer_groups, errors = ConsumerGroups(), dict[str, LogStoreError]()
    problems: list[str] = []
    root = Directory.open_root(Files(), store.path)
    try:
        with storage_errors("read", store.path):
            names = layout.group_files(root.names())
        for name in sorted(names):
            try:
                consumer_groups += _groups(store, root, name, logs, problems)
            except LogStoreError as error:
                errors[name] = error
                problems.append(str(error))
    finally:
        root.close()
    consumer_groups.sort(key=lambda group: group.group)
    consumer_groups.problems = tuple(problems)
    return consumer_groups, errors


class Logs(Protocol):
    """The ends of the logs of a store."""

    def end(self, key: TopicPartition, commit: OffsetCommit | None) -> int | None:
        """The end of a log, if a committed offset counts in it; None: it does not, or
        the end is unknown."""


class _Logs:
    """The partitions of a store, for their ends and the ids of their topics."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[TopicPartition, Partition | None] = {}

    def _partition(self, key: TopicPartition) -> Partition | None:
        if key not in self._known:
            self._known[key] = None
            with contextlib.suppress(LogStoreError):
                self._known[key] = self._store.topic(key.topic)[key.partition]
        return self._known[key]

    def end(self, key: TopicPartition, commit: OffsetCommit | None) -> int | None:
        """See `Logs.end`."""
        partition = self._partition(key)
        if partition is None:
            return None
        with contextlib.suppress(LogStoreError):
            counts = commit is None or is_of(self._store, partition, commit)
            return partition.end_offset if counts else None
        return None


def _groups(
    store: Store, root: Directory, name: str, logs: Logs, problems: list[str]
) -> Iterator[ConsumerGroup]:
    """The group of a file; none if the file is empty, and no member lives."""
    file = GroupFile(root, name)
    try:
        rest = _refreshed(file)
        commits, state, group = file.commits(), file.state, file.group
    finally:
        file.close()
    if state.way == BY_TRANSACTIONS:
        # The file has a copy, which may be older by a crash.
        commits = _published(store, name, commits)
    else:
        lowered_to = lowered_in_copy(store)
        commits = [lowered_commit(commit, lowered_to) for commit in commits]
    if rest:
        problems.append(
            f"the last {rest} bytes of the group's file {file.path} are an "
            "incomplete batch, left by a crash; it is not shown"
        )
    if (
        group
        and layout.group_file(group) != name
        and group != layout.group_of_file(name)
    ):
        problems.append(
            f"the group's file {file.path} contains records of group "
            f"{group!r:.100}: it is not shown"
        )
        return
    slots: dict[int, SlotInfo] = {}
    holders: dict[TopicPartition, int | None] = {}
    with lock_file_of(root, name) as lock:
        if lock is not None:
            slots = {slot: lock.info(slot) for slot in lock.members()}
            held = set(lock.held_rows())
            holders = {
                partition: lock.holder(row.number)
                for partition, row in state.rows.items()
                if row.number in held
            }
    if not (group or slots):
        return
    by_slot = {member.slot: member for member in state.members}
    at_ms, files = clock_ms(root.files), root.files
    members = [
        _member(
            info,
            by_slot.get(slot),
            at_ms,
            files.is_running(info.process),
        )
        for slot, info in sorted(slots.items())
    ]
    ids = {member.slot: member.member_id or f"slot {member.slot}" for member in members}
    has = {
        partition: ids[slot]
        for partition, slot in holders.items()
        if slot is not None and slot in ids
    }
    alive = [member for member in state.members if member.slot in slots]
    assigned = {
        partition: member.id for member in alive for partition in member.partitions
    }
    live_state = _EMPTY
    if members:
        is_settled = len(alive) == len(state.members) and all(
            has.get(partition) == member_id for partition, member_id in assigned.items()
        )
        live_state = _STABLE if is_settled else _REBALANCING
    yield ConsumerGroup(
        group or layout.group_of_file(name),
        live_state,
        state.generation,
        state.assignor or None,
        state.way,
        state.since_ms,
        tuple(members),
        tuple(_rows(commits, {*assigned, *has}, has, logs)),
    )


def _published(
    store: Store, name: str, copies: Iterable[OffsetCommit]
) -> list[OffsetCommit]:
    """Offsets that a group has committed by transactions."""
    known = {
        TopicPartition(commit.topic, commit.partition): commit for commit in copies
    }
    positions = GroupPositions(store, layout.group_of_file(name))
    # Of an id that the name has only shortened, too.
    positions.identity = identity_of_file(name)
    commits = []
    for key, position in positions.read()[1].items():
        copy = known.get(key)
        is_same = copy is not None and copy.offset == position.offset
        commits.append(
            OffsetCommit(
                layout.group_of_file(name),
                *key,
                position.offset,
                commit_ms=copy.commit_ms if copy is not None and is_same else -1,
                topic_id=position.topic_id or None,
                proof=position.proof,
            )
        )
    return commits


def _refreshed(file: GroupFile) -> int:
    """Read the file. Returns how many bytes at its end are no whole batch, and are not
    just being written."""
    rest = 0
    for _ in range(_ATTEMPTS):
        file.refresh()
        before, rest = rest, file.rest_bytes()
        if not rest:
            return 0
        if rest == before:
            break
    return rest


def _member(
    info: SlotInfo, member: Member | None, at_ms: int, is_running: bool
) -> LiveMember:
    return LiveMember(
        "" if member is None else member.id,
        None if member is None else member.instance,
        info.slot,
        info.process.pid,
        not is_running,
        info.since_ms,
        info.stuck_ms(at_ms),
        () if member is None else member.topics,
        None if member is None else member.pattern,
        () if member is None else member.partitions,
    )


def _rows(
    commits: Iterable[OffsetCommit],
    partitions: Iterable[TopicPartition],
    has: Mapping[TopicPartition, str],
    logs: Logs,
) -> Iterator[GroupPartition]:
    by_key = {
        TopicPartition(
            committed_offset.topic, committed_offset.partition
        ): committed_offset
        for committed_offset in commits
    }
    for key in sorted({*by_key, *partitions}):
        commit, member = by_key.get(key), has.get(key)
        if commit is None:
            yield GroupPartition(*key, end=logs.end(key, None), member=member)
        else:
            yield GroupPartition(
                *key,
                commit.offset,
                commit.metadata,
                logs.end(key, commit),
                member,
                commit.leader_epoch,
                commit.commit_ms,
                commit.expire_ms,
                commit.topic_id,
            )


# Pickles of 0.1 have these names, until 0.2.
Group = ConsumerGroup
Groups = ConsumerGroups
