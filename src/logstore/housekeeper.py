"""The one background thread of a store: syncs that are due, files that may go.

Started at the first append (or deletion), not before; ended by `stop`. A daemon, so
that a program that forgets to close a store can still end: what is lost then is what
the flush policy allows to be lost.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import Final

from sortedcontainers import SortedKeyList

from logstore._files import Directory, Files

__all__ = ["Housekeeper"]

logger = logging.getLogger("logstore")

_IDLE_S: Final = 60.0

_Task = tuple[float, int, Callable[[], None]]


class Housekeeper:
    """Runs tasks when they are due. Methods may be called by any thread.

    Attributes:
        waiting_bytes: of the files that wait to be removed.
    """

    def __init__(self, files: Files, name: str) -> None:
        self.files = files
        self.name = name
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._tasks: SortedKeyList[_Task, tuple[float, int]] = SortedKeyList(
            key=lambda task: task[:2]
        )
        self._count = 0
        self._thread: threading.Thread | None = None
        self._stopped = False
        self.waiting_bytes = 0

    def later(self, delay_ms: int, task: Callable[[], None]) -> None:
        """Run `task` after `delay_ms`, unless stopped before."""
        due = self.files.monotonic() + delay_ms / 1000
        with self._lock:
            if self._stopped:
                return
            self._count += 1
            first = not self._tasks or due < self._tasks[0][0]
            self._tasks.add((due, self._count, task))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name=f"logstore {self.name}", daemon=True
                )
                self._thread.start()
        if first:
            self._wake.set()

    def unlink_later(
        self, directory: Directory, names: list[str], delay_ms: int
    ) -> None:
        """Remove files when the delay is over."""
        size = 0
        for name in names:
            with contextlib.suppress(OSError):
                size += directory.stat(name).size
        with self._lock:
            self.waiting_bytes += size

        def unlink() -> None:
            for name in names:
                with contextlib.suppress(OSError):
                    directory.unlink(name, missing_ok=True)
            with self._lock:
                self.waiting_bytes -= size

        if delay_ms == 0:
            unlink()
        else:
            self.later(delay_ms, unlink)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._stopped:
                    return
                now = self.files.monotonic()
                task: _Task | None = None
                wait = _IDLE_S
                if self._tasks:
                    wait = min(self._tasks[0][0] - now, _IDLE_S)
                    if wait <= 0:
                        task = self._tasks.pop(0)
                self._wake.clear()
            if task is None:
                self.files.wait(self._wake, wait)
                continue
            try:
                task[2]()
            except Exception:
                logger.exception("a background task of %s failed", self.name)

    def stop(self) -> None:
        """End the thread; tasks that are not due yet are dropped."""
        with self._lock:
            self._stopped = True
            self._tasks.clear()
            thread = self._thread
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def abandon(self) -> None:
        """After a fork, in the child: the thread is not there any more."""
        self._stopped = True
        self._thread = None
