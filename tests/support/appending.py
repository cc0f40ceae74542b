"""Ways to append to a partition, and to wait for the sync of the appended records."""

from __future__ import annotations

import time
from collections.abc import Callable

import logstore
from support.values import append_one, append_records

CALLS: dict[str, Callable[[logstore.Partition], object]] = {
    "append": append_one,
    "append_many": lambda p: append_records(p, 4),
    "append_many-rolls": lambda p: append_records(p, 40),
}


def is_durable_in_time(partition: logstore.Partition) -> bool:
    """Whether everything becomes durable without a further call."""
    deadline = time.monotonic() + 20
    while partition.durable_offset < partition.end_offset:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
