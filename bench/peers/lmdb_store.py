"""LMDB: records as (integer key, value) pairs in a B+ tree.

It checks nothing when it reads, and keeps neither timestamp nor checksum. Without
``sync`` its commits are with the operating system, like logstore's appends.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import lmdb

from bench.ours import LOOKUPS, check_random, random_offsets
from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS

_MAP_BYTES = 8 << 30


def environment(path: Path) -> tuple[Any, Any]:
    """The fastest settings that keep a log readable after the process dies."""
    env = lmdb.open(
        os.fspath(path), map_size=_MAP_BYTES, sync=False, metasync=False, max_dbs=1
    )
    return env, env.open_db(b"log", integerkey=True)


class AppendMany(Contestant):
    """One write transaction and one putmulti of ready-made tuples per batch."""

    name = "LMDB putmulti"

    def before(self) -> None:
        self.path = self.directory / "lmdb"
        self.env, self.db = environment(self.path)

    def work(self) -> None:
        env, db = self.env, self.db
        for pairs in self.workload.pairs:
            with env.begin(write=True, db=db) as txn, txn.cursor() as cursor:
                cursor.putmulti(pairs, append=True)

    def after(self, result: Any) -> None:
        with self.env.begin(db=self.db) as txn, txn.cursor() as cursor:
            self.workload.check_pairs(cursor, self.name)
        self.env.close()
        shutil.rmtree(self.path)


class _Reading(Contestant):
    def open(self) -> None:
        self.env, self.db = environment(self.directory / "lmdb")
        for pairs in self.workload.pairs:
            with self.env.begin(write=True, db=self.db) as txn:
                txn.cursor().putmulti(pairs, append=True)
        self.env.sync(True)

    def close(self) -> None:
        self.env.close()


class Read(_Reading):
    """A cursor over all pairs, as bytes."""

    name = "LMDB cursor"

    def work(self) -> int:
        count = 0
        with self.env.begin(db=self.db) as txn, txn.cursor() as cursor:
            for pair in cursor.iternext(keys=True, values=True):
                _, _ = pair
                count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        with self.env.begin(db=self.db) as txn, txn.cursor() as cursor:
            pairs = cursor.iternext(keys=True, values=True)
            self.workload.check_pairs(pairs, self.name)
        super().close()


class RandomRead(_Reading):
    """A get in a separate transaction each, since each sees the newest state."""

    name = "LMDB get"

    def open(self) -> None:
        super().open()
        self.offsets = random_offsets(LOOKUPS, self.workload.count)

    def amount(self) -> int:
        return LOOKUPS

    def work(self) -> list[bytes]:
        env, db, keys = self.env, self.db, self.workload.keys
        found = []
        for offset in self.offsets:
            with env.begin(db=db) as txn:
                found.append(txn.get(keys[offset]))
        return found

    def after(self, result: list[bytes]) -> None:
        check_random(self, result)


class TimeLookup(Contestant):
    """The first entry at or after a time, with the times as keys."""

    name = "LMDB set_range"

    def open(self) -> None:
        self.env, self.db = environment(self.directory / "lmdb")
        times = range(TIMESTAMP_MS, TIMESTAMP_MS + self.workload.count)
        pairs = [
            (time.to_bytes(8, "little"), key)
            for time, key in zip(times, self.workload.keys, strict=True)
        ]
        with self.env.begin(write=True, db=self.db) as txn:
            txn.cursor().putmulti(pairs, append=True)
        self.offsets = random_offsets(LOOKUPS, self.workload.count)

    def amount(self) -> int:
        return LOOKUPS

    def work(self) -> list[int]:
        env, db, found = self.env, self.db, []
        for offset in self.offsets:
            wanted = (TIMESTAMP_MS + offset).to_bytes(8, "little")
            with env.begin(db=db) as txn, txn.cursor() as cursor:
                cursor.set_range(wanted)
                found.append(int.from_bytes(cursor.value(), "little"))
        return found

    def after(self, result: list[int]) -> None:
        if result != self.offsets:
            raise AssertionError(f"{self.name} gave other offsets")

    def close(self) -> None:
        self.env.close()


class OpenClean(_Reading):
    """Open the environment, look at the last key, close it."""

    name = "LMDB open"
    opens = 20

    def open(self) -> None:
        super().open()
        self.env.close()

    def amount(self) -> int:
        return self.opens

    def work(self) -> list[int]:
        ends = []
        for _ in range(self.opens):
            env, db = environment(self.directory / "lmdb")
            with env.begin(db=db) as txn, txn.cursor() as cursor:
                cursor.last()
                ends.append(int.from_bytes(cursor.key(), "little") + 1)
            env.close()
        return ends

    def after(self, result: list[int]) -> None:
        if set(result) != {self.workload.count}:
            raise AssertionError(f"the log ends at {result}")

    def close(self) -> None:
        pass


__all__ = ["AppendMany", "OpenClean", "RandomRead", "Read", "TimeLookup"]
