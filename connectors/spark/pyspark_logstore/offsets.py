"""Offsets of many partitions: their text, and where queries start and end.

Pure functions over numbers; needs neither Spark nor a store. An offset is the next one
to be read, as in Spark's Kafka source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from logstore import ConfigError, LogStoreError
from pyspark_logstore.options import (
    EARLIEST,
    LATEST,
    Bound,
    TopicPartition,
    logger,
)

__all__ = [
    "Bounds",
    "DataLossError",
    "LossPolicy",
    "Offsets",
    "backlog",
    "from_json",
    "resolve_end",
    "resolve_start",
    "to_json",
]

Offsets = dict[TopicPartition, int]
FindTime = Callable[[TopicPartition, int], int | None]


class Bounds(NamedTuple):
    """What can be read of a partition now, half open."""

    start: int
    end: int


class DataLossError(LogStoreError):
    """Records that a query was to read are gone, and ``failOnDataLoss`` is true."""


class LossPolicy:
    """What happens when records that were to be read are gone: ``failOnDataLoss``."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def report(self, what: str) -> None:
        """Raise, or log and go on.

        Raises:
            DataLossError: ``failOnDataLoss`` is true.
        """
        if self.fails:
            raise DataLossError(
                f"{what}. With the option failOnDataLoss=false the query goes on "
                f"without the records that are gone"
            )
        logger.warning("%s; going on, as failOnDataLoss is false", what)


# ---------------------------------------------------------------------------- as text


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """``{"topic": {"0": 23}}``, always in the same order: Spark compares the text."""
    found: dict[str, dict[str, int]] = {}
    for topic, number in sorted(offsets):
        partition = TopicPartition(topic, number)
        found.setdefault(topic, {})[str(number)] = offsets[partition]
    return found


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """What `to_json` made.

    Raises:
        ValueError: it is something else.
    """
    try:
        return {
            TopicPartition(topic, int(number)): int(offset)
            for topic, numbers in value.items()
            for number, offset in numbers.items()
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"not offsets by topic and partition: {value!r}") from error


# ------------------------------------------------------------------- start and end


def resolve_start(
    bound: Bound,
    bounds: Mapping[TopicPartition, Bounds],
    find_time: FindTime,
    strategy: str,
    loss: LossPolicy,
) -> Offsets:
    """Where reading starts in each partition.

    Args:
        find_time: first offset at or after a time, None where there is none.
        strategy: what then: "error", or "latest" for the end of the partition.

    Raises:
        ConfigError: the option does not name just the partitions there are, or no
            record is that late.
        DataLossError: an offset that is given is outside its partition.
    """
    found = {}
    for partition, wanted in _wanted(bound, bounds).items():
        high = bounds[partition].end
        if isinstance(wanted, _Time):
            offset = find_time(partition, wanted.ms)
            if offset is None and strategy == "error":
                raise ConfigError(
                    f"option {bound.option}: {partition} has no record at or after "
                    f"{wanted.ms} ms; with startingOffsetsByTimestampStrategy=latest "
                    f"reading starts at its end",
                    name=bound.option,
                    value=wanted.ms,
                )
            found[partition] = high if offset is None else offset
        else:
            found[partition] = _place(bound, partition, wanted, bounds, loss)
    return found


def resolve_end(
    bound: Bound,
    bounds: Mapping[TopicPartition, Bounds],
    find_time: FindTime,
    loss: LossPolicy,
) -> Offsets:
    """Where reading ends in each partition, exclusive; where no record is as late as a
    timestamp, at its end. Raises: as `resolve_start`."""
    found = {}
    for partition, wanted in _wanted(bound, bounds).items():
        if isinstance(wanted, _Time):
            offset = find_time(partition, wanted.ms)
            high = bounds[partition].end
            found[partition] = high if offset is None else min(offset, high)
        else:
            found[partition] = _place(bound, partition, wanted, bounds, loss)
    return found


class _Time(NamedTuple):
    ms: int


def _wanted(
    bound: Bound, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | _Time]:
    """What the option says of each partition: an offset, -1, -2, or a time."""
    if bound.timestamp_ms is not None:
        return dict.fromkeys(partitions, _Time(bound.timestamp_ms))
    if bound.timestamps_ms is not None:
        _check_names(bound, bound.timestamps_ms, partitions)
        return {p: _Time(ms) for p, ms in bound.timestamps_ms.items()}
    if bound.offsets is not None:
        _check_names(bound, bound.offsets, partitions)
        return dict(bound.offsets)
    keyword = EARLIEST if bound.keyword == "earliest" else LATEST
    return dict.fromkeys(partitions, keyword)


def _check_names(
    bound: Bound,
    given: Iterable[TopicPartition],
    partitions: Iterable[TopicPartition],
) -> None:
    given, there = set(given), set(partitions)
    if given != there:
        missing = ", ".join(map(str, sorted(there - given))) or "none"
        unknown = ", ".join(map(str, sorted(given - there))) or "none"
        raise ConfigError(
            f"option {bound.option} must name all partitions that are read, and no "
            f"others; not named: {missing}; not read: {unknown}. In offsets, -2 stands "
            f"for the earliest and -1 for the latest",
            name=bound.option,
        )


def _place(
    bound: Bound,
    partition: TopicPartition,
    wanted: int,
    bounds: Mapping[TopicPartition, Bounds],
    loss: LossPolicy,
) -> int:
    low, high = bounds[partition]
    if wanted == EARLIEST:
        return low
    if wanted == LATEST:
        return high
    if not low <= wanted <= high:
        loss.report(
            f"option {bound.option}: {partition} has the offsets {low} to {high}, and "
            f"not {wanted}"
        )
    return min(max(wanted, low), high)


# ---------------------------------------------------------------------- admission


def backlog(start: Mapping[TopicPartition, int], end: Offsets) -> Offsets:
    """How many offsets lie between, where there are any."""
    sizes = {p: end[p] - start[p] for p in end if p in start}
    return {p: size for p, size in sizes.items() if size > 0}
