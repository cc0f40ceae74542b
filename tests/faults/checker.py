"""Checks of a store that is opened after a crash.

For any state that a power cut or a kill leaves of an undamaged disk: the store opens;
each promised record is read back, in order, and no others; nothing that was deleted
comes back; every partition takes appends; after a close nothing is left to repair, and
`verify` finds nothing. A reader that comes before the recovery sees the records that
the recovery will keep, and changes nothing; a recovery that is interrupted and
restarted produces the same bytes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import random
from collections.abc import Callable
from typing import Any

import logstore
from faults.promises import Promises, Shown, View
from logstore import LogStoreError, Partition, Store, StoreConfig
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import CORRUPT, UNSUPPORTED
from logstore.io.layout import LOCK_RECORD
from logstore.io.scheduler import Scheduler
from logstore.store.opening import open_store
from support.disk import MemoryDisk
from support.disk_changes import Nodes
from support.values import append_one

PATH = "/store"
# Recovery actions allowed after a mere crash.
HARMLESS = frozenset({"torn-tail", "index-rebuilt", "unpublished"})


class HandKeeper(Scheduler):
    """A scheduler without a thread: its tasks run when a test says so."""

    def start(self) -> None:
        pass

    def call_later(self, delay_ms: int, task: Callable[[], None]) -> None:
        due = self.files.monotonic() + delay_ms / 1000
        heapq.heappush(self._tasks, (due, next(self._count), task))

    def run_due(self) -> int:
        """Run the tasks that are due now; return their number."""
        count = 0
        while self._tasks and self._tasks[0][0] <= self.files.monotonic():
            # Like the thread: a failing task does not end the store.
            with contextlib.suppress(OSError, LogStoreError):
                heapq.heappop(self._tasks)[2]()
            count += 1
        return count


def open_quietly(disk: MemoryDisk, **options: Any) -> Store:
    """Open the store of a disk, with a `HandKeeper`: everything is repeatable."""
    config = options.get("config") or StoreConfig(
        flush_checkpoint_ms=0, publish_for_others=False
    )
    options["config"] = dataclasses.replace(config, recovery_threads=1)
    store = open_store(PATH, _files=disk, **options)
    keeper = HandKeeper(disk, "store")
    store._context.scheduler = store._context.state._scheduler = keeper
    return store


def shown(partition: Partition) -> Shown:
    """Start offset, end offset and records of a partition."""
    return partition.start_offset, partition.end_offset, list(partition.read())


def view_of(store: Store) -> View:
    """Visible state of all partitions of a store."""
    return {
        name: [shown(partition) for partition in topic.partitions]
        for name in store.topics()
        for topic in [store.topic(name)]
    }


class StateCheck:
    """Checks states that crashes left.

    Attributes:
        thorough: share of the states that go through all checks; the others are only
            opened, read, appended to, closed, opened and read again.
        harmless: the labels that recovery may report.
        may_refuse: the disk was full, so that even the owner file could not be written:
            logstore takes the store for another program's, and cuts neither a tail that
            it cannot read nor a segment that does not begin like a log
            (docs/reliability.md). Such a state must raise a named error; no more is
            required.
    """

    def __init__(self, rng: random.Random, *, thorough: float = 0.25) -> None:
        self.rng = rng
        self.thorough = thorough
        self.harmless = HARMLESS
        self.may_refuse = False

    def problem(
        self, nodes: Nodes, promises: Promises, clock: int, *, is_killed: bool = False
    ) -> str:
        """Problem of a state, or ""."""
        disk = MemoryDisk(nodes, clock=clock)
        try:
            if self.may_refuse and self._refused(MemoryDisk(nodes, clock=clock)):
                return ""
            return self._problem(disk, promises, is_killed)
        except Exception as error:
            return f"raised {type(error).__name__}: {error}{_where(error)}"

    def _problem(self, disk: MemoryDisk, promises: Promises, is_killed: bool) -> str:
        is_thorough = self.rng.random() < self.thorough
        before: View | None = None
        if is_thorough:
            tree = disk.tree()
            before, text = self._read_only(disk, promises, is_killed)
            if text:
                return f"before recovery: {text}"
            if disk.tree() != tree:
                return "a reader changed files"
        with open_quietly(disk) as store:
            text = self._report(store)
            if text:
                return text
            view = view_of(store)
            text = promises.problem(view, is_killed=is_killed)
            if text:
                return text
            if before is not None:
                text = _difference(before, view) or self._again(disk)
                if text:
                    return text
            text = promises.problem_of(
                store, is_killed=is_killed, is_thorough=is_thorough
            )
            if text:
                return text
            ends = self.rng.choice(("close", "kill", "cut"))
            for name in store.topics():
                for partition in store.topic(name).partitions:
                    durable = ends == "cut" or self.rng.random() < 0.5
                    append_one(partition, seed=-1, durable=durable)
            after = view_of(store)
            if ends != "close":
                text = self._crashed(disk, after, ends)
                if text:
                    return text
        for name, shown in view.items():
            for number, (start, end, records) in enumerate(shown):
                found = after[name][number]
                if (found[0], found[1], found[2][:-1]) != (start, end + 1, records):
                    return f"{name}-{number} is another one after an append"
        return self._closed(disk, after, is_thorough)

    def _refused(self, disk: MemoryDisk) -> bool:
        if any(path.endswith(layout.OWNER) for path in disk.tree()):
            return False
        with open_quietly(disk) as store:
            actions = store.recovery_report.actions
        return any(
            action.label == UNSUPPORTED
            or (action.label == CORRUPT and action.position == 0)
            for action in actions
        )

    def _report(self, store: Store) -> str:
        for action in store.recovery_report.actions:
            if action.label not in self.harmless:
                return f"recovery said {action.label}: {action.message}"
        return ""

    def _read_only(
        self, disk: MemoryDisk, promises: Promises, is_killed: bool
    ) -> tuple[View | None, str]:
        """View of a reader before the recovery, and its problem or ""."""
        try:
            with open_quietly(disk, read_only=True) as store:
                view = view_of(store)
        except logstore.StoreNotFoundError:
            empty = not any(topic.is_certain for topic in promises.topics.values())
            return None, "" if empty else "there is no store"
        text = promises.problem(view, is_killed=is_killed, is_recovered=False)
        certain = all(
            topic.is_certain and not topic.growing for topic in promises.topics.values()
        )
        return view if certain else None, text

    def _again(self, disk: MemoryDisk) -> str:
        """Check that a second recovery after a completed one changes nothing."""
        tree = disk.tree()
        other = MemoryDisk(disk.medium.nodes, clock=disk.medium.clock)
        store = open_quietly(other)
        text = self._report(store)
        other.kill()
        del store
        # Each owner describes itself in one file.
        changed = [
            path
            for path, data in other.tree().items()
            if tree.get(path) != data and not path.endswith(LOCK_RECORD)
        ]
        if changed:
            return f"a second recovery changed {changed[0]}"
        return text

    def _crashed(self, disk: MemoryDisk, wanted: View, how: str) -> str:
        """Check that a second crash, while the store works again, loses nothing."""
        m = disk.medium
        other = MemoryDisk(m.nodes if how == "kill" else m.base, clock=m.clock)
        store = open_quietly(other)
        text = self._report(store)
        if not text and view_of(store) != wanted:
            text = f"after a second crash ({how}) there are other records"
        other.kill()
        return text

    def _closed(self, disk: MemoryDisk, wanted: View, is_thorough: bool) -> str:
        """Check that after a close nothing is left to repair."""
        if is_thorough:
            report = logstore.verify(PATH, _files=disk, deep=True)
            if report.problems:
                return f"verify found {report.problems[0]}"
        with open_quietly(disk) as store:
            if store.recovery_report:
                return f"reopening said {store.recovery_report.actions[0]}"
            if view_of(store) != wanted:
                return "reopening shows other records"
        return ""


def _difference(before: View, after: View) -> str:
    if before == after:
        return ""
    for name in before.keys() | after.keys():
        old, new = before.get(name, []), after.get(name, [])
        if len(old) != len(new):
            return f"a reader saw {len(old)} partitions of {name}, not {len(new)}"
        for number, ((s, e, _), (start, end, _)) in enumerate(
            zip(old, new, strict=True)
        ):
            if (s, e) != (start, end):
                return (
                    f"before recovery a reader saw {name}-{number} from {s} to {e}, "
                    f"after it there is {start} to {end}"
                )
    return "before recovery a reader saw other records"


def _where(error: BaseException) -> str:
    """The innermost line of logstore in a traceback."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if "logstore" in code.co_filename:
            found = f" [{code.co_name}:{trace.tb_lineno}]"
        trace = trace.tb_next
    return found
