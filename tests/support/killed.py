"""A store of one partition, as a kill of its writer leaves it."""

from __future__ import annotations

import shutil
from pathlib import Path

import logstore
from logstore.store.opening import open_store
from support.damage import Unsynced, crash, logs_in
from support.values import fill, new_partition

COUNT = 30


def killed_store(
    path: Path,
    magic: int = 1,
    codec: str = "none",
    *,
    durable: int = 0,
    count: int = COUNT,
    call: int = 1,
    **settings: int,
) -> Path:
    """A store as a kill leaves it, with `count` records, the first `durable` synced."""
    config = logstore.StoreConfig(flush_checkpoint_ms=0)
    with open_store(path / "live", config=config, _files=Unsynced()) as store:
        partition = new_partition(store, magic, codec, **settings)
        fill(partition, durable, call=call)
        if durable:
            partition.flush()
        fill(partition, count - durable, call=call)
        crash(path / "live", path / "killed")
    shutil.rmtree(path / "live")
    return path / "killed"


def the_log(store: Path) -> Path:
    return logs_in(store / "orders-0")[-1]


def labels(store: logstore.Store) -> list[str]:
    return [action.label for action in store.recovery_report.actions]
