"""What wakes a consumer that waits."""

from __future__ import annotations

from pathlib import Path

import logstore
from logstore.group.consumer.reading import Waiter
from logstore.io.directory import Directory
from logstore.io.files import Files

_LONG_S = 60.0


def test_waiter_is_told_of_each_publication(tmp_path: Path) -> None:
    """Also of one that only its journal shows, when that begins, and when another one
    takes its place."""
    root = Directory.open_root(Files(), str(tmp_path))
    waiter = Waiter(root)

    def settle() -> None:
        while waiter.wait([], None, 0, durable_only=True):
            pass

    sequence = 0
    for _ in range(2):
        with logstore.open(tmp_path) as store:
            for _ in range(3):
                settle()
                sequence += 1
                store.publish([], identity="x", sequence=sequence, metadata=b"m")
                assert waiter.wait([], None, _LONG_S, durable_only=True)
    waiter.close()
    root.close()
