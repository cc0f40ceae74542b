"""Compaction: how long it takes, its memory, and appends meanwhile.

``python -m bench.compact [--records N] [--kafka]``: a log of N records of some 100
bytes, all with different keys, and one in which each key occurs five times. With
`--kafka`, Kafka's own cleaner (its jars, Java and Maven) compacts copies of them, too.
Each compaction runs in a separate process, whose largest resident memory is measured.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import logstore

__all__ = ["main"]

ROOT = Path(__file__).parents[1]
CALL = 10_000
SEGMENT_BYTES = 64 << 20
MAP_BYTES = 192 << 20  # of Kafka's: 24 for a key
CONFIG = logstore.TopicConfig(
    cleanup_policy="compact", message_format=2, segment_bytes=SEGMENT_BYTES
)


def fill(path: Path, records: int, keys: int) -> None:
    """A sealed log; the keys come in an order that has no pattern."""
    with logstore.open(path) as store:
        partition = store.create_topic("t", config=CONFIG)[0]
        for at in range(0, records, CALL):
            numbers = range(at, at + CALL)
            names = [b"key-%012d" % (n * 7919 % keys) for n in numbers]
            values = [b"value-%012d-" % n + b"x" * 80 for n in numbers]
            partition.append_many(values, names)
        partition.roll()


def compact(path: Path, max_memory: int) -> dict[str, float]:
    """Compact a log in this process."""
    with logstore.open(path) as store:
        partition = store.topic("t")[0]
        begin = time.perf_counter()
        report = partition.compact(force=True, max_memory=max_memory)
        seconds = time.perf_counter() - begin
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0])
    return {
        "seconds": seconds,
        "peak_mib": peak / 1024,
        "removed": report.removed,
        "map_mib": report.memory / (1 << 20),
    }


def in_process(path: Path, max_memory: int) -> dict[str, float]:
    """The same in a separate process."""
    command = [sys.executable, "-m", "bench.compact", "--one", str(path)]
    run = subprocess.run(
        [*command, "--max-memory", str(max_memory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(run.stdout)
    return found


def kafka(path: Path) -> float:
    """Seconds of Kafka's cleaner, without the start of Java."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support.kafka_broker import cache_directory
    from support.kafka_tools import POM, KafkaTools

    tools = KafkaTools.find(cache_directory(), "4.2.0")
    run = subprocess.run(
        [
            tools.java, "-Xmx2g", "-cp", tools.classpath,
            str(POM.with_name("Clean.java")), str(int(time.time() * 1000)),
            "86400000", str(SEGMENT_BYTES), str(MAP_BYTES), f"{path / 't-0'}:0",
        ],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return float(run.stdout.split()[1])


def appends(path: Path, *, is_compacting: bool) -> list[float]:
    """Milliseconds of appends of one record, every 0.2 ms, during a compaction or for
    three seconds."""
    times = []
    with logstore.open(path) as store:
        partition = store.topic("t")[0]
        worker = threading.Thread(target=partition.compact, kwargs={"force": True})
        if is_compacting:
            worker.start()
        end = time.perf_counter() + 3
        while worker.is_alive() if is_compacting else time.perf_counter() < end:
            begin = time.perf_counter()
            partition.append(b"x" * 100, b"key")
            times.append((time.perf_counter() - begin) * 1000)
            time.sleep(0.0002)
        if is_compacting:
            worker.join()
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=5_000_000)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--max-memory", type=int, default=64 << 20)
    parser.add_argument("--one", type=Path, help="compact this store, and print JSON")
    given = parser.parse_args(arguments)
    if given.one is not None:
        print(json.dumps(compact(given.one, given.max_memory)))
        return
    with tempfile.TemporaryDirectory(dir=".") as place:
        root = Path(place).resolve()
        for keys in (given.records, given.records // 5):
            source, copy = root / "source", root / "copy"
            fill(source, given.records, keys)
            print(f"{given.records} records, {keys} keys")
            for memory in (64 << 20, 96 << 20):
                shutil.copytree(source, copy)
                found = in_process(copy, memory)
                shutil.rmtree(copy)
                print(
                    f"  logstore, max_memory {memory >> 20} MiB: "
                    f"{found['seconds']:.2f} s, peak {found['peak_mib']:.0f} MiB, "
                    f"{found['removed']:.0f} removed"
                )
            if given.kafka:
                shutil.copytree(source, copy)
                print(f"  Kafka 4.2's cleaner: {kafka(copy):.2f} s")
                shutil.rmtree(copy)
            for is_compacting in (False, True):
                shutil.copytree(source, copy)
                times = appends(copy, is_compacting=is_compacting)
                shutil.rmtree(copy)
                p99 = statistics.quantiles(times, n=100)[98]
                print(
                    f"  appends {'beside it' if is_compacting else 'alone'}: "
                    f"median {statistics.median(times) * 1000:.0f} us, p99 "
                    f"{p99 * 1000:.0f} us, max {max(times):.1f} ms"
                )
            shutil.rmtree(source)


if __name__ == "__main__":
    main()
