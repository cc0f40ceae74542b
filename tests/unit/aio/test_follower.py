"""Following by tasks: every record once, in order, whatever is cancelled meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import logstore
import logstore.aio
from logstore.io.files import Files
from support.tasks import every_loop, new_partition, run, until

READ_WAYS = ("written", "watched", "polled")


class Unwatched(Files):
    """A system without reports of changes."""

    def new_watch(self) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Two(NamedTuple):
    """Stores of one directory, and their partition: one writes, one is followed."""

    writing: logstore.aio.Store
    reading: logstore.aio.Store
    p: logstore.aio.Partition
    q: logstore.aio.Partition


@contextlib.asynccontextmanager
async def followed(path: Path, way: str, **options: Any) -> AsyncIterator[Two]:
    """Follow the store that writes, or a read-only one, with or without reports of
    changes."""
    config = logstore.StoreConfig(**options)
    async with logstore.aio.open(path, config=config) as writing:
        p = (await writing.create_topic("orders"))[0]
        if way == "written":
            yield Two(writing, writing, p, p)
            return
        files = Unwatched() if way == "polled" else None
        async with logstore.aio.open(path, read_only=True, _files=files) as reading:
            yield Two(writing, reading, p, reading.topic("orders")[0])


async def taken(follower: Any, count: int) -> list[bytes | None]:
    return [(await anext(follower)).value for _ in range(count)]


@every_loop
@pytest.mark.parametrize("way", READ_WAYS)
def test_follower_has_what_is_there_and_what_comes(
    tmp_path: Path, way: str, loop_kind: str
) -> None:
    """Appends of this loop, of its thread, and of other threads."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, _, p, q):
            await p.append_many([b"0", b"1"])
            follower = q.follow()
            assert await taken(follower, 2) == [b"0", b"1"]
            for n in range(2, 8, 2):
                waiting = asyncio.ensure_future(anext(follower))
                await asyncio.sleep(0.01)
                if n % 4:
                    await p.append(b"%d" % n)
                else:
                    await asyncio.to_thread(p.blocking.append, b"%d" % n)
                assert (await waiting).value == b"%d" % n
                await p.append(b"%d" % (n + 1))
                assert await taken(follower, 1) == [b"%d" % (n + 1)]

    run(main(), loop_kind)


@pytest.mark.parametrize("way", READ_WAYS)
def test_cancelled_follower_loses_and_repeats_nothing(tmp_path: Path, way: str) -> None:
    """This holds even if the record and the cancellation come at the same moment."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, _, p, q):
            follower, seen = q.follow(), []

            async def write() -> None:
                for n in range(300):
                    await p.append(b"%d" % n)
                    await asyncio.sleep(0.0005 if n % 3 else 0)

            writing = asyncio.create_task(write())
            number = 0
            while len(seen) < 300:
                number += 1
                task = asyncio.ensure_future(anext(follower))
                for _ in range(number % 4):
                    await asyncio.sleep(0)
                if number % 7:
                    task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    seen.append((await task).value)
            await writing
            assert seen == [b"%d" % n for n in range(300)]

    run(main())


def test_follower_under_a_time_limit_continues(tmp_path: Path) -> None:
    """`asyncio.wait_for` cancels it each time."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            follower = p.follow()
            for n in range(5):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(anext(follower), 0.005)
                await p.append(b"%d" % n)
                record = await asyncio.wait_for(anext(follower), 60)
                assert record.value == b"%d" % n

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
def test_follow_ends_after_its_limit_and_after_its_timeout(
    tmp_path: Path, way: str
) -> None:
    """The follower then stays at its end; `start` is its first offset."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, _, p, q):
            await p.append_many([b"%d" % n for n in range(10)])
            assert [r.offset async for r in q.follow(3, limit=4)] == [3, 4, 5, 6]
            assert [r.offset async for r in q.follow(limit=0)] == []
            follower = q.follow(8, timeout=0.01)
            assert [r.offset async for r in follower] == [8, 9]
            await p.append(b"more")
            assert [r.offset async for r in follower] == []
            assert [r.offset async for r in q.follow(q.end_offset, 0)] == []
            forever = q.follow(q.end_offset, float("inf"), limit=1)
            waiting = asyncio.ensure_future(anext(forever))
            await asyncio.sleep(0.01)
            await p.append(b"last")
            assert (await waiting).value == b"last"

    run(main())


def test_wrong_arguments_are_refused_at_the_call(tmp_path: Path) -> None:
    """The error comes before the first record is read, and without an event loop."""
    blocking = logstore.open(tmp_path)
    blocking.create_topic("orders")
    p = logstore.aio.Store(blocking).topic("orders")[0]
    for options, error in (
        ({"start": 5}, logstore.OffsetOutOfRangeError),
        ({"start": 1.5}, TypeError),
        ({"timeout": "soon"}, TypeError),
        ({"limit": -1}, logstore.ConfigError),
        ({"isolation": "none"}, logstore.ConfigError),
        ({"on_corruption": "none"}, logstore.ConfigError),
    ):
        with pytest.raises(error):
            p.follow(**options)  # type: ignore[arg-type]
    blocking.close()


def test_follower_that_need_not_wait_lets_other_tasks_run(tmp_path: Path) -> None:
    """Other tasks run after each 256 records."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append_many([b"x"] * 2000)
            turns = 0

            async def other() -> None:
                nonlocal turns
                while True:
                    turns += 1
                    await asyncio.sleep(0)

            task = asyncio.create_task(other())
            count = 0
            async for _ in p.follow(limit=2000):
                count += 1
            task.cancel()
            assert (count, turns) == (2000, 2000 // 256)

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
def test_durable_only_waits_for_the_sync(tmp_path: Path, way: str) -> None:
    """A record is delivered once it is durable, and not before."""

    async def main() -> None:
        topic = logstore.TopicConfig(flush_ms=3_600_000)
        async with followed(tmp_path, way, topic_defaults=topic) as (_, _, p, q):
            follower = q.follow(durable_only=True)
            waiting = asyncio.ensure_future(anext(follower))
            await p.append(b"0")
            for _ in range(10):
                await asyncio.sleep(0.005)
            assert not waiting.done()
            await p.flush()
            assert (await waiting).value == b"0"

    run(main())


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize("way", READ_WAYS)
def test_closing_the_store_ends_its_followers(
    tmp_path: Path, way: str, is_blocking: bool
) -> None:
    """They end with the error of the blocking follower, once; so also if the blocking
    store is closed without a task of asyncio."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, reading, _, q):
            follower = q.follow()
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.01)
            if is_blocking:
                await asyncio.to_thread(reading.blocking.close)
            else:
                await reading.close()
            with pytest.raises(logstore.errors.StoreClosedError):
                await waiting
            with pytest.raises(StopAsyncIteration):
                await anext(follower)

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
def test_deleting_the_topic_ends_its_followers(tmp_path: Path, way: str) -> None:
    """The error comes after the existing records."""

    async def main() -> None:
        async with followed(tmp_path, way) as (writing, _, p, q):
            await p.append(b"0")
            follower = q.follow()
            assert await taken(follower, 1) == [b"0"]
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.01)
            await writing.delete_topic("orders")
            wanted = (
                logstore.TopicNotFoundError,
                logstore.errors.PartitionNotFoundError,
            )
            with pytest.raises(wanted):
                await waiting

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
def test_follower_whose_log_was_cut_is_told(tmp_path: Path, way: str) -> None:
    """The follower never delivers records of two logs."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, _, p, q):
            await p.append_many([b"0", b"1", b"2"])
            follower = q.follow()
            assert len(await taken(follower, 3)) == 3
            waiting = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.01)
            await p.truncate_to(1)
            await p.append_many([b"new"] * 5)
            with pytest.raises(logstore.OffsetOutOfRangeError) as caught:
                await waiting
            assert caught.value.cut_to == 1

    run(main())


def test_tasks_that_share_a_follower_have_each_record_once(tmp_path: Path) -> None:
    """Any of them may get it."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            follower, seen = p.follow(limit=100), []

            async def work() -> None:
                async for record in follower:
                    seen.append(record.offset)
                    await asyncio.sleep(0)

            workers = [asyncio.create_task(work()) for _ in range(5)]
            for n in range(100):
                await p.append(b"%d" % n)
                if n % 10 == 0:
                    await asyncio.sleep(0.001)
            await until(lambda: len(seen) == 100)
            await follower.aclose()
            await asyncio.gather(*workers)
            assert sorted(seen) == list(range(100))

    run(main())


def test_aclose_ends_the_tasks_that_wait(tmp_path: Path) -> None:
    """It may be called twice, and before the first record."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            async with contextlib.aclosing(p.follow()) as follower:
                waiting = asyncio.ensure_future(anext(follower))
                await asyncio.sleep(0.01)
                await follower.aclose()
                with pytest.raises(StopAsyncIteration):
                    await waiting
            never = p.follow()
            await never.aclose()
            assert [record async for record in never] == []

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
def test_follower_that_nobody_uses_is_collected(tmp_path: Path, way: str) -> None:
    """Neither the loop nor the store keeps it."""

    async def main() -> None:
        async with followed(tmp_path, way) as (_, _, p, q):
            await p.append(b"0")
            follower = q.follow()
            await taken(follower, 1)
            task = asyncio.ensure_future(anext(follower))
            await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            del task
            reference = weakref.ref(follower)
            del follower
            gc.collect()
            assert reference() is None

    run(main())


@pytest.mark.parametrize("way", READ_WAYS)
@pytest.mark.parametrize("order", ["time", "partition"])
def test_follower_of_a_topic_has_the_records_of_all_partitions(
    tmp_path: Path, way: str, order: str
) -> None:
    """Records of added partitions are included; each record comes once, and each
    partition in order."""

    async def main() -> None:
        async with followed(tmp_path, way) as (writing, reading, _, _):
            topic = writing.topic("orders")
            follower = reading.topic("orders").follow(order=order)
            seen = []
            for n in range(40):
                if n == 20:
                    assert await topic.add_partitions(2) == 3
                await topic.append(b"%d" % n, partition=n % len(topic))
                if n % 3 == 0:
                    record = await anext(follower)
                    seen.append((record.partition, record.value))
            while len(seen) < 40:
                record = await anext(follower)
                seen.append((record.partition, record.value))
            for number in range(3):
                want = [r.value for r in topic[number].read()]
                assert [value for one, value in seen if one == number] == want
            assert len(set(seen)) == 40

    run(main())


def test_follower_of_a_topic_begins_where_it_is_told(tmp_path: Path) -> None:
    """One start for all, or one for each partition."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders", partitions=2)
            await topic.append_many([b"%d" % n for n in range(6)], partition=0)
            await topic.append_many([b"%d" % n for n in range(6)], partition=1)
            starts = {0: 4, 1: 5}
            seen = [r async for r in topic.follow(starts, timeout=0)]
            assert sorted((r.partition, r.offset) for r in seen) == [
                (0, 4), (0, 5), (1, 5)
            ]  # fmt: skip
            with pytest.raises(logstore.errors.PartitionNotFoundError):
                topic.follow({7: 0})
            with pytest.raises(logstore.ConfigError):
                topic.follow(order="none")

    run(main())


def test_damage_is_raised_after_the_records_before_it(tmp_path: Path) -> None:
    """It can also be skipped, as `on_corruption` asks."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append_many([b"%d" % n for n in range(4)], durable=True)
            batch = list(p.read_batches())[2]
            path = p.segments[0].path
            with open(path, "r+b") as file:
                file.seek(batch.position + batch.size_bytes - 1)
                file.write(b"\xff")
            seen = []
            with pytest.raises(logstore.CorruptRecordError):
                async for record in p.follow(timeout=0):
                    seen.append(record.value)
            assert seen == [b"0", b"1"]
            skipping = p.follow(timeout=0, on_corruption="skip")
            assert [r.value async for r in skipping] == [b"0", b"1", b"3"]

    run(main())


def test_error_inside_a_run_comes_after_the_records_before_it(tmp_path: Path) -> None:
    """Nothing that was read is lost; then the iteration is over."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            follower = p.follow()

            def run_of_two() -> Iterator[Any]:
                yield 1
                yield 2
                raise KeyError

            follower._steps = iter([run_of_two(), iter([3])])
            assert [await anext(follower), await anext(follower)] == [1, 2]
            with pytest.raises(KeyError):
                await anext(follower)
            with pytest.raises(StopAsyncIteration):
                await anext(follower)

    run(main())


def test_time_of_a_follower_begins_anew_with_each_record(tmp_path: Path) -> None:
    """A follower of a partition or of a topic ends after a time without records."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            topic = await store.create_topic("orders")

            async def write() -> None:
                for number in range(8):
                    await asyncio.sleep(0.15)
                    await topic[0].append(b"%d" % number)

            async def read(follower: Any) -> list[bytes]:
                return [record.value async for record in follower]

            # Longer than the pauses of the writer, shorter than all of them.
            readers = [read(one.follow(timeout=0.9)) for one in (topic, topic[0])]
            found = await asyncio.gather(*readers, write())
            assert found[:2] == [[b"%d" % number for number in range(8)]] * 2

    run(main())
