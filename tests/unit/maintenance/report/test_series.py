"""Records over time, in few buckets of a round size."""

from __future__ import annotations

import pytest

from logstore.maintenance.report.series import (
    bounds_of,
    group_of,
    quantile_edges,
    series_of,
    step_of,
)
from logstore.maintenance.sampling import Interval
from support.reports import DAY, NOW


def test_buckets_are_round_and_few() -> None:
    """This holds for any span from nothing to the age of the universe."""
    for span in (0, 1, 71, 72, 10_000, DAY, 400 * DAY, 1 << 50, (1 << 63) - 1):
        step = step_of(span)
        assert span // step < 73


def test_few_records_far_off_do_not_flatten_the_chart() -> None:
    """They are counted as outside."""
    rows = [Interval(NOW + n, NOW + n, 10, 100) for n in range(1000)]
    rows.append(Interval(0, 0, 1, 10))
    bounds = bounds_of(rows)
    assert bounds is not None
    assert bounds[0] >= NOW
    series = series_of(rows, bounds, 10_004)
    # Half a percent at each end.
    assert 1 <= series.outside <= 101
    assert series.untimed == 3
    inside = sum(series.records) + series.outside
    assert inside == pytest.approx(10_001)


def test_intervals_are_spread_over_their_buckets() -> None:
    """The shares are proportional to the time in each."""
    rows = [Interval(0, 720_000, 720, 7200)]
    series = series_of(rows, bounds_of(rows), 720)
    assert sum(series.records) == pytest.approx(720)
    full = series.records[1:-1]
    assert max(full) == pytest.approx(min(full))


def test_series_without_a_time_is_empty() -> None:
    """All records are untimed."""
    assert bounds_of([]) is None
    assert series_of([], None, 5).untimed == 5


def test_ages_are_in_groups_of_about_one_size() -> None:
    """One old segment does not put all others into a single group."""
    values = [0, *range(1000, 1060)]
    edges = quantile_edges(values, 6)
    groups = [group_of(value, edges) for value in values]
    assert sorted(set(groups)) == list(range(6))
    assert max(groups.count(group) for group in range(6)) <= 12
    assert quantile_edges([5, 5, 5], 6) == []
