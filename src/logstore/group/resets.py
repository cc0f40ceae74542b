"""Setting the committed offsets of a group that has no member."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from logstore.broker.groups import kafka_groups
from logstore.broker.kafka_records import OffsetCommit
from logstore.broker.lag import OffsetChange
from logstore.broker.placement import OFFSETS_TOPIC
from logstore.config import StoreConfig
from logstore.errors import (
    CommitFailedError,
    ConfigError,
    GroupNotEmptyError,
    GroupNotFoundError,
    TopicNotFoundError,
)
from logstore.group.consumer.lowering import is_of, lowered_commit
from logstore.group.consumer.transaction import GroupPositions
from logstore.group.file.group_file import GroupFile, record_id
from logstore.group.file.slots import BusyError, LockFile, Slots, lock_file_of
from logstore.group.file.state import BY_TRANSACTIONS
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.log.read.proof import ProofFinder
from logstore.record.arguments import as_integer, as_items, as_time_ms, is_time
from logstore.store.opening import open_store
from logstore.store.package_access import (
    files_directory,
    lowered_in_copy,
    root_of,
    views_of,
)
from logstore.store.partition.partition import Partition
from logstore.store.store import Store

__all__ = ["reset_offsets"]

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
# For so long another process may have the group's mutex.
_WAIT_S: Final = 10.0


def reset_offsets(
    path: str | os.PathLike[str],
    group: str,
    *,
    to: str | int | datetime.date | None = None,
    shift: int | None = None,
    topics: Sequence[str] | None = None,
    dry_run: bool,
    expected: Sequence[OffsetChange] | None = None,
    store_config: StoreConfig | None = None,
) -> list[OffsetChange]:
    """Commit other offsets for a group of a store. It has no member meanwhile: none
    lives, and none can join.

    Args:
        path: of the store; its owner, and readers, may work on it.
        group: the id of the group.
        to: ``"earliest"``: the start of each log; ``"latest"``: its end; an offset; or
            a time (a datetime, a date, or text in ISO 8601): the first record since
            then, else the end.
        shift: number of records further; negative: back. Of partitions for which an
            offset is committed. Either `to` or `shift` is given.
        topics: all partitions of these; None: the partitions for which the group has
            committed an offset.
        dry_run: only return what would be done. From 0.2 on False by default.
        expected: the changes of a dry run which was confirmed: exactly these
            are made, also if logs have grown meanwhile.
        store_config: may allow that files are written where others may change them, or
            on a network file system.

    Returns:
        The offsets, by topic and partition; an offset outside of the log becomes the
        start or the end. They are durable.

    Raises:
        GroupNotEmptyError: members live; also with `dry_run`.
        GroupNotFoundError: there is no such group, and no `topics`.
        TopicNotFoundError: one of the topics, or of the group's topics, is not here.
        CommitFailedError: the group commits by transactions, whose offsets are with the
            publications of the store; or another process does not give back its mutex;
            or the changes are not the `expected` ones any more.
        ConfigError: arguments that cannot be meant; or this is no `dry_run`, and
            opening the store for writing would need a setting.
        CorruptCheckpointError: the group's file is damaged.
        UnsupportedError: a later version wrote it.
        DiskFullError, StorageError: nothing was committed.
        SyncFailedError: it is committed, and may be lost in a power failure.
    """
    target = _Target(to, shift)
    name = layout.group_file(group)
    names = None if topics is None else list(as_items("topics", topics, of="names"))
    with open_store(path, read_only=True, config=store_config) as store:
        if not dry_run:
            root = files_directory(store)
            return _Reset(store, root, name, group, target, names, expected).done()
        root = root_of(store)
        file = GroupFile(root, name, record_id(group))
        try:
            file.refresh()
            _check_empty(root, name, group)
            _check_way(store, file, group)
            return [
                _change(store, file, partition, target)
                for partition in _partitions(store, file, group, names, target)
            ]
        finally:
            file.close()


class _Target:
    """Target of a reset: the arguments `to` and `shift` of `reset_offsets`."""

    def __init__(self, to: object, shift: object) -> None:
        self.time_ms: int | None = None
        self.offset: int | None = None
        self.end = ""
        self.shift: int | None = None
        if (to is None) == (shift is None):
            raise ConfigError(
                f"to={to!r}, shift={shift!r}: give exactly one of them; nothing "
                "was changed",
                name="to",
                value=to,
            )
        if shift is not None:
            self.shift = as_integer("shift", shift, "a number of records (int)")
        elif to in (EARLIEST, LATEST):
            self.end = str(to)
        elif is_time(to):
            self.time_ms = as_time_ms("to", to)
        else:
            self.offset = as_integer(
                "to", to, "'earliest', 'latest', an offset (int) or a time"
            )

    def of(self, partition: Partition, before: int | None) -> int:
        """The offset for a partition."""
        start, end = partition.start_offset, partition.end_offset
        if self.end:
            return start if self.end == EARLIEST else end
        if self.time_ms is not None:
            time_offset = partition.offset_for_time(self.time_ms)
            return end if time_offset is None else time_offset
        offset = self.offset
        if offset is None:
            assert before is not None
            assert self.shift is not None
            offset = before + self.shift
        return min(max(offset, start), end)


class _Reset:
    """The change, with the group's mutex."""

    def __init__(
        self,
        store: Store,
        root: Directory,
        name: str,
        group: str,
        target: _Target,
        topics: Iterable[str] | None,
        expected: Sequence[OffsetChange] | None,
    ) -> None:
        self._store = store
        self._expected = expected
        self._root = root
        self._name = name
        self._group = group
        self._target = target
        self._topics = topics
        self._file = GroupFile(root, name, record_id(group), write=True)

    def done(self) -> list[OffsetChange]:
        # The file of a group that is not there is not made for an error.
        self._file.refresh()
        self._partitions()
        slots = Slots(self._root, self._name, self._group)
        try:
            changes = slots.locked(lambda: self._change(slots), _WAIT_S)
            if changes:
                self._file.sync(slots, self._file.end)
        except BusyError:
            raise CommitFailedError(
                f"the mutex of group {self._group!r:.100} was not free for "
                f"{_WAIT_S:.0f} s: another process holds it and does not respond. "
                "Nothing was changed",
                group=self._group,
            ) from None
        finally:
            slots.close()
            self._file.close()
        return changes

    def _partitions(self) -> list[Partition]:
        return _partitions(
            self._store, self._file, self._group, self._topics, self._target
        )

    def _change(self, slots: Slots) -> list[OffsetChange]:
        self._file.refresh_held(slots)
        _check_members(slots, self._group)
        _check_way(self._store, self._file, self._group)
        now_ms = self._root.files.now_ms()
        partitions = self._partitions()
        changes, commits = self._changes(partitions), []
        for partition, change in zip(partitions, changes, strict=True):
            commits.append(
                OffsetCommit(
                    self._file.group,
                    change.topic,
                    change.partition,
                    change.after,
                    commit_ms=now_ms,
                    topic_id=partition.topic_id or None,
                    proof=_proof_of(partition, change.after),
                )
            )
        if commits:
            self._file.append(slots, commits)
        return changes

    def _changes(self, partitions: Sequence[Partition]) -> list[OffsetChange]:
        """The changes of these partitions, or the expected ones, if they still fit."""
        changes = [
            _change(self._store, self._file, partition, self._target)
            for partition in partitions
        ]
        if self._expected is None:
            return changes
        if [_place(change) for change in changes] == [
            _place(change) for change in self._expected
        ]:
            ends = [
                (partition.start_offset, partition.end_offset)
                for partition in partitions
            ]
            afters = [change.after for change in self._expected]
            if all(
                low <= after <= high
                for after, (low, high) in zip(afters, ends, strict=True)
            ):
                return list(self._expected)
        raise CommitFailedError(
            f"the offsets of group {self._group!r:.100}, or the logs, have changed "
            f"since the changes were shown. Nothing was changed; try again",
            group=self._group,
        )


def _before(store: Store, file: GroupFile, partition: Partition) -> int | None:
    """The valid committed offset of a partition: in a copy that was not opened for
    writing yet, no position above the end of the log."""
    commit = file.committed(TopicPartition(partition.topic, partition.number))
    if commit is None:
        return None
    commit = lowered_commit(commit, lowered_in_copy(store))
    return commit.offset if is_of(store, partition, commit) else None


def _proof_of(partition: Partition, offset: int) -> int | None:
    now = partial(views_of(partition).now, False)
    return ProofFinder().find(offset, None, now, is_read=False)


def _place(change: OffsetChange) -> tuple[str, int, int | None]:
    """The partition of a change, and the offset that it replaces."""
    return change.topic, change.partition, change.before


def _change(
    store: Store, file: GroupFile, partition: Partition, target: _Target
) -> OffsetChange:
    before = _before(store, file, partition)
    after = target.of(partition, before)
    return OffsetChange(partition.topic, partition.number, before, after)


def _partitions(
    store: Store,
    file: GroupFile,
    group: str,
    topics: Iterable[str] | None,
    target: _Target,
) -> list[Partition]:
    """The partitions to change, by topic and number."""
    if topics is not None:
        names = sorted(set(topics))
        partitions = [partition for name in names for partition in store.topic(name)]
    else:
        partitions = [
            _partition(store, TopicPartition(commit.topic, commit.partition), group)
            for commit in file.commits()
        ]
        if not partitions:
            _check_not_of_broker(store, group)
            raise GroupNotFoundError(
                f"group {group!r:.100} has committed no offset in {store.path}; name "
                f"its topics to commit the first ones. Nothing was changed",
                group=group,
                path=store.path,
            )
    if target.shift is not None:
        partitions = [
            partition
            for partition in partitions
            if _before(store, file, partition) is not None
        ]
    return partitions


def _check_not_of_broker(store: Store, group: str) -> None:
    """Raise if a group is one of a broker, which has its directory here."""
    if OFFSETS_TOPIC not in store.topics():
        return
    if any(broker_group.group == group for broker_group in kafka_groups(store.path)):
        raise GroupNotFoundError(
            f"group {group!r:.100} belongs to a Kafka broker: its offsets are in "
            f"{OFFSETS_TOPIC} of {store.path}, which the broker alone changes "
            "(kafka-consumer-groups --reset-offsets). Name its topics to commit "
            "offsets for a group of logstore with this id. Nothing was changed",
            group=group,
            path=store.path,
        )


def _partition(store: Store, key: TopicPartition, group: str) -> Partition:
    try:
        return store.topic(key.topic)[key.partition]
    except TopicNotFoundError as error:
        raise TopicNotFoundError(
            f"group {group!r:.100} has committed an offset for topic {key.topic}, "
            f"which no longer exists in {store.path}; name the topics to be "
            "reset. Nothing was changed",
            topic=key.topic,
        ) from error


def _check_empty(root: Directory, name: str, group: str) -> None:
    """Raise if members live; without a lock."""
    with lock_file_of(root, name) as lock:
        if lock is not None:
            _check_members(lock, group)


def _check_members(lock: LockFile, group: str) -> None:
    pids = tuple(sorted({lock.info(slot).process.pid for slot in lock.members()}))
    if pids:
        raise GroupNotEmptyError(
            f"group {group!r:.100} has members in the processes "
            f"{', '.join(map(str, pids))}: close them first. Nothing was changed",
            group=group,
            pids=pids,
        )


def _check_way(store: Store, file: GroupFile, group: str) -> None:
    """Raise if the group commits by transactions: its file says so, or the store does,
    after the file was removed."""
    way = file.state.way
    if not way and GroupPositions(store, group).read()[0]:
        way = BY_TRANSACTIONS
    if way == BY_TRANSACTIONS:
        raise CommitFailedError(
            f"group {group!r:.100} commits by transactions: its offsets are with the "
            f"publications of the store, and are not reset here. Nothing was changed; "
            f"seek in a consumer of the group, and commit a transaction",
            group=group,
        )
