"""Histories of consumer groups: real processes that join, poll, commit, leave, are
killed, stopped and continued at a line of the library, fork, and publish outside of a
group, in a random order, and a model that checks each step.

The rules, after every step:

1. no partition has two holders among the members that the group knows;
2. committed offsets go back only by a reset, and no acknowledged one is lost;
3. only delivered records are committed;
4. if no process was stopped or killed, no call fails, a commit in `on_revoke` counts
   like any other, and so no record is delivered twice.

At the end each record was delivered (at least once); with transactions each output is
there exactly once.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import logstore
from faults.tracing import AtLine
from faults.watched import told
from logstore import TopicPartition
from logstore.group.consumer.transaction import GroupPositions
from logstore.group.file import group_file
from logstore.group.file.group_file import GroupFile
from logstore.group.file.slots import BusyError
from logstore.group.member import open_group
from logstore.io import layout
from logstore.io.checkpoint import ledger
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.groups import OneMember, consumer

__all__ = ["History"]

_PARTITIONS = 3
_RECORDS = 12
_WORKERS = 3
_STEPS = 30
# A worker without a command for this time counts as stuck, if the others evict.
_STUCK_MS = 60
_REPLY_S = 60.0
# A worker that does not answer for this time waits for a stopped one.
_HANG_S = 0.3
# Time in which the last member must get all records; an expelled member may keep its
# partitions for a moment.
_LAST_S = 5.0
# The wait of a call for the mutex, if a stopped member may hold it.
_MUTEX_S = 0.1
# Approximate maximum number of lines of a call (one that joins; others have far fewer).
_LINES = 7_000
_POLL_LINES = 1_500
_COMMANDS = ("poll", "look", "look", "commit", "commit, durable", "leave")
# The group's file is compacted at this number of bytes.
_COMPACT_BYTES = 600
# Number of remembered identities, in addition to the pinned ones.
_REMEMBERED = 2
# Errors that a stopped or thrown-out member causes.
_MAY = frozenset({"FencedError", "CommitFailedError"})

_forks = multiprocessing.get_context("fork")


class _Worker:
    """A process with one consumer, which executes commands.

    Attributes:
        member: its id in the group, by its last answer.
        has: its partitions, by its last answer; None: it was stopped in the middle of a
            call.
        is_stopped: by SIGSTOP.
        waits: whether an answer is pending.
    """

    def __init__(self, path: Path, options: dict[str, Any], transactions: bool) -> None:
        self._pipe, theirs = _forks.Pipe()
        self._process = _forks.Process(
            target=_serve, args=(theirs, path, options, transactions), daemon=True
        )
        self._process.start()
        theirs.close()
        assert self._process.pid is not None
        self._pid = self._process.pid
        self.member = ""
        self.has: frozenset[TopicPartition] | None = frozenset()
        self.is_stopped = False
        self.waits = False
        self._answer: Any = None

    def send(self, command: str, line: int = 0, signal_number: int = 0) -> None:
        """Send a command; it sends itself a signal at a line of the call."""
        self.waits = True
        self._pipe.send((command, line, signal_number))

    def has_answered(self, seconds: float) -> bool:
        """Whether there is an answer within `seconds`."""
        return self._answer is not None or self._pipe.poll(seconds)

    def has_halted(self) -> bool:
        """Wait for its answer, or for its stop or end; whether it stopped or ended."""
        how = os.WSTOPPED | os.WEXITED | os.WNOHANG | os.WNOWAIT
        until = time.monotonic() + _REPLY_S
        while time.monotonic() < until:
            if os.waitid(os.P_PID, self._pid, how) is not None:
                return True
            if self._pipe.poll(0.001):
                try:
                    self._answer = self._pipe.recv()
                except EOFError:
                    return True
                return False
        raise AssertionError("a worker does not answer")

    def answer(self) -> tuple[list[tuple[int, int]], str, dict[int, int], int]:
        """(records that were delivered, the error, its committed offsets, a child that
        it has made or 0)."""
        assert self.has_answered(_REPLY_S), "a worker does not answer"
        answer, self._answer = self._answer or self._pipe.recv(), None
        records, error, committed, has, self.member, child = answer
        self.waits = False
        self.has = frozenset(has)
        return records, error, committed, child

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self._process.join()
        self._pipe.close()


def _serve(
    pipe: Connection, path: Path, options: dict[str, Any], transactions: bool
) -> None:
    """The process of a worker."""
    revoked: list[Any] = [None]
    with consumer(path, on_revoke=lambda _: revoked[0](), **options) as one:
        revoked[0] = (
            (lambda: None) if transactions else lambda: one.commit(durable=False)
        )
        while True:
            command, line, number = pipe.recv()
            records: list[tuple[int, int]] = []
            committed: dict[int, int] = {}
            error, child = "", 0
            if line:
                sys.settrace(AtLine(line, partial(os.kill, os.getpid(), number)))
            if command == "look":
                # Read the group's file now; a poll reads it ten times a second.
                one._core.look_now()
            try:
                if command == "leave":
                    one.unsubscribe()
                    one.subscribe(["t"], on_revoke=lambda _: revoked[0]())
                elif command == "fork":
                    child = _forked_child()
                elif command.startswith("commit") and not transactions:
                    before = {k.partition: one.position(k) for k in one.assignment()}
                    one.commit(durable=command == "commit, durable")
                    committed = before
                elif transactions:
                    with one.transaction() as transaction:
                        _poll(one, records)
                        for partition, offset in records:
                            transaction.append("out", b"%d:%d" % (partition, offset))
                else:
                    _poll(one, records)
            except Exception as caught:
                error, records = f"{type(caught).__name__}: {told(caught)}", []
            finally:
                sys.settrace(None)
            member = one.group_metadata()[2]
            pipe.send((records, error, committed, one.assignment(), member, child))


def _poll(one: Any, records: list[tuple[int, int]]) -> None:
    for some in one.poll(max_records=3).values():
        records += [(record.partition, record.offset) for record in some]


def _forked_child() -> int:
    """Fork a child that does nothing, and lives longer than its parent."""
    runs, told_so = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(told_so, b"x")
        time.sleep(_REPLY_S)
        os._exit(0)
    # Until it has run its fork handlers, it has its parent's descriptors.
    os.read(runs, 1)
    os.close(runs)
    os.close(told_so)
    return child


class History:
    """One random history; `run` raises an AssertionError if a rule is broken.

    Args:
        transactions: commit by transactions, with outputs.
        evicts: expel stuck members.
        is_quiet: no member is stopped or killed.
        hands_over: mostly, partitions are given to new members.
        throws_out: mostly, a member is expelled, and then commits; with `evicts`.
    """

    def __init__(
        self,
        path: Path,
        seed: int,
        *,
        transactions: bool,
        evicts: bool,
        is_quiet: bool,
        hands_over: bool,
        throws_out: bool,
    ) -> None:
        self.path = path
        self.transactions = transactions
        self.options: dict[str, Any] = {"durable_only": False}
        if evicts:
            self.options |= {"on_stuck": "evict", "max_poll_interval_ms": _STUCK_MS}
        self.evicts = evicts
        self.is_quiet = is_quiet
        rude = 0.0 if is_quiet else 1.5
        self._weights = {
            "poll": 5, "look": 4, "commit": 3, "commit, durable": 2, "leave": 1,
            "fork": 0.5, "together": 1, "stop": rude, "kill": rude, "pause": rude / 3,
            "hand over": rude / 3,
        }  # fmt: skip
        if hands_over:
            self._weights = {"poll": 6, "commit": 1, "hand over": 4}
        if throws_out:
            self._weights = {"poll": 6, "commit": 1, "throw out": 4}
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self.delivered: Counter[tuple[int, int]] = Counter()
        self.committed: dict[int, int] = {}
        self.acknowledged: dict[int, int] = {}
        self.workers: list[_Worker] = []
        self.children: list[int] = []
        self._others = 0
        with logstore.open(path) as store:
            for partition in store.create_topic("t", _PARTITIONS):
                partition.append_many([b"x"] * _RECORDS)
            store.create_topic("out")
        self._root = Directory.open_root(Files(), str(path))

    def run(self) -> None:
        """Take all steps, and check the end."""
        wait, most = open_group._WAIT_S, ledger.IDENTITIES_MAX
        size = group_file._REWRITE_BYTES
        group_file._REWRITE_BYTES = _COMPACT_BYTES  # type: ignore[misc]
        if not self.is_quiet:
            open_group._WAIT_S = _MUTEX_S  # type: ignore[misc]
        ledger.IDENTITIES_MAX = _REMEMBERED
        try:
            for _ in range(_STEPS):
                self._step()
                self._check()
            for worker in list(self.workers):
                # A stopped member stays: the next one to join expels it.
                if not (worker.is_stopped and self.evicts and not self.transactions):
                    worker.kill()
                    self.workers.remove(worker)
            self._check()
            self._end()
        finally:
            open_group._WAIT_S = wait  # type: ignore[misc]
            ledger.IDENTITIES_MAX = most
            group_file._REWRITE_BYTES = size  # type: ignore[misc]
            for worker in self.workers:
                with contextlib.suppress(OSError):
                    worker.kill()
            for child in self.children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            self._root.close()

    # ------------------------------------------------------------ steps

    def _step(self) -> None:
        rng = self.rng
        is_stopped = any(one.is_stopped for one in self.workers)
        often = 0.04 if self.workers else 0.3
        if not self.transactions and not is_stopped and rng.random() < often:
            self._reset()
        if not self.workers or (len(self.workers) < _WORKERS and rng.random() < 0.3):
            self.workers.append(_Worker(self.path, self.options, self.transactions))
            self.log.append("join")
        if rng.random() < 0.05:
            self._publish_others()
        worker = rng.choice(self.workers)
        at = self.workers.index(worker)
        if worker.is_stopped:
            what = rng.choice(["continue", "kill", "nothing", "nothing"])
        else:
            what = rng.choices(list(self._weights), list(self._weights.values()))[0]
        self.log.append(f"{what} {at}")
        if what in ("poll", "look", "commit", "commit, durable", "leave", "fork"):
            worker.send(what)
            self._take(worker)
        elif what == "together":
            free = [one for one in self.workers if not one.is_stopped]
            for one in free:
                one.send(rng.choice(["poll", "look", "commit"]))
            for one in free:
                if one.waits:  # else its answer was taken while waiting for another
                    self._take(one)
        elif what == "stop":
            self._halt(worker, signal.SIGSTOP)
        elif what == "continue":
            worker.signal(signal.SIGCONT)
            worker.is_stopped = False
            self._take(worker)
        elif what == "kill":
            if worker.waits or not self._halt(worker, signal.SIGKILL):
                worker.kill()
                self.workers.remove(worker)
        elif what == "pause":
            time.sleep(_STUCK_MS / 1000)
        elif what == "hand over":
            self._hand_over()
        elif what == "throw out":
            self._throw_out(worker)

    def _hand_over(self) -> None:
        """The others give partitions up while a new member, which will get them, is
        stopped somewhere in a poll."""
        others = [one for one in self.workers if not one.is_stopped]
        worker = _Worker(self.path, self.options, self.transactions)
        self.workers.append(worker)
        worker.send("poll")
        self._take(worker)
        self._halt(worker, signal.SIGSTOP, "look", self.rng.randint(1, _POLL_LINES))
        for one in others:
            one.send("look")
            self._take(one)
        self._check()
        if worker.is_stopped:
            worker.signal(signal.SIGCONT)
            worker.is_stopped = False
            for partition, offset in self._take(worker):
                done = 0 if self.transactions else self.committed.get(partition, 0)
                what = f"{offset} of {partition} comes again: {done} is committed"
                assert offset >= done, self._told(what)
        worker.send("commit")
        self._take(worker)
        while len(self.workers) > _WORKERS:
            self.workers.pop(0).kill()

    def _throw_out(self, worker: _Worker) -> None:
        """The others expel a member that does not poll, and continue with its
        partitions; then it commits."""
        while len(self.workers) < 2:
            self.workers.append(_Worker(self.path, self.options, self.transactions))
        worker.send("poll")
        self._take(worker)
        time.sleep(_STUCK_MS / 1000)
        for command in ("look", "poll", "commit"):
            for one in self.workers:
                if one is not worker:
                    one.send(command)
                    self._take(one)
        self._check()
        worker.send(self.rng.choice(["commit", "commit, durable"]))
        self._take(worker)

    def _halt(
        self, worker: _Worker, number: int, command: str = "", line: int = 0
    ) -> bool:
        """Stop or kill a worker at a line of a call; whether the call came to that
        line."""
        if not line:
            line = self.rng.randint(1, _LINES)
            if self.rng.random() < 0.7:
                line = round(math.exp(self.rng.uniform(0, math.log(_LINES))))
            command = self.rng.choice(_COMMANDS)
        self.log.append(f"at line {line} of {command}")
        worker.send(command, line, number)
        if not worker.has_halted():
            self._take(worker)
            return False
        if number == signal.SIGKILL:
            worker.kill()
            self.workers.remove(worker)
        else:
            worker.is_stopped, worker.has = True, None
        return True

    def _take(self, worker: _Worker) -> list[tuple[int, int]]:
        """Take the answer of a worker; the records delivered to it."""
        stopped = [one for one in self.workers if one.is_stopped]
        while stopped and not worker.has_answered(_HANG_S):
            # A worker that was stopped in a publication has the store's lock.
            other = stopped.pop()
            self.log.append(f"continue {self.workers.index(other)}")
            other.signal(signal.SIGCONT)
            other.is_stopped = False
            self._take(other)
        records, error, committed, child = worker.answer()
        self.delivered.update(records)
        for partition, offset in committed.items():
            at_least = max(offset, self.acknowledged.get(partition, 0))
            self.acknowledged[partition] = at_least
        if child:
            self.children.append(child)
        if error:
            self.log.append(error)
            # A rebalance may come between the records of a transaction and its end.
            is_sure = self.is_quiet and not self.transactions and not self.evicts
            name = error.partition(":")[0]
            assert name in _MAY, self._told(error)
            assert not is_sure, self._told(error)
        return records

    def _reset(self) -> None:
        """Set the committed offsets, unless there is a member."""
        offset = self.rng.randrange(_RECORDS)
        self.log.append(f"reset to {offset}")
        try:
            logstore.reset_offsets(
                self.path, "g", to=offset, topics=["t"], dry_run=False
            )
        except logstore.errors.GroupNotEmptyError:
            assert self.workers, self._told("nobody lives")
            self.log.append("refused")
            return
        assert not any(one.member for one in self.workers), self._told("members live")
        self.committed = dict.fromkeys(range(_PARTITIONS), offset)
        self.acknowledged = dict(self.committed)
        # Records below it count as done, and the rest comes again.
        below = {(p, n) for p in range(_PARTITIONS) for n in range(offset)}
        self.delivered = Counter(below)

    def _publish_others(self) -> None:
        """Publish by other identities, so that only pinned ones stay remembered."""
        try:
            with logstore.open(self.path) as store:
                for _ in range(_REMEMBERED + 1):
                    self._others += 1
                    name = f"other {self._others}"
                    store.publish([], identity=name, sequence=1, metadata=b"m")
        except logstore.StoreLockedError:
            return  # a stopped worker has the lock
        self.log.append("others publish")

    # ------------------------------------------------------------ rules

    def _told(self, what: object) -> str:
        return f"{what} after {self.log}"

    def _check(self) -> None:
        file = GroupFile(self._root, layout.group_file("g"), "g")
        file.refresh()
        members = {member.id for member in file.state.members}
        held = Counter(
            one
            for worker in self.workers
            if worker.has is not None and worker.member in members
            for one in worker.has
        )
        assert not held or max(held.values()) == 1, self._told(held)
        found = self._positions(file)
        for partition, offset in found.items():
            before = self.committed.get(partition, 0)
            assert offset >= before, self._told((partition, before, offset))
            self.committed[partition] = offset
            if not self.transactions:
                # A transaction may be published before its answer arrives.
                missing = {(partition, n) for n in range(offset)} - set(self.delivered)
                assert not missing, self._told(missing)
        file.close()
        for partition, offset in self.acknowledged.items():
            is_there = found.get(partition, 0) >= offset
            assert is_there, self._told(f"{offset} of {partition} is lost: {found}")
        if self.is_quiet and not self.transactions and not self.evicts:
            most = max(self.delivered.values(), default=0)
            assert most <= 1, self._told(self.delivered)

    def _positions(self, file: GroupFile) -> dict[int, int]:
        if not self.transactions:
            return {commit.partition: commit.offset for commit in file.commits()}
        with logstore.open(self.path, read_only=True) as store:
            _, found = GroupPositions(store, "g").read()
        return {key.partition: at.offset for key, at in found.items()}

    def _free_mutex(self) -> None:
        """Kill the workers if a stopped one holds the mutex: it cannot be expelled."""
        one = OneMember(self.path)
        try:
            one.slots.locked(lambda: None, _MUTEX_S)
        except BusyError:
            assert self.workers, self._told("nobody has the mutex")
            while self.workers:
                self.workers.pop().kill()
        finally:
            one.close()

    def _end(self) -> None:
        everything = {(p, n) for p in range(_PARTITIONS) for n in range(_RECORDS)}
        self._free_mutex()
        until = time.monotonic() + _LAST_S
        is_done = False
        with consumer(self.path, **self.options) as one:
            while not is_done and time.monotonic() < until:
                records: list[tuple[int, int]] = []
                if self.transactions:
                    with one.transaction() as transaction:
                        _poll(one, records)
                        for partition, offset in records:
                            transaction.append("out", b"%d:%d" % (partition, offset))
                    is_done = not records
                else:
                    _poll(one, records)
                    self.delivered.update(records)
                    is_done = everything <= set(self.delivered)
        if not self.transactions:
            missing = everything - set(self.delivered)
            assert not missing, self._told(f"{missing} are missing")
            return
        with logstore.open(self.path, read_only=True) as store:
            outputs = Counter(r.value for r in store.topic("out").read())
        expected = Counter(b"%d:%d" % one for one in everything)
        assert outputs == expected, self._told(outputs - expected or expected - outputs)
