"""persist-queue: a queue in files or in SQLite, one item per call."""

from __future__ import annotations

import shutil
from typing import Any

import persistqueue

from bench.rounds import Contestant

__all__ = ["AppendOne"]


class AppendOne(Contestant):
    """`put` of each value into its queue in SQLite, the faster of the two; it pickles
    the value and commits."""

    name = "persist-queue put"
    # It takes some 200 us for each.
    records_max = 1_000

    def open(self) -> None:
        self.values = self.workload.values[: self.records_max]

    def amount(self) -> int:
        return len(self.values)

    def before(self) -> None:
        self.path = self.directory / "queue"
        self.queue: Any = persistqueue.SQLiteQueue(str(self.path), auto_commit=True)

    def work(self) -> None:
        put = self.queue.put
        for value in self.values:
            put(value)

    def after(self, result: Any) -> None:
        if [self.queue.get(block=False) for _ in self.values] != self.values:
            raise AssertionError(f"{self.name} gave other values")
        self.queue.close()
        shutil.rmtree(self.path)
