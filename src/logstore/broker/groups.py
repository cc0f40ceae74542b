"""The groups of a Kafka broker, from its directories on disk.

A broker keeps them in the topic `__consumer_offsets`. It may be running or stopped; the
directories may be a copy, or only some of them. Nothing is written, no lock is taken.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from logstore.broker.consumer_records import MemberAssignment
from logstore.broker.directories import BrokerDirectories
from logstore.broker.fields import MessageError
from logstore.broker.kafka_records import (
    GroupMember,
    OffsetCommit,
    parse_assignment,
    parse_subscription,
)
from logstore.broker.lag import GroupPartition, GroupRows
from logstore.broker.offsets_log import FoundGroup, OffsetsLog
from logstore.broker.placement import OFFSETS_TOPIC, partition_of_group
from logstore.config import StoreConfig
from logstore.errors import ConfigError
from logstore.io.layout import TopicPartition
from logstore.store.opening import open_store

__all__ = ["KafkaGroup", "KafkaGroups", "KafkaMember", "kafka_groups"]

_CONSUMER: Final = "consumer"
# No topic of any cluster has as many partitions: a higher number is damage.
_PARTITIONS_MAX: Final = 100_000
# A value of `MemberAssignment.state`.
_STABLE: Final = 0


@dataclass(frozen=True, slots=True)
class KafkaMember:
    """A member of a broker's group.

    Attributes:
        member_id: given by the broker.
        instance_id: of a static member; else None.
        client_id, host: id stated by the client, and the address of the client.
        topics: subscribed topics; () if unknown (another protocol type).
        partitions: assigned partitions. A topic with an unknown name is its id in
            parentheses.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    topics: tuple[str, ...]
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class KafkaGroup(GroupRows):
    """A group as a broker would load it when it starts on the directory.

    Attributes:
        group: its id.
        protocol: ``"classic"``, or ``"consumer"`` (the protocol of Kafka 4).
        protocol_type: ``"consumer"`` for consumers; "" for a group that only commits.
        state: Stable or Empty; with the protocol "consumer" also Assigning and
            Reconciling.
        generation: of the members (the group's epoch with the protocol "consumer"); -1
            if the group only commits.
        assignor: None without members, or if the broker has not recorded it.
        state_ms: when it entered its state, in Unix ms; -1: unknown.
        members: by member id.
        partitions: committed offsets and assigned partitions, by topic and number.
        offsets_partition: the partition of `__consumer_offsets` that stores the group.
    """

    group: str
    protocol: str
    protocol_type: str
    state: str
    generation: int
    assignor: str | None
    state_ms: int
    members: tuple[KafkaMember, ...]
    partitions: tuple[GroupPartition, ...]
    offsets_partition: int


class KafkaGroups(list[KafkaGroup]):
    """The groups that were found, by id; also lists missing partitions and problems.

    Attributes:
        partition_count: number of partitions of `__consumer_offsets`, according to the
            names in directories and checkpoints; 0: no partition of it is named.
        missing: numbers of the partitions that are not here: their groups are not in
            the list. If `partition_count` is above 100,000, only numbers that are
            named.
        other_records: number of records of other types (share and streams groups, and
            types that this version does not know), by type.
        problems: a sentence about each part that could not be read; groups may be
            incomplete.
    """

    def __init__(self, groups: Iterable[KafkaGroup] = ()) -> None:
        super().__init__(groups)
        self.partition_count = 0
        self.missing: tuple[int, ...] = ()
        self.other_records: dict[int, int] = {}
        self.problems: tuple[str, ...] = ()

    def partition_of(self, group: str) -> int:
        """The partition of `__consumer_offsets` that a group belongs to.

        Raises:
            ConfigError: no partition of `__consumer_offsets` is here.
        """
        return partition_of_group(group, self.partition_count)

    def is_here(self, group: str) -> bool:
        """Whether a group would be in the list if the broker had it."""
        if not 0 < self.partition_count <= _PARTITIONS_MAX:
            return False
        return self.partition_of(group) not in self.missing


def kafka_groups(
    *log_dirs: str | os.PathLike[str], store_config: StoreConfig | None = None
) -> KafkaGroups:
    """The consumer groups of a Kafka broker, read from its files.

    The broker may be running or stopped; the directories may be a copy. Nothing is
    written and no lock is taken; the directories may be read-only. Damaged and missing
    parts are skipped and named in the result.

    Args:
        log_dirs: all `log.dirs` of the broker, or some of them. If several contain the
            same partition, the longest log counts.
        store_config: settings of this process (``max_batch_decompressed_bytes``).

    Raises:
        ConfigError: no directory is given.
        StoreNotFoundError: a directory does not exist, or contains no part of a log.
        StorageError: the system refuses to list a directory.
    """
    if not log_dirs:
        raise ConfigError(
            "kafka.groups() needs a directory: one of the broker's log.dirs",
            name="log_dirs",
            value=log_dirs,
        )
    with contextlib.ExitStack() as stack:
        directories = BrokerDirectories(
            [
                stack.enter_context(
                    open_store(path, read_only=True, config=store_config)
                )
                for path in log_dirs
            ]
        )
        return _groups(directories)


def _groups(directories: BrokerDirectories) -> KafkaGroups:
    groups = KafkaGroups()
    missing = []
    problems: list[str] = []
    groups.partition_count = directories.partition_count(OFFSETS_TOPIC)
    numbers: Iterable[int] = range(groups.partition_count)
    if groups.partition_count > _PARTITIONS_MAX:
        numbers = directories.partition_numbers(OFFSETS_TOPIC)
        problems.append(
            f"{OFFSETS_TOPIC} would have {groups.partition_count} partitions by "
            "the highest number that a directory or a checkpoint names. Only the "
            "named ones were searched, and the partition of a group is not known"
        )
    for number in numbers:
        partition = directories.longest(TopicPartition(OFFSETS_TOPIC, number))
        if partition is None:
            missing.append(number)
            continue
        log = OffsetsLog(partition)
        for group in log.groups():
            groups.append(_group(group, number, directories))
        for kind, count in log.other_records.items():
            groups.other_records[kind] = groups.other_records.get(kind, 0) + count
        problems += log.problems
        acknowledged = directories.high_watermark(OFFSETS_TOPIC, number)
        if log.end_offset < acknowledged:
            problems.append(
                f"{OFFSETS_TOPIC}-{number} ends at offset {log.end_offset} here; "
                f"the broker had it up to {acknowledged}: later commits are "
                "missing"
            )
    groups.sort(key=lambda group: (group.group, group.offsets_partition))
    groups.missing = tuple(missing)
    groups.problems = (*directories.problems, *problems)
    return groups


def _group(
    group: FoundGroup, offsets_partition: int, directories: BrokerDirectories
) -> KafkaGroup:
    metadata = group.metadata
    if group.epoch is not None:
        members = _newer_members(group, directories)
        protocol, protocol_type = "consumer", _CONSUMER
        state, generation = _newer_state(group), group.epoch
        assignor, state_ms = None, -1
    elif metadata is not None:
        members = tuple(
            _classic_member(member, metadata.protocol_type)
            for member in metadata.members
        )
        protocol, protocol_type = "classic", metadata.protocol_type
        # As a broker loads it at its start: it writes a group only when all members
        # have their assignment, or when the last one has left.
        state = "Stable" if members else "Empty"
        generation, state_ms = metadata.generation, metadata.state_ms
        assignor = metadata.protocol
    else:
        members = ()
        protocol, protocol_type, state, generation = "classic", "", "Empty", -1
        assignor, state_ms = None, -1
    members = tuple(sorted(members, key=lambda member: member.member_id))
    return KafkaGroup(
        group.group,
        protocol,
        protocol_type,
        state,
        generation,
        assignor,
        state_ms,
        members,
        _rows(group.offsets, members, directories),
        offsets_partition,
    )


def _rows(
    offsets: Mapping[TopicPartition, OffsetCommit],
    members: Iterable[KafkaMember],
    directories: BrokerDirectories,
) -> tuple[GroupPartition, ...]:
    holders = {
        partition: member.member_id
        for member in members
        for partition in member.partitions
    }
    rows = []
    for key in sorted({*offsets, *holders}):
        end, commit = directories.end_offset(key), offsets.get(key)
        member = holders.get(key)
        if commit is None:
            rows.append(GroupPartition(*key, end=end, member=member))
        else:
            rows.append(
                GroupPartition(
                    *key,
                    commit.offset,
                    commit.metadata,
                    end,
                    member,
                    commit.leader_epoch,
                    commit.commit_ms,
                    commit.expire_ms,
                    commit.topic_id,
                )
            )
    return tuple(rows)


def _classic_member(member: GroupMember, protocol_type: str) -> KafkaMember:
    topics: tuple[str, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    if protocol_type == _CONSUMER:
        # Clients in other languages may store any bytes there; a broker does not parse
        # them.
        with contextlib.suppress(MessageError):
            topics = parse_subscription(member.subscription).topics
        with contextlib.suppress(MessageError):
            partitions = parse_assignment(member.assignment).partitions
    return KafkaMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        topics,
        partitions,
    )


def _newer_members(
    group: FoundGroup, directories: BrokerDirectories
) -> tuple[KafkaMember, ...]:
    members = []
    for member_id, member in group.members.items():
        assignment = group.assignments.get(member_id)
        assigned = () if assignment is None else assignment.assigned
        partitions = tuple(
            TopicPartition(directories.topic_name(topic_id), number)
            for topic_id, number in assigned
        )
        members.append(
            KafkaMember(
                member_id,
                member.instance_id,
                member.client_id,
                member.client_host,
                member.topics,
                partitions,
            )
        )
    return tuple(members)


def _newer_state(group: FoundGroup) -> str:
    """State of a group, derived like in a broker (Kafka's ConsumerGroup)."""
    if not group.members:
        return "Empty"
    if group.epoch is not None and group.epoch > group.target_epoch:
        return "Assigning"

    def has_all(assignment: MemberAssignment | None) -> bool:
        return (
            assignment is not None
            and assignment.state == _STABLE
            and assignment.epoch == group.target_epoch
        )

    if all(has_all(group.assignments.get(member)) for member in group.members):
        return "Stable"
    return "Reconciling"
