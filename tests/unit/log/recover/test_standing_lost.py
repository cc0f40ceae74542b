"""Memory of lost segments."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import logstore
from logstore.io import layout
from logstore.store.opening import open_store
from support.damage import Unsynced, crash, logs_in
from support.values import append_one, expected, read_all, write_store


def refuses(store: Path) -> bool:
    """Whether an opening takes no appends."""
    with open_store(store, _files=Unsynced()) as opened:
        try:
            append_one(opened.topic("orders")[0])
        except logstore.LogStoreError:
            return True
    return False


def test_each_of_many_lost_segments_is_remembered(tmp_path: Path) -> None:
    """Segments grouped in a summary are remembered, too: when the others are back, and
    nothing else names them, the log stays damaged until the last one is back."""
    store = tmp_path / "store"
    write_store(store, 80, 2, call=2, segment_bytes=200)
    logs = logs_in(store / "orders-0")
    lost = {log: log.read_bytes() for log in logs[1:-1]}
    assert len(lost) > 15
    for log in lost:
        log.unlink()
    assert refuses(store)
    recorded = (store / "orders-0" / ".logstore-damaged").read_bytes()
    assert len(json.loads(recorded.split(b"\n")[1])["rows"]) == len(lost)
    for name in (".logstore-owner", ".kafka_cleanshutdown"):
        (store / name).unlink()
    *others, last = lost
    for log in others:
        log.write_bytes(lost[log])
    assert refuses(store)
    assert not logstore.verify(store).ok
    last.write_bytes(lost[last])
    assert not refuses(store)
    assert read_all(store)[:80] == expected(2, 0, 80)


@pytest.mark.parametrize("is_lost", [False, True])
def test_end_that_only_a_recovery_point_has_told_is_forgotten_with_it(
    tmp_path: Path, is_lost: bool
) -> None:
    """It has no checksum: with its former value, the store was closed with this end. If
    the log has lost something, too, that stays."""
    store, copy = tmp_path / "store", tmp_path / "copy"
    write_store(store, 20, 2)
    points = store / layout.RECOVERY_CHECKPOINT
    before = points.read_bytes()
    assert b"orders 0 20\n" in before
    points.write_bytes(before.replace(b"orders 0 20\n", b"orders 0 28\n"))
    with open_store(store, _files=Unsynced()) as opened:
        with pytest.raises(logstore.CorruptRecordError):
            append_one(opened.topic("orders")[0])
        # Killed: only its findings are written.
        crash(store, copy)
    (copy / layout.RECOVERY_CHECKPOINT).write_bytes(before)
    if is_lost:
        log = logs_in(copy / "orders-0")[0]
        os.truncate(log, log.stat().st_size - 1)
    assert refuses(copy) == is_lost
    assert logstore.verify(copy).ok != is_lost
