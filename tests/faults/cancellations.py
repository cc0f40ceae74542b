"""Tasks that are cancelled at every await of `logstore.aio`, beside others whose calls
wait behind theirs.

A case is a program of some tasks of one event loop: tasks that read, commit and seek by
one consumer; that copy by its transactions; or that append, follow and publish in one
store. Each call is made by a task of its own, which is cancelled after some steps of
the loop, after some time, or when the loop was busy, so that the call may be done by
then. What a call returns is noted in the same step. At the end nobody is cancelled, and
the rest is read.

Each record was given once and in order, from where the last `seek` has led; what is
committed was the position at some time; each output is there once; what was appended
is there as a whole, where it was said to be; no call hangs, and none raises an error.
"""

from __future__ import annotations

import asyncio
import importlib.util
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import logstore
import logstore.aio
from faults.cases import folder_of, run_cases
from faults.method import Tally

NAME = "cancellations"
UNIT = "cancellations"
COUNTS = {"commit": 3_000, "nightly": 20_000, "release": 200_000}

# How many a case makes, about.
_EACH = 40
_PATIENCE_S = 20.0
_TOPIC = "t"
_NONE: Any = object()


def run(count: int, seed: int, tally: Tally) -> None:
    """So many tasks that were cancelled."""
    notes = run_cases(__name__, count, seed, tally, worth=_EACH)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


def problem(key: str, notes: Counter[str]) -> str:
    """What is wrong in a case; "" for nothing."""
    rng = random.Random(f"cancellations {key}")
    kind = rng.choice((_Reads, _Reads, _Copies, _Copies, _Appends))
    with folder_of(in_memory=True) as folder:
        case = kind(Path(folder) / "store", rng)
        try:
            _run(asyncio.wait_for(case.main(), _PATIENCE_S), rng)
        except asyncio.TimeoutError:
            case.wrong.append(f"hangs for {_PATIENCE_S:.0f} s in {case.under_way()}")
        except Exception as error:
            case.wrong.append(f"{type(error).__name__}: {error}")
        if not case.wrong:
            case.look()
        notes["done"] = max(case.cancelled, 1)
        notes.update(case.notes)
    text = "; ".join(case.wrong[:3])
    return f"{kind.__name__[1:].lower()}: {text}" if text else ""


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


class _Program:
    """One case.

    Attributes:
        wrong: what was found.
        cancelled: how many tasks were.
        notes: what else was counted.
    """

    def __init__(self, path: Path, rng: random.Random) -> None:
        self.path = path
        self.rng = rng
        self.wrong: list[str] = []
        self.cancelled = 0
        self.notes: Counter[str] = Counter()
        self._under_way: Counter[str] = Counter()

    async def main(self) -> None:
        raise NotImplementedError

    def look(self) -> None:
        """At what is left on the disk."""

    def under_way(self) -> str:
        return ", ".join(+self._under_way)

    def expect(self, is_so: bool, what: str) -> None:
        if not is_so:
            self.wrong.append(what)

    async def call(self, what: str, call: Awaitable[Any], *, often: float = 0.7) -> Any:
        """Make a call in a task, and perhaps cancel that; `_NONE` if it was."""
        rng = self.rng
        self._under_way[what] += 1
        task = asyncio.ensure_future(call)
        try:
            for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4, 6, 9))):
                await asyncio.sleep(0)
            if rng.random() < 0.25:
                await asyncio.sleep(rng.random() * 0.003)
            if rng.random() < 0.3:
                # The thread goes on, and the loop does not.
                time.sleep(rng.random() * 0.003)
            if rng.random() < often and task.cancel():
                self.cancelled += 1
            await asyncio.wait([task])
        except asyncio.CancelledError:
            task.cancel()  # the task that makes the call is cancelled itself
            raise
        finally:
            self._under_way[what] -= 1
        if task.cancelled():
            self.notes[f"in {what}"] += 1
            return _NONE
        return task.result()

    async def together(self, work: Callable[[], Awaitable[None]]) -> None:
        """Some tasks that do the same, until enough were cancelled."""

        async def some() -> None:
            while self.cancelled < _EACH and not self.wrong:
                await work()

        await asyncio.gather(*(some() for _ in range(self.rng.randrange(2, 6))))


# ------------------------------------------------------------------ readers


class _Reads(_Program):
    """Tasks that read and commit by one consumer."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._records = rng.choice((5, 40, 200))
        self._keys = [logstore.TopicPartition(_TOPIC, n) for n in range(2)]
        with logstore.open(path) as store:
            for partition in store.create_topic(_TOPIC, 2):
                partition.append_many([b"x"] * self._records, durable=True)
        # The next offset, and all that it was.
        self._next = dict.fromkeys(self._keys, 0)
        self._were = {key: {0} for key in self._keys}
        # Where a seek may lead that is under way; None: it was seen to have led there.
        self._seeks: dict[Any, int | None] = {}

    def _note(self, records: list[Any]) -> None:
        """These were given to a task just now."""
        for record in records:
            key = logstore.TopicPartition(record.topic, record.partition)
            offset, due = record.offset, self._next[key]
            if offset != due and self._seeks.get(key) == offset:
                self._seeks[key] = None
                self.notes["seeks seen"] += 1
            elif offset != due:
                self.wrong.append(f"{key}: offset {offset} comes, and {due} is due")
            self._next[key] = offset + 1
        for key, offset in self._next.items():
            self._were[key].add(offset)

    async def _getone(self, one: logstore.aio.Consumer) -> None:
        self._note([await one.getone()])

    async def _getmany(self, one: logstore.aio.Consumer, **options: Any) -> int:
        found = await one.getmany(**options)
        records = [record for records in found.values() for record in records]
        # Of each partition in order; those of several come side by side.
        self._note(records)
        return len(records)

    async def _seek(self, one: logstore.aio.Consumer) -> None:
        """Go back, so that what comes tells whether it is done."""
        key = self.rng.choice(self._keys)
        if key in self._seeks or self._next[key] < 2:
            return
        to = self._seeks[key] = self.rng.randrange(self._next[key] - 1)
        self._were[key].add(to)
        done = await self.call("seek", one.seek(key, to))
        is_done = done is not _NONE or await one.position(key) == to
        if is_done and self._seeks.get(key) == to:
            self._next[key] = to  # and nothing has come since
        self._seeks.pop(key, None)

    async def _check_committed(self, one: logstore.aio.Consumer) -> None:
        key = self.rng.choice(self._keys)
        found = await self.call("committed", one.committed(key))
        if found is not _NONE and found is not None:
            self.expect(
                found.offset in self._were[key],
                f"{key}: {found.offset} is committed, and was no position: "
                f"{sorted(self._were[key])[-9:]}",
            )

    async def _step(self, one: logstore.aio.Consumer) -> None:
        rng, kind = self.rng, self.rng.randrange(14)
        key = rng.choice(self._keys)
        if kind < 4:
            await self.call("getone", self._getone(one), often=1.0)
        elif kind < 8:
            options = {"timeout_ms": rng.choice((0, 0, 1, 5, 200))}
            if rng.random() < 0.5:
                options["max_records"] = rng.choice((1, 3, 50, 1000))
            await self.call("getmany", self._getmany(one, **options))
        elif kind < 10:
            await self.call("commit", one.commit(durable=rng.random() < 0.5))
        elif kind == 10 and self._may_seek:
            await self._seek(one)
        elif kind == 11:
            await self.call("pause", one.pause(key))
            await one.resume(key)
        elif kind == 12:
            await self.call("position", one.position(key))
        else:
            await self._check_committed(one)

    async def main(self) -> None:
        rng = self.rng
        self._may_seek = rng.random() < 0.6
        one = logstore.aio.Consumer(
            self.path,
            group="g",
            topics=[_TOPIC],
            reset="earliest",
            max_poll_records=rng.choice((1, 7, 500)),
            auto_commit_ms=rng.choice((None, None, 0, 2)),
        )
        for _ in range(rng.randrange(4)):
            await self.call("start", one.start())
        while await self.call("getmany", self._getmany(one), often=0.3) is _NONE:
            pass  # until it has the partitions: `seek` needs them
        while not await one.assignment():
            await self._getmany(one, timeout_ms=20)
        await self.together(lambda: self._step(one))
        while not self.wrong and set(self._next.values()) != {self._records}:
            count = await self._getmany(one, timeout_ms=2_000)
            self.expect(count > 0, f"no more than {self._next} comes")
        await one.commit()
        for key in self._keys:
            self._were[key] = {self._next[key]}
            await self._check_committed(one)
        waiting = [asyncio.ensure_future(one.getone()) for _ in range(3)]
        await asyncio.sleep(0)
        await self.call("stop", one.stop())
        await one.stop()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            is_right = isinstance(error, logstore.StoreClosedError)
            self.expect(is_right, f"a task that waits for records at stop: {error!r}")

    def look(self) -> None:
        (group,) = logstore.groups(self.path)
        self.expect(not group.members, f"members are left: {group.members}")


# ------------------------------------------------------------------ transactions


class _Copies(_Program):
    """Tasks that copy by transactions, one after the other."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._records = rng.choice((3, 60))
        with logstore.open(path) as store:
            values = [b"%d" % n for n in range(self._records)]
            store.create_topic(_TOPIC).append_many(values, durable=True)
            store.create_topic("out")
        self._lock = asyncio.Lock()

    async def _copy(self, one: logstore.aio.Consumer, most: int) -> int:
        """Copy some; how many."""
        count = 0
        async with one.transaction() as transaction:
            found = await one.getmany(
                timeout_ms=self.rng.choice((0, 1, 5)), max_records=most
            )
            for records in found.values():
                for record in records:
                    count += 1
                    await self._append(transaction, record.value)
        return count

    async def _append(self, transaction: Any, value: Any) -> None:
        """Also by a task that is cancelled, and then again."""
        if self.rng.random() < 0.2:
            append = transaction.append("out", value)
            if await self.call("append to a transaction", append) is not _NONE:
                return
        await transaction.append("out", value)

    async def _step(self, one: logstore.aio.Consumer) -> None:
        rng, kind = self.rng, self.rng.randrange(6)
        if kind < 3:
            async with self._lock:
                most = rng.choice((1, 2, 5))
                await self.call("a transaction", self._copy(one, most))
        elif kind == 3:
            async with self._lock:
                enter = one.transaction().__aenter__()
                begun = await self.call("entering", enter)
                # A task that is cancelled before it has begun has called nothing.
                while begun is not _NONE:
                    if await self.call("abort", begun.abort()) is not _NONE:
                        break
        elif kind == 4:
            key = logstore.TopicPartition(_TOPIC, 0)
            await self.call("committed", one.committed(key))
        else:
            await self.call("lag", one.lag())

    async def main(self) -> None:
        async with logstore.aio.Consumer(
            self.path,
            group="g",
            topics=[_TOPIC],
            reset="earliest",
            max_poll_records=self.rng.choice((1, 4, 500)),
        ) as one:
            await self.together(lambda: self._step(one))
            while not self.wrong and await self._end(one):
                await self._copy(one, 500)

    async def _end(self, one: logstore.aio.Consumer) -> bool:
        """Whether there is more to copy."""
        found = await one.committed((_TOPIC, 0))
        return found is None or found.offset < self._records

    def look(self) -> None:
        with logstore.open(self.path, read_only=True) as store:
            there = [int(r.value or b"-1") for r in store.topic("out")[0].read()]
        self.expect(
            there == list(range(self._records)), f"the outputs of it are {there[:99]}"
        )


# ------------------------------------------------------------------ a store


class _Appends(_Program):
    """Tasks that append, follow and publish."""

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._number = 0
        # What was tried, and the offsets that were said.
        self._values: set[bytes] = set()
        self._said: dict[bytes, int] = {}
        self._published = 0
        self._followed: list[list[bytes]] = []
        self._lock = asyncio.Lock()

    def _value(self) -> bytes:
        self._number += 1
        value = b"%d" % self._number
        self._values.add(value)
        return value

    async def _append(self, partition: logstore.aio.Partition) -> None:
        value = self._value()
        durable = self.rng.random() < 0.6
        if self.rng.random() < 0.5:
            self._said[value] = await partition.append(value, durable=durable)
        else:
            more = [value, self._value(), self._value()]
            offsets = await partition.append_many(more, durable=durable)
            self._said.update(zip(more, offsets, strict=True))

    async def _publish(self, store: logstore.aio.Store) -> None:
        """The same again until it is said to be done: it is done once."""
        value = self._value()
        sequence = self._published + 1
        while True:
            with store.stage("job", sequence) as stage:
                stage.append_many(store.topic(_TOPIC)[0].blocking, [value])
                staged = stage.finish()
            call = store.publish(staged, identity="job", sequence=sequence)
            if await self.call("publish", call) is not _NONE:
                break
        self._published = sequence
        self.expect(
            store.published("job") == sequence, f"publication {sequence} is not told"
        )

    async def _follow(self, follower: AsyncIterator[Any], seen: list[bytes]) -> None:
        while True:
            seen.append((await anext(follower)).value)

    async def main(self) -> None:
        rng = self.rng
        store: Any = _NONE
        while store is _NONE:
            opening = logstore.aio.open(self.path)
            try:
                store = await self.call("open", opening, often=0.4)
            except logstore.StoreLockedError:
                await asyncio.sleep(0.002)  # the one before is closed in its thread
        topic: Any = _NONE
        while topic is _NONE:
            create = store.create_topic(_TOPIC, exist_ok=True)
            topic = await self.call("create_topic", create, often=0.4)
        partition = topic[0]
        followers = [partition.follow(0) for _ in range(2)]
        self._followed = [[] for _ in followers]

        async def step() -> None:
            kind = rng.randrange(8)
            if kind < 4:
                await self.call("append", self._append(partition))
            elif kind < 6:
                at = rng.randrange(len(followers))
                follow = self._follow(followers[at], self._followed[at])
                await self.call("follow", follow, often=1.0)
            elif kind == 6:
                await self.call("flush", partition.flush())
            else:
                async with self._lock:
                    await self._publish(store)

        await self.together(step)
        await partition.flush()  # behind appends that the thread has begun
        end = partition.end_offset
        for follower, seen in zip(followers, self._followed, strict=True):
            while len(seen) < end:
                seen.append((await anext(follower)).value)
        await self.call("close", store.close())
        await store.close()

    def look(self) -> None:
        with logstore.open(self.path, read_only=True) as store:
            there = [bytes(r.value or b"") for r in store.topic(_TOPIC)[0].read()]
            self.expect(
                store.published("job") == (self._published or None), "not published"
            )
        self.expect(len(set(there)) == len(there), f"twice: {there}")
        self.expect(set(there) <= self._values, "what nobody has appended is there")
        for value, offset in self._said.items():
            is_there = offset < len(there) and there[offset] == value
            self.expect(is_there, f"{value!r} is not at offset {offset}")
        for seen in self._followed:
            self.expect(seen == there, f"followed {seen}, and the log has {there}")
