"""A store: a directory of partitions, the same thing as one Kafka log directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from logstore import _native as native
from logstore._native.locks import logger
from logstore.config import INT64_MAX, StoreConfig, TopicConfig, check_int
from logstore.errors import (
    ConfigError,
    LogStoreError,
    StoreClosedError,
    TopicNotFoundError,
)
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.checkpoint.publications import Publications
from logstore.io.checkpoint.recovery_report import RecoveryAction, RecoveryReport
from logstore.io.files import Files
from logstore.io.layout import TopicPartition
from logstore.io.lock_record import KEEPER, KEEPING, OWN, Purpose
from logstore.log.compact.compactor import CompactionProgress, CompactionReport
from logstore.log.write.staged_files import Staged
from logstore.log.write.staging import Stage
from logstore.record.arguments import refuse_pickling
from logstore.record.partitioner import Partitioner
from logstore.store.context import StoreContext
from logstore.store.copy.snapshot import (
    SnapshotProgress,
    SnapshotReport,
    SnapshotTarget,
    make_snapshot,
)
from logstore.store.copy.snapshot_requests import snapshot_elsewhere
from logstore.store.fork_and_exit import open_stores
from logstore.store.hand_in.keeper import KeptStore
from logstore.store.hand_in.sharing import Sharing
from logstore.store.lifetime import Lifetime
from logstore.store.measures import store_row
from logstore.store.partition.arrow_source import dataset_options
from logstore.store.partition.partitions import RecoveryProgress
from logstore.store.publication.producer import NamedProducers, Producer
from logstore.store.publication.publication import (
    Publication,
    PublicationRequest,
    check_is_named,
    check_own_identity,
    own_request,
)
from logstore.store.publishing import Publishing
from logstore.store.topic.open_topics import OpenTopics
from logstore.store.topic.topic import Topic
from logstore.store.topic.topic_changes import TopicChanges
from logstore.store.topic.topic_tables import dataset_of, page_of

if TYPE_CHECKING:
    import pyarrow.dataset

__all__ = ["Store"]


class Store:
    """An open store; a context manager. Made by `logstore.open`.

    Attributes:
        path: absolute path of its directory.
        read_only: whether it was opened with ``read_only``, or with ``shared``.
        config: the `StoreConfig` it was opened with.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        create: bool,
        config: StoreConfig,
        purpose: Purpose,
        on_recovery: Callable[[RecoveryAction], None] | None,
        on_progress: Callable[[RecoveryProgress], None] | None,
        files: Files,
        hand_in_timeout_ms: int | None = None,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.config = config
        self._is_keeper = purpose.doing == KEEPING
        context = self._context = StoreContext(
            self, path, read_only=read_only, create=create, config=config, files=files
        )
        publications = Publications(context.root)
        journal = PublicationJournal(
            context.root, context.state.ownership, publications, context.lock_group
        )
        topics = self._topics = OpenTopics(context, publications)
        topics.writers.on_recovery = on_recovery
        self._changes = topics.changes = TopicChanges(context, topics, journal)
        self._publishing = Publishing(
            context,
            topics,
            publications,
            journal,
            self._changes.create_for_others,
        )
        self._publishing.hand_in.ends_when_failed = self._is_keeper
        self._sharing: Sharing | None = None
        self._is_shared = hand_in_timeout_ms is not None
        if read_only:
            self._sharing = Sharing(
                context,
                publications,
                hand_in_timeout_ms or 0,
                lambda: self._publishing.stage("", 0),
                lambda: _kept(self._opened_at_once(KEEPER)),
                takes_over=not self._is_shared,
            )
            if self._is_shared:
                topics.hand_in = self._sharing.hand_in
        self._producers = NamedProducers(context, topics.now)
        self._lifetime = Lifetime(
            context, topics, self._publishing, self._sharing, is_shared=self._is_shared
        )
        open_stores.add(self)
        examines_all = on_recovery is not None or on_progress is not None
        self._lifetime.open(purpose, on_progress, examines_all=examines_all)

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else "read-write"
        mode = "shared" if self._is_shared else mode
        return f"<logstore.Store {self.path} ({mode})>"

    def _repr_html_(self) -> str | None:
        """A table of the topics, for notebooks."""
        return page_of(self)

    def __reduce__(self) -> NoReturn:
        refuse_pickling(self, self.path)

    def __getitem__(self, name: str) -> Topic:
        """See `topic`."""
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
        lifetime = getattr(self, "_lifetime", None)
        if lifetime is None or lifetime.is_finished or self._context.is_forked:
            return
        try:
            self._warn_unclosed()
        finally:
            # The collector may run at any place, also while this thread holds a lock.
            native.defer(self._close_forgotten)

    def _warn_unclosed(self) -> None:
        # One that keeps the lock for a shared store is closed by that.
        if self._context.has_lock and not self._is_keeper:
            where = self._context.opened_at
            opened = f", opened at {where}," if where else ""
            text = f"{self!r}{opened} was not closed"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def _close_forgotten(self) -> None:
        try:
            self.close()
        except (LogStoreError, OSError) as error:
            logger.error(
                "store %s was not closed, and cannot be closed now: %s",
                self.path,
                error,
            )
        except BaseException:
            # A finalizer reports an interrupt to no caller: continue from the
            # interruption.
            self.close()
            raise

    @property
    def recovery_report(self) -> RecoveryReport:
        """The repairs that opening had to make; false if it made no repair.

        Reading it completes the recovery: see `recover`.
        """
        if not (self.read_only or self._context.is_closed or self._context.is_forked):
            self.recover()
        return self._topics.writers.report()

    def recover(
        self, on_progress: Callable[[RecoveryProgress], None] | None = None
    ) -> RecoveryReport:
        """Examine all partitions now, and repair them if needed.

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
            return self._topics.writers.report()

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
            LogStoreError: the error of the first partition for which it failed, raised
                after the others.
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
        """The store and what is in it in numbers, as plain values (docs/metrics.md).

        Cheap: it walks over no log, recovers nothing and waits for no append, sync or
        read. Values that need one of these are None. `logstore.metrics` writes
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
        state = self._context.state
        ownership = state.ownership_now() if self.read_only else state.ownership
        return store_row(
            self,
            self._context.root,
            self._topics.rows(),
            time_ms=self._context.files.now_ms(),
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
            TopicNotFoundError: no topic has this name.
        """
        self._topics.begin_call()
        topic = self._topics.now(name)
        if partitioner is not None:
            topic.partitioner = partitioner
        return topic

    def to_dataset(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        threads: int | None = None,
        durable_only: bool = False,
        isolation: str = "read_uncommitted",
        on_corruption: str = "raise",
    ) -> pyarrow.dataset.Dataset:
        """The records of topics as one dataset; `Topic.to_dataset` is for one topic.
        Each scan reads the topics that exist then.

        Args:
            topics: a name, a pattern (``"orders-*"``; also ``?`` and ``[...]``), or
                several; None: all.
            threads, durable_only, isolation, on_corruption: as in `Topic.to_dataset`.

        Raises:
            TopicNotFoundError: there is no topic of a name that is not a pattern.
        """
        options = dataset_options(durable_only, isolation, on_corruption)
        return dataset_of(self, topics, threads, options)

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
        if self._sharing is not None and self._is_shared:
            self._topics.begin_call()
            self._sharing.create_topic(name, partitions, config, exist_ok)
            return self._topics.now(name)
        return self._changes.create(name, partitions, config, exist_ok=exist_ok)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records, durably. Its files are removed after
        ``file_delete_delay_ms``.

        Raises:
            TopicNotFoundError: no topic has this name.
        """
        self._changes.delete(name)

    def producer(self, name: str) -> Producer:
        """Take over the producer of a name, durably, for appends that may be repeated.

        It gets another epoch: an earlier `Producer` of the name appends nothing more.

        Args:
            name: 1 to 1000 characters, kept permanently.

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
        """Make a copy of the store at one moment, in a new directory: topics, records,
        publications, positions of groups, named producers, and the files that a Kafka
        broker starts with. Staged records are not in it. The store may be in use.

        A read-only store takes the writer's lock if it is free. Else the process that
        has it makes the snapshot, and this call waits.

        Args:
            path: the directory; it must not exist, or be empty, and neither be a link
                nor a mount point. It is complete and durable when it is there.
            links: let sealed segments be hard links to the files of this store, if
                possible: nothing is ever changed in them.
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
            return snapshot_elsewhere(self._context, target, self._opened_at_once)
        return make_snapshot(
            self._context, self._topics, self._publishing.publisher, target
        )

    def stage(self, identity: str = "", sequence: int = 0) -> Stage:
        """Create a file for records to publish together, in any number of topics and
        partitions. A read-only store can do it, too: it takes no lock.

        Args:
            identity, sequence: as they will be given to `publish`.

        Raises:
            ConfigError: they are invalid; or opening the store for writing would need
                a setting. Nothing was created.
        """
        check_own_identity(identity)
        return self._publishing.stage(identity, sequence)

    def publish(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str = "",
        sequence: int = 0,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
    ) -> Publication:
        """Append staged records durably: all of them or none.

        No reader in any process sees part of it, and a crash leaves all of it or
        nothing. The records of one partition keep the order of `staged`. The staged
        files are removed, or become segments. If the call fails, they may also be gone:
        stage again.

        Args:
            staged: what `Stage.finish` returned, of one stage or of several.
            identity: names the publisher, 1 to 1000 characters. Publishing again with
                the same identity and sequence number does nothing. The last 10,000
                identities are remembered, and the pinned ones. The prefix "group:" is
                reserved for consumer groups. "": no identity.
            sequence: rises with each publication of the identity.
            note: kept with the identity until its next publication, for the publisher
                to read (`last_publication`): up to 1000 characters. It is also replaced
                if this was published before.
            metadata: up to 4096 bytes, committed together with the records, even with
                no records. `last_publication` returns them until the next
                publication of the identity. They stay if this was published before.
            pinned: True: remember the identity, however many others publish; False: no
                longer; None: as before. To unpin one, repeat its last publication.

        Raises:
            PublicationConflictError: the identity has published a later one.
            DiskFullError, StorageError: nothing was published.
            SyncFailedError: nothing was published, unless the message says so, and a
                partition takes no more appends.
            CorruptRecordError: a staged file has changed; nothing was published.
            RecordTooLargeError: a batch is larger than the current
                ``max_message_bytes``.
            ConfigError: a field of `staged`, the identity or the sequence is invalid,
                or the file of publications has no room for the identity in addition to
                the pinned ones; nothing was published.
            TopicNotFoundError: the topic does not exist, or was replaced since staging.
            PartitionNotFoundError, ReadOnlyError.
        """
        self._topics.check_writable("publish")
        return self._publishing.publish(
            own_request(staged, identity, sequence, note, metadata, pinned)
        )

    def submit(
        self,
        staged: Staged | Iterable[Staged],
        *,
        identity: str,
        sequence: int,
        note: str = "",
        metadata: bytes = b"",
        pinned: bool | None = None,
        timeout_ms: int | None = None,
    ) -> Publication:
        """Publish from any process, also if another one has the store open for writing.

        A read-only store hands a request in to the owner, and waits: an owner with
        ``StoreConfig.publish_for_others`` publishes it. If there is no owner, or it
        ends, this process, or another one that waits, takes the writer's lock, and
        keeps it for two seconds, unless another process waits for it. A store that is
        open for writing publishes as `publish` does.

        Whatever ends first, the process or the owner: a request that was handed in is
        published once or not at all; repeat the call to find out. If the process ends
        while it waits, the next owner publishes it.

        Args:
            staged, sequence, note, metadata, pinned: as in `publish`.
            identity: names the publisher, as in `publish`, 1 to 1000 characters.
            timeout_ms: how long to wait for another process, or a thread of this one
                that publishes, in milliseconds; None: no limit. An owner that does not
                publish for others lets the call wait until it ends.

        Returns:
            As `publish`. The offsets are empty, too, if its publisher has died after
            the commit.

        Raises:
            PublicationTimeoutError: its `outcome` is "not written" if the request was
                taken back; else it is unknown whether it will be published: ask
                `published`, or submit the same again.
            StoreLockedError: another program than logstore, such as a Kafka broker, has
                the store open for writing; nothing was published.
            ConfigError: as `publish`, and for an empty identity. Also if this process
                may not open the store for writing, and its lock is free.
            StorageError: as `publish`; or the request cannot be written (a read-only
                file system, a full disk): nothing was handed in.
            CorruptCheckpointError: the request was damaged; nothing was published.
            PublicationConflictError, SyncFailedError, CorruptRecordError,
                RecordTooLargeError, TopicNotFoundError, PartitionNotFoundError: as
                `publish`; the error of the process that published.
            StoreClosedError, ForkedError.
        """
        self._context.check_open()
        if timeout_ms is not None:
            check_int("timeout_ms", timeout_ms, 0, INT64_MAX)
        request = own_request(staged, identity, sequence, note, metadata, pinned)
        return self._submit(request, timeout_ms)

    def _submit(
        self, request: PublicationRequest, timeout_ms: int | None
    ) -> Publication:
        """Same as `submit`, but the identity of a group is allowed, too."""
        check_is_named(request)
        if self._sharing is not None:
            return self._sharing.submit(request, timeout_ms)
        self._topics.check_writable("publish")
        return self._publishing.publish(request)

    def published(self, identity: str) -> int | None:
        """The last sequence number that an identity has published; None: none.

        Raises:
            ConfigError: the identity is invalid.
            CorruptCheckpointError: the file that records it is damaged.
        """
        last = self.last_publication(identity)
        return None if last is None else last.sequence

    def last_publication(self, identity: str) -> Publication | None:
        """The last one of an identity, or None; no offsets. Raises: as `published`."""
        self._context.check_open()
        return self._publishing.last(identity)

    def discard_staged(
        self,
        staged: Staged | Iterable[Staged] = (),
        *,
        identity: str = "",
        before: int = 0,
        older_than_ms: int | None = None,
    ) -> None:
        """Remove staged files that will not be published: these, all files of an
        identity with a sequence below `before`, and files of any identity not written
        to for `older_than_ms`. A request to publish them that still waits is refused.

        Raises:
            ConfigError: an argument is invalid; nothing was removed.
        """
        self._context.check_open()
        self._publishing.discard(staged, identity, before, older_than_ms)

    def _opened_at_once(self, purpose: Purpose = OWN) -> Store:
        """The store, opened for writing for a while, unless another process has it.
        Raises: as `open_store`."""
        return Store(
            self.path,
            read_only=False,
            create=False,
            config=dataclasses.replace(
                self.config, publish_for_others=purpose.publishes_for_others
            ),
            purpose=purpose,
            on_recovery=None,
            on_progress=None,
            files=self._context.files,
        )

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
        self._lifetime.close()


def _kept(store: Store) -> KeptStore:
    """A store that this process has opened for others, too."""
    hand_in = store._publishing.hand_in
    return KeptStore(
        lambda: hand_in.served,
        lambda: hand_in.has_failed,
        store._publishing.publish,
        store._publishing.publish_at_once,
        store.close,
    )
