"""The locks of the engine: their order, and how a thread waits for another.

User code may run at any line: finalizers, signal handlers, log handlers. Therefore an
interrupt must not leave a lock half taken (`native.Mutex` is entered in one call into
C, a `Condition` is not), no thread waits for a thread that could wait for it (the
order below), and nothing is logged while a lock is held (`logger` here).

The order is that of the ranks (docs/design.md, "Locks"): a thread that holds a lock
waits only for locks of a higher rank. A call from inside another call that needs a
lower rank, or the same rank while another thread holds that lock, is refused with
`ReentrantCallError`. Each store is a separate group, with its own order.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Sized
from typing import Any, Final, Protocol

from logstore import _native as native

__all__ = [
    "Signal",
    "Wakeable",
    "logger",
    "new_group",
    "wait_for_end",
]

# Closing a store; publications to a store; its topics and partitions.
RANK_CLOSE: Final = 1
RANK_PUBLISH: Final = 2
RANK_STORE: Final = 4
# Of each partition: a step of a compaction; the turn to sync; work excluded during a
# sync; appends, the list of segments.
RANK_COMPACT: Final = 5
RANK_TURN: Final = 6
RANK_SYNC: Final = 7
RANK_APPEND: Final = 8
# The state that readers have of a partition that another process writes.
RANK_REFRESH: Final = 9
# The ownership of a store; its journal of publications; open files; and locks held for
# a few lines only.
RANK_OWNERSHIP: Final = 10
RANK_JOURNAL: Final = 11
RANK_FILES: Final = 12
RANK_LEAF: Final = 14


_groups = itertools.count(1)


def new_group() -> int:
    """A number for the locks of one store: ranks order the locks of one group."""
    return next(_groups)


class Wakeable(Protocol):
    """An object that `Signal.add` takes. `release` is called once, by any thread, also
    under the lock of a log: it takes none, waits for nothing, and raises nothing but
    `RuntimeError`, which is ignored."""

    def release(self) -> None: ...


class Signal:
    """Lets threads wait until another one has changed something.

    It has no lock that an interrupt could leave held. A waiter registers, checks
    whether it still has to wait, and waits. If a thread is interrupted while it wakes
    others, one of them may stay asleep: so wait with a time limit.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        # Appending and removing are one call each: no thread sees half of it.
        self._waiters: deque[Any] = deque()

    @property
    def waiters(self) -> Sized:
        """Empty if `set` has nothing to do."""
        return self._waiters

    def register(self) -> Waiter:
        """Register a waiter. Then check the condition, and call `Waiter.wait`."""
        waiter = Waiter(self._waiters)
        self._waiters.append(waiter.lock)
        return waiter

    def set(self) -> None:
        """Wake all waiters that have registered so far."""
        waiters = self._waiters
        for lock in list(waiters):
            # Wake it first: an interrupt after that leaves no waiter asleep.
            with contextlib.suppress(RuntimeError):
                lock.release()
            with contextlib.suppress(ValueError):
                waiters.remove(lock)

    def add(self, wakeable: Wakeable) -> None:
        """Add a waiter that is not a thread. Check the condition after it."""
        self._waiters.append(wakeable)

    def remove(self, wakeable: Wakeable) -> None:
        """Do not wake it any more."""
        with contextlib.suppress(ValueError):  # woken
            self._waiters.remove(wakeable)

    def wait(self, seconds: float | None = None) -> bool:
        """Register, and wait at most `seconds`; True if woken."""
        return self.register().wait(seconds)


class Waiter:
    """A thread that waits for a `Signal`, once."""

    __slots__ = ("_waiters", "lock")

    def __init__(self, waiters: deque[Any]) -> None:
        self._waiters = waiters
        self.lock = threading.Lock()
        self.lock.acquire()

    def wait(self, seconds: float | None) -> bool:
        """Wait at most `seconds` (None: without a limit); True if woken."""
        woken = self.lock.acquire(timeout=-1 if seconds is None else max(seconds, 0.0))
        if not woken:
            self.cancel()
        return woken

    def cancel(self) -> None:
        """Stop waiting."""
        with contextlib.suppress(ValueError):  # woken right now
            self._waiters.remove(self.lock)


# How often to ask whether a thread has ended that seems not to end, and the pause while
# one that seems to have ended has not.
_END_S: Final = 1.0
_ALIVE_S: Final = 0.001


def wait_for_end(thread: threading.Thread) -> None:
    """Wait until a thread has ended. It may be called again after an interrupt, which
    is raised unchanged.

    An interrupt misleads `Thread.join` of CPython before 3.13: the next call returns at
    once, though the thread is alive, or, after two interrupts, never. Each thread takes
    itself off the list of threads when it ends, so that list is right. And ``join``
    raises ``RuntimeError`` in place of the interrupt if that comes just when the thread
    ends: each releases the same lock.
    """
    try:
        thread.join(_END_S)
        while thread in threading.enumerate():
            time.sleep(_ALIVE_S)
            thread.join(_END_S)
    except RuntimeError as error:
        interrupt = error.__context__
        if interrupt is None:
            raise
        raise interrupt from None


class _Logger:
    """The logger "logstore". Messages of a thread that holds a lock are logged when it
    has released its last one, because a handler may call logstore again."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def info(self, message: str, *args: object) -> None:
        native.defer(self._logger.info, message, *args)

    def warning(self, message: str, *args: object) -> None:
        native.defer(self._logger.warning, message, *args)

    def error(self, message: str, *args: object) -> None:
        native.defer(self._logger.error, message, *args)

    def exception(self, message: str, *args: object, error: BaseException) -> None:
        """An error, with the traceback of `error`."""
        native.defer(_log_exception, self._logger, message, args, error)


def _log_exception(
    to: logging.Logger, message: str, args: tuple[object, ...], error: BaseException
) -> None:
    to.error(message, *args, exc_info=error)


logger: Final = _Logger(logging.getLogger("logstore"))
