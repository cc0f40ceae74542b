"""Work of child processes on a store; a separate module, so that spawned processes can
import it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import logstore
from support.values import append_one, read_all


def descriptors_in(path: Path) -> list[str]:
    """Files below a directory that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor of the listing itself
        if target.startswith(f"{path}/") or target == str(path):
            found.append(target)
    return sorted(found)


def look_around(path: Path) -> dict[str, Any]:
    """Facts from a child process of a writer: open files of the store, whether it can
    open the store for writing (or the holder's pid), and the values it reads."""
    inherited = descriptors_in(path)
    try:
        logstore.open(path, lock_timeout_ms=0).close()
        writing: object = "opened"
    except logstore.StoreLockedError as error:
        writing = error.holder_pid
    return {
        "inherited": inherited,
        "writing": writing,
        "values": [record.value for record in read_all(path)],
    }


def append_next(path: Path) -> int:
    """Append a record as the next writer; its offset."""
    with logstore.open(path) as store:
        return append_one(store.topic("orders")[0], durable=True)
