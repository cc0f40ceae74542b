"""A store for tasks: opened, shared, closed; in the wrong loop or process."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import logstore
import logstore.aio
from logstore.io.files import Files
from support.damage import FaultyFiles, crash
from support.tasks import every_loop, new_partition, run, values_of


@every_loop
def test_open_gives_a_store_and_closes_it(tmp_path: Path, loop_kind: str) -> None:
    """Awaited, as a context manager, and as a task."""

    async def main() -> None:
        store = await logstore.aio.open(tmp_path)
        await store.create_topic("orders")
        assert store.blocking.path == store.path == str(tmp_path)
        assert (store.read_only, store.config) == (False, logstore.StoreConfig())
        assert repr(store) == f"<logstore.aio.Store {tmp_path} (read-write)>"
        await store.close()
        await store.close()
        async with logstore.aio.open(tmp_path) as store:
            assert store.topics() == ["orders"]
            with pytest.raises(logstore.StoreLockedError) as caught:
                await logstore.aio.open(tmp_path)
            assert (caught.value.opened_at or "").startswith(f"{__file__}:")
        task = asyncio.create_task(logstore.aio.open(tmp_path, read_only=True))
        async with await asyncio.wait_for(task, 60) as store:
            assert store.read_only
            assert "orders" in store
        with pytest.raises(logstore.errors.StoreClosedError):
            store.topics()

    run(main(), loop_kind)


def test_open_raises_as_a_blocking_one(tmp_path: Path) -> None:
    """The error is raised when the open is awaited; nothing is done before."""

    async def main() -> None:
        opening = logstore.aio.open(tmp_path / "none", create=False)
        with pytest.raises(logstore.StoreNotFoundError):
            await opening
        unused = logstore.aio.open(tmp_path / "unused")
        unused.close()
        assert not (tmp_path / "unused").exists()
        with pytest.raises(TypeError):
            await logstore.aio.open(1)  # type: ignore[arg-type]

    run(main())


def test_open_after_a_crash_recovers_all_partitions(tmp_path: Path) -> None:
    """No later call blocks the loop for a recovery."""

    async def main() -> None:
        path = tmp_path / "store"
        async with logstore.aio.open(path) as store:
            topic = await store.create_topic("orders", partitions=3)
            for p in topic:
                await p.append(b"kept", durable=True)
                await p.append(b"torn")
            copy = crash(path, tmp_path / "copy")
        for number in range(3):
            log = copy / f"orders-{number}" / "00000000000000000000.log"
            os.truncate(log, log.stat().st_size - 1)
        actions: list[logstore.types.RecoveryAction] = []
        async with logstore.aio.open(copy, on_recovery=actions.append) as store:
            found = [action.label for action in actions]
            assert found == ["torn-tail"] * 3
            report = await store.recover()
            assert len(report.actions) == 3
            assert [values_of(p) for p in store.topic("orders")] == [[b"kept"]] * 3

    run(main())


class Slow(Files):
    """Opens a directory only when it is allowed to."""

    def __init__(self) -> None:
        self.is_opening = threading.Event()
        self.may = threading.Event()
        self.is_closed = threading.Event()

    def unlock_file(self, fd: int) -> None:
        super().unlock_file(fd)
        self.is_closed.set()

    def open_root(self, path: str) -> int:
        self.is_opening.set()
        self.may.wait()
        return super().open_root(path)


def test_cancelled_open_closes_the_store_again(tmp_path: Path) -> None:
    """The lock is free when the thread is done."""

    async def main() -> None:
        files = Slow()
        task = asyncio.ensure_future(logstore.aio.open(tmp_path, _files=files))
        await asyncio.to_thread(files.is_opening.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        files.may.set()
        await asyncio.to_thread(files.is_closed.wait)
        await asyncio.to_thread(_open_when_free, tmp_path)

    run(main())


def _open_when_free(path: Path) -> None:
    # The test's own time limit ends it.
    while True:
        try:
            logstore.open(path).close()
            return
        except logstore.StoreLockedError:
            time.sleep(0.001)


def test_open_that_is_cancelled_at_its_last_moment_closes_the_store(
    tmp_path: Path,
) -> None:
    """The thread has handed the store over, and the task has not taken it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        run_in_executor = loop.run_in_executor

        def run_and_tell(executor: object, call: object) -> asyncio.Future[object]:
            future: asyncio.Future[object] = run_in_executor(None, call)  # type: ignore[arg-type]
            future.add_done_callback(lambda _: task.cancel())
            return future

        loop.run_in_executor = run_and_tell  # type: ignore[assignment,method-assign]
        task = asyncio.ensure_future(logstore.aio.open(tmp_path))
        with pytest.raises(asyncio.CancelledError):
            await task
        del loop.run_in_executor
        await asyncio.to_thread(_open_when_free, tmp_path)

    run(main())


@every_loop
def test_objects_of_another_loop_raise_and_do_nothing(
    tmp_path: Path, loop_kind: str
) -> None:
    """A store made from an open one needs no loop; the first await binds it."""
    with logstore.open(tmp_path) as blocking:
        store = logstore.aio.Store(blocking)
        topic = run(store.create_topic("orders"), loop_kind)
        p = topic[0]
        follower = p.follow()

        async def one() -> None:
            for call in (
                p.append(b"x"),
                p.append(b"x", durable=True),
                p.append_many([b"x"]),
                topic.append(b"x"),
                topic.append_many([b"x"]),
                p.flush(),
                p.roll(),
                topic.add_partitions(1),
                store.create_topic("more"),
                store.publish([]),
                store.close(),
                anext(follower),
                store.__aenter__(),
            ):
                with pytest.raises(logstore.errors.EventLoopError, match=r"blocking"):
                    await call

        run(one(), loop_kind)
        assert blocking.topics() == ["orders"]
        assert p.end_offset == 0
        other = logstore.aio.Store(blocking).topic("orders")[0]
        assert run(other.append(b"0", durable=True), loop_kind) == 0
    with pytest.raises(TypeError):
        logstore.aio.Store(tmp_path)  # type: ignore[arg-type]


def test_child_of_a_fork_is_refused(tmp_path: Path) -> None:
    """Each kind of call raises a named error, in a new loop, without waiting."""

    async def first(p: logstore.aio.Partition, follower: object) -> None:
        await p.append(b"0", durable=True)
        await anext(follower)  # type: ignore[call-overload]

    async def in_child(
        store: logstore.aio.Store, p: logstore.aio.Partition, follower: object
    ) -> None:
        for call in (
            p.append(b"x"),
            p.append(b"x", durable=True),
            p.append_many([b"x"], durable=True),
            p.flush(),
            store.create_topic("more"),
            store.publish([]),
        ):
            with pytest.raises(logstore.errors.ForkedError):
                await call
        with pytest.raises(logstore.errors.ForkedError):
            p.get(0)
        with pytest.raises(
            (logstore.errors.ForkedError, logstore.errors.EventLoopError)
        ):
            await anext(follower)  # type: ignore[call-overload]

    with logstore.open(tmp_path) as blocking:
        store = logstore.aio.Store(blocking)
        p = logstore.aio.Store(blocking)
        blocking.create_topic("orders")
        p = store.topic("orders")[0]
        follower = p.follow()
        asyncio.run(first(p, follower))
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(in_child(store, p, follower))
                os._exit(0)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert p.end_offset == 1


def test_submit_is_awaited(tmp_path: Path) -> None:
    """The owner, which another loop may have, publishes; with metadata and pin."""

    async def main() -> None:
        serving = logstore.StoreConfig(publish_for_others=True)
        async with logstore.aio.open(tmp_path, config=serving) as owner:
            p = (await owner.create_topic("orders"))[0]
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                with store.stage("me", 1) as stage:
                    stage.append_many(store.topic("orders")[0], [b"0", b"1"])
                    staged = stage.finish()
                done = await store.submit(
                    iter([staged]), identity="me", sequence=1, metadata=b"m",
                    pinned=True, timeout_ms=120_000,
                )  # fmt: skip
                assert done.offsets == {("orders", 0): range(2)}
                assert (done.metadata, done.pinned) == (b"m", True)
            again = await owner.publish(
                [], identity="me", sequence=2, metadata=b"n", pinned=False
            )
            assert (again.metadata, again.pinned) == (b"n", False)
            assert values_of(p) == [b"0", b"1"]

    run(main())


def test_publish_is_awaited(tmp_path: Path) -> None:
    """All records or none, once; also after the task was cancelled."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            p = (await store.create_topic("orders"))[0]

            def staged(value: bytes, sequence: int) -> logstore.types.Staged:
                stage = store.stage("me", sequence)
                stage.append_many(p, [value])
                return stage.finish()

            one = await store.publish(staged(b"0", 1), identity="me", sequence=1)
            assert (one.is_new, one.records) == (True, 1)
            again = await store.publish([staged(b"0", 1)], identity="me", sequence=1)
            assert not again.is_new
            task = asyncio.create_task(
                store.publish(iter([staged(b"1", 2)]), identity="me", sequence=2)
            )
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await store.publish([staged(b"1", 2)], identity="me", sequence=2)
            assert store.published("me") == 2
            assert values_of(p) == [b"0", b"1"]
            last = store.last_publication("me")
            assert last is not None
            assert last.sequence == 2
            await store.delete_topic("orders")
            await store.create_topic("orders")
            with pytest.raises(logstore.TopicNotFoundError):  # not this one
                await store.publish([staged(b"2", 3)], identity="me", sequence=3)
            p = store.topic("orders")[0]
            left = staged(b"never", 3)
            await store.discard_staged([left])
            with pytest.raises((logstore.StorageError, logstore.ConfigError)):
                await store.publish([left], identity="me", sequence=3)
            with pytest.raises(logstore.errors.PublicationConflictError):
                await store.publish([], identity="me", sequence=1)

    run(main())


def test_topics_are_made_and_deleted(tmp_path: Path) -> None:
    """They are iterated over, too."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as store:
            await store.create_topic("a")
            topic = await store.create_topic("b", 2, exist_ok=True)
            assert [t.name for t in store] == ["a", "b"] == store.topics()
            assert store["b"][1] is store.topic("b")[1] is topic.partitions[1]
            with pytest.raises(logstore.TopicExistsError):
                await store.create_topic("a")
            await store.delete_topic("a")
            assert "a" not in store
            with pytest.raises(logstore.TopicNotFoundError):
                store.topic("a")
            assert store.metrics()["path"] == str(tmp_path)

    run(main())


def test_close_that_fails_may_be_called_again(tmp_path: Path) -> None:
    """The error is raised both times, as by the blocking one."""

    async def main() -> None:
        files = FaultyFiles()
        store = await logstore.aio.open(tmp_path, _files=files)
        p = (await store.create_topic("orders"))[0]
        await p.append(b"0")
        files.fail("sync", name=".log")
        with pytest.raises(logstore.errors.SyncFailedError):
            await store.close()
        files.heal()
        await store.close()
        with pytest.raises(logstore.errors.StoreClosedError):
            await p.append(b"1")

    run(main())


@every_loop
def test_call_that_waits_for_a_thread_is_completed_without_its_task(
    tmp_path: Path, loop_kind: str
) -> None:
    """It was dropped once if all threads of the loop were busy."""

    async def main() -> None:
        loop, begins = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with logstore.aio.open(tmp_path) as store:
            busy = loop.run_in_executor(None, begins.wait)
            task = asyncio.create_task(store.create_topic("orders"))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert store.topics() == []
            begins.set()
            assert await busy
            await store.recover()  # after it
            assert store.topics() == ["orders"]

    run(main(), loop_kind)


def test_cancelled_close_goes_on(tmp_path: Path) -> None:
    """The next call waits for its end."""

    async def main() -> None:
        store = await logstore.aio.open(tmp_path)
        p = (await store.create_topic("orders"))[0]
        await p.append(b"0")
        task = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.close()
        logstore.open(tmp_path).close()

    run(main())


@pytest.mark.parametrize("waits", [False, True], ids=["closes", "waits for commits"])
def test_end_of_the_program_during_a_close_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """`asyncio.run` cancels all tasks at its end, and waits for the thread."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            raise KeyError

    with pytest.raises(KeyError):
        run(main())

    kept = []  # else the finalizer of the store closes it

    async def forgetful() -> None:
        store = await logstore.aio.open(tmp_path)
        kept.append(store)
        await store.topic("orders")[0].append(b"1")
        if waits:
            finished = asyncio.Event().wait
            monkeypatch.setattr(store._commits, "finish", finished)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        del closing

    run(forgetful())
    with logstore.open(tmp_path) as store:
        assert not store.recovery_report
        assert values_of(store.topic("orders")[0]) == [b"0", b"1"]
