"""How soon an owner is back: ``python -m bench.restarts``.

Eight processes append to a shared store without a pause. Its owner is killed with
SIGKILL and started again, again and again: the time from its call of `logstore.open`
until it has appended a record itself (the time of Python's start and imports is not
counted: the workers leave it a fifth of a core or less). Afterwards every append that
was acknowledged is there once, and records of a process are in their order.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import logstore
from bench import report

__all__ = ["main", "measure"]

_PARTITIONS: Final = 8
_WORKERS: Final = 8
_BATCH: Final = 10
_LIVES_S: Final = 0.3

_OWNER: Final = """
import sys, time, logstore
open_store = logstore.open  # imports what it needs
begin = time.perf_counter()
with open_store(sys.argv[1], lock_timeout_ms=60_000) as store:
    store.topic("bench")[0].append(b"owner", durable=True)
    print(time.perf_counter() - begin, flush=True)
    sys.stdin.read()
"""
_WORKER: Final = f"""
import select, sys, logstore
name, number = sys.argv[2].encode(), 0
with logstore.open(sys.argv[1], shared=True, hand_in_timeout_ms=60_000) as store:
    topic = store.topic("bench")
    print("open", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        values = [b"%s %d %d" % (name, number, row) for row in range({_BATCH})]
        topic[number % {_PARTITIONS}].append_many(values)
        number += 1
    print(number, flush=True)
"""


@contextlib.contextmanager
def _running(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process; it is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"a process has ended with {process.wait()}")
    return line


def measure(path: Path, restarts: int) -> list[float]:
    """Seconds of each start."""
    with logstore.open(path) as store:
        store.create_topic("bench", _PARTITIONS)
    rng, found = random.Random(1), list[float]()
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(_running(_WORKER, str(path), f"w{number}"))
            for number in range(_WORKERS)
        ]
        for worker in workers:
            _line(worker)
        for _ in range(restarts):
            with _running(_OWNER, str(path)) as owner:
                found.append(float(_line(owner)))
                time.sleep(rng.uniform(0, _LIVES_S))
        counts = []
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()
            counts.append(int(_line(worker)))
    _check(path, counts)
    return found


def _check(path: Path, counts: Sequence[int]) -> None:
    """Count the records of the workers, and check their order."""
    seen: Counter[bytes] = Counter()
    with logstore.open(path) as store:
        for partition in store.topic("bench"):
            last: dict[bytes, tuple[int, int]] = {}
            for record in partition.read():
                assert record.value is not None
                if record.value != b"owner":
                    name, number, row = record.value.split()
                    at = int(number), int(row)
                    if at <= last.get(name, (-1, -1)):
                        raise SystemExit(f"{record.value!r} comes after {last[name]}")
                    last[name] = at
                    seen[name] += 1
    expected = {b"w%d" % n: _BATCH * count for n, count in enumerate(counts)}
    if seen != expected:
        raise SystemExit(f"{seen} were found, {expected} were acknowledged")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--restarts", type=int, default=200)
    parser.add_argument("--json", metavar="FILE", help="- for standard output")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="logstore-bench-") as folder:
        found = measure(Path(folder) / "store", options.restarts)
    rows: list[dict[str, Any]] = [
        {
            "restarts": len(found),
            "median_s": statistics.median(found),
            "p99_s": report.quantile(found, 0.99),
            "max_s": max(found),
            "within_1_s": sum(one <= 1 for one in found),
        }
    ]
    for name, value in rows[0].items():
        print(f"{name:12} {value:.3g}")
    if options.json:
        report.write(options.json, rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
