"""A consumer for tasks: it delivers each record once, whatever is cancelled."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from support import handing_in
from support.groups import T0, T1, store_with
from support.tasks import every_loop, run

VALUES = sorted(b"%d:%d" % (p, n) for p in range(2) for n in range(10))

elsewhere = handing_in.elsewhere


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return store_with(tmp_path / "s")


def consumer(path: Any, **options: Any) -> logstore.aio.Consumer:
    options = {"group": "g", "topics": ["t"], "reset": "earliest", **options}
    return logstore.aio.Consumer(path, **options)


async def taken(one: logstore.aio.Consumer, count: int) -> list[bytes | None]:
    return [(await one.getone()).value for _ in range(count)]


@every_loop
def test_records_are_delivered_once_and_commits_continue(
    path: Path, loop_kind: str
) -> None:
    """Records come by ``async for``, by `getone`, and by `getmany`; a second consumer
    continues."""

    async def main() -> None:
        seen: list[bytes | None] = []
        async with consumer(path) as one:
            async for record in one:
                seen.append(record.value)
                if len(seen) == 7:
                    break
            seen += await taken(one, 4)
            await one.commit()
        async with consumer(path) as one:
            found = await one.getmany(timeout_ms=60_000, max_records=5)
            seen += [r.value for records in found.values() for r in records]
            while len(seen) < 20:
                found = await one.getmany(timeout_ms=60_000)
                seen += [r.value for records in found.values() for r in records]
            assert await one.getmany() == {}
            assert await one.getmany(timeout_ms=1) == {}
            await one.commit(durable=False)
            assert (await one.committed(T0)).offset == 10  # type: ignore[union-attr]
        assert sorted(v or b"" for v in seen) == VALUES

    run(main(), loop_kind)


@every_loop
def test_cancelled_getone_and_getmany_lose_no_record(
    path: Path, loop_kind: str
) -> None:
    """A cancellation at any step; undelivered records are not committed either."""

    async def main() -> None:
        seen: list[bytes | None] = []
        async with consumer(path) as one:
            number = 0
            while len(seen) < 20:
                number += 1
                call: Any
                if number % 2:
                    call = asyncio.ensure_future(one.getone())
                else:
                    call = asyncio.ensure_future(one.getmany(max_records=2))
                for _ in range(number % 7):
                    await asyncio.sleep(0 if number % 3 else 0.0005)
                if number % 5:
                    call.cancel()
                try:
                    got = await call
                except asyncio.CancelledError:
                    await asyncio.sleep(0.0005)
                    continue
                if number % 2:
                    seen.append(got.value)
                else:
                    seen += [r.value for records in got.values() for r in records]
                position = {key: await one.position(key) for key in (T0, T1)}
                assert sum(position.values()) == len(seen)
        assert sorted(v or b"" for v in seen) == VALUES

    run(main(), loop_kind)


def test_other_calls_have_their_turn_while_a_task_waits_for_records(
    path: Path,
) -> None:
    """New records end the wait."""

    async def main() -> None:
        async with consumer(path, durable_only=False) as one:
            await taken(one, 20)
            waiting = asyncio.ensure_future(one.getone())
            await asyncio.sleep(0.01)
            await one.commit()
            assert await one.assignment() == {T0, T1}
            assert await one.lag() == {T0: 0, T1: 0}
            assert not waiting.done()
            await asyncio.to_thread(_append, path, b"new")
            assert (await waiting).value == b"new"

    run(main())


def _append(path: Path, value: bytes) -> None:
    with logstore.open(path) as store:
        store.topic("t")[0].append(value)


def test_calls_are_those_of_the_blocking_consumer(path: Path) -> None:
    """Each of its methods is awaited here, and does the same."""

    async def main() -> None:
        async with consumer(path) as one:
            await taken(one, 20)
            assert await one.subscription() == {"t"}
            await one.seek(T0, 3)
            assert await one.position(T0) == 3
            await one.seek_to_beginning(T0)
            assert await one.position(T0) == 0
            await one.seek_to_end()
            assert await one.position(T0) == 10
            await one.seek_to_time(0)
            assert await one.position(T0) == 0
            await one.commit({T0: 4})
            await one.seek_to_committed(T0)
            assert await one.position(T0) == 4
            await one.pause(T1)
            assert await one.paused() == {T1}
            await one.resume(T1)
            assert await one.beginning_offsets([T0]) == {T0: 0}
            assert await one.end_offsets([T0]) == {T0: 10}
            (found,) = (await one.offsets_for_times({T0: 0})).values()
            assert found is not None
            assert found.offset == 0
            group, generation, member = await one.group_metadata()
            assert (group, generation >= 0, bool(member)) == ("g", True, True)
            await one.subscribe(["t"])
            await one.unsubscribe()
            assert await one.assignment() == set()
            await one.assign([T1])
            assert await one.assignment() == {T1}

    run(main())


def test_every_method_of_the_blocking_consumer_has_its_twin() -> None:
    """Names are the same, except for `getmany` and `stop`, which aiokafka has."""
    renamed = {"poll": "getmany", "close": "stop"}
    for name in vars(logstore.Consumer):
        if not name.startswith("_"):
            assert hasattr(logstore.aio.Consumer, renamed.get(name, name)), name


def test_stop_ends_tasks_that_wait_and_later_calls(path: Path) -> None:
    """They end with `StoreClosedError`; stopping twice is allowed, and before
    `start`."""

    async def main() -> None:
        one = consumer(path)
        await taken(one, 20)  # it starts by itself
        waiting = asyncio.ensure_future(one.getone())
        await asyncio.sleep(0.01)
        await one.stop()
        await one.stop()
        for call in (waiting, one.getone(), one.getmany(), one.commit(), one.start()):
            with pytest.raises(logstore.errors.StoreClosedError):
                await call
        never = consumer(path)
        await never.stop()
        with pytest.raises(logstore.errors.StoreClosedError):
            await never.getone()

    run(main())


def test_cancelled_stop_goes_on(path: Path) -> None:
    """The group has no member when it is done."""

    async def main() -> None:
        one = consumer(path)
        await taken(one, 1)
        task = asyncio.create_task(one.stop())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await one.stop()
        async with consumer(path) as two:
            assert len(set(await taken(two, 20))) == 20

    run(main())


def test_callbacks_are_called_by_the_thread_and_may_commit(path: Path) -> None:
    """`on_assign` before the first record, `on_revoke` in `stop`."""

    async def main() -> None:
        said: list[Any] = []
        here = threading.get_ident()

        def note(what: str) -> Callable[[Any], None]:
            def callback(keys: Any) -> None:
                said.append((what, sorted(keys), threading.get_ident() != here))
                if what == "revoke":
                    assert one.blocking is not None
                    one.blocking.commit()

            return callback

        one = consumer(path, on_assign=note("assign"), on_revoke=note("revoke"))
        async with one:
            await taken(one, 20)
        assert said == [("assign", [T0, T1], True), ("revoke", [T0, T1], True)]
        async with consumer(path) as one:
            assert await one.getmany(timeout_ms=50) == {}

        async def no_function(keys: Any) -> None: ...

        with pytest.raises(logstore.ConfigError):
            consumer(path, on_assign=no_function)
        async with consumer(path) as two:
            with pytest.raises(logstore.ConfigError):
                await two.subscribe(["t"], on_lost=no_function)  # type: ignore[arg-type]

    run(main())


def test_errors_are_those_of_the_blocking_consumer(path: Path) -> None:
    """Wrong arguments raise at the start; a missing offset at each call."""

    async def main() -> None:
        with pytest.raises(logstore.ConfigError):
            await consumer(path, group="").start()
        with pytest.raises(logstore.StoreNotFoundError):
            await consumer(path / "none").start()
        async with consumer(path, reset="error") as one:
            for call in (one.getone, one.getmany):
                with pytest.raises(logstore.errors.NoOffsetForPartitionError):
                    await call()
            for key in (T0, T1):
                await one.seek(key, 0)
            assert len(await taken(one, 20)) == 20
            for timeout_ms in (-1, "1"):
                with pytest.raises((logstore.ConfigError, TypeError)):
                    await one.getmany(timeout_ms)  # type: ignore[arg-type]

    run(main())


def test_error_of_the_body_commits_nothing_by_itself(path: Path) -> None:
    """The delivered records may not be processed."""

    async def main() -> None:
        with pytest.raises(KeyError):
            async with consumer(path, auto_commit_ms=0) as one:
                await one.getmany(max_records=1)
                raise KeyError
        async with consumer(path) as one:
            assert len(set(await taken(one, 20))) == 20

    run(main())


@every_loop
def test_store_of_asyncio_is_taken_and_other_loops_are_refused(
    path: Path, loop_kind: str
) -> None:
    """No constructor needs a loop."""
    one = consumer(path)

    async def main() -> None:
        async with logstore.aio.open(path, read_only=True) as store:
            async with consumer(store, group="h") as two:
                assert len(await taken(two, 20)) == 20
        await one.start()

    run(main(), loop_kind)

    async def other() -> None:
        for call in (one.getone, one.getmany, one.commit, one.stop):
            with pytest.raises(logstore.errors.EventLoopError):
                await call()

    run(other(), loop_kind)
    assert one.blocking is not None
    one.blocking.close()


def test_child_of_a_fork_is_refused(path: Path) -> None:
    """It does not wait for a thread that it does not have."""
    one = consumer(path)

    async def child() -> None:
        with pytest.raises(
            (logstore.errors.ForkedError, logstore.errors.EventLoopError)
        ):
            await one.getmany()
        with pytest.raises(logstore.errors.ForkedError):
            await one._asked(lambda blocking: None)

    asyncio.run(one.start())
    pid = os.fork()
    if pid == 0:
        try:
            asyncio.run(child())
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert one.blocking is not None
    one.blocking.close()


def test_transaction_publishes_outputs_and_positions(path: Path) -> None:
    """Both, or neither if an error leaves it: then the records come again."""

    async def main() -> None:
        with logstore.open(path) as writing:
            writing.create_topic("out")
        async with consumer(path) as one:
            with pytest.raises(KeyError):
                async with one.transaction() as transaction:
                    for records in (await one.getmany(timeout_ms=60_000)).values():
                        await transaction.append("out", records[0].value)
                    raise KeyError
            done = 0
            while done < 20:
                async with one.transaction() as transaction:
                    found = await one.getmany(timeout_ms=60_000, max_records=7)
                    for records in found.values():
                        for record in records:
                            await transaction.append("out", record.value, key=b"k")
                            done += 1
            transaction = one.transaction()
            await transaction.append("out", b"never")
            await transaction.abort()
            with pytest.raises(logstore.ConfigError):
                await transaction.commit()
            with pytest.raises(logstore.errors.CommitFailedError):
                await one.commit({T0: 5})
        with logstore.open(path, read_only=True) as store:
            values = [r.value for r in store.topic("out").read()]
            assert sorted(v or b"" for v in values) == VALUES

    run(main())


def test_transaction_waits_no_longer_than_it_may(path: Path, elsewhere: None) -> None:
    """The owner of the store does not publish for others."""

    async def main() -> None:
        with logstore.open(path, config=handing_in.DEAF) as writing:
            writing.create_topic("out")
            async with consumer(path) as one:
                assert await one.getmany(timeout_ms=60_000)
                with pytest.raises(logstore.PublicationTimeoutError) as got:
                    async with one.transaction(timeout_ms=20) as transaction:
                        await transaction.append("out", b"x")
                assert got.value.timeout_ms == 20
                with pytest.raises(logstore.ConfigError, match="timeout_ms"):
                    async with one.transaction(timeout_ms=-1):
                        raise AssertionError

    run(main())


def test_members_share_the_partitions(path: Path) -> None:
    """Two consumers of a group in one loop: each record once."""

    async def main() -> None:
        async with consumer(path) as one, consumer(path) as two:
            seen: list[bytes | None] = []

            async def work(member: logstore.aio.Consumer) -> None:
                while len(seen) < 20:
                    found = await member.getmany(timeout_ms=50, max_records=1)
                    seen.extend(r.value for rs in found.values() for r in rs)
                    await member.commit(durable=False)

            await asyncio.gather(work(one), work(two))
            assert sorted(v or b"" for v in seen) == VALUES

    run(main())
