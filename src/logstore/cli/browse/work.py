"""Work in threads for a screen: nothing is read in the thread that draws.

A result comes back as a message, so that a thread never waits for a screen, which may
be closed.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from textual.message import Message
from textual.screen import Screen

_Result = TypeVar("_Result")
# Threads of a screen that work at once; a stopped one may still read for a while.
_THREADS: Final = 6


class TaskStoppedError(Exception):
    """The result of a thread is no longer needed."""


class ScreenTask:
    """The work of one thread. Any thread may call it."""

    def __init__(self, screen: Screen[Any]) -> None:
        self._screen = screen
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        """Whether its values, pending ones included, are no longer needed: it was
        stopped, or its screen was left."""
        return self._is_stopped or not self._screen.is_running

    def stop(self) -> None:
        """Make the next `check` end the work; no value is taken from now on."""
        self._is_stopped = True

    def check(self) -> None:
        """End the work if it was stopped.

        Raises:
            StoppedError: it was.
        """
        if self.is_stopped:
            raise TaskStoppedError

    def hand(self, take: Callable[[Any], None], value: Any) -> None:
        """Have the screen take a value, in its own thread, unless the task is stopped
        before it does."""
        if self.is_stopped:
            return
        try:
            self._screen.post_message(Came(self, take, value))
        except RuntimeError:
            self.stop()  # the loop of an app that has ended is closed


class Came(Message):
    """A value from the thread of a task, and the function that takes it."""

    def __init__(
        self, task: ScreenTask, take: Callable[[Any], None], value: Any
    ) -> None:
        super().__init__()
        self.task, self.take, self.value = task, take, value


class ScreenThreads:
    """The threads of a screen, by groups: each has one task at a time.

    The process may end while they run: they only read.

    Args:
        screen: receives the messages.
        on_failure: takes the group and the error of work that has failed.
    """

    def __init__(
        self, screen: Screen[Any], on_failure: Callable[[tuple[str, Exception]], None]
    ) -> None:
        self._screen, self._on_failure = screen, on_failure
        self._tasks: dict[str, ScreenTask] = {}
        self._free = threading.Semaphore(_THREADS)

    def start(
        self,
        work: Callable[[ScreenTask], _Result],
        take: Callable[[_Result], None],
        group: str,
    ) -> None:
        """Work in a thread, and give the result to `take`; earlier work of the group is
        stopped."""
        self.stop(group)
        task = self._tasks[group] = ScreenTask(self._screen)

        def run() -> None:
            try:
                with self._free:
                    task.check()
                    result = work(task)
            except TaskStoppedError:
                return
            except Exception as error:  # one record must not end the browser
                task.hand(self._on_failure, (group, error))
                return
            task.hand(take, result)

        # A daemon: `q` does not wait for a read. The context has the app.
        context = contextvars.copy_context()
        threading.Thread(
            target=context.run, args=(run,), name=f"browse {group}", daemon=True
        ).start()

    def stop(self, group: str) -> None:
        """Stop the work of a group, if there is any."""
        task = self._tasks.pop(group, None)
        if task is not None:
            task.stop()
