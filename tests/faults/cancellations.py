"""Tasks that are cancelled at every await of `logstore.aio`, while calls of other tasks
wait for theirs.

A case is a program of some tasks of one event loop: tasks that read, commit and seek by
one consumer; that change what it reads; that copy by its transactions; that append,
follow and publish in one store; or that each change a separate topic in one store. Each
call is made by a separate task, which is cancelled after some steps of the loop, after
some time, or when the loop was busy, so that the call may be done by then. The result
of a call is noted in the same step. At the end no task is cancelled, and the rest is
read. Each public coroutine of `logstore.aio` is in one of the programs.

Each record is delivered once and in order, from the position of the last `seek`; each
committed offset was the position at some time; each output is there once; each append
is there as a whole, at the returned offsets; a call that a thread makes is completed
once it has begun; no call hangs, and none raises an error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from faults.cancellation_program import EACH, Program, public_calls
from faults.cancelled_changes import Changes
from faults.cancelled_consumers import Copies, Reads, Subscribes
from faults.cancelled_stores import Appends
from faults.cases import folder_of, run_cases
from faults.method import Tally

NAME = "cancellations"
UNIT = "cancellations"
COUNTS = {"commit": 3_000, "nightly": 20_000, "release": 200_000}

PROGRAMS: tuple[type[Program], ...] = (Reads, Subscribes, Copies, Appends, Changes)
_PATIENCE_S = 20.0


def run(count: int, seed: int, tally: Tally) -> None:
    """Cancel `count` tasks."""
    notes = run_cases(__name__, count, seed, tally, worth=EACH)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))
    if count >= COUNTS["nightly"]:
        names = {name.replace("__", "") for name in public_calls()}
        for name in sorted(names - {what.removeprefix("in ") for what in notes}):
            tally.failed(f"no task was cancelled in {name}")


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    rng = random.Random(f"cancellations {key}")
    kind = rng.choice(PROGRAMS)
    with folder_of(in_memory=True) as folder:
        case = kind(Path(folder) / "store", rng)
        try:
            _run(asyncio.wait_for(case.run(), _PATIENCE_S), rng)
        except asyncio.TimeoutError:
            case.wrong.append(f"hangs for {_PATIENCE_S:.0f} s in {case.under_way()}")
        except Exception as error:
            case.wrong.append(f"{type(error).__name__}: {error}")
        if not case.wrong:
            case.look()
        notes["done"] = max(case.cancelled, 1)
        notes.update(case.notes)
    text = "; ".join(case.wrong[:3])
    return f"{kind.__name__.lower()}: {text}" if text else ""


def _run(main: Coroutine[Any, Any, None], rng: random.Random) -> None:
    """In one of the kinds of loops."""
    kind = rng.randrange(4)
    if kind == 0 and importlib.util.find_spec("uvloop") is not None:
        import uvloop

        uvloop.run(main)
        return

    async def begun() -> None:
        if kind == 1 and sys.version_info >= (3, 12):
            asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await main

    asyncio.run(begun(), debug=kind == 2)
