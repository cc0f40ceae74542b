"""Cases that may hang or kill their process: each in a separate child, watched.

A case announces its next step (`Watch.say`). A case that says nothing for too long
hangs: that is a failure, with its last announcement, and a traceback of each thread.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import faulthandler
import gc
import json
import logging
import mmap
import multiprocessing
import os
import re
import select
import shutil
import signal
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from faults.method import Tally
from faults.workers import count_of_workers

__all__ = ["Broken", "Said", "Watch", "Work", "run_cases", "scratch", "told", "watch"]

# A case without an announcement for this time hangs. Allows for a busy machine.
QUIET_S = 12.0
# Time that it waits for a processor does not count, up to this multiple.
_BUSY = 10
# Distance of the seeds of one run: so large that runs of other days have other seeds.
_STEP = 1_000_000_007
_TEXT_BYTES = 4096
_FRAMES = 7


class Broken(Exception):
    """A promise was not kept."""


class Said(NamedTuple):
    """Result of a case.

    Attributes:
        done: number of calls that count.
        failure: the problem; "" for none.
        notes: other counts.
    """

    done: int
    failure: str
    notes: dict[str, int]


class Watch:
    """Messages of a running case, in memory shared with its parent.

    Attributes:
        done: calls that count, so far.
        notes: other counts.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _TEXT_BYTES)
        self._count = 0
        self.notes: Counter[str] = Counter()
        self.said: deque[str] = deque(maxlen=2_000)

    def say(self, text: str) -> None:
        """Announce the next step."""
        self._count += 1
        self.said.append(text[:200])
        data = text.encode(errors="replace")[: _TEXT_BYTES - 24]
        self._shared[24 : 24 + len(data) + 1] = data + b"\0"
        self._shared[:8] = self._count.to_bytes(8, "little")

    @property
    def done(self) -> int:
        return int.from_bytes(self._shared[8:16], "little")

    @done.setter
    def done(self, count: int) -> None:
        self._shared[8:16] = count.to_bytes(8, "little")

    def last(self) -> tuple[int, str]:
        """(number of announcements, the last one)."""
        data = self._shared[:]
        text = data[24:].partition(b"\0")[0].decode(errors="replace")
        return int.from_bytes(data[:8], "little"), text


Work = Callable[[int, Path, Watch], None]


def scratch() -> str | None:
    """The directory of stores: memory, if there is some."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def run_cases(work: Work, count: int, seed: int, tally: Tally, *, each: int) -> None:
    """Run cases until they have made `count` calls that count.

    Args:
        work: runs the case of a seed in a directory; raises `Broken`.
        seed: of the first case; only that is run if `count` is 1.
        each: approximate number of calls of a case.
    """
    context = multiprocessing.get_context("spawn")
    notes: Counter[str] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="faults-", dir=scratch()) as folder,
        concurrent.futures.ProcessPoolExecutor(
            count_of_workers(), mp_context=context, initializer=_begin
        ) as pool,
    ):
        running: dict[concurrent.futures.Future[Said], int] = {}
        number = 0
        while tally.done < count:
            most = 2 * count_of_workers()
            while (
                len(running) < most and tally.done + each * len(running) < count
            ) or not running:
                at = seed + number * _STEP
                number += 1
                running[pool.submit(watch, work, at, folder)] = at
            ended, _ = concurrent.futures.wait(
                running, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for future in ended:
                at, said = running.pop(future), future.result()
                notes.update(said.notes)
                tally.passed(max(said.done - bool(said.failure), 0))
                if said.failure:
                    tally.failed(f"--count 1 --seed {at}: {said.failure}")
        for future in running:
            future.cancel()
    if notes:
        tally.note(", ".join(f"{what} {n:,}" for what, n in sorted(notes.items())))


def _begin() -> None:
    logging.disable(logging.CRITICAL)
    # Modules imported here need not be imported by each case.
    with contextlib.suppress(ImportError):
        import pyarrow

        # The first array makes it import pandas, if installed, under its own lock, on
        # which a signal handler that makes an array would wait for its own thread.
        pyarrow.array([b""], "binary")
    gc.freeze()


def watch(work: Work, seed: int, folder: str, quiet_s: float | None = None) -> Said:
    """Run the case of a seed in a child, and watch it."""
    own = Path(tempfile.mkdtemp(dir=folder))
    seen = Watch()
    reading, writing = os.pipe()
    with open(own / "threads", "w+b") as threads:
        child = os.fork()
        if child == 0:
            os.close(reading)
            faulthandler.enable(threads)
            faulthandler.register(signal.SIGUSR1, threads, all_threads=True)
            _child(work, seed, own, seen, writing)
        os.close(writing)
        try:
            answer, failure = _wait(child, reading, seen, quiet_s or QUIET_S)
        finally:
            os.close(reading)
        threads.seek(0)
        dump = _shortened(threads.read().decode(errors="replace"))
    shutil.rmtree(own, ignore_errors=True)
    if failure:
        return Said(seen.done + 1, f"{failure} ({seen.last()[1]}){dump}", {})
    failure, notes, before = json.loads(answer)
    if failure:
        # A child of the case may have been asked for its threads.
        failure = (
            "\n            ".join([f"{failure} ({seen.last()[1]})", *before]) + dump
        )
    return Said(seen.done + bool(failure), failure, notes)


def _child(work: Work, seed: int, own: Path, seen: Watch, writing: int) -> None:
    text = ""
    # Errors that cannot be raised are printed, and ignored.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    warnings.simplefilter("ignore", ResourceWarning)
    died: list[str] = []
    threading.excepthook = lambda what: died.append(told(what.exc_value))
    try:
        work(seed, own, seen)
        if died:
            text = f"a thread has died: {died[0]}"
    except Broken as error:
        text = str(error)
    except BaseException as error:
        # Not an error of the library, so unexpected: its traceback helps.
        text = f"unexpected {told(error)}"
    try:
        # The steps before a failure, to explain it.
        before = _before(list(seen.said), text) if text else []
        answer = text[:1800], dict(seen.notes), before
        os.write(writing, json.dumps(answer).encode())
    except BaseException as error:
        answer = f"cannot tell: {error!r}, {text[:99]}", {}, []
        os.write(writing, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _before(said: list[str], text: str) -> list[str]:
    """Last lines, preceded by earlier lines about the values that a failure names."""
    values = re.findall(r"b'\d+\.", text)
    about = [line for line in said[:-30] if any(value in line for value in values)]
    return about[-10:] + said[-30:]


def told(error: BaseException | None) -> str:
    """An error, and the places that raised it, innermost first."""
    places = [
        f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__ if error else None)
    ]
    return f"{error!r}"[:700] + ": " + " < ".join(reversed(places[-_FRAMES:]))


def _wait(child: int, reading: int, seen: Watch, quiet_s: float) -> tuple[bytes, str]:
    """(what a child wrote, what was wrong with it)."""
    heard, since, waited = seen.last()[0], time.monotonic(), _waited_s(child)
    data = b""
    while True:
        ready, _, _ = select.select([reading], [], [], 0.25)
        if ready:
            more = os.read(reading, 1 << 16)
            data += more
            if more:
                continue
            # A child of the case may live on; the case itself has ended.
            _, status = os.waitpid(child, 0)
            if data:
                return data, ""
            return data, f"died, wait status {status}"
        now = seen.last()[0]
        if now != heard:
            heard, since, waited = now, time.monotonic(), _waited_s(child)
        if data:
            os.waitpid(child, 0)
            return data, ""
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            if select.select([reading], [], [], 0)[0]:
                data = os.read(reading, 1 << 20)  # it spoke, and ended, right now
            return data, "" if data else f"died without a word, wait status {status}"
        quiet = time.monotonic() - since
        # On a busy machine it may only have had no processor.
        if quiet > _BUSY * quiet_s or quiet - _waited_s(child) + waited > quiet_s:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGUSR1)
                time.sleep(0.5)
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return data, f"hangs: nothing for {quiet_s:.0f} s"


def _waited_s(child: int) -> float:
    """How long the threads of a process have waited for a processor, in seconds."""
    waited_ns = 0
    for path in Path(f"/proc/{child}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError):
            waited_ns += int(path.read_text().split()[1])
    return waited_ns / 1e9


_PLACE = re.compile(r'File "([^"]*)", line (\d+) in (\S+)')


def _shortened(dump: str) -> str:
    """Innermost places of each thread in a `faulthandler` dump, one line each."""
    parts = re.split(r"\n(?=(?:Current thread|Thread) )", "\n" + dump)
    told = []
    for part in parts:
        places = [
            f"{os.path.basename(path)}:{line} {name}"
            for path, line, name in _PLACE.findall(part)
        ]
        if places:
            told.append(" < ".join(places[:_FRAMES]))
    return "".join(f"\n        thread: {text}" for text in told[:6])
