"""The metrics of partitions that were not used yet."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.store.measures import log_row, store_row
from support.damage import crash
from support.values import config_of, fill

KEYS = (
    "size_bytes",
    "segments",
    "log_start_offset",
    "log_end_offset",
    "durable_offset",
    "unsynced_records",
)


def rows(store: logstore.Store) -> list[dict[str, Any]]:
    partitions = store.metrics()["partitions"]
    assert all(row["is_online"] for row in partitions)
    return [{key: row[key] for key in KEYS} for row in partitions]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("count", [3, 30])
def test_partition_has_the_same_numbers_before_and_after_its_first_use(
    tmp_path: Path, read_only: bool, count: int
) -> None:
    """It may have one segment, or several."""
    with logstore.open(tmp_path) as store:
        config = config_of(1, segment_bytes=400)
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, count)
        if count > 3:
            partition.delete_before(2)
    with logstore.open(tmp_path, read_only=read_only) as store:
        before = rows(store)
        partition = store.topic("orders")[0]
        assert partition.end_offset == count
        segments = partition.segments
        assert before == rows(store)
        assert before[0]["segments"] == len(segments)
        assert before[0]["size_bytes"] == sum(one.size_bytes for one in segments)
        assert (len(segments) > 3) is (count > 3)


def test_partition_of_a_killed_store_has_the_sizes_of_its_files(
    tmp_path: Path,
) -> None:
    """Only its recovery determines its end."""
    with logstore.open(tmp_path / "store") as store:
        config = config_of(1, segment_bytes=400)
        partition = store.create_topic("orders", config=config)[0]
        fill(partition, 30)
        segments = partition.segments
        killed = crash(tmp_path / "store", tmp_path / "killed")
    with logstore.open(killed) as store:
        (row,) = rows(store)
        assert row["segments"] == len(segments)
        assert row["size_bytes"] == sum(one.size_bytes for one in segments)
        assert row["log_end_offset"] is None


def test_store_has_the_sums_of_what_is_known(tmp_path: Path) -> None:
    error = logstore.StorageError("broken", path="/a", action="read")
    known = {"size_bytes": 7, "segments": 2, "unsynced_records": 0}
    partitions = [
        log_row("a", 0, known),
        log_row("a", 1, error),
        log_row("b", 0, {**known, "flushes": 3, "flush_seconds": 0.5}),
    ]
    store = SimpleNamespace(path="/a", read_only=False)
    root = Directory.open_root(Files(), str(tmp_path))
    row = store_row(
        store, root, partitions, time_ms=1, is_clean=True, free_bytes=None,
        waiting_bytes=0, open_files=0,
    )  # fmt: skip
    root.close()
    assert (row["path"], row["read_only"], row["consumer_groups"]) == ("/a", False, [])
    assert (row["size_bytes"], row["segments"]) == (14, 4)
    assert (row["topic_count"], row["partition_count"]) == (2, 3)
    assert row["offline_partitions"] == 1
    assert (row["flushes"], row["flush_seconds"]) == (3, 0.5)
