"""What is remembered of segments that are lost."""

from __future__ import annotations

import json
from pathlib import Path

import logstore
from logstore.store.store import open_store
from support.damage import Unsynced, logs_in
from support.values import append_one, expected, read_all, write_store


def refuses(store: Path) -> bool:
    """Whether an opening takes no appends."""
    with open_store(store, files=Unsynced()) as opened:
        try:
            append_one(opened.topic("orders")[0])
        except logstore.LogStoreError:
            return True
    return False


def test_each_of_many_lost_segments_is_remembered(tmp_path: Path) -> None:
    """Also those that a summary tells together: when the others are back, and nothing
    else names them, the log stays damaged until the last one is back."""
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
