"""The turns of a consumer: records that a task does not get are taken back before any
later call."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from logstore.group.consumer.transaction import ConsumerTransaction
from support.groups import T0, store_with
from support.tasks import every_loop, run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "s", partitions=1, records=100)


def consumer(path: Path, **options: Any) -> logstore.aio.Consumer:
    options = {"topics": ["t"], "reset": "earliest", "max_poll_records": 10, **options}
    return logstore.aio.Consumer(path, group="g", **options)


async def some(one: logstore.aio.Consumer, **options: Any) -> list[int]:
    found = await one.getmany(timeout_ms=60_000, **options)
    return [record.offset for records in found.values() for record in records]


async def cancelled_before(call: Coroutine[Any, Any, Any], other: Any) -> Any:
    """The result of `other`, which another task has called after `call`. The thread has
    done both when the task of the first is cancelled: the loop was busy."""
    first = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    second = asyncio.ensure_future(other)
    await asyncio.sleep(0)
    time.sleep(0.05)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    return await second


@every_loop
@pytest.mark.parametrize("kind", ["getone", "getmany"])
def test_cancelled_reader_before_a_commit_has_delivered_nothing(
    path: Path, loop_kind: str, kind: str
) -> None:
    """A commit of another task commits only delivered records."""

    async def main() -> None:
        async with consumer(path) as one:
            assert await some(one) == list(range(10))
            reading = one.getone() if kind == "getone" else one.getmany(60_000)
            await cancelled_before(reading, one.commit())
            assert await one.committed(T0) == logstore.OffsetAndMetadata(10)
            assert await some(one) == list(range(10, 20))

    run(main(), loop_kind)


def test_cancelled_reader_before_another_loses_nothing_and_gives_nothing_twice(
    path: Path,
) -> None:
    """The other one gets the same records, in order."""

    async def main() -> None:
        async with consumer(path, auto_commit_ms=0) as one:
            seen = await some(one)
            seen += await cancelled_before(one.getmany(60_000), some(one))
            committed = await one.committed(T0)
            assert committed is not None
            assert committed.offset <= len(seen)
            while len(seen) < 100:
                seen += await some(one, max_records=7)
            assert seen == list(range(100))

    run(main())


def test_cancelled_reader_before_a_seek_does_not_undo_it(path: Path) -> None:
    """The records after the target come next."""

    async def main() -> None:
        async with consumer(path) as one:
            await some(one)
            await cancelled_before(one.getmany(60_000), one.seek(T0, 50))
            assert await some(one) == list(range(50, 60))

    run(main())


def test_more_than_it_takes_is_read_and_kept(path: Path) -> None:
    """`getmany` with few records, and `getone`, take from the same in turn."""

    async def main() -> None:
        async with consumer(path) as one:
            seen = await some(one, max_records=3)
            assert seen == [0, 1, 2]
            seen.append((await one.getone()).offset)
            assert await one.position(T0) == 4
            seen += await some(one)
            await one.pause(T0)
            assert await one.getmany() == {}
            await one.resume(T0)
            seen += await some(one, max_records=25)
            assert seen == list(range(len(seen)))

    run(main())


@pytest.mark.parametrize("kind", ["getone", "getmany"])
def test_call_behind_many_tasks_that_wait_comes_after_one_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The thread waits for records for all of them at a time: besides the wait that has
    begun there is none before the call, and none before the end."""
    waits: list[bool] = []
    read_ahead = logstore.aio.Consumer._read_ahead

    def counted(self: logstore.aio.Consumer, limit: Any, seconds: float) -> bool:
        waits.append(seconds > 0)
        return read_ahead(self, limit, seconds)

    monkeypatch.setattr(logstore.aio.Consumer, "_read_ahead", counted)

    async def main() -> None:
        one = consumer(path, max_poll_records=100)
        assert len(await some(one)) == 100
        readers = [
            asyncio.ensure_future(one.getone() if kind == "getone" else some(one))
            for _ in range(30)
        ]
        await asyncio.sleep(0)
        for call in (one.commit, lambda: one.pause(T0), one.stop):
            before = sum(waits)
            await call()
            assert sum(waits) - before <= 2
        found = await asyncio.gather(*readers, return_exceptions=True)
        assert {type(error) for error in found} == {logstore.errors.StoreClosedError}

    run(main())


@every_loop
def test_task_cancelled_while_it_enters_a_transaction_has_not_begun_it(
    path: Path, loop_kind: str
) -> None:
    """Another task begins one at once; no record is delivered again."""

    async def main() -> None:
        async with consumer(path) as one:
            seen = await some(one)

            async def transaction() -> None:
                async with one.transaction() as begun:
                    await begun.append("t", b"output")

            for steps in range(8):
                task = asyncio.ensure_future(one.transaction().__aenter__())
                for _ in range(steps):
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if task.cancelled():
                    await transaction()
                else:
                    await task.result().abort()
            await cancelled_before(one.transaction().__aenter__(), transaction())
            seen += await some(one)
            assert seen == list(range(20))

    run(main(), loop_kind)


def test_task_cancelled_in_an_append_to_a_transaction_has_added_nothing(
    path: Path,
) -> None:
    """It may repeat the call."""

    async def main() -> None:
        async with consumer(path) as one:
            await some(one)
            async with one.transaction() as transaction:
                await transaction.append("t", b"first")
                await cancelled_before(
                    transaction.append("t", b"second"), one.position(T0)
                )
                await transaction.append("t", b"second")

    run(main())
    with logstore.open(path, read_only=True) as store:
        values = [record.value for record in store.topic("t")[0].read(100)]
    assert values == [b"first", b"second"]


@every_loop
@pytest.mark.parametrize("how", ["cancelled", "loop closed", "finished"])
def test_task_cancelled_in_an_append_while_the_consumer_stops_has_added_nothing(
    path: Path, loop_kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that waits after it is made after the append was taken back, and the
    consumer is closed last: also if the loop is closed meanwhile."""
    is_in_thread, may_return = threading.Event(), threading.Event()
    append, leave = ConsumerTransaction.append, logstore.Consumer.__exit__
    closed: list[int] = []

    def slow(self: ConsumerTransaction, topic: str, value: Any, **options: Any) -> None:
        append(self, topic, value, **options)
        if value == b"second":
            is_in_thread.set()
            may_return.wait(60)

    def counted(self: logstore.Consumer, *args: Any, **options: Any) -> None:
        leave(self, *args, **options)
        closed.append(1)

    async def main() -> None:
        one = consumer(path)
        await one.start()
        await some(one)
        transaction = await one.transaction().__aenter__()
        await transaction.append("t", b"first")
        second = asyncio.ensure_future(transaction.append("t", b"second"))
        await asyncio.to_thread(is_in_thread.wait)
        third = asyncio.ensure_future(transaction.commit())
        await asyncio.sleep(0)
        stopping = asyncio.ensure_future(one.stop())
        await asyncio.sleep(0.01)
        if how == "loop closed":
            asyncio.get_running_loop().call_soon(may_return.set)
            return
        if how == "cancelled":
            second.cancel()
        await asyncio.sleep(0.01)
        may_return.set()
        await asyncio.gather(second, third, stopping, return_exceptions=True)
        assert third.exception() is None
        assert second.cancelled() == (how == "cancelled")

    monkeypatch.setattr(ConsumerTransaction, "append", slow)
    monkeypatch.setattr(logstore.Consumer, "__exit__", counted)
    run(main(), loop_kind)
    end = time.monotonic() + 60
    while not closed and time.monotonic() < end:
        time.sleep(0.01)  # the thread continues without the loop
    assert closed == [1]
    with logstore.open(path, read_only=True) as store:
        values = [record.value for record in store.topic("t")[0].read(100)]
    assert values == [b"first", b"second"][: 2 if how == "finished" else 1]


def test_task_cancelled_at_the_end_of_a_transaction_has_committed_it(
    path: Path,
) -> None:
    """This holds even if the commit waited for its turn after another call."""

    async def main() -> None:
        async with consumer(path) as one:
            await some(one)
            transaction = one.transaction()
            await transaction.__aenter__()
            await transaction.append("t", b"output")
            waiting = asyncio.ensure_future(one.getmany(50, max_records=1))
            await one.pause(T0)
            await asyncio.gather(waiting)
            waiting = asyncio.ensure_future(one.getmany(50))
            await asyncio.sleep(0)
            ending = asyncio.ensure_future(transaction.__aexit__(None, None, None))
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.gather(waiting, ending, return_exceptions=True)
            async with one.transaction():
                pass  # the last one has ended

    run(main())
    with logstore.open(path, read_only=True) as store:
        assert [r.value for r in store.topic("t")[0].read(100)] == [b"output"]


def test_other_calls_do_not_wait_for_each_task_that_waits_for_records(
    path: Path,
) -> None:
    """All of them wait in one turn of the thread."""

    async def main() -> float:
        async with consumer(path) as one:
            for _ in range(10):
                await some(one)
            waiting: list[asyncio.Future[Any]] = [
                asyncio.ensure_future(call)
                for _ in range(20)
                for call in (one.getone(), one.getmany(60_000))
            ]
            await asyncio.sleep(0.05)
            begun = time.perf_counter()
            await one.commit()
            assert await one.getmany(1) == {}
            took = time.perf_counter() - begun
            await one.stop()
            for error in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(error, logstore.errors.StoreClosedError)
            return took

    assert run(main()) < 1.5  # 4 s if each has its own


def test_calls_are_made_between_records_that_come_without_an_end(path: Path) -> None:
    """Tasks that take records one by one do not keep a call from its turn."""

    async def main() -> None:
        async with consumer(path) as one:

            async def take() -> None:
                while True:
                    await one.getone()

            takers = [asyncio.ensure_future(take()) for _ in range(3)]
            for _ in range(20):
                await one.seek(T0, 0) if await one.assignment() else None
            for taker in takers:
                taker.cancel()
            await asyncio.gather(*takers, return_exceptions=True)

    run(asyncio.wait_for(main(), 30))


def test_stop_makes_the_calls_that_were_asked_for_before_it(path: Path) -> None:
    """A commit that was called after a task began to wait for records is made."""

    async def main() -> None:
        one = consumer(path)
        await one.start()
        for _ in range(10):
            await some(one)
        reading = asyncio.ensure_future(one.getone())
        await asyncio.sleep(0.01)
        commit = asyncio.ensure_future(one.commit())
        await asyncio.sleep(0)
        await one.stop()
        await commit
        with pytest.raises(logstore.errors.StoreClosedError):
            await reading
        async with consumer(path) as other:
            assert await other.committed(T0) == logstore.OffsetAndMetadata(100)

    run(main())


def test_failure_of_a_reading_is_told_to_the_first_task_that_waits(path: Path) -> None:
    """The others read again, and get the records."""

    async def main() -> None:
        told: list[int] = []

        def assign(_: object) -> None:
            told.append(1)
            if len(told) == 1:
                raise StopIteration

        async with consumer(path, on_assign=assign) as one:
            tasks = [asyncio.ensure_future(one.getone()) for _ in range(3)]
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert isinstance(found[0], RuntimeError)
            assert [getattr(each, "offset", -1) for each in found] == [-1, 0, 1]

    run(main())
