"""The numbers of a store for monitoring: `Store.metrics`.

Nothing here walks over a log, and nothing waits for an append, a sync or a read: for an
open log it reads attributes; for one that was not used since the store was opened it
reads the state file, once. docs/metrics.md explains each number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from logstore.errors import LogStoreError, storage_errors
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.io.layout import LOG, TopicPartition, group_files, parse_segment_file
from logstore.lazy import import_module
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.write.writer import PartitionWriter
from logstore.segment import Segment

__all__ = ["IdleLogs", "at_measuring", "log_row", "store_row"]

# Version of the dictionary. It rises when a key changes its meaning or is removed.
SCHEMA_VERSION: Final = 1

_TOTALS: Final = ("size_bytes", "segments", "unsynced_records")


# From a store and the numbers of its partitions: the numbers of its groups, and how
# many files of groups cannot be read.
_GroupRows: TypeAlias = (
    "Callable[[Any, Sequence[Mapping[str, Any]]], tuple[list[dict[str, Any]], int]]"
)
_measure: Final[list[_GroupRows]] = []


def at_measuring(measure: _GroupRows) -> None:
    """Let a function measure the groups of a store, which this room does not know."""
    _measure.append(measure)


def _group_rows(
    store: Any, root: Directory, rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """The numbers of the groups of a store.

    Args:
        rows: the numbers of its partitions.
    """
    groups: list[dict[str, Any]] = []
    unreadable = 0
    with storage_errors("read", root.path):
        has_groups = bool(group_files(root.names()))
    if has_groups:
        # It calls `at_measuring`; most programs have no groups.
        import_module("logstore.group.measures")
    for measure in _measure if has_groups else ():
        group_rows, count = measure(store, rows)
        groups += group_rows
        unreadable += count
    return {"consumer_groups": groups, "unreadable_groups": unreadable}


def log_row(
    topic: str,
    number: int,
    log: PartitionWriter | ReadOnlyLog | LogStoreError | dict[str, Any],
) -> dict[str, Any]:
    """The numbers of one partition.

    Args:
        log: an open log, the error if it cannot be opened, or a row of `IdleLogs`.
    """
    row: dict[str, Any] = {
        "topic": topic,
        "partition": number,
        "is_online": not isinstance(log, LogStoreError),
        "is_loaded": isinstance(log, PartitionWriter | ReadOnlyLog),
        "is_writable": False,
        "size_bytes": None,
        "segments": None,
        "log_start_offset": None,
        "log_end_offset": None,
        "durable_offset": None,
        "unsynced_records": None,
        "flushes": None,
        "flush_seconds": None,
        "flush_seconds_max": None,
    }
    if isinstance(log, dict):
        row.update(log)
    elif isinstance(log, PartitionWriter | ReadOnlyLog):
        row.update(_sizes(log.segments))
        # The end is read last: it is never below the values read before it.
        start, durable = log.start_offset, log.durable_offset
        row.update(_offsets(start, durable, log.high_watermark))
    if isinstance(log, PartitionWriter):
        row["is_writable"] = not log.health.has_ended
        names = "flushes", "flush_seconds", "flush_seconds_max"
        row.update(zip(names, log.flush_counts(), strict=True))
    return row


def _sizes(segments: tuple[Segment, ...]) -> dict[str, Any]:
    return {
        "size_bytes": sum(segment.size for segment in segments),
        "segments": len(segments),
    }


def _offsets(start: int, durable: int, end: int) -> dict[str, Any]:
    return {
        "log_start_offset": start,
        "log_end_offset": end,
        "durable_offset": durable,
        "unsynced_records": max(end - durable, 0),
    }


class IdleLogs:
    """The numbers of partitions of a writer's store that were not used yet. They are
    kept: as long as this process has the lock, these partitions do not change."""

    def __init__(self) -> None:
        self._rows: dict[TopicPartition, dict[str, Any]] = {}

    def row(
        self, directory: Directory, key: TopicPartition, ownership: Ownership
    ) -> dict[str, Any]:
        """The numbers of a partition; None for numbers that only its recovery
        determines."""
        row = self._rows.get(key)
        if row is None:
            row = _of_files(directory, key, ownership)
            if "size_bytes" in row:
                self._rows[key] = row
        return row

    def forget(self, key: TopicPartition) -> None:
        """Drop a partition that is used now."""
        self._rows.pop(key, None)


def _of_files(
    directory: Directory, key: TopicPartition, ownership: Ownership
) -> dict[str, Any]:
    row: dict[str, Any] = {"is_writable": True}
    with contextlib.suppress(OSError, LogStoreError):
        metadata = ownership.metadata(directory, key)
        state = metadata.state
        if state is not None and metadata.clean:
            end = state.durable_offset
            row.update(_offsets(state.start_offset, end, end))
            sizes = [sealed[1] for sealed in state.sealed]
            row["size_bytes"] = sum(sizes) + state.active["size"]
            row["segments"] = len(sizes) + 1
            return row
        with directory.use() as fd:
            logs = [
                name
                for name in directory.files.list(fd)
                if (parsed := parse_segment_file(name)) is not None
                and parsed.suffix == LOG
                and not parsed.transition
            ]
            row["segments"] = len(logs)
            row["size_bytes"] = sum(
                directory.files.stat_name(fd, name).size for name in logs
            )
    return row


def store_row(
    store: Any,
    root: Directory,
    rows: list[dict[str, Any]],
    *,
    time_ms: int,
    is_clean: bool,
    free_bytes: int | None,
    waiting_bytes: int,
    open_files: int,
) -> dict[str, Any]:
    """The numbers of a store, of its partitions and of its groups."""
    flushes = [row["flushes"] for row in rows if row["flushes"] is not None]
    seconds = [row["flush_seconds"] for row in rows if row["flushes"] is not None]
    totals = {
        name: sum(row[name] for row in rows if row[name] is not None)
        for name in _TOTALS
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "path": store.path,
        "time_ms": time_ms,
        "read_only": store.read_only,
        "is_clean": is_clean,
        "topic_count": len({row["topic"] for row in rows}),
        "partition_count": len(rows),
        "loaded_partitions": sum(row["is_loaded"] for row in rows),
        "offline_partitions": sum(not row["is_online"] for row in rows),
        **totals,
        "flushes": sum(flushes) if flushes else None,
        "flush_seconds": sum(seconds) if seconds else None,
        "free_bytes": free_bytes,
        "waiting_bytes": waiting_bytes,
        "open_files": open_files,
        "partitions": rows,
        **_group_rows(store, root, rows),
    }
