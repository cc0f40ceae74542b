"""When the steps of a compaction of a log may begin."""

from __future__ import annotations

import threading

from logstore import _native as native
from logstore._native.locks import RANK_COMPACT
from logstore.errors import LogStoreError, again

__all__ = ["CompactionGate", "UnderWay"]


class UnderWay:
    """One compaction; no other one is equal to it.

    Attributes:
        thread: the identifier of the thread that does it.
    """

    __slots__ = ("thread",)

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class CompactionGate:
    """Orders the steps of a compaction with the close of its log. Appends continue
    meanwhile.

    Invariant: each step holds `lock`, and none begins after `stop` has returned.

    Attributes:
        lock: held during a step.
        under_way: the compaction of the log; None: the log is not being compacted.
    """

    __slots__ = ("_stopped", "_suspended", "lock", "under_way")

    def __init__(self, name: str, group: int) -> None:
        self.lock = native.Mutex(RANK_COMPACT, f"a compaction of {name}", group)
        self.under_way: UnderWay | None = None
        self._stopped: LogStoreError | None = None
        self._suspended: LogStoreError | None = None

    def stop(self, reason: LogStoreError) -> None:
        """Prevent further steps: they raise `reason`. Returns when no step is
        running."""
        self._stopped = self._stopped or reason
        with self.lock:
            pass

    def suspend(self, reason: LogStoreError) -> None:
        """Let no other step begin until `resume`. A compaction that is under way
        ends."""
        self._suspended = reason
        with self.lock:
            pass

    def resume(self) -> None:
        """Undo `suspend`."""
        self._suspended = None

    def check(self) -> None:
        """Raise the reason why a step must not begin. The caller holds the lock."""
        reason = self._stopped or self._suspended
        if reason is not None:
            raise again(reason)
