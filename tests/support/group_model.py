"""Histories of consumer groups: real processes that join, poll, commit, leave, are
killed, stop and go on, in a random order, and a model that checks each step.

The rules, after every step:

1. no partition has two holders, of those that the group knows as members;
2. no committed offset goes back;
3. nothing is committed that was not delivered.

At the end each record was delivered (at least once); with transactions each output is
there exactly once.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import logstore
from logstore import TopicPartition
from logstore.group import membership
from logstore.group.group_file import GroupFile
from logstore.group.transaction import GroupPositions
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.groups import consumer

__all__ = ["PARTITIONS", "RECORDS", "History"]

PARTITIONS = 3
RECORDS = 12
WORKERS = 3
STEPS = 30
# A worker that is not asked for so long is stuck, if the others throw it out.
STUCK_MS = 60
REPLY_S = 60.0
# Another worker waits for one that is stopped, if it does not answer for so long.
HANG_S = 1.0

_forks = multiprocessing.get_context("fork")


class Worker:
    """A process with one consumer, which does what it is told.

    Attributes:
        member: its id in the group, as it has last said.
        has: the partitions that it has, as it has last said; None: it was stopped in
            the middle of a call.
        is_stopped: by SIGSTOP.
        waits: whether it owes an answer.
    """

    def __init__(self, path: Path, options: dict[str, Any], transactions: bool) -> None:
        self._pipe, theirs = _forks.Pipe()
        self._process = _forks.Process(
            target=_serve, args=(theirs, path, options, transactions), daemon=True
        )
        self._process.start()
        theirs.close()
        self.member = ""
        self.has: frozenset[TopicPartition] | None = frozenset()
        self.is_stopped = False
        self.waits = False

    def send(self, command: str) -> None:
        self.waits = True
        self._pipe.send(command)

    def has_answered(self, seconds: float) -> bool:
        """Whether there is an answer, after at most so long."""
        return self._pipe.poll(seconds)

    def answer(self) -> tuple[list[tuple[int, int]], str]:
        """(records that were delivered, name of the error)."""
        assert self.has_answered(REPLY_S), "a worker does not answer"
        records, error, has, self.member = self._pipe.recv()
        self.waits = False
        self.has = frozenset(has)
        return records, error

    def signal(self, number: int) -> None:
        pid = self._process.pid
        assert pid is not None
        os.kill(pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.signal(signal.SIGCONT)
        self._process.join()
        self._pipe.close()


def _serve(
    pipe: Connection, path: Path, options: dict[str, Any], transactions: bool
) -> None:
    """The process of a worker."""
    with consumer(path, **options) as one:
        while True:
            command = pipe.recv()
            records: list[tuple[int, int]] = []
            error = ""
            try:
                if command == "leave":
                    one.unsubscribe()
                    one.subscribe(["t"])
                elif command == "commit" and not transactions:
                    one.commit(durable=False)
                elif transactions:
                    with one.transaction() as transaction:
                        _poll(one, records)
                        for partition, offset in records:
                            transaction.append("out", b"%d:%d" % (partition, offset))
                else:
                    _poll(one, records)
            except (logstore.GroupError, logstore.PublicationTimeoutError) as caught:
                error, records = type(caught).__name__, []
            pipe.send((records, error, one.assignment(), one.group_metadata()[2]))


def _poll(one: Any, records: list[tuple[int, int]]) -> None:
    for some in one.poll(max_records=3).values():
        records += [(record.partition, record.offset) for record in some]


class History:
    """One random history; `run` raises an AssertionError if a rule is broken.

    Args:
        transactions: commit so, with outputs.
        evicts: throw out members that are stuck.
    """

    def __init__(
        self, path: Path, seed: int, *, transactions: bool, evicts: bool
    ) -> None:
        self.path = path
        self.transactions = transactions
        self.options: dict[str, Any] = {"durable_only": False}
        if evicts:
            self.options |= {"on_stuck": "evict", "max_poll_interval_ms": STUCK_MS}
        self.rng = random.Random(seed)
        self.log: list[str] = []
        self.delivered: set[tuple[int, int]] = set()
        self.committed: dict[int, int] = {}
        self.workers: list[Worker] = []
        with logstore.open(path) as store:
            for partition in store.create_topic("t", PARTITIONS):
                partition.append_many([b"x"] * RECORDS)
            store.create_topic("out")
        self._root = Directory.open_root(Files(), str(path))

    def run(self) -> None:
        """All steps, and the end."""
        wait, membership._WAIT_S = membership._WAIT_S, 0.5
        try:
            for _ in range(STEPS):
                self._step()
                self._check()
            for worker in self.workers:
                worker.kill()
            self.workers.clear()
            self._check()
            self._end()
        finally:
            membership._WAIT_S = wait
            for worker in self.workers:
                with contextlib.suppress(OSError):
                    worker.kill()
            self._root.close()

    # ------------------------------------------------------------ steps

    def _step(self) -> None:
        rng = self.rng
        if not self.workers or (len(self.workers) < WORKERS and rng.random() < 0.3):
            self.workers.append(Worker(self.path, self.options, self.transactions))
            self.log.append("join")
        worker = rng.choice(self.workers)
        at = self.workers.index(worker)
        if worker.is_stopped:
            what = rng.choice(["continue", "kill", "nothing", "nothing"])
        else:
            what = rng.choices(
                ["poll", "commit", "leave", "stop", "kill", "pause"],
                [8, 5, 1, 1.5, 1.5, 0.5],
            )[0]
        self.log.append(f"{what} {at}")
        if what in ("poll", "commit", "leave"):
            worker.send(what)
            self._take(worker)
        elif what == "stop":
            worker.send(rng.choice(["poll", "commit"]))
            time.sleep(rng.random() * 0.004)
            worker.signal(signal.SIGSTOP)
            worker.is_stopped, worker.has = True, None
        elif what == "continue":
            worker.signal(signal.SIGCONT)
            worker.is_stopped = False
            self._take(worker)
        elif what == "kill":
            if not worker.waits:
                worker.send(rng.choice(["poll", "commit"]))
                time.sleep(rng.random() * 0.004)
            worker.kill()
            self.workers.remove(worker)
        elif what == "pause":
            time.sleep(STUCK_MS / 1000)

    def _take(self, worker: Worker) -> None:
        stopped = [one for one in self.workers if one.is_stopped]
        while stopped and not worker.has_answered(HANG_S):
            # One that was stopped in the middle of a publication has the store's lock.
            other = stopped.pop()
            self.log.append(f"continue {self.workers.index(other)}")
            other.signal(signal.SIGCONT)
            other.is_stopped = False
            self._take(other)
        records, error = worker.answer()
        self.delivered.update(records)
        if error:
            self.log.append(error)
            # Only what a stopped or thrown-out member causes.
            allowed = {"FencedError", "CommitFailedError"}
            assert error in allowed, self._told(error)

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
        for partition, offset in self._positions(file).items():
            before = self.committed.get(partition, 0)
            assert offset >= before, self._told((partition, before, offset))
            self.committed[partition] = offset
            if not self.transactions:
                # Of a transaction the records may be published before the answer.
                missing = {(partition, n) for n in range(offset)} - self.delivered
                assert not missing, self._told(missing)
        file.close()

    def _positions(self, file: GroupFile) -> dict[int, int]:
        if not self.transactions:
            return {commit.partition: commit.offset for commit in file.commits()}
        with logstore.open(self.path, read_only=True) as store:
            _, found = GroupPositions(store, "g").read()
        return {key.partition: at.offset for key, at in found.items()}

    def _end(self) -> None:
        everything = {(p, n) for p in range(PARTITIONS) for n in range(RECORDS)}
        with consumer(self.path, durable_only=False) as one:
            while True:
                records: list[tuple[int, int]] = []
                if self.transactions:
                    with one.transaction() as transaction:
                        _poll(one, records)
                        for partition, offset in records:
                            transaction.append("out", b"%d:%d" % (partition, offset))
                else:
                    _poll(one, records)
                if not records:
                    break
                self.delivered.update(records)
        if not self.transactions:
            assert self.delivered == everything, self._told("records are missing")
            return
        with logstore.open(self.path, read_only=True) as store:
            outputs = Counter(r.value for r in store.topic("out").read())
        expected = Counter(b"%d:%d" % one for one in everything)
        assert outputs == expected, self._told(outputs - expected or expected - outputs)
