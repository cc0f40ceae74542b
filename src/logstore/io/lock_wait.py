"""Waiting for the lock of a store.

A process that wants to own the store waits until the lock is free. If its holder has it
for a moment only (it carries out what is handed in), the waiter locks byte 0 of
`.logstore-lock`: the holder then gives the lock back, and processes that take the lock
for a moment let the waiter go first. So an owner that restarts comes back, however many
other processes publish meanwhile. A process that waits for an owner does not lock that
byte: there may be a holder for a moment after it, so the waiter looks again now and
then.
"""

from __future__ import annotations

import os
import time
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import StoreLockedError
from logstore.io.directory import Directory
from logstore.io.layout import LOCK
from logstore.io.lock import StoreLock, writer_of
from logstore.io.lock_record import (
    KEEPING,
    TAKING,
    LockRecord,
    Purpose,
    state_of,
)
from logstore.io.wakeups import Wakeups, Watch

__all__ = ["let_waiter_first", "take_lock"]

# For these a call waits in their own process, too.
_PASSING: Final = (KEEPING, TAKING)
# How often a waiter looks by itself. After a report it looks sooner, a few times: the
# lock falls a moment after its file was closed.
_LOOK_S: Final = 0.1
_SOON_S: Final = 0.002
_SOON_LOOKS: Final = 5
# A waiter that is stopped, or dead, delays a holder once, by so long.
_YIELD_S: Final = 0.2
_YIELD_LOOK_S: Final = 0.001
# A longer wait is logged, once.
_TOLD_S: Final = 1.0


def take_lock(root: Directory, purpose: Purpose) -> StoreLock:
    """Take the lock of a store, and wait for it, at most ``purpose.timeout_ms``.

    Raises:
        StoreLockedError: another process has it, or this one, for which no call waits.
        StorageError: the system refuses.
    """
    begun = time.monotonic()
    if purpose.doing == KEEPING:
        let_waiter_first(root)
    try:
        return StoreLock(root, purpose)
    except StoreLockedError as error:
        if not purpose.timeout_ms or _is_own(error):
            raise
        waiter = _Waiter(root, purpose, begun, error)
    try:
        return waiter.run()
    finally:
        waiter.close()


def _is_own(error: StoreLockedError) -> bool:
    """Whether the holder is in this process, and keeps the lock until it is closed."""
    is_passing = error.holder is not None and error.holder.doing in _PASSING
    return error.holder_pid == os.getpid() and not is_passing


def let_waiter_first(root: Directory) -> None:
    """Before the lock is taken for a moment: if a process waits to own the store, leave
    the lock to it, but wait for that no longer than 200 ms."""
    deadline = time.monotonic() + _YIELD_S
    while state_of(root).is_awaited and time.monotonic() < deadline:
        if writer_of(root) is not None:
            return
        time.sleep(_YIELD_LOOK_S)


class _Waiter:
    """One call that waits for the lock."""

    def __init__(
        self, root: Directory, purpose: Purpose, begun: float, error: StoreLockedError
    ) -> None:
        self._root = root
        self._purpose = purpose
        self._begun = begun
        self._deadline = begun + purpose.timeout_ms / 1000
        self._error = error
        self._is_told = False
        self._record = LockRecord(root)
        self._wakeups = Wakeups(
            root.files, watches=[Watch(root, native.WATCH_CLOSES, LOCK)]
        )

    def run(self) -> StoreLock:
        """Wait until the lock is taken, or the time is over."""
        soon = 0
        while True:
            self._ask()
            now = time.monotonic()
            self._tell(now)
            pause = _SOON_S if soon else _LOOK_S
            soon = max(soon - 1, 0)
            if self._wakeups.wait(min(pause, max(self._deadline - now, 0.0))):
                self._wakeups.take()
                soon = soon or _SOON_LOOKS
            is_last = time.monotonic() >= self._deadline
            # An attempt wakes all others that wait, so each looks first.
            if not is_last and writer_of(self._root) is not None:
                continue
            try:
                return StoreLock(self._root, self._purpose)
            except StoreLockedError as error:
                self._error = error
                if is_last:
                    raise self._too_late() from None
                if _is_own(error):
                    raise

    def _ask(self) -> None:
        """Ask a holder that has the lock for a moment to give it back."""
        holder = self._record.state().holder
        if holder is not None and holder.doing == KEEPING:
            self._record.wait_for_lock()
        else:
            self._record.end_wait()

    def _tell(self, now: float) -> None:
        if not self._is_told and now - self._begun >= _TOLD_S:
            self._is_told = True
            seconds = self._purpose.timeout_ms / 1000
            logger.warning("%s; waiting for it for %g s", self._error, seconds)

    def _too_late(self) -> StoreLockedError:
        error = self._error
        return StoreLockedError(
            f"{error.args[0]} (waited for {self._purpose.timeout_ms} ms)",
            path=error.path,
            holder_pid=error.holder_pid,
            opened_at=error.opened_at,
            holder=error.holder,
        )

    def close(self) -> None:
        self._record.close()
        self._wakeups.close()
