"""The directories of a broker: their partitions, end offsets and topic ids."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Sequence
from typing import Final

from logstore.errors import CorruptCheckpointError, LogStoreError
from logstore.io.checkpoint.checkpoints import read_offsets
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import (
    HIGH_WATERMARKS,
    PARTITION_METADATA,
    RECOVERY_CHECKPOINT,
    TopicPartition,
    parse_partition_directory,
)
from logstore.store.partition.partition import Partition
from logstore.store.store import Store

__all__ = ["BrokerDirectories"]

_TOPIC_ID: Final = re.compile(rb"topic_id:[ \t]*([A-Za-z0-9_-]{22})[ \t]*(?:\n|\Z)")
_METADATA_BYTES_MAX: Final = 4096


class BrokerDirectories:
    """All directories of one broker, or some of them, opened read-only.

    Attributes:
        problems: a sentence about each part that could not be read.

    Args:
        stores: one for each directory.
    """

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self.problems: list[str] = []
        self._ends: dict[TopicPartition, int | None] = {}
        self._names: dict[str, str] = {}
        # From the checkpoints, which name every partition that the broker had.
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._partitions: set[TopicPartition] = set()
        for store in stores:
            root = Directory.open_root(Files(), store.path)
            try:
                self._look(root)
            finally:
                root.close()

    def _look(self, root: Directory) -> None:
        for name in (HIGH_WATERMARKS, RECOVERY_CHECKPOINT):
            try:
                offsets = read_offsets(root, name)
            except (CorruptCheckpointError, OSError) as error:
                self.problems.append(str(error))
                continue
            self._partitions.update(offsets)
            if name == HIGH_WATERMARKS:
                for key, offset in offsets.items():
                    known = self._high_watermarks.get(key, 0)
                    self._high_watermarks[key] = max(known, offset)
        for name in root.names():
            partition = parse_partition_directory(name)
            if partition is not None:
                self._partitions.add(partition)
                self._look_for_id(root, name, partition.topic)

    def _look_for_id(self, root: Directory, name: str, topic: str) -> None:
        # Without an id (before Kafka 2.8) there is no such file.
        with contextlib.suppress(OSError, binascii.Error):
            directory = root.child(name)
            try:
                data = directory.read_file(PARTITION_METADATA, _METADATA_BYTES_MAX)
            finally:
                directory.close()
            match = _TOPIC_ID.search(data)
            if match is not None:
                topic_id = base64.urlsafe_b64decode(match[1] + b"==").hex()
                self._names[topic_id] = topic

    def partition_count(self, topic: str) -> int:
        """One more than the highest number that a directory or a checkpoint names."""
        return max(self.partition_numbers(topic), default=-1) + 1

    def partition_numbers(self, topic: str) -> list[int]:
        """The numbers that a directory or a checkpoint names, in order."""
        return sorted(key.partition for key in self._partitions if key.topic == topic)

    def high_watermark(self, topic: str, partition: int) -> int:
        """The end of the acknowledged records when the broker last wrote its
        checkpoint; 0: unknown."""
        return self._high_watermarks.get(TopicPartition(topic, partition), 0)

    def topic_name(self, topic_id: str) -> str:
        """The name of the topic with an id (32 hexadecimal digits); if unknown, the id
        in parentheses as Kafka writes it."""
        name = self._names.get(topic_id)
        if name is not None:
            return name
        text = base64.urlsafe_b64encode(bytes.fromhex(topic_id)).decode().rstrip("=")
        return f"({text})"

    def longest(self, key: TopicPartition) -> Partition | None:
        """A partition; if several directories have it, the longest one. None: no
        directory has it, or none can be opened (`problems` has the errors)."""
        longest: tuple[int, Partition] | None = None
        for store in self._stores:
            try:
                if key.topic not in store.topics():
                    continue
                topic = store.topic(key.topic)
                if key.partition not in topic.numbers:
                    continue
                partition = topic[key.partition]
                end = partition.end_offset
            except LogStoreError as error:
                self.problems.append(f"{key}: {error}")
                continue
            if longest is None or end > longest[0]:
                longest = end, partition
        return None if longest is None else longest[1]

    def end_offset(self, key: TopicPartition) -> int | None:
        """End offset of a partition; None: it is not here, or cannot be opened."""
        if key not in self._ends:
            partition = self.longest(key)
            self._ends[key] = None if partition is None else partition.end_offset
        return self._ends[key]
