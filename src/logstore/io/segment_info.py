"""Values about segments: a place in one, and what users see of one."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["OffsetPosition", "SegmentInfo", "newest_ms"]


class OffsetPosition(NamedTuple):
    """The start of a walk over batches.

    Attributes:
        pos: byte where a batch begins.
        last_offset: that of the batch before; native.OFFSET_UNKNOWN if unknown.
    """

    pos: int
    last_offset: int


class SegmentInfo(NamedTuple):
    """A segment, as `Partition.segments` and retention policies get it.

    Attributes:
        base_offset: its name; a lower bound of its offsets.
        next_offset: first offset of the next segment, or the end of the log.
        size_bytes: size of the `.log` file, up to the last whole batch.
        max_timestamp_ms: largest record timestamp; -1 if no record has one.
        modified_ms: time of the last change of the file.
        is_active: whether appends go to it.
        path: absolute path of the `.log` file.
    """

    base_offset: int
    next_offset: int
    size_bytes: int
    max_timestamp_ms: int
    modified_ms: int
    is_active: bool
    path: str


def newest_ms(segment: SegmentInfo) -> int:
    """The time of its newest record, Unix milliseconds; if no record has a time, when
    the file was changed."""
    largest = segment.max_timestamp_ms
    return segment.modified_ms if largest < 0 else largest
