"""The partition that opening loads, and the resulting log."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import LogStoreError
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.recovery_report import RecoveryAction
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import OFFSET_MAX
from logstore.segment import Segment

__all__ = ["RecoveryContext", "RecoveredLog"]


@dataclasses.dataclass(slots=True)
class RecoveredLog:
    """A partition as opening found it.

    Attributes:
        segments: in order; empty only if a read-only partition has no file.
        start_offset, durable_offset, end_offset: see docs/glossary.md.
        active_state: of the last segment, at `end_offset`.
        index, times: of the last segment.
        damage: why nothing may be appended; None if all is well.
        actions: for the report.
        tail_start: where the bytes past the log begin in the last file.
        tail_bytes: how many such bytes there are (read-only: they are not cut).
        is_recorded: logstore's own state file records all this already.
        is_unclean: the state file does not record where the log ends.
        deleted: `.deleted` files that wait for their removal.
        digested: base offsets of the segments that have a digest.
        cuts, is_contiguous, is_truncating, log_id, foreign_end, compactions: as in
            `PartitionState`.
        is_renamed: the state has the id of another log, of which this one is a copy.
        is_identified: `.logstore-topic` says so already.
        unwritten: why its damage could not be recorded; None: recorded, or no damage.
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
    is_recorded: bool = False
    is_unclean: bool = False
    deleted: list[str] = dataclasses.field(default_factory=list)
    digested: set[int] = dataclasses.field(default_factory=set)
    cuts: Cuts = dataclasses.field(default_factory=Cuts)
    is_contiguous: bool = False
    is_truncating: bool = False
    log_id: str = ""
    is_renamed: bool = False
    is_identified: bool = False
    foreign_end: int = OFFSET_MAX
    compactions: int = 0
    unwritten: LogStoreError | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class RecoveryContext:
    """The partition to load.

    Attributes:
        writable: repair the partition; if false, nothing on disk changes.
        on_checked: called repeatedly with the number of bytes of log checked.
        names: of the files in its directory, if they were listed already.
    """

    directory: Directory
    descriptors: Descriptors
    topic: str
    partition: int
    config: TopicConfig
    metadata: PartitionMetadata
    _: dataclasses.KW_ONLY
    writable: bool
    on_checked: Callable[[int], None] | None = None
    names: frozenset[str] | None = None
