"""The thread that serves all stores of a process."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import StorageError
from logstore import _native as native
from logstore.io import services as module
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.services import THREAD, Again, Service
from logstore.io.wakeups import Watch
from support.watched import instances

LONG_S = 10.0


class Served:
    """Notes the calls of its method, which may fail, or last until it is let go."""

    def __init__(
        self, root: Directory, what: str = "requests", every_s: float | None = None
    ) -> None:
        self.calls = threading.Semaphore(0)
        self.begun: list[float] = []
        self.errors: list[BaseException] = []
        self.logged: list[BaseException] = []
        self.again: Again | None = None
        self.act: Callable[[], object] = int
        self.service = Service(
            root, what, self.work, self.logged.append, 0.001, every_s
        )

    def work(self) -> Again | None:
        wakeups = self.service.wakeups
        if wakeups is not None:
            wakeups.take()
        self.begun.append(time.monotonic())
        self.calls.release()
        if self.errors:
            raise self.errors.pop()
        self.act()
        again, self.again = self.again, None
        return again

    def is_called(self, seconds: float = LONG_S) -> bool:
        return self.calls.acquire(timeout=seconds)


class Replaced(Files):
    """Refuses watches, or is on another file system."""

    def __init__(self, error: int = 0, number: int = 0) -> None:
        self.error = error
        self.number = number

    def watch(self, fd: int, at: int, *more: Any) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        return super().watch(fd, at, *more)

    def file_system(self, fd: int) -> int:
        return self.number or super().file_system(fd)


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + LONG_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def threads() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


@pytest.fixture
def root(tmp_path: Path) -> Directory:
    return Directory.open_root(Files(), str(tmp_path))


@pytest.fixture
def make(root: Directory) -> Iterator[Callable[..., Served]]:
    """Makes services, and stops them."""
    gc.collect()
    until(lambda: threads() == 0)
    with contextlib.ExitStack() as stack:

        def make(*arguments: Any, **options: Any) -> Served:
            served = Served(root, *arguments, **options)
            stack.callback(served.service.stop)
            return served

        yield make
    until(lambda: threads() == 0)


Make = Callable[..., Served]


# ------------------------------------------------------------------ one service


def test_service_is_called_at_its_start_and_when_it_is_woken(make: Make) -> None:
    """And not else; until it is stopped, which may be twice."""
    one = make()
    one.service.start()
    assert one.is_called()
    assert not one.is_called(0.02)
    one.service.wake()
    assert one.is_called()
    assert not one.is_called(0.02)
    one.service.stop()
    one.service.stop()
    one.service.wake()
    assert not one.is_called(0.02)
    assert one.service.wakeups is None


@pytest.mark.parametrize("kind", [Files, Replaced])
def test_service_wakes_by_what_it_watches(tmp_path: Path, kind: type[Files]) -> None:
    """Also one with system calls of its own."""
    root = Directory.open_root(kind(), str(tmp_path))
    one = Served(root)
    one.service.start(Watch(root, native.WATCH_RENAMES))
    assert one.is_called()
    for name in "bcd":
        Path(root.path, "a").touch()
        assert not one.is_called(0.02)
        Path(root.path, "a").rename(Path(root.path, name))
        assert one.is_called()
    one.service.stop()


@pytest.mark.parametrize(
    "files",
    [Replaced(errno.ENOSPC), Replaced(number=next(iter(NETWORK)))],
    ids=["refused", "network"],
)
def test_service_is_called_by_time_where_nothing_is_reported(
    tmp_path: Path, files: Files
) -> None:
    """Every 50 ms."""
    root = Directory.open_root(files, str(tmp_path))
    one = Served(root)
    one.service.start(Watch(root, native.WATCH_RENAMES))
    for _ in range(4):
        assert one.is_called()
    one.service.stop()
    assert one.begun[-1] - one.begun[0] > 0.1


def test_services_of_a_time_are_called_at_the_same_times(make: Make) -> None:
    """One wake-up for all; the first one is not at the start."""
    one, two = make("snapshots", 0.05), make("snapshots", 0.05)
    begun = time.monotonic()
    one.service.start()
    time.sleep(0.02)
    two.service.start()
    for served in (one, two):
        for _ in range(3):
            assert served.is_called()
    first = min(one.begun[0], two.begun[0])
    assert first > begun
    assert min(abs(time_s - two.begun[1]) for time_s in one.begun) < 0.02


def test_service_is_called_again_as_it_asks(make: Make) -> None:
    """At once, or after a pause."""
    one = make()
    for again in Again:
        one.again = again
        one.service.wake()
        if again is Again.NOW:
            one.service.start()
        assert one.is_called()
        assert one.is_called()
    until(lambda: one.service.at is None)
    while one.is_called(0.02):
        pass


def test_service_goes_on_after_an_error(make: Make) -> None:
    """Without being woken; it is logged, if that is possible."""
    one = make()
    error = MemoryError()
    one.errors = [error]
    one.service.start()
    assert one.is_called()
    assert one.is_called()
    assert one.logged == [error]
    one.logged = None  # type: ignore[assignment]
    one.errors = [OSError()]
    one.service.wake()
    assert one.is_called()
    assert one.is_called()


def test_service_ends_with_the_object_that_it_serves(root: Directory) -> None:
    """It keeps it not alive; its thread does not wait for a change to end."""
    one = Served(root)
    one.service.start(Watch(root, native.WATCH_RENAMES))
    assert one.is_called()
    service = one.service
    until(lambda: not service._busy.locked())
    del one
    gc.collect()
    until(lambda: threads() == 0)
    assert service.wakeups is None


def test_service_may_stop_itself(make: Make) -> None:
    """As a store that is closed by a call in its thread."""
    one = make()
    one.act = one.service.stop
    one.service.start()
    assert one.is_called()
    until(lambda: threads() == 0)
    assert one.service.wakeups is None


def test_stop_waits_for_the_call_under_way(make: Make) -> None:
    """After it the service is not called."""
    one, let_go = make(), threading.Event()
    one.act = let_go.wait
    one.service.start()
    assert one.is_called()
    stopping = threading.Thread(target=one.service.stop)
    stopping.start()
    stopping.join(0.02)
    assert stopping.is_alive()
    let_go.set()
    stopping.join(LONG_S)
    assert not stopping.is_alive()


def test_thread_that_cannot_be_started_is_a_named_error(
    root: Directory, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what is missing then, and the limits to look at."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    one = make()
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StorageError, match="no thread for the requests") as caught:
            one.service.start()
    assert caught.value.filename == root.path
    assert one.service.wakeups is None
    two = make()
    two.service.start()
    assert two.is_called()


def test_service_that_has_nothing_to_do_is_not_called(
    root: Directory, make: Make
) -> None:
    """Its look needs no spare, and may fail: then the call decides."""
    one, other = make(), make()
    looks, answers = list[int](), [False, False, True, False]

    class Looking:
        def work(self) -> None:
            one.work()

        def look(self) -> bool:
            looks.append(1)
            if len(looks) == 6:
                raise logstore.StoreClosedError("closed")
            return len(looks) <= len(answers) and answers[len(looks) - 1]

    looking = Looking()
    service = Service(
        root, "looks", looking.work, one.logged.append, 0.01, 0.02, looking.look
    )
    service.start()
    until(lambda: len(looks) >= 8)
    assert len(one.begun) == 2
    service.stop()
    other.service.start()
    assert other.is_called()


# ------------------------------------------------------------------ many services


def test_long_call_does_not_delay_others(make: Make) -> None:
    """Nor do several; the threads that they take end when there is no work."""
    let_go = threading.Event()
    busy, others = [make() for _ in range(4)], [make() for _ in range(4)]
    for one in (*busy, *others):
        one.service.start()
        assert one.is_called()
    for count, one in enumerate(busy, 1):
        one.act = let_go.wait
        one.service.wake()
        assert one.is_called()
        for other in others:
            begun = time.monotonic()
            other.service.wake()
            assert other.is_called()
            assert time.monotonic() - begun < 0.5
        assert threads() <= count + 2
    let_go.set()
    until(lambda: threads() == 1)


def test_long_call_does_not_delay_reports_and_times_of_others(
    root: Directory, make: Make
) -> None:
    """Another thread reads and waits in its place."""
    let_go = threading.Event()
    busy, reported, timed = make(), make(), make("snapshots", 0.05)
    busy.act = let_go.wait
    reported.service.start(Watch(root, native.WATCH_RENAMES))
    timed.service.start()
    assert reported.is_called()
    busy.service.start()
    assert busy.is_called()
    for name in "bcd":
        Path(root.path, "a").touch()
        Path(root.path, "a").rename(Path(root.path, name))
        assert reported.is_called()
        assert timed.is_called()
    # The time that it asks for is kept, though another thread waits.
    busy.again = Again.AFTER_PAUSE
    busy.act = int
    let_go.set()
    assert busy.is_called()


def test_long_call_is_not_made_twice_at_once(make: Make) -> None:
    """What wakes it meanwhile lets it be called again after that."""
    let_go, one, other = threading.Event(), make(), make()
    other.service.start()
    one.act = let_go.wait
    one.service.start()
    assert one.is_called()
    for _ in range(3):
        one.service.wake()
        assert not one.is_called(0.02)
    let_go.set()
    assert one.is_called()


def test_call_that_others_wait_for_is_late(make: Make) -> None:
    """It can end, and be made again."""
    one, late = make(), list[bool]()

    def act() -> None:
        late.append(one.service.is_late)
        time.sleep(0.005)
        late.append(one.service.is_late)

    one.act = act
    assert not one.service.is_late
    one.service.start()
    until(lambda: len(late) == 2)
    assert late == [False, True]


def test_spare_that_cannot_be_started_lets_others_wait(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the call is over."""
    let_go, one, other = threading.Event(), make(), make()
    one.act = let_go.wait

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    other.service.start()
    assert other.is_called()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(module._Worker, "_rest", lambda self: False)
    one.service.start()
    assert one.is_called()
    other.service.wake()
    let_go.set()
    assert other.is_called()


# ------------------------------------------------------------------ stores


def counts() -> tuple[int, int]:
    return instances(), threads()


@pytest.mark.parametrize("count", [1, 10, 50])
def test_process_has_one_instance_and_one_thread_for_its_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """After the work of their openings is over."""
    monkeypatch.setattr(module, "_IDLE_S", 0.05)
    gc.collect()
    until(lambda: threads() == 0)
    before = instances()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            path = tmp_path / str(number)
            stack.enter_context(logstore.open(path, create=True))
        time.sleep(0.5)
        until(lambda: counts() == (max(before, 1), 1))
        # Looks for requests for snapshots need no other one.
        end = time.monotonic() + 1.2
        while time.monotonic() < end:
            assert threads() == 1
            time.sleep(0.05)
    until(lambda: threads() == 0)


def test_child_of_a_fork_has_a_thread_of_its_own(tmp_path: Path) -> None:
    """For the stores that it opens."""
    with logstore.open(tmp_path / "a", create=True) as store:
        until(lambda: threads() == 1)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                assert counts() == (0, 0)
                with logstore.open(tmp_path / "b", create=True) as mine:
                    mine.create_topic("t")
                    until(lambda: counts()[0] == 1)
                    assert threads() >= 1
                    with logstore.open(tmp_path / "b", shared=True) as other:
                        other.topic("t").append(b"x")
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        store.create_topic("t")
        with logstore.open(tmp_path / "a", shared=True) as other:
            other.topic("t").append(b"x")
            assert other.topic("t")[0].end_offset == 1
