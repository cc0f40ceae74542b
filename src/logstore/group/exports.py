"""Handing the offsets of a group over to a Kafka broker, into its directory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import Final

from logstore import _native as native
from logstore.broker.directories import BrokerDirectories
from logstore.broker.groups import kafka_groups
from logstore.broker.kafka_records import (
    OffsetCommit,
    format_offset_key,
    format_offset_value,
)
from logstore.broker.lag import OffsetChange
from logstore.broker.offsets_log import OffsetsLog
from logstore.broker.placement import OFFSETS_TOPIC, partition_of_group
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    CommitFailedError,
    ConfigError,
    GroupNotFoundError,
    PartitionNotFoundError,
    TopicNotFoundError,
)
from logstore.group.overview import groups_and_errors
from logstore.io import layout
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.io.lock_record import TOOL
from logstore.record.encoder import Encoder, pack_rows
from logstore.store.opening import open_store
from logstore.store.store import Store

__all__ = ["GroupExport", "export_group"]

# The value without a leader epoch and an id of the topic, which would belong to another
# log: every release since 0.9 reads it.
_VALUE_VERSION: Final = 0


@dataclasses.dataclass(frozen=True, slots=True)
class GroupExport:
    """Offsets that were handed over, or would be.

    Attributes:
        group: its id.
        path: the broker's directory.
        offsets_partition: the partition of `__consumer_offsets` that has the group.
        changes: the offsets, by topic and partition.
        dry_run: nothing was written.
    """

    group: str
    path: str
    offsets_partition: int
    changes: tuple[OffsetChange, ...]
    dry_run: bool


def export_group(
    path: str | os.PathLike[str],
    group: str,
    *,
    to: str | os.PathLike[str],
    dry_run: bool,
    expected: Sequence[OffsetChange] | None = None,
    store_config: StoreConfig | None = None,
) -> GroupExport:
    """Commit the offsets of a group in the directory of a broker that is stopped.

    When the broker starts, it serves them as if a consumer had committed them: with the
    time of this call, so that they do not expire sooner. Members are not handed over.
    Offsets of the broker's group for other partitions stay.

    Args:
        path: a store, or the directory of another broker, or a copy of one of them. A
            group of logstore's goes before one of a broker's.
        group: its id.
        to: the broker's directory. It has all partitions of `__consumer_offsets`: the
            number of them decides which one has the group.
        dry_run: only say what would be done; needs no lock. From 0.2 on False by
            default.
        expected: the changes of a dry run, which was confirmed: nothing is committed if
            they would be others now.
        store_config: how this process uses the broker's directory.

    Raises:
        GroupNotFoundError: `path` has no such group, or it has committed nothing.
        TopicNotFoundError: the broker has no `__consumer_offsets`.
        PartitionNotFoundError: some partitions of it are not in the directory.
        CommitFailedError: the changes are not the `expected` ones any more.
        StoreLockedError: the broker runs.
        StoreNotFoundError: one of the directories does not exist.
        ConfigError: both are the same directory, or a text does not fit a record.
        UnsupportedError, CorruptionError: the broker's log takes no appends.
        DiskFullError, StorageError, SyncFailedError: nothing, or not for sure, is
            committed there.
    """
    path, target = (os.path.abspath(os.fspath(directory)) for directory in (path, to))
    if path == target:
        raise ConfigError(
            f"group {group!r} cannot be exported from {path} to the same "
            "directory; nothing was changed",
            name="to",
            value=to,
        )
    commits = _commits(path, group)
    with open_store(
        target,
        read_only=dry_run,
        create=False,
        config=store_config,
        lock_timeout_ms=TOOL.timeout_ms,
    ) as store:
        number = _place(store, group)
        partition = store.topic(OFFSETS_TOPIC)[number]
        log = OffsetsLog(partition)
        changes = _changes(log, group, commits)
        if expected is not None and tuple(expected) != tuple(changes):
            raise CommitFailedError(
                f"the offsets of group {group!r:.100} have changed since the changes "
                f"were shown. Nothing was changed; try again",
                group=group,
            )
        if not dry_run:
            # An empty log says nothing: every broker since 0.11 reads magic 2.
            magic = 2 if log.magic < 0 else log.magic
            data = _encoded(commits, magic, Files().now_ms())
            partition.append_batches(data, durable=True)
    return GroupExport(group, target, number, changes, dry_run)


def _commits(path: str, group: str) -> Sequence[OffsetCommit]:
    """Offsets of the group: of one of logstore's, else of one of a broker's."""
    # In a store, of the topics that are there: what was committed for one that was
    # deleted, and perhaps made again, does not count.
    own_groups, errors = groups_and_errors(path)
    error = errors.get(layout.group_file(group))
    if error is not None:
        raise error
    own = [
        row
        for own_group in own_groups
        if own_group.group == group
        for row in own_group.partitions
        if row.end is not None
    ]
    broker_groups = kafka_groups(path)
    rows = own or [
        row
        for broker_group in broker_groups
        if broker_group.group == group
        for row in broker_group.partitions
    ]
    commits = [
        OffsetCommit(group, row.topic, row.partition, row.offset, metadata=row.metadata)
        for row in rows
        if row.offset is not None
    ]
    if commits:
        return commits
    why = "has committed no offset"
    if broker_groups.partition_count and not broker_groups.is_here(group):
        number = broker_groups.partition_of(group)
        why = f"would be in {OFFSETS_TOPIC}-{number}, which is missing"
    elif not broker_groups.partition_count:
        why = f"was not found, neither in its own file nor in {OFFSETS_TOPIC}"
    raise GroupNotFoundError(
        f"group {group!r} {why}: {path}; nothing was changed", group=group, path=path
    )


def _place(store: Store, group: str) -> int:
    """The partition for a group in the directory of a broker."""
    try:
        numbers = store.topic(OFFSETS_TOPIC).numbers
    except TopicNotFoundError as error:
        raise TopicNotFoundError(
            f"{store.path} has no {OFFSETS_TOPIC}: start the broker, have a group "
            f"commit, and stop it; nothing was changed",
            topic=OFFSETS_TOPIC,
        ) from error
    count = BrokerDirectories([store]).partition_count(OFFSETS_TOPIC)
    if len(numbers) < count:
        missing = next(n for n in range(count) if n >= len(numbers) or numbers[n] != n)
        raise PartitionNotFoundError(
            f"{store.path} has {len(numbers)} of the {count} or more partitions of "
            f"{OFFSETS_TOPIC}; without {OFFSETS_TOPIC}-{missing} it is not known "
            f"which one has the group; nothing was changed",
            topic=OFFSETS_TOPIC,
            partition=missing,
        )
    return partition_of_group(group, count)


def _changes(
    log: OffsetsLog, group: str, commits: Iterable[OffsetCommit]
) -> tuple[OffsetChange, ...]:
    known = {}
    for broker_group in log.groups():
        if broker_group.group == group:
            known = broker_group.offsets
    changes = []
    for commit in commits:
        before = known.get(TopicPartition(commit.topic, commit.partition))
        changes.append(
            OffsetChange(
                commit.topic,
                commit.partition,
                None if before is None else before.offset,
                commit.offset,
                commit.metadata,
            )
        )
    return tuple(changes)


def _encoded(commits: Sequence[OffsetCommit], magic: int, now_ms: int) -> bytes:
    """The batches of some commits, in the format of the log."""
    timed = [dataclasses.replace(commit, commit_ms=now_ms) for commit in commits]
    encoder = Encoder(TopicConfig(message_format=magic))
    rows = pack_rows(
        [format_offset_value(commit, _VALUE_VERSION) for commit in timed],
        [
            format_offset_key(commit.group, commit.topic, commit.partition)
            for commit in timed
        ],
        [now_ms] * len(timed),
        None,
        magic=magic,
    )
    encoder.measure(rows)
    return b"".join(
        bytes(native.buffer_of(data, size))
        for data, size in encoder.encode(rows, 0, now_ms, 0)
    )
