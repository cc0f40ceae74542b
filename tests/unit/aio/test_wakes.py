"""Events that wake followers: appends, reports of the system, and the time."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from logstore.aio import wakes
from logstore.aio.loops import Binding
from logstore.io.files import Files, Report
from logstore.io.wakeups import Wakeups
from support.tasks import every_loop, new_partition, run, until


async def waiting(follower: Any) -> asyncio.Future[logstore.Record]:
    """A task that waits for the next record."""
    task: asyncio.Future[logstore.Record] = asyncio.ensure_future(anext(follower))
    while not follower._waiting:
        await asyncio.sleep(0.001)
    return task


@every_loop
def test_a_thousand_followers_need_no_thread_and_one_descriptor(
    tmp_path: Path, loop_kind: str
) -> None:
    """The store that writes needs no descriptor, a read-only one needs one."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                q = store.topic("orders")[0]
                threads = threading.active_count()
                for one, descriptors in ((p, 0), (q, 1)):
                    before = len(os.listdir("/proc/self/fd"))
                    followers = [one.follow(1) for _ in range(1000)]
                    tasks = [asyncio.ensure_future(anext(f)) for f in followers]
                    await until(lambda fs=followers: all(f._waiting for f in fs))
                    assert threading.active_count() == threads
                    after = len(os.listdir("/proc/self/fd"))
                    # A watch that an earlier store has left is used again.
                    assert before <= after <= before + descriptors
                    for task in tasks:
                        task.cancel()
                    await asyncio.gather(*tasks, return_exceptions=True)

    run(main(), loop_kind)


class Looking(Files):
    """Counts the reads of the log of a partition."""

    def __init__(self) -> None:
        self.looks = 0

    def look(self, *args: Any, **options: Any) -> Any:
        self.looks += 1
        return super().look(*args, **options)


def test_one_look_serves_all_followers_of_a_partition(tmp_path: Path) -> None:
    """A hundred followers cost as many looks as one."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            counts = []
            for count in (1, 100):
                files = Looking()
                options: dict[str, Any] = {"read_only": True, "_files": files}
                async with logstore.aio.open(tmp_path, **options) as store:
                    q = store.topic("orders")[0]
                    end = p.end_offset
                    followers = [q.follow(end) for _ in range(count)]
                    tasks = [await waiting(follower) for follower in followers]
                    files.looks = 0
                    await p.append(b"1")
                    records = await asyncio.gather(*tasks)
                    assert [r.offset for r in records] == [end] * count
                    counts.append(files.looks)
            assert counts[1] < 20

    run(main())


def test_follower_is_woken_once_a_second_if_a_report_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both in the store that writes, and in another one."""
    monkeypatch.setattr(wakes, "WATCHED_S_MAX", 0.02)
    monkeypatch.setattr(wakes._Bell, "release", lambda self: None)

    def deaf(self: wakes.Wakes) -> None:
        self._is_reading = True

    monkeypatch.setattr(wakes.Wakes, "_read", deaf)
    monkeypatch.setattr(wakes.Wakes, "_stop_reading", lambda self: None)

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            await p.append(b"0")
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                for q in (p, store.topic("orders")[0]):
                    end = p.end_offset
                    task = await waiting(q.follow(end))
                    await asyncio.to_thread(p.blocking.append, b"1")
                    assert (await task).offset == end

    run(main())


class Refusing(Files):
    """Refuses a call that reports changes need, or loses reports."""

    def __init__(self, refused: str) -> None:
        self.refused = refused

    def new_watch(self) -> int:
        self._refuse("new_watch")
        return super().new_watch()

    def watch(self, fd: int, at: int, *more: Any) -> int:
        self._refuse("watch")
        return super().watch(fd, at, *more)

    def file_system(self, fd: int) -> int:
        return 0x6969 if self.refused == "network" else super().file_system(fd)

    def reports(self, fd: int) -> Sequence[Report] | None:
        found = super().reports(fd)
        return None if self.refused == "reports" else found

    def _refuse(self, call: str) -> None:
        if call == self.refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("refused", ["new_watch", "watch", "network", "reports"])
def test_follower_without_reports_has_every_record(
    tmp_path: Path, refused: str
) -> None:
    """It polls if the system has no watches, or does not report changes of other hosts;
    and reads all partitions if reports were lost."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            files = Refusing(refused)
            options: dict[str, Any] = {"read_only": True, "_files": files}
            async with logstore.aio.open(tmp_path, **options) as store:
                follower = store.topic("orders")[0].follow()
                for n in range(10):
                    task = await waiting(follower)
                    await p.append(b"%d" % n)
                    assert (await task).value == b"%d" % n

    run(main())


def test_reports_of_partitions_that_nobody_follows_are_ended(tmp_path: Path) -> None:
    """The watch ends at the first report after the followers are gone."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as writing:
            topic = await writing.create_topic("orders", partitions=2)
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                one, two = store.topic("orders").partitions
                task, gone = await waiting(one.follow()), await waiting(two.follow())
                reported = store._wakes._by_number
                assert len(reported) == 3  # of the root, and of both
                gone.cancel()
                await asyncio.gather(gone, return_exceptions=True)
                del two, gone

                def is_ended() -> bool:
                    topic.blocking[1].append(b"unseen")
                    return len(reported) == 2

                await until(is_ended)
                await topic[0].append(b"seen")
                assert (await task).value == b"seen"

    run(main())


def test_loop_reads_no_reports_when_nobody_waits(tmp_path: Path) -> None:
    """This holds even if the look once a second finds that while the loop rests from
    reports."""

    async def main() -> None:
        async with logstore.aio.open(tmp_path) as writing:
            topic = await writing.create_topic("orders")
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                task = await waiting(store.topic("orders")[0].follow())
                wakes = store._wakes
                assert wakes._is_reading
                # A report comes at once after the last one.
                wakes._woken_at = wakes.loop().time() + 60
                topic.blocking[0].append(b"unseen")
                await until(lambda: wakes._resting is not None)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                wakes._check()
                assert (wakes._is_reading, wakes._resting) == (False, None)
                wakes._woken_at = 0.0
                again = await waiting(store.topic("orders")[0].follow(1))
                assert wakes._is_reading
                await topic[0].append(b"seen")
                assert (await again).value == b"seen"

    run(main())


def test_appends_one_by_one_do_not_wake_a_follower_for_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reports that come at once after a look wait for a moment, and are not lost."""
    monkeypatch.setattr(wakes, "INTERVAL_S_MIN", 0.2)

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                q = store.topic("orders")[0]
                follower = q.follow()
                (await waiting(follower)).cancel()
                taken = 0
                take = Wakeups.take

                def counted(self: Wakeups) -> Sequence[tuple[int, str]] | None:
                    nonlocal taken
                    taken += self is q._services.wakes._reports
                    return take(self)

                monkeypatch.setattr(Wakeups, "take", counted)
                for n in range(50):
                    await p.append(b"%d" % n)
                    assert (await anext(follower)).value == b"%d" % n
                    if n == 3:
                        break
                assert 1 <= taken <= 5

    run(main())


def test_place_of_a_broken_partition_wakes_its_followers(tmp_path: Path) -> None:
    """They raise the error."""

    async def main() -> None:
        async with new_partition(tmp_path) as p:
            async with logstore.aio.open(tmp_path, read_only=True) as store:
                task = await waiting(store.topic("orders")[0].follow())
                moved = Path(p.path).rename(tmp_path.parent / "moved")
                with pytest.raises(logstore.errors.PartitionNotFoundError):
                    await task
                moved.rename(p.path)

    run(main())


def test_bell_of_a_closed_loop_disturbs_no_append(tmp_path: Path) -> None:
    """Its follower is gone."""
    with logstore.open(tmp_path) as blocking:
        blocking.create_topic("orders")
        p = logstore.aio.Store(blocking).topic("orders")[0]
        loop = asyncio.new_event_loop()
        follower = p.follow()
        task = loop.create_task(anext(follower))  # type: ignore[arg-type]
        loop.run_until_complete(asyncio.sleep(0.01))
        assert p.blocking._views.appended is not None
        waiters = p.blocking._views.appended.waiters
        assert len(waiters) == 1
        loop.close()
        assert p.blocking.append(b"0") == 0
        assert len(waiters) == 0
        assert p.blocking.append(b"1") == 1
        del task


def test_follower_that_begins_looks_at_the_log_again(tmp_path: Path) -> None:
    """It has read the log itself, perhaps later than the other followers."""

    async def main() -> None:
        with (
            logstore.open(tmp_path) as writer,
            logstore.open(tmp_path, read_only=True) as reader,
        ):
            topic = writer.create_topic("orders")
            topic[0].append(b"0")
            place = wakes.Wakes(Binding("a test"), Files()).place_of(
                reader.topic("orders")[0]
            )
            place.begin()
            assert place.look().end_offset == 1
            topic[0].append(b"1")
            # No report was read: others share the look.
            assert place.look().end_offset == 1
            place.begin()
            assert place.look().end_offset == 2

    run(main())
