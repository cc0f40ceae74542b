"""A broker's `__consumer_offsets`, made record by record."""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import crc32c

import logstore
from logstore.broker.groups import KafkaGroups
from logstore.broker.kafka_records import (
    GroupMetadata,
    OffsetCommit,
    format_group_key,
    format_group_value,
    format_offset_key,
    format_offset_value,
)
from support.broker import foreign
from support.hostile import record, varint

__all__ = [
    "ABORT",
    "COMMIT",
    "OffsetsTopic",
    "batch_of",
    "commit_of",
    "committed",
    "described",
    "offsets_of",
    "removal_of",
    "written",
]

TOPIC = "__consumer_offsets"
ABORT, COMMIT = 0, 1
Pair = tuple[bytes | None, bytes | None]


def _field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def batch_of(
    pairs: Sequence[Pair], *, producer: int = -1, attributes: int = 0
) -> bytes:
    """A batch of magic 2 with keys and values."""
    payload = b""
    for number, (key, value) in enumerate(pairs):
        head = b"\0" + varint(0) + varint(number)
        payload += record(head + _field(key) + _field(value) + varint(0))
    epoch = sequence = -1 if producer < 0 else 0
    last = len(pairs) - 1
    covered = struct.pack(
        ">hiqqqhii", attributes, last, 1000, 1000, producer, epoch, sequence, len(pairs)
    )
    covered += payload
    head = struct.pack(">qiib", 0, len(covered) + 9, -1, 2)
    return head + struct.pack(">I", crc32c.crc32c(covered)) + covered


def committed(commit: OffsetCommit, version: int | None = None) -> Pair:
    """The record of a commit."""
    return (
        format_offset_key(commit.group, commit.topic, commit.partition),
        format_offset_value(commit, version),
    )


def described(group: GroupMetadata) -> Pair:
    """The record of a group with its members."""
    return format_group_key(group.group), format_group_value(group)


class OffsetsTopic:
    """The directory of a broker, with appends in a broker's form, including batches of
    transactions, which logstore does not write.

    Args:
        topics: number of records in partition 0 and on of each topic.
        ids: topic ids, 32 hexadecimal digits, by topic.
    """

    def __init__(
        self,
        directory: Path,
        partitions: int = 1,
        topics: dict[str, Sequence[int]] | None = None,
        ids: dict[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._ends = [0] * partitions
        self._bases = [0] * partitions
        with logstore.open(directory) as store:
            for name, counts in (topics or {}).items():
                topic = store.create_topic(name, len(counts))
                for number, count in enumerate(counts):
                    if count:
                        topic[number].append_many([b"value"] * count)
        foreign(directory)
        for number in range(partitions):
            (directory / f"{TOPIC}-{number}").mkdir()
            self.roll(number)
        for name, topic_id in (ids or {}).items():
            text = base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode()
            for partition in directory.glob(f"{name}-*"):
                (partition / "partition.metadata").write_text(
                    f"version: 0\ntopic_id: {text.rstrip('=')}"
                )

    def put(self, *pairs: Pair, partition: int = 0, producer: int = -1) -> None:
        """A batch of records; of a transaction, if there is a producer."""
        data = batch_of(pairs, producer=producer, attributes=0x10 * (producer >= 0))
        self._append(data, len(pairs), partition)

    def end(self, producer: int, kind: int, *, partition: int = 0) -> None:
        """The marker that ends a transaction."""
        marker = (struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0))
        data = batch_of([marker], producer=producer, attributes=0x30)
        self._append(data, 1, partition)

    def _append(self, data: bytes, count: int, partition: int) -> None:
        with self._file(partition, ".log").open("ab") as log:
            log.write(struct.pack(">q", self._ends[partition]) + data[8:])
        self._ends[partition] += count

    def continue_at(self, partition: int, end: int) -> None:
        """Continue at an offset: another program has appended."""
        self._ends[partition] = end

    def roll(self, partition: int = 0) -> None:
        """Begin a segment of a partition."""
        self._bases[partition] = self._ends[partition]
        for suffix in (".log", ".index", ".timeindex"):
            self._file(partition, suffix).touch()

    def _file(self, partition: int, suffix: str) -> Path:
        directory = self.directory / f"{TOPIC}-{partition}"
        return directory / f"{self._bases[partition]:020d}{suffix}"


def written(
    directory: Path, pairs: Iterable[Pair], topics: dict[str, Sequence[int]]
) -> Path:
    """The directory of a broker with records in one partition, a batch each."""
    made = OffsetsTopic(directory, topics=topics)
    for pair in pairs:
        made.put(pair)
    return directory


def commit_of(
    offset: int, group: str = "g", topic: str = "t", partition: int = 0
) -> Pair:
    return committed(OffsetCommit(group, topic, partition, offset, commit_ms=offset))


def removal_of(group: str = "g", topic: str = "t", partition: int = 0) -> Pair:
    """The record that removes an offset."""
    return format_offset_key(group, topic, partition), None


def offsets_of(groups: KafkaGroups) -> dict[tuple[str, str, int], int | None]:
    """The offset of each group, topic and partition."""
    return {
        (group.group, row.topic, row.partition): row.offset
        for group in groups
        for row in group.partitions
    }
