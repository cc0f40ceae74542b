"""How fast processes publish: ``python -m bench.handin``.

Each process commits batches of 100 records, one after the other, each durable before
the next. `publish` is the owner of a store alone; `submit` hands in to an owner in
another process, or takes its place (`submit, no owner`); `append` appends with
``shared=True`` to an owner in another process; `SQLite` has a transaction for each
batch, in a database in WAL mode with ``synchronous=FULL``, and waits for its lock, and
so has `localqueue`. Before the clock starts, each process has opened what it writes to
and committed one batch: what Python imports with the first call is not counted.
Contestants take turns in every round; batches per second and milliseconds per batch are
medians of the rounds. Committed records are counted afterwards.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import logstore
from bench.ours import config
from bench.peers import ack_queues

__all__ = ["main"]

BATCH: Final = 100
VALUE: Final = b"v" * 100
_PROCESSES: Final = (1, 2, 4, 8)
_BUSY_S: Final = 120


def _stage(store: logstore.Store, name: str, sequence: int) -> logstore.types.Staged:
    with store.stage(name, sequence) as stage:
        stage.append_many(store.topic("bench")[0], [VALUE] * BATCH)
        return stage.finish()


class Submit:
    """Hands in to the owner, which is the process that measures."""

    name = "submit"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "store"

    def open(self) -> None:
        serving = logstore.StoreConfig(publish_for_others=True)
        self.owner = logstore.open(self.path, config=serving)
        self.owner.create_topic("bench", config=config(2))

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[Callable[[int], object]]:
        """A process; what it gives commits the batch of a number."""
        with logstore.open(self.path, read_only=True) as store:
            name = f"worker {number}"

            def commit(sequence: int) -> None:
                staged = _stage(store, name, sequence)
                store.submit([staged], identity=name, sequence=sequence)

            yield commit

    def close(self) -> int:
        """The number of records; all is removed."""
        count = self.owner.topic("bench")[0].end_offset
        self.owner.close()
        shutil.rmtree(self.path)
        return count

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}


class Publish(Submit):
    """The owner itself, in the process that works."""

    name = "publish"

    def open(self) -> None:
        with logstore.open(self.path) as store:
            store.create_topic("bench", config=config(2))

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[Callable[[int], object]]:
        with logstore.open(self.path) as store:

            def commit(sequence: int) -> None:
                staged = _stage(store, "owner", sequence)
                store.publish([staged], identity="owner", sequence=sequence)

            yield commit

    def close(self) -> int:
        with logstore.open(self.path, read_only=True) as store:
            count = store.topic("bench")[0].end_offset
        shutil.rmtree(self.path)
        return count


class Alone(Publish):
    """Hands in to a store without an owner."""

    name = "submit, no owner"
    worker = Submit.worker


class Append(Submit):
    """Appends to a shared store, whose owner is the process that measures."""

    name = "append"

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[Callable[[int], object]]:
        with logstore.open(self.path, shared=True) as store:
            partition = store.topic("bench")[0]
            yield lambda sequence: partition.append_many([VALUE] * BATCH)


class SQLite:
    """A transaction for each batch."""

    name = "SQLite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "database"

    def _connect(self) -> sqlite3.Connection:
        found = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        found.execute("PRAGMA journal_mode=WAL")
        found.execute("PRAGMA synchronous=FULL")
        return found

    def open(self) -> None:
        self.path.parent.mkdir(exist_ok=True)
        with self._connect() as database:
            database.execute("CREATE TABLE log (n INTEGER PRIMARY KEY, value BLOB)")
        database.close()

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[Callable[[int], object]]:
        database = self._connect()

        def commit(sequence: int) -> None:
            database.execute("BEGIN IMMEDIATE")
            rows = [(VALUE,)] * BATCH
            database.executemany("INSERT INTO log (value) VALUES (?)", rows)
            database.execute("COMMIT")

        yield commit
        database.close()

    def close(self) -> int:
        database = self._connect()
        (count,) = database.execute("SELECT count(*) FROM log").fetchone()
        database.close()
        for path in self.path.parent.glob("database*"):
            path.unlink()
        return int(count)


class LocalQueue:
    """A call for each batch."""

    name = "localqueue"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "queue"

    def open(self) -> None:
        ack_queues.local_queue(self.path).close()

    @contextlib.contextmanager
    def worker(self, number: int) -> Iterator[Callable[[int], object]]:
        queue = ack_queues.local_queue(self.path)
        yield lambda sequence: queue.put_many([VALUE] * BATCH)
        queue.close()

    def close(self) -> int:
        queue = ack_queues.local_queue(self.path)
        count = queue.stats()["ready"]
        queue.close()
        shutil.rmtree(self.path)
        return int(count)


Contestant = Submit | SQLite | LocalQueue


def publish_beside_write(
    path: Path, partitions: int, rounds: int, count: int
) -> list[tuple[float, float]]:
    """(seconds of a `publish`, seconds of a write + fdatasync), medians of each round.

    A publication of 100 records is staged and published; the same bytes are written to
    a file that has its space already. The two take turns.
    """
    with logstore.open(path) as store:
        topic = store.create_topic("bench", partitions, config(2))
        pairs, sequence = [], 0
        fd = os.open(path / "written", os.O_RDWR | os.O_CREAT)
        try:
            os.posix_fallocate(fd, 0, 64 << 20)
            os.fsync(fd)
            for _ in range(rounds):
                ours, theirs, pos = list[float](), list[float](), 0
                for _ in range(count):
                    sequence += 1
                    begin = time.perf_counter()
                    with store.stage("owner", sequence) as stage:
                        for part in topic:
                            share = [VALUE] * (BATCH // partitions)
                            stage.append_many(part, share)
                        staged = stage.finish()
                    size = sum(log.bytes for log in staged.logs)
                    store.publish([staged], identity="owner", sequence=sequence)
                    ours.append(time.perf_counter() - begin)
                    data = bytes(size)
                    begin = time.perf_counter()
                    os.pwrite(fd, data, pos % (32 << 20))
                    os.fdatasync(fd)
                    theirs.append(time.perf_counter() - begin)
                    pos += size
                pairs.append((statistics.median(ours), statistics.median(theirs)))
        finally:
            os.close(fd)
    return pairs


def first_submit(path: Path) -> float:
    """Seconds of the first `submit` to a store without an owner, without the stage."""
    with logstore.open(path) as store:
        store.create_topic("bench", config=config(2))
    with logstore.open(path, read_only=True) as store:
        staged = _stage(store, "alone", 1)
        begin = time.perf_counter()
        store.submit([staged], identity="alone", sequence=1)
        return time.perf_counter() - begin


def _worker(
    contestant: Contestant, number: int, batches: int, pipe: Connection
) -> None:
    with contestant.worker(number) as commit:
        commit(1)
        pipe.send("ready")
        pipe.recv()
        for sequence in range(2, batches + 2):
            commit(sequence)
        pipe.send("done")


def measure(contestant: Contestant, processes: int, batches: int) -> float:
    """Seconds in which the processes commit this many batches each, after a first
    one."""
    contestant.open()
    context = multiprocessing.get_context("spawn")
    pipes, workers = [], []
    for number in range(processes):
        mine, other = context.Pipe()
        arguments = (contestant, number, batches, other)
        worker = context.Process(target=_worker, args=arguments)
        worker.start()
        pipes.append(mine)
        workers.append(worker)
    for pipe in pipes:
        pipe.recv()
    begun = time.perf_counter()
    for pipe in pipes:
        pipe.send("go")
    for pipe in pipes:
        pipe.recv()
    seconds = time.perf_counter() - begun
    for worker in workers:
        worker.join()
    count = contestant.close()
    if count != processes * (batches + 1) * BATCH:
        raise SystemExit(f"{contestant.name}: {count} records were committed")
    return seconds


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, default=200, help="of all processes")
    parser.add_argument("--directory", type=Path, default=Path.cwd())
    options = parser.parse_args(arguments)
    rates: dict[tuple[str, int], list[float]] = {}
    for _ in range(options.rounds):
        for kind, numbers in (
            (Publish, (1,)), (Submit, _PROCESSES), (Alone, (1,)), (Append, _PROCESSES),
            (SQLite, (1, 8)), (LocalQueue, (1, 8)),
        ):  # fmt: skip
            for processes in numbers:
                with tempfile.TemporaryDirectory(dir=options.directory) as folder:
                    batches = max(options.batches // processes, 1)
                    seconds = measure(kind(Path(folder)), processes, batches)
                key = (kind.name, processes)
                rates.setdefault(key, []).append(processes * batches / seconds)
    print("contestant processes batches/s ms/batch")
    for (name, processes), found in rates.items():
        rate = statistics.median(found)
        print(f"{name:16} {processes:9} {rate:9.0f} {1000 * processes / rate:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
