"""A program that runs a query of Spark and is killed, with the processes below it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

WAIT_S = 180


def processes() -> dict[int, tuple[int, str]]:
    """All processes of the machine: (parent, command)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_text()
                command = Path(f"/proc/{entry}/cmdline").read_bytes()
                parent = int(stat.rsplit(")", 1)[1].split()[1])
                found[int(entry)] = parent, command.replace(b"\0", b" ").decode()
    return found


def below(root: int) -> dict[int, str]:
    """The commands of the processes below one."""
    there = processes()
    found = {}
    for process, (_, command) in there.items():
        parent = process
        while parent in there and parent != root:
            parent = there[parent][0]
        if parent == root and process != root:
            found[process] = command
    return found


def kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


def run_until_stopped(folder: Path, start: Callable[[], Any]) -> None:
    """Run the query of `start`, and restart it when it fails, until the folder has a
    file `stop`; called by the program. Errors are written to `failures`."""
    while True:
        query = start()
        while query.isActive:
            if (folder / "stop").exists():
                query.stop()
                return
            time.sleep(0.1)
        with contextlib.suppress(Exception), open(folder / "failures", "a") as failures:
            text = str(query.exception())[:3000].replace("\n", " ")
            failures.write(f"{text}\n\n")


class KilledQuery:
    """A program with a query, restarted after each kill."""

    def __init__(self, program: Path, folder: Path, log: IO[bytes]) -> None:
        self._program = program
        self.folder = folder
        self.starts = 0
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        path = os.pathsep.join(sys.path)
        environment = {
            **os.environ, "PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, str(self._program), str(self.folder)],
            env=environment,
            stdout=self._log,
            stderr=self._log,
        )
        self.starts += 1

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill_driver(self) -> None:
        """Kill Java and the program; Python's workers notice it sooner or later."""
        assert self._process is not None
        for process, command in below(self._process.pid).items():
            if "pyspark.daemon" not in command:
                kill(process)
        kill(self._process.pid)
        self._process.wait()

    def workers(self) -> list[int]:
        """Python's processes: for tasks, plans, commits, and their parents."""
        assert self._process is not None
        found = below(self._process.pid).items()
        return sorted(pid for pid, command in found if "pyspark.daemon" in command)

    def end(self) -> None:
        if self.is_running:
            self.kill_driver()

    def stop(self) -> int:
        assert self._process is not None
        (self.folder / "stop").touch()
        return self._process.wait(WAIT_S)
