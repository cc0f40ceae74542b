"""Every call to the system that an operation makes, failing in every plausible way.

A store is brought to the same state again and again; then one operation runs, and its
n-th call fails, once or from then on, a write also after a part of it, or the disk is
full. Whatever the operation does then: its error is a named one, a failed append leaves
the log unchanged, a failed sync ends the writer, readers continue. And once the system
works again all promises hold: after a reopening, after a kill, after a power cut, and
after a reopening *and* a power cut, since a failed sync leaves pages that look clean
and are not on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from faults.checker import HARMLESS, StateCheck, open_quietly, shown, view_of
from faults.method import Tally
from faults.service_calls import SERVICE_SCENARIOS
from faults.workers import spread
from faults.workloads import Program
from logstore import LogStoreError, Partition
from logstore.errors import SyncFailedError
from logstore.io import layout
from logstore.io.checkpoint.recovery_report import STATE_DAMAGED
from logstore.io.layout import TopicPartition
from support.disk import end_processes
from support.power_cut import cuts

NAME = "failing_calls"
UNIT = "failing calls"
COUNTS = {"commit": 400, "nightly": 12_000, "release": 40_000}

# Cases taken from one program, which has more than ten thousand.
_EACH = 200

_OPEN = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO, errno.ENOMEM)
_NAMES = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
_SYNC = (errno.EIO, errno.ENOSPC, errno.EDQUOT)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Without closed descriptors, and EINTR, which Python itself handles.
ERRORS: dict[str, tuple[int, ...]] = {
    "make_root": (errno.EACCES, errno.EROFS, errno.ENOSPC),
    "open_root": _OPEN,
    "open_directory": _OPEN,
    "make_directory": _NAMES,
    "remove_directory": _NAMES,
    "list": (errno.EIO, errno.ENOMEM),
    "sync_directory": _SYNC,
    "open": (*_OPEN, errno.EROFS),
    "create": (*_OPEN, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "close": (errno.EIO,),
    "read": (errno.EIO, errno.ENOMEM),
    "write": (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "sync": _SYNC,
    "truncate": (errno.EIO, errno.EROFS),
    "reserve": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOMEM),
    "rename": _NAMES,
    "move": _NAMES,
    "unlink": _NAMES,
    "stat": (errno.EIO, errno.ENOMEM),
    "stat_name": (errno.EIO, errno.EACCES),
    "size": (errno.EIO,),
    "set_modified": (errno.EIO, errno.EACCES),
    "free_bytes": (errno.EIO,),
    "lock": (errno.ENOLCK, errno.EIO),
    "lock_file": (errno.ENOLCK, errno.EIO),
    "lock_byte": (errno.ENOLCK, errno.EIO),
    # The release of a whole lock takes no memory.
    "unlock_byte": (),
    "locked_bytes": (errno.ENOLCK, errno.EIO),
}
SHORT = (-1, 1, 13, 64, 500)
# If one of these calls fails, the state after it is unknown. The lock is queried before
# each sync: if that fails, there may be another writer.
_DOUBTFUL = frozenset({"sync", "sync_directory", "truncate", "close", "lock"})


class Case(NamedTuple):
    """One failing call.

    Attributes:
        seed: of the program that runs before.
        scenario: the operation during which the call fails.
        nth: number of the call; 0: the disk is full, with `short` bytes free.
        method, name: of the call.
        error: its errno.
        once: only that call; else also all later ones of the method.
        short: of a write, bytes that are written before it fails.
    """

    seed: int
    scenario: str
    nth: int
    method: str
    name: str
    error: int
    once: bool
    short: int

    def __str__(self) -> str:
        if not self.nth:
            return f"seed {self.seed}, {self.scenario}: {self.short} bytes are free"
        what = errno.errorcode[self.error]
        how = "" if self.once else " and later ones"
        short = f" after {self.short} bytes" if self.short >= 0 else ""
        return (
            f"seed {self.seed}, {self.scenario}: call {self.nth}{how}, {self.method} "
            f"{self.name}: {what}{short}"
        )


# ---------------------------------------------------------------- scenarios


def _at_work(seed: int) -> Program:
    """A store with some segments, part of it synced."""
    program = Program(seed, topics=2)
    program.open()
    program.do_create_topic()
    for name in ("append_many", "append_many", "append_durable", "append_many"):
        for picked in program.partitions()[:2]:
            program.pick = functools.partial(_given, picked)  # type: ignore[method-assign]
            getattr(program, f"do_{name}")()
    program.pick = functools.partial(_given, program.partitions()[0])  # type: ignore[method-assign]
    return program


def _given(picked: tuple[object, object]) -> tuple[object, object]:
    return picked


def _closed(seed: int) -> Program:
    program = _at_work(seed)
    program.close()
    return program


def _killed(seed: int) -> Program:
    program = _at_work(seed)
    program.disk = program.disk.kill()
    return program


def _cut(seed: int) -> Program:
    program = _at_work(seed)
    program.cut()
    return program


def _with_leftovers(seed: int) -> Program:
    program = _closed(seed)
    program.leave_leftovers()
    return program


def _kafkas(seed: int) -> Program:
    program = _closed(seed)
    program.forget_own_files()
    return program


def _reopened(seed: int) -> Program:
    program = _closed(seed)
    program.open()
    program.pick = functools.partial(_given, program.partitions()[0])  # type: ignore[method-assign]
    return program


def _truncated(seed: int) -> Program:
    """A kill after the commit of a truncation."""
    program = _at_work(seed)
    program.disk.fail("truncate", errno.EIO, name=".log", times=1)
    try:
        program.do_truncate_to()
    except LogStoreError:
        program.disk.heal()
    program.disk = program.disk.kill()
    return program


def _half_published(seed: int) -> Program:
    """A kill in the middle of a publication that could not be undone."""
    program = _at_work(seed)
    # Nothing is appended to a partition without a state file.
    for picked in program.partitions():
        program.pick = functools.partial(_given, picked)  # type: ignore[method-assign]
        program.do_append()
    program.disk.fail("write", errno.EIO, name=layout.PUBLICATION)
    program.disk.fail("create", errno.EIO, name=f"{layout.PARTITION_STATE}.tmp")
    with contextlib.suppress(LogStoreError):
        program.do_publish()
    program.disk.heal()
    program.disk = program.disk.kill()
    return program


def _with_delayed(seed: int) -> Program:
    """A store with a task for the scheduler."""
    program = _at_work(seed)
    program.do_append()
    program.do_retention()
    program.disk.advance(100)
    return program


def _read(program: Program) -> None:
    view_of(program.store)


def _read_only(program: Program) -> None:
    with open_quietly(program.disk.process(), read_only=True) as store:
        view_of(store)


SCENARIOS: dict[str, tuple[Callable[[int], Program], Callable[[Program], None]]] = {
    "first open": (Program, Program.open),
    "create a topic": (_at_work, Program.do_create_topic),
    "append": (_at_work, Program.do_append),
    "append, durable": (_at_work, Program.do_append_durable),
    "append many": (_at_work, Program.do_append_many),
    "append batches": (_at_work, Program.do_append_batches),
    "first append after opening": (_reopened, Program.do_append_many),
    "publish": (_at_work, Program.do_publish),
    "recover a publication": (_half_published, Program.open),
    "flush": (_at_work, Program.do_flush),
    "roll": (_at_work, Program.do_roll),
    "delete_before": (_at_work, Program.do_delete_before),
    "retention": (_at_work, Program.do_retention),
    "truncate_to": (_at_work, Program.do_truncate_to),
    "configure": (_at_work, Program.do_configure),
    "add partitions": (_at_work, Program.do_add_partitions),
    "delete a topic": (_at_work, Program.do_delete_topic),
    "housekeeping": (_with_delayed, Program.do_housekeeping),
    "close": (_at_work, Program.close),
    "reopen": (_closed, Program.open),
    "recover from a kill": (_killed, Program.open),
    "recover from a power cut": (_cut, Program.open),
    "recover a truncation": (_truncated, Program.open),
    "open with leftovers": (_with_leftovers, Program.open),
    "open Kafka's": (_kafkas, Program.open),
    "read": (_at_work, _read),
    "close after a recovery": (
        lambda seed: _opened(_killed(seed)),
        Program.close,
    ),
    **SERVICE_SCENARIOS,
}  # fmt: skip


def _opened(program: Program) -> Program:
    program.open()
    return program


def cases(seed: int, only: Sequence[str] = ()) -> Iterator[Case]:
    """All failing calls of all scenarios, or of `only` these, with a seed's program."""
    for scenario in only or SCENARIOS:
        prepare, act = SCENARIOS[scenario]
        program = prepare(seed)
        program.disk.calls = calls = []
        act(program)
        program.disk.calls = None
        for nth, (method, name) in enumerate(calls, 1):
            for error in ERRORS[method]:
                for once in (True, False):
                    for short in SHORT if method == "write" else (-1,):
                        yield Case(
                            seed, scenario, nth, method, name, error, once, short
                        )
        for free in (0, 40, 300, 1000):
            yield Case(seed, scenario, 0, "", "", errno.ENOSPC, False, free)


# ---------------------------------------------------------------- one case


def run(count: int, seed: int, tally: Tally) -> None:
    """Makes `count` calls fail, some of each program, in random order."""
    tasks = [
        (seed * 1000 + number, min(_EACH, count - first))
        for number, first in enumerate(range(0, count, _EACH))
    ]
    for passed, failures in spread(_some_of, tasks):
        tally.passed(passed)
        for failure in failures:
            tally.failed(failure)


def _some_of(seed: int, count: int) -> tuple[int, list[str]]:
    """Make `count` cases of a program: (number of passed ones, lines of the others)."""
    failures = []
    chosen = shuffled(seed)[:count]
    for case in chosen:
        text = problem(case)
        if text:
            failures.append(f"{case}: {text}")
    return len(chosen) - len(failures), failures


def shuffled(seed: int, only: Sequence[str] = ()) -> list[Case]:
    """All cases in random order."""
    found = list(cases(seed, only))
    random.Random(seed).shuffle(found)
    return found


def problem(case: Case) -> str:
    """Run a case; return its problem, or ""."""
    try:
        return _Case(case).problem()
    except Exception as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        where = f" [{trace.tb_frame.f_code.co_name}]" if trace else ""
        return f"{type(error).__name__}: {error}{where}"
    finally:
        end_processes()


class _Case:
    def __init__(self, case: Case) -> None:
        self.case = case
        prepare, self.act = SCENARIOS[case.scenario]
        self.program = prepare(case.seed)
        self.rng = random.Random(str(case))
        self.checker = StateCheck(self.rng, thorough=0.2)
        self.checker.harmless = HARMLESS | self.program.harmless
        self.is_open = self.act is not Program.open
        self.program.is_disk_full = self.checker.may_refuse = case.error in _FULL
        if case.error in _FULL and case.method in ("write", "sync") and not case.once:
            # A disk that refuses even to overwrite, or to sync, existing blocks: a
            # state file that is changed in place is damaged then, and its log is
            # examined.
            self.checker.harmless |= {STATE_DAMAGED}

    def problem(self) -> str:
        """Run it, heal the system, and check the store."""
        case, program = self.case, self.program
        disk = program.disk
        if case.nth:
            disk.fail(
                "*" if case.once else case.method,
                case.error,
                nth=case.nth if case.once else self._of_method(),
                times=1 if case.once else 1 << 60,
                short=case.short,
            )
        else:
            disk.fill(case.short)
        failed: LogStoreError | None = None
        try:
            self.act(program)
            self.is_open = self.act is not Program.close
        except LogStoreError as error:
            failed = error
        disk.heal()
        disk.medium.budget = None
        text = self._after(failed)
        return f"{text} (after {failed!r})" if text else ""

    def _of_method(self) -> int:
        """Which call of its method the failing one is."""
        prepare, act = SCENARIOS[self.case.scenario]
        program = prepare(self.case.seed)
        program.disk.calls = calls = []
        act(program)
        return sum(method == self.case.method for method, _ in calls[: self.case.nth])

    def _after(self, failed: LogStoreError | None) -> str:
        text = self._cut_now("at once")
        if text:
            return text
        is_open = self.is_open and not self.program.store._context.is_closed
        if is_open and self.act is not Program.close:
            text = self._live(failed) or self.program.goes_on()
            if text:
                return text
            text = self._cut_now("after appends")
            if text:
                return text
        return self._reopened()

    def _cut_now(self, when: str) -> str:
        """The power is cut now, or the process is killed."""
        program = self.program
        moment = program.disk.moment()
        promises, clock = program.promises, moment.clock
        text = self.checker.problem(moment.nodes, promises, clock, is_killed=True)
        if text:
            return f"killed {when}: {text}"
        for words, nodes in cuts(moment, self.rng, 3):
            text = self.checker.problem(nodes, promises, clock)
            if text:
                return f"power cut {when} ({words}): {text}"
        return ""

    def _live(self, failed: LogStoreError | None) -> str:
        """Check the open store: readers continue, and writers that have not ended."""
        program, case = self.program, self.case
        for name, topic in program.promises.topics.items():
            if not topic.is_certain or topic.growing:
                continue
            for number, log in enumerate(topic.logs):
                if (name, number) in program.store._topics.writers.broken:
                    continue  # it could not be opened: each call raises
                partition = program.store.topic(name)[number]
                writer = program.store._topics.writers.get(TopicPartition(name, number))
                is_whole = writer.health.damage is None
                try:
                    view = shown(partition)
                except LogStoreError:
                    if is_whole:
                        raise
                    continue  # it could not be opened as a whole: reads raise
                text = log.problem(view, is_killed=is_whole)
                if text:
                    return f"the open store: {name} {text}"
                text = self._appended(log, partition, case)
                if text:
                    return text
        if isinstance(failed, SyncFailedError) and "a sync of" in str(failed):
            writers = program.store._topics.writers.loaded.values()
            if all(writer.health.failed is None for writer in writers):
                return "a failed sync did not end the writer"
        return ""

    def _appended(self, log: object, partition: Partition, case: Case) -> str:
        """An append now works, or raises because the writer has ended."""
        program = self.program
        key = TopicPartition(partition.topic, partition.number)
        writer = program.store._topics.writers.get(key)
        ended = writer.health.failed or writer.health.damage
        # A publication whose commit was written, and then reported as failed, is in
        # doubt.
        is_commit = case.name == layout.PUBLICATION and case.short == max(SHORT)
        is_sure = case.once and case.nth and case.method not in _DOUBTFUL
        is_sure = is_sure and not is_commit
        may_end = self.act in (Program.open, Program.do_truncate_to)
        if ended and is_sure and not may_end:
            return f"{partition.name} takes no more appends: {ended}"
        program.pick = functools.partial(_given, (log, partition))  # type: ignore[method-assign]
        if writer.health.damage or log.coming or log.ends:  # type: ignore[attr-defined]
            try:
                partition.append(b"not to be")
            except LogStoreError:
                return ""
            return f"{partition.name} takes appends after {ended!r}"
        if log.is_cut:  # type: ignore[attr-defined]
            return f"{partition.name} was opened, and nobody looked at it"
        try:
            program.do_append(durable=self.rng.random() < 0.5)
        except LogStoreError as error:
            return "" if ended else f"an append later raised {error!r}"
        return f"{partition.name} takes appends after {ended!r}" if ended else ""

    def _reopened(self) -> str:
        """Close (or kill) and open again in the same boot; then cut the power."""
        program = self.program
        if self.is_open and self.rng.random() < 0.5:
            # An error names only records that could not be made durable.
            with contextlib.suppress(LogStoreError):
                program.store.close()
        program.disk = program.disk.kill()
        try:
            store = open_quietly(program.disk)
        except LogStoreError as error:
            return f"reopening raised {error!r}"
        text = self.checker._report(store)
        if text:
            return f"reopened: {text}"
        view = view_of(store)
        text = program.promises.problem(view, is_killed=True)
        if text:
            return f"reopened: {text}"
        text = program.promises.problem_of(store, is_killed=True, is_thorough=False)
        if text:
            return f"reopened: {text}"
        program.promises.settle(view)
        text = program.reopened(store)
        if text:
            return f"reopened: {text}"
        return self._cut_now("after the reopening")
