"""Background syncs after appends, when many bytes are not durable."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.log.write.syncs import Syncs
from logstore.store.opening import open_store
from support.values import new_partition


def test_much_that_is_not_synced_is_synced_in_the_background(tmp_path: Path) -> None:
    """The limit is 8 MiB of a segment: bytes of earlier segments do not count for a new
    one."""
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


def test_steps_ask_for_the_sync_of_much_that_is_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of C do not continue beyond 8 MiB, though the disk has room for them."""
    planned: list[int] = []
    later: list[Callable[[], None]] = []

    def plan(self: Syncs) -> None:
        planned.append(self._log.active.writer.state.size)  # type: ignore[union-attr]
        self._is_catching_up = True
        later.append(self._catch_up)

    monkeypatch.setattr(Syncs, "_plan_catch_up", plan)
    value = bytes(60_000)
    taken = 0
    with open_store(tmp_path) as store:
        partition = new_partition(
            store, flush_ms=1 << 60, flush_messages=1 << 60, segment_bytes=1 << 30
        )
        for _ in range(2):
            for _ in range(160):
                if not later:
                    taken += partition._append_prepared(value, None, None) >= 0
                    partition.append(value)
            later.pop()()
    assert (8 << 20) <= planned[0] <= (8 << 20) + 3 * len(value)
    assert planned[1] - planned[0] <= (8 << 20) + 6 * len(value)
    assert taken > 120
