"""One partition of `__consumer_offsets`: the newest record of each key, and the groups
that these records make.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from logstore.broker import kafka_records as records
from logstore.broker.consumer_records import (
    ConsumerMember,
    MemberAssignment,
    parse_consumer_member,
    parse_epoch,
    parse_member_assignment,
)
from logstore.broker.fields import MessageError
from logstore.broker.kafka_records import (
    GroupKey,
    GroupMetadata,
    MemberKey,
    OffsetCommit,
    OffsetKey,
    OtherKey,
)
from logstore.errors import CorruptRecordError, LogStoreError
from logstore.io.layout import TopicPartition
from logstore.log.read.corruption import Damaged
from logstore.record.batch import COMMIT, RecordBatch
from logstore.store.partition.partition import Partition

__all__ = ["FoundGroup", "OffsetsLog"]

# A hostile partition has a million bad records.
_PROBLEMS_MAX: Final = 100


class _Newest(NamedTuple):
    """The newest record of a key, by the offset that it has itself."""

    offset: int
    value: bytes | None


@dataclass(slots=True)
class FoundGroup:
    """State of a group according to the records of a partition.

    Attributes:
        offsets: the committed offsets.
        metadata: of the classic protocol; None: no record of it.
        epoch: of the newer protocol; None: no record of it.
        target_epoch: of the target assignment.
        members, assignments: of the newer protocol, by member id.
    """

    group: str
    offsets: dict[TopicPartition, OffsetCommit] = field(default_factory=dict)
    metadata: GroupMetadata | None = None
    epoch: int | None = None
    target_epoch: int = -1
    members: dict[str, ConsumerMember] = field(default_factory=dict)
    assignments: dict[str, MemberAssignment] = field(default_factory=dict)


class OffsetsLog:
    """The content of a partition of `__consumer_offsets`, read at once.

    Attributes:
        end_offset: end offset of the log.
        magic: the format of its last batch; -1: there are no batches.
        other_records: number of records of types that are not read, by type.
        problems: a sentence about each part that could not be read.

    Args:
        partition: opened read-only.
    """

    def __init__(self, partition: Partition) -> None:
        self._name = f"{partition.topic}-{partition.number}"
        self._newest: dict[bytes, _Newest] = {}
        self._open: dict[int, dict[bytes, _Newest]] = {}
        self._problem_count = 0
        self.end_offset = partition.end_offset
        self.magic = -1
        self.other_records: dict[int, int] = {}
        self.problems: list[str] = []
        self._read(partition)
        self._groups: dict[str, FoundGroup] = {}
        # In log order: if two keys mean the same (types 0 and 1), the later one counts.
        newest = sorted(self._newest.items(), key=lambda item: item[1].offset)
        for key, record in newest:
            try:
                self._take(key, record)
            except MessageError as error:
                self._problem(
                    f"the record at offset {record.offset} is left out: {error}"
                )
        if self._problem_count > _PROBLEMS_MAX:
            more = self._problem_count - _PROBLEMS_MAX
            self.problems.append(f"{self._name}: {more} more problems of this kind")

    def groups(self) -> list[FoundGroup]:
        """Groups that still have records: not those whose records were all removed."""
        return [
            group
            for group in self._groups.values()
            if group.offsets or group.metadata or group.epoch is not None
        ]

    def _problem(self, text: str) -> None:
        self._problem_count += 1
        if self._problem_count <= _PROBLEMS_MAX:
            self.problems.append(f"{self._name}: {text}")

    # -------------------------------------------------------------- reading

    def _read(self, partition: Partition) -> None:
        """Read the newest record of each key; skip damaged batches."""
        try:
            for batch in partition.read_batches(on_corruption=self._is_left_out):
                try:
                    self._read_batch(batch)
                except CorruptRecordError as error:
                    self._problem(str(error))  # its records are damaged
        except LogStoreError as error:
            self._problem(str(error))

    def _is_left_out(self, damaged: Damaged) -> bool:
        is_damage = isinstance(damaged.error, CorruptRecordError)
        if is_damage:
            self._problem(str(damaged.error))
        return is_damage

    def _read_batch(self, batch: RecordBatch) -> None:
        self.magic = batch.magic
        if batch.is_control:
            self._end_transaction(batch)
            return
        target = self._newest
        if batch.is_transactional:
            target = self._open.setdefault(batch.producer_id, {})
        for record in batch:
            if record.key is None:
                self._problem(
                    f"the record at offset {record.offset} is left out: it has no key"
                )
            else:
                target[record.key] = _Newest(record.offset, record.value)

    def _end_transaction(self, batch: RecordBatch) -> None:
        marker = batch.control_record()
        if marker is None or not batch.is_transactional:
            return
        ended = self._open.pop(batch.producer_id, {})
        if marker.type != COMMIT:
            return
        for key, record in ended.items():
            # A later commit or removal outside the transaction stays.
            known = self._newest.get(key)
            if known is None or record.offset > known.offset:
                self._newest[key] = record

    # -------------------------------------------------------------- meaning

    def _take(self, key: bytes, record: _Newest) -> None:
        parsed = records.parse_key(key)
        if isinstance(parsed, OtherKey):
            count = self.other_records.get(parsed.type, 0)
            self.other_records[parsed.type] = count + 1
            return
        group = self._groups.get(parsed.group)
        if group is None:
            group = self._groups[parsed.group] = FoundGroup(parsed.group)
        if isinstance(parsed, OffsetKey):
            place = TopicPartition(parsed.topic, parsed.partition)
            group.offsets.pop(place, None)
            if record.value is not None:
                commit = records.parse_offset_value(parsed, record.value)
                group.offsets[place] = commit
        elif record.value is None:
            return
        elif isinstance(parsed, MemberKey):
            _take_member(group, parsed, record.value)
        else:
            _take_group(group, parsed, record.value)


def _take_group(group: FoundGroup, key: GroupKey, value: bytes) -> None:
    if key.type == records.GROUP_METADATA:
        group.metadata = records.parse_group_value(key, value)
    elif key.type == records.CONSUMER_GROUP:
        group.epoch = parse_epoch(value)
    elif key.type == records.CONSUMER_TARGET:
        group.target_epoch = parse_epoch(value, key.type)


def _take_member(group: FoundGroup, key: MemberKey, value: bytes) -> None:
    if key.type == records.CONSUMER_MEMBER:
        group.members[key.member] = parse_consumer_member(value)
    elif key.type == records.CONSUMER_ASSIGNMENT:
        group.assignments[key.member] = parse_member_assignment(value)
