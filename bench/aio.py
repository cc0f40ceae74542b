"""asyncio: ``python -m bench.aio``.

- ``append``: the rate of durable appends by 1 to 1,000 tasks at once, each of which
  appends again and again; and the rate of the blocking `append` by one thread.
- ``plain``: the rate of appends that are not durable, by one task, and of the blocking
  ones.
- ``follow``: the time from the call of `append` to the record in a task that follows,
  for appends 2 ms apart: in the same process, and in another one; and the CPU of the
  follower there while nothing is appended.
- ``many``: the time from one append until the last of 1,000 followers of the partition
  has its record, in the same process and in another one.

Records read are compared with the written ones.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import logstore
import logstore.aio
from bench import report
from bench.live import cpu_ns
from bench.ours import NEVER

__all__ = ["main"]

_TASKS: Final = (1, 10, 100, 1000)
_VALUE: Final = b"x" * 100
_PLAIN: Final = 100_000
_APPENDS: Final = 2_000
_PAUSE_SECONDS: Final = 0.002
_IDLE_SECONDS: Final = 20.0
_FOLLOWERS: Final = 1000
_ROUNDS: Final = 50
_CLOCK: Final = time.CLOCK_MONOTONIC  # the same in all processes

Row = dict[str, Any]


# -------------------------------------------------------------------------- appends


async def append(folder: Path, seconds: float) -> list[Row]:
    """Durable appends by more and more tasks."""
    rows: list[Row] = []
    async with logstore.aio.open(folder / "append") as store:
        for number, tasks in enumerate((0, *_TASKS)):
            p = (await store.create_topic(f"bench{number}"))[0]
            await p.append(_VALUE, durable=True)
            end, counts = time.perf_counter() + seconds, [0] * max(tasks, 1)

            async def work(
                task: int,
                p: logstore.aio.Partition = p,
                end: float = end,
                counts: list[int] = counts,
            ) -> None:
                while time.perf_counter() < end:
                    await p.append(_VALUE, durable=True)
                    counts[task] += 1

            begin, syncs = time.perf_counter(), _syncs(p)
            if tasks:
                await asyncio.gather(*(work(task) for task in range(tasks)))
            else:
                while time.perf_counter() < end:
                    p.blocking.append(_VALUE, durable=True)
                    counts[0] += 1
            taken, total = time.perf_counter() - begin, sum(counts)
            if p.durable_offset != total + 1 or len(list(p.read())) != total + 1:
                raise AssertionError("a record is missing")
            rows.append(
                {
                    "case": "append",
                    "tasks": tasks or "blocking",
                    "per_s": total / taken,
                    "per_sync": total / (_syncs(p) - syncs),
                }
            )
    one, most = rows[1]["per_s"], rows[-1]["per_s"]
    rows.append({"case": "append", "ratio_1000_to_1": most / one})
    return rows


def _syncs(partition: logstore.aio.Partition) -> int:
    writer = partition.blocking._writer
    assert writer is not None
    return writer.flush_counts()[0]


async def plain(folder: Path) -> Row:
    """Appends that are not durable."""
    config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
    async with logstore.aio.open(folder / "plain") as store:
        p = (await store.create_topic("bench", config=config))[0]
        await p.append(_VALUE)
        begin = time.perf_counter()
        for _ in range(_PLAIN):
            await p.append(_VALUE)
        awaited = time.perf_counter() - begin
        begin = time.perf_counter()
        for _ in range(_PLAIN):
            p.blocking.append(_VALUE)
        blocking = time.perf_counter() - begin
        if p.end_offset != 2 * _PLAIN + 1:
            raise AssertionError("a record is missing")
    return {
        "case": "plain",
        "per_s": _PLAIN / awaited,
        "blocking_per_s": _PLAIN / blocking,
    }


# ------------------------------------------------------------------------ following

_FOLLOWER: Final = """
import asyncio, time
import logstore.aio
async def main():
    async with logstore.aio.open(sys.argv[1], read_only=True) as store:
        partition = store.topic("bench")[0]
        taken = []
        print("ready", flush=True)
        async for record in partition.follow(partition.start_offset):
            now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            if record.key == b"end":
                break
            if record.key == b"count":
                print(*taken, flush=True)
                taken = []
                continue
            taken.append(now - int(record.value))
import sys
asyncio.run(main())
"""
_MANY: Final = """
import asyncio, sys
import logstore.aio
async def main():
    async with logstore.aio.open(sys.argv[1], read_only=True) as store:
        partition = store.topic("bench")[0]
        followers = [partition.follow(partition.end_offset) for _ in range(%d)]
        tasks = [asyncio.ensure_future(anext(f)) for f in followers]
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        while True:
            records = await asyncio.gather(*tasks)
            print("all", flush=True)
            if records[0].value == b"end":
                return
            tasks = [asyncio.ensure_future(anext(f)) for f in followers]
            await asyncio.sleep(0)
asyncio.run(main())
"""


def _process(program: str, path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, str(path)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _line(process: subprocess.Popen[str], wanted: str = "") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if wanted and line != wanted:
        raise AssertionError(f"the follower says {line!r}, not {wanted!r}")
    return line


def _idle_share(pid: int) -> float:
    """The share of a core that a process takes while nothing is appended."""
    begin, cpu = time.monotonic(), cpu_ns(pid)
    time.sleep(_IDLE_SECONDS)
    return (cpu_ns(pid) - cpu) / 1e9 / (time.monotonic() - begin)


def _delays(where: str, taken: list[int], **more: float) -> Row:
    return {
        "case": "follow",
        "where": where,
        "p50_us": statistics.median(taken) / 1000,
        "p99_us": report.quantile(taken, 0.99) / 1000,
        **more,
    }


async def follow_here(folder: Path) -> Row:
    """A task follows in the process that appends."""
    config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
    async with logstore.aio.open(folder / "here") as store:
        p = (await store.create_topic("bench", config=config))[0]
        await p.append(b"0")
        taken: list[int] = []

        async def read() -> None:
            async for record in p.follow(1, limit=_APPENDS):
                now = time.clock_gettime_ns(_CLOCK)
                taken.append(now - int(record.value or b""))

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        for _ in range(_APPENDS):
            await p.append(b"%d" % time.clock_gettime_ns(_CLOCK))
            await asyncio.sleep(_PAUSE_SECONDS)
        await reading
    return _delays("same process", taken)


def follow_there(folder: Path) -> Row:
    """A task follows in another process; its CPU while it waits."""
    config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
    with logstore.open(folder / "there") as store:
        partition = store.create_topic("bench", config=config)[0]
        with _process(_FOLLOWER, folder / "there") as process:
            _line(process, "ready")

            def batch(count: int) -> list[int]:
                for _ in range(count):
                    now = time.clock_gettime_ns(_CLOCK)
                    partition.append(b"%d" % now, b"timed")
                    time.sleep(_PAUSE_SECONDS)
                partition.append(b"", b"count")
                return [int(one) for one in _line(process).split()]

            batch(100)
            taken = batch(_APPENDS)
            if len(taken) != _APPENDS:
                raise AssertionError(f"the follower had {len(taken)} records")
            time.sleep(1)
            idle = _idle_share(process.pid)
            partition.append(b"", b"end")
    return _delays("another process", taken, idle_cpu_percent=100 * idle)


async def many_here(folder: Path) -> Row:
    """1,000 followers of a partition in the process that appends."""
    config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
    async with logstore.aio.open(folder / "many") as store:
        p = (await store.create_topic("bench", config=config))[0]
        await p.append(b"0")
        followers = [p.follow(1) for _ in range(_FOLLOWERS)]
        taken = []
        for _ in range(_ROUNDS):
            tasks = [asyncio.ensure_future(anext(f)) for f in followers]
            await asyncio.sleep(0.05)
            begin = time.perf_counter_ns()
            offset = await p.append(b"")
            records = await asyncio.gather(*tasks)
            taken.append(time.perf_counter_ns() - begin)
            if {record.offset for record in records} != {offset}:
                raise AssertionError("a follower has another record")
    return {
        "case": "many",
        "where": "same process",
        "followers": _FOLLOWERS,
        "p50_ms": statistics.median(taken) / 1e6,
    }


def many_there(folder: Path) -> Row:
    """The same in another process; their CPU while they wait."""
    config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
    with logstore.open(folder / "many there") as store:
        partition = store.create_topic("bench", config=config)[0]
        partition.append(b"0")
        with _process(_MANY % _FOLLOWERS, folder / "many there") as process:
            _line(process, "ready")
            taken = []
            for _ in range(_ROUNDS):
                begin = time.perf_counter_ns()
                partition.append(b"")
                _line(process, "all")
                taken.append(time.perf_counter_ns() - begin)
                time.sleep(0.1)
            idle = _idle_share(process.pid)
            partition.append(b"end")
            _line(process, "all")
    return {
        "case": "many",
        "where": "another process",
        "followers": _FOLLOWERS,
        "p50_ms": statistics.median(taken) / 1e6,
        "idle_cpu_percent": 100 * idle,
    }


# ----------------------------------------------------------------------- the program


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.aio", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=5, help="of each append")
    parser.add_argument("--only", choices=["append", "plain", "follow", "many"])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    rows: list[Row] = []
    cases: list[tuple[str, Callable[[Path], list[Row]]]] = [
        ("append", lambda f: asyncio.run(append(f, options.seconds))),
        ("plain", lambda f: [asyncio.run(plain(f))]),
        ("follow", lambda f: [asyncio.run(follow_here(f)), follow_there(f)]),
        ("many", lambda f: [asyncio.run(many_here(f)), many_there(f)]),
    ]
    with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
        for name, case in cases:
            if options.only not in (None, name):
                continue
            for row in case(Path(folder)):
                rows.append(row)
                print(
                    ", ".join(
                        f"{key} {value:.4g}"
                        if isinstance(value, float)
                        else f"{key} {value}"
                        for key, value in row.items()
                    ),
                    flush=True,
                )
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
