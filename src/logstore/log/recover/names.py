"""Classifies the names in the directory of a partition as a broker does it, and finds
the operations that were begun and not finished. This is the first step of a decision.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping

from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.layout import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    OFFSET_MAX,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    SegmentFile,
    parse_segment_file,
)
from logstore.log.recover.facts import Facts, Refusal

__all__ = [
    "Operations",
    "below_the_state",
    "classify",
    "committed_swaps",
    "interrupted_operations",
    "readable",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Operations:
    """Operations that were begun and not finished.

    Attributes:
        logs: base offset -> transition ("" or ".swap") of the segments in use.
        superseded: files that a finished swap would delete.
        swaps: `.swap` files in use.
        leftovers: `.cleaned` files, and `.swap` files of an unfinished group.
        waiting: `.deleted` files.
        names: of all files when the operations are finished or undone.
        orphans: index files without a log.
        truncated: (base offset, size) of the last segment that an interrupted
            truncation leaves; it is cut to that size.
        dropped: base offsets of the segments that it removes.
        deleted: base offsets of the segments of an interrupted deletion.
    """

    logs: dict[int, str] = dataclasses.field(default_factory=dict)
    superseded: tuple[str, ...] = ()
    swaps: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()
    names: frozenset[str] = frozenset()
    orphans: tuple[str, ...] = ()
    truncated: tuple[int, int] | None = None
    dropped: tuple[int, ...] = ()
    deleted: tuple[int, ...] = ()


def committed_swaps(
    names: Iterable[str], swapping: Collection[int] | None = None
) -> list[int]:
    """Base offsets of the `.log.swap` files of a committed compaction or swap.

    Args:
        swapping: as in the own state, which lists the uncommitted ones; None: no own
            state counts. Then any `.swap` at or above the smallest `.cleaned` belongs
            to an unfinished group (docs/format.md, "`.swap`").
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
        logs: as in `Operations`.
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
) -> Operations:
    """Classify the files in a partition directory, as a broker does when it loads it:
    compactions, swaps and deletions, without what only the own state shows.

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
    waiting: list[str] = []
    leftovers = [name for name, p in parsed if p.transition == CLEANED]
    for name, p in parsed:
        if p.transition == DELETED:
            waiting.append(name)
        elif p.transition == SWAP:
            is_leftover = is_unfinished(p.base_offset)
            (leftovers if is_leftover else swaps).append(name)
        elif p.transition:
            continue
        elif low <= p.base_offset < high:
            superseded.append(name)
        elif p.suffix == LOG:
            logs[p.base_offset] = ""
    return Operations(
        dict(sorted(logs.items())),
        tuple(superseded),
        tuple(swaps),
        tuple(leftovers),
        tuple(waiting),
    )


def interrupted_operations(facts: Facts) -> Operations:
    """The operations that were interrupted: a compaction or swap at any time, a
    `truncate_to` or a deletion after its commit.

    Without the end of a `.swap` file, the files that it replaces are unknown: then the
    others are not determined either.
    """
    ends, state = readable(facts.swap_ends), facts.metadata.state
    if ends != facts.swap_ends:
        return Operations(names=facts.names)
    operations = classify(facts.names, ends, facts.metadata.swapping)
    truncated: tuple[int, int] | None = None
    dropped: tuple[int, ...] = ()
    if state is not None and state.is_truncating:
        last, size = state.active["base_offset"], state.active["size"]
        truncated = (last, size) if last in operations.logs else None
        dropped = tuple(base for base in operations.logs if base > last)
    # A crash may have restored the name of any segment that was deleted.
    deleted = below_the_state(state, operations.logs)
    gone = {*dropped, *deleted}
    names = facts.names - {
        *operations.superseded,
        *operations.swaps,
        *operations.leftovers,
    }
    names |= {name.removesuffix(SWAP) for name in operations.swaps}
    orphans = (
        name
        for name in sorted(names)
        if (p := parse_segment_file(name)) and not p.transition
        if p.suffix in (INDEX, TIME_INDEX, TXN_INDEX)
        if p.base_offset not in operations.logs
    )
    return dataclasses.replace(
        operations,
        logs={base: end for base, end in operations.logs.items() if base not in gone},
        names=names,
        orphans=tuple(orphans),
        truncated=truncated,
        dropped=dropped,
        deleted=deleted,
    )
