"""Kafka's checkpoint of compactions: how far each partition of a store is compacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import CorruptCheckpointError, storage_errors
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import CLEANER_CHECKPOINT, TopicPartition

__all__ = ["CleanerCheckpoint", "CompactedOffsets"]


class CleanerCheckpoint:
    """`cleaner-offset-checkpoint`. The caller orders the calls.

    It is read each time: a broker may have written it between two openings. A
    damaged one counts as empty: then all is compacted again.
    """

    def __init__(self, root: Directory) -> None:
        self._root = root

    def read(self) -> dict[TopicPartition, int]:
        """The first offset of each partition that is not compacted.

        Raises:
            OSError: as the system gives it.
        """
        try:
            return checkpoints.read_offsets(self._root, CLEANER_CHECKPOINT)
        except CorruptCheckpointError as error:
            logger.warning("%s; treated as empty", error)
            return {}

    def set(self, key: TopicPartition, offset: int) -> None:
        """Record that a partition is compacted up to an offset, durably.

        Raises:
            OSError: as the system gives it; the file is unchanged.
        """
        offsets = self.read()
        if offsets.get(key) != offset:
            checkpoints.write_offsets(
                self._root, CLEANER_CHECKPOINT, {**offsets, key: offset}
            )

    def lower_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """Partitions are about to be cut at these offsets: what is appended from there
        on is not compacted. Others do not change. Raises: as `set`."""
        before = self.read()
        after = {
            key: min(offset, ends.get(key, offset)) for key, offset in before.items()
        }
        if after != before:
            self._write(after)

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Remove partitions that are about to be deleted. Raises: as `set`."""
        offsets, gone = self.read(), set(keys)
        if offsets.keys() & gone:
            kept = {key: offset for key, offset in offsets.items() if key not in gone}
            self._write(kept)

    def _write(self, offsets: dict[TopicPartition, int]) -> None:
        """Write lower offsets. If a full disk prevents it, remove the file: cuts and
        deletions must work, and then all is compacted again."""
        try:
            checkpoints.write_offsets(self._root, CLEANER_CHECKPOINT, offsets)
        except OSError:
            self._root.unlink(f"{CLEANER_CHECKPOINT}.tmp", missing_ok=True)
            self._root.unlink(CLEANER_CHECKPOINT, missing_ok=True)
            self._root.sync()


class CompactedOffsets:
    """The checkpoint, for the owner of a store. Any thread may call it.

    Args:
        lock: orders the calls.

    Raises:
        StorageError: the file cannot be read or written.
    """

    def __init__(self, root: Directory, lock: native.Mutex) -> None:
        self._file = CleanerCheckpoint(root)
        self._lock = lock
        self._path = root.path_of(CLEANER_CHECKPOINT)

    def all(self) -> dict[TopicPartition, int]:
        """The offset up to which each partition is compacted. A partition that never
        was is missing."""
        with self._lock, storage_errors("read", self._path):
            return self._file.read()

    def record(self, key: TopicPartition, offset: int) -> None:
        """Record it, also for a broker. If that fails, the log is compacted again."""
        with self._lock, storage_errors("write", self._path):
            self._file.set(key, offset)

    def lower(self, key: TopicPartition, offset: int) -> None:
        """A log is about to be cut at an offset: what follows is not compacted."""
        with self._lock, storage_errors("write", self._path):
            self._file.lower_to({key: offset})

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Partitions are deleted: new ones of their names begin without a position."""
        with self._lock, storage_errors("write", self._path):
            self._file.forget(keys)
