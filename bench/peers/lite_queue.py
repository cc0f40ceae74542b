"""litequeue: a queue in SQLite, one message per call."""

from __future__ import annotations

from typing import Any

from litequeue import LiteQueue

from bench.rounds import Contestant

__all__ = ["AppendOne"]


class AppendOne(Contestant):
    """`put` of each value; the queue keeps no keys. SQLite syncs when it moves its
    write-ahead log into the database, as litequeue sets it."""

    name = "litequeue put"
    # It takes some 50 us for each.
    records_max = 5_000

    def open(self) -> None:
        self.values = self.workload.values[: self.records_max]

    def amount(self) -> int:
        return len(self.values)

    def before(self) -> None:
        self.queue: Any = LiteQueue(self.directory / "queue.sqlite")

    def work(self) -> None:
        put = self.queue.put
        for value in self.values:
            put(value)

    def after(self, result: Any) -> None:
        found = [row["data"] for row in self._rows()]
        if found != self.values:
            raise AssertionError(f"{self.name} gave other values")
        self.queue.conn.close()
        for path in self.directory.glob("queue.sqlite*"):
            path.unlink()

    def _rows(self) -> Any:
        query = f"SELECT data FROM {self.queue.table} ORDER BY rowid"
        return self.queue.conn.execute(query)
