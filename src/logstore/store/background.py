"""Periodic work of a store in the background: retention, compaction.

Each has its own thread if a topic asks for it: it may examine many files, or a log that
has to be recovered first, and the syncs that are due do not wait for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from logstore._native.locks import logger
from logstore.errors import (
    ForkedError,
    LogStoreError,
    PartitionNotFoundError,
    StorageError,
    StoreClosedError,
    TopicNotFoundError,
    renamed_error,
)
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.io.scheduler import Scheduler, weakly

__all__ = ["BackgroundRounds"]

# Delay before the first round, as in Kafka's broker.
_FIRST_MS: Final = 30_000
# The partition was removed, or its store closed: nothing is left to delete.
_REMOVED_ERRORS: Final = (
    StoreClosedError,
    TopicNotFoundError,
    PartitionNotFoundError,
    ForkedError,
)


class BackgroundRounds:
    """Works on partitions, one after the other and periodically, and keeps
    a failure until it is raised to a caller. Any thread may call it.

    Args:
        what: the name of the work, for messages: "retention".
        partitions: returns the partitions to work on.
        act: does the work on one. Raises: `LogStoreError`.
        check_ms: how often; 0: never.
        unreported: keeps a failure.
    """

    def __init__(
        self,
        what: str,
        partitions: Callable[[], list[TopicPartition]],
        act: Callable[[str, int], None],
        files: Files,
        name: str,
        check_ms: int,
        unreported: deque[LogStoreError],
    ) -> None:
        self._what = what
        self._partitions = partitions
        self._act = act
        self._check_ms = check_ms
        self._name = name
        self._keeper = Scheduler(files, f"the {what} of {name}")
        self._has_begun = False
        # Partitions left in this round.
        self._pending: deque[TopicPartition] = deque()
        # The errors of the last round, by partition: each is raised once, not in each
        # round.
        self._met: dict[TopicPartition | None, str] = {}
        self._unreported = unreported

    def begin(self) -> None:
        """Begin, if a topic asks for it. Never raises."""
        if self._has_begun or not self._check_ms or not self._partitions():
            return
        try:
            self._schedule(min(_FIRST_MS, self._check_ms))
            self._has_begun = True
        except StorageError as error:
            # No thread can be started: the next change tries again.
            self._failed(None, error)

    def stop(self) -> None:
        """Stop after the current partition. May be called again."""
        self._keeper.stop()

    def abandon(self) -> None:
        """After a fork, in the child."""
        self._keeper.abandon()

    def raise_failure(self) -> None:
        """Raise the failure in the background, unless it was raised already."""
        if self._unreported:
            try:
                failure = self._unreported.popleft()
            except IndexError:  # another thread has just taken it
                return
            raise failure

    def _schedule(self, delay_ms: int) -> None:
        # A task that is due in five minutes does not keep the store alive.
        self._keeper.call_later(delay_ms, weakly(self._run))

    def _run(self) -> None:
        """Process one partition; then schedule the next one, or the next round."""
        if not self._pending:
            self._pending.extend(self._partitions())
        key = self._pending[0] if self._pending else None
        try:
            if key is not None:
                self._apply(key)
        except (MemoryError, RecursionError):
            raise  # the thread runs this task again
        except BaseException:
            self._next(key)
            raise
        self._next(key)

    def _next(self, key: TopicPartition | None) -> None:
        if key is not None:
            self._pending.popleft()
        self._schedule(0 if self._pending else self._check_ms)

    def _apply(self, key: TopicPartition) -> None:
        try:
            self._act(*key)
            self._met.pop(key, None)
        except _REMOVED_ERRORS:
            self._met.pop(key, None)
        except LogStoreError as error:
            self._failed(key, error)

    def _failed(self, key: TopicPartition | None, error: LogStoreError) -> None:
        what = self._name if key is None else f"{key[0]}-{key[1]}"
        logger.warning("the %s of %s failed: %s", self._what, what, error)
        if self._met.get(key) != str(error):
            self._met[key] = str(error)
            self._unreported.append(
                renamed_error(error, f"in the background, the {self._what} of {what}")
            )
