"""Prepared appends of many records by a log: counted, or left to the usual way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa

import logstore
from logstore import _native as native
from logstore.io.files import Files, replaced_calls
from logstore.log.write.log_bounds import LogBounds
from support.values import values

__all__ = [
    "NEVER",
    "T",
    "WAYS",
    "Prepared",
    "Rows",
    "arrow",
    "close",
    "files_of",
    "lists",
    "parts_of_no_log",
    "partition_of",
    "random_rows",
    "tuples",
    "unprepared",
    "values",
]

T = 1_700_000_000_000
NEVER = 1 << 60


class Prepared:
    """Counts appends of many records that the log's `PreparedAppend` takes; it may be
    set to take none.

    Attributes:
        held: results that it returned to threads that have the lock.
    """

    def __init__(self, partition: Any) -> None:
        active = partition._writer.appends._log.active
        self._real = active.prepared
        self.taken = self.refused = 0
        self.is_off = False
        self.held: list[range | None] = []
        active.prepared = self
        partition._prepared = self

    def _count(self, offsets: range | None) -> range | None:
        self.taken += offsets is not None
        self.refused += offsets is None
        return offsets

    def append(self, *args: Any) -> int:
        return -1 if self.is_off else self._real.append(*args)

    def append_many(self, *args: Any) -> range | None:
        return self._count(None if self.is_off else self._real.append_many(*args))

    def append_arrow(self, *args: Any) -> range | None:
        """Append, or return None: then `append_rows` is called."""
        offsets: range | None = None if self.is_off else self._real.append_arrow(*args)
        self.taken += offsets is not None
        return offsets

    def append_batches(self, data: Any, check: bool) -> range | None:
        return self._count(
            None if self.is_off else self._real.append_batches(data, check)
        )

    def append_rows(self, address: int, base: int, is_held: bool) -> range | None:
        """Append rows; not counted if the caller holds the lock (the usual way)."""
        offsets: range | None = None
        if not self.is_off:
            offsets = self._real.append_rows(address, base, is_held)
        elif is_held:
            self._real.clear()
        if not is_held:
            return self._count(offsets)
        self.held.append(offsets)
        return offsets

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def unprepared() -> Any:
    """A `PreparedAppend` without a log, for which nothing was prepared."""
    return native.PreparedAppend(*parts_of_no_log())


def parts_of_no_log() -> list[Any]:
    """Arguments for a `PreparedAppend`."""
    log, health = native.LogFields(), native.HealthFields()
    lock, facts = native.Mutex(8, "a log"), native.StepFacts()
    return [
        log, health, lock, print, LogBounds, (), replaced_calls(Files()), facts,
        facts.address,
    ]  # fmt: skip


def partition_of(path: Path, magic: int = 1, **settings: Any) -> logstore.Partition:
    defaults = {"flush_messages": NEVER, "flush_ms": NEVER}
    config = logstore.TopicConfig(message_format=magic, **(defaults | settings))
    return logstore.open(path).create_topic("orders", partitions=1, config=config)[0]


def close(partition: logstore.Partition) -> None:
    partition._writer.context.services.store.close()  # type: ignore


def files_of(path: Path) -> dict[str, bytes]:
    """Logs and indexes."""
    names = sorted(path.glob("orders-0/*.*"))
    return {n.name: n.read_bytes() for n in names if n.name[0] != "."}


Rows = tuple[list[Any], list[Any], list[int]]


def lists(partition: Any, rows: Rows) -> range:
    found: range = partition.append_many(*rows)
    return found


def tuples(partition: Any, rows: Rows) -> range:
    found: range = partition.append_many(*map(tuple, rows))
    return found


def arrow(partition: Any, rows: Rows) -> range:
    """A slice of a batch, so that its columns begin anywhere."""
    kinds = (pa.binary(), pa.large_binary(), pa.timestamp("ms"))
    columns = [
        pa.array([column[0], *column], kind)
        for column, kind in zip(rows, kinds, strict=True)
    ]
    batch = pa.record_batch(columns, ["value", "key", "timestamp"])
    found: range = partition.append_arrow(batch.slice(1))
    return found


WAYS = [lists, tuples, arrow]


def random_rows(rng: random.Random) -> Rows:
    count = rng.choice([1, 2, 10, 100, 1500])
    longest = rng.choice([0, 10, 200]) if count > 100 else rng.choice([0, 90, 9000])
    sizes = [rng.randrange(longest + 1) for _ in range(count)]
    return (
        [rng.choice([None, b"v" * n, b"w" * n]) for n in sizes],
        [rng.choice([None, b"", b"k" * rng.randrange(20)]) for _ in range(count)],
        [T + rng.randrange(-1000, 100_000) for _ in range(count)],
    )
