"""Shared parts of the benchmarks with Spark: session, options, CPU usage."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import logstore.spark

__all__ = ["add_arguments", "cpu_seconds", "session", "write_json"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `session` and `write_json`."""
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--tcp", action="store_true", help="no Unix sockets")
    parser.add_argument("--folder", type=Path, help="where files are written")
    parser.add_argument("--json", type=Path)


@contextlib.contextmanager
def session(
    args: argparse.Namespace, jars: Sequence[str] = ()
) -> Iterator[tuple[Any, Path]]:
    """A session on this machine, and a folder for its files; prints the load of the
    machine before and after: above the number of cores, rates say little."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{args.cores}]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        builder = builder.config(name, value)
    if jars:
        builder = builder.config("spark.jars", ",".join(jars))
    if args.tcp:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    else:
        builder = logstore.spark.session_defaults(builder)
    _show_load("before")
    prefix = "logstore-bench-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=args.folder) as folder:
        spark = builder.config("spark.sql.warehouse.dir", folder).getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        yield spark, Path(folder)
        spark.stop()
    _show_load("after")


def write_json(args: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))


def cpu_seconds() -> dict[str, float]:
    """CPU seconds of the processes below this one: of Java, and of Python."""
    processes = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as stat:
                    text = stat.read()
            except OSError:
                continue
            name, fields = text[text.index("(") + 1 :].rsplit(")", 1)
            numbers = fields.split()
            processes[int(entry)] = (name, int(numbers[1]), numbers[11:15])
    found = {"java": 0.0, "python": 0.0}
    for process, (name, _, times) in processes.items():
        parent = process
        while parent in processes and parent != os.getpid():
            parent = processes[parent][1]
        if parent != os.getpid() or process == parent:
            continue
        kind = "java" if name.startswith("java") else "python"
        # Its own time, and the time of its children that have ended: Java's are
        # Pythons.
        own, ended = sum(map(int, times[:2])), sum(map(int, times[2:]))
        found[kind] += own / os.sysconf("SC_CLK_TCK")
        found["python"] += ended / os.sysconf("SC_CLK_TCK")
    return found


def _show_load(when: str) -> None:
    """Print the load of the machine."""
    loads = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    cores = len(os.sched_getaffinity(0))
    print(f"load {when}: {loads} (1, 5, 15 min) on {cores} cores", flush=True)
