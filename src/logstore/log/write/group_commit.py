"""Group commit: of the threads that wait for a sync, one syncs for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore._native.locks import Signal

__all__ = ["GroupCommit"]

# How long to wait for another thread's sync before checking that it still runs.
_TURN_S: Final = 0.05


class GroupCommit:
    """Lets callers take turns: one syncs all that was appended by then, and the others
    wait until it ends. If that did not cover some of them, one of these syncs next.

    It knows no log. Any thread may call `run`.

    Invariant: `_is_syncing` only while a thread holds the lock.

    Attributes:
        turn: set when a sync is over, or waiting has become pointless.
    """

    __slots__ = ("_is_syncing", "_lock", "turn")

    def __init__(self, lock: native.Mutex) -> None:
        self._lock = lock
        self._is_syncing = False
        self.turn = Signal()

    def run(self, is_done: Callable[[], bool], sync: Callable[[], bool]) -> None:
        """Return when `is_done`.

        Args:
            sync: syncs, with the lock held; False: there is nothing to wait for.
        """
        while not is_done():
            if self._is_syncing and self._wait():
                continue
            with self._lock:
                try:
                    self._is_syncing = True
                    # A thread that waited for the lock may find its sync done.
                    if not is_done() and not sync():
                        return
                finally:
                    self._is_syncing = False
                    self.turn.set()

    def _wait(self) -> bool:
        """Wait until the sync of another thread is over; False if that takes long: an
        interrupt may have ended it before it could signal its end."""
        waiter = self.turn.register()
        if not self._is_syncing:
            waiter.cancel()
            return True
        return waiter.wait(_TURN_S)
