"""How fast `logstore-dump export` writes JSON lines of binary values, compared with
parquet.

    PYTHONPATH=src python -m bench.export
    PYTHONPATH=src python -m bench.export --gigabytes 2 --rounds 5 --to file
    PYTHONPATH=src python -m bench.export --before ../other/src --only 1000

Each contestant is a separate process, which exports the same store: random values, keys
of 8 bytes, one partition, a warm page cache. They take turns, and the order rotates.
Wall time and CPU seconds cover the whole process, its start included. The ratio is the
median, over the rounds, of the rate of JSON lines divided by that of parquet in the
same round; "CPU" is the same for CPU seconds (parquet's divided by ours). The target is
0.5 with values of 1,000 bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import logstore
from bench.rounds import Outcome, Timing

NEVER: Final = (1 << 63) - 1
BATCH_BYTES: Final = 900_000
BATCH_RECORDS: Final = 1000
RIVAL: Final = "parquet"


class Case(NamedTuple):
    """A store: the size of its values, and its format."""

    value_bytes: int
    magic: int
    codec: str

    @property
    def name(self) -> str:
        return f"{self.value_bytes} B, magic {self.magic}, {self.codec}"


CASES: Final = [
    Case(100, 2, "none"),
    Case(1000, 1, "none"),
    Case(1000, 2, "none"),
    Case(1000, 1, "lz4"),
    Case(1000, 2, "zstd"),
    Case(100_000, 2, "none"),
]


class Exporter(NamedTuple):
    """A contestant: a kind of file, and the tree that writes it."""

    name: str
    kind: str
    source: str

    def run(self, store: Path, target: Path | None, amount: int) -> Timing:
        """One export: to a file, which is removed, or to ``/dev/null``."""
        words = ["-m", "logstore", "export", str(store), "--format", self.kind]
        words += ["-o", "-" if target is None else str(target)]
        begin = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": self.source},
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        if target is not None:
            target.unlink()
        if process.returncode:
            raise RuntimeError(f"export ended with status {process.returncode}")
        return Timing(seconds, used.ru_utime + used.ru_stime, amount)


def write_store(path: Path, case: Case, total: int) -> int:
    """Write about `total` bytes of values; returns how many they are."""
    config = logstore.TopicConfig(
        message_format=case.magic,
        compression_type=case.codec,
        flush_messages=NEVER,
        flush_ms=NEVER,
        segment_bytes=256 << 20,
    )
    size = case.value_bytes
    count = max(total // size, 1)
    each = min(BATCH_RECORDS, BATCH_BYTES // size)
    with logstore.open(path) as store:
        partition = store.create_topic("bench", 1, config)[0]
        for first in range(0, count, each):
            numbers = range(first, min(first + each, count))
            values = [os.urandom(size) for _ in numbers]
            partition.append_many(values, [n.to_bytes(8, "big") for n in numbers])
    return count * size


def run_case(
    case: Case, exporters: Sequence[Exporter], args: argparse.Namespace, folder: Path
) -> list[dict[str, Any]]:
    """A row for each contestant."""
    amount = write_store(folder / "store", case, int(args.gigabytes * 1e9))
    target = folder / "export" if args.to == "file" else None
    outcomes = [Outcome(one.name) for one in exporters]
    for turn in range(-1, args.rounds):
        for place in range(len(exporters)):
            at = (place + turn) % len(exporters)
            timing = exporters[at].run(folder / "store", target, amount)
            if turn >= 0:  # the one before fills the page cache
                outcomes[at].timings.append(timing)
    rival = next(one for one in outcomes if one.name == RIVAL)
    return [
        {
            "case": case.name,
            "to": args.to,
            "export": one.name,
            "GB/s": float(f"{one.rate / 1e9:.3g}"),
            "CPU-s per GB": round(one.cpu_per_million * 1000, 2),
            "ratio": round(one.ratio_to(rival), 2),
            "CPU": round(_cpu_ratio(rival, one), 2),
        }
        for one in outcomes
    ]


def _cpu_ratio(a: Outcome, b: Outcome) -> float:
    pairs = zip(a.timings, b.timings, strict=True)
    return statistics.median(x.cpu_seconds / y.cpu_seconds for x, y in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.export")
    parser.add_argument("--gigabytes", type=float, default=0.5, help="of values")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--to", choices=("null", "file"), default="null")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--before", help="`src` of another tree, for a second jsonl")
    parser.add_argument("--folder", type=Path, help="where files are written")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    mine = str(Path(logstore.__file__).parents[1])
    exporters = [Exporter(RIVAL, "parquet", mine), Exporter("jsonl", "jsonl", mine)]
    if args.before:
        exporters.append(Exporter("jsonl before", "jsonl", args.before))
    rows = []
    for case in CASES:
        if args.only not in case.name:
            continue
        with tempfile.TemporaryDirectory(
            prefix="logstore-bench-", dir=args.folder
        ) as folder:
            found = run_case(case, exporters, args, Path(folder))
        for row in found:
            print("  ".join(f"{name} {value}" for name, value in row.items()))
        rows += found
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
