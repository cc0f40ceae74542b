"""A log that is only read, as a dry run of a compaction needs it."""

from __future__ import annotations

from logstore._native.locks import new_group
from logstore.config import TopicConfig
from logstore.io.checkpoint.cleaner import CleanerCheckpoint
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition, partition_directory
from logstore.log.read.view import Bounds
from logstore.log.write.extent import Extent
from logstore.log.write.replacement import Gate

__all__ = ["DryLog"]


class DryContext:
    """As `LogContext`, for a log that is not written to."""

    def __init__(self, directory: Directory, name: str, config: TopicConfig) -> None:
        self.directory = directory
        self.name = name
        self.config = config


class DryLog:
    """As `PartitionWriter`, for a log that another process may be writing to."""

    def __init__(
        self,
        directory: Directory,
        key: TopicPartition,
        config: TopicConfig,
        bounds: Bounds,
    ) -> None:
        """Raises: `OSError`: the checkpoint cannot be read."""
        name = partition_directory(*key)
        self.context = DryContext(directory, name, config)
        self.directory = directory
        self.segments = bounds.segments
        self.cuts = bounds.cuts
        self.replacement = Gate(name, new_group())
        root = directory.root
        self._compacted_upto = CleanerCheckpoint(root).read().get(key)
        self._extent = Extent(
            bounds.segments,
            bounds.start_offset,
            bounds.end_offset,
            bounds.durable_offset,
            bounds.cuts,
        )

    def seen(self) -> Extent:
        """The log as it was when this was made."""
        return self._extent

    def compacted_upto(self) -> int | None:
        """Where the last compaction ended then; None: there was none."""
        return self._compacted_upto
