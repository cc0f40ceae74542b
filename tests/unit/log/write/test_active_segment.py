"""The active segment: its state after an opening, and after a rest."""

from __future__ import annotations

from pathlib import Path

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.values import config_of

PARTITIONS = 12


def entries(path: Path, max_open_files: int) -> list[tuple[bytes, bytes]]:
    """Return the indexes of partitions that were appended to in turn."""
    config = logstore.StoreConfig(max_open_files=max_open_files)
    with open_store(path, config=config, _files=Unsynced()) as store:
        settings = config_of(1, "none", index_interval_bytes=300)
        topic = store.create_topic("orders", PARTITIONS, config=settings)
        for number in range(20):
            for partition in range(PARTITIONS):
                topic[partition].append(bytes(60), timestamp_ms=number)
    return [
        (
            (path / f"orders-{partition}" / f"{0:020d}.index").read_bytes(),
            (path / f"orders-{partition}" / f"{0:020d}.timeindex").read_bytes(),
        )
        for partition in range(PARTITIONS)
    ]


def test_index_entries_with_few_open_files_are_those_with_many(tmp_path: Path) -> None:
    """A log that has released its file for others makes the same entries: Kafka has its
    files open all the time, and counts from entry to entry."""
    many = entries(tmp_path / "many", 1024)
    assert many[0][0]
    assert entries(tmp_path / "few", 8) == many
