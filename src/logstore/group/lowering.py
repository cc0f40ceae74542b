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
from logstore.store.copies import EndOf, at_adoption, end_below
from logstore.store.publication import GROUP_IDENTITY
from logstore.store.publisher import Publisher

__all__ = ["lower_positions", "lowered_commit"]

_WAIT_S: Final = 10.0


def lower_positions(
    root: Directory,
    publisher: Publisher,
    end_of: EndOf,
    report: Callable[[RecoveryAction], None],
) -> None:
    """Lower the positions that lie above the end of a log to that end, durably, and
    report each: those in the files of groups, and those that were published. A file
    that is damaged, or cannot be written, stays as it is: a position above an end is an
    error of its consumer.
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
            f"group {group!r:.100} had the position {offset} in {key}, and the log of "
            f"this copy ends at {end}: it is lowered to that"
        )
        path = root.path_of(file)
        report(RecoveryAction(POSITION_LOWERED, *key, path, -1, 0, end, None, text))

    try:
        if any(map(root.exists, (layout.PUBLISHED, layout.PUBLICATION))):
            _lower_published(publisher, end_of, tell)
    except (LogStoreError, OSError) as error:
        logger.warning("cannot lower the positions that were published: %s", error)
    for name in layout.group_files(root.names()):
        try:
            _lower(root, name, end_of, tell)
        except (LogStoreError, BusyError) as error:
            logger.warning("cannot lower the positions in %s: %s", name, error)


# Of a group's file: (its name, the file that has the position, id of the group,
# partition, position, end of the log).
_Tell = Callable[[str, str, str, TopicPartition, int, int], None]


def _lower_published(publisher: Publisher, end_of: EndOf, tell: _Tell) -> None:
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
            found = lowered_positions(positions, end_of)
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


def _lower(root: Directory, name: str, end_of: EndOf, tell: _Tell) -> None:
    file = GroupFile(root, name, "")
    try:
        file.refresh()
        group = file.group
        if all(lowered_commit(one, end_of) is one for one in file.commits()):
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
            if (now := lowered_commit(commit, end_of)) is not commit
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


def lowered_commit(commit: OffsetCommit, end_of: EndOf | None) -> OffsetCommit:
    """What counts of a commit in a copy: not a position above the end of the log."""
    key = TopicPartition(commit.topic, commit.partition)
    end = end_below(end_of, key, commit.topic_id, commit.offset)
    if end is None:
        return commit
    return dataclasses.replace(commit, offset=end, leader_epoch=-1, proof=None)


at_adoption(lower_positions)
