"""The first opening of a store that was copied, moved or put back from a backup.

The records of a copy may end below the end of the original. So each log gets a cut at
its end, and no position of a group may lie above one: records appended next would be
skipped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeAlias

from logstore._native.locks import logger
from logstore.errors import CorruptCheckpointError, LogStoreError, storage_errors
from logstore.io import layout
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.place import is_left_over
from logstore.io.checkpoint.publications import (
    Publications,
    record_unknown,
    unknown_publications,
)
from logstore.io.checkpoint.recovery_report import RecoveryAction
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.lazy import import_module
from logstore.log.write.writer import PartitionWriter
from logstore.store.context import StoreContext
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = [
    "LoweredTo",
    "adopt_copy",
    "at_adoption",
    "lowered_in",
    "mark_unknown",
    "settle_copy",
]

# (partition, topic id, position, time of its commit in Unix ms; -1: unknown) -> the
# offset to which the position is lowered if it lies above the end of its log. None: it
# stays; also if there is no such partition, or it is damaged: its end may be higher.
LoweredTo: TypeAlias = "Callable[[TopicPartition, str, int, int], int | None]"
_Lower: TypeAlias = (
    "Callable[[Directory, Publisher, LoweredTo, Callable[[RecoveryAction], None]], "
    "dict[TopicPartition, LogStoreError]]"
)

_lower: Final[list[_Lower]] = []


def at_adoption(lower: _Lower) -> None:
    """Let a function lower the positions of groups, which this room does not know. It
    returns why it could not lower one, by its partition."""
    _lower.append(lower)


def lowered_in(cuts: Cuts, end: int, position: int, commit_ms: int) -> int | None:
    """The offset to which a position is lowered in a log; None: it stays.

    The records between the end and the position are not in this log. And the records
    above a cut since the commit are not the ones that were processed: the log has grown
    again since.
    """
    if position <= end:
        return None
    return end if commit_ms < 0 else min(end, cuts.lowest_from(commit_ms))


def adopt_copy(context: StoreContext, topics: OpenTopics, publisher: Publisher) -> None:
    """Called before the first change of a store that was just opened for writing. Does
    nothing if the last owner had the same directory.

    1. give the files of groups that share an inode with the original a separate inode;
    2. lower positions above the end of a log, durably. Each log has its cut as soon as
    it is loaded. A log with a position that cannot be lowered takes no appends: records
    appended would be skipped. The store stays a copy then.

    Raises:
        StorageError: the positions of a group cannot be read; or a file cannot be
            copied.
    """
    ownership, root = context.state.ownership, context.root
    if not ownership.is_copy:
        return
    with storage_errors("read", root.path):
        names = layout.group_files(root.names())
        has_positions = bool(names) or root.exists(layout.PUBLISHED)
    for name in map(layout.group_lock_file, names):
        path = root.path_of(name)
        with storage_errors("copy", path), contextlib.suppress(FileNotFoundError):
            if is_left_over(root, name):
                context.files.close(root.open(name, write=True))

    def lowered_to(
        key: TopicPartition, topic_id: str, position: int, commit_ms: int
    ) -> int | None:
        if not counts_in(topics.catalog.ids.topic_id(key.topic), topic_id):
            return None
        writer = _intact(topics, key)
        if writer is None:
            return None
        return lowered_in(writer.cuts, writer.end_offset, position, commit_ms)

    if has_positions:
        # It calls `at_adoption`; most programs have no copy with groups.
        import_module("logstore.group.consumer.lowering")
    for lower in _lower:
        failed = lower(root, publisher, lowered_to, topics.writers.record)
        for key, reason in failed.items():
            ownership.stay_copy()
            writer = topics.writers.get(key)
            with writer.lock:
                writer.health.refuse(reason)


def _intact(topics: OpenTopics, key: TopicPartition) -> PartitionWriter | None:
    """The writer of a log; None: the log does not exist, or is damaged."""
    if key.partition not in topics.catalog.numbers.get(key.topic, ()):
        return None
    try:
        writer = topics.writers.get(key)
    except LogStoreError:
        return None
    return writer if writer.health.damage is None else None


def _end_of(topics: OpenTopics, key: TopicPartition) -> int:
    """Where a log ends, even a damaged one; 0: it does not exist, or is unreadable."""
    if key.partition not in topics.catalog.numbers.get(key.topic, ()):
        return 0
    try:
        return topics.writers.get(key).end_offset
    except LogStoreError:
        return 0


def mark_unknown(
    context: StoreContext, topics: OpenTopics, publications: Publications
) -> None:
    """Called before a publication is undone: if a log of a copy ends before the
    end that a publication in the journal gave it, record that publication: whether it
    has all its records is unknown.

    Publications in `.logstore-published` are not checked: it does not name their logs.

    Raises:
        CorruptCheckpointError: the journal, or `.logstore-published`, is damaged.
        OSError: a file cannot be read or written.
    """
    if not context.state.ownership.is_copy:
        return
    journal = publications.journal()
    if journal is None or not journal.changes:
        return
    ends: dict[TopicPartition, int] = {}

    def is_short(key: TopicPartition, end: int) -> bool:
        if key not in ends:
            ends[key] = _end_of(topics, key)
        return ends[key] < end

    short = {
        identity: sequence
        for identity, (sequence, needed) in publications.last_ends().items()
        if any(is_short(*each) for each in needed.items())
    }
    if not short:
        return
    published = publications.published()
    try:
        before = unknown_publications(context.root)
    except CorruptCheckpointError as error:
        # The damaged file makes each repetition raise, also of publications in `short`.
        logger.warning("%s: publications are not added to it", error)
        return
    unknown = {
        identity: sequence
        for identity, sequence in before.items()
        if identity in published and published[identity].sequence == sequence
    }
    record_unknown(context.root, unknown | short)
    logger.warning(
        "%s is a copy without all records of its last publications: %d of them cannot "
        "be published again",
        context.path,
        len(short),
    )


def settle_copy(context: StoreContext, topics: OpenTopics) -> None:
    """Called when the logs of a store that was written to are closed: if it is a copy,
    and each log has recorded its cut, it becomes an independent store.

    Raises:
        OSError: as raised by the system.
    """
    if not context.state.ownership.is_copied:
        return
    if topics.writers.are_recorded:
        context.state.ownership.settle()
    else:
        logger.warning(
            "%s stays a copy: not all of its partitions could be read and written to",
            context.path,
        )
