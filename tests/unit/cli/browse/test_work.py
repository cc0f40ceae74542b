"""Work in threads: which results are used, and how errors are handled."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import pytest

from logstore.cli.browse.work import Came, ScreenTask, ScreenThreads, TaskStoppedError


class Screen:
    """Keeps the messages of threads."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Came] = queue.Queue()
        self.is_closed = False
        self.is_running = True

    def leave(self) -> None:
        self.is_running = False

    def post_message(self, message: Came) -> None:
        if self.is_closed:
            raise RuntimeError("Event loop is closed")
        self.messages.put(message)

    def next(self) -> Came:
        return self.messages.get(timeout=30)


def ignore(value: Any) -> None:
    pass


def works(screen: Screen) -> ScreenThreads:
    return ScreenThreads(screen, ignore)  # type: ignore[arg-type]


def test_a_result_on_the_way_is_stale_after_other_work_began() -> None:
    """A result of the same group is; one of another group is not."""
    screen = Screen()
    work = works(screen)
    work.start(lambda task: "other", ignore, "b")
    other = screen.next()
    work.start(lambda task: "old", ignore, "a")
    old = screen.next()
    work.start(lambda task: "new", ignore, "a")
    new = screen.next()
    assert (old.value, old.task.is_stopped) == ("old", True)
    assert (new.value, new.task.is_stopped) == ("new", False)
    assert not other.task.is_stopped


def test_a_result_on_the_way_is_stale_after_its_work_was_stopped() -> None:
    """It is stopped by its group, or when the screen is left."""
    screen = Screen()
    work = works(screen)
    stops: list[Callable[[], None]] = [lambda: work.stop("a"), screen.leave]
    for stop in stops:
        work.start(lambda task: 1, ignore, "a")
        came = screen.next()
        stop()
        assert came.task.is_stopped
    work.stop("none")


def test_stopped_work_ends_at_its_next_check() -> None:
    """It hands nothing over, before or after."""
    screen = Screen()
    work = works(screen)
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(task: ScreenTask) -> None:
        begun.set()
        go.wait(30)
        task.hand(ignore, "late")
        try:
            task.check()
        except TaskStoppedError:
            ended.set()
            raise

    work.start(slow, ignore, "a")
    assert begun.wait(30)
    work.stop("a")
    go.set()
    assert ended.wait(30)
    assert screen.messages.empty()


def test_few_threads_work_at_a_time() -> None:
    """However often a key is pressed, work that was stopped meanwhile never begins."""
    screen = Screen()
    work = works(screen)
    go, begun = threading.Event(), threading.Semaphore(0)
    started: list[int] = []

    def slow(number: int) -> None:
        started.append(number)
        begun.release()
        go.wait(30)

    most = 6
    for number in range(20):
        work.start(lambda task, n=number: slow(n), ignore, "a")  # type: ignore[misc]
        if number < most:
            assert begun.acquire(timeout=30)
    assert started == list(range(most))
    go.set()
    screen.next()
    assert started == [*range(most), 19]


@pytest.mark.parametrize("error", [OverflowError("too large"), RecursionError()])
def test_any_error_is_handed_over(error: Exception) -> None:
    """The screen that began the work gets it: no record ends the browser."""
    screen = Screen()
    work = works(screen)

    def fail(task: ScreenTask) -> None:
        raise error

    work.start(fail, ignore, "a")
    came = screen.next()
    assert came.value == ("a", error)
    assert came.take is ignore


def test_a_thread_that_outlives_the_app_ends(monkeypatch: Any) -> None:
    """Its value is not needed; no error is printed."""
    errors: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", errors.append)
    screen = Screen()
    screen.is_closed = True
    tasks: list[ScreenTask] = []
    works(screen).start(tasks.append, ignore, "a")
    for thread in threading.enumerate():
        if thread.name == "browse a":
            thread.join(30)
    assert not errors
    assert tasks[0].is_stopped
