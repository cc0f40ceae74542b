"""Queues with acknowledgements: a table of SQLite, persist-queue, localqueue.

Each call is durable before it returns: a database in WAL mode with
``synchronous=FULL``, one transaction for each change.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

__all__ = ["LocalQueue", "PersistQueue", "SQLiteQueue", "local_queue"]


class SQLiteQueue:
    """A table: to put is an INSERT, to acknowledge a DELETE; to get changes nothing, as
    there is one reader. It can do many in one transaction."""

    name = "SQLite (WAL, FULL)"
    has_batches = True

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "queue", isolation_level=None)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE q (n INTEGER PRIMARY KEY, value BLOB)")
        self._last = 0

    def put(self, values: list[bytes]) -> None:
        rows = [(value,) for value in values]
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany("INSERT INTO q (value) VALUES (?)", rows)
        self._connection.execute("COMMIT")

    def get(self, count: int) -> list[bytes]:
        rows = self._connection.execute(
            "SELECT n, value FROM q ORDER BY n LIMIT ?", (count,)
        ).fetchall()
        self._last = rows[-1][0]
        return [value for _, value in rows]

    def acknowledge(self) -> None:
        """Acknowledge all delivered values."""
        self._connection.execute("DELETE FROM q WHERE n <= ?", (self._last,))

    def close(self) -> int:
        """The number of remaining values."""
        (count,) = self._connection.execute("SELECT count(*) FROM q").fetchone()
        self._connection.close()
        return int(count)


class PersistQueue:
    """`SQLiteAckQueue`, which marks delivered and acknowledged values, and takes one
    value in each call."""

    name = "persist-queue"
    has_batches = False

    def __init__(self, folder: Path) -> None:
        import persistqueue

        self._queue: Any = persistqueue.SQLiteAckQueue(str(folder / "persist"))
        for connection in (self._queue._putter, self._queue._getter):
            connection.execute("PRAGMA synchronous=FULL")
        self._given: list[int] = []

    def put(self, values: list[bytes]) -> None:
        for value in values:
            self._queue.put(value)

    def get(self, count: int) -> list[bytes]:
        found = [self._queue.get(block=False, raw=True) for _ in range(count)]
        self._given = [one["pqid"] for one in found]
        return [one["data"] for one in found]

    def acknowledge(self) -> None:
        """Acknowledge all delivered values."""
        for number in self._given:
            self._queue.ack(id=number)

    def close(self) -> int:
        """The number of remaining values."""
        left = int(self._queue.size + self._queue.unack_count())
        self._queue.close()
        return left


class LocalQueue:
    """localqueue with ``DurabilityMode.DURABLE``: it gives values with a lease, and
    takes back one at a time."""

    name = "localqueue (DURABLE)"
    has_batches = False

    def __init__(self, folder: Path) -> None:
        self._queue = local_queue(folder / "local")
        self._jobs: list[Any] = []

    def put(self, values: list[bytes]) -> None:
        for value in values:
            self._queue.put(value)

    def get(self, count: int) -> list[bytes]:
        self._jobs = [self._queue.get_nowait() for _ in range(count)]
        return [job.data for job in self._jobs]

    def acknowledge(self) -> None:
        """Acknowledge all delivered values."""
        for job in self._jobs:
            self._queue.ack(job)

    def close(self) -> int:
        """The number of remaining values."""
        stats = self._queue.stats()
        self._queue.close()
        return int(stats["ready"] + stats["processing"])


class _Bytes:
    """Values, stored unchanged."""

    def dumps(self, value: bytes) -> bytes:
        return value

    def loads(self, data: bytes) -> bytes:
        return bytes(data)


def local_queue(path: Path) -> Any:
    """A durable queue of localqueue, of bytes.

    Raises:
        ImportError: it is not installed; it needs Python 3.11.
    """
    import localqueue

    durable = localqueue.DurabilityMode.DURABLE
    return localqueue.SimpleQueue(str(path), durability=durable, serializer=_Bytes())
