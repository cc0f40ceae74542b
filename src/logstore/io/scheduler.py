"""The one background thread of a store: it runs due syncs and removes old files.

It starts before the first change of the store, not earlier, and `stop` ends it. It is a
daemon, so that a program that forgets to close a store can still end: the loss is then
limited by the flush policy.

Tasks arrive through a queue that needs no lock: any thread may add one at any line,
also from inside a finalizer or a signal handler.
"""

from __future__ import annotations

import _thread
import contextlib
import heapq
import itertools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from logstore import _native as native
from logstore._native.locks import Signal, logger
from logstore.errors import StorageError, StoreClosedError
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.service_calls import begin_call, end_call

__all__ = ["Scheduler", "weakly"]

_IDLE_S: Final = 60.0
# Interval of checking whether a read still needs a file, after the first try.
_IN_USE_MS: Final = 200
# The pause after a task that failed.
_PAUSE_S: Final = 0.05

_Task = tuple[float, int, Callable[[], None]]


def weakly(method: Callable[..., object], *arguments: object) -> Callable[[], None]:
    """A task that calls a method if its object still exists then: the task does not
    keep the object alive."""
    reference = weakref.WeakMethod(method)

    def call() -> None:
        alive = reference()
        if alive is not None:
            alive(*arguments)

    return call


class Scheduler:
    """Runs tasks when they are due. Any thread may call the methods."""

    def __init__(self, files: Files, name: str) -> None:
        self.files = files
        self.name = name
        self._count = itertools.count(1)
        self._inbox: deque[_Task] = deque()
        # Only the thread uses the tasks; other threads use the inbox.
        # A heap: if there is no memory to grow it, it does not change.
        self._tasks: list[_Task] = []
        self._wake = Signal()
        self._sleeps_until = float("-inf")
        # The thread holds it as long as it lives. There is one place for a thread.
        self._alive = threading.Lock()
        self._place: deque[None] = deque([None])
        self._thread_id: int | None = None
        # A thread was started; it sets its id when it runs.
        self._is_begun = False
        self._stopped = False
        # Bytes of the files that wait to be removed.
        self._waiting: dict[int, int] = {}

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the files that wait to be removed."""
        return sum(list(self._waiting.values()))

    def start(self) -> None:
        """Start the thread, unless it runs.

        Raises:
            StorageError: no thread can be started.
        """
        if self._thread_id is not None or self._stopped:
            return
        try:
            _thread.start_new_thread(self._run, ())
            self._is_begun = True
        except RuntimeError as error:
            if self._is_begun:
                return  # it was started, but does not run yet
            raise StorageError(
                f"no background thread for {self.name}: {error}. Without it nothing "
                f"would be synced in time; nothing was written. See the limits of the "
                f"process for threads and memory (ulimit -u, ulimit -v, cgroups)",
                path=self.name,
                action="start a thread for",
            ) from error

    def call_later(self, delay_ms: int, task: Callable[[], None]) -> None:
        """Run `task` after `delay_ms`, unless stopped before.

        Raises:
            StorageError: as `start`, if there is no thread yet.
        """
        if self._stopped:
            return
        self.start()
        due = self.files.monotonic() + delay_ms / 1000
        self._inbox.append((due, next(self._count), task))
        if due < self._sleeps_until:
            self._wake.set()

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object] = (),
    ) -> None:
        """Remove files when the delay is over and none of the objects that use them
        exists any more."""
        size = 0
        for name in names:
            with contextlib.suppress(OSError):
                size += directory.stat(name).size
        number = next(self._count)
        self._waiting[number] = size

        def unlink() -> None:
            for name in names:
                with contextlib.suppress(OSError):
                    directory.unlink(name, missing_ok=True)
            self._waiting.pop(number, None)

        self.when_unused(users, unlink, delay_ms)

    def when_unused(
        self, users: Iterable[object], task: Callable[[], None], delay_ms: int
    ) -> None:
        """Run a task when a delay is over and none of some objects exists any more.

        Never raises: a task that cannot be run is done at the next opening.
        """
        references = [weakref.ref(user) for user in users]

        def run_if_unused() -> None:
            while references and references[-1]() is None:
                references.pop()
            if not references:
                # Another thread may close the store before this runs.
                with contextlib.suppress(StoreClosedError):
                    task()
                return
            with contextlib.suppress(StorageError):
                self.call_later(_IN_USE_MS, run_if_unused)

        if delay_ms == 0:
            # After the present call ends: its local variables do not count as users.
            native.defer(run_if_unused)
            return
        try:
            self.call_later(delay_ms, run_if_unused)
        except StorageError as error:
            logger.warning("cannot remove files of %s until the next opening: %s",
                           self.name, error)  # fmt: skip

    def _run(self) -> None:
        try:
            self._place.pop()
        except IndexError:
            return  # another thread was started as well
        with self._alive:
            self._thread_id = _thread.get_ident()
            trace = threading.gettrace()
            if trace is not None:
                sys.settrace(trace)
            while not self._stopped:
                try:
                    self._work()
                except BaseException:
                    # There is no memory, not even to report that. Allocate nothing: the
                    # tasks must run when there is memory again.
                    continue

    def _work(self) -> None:
        """Run tasks, and report the ones that fail."""
        while not self._stopped:
            try:
                self._turn()
            except BaseException as error:
                with contextlib.suppress(BaseException):
                    logger.exception(
                        "a background task of %s failed", self.name, error=error
                    )
                    self.files.wait(self._wake.register(), _PAUSE_S)

    def _turn(self) -> None:
        """Run the first due task, or sleep until one is due."""
        while self._inbox:
            heapq.heappush(self._tasks, self._inbox[0])
            self._inbox.popleft()
        now = self.files.monotonic()
        wait = _IDLE_S
        if self._tasks:
            wait = min(self._tasks[0][0] - now, _IDLE_S)
            if wait <= 0:
                self._run_first(now)
                return
        waiter = self._wake.register()
        self._sleeps_until = now + wait
        if self._inbox or self._stopped:
            waiter.cancel()
        else:
            self.files.wait(waiter, wait)

    def _run_first(self, now: float) -> None:
        """Run the task that is due, and remove it. If it runs out of memory or stack,
        it runs again later, after the others, when there may be some."""
        first = self._tasks[0]
        is_done = True
        begin_call()
        try:
            first[2]()
        except (MemoryError, RecursionError):
            is_done = False
            raise
        finally:
            if not self._tasks:
                pass  # the task has stopped the scheduler
            elif is_done:
                heapq.heappop(self._tasks)
            else:
                heapq.heapreplace(self._tasks, (now + _PAUSE_S, *first[1:]))
            end_call()

    def stop(self) -> None:
        """End the thread; tasks that are not due yet are dropped. It may be called
        again if it was interrupted."""
        self._stopped = True
        self._wake.set()
        if self._thread_id != _thread.get_ident():
            with self._alive:
                pass  # it has ended
        self._inbox.clear()
        self._tasks.clear()

    def abandon(self) -> None:
        """Forget the thread, which does not exist in the child of a fork."""
        self._stopped = True
        self._alive = threading.Lock()
