"""Programs of `cancellations` about a consumer: tasks that read, commit and seek, tasks
that change what it reads, and tasks that copy by its transactions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import logstore
import logstore.aio
from faults.cancellation_program import Cut, Program, named

__all__ = ["Copies", "Reads", "Subscribes"]

_TOPIC = "t"
# Distance of the timestamps of successive records.
_BEGAN_MS, _EACH_MS = 1_700_000_000_000, 10


class _Reader(Program):
    """Tasks that read two partitions by one consumer.

    Attributes:
        records: number of records of each partition.
    """

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self.records = rng.choice((5, 40, 200))
        self.keys = [logstore.TopicPartition(_TOPIC, n) for n in range(2)]
        times = [_BEGAN_MS + _EACH_MS * n for n in range(self.records)]
        with logstore.open(path) as store:
            for partition in store.create_topic(_TOPIC, 2):
                values = [b"x"] * self.records
                partition.append_many(values, timestamps_ms=times, durable=True)
        # The next offset, and all its earlier values.
        self._next = dict.fromkeys(self.keys, 0)
        self._were = {key: {0} for key in self.keys}

    def _new(self, **options: Any) -> logstore.aio.Consumer:
        return logstore.aio.Consumer(
            self.path,
            group="g",
            reset="earliest",
            max_poll_records=self.rng.choice((1, 7, 500)),
            auto_commit_ms=self.rng.choice((None, None, 0, 2)),
            **options,
        )

    def _may_come(self, key: Any, offset: int) -> bool:
        """Whether an offset other than the next one may be delivered."""
        raise NotImplementedError

    def _note(self, records: list[Any]) -> None:
        """Check records that were just delivered to a task."""
        for record in records:
            key = logstore.TopicPartition(record.topic, record.partition)
            offset, due = record.offset, self._next[key]
            if offset != due and not self._may_come(key, offset):
                self.wrong.append(f"{key}: offset {offset} comes, and {due} is due")
            self._next[key] = offset + 1
        for key, offset in self._next.items():
            self._were[key].add(offset)

    def _note_many(self, found: dict[Any, list[Any]]) -> None:
        # Each partition in order; several partitions are interleaved.
        self._note([record for records in found.values() for record in records])

    async def _get(self, one: logstore.aio.Consumer) -> None:
        """Read by one of the ways."""
        rng = self.rng
        if rng.random() < 0.5:
            way = rng.choice((one.getone, one.getone, one.__anext__))
            await self.call(way, then=lambda record: self._note([record]), often=1.0)
            return
        options = {"timeout_ms": rng.choice((0, 0, 1, 5, 200))}
        if rng.random() < 0.5:
            options["max_records"] = rng.choice((1, 3, 50, 1000))
        await self.call(one.getmany, then=self._note_many, **options)

    async def _check_committed(self, one: logstore.aio.Consumer) -> None:
        key = self.rng.choice(self.keys)
        found = await self.call(one.committed, key)
        if not isinstance(found, Cut) and found is not None:
            self.expect(
                found.offset in self._were[key],
                f"{key}: {found.offset} is committed, and was no position: "
                f"{sorted(self._were[key])[-9:]}",
            )

    async def _ask(self, one: logstore.aio.Consumer) -> None:
        """Make a call that changes nothing."""
        keys, rng = self.keys, self.rng
        at = rng.randrange(self.records)
        key = rng.choice(keys)
        times = {key: _BEGAN_MS + _EACH_MS * at}
        questions: list[tuple[Any, tuple[Any, ...], Callable[[Any], bool]]] = [
            (one.group_metadata, (), lambda found: found[0] == "g"),
            (one.lag, (), lambda found: found.keys() <= set(keys)),
            (one.paused, (), lambda found: found <= set(keys)),
            (one.beginning_offsets, (keys,), dict.fromkeys(keys, 0).__eq__),
            (one.end_offsets, (keys,), dict.fromkeys(keys, self.records).__eq__),
            (one.offsets_for_times, (times,), lambda found: found[key].offset == at),
        ]
        call, args, right = rng.choice(questions)
        found = await self.call(call, *args)
        is_right = isinstance(found, Cut) or right(found)
        self.expect(is_right, f"{call.__name__}: {found}")

    async def _rest(self, one: logstore.aio.Consumer) -> None:
        """Read what is left, commit it and stop."""
        while not self.wrong and set(self._next.values()) != {self.records}:
            found = await one.getmany(timeout_ms=2_000)
            self._note_many(found)
            self.expect(bool(found), f"no more than {self._next} comes")
        await one.commit()
        for key in self.keys:
            self._were[key] = {self._next[key]}
            await self._check_committed(one)
        waiting = [asyncio.ensure_future(one.getone()) for _ in range(3)]
        await asyncio.sleep(0)
        if self.rng.random() < 0.5:
            await self.call(one.stop)
        else:
            await self.call(one.__aexit__, None, None, None)
        await one.stop()
        for error in await asyncio.gather(*waiting, return_exceptions=True):
            is_right = isinstance(error, logstore.errors.StoreClosedError)
            self.expect(is_right, f"a task that waits for records at stop: {error!r}")

    def look(self) -> None:
        (group,) = logstore.groups(self.path)
        self.expect(not group.members, f"members are left: {group.members}")


_READER_CALLS = named(
    Consumer="start stop __aenter__ __aexit__ __anext__ getone getmany commit "
    "committed lag paused beginning_offsets end_offsets offsets_for_times "
    "group_metadata"
)


class Reads(_Reader):
    """Tasks that read, commit and seek by one consumer."""

    CALLS = _READER_CALLS | named(
        Consumer="pause resume position seek seek_to_beginning seek_to_end "
        "seek_to_time seek_to_committed"
    )

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        # Possible positions after a seek that is under way; None: its effect was seen.
        self._seeks: dict[Any, Collection[int] | None] = {}

    def _may_come(self, key: Any, offset: int) -> bool:
        if offset not in (self._seeks.get(key) or ()):
            return False
        self._seeks[key] = None
        self.notes["seeks seen"] += 1
        return True

    async def _seek(self, one: logstore.aio.Consumer) -> None:
        """Seek elsewhere, so that the next records show whether the seek was done."""
        rng = self.rng
        keys = rng.choice((self.keys, self.keys[:1], self.keys[1:]))
        if any(key in self._seeks for key in keys):
            return
        to = rng.randrange(max(self._next[keys[0]] - 1, 1))
        seek: Any
        seek, args, allowed = rng.choice(
            (
                (one.seek, (keys[0], to), {to}),
                (one.seek, (keys[0], to), {to}),
                (
                    one.seek_to_time,
                    ({keys[0]: _BEGAN_MS + _EACH_MS * to},),
                    {to},
                ),
                (one.seek_to_beginning, keys, {0}),
                (one.seek_to_end, keys, {self.records}),
                (one.seek_to_committed, keys, None),
            )
        )
        for key in keys:
            self._seeks[key] = self._were[key] if allowed is None else allowed
            self._were[key] |= set(allowed or ())
        await self.call(seek, *args)
        for key in keys:
            due, open_to = self._next[key], self._seeks[key]
            at = await one.position(key)
            # Nothing has come since: the position shows its target.
            if open_to is not None and at in open_to and self._next[key] == due:
                self._next[key] = at
            del self._seeks[key]

    async def _step(self, one: logstore.aio.Consumer) -> None:
        rng, kind = self.rng, self.rng.randrange(16)
        key = rng.choice(self.keys)
        if kind < 8:
            await self._get(one)
        elif kind < 10:
            await self.call(one.commit, durable=rng.random() < 0.5)
        elif kind in (10, 14) and self._may_seek:
            await self._seek(one)
        elif kind == 11:
            await self.call(one.pause, key)
            await self.call(one.resume, key)
        elif kind == 12:
            await self.call(one.position, key)
        elif kind == 13:
            await self._ask(one)
        else:
            await self._check_committed(one)

    async def main(self) -> None:
        self._may_seek = self.rng.random() < 0.6
        one = self._new(topics=[_TOPIC])
        for _ in range(self.rng.randrange(4)):
            await self.call(self.rng.choice((one.start, one.__aenter__)))
        while isinstance(
            await self.call(one.getmany, then=self._note_many, often=0.3), Cut
        ):
            pass  # until it has the partitions: `seek` needs them
        while not await one.assignment():
            self._note_many(await one.getmany(timeout_ms=20))
        await self.together(self.several(lambda: self._step(one)))
        await one.resume(*self.keys)
        await self._rest(one)


class Subscribes(_Reader):
    """Tasks that read and commit while others change what the consumer reads.

    After each change it continues at a committed offset, or at its position.
    """

    CALLS = _READER_CALLS | named(
        Consumer="subscribe unsubscribe assign subscription assignment"
    )

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._lock = asyncio.Lock()
        self._is_changing = False
        # Partitions that may begin again.
        self._again: set[Any] = set()

    def _may_come(self, key: Any, offset: int) -> bool:
        is_right = key in self._again and offset < self._next[key]
        return is_right and offset in self._were[key]

    def _note(self, records: list[Any]) -> None:
        super()._note(records)
        if not self._is_changing:
            self._again.difference_update((r.topic, r.partition) for r in records)

    async def _change(self, one: logstore.aio.Consumer) -> None:
        rng = self.rng
        self._is_changing = True
        self._again.update(self.keys)
        kind = rng.randrange(5)
        if kind == 0:
            await self.call(one.unsubscribe)
        elif kind == 1:
            await self.call(one.assign, rng.choice((self.keys, self.keys[:1])))
        elif kind == 2:
            await self.call(one.subscribe, pattern=_TOPIC)
        else:
            await self.call(one.subscribe, [_TOPIC])
        # It returns after the change, if that is made.
        await one.subscription()
        self._again.update(self.keys)
        self._is_changing = False

    async def _step(self, one: logstore.aio.Consumer) -> None:
        rng, kind = self.rng, self.rng.randrange(14)
        if kind < 7:
            await self._get(one)
        elif kind < 9:
            await self.call(one.commit, durable=rng.random() < 0.5)
        elif kind < 11:
            async with self._lock:
                await self._change(one)
        elif kind == 11:
            call, most = rng.choice(
                ((one.subscription, {_TOPIC}), (one.assignment, {*self.keys}))
            )
            found = await self.call(call)
            is_right = isinstance(found, Cut) or found <= most
            self.expect(is_right, f"{call.__name__}: {found}")
        elif kind == 12:
            await self._ask(one)
        else:
            await self._check_committed(one)

    async def main(self) -> None:
        one = self._new()
        for _ in range(self.rng.randrange(4)):
            await self.call(self.rng.choice((one.start, one.__aenter__)))
        await self.together(self.several(lambda: self._step(one)))
        # Delivered records that are not committed must come again.
        await one.unsubscribe()
        for key in self.keys:
            at = await one.committed(key)
            self._next[key] = 0 if at is None else at.offset
            self.expect(self._next[key] in self._were[key], f"{at} is committed")
        self._again.clear()
        await one.subscribe([_TOPIC])
        await self._rest(one)


# ------------------------------------------------------------------ transactions


class Copies(Program):
    """Tasks that copy by transactions, one after the other."""

    CALLS = named(
        AsyncTransaction="__aenter__ __aexit__ append commit abort",
        Consumer="committed lag",
    )

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._records = rng.choice((3, 60))
        with logstore.open(path) as store:
            values = [b"%d" % n for n in range(self._records)]
            store.create_topic(_TOPIC).append_many(values, durable=True)
            store.create_topic("out")
        self._lock = asyncio.Lock()

    async def copy(self, one: logstore.aio.Consumer, most: int) -> int:
        """Copy some; returns how many."""
        async with one.transaction() as transaction:
            return await self._fill(one, transaction, most)

    async def _fill(
        self, one: logstore.aio.Consumer, transaction: Any, most: int
    ) -> int:
        count = 0
        found = await one.getmany(
            timeout_ms=self.rng.choice((0, 1, 5)), max_records=most
        )
        for records in found.values():
            for record in records:
                count += 1
                await self._append(transaction, record.value)
        return count

    async def _append(self, transaction: Any, value: Any) -> None:
        """Append a value; sometimes in a task that may be cancelled, then again."""
        if self.rng.random() < 0.2:
            added = await self.call(transaction.append, "out", value)
            if not isinstance(added, Cut):
                return
        await transaction.append("out", value)

    async def _by_hand(self, one: logstore.aio.Consumer) -> None:
        """Begin a transaction, fill it or not, and end it by each of the ways."""
        # A task that is cancelled before it has begun has called nothing, and one that
        # is cancelled later has not begun the transaction.
        begun = await self.call(one.transaction().__aenter__)
        if isinstance(begun, Cut):
            return
        kind = self.rng.randrange(3)
        if kind == 0:
            while isinstance(await self.call(begun.abort), Cut):
                pass
            return
        before = await one.committed((_TOPIC, 0))
        count = await self._fill(one, begun, 3)
        end: Any = begun.commit
        args: tuple[None, ...] = ()
        if kind == 1:
            end, args = begun.__aexit__, (None, None, None)
        while await self.call(end, *args) is Cut.NEVER:
            pass
        after = await one.committed((_TOPIC, 0))
        due = (0 if before is None else before.offset) + count
        self.expect(
            (0 if after is None else after.offset) == due,
            f"a transaction of {count} that was ended: {after} after {before}",
        )

    async def _step(self, one: logstore.aio.Consumer) -> None:
        rng, kind = self.rng, self.rng.randrange(6)
        if kind < 3:
            async with self._lock:
                await self.call(self.copy, one, rng.choice((1, 2, 5)))
        elif kind == 3:
            async with self._lock:
                await self._by_hand(one)
        elif kind == 4:
            await self.call(one.committed, logstore.TopicPartition(_TOPIC, 0))
        else:
            await self.call(one.lag)

    async def main(self) -> None:
        async with logstore.aio.Consumer(
            self.path,
            group="g",
            topics=[_TOPIC],
            reset="earliest",
            max_poll_records=self.rng.choice((1, 4, 500)),
        ) as one:
            await self.together(self.several(lambda: self._step(one)))
            while not self.wrong and await self._end(one):
                await self.copy(one, 500)

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
