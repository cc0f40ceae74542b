"""RocksDB through rocksdict: records as (offset, value) pairs in an LSM tree.

Keys are offsets in 8 big-endian bytes, the order of its comparator. Its write-ahead log
is on and not synced: what it wrote is with the operating system, like logstore's
appends. Blocks have checksums, which reading compares; nothing is compressed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from rocksdict import DBCompressionType, Options, Rdict, WriteBatch

from bench.rounds import Contestant
from bench.workload import Workload

__all__ = ["AppendMany", "Read"]


def _open(path: Path) -> Any:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_compression_type(DBCompressionType.none())
    return Rdict(os.fspath(path), options)


def _big_endian(workload: Workload) -> list[list[tuple[bytes, bytes]]]:
    return [[(key[::-1], value) for key, value in pairs] for pairs in workload.pairs]


def _write(db: Any, pairs: list[tuple[bytes, bytes]]) -> None:
    batch = WriteBatch(raw_mode=True)
    put = batch.put
    for key, value in pairs:
        put(key, value)
    db.write(batch)


def _check(contestant: Contestant, db: Any) -> None:
    pairs = ((key[::-1], value) for key, value in db.items())
    contestant.workload.check_pairs(pairs, contestant.name)


class AppendMany(Contestant):
    """One write batch per 1,000 records."""

    name = "RocksDB write batch"

    def open(self) -> None:
        self.batches = _big_endian(self.workload)

    def before(self) -> None:
        self.path = self.directory / "rocksdb"
        self.db = _open(self.path)

    def work(self) -> None:
        for pairs in self.batches:
            _write(self.db, pairs)

    def after(self, result: Any) -> None:
        _check(self, self.db)
        self.db.close()
        shutil.rmtree(self.path)


class Read(Contestant):
    """An iterator over all pairs, as bytes, of a table file."""

    name = "RocksDB iterator"

    def open(self) -> None:
        self.db = _open(self.directory / "rocksdb")
        for pairs in _big_endian(self.workload):
            _write(self.db, pairs)
        self.db.flush()

    def work(self) -> int:
        count = 0
        for pair in self.db.items():
            _, _ = pair
            count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        _check(self, self.db)
        self.db.close()
