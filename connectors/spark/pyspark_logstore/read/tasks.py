"""Plans tasks for Spark from offsets, and reads the record batches of a task.

Planning runs in a process next to the driver, reading in the workers of the executors.
A range of offsets is absolute, so that a repeated task delivers the same records.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from logstore import (
    CorruptRecordError,
    LogStoreError,
    OffsetOutOfRangeError,
    Partition,
    TopicPartition,
)
from logstore.errors import PartitionNotFoundError
from logstore.types import Damaged, LogMark
from pyspark_logstore.option_values import INT64_MAX
from pyspark_logstore.read.columns import BatchShaper, sliced
from pyspark_logstore.read.offsets import LossPolicy, Mark, Marks, Offsets
from pyspark_logstore.read.options import SourceOptions
from pyspark_logstore.read.planning import LogRange, Sizes, batch_records, cores, plan
from pyspark_logstore.stores import (
    DELETED,
    Identity,
    OpenStore,
    check_partition,
    check_store,
    reopen_store,
    store_at,
)

__all__ = ["Task", "plan_tasks", "read_task", "sizes_of"]

logger = logging.getLogger("logstore.spark")

# If all ranges together have fewer records than this, one task reads them, unless
# options say otherwise, and their sizes in bytes are not determined.
FEW_RECORDS: Final = 20_000
BATCH_RECORDS: Final = 1024  # of those, in an Arrow batch: records may be large


class Task(InputPartition):
    """The input of one Spark task.

    Attributes:
        store: the identity of the store's directory, as the driver sees it.
        ranges: in the order of reading.
        partitions: the identities of their directories.
        marks: which logs they had, if known.
    """

    def __init__(
        self,
        store: Identity,
        ranges: tuple[LogRange, ...],
        partitions: Mapping[TopicPartition, Identity | None],
        marks: Marks,
    ) -> None:
        self.store = store
        self.ranges = ranges
        self.partitions = dict(partitions)
        self.marks = dict(marks)

    def __repr__(self) -> str:
        ranges = ", ".join(f"{r.partition} {r.start}..{r.stop}" for r in self.ranges)
        return f"Task({ranges or 'nothing'})"


def sizes_of(partition: Partition) -> Sizes:
    """Bytes by offset in the current segments of a partition."""
    return Sizes(
        (s.base_offset, s.next_offset, s.size_bytes) for s in partition.segments
    )


def plan_tasks(
    opened: OpenStore,
    start: Offsets,
    end: Offsets,
    marks: Marks,
    options: SourceOptions,
    loss: LossPolicy,
) -> list[Task]:
    """The tasks that read from `start` up to `end` (exclusive), partition by partition.

    One task without ranges if there is nothing to read: Spark requires one.

    Args:
        marks: of the logs of these offsets, if known.

    Raises:
        DataLossError: a partition is gone, and ``failOnDataLoss`` is true.
    """
    spans = {p: (start[p], end[p]) for p in sorted(start) if start[p] < end.get(p, 0)}
    total = sum(stop - first for first, stop in spans.values())
    sizes: dict[TopicPartition, Sizes] = {}
    for name in list(spans):
        try:
            partition = opened.partition(name)
            if total >= FEW_RECORDS:
                sizes[name] = sizes_of(partition)
        except DELETED as error:
            loss.report(f"{name}: deleted before it was read: {error}")
            del spans[name]
    ranges = []
    for name, (first, stop) in spans.items():
        size = sizes[name].between(first, stop) if name in sizes else 0
        records = batch_records(stop - first, size) if size else BATCH_RECORDS
        ranges.append(LogRange(name, first, stop, size, records))

    def cut_at(log_range: LogRange, part: float) -> int:
        of = sizes.get(log_range.partition)
        if of is None:
            return log_range.start + int(log_range.count * part)
        before = of.up_to(log_range.start)
        return of.offset_at(
            before + int(of.between(log_range.start, log_range.stop) * part)
        )

    planned = plan(
        ranges,
        core_count=cores(),
        min_tasks=options.min_partitions,
        max_records=options.max_records_per_partition,
        align=lambda name, offset: first_of_batch(opened, name, offset),
        cut_at=cut_at,
    )
    return [
        Task(
            opened.identity,
            task,
            {r.partition: opened.identity_seen(r.partition) for r in task},
            {r.partition: marks[r.partition] for r in task if r.partition in marks},
        )
        for task in planned or [()]
    ]


def first_of_batch(opened: OpenStore, name: TopicPartition, offset: int) -> int:
    """The first offset of the batch that holds an offset; the offset itself if that
    cannot be determined: the task that reads it raises the error."""
    try:
        for batch in opened.partition(name).read_batches(offset):
            return min(batch.base_offset, offset)
    except LogStoreError:
        pass
    return offset


def read_task(
    task: Task,
    schema: Any,
    path: str,
    options: SourceOptions,
    *,
    delivered: int = 0,
) -> Iterator[Any]:
    """The record batches of a task, as Spark expects them.

    Args:
        delivered: records below this offset are read and checked, and left out: another
            reader has delivered them. If they are gone, nothing is lost.

    Raises:
        NotSharedError: the directories are not those the driver saw.
        DataLossError: records are gone, and ``failOnDataLoss`` is true.
        CorruptRecordError: damage, after every record before it.
    """
    shaper = BatchShaper(schema)
    loss = LossPolicy(options.fail_on_data_loss)
    for log_range in task.ranges:
        name = log_range.partition
        identity, mark = task.partitions[name], task.marks.get(name)
        check_store(path, task.store)
        stands_below = functools.partial(
            _stands_below, path=path, identity=identity, mark=mark, loss=loss
        )
        try:
            check_partition(path, name, identity, loss)
            partition = _opened(path, log_range, mark)
        except DELETED as error:
            loss.report(f"{name} was deleted before it was read: {error}")
            continue
        try:
            for batch in _read_range(
                partition,
                log_range,
                shaper,
                options,
                loss,
                stands_below,
                delivered=delivered,
            ):
                for piece in sliced(batch):
                    yield shaper.shape(piece, name)
        except DELETED as error:
            loss.report(f"{name} was deleted while it was read: {error}")


def _opened(path: str, log_range: LogRange, mark: Mark | None) -> Partition:
    """The partition of a range; reopened if it seems to have less than the driver saw:
    a network file system may show changes of another host only after the files are
    reopened."""
    partition = store_at(path, [log_range.partition]).partition(log_range.partition)
    now = partition.mark() if mark is not None else None
    is_old = now is not None and mark is not None and now.serial < mark.serial
    if is_old or partition.end_offset < log_range.stop:
        partition = reopen_store(path).partition(log_range.partition)
    return partition


def _stands_below(
    partition: Partition,
    path: str,
    identity: Identity | None,
    mark: Mark | None,
    loss: LossPolicy,
) -> int:
    """The offset below which a log is unchanged since the read was planned.

    Raises:
        PartitionNotFoundError, NotSharedError: it is another log.
    """
    name = TopicPartition(partition.topic, partition.number)
    check_partition(path, name, identity, loss)
    now = partition.mark()
    if mark is None or now is None:
        return INT64_MAX  # unknown
    if now.log_id != mark.log_id:
        raise PartitionNotFoundError(
            f"{partition.name} is another log now (id {now.log_id}, not "
            f"{mark.log_id}): its topic was deleted and created again",
            topic=partition.topic,
            partition=partition.number,
        )
    below = partition.unchanged_below(LogMark(mark.log_id, mark.serial))
    return INT64_MAX if below is None else below


def _read_range(
    partition: Partition,
    log_range: LogRange,
    shaper: BatchShaper,
    options: SourceOptions,
    loss: LossPolicy,
    stands_below: Callable[[Partition], int] = lambda partition: INT64_MAX,
    *,
    delivered: int = 0,
) -> Iterator[Any]:
    """The batches of a range, after the part deleted meanwhile if that is allowed.

    Every call on the log may find that it has just been deleted or cut, so all calls
    are inside the `try`.

    Args:
        stands_below: returns the offset below which the log is unchanged since the
            range was planned; raises if it is another log.
        delivered: as in `read_task`.
    """
    offset, stop = log_range.start, log_range.stop
    while offset < stop:
        batches = None
        try:
            low, high = partition.start_offset, partition.end_offset
            first = max(offset, delivered)
            if low > first:
                loss.report(
                    f"{log_range.partition}: offsets {first} to {min(low, stop) - 1} "
                    f"were deleted before they were read; it starts at {low} now"
                )
            offset = max(offset, low)
            if high < stop:
                loss.report(
                    f"{log_range.partition}: it ends at {high} now, and was to be read "
                    f"up to {stop}: its tail was cut"
                )
                stop = high
            if offset >= stop:
                return
            batches = _Batches(
                partition, log_range, offset, stop, shaper, options, delivered
            )
            # Called after the read has begun: the read detects any later cut.
            below = stands_below(partition)
            if below < stop:
                loss.report(
                    f"{log_range.partition}: its tail was cut at {below}, and it "
                    f"was to be read up to {stop}: the records there are not the "
                    "same"
                )
                stop = below
                continue
            yield from batches
            return
        except OffsetOutOfRangeError as error:
            # The writer deleted or cut records that were just being read.
            offset = offset if batches is None else batches.offset
            low = partition.start_offset
            if low <= offset:
                # Cut. It may have grown again: the new records were not planned.
                loss.report(
                    f"{log_range.partition}: its tail was cut while it was read, up to "
                    f"{offset} of {stop}: {error}"
                )
                return
            if low > delivered:
                loss.report(
                    f"{log_range.partition}: deleted while it was read: {error}"
                )
            offset = low


class _Batches:
    """The batches of a range from an offset on. `offset` is the next one to be read.

    With ``onCorruption=skip`` damaged records are left out, and their offsets and the
    reason are logged.
    """

    def __init__(
        self,
        partition: Partition,
        log_range: LogRange,
        offset: int,
        stop: int,
        shaper: BatchShaper,
        options: SourceOptions,
        delivered: int,
    ) -> None:
        self.offset = offset
        self._delivered = delivered
        self._range = log_range
        self._stop = stop
        # Opened now, so that the read detects later changes of the log. With
        # read_committed this reads the ends of transactions, and may find damage.
        self._batches: Iterator[Any] = iter(
            partition.read_arrow(
                offset,
                stop,
                columns=shaper.columns,
                batch_records=log_range.batch_records,
                isolation=options.isolation,
                on_corruption=self._is_left_out if options.skips_damage else "raise",
            )
        )

    def __iter__(self) -> Iterator[Any]:
        for batch in self._batches:
            offsets = batch.column("offset")
            self.offset = offsets[-1].as_py() + 1
            if offsets[0].as_py() >= self._delivered:
                yield batch
            elif self.offset > self._delivered:
                yield batch.filter(pc.greater_equal(offsets, self._delivered))

    def _is_left_out(self, damaged: Damaged) -> bool:
        if not isinstance(damaged.error, CorruptRecordError):
            return False
        end = self._stop if damaged.next_offset is None else damaged.next_offset
        logger.warning(
            "%s: damage in the offsets %d to %d is skipped, as onCorruption is skip: "
            "%s",
            self._range.partition,
            damaged.first,
            min(end, self._stop) - 1,
            damaged.error,
        )
        return True
