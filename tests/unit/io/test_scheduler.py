"""The background thread of a store: it runs its tasks even if one fails."""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from logstore.errors import StoreClosedError
from logstore.io.files import Files
from logstore.io.scheduler import Scheduler


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    """A scheduler that is stopped in the end."""
    found = Scheduler(Files(), "a test")
    yield found
    found.stop()


def test_background_task_that_finds_no_memory_is_run_again(
    scheduler: Scheduler,
) -> None:
    """The sync of appended records, for example: no other task makes it."""
    done = threading.Event()
    tries = []

    def task() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise MemoryError
        done.set()

    scheduler.call_later(0, task)
    assert done.wait(10)
    scheduler.stop()
    assert len(tries) == 2


def test_background_thread_that_has_not_run_yet_is_enough(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work planned before it runs needs no second thread: an error about a second one
    would reach an append whose records are written."""
    begun: list[Callable[[], None]] = []

    def begin(work: Callable[[], None], arguments: tuple[object, ...]) -> int:
        if begun:
            raise RuntimeError("can't start new thread")
        begun.append(work)
        return 1

    start = _thread.start_new_thread
    monkeypatch.setattr(_thread, "start_new_thread", begin)
    done = threading.Event()
    scheduler.call_later(0, done.set)
    scheduler.call_later(60_000, done.set)
    monkeypatch.undo()
    start(begun[0], ())
    assert done.wait(10)


def test_background_thread_without_memory_to_report_that_goes_on(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other thread is begun in its place: nothing would be synced by time."""
    done = threading.Event()
    tries = []

    def none_left(*kinds: type[BaseException]) -> None:
        monkeypatch.undo()
        raise MemoryError

    def task() -> None:
        tries.append(1)
        if len(tries) == 1:
            monkeypatch.setattr(contextlib, "suppress", none_left)
            raise MemoryError
        done.set()

    scheduler.call_later(0, task)
    assert done.wait(10)
    scheduler.stop()
    assert len(tries) == 2


@pytest.mark.parametrize("error", [None, MemoryError, ValueError])
def test_background_task_that_stops_all_ends_the_thread(
    scheduler: Scheduler,
    error: type[Exception] | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever happens to it then, no error mentions the tasks that are gone."""
    stopped = threading.Event()

    def task() -> None:
        scheduler.stop()
        stopped.set()
        if error is not None:
            raise error("behind the stop")

    scheduler.call_later(0, task)
    assert stopped.wait(10)
    scheduler.stop()
    said = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert said == ([] if error is None else [error])


def test_task_without_users_whose_store_is_closed_meanwhile_is_silent(
    scheduler: Scheduler,
) -> None:
    """Its files are removed at the next opening."""
    reported: list[object] = []
    done: list[int] = []

    def task() -> None:
        done.append(1)
        raise StoreClosedError("the store is closed")

    hook, sys.unraisablehook = sys.unraisablehook, reported.append
    try:
        scheduler.when_unused((), task, 0)
        for _ in range(1_000_000):
            if done:
                break
    finally:
        sys.unraisablehook = hook
    assert done
    assert not reported


def test_task_waits_for_each_user_of_its_files(scheduler: Scheduler) -> None:
    """The users end in any order."""

    class User:
        pass

    users = {name: User() for name in "abc"}
    done = threading.Event()
    scheduler.when_unused(users.values(), done.set, 1)
    for name in ("c", "a"):
        del users[name]
        # It looks at them five times in a second.
        assert not done.wait(0.3)
    users.clear()
    assert done.wait(10)
