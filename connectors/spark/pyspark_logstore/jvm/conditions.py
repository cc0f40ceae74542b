"""Filters of a query as ranges of offsets.

A condition compares one column with values. Conditions on topics, partitions and
offsets are answered exactly by the ranges that are read; a condition on times only
determines which records at the start of a partition need not be read.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from logstore import CorruptRecordError, TopicPartition
from pyspark_logstore.read.offsets import Offsets

__all__ = ["Condition", "narrowed"]

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Condition(NamedTuple):
    """``column is value``.

    Attributes:
        column: topic, partition, offset or timestamp (values in microseconds).
        operation: =, <, <=, >, >=, in, or not null.
        values: one; for ``in`` any number.
    """

    column: str
    operation: str
    values: tuple[Any, ...]

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Condition:
        """From the JSON form."""
        return cls(given["column"], given["is"], tuple(given["values"]))

    def holds(self, value: Any) -> bool:
        """Whether a value of the column satisfies it."""
        if self.operation == "not null":
            return True
        if self.operation == "in":
            return value in self.values
        return _COMPARE[self.operation](value, self.values[0])

    def span(self) -> tuple[int, int] | None:
        """The values that satisfy it lie in [low, high), and all integers there do;
        None: no bounds."""
        if self.operation == "not null":
            return None
        value = self.values[0] if self.values else 0
        return {
            "=": (value, value + 1),
            "<": (_LOW, value),
            "<=": (_LOW, value + 1),
            ">": (value + 1, _HIGH),
            ">=": (value, _HIGH),
        }.get(self.operation)


_LOW: Final = -(1 << 64)
_HIGH: Final = 1 << 64


def narrowed(
    conditions: Sequence[Condition],
    start: Offsets,
    end: Offsets,
    offset_for_time: Callable[[TopicPartition, int], int | None],
) -> tuple[Offsets, Offsets]:
    """The part of the ranges in which records can satisfy all conditions.

    Args:
        offset_for_time: the first offset of a record at or after a time in ms.
    """
    starts, ends = {}, {}
    for name, first in start.items():
        if name not in end or not _is_selected(conditions, name):
            continue
        low, high = first, end[name]
        for condition in conditions:
            if condition.column == "offset":
                low, high = _clip(condition, low, high)
        for condition in conditions:
            if condition.column == "timestamp" and low < high:
                low = max(
                    low, _first_since(condition, name, low, high, offset_for_time)
                )
        if low < high:
            starts[name], ends[name] = low, high
    return starts, ends


def _is_selected(conditions: Sequence[Condition], name: TopicPartition) -> bool:
    for condition in conditions:
        if condition.column == "partition" and not condition.holds(name.partition):
            return False
        if condition.column == "topic":
            # Spark compares the bytes of strings.
            values = tuple(value.encode() for value in condition.values)
            if not condition._replace(values=values).holds(name.topic.encode()):
                return False
    return True


def _clip(condition: Condition, low: int, high: int) -> tuple[int, int]:
    if condition.operation == "in":
        # A range holds all of them; Spark gets only ranges, so others are left to it.
        values = [value for value in condition.values if low <= value < high]
        return (min(values), max(values) + 1) if values else (low, low)
    span = condition.span()
    return (low, high) if span is None else (max(low, span[0]), min(high, span[1]))


def _first_since(
    condition: Condition,
    name: TopicPartition,
    low: int,
    high: int,
    offset_for_time: Callable[[TopicPartition, int], int | None],
) -> int:
    if condition.operation == "in":
        span: tuple[int, int] | None = (min(condition.values, default=_HIGH), _HIGH)
    else:
        span = condition.span()
    if span is None or span[0] <= 0:
        return low
    millis = -(-span[0] // 1000)
    if millis >= 1 << 63:
        return high
    with contextlib.suppress(CorruptRecordError):  # a reader of the range reports it
        found = offset_for_time(name, millis)
        return high if found is None else found
    return low
