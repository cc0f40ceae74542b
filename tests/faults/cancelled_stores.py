"""A program of `cancellations` about a store that tasks share: they append in every
way, follow, and publish."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow

import logstore
import logstore.aio
from faults.cancellation_program import Cut, Program, named
from logstore.errors import OffsetConflictError
from support.producing import sent

__all__ = ["Appends", "closed", "opened"]

_TOPIC = "t"
_CONFIG = logstore.StoreConfig(publish_for_others=True)


async def opened(case: Program) -> tuple[logstore.aio.Store, Callable[..., Any]]:
    """Open the store of a case; return it and its `__aexit__`."""
    while True:
        opening = logstore.aio.open(case.path, config=_CONFIG)
        try:
            if case.rng.random() < 0.5:
                store = await case.call(opening.__aenter__, often=0.4)
                leave = opening.__aexit__
            else:
                opening.close()
                store = await case.call(
                    logstore.aio.open, case.path, config=_CONFIG, often=0.4
                )
                leave = getattr(store, "__aexit__", None)
        except logstore.StoreLockedError:
            await asyncio.sleep(0.002)  # a thread is closing the last one
            continue
        if not isinstance(store, Cut):
            return store, leave
        opening.close()


async def closed(
    case: Program, store: logstore.aio.Store, leave: Callable[..., Any]
) -> None:
    """Close it by one of the ways, in a task that may be cancelled."""
    if case.rng.random() < 0.5:
        await case.call(store.close)
    else:
        await case.call(leave, None, None, None)
    await store.close()


class Appends(Program):
    """Tasks that append, follow and publish."""

    CALLS = named(
        Opening="__await__ __aenter__ __aexit__",
        Store="create_topic producer publish submit close __aexit__",
        Topic="append append_many append_arrow flush",
        Partition="append append_many append_arrow append_batches flush roll",
        Producer="append append_many last_sequence",
        Follower="__anext__ aclose",
    )

    def __init__(self, path: Path, rng: random.Random) -> None:
        super().__init__(path, rng)
        self._number = 0
        # Values that each call tried to append, and the offsets that were returned.
        self._tried: list[list[bytes]] = []
        self._said: dict[bytes, int] = {}
        self._published = self._sequence = 0
        self._followed: list[list[bytes]] = []
        self._lock, self._producing = asyncio.Lock(), asyncio.Lock()
        self._topic: logstore.aio.Topic
        self._partition: logstore.aio.Partition

    def _values(self, count: int) -> list[bytes]:
        first = self._number + 1
        self._number += count
        values = [b"%d" % number for number in range(first, first + count)]
        self._tried.append(values)
        return values

    def _told(self, values: Sequence[bytes], first: int, durable: bool) -> None:
        """A task has just received the offset of its records."""
        self._said.update(zip(values, range(first, first + len(values)), strict=True))
        end = first + len(values)
        self.expect(
            not durable or self._partition.durable_offset >= end,
            f"{values[-1]!r} is said to be durable at {end - 1}, and "
            f"{self._partition.durable_offset} is the end of that",
        )

    async def append(self) -> None:
        """Append one record, or some."""
        topic, partition = self._topic, self._partition
        count, rng = self.rng.choice((1, 3)), self.rng
        durable = rng.random() < 0.6
        ways: list[tuple[Callable[..., Any], Callable[[list[bytes]], Any]]] = [
            (partition.append, lambda values: values[0]),
            (partition.append, lambda values: values[0]),
            (partition.append_many, lambda values: values),
            (partition.append_many, lambda values: values),
            (partition.append_arrow, lambda values: pyarrow.table({"value": values})),
            (partition.append_batches, _batch_of),
            (topic.append, lambda values: values[0]),
            (topic.append_many, lambda values: values),
            (topic.append_arrow, lambda values: pyarrow.table({"value": values})),
        ]
        way, form = rng.choice(ways)
        if way.__name__ == "append":
            count = 1
        options: dict[str, Any] = {}
        if way in (topic.append, topic.append_many, topic.append_arrow):
            options["partition"] = 0
        elif rng.random() < 0.1:
            options["expected_offset"] = partition.end_offset
        values: list[bytes] = []

        def given() -> tuple[Any, ...]:
            values.extend(self._values(count))
            return (form(values),)

        with contextlib.suppress(OffsetConflictError):
            await self.call(
                way,
                given=given,
                then=lambda at: self._told(values, _first_of(at), durable),
                durable=durable,
                **options,
            )

    async def produce(self) -> None:
        """Append with a sequence, and repeat the call until it is acknowledged."""
        rng = self.rng
        count, durable = rng.choice((1, 1, 4)), rng.random() < 0.6
        values = self._values(count)
        again = rng.random() < 0.3
        while True:
            producer = self._producer
            at = await self.call(
                producer.append if count == 1 else producer.append_many,
                self._partition,
                values[0] if count == 1 else values,
                sequence=self._sequence,
                durable=durable,
                then=lambda at: self._told(values, _first_of(at), durable),
            )
            if not isinstance(at, Cut):
                break
            if again:
                await self._take_over()
        self._sequence += count
        last = await self.call(self._producer.last_sequence, self._partition)
        self.expect(
            isinstance(last, Cut) or last == self._sequence - 1,
            f"the last sequence is {last}, it was {self._sequence - 1}",
        )

    async def _take_over(self) -> None:
        self._producer = await self._insist(self._store.producer, "p")

    async def _insist(
        self, call: Callable[..., Any], *args: Any, **options: Any
    ) -> Any:
        """The result of a call, which is repeated until it is not cancelled."""
        while isinstance(result := await self.call(call, *args, **options), Cut):
            await self.settle()  # it must not come after the next one
        return result

    async def publish(self) -> None:
        """Publish, and repeat the call until it is acknowledged: it is done once."""
        values = self._values(1)
        sequence = self._published + 1
        store = self.rng.choice((self._store, self._store, self._reader))
        publish = store.submit if store is self._reader else store.publish
        while True:
            with store.stage("job", sequence) as stage:
                stage.append_many(store.topic(_TOPIC)[0].blocking, values)
                staged = stage.finish()
            done = await self.call(publish, staged, identity="job", sequence=sequence)
            if not isinstance(done, Cut):
                break
            if done is Cut.BEGUN and publish == self._store.publish:
                await self.settle()
                self.expect(
                    self._store.published("job") == sequence,
                    f"publication {sequence} was not completed",
                )
        self._published = sequence
        self.expect(
            store.published("job") == sequence, f"publication {sequence} is not told"
        )

    async def follow(self, follower: Any, seen: list[bytes]) -> None:
        """Follow until the task is cancelled."""
        while True:
            seen.append((await anext(follower)).value)

    async def _step(self) -> None:
        rng, kind = self.rng, self.rng.randrange(20)
        if kind < 8:
            await self.append()
        elif kind < 10:
            async with self._producing:
                await self.produce()
        elif kind < 13:
            at = rng.randrange(len(self._followers))
            follow, seen = self._followers[at], self._followed[at]
            if rng.random() < 0.5:
                await self.call(self.follow, follow, seen, often=1.0)
            else:
                await self.call(
                    follow.__anext__, then=lambda r: seen.append(r.value), often=1.0
                )
        elif kind == 13:
            await self.call(self._partition.flush)
        elif kind == 14:
            await self.call(self._topic.flush)
        elif kind == 15:
            await self.call(self._partition.roll)
        elif kind == 16:
            await self._end_a_follower()
        else:
            async with self._lock:
                await self.publish()

    async def _end_a_follower(self) -> None:
        """Tasks that wait for its records are woken."""
        follower = self._topic.follow({0: self._partition.end_offset})
        task = asyncio.ensure_future(self._all_of(follower))
        await asyncio.sleep(0)
        if await self.call(follower.aclose) is Cut.NEVER:
            await follower.aclose()
        await task

    async def _all_of(self, follower: Any) -> None:
        async for _ in follower:
            pass

    async def main(self) -> None:
        rng = self.rng
        store, leave = await opened(self)
        self._store = store
        config = logstore.TopicConfig(message_format=2)
        self._topic = await self._insist(
            store.create_topic, _TOPIC, 2, config, exist_ok=True, often=0.4
        )
        self._partition = self._topic[0]
        await self._take_over()
        self._followers = [self._partition.follow(0), self._topic.follow(0)]
        self._followed = [[] for _ in self._followers]
        async with logstore.aio.open(self.path, read_only=True) as self._reader:
            await self.together(self.several(self._step))
        await self._partition.flush()  # after appends that the thread has begun
        end = self._partition.end_offset
        for follower, seen in zip(self._followers, self._followed, strict=True):
            while len(seen) < end:
                seen.append((await anext(follower)).value)
        late = [asyncio.ensure_future(self.append_late()) for _ in range(3)]
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        await closed(self, store, leave)
        await asyncio.gather(*late)

    async def append_late(self) -> None:
        """Append while the store is closed: it is done before, or refused."""
        values = self._values(1)
        way = self.rng.choice((self._partition.append_many, self._topic.append_many))
        options = {"partition": 0} if way == self._topic.append_many else {}
        try:
            at = await way(values, durable=True, **options)
        except logstore.errors.StoreClosedError:
            self._tried.remove(values)
        else:
            self._said[values[0]] = _first_of(at)

    def look(self) -> None:
        with logstore.open(self.path, read_only=True) as store:
            there = [bytes(r.value or b"") for r in store.topic(_TOPIC)[0].read()]
            self.expect(
                store.published("job") == (self._published or None), "not published"
            )
        at = {value: offset for offset, value in enumerate(there)}
        self.expect(len(at) == len(there), f"twice: {there}")
        known = {value for values in self._tried for value in values}
        self.expect(at.keys() <= known, "what nobody has appended is there")
        for values in self._tried:
            found = [at[value] for value in values if value in at]
            whole = list(range(found[0], found[0] + len(values))) if found else []
            self.expect(found == whole, f"of {values} some are there, at {found}")
        for value, offset in self._said.items():
            self.expect(at.get(value) == offset, f"{value!r} is not at offset {offset}")
        for seen in self._followed:
            missing = seen != there[: len(seen)]
            self.expect(not missing, f"followed {seen}, and the log has {there}")


def _batch_of(values: list[bytes]) -> bytes:
    return sent(-1, -1, int(values[0]), len(values))


def _first_of(at: Any) -> int:
    """First offset of the result of an append."""
    if isinstance(at, int):
        return at
    if isinstance(at, range):
        return at.start
    if isinstance(at, logstore.types.RecordMetadata):
        return at.offset
    ((_, offsets),) = at
    return offsets.start
