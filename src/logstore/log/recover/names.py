"""The names in the directory of a partition, classified as a broker does it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.layout import (
    CLEANED,
    DELETED,
    LOG,
    OFFSET_MAX,
    SWAP,
    SegmentFile,
    parse_segment_file,
)
from logstore.log.recover.facts import Refusal

__all__ = ["Names", "below_the_state", "classify", "committed_swaps", "readable"]


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The names in a partition directory, classified.

    Attributes:
        logs: base offset -> transition ("" or ".swap") of the segments in use.
        superseded: files that a finished swap would delete.
        swaps: `.swap` files in use.
        leftovers: `.cleaned` files, and `.swap` files of an unfinished group.
        deleted: `.deleted` files.
    """

    logs: dict[int, str]
    superseded: tuple[str, ...]
    swaps: tuple[str, ...]
    leftovers: tuple[str, ...]
    deleted: tuple[str, ...]


def committed_swaps(
    names: Iterable[str], swapping: Collection[int] | None = None
) -> list[int]:
    """Base offsets of the `.log.swap` files of a committed compaction or swap.

    Args:
        swapping: as in the own state, which says by itself which ones are not; None:
            there is none that counts. Then any `.swap` at or above the smallest
            `.cleaned` belongs to an unfinished group (docs/format.md, "`.swap`").
    """
    parsed = [p for name in names if (p := parse_segment_file(name))]
    is_unfinished = _unfinished(parsed, swapping)
    return sorted(
        p.base_offset
        for p in parsed
        if p.transition == SWAP and p.suffix == LOG and not is_unfinished(p.base_offset)
    )


def _unfinished(
    parsed: Iterable[SegmentFile], swapping: Collection[int] | None
) -> Callable[[int], bool]:
    """Whether a `.swap` with a base offset does not count: see `committed_swaps`."""
    if swapping is not None:
        return swapping.__contains__
    cleaned = [p.base_offset for p in parsed if p.transition == CLEANED]
    lowest = min(cleaned, default=OFFSET_MAX + 1)
    return lambda base: base >= lowest


def below_the_state(
    state: PartitionState | None, logs: Mapping[int, str]
) -> tuple[int, ...]:
    """Base offsets of segments that were deleted: they lie below the first one that the
    own state knows, and below its start.

    Args:
        logs: as in `Names`.
    """
    if state is None:
        return ()
    first = min([row[0] for row in state.sealed] + [state.active["base_offset"]])
    if state.start_offset < first:
        return ()
    return tuple(b for b, swap in logs.items() if b < first and not swap)


def readable(swap_ends: Mapping[int, int | Refusal]) -> dict[int, int]:
    """The ends of the `.swap` files that could be read."""
    return {b: end for b, end in swap_ends.items() if not isinstance(end, Refusal)}


def classify(
    names: Iterable[str],
    swap_ends: Mapping[int, int],
    swapping: Collection[int] | None = None,
) -> Names:
    """Classify the files in a partition directory, as a broker does when it loads it.

    Committed `.swap` files replace the segments from their base to their end
    (`swap_ends`: base offset -> next offset); others are leftovers.

    Args:
        swapping: as for `committed_swaps`.
    """
    parsed = [(name, p) for name in sorted(names) if (p := parse_segment_file(name))]
    is_unfinished = _unfinished((p for _, p in parsed), swapping)
    low = min(swap_ends, default=-1)
    high = max((max(end, base + 1) for base, end in swap_ends.items()), default=-1)
    logs = dict.fromkeys(swap_ends, SWAP)
    superseded: list[str] = []
    swaps: list[str] = []
    deleted: list[str] = []
    leftovers = [name for name, p in parsed if p.transition == CLEANED]
    for name, p in parsed:
        if p.transition == DELETED:
            deleted.append(name)
        elif p.transition == SWAP:
            is_leftover = is_unfinished(p.base_offset)
            (leftovers if is_leftover else swaps).append(name)
        elif p.transition:
            continue
        elif low <= p.base_offset < high:
            superseded.append(name)
        elif p.suffix == LOG:
            logs[p.base_offset] = ""
    return Names(
        dict(sorted(logs.items())),
        tuple(superseded),
        tuple(swaps),
        tuple(leftovers),
        tuple(deleted),
    )
