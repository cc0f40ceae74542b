"""The group commit: failures, and closing, while tasks wait for it."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from support.damage import FaultyFiles
from support.tasks import Held, every_loop, new_partition, run, until, values_of


def threads_of(path: Path) -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == f"logstore.aio {path}"]


@every_loop
def test_failed_sync_fails_every_task_that_waits_for_it(
    tmp_path: Path, loop_kind: str
) -> None:
    """Each task gets a separate error; tasks of other partitions are served."""

    async def main() -> None:
        files = FaultyFiles()
        async with logstore.aio.open(tmp_path, _files=files) as store:
            p, q = await store.create_topic("orders", partitions=2)
            await p.append(b"0", durable=True)
            await q.append(b"0", durable=True)
            files.fail("sync", name="0000.log", times=1)
            results = await asyncio.gather(
                *(p.append(b"x", durable=True) for _ in range(20)),
                p.append_many([b"x"], durable=True),
                p.flush(),
                q.append(b"1", durable=True),
                return_exceptions=True,
            )
            *failed, served = results
            assert served == 1
            for error in failed:
                assert isinstance(error, logstore.errors.SyncFailedError)
                assert "orders-0" in str(error)
                assert isinstance(error.__cause__, OSError)
            assert len(set(map(id, failed))) == len(failed)
            assert q.durable_offset == 2
            with pytest.raises(logstore.errors.SyncFailedError):
                await p.append(b"later")

    run(main(), loop_kind)


def test_full_disk_fails_one_append_and_leaves_the_log_as_it_was(
    tmp_path: Path,
) -> None:
    """The others that wait with it are appended."""

    async def main() -> None:
        files = FaultyFiles()
        async with new_partition(tmp_path, _files=files) as p:
            await p.append(b"0", durable=True)
            files.fail("write", error=28, name=".log", nth=2, times=1)
            results = await asyncio.gather(
                *(p.append(b"%d" % n, durable=True) for n in range(1, 5)),
                return_exceptions=True,
            )
            failed = [e for e in results if isinstance(e, logstore.DiskFullError)]
            assert (len(failed), results[0]) == (1, 1)
            kept = [b"%d" % n for n, r in enumerate(results, 1) if isinstance(r, int)]
            assert values_of(p) == [b"0", *kept]

    run(main())


def test_without_a_thread_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says so; the next append tries again."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            start = threading.Thread.start

            def refuse(thread: threading.Thread) -> None:
                if thread.name.startswith("logstore.aio"):
                    raise RuntimeError("can't start new thread")
                start(thread)

            monkeypatch.setattr(threading.Thread, "start", refuse)
            results = await asyncio.gather(
                p.append(b"0"), p.append(b"0"), return_exceptions=True
            )
            for error in results:
                with pytest.raises(logstore.StorageError, match="nothing was written"):
                    raise error  # type: ignore[misc]
            monkeypatch.undo()
            assert await p.append(b"0") == 0

    run(main())


def test_loop_that_is_closed_while_the_thread_works_loses_no_record(
    tmp_path: Path,
) -> None:
    """The records that the thread had are appended; the store can still be closed."""
    blocking = logstore.open(tmp_path)
    blocking.create_topic("orders")
    store = logstore.aio.Store(blocking)
    loop = asyncio.new_event_loop()
    p = store.topic("orders")[0]
    loop.run_until_complete(p.append(b"0"))
    held = Held(p)
    task = loop.create_task(p.append(b"1", durable=True))
    loop.run_until_complete(asyncio.sleep(0.01))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    held.release()
    thread = blocking.topic("orders")[0]
    thread.append(b"2")
    while thread.end_offset < 3:
        time.sleep(0.001)
    assert sorted(values_of(thread)) == [b"0", b"1", b"2"]  # type: ignore[type-var]
    with pytest.raises(logstore.errors.EventLoopError, match="is closed"):
        asyncio.run(p.append(b"3"))
    blocking.close()


def test_close_waits_for_the_appends_that_have_begun(tmp_path: Path) -> None:
    """Appends that begin later are refused. The thread ends."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            p = (await store.create_topic("orders"))[0]
            await p.append(b"0")
            (thread,) = threads_of(tmp_path)
            held = Held(p)
            begun = [asyncio.create_task(p.append(b"x", durable=True)) for _ in "12"]
            await asyncio.sleep(0.01)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0.01)
            with pytest.raises(logstore.errors.StoreClosedError):
                await p.append(b"late")
            with pytest.raises(logstore.errors.StoreClosedError):
                await store.create_topic("late")
            assert not closing.done()
            held.release()
            await closing
            assert await asyncio.gather(*begun) == [1, 2]
            await asyncio.to_thread(thread.join)
        with logstore.open(tmp_path, read_only=True) as read:
            assert values_of(read.topic("orders")[0]) == [b"0", b"x", b"x"]

    run(main())


def test_thread_ends_with_a_store_that_is_forgotten(tmp_path: Path) -> None:
    """It keeps neither the objects of asyncio nor the blocking store."""

    async def main() -> None:
        blocking = logstore.open(tmp_path)
        topic = await logstore.aio.Store(blocking).create_topic("orders")
        await topic[0].append(b"0", durable=True)
        (thread,) = threads_of(tmp_path)
        del topic
        for _ in range(3):
            await asyncio.sleep(0)
            gc.collect()
        await asyncio.to_thread(thread.join)
        blocking.close()

    run(main())


def test_store_closed_behind_its_tasks_serves_those_that_wait(tmp_path: Path) -> None:
    """Closing the blocking store makes the records durable, too."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            tasks = [asyncio.create_task(p.append(b"x", durable=True)) for _ in "12"]
            await asyncio.sleep(0)
            assert p.end_offset == 3
            # In the loop: the hand-over comes after it.
            _close(p)
            assert await asyncio.gather(*tasks) == [1, 2]
            with pytest.raises(logstore.errors.StoreClosedError):
                await p.append(b"late", durable=True)

    run(main())


def _close(partition: logstore.aio.Partition) -> None:
    store = partition._services.check._blocking  # type: ignore[attr-defined]
    store.close()


def test_calls_that_need_no_sync_are_not_kept_waiting_for_one(tmp_path: Path) -> None:
    """They are resolved before the thread syncs."""

    async def main() -> None:
        files = FaultyFiles()
        going, go_on = threading.Event(), threading.Event()
        async with new_partition(tmp_path, _files=files) as p:
            await p.append(b"0", durable=True)

            def before(method: str, name: str) -> None:
                if method == "sync" and name.endswith(".log"):
                    going.set()
                    go_on.wait()

            files.before = before
            durable = asyncio.create_task(p.append(b"1", durable=True))
            plain = asyncio.create_task(p.append(b"2"))
            assert await plain == 2
            await until(going.is_set)
            assert not durable.done()
            go_on.set()
            files.before = None
            assert await durable == 1

    run(main())


@pytest.mark.parametrize("durable", [False, True])
def test_interrupt_leaves_each_append_in_the_log_or_not(
    tmp_path: Path, durable: bool
) -> None:
    """A KeyboardInterrupt ends the program; acknowledged records are in the log."""
    acknowledged: list[int] = []

    async def main() -> None:
        async with new_partition(tmp_path) as p:

            async def work(number: int) -> None:
                for n in range(100_000):
                    value = number * 1_000_000 + n
                    await p.append(b"%d" % value, durable=durable)
                    acknowledged.append(value)
                    await asyncio.sleep(0)

            tasks = [asyncio.create_task(work(number)) for number in range(8)]
            await until(lambda: len(acknowledged) > 200)
            signal.raise_signal(signal.SIGINT)
            await asyncio.gather(*tasks)

    with pytest.raises(KeyboardInterrupt):
        run(main())
    with logstore.open(tmp_path) as store:
        values = [int(v or b"") for v in values_of(store.topic("orders")[0])]
    assert len(set(values)) == len(values)
    assert set(acknowledged) <= set(values)


@every_loop
def test_two_loops_in_two_threads_share_a_store(tmp_path: Path, loop_kind: str) -> None:
    """Each has its own objects over the same blocking store."""
    count = 200

    async def work(blocking: logstore.Store, name: int) -> None:
        p = logstore.aio.Store(blocking).topic("orders")[0]
        follower = p.follow()
        await asyncio.gather(
            *(p.append(b"%d" % (name * count + n), durable=True) for n in range(count))
        )
        seen = {(await anext(follower)).value for _ in range(2 * count)}
        assert seen == {b"%d" % n for n in range(2 * count)}

    with logstore.open(tmp_path) as blocking:
        blocking.create_topic("orders")
        failures: list[BaseException] = []

        def guarded(name: int) -> None:
            try:
                run(work(blocking, name), loop_kind)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


def test_error_of_a_call_reaches_its_own_task_only(tmp_path: Path) -> None:
    """The error may be of any type."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            calls: list[Callable[[], Any]] = [int, lambda: [].pop(), int]
            futures = [p._services.commits.call(call, lambda _: ()) for call in calls]
            first, second, third = await asyncio.gather(
                *futures, return_exceptions=True
            )
            assert (first, third, type(second)) == (0, 0, IndexError)

    run(main())
