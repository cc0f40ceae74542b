"""Work in threads for a screen: nothing is read in the thread that draws.

A result comes back as a message, so that a thread never waits for a screen, which may
be closed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from textual.message import Message
from textual.screen import Screen
from textual.worker import Worker, get_current_worker

import logstore

_Result = TypeVar("_Result")


class StoppedError(Exception):
    """The result of a thread is no longer needed."""


class Came(Message):
    """A value from a thread, and the function that takes it."""

    def __init__(self, take: Callable[[Any], None], value: Any) -> None:
        super().__init__()
        self.take, self.value = take, value


class Task:
    """The work of one thread. Any thread may call it."""

    def __init__(self, screen: Screen[Any], worker: Worker[None]) -> None:
        self._screen, self._worker = screen, worker

    def check(self) -> None:
        """End the work if it was stopped.

        Raises:
            StoppedError: it was.
        """
        if self._worker.is_cancelled:
            raise StoppedError

    def hand(self, take: Callable[[Any], None], value: Any) -> None:
        """Have the screen take a value, in its own thread, unless it was stopped."""
        if not self._worker.is_cancelled:
            self._screen.post_message(Came(take, value))


class Work:
    """The threads of a screen, by groups: each has one thread at a time.

    Args:
        screen: receives the messages.
        on_failure: takes the group and the error of work that has failed.
    """

    def __init__(
        self, screen: Screen[Any], on_failure: Callable[[tuple[str, Exception]], None]
    ) -> None:
        self._screen, self._on_failure = screen, on_failure

    def start(
        self,
        work: Callable[[Task], _Result],
        take: Callable[[_Result], None],
        group: str,
    ) -> None:
        """Work in a thread, and give the result to `take`; earlier work of the group is
        stopped."""

        def run() -> None:
            task = Task(self._screen, get_current_worker())
            try:
                result = work(task)
            except StoppedError:
                return
            except (logstore.LogStoreError, OSError, ValueError) as error:
                task.hand(self._on_failure, (group, error))
                return
            task.hand(take, result)

        self._screen.run_worker(run, thread=True, exclusive=True, group=group)

    def stop(self, group: str) -> None:
        """Stop the work of a group, if there is any."""
        self._screen.workers.cancel_group(self._screen, group)
