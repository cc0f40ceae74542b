"""Records and bytes over time, in buckets of a round length."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from operator import add
from typing import Final

from logstore.maintenance.report.model import Series
from logstore.maintenance.sampling import Interval

__all__ = ["bounds_of", "series_of", "step_of", "sum_of"]

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR
_STEPS: Final = (
    1, 2, 5, 10, 20, 50, 100, 200, 500,
    _SECOND, 2 * _SECOND, 5 * _SECOND, 10 * _SECOND, 15 * _SECOND, 30 * _SECOND,
    _MINUTE, 2 * _MINUTE, 5 * _MINUTE, 10 * _MINUTE, 15 * _MINUTE, 30 * _MINUTE,
    _HOUR, 2 * _HOUR, 3 * _HOUR, 6 * _HOUR, 12 * _HOUR,
    _DAY, 2 * _DAY, 7 * _DAY, 14 * _DAY, 28 * _DAY, 91 * _DAY, 365 * _DAY,
)  # fmt: skip
_BUCKETS_MAX: Final = 72
# This share of the records may lie outside the scale, if it gets this much shorter.
_OUTSIDE: Final = 0.005
_SHORTER: Final = 10


def step_of(span_ms: int) -> int:
    """The length of a bucket for a span: at most 72 buckets."""
    for step in _STEPS:
        if span_ms // step < _BUCKETS_MAX:
            return step
    years = -(-span_ms // (_STEPS[-1] * (_BUCKETS_MAX - 1)))
    return int(years * _STEPS[-1])


def bounds_of(intervals: Sequence[Interval]) -> tuple[int, int] | None:
    """First and last time of a scale, without the few records that are so far off that
    the others would not be visible. None if no record has a time."""
    if not intervals:
        return None
    first = min(interval.first_ms for interval in intervals)
    last = max(interval.last_ms for interval in intervals)
    low = _quantile(sorted((i.first_ms, i.records) for i in intervals))
    high = _quantile(sorted(((i.last_ms, i.records) for i in intervals), reverse=True))
    if (high - low + _SECOND) * _SHORTER < last - first:
        return low, high
    return first, last


def _quantile(points: list[tuple[int, float]]) -> int:
    """The time of the first record after the few at the start of a list."""
    rest = sum(weight for _, weight in points) * _OUTSIDE
    for time_ms, weight in points:
        rest -= weight
        if rest < 0:
            return time_ms
    return points[-1][0]


def series_of(
    intervals: Iterable[Interval], bounds: tuple[int, int] | None, records: float
) -> Series:
    """The buckets of some intervals.

    Args:
        bounds: of the scale (`bounds_of`).
        records: in all; records in no interval have no time.
    """
    intervals = list(intervals)
    timed = sum(span.records for span in intervals)
    # A sum of weights is rarely exact.
    untimed = records - timed if records - timed > 0.5 else 0.0
    if bounds is None:
        return Series(untimed=untimed)
    step = step_of(bounds[1] - bounds[0])
    start = bounds[0] // step * step
    count = (bounds[1] - start) // step + 1
    series = Series(start, step, [0.0] * count, [0.0] * count, untimed=untimed)
    for interval in intervals:
        _put(series, interval, bounds)
    return series


def sum_of(parts: Sequence[Series]) -> Series:
    """Several series of one scale together; some may have no buckets."""
    whole = Series()
    for part in parts:
        whole.untimed += part.untimed
        whole.outside += part.outside
        if not part.step_ms:
            continue
        if not whole.step_ms:
            whole.start_ms, whole.step_ms = part.start_ms, part.step_ms
            whole.records, whole.bytes = list(part.records), list(part.bytes)
            continue
        whole.records = list(map(add, whole.records, part.records))
        whole.bytes = list(map(add, whole.bytes, part.bytes))
    return whole


def _put(series: Series, interval: Interval, bounds: tuple[int, int]) -> None:
    first, last = max(interval.first_ms, bounds[0]), min(interval.last_ms, bounds[1])
    if first > last:
        series.outside += interval.records
        return
    step, start = series.step_ms, series.start_ms
    low, high = (first - start) // step, (last - start) // step
    span = max(last - first, 1)
    for bucket in range(low, high + 1):
        begin = max(first, start + bucket * step)
        end = min(last, start + (bucket + 1) * step)
        part = 1.0 if low == high else max(end - begin, 0) / span
        series.records[bucket] += interval.records * part
        series.bytes[bucket] += interval.bytes * part


def quantile_edges(values: Sequence[int], count: int) -> list[int]:
    """Up to `count` - 1 rising edges that cut values into groups of about one size."""
    ordered = sorted(values)
    edges = {ordered[len(ordered) * rank // count] for rank in range(1, count)}
    return sorted(edge for edge in edges if edge > ordered[0])


def group_of(value: int, edges: Sequence[int]) -> int:
    """The group of a value: 0 lies below the first edge."""
    return bisect.bisect_right(edges, value)
