"""Kafka's producer snapshots."""

from __future__ import annotations

import pytest

from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint.producer_snapshot import (
    ProducerEntry,
    format_snapshot,
    parse_snapshot,
    read_snapshot,
    snapshot_offsets,
)
from logstore.io.directory import Directory
from logstore.io.layout import SNAPSHOT, segment_file

ENTRIES = [
    ProducerEntry(7, 2, 41, 100, 4, 1_700_000_000_000, -1, -1),
    ProducerEntry(8, 0, -1, -1, 0, -1, 3, 90),
]


def test_snapshot_is_read_as_it_was_written(root: Directory) -> None:
    root.write_file(segment_file(101, SNAPSHOT), format_snapshot(ENTRIES))
    assert read_snapshot(root, 101) == ENTRIES
    assert parse_snapshot(format_snapshot([]), "path") == []
    with pytest.raises(FileNotFoundError):
        read_snapshot(root, 100)


def test_offsets_are_those_of_the_snapshots_in_use(root: Directory) -> None:
    """In order; snapshots that wait for their removal, or were not finished, do not
    count."""
    for offset in (20, 3, 100):
        root.write_file(segment_file(offset, SNAPSHOT), b"")
    for name in (
        segment_file(5, SNAPSHOT) + ".deleted",
        segment_file(6, SNAPSHOT) + ".cleaned",
        segment_file(7, SNAPSHOT) + ".swap",
        segment_file(8, ".log"),
        "9.snapshot",
    ):
        root.write_file(name, b"")
    assert snapshot_offsets(root) == [3, 20, 100]


def test_snapshot_that_was_changed_anywhere_is_damage() -> None:
    data = format_snapshot(ENTRIES)
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1
        with pytest.raises(CorruptCheckpointError):
            parse_snapshot(bytes(wrong), "path")
    for size in (*range(10), len(data) - 1):
        with pytest.raises(CorruptCheckpointError):
            parse_snapshot(data[:size], "path")
    with pytest.raises(CorruptCheckpointError, match="checksum differs"):
        parse_snapshot(data + b"\0", "path")
