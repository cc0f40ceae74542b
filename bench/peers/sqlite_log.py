"""SQLite with a write-ahead log: records as rows of a table, by offset.

Without syncs (``synchronous=OFF``) a committed row is with the operating system, like
logstore's appends; ``synchronous=FULL`` syncs at each commit. It checks nothing when it
reads.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS, Workload

__all__ = ["AppendMany", "AppendOne", "Durable", "Read"]

_INSERT = "INSERT INTO log VALUES (?, ?, ?, ?)"


def _connect(path: Path, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute(f"PRAGMA synchronous={synchronous}")
    db.execute(
        "CREATE TABLE IF NOT EXISTS log "
        "(offset INTEGER PRIMARY KEY, timestamp INTEGER, key BLOB, value BLOB)"
    )
    return db


def _rows(workload: Workload) -> list[tuple[int, int, bytes, bytes]]:
    pairs = zip(workload.keys, workload.values, strict=True)
    return [(n, TIMESTAMP_MS, key, value) for n, (key, value) in enumerate(pairs)]


class _Appending(Contestant):
    synchronous = "OFF"

    def open(self) -> None:
        self.rows = _rows(self.workload)

    def before(self) -> None:
        self.path = self.directory / "log.sqlite"
        self.db = _connect(self.path, self.synchronous)

    def after(self, result: Any) -> None:
        pairs = self.db.execute("SELECT key, value FROM log ORDER BY offset")
        self.workload.check_pairs(pairs, self.name)
        self.db.close()
        for path in self.directory.glob("log.sqlite*"):
            path.unlink()


class AppendMany(_Appending):
    """One transaction and one executemany of ready-made rows per batch."""

    name = "SQLite executemany"

    def work(self) -> None:
        db, rows = self.db, self.rows
        step = self.workload.batch_records
        for i in range(0, len(rows), step):
            db.execute("BEGIN")
            db.executemany(_INSERT, rows[i : i + step])
            db.execute("COMMIT")


class AppendOne(_Appending):
    """One transaction per row."""

    name = "SQLite insert"

    def work(self) -> None:
        execute = self.db.execute
        for row in self.rows:
            execute(_INSERT, row)


class Durable(AppendOne):
    """One transaction per row, synced."""

    name = "SQLite insert, synced"
    synchronous = "FULL"


class Read(Contestant):
    """All rows in the order of the table."""

    name = "SQLite select"

    def open(self) -> None:
        self.db = _connect(self.directory / "log.sqlite", "OFF")
        self.db.execute("BEGIN")
        self.db.executemany(_INSERT, _rows(self.workload))
        self.db.execute("COMMIT")

    def _select(self) -> sqlite3.Cursor:
        return self.db.execute("SELECT key, value FROM log ORDER BY offset")

    def work(self) -> int:
        count = 0
        for pair in self._select():
            _, _ = pair
            count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        self.workload.check_pairs(self._select(), self.name)
        self.db.close()
