"""The topic of most tests: `orders`, of one partition with few records."""

from __future__ import annotations

from pathlib import Path

import logstore

COUNT = 40


def open_orders(path: Path, **options: object) -> logstore.Partition:
    return logstore.open(path, read_only=True, **options).topic("orders")[0]
