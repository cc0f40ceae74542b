"""Parallel work: threads for a list of tasks, and one thread that takes the results.

Made only of operations that an interrupt cannot leave half done
(`logstore._native.locks`); the executors of the standard library wait on Conditions. A
thread counts as holding the locks of the thread that started it: that thread waits for
it, so it must not wait for those locks (a finalizer that the garbage collector runs
here could try).
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, TypeVar

from logstore import _native as native
from logstore._native.locks import Signal

__all__ = ["Done", "Task", "Workers", "side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# The longest sleep before checking again, in case a wake-up was missed.
_POLL_S = 0.05
# A thread that was started and has not begun after so long never will.
_LOST_S = 1.0


class Task(Generic[Result]):
    """A piece of work and its result."""

    __slots__ = ("_error", "_is_done", "_result", "_work")

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work: Callable[[], Result] | None = work
        self._result: list[Result] = []
        self._error: BaseException | None = None
        self._is_done = False

    def run(self) -> None:
        """Do the work; keep its error."""
        work, self._work = self._work, None
        assert work is not None
        try:
            self._result.append(work())
        except BaseException as error:
            self._error = error
        self._is_done = True

    def is_done(self) -> bool:
        """Whether `result` may be called."""
        return self._is_done

    def result(self) -> Result:
        """The result of the work; raises the error that it raised."""
        if self._error is not None:
            raise self._error
        return self._result[0]


class Workers:
    """Threads that do tasks in the order of their arrival, and end when none is left.
    A context manager: if it is left early, it drops waiting tasks and waits for running
    ones.

    Args:
        threads: at most. If none can be started, the caller of `wait` does the work.
        stop: called if an error leaves the context: it should let tasks end soon.
    """

    def __init__(self, threads: int, stop: Callable[[], None] | None = None) -> None:
        self._threads = threads
        self._stop = stop
        self._waiting: deque[Task[Any]] = deque()
        # One for each thread that was requested, and one for each that has begun and
        # not ended. A thread notes its own start; one that never starts is not awaited.
        self._asked: deque[None] = deque()
        self._at_work: deque[None] = deque()
        self._asked_at = 0.0
        self._has_ended = Signal()
        self._has_more = Signal()
        self._is_stopped = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_stopped = True
        self._waiting.clear()
        if kind is not None and self._stop is not None:
            with contextlib.suppress(Exception):
                self._stop()
        self._has_more.set()
        while self._at_work:
            waiter = self._has_ended.register()
            if self._at_work:
                waiter.wait(_POLL_S)
            else:
                waiter.cancel()

    def submit(self, work: Callable[[], Result]) -> Task[Result]:
        """Add a piece of work."""
        task = Task(work)
        self._waiting.append(task)
        if len(self._asked) < self._threads:
            self._asked.append(None)
            self._asked_at = time.monotonic()
            try:
                _thread.start_new_thread(self._run, (native.places(),))
            except (RuntimeError, MemoryError):
                self._asked.pop()
        self._has_more.set()
        return task

    def wait(self, task: Task[Result], seconds: float | None = None) -> bool:
        """Wait until a task is done, at most `seconds`; return whether it is done."""
        while not task.is_done():
            if self._is_alone() and self._work_on():
                continue
            waiter = self._has_ended.register()
            if task.is_done():
                waiter.cancel()
                break
            woken = waiter.wait(_POLL_S if seconds is None else seconds)
            if seconds is not None and not woken:
                break
        return task.is_done()

    def _is_alone(self) -> bool:
        """Whether no thread is there to do the work."""
        if self._at_work:
            return False
        return not self._asked or time.monotonic() > self._asked_at + _LOST_S

    def _work_on(self) -> bool:
        """Do the next task; False if no task waits."""
        try:
            task = self._waiting.popleft()
        except IndexError:
            return False
        task.run()
        self._has_ended.set()
        return True

    def _run(self, places: tuple[tuple[int, int], ...]) -> None:
        self._at_work.append(None)
        try:
            trace = threading.gettrace()
            if trace is not None:
                sys.settrace(trace)
            native.assume(places)
            while not self._is_stopped:
                if self._work_on():
                    continue
                waiter = self._has_more.register()
                if self._waiting or self._is_stopped:
                    waiter.cancel()
                elif not waiter.wait(_POLL_S):
                    break
        finally:
            self._asked.pop()
            self._at_work.pop()
            self._has_ended.set()
            # Run what finalizers deferred because of the locks that it counted as
            # holding.
            native.resign()


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Result]):
    """An item and its result."""

    item: Item
    result: Result


def side_by_side(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    threads: int,
    *,
    poll_s: float = 1.0,
    stop: Callable[[], None] | None = None,
) -> Generator[Done[Item, Result] | None]:
    """Work on items in several threads. Yields them in order, when each is done,
    and None from time to time while the next one is not.

    If it is closed early, or if `work` raises (raised here as well), it calls `stop`
    and waits for the threads that are at work.
    """
    with Workers(threads, stop) as workers:
        tasks = deque(
            (item, workers.submit(lambda item=item: work(item)))  # type: ignore[misc]
            for item in items
        )
        while tasks:
            item, task = tasks[0]
            if workers.wait(task, poll_s):
                tasks.popleft()
                yield Done(item, task.result())
            else:
                yield None
