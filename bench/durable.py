"""How long durable appends take, by threads: ``python -m bench.durable``.

Each thread appends records one by one and has each on stable storage before the next.
Contestants take turns in every round. For each number of threads: the median and the
99th percentile of the time of one append, over all rounds; records per second and CPU
seconds per million, medians of the rounds. Written records are read back afterwards.

`raw` is a write of the message and an fdatasync in each thread. `LMDB` and `SQLite`
commit a transaction for each record and let one thread at a time do so; SQLite is
measured with one thread.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import lmdb

import logstore
from bench import report
from bench.ours import config
from bench.peers.raw_files import message
from bench.workload import Workload

__all__ = ["main"]

THREADS: Final = (1, 2, 4, 8, 16, 32, 64)
_RECORDS: Final = 1_000

# Appends record number n; returns when it is durable.
Append = Callable[[int], Any]


class Contestant:
    """One way to append durably."""

    name = "?"
    threads_max = THREADS[-1]

    def __init__(self, directory: Path, workload: Workload) -> None:
        self.directory, self.workload = directory, workload

    def open(self) -> Append:
        """Begin an empty log; the function that appends to it, in any thread."""
        raise NotImplementedError

    def values(self) -> list[bytes]:
        """The values of the log, which is closed and removed."""
        raise NotImplementedError


class Ours(Contestant):
    name = "logstore"

    def open(self) -> Append:
        self.store = logstore.open(self.directory / "store")
        self.partition = self.store.create_topic("bench", config=config(1))[0]
        append, workload = self.partition.append, self.workload
        return lambda n: append(workload.values[n], workload.keys[n], durable=True)

    def values(self) -> list[bytes]:
        found = [record.value or b"" for record in self.partition.read()]
        self.store.close()
        shutil.rmtree(self.directory / "store")
        return found


class Raw(Contestant):
    name = "raw"

    def open(self) -> Append:
        pairs = zip(self.workload.keys, self.workload.values, strict=True)
        messages = [message(n, key, value) for n, (key, value) in enumerate(pairs)]
        path = self.directory / "log"
        fd = self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

        def append(n: int) -> None:
            os.write(fd, messages[n])
            os.fdatasync(fd)

        self.size = len(messages[0])
        return append

    def values(self) -> list[bytes]:
        path, size = self.directory / "log", self.size
        data = path.read_bytes()
        os.close(self.fd)
        path.unlink()
        value_bytes = self.workload.value_bytes
        ends = range(size, len(data) + 1, size)
        return [data[end - value_bytes : end] for end in ends]


class Lmdb(Contestant):
    name = "LMDB"

    def open(self) -> Append:
        self.path = self.directory / "lmdb"
        env = self.env = lmdb.open(os.fspath(self.path), map_size=1 << 30)
        keys, values = self.workload.keys, self.workload.values

        def append(n: int) -> None:
            with env.begin(write=True) as txn:
                txn.put(keys[n], values[n])

        return append

    def values(self) -> list[bytes]:
        with self.env.begin() as txn:
            found = [value for _, value in txn.cursor()]
        self.env.close()
        shutil.rmtree(self.path)
        return found


class Sqlite(Contestant):
    name = "SQLite"
    threads_max = 1

    def open(self) -> Append:
        path = self.directory / "log.sqlite"
        db = self.db = sqlite3.connect(path, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("CREATE TABLE log (offset INTEGER PRIMARY KEY, value BLOB)")
        values = self.workload.values
        insert = "INSERT INTO log (value) VALUES (?)"
        return lambda n: db.execute(insert, (values[n],))

    def values(self) -> list[bytes]:
        found = [value for (value,) in self.db.execute("SELECT value FROM log")]
        self.db.close()
        for path in self.directory.glob("log.sqlite*"):
            path.unlink()
        return found


def one_round(
    contestant: Contestant, threads: int, records: int
) -> tuple[list[float], float, float]:
    """Seconds of each append, of the round, and CPU seconds of the round."""
    append = contestant.open()
    append(0)
    taken: list[list[float]] = [[] for _ in range(threads)]
    gate = threading.Barrier(threads + 1)

    def run(number: int) -> None:
        times, clock = taken[number], time.perf_counter
        gate.wait()
        for n in range(1 + number, records, threads):
            begin = clock()
            append(n)
            times.append(clock() - begin)

    workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    begin, cpu = time.perf_counter(), time.process_time()
    for worker in workers:
        worker.join()
    seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
    _check(contestant, records)
    return [one for times in taken for one in times], seconds, cpu


def alone(contestant: Contestant, records: int) -> tuple[list[float], float, float]:
    """The same in this thread."""
    append, times, clock = contestant.open(), [], time.perf_counter
    append(0)
    first, cpu = clock(), time.process_time()
    for n in range(1, records):
        begin = clock()
        append(n)
        times.append(clock() - begin)
    seconds, cpu = clock() - first, time.process_time() - cpu
    _check(contestant, records)
    return times, seconds, cpu


def _check(contestant: Contestant, records: int) -> None:
    if sorted(contestant.values()) != sorted(contestant.workload.values[:records]):
        raise AssertionError(f"{contestant.name} lost or changed records")


def measure(threads: int, rounds: int, records: int) -> list[dict[str, Any]]:
    """One row for each contestant."""
    workload = Workload(records, batch_records=1)
    with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
        contestants = [
            kind(Path(folder), workload)
            for kind in (Ours, Raw, Lmdb, Sqlite)
            if threads <= kind.threads_max
        ]
        results: dict[str, list[tuple[list[float], float, float]]] = {}
        for number in range(-1, rounds):  # the first does not count
            for i in range(len(contestants)):
                one = contestants[(i + number) % len(contestants)]
                result = (
                    alone(one, records)
                    if threads == 1
                    else one_round(one, threads, records)
                )
                if number >= 0:
                    results.setdefault(one.name, []).append(result)
    rows = []
    for name, found in results.items():
        times = [one for times, _, _ in found for one in times]
        rows.append(
            {
                "contestant": name,
                "threads": threads,
                "p50_us": 1e6 * statistics.median(times),
                "p99_us": 1e6 * report.quantile(times, 0.99),
                "rate": statistics.median(records / seconds for _, seconds, _ in found),
                "cpu_s_per_million": statistics.median(
                    1e6 * cpu / records for _, _, cpu in found
                ),
                "rounds": rounds,
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.durable", description=(__doc__ or "").split("\n\n")[1]
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--records", type=int, default=_RECORDS, help="in each round")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    print("| threads | contestant | p50, us | p99, us | records/s | CPU-s/M |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    rows = []
    for threads in THREADS:
        for row in measure(threads, options.rounds, options.records):
            rows.append(row)
            print(
                f"| {threads} | {row['contestant']} | {row['p50_us']:.0f} "
                f"| {row['p99_us']:.0f} | {row['rate']:.0f} "
                f"| {row['cpu_s_per_million']:.0f} |",
                flush=True,
            )
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
