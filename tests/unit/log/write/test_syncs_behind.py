"""What is synced behind the appends, because much is not."""

from __future__ import annotations

import time
from pathlib import Path

from logstore.store.store import open_store
from support.values import new_partition


def test_much_that_is_not_synced_is_synced_in_the_background(tmp_path: Path) -> None:
    """8 MiB of a segment: what earlier segments had does not count for a new one."""
    value = bytes(1_000_000)
    with open_store(tmp_path) as store:
        partition = new_partition(
            store, flush_ms=1 << 60, flush_messages=1 << 60, segment_bytes=12 << 20
        )
        for count in (8, 3, 8, 3):
            before = partition.durable_offset
            for _ in range(count):
                partition.append(value)
            if count > 3:
                time.sleep(0.05)
                assert partition.durable_offset == before
            else:
                deadline = time.monotonic() + 20
                while partition.durable_offset == before:
                    assert time.monotonic() < deadline
                    time.sleep(0.005)
                partition.roll()
