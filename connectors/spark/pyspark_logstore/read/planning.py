"""From ranges of offsets to tasks: a few large ones of about the same size.

A task costs Spark 40 to 65 ms of a core regardless of its size, as much as 100 000 to
200 000 records; so small partitions are read together by one task, and large ones by
several. The ranges are placed end to end and cut into equal shares by bytes. A cut is
moved to the beginning of a batch, so that no batch is read by two tasks.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from logstore import TopicPartition

__all__ = ["LogRange", "Sizes", "cores", "plan"]

TASK_BYTES_MIN: Final = 64 << 20  # below it, another task costs more than it gains
TASK_BYTES_MAX: Final = 1 << 30  # beyond it, a failure costs too much work
TASKS_PER_CORE: Final = 2  # so that a slow one does not leave the other cores idle
# Cuts this close to the end of a range, by share of a task, are moved there.
SNAP: Final = 0.1
BATCH_BYTES: Final = 1 << 20
BATCH_RECORDS_MIN: Final = 256
BATCH_RECORDS_MAX: Final = 16_384

Align = Callable[[TopicPartition, int], int]


@dataclasses.dataclass(frozen=True, slots=True)
class LogRange:
    """Records of one partition with start <= offset < stop, as one task reads them.

    Attributes:
        bytes: about how many bytes they take on disk.
        batch_records: how many records to put into one Arrow batch.
    """

    partition: TopicPartition
    start: int
    stop: int
    bytes: int
    batch_records: int = BATCH_RECORDS_MAX

    @property
    def count(self) -> int:
        """The number of offsets."""
        return self.stop - self.start


class Sizes:
    """The bytes of a partition up to an offset, from its segments: inside a segment the
    offsets are assumed to be evenly spread."""

    def __init__(self, segments: Iterable[tuple[int, int, int]]) -> None:
        """Args: segments: (base offset, next offset, bytes) of each, in order."""
        self._offsets: list[int] = []
        self._bytes: list[int] = []
        total = 0
        for base, following, size in segments:
            if not self._offsets:
                self._offsets.append(base)
                self._bytes.append(0)
            total += size
            self._offsets.append(max(following, self._offsets[-1]))
            self._bytes.append(total)

    def up_to(self, offset: int) -> int:
        """Bytes before an offset."""
        at = bisect.bisect_right(self._offsets, offset)
        if at == 0:
            return 0
        if at == len(self._offsets):
            return self._bytes[-1]
        low, high = self._offsets[at - 1], self._offsets[at]
        size = self._bytes[at] - self._bytes[at - 1]
        return self._bytes[at - 1] + size * (offset - low) // (high - low)

    def between(self, start: int, stop: int) -> int:
        """Bytes of a range."""
        return self.up_to(stop) - self.up_to(start)

    def offset_at(self, position: int) -> int:
        """The approximate offset that has this many bytes before it."""
        at = bisect.bisect_right(self._bytes, position)
        if at == 0 or not self._offsets:
            return self._offsets[0] if self._offsets else 0
        if at == len(self._bytes):
            return self._offsets[-1]
        low, high = self._bytes[at - 1], self._bytes[at]
        count = self._offsets[at] - self._offsets[at - 1]
        return self._offsets[at - 1] + count * (position - low) // (high - low)


class _Target(NamedTuple):
    tasks: int
    share: float


def cores() -> int:
    """Cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0))


def batch_records(count: int, size: int) -> int:
    """Records for an Arrow batch of about `BATCH_BYTES`, for a range of this size."""
    each = max(1, size // max(1, count))
    return max(BATCH_RECORDS_MIN, min(BATCH_RECORDS_MAX, BATCH_BYTES // each))


def plan(
    ranges: Sequence[LogRange],
    *,
    core_count: int,
    min_tasks: int | None = None,
    max_records: int | None = None,
    align: Align,
    cut_at: Callable[[LogRange, float], int] | None = None,
) -> list[tuple[LogRange, ...]]:
    """The tasks that read `ranges`; every offset is in exactly one of them.

    Args:
        min_tasks: at least this many, if there are as many batches.
        max_records: at most this many offsets in each task.
        align: the first offset of the batch that holds an offset.
        cut_at: the offset at a share of the bytes of a range; None: by offsets.
    """
    ranges = [r for r in ranges if r.count > 0]
    target = _target(ranges, core_count, min_tasks)
    tasks: list[list[LogRange]] = [[]]
    room = target.share
    for rest in ranges:
        while rest.count > 0:
            weight = _weight(rest)
            if weight <= room + SNAP * target.share or len(tasks) >= target.tasks:
                tasks[-1].append(rest)
                room -= weight
                break
            head, tail = _cut(rest, room / weight, align, cut_at)
            if head.count > 0:
                tasks[-1].append(head)
            if tail.count > 0:
                tasks.append([])
                room = target.share
            rest = tail
        if room <= SNAP * target.share and len(tasks) < target.tasks:
            tasks.append([])
            room = target.share
    if max_records is not None:
        tasks = [part for task in tasks for part in _at_most(task, max_records)]
    return [tuple(task) for task in tasks if task]


def _weight(log_range: LogRange) -> float:
    # A constant for every record: it costs time even if it has hardly any bytes.
    return log_range.bytes + 16.0 * log_range.count


def _target(
    ranges: Sequence[LogRange], core_count: int, min_tasks: int | None
) -> _Target:
    total = sum(map(_weight, ranges))
    tasks = min(TASKS_PER_CORE * core_count, math.ceil(total / TASK_BYTES_MIN))
    tasks = max(1, tasks, math.ceil(total / TASK_BYTES_MAX), min_tasks or 0)
    return _Target(tasks, max(total / tasks, 1.0))


def _cut(
    log_range: LogRange,
    part: float,
    align: Align,
    cut_at: Callable[[LogRange, float], int] | None,
) -> tuple[LogRange, LogRange]:
    """Cut a range in two; the first has about `part` of it. One may be empty."""
    if cut_at is None:
        at = log_range.start + int(log_range.count * part)
    else:
        at = cut_at(log_range, part)
    at = min(max(at, log_range.start), log_range.stop)
    if log_range.start < at < log_range.stop:
        at = max(align(log_range.partition, at), log_range.start)
    return _split(log_range, at)


def _split(log_range: LogRange, at: int) -> tuple[LogRange, LogRange]:
    size = log_range.bytes * (at - log_range.start) // max(1, log_range.count)
    return (
        dataclasses.replace(log_range, stop=at, bytes=size),
        dataclasses.replace(log_range, start=at, bytes=log_range.bytes - size),
    )


def _at_most(task: Sequence[LogRange], limit: int) -> list[list[LogRange]]:
    """A task in equal parts with no more than `limit` offsets each."""
    total = sum(log_range.count for log_range in task)
    parts = -(-total // limit)
    if parts <= 1:
        return [list(task)]
    ends = [total * (i + 1) // parts for i in range(parts)]
    pieces: list[list[LogRange]] = [[]]
    seen = 0
    for rest in task:
        while rest.count > 0:
            head, tail = _split(rest, min(rest.stop, rest.start + ends[0] - seen))
            pieces[-1].append(head)
            seen += head.count
            rest = tail
            if seen == ends[0] and len(ends) > 1:
                ends.pop(0)
                pieces.append([])
    return pieces
