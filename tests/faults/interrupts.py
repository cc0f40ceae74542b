"""Signals that raise, at every instruction of every public call, several in a row.

A signal becomes pending at the n-th instruction that the library executes, in its own
code or in code that it calls (locks, context managers, logging). Its raising handler
is then run where the interpreter looks for signals next: exactly the places where
Ctrl-C can strike. More signals come while the first one is handled. However the call
ends: no other call hangs or raises an unnamed error, in any thread; no acknowledged
record is lost; `close()` ends, in the second or third attempt at the latest, and
releases the lock.
"""

from __future__ import annotations

import contextlib
import math
import random
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

from faults import aftermath
from faults.method import Tally
from faults.scene import CALLS, Scene, elsewhere
from faults.scene_log import Plan
from faults.scene_state import Unavailable
from faults.tracing import PENDING, is_of_library, make_pending, may_raise_in, place_of
from faults.watched import Broken, Watch, run_cases

NAME = "interrupts"
UNIT = "interrupted calls"
COUNTS = {"commit": 400, "nightly": 20_000, "release": 60_000}

_EACH = 14
_CALLS = 20
# Maximum number of concurrent calls of another thread.
_BESIDE = 150
# Calls that take locks and wait, which are made more often.
_OFTEN = (
    "append", "append_durable", "append_many", "append_rolls", "flush", "publish",
    "create_topic", "delete_topic", "truncate_to", "delete_before", "roll", "produce",
    "poll", "poll", "commit", "transaction", "keyed_many", "compact",
)  # fmt: skip


class Interrupt(BaseException):
    """Like KeyboardInterrupt, but raised by these cases only."""


_tracers: list[Any] = []


class Interrupter:
    """Raises at some instructions of a call.

    Attributes:
        seen: instructions of the call that were executed.
        raised: the place of the interrupt.
    """

    def __init__(self, at: list[int]) -> None:
        self._at = at
        self.seen = 0
        self.raised: list[str] = []
        # One object for all frames, kept alive: Python holds no reference to it while
        # it calls it, and a frame may get another meanwhile.
        self._tracer = self._trace
        _tracers.append(self._tracer)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "call":
            if not is_of_library(frame):
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode":
            self.seen += 1
            if self._at and self.seen >= self._at[0]:
                self._at.pop(0)
                make_pending()
        return self._tracer

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if not may_raise_in(frame):
            return
        sys.settrace(self._tracer)
        self.raised.append(place_of(frame))
        raise Interrupt(self.raised[-1])

    def __call__(self, plan: Plan) -> Any:
        signal.signal(PENDING, self._handle)
        sys.settrace(self._tracer)
        try:
            return plan.call()
        finally:
            sys.settrace(None)


_AGAIN_MIN_S: Final = 0.001


class Alarm:
    """Raises after some time, by a signal of the system, even while a call waits.

    Attributes:
        raised: the place of the interrupt.
    """

    seen = 0

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_armed = False
        self.raised: list[str] = []

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A signal may come late, when the call is over.
        if self._is_armed and may_raise_in(frame):
            self.raised.append(place_of(frame))
            raise Interrupt(self.raised[-1])

    def __call__(self, plan: Plan) -> Any:
        signal.signal(signal.SIGALRM, self._handle)
        self._is_armed = True
        # Repeated, for calls that catch the first one; not so often that only the
        # handler runs.
        again = max(self._seconds / 2, _AGAIN_MIN_S)
        signal.setitimer(signal.ITIMER_REAL, self._seconds, again)
        try:
            return plan.call()
        finally:
            self._is_armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


class _Companion:
    """Another thread that uses the same store meanwhile; it is not interrupted.

    Attributes:
        gate: held while it must pause.
    """

    def __init__(self, scene: Scene, rng: random.Random) -> None:
        self.gate = threading.Lock()
        self._scene = scene
        self._rng = random.Random(rng.random())
        self._ends = False
        self._broken: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            for _ in range(_BESIDE):
                if self._ends:
                    break
                with self.gate:
                    self._one()
                time.sleep(0.0005)
        except Broken as error:
            beside = (
                ", ".join(map(str, self._scene.flying)) or self._scene.watch.last()[1]
            )
            self._broken.append(Broken(f"{error}, beside {beside}"))
        except BaseException as error:
            self._broken.append(error)

    def _one(self) -> None:
        name = self._rng.choice(("append", "append_durable", "append_many", "flush"))
        try:
            plan = self._scene.plan(name)
        except Unavailable:
            return
        error = self._scene.perform(plan, lambda one: one.call())
        aftermath.judge(self._scene, f"{plan} beside", error, plan.expects)

    def check(self) -> None:
        if self._broken:
            raise self._broken[0]

    def end(self) -> None:
        self._ends = True
        self._thread.join()
        self.check()


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` interrupted calls."""
    run_cases(case, count, seed, tally, each=_EACH)


def case(seed: int, folder: Path, watch: Watch) -> None:
    """Interrupt some calls on one store; then close it, interrupted as well."""
    rng = random.Random(seed)
    signal.signal(PENDING, signal.SIG_IGN)
    scene = Scene(folder / "store", rng, watch)
    # Number of instructions of an uninterrupted call, by name.
    lengths: dict[str, int] = {}
    names = rng.sample(CALLS, 4) + rng.sample(_OFTEN, 3)
    for name in ("append", "append_many", "append_rolls"):
        scene.perform(scene.plan(name))
    companion: _Companion | None = None
    if rng.random() < 0.3:
        sys.setswitchinterval(1e-4)
        companion = _Companion(scene, rng)
    for _ in range(_CALLS):
        _one(scene, rng.choice(names), lengths, rng, companion)
        if rng.random() < 0.06:
            with companion.gate if companion else contextlib.nullcontext():
                aftermath.reopen(scene, _close(scene, lengths, rng))
    if companion is not None:
        companion.end()
    where = _close(scene, lengths, rng)
    if rng.random() < 0.3:
        aftermath.open_in_child(scene.path)
    aftermath.reopen(scene, where)
    if rng.random() < 0.3:
        aftermath.check_timer(scene)
    scene.store.close()
    scene.check_sound()


def _one(
    scene: Scene,
    name: str,
    lengths: dict[str, int],
    rng: random.Random,
    companion: _Companion | None,
) -> None:
    """Interrupt a call; then check that the store is usable."""
    try:
        plan = elsewhere(lambda: scene.plan(name))
    except Unavailable:
        return
    where = _interrupted(scene, plan, name, lengths, rng)
    if not where:
        return
    scene.watch.say(f"a look after {where}")
    with companion.gate if companion else contextlib.nullcontext():
        if companion:
            companion.check()
        elsewhere(lambda: scene.settle(f"the store, after {where}"))
        aftermath.use(scene, rng, where)


def _interrupted(
    scene: Scene, plan: Plan, name: str, lengths: dict[str, int], rng: random.Random
) -> str:
    """Make a call, with interrupts if its length is known.

    Returns the interrupted call and the place; "" if nothing was interrupted.
    """
    at: list[int] = []
    if name in lengths:
        at = [rng.randint(1, lengths[name])]
        while rng.random() < 0.35:
            at.append(at[-1] + round(math.exp(rng.uniform(0, 5))))
    interrupter: Interrupter | Alarm = Interrupter(list(at))
    what = f"instructions {at}"
    if at and rng.random() < 0.15:
        seconds = math.exp(rng.uniform(math.log(2e-5), math.log(3e-3)))
        interrupter, what = Alarm(seconds), f"{seconds * 1e6:.0f} us"
    scene.around = interrupter
    beside = ", beside another thread," if threading.active_count() > 2 else ""
    scene.watch.say(f"{plan}{beside} interrupted at {what}")
    error = scene.perform(plan)
    scene.around = lambda one: one.call()
    if error is None and interrupter.seen:
        lengths[name] = interrupter.seen
    if isinstance(error, Broken):
        raise error
    if not interrupter.raised:
        aftermath.judge(scene, f"{plan} (not interrupted)", error, plan.expects)
        return ""
    scene.watch.done += 1
    where = f"{plan}{beside} at {', '.join(interrupter.raised)}"
    if not isinstance(error, Interrupt):
        if error is None:
            scene.watch.notes["swallowed"] += 1
        aftermath.judge(scene, where, error, plan.expects)
    elif plan.topic:
        scene.doubt(plan)
    return where


def _close(scene: Scene, lengths: dict[str, int], rng: random.Random) -> str:
    """Close, interrupted now and then; once more; and finally by another thread.

    Returns the place of the interrupt.
    """
    scene.has_closed = True
    where = ""
    for _ in range(rng.randint(0, 3)):
        plan = Plan("close", scene.store.close)
        where = _interrupted(scene, plan, "close", lengths, rng) or where
        if where and rng.random() < 0.3:
            aftermath.use_closed(scene, rng, where)
    lengths.setdefault("close", 6_000)
    aftermath.close_by_another(scene, where)
    return f"after {where}" if where else ""


__all__ = ["COUNTS", "NAME", "UNIT", "case", "run"]
