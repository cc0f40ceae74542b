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
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import POSITION_LOWERED, RecoveryAction
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.store.copies import EndOf, at_adoption

__all__ = ["lower_positions"]

_WAIT_S: Final = 10.0


def lower_positions(
    root: Directory, end_of: EndOf, report: Callable[[RecoveryAction], None]
) -> None:
    """Lower the positions that lie above the end of a log to that end, durably, and
    report each. A group's file that is damaged, or cannot be written, stays as it is:
    a position above an end is an error of its consumer.
    """
    for name in layout.group_files(root.names()):
        try:
            _lower(root, name, end_of, report)
        except (LogStoreError, BusyError) as error:
            logger.warning("cannot lower the positions in %s: %s", name, error)


def _lower(
    root: Directory,
    name: str,
    end_of: EndOf,
    report: Callable[[RecoveryAction], None],
) -> None:
    file = GroupFile(root, name, "")
    try:
        file.refresh()
        group = file.group
        if all(_lowered(commit, end_of) is None for commit in file.commits()):
            return
    finally:
        file.close()
    file = GroupFile(root, name, record_id(group), write=True)
    slots = Slots(root, layout.group_lock_file(name), group)

    def work() -> list[tuple[OffsetCommit, int]]:
        file.refresh_held(slots)
        found = [
            (commit, end)
            for commit in file.commits()
            if (end := _lowered(commit, end_of)) is not None
        ]
        lowered = [
            dataclasses.replace(commit, offset=end, leader_epoch=-1, proof=None)
            for commit, end in found
        ]
        if lowered:
            file.append(slots, lowered)
            file.sync(slots, file.end)
        return found

    try:
        for commit, end in slots.locked(work, _WAIT_S):
            key = TopicPartition(commit.topic, commit.partition)
            text = (
                f"group {group!r:.100} had the position {commit.offset} in {key}, and "
                f"the log of this copy ends at {end}: it is lowered to that"
            )
            report(
                RecoveryAction(
                    POSITION_LOWERED, *key, root.path_of(name), -1, 0, end, None, text
                )
            )
    finally:
        slots.close()
        file.close()


def _lowered(commit: OffsetCommit, end_of: EndOf) -> int | None:
    """The end of the log that a position lies above; None: it does not."""
    key = TopicPartition(commit.topic, commit.partition)
    end = end_of(key, commit.topic_id or "")
    return end if end is not None and commit.offset > end else None


at_adoption(lower_positions)
