"""Checks after an interrupted call, for `interrupts` and `limits`.

No other call hangs, in any thread, or raises an error without a name; a store can be
closed, if not at once, then by a second call, which releases the lock; and when it is
opened again it has the acknowledged records.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import logstore
from faults.scene import CALLS, Scene, elsewhere
from faults.scene_state import Unavailable
from faults.watched import Broken, told
from logstore import LogStoreError

__all__ = [
    "check_timer", "close_by_another", "judge", "open_in_child", "reopen", "use",
    "use_closed", "wait_until_durable",
]  # fmt: skip

# Allowed errors of a call that follows an interrupted one.
_ENDED = (
    logstore.errors.SyncFailedError,
    logstore.errors.StoreClosedError,
    logstore.TopicNotFoundError,
    logstore.errors.PartitionNotFoundError,
)


def judge(
    scene: Scene,
    what: str,
    error: BaseException | None,
    expects: tuple[type[BaseException], ...] = (),
) -> None:
    """An error must have a name, and be one that a call may raise after another that
    was interrupted: the end of a partition is one; damage, or a call that is reported
    as still under way, is not."""
    if error is None or isinstance(error, expects):
        return
    if isinstance(error, Broken):
        raise error
    if not isinstance(error, LogStoreError):
        raise Broken(f"{what}: an error without a name: {told(error)}"[:900])
    if not isinstance(error, _ENDED) and "could not be undone" not in str(error):
        raise Broken(f"{what}: {told(error)}"[:900])
    scene.watch.notes[type(error).__name__] += 1


def use(scene: Scene, rng: random.Random, where: str) -> None:
    """Make other calls, in a thread that holds no lock of this one."""
    for name in [*rng.sample(CALLS, 2), rng.choice(("append", "flush", "publish"))]:
        _use(scene, name, f"by another thread, after {where}")


def use_closed(scene: Scene, rng: random.Random, where: str) -> None:
    """Check that each call on a half closed store works or raises a named error."""
    for name in rng.sample(("append", "flush", "read", "looks", "create_topic"), 2):
        _use(scene, name, f"half closed, after {where}")


def _use(scene: Scene, name: str, where: str) -> None:
    def call() -> None:
        with contextlib.suppress(Unavailable):
            plan = scene.plan(name)
            scene.watch.say(f"{plan} {where}")
            error = scene.perform(plan)
            judge(scene, f"{plan} {where}", error, plan.expects)

    scene.around = lambda plan: plan.call()
    elsewhere(call)


def close_by_another(scene: Scene, where: str) -> None:
    """Close the store in another thread, twice."""
    for attempt in ("close", "a second close"):
        scene.watch.say(f"{attempt} by another thread, after {where}")
        error: BaseException | None = None
        try:
            elsewhere(scene.store.close)
        except Exception as raised:
            error = raised
        judge(scene, f"{attempt} after {where}", error)


def reopen(scene: Scene, where: str = "") -> None:
    """Open the store again in the same process, and check everything."""
    scene.watch.say(f"opening again {where}")
    try:
        scene.open()
    except LogStoreError as error:
        raise Broken(f"it does not open again {where}: {told(error)}"[:900]) from error
    scene.settle(f"the store, opened again {where}", reopened=True)


def open_in_child(path: Path) -> None:
    """Check that another process gets the lock."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            logstore.open(path).close()
            status = 0
        finally:
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        raise Broken("another process cannot open the store after it was closed")


def check_timer(scene: Scene) -> None:
    """Checks that an append becomes durable by time, without a call: in a partition
    that was in use before, and in a new one."""
    scene.watch.say("a sync by time")
    for log in scene.logs.values():
        with contextlib.suppress(Unavailable):
            partition = scene.partition(log)
            if partition.config.flush_ms <= 50:
                plan = scene.plan_append_to(log)
                if scene.perform(plan) is None:
                    wait_until_durable(partition, max(log.values, default=-1))
    config = logstore.TopicConfig(flush_ms=10)
    partition = scene.store.create_topic("timed", config=config)[0]
    wait_until_durable(partition, partition.append(b"x"))
    scene.store.delete_topic("timed")


def wait_until_durable(partition: Any, offset: int) -> None:
    """Wait until a record is durable, at most 5 s."""
    until = time.monotonic() + 5
    while partition.durable_offset <= offset:
        if time.monotonic() > until:
            raise Broken(f"{partition.name} is not synced by time any more")
        time.sleep(0.002)
