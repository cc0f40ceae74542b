"""Positions of groups in a copied store: none lies above the end of a log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from logstore._native.locks import logger
from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import LogStoreError
from logstore.group.group_file import GroupFile, record_id
from logstore.group.slots import BusyError, Slots
from logstore.group.transaction import lowered_positions, metadata_of, positions_in
from logstore.io import layout
from logstore.io.checkpoint.publications import Entry
from logstore.io.checkpoint.recovery_report import POSITION_LOWERED, RecoveryAction
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.copies import LoweredTo, at_adoption
from logstore.store.publication import GROUP_IDENTITY
from logstore.store.publisher import Publisher

__all__ = ["lower_positions", "lowered_commit"]

_WAIT_S: Final = 10.0


def lower_positions(
    root: Directory,
    publisher: Publisher,
    lowered_to: LoweredTo,
    report: Callable[[RecoveryAction], None],
) -> None:
    """Lower the positions that lie above the end of a log, durably: to the end, or to
    where the log was cut since they were committed. Report each: those in the files of
    groups, and those that were published. A file that is damaged, or cannot be written,
    stays as it is: a position above an end is an error of its consumer.
    """
    # The file of a group that commits by transactions has a copy of its positions.
    told: set[tuple[str, TopicPartition]] = set()

    def tell(
        name: str, file: str, group: str, key: TopicPartition, offset: int, end: int
    ) -> None:
        if (name, key) in told:
            return
        told.add((name, key))
        text = (
            f"group {group!r:.100} had the position {offset} in {key}, and the log "
            f"here has the records that it had only up to {end}: it is lowered to that"
        )
        path = root.path_of(file)
        report(RecoveryAction(POSITION_LOWERED, *key, path, -1, 0, end, None, text))

    try:
        if any(map(root.exists, (layout.PUBLISHED, layout.PUBLICATION))):
            _lower_published(publisher, lowered_to, tell)
    except (LogStoreError, OSError) as error:
        logger.warning("cannot lower the positions that were published: %s", error)
    for name in layout.group_files(root.names()):
        try:
            _lower(root, name, lowered_to, tell)
        except (LogStoreError, BusyError) as error:
            logger.warning("cannot lower the positions in %s: %s", name, error)


# Of a group's file: (its name, the file that has the position, id of the group,
# partition, position, end of the log).
_Tell = Callable[[str, str, str, TopicPartition, int, int], None]


def _lower_published(publisher: Publisher, lowered_to: LoweredTo, tell: _Tell) -> None:
    """Those of groups that commit by transactions. Each change has a number of its own:
    a transaction that began with the position before is refused."""
    with publisher.lock:
        changes: dict[str, Entry] = {}
        lowered = []
        for identity, entry in publisher.ledger().items():
            if not identity.startswith(GROUP_IDENTITY):
                continue
            try:
                positions = positions_in(entry.metadata)
            except (ValueError, KeyError, TypeError):
                continue  # its consumer is told
            found = lowered_positions(positions, entry.time_ms, lowered_to)
            if found:
                metadata = metadata_of({**positions, **found})
                changes[identity] = entry._replace(
                    sequence=entry.sequence + 1, records=0, metadata=metadata
                )
                name = layout.GROUP_PREFIX + identity.removeprefix(GROUP_IDENTITY)
                lowered += [(name, k, positions[k].offset, found[k]) for k in found]
        if changes:
            publisher.amend(changes)
    for name, key, offset, now in lowered:
        group = layout.group_of_file(name)
        tell(name, layout.PUBLISHED, group, key, offset, now.offset)


def _lower(root: Directory, name: str, lowered_to: LoweredTo, tell: _Tell) -> None:
    file = GroupFile(root, name, "")
    try:
        file.refresh()
        group = file.group
        if all(lowered_commit(one, lowered_to) is one for one in file.commits()):
            return
    finally:
        file.close()
    file = GroupFile(root, name, record_id(group), write=True)
    slots = Slots(root, layout.group_lock_file(name), group)

    def work() -> list[tuple[OffsetCommit, OffsetCommit]]:
        file.refresh_held(slots)
        found = [
            (commit, now)
            for commit in file.commits()
            if (now := lowered_commit(commit, lowered_to)) is not commit
        ]
        if found:
            file.append(slots, [now for _, now in found])
            file.sync(slots, file.end)
        return found

    try:
        for commit, now in slots.locked(work, _WAIT_S):
            key = TopicPartition(commit.topic, commit.partition)
            tell(name, name, group, key, commit.offset, now.offset)
    finally:
        slots.close()
        file.close()


def lowered_commit(commit: OffsetCommit, lowered_to: LoweredTo | None) -> OffsetCommit:
    """What counts of a commit in a copy: not a position above the end of the log.

    Args:
        lowered_to: None: this is no copy.
    """
    if lowered_to is None:
        return commit
    key = TopicPartition(commit.topic, commit.partition)
    now = lowered_to(key, commit.topic_id or "", commit.offset, commit.commit_ms)
    if now is None:
        return commit
    return dataclasses.replace(commit, offset=now, leader_epoch=-1, proof=None)


at_adoption(lower_positions)
