"""What the parts of an open store share: its directory, its locks, its ownership, open
files, and the thread for what is due later.

`Store` makes one and hands it down. The writers of its partitions need nothing else of
it (`logstore.log.write.context.Host`), and nobody outside the package sees it.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_OWNERSHIP, RANK_STORE, logger, new_group
from logstore.config import StoreConfig
from logstore.errors import (
    ForkedError,
    LogStoreError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    storage_error,
    storage_errors,
)
from logstore.io import layout
from logstore.io.checkpoint.cleaner import CleanerCheckpoint
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.recovery_report import RecoveryAction
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import check_is_store, prepare_root
from logstore.io.layout import TopicPartition
from logstore.io.lock import StoreLock
from logstore.io.scheduler import Scheduler, weakly
from logstore.io.stamps import FileStamp

__all__ = ["StoreContext"]

# Delay before Kafka's checkpoint of start offsets is written again.
_STARTS_MS: Final = 1000

# Records which topic and which log a partition's directory has.
_Identify = Callable[[TopicPartition, Directory, str, bool], None]
_BeforeCut = Callable[[TopicPartition, int], None]
_BeforeFirstChange = Callable[[bool], None]


class StoreContext:
    """The shared parts of one store.

    Attributes:
        store: whose they are: it stays open as long as one of its parts is used.
        path: absolute path of its directory.
        read_only: whether it was opened so.
        store_config: the `StoreConfig` it was opened with.
        files: the system calls to use.
        root: its directory.
        lock_group: of all its locks.
        lock: held by a thread that changes topics, or loads partitions.
        ownership: who wrote last and how that writer stopped.
        ownership_lock: guards `ownership`. Threads that hold the lock of a partition
            take it. They must not take `lock`, whose holder may be waiting for that
            partition.
        descriptors: of all open files.
        scheduler: runs what is due later.
        is_closed: whether nothing may begin any more.
        unreported: what failed in the background; the next call raises it.
    """

    def __init__(
        self,
        store: object,
        path: str,
        *,
        read_only: bool,
        create: bool,
        config: StoreConfig,
        files: Files,
    ) -> None:
        self.store = store
        self.path = path
        self.read_only = read_only
        self.store_config = config
        self.files = files
        group = self.lock_group = new_group()
        self.lock = native.Mutex(RANK_STORE, f"store {path}", group)
        self.ownership_lock = native.Mutex(
            RANK_OWNERSHIP, f"the ownership of store {path}", group
        )
        self.is_closed = False
        self._has_named_producers: bool | None = None
        self.unreported: deque[LogStoreError] = deque(maxlen=1)
        self._forks = native.forks()
        self._starts_scheduled = False
        self._store_lock: StoreLock | None = None
        self.root = self._open_root(create)
        self.ownership = Ownership(self.root)
        self._cleaner = CleanerCheckpoint(self.root)
        self._seen: tuple[object, Ownership] = (None, self.ownership)
        self.descriptors = Descriptors(files, _open_files_max(config, files), group)
        self.scheduler = Scheduler(files, os.path.basename(path))
        self._before_first_change: _BeforeFirstChange = _do_nothing
        self._starts: Callable[[], Mapping[TopicPartition, int]] = dict
        self._identify: _Identify = _identify
        self._before_cut: _BeforeCut = _before_cut

    def attach(
        self,
        before_first_change: _BeforeFirstChange,
        starts: Callable[[], Mapping[TopicPartition, int]],
        identify: _Identify,
        before_cut: _BeforeCut,
    ) -> None:
        """Set what the topics do here.

        Args:
            before_first_change: removes the clean-shutdown markers, for a deletion or
                for something else.
            starts: returns the start offsets that lie inside a segment.
            identify: records which topic a partition's directory belongs to.
            before_cut: lets the journal of publications forget the end of a log.
        """
        self._before_cut = before_cut
        self._identify = identify
        self._before_first_change = before_first_change
        self._starts = starts

    def _open_root(self, create: bool) -> Directory:
        try:
            is_new = create and self.files.make_root(self.path)
            root = Directory.open_root(self.files, self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"there is no store at {self.path}", path=self.path
            ) from error
        except OSError as error:
            raise storage_error(error, "open", self.path) from error
        try:
            check_is_store(root, must_exist=self.read_only)
            if not self.read_only:
                prepare_root(root, self.store_config, is_new=bool(is_new))
        except BaseException:
            root.close()
            raise
        return root

    # ------------------------------------------------------------ the writer's lock

    def take_lock(self) -> None:
        """Take the writer's lock. An unclosed store in a reference cycle keeps it until
        the garbage collector finds that store, so the collector is run once.

        Raises:
            StoreLockedError: another writer has it.
        """
        try:
            self._store_lock = StoreLock(self.root)
            return
        except StoreLockedError as error:
            if error.holder_pid != os.getpid():
                raise
        gc.collect()
        self._store_lock = StoreLock(self.root)

    @property
    def has_lock(self) -> bool:
        return self._store_lock is not None

    @property
    def opened_at(self) -> str:
        """Where in the program the lock was taken; "" if that is not known."""
        return "" if self._store_lock is None else self._store_lock.opened_at

    def lock_taken_by(self) -> int | None:
        return None if self._store_lock is None else self._store_lock.hold()

    @property
    def lock_file(self) -> native.OpenFile | None:
        """The file that this program has locked."""
        return None if self._store_lock is None else self._store_lock.file

    def owner_stamp(self) -> FileStamp | None:
        """A value that is another one for each owner of the store; None: unknown."""
        return self.ownership.writer()

    def let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self.descriptors.close()
        if self._store_lock is not None:
            self._store_lock.release()
        self.root.close()

    # ------------------------------------------------------------ guards

    def check_open(self) -> None:
        """Raise unless the store can be used here and now."""
        if self.is_closed:
            raise StoreClosedError(f"store {self.path} is closed")
        if native.forks() != self._forks:
            raise ForkedError(
                f"store {self.path} was opened before a fork; open it in the child"
            )

    @property
    def is_forked(self) -> bool:
        """Whether this is the child of a fork, and the store belongs to its parent."""
        return native.forks() != self._forks

    def after_fork(self) -> None:
        """In the child of a fork."""
        self.scheduler.abandon()
        if self._store_lock is not None:
            # The parent's lock must not stay held here when the parent has released it.
            self._store_lock.abandon()

    # ------------------------------------------------------------ ownership

    @property
    def store_epoch(self) -> str:
        return self.ownership.store_epoch

    def ownership_now(self) -> Ownership:
        """Read-only: the ownership as it is, read again if a file has changed. The
        caller must not change them: other threads may be using them for other
        partitions."""
        cache_key = self.ownership.cache_key()
        cached_key, ownership = self._seen
        if cache_key != cached_key:
            ownership = Ownership(self.root)
            ownership.read(_ignore)
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
        if not self.ownership.is_writing:
            self.scheduler.start()
            self._before_first_change(is_deletion)

    def identify(
        self,
        topic: str,
        partition: int,
        directory: Directory,
        log_id: str,
        *,
        is_empty: bool,
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
            key = TopicPartition(topic, partition)
            self._identify(key, directory, log_id, is_empty)

    def begin_publishing(self) -> None:
        """Do `begin_writing`, and see that the store has its owner file: without it no
        other process hides an unfinished publication, and no opening undoes one.

        Raises:
            StorageError: it cannot be written: DiskFullError.
        """
        self.begin_writing()
        if not self.ownership.is_recorded:
            with (
                self.ownership_lock,
                storage_errors("write", self.path, "Nothing was published."),
            ):
                self.ownership.record()

    @property
    def has_named_producers(self) -> bool:
        """Whether the store has the file of named producers, or had it."""
        if self._has_named_producers is None:
            try:
                found = self.root.exists(layout.PRODUCERS)
            except OSError:
                found = True  # the state of a log then needs more reading
            self._has_named_producers = found
        return self._has_named_producers

    @has_named_producers.setter
    def has_named_producers(self, value: bool) -> None:
        self._has_named_producers = value

    # ------------------------------------------------------------ later

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        # A task that is due in a year does not keep its object alive.
        self.scheduler.call_later(delay_ms, weakly(task))

    def waiting_bytes(self) -> int:
        return self.scheduler.waiting_bytes

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        self.scheduler.unlink_later(directory, names, delay_ms, users)

    def start_moved(self, topic: str, partition: int) -> None:
        """Update Kafka's log-start-offset-checkpoint: soon, once for all partitions
        that move meanwhile, as a broker does. logstore's own state has the start
        offset."""
        if not self._starts_scheduled:
            with contextlib.suppress(StorageError):
                self.call_later(self._write_starts, _STARTS_MS)
                self._starts_scheduled = True

    def before_cut(self, topic: str, partition: int, offset: int) -> None:
        self._before_cut(TopicPartition(topic, partition), offset)

    def record_start(self, topic: str, partition: int, offset: int) -> None:
        key = TopicPartition(topic, partition)
        with self.ownership_lock:
            self.ownership.write_starts({**self._starts(), key: offset})

    def compacted_upto(self, topic: str, partition: int) -> int | None:
        """The offset up to which a partition is compacted; None: it never was.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        with self.ownership_lock, storage_errors("read", self._cleaner_path):
            return self._cleaner.read().get(TopicPartition(topic, partition))

    def all_compacted(self) -> dict[TopicPartition, int]:
        """The same of all partitions. Raises: as `compacted_upto`."""
        with self.ownership_lock, storage_errors("read", self._cleaner_path):
            return self._cleaner.read()

    def record_compacted(self, topic: str, partition: int, offset: int) -> None:
        """Record it, also for a broker.

        Raises:
            StorageError: the checkpoint cannot be written: it is compacted again.
        """
        with self.ownership_lock, storage_errors("write", self._cleaner_path):
            self._cleaner.set(TopicPartition(topic, partition), offset)

    def lower_compacted(self, topic: str, partition: int, offset: int) -> None:
        with self.ownership_lock, storage_errors("write", self._cleaner_path):
            self._cleaner.lower(TopicPartition(topic, partition), offset)

    def forget_compacted(self, keys: Iterable[TopicPartition]) -> None:
        """Partitions are deleted: others of their names begin anew. Raises: as
        `record_compacted`."""
        with self.ownership_lock, storage_errors("write", self._cleaner_path):
            self._cleaner.forget(keys)

    @property
    def _cleaner_path(self) -> str:
        return self.root.path_of(layout.CLEANER_CHECKPOINT)

    def _write_starts(self) -> None:
        self._starts_scheduled = False
        with self.ownership_lock:
            if self.is_closed:
                return
            try:
                self.ownership.write_starts(self._starts())
            except OSError as error:
                logger.warning(
                    "cannot write %s: %s; logstore's own state has the start offset",
                    layout.LOG_START_CHECKPOINT,
                    error,
                )


def _do_nothing(is_deletion: bool) -> None:
    """Until `attach`."""


def _identify(
    key: TopicPartition, directory: Directory, log_id: str, is_empty: bool
) -> None:
    """Until `attach`."""


def _before_cut(key: TopicPartition, offset: int) -> None:
    """Until `attach`."""


def _ignore(action: RecoveryAction) -> None:
    """For loads whose actions are not needed."""


def _open_files_max(config: StoreConfig, files: Files) -> int:
    """`max_open_files`, but at most three quarters of what the process may have."""
    limit = files.resource_limits()[0]
    if limit is None:
        return config.max_open_files
    return max(min(config.max_open_files, limit * 3 // 4), 8)
