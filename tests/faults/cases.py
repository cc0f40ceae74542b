"""Cases that may hang or crash: they run in separate processes, under a watchdog.

A method that uses this has a function ``problem(key) -> str``: it makes the case that
the key names, alone and the same each time, and returns its problem, or "". A case that
takes too long is a failure, with the stacks of all threads; one that ends its process
is a failure, with the exit status. The next ones run in a new process. A case that
cannot be made on this machine raises `Skip`.

``python -m faults.cases METHOD KEY`` makes one case again.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import json
import logging
import os
import pathlib
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, deque
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import logstore
from faults.method import Skip, Tally
from faults.recorded_calls import scratch
from faults.workers import count_of_workers

__all__ = ["Outcome", "folder_of", "guarded", "run_cases"]

_TESTS = pathlib.Path(__file__).resolve().parents[1]
_SOURCES = pathlib.Path(logstore.__file__).resolve().parents[1]
_MEMORY = "LOGSTORE_FAULTS_MEMORY"

# A case takes milliseconds; this many seconds allow for a busy machine.
PATIENCE_S = 60.0
# Cases of one process: leftovers of a case do not affect many others.
_EACH = 400


def folder_of(*, in_memory: bool) -> tempfile.TemporaryDirectory[str]:
    """A directory for one case: on a disk, or in memory."""
    where = os.environ.get(_MEMORY) or scratch() if in_memory else None
    return tempfile.TemporaryDirectory(prefix="case-", dir=where)


def run_cases(
    module: str, count: int, seed: int, tally: Tally, *, worth: int = 1
) -> Counter[str]:
    """Make cases until `count` of the method's units are done or skipped.

    Args:
        module: full name of the method's module.
        worth: approximate number of counted things in a case.

    Returns the summed notes of the cases.
    """
    notes: Counter[str] = Counter()
    # Not all at once: a case may count more than once.
    waiting: deque[tuple[int, int]] = deque()
    begun = 0
    size = max(1, min(_EACH, -(-count // (3 * worth * count_of_workers()))))
    with selectors.DefaultSelector() as selector:
        running: set[_Child] = set()

        def start(first: int, end: int) -> None:
            child = _Child(module, seed, first, end)
            running.add(child)
            selector.register(child.out, selectors.EVENT_READ, child)

        try:
            while True:
                while len(running) < count_of_workers():
                    if waiting:
                        start(*waiting.popleft())
                    elif tally.handled + worth * sum(c.left for c in running) < count:
                        start(begun, begun + size)
                        begun += size
                    else:
                        break
                if not running:
                    return notes
                for key, _ in selector.select(1.0):
                    _take(key.data, tally, notes)
                for child in [c for c in running if c.has_ended or c.is_stuck]:
                    selector.unregister(child.out)
                    running.discard(child)
                    rest = _end(child, tally)
                    if rest is not None and tally.handled < count:
                        waiting.append(rest)
        finally:
            for child in running:
                child.kill()


class _Child:
    """A process that makes the cases `first` to `end` (exclusive) of a seed."""

    def __init__(self, module: str, seed: int, first: int, end: int) -> None:
        self.module, self.seed, self.at, self.end = module, seed, first, end
        self.has_ended = False
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        # Files that it leaves when it is killed are removed with this.
        self.folder = tempfile.TemporaryDirectory(prefix="faults-")
        self.memory = tempfile.TemporaryDirectory(prefix="faults-", dir=scratch())
        path = [str(_TESTS), str(_SOURCES), os.environ.get("PYTHONPATH", "")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "faults.cases", module, f"{seed}/{first}", str(end)],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            env={
                **os.environ,
                "TMPDIR": self.folder.name,
                _MEMORY: self.memory.name,
                "PYTHONPATH": os.pathsep.join(filter(None, path)),
            },
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.out: IO[bytes] = self.process.stdout
        os.set_blocking(self.out.fileno(), False)
        self._text = b""
        self._last = time.monotonic()

    @property
    def key(self) -> str:
        """Key of the current case."""
        return f"{self.seed}/{self.at}"

    @property
    def left(self) -> int:
        return self.end - self.at

    @property
    def is_stuck(self) -> bool:
        return time.monotonic() - self._last > PATIENCE_S

    def lines(self) -> Iterator[dict[str, Any]]:
        """Lines that the child has written since the last call."""
        data = self.out.read(1 << 20)
        if data == b"":
            self.has_ended = True
        if data:
            self._last = time.monotonic()
            *lines, self._text = (self._text + data).split(b"\n")
            yield from map(json.loads, lines)

    def stacks(self) -> str:
        """Stacks of its threads; then it is killed."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)
        return self.kill()

    def kill(self) -> str:
        """Kill it; return its output to stderr."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.out.close()
        self.errors.seek(0)
        text = self.errors.read().decode("utf-8", "replace")
        self.errors.close()
        for folder in (self.folder, self.memory):
            shutil.rmtree(folder.name, ignore_errors=True)
            folder.cleanup()
        return text


def _take(child: _Child, tally: Tally, notes: Counter[str]) -> None:
    for line in child.lines():
        child.at += 1
        notes.update(line["notes"])
        for why, number in line["skipped"].items():
            tally.skip(why, number)
        if line["problem"]:
            tally.failed(f"{_again(child, line['key'])}: {line['problem']}")
            tally.passed(line["done"] - 1)
        else:
            tally.passed(line["done"])


def _again(child: _Child, key: str) -> str:
    return f"(python -m faults.cases {child.module} {key})"


def _end(child: _Child, tally: Tally) -> tuple[int, int] | None:
    """Handle a child that has ended or hangs; return its remaining cases."""
    if child.is_stuck and not child.has_ended:
        text = child.stacks()
        what = f"hangs for {PATIENCE_S:.0f} s: {text[-6000:]}"
    else:
        status = child.process.wait()
        text = child.kill()
        if child.left <= 0 and status == 0:
            return None
        what = f"the process ended with status {status}: {text[-3000:]}"
    tally.failed(f"{_again(child, child.key)}: {what}")
    return (child.at + 1, child.end) if child.at + 1 < child.end else None


# ---------------------------------------------------------------- in the other process


class Outcome(NamedTuple):
    """Result of a case.

    Attributes:
        problem: in words; "" for none.
        done: number of counted units that were made.
        notes: counts noted by the case.
        skipped: number of counted units that were not made, by reason.
    """

    problem: str
    done: int
    notes: Counter[str]
    skipped: dict[str, int]


def guarded(module: Any, key: str) -> Outcome:
    """Make the case of a key."""
    notes: Counter[str] = Counter()
    try:
        found = module.problem(key, notes)
    except Skip as skip:
        return Outcome("", 0, notes, {skip.why: skip.count})
    except Exception:
        found = traceback.format_exc()[-1500:]
    return Outcome(str(found), int(notes.pop("done", 1)), notes, {})


def main() -> int:
    """Make some cases; returns 1 if a single case was requested and fails."""
    name, first, *rest = sys.argv[1:]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.disable(logging.CRITICAL)
    module = importlib.import_module(name if "." in name else f"faults.{name}")
    if not rest:
        outcome = guarded(module, first)
        reason = "".join(f"skipped: {why}" for why in outcome.skipped)
        print(outcome.problem or reason or "nothing was wrong", dict(outcome.notes))
        return 1 if outcome.problem else 0
    seed, _, number = first.rpartition("/")
    for at in range(int(number), int(rest[0])):
        line = {"key": f"{seed}/{at}", **guarded(module, f"{seed}/{at}")._asdict()}
        print(json.dumps(line), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
