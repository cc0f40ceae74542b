"""A store: a directory of partitions, the same thing as one Kafka log directory.

These files are kept next to Kafka's (docs/format.md, "logstore's own files"):
`.logstore-owner` records whether the last writer was logstore, and whether it closed
cleanly; `.logstore-topics` has the settings of topics.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import operator
import os
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn

from logstore import _native as native
from logstore._native.locks import RANK_CLOSE, logger
from logstore.config import StoreConfig, TopicConfig, check_kind
from logstore.errors import (
    ConfigError,
    DiskFullError,
    LogStoreError,
    StoreClosedError,
    TopicNotFoundError,
    storage_error,
    storage_errors,
)
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Publications
from logstore.io.checkpoint.recovery_report import RecoveryAction, RecoveryReport
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.io.lock import forget_locks
from logstore.log.compact.compactor import CompactionProgress, CompactionReport
from logstore.record.arguments import refuse_pickling
from logstore.record.partitioner import Partitioner
from logstore.store.context import StoreContext
from logstore.store.copy.copies import adopt_copy, mark_unknown, settle_copy
from logstore.store.copy.snapshot import (
    SnapshotProgress,
    SnapshotReport,
    SnapshotTarget,
    make_snapshot,
)
from logstore.store.copy.snapshot_requests import SnapshotServer, snapshot_elsewhere
from logstore.store.measures import store_row
from logstore.store.partition.partitions import RecoveryProgress
from logstore.store.publication.hand_in import HandIn
from logstore.store.publication.producer import NamedProducers, Producer
from logstore.store.publication.publication import Publication, PublicationRequest
from logstore.store.publication.publisher import Publisher
from logstore.store.publication.publishing import PublishingStore
from logstore.store.topic.open_topics import OpenTopics
from logstore.store.topic.topic import Topic
from logstore.store.topic.topic_changes import TopicChanges

__all__ = ["Store", "open_store", "publication_key"]

_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    config: StoreConfig | None = None,
    on_recovery: Callable[[RecoveryAction], None] | None = None,
    on_progress: Callable[[RecoveryProgress], None] | None = None,
    files: Files | None = None,
) -> Store:
    """Open a store.

    A partition is examined, and repaired if necessary, when it is first used.
    `Store.recover` does this for all of them, and so does this call if one of the
    callbacks is given.

    Args:
        path: its directory; a Kafka log directory is one.
        read_only: change nothing, take no lock; any number of processes may open it so,
            also while a writer or a broker works on it.
        create: make the directory if it is not there (never with `read_only`).
        config: how this process uses it.
        on_recovery: called with each action of the recovery as it happens.
        on_progress: called with a `RecoveryProgress` now and then.
        files: the system calls to use (for tests).

    Raises:
        StoreNotFoundError: the directory does not exist and is not to be created; or it
            is the directory of a partition, or, with `read_only`, contains nothing of a
            log.
        StoreLockedError: another writer has it.
        UnsupportedError: a later version of logstore has written to it.
        ConfigError: other users may change the directory, or it is on a network file
            system, and `config` does not allow that (never with `read_only`).
        StorageError: the system refuses.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"path is {type(path).__name__}, not a str or os.PathLike")
    if config is not None:
        check_kind("config", config, StoreConfig)
    return Store(
        os.path.abspath(os.fspath(path)),
        read_only=read_only,
        create=create and not read_only,
        config=config or StoreConfig(),
        on_recovery=on_recovery,
        on_progress=on_progress,
        files=files or Files(),
    )


class Store(PublishingStore):
    """An open store; a context manager. Made by `logstore.open`.

    Attributes:
        path: absolute path of its directory.
        read_only: whether it was opened so.
        config: the `StoreConfig` it was opened with.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        create: bool,
        config: StoreConfig,
        on_recovery: Callable[[RecoveryAction], None] | None,
        on_progress: Callable[[RecoveryProgress], None] | None,
        files: Files,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.config = config
        # Whether closing is complete.
        self._is_finished = True
        # The first error of closing so far: closing may be interrupted, and continue.
        self._failure: LogStoreError | None = None
        context = self._context = StoreContext(
            self, path, read_only=read_only, create=create, config=config, files=files
        )
        group = context.lock_group
        self._close_lock = native.Mutex(RANK_CLOSE, f"the close of store {path}", group)
        self._publications = Publications(context.root)
        journal = PublicationJournal(
            context.root, context.ownership, self._publications, group
        )
        self._topics = OpenTopics(context, self._publications)
        self._changes = TopicChanges(context, self._topics, journal)
        self._topics.changes = self._changes
        self._topics.writers.on_recovery = on_recovery
        self._publisher = Publisher(
            context.root,
            context.ownership,
            self._publications,
            journal,
            config,
            self._topics.writer_of,
            self._topics.topic_id,
            context.begin_publishing,
            group,
        )
        self._producers = NamedProducers(context, self._topics.now)
        self._hand_in = HandIn(context.root, self._publisher)
        self._snapshots = SnapshotServer(context, self._topics, self._publisher)
        self._watches = deque()
        _open_stores.add(self)
        self._is_finished = False
        # Only from the end of opening, with the lock, to that of closing: the rest of
        # an opening or a closing that was interrupted must not touch the files, which
        # may be another writer's by then.
        self._may_write = False
        try:
            if not read_only:
                context.take_lock()
            self._load()
            if not read_only and (on_recovery or on_progress):
                self._topics.writers.recover(on_progress)
            if not read_only:
                adopt_copy(context, self._topics, self._publisher)
                self._topics.begin_rounds()
                self._snapshots.start()
                if config.publish_for_others:
                    self._hand_in.start()
            self._may_write = not read_only
        except BaseException:
            context.is_closed = True
            self._snapshots.stop()
            self._hand_in.stop()
            self._topics.stop_rounds(StoreClosedError(f"store {path} is closed"))
            context.scheduler.stop()
            self._let_go()
            raise

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else "read-write"
        return f"<logstore.Store {self.path} ({mode})>"

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, self.path)

    def __getitem__(self, name: str) -> Topic:
        """As `topic`."""
        return self.topic(name)

    def __contains__(self, name: object) -> bool:
        """Whether there is a topic of this name."""
        return isinstance(name, str) and name in self.topics()

    def __iter__(self) -> Iterator[Topic]:
        """The topics, sorted by name."""
        return iter([self._topics.find(name) for name in self.topics()])

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        """Close a store that was not closed: appended records are synced, as by
        `close`, and the lock is released."""
        if getattr(self, "_is_finished", True) or self._context.is_forked:
            return
        try:
            self._warn_unclosed()
        finally:
            # The collector may run at any place, also while this thread holds a lock.
            native.defer(self._close_forgotten)

    def _warn_unclosed(self) -> None:
        if self._context.has_lock:
            where = self._context.opened_at
            opened = f", opened at {where}," if where else ""
            text = f"{self!r}{opened} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _close_forgotten(self) -> None:
        try:
            self.close()
        except (LogStoreError, OSError) as error:
            logger.error("store %s was not closed, and cannot be: %s", self.path, error)
        except BaseException:
            # A finalizer reports an interrupt to no caller: continue from the
            # interruption.
            self.close()
            raise

    def _load(self) -> None:
        with storage_errors("read", self.path):
            for action in self._topics.load(self._context.ownership.read):
                self._topics.writers.record(action)
            if not self.read_only:
                self._topics.catalog.finish_deletions(self._context.root.names())
                ends = self._publications.durable_ends(self._context.ownership)
                self._topics.writers.published |= ends
                mark_unknown(self._context, self._topics, self._publications)
                self._publisher.finish(self._topics.drop_unpublished)

    @property
    def recovery_report(self) -> RecoveryReport:
        """The repairs that opening had to make; false if there were none.

        Reading it completes the recovery: see `recover`.
        """
        if not (self.read_only or self._context.is_closed or self._context.is_forked):
            self.recover()
        return self._report()

    def _report(self) -> RecoveryReport:
        key = operator.attrgetter("topic", "partition")
        return RecoveryReport(tuple(sorted(self._topics.writers.actions, key=key)))

    def recover(
        self, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> RecoveryReport:
        """Examine all partitions, and repair those that need it, now.

        Without it a partition is examined when it is first used. Only data that was not
        known to be durable has to be read. Several partitions are examined at a time
        (``StoreConfig.recovery_threads``); none if all are done already.

        Args:
            on_progress: called in this thread with a `RecoveryProgress`, now and then.

        Returns:
            The repairs since the store was opened, by topic and partition.

        Raises:
            StoreClosedError, ReadOnlyError.
        """
        self._topics.check_writable("recover")
        with self._context.lock:
            self._context.check_open()
            self._topics.writers.recover(on_progress)
            return self._report()

    def compact(
        self,
        *,
        force: bool = False,
        max_memory: int = 64 << 20,
        max_bytes_per_s: int | None = None,
        now_ms: int | None = None,
        dry_run: bool = False,
        on_progress: Callable[[CompactionProgress], None] | None = None,
    ) -> dict[TopicPartition, CompactionReport]:
        """Compact the partitions of all topics whose ``cleanup_policy`` has "compact",
        one after the other; see `Partition.compact`.

        Returns:
            A report for each of them, by topic and partition.

        Raises:
            LogStoreError: that of the first partition for which it failed, raised after
                the others.
        """
        if not dry_run:
            self._topics.check_writable("compact")
        self._topics.begin_call()
        reports: dict[TopicPartition, CompactionReport] = {}
        failure: LogStoreError | None = None
        for key in sorted(self._topics.catalog.compacting()):
            try:
                reports[key] = self._topics.open_partition(*key).compact(
                    force=force,
                    max_memory=max_memory,
                    max_bytes_per_s=max_bytes_per_s,
                    now_ms=now_ms,
                    dry_run=dry_run,
                    on_progress=on_progress,
                )
            except (StoreClosedError, ConfigError):
                raise
            except TopicNotFoundError:
                continue  # it was deleted meanwhile
            except LogStoreError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return reports

    def metrics(self) -> dict[str, Any]:
        """The store and its partitions in numbers, as plain values (docs/metrics.md).

        Cheap: it walks over no log, recovers nothing and waits for no append, sync or
        read. Values that are not known without that are None. `logstore.metrics` writes
        it for Prometheus and OpenTelemetry. With `read_only`, it examines the files
        again.

        Raises:
            StoreClosedError, ForkedError.
            StorageError: the directory cannot be read (with `read_only`).
        """
        self._context.check_open()
        if self.read_only:
            self._topics.rescan()
        free_bytes: int | None = None
        with contextlib.suppress(OSError):
            free_bytes = self._context.root.free_bytes()
        ownership = (
            self._context.ownership_now() if self.read_only else self._context.ownership
        )
        return store_row(
            self.path,
            self._topics.rows(),
            time_ms=self._context.files.now_ms(),
            read_only=self.read_only,
            is_clean=ownership.is_clean and not ownership.is_writing,
            free_bytes=free_bytes,
            waiting_bytes=self._context.waiting_bytes(),
            open_files=len(self._context.descriptors),
        )

    def topics(self) -> list[str]:
        """Names of the topics, sorted."""
        self._topics.begin_call()
        if self.read_only:
            self._topics.rescan()
        return sorted(self._topics.catalog.numbers)

    def topic(self, name: str, *, partitioner: Partitioner | None = None) -> Topic:
        """An existing topic.

        Raises:
            TopicNotFoundError: there is none of this name.
        """
        self._topics.begin_call()
        topic = self._topics.now(name)
        if partitioner is not None:
            topic.partitioner = partitioner
        return topic

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | None = None,
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic, durably.

        Args:
            name: 1 to 249 characters out of ``[A-Za-z0-9._-]``, not ``.`` or ``..``.
            partitions: how many (1 to 1,000,000).
            config: its settings, kept in the store; None:
                ``StoreConfig.topic_defaults``.
            exist_ok: return an existing topic, if it is as requested.

        Raises:
            ConfigError: a bad name or number.
            TopicExistsError: it exists (and differs, with `exist_ok`), or its name
                differs from another's only by ``.`` and ``_``, as in Kafka.
        """
        return self._changes.create(name, partitions, config, exist_ok=exist_ok)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, durably. Its files are removed after
        ``file_delete_delay_ms``.

        Raises:
            TopicNotFoundError: there is none.
        """
        self._changes.delete(name)

    def producer(self, name: str) -> Producer:
        """Take over the producer of a name, durably, for appends that may be repeated.

        It gets another epoch: an earlier `Producer` of the name appends nothing more.

        Args:
            name: 1 to 1000 characters, kept for good.

        Raises:
            ConfigError: the name is invalid.
            CorruptCheckpointError: the file of the names is damaged, and left so.
            ReadOnlyError, StorageError.
        """
        self._topics.check_writable("take over a producer")
        return self._producers.take_over(name)

    def snapshot(
        self,
        path: str | os.PathLike[str],
        *,
        links: bool = True,
        on_progress: Callable[[SnapshotProgress], None] | None = None,
    ) -> SnapshotReport:
        """Make a copy of the store, as it is at one moment, in a new directory: topics,
        records, publications, positions of groups, named producers, and what a Kafka
        broker starts with. Staged records are not in it. It may be in use meanwhile.

        A read-only store takes the writer's lock if it is free. Else the process that
        has it makes the snapshot, and this call waits.

        Args:
            path: the directory; it must not exist, or be empty, and neither be a link
                nor a mount point. It is complete and durable when it is there.
            links: let sealed segments be hard links to the files of this store, where
                that is possible: nothing is ever changed in them.
            on_progress: called in this thread with a `SnapshotProgress`, now and then.

        Raises:
            ConfigError: there is something at the path, or it lies in the store.
            StoreLockedError: a Kafka broker, or a process with an earlier version of
                logstore, has the store open for writing, and does not answer.
            StorageError: the system refuses; unless it says so, nothing is at the path.
            StoreClosedError, ForkedError.
        """
        self._topics.begin_call()
        target = SnapshotTarget(os.path.abspath(os.fspath(path)), links, on_progress)
        if self.read_only:
            return snapshot_elsewhere(self._context, target, self._opened_briefly)
        return make_snapshot(self._context, self._topics, self._publisher, target)

    def _opened_briefly(self) -> Store:
        """The store, opened for writing for one call. Raises: as `open_store`."""
        config = dataclasses.replace(self.config, publish_for_others=False)
        files = self._context.files
        return open_store(self.path, create=False, config=config, files=files)

    def _publish_as_owner(self, request: PublicationRequest) -> Publication:
        owner = self._opened_briefly()
        try:
            return owner._published(request, is_last=True)
        finally:
            try:
                owner.close()
            except LogStoreError as error:
                # The publication is durable, and says so by itself.
                logger.warning("store %s was not closed cleanly: %s", self.path, error)

    def close(self) -> None:
        """Flush everything, mark the store as cleanly closed, release the lock.

        Closing twice is allowed; so is closing again after an interrupt, which
        continues from there. Reading from the store later raises `StoreClosedError`.

        1. close each partition (sync, indexes, state); 2. write Kafka's checkpoints;
        3. write Kafka's clean-shutdown marker; 4. write the owner file: clean.

        Raises:
            SyncFailedError, StorageError: a partition could not be made durable; the
                rest is still closed, and the store is not marked as clean.
        """
        if self._context.is_forked:
            self._context.is_closed = True
            # A finalizer may run before `_mark_forked`.
            self._after_fork()
            self._let_go()
            return
        with self._close_lock:
            if self._is_finished:
                return
            self._context.is_closed = True
            # Not under the lock: a task that is running now may wait for it.
            self._snapshots.stop()
            self._hand_in.stop()
            self._topics.stop_rounds(self._closed_error())
            self._context.scheduler.stop()
            if self._may_write:
                with self._context.lock:
                    self._failure = self._close_writable()
                self._may_write = False
            self._let_go()
            failure = self._failure
        if failure is not None:
            raise failure

    def _closed_error(self) -> StoreClosedError:
        return StoreClosedError(f"store {self.path} is closed")

    def _close_writable(self) -> LogStoreError | None:
        """Close the partitions and leave the clean-shutdown markers, if it is one.

        Returns the error, if any. A store that was neither changed nor in need of a
        recovery is left as it is.
        """
        failure = self._failure
        writers = self._topics.writers
        ownership = self._context.ownership
        if ownership.is_writing:
            # A deletion may have made room. If not, a warning says so.
            writers.record_damage()
        if not ownership.is_clean or (ownership.is_copied and ownership.is_writing):
            # Partitions that were not used may be torn as well: a closed store is
            # clean. In a copy each needs a state with its cut.
            writers.recover()
            if writers.loaded and not ownership.is_writing:
                # This only makes the next opening quick: its errors are ignored.
                with contextlib.suppress(LogStoreError):
                    self._context.begin_writing()
        closed = self._closed_error()
        for writer in list(writers.loaded.values()):
            try:
                writer.close(closed, record_end=ownership.is_writing)
            except LogStoreError as error:
                failure = self._failure = self._failure or error
        if failure is None:
            try:
                with storage_errors("close", self.path):
                    self._publisher.end()
                    if ownership.is_writing:
                        settle_copy(self._context, self._topics)
                        writers.leave_marks()
            except LogStoreError as error:
                failure = error
        if isinstance(failure, DiskFullError):
            # All records are durable; the next opening examines the logs again.
            logger.warning(
                "%s is durable and not marked as closed: %s", self.path, failure
            )
            return None
        return failure

    def _let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self._watches.clear()
        self._context.let_go()
        self._is_finished = True

    def _after_fork(self) -> None:
        self._snapshots.abandon()
        self._hand_in.abandon()
        self._topics.abandon_rounds()
        self._context.after_fork()


def publication_key(store: Store) -> object:
    """A value that changes with each step of a publication that readers may see, by any
    process.

    A caller that reads the ends of several partitions, and gets the same key before
    and after, has seen each publication whole or not at all; else it must read them
    again.

    Raises:
        StorageError: the directory cannot be examined.
    """
    store._context.check_open()
    try:
        return store._publisher.visible(), store._publications.cache_key()
    except OSError as error:
        raise storage_error(error, "look at", store.path) from error


def _mark_forked() -> None:
    """In the child of a fork: no store that was open may be used.

    The lock is the parent's, which continues writing.
    """
    forget_locks()
    for store in list(_open_stores):
        store._after_fork()


def _close_at_exit() -> None:
    """Close stores that are open when the program ends: appended records are synced."""
    with contextlib.ExitStack() as stack:
        for store in list(_open_stores):
            if store._is_finished or store._context.is_forked:
                continue
            if not store.read_only:
                # The last one is called first, and if one raises (warnings may be
                # errors), the others are still called.
                stack.callback(store._close_forgotten)
                stack.callback(store._warn_unclosed)


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_close_at_exit)
