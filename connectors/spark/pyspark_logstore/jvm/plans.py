"""Tasks in the form in which Java reads them, and the parts that Java leaves to Python.

Java reads the planned bytes of the planned files. If a file is not as planned, it
leaves the task, from an offset on, to `rest_of`, which reads it as the Python source.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from logstore import LogStoreError, Partition, TopicPartition
from logstore.log.follow.byte_ranges import ByteRanges
from logstore.types import LogMark
from pyspark_logstore.read.offsets import Mark
from pyspark_logstore.read.options import SourceOptions
from pyspark_logstore.read.planning import LogRange
from pyspark_logstore.read.tasks import Task, read_task
from pyspark_logstore.stores import DELETED, Identity, OpenStore, store_at

__all__ = ["counts_of", "plan_json", "rest_of", "stands", "task_from"]


def plan_json(tasks: Sequence[Task], path: str, options: SourceOptions) -> Any:
    """A plan: its tasks, and facts about all of them.

    ``counts`` is None unless every offset of every range certainly has a record that
    is delivered. ``by_partition``: each task reads one partition, which no other task
    reads.
    """
    opened = store_at(path)
    planned = [_task_json(task, opened, options) for task in tasks]
    ranges = [each for task in planned for each in task["ranges"]]
    names = [{r.partition for r in task.ranges} for task in tasks]
    is_exact = not options.skips_damage and all(
        each["pieces"] is not None
        and each["transactions"] == "none"
        and all(piece["contiguous"] for piece in each["pieces"])
        for each in ranges
    )
    return {
        "tasks": planned,
        "offsets": sum(each["stop"] - each["start"] for each in ranges),
        "bytes": _bytes_of(tasks, ranges),
        "by_partition": all(len(group) == 1 for group in names)
        and len(set().union(*names)) == len(names) > 0,
        "counts": counts_of(ranges) if is_exact else None,
    }


def counts_of(ranges: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """The number of records, the first and the last offset, if there are no gaps."""
    return {
        "count": sum(each["stop"] - each["start"] for each in ranges),
        "min": min((each["start"] for each in ranges), default=None),
        "max": max((each["stop"] - 1 for each in ranges), default=None),
    }


def _bytes_of(tasks: Sequence[Task], ranges: Sequence[Mapping[str, Any]]) -> int | None:
    """About how many bytes are read; None: unknown."""
    total = 0
    planned = [log_range for task in tasks for log_range in task.ranges]
    for log_range, each in zip(planned, ranges, strict=True):
        if log_range.bytes:
            total += log_range.bytes
        elif each["pieces"] is None:
            return None
        else:  # the planner determines no sizes for few records
            total += sum(piece["size"] - piece["position"] for piece in each["pieces"])
    return total


def _task_json(task: Task, opened: OpenStore, options: SourceOptions) -> dict[str, Any]:
    return {
        "task": _task_text(task),
        "ranges": [_range_json(r, task, opened, options) for r in task.ranges],
    }


def _range_json(
    log_range: LogRange, task: Task, opened: OpenStore, options: SourceOptions
) -> dict[str, Any]:
    name = log_range.partition
    found: ByteRanges | None = None
    try:
        partition = opened.partition(name)
        found = partition.byte_ranges(
            log_range.start, log_range.stop, isolation=options.isolation
        )
        if not _is_unchanged(partition, task.marks.get(name), log_range.stop):
            found = None
    except (LogStoreError, OSError):
        found = None  # Python meets it again, and reports it, when the task is read
    return {
        "topic": name.topic,
        "partition": name.partition,
        "start": log_range.start,
        "stop": log_range.stop,
        **_transactions(found, log_range, options.isolation == "read_committed"),
        "decompressed_max": 0 if found is None else found.decompressed_max,
        "pieces": None if found is None else _pieces(found),
        "guard": found
        and [{"path": g.path, "stamp": list(g.stamp)} for g in found.guards],
    }


def _transactions(
    found: ByteRanges | None, log_range: LogRange, is_committed: bool
) -> dict[str, Any]:
    """How Java reads batches of transactions: ``none``: like other batches; ``known``:
    it skips the aborted ones (producer, first and last offset); ``unknown``: it leaves
    them, and the rest of the range, to Python.

    ``upto``: the log must be unchanged below it.
    """
    kind, aborted, upto = "none", [], log_range.stop
    if is_committed:
        kind = "unknown"
        if found is not None and found.transactions is not None:
            free = found.transaction_free
            is_free = log_range.start in free and log_range.stop - 1 in free
            kind = "none" if is_free else "known"
            aborted = [list(each) for each in found.transactions.aborted]
            upto = found.transactions.upto
    return {"transactions": kind, "aborted": aborted, "upto": upto}


def _pieces(found: ByteRanges) -> list[dict[str, Any]]:
    return [
        {
            "path": file.path,
            "inode": file.inode,
            "position": file.position,
            "size": file.size,
            "before": file.last_offset,
            "next": file.next_offset,
            "contiguous": file.is_contiguous,
        }
        for file in found.files
    ]


def _is_unchanged(partition: Partition, mark: Mark | None, upto: int) -> bool:
    """Whether the log below an offset is unchanged since the mark."""
    if mark is None:
        return True
    now = partition.mark()
    if now is None or now.log_id != mark.log_id:
        return False
    below = partition.unchanged_below(LogMark(mark.log_id, mark.serial))
    return below is not None and below >= upto


def _task_text(task: Task) -> str:
    """A task as text that Java keeps, and gives back to `task_from`."""
    return json.dumps(
        {
            "store": task.store,
            "ranges": [dataclasses.astuple(log_range) for log_range in task.ranges],
            "partitions": list(task.partitions.items()),
            "marks": list(task.marks.items()),
        }
    )


def task_from(text: str) -> Task:
    """The task of a request."""
    given = json.loads(text)
    return Task(
        _identity(given["store"]),
        tuple(LogRange(TopicPartition(*name), *r) for name, *r in given["ranges"]),
        {
            TopicPartition(*name): identity and _identity(identity)
            for name, identity in given["partitions"]
        },
        {TopicPartition(*name): Mark(*mark) for name, mark in given["marks"]},
    )


def _identity(given: Any) -> Identity:
    inode, names = given
    return Identity(inode, tuple((file, name) for file, name in names))


def stands(task: Task, number: int, upto: int, path: str) -> bool:
    """Whether the log of a range of a task, below an offset, is certainly unchanged
    since the task was planned.

    False for the log of a broker: only its files show changes.
    """
    name = task.ranges[number].partition
    mark = task.marks.get(name)
    if mark is None:
        return False
    try:
        opened = store_at(path, [name])
        identity = task.partitions[name]
        is_same = identity is None or opened.identity_of(name) == identity
        return is_same and _is_unchanged(opened.partition(name), mark, upto)
    except DELETED:
        return False


def rest_of(
    task: Task,
    number: int,
    offset: int,
    schema: Any,
    path: str,
    options: SourceOptions,
) -> Iterator[Any]:
    """The record batches of one range of a task, from an offset on, as the Python
    source delivers them if it reads the whole range. Raises: as `read_task`."""
    return read_task(
        Task(task.store, (task.ranges[number],), task.partitions, task.marks),
        schema,
        path,
        options,
        delivered=offset,
    )
