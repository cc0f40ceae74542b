"""A log that is written and read at the same time: ``python -m bench.live``.

- ``both``: for some time (``--seconds``), one thread appends batches of 1,000 records
  and another reads records, from the start again when it has come to the end. Old
  segments are deleted meanwhile. Records per second in and out, and CPU seconds.
- ``follow``: another process follows the log. The time from the call of `append` to the
  record there, for appends 2 ms apart; and the CPU of the follower while nothing is
  appended.

Keys, values and offsets of read records are compared with the written ones: every
thousandth record during the run, all remaining ones at the end.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import logstore
from bench import report
from bench.ours import NEVER
from bench.workload import BATCH_RECORDS, Workload

__all__ = ["cpu_ns", "main"]

_KEPT_RECORDS: Final = 5_000_000
_APPENDS: Final = 2_000
_PAUSE_SECONDS: Final = 0.002
_IDLE_SECONDS: Final = 20.0
_CLOCK: Final = time.CLOCK_MONOTONIC  # the same in all processes


# ------------------------------------------------------------------ appends and reads


def both(folder: Path, seconds: float, magic: int, is_synced: bool) -> dict[str, Any]:
    """One thread appends, one reads. With `is_synced`, logstore syncs every 10,000
    records and every second, as is the default of topics; else never."""
    workload = Workload(100_000)
    never = {"flush_messages": NEVER, "flush_ms": NEVER}
    settings: dict[str, Any] = {} if is_synced else never
    config = logstore.TopicConfig(
        message_format=magic,
        segment_bytes=128 << 20,
        file_delete_delay_ms=0,
        **settings,
    )
    counts = {"in": 0, "out": 0}
    failures: list[BaseException] = []
    with logstore.open(folder / "store") as store:
        partition = store.create_topic("bench", config=config)[0]
        keys, values = workload.batches[0]
        partition.append_many(values, keys)
        end = time.monotonic() + seconds

        def write() -> None:
            number = 0
            while time.monotonic() < end:
                number += 1
                keys, values = workload.batches[number % len(workload.batches)]
                stop = partition.append_many(values, keys).stop
                counts["in"] += BATCH_RECORDS
                if number % 1000 == 0 and stop > _KEPT_RECORDS:
                    partition.delete_before(stop - _KEPT_RECORDS)

        def read() -> None:
            while time.monotonic() < end:
                count = 0
                # A part of the log, so that deleted segments are not kept open.
                start = max(partition.start_offset, partition.end_offset - 1_000_000)
                for record in partition.read(start):
                    _, _ = record.key, record.value
                    count += 1
                    if count % BATCH_RECORDS == 0:
                        check(record, start + count - 1)
                        if time.monotonic() >= end:
                            break
                counts["out"] += count

        def check(record: logstore.Record, offset: int) -> None:
            n = offset % workload.count
            if (record.offset, record.key, record.value) != (
                offset,
                workload.keys[n],
                workload.values[n],
            ):
                raise AssertionError(f"the record at {offset} is {record}")

        def guarded(work: Any) -> None:
            try:
                work()
            except BaseException as error:
                failures.append(error)

        begin, cpu = time.perf_counter(), time.process_time()
        threads = [
            threading.Thread(target=guarded, args=(work,)) for work in (write, read)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        taken, cpu = time.perf_counter() - begin, time.process_time() - cpu
        if failures:
            raise failures[0]
        for offset, record in enumerate(partition.read(), partition.start_offset):
            check(record, offset)
    return {
        "case": "both",
        "magic": magic,
        "synced": is_synced,
        "seconds": taken,
        "in_per_s": counts["in"] / taken,
        "out_per_s": counts["out"] / taken,
        "cores_used": cpu / taken,
    }


# ------------------------------------------------------------------ following

_FOLLOWER: Final = """
import sys, time
import logstore
with logstore.open(sys.argv[1], read_only=True) as store:
    partition = store.topic("bench")[0]
    taken = []
    print("ready", flush=True)
    for record in partition.follow(partition.start_offset):
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        if record.key == b"end":
            break
        if record.key == b"count":
            print(*taken, flush=True)
            taken = []
            continue
        taken.append(now - int(record.value))
"""


def follow(folder: Path, magic: int) -> dict[str, Any]:
    """Another process follows; its delays, and its CPU while it waits."""
    config = logstore.TopicConfig(
        message_format=magic, flush_messages=NEVER, flush_ms=NEVER
    )
    with logstore.open(folder / "followed") as store:
        partition = store.create_topic("bench", config=config)[0]
        command = [sys.executable, "-c", _FOLLOWER, str(folder / "followed")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            lines = process.stdout
            if lines.readline() != "ready\n":
                raise AssertionError("the follower did not start")

            def batch(count: int) -> list[int]:
                for _ in range(count):
                    now = time.clock_gettime_ns(_CLOCK)
                    partition.append(b"%d" % now, b"timed")
                    time.sleep(_PAUSE_SECONDS)
                partition.append(b"", b"count")
                return [int(one) for one in lines.readline().split()]

            batch(100)
            taken = batch(_APPENDS)
            if len(taken) != _APPENDS:
                raise AssertionError(f"the follower had {len(taken)} records")
            time.sleep(1)
            begin, cpu = time.monotonic(), cpu_ns(process.pid)
            time.sleep(_IDLE_SECONDS)
            idle = (cpu_ns(process.pid) - cpu) / 1e9 / (time.monotonic() - begin)
            partition.append(b"", b"end")
    return {
        "case": "follow",
        "magic": magic,
        "p50_us": statistics.median(taken) / 1000,
        "p99_us": report.quantile(taken, 0.99) / 1000,
        "idle_cpu_percent": 100 * idle,
    }


def cpu_ns(pid: int) -> int:
    """CPU time of all threads of a process, in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.live", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60, help="of `both`")
    parser.add_argument("--only", choices=["both", "follow"])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args(argv)
    rows = []

    def add(row: dict[str, Any]) -> None:
        rows.append(row)
        print(
            ", ".join(
                f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
                for name, value in row.items()
            ),
            flush=True,
        )

    for magic in (1, 2):
        with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
            if options.only != "follow":
                for is_synced in (False, True):
                    path = Path(folder) / str(is_synced)
                    path.mkdir()
                    add(both(path, options.seconds, magic, is_synced))
            if options.only != "both":
                add(follow(Path(folder), magic))
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
