"""Work side by side: several threads for a list of items, and one that takes results.

Made of the few things that an interrupt cannot leave half done (`logstore.locks`): the
executors of the standard library wait on Conditions.
"""

from __future__ import annotations

import _thread
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Generic, NamedTuple, TypeVar

from logstore.locks import Signal

__all__ = ["Done", "side_by_side"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class Done(NamedTuple, Generic[Item, Result]):
    """An item, and what came of it."""

    item: Item
    result: Result


class _Crew(Generic[Item, Result]):
    """Threads at work, and what they have done."""

    def __init__(self, items: Iterable[Item], work: Callable[[Item], Result]) -> None:
        self.todo = deque(items)
        self.done: deque[Done[Item, Result]] = deque()
        self.failed: deque[BaseException] = deque()
        self.signal = Signal()
        self.is_stopped = False
        # One for each thread that has begun and not ended.
        self.at_work: deque[None] = deque()
        self._work = work

    def begin(self, threads: int) -> None:
        """Begin threads; fewer where no more are to be had."""
        for _ in range(min(threads, len(self.todo))):
            self.at_work.append(None)
            try:
                _thread.start_new_thread(self._run, ())
            except RuntimeError:
                self.at_work.pop()
                return

    def _run(self) -> None:
        trace = threading.gettrace()
        if trace is not None:
            sys.settrace(trace)
        try:
            while not self.is_stopped:
                try:
                    item = self.todo.popleft()
                except IndexError:
                    break
                self.done.append(Done(item, self._work(item)))
                self.signal.set()
        except BaseException as error:
            self.failed.append(error)
        self.at_work.pop()
        self.signal.set()

    def wait(self, seconds: float) -> None:
        """Sleep until there is something done, or a thread has ended."""
        waiter = self.signal.register()
        if self.done or self.failed or not self.at_work:
            waiter.cancel()
        else:
            waiter.wait(seconds)


def side_by_side(
    items: Iterable[Item],
    work: Callable[[Item], Result],
    threads: int,
    *,
    look_s: float = 1.0,
    stop: Callable[[], None] | None = None,
) -> Generator[Done[Item, Result] | None]:
    """Work on items in several threads; gives them as they are done, and None now and
    then while nothing is.

    Where it is closed early, or `work` raises (which is raised here), `stop` is called,
    and the threads that are at work are waited for.

    Args:
        threads: at most; without one to be had the caller's thread works.
        look_s: how often None is given while nothing is done.
    """
    crew = _Crew(items, work)
    left = len(crew.todo)
    try:
        crew.begin(threads)
        while left:
            if crew.failed:
                raise crew.failed.popleft()
            if crew.done:
                left -= 1
                yield crew.done.popleft()
            elif crew.at_work:
                crew.wait(look_s)
                if not crew.done:
                    yield None
            elif crew.todo:
                item = crew.todo.popleft()
                left -= 1
                yield Done(item, work(item))
    finally:
        crew.is_stopped = True
        if stop is not None and left:
            with contextlib.suppress(Exception):
                stop()
        while crew.at_work:
            crew.wait(0.05)
