"""Consumer groups: how fast a partition changes hands, and what polls and commits cost.

    python -m bench.groups

Each row has its rival in the same run: `Partition.read` for polls, a write and an
fdatasync of as many bytes for durable commits. Records have 100 bytes; the store is on
the file system of the directory for temporary files, and warm.
"""

from __future__ import annotations

import functools
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
DURABLE_COMMITS = 300
ROUNDS = 15


def _fill(path: Path) -> None:
    config = logstore.TopicConfig(message_format=2)
    with logstore.open(path) as store:
        (partition,) = store.create_topic("t", 1, config)
        values = [os.urandom(RECORD_BYTES)] * 1000
        for _ in range(RECORDS // 1000):
            partition.append_many(values)


def _opened(path: Path, group: str | None) -> logstore.Consumer:
    return logstore.Consumer(path, group=group, topics=["t"], reset="earliest")


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def takeovers(path: Path) -> list[float]:
    """Seconds from the SIGKILL of the holder to the first record of the next one."""
    found = []
    for _ in range(TAKEOVERS):
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


def first_records(path: Path) -> list[float]:
    """Seconds from the constructor to the first record, alone in the group."""

    def once() -> None:
        with _opened(path, f"first-{time.time_ns()}") as one:
            while not one.poll(1000):
                pass

    return sorted(_seconds(once) for _ in range(TAKEOVERS))


def polls(path: Path) -> Iterator[tuple[float, float]]:
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

        for _ in range(ROUNDS):
            yield RECORDS / _seconds(poll), RECORDS / _seconds(read)


def commits(path: Path) -> tuple[float, float, float]:
    """(commits a second, durable ones, writes with fdatasync of as many bytes)."""
    key = TopicPartition("t", 0)
    with _opened(path, "commits") as one:
        one.poll()
        one.commit({key: 0})

        def quick() -> None:
            for offset in range(COMMITS):
                one.commit({key: offset}, durable=False)

        def durable() -> None:
            for offset in range(DURABLE_COMMITS // 10):
                one.commit({key: offset})

        fd = os.open(path / "rival", os.O_RDWR | os.O_CREAT, 0o600)
        data, at = bytes(120), [0]

        def rival() -> None:
            for _ in range(DURABLE_COMMITS // 10):
                os.pwrite(fd, data, at[0])
                os.fdatasync(fd)
                at[0] += len(data)

        rate = COMMITS / _seconds(quick)
        pairs = [(_seconds(durable), _seconds(rival)) for _ in range(10)]
        os.close(fd)
        os.unlink(path / "rival")
    count = DURABLE_COMMITS // 10
    return (
        rate,
        count / statistics.median(ours for ours, _ in pairs),
        count / statistics.median(theirs for _, theirs in pairs),
    )


def idle(path: Path, seconds: float = 5.0) -> float:
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
        _fill(path)
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
        rate, durable, rival = commits(path)
        print(
            f"commits: {rate:,.0f}/s; durable {durable:,.0f}/s, "
            f"{durable / rival:.2f} of write + fdatasync ({rival:,.0f}/s)"
        )
        print(f"idle: {100 * idle(path):.3f} % of a core")


if __name__ == "__main__":
    main()
