"""The state of an open store, which files in its root record for all of its logs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from logstore import _native as native
from logstore._native.locks import RANK_OWNERSHIP, logger
from logstore.errors import CorruptCheckpointError, StorageError, storage_errors
from logstore.io import layout
from logstore.io.checkpoint.cleaner import CompactedOffsets
from logstore.io.checkpoint.ownership import Ownership, OwnershipKey
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.scheduler import Scheduler, weakly

__all__ = ["StoreState", "TopicsOfState"]

# Delay before Kafka's checkpoint of start offsets is written again.
_STARTS_MS: Final = 1000


class TopicsOfState(Protocol):
    """The topics of a store, for its state."""

    def before_first_change(self, is_deletion: bool) -> None:
        """Remove the clean-shutdown markers. Raises: as `StoreState.begin_writing`."""

    def starts(self) -> Mapping[TopicPartition, int]:
        """The start offsets that lie inside a segment."""

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, is_empty: bool
    ) -> None:
        """Record which topic and which log a partition's directory has. Raises:
        `OSError`."""

    def before_cut(self, key: TopicPartition, offset: int) -> None:
        """Let the journal of publications forget the end of a log. Raises:
        `LogStoreError`."""


class StoreState:
    """The last writer of a store, and the values of Kafka's checkpoints.

    Attributes:
        ownership: the last writer and how it stopped.
        lock: guards `ownership` and the checkpoints. Threads that hold the lock of a
            partition take it. They must not take the lock of the store, whose holder
            may be waiting for that partition.
        compacted: how far each log is compacted.
        topics: of the store; set once, before the first log is loaded.

    Invariant: nothing in the store is changed while the files say that it was closed
    cleanly (`begin_writing`).
    """

    topics: TopicsOfState

    def __init__(
        self,
        root: Directory,
        scheduler: Scheduler,
        is_closed: Callable[[], bool],
        lock_group: int,
    ) -> None:
        self._root = root
        self._scheduler = scheduler
        self._is_closed = is_closed
        name = f"the ownership of store {root.path}"
        self.lock = native.Mutex(RANK_OWNERSHIP, name, lock_group)
        self.ownership = Ownership(root)
        self.compacted = CompactedOffsets(root, self.lock)
        self._seen: tuple[object, Ownership] = (None, self.ownership)
        self._has_named_producers: bool | None = None
        self._starts_scheduled = False

    def ownership_now(self, cache_key: OwnershipKey | None = None) -> Ownership:
        """Read-only: the current ownership, read again if a file has changed. The
        caller must not change it: other threads may be using it for other partitions.

        Args:
            cache_key: of the ownership, if it was taken just now: the result is from
                then or later. None: it is taken here.
        """
        cache_key = cache_key or self.ownership.cache_key()
        cached_key, ownership = self._seen
        if cache_key != cached_key:
            ownership = Ownership(self._root)
            ownership.read(lambda action: None)
            self._seen = cache_key, ownership
        return ownership

    def begin_writing(self, *, is_deletion: bool = False) -> None:
        """Remove the clean-shutdown markers, durably, before the first change. From
        then on a thread runs the tasks that are due later.

        Args:
            is_deletion: it makes room on the disk.

        Raises:
            LogStoreError: they cannot be removed; or, but for a deletion, the damage
                of a partition, which is known from them, cannot be recorded.
        """
        if self._begin(is_deletion) or self.ownership.is_recorded or is_deletion:
            return
        # The disk was full then. As long as the owner file is missing, the next opening
        # takes the tail of a log for that of another program.
        with self.lock, contextlib.suppress(OSError, CorruptCheckpointError):
            self.ownership.record()

    def _begin(self, is_deletion: bool) -> bool:
        """Whether this is the first change, before which the markers were removed."""
        is_first = not self.ownership.is_writing
        if is_first:
            self._scheduler.start()
            self.topics.before_first_change(is_deletion)
        return is_first

    def begin_publishing(self) -> None:
        """Do `begin_writing`, and see that the store has its owner file: without it no
        other process hides an unfinished publication, and no opening undoes one.

        Raises:
            StorageError: it cannot be written: DiskFullError.
        """
        self._begin(is_deletion=False)
        if not self.ownership.is_recorded:
            with (
                self.lock,
                storage_errors("write", self._root.path, "Nothing was published."),
            ):
                self.ownership.record()

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, *, is_empty: bool
    ) -> None:
        """Before the first append to a partition: record which topic and which log its
        directory has.

        Args:
            is_empty: its first segment is created next, durably.

        Raises:
            StorageError: it cannot be written; then nothing may be appended.
        """
        path = directory.path_of(layout.TOPIC_IDENTITY)
        with storage_errors("write", path, "Nothing was written."):
            self.topics.identify(key, directory, log_id, is_empty)

    @property
    def has_named_producers(self) -> bool:
        """Whether the store has the file of named producers, or had it."""
        if self._has_named_producers is None:
            try:
                has_file = self._root.exists(layout.PRODUCERS)
            except OSError:
                has_file = True  # the state of a log then needs more reading
            self._has_named_producers = has_file
        return self._has_named_producers

    @has_named_producers.setter
    def has_named_producers(self, value: bool) -> None:
        self._has_named_producers = value

    def before_cut(self, key: TopicPartition, offset: int) -> None:
        """Before a log is cut at an offset, and may lose published records.

        Raises:
            LogStoreError: nothing may be cut.
        """
        self.topics.before_cut(key, offset)

    def start_moved(self) -> None:
        """The start of a log lies inside a segment now: update Kafka's
        log-start-offset-checkpoint soon, once for all partitions that move meanwhile,
        as a broker does. logstore's own state has the start offset."""
        if not self._starts_scheduled:
            with contextlib.suppress(StorageError):
                # A task that is due later does not keep the store open.
                self._scheduler.call_later(_STARTS_MS, weakly(self._write_starts))
                self._starts_scheduled = True

    def record_start(self, key: TopicPartition, offset: int) -> None:
        """Record a start offset in Kafka's checkpoint, durably: nothing else has it.

        Raises:
            OSError: as raised by the system.
        """
        with self.lock:
            self.ownership.write_starts({**self.topics.starts(), key: offset})

    def _write_starts(self) -> None:
        self._starts_scheduled = False
        with self.lock:
            if self._is_closed():
                return
            try:
                self.ownership.write_starts(self.topics.starts())
            except OSError as error:
                logger.warning(
                    "cannot write %s: %s; logstore's own state has the start offset",
                    layout.LOG_START_CHECKPOINT,
                    error,
                )
