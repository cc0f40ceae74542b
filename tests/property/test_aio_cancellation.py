"""Tasks cancelled at any step: an append is in the log once or not at all, and a
follower gets every record in the log."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

import logstore
import logstore.aio
from support.damage import Unsynced
from support.tasks import every_loop, run


class Append(NamedTuple):
    """A task that appends.

    Attributes:
        values: how many; 0: one, by `append`.
        size: of each, in bytes.
        cancel_after: steps of the loop, or one hundredths of a millisecond below 0;
            None: never.
        pause: steps of the loop before the next task.
    """

    values: int
    size: int
    durable: bool
    cancel_after: int | None
    pause: int


APPENDS = st.lists(
    st.builds(
        Append,
        st.integers(0, 3),
        st.sampled_from([8, 8, 8, 200]),
        st.booleans(),
        st.none() | st.integers(-30, 6),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=25,
)
PATIENCE = st.lists(st.integers(0, 8), min_size=1, max_size=10)


async def steps(count: int) -> None:
    """Let other tasks run; below 0: for some hundredths of a millisecond."""
    if count < 0:
        await asyncio.sleep(-count / 100_000)
    for _ in range(count):
        await asyncio.sleep(0)


class Case:
    """One run."""

    def __init__(self, p: logstore.aio.Partition, q: logstore.aio.Partition) -> None:
        self.p = p
        self.seen: list[tuple[int, bytes | None]] = []
        self.follower = q.follow()
        self.is_over = False
        # Values of each acknowledged append, by offset; and the cancelled appends.
        self.acknowledged: dict[int, tuple[bytes, ...]] = {}
        self.cancelled: list[tuple[bytes, ...]] = []

    async def append(self, number: int, one: Append) -> None:
        values = tuple(
            b"%d.%d" % (number, n) + b"." * one.size for n in range(one.values or 1)
        )
        call: Any
        if one.values:
            call = self.p.append_many(list(values), durable=one.durable)
        else:
            call = self.p.append(values[0], durable=one.durable)
        task = asyncio.ensure_future(call)
        if one.cancel_after is not None:
            await steps(one.cancel_after)
            task.cancel()
        try:
            offsets = await task
        except asyncio.CancelledError:
            self.cancelled.append(values)
            return
        first = offsets if isinstance(offsets, int) else offsets.start
        self.acknowledged[first] = values
        if one.durable:
            assert self.p.durable_offset >= first + len(values)

    async def follow(self, patience: list[int]) -> None:
        number = 0
        while not self.is_over:
            task = asyncio.ensure_future(anext(self.follower))
            number += 1
            await steps(patience[number % len(patience)])
            task.cancel()
            try:
                record = await task
            except asyncio.CancelledError:
                # A loop that never rests keeps the interpreter from the thread.
                await asyncio.sleep(0.0002)
            else:
                self.seen.append((record.offset, record.value))

    async def run(self, appends: list[Append], patience: list[int]) -> None:
        following = asyncio.create_task(self.follow(patience))
        tasks = []
        for number, one in enumerate(appends):
            tasks.append(asyncio.create_task(self.append(number, one)))
            await steps(one.pause)
        await asyncio.gather(*tasks)
        await self.p.flush()  # after all calls of the thread
        self.is_over = True
        await following
        end = self.p.end_offset
        while len(self.seen) < end:
            record = await asyncio.wait_for(anext(self.follower), 60)
            self.seen.append((record.offset, record.value))

    def check(self) -> None:
        log = [(record.offset, record.value) for record in self.p.read()]
        assert self.seen == log
        values = [value for _, value in log]
        assert len(set(values)) == len(values)
        for first, wanted in self.acknowledged.items():
            assert tuple(values[first : first + len(wanted)]) == wanted
        left = set(values) - {v for vs in self.acknowledged.values() for v in vs}
        for wanted in self.cancelled:
            there = [value in left for value in wanted]
            assert all(there) or not any(there)
            if all(there):
                first = values.index(wanted[0])
                assert tuple(values[first : first + len(wanted)]) == wanted
            left -= set(wanted)
        assert not left


@every_loop
@settings(max_examples=25)
@given(appends=APPENDS, patience=PATIENCE, is_watched=st.booleans())
def test_cancelled_tasks_leave_a_whole_log_and_followers_that_know_it(
    loop_kind: str, appends: list[Append], patience: list[int], is_watched: bool
) -> None:
    """The segments are small, so that a thread makes some of the appends; the follower
    is in the store that writes, or in another one."""

    async def main(path: str) -> None:
        files = Unsynced()
        async with logstore.aio.open(path, _files=files) as store:
            config = logstore.TopicConfig(segment_bytes=1000, flush_messages=7)
            p = (await store.create_topic("orders", config=config))[0]
            async with contextlib.AsyncExitStack() as stack:
                q = p
                if is_watched:
                    opening = logstore.aio.open(path, read_only=True)
                    reading = await stack.enter_async_context(opening)
                    q = reading.topic("orders")[0]
                case = Case(p, q)
                await case.run(appends, patience)
                case.check()

    with tempfile.TemporaryDirectory() as path:
        run(main(path), loop_kind)
