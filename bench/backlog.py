"""The cost of calls on a log that is already long: ``python -m bench.backlog``.

- ``calls``: an append, an append of 1,000, a read of the last 1,000 records, a `get` of
  the last record and an opening of the store, with none, 10^6 and (``--large``) 10^8
  records in the log. LMDB and SQLite do the same with up to 10^6, if they can. The
  lengths take turns, in the same rounds. 10^8 records of 10 bytes take 5 GB of disk.
- ``memory``: the peak memory of a process that reads all of a long log: 1 GiB,
  20 GiB with ``--large``, or ``--gib``; as records, as Arrow, and with `verify`.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import lmdb

import logstore
from bench import report
from bench.ours import config

__all__ = ["main"]

LENGTHS: Final = (0, 1_000_000)
LENGTH_LARGE: Final = 100_000_000
_BATCH: Final = 1_000
_VALUE: Final = b"0123456789"
_CALLS: Final = {"append": 500, "append 1,000": 20, "read 1,000": 20, "get": 500}

Calls = dict[str, Callable[[], Any]]


def ours(folder: Path, length: int, stack: ExitStack) -> Calls:
    """A log that has more than `length` records."""
    store = stack.enter_context(logstore.open(folder / "store"))
    partition = store.create_topic("bench", config=config(1))[0]
    values = [_VALUE] * _BATCH
    for _ in range(1 + length // _BATCH):
        partition.append_many(values)

    def tail() -> None:
        last = list(partition.read(partition.end_offset - _BATCH))
        if len(last) != _BATCH or last[-1].value != _VALUE:
            raise AssertionError(f"read {len(last)} records")

    return {
        "append": lambda: partition.append(_VALUE),
        "append 1,000": lambda: partition.append_many(values),
        "read 1,000": tail,
        "get": lambda: partition.get(partition.end_offset - 1),
    }


def in_lmdb(folder: Path, length: int, stack: ExitStack) -> Calls:
    """The same in LMDB, with offsets as keys."""
    path = os.fspath(folder / "lmdb")
    env = lmdb.open(path, map_size=8 << 30, sync=False, metasync=False, max_dbs=1)
    stack.callback(env.close)
    db = env.open_db(b"log", integerkey=True)
    end = 0

    def append_many(count: int) -> None:
        nonlocal end
        offsets = range(end, end + count)
        pairs = [(offset.to_bytes(8, "little"), _VALUE) for offset in offsets]
        with env.begin(write=True, db=db) as txn, txn.cursor() as cursor:
            cursor.putmulti(pairs, append=True)
        end += count

    for _ in range(1 + length // _BATCH):
        append_many(_BATCH)

    def tail() -> None:
        with env.begin(db=db) as txn, txn.cursor() as cursor:
            cursor.set_key((end - _BATCH).to_bytes(8, "little"))
            if len(list(cursor)) != _BATCH:
                raise AssertionError("LMDB gave another number of records")

    def get() -> bytes:
        with env.begin(db=db) as txn:
            value = txn.get((end - 1).to_bytes(8, "little"))
            assert value is not None
            return bytes(value)

    return {
        "append": lambda: append_many(1),
        "append 1,000": lambda: append_many(_BATCH),
        "read 1,000": tail,
        "get": get,
    }


def in_sqlite(folder: Path, length: int, stack: ExitStack) -> Calls:
    """The same in SQLite, with a write-ahead log and no syncs."""
    db = sqlite3.connect(folder / "log.sqlite", isolation_level=None)
    stack.callback(db.close)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=OFF")
    db.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
    insert, rows = "INSERT INTO log (value) VALUES (?)", [(_VALUE,)] * _BATCH

    def append_many() -> None:
        db.execute("BEGIN")
        db.executemany(insert, rows)
        db.execute("COMMIT")

    for _ in range(1 + length // _BATCH):
        append_many()
    last = "SELECT offset, value FROM log ORDER BY offset DESC LIMIT ?"

    def tail(count: int) -> None:
        if len(db.execute(last, (count,)).fetchall()) != count:
            raise AssertionError("SQLite gave another number of records")

    return {
        "append": lambda: db.execute(insert, rows[0]),
        "append 1,000": append_many,
        "read 1,000": lambda: tail(_BATCH),
        "get": lambda: tail(1),
    }


_CONTESTANTS: Final = {"logstore": ours, "LMDB": in_lmdb, "SQLite": in_sqlite}


def calls(lengths: Sequence[int], rounds: int, folder: Path) -> list[dict[str, Any]]:
    """One row for each contestant, call and length."""
    times: dict[tuple[str, str, int], list[float]] = {}
    with ExitStack() as stack:
        made: dict[tuple[str, int], Calls] = {}
        for length in lengths:
            for name, make in _CONTESTANTS.items():
                if name != "logstore" and length == LENGTH_LARGE:
                    continue  # SQLite and LMDB take minutes and more to make it
                path = folder / f"{name}-{length}"
                path.mkdir()
                made[name, length] = make(path, length, stack)
        for number in range(-1, rounds):  # the first does not count
            for (name, length), functions in made.items():
                for call, count in _CALLS.items():
                    function = functions[call]
                    begin = time.perf_counter()
                    for _ in range(count):
                        function()
                    taken = (time.perf_counter() - begin) / count
                    if number >= 0:
                        times.setdefault((name, call, length), []).append(taken)
    return [
        {
            "case": "calls",
            "contestant": name,
            "call": call,
            "records": length,
            "us": 1e6 * statistics.median(taken),
            "rounds": rounds,
        }
        for (name, call, length), taken in times.items()
    ]


# ------------------------------------------------------------------ memory

_SCANNER: Final = """
import resource, sys, time
import logstore
path, way = sys.argv[1:]
begin = time.perf_counter()
if way == "verify":
    count = logstore.verify(path).records
else:
    with logstore.open(path, read_only=True) as store:
        partition = store.topic("bench")[0]
        if way == "read":
            count = sum(1 for record in partition.read())
        else:
            count = sum(batch.num_rows for batch in partition.read_arrow())
seconds = time.perf_counter() - begin
print(count, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def memory(gib: int, folder: Path) -> list[dict[str, Any]]:
    """One row for each way to read a log of this many GiB."""
    path, value = folder / "store", bytes(range(256)) * 4
    with logstore.open(path) as store:
        partition = store.create_topic("bench", config=config(2))[0]
        count = (gib << 30) // len(value) // _BATCH * _BATCH
        for _ in range(count // _BATCH):
            partition.append_many([value] * _BATCH)
    rows = []
    for way in ("read", "read_arrow", "verify"):
        run = subprocess.run(
            [sys.executable, "-c", _SCANNER, str(path), way],
            capture_output=True,
            text=True,
            check=True,
        )
        found, seconds, size = run.stdout.split()
        if int(found) != count:
            raise AssertionError(f"{way} gave {found} records, not {count}")
        rows.append(
            {
                "case": "memory",
                "way": way,
                "gib": gib,
                "mb": int(size) / 1e6,
                "seconds": float(seconds),
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.backlog", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--large", action="store_true", help="10^8 records, 20 GiB")
    parser.add_argument("--gib", type=int, help="length of the log that is scanned")
    parser.add_argument("--only", choices=["calls", "memory"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    if options.only != "memory":
        lengths = (*LENGTHS, LENGTH_LARGE) if options.large else LENGTHS
        with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
            rows += calls(lengths, options.rounds, Path(folder))
        print("| contestant | call | records in the log | us |")
        print("| --- | --- | ---: | ---: |")
        for row in sorted(rows, key=lambda row: (row["contestant"], row["call"])):
            print(
                f"| {row['contestant']} | {row['call']} | {row['records']:,} "
                f"| {row['us']:.1f} |"
            )
    if options.only != "calls":
        with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
            found = memory(options.gib or (20 if options.large else 1), Path(folder))
        print("\n| way | GiB | most memory, MB | seconds |")
        print("| --- | ---: | ---: | ---: |")
        for row in found:
            print(
                f"| {row['way']} | {row['gib']} | {row['mb']:.0f} "
                f"| {row['seconds']:.1f} |"
            )
        rows += found
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
