"""No thread, no memory, no descriptor, no stack: at any point of any public call.

Each call is made while a resource runs out: a thread cannot be started, the n-th
allocation of the interpreter fails (and some after it), the address space may not
grow, no more files may be opened, the stack is nearly full. It works, or raises an
error that names the resource; records of a call that raised are not in the log, records
of a call that returned are. Once the resource is available again, everything works:
other calls, syncs by time, `close()`, opening again.
"""

from __future__ import annotations

import _thread
import contextlib
import importlib
import math
import os
import random
import resource
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import logstore
from faults import aftermath
from faults.method import Tally
from faults.scene import CALLS, Scene, elsewhere
from faults.scene_log import Plan
from faults.scene_state import Unavailable
from faults.tracing import AtLine
from faults.watched import Broken, Watch, run_cases, told
from logstore import LogStoreError

NAME = "limits"
UNIT = "calls at a limit"
COUNTS = {"commit": 400, "nightly": 10_000, "release": 40_000}

_EACH = 14
_CALLS = 18
_OFTEN = ("append", "append_many", "append_rolls", "flush", "publish", "create_topic")
# Approximate number of allocations of the longest call at the start.
_ALLOCATIONS = 5_000


# Errors of the interpreter when an allocation fails: "can't allocate lock", "error
# return without exception set", and errors about objects that it could not inspect.
_NO_MEMORY = (MemoryError, RuntimeError, SystemError, TypeError, AttributeError)


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` calls at a limit."""
    if _nomemory() is None:
        tally.note("without failing allocations: this Python has no _testcapi")
    run_cases(case, count, seed, tally, each=_EACH)


def _nomemory() -> tuple[Callable[[int, int], None], Callable[[], None]] | None:
    with contextlib.suppress(ImportError):
        import _testcapi

        return _testcapi.set_nomemory, _testcapi.remove_mem_hooks
    return None


class _Limit:
    """A limited resource.

    Attributes:
        what: in words.
        around: makes a call at the limit.
        may: other errors than the library's that name the resource.
        sure: such an error means that nothing was done.
    """

    def __init__(
        self,
        what: str,
        around: Callable[[Plan], Any],
        may: tuple[type[BaseException], ...] = (),
        *,
        sure: bool = True,
    ) -> None:
        self.what = what
        self.around = around
        self.may = may
        self.sure = sure


# --------------------------------------------------------------------------- limits


def _no_thread(rng: random.Random) -> _Limit:
    """Fail every start of a thread, like a container at its limit."""

    def refuse(*arguments: Any) -> None:
        raise RuntimeError("can't start new thread")

    def around(plan: Plan) -> Any:
        with (
            mock.patch.object(_thread, "start_new_thread", refuse),
            mock.patch.object(threading, "_start_new_thread", refuse),
        ):
            return plan.call()

    return _Limit("no thread", around)


def _no_address_space(rng: random.Random) -> _Limit:
    """Limit the address space: the stack of a new thread, or a large buffer, fails."""
    spare = round(math.exp(rng.uniform(math.log(1 << 16), math.log(16 << 20))))

    def around(plan: Plan) -> Any:
        before = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        used = pages * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + spare, before[1]))
        try:
            return plan.call()
        finally:
            resource.setrlimit(resource.RLIMIT_AS, before)

    what = f"{spare >> 10} KiB of address space"
    # ImportError: of a module that is imported at first use.
    return _Limit(what, around, (MemoryError, ImportError), sure=False)


def _no_allocation(rng: random.Random) -> _Limit:
    """Fail the n-th allocation, or some from there on."""
    begin = round(math.exp(rng.uniform(0, math.log(_ALLOCATIONS))))
    # Not all later ones: the interpreter retries some of them until they succeed.
    count = rng.choice((1, 1, 2, 20, 300))
    found = _nomemory()
    assert found is not None
    start, stop = found
    # Python may crash if an allocation fails while it compiles a module of pyarrow.
    importlib.import_module("logstore.record.arrow_batches")

    def around(plan: Plan) -> Any:
        call = plan.call
        start(begin, begin + count)
        try:
            return call()
        finally:
            stop()

    what = f"no memory from allocation {begin} on, {count} of them"
    return _Limit(what, around, _NO_MEMORY, sure=False)


def _no_descriptor(rng: random.Random) -> _Limit:
    """Allow this number of further open files, from the beginning, or from some line
    on."""
    free = rng.choice((0, 0, 1, 2, 3, 5))
    line = rng.choice((0, round(math.exp(rng.uniform(0, math.log(1500))))))

    def around(plan: Plan) -> Any:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)

        def limit() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_first_free(free), before[1]))

        try:
            if not line:
                limit()
                return plan.call()
            sys.settrace(AtLine(line, limit))
            return plan.call()
        finally:
            sys.settrace(None)
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    return _Limit(f"{free} descriptors from line {line} on", around)


def _first_free(count: int) -> int:
    """The number of the first descriptor after `count` free ones."""
    used = set(map(int, os.listdir("/proc/self/fd")))
    # The listing used a descriptor itself, which is closed by now.
    number = 0
    while count or number in used:
        if number not in used:
            count -= 1
        number += 1
    return number


def _no_stack(rng: random.Random) -> _Limit:
    """Leave room on the stack for this number of further calls."""
    spare = rng.randint(1, 45)

    def around(plan: Plan) -> Any:
        before = sys.getrecursionlimit()
        depth, frame = 0, sys._getframe()
        while frame is not None:
            depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
        call = plan.call
        try:
            sys.setrecursionlimit(depth + spare + 2)
            return call()
        finally:
            sys.setrecursionlimit(before)

    return _Limit(f"room for {spare} calls", around, (RecursionError,))


_LIMITS: tuple[Callable[[random.Random], _Limit], ...] = (
    _no_thread, _no_address_space, _no_descriptor, _no_stack,
)  # fmt: skip


# ------------------------------------------------------------------------- one case


def case(seed: int, folder: Path, watch: Watch) -> None:
    """Make some calls on one store at limits; then close it, and open it again."""
    rng = random.Random(seed)
    scene = Scene(folder / "store", rng, watch)
    kinds = [*_LIMITS, *([_no_allocation] * 2 if _nomemory() else [])]
    if rng.random() < 0.5:
        # Else the first start of its thread happens at a limit.
        for name in ("append", "append_many"):
            scene.perform(scene.plan(name))
    for _ in range(_CALLS):
        name = rng.choice(_OFTEN if rng.random() < 0.4 else CALLS)
        _one(scene, name, rng.choice(kinds)(rng), rng)
    scene.has_closed = True
    where = ""
    if rng.random() < 0.6:
        limit = rng.choice(kinds)(rng)
        where = f"close with {limit.what}"
        _limited(scene, Plan("close", scene.store.close), limit)
    aftermath.close_by_another(scene, where)
    aftermath.reopen(scene, where)
    if rng.random() < 0.3:
        aftermath.check_timer(scene)
    scene.store.close()
    scene.check_sound()


def _one(scene: Scene, name: str, limit: _Limit, rng: random.Random) -> None:
    try:
        plan = scene.plan(name)
    except Unavailable:
        return
    where = f"{plan} with {limit.what}"
    error = _limited(scene, plan, limit)
    scene.watch.say(f"a look after {where}: {error!r}")
    elsewhere(lambda: scene.settle(f"the store, after {where}: {error!r}"[:300]))
    aftermath.use(scene, rng, f"{where}: {error!r}"[:300])
    if rng.random() < 0.1:
        aftermath.check_timer(scene)


def _limited(scene: Scene, plan: Plan, limit: _Limit) -> BaseException | None:
    """Make a call at a limit; check that its error fits the limit."""

    def may_have_happened(error: BaseException) -> bool:
        if getattr(error, "appended", ()):
            return True  # a call on several partitions has appended to some of them
        if isinstance(error, limit.may):
            return not (limit.sure and plan.appends)
        return isinstance(error, logstore.errors.SyncFailedError)

    scene.around = limit.around
    scene.may_have_happened = may_have_happened  # type: ignore[method-assign]
    scene.watch.say(f"{plan} with {limit.what}")
    try:
        error = scene.perform(plan)
    finally:
        scene.around = lambda one: one.call()
        del scene.may_have_happened
    scene.watch.done += 1
    if error is None:
        return None
    scene.watch.notes[type(error).__name__] += 1
    if isinstance(error, Broken):
        raise error
    if not isinstance(error, (LogStoreError, *limit.may, *plan.expects)):
        raise Broken(f"{plan} with {limit.what}: {told(error)}"[:900])
    if isinstance(error, logstore.CorruptionError):
        raise Broken(f"{plan} with {limit.what}: {told(error)}"[:900])
    if plan.topic:
        scene.doubt(plan)
    return error


__all__ = ["COUNTS", "NAME", "UNIT", "case", "run"]
