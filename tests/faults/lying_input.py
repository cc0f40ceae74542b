"""Input that lies: each field of the input from callers and files, set to its extremes.

Arrow columns whose positions lead out of their data; batches of all formats with a
header field, a length or a byte of a record replaced and the checksum corrected; staged
files, and the values that name them; state files and checkpoints with right checksums
around wrong numbers; indexes, snapshots. Each is refused by an error with a name, and
then nothing has changed; or the accepted input is right, and can be read. No record
that was acknowledged before is lost. There is no crash, and memory and time stay within
bounds.
"""

from __future__ import annotations

import functools
import random
import resource
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.cases import folder_of, run_cases
from faults.lies import Case
from faults.lying_arrow import Arrow
from faults.lying_batches import Batches, StagedFiles
from faults.lying_files import Checkpoints, Derived, States
from faults.method import Tally

NAME = "lying_input"
UNIT = "lies"
COUNTS = {"commit": 1_500, "nightly": 30_000, "release": 150_000}

# Lies for one store.
_EACH = 12
# Address space in addition to that of the process at its start; seconds of CPU.
_ROOM = 6 << 30
_SECONDS = 10.0


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` lies."""
    notes = run_cases(__name__, count, seed, tally, worth=_EACH)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def kind_of(key: str) -> str:
    """Kind of the lie of a case."""
    return random.Random(f"lying input {key}").choice(tuple(_KINDS))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    _limit_memory()
    rng = random.Random(f"lying input, {key}")
    kind = kind_of(key)
    with folder_of(in_memory=True) as folder:
        case = _KINDS[kind](Path(folder), rng)
        notes["done"] = 0
        for _ in range(_EACH):
            notes["done"] += 1
            begin = time.process_time()
            try:
                found = case.lie()
            except MemoryError as error:
                found = f"takes too much memory: {error}"
            took = time.process_time() - begin
            if not found and took > _SECONDS:
                found = f"takes {took:.0f} s"
            if case.is_spoiled and not found:
                break
            if found:
                case.end()
                return f"{kind}, {case.what}: {found}"
            notes[f"{kind} refused"] += case.was_refused
        found = case.end()
    return f"{kind}, at the end: {found}" if found else ""


@functools.cache
def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _ROOM
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


_KINDS: dict[str, Callable[[Path, random.Random], Case]] = {
    "arrow": Arrow,
    "batches": Batches,
    "staged": StagedFiles,
    "states": States,
    "checkpoints": Checkpoints,
    "derived": Derived,
}
