"""The names in the directory of a partition, classified as a broker does it."""

from __future__ import annotations

import dataclasses

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import (
    CLEANED,
    DELETED,
    LOG,
    SWAP,
    parse_segment_file,
    segment_file,
)
from logstore.log.scan import scan_log
from logstore.segment import Segment

__all__ = ["Survey", "survey"]


@dataclasses.dataclass(slots=True)
class Survey:
    """The names in a partition directory, classified.

    Attributes:
        logs: base offset -> transition ("" or ".swap") of the segments in use.
        superseded: files that a finished swap would delete.
        swaps: `.swap` files in use.
        leftovers: `.cleaned` files, and `.swap` files of an unfinished group.
        deleted: `.deleted` files.
        names: all names.
    """

    logs: dict[int, str]
    superseded: list[str]
    swaps: list[str]
    leftovers: list[str]
    deleted: list[str]
    names: frozenset[str]


def survey(directory: Directory, descriptors: Descriptors) -> Survey:
    """Classify the files in a partition directory, as a broker does when it loads it.

    Any `.swap` at or above the smallest `.cleaned` belongs to an unfinished group and
    is a leftover; the others replace the segments from their base to their last offset
    (docs/format.md, "Transition suffixes").
    """
    names = directory.names()
    parsed = [(name, p) for name in names if (p := parse_segment_file(name))]
    cleaned = [p.base_offset for _, p in parsed if p.transition == CLEANED]
    unfinished = min(cleaned, default=None)
    swaps: list[str] = []
    leftovers = [name for name, p in parsed if p.transition == CLEANED]
    swap_logs: list[int] = []
    for name, p in parsed:
        if p.transition != SWAP:
            continue
        if unfinished is not None and p.base_offset >= unfinished:
            leftovers.append(name)
            continue
        swaps.append(name)
        if p.suffix == LOG:
            swap_logs.append(p.base_offset)
    low = high = -1
    for base in swap_logs:
        segment = _whole_segment(directory, descriptors, base, SWAP)
        low = base if low < 0 else min(low, base)
        high = max(high, segment.next_offset, base + 1)
    logs: dict[int, str] = {}
    superseded: list[str] = []
    for name, p in parsed:
        if p.transition:
            continue
        if low <= p.base_offset < high:
            superseded.append(name)
        elif p.suffix == LOG:
            logs[p.base_offset] = ""
    for base in swap_logs:
        logs[base] = SWAP
    return Survey(
        logs=dict(sorted(logs.items())),
        superseded=superseded,
        swaps=swaps,
        leftovers=leftovers,
        deleted=[name for name, p in parsed if p.transition == DELETED],
        names=frozenset(names),
    )


def _whole_segment(
    directory: Directory, descriptors: Descriptors, base: int, transition: str
) -> Segment:
    """A segment whose end is found by reading it (up to damage, if any)."""
    name = segment_file(base, LOG) + transition
    with directory.opened(name) as fd:
        size = directory.files.size(fd)
        state = native.SegmentState(base)
        scan_log(directory, fd, size, state)
    return Segment(
        directory,
        descriptors,
        base,
        state.size,
        state.last_offset + 1,
        max_timestamp=state.max_timestamp,
        max_timestamp_offset=state.max_timestamp_offset,
        transition=transition,
    )
