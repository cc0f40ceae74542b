"""Positions of groups in a copied store: none lies above the end of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import (
    CorruptionError,
    LogStoreError,
    StorageError,
    UnsupportedError,
    storage_errors,
)
from logstore.group.consumer.transaction import (
    lowered_positions,
    metadata_of,
    positions_in,
)
from logstore.group.file.group_file import GroupFile
from logstore.group.file.slots import BusyError
from logstore.group.member.open_group import OpenGroup
from logstore.io import layout
from logstore.io.checkpoint.ledger import LedgerEntry
from logstore.io.checkpoint.recovery_report import (
    POSITION_ABOVE_END,
    POSITION_LOWERED,
    RecoveryAction,
)
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.copy.copies import LoweredTo, at_adoption
from logstore.store.package_access import partition_id, views_of
from logstore.store.partition.partition import Partition
from logstore.store.publication.publication import GROUP_IDENTITY
from logstore.store.publication.publisher import Publisher
from logstore.store.store import Store

__all__ = ["is_of", "lower_positions", "lowered_commit"]

# For so long in all to wait for members that have the mutex of their group.
_WAIT_S: Final = 10.0


class _Above(NamedTuple):
    """A position above the end of its log.

    Attributes:
        file: that of the group, and the one that has the position.
        group: its id.
        position, lowered: the old and the new one.
    """

    file: tuple[str, str]
    group: str
    key: TopicPartition
    position: int
    lowered: int


# The positions of a file, and why they could not be lowered; None: they were.
_Outcome: TypeAlias = "tuple[list[_Above], Exception | None]"


def lower_positions(
    root: Directory,
    publisher: Publisher,
    lowered_to: LoweredTo,
    report: Callable[[RecoveryAction], None],
) -> dict[TopicPartition, LogStoreError]:
    """Lower the positions that lie above the end of a log, durably: to the end, or to
    the offset of a cut since they were committed. Report each, in the files of groups
    and in the publications. A file that is damaged, or of a later version, is not
    changed: its consumers raise that.

    Returns:
        Why a position was not lowered, by its partition.

    Raises:
        StorageError: the positions of a group cannot be read.
    """
    outcomes = []
    with storage_errors("read", root.path):
        files = (layout.PUBLISHED, layout.PUBLICATION)
        is_any_published = any(map(root.exists, files))
        names = layout.group_files(root.names())
    if is_any_published:
        outcomes.append(_lower_published(root, publisher, lowered_to))
    until = root.files.monotonic() + _WAIT_S
    for name in names:
        try:
            outcomes.append(_lower(root, name, lowered_to, until))
        except (CorruptionError, UnsupportedError) as error:
            logger.warning("cannot lower the positions in %s: %s", name, error)
    failed: dict[TopicPartition, LogStoreError] = {}
    # The file of a group that commits by transactions has a copy of its positions.
    told: set[tuple[str, TopicPartition, bool]] = set()
    for entries, failure in outcomes:
        for entry in entries:
            if (entry.file[0], entry.key, failure is None) not in told:
                told.add((entry.file[0], entry.key, failure is None))
                report(_action(root, entry, failure))
            if failure is not None:
                failed.setdefault(entry.key, _refusal(root, entry, failure))
    return failed


def _action(root: Directory, entry: _Above, error: Exception | None) -> RecoveryAction:
    label, end = POSITION_LOWERED, entry.lowered
    text = (
        f"group {entry.group!r:.100} had the position {entry.position} in {entry.key}, "
        f"but the log here has those records only up to {end}: the position was "
        f"lowered to {end}"
    )
    if error is not None:
        label, text = POSITION_ABOVE_END, str(_refusal(root, entry, error))
    path = root.path_of(entry.file[1])
    return RecoveryAction(label, *entry.key, path, -1, 0, end, None, text)


def _refusal(root: Directory, entry: _Above, error: Exception) -> StorageError:
    """Why the partition of a position takes no appends."""
    reason = str(error)
    if isinstance(error, BusyError):
        lock = root.path_of(layout.group_lock_file(entry.file[0]))
        reason = f"another process holds the lock on {lock}, and does not respond"
    return StorageError(
        f"{entry.key} takes no appends: the store is a copy, group "
        f"{entry.group!r:.100} has the position {entry.position}, above the "
        f"{entry.lowered} up to which its records are here, and would skip them. It "
        f"cannot be lowered: {reason}. Open the store again when it can",
        errno=error.errno if isinstance(error, OSError) else None,
        path=root.path_of(entry.file[1]),
        action="append to",
    )


def _lower_published(
    root: Directory, publisher: Publisher, lowered_to: LoweredTo
) -> _Outcome:
    """Lower the positions of groups that commit by transactions. Each change has a
    separate number: a transaction that began with the position before is refused."""
    with publisher.lock:
        changes: dict[str, LedgerEntry] = {}
        entries: list[_Above] = []
        try:
            with storage_errors("read", root.path_of(layout.PUBLISHED)):
                remembered = publisher.remembered()
        except CorruptionError as error:
            logger.warning("cannot lower the positions that were published: %s", error)
            return [], None
        for identity, entry in remembered.items():
            if not identity.startswith(GROUP_IDENTITY):
                continue
            try:
                positions = positions_in(entry.metadata)
            except (ValueError, KeyError, TypeError):
                continue  # its consumer reports it
            lowered = lowered_positions(positions, entry.time_ms, lowered_to)
            if lowered:
                metadata = metadata_of({**positions, **lowered})
                changes[identity] = entry._replace(
                    sequence=entry.sequence + 1, records=0, metadata=metadata
                )
                name = layout.GROUP_PREFIX + identity.removeprefix(GROUP_IDENTITY)
                group, files = layout.group_of_file(name), (name, layout.PUBLISHED)
                entries += [
                    _Above(files, group, key, positions[key].offset, now.offset)
                    for key, now in lowered.items()
                ]
        try:
            if changes:
                publisher.amend(changes)
        except (LogStoreError, OSError) as error:
            return entries, error
    return entries, None


def _lower(root: Directory, name: str, lowered_to: LoweredTo, until: float) -> _Outcome:
    """Lower the positions in the file of a group.

    Args:
        until: when to stop waiting for its mutex.

    Raises:
        CorruptionError, UnsupportedError: its positions cannot be read.
        StorageError: it cannot be read.
    """
    file = GroupFile(root, name, "")
    try:
        file.refresh()
        group = file.group
        entries = _above(file, lowered_to)
    finally:
        file.close()
    if not entries:
        return [], None
    try:
        return _lower_in(root, name, group, lowered_to, until), None
    except (CorruptionError, UnsupportedError):
        raise
    except (LogStoreError, BusyError) as error:
        return entries, error


def _above(file: GroupFile, lowered_to: LoweredTo) -> list[_Above]:
    return [
        _Above(
            (file.name, file.name), file.group, _key(commit), commit.offset, now.offset
        )
        for commit in file.commits()
        if (now := lowered_commit(commit, lowered_to)) is not commit
    ]


def _lower_in(
    root: Directory, name: str, group: str, lowered_to: LoweredTo, until: float
) -> list[_Above]:
    opened = OpenGroup(root, name, group)
    file = opened.file

    def work() -> list[_Above]:
        entries = _above(file, lowered_to)
        if entries:
            commits = file.commits()
            lowered = [lowered_commit(commit, lowered_to) for commit in commits]
            changed = zip(commits, lowered, strict=True)
            opened.append([now for commit, now in changed if now is not commit])
            opened.sync()
        return entries

    try:
        return opened.locked_within(max(until - root.files.monotonic(), 0), work)
    finally:
        opened.close()


def _key(commit: OffsetCommit) -> TopicPartition:
    return TopicPartition(commit.topic, commit.partition)


def lowered_commit(commit: OffsetCommit, lowered_to: LoweredTo | None) -> OffsetCommit:
    """The commit as it counts in a copy: with no position above the end of the log.

    Args:
        lowered_to: None: this is not a copy.
    """
    if lowered_to is None:
        return commit
    now = lowered_to(
        _key(commit), commit.topic_id or "", commit.offset, commit.commit_ms
    )
    if now is None:
        return commit
    return dataclasses.replace(commit, offset=now, leader_epoch=-1, proof=None)


def is_of(store: Store, partition: Partition, commit: OffsetCommit) -> bool:
    """Whether a commit counts in a partition: it is of the same topic, and the log
    has the batch below its offset that it had then."""
    if not counts_in(partition_id(store, _key(commit)), commit.topic_id):
        return False
    proof = commit.proof
    return proof is None or not views_of(partition).disproves(commit.offset, proof)


at_adoption(lower_positions)
