"""The part of a backlog that a micro-batch takes: ``maxOffsetsPerTrigger`` and
``maxBytesPerTrigger``. Pure functions; they need neither Spark nor a store."""

from __future__ import annotations

import math
from collections.abc import Mapping

from logstore import TopicPartition
from pyspark_logstore.read.offsets import Offsets, backlog
from pyspark_logstore.read.planning import Sizes

__all__ = ["limit_bytes", "limit_rows", "share"]


def share(limit: int, sizes: Mapping[TopicPartition, int]) -> Offsets:
    """A limit divided in proportion to sizes, rounded down, except shares below 1: a
    small partition is not starved. No share is larger than the size."""
    total = sum(sizes.values())
    shares = {}
    for partition, size in sizes.items():
        whole = limit * size // total
        shares[partition] = min(whole or math.ceil(limit * size / total), size)
    return shares


def limit_rows(
    start: Mapping[TopicPartition, int], end: Offsets, limit: int
) -> Offsets:
    """`end`, moved towards `start` so that about `limit` offsets lie between."""
    shares = share(limit, backlog(start, end))
    return {p: start[p] + shares[p] if p in shares else end[p] for p in end}


def limit_bytes(
    start: Mapping[TopicPartition, int],
    end: Offsets,
    sizes: Mapping[TopicPartition, Sizes],
    limit: int,
) -> Offsets:
    """`end`, moved towards `start` so that about `limit` bytes lie between.

    The bytes are estimated from the sizes of segments. Each partition with a backlog
    gets at least one offset, so that every partition makes progress.
    """
    waiting = backlog(start, end)
    weights = {p: max(1, sizes[p].between(start[p], end[p])) for p in waiting}
    if sum(weights.values()) <= limit:
        return dict(end)
    offsets = dict(end)
    for partition, part in share(limit, weights).items():
        of, first = sizes[partition], start[partition]
        at = of.offset_at(of.up_to(first) + part)
        offsets[partition] = min(max(at, first + 1), end[partition])
    return offsets
