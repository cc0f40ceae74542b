"""A log that is only read, as a dry run of a compaction needs it."""

from __future__ import annotations

from collections.abc import Callable

from logstore._native.locks import new_group
from logstore.config import TopicConfig
from logstore.errors import LogStoreError
from logstore.io.checkpoint.cleaner import CleanerCheckpoint
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition, partition_directory
from logstore.log.read.view import Bounds
from logstore.log.write.compaction_gate import CompactionGate
from logstore.log.write.log_bounds import LogBounds

__all__ = ["DryLog"]


class DryContext:
    """The `LogContext` of a log that is not written to."""

    def __init__(self, directory: Directory, name: str, config: TopicConfig) -> None:
        self.directory = directory
        self.name = name
        self.config = config


class DryLog:
    """The `PartitionWriter` of a log that another process may be writing to."""

    def __init__(
        self,
        directory: Directory,
        key: TopicPartition,
        config: TopicConfig,
        refresh: Callable[[], Bounds],
    ) -> None:
        """
        Args:
            refresh: returns the present log.

        Raises:
            OSError: the checkpoint cannot be read.
        """
        name = partition_directory(*key)
        self.context = DryContext(directory, name, config)
        self.directory = directory
        self.compaction_gate = CompactionGate(name, new_group())
        root = directory.root
        self._compacted_upto = CleanerCheckpoint(root).read().get(key)
        self._refresh = refresh
        self._doubtful: tuple[object, object] | None = None
        self.look()

    def look(self) -> None:
        """Look at the log, again."""
        self._bounds = self._refresh()
        self.segments, self.cuts = self._bounds.segments, self._bounds.cuts

    def seen(self) -> LogBounds:
        """The log as the last look found it."""
        return LogBounds(*self._bounds[:5])

    def explains(self, error: LogStoreError) -> bool:
        """Look at the log again. Whether a change since the last look may explain an
        error: files that are read one after the other may be of different moments.
        Damage stays in its place: if it is met there again, it is damage."""
        name = getattr(error, "path", None) or getattr(error, "filename", None)
        place = name, getattr(error, "position", None)
        is_known, self._doubtful = place == self._doubtful, place
        before = self._bounds
        self.look()
        return not is_known and self._bounds is not before

    def compacted_upto(self) -> int | None:
        """The end of the last compaction before the dry run; None: never compacted."""
        return self._compacted_upto
