"""Calls from inside of calls: wherever a user's code can run, it calls the library.

User code runs in the middle of a call of the library in many places: iterables,
``__index__``, ``__len__``, buffers and their finalizers, partitioners, retention
policies, callbacks, log handlers; finalizers, which the garbage collector runs at any
allocation; signal handlers, which run between any two instructions. Here each of them
makes any public call. The inner call works, or raises an error with a name and changes
nothing; the outer one works; and afterwards every record is there, once, under the
returned offset, and nothing else.
"""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from pathlib import Path
from typing import Any

import logstore
from faults.inner_calls import APPENDS, Inside, _Lively
from faults.method import Tally
from faults.reentry_places import PLACES, Tracer
from faults.scene import CALLS, Scene
from faults.scene_log import Plan
from faults.scene_state import Given, Unavailable
from faults.tracing import PENDING
from faults.watched import Broken, Watch, run_cases, told

NAME = "reentry"
UNIT = "calls inside of calls"
COUNTS = {"commit": 2_500, "nightly": 100_000, "release": 300_000}

_EACH = 60
_OUTER = 16
_OUTSIDE = ("open_again", "open_reader", "verify", "doctor", "rebuild_index")


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` calls inside of calls."""
    run_cases(case, count, seed, tally, each=_EACH)


# ------------------------------------------------------------------------- one case


def case(seed: int, folder: Path, watch: Watch) -> None:
    """Make some calls on one store, with calls inside of them."""
    rng = random.Random(seed)
    signal.signal(PENDING, signal.SIG_IGN)
    background: list[Inside] = []
    is_beside = rng.random() < 0.15
    if is_beside:
        _trace_threads(background, rng)
    scene = Scene(folder / "store", rng, watch, flush_ms=3 if is_beside else 0)
    inside = Inside(scene, watch, rng)
    background.append(inside)
    for _ in range(rng.randint(0, 8)):
        with contextlib.suppress(Unavailable):
            scene.perform(scene.plan(rng.choice(APPENDS)))
    for number in range(_OUTER):
        _outer(scene, inside, rng, is_beside)
        if scene.has_closed:
            scene.store.close()
            scene.open()
            scene.settle("the store, opened again", reopened=True)
        elif number % 4 == 3:
            scene.settle(f"the store after {inside.how} in a call")
        if rng.random() < 0.1:
            _reopen(scene, inside, rng)
    threading.settrace(None)  # type: ignore[arg-type]
    scene.store.close()
    scene.open()
    scene.settle("the store, opened again", reopened=True)
    scene.store.close()
    scene.check_sound()


def _trace_threads(background: list[Inside], rng: random.Random) -> None:
    """Make calls from inside the work of the store's own thread, too."""

    def act(where: str) -> None:
        if background:
            background[0].reenter(f"the store's thread, {where}")

    tracer = Tracer(40, 20, act, lines=True)
    threading.settrace(tracer)


def _outer(scene: Scene, inside: Inside, rng: random.Random, is_beside: bool) -> None:
    """Make one call, with others inside of it."""
    how = rng.choice(list(PLACES))
    scene.given = Given()
    if how == "by an argument":
        scene.given = _Lively(inside)
    try:
        plan = scene.plan(rng.choice(APPENDS if rng.random() < 0.4 else CALLS))
    except Unavailable:
        return
    finally:
        scene.given = Given()
    _inside_of(scene, inside, plan, how, rng)
    if is_beside and rng.random() < 0.3:
        # Let the store's own thread work.
        with contextlib.suppress(threading.ThreadError):
            threading.Event().wait(0.005)


def _inside_of(
    scene: Scene, inside: Inside, plan: Plan, how: str, rng: random.Random
) -> None:
    def around(one: Plan) -> Any:
        if one is not plan:
            return one.call()
        inside.outer, inside.how, inside.left = plan, how, rng.randint(1, 12)
        try:
            with PLACES[how](inside, rng):
                return one.call()
        finally:
            inside.outer = None
            with inside.beside:
                pass

    scene.around = around
    scene.watch.say(f"{how}: {plan}")
    error = scene.perform(plan)
    if inside.broken is not None:
        raise inside.broken
    if isinstance(error, Broken):
        raise error
    allowed = [*plan.expects, *inside.of_surroundings()]
    if how == "by an argument":
        allowed += [TypeError, logstore.ConfigError]
    if error is not None and not isinstance(error, tuple(allowed)):
        raise Broken(f"{how}: {plan} raised {told(error)}"[:900])


def _reopen(scene: Scene, inside: Inside, rng: random.Random) -> None:
    """Open and recover the store, with calls from inside."""
    scene.store.close()
    if rng.random() < 0.7:
        # As after a crash, so that recovery logs something.
        log = rng.choice(list(scene.logs.values()))
        names = sorted((scene.path / log.name).glob("*.log"))
        if names:
            with open(names[-1], "ab") as file:
                file.write(b"torn")
        (scene.path / ".kafka_cleanshutdown").unlink(missing_ok=True)
        scene.written_by_another()
    lively = _Lively(inside).callback()
    inside.names = _OUTSIDE
    plan = Plan("open", lambda: scene.open(on_recovery=lively, on_progress=lively))
    scene.has_closed = True
    try:
        _inside_of(scene, inside, plan, rng.choice(list(PLACES)), rng)
    finally:
        inside.names = CALLS
    scene.settle("the store, opened again", reopened=True)


__all__ = ["COUNTS", "NAME", "UNIT", "case", "run"]
