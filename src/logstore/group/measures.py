"""The consumer groups of a store in numbers, for `Store.metrics`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from logstore.broker.kafka_records import OffsetCommit
from logstore.errors import LogStoreError
from logstore.group.consumer.lowering import is_of
from logstore.group.overview import ConsumerGroup, groups_of
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.layout import TopicPartition
from logstore.store.measures import at_measuring
from logstore.store.package_access import partition_id
from logstore.store.store import Store

__all__ = ["group_rows"]


class _MeasuredLogs:
    """The ends of logs, from the metrics of their partitions: no log is recovered or
    read for them."""

    def __init__(self, store: Store, rows: Sequence[Mapping[str, Any]]) -> None:
        self._store = store
        self._rows = {
            TopicPartition(row["topic"], row["partition"]): row for row in rows
        }

    def end(self, key: TopicPartition, commit: OffsetCommit | None) -> int | None:
        """See `logstore.group.overview.Logs.end`."""
        row = self._rows.get(key)
        if row is None or row["log_end_offset"] is None:
            return None
        if commit is not None and not self._counts(key, commit, row["is_loaded"]):
            return None
        end: int = row["log_end_offset"]
        return end

    def _counts(self, key: TopicPartition, commit: OffsetCommit, loaded: bool) -> bool:
        with contextlib.suppress(LogStoreError):
            if loaded:
                partition = self._store.topic(key.topic)[key.partition]
                return is_of(self._store, partition, commit)
            return counts_in(partition_id(self._store, key), commit.topic_id)
        return False


def group_rows(
    store: Store, rows: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """(the numbers of each group, how many files of groups cannot be read).

    Args:
        rows: the numbers of the partitions.
    """
    groups, errors = groups_of(store, _MeasuredLogs(store, rows))
    return [_row(group) for group in groups], len(errors)


def _row(group: ConsumerGroup) -> dict[str, Any]:
    return {
        "group": group.group,
        "state": group.state,
        "generation": group.generation,
        "members": len(group.members),
        "stuck_members": group.stuck,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "current_offset": partition.offset,
                "lag": partition.lag,
            }
            for partition in group.partitions
        ],
    }


at_measuring(group_rows)
