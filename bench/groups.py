"""Consumer groups: how fast a partition changes hands, and what polls and commits cost.

    python -m bench.groups

Each row has its rival in the same run: `Partition.read` for polls, a write and an
fdatasync of as many bytes for durable commits. Records have 100 bytes; the store is on
the file system of the directory for temporary files, and warm.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import logstore
from logstore import TopicPartition

RECORDS = 200_000
RECORD_BYTES = 100
TAKEOVERS = 40
COMMITS = 20_000
COMMIT_BYTES = 129  # of one in the group's file
DURABLE_COMMITS = 10
PAIRS = 60
ROUNDS = 15


def values() -> Iterator[bytes]:
    """The values of the records."""
    value = os.urandom(RECORD_BYTES)
    return (value for _ in range(RECORDS))


def fill(path: Path) -> None:
    """Make a store with the records in one partition."""
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(path) as store:
        (partition,) = store.create_topic("t", 1, config)
        source = values()
        for _ in range(RECORDS // 1000):
            partition.append_many(list(itertools.islice(source, 1000)))


def _opened(path: Path, group: str | None) -> logstore.Consumer:
    return logstore.Consumer(path, group=group, topics=["t"], reset="earliest")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def takeovers(path: Path, count: int = TAKEOVERS) -> list[float]:
    """Seconds from the SIGKILL of the holder to the first record of the next one, in
    order."""
    found = []
    for _ in range(count):
        ready, begin = os.pipe()
        pid = os.fork()
        if pid == 0:
            holder = _opened(path, "takeover")
            holder.poll(1000)
            os.write(begin, b".")
            time.sleep(60)
            os._exit(0)
        os.read(ready, 1)
        with _opened(path, "takeover") as other:
            other.poll(50)

            found.append(_seconds(functools.partial(_kill_and_poll, pid, other)))
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(begin)
    return sorted(found)


def _kill_and_poll(pid: int, other: logstore.Consumer) -> None:
    os.kill(pid, signal.SIGKILL)
    while not other.poll(1000):
        pass


def first_records(path: Path, count: int = TAKEOVERS) -> list[float]:
    """Seconds from the constructor to the first record, alone in the group; in
    order."""

    def once() -> None:
        with _opened(path, f"first-{time.time_ns()}") as one:
            while not one.poll(1000):
                pass

    return sorted(_seconds(once) for _ in range(count))


def polls(path: Path, rounds: int = ROUNDS) -> Iterator[tuple[float, float]]:
    """(records a second by `poll`, by `Partition.read`), one pair for each round; the
    member has joined, and the store is open."""
    with _opened(path, "polls") as one, logstore.open(path, read_only=True) as store:
        partition = store.topic("t")[0]
        one.poll(1000, 1)

        def poll() -> None:
            count = 0
            one.seek_to_beginning()
            while count < RECORDS:
                count += sum(map(len, one.poll(1000).values()))

        def read() -> None:
            assert sum(1 for _ in partition.read(durable_only=True)) == RECORDS

        for _ in range(rounds):
            yield RECORDS / _seconds(poll), RECORDS / _seconds(read)


def touched_polls(path: Path, rounds: int) -> Iterator[float]:
    """Records a second by `poll`, their values touched."""
    with _opened(path, "touched") as one:
        one.poll(1000, 1)
        for _ in range(rounds):
            count = size = 0
            begin = time.perf_counter()
            one.seek_to_beginning()
            while count < RECORDS:
                for records in one.poll(1000).values():
                    for record in records:
                        size += len(record.value or b"")
                    count += len(records)
            yield count / (time.perf_counter() - begin)
            assert (count, size) == (RECORDS, RECORDS * RECORD_BYTES)


def commits(path: Path) -> tuple[float, float, float, float]:
    """(commits a second, durable ones, writes with fdatasync of as many bytes, the
    median of the ratios of the last two)."""
    key = TopicPartition("t", 0)
    with _opened(path, "commits") as one:
        one.poll()
        one.commit({key: 0})

        def quick() -> None:
            for offset in range(COMMITS):
                one.commit({key: offset}, durable=False)

        def durable() -> None:
            for offset in range(DURABLE_COMMITS):
                one.commit({key: offset})

        fd = os.open(path / "rival", os.O_RDWR | os.O_CREAT, 0o600)
        data, at = bytes(COMMIT_BYTES), [0]

        def rival() -> None:
            for _ in range(DURABLE_COMMITS):
                os.pwrite(fd, data, at[0])
                os.fdatasync(fd)
                at[0] += len(data)

        rate = COMMITS / _seconds(quick)
        # A pair is short, so that other work on the machine meets both.
        pairs = [(_seconds(durable), _seconds(rival)) for _ in range(PAIRS)]
        os.close(fd)
        os.unlink(path / "rival")
    return (
        rate,
        DURABLE_COMMITS / statistics.median(ours for ours, _ in pairs),
        DURABLE_COMMITS / statistics.median(theirs for _, theirs in pairs),
        statistics.median(theirs / ours for ours, theirs in pairs),
    )


def idle(path: Path, seconds: float = 10.0) -> float:
    """The share of a core that a member takes that waits."""
    with _opened(path, "idle") as one:
        while one.poll(100):
            pass
        one.poll(1000)
        before = time.process_time()
        one.poll(int(seconds * 1000))
        return (time.process_time() - before) / seconds


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        fill(path)
        taken, first = takeovers(path), first_records(path)
        print(f"takeover: median {taken[len(taken) // 2]:.4f} s, p99 {taken[-1]:.4f} s")
        print(
            f"first record: median {first[len(first) // 2] * 1000:.1f} ms, "
            f"most {first[-1] * 1000:.1f} ms"
        )
        ratios = []
        for ours, theirs in polls(path):
            ratios.append(ours / theirs)
            print(f"poll {ours:,.0f}/s, read {theirs:,.0f}/s")
        print(f"poll / read: median {statistics.median(ratios):.2f}")
        rate, durable, rival, ratio = commits(path)
        print(
            f"commits: {rate:,.0f}/s; durable {durable:,.0f}/s, "
            f"{ratio:.2f} of write + fdatasync ({rival:,.0f}/s)"
        )
        print(f"idle: {100 * idle(path):.3f} % of a core")


if __name__ == "__main__":
    main()
