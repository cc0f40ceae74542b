"""What a query reads becomes tasks for Spark, and a task becomes record batches.

Planning runs beside the driver, reading in the workers of the executors. A range of
offsets is absolute, so that a task that is run again delivers the same records.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pyspark.sql.datasource import InputPartition

from logstore import (
    LogStoreError,
    OffsetOutOfRangeError,
    Partition,
    PartitionNotFoundError,
)
from pyspark_logstore.columns import BatchShaper, sliced
from pyspark_logstore.offsets import LossPolicy, Offsets
from pyspark_logstore.options import SourceOptions, TopicPartition
from pyspark_logstore.planning import LogRange, Sizes, batch_records, cores, plan
from pyspark_logstore.stores import (
    Identity,
    OpenStore,
    check_shared,
    store_anew,
    store_at,
)

__all__ = ["Task", "plan_tasks", "read_task", "sizes_of"]

# Ranges with fewer records than this in all are read by one task, unless options say
# otherwise, and nobody asks how many bytes they have.
FEW_RECORDS: Final = 20_000
BATCH_RECORDS: Final = 1024  # of those, in an Arrow batch: they may be large


class Task(InputPartition):
    """What one Spark task reads.

    Attributes:
        store: the identity of the store's directory, as the driver sees it.
        ranges: in the order of reading.
        partitions: the identities of their directories.
    """

    def __init__(
        self,
        store: Identity,
        ranges: tuple[LogRange, ...],
        partitions: Mapping[TopicPartition, Identity | None],
    ) -> None:
        self.store = store
        self.ranges = ranges
        self.partitions = dict(partitions)

    def __repr__(self) -> str:
        ranges = ", ".join(f"{r.partition} {r.start}..{r.stop}" for r in self.ranges)
        return f"Task({ranges or 'nothing'})"


def sizes_of(partition: Partition) -> Sizes:
    """Bytes by offset of a partition as it is now."""
    return Sizes(
        (s.base_offset, s.next_offset, s.size_bytes) for s in partition.segments
    )


def plan_tasks(
    opened: OpenStore, start: Offsets, end: Offsets, options: SourceOptions
) -> list[Task]:
    """The tasks that read from `start` up to `end` (exclusive), partition by partition.

    One without ranges where there is nothing to read: Spark wants one.
    """
    spans = {p: (start[p], end[p]) for p in sorted(start) if start[p] < end.get(p, 0)}
    total = sum(stop - first for first, stop in spans.values())
    sizes: dict[TopicPartition, Sizes] = {}
    if total >= FEW_RECORDS:
        sizes = {p: sizes_of(opened.partition(p)) for p in spans}
    ranges = []
    for name, (first, stop) in spans.items():
        size = sizes[name].between(first, stop) if name in sizes else 0
        records = batch_records(stop - first, size) if size else BATCH_RECORDS
        ranges.append(LogRange(name, first, stop, size, records))

    def cut_at(found: LogRange, part: float) -> int:
        of = sizes.get(found.partition)
        if of is None:
            return found.start + int(found.count * part)
        before = of.up_to(found.start)
        return of.offset_at(before + int(of.between(found.start, found.stop) * part))

    planned = plan(
        ranges,
        core_count=cores(),
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
        align=lambda name, offset: first_of_batch(opened.partition(name), offset),
        cut_at=cut_at,
    )
    identities = {p: opened.identity_of(p) for p in spans}
    return [
        Task(
            opened.identity, task, {r.partition: identities[r.partition] for r in task}
        )
        for task in planned or [()]
    ]


def first_of_batch(partition: Partition, offset: int) -> int:
    """The first offset of the batch that holds an offset; the offset itself where that
    cannot be told: the task that gets there says why."""
    try:
        for batch in partition.read_batches(offset):
            return min(batch.base_offset, offset)
    except LogStoreError:
        pass
    return offset


def read_task(
    task: Task, schema: Any, path: str, options: SourceOptions
) -> Iterator[Any]:
    """The record batches of a task, as Spark wants them.

    Raises:
        NotSharedError: the directories are not those the driver saw.
        DataLossError: records are gone, and ``failOnDataLoss`` is true.
        CorruptRecordError: damage, after every record before it.
    """
    shaper = BatchShaper(schema)
    loss = LossPolicy(options.fail_on_data_loss)
    for found in task.ranges:
        name = found.partition
        check_shared(path, task.store, name, task.partitions[name])
        opened = store_at(path, [name])
        try:
            partition = opened.partition(name)
            if partition.end_offset < found.stop:
                # A network file system may show what another host has appended to
                # those only who open the files anew.
                partition = store_anew(path).partition(name)
        except LookupError as error:
            loss.report(f"{name} was deleted before it was read: {error}")
            continue
        try:
            for batch in _read_range(partition, found, shaper, options, loss):
                for piece in sliced(batch):
                    yield shaper.shape(piece, name)
        except PartitionNotFoundError as error:
            loss.report(f"{name} was deleted while it was read: {error}")


def _read_range(
    partition: Partition,
    found: LogRange,
    shaper: BatchShaper,
    options: SourceOptions,
    loss: LossPolicy,
) -> Iterator[Any]:
    """The batches of a range, behind what was deleted meanwhile if that is allowed."""
    offset = found.start
    while offset < found.stop:
        low, high = partition.start_offset, partition.end_offset
        if low > offset:
            loss.report(
                f"{found.partition}: offsets {offset} to {min(low, found.stop) - 1} "
                f"were deleted before they were read; it starts at {low} now"
            )
            offset = low
        if high < found.stop:
            loss.report(
                f"{found.partition}: it ends at {high} now, and was to be read up to "
                f"{found.stop}: its tail was cut"
            )
            found = dataclasses.replace(found, stop=high)
        if offset >= found.stop:
            return
        batches = _Batches(partition, found, offset, shaper, options)
        try:
            yield from batches
            return
        except OffsetOutOfRangeError as error:
            # The writer deleted or cut what was just being read.
            if batches.offset == offset and partition.start_offset <= offset:
                raise
            loss.report(f"{found.partition}: deleted while it was read: {error}")
            offset = max(batches.offset, partition.start_offset)


class _Batches:
    """The batches of a range from an offset on. `offset` is the next that is due."""

    def __init__(
        self,
        partition: Partition,
        found: LogRange,
        offset: int,
        shaper: BatchShaper,
        options: SourceOptions,
    ) -> None:
        self.offset = offset
        self._batches = partition.read_arrow(
            offset,
            found.stop,
            columns=shaper.columns,
            batch_records=found.batch_records,
            isolation=options.isolation,
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            self.offset = batch.column("offset")[-1].as_py() + 1
            yield batch
