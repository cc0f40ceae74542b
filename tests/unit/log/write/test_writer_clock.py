"""Appends and retention with a clock that jumps."""

from __future__ import annotations

from pathlib import Path

import logstore
from logstore.store.opening import open_store
from support.damage import FixedClock


def test_clock_that_goes_back_changes_no_offset_and_deletes_nothing(
    tmp_path: Path,
) -> None:
    """Offsets rise, records stay readable, and ages are never negative enough to make
    retention delete new records; a clock far ahead costs a roll, not a record."""
    clock = FixedClock(2_000_000_000_000)
    with open_store(tmp_path, _files=clock) as store:
        config = logstore.TopicConfig(retention_ms=1000, segment_bytes=400)
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(10):
            partition.append(b"later")
        clock.now = 1_000_000_000_000
        for _ in range(10):
            partition.append(b"earlier")
        assert [r.offset for r in partition.read()] == list(range(20))
        assert partition.apply_retention() == []
        clock.now = 2_000_000_000_000
        assert partition.append(b"now") == 20
    with open_store(tmp_path, _files=clock) as store:
        assert store.topic("orders")[0].end_offset == 21
