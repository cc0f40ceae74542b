"""Kafka's rules for a compaction: its end offset, whether it is due, and its groups."""

from __future__ import annotations

from typing import Any

import pytest

from logstore import TopicConfig
from logstore.log.compact.plan import (
    CompactionPlan,
    GroupLimits,
    SegmentFacts,
    groups,
    plan,
)

NOW = 1_000_000


def segment(base: int, end: int, size: int = 100, **facts: int) -> SegmentFacts:
    return SegmentFacts(base, end, size, **facts)


# Ten offsets in each segment; the last one is active.
LOG = [segment(at, at + 10) for at in range(0, 50, 10)]


def decided(log: list[SegmentFacts] = LOG, **given: Any) -> CompactionPlan:
    settings = {
        "checkpoint": None,
        "start": 0,
        "end": 50,
        "stable": 50,
        "config": TopicConfig(cleanup_policy="compact"),
        "now_ms": NOW,
    }
    return plan(log, **{**settings, **given})


def test_all_but_the_active_segment_is_dirty_at_first() -> None:
    """There is no checkpoint."""
    found = decided()
    assert (found.first_dirty, found.end) == (0, 40)
    assert (found.clean_bytes, found.dirty_bytes) == (0, 400)
    assert found.dirty_ratio == 1.0
    assert found.is_due
    assert not found.has_moved


@pytest.mark.parametrize(
    ("checkpoint", "ratio", "is_due"),
    [(10, 0.75, True), (20, 0.5, False), (40, 0.0, False)],
)
def test_ratio_must_be_exceeded(checkpoint: int, ratio: float, is_due: bool) -> None:
    """A ratio equal to the limit is not enough."""
    found = decided(checkpoint=checkpoint)
    assert (found.dirty_ratio, found.is_due) == (ratio, is_due)


@pytest.mark.parametrize(("checkpoint", "start"), [(60, 0), (5, 20)])
def test_checkpoint_outside_of_the_log_begins_at_its_start(
    checkpoint: int, start: int
) -> None:
    """The log was cut, or its head deleted."""
    log = [one for one in LOG if one.next_offset > start]
    found = decided(log, checkpoint=checkpoint, start=start)
    assert (found.first_dirty, found.has_moved) == (start, True)


@pytest.mark.parametrize(
    ("bound", "end"), [({"stable": 25}, 20), ({"end": 31}, 30), ({"stable": 0}, 0)]
)
def test_segment_with_an_open_transaction_or_publication_stays(
    bound: dict[str, int], end: int
) -> None:
    """All segments after it stay, too."""
    assert decided(**bound).end == end


def test_segment_that_is_young_stays() -> None:
    """The first dirty segment whose largest timestamp is within the lag stays, and all
    after it."""
    log = [segment(at, at + 10, largest_ms=NOW - 100 + at) for at in range(0, 50, 10)]
    config = TopicConfig(cleanup_policy="compact", min_compaction_lag_ms=80)
    assert decided(log, config=config).end == 30
    # A clean one does not count.
    log[0] = log[0]._replace(largest_ms=NOW)
    assert decided(log, config=config, checkpoint=10).end == 30
    assert decided(log, config=config).end == 0


def test_record_that_waits_for_too_long_makes_it_due() -> None:
    """The ratio does not matter; the first batch of a dirty segment counts."""
    config = TopicConfig(
        cleanup_policy="compact",
        max_compaction_lag_ms=50,
        min_cleanable_dirty_ratio=1.0,
    )
    log = [segment(at, at + 10, first_ms=NOW - 60 + at) for at in range(0, 50, 10)]
    assert decided(log, config=config).is_due
    assert not decided(log, config=config, checkpoint=10).is_due
    assert not decided(log, config=config, checkpoint=40).is_due
    # Times that are unknown do not count.
    assert not decided(config=config).is_due


def test_empty_log_is_not_due() -> None:
    """A log with only an active segment is not due, either."""
    assert not decided([], end=0, stable=0).is_due
    assert not decided([segment(0, 10)], end=10, stable=10).is_due


def bases(log: list[SegmentFacts], *limits: int) -> list[list[int]]:
    found = groups(log, GroupLimits(*limits))
    return [[one.base_offset for one in group] for group in found]


def test_groups_are_limited_by_size() -> None:
    """The sizes of logs and of each kind of index are limited."""
    assert bases(LOG, 250, 1000) == [[0, 10], [20, 30], [40]]
    assert bases(LOG, 99, 1000) == [[0], [10], [20], [30], [40]]
    indexed = [one._replace(index_bytes=40) for one in LOG]
    assert bases(indexed, 1000, 80) == [[0, 10], [20, 30], [40]]
    timed = [one._replace(time_index_bytes=40) for one in LOG]
    assert bases(timed, 1000, 120) == [[0, 10, 20], [30, 40]]
    assert bases([], 1, 1) == []


def test_groups_are_limited_by_offsets() -> None:
    """A group has at most 2^31 - 1 offsets; an empty segment joins in any case."""
    far = (1 << 31) - 1
    log = [segment(0, 10), segment(10, far + 1), segment(far + 1, far + 2)]
    assert bases(log, 1000, 1000) == [[0, 10], [far + 1]]
    log[1] = segment(10, far + 2, 0)
    assert bases(log[:2], 1000, 1000) == [[0, 10]]
