"""Offsets of many partitions: their text, and where queries start and end.

Pure functions over numbers; they need neither Spark nor a store. An offset is the next
one to be read, as in Spark's Kafka source.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from logstore import ConfigError, LogStoreError, TopicPartition
from pyspark_logstore.option_values import INT64_MAX, MARKS, partition_number
from pyspark_logstore.read.options import (
    EARLIEST,
    LATEST,
    Bound,
    logger,
)

__all__ = [
    "Bounds",
    "DataLossError",
    "LossPolicy",
    "Mark",
    "Marks",
    "Offsets",
    "backlog",
    "from_json",
    "marks_from_json",
    "resolve_end",
    "resolve_start",
    "to_json",
]

Offsets = dict[TopicPartition, int]
FindTime = Callable[[TopicPartition, int], int | None]


class Mark(NamedTuple):
    """Identifies the log of a partition and its newest cut when offsets in it were
    recorded. A query later uses it to check that they still mean the same records.

    Attributes:
        log_id, serial: as in `logstore.types.LogMark`.
        inode: number of the partition's directory.
    """

    log_id: str
    serial: int
    inode: int

    def __str__(self) -> str:
        return f"{self.log_id}.{self.serial}.{self.inode}"

    @classmethod
    def parse(cls, text: object) -> Mark:
        """Parse the text of a mark.

        Raises:
            ValueError: it is something else.
        """
        match = re.fullmatch(
            r"([0-9a-f]{1,64})\.([0-9]{1,19})\.([0-9]{1,20})", str(text)
        )
        if match is None:
            raise ValueError(f"not a mark of a log: {text!r}")
        return cls(match[1], int(match[2]), int(match[3]))


Marks = dict[TopicPartition, Mark]


class Bounds(NamedTuple):
    """The readable offsets of a partition now, half open, and the mark of its log;
    None: no program records it."""

    start: int
    end: int
    mark: Mark | None = None


class DataLossError(LogStoreError):
    """Records to be read are gone, and ``failOnDataLoss`` is true."""


class LossPolicy:
    """Handles the loss of records that were not read yet: ``failOnDataLoss``."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def report(self, what: str) -> None:
        """Raise, or log and continue.

        Raises:
            DataLossError: ``failOnDataLoss`` is true.
        """
        if self.fails:
            raise DataLossError(
                f"{what}. With the option failOnDataLoss=false the query "
                "continues without the lost records"
            )
        logger.warning("%s; continuing, because failOnDataLoss is false", what)


# ---------------------------------------------------------------------------- as text


def to_json(
    offsets: Mapping[TopicPartition, int], marks: Mapping[TopicPartition, Mark] = {}
) -> dict[str, dict[str, Any]]:
    """``{"topic": {"0": 23}}``, always in the same order: Spark compares the text. The
    marks of the logs are under a separate name."""
    by_topic = _by_topic(offsets)
    if marks:
        by_topic[MARKS] = {
            str(name): str(marks[name]) for name in sorted(marks) if name in offsets
        }
    return by_topic


def _by_topic(values: Mapping[TopicPartition, int]) -> dict[str, dict[str, Any]]:
    by_topic: dict[str, dict[str, Any]] = {}
    for topic, number in sorted(values):
        name = TopicPartition(topic, number)
        by_topic.setdefault(topic, {})[str(number)] = values[name]
    return by_topic


def from_json(value: Mapping[str, Mapping[str, Any]]) -> Offsets:
    """The offsets in the result of `to_json`.

    Raises:
        ConfigError: it is something else.
    """
    offsets = {}
    try:
        for topic, numbers in value.items():
            if topic == MARKS:
                continue
            for text, offset in numbers.items():
                number = partition_number(text)
                if number is None or type(offset) is not int:
                    raise ValueError(f"{text!r}: {offset!r}")
                if not 0 <= offset <= INT64_MAX:
                    raise ValueError(f"{offset} is not an offset")
                offsets[TopicPartition(topic, number)] = offset
    except (AttributeError, TypeError, ValueError) as error:
        raise _not_ours(value) from error
    return offsets


def marks_from_json(value: Mapping[str, Mapping[str, Any]]) -> Marks:
    """The marks; none if an earlier version wrote it, or they were unknown.

    Raises:
        ConfigError: it is something else.
    """
    try:
        texts = value.get(MARKS, {})
        return {
            name: Mark.parse(texts[str(name)])
            for name in from_json(value)
            if str(name) in texts
        }
    except (AttributeError, TypeError, ValueError) as error:
        raise _not_ours(value) from error


def _not_ours(value: object) -> ConfigError:
    text = repr(value)
    return ConfigError(
        f"not offsets by topic and partition: {text[:200]}. The checkpoint is that of "
        f"another source, or damaged",
        name="checkpointLocation",
        value=value,
    )


# ------------------------------------------------------------------- start and end


def resolve_start(
    bound: Bound,
    bounds: Mapping[TopicPartition, Bounds],
    find_time: FindTime,
    strategy: str,
    loss: LossPolicy,
) -> Offsets:
    """The start offset in each partition.

    Args:
        find_time: first offset at or after a time; None if all records are earlier.
        strategy: in that case: "error", or "latest" for the end of the partition.

    Raises:
        ConfigError: the option does not name exactly the existing partitions, or no
            record is that late.
        DataLossError: a given offset is outside its partition.
    """
    offsets = {}
    for partition, value in _values_of(bound, bounds).items():
        high = bounds[partition].end
        if isinstance(value, _Time):
            offset = find_time(partition, value.ms)
            if offset is None and strategy == "error":
                raise ConfigError(
                    f"option {bound.option}: {partition} has no record at or after "
                    f"{value.ms} ms; with startingOffsetsByTimestampStrategy=latest "
                    f"reading starts at its end",
                    name=bound.option,
                    value=value.ms,
                )
            offsets[partition] = high if offset is None else offset
        else:
            offsets[partition] = _place(bound, partition, value, bounds, loss)
    return offsets


def resolve_end(
    bound: Bound,
    bounds: Mapping[TopicPartition, Bounds],
    find_time: FindTime,
    loss: LossPolicy,
) -> Offsets:
    """The end offset in each partition, exclusive; the end of the partition if no
    record is as late as a timestamp. Raises: as `resolve_start`."""
    offsets = {}
    for partition, value in _values_of(bound, bounds).items():
        if isinstance(value, _Time):
            offset = find_time(partition, value.ms)
            high = bounds[partition].end
            offsets[partition] = high if offset is None else min(offset, high)
        else:
            offsets[partition] = _place(bound, partition, value, bounds, loss)
    return offsets


class _Time(NamedTuple):
    ms: int


def _values_of(
    bound: Bound, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | _Time]:
    """The value of the option for each partition: an offset, -1, -2, or a time."""
    if bound.timestamp_ms is not None:
        return dict.fromkeys(partitions, _Time(bound.timestamp_ms))
    check_names(bound, partitions)
    if bound.timestamps_ms is not None:
        return {p: _Time(ms) for p, ms in bound.timestamps_ms.items()}
    if bound.offsets is not None:
        return dict(bound.offsets)
    keyword = EARLIEST if bound.keyword == "earliest" else LATEST
    return dict.fromkeys(partitions, keyword)


def check_names(bound: Bound, partitions: Iterable[TopicPartition]) -> None:
    """Raise `ConfigError` unless an option that has a value for each partition names
    exactly these."""
    values = bound.offsets if bound.timestamps_ms is None else bound.timestamps_ms
    if values is None:
        return
    given, existing = set(values), set(partitions)
    if given != existing:
        missing = ", ".join(map(str, sorted(existing - given))) or "none"
        unknown = ", ".join(map(str, sorted(given - existing))) or "none"
        raise ConfigError(
            f"option {bound.option} must name all partitions that are read, and no "
            f"others; not named: {missing}; not read: {unknown}. In offsets, -2 stands "
            f"for the earliest and -1 for the latest",
            name=bound.option,
        )


def _place(
    bound: Bound,
    partition: TopicPartition,
    offset: int,
    bounds: Mapping[TopicPartition, Bounds],
    loss: LossPolicy,
) -> int:
    low, high, _ = bounds[partition]
    if offset == EARLIEST:
        return low
    if offset == LATEST:
        return high
    if not low <= offset <= high:
        loss.report(
            f"option {bound.option}: {partition} has the offsets {low} to {high}, "
            f"but not {offset}"
        )
    return min(max(offset, low), high)


# ---------------------------------------------------------------------- admission


def backlog(start: Mapping[TopicPartition, int], end: Offsets) -> Offsets:
    """The number of offsets between start and end, if there are any."""
    sizes = {p: end[p] - start[p] for p in end if p in start}
    return {p: size for p, size in sizes.items() if size > 0}
