"""The data that the steps of loading one partition share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import (
    LogStoreError,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import Situation
from logstore.io.checkpoint.recovery_report import UNREADABLE, RecoveryAction
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import (
    LOG,
)
from logstore.segment import (
    Segment,
)

__all__ = ["Case", "RecoveredLog"]


@dataclasses.dataclass(slots=True)
class RecoveredLog:
    """A partition as opening found it.

    Attributes:
        segments: in order; empty only when read-only and there is none.
        start_offset, durable_offset, end_offset: see docs/glossary.md.
        active_state: of the last segment, at `end_offset`.
        index, times: of the last segment.
        damage: why nothing may be appended; None if all is well.
        actions: for the report.
        tail_start: where the bytes past the log begin in the last file.
        tail_bytes: how many such bytes there are (read-only: they are not cut).
        is_written_down: logstore's own state file records all this already.
        is_unclean: the state file does not record where the log ends.
        deleted: `.deleted` files that wait for their removal.
        digested: base offsets of the segments that have a digest.
        cuts, is_gapless, is_truncating, log_id: as in `PartitionState`.
    """

    segments: list[Segment]
    start_offset: int
    durable_offset: int
    end_offset: int
    active_state: native.SegmentState
    index: OffsetEntries
    times: TimeEntries
    damage: LogStoreError | None
    actions: list[RecoveryAction]
    tail_start: int = 0
    tail_bytes: int = 0
    is_written_down: bool = False
    is_unclean: bool = False
    deleted: list[str] = dataclasses.field(default_factory=list)
    digested: set[int] = dataclasses.field(default_factory=set)
    cuts: Cuts = dataclasses.field(default_factory=Cuts)
    is_gapless: bool = False
    is_truncating: bool = False
    log_id: str = ""


class Case:
    """A partition that is being loaded, and the findings so far.

    Args:
        writable: repair the partition; if false, nothing on disk changes.
        on_checked: called repeatedly with the number of bytes of log checked.

    Attributes:
        actions: for the report.
        damage: why nothing may be appended; None if all is well.
        tail_start, tail_bytes: as in `RecoveredLog`.
    """

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        topic: str,
        partition: int,
        config: TopicConfig,
        situation: Situation,
        *,
        writable: bool,
        on_checked: Callable[[int], None] | None = None,
    ) -> None:
        self.directory = directory
        self.descriptors = descriptors
        self.topic = topic
        self.partition = partition
        self.config = config
        self.situation = situation
        self.writable = writable
        self.on_checked = on_checked
        self.actions: list[RecoveryAction] = []
        self.damage: LogStoreError | None = None
        self.tail_start = 0
        self.tail_bytes = 0

    def report(
        self,
        label: str,
        name: str,
        message: str,
        *,
        position: int = -1,
        size: int = 0,
        first_offset: int = -1,
        kept_at: str | None = None,
    ) -> None:
        self.actions.append(
            RecoveryAction(
                label,
                self.topic,
                self.partition,
                self.directory.path_of(name),
                position,
                size,
                first_offset,
                kept_at,
                message,
            )
        )

    def file_size(self, segment: Segment) -> int:
        """Size of a segment's file; if it is no regular file, record damage, return
        -1."""
        name = segment.file(LOG)
        try:
            with self.directory.opened(name) as fd:
                return self.directory.files.size(fd)
        except OSError as error:
            self.damage = storage_error(error, "open", segment.path)
            self.report(UNREADABLE, name, str(self.damage))
            return -1
