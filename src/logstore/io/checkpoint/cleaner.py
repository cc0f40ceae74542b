"""Kafka's checkpoint of compactions: how far each partition of a store is compacted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore._native.locks import logger
from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory
from logstore.io.layout import CLEANER_CHECKPOINT, TopicPartition

__all__ = ["CleanerCheckpoint"]


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
            logger.warning("%s; taken as empty", error)
            return {}

    def set(self, key: TopicPartition, offset: int) -> None:
        """Record that a partition is compacted up to an offset, durably.

        Raises:
            OSError: as the system gives it; the file is what it was.
        """
        offsets = self.read()
        if offsets.get(key) != offset:
            checkpoints.write_offsets(
                self._root, CLEANER_CHECKPOINT, {**offsets, key: offset}
            )

    def lower(self, key: TopicPartition, offset: int) -> None:
        """A partition is about to be cut at an offset: what is appended from there on
        is not compacted. Raises: as `set`."""
        self.lower_to({key: offset})

    def lower_to(self, ends: Mapping[TopicPartition, int]) -> None:
        """The same for several; others stay as they are."""
        before = self.read()
        after = {key: min(at, ends.get(key, at)) for key, at in before.items()}
        if after != before:
            self._write(after)

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Partitions are about to be deleted. Raises: as `set`."""
        offsets, gone = self.read(), set(keys)
        if offsets.keys() & gone:
            kept = {key: at for key, at in offsets.items() if key not in gone}
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
