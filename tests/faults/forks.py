"""Forks at any line of a public call, in the calling thread or in another one.

The child has a copy of everything, including locks held by threads that it does not
have. Each of its calls on the parent's store returns, and raises `ForkedError` or does
nothing: closing it, closing it again, leaving its ``with``, reading, appending. The
parent continues as if nothing had happened; and when it has closed the store, the next
writer gets the lock, although the child is alive.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import logstore
from faults import aftermath
from faults.method import Tally
from faults.scene import CALLS, Scene
from faults.scene_log import Plan
from faults.scene_state import Unavailable
from faults.tracing import AtLine
from faults.watched import Broken, Watch, run_cases, told
from logstore import LogStoreError

NAME = "forks"
UNIT = "forks inside calls"
COUNTS = {"commit": 80, "nightly": 2_000, "release": 10_000}

_EACH = 9
_ROUNDS = 12
_SECONDS = 8.0
# Errors of a child that uses its parent's store. A store that the parent has closed, or
# a partition that has ended, may raise the second one instead.
_MAY = (
    logstore.errors.ForkedError,
    logstore.errors.StoreClosedError,
)


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` forks."""
    run_cases(case, count, seed, tally, each=_EACH)


class _Child:
    """A child of a fork, as its parent sees it.

    Args:
        work: its work before it waits for its end; returns what is wrong, or "".
    """

    def __init__(self, work: Callable[[], str]) -> None:
        self._got, told = os.pipe()
        wait, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            text = "it does not come to an end"
            try:
                sys.settrace(None)
                os.close(self._got)
                os.close(self._go)
                text = work()
                os.write(told, text.encode()[:3000] + b"\0")
                os.read(wait, 1)  # until the parent releases it, or has ended
            except BaseException as error:
                os.write(told, f"unexpected {error!r}".encode()[:3000] + b"\0")
            finally:
                os._exit(0)
        os.close(told)
        os.close(wait)

    def heard(self) -> str:
        """Wait for the child's check; return its problem, or ""."""
        data = b""
        until = time.monotonic() + _SECONDS
        while not data.endswith(b"\0"):
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._got], [], [], left)[0]:
                os.kill(self.pid, signal.SIGUSR1)  # prints its threads
                time.sleep(0.3)
                os.kill(self.pid, signal.SIGKILL)
                return "it hangs"
            more = os.read(self._got, 4096)
            if not more:
                return "it has died"
            data += more
        return data[:-1].decode(errors="replace")

    def end(self) -> None:
        for fd in (self._go, self._got):
            with contextlib.suppress(OSError):
                os.close(fd)
        os.waitpid(self.pid, 0)


def case(seed: int, folder: Path, watch: Watch) -> None:
    """Fork during calls on one store."""
    rng = random.Random(seed)
    scene = Scene(folder / "store", rng, watch)
    for name in ("append", "append_many", "append_rolls", "flush"):
        scene.perform(scene.plan(name))
    lengths: dict[str, int] = {}
    names = [*rng.sample(CALLS, 4), rng.choice(("close", "open")), "append"]
    for _ in range(_ROUNDS):
        _one(scene, rng.choice(names), lengths, rng, folder)
    scene.store.close()
    aftermath.reopen(scene)
    scene.store.close()
    scene.check_sound()


def _one(
    scene: Scene, name: str, lengths: dict[str, int], rng: random.Random, folder: Path
) -> None:
    """Fork inside a call, once its number of lines is known."""
    other: list[logstore.Store] = []
    if name == "open":
        plan = Plan("open", lambda: other.append(logstore.open(folder / "other")))
    else:
        try:
            plan = scene.plan(name)
        except Unavailable:
            return
    at = rng.randint(1, lengths[name]) if name in lengths else 0
    is_same = rng.random() < 0.3
    is_busy = rng.random() < 0.7
    where = f"{'the same' if is_same else 'another'} thread in {plan}"
    scene.watch.say(f"a fork at line {at} of {where}")
    some = list(scene.logs.values())
    partitions = []
    with contextlib.suppress(Unavailable):
        partitions = [
            scene.partition(log) for log in rng.sample(some, min(3, len(some)))
        ]
    work = _busy(scene, partitions, rng, where) if is_busy else str
    children: list[_Child] = []
    make = _in_same_thread if is_same else _in_another_thread
    line, error = make(scene, plan, at, lambda: children.append(_Child(work)))
    try:
        if isinstance(error, Broken):
            raise error
        if error is not None and not isinstance(error, plan.expects):
            raise Broken(
                f"a fork at {line.place}, {where}: it raised {told(error)}"[:900]
            )
        if error is None:
            lengths[name] = max(line.seen, 1)
        if not children:
            if name == "close":
                scene.open()
            return
        scene.watch.done += 1
        scene.watch.say(f"the child of a fork at {line.place}, {where}")
        said = children[0].heard()
        if said:
            raise Broken(f"a fork at {line.place}, {where}: the child: {said}"[:900])
        _go_on(scene, name, rng, f"a fork at {line.place}, {where}", other, folder)
    finally:
        for child in children:
            child.end()
        for store in other:
            store.close()


def _in_same_thread(
    scene: Scene, plan: Plan, at: int, fork: Callable[[], None]
) -> tuple[AtLine, BaseException | None]:
    line = AtLine(at, fork)

    def around(one: Plan) -> Any:
        sys.settrace(line)
        try:
            return one.call()
        finally:
            sys.settrace(None)

    scene.around = around
    try:
        return line, scene.perform(plan)
    finally:
        scene.around = lambda one: one.call()


def _in_another_thread(
    scene: Scene, plan: Plan, at: int, fork: Callable[[], None]
) -> tuple[AtLine, BaseException | None]:
    """Fork in this thread while another one is stopped at a line of a call."""
    reached, go = threading.Event(), threading.Event()

    def stop() -> None:
        reached.set()
        go.wait()

    line = AtLine(at, stop)
    raised: list[BaseException | None] = []

    def around(one: Plan) -> Any:
        sys.settrace(line)
        try:
            return one.call()
        finally:
            sys.settrace(None)

    def run() -> None:
        try:
            raised.append(scene.perform(plan))
        except BaseException as error:
            raised.append(error)
        finally:
            reached.set()

    scene.around = around
    thread = threading.Thread(target=run)
    thread.start()
    reached.wait()
    if line.place:
        fork()
    go.set()
    thread.join()
    scene.around = lambda one: one.call()
    return line, raised[0]


def _busy(
    scene: Scene, partitions: list[Any], rng: random.Random, where: str
) -> Callable[[], str]:
    """Calls of a child on its parent's store: none may hang, or succeed."""
    store = scene.store
    topics = [store.topic(name) for name in list(scene.topics)[:1]]
    harmless: list[tuple[str, Callable[[], Any]]] = [
        ("close", store.close),
        ("a second close", store.close),
        ("leaving its with", lambda: store.__exit__(None, None, None)),
        ("repr", lambda: repr(store)),
        ("the collector", gc.collect),
    ]
    refused: list[tuple[str, Callable[[], Any]]] = [
        ("topics", store.topics),
        ("create_topic", lambda: store.create_topic("of-child")),
        ("recover", store.recover),
        ("stage", store.stage),
    ]
    for topic in topics:
        refused += [
            ("partitions", lambda topic=topic: topic.partitions),
            ("Topic.append", lambda topic=topic: topic.append(b"of a child")),
        ]
    for partition in partitions:
        refused += [
            ("append", lambda p=partition: p.append(b"of a child")),
            ("append_many", lambda p=partition: p.append_many([b"of a child"])),
            ("flush", lambda p=partition: p.flush()),
            ("read", lambda p=partition: list(p.read())),
            ("truncate_to", lambda p=partition: p.truncate_to(0)),
            ("end_offset", lambda p=partition: p.end_offset),
        ]
    for group in scene.groups.values():
        consumer = group.consumer
        if consumer is not None and not consumer._entry.is_closed:
            harmless += [(f"close of {group.name}", consumer.close)]
            refused += [
                ("poll", consumer.poll),
                ("commit", consumer.commit),
                ("committed", lambda one=consumer: one.committed(("in", 0))),
            ]
    chosen = rng.sample(harmless + refused, rng.randint(1, 8))

    def work() -> str:
        for what, call in chosen:
            scene.watch.say(f"{what} in the child of a fork in {where}")
            try:
                call()
            except _MAY:
                continue
            except LogStoreError as error:
                if (what, call) in harmless:
                    return f"{what} raised {error!r}"
            except Exception as error:
                return f"{what}: an error without a name: {error!r}"
            else:
                if (what, call) in refused:
                    return f"{what} worked"
        return ""

    return work


def _go_on(
    scene: Scene,
    name: str,
    rng: random.Random,
    where: str,
    other: list[logstore.Store],
    folder: Path,
) -> None:
    """Check that the parent continues, and that another writer can open the store after
    it was closed, while the child is alive."""
    if other:
        other.pop().close()
        try:
            logstore.open(folder / "other").close()
        except LogStoreError as error:
            raise Broken(f"{where}: opening again: {told(error)}"[:900]) from error
    if name == "close":
        aftermath.reopen(scene, f"after {where}, beside its child")
    elif rng.random() < 0.4:
        scene.store.close()
        aftermath.reopen(scene, f"after {where}, beside its child")
    else:
        scene.settle(f"the store of the parent, after {where}")


__all__ = ["COUNTS", "NAME", "UNIT", "case", "run"]
