"""A store: a directory of partitions, the same thing as one Kafka log directory.

These files are kept next to Kafka's (docs/format.md, "logstore's own files"):
`.logstore-owner` records whether the last writer was logstore, and whether it closed
cleanly; `.logstore-topics` has the settings of topics.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import gc
import operator
import os
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Final, NoReturn

from logstore import _native as native
from logstore._native.locks import RANK_CLOSE, RANK_MARKS, RANK_STORE, logger, new_group
from logstore.config import (
    PARTITIONS_MAX,
    StoreConfig,
    TopicConfig,
    check_int,
    check_kind,
    sets_retention,
    to_stored,
)
from logstore.errors import (
    ConfigError,
    DiskFullError,
    ForkedError,
    LogStoreError,
    PartitionNotFoundError,
    ReadOnlyError,
    StorageError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.ownership import Marks
from logstore.io.checkpoint.partition_state import Situation
from logstore.io.checkpoint.publications import Publications
from logstore.io.checkpoint.recovery_report import (
    UNPUBLISHED,
    RecoveryAction,
    RecoveryReport,
)
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files, settled
from logstore.io.filesystem import check_is_store, prepare_root, staging_access
from logstore.io.lock import StoreLock, forget_locks
from logstore.io.scheduler import Scheduler
from logstore.log.follow.read_only_log import ATTEMPTS, ReadOnlyLog
from logstore.log.write.log_writer import Gate, LogWriter
from logstore.log.write.staged_files import (
    Staged,
    check_identity,
    check_sequence,
    logs_of,
)
from logstore.log.write.staging import Destination, Stage
from logstore.log.write.writer import PartitionWriter
from logstore.record.arguments import refuse_pickling
from logstore.record.partitioner import Partitioner
from logstore.segment import Segment
from logstore.store.background_retention import BackgroundRetention
from logstore.store.measures import IdleLogs, log_row, store_row
from logstore.store.partition import Partition
from logstore.store.partitions import PartitionWriters, RecoveryProgress
from logstore.store.publisher import Publication, Publisher
from logstore.store.topic import Topic
from logstore.store.topics import Catalog, leading

__all__ = ["Store", "open_store"]

TopicPartition = tuple[str, int]

# Delay before Kafka's checkpoint of start offsets is written again.
_STARTS_MS: Final = 1000
# An unknown name is compared with at most this many topics: more take too long.
_NAMES_COMPARED: Final = 500

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


class Store:
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
        self.config = self.store_config = config
        self._files = files
        group = self.lock_group = new_group()
        self._lock = native.Mutex(RANK_STORE, f"store {path}", group)
        # Taken by threads that hold the lock of a partition. They must not take
        # `_lock`, whose holder may be waiting for that partition.
        self._marks_lock = native.Mutex(RANK_MARKS, f"the marks of store {path}", group)
        self._close_lock = native.Mutex(RANK_CLOSE, f"the close of store {path}", group)
        # Whether nothing may begin any more; whether closing is complete.
        self._closed = False
        self._is_finished = True
        self._forks = native.forks()
        self._starts_scheduled = False
        # The first error of closing so far: closing may be interrupted, and continue.
        self._failure: LogStoreError | None = None
        self._store_lock: StoreLock | None = None
        self._partitions: dict[TopicPartition, Partition] = {}
        self._topics: dict[str, Topic] = {}
        self._root_mtime_ns = -1
        self._root = self._open_root(create)
        self._marks = Marks(self._root)
        self._seen: tuple[object, Marks] = (None, self._marks)
        self._catalog = Catalog(self._root, read_only=read_only)
        self.descriptors = Descriptors(files, _open_files_max(config, files), group)
        self._keeper = Scheduler(files, os.path.basename(path))
        self._retention = BackgroundRetention(
            self, files, os.path.basename(path), config.retention_check_ms
        )
        self._writers = PartitionWriters(self, self._root, self._catalog, self._marks)
        self._writers.on_recovery = on_recovery
        self._idle = IdleLogs()
        self._publications = Publications(self._root)
        self._publisher = Publisher(
            self._root,
            self._marks,
            self._publications,
            self.store_config,
            self._writer_of,
            self._topic_id,
            group,
        )
        _open_stores.add(self)
        self._is_finished = False
        try:
            if not read_only:
                self._store_lock = _take_lock(self._root)
            self._load()
            if not read_only and (on_recovery or on_progress):
                self._writers.recover(on_progress)
            if not read_only:
                self._retention.begin()
        except BaseException:
            self._closed = True
            self._retention.stop()
            self._keeper.stop()
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
        return iter([self._topic(name) for name in self.topics()])

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
        if getattr(self, "_is_finished", True) or self._forked:
            return
        try:
            self._warn_unclosed()
        finally:
            # The collector may run at any place, also while this thread holds a lock.
            native.defer(self._close_forgotten)

    def _warn_unclosed(self) -> None:
        if self._store_lock is not None:
            where = self._store_lock.opened_at
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

    # ------------------------------------------------------------ opening

    def _open_root(self, create: bool) -> Directory:
        try:
            made = create and self._files.make_root(self.path)
            root = Directory.open_root(self._files, self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"there is no store at {self.path}", path=self.path
            ) from error
        except OSError as error:
            raise storage_error(error, "open", self.path) from error
        try:
            check_is_store(root, must_exist=self.read_only)
            if not self.read_only:
                prepare_root(root, self.config, made=bool(made))
        except BaseException:
            root.close()
            raise
        return root

    def _load(self) -> None:
        try:
            for action in self._load_topics(self._marks.read):
                self._writers.note(action)
            if not self.read_only:
                self._catalog.finish_deletions(self._root.names())
                self._publisher.finish(self._drop_unpublished)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, "read", self.path) from error

    def _load_topics(
        self, read_marks: Callable[[Callable[[RecoveryAction], None]], None]
    ) -> list[RecoveryAction]:
        """Find the topics; repeat if the writer creates or deletes one meanwhile: its
        settings and its directories change one after the other."""
        for _ in range(ATTEMPTS):
            seen = self._look_at_root()
            actions: list[RecoveryAction] = []
            read_marks(actions.append)
            catalog = Catalog(self._root, read_only=self.read_only)
            catalog.read(actions.append)
            catalog.find(self._root.names())
            if self._marks.is_own:
                catalog.check(actions.append)
            if not self.read_only or self._look_at_root() == seen:
                break
        self._catalog = self._writers.catalog = catalog
        self._writers.broken = dict(catalog.lost)
        self._root_mtime_ns = settled(seen[0], self._files)
        return actions

    def _look_at_root(self) -> tuple[int, object, object]:
        """(time, other values). They change if topics are created or deleted, or if a
        writer begins or ends."""
        mtime_ns = self._root.info().mtime_ns
        return mtime_ns, self._root.look(layout.TOPICS), self._marks.token()

    @property
    def recovery_report(self) -> RecoveryReport:
        """The repairs that opening had to make; false if there were none.

        Reading it completes the recovery: see `recover`.
        """
        if not self.read_only and not self._closed and not self._forked:
            self.recover()
        return self._report()

    def _report(self) -> RecoveryReport:
        key = operator.attrgetter("topic", "partition")
        return RecoveryReport(tuple(sorted(self._writers.actions, key=key)))

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
        self._check_writable("recover")
        with self._lock:
            self.check_open()
            self._writers.recover(on_progress)
            return self._report()

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of a topic's partitions, in order.

        Raises:
            TopicNotFoundError: it was deleted.
        """
        self.check_open()
        if self.read_only:
            self._rescan()
        numbers = self._catalog.numbers.get(topic, ())
        if not numbers:
            raise self._no_topic(topic)
        return numbers

    def topic_config(self, topic: str) -> TopicConfig:
        if topic not in self._catalog.numbers:
            raise self._no_topic(topic)
        return self._catalog.config(topic)

    # ------------------------------------------------------------ numbers

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
        self.check_open()
        if self.read_only:
            self._rescan()
        keys = [
            (topic, number)
            for topic, numbers in sorted(self._catalog.numbers.copy().items())
            for number in numbers
        ]
        rows = []
        for key in keys:
            try:
                rows.append(log_row(*key, self._measured(key)))
            except (TopicNotFoundError, PartitionNotFoundError):
                continue  # it was deleted meanwhile
        free_bytes: int | None = None
        with contextlib.suppress(OSError):
            free_bytes = self._root.free_bytes()
        marks = self._marks_now() if self.read_only else self._marks
        return store_row(
            self.path,
            rows,
            time_ms=self._files.now_ms(),
            read_only=self.read_only,
            is_clean=marks.is_clean and not marks.is_writing,
            free_bytes=free_bytes,
            waiting_bytes=self.waiting_bytes(),
            open_files=len(self.descriptors),
        )

    def _measured(
        self, key: TopicPartition
    ) -> LogWriter | ReadOnlyLog | LogStoreError | dict[str, Any]:
        """The source of a partition's numbers, without reading its log."""
        if self.read_only:
            try:
                return self.open_partition(*key)._refreshed()
            except (TopicNotFoundError, PartitionNotFoundError):
                raise
            except LogStoreError as error:
                return error
        writer = self._writers.loaded.get(key)
        if writer is not None:
            self._idle.forget(key)
            return writer
        broken = self._writers.broken.get(key)
        if broken is not None:
            return broken
        directory = self._root.child(layout.partition_directory(*key))
        return self._idle.row(directory, key, self._marks)

    # ------------------------------------------------------------ guards

    def check_open(self) -> None:
        """Raise unless the store can be used here and now."""
        if self._closed:
            raise StoreClosedError(f"store {self.path} is closed")
        if self._forked:
            raise ForkedError(
                f"store {self.path} was opened before a fork; open it in the child"
            )

    def begin_call(self) -> None:
        """Do `check_open` for a call that begins, and raise what failed in the
        background since the last one, if anything did."""
        self.check_open()
        self._retention.raise_failure()

    def _check_writable(self, what: str) -> None:
        self.begin_call()
        if self.read_only:
            raise ReadOnlyError(
                f"store {self.path} was opened read-only; cannot {what}"
            )

    # ------------------------------------------------------------ topics

    def topics(self) -> list[str]:
        """Names of the topics, sorted."""
        self.begin_call()
        if self.read_only:
            self._rescan()
        return sorted(self._catalog.numbers)

    def _rescan(self) -> None:
        """Read-only: take over the changes that the writer has made meanwhile."""
        with self._lock:
            try:
                if self._root.info().mtime_ns != self._root_mtime_ns:
                    self._load_topics(self._marks.read_owner)
            except OSError as error:
                raise storage_error(error, "read", self.path) from error

    def topic(self, name: str, *, partitioner: Partitioner | None = None) -> Topic:
        """An existing topic.

        Raises:
            TopicNotFoundError: there is none of this name.
        """
        self.begin_call()
        topic = self._topic_now(name)
        if partitioner is not None:
            topic.partitioner = partitioner
        return topic

    def _topic_now(self, name: str) -> Topic:
        if self.read_only:
            self._rescan()
        return self._topic(name)

    def _no_topic(self, name: object) -> TopicNotFoundError:
        """The error, with the name that may have been meant."""
        near: list[str] = []
        if isinstance(name, str) and len(self._catalog.numbers) <= _NAMES_COMPARED:
            # A list of its own: others make and delete topics while it is compared.
            near = difflib.get_close_matches(name, sorted(self._catalog.numbers), 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return TopicNotFoundError(
            f"store {self.path} has no topic {name!r}{hint}", topic=str(name)
        )

    def _topic(self, name: str) -> Topic:
        given: object = name
        if not isinstance(given, str) or name not in self._catalog.numbers:
            raise self._no_topic(name)
        topic = self._topics.get(name)
        if topic is None:
            # Without a lock: if two threads create one, both use the first.
            topic = self._topics.setdefault(name, Topic(self, name))
        return topic

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: TopicConfig | None = None,
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic.

        1. persist its settings, as being created (commit: opening finishes it);
        2. create the directories; 3. sync the store's; 4. write the settings again.

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
        self._check_writable(f"create topic {name!r}")
        layout.check_new_topic_name(name)
        check_int("partitions", partitions, 1, PARTITIONS_MAX)
        if config is not None:
            check_kind("config", config, TopicConfig)
        with self._lock:
            self.check_open()
            if name in self._catalog.numbers:
                return self._existing(name, partitions, config, exist_ok)
            self._catalog.check_collision(name)
            if config is None:
                config = self.config.topic_defaults
            self._create(name, range(partitions), config)
            return self._topic(name)

    def _existing(
        self, name: str, partitions: int, config: TopicConfig | None, exist_ok: bool
    ) -> Topic:
        topic = self._topic(name)
        if not exist_ok:
            raise TopicExistsError(f"topic {name} is already there", topic=name)
        if len(topic) != partitions:
            raise TopicExistsError(
                f"topic {name} has {len(topic)} partitions, not {partitions}",
                topic=name,
            )
        if config is not None and name not in self._catalog.settings:
            # Only its directories existed: now it has settings, too.
            self._configure_held(name, config)
        if config is not None and config != topic.config:
            was, asked = topic.config.to_dict(), config.to_dict()
            differing = [k for k in was if was[k] != asked[k]]
            raise TopicExistsError(
                f"topic {name} has other settings: "
                + ", ".join(f"{k}={was[k]!r}, not {asked[k]!r}" for k in differing),
                topic=name,
            )
        return topic

    def _create(self, name: str, numbers: range, config: TopicConfig) -> None:
        longest = layout.partition_directory(name, numbers[-1])
        if len(longest) > 255:
            raise ConfigError(
                f"directory name {longest[:40]}... has {len(longest)} characters, more "
                f"than 255",
                name="topic",
                value=name,
            )
        self.begin_writing()
        try:
            for number in numbers:
                self._writers.forget((name, number))
            self._forget_marks((name, number) for number in numbers)
            settings = self._catalog.with_id(
                name, {"partitions": numbers[-1] + 1, "config": to_stored(config)}
            )
            self._catalog.write(name, {**settings, "creating": True})
            self._catalog.make_directories(name, numbers)
            there = (*self._catalog.numbers.get(name, ()), *numbers)
            settings["partitions"] = leading(there)
            self._catalog.write(name, settings)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, f"create topic {name} in", self.path) from error
        self._catalog.add(name, there)
        self._retain_as(config)

    def _retain_as(self, config: TopicConfig) -> None:
        """Apply retention from now on, if these settings of a topic require it."""
        if sets_retention(to_stored(config)):
            self._retention.begin()

    def _forget_marks(self, keys: Iterable[TopicPartition]) -> None:
        """Remove deleted partitions from Kafka's checkpoints before others of the same
        names exist: after a crash, the recovery would trust these entries."""
        with self._marks_lock:
            if self._marks.forget(keys):
                self._marks.move_points(self._marks.points)
                self._marks.write_starts(self._writers.starts())

    def configure_topic(self, name: str, config: TopicConfig) -> None:
        self._check_writable(f"configure topic {name}")
        check_kind("config", config, TopicConfig)
        with self._lock:
            self._configure_held(name, config)

    def _configure_held(self, name: str, config: TopicConfig) -> None:
        numbers = self.partition_numbers(name)
        self.begin_writing()
        settings = self._catalog.with_id(
            name, {"partitions": leading(numbers), "config": to_stored(config)}
        )
        try:
            self._catalog.write(name, settings)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(
                error, f"write the settings of {name} in", self.path
            ) from error
        self._retain_as(config)
        failure: LogStoreError | None = None
        for number in numbers:
            writer = self._writers.loaded.get((name, number))
            if writer is not None and writer.is_sound:
                try:
                    writer.configure(config)
                except LogStoreError as error:
                    failure = failure or error
            partition = self._partitions.get((name, number))
            if partition is not None:
                partition.config = config
        if failure is not None:
            raise failure

    def grow_topic(self, name: str, count: int) -> int:
        self._check_writable(f"add partitions to {name}")
        with self._lock:
            topic = self._topic(name)
            first = self._catalog.numbers[name][-1] + 1
            if first + count > PARTITIONS_MAX:
                raise ConfigError(
                    f"{first + count} partitions are more than {PARTITIONS_MAX}",
                    name="count",
                    value=count,
                )
            self._create(name, range(first, first + count), topic.config)
            return len(self._catalog.numbers[name])

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all its records.

        1. write into its settings that it is being deleted (commit: opening finishes
        it); 2. rename its directories to ``...-delete`` and sync the store's; 3. forget
        its settings; 4. remove the files after ``file_delete_delay_ms``.

        Raises:
            TopicNotFoundError: there is none.
        """
        self._check_writable(f"delete topic {name!r}")
        with self._lock:
            self.check_open()
            self._delete_held(name)

    def _delete_held(self, name: str) -> None:
        topic = self._topic(name)
        self.begin_writing()
        numbers = self._catalog.numbers[name]
        renamed: list[str] = []
        users: list[Segment] = []
        delay_ms = topic.config.file_delete_delay_ms
        settings = self._catalog.settings.get(name, {"partitions": leading(numbers)})
        going = TopicNotFoundError(
            f"topic {name} is being deleted, which was cut short by an error; "
            f"delete it again, or open the store again",
            topic=name,
        )
        keys = [(name, number) for number in numbers]
        moved = {key: layout.deleted_directory(*key, uuid.uuid4().hex) for key in keys}
        try:
            # Before the commit: after it nothing may be acknowledged, nor be loaded.
            for key in keys:
                self._writers.suspend(key, going)
            self._catalog.write_if_room(name, {**settings, "deleting": True})
        except BaseException:
            self._undo_delete(name, keys)
            raise
        try:
            for key in keys:
                self._writers.broken[key] = going
                self._partitions.pop(key, None)
            self._catalog.drop_begun(name)
            for key in keys:
                writer = self._writers.loaded.get(key)
                if writer is not None:
                    users += self._end_writer(writer)
                    # Before the rename: a reader finds the files under one of the two
                    # names.
                    writer.directory.moved_to = moved[key]
                # It does not exist if an earlier attempt has renamed it.
                with contextlib.suppress(FileNotFoundError):
                    self._root.rename(layout.partition_directory(*key), moved[key])
                    renamed.append(moved[key])
            self._root.sync()
            self._topics.pop(name, None)
            self._catalog.numbers.pop(name, None)
            # After that: an interrupt leaves no partition that neither exists nor is
            # deleted. The rest of it is forgotten before another one is created
            # (`_create`).
            for key in keys:
                self._writers.forget(key)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, f"delete topic {name} of", self.path) from error
        self._catalog.write_if_room(name, None)
        logger.info("topic %s with %d partitions deleted", name, len(numbers))
        # A read that has begun finishes on the files that it began with.
        self._keeper.when_unused(users, self._removal_of(renamed), delay_ms)

    def _removal_of(self, names: list[str]) -> Callable[[], None]:
        """A task that removes directories. It does not keep the store alive: the next
        opening also removes them."""
        found = weakref.WeakMethod(self._remove)

        def remove() -> None:
            method = found()
            if method is not None:
                method(names)

        return remove

    def _remove(self, names: list[str]) -> None:
        """Remove the directories of deleted topics; if there is room again, catch up.

        While the settings on the disk still have the topics, the empty directories
        stay: from their names the next opening knows that nothing is lost.
        """
        emptied = self._catalog.empty_directories(names)
        with self._lock:
            if self._closed:
                return
            self._catalog.catch_up()
            if not self._catalog.is_behind:
                self._catalog.remove_directories(emptied)

    def _undo_delete(self, name: str, keys: list[TopicPartition]) -> None:
        """Undo a deletion that may or may not have reached its commit: only if the
        settings on the disk do not record it, the topic is used again."""
        try:
            value = checkpoints.read_state(self._root, layout.TOPICS)
        except (OSError, LogStoreError):
            return
        if value is None or not value["topics"].get(name, {}).get("deleting", False):
            for key in keys:
                self._writers.resume(key)

    def _end_writer(self, writer: PartitionWriter) -> list[Segment]:
        """Release a partition that is about to be deleted. Returns its segments: the
        reads that have begun use them."""
        gone = TopicNotFoundError(
            f"topic {writer.topic} was deleted", topic=writer.topic
        )
        with contextlib.suppress(LogStoreError):
            writer.close(gone, write_down=False)
        segments = list(writer.segments)
        writer.abandon()
        return segments

    # ------------------------------------------------------------ partitions

    def open_partition(self, topic: str, number: int) -> Partition:
        """A partition; the same object every time."""
        key = (topic, number)
        found = self._partitions.get(key)
        if found is not None:
            return found
        with self._lock:
            broken = self._writers.broken.get(key)
            # If the system refused it, `get` tries again.
            if broken is not None and not isinstance(broken, StorageError):
                raise broken.with_traceback(None)
            if number not in self._catalog.numbers.get(topic, ()):
                raise PartitionNotFoundError(
                    f"topic {topic} has no partition {number}",
                    topic=topic,
                    partition=number,
                )
            partition = self._partitions.get(key)
            if partition is None:
                config = self._catalog.config(topic)
                partition = Partition(
                    topic,
                    number,
                    config,
                    self._live(key) if self.read_only else self._writers.get(key),
                    self.check_open,
                    self.config.max_batch_decompressed_bytes,
                    self._catalog.topic_id(topic),
                    self.begin_call,
                )
                self._partitions[key] = partition
            return partition

    def retaining_partitions(self) -> list[TopicPartition]:
        """For the background: the partitions whose topics set a retention."""
        return self._catalog.retaining()

    def retain(self, topic: str, number: int) -> None:
        """For the background: apply the retention of a partition."""
        self.check_open()
        self.open_partition(topic, number).apply_due_retention()

    def _live(self, key: TopicPartition) -> ReadOnlyLog:
        topic, number = key
        directory = self._root.child(layout.partition_directory(topic, number))

        def situation() -> Situation:
            return self._marks_now().situation(directory, key)

        return ReadOnlyLog(
            directory,
            self.descriptors,
            topic,
            number,
            self._catalog.config(topic),
            situation,
            self._marks,
            self._publications,
            self.lock_group,
        )

    def _marks_now(self) -> Marks:
        """Read-only: the marks as they are, read again if a file has changed. The
        caller must not change them: other threads may be using them for other
        partitions."""
        token = self._marks.token()
        known, marks = self._seen
        if token != known:
            marks = Marks(self._root)
            marks.read(_ignore)
            self._seen = token, marks
        return marks

    # ------------------------------------------------------------ publishing

    def stage(self, identity: str = "", sequence: int = 0) -> Stage:
        """A file for records that are to be published together, in any number of
        topics and partitions. A read-only store can do it, too: it takes no lock.

        Args:
            identity, sequence: as they will be given to `publish`.
        """
        self.begin_call()
        if self.read_only:
            # The only file that is created without the lock: the store's owner has to
            # be able to read it.
            self._root.access = staging_access(self._root, self.config)
        return Stage(self._root, identity, sequence, self._topic_id_of)

    def _topic_id_of(self, destination: Destination) -> str:
        """The id of the topic that is staged for: a `Partition` of a writer always
        belongs to one topic, others belong to the topic that has the name now."""
        if isinstance(destination, Partition) and not self.read_only:
            return destination.topic_id
        return self._topic_id(destination.topic)

    def _topic_id(self, topic: str) -> str:
        return self._catalog.topic_id(topic)

    def publish(
        self,
        staged: Iterable[Staged],
        *,
        identity: str = "",
        sequence: int = 0,
        note: str = "",
    ) -> Publication:
        """Append staged records durably: all of them or none.

        No reader in any process sees part of it, and a crash leaves all of it or
        nothing. The records of one partition keep the order of `staged`. The staged
        files are removed, or become segments. If the call fails, they may also be gone:
        stage again.

        Args:
            staged: what `Stage.finish` returned.
            identity: names the publisher, 1 to 1000 characters. Publishing again with
                the same identity and sequence number does nothing. The last 10,000
                identities are remembered. "": no identity.
            sequence: rises with each publication of the identity.
            note: kept with the identity until its next publication, for the publisher
                to read (`last_publication`): up to 1000 characters. It is also replaced
                if this was published before.

        Raises:
            PublicationConflictError: the identity has published a later one.
            DiskFullError, StorageError: nothing was published.
            SyncFailedError: nothing was published, unless the message says so, and a
                partition takes no more appends.
            CorruptRecordError: a staged file has changed; nothing was published.
            RecordTooLargeError: a batch is larger than the current
                ``max_message_bytes``.
            ConfigError: a field of `staged`, the identity or the sequence is invalid.
            TopicNotFoundError: there is none, or not the one that was staged for.
            PartitionNotFoundError, ReadOnlyError.
        """
        self._check_writable("publish")
        check_sequence(sequence)
        check_identity(identity)
        check_identity(note, "note")
        logs = logs_of(staged)
        with self._publisher.lock:
            try:
                return self._publisher.publish(
                    logs,
                    identity,
                    sequence,
                    self._files.now_ms(),
                    self.begin_writing,
                    note,
                )
            except OSError as error:
                if isinstance(error, LogStoreError):
                    raise
                raise storage_error(error, "publish to", self.path) from error

    def published(self, identity: str) -> int | None:
        """The last sequence number that an identity has published; None: none.

        Raises:
            ConfigError: the identity is invalid.
            CorruptCheckpointError: the file that records it is damaged.
        """
        last = self.last_publication(identity)
        return None if last is None else last.sequence

    def last_publication(self, identity: str) -> Publication | None:
        """The last publication of an identity, without its offsets, which are not kept;
        None: none. Raises: as `published`."""
        self.check_open()
        check_identity(identity)
        try:
            entry = self._publications.published().get(identity)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, "read", self.path) from error
        if entry is None:
            return None
        return Publication(
            identity, entry.sequence, entry.records, {}, is_new=False, note=entry.note
        )

    def publication_token(self) -> object:
        """A value that changes with each step of a publication that readers may see, by
        any process.

        A caller that reads the ends of several partitions, and gets the same token
        before and after, has seen each publication whole or not at all; else it must
        read them again.

        Raises:
            StorageError: the directory cannot be examined.
        """
        self.check_open()
        try:
            return self._publisher.steps, self._publications.token()
        except OSError as error:
            raise storage_error(error, "look at", self.path) from error

    def discard_staged(
        self,
        staged: Iterable[Staged] = (),
        *,
        identity: str = "",
        before: int = 0,
        older_than_ms: int | None = None,
    ) -> None:
        """Remove staged files that will not be published: these, all of an identity
        with a sequence below `before`, and those of any identity that were not written
        to for `older_than_ms`.

        Raises:
            ConfigError: an argument is invalid; nothing was removed.
        """
        self.check_open()
        check_identity(identity)
        check_sequence(before, "before")
        if older_than_ms is not None:
            check_sequence(older_than_ms, "older_than_ms")
        self._publisher.discard(logs_of(staged))
        if identity and before:
            self._publisher.discard_leftovers(identity, before)
        if older_than_ms is not None:
            self._publisher.discard_older(self._files.now_ms() - older_than_ms)

    def _writer_of(self, key: TopicPartition) -> PartitionWriter:
        topic, number = key
        self._topic_now(topic)[number]  # raises if there is none
        with self._lock:
            self._topic(topic)  # it may have been deleted meanwhile
            return self._writers.get(key)

    def _drop_unpublished(self, key: TopicPartition, base: int) -> None:
        """Remove what an unfinished publication has put into a log."""
        topic, number = key
        writer = self._writer_of(key)
        count = writer.end_offset - base
        if count <= 0:
            return
        partition = self._topic_now(topic)[number]
        try:
            partition.truncate_to(base)
        except BaseException as error:
            # The next opening will cut the log here.
            writer.close_gate(Gate(is_open=False), base)
            writer.end_for_good(error)
            raise
        self._writers.note(
            RecoveryAction(
                UNPUBLISHED, topic, number, partition.path, -1, 0, base, None,
                f"took {count} records from offset {base} on out of {partition.name} "
                f"again: their publication was cut short",
            )
        )  # fmt: skip

    # ------------------------------------------------------------ for the writers

    @property
    def generation(self) -> str:
        return self._marks.generation

    def begin_writing(self) -> None:
        """Remove the marks of a clean stop, durably, before the first change. From then
        on a thread runs the tasks that are due later."""
        if not self._marks.is_writing:
            self._keeper.start()
            with self._marks_lock:
                self._begin_writing()
            self._retention.begin()

    def _begin_writing(self) -> None:
        if self._marks.is_writing:
            return
        self._marks.begin(self._catalog.adopt)
        dying, self._catalog.dying = self._catalog.dying, []
        if dying:
            delay_ms = TopicConfig().file_delete_delay_ms
            self._keeper.later(delay_ms, self._removal_of(dying))

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        # A task that is due in a year does not keep its object alive.
        found = weakref.WeakMethod(task)

        def run() -> None:
            method = found()
            if method is not None:
                method()

        self._keeper.later(delay_ms, run)

    def waiting_bytes(self) -> int:
        return self._keeper.waiting_bytes

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        self._keeper.unlink_later(directory, names, delay_ms, users)

    def lock_taken_by(self) -> int | None:
        return None if self._store_lock is None else self._store_lock.hold()

    def start_moved(self, topic: str, partition: int) -> None:
        """Update Kafka's log-start-offset-checkpoint: soon, once for all partitions
        that move meanwhile, as a broker does. logstore's own state has the start
        offset."""
        if not self._starts_scheduled:
            with contextlib.suppress(StorageError):
                self.call_later(self._write_starts, _STARTS_MS)
                self._starts_scheduled = True

    def _write_starts(self) -> None:
        self._starts_scheduled = False
        with self._marks_lock:
            if self._closed:
                return
            try:
                self._marks.write_starts(self._writers.starts())
            except OSError as error:
                logger.warning(
                    "cannot write %s: %s; logstore's own state has the start offset",
                    layout.LOG_START_CHECKPOINT,
                    error,
                )

    # ------------------------------------------------------------ close

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
        if self._forked:
            self._closed = True
            # A finalizer may run before `_mark_forked`.
            self._after_fork()
            self._let_go()
            return
        with self._close_lock:
            if self._is_finished:
                return
            self._closed = True
            # Not under the lock: a task that is running now may wait for it.
            self._retention.stop()
            self._keeper.stop()
            failure: LogStoreError | None = None
            if not self.read_only:
                with self._lock:
                    failure = self._close_writable()
            self._let_go()
        if failure is not None:
            raise failure

    def _close_writable(self) -> LogStoreError | None:
        """Close the partitions and leave the marks of a clean stop, if it is one.

        Returns the error, if any. A store that was neither changed nor in need of a
        recovery is left as it is.
        """
        failure = self._failure
        writers = self._writers
        if not self._marks.is_clean:
            # Partitions that were not used may be torn as well: a closed store is
            # clean.
            writers.recover()
            if writers.loaded and not self._marks.is_writing:
                # This only makes the next opening quick: its errors are ignored.
                with contextlib.suppress(LogStoreError):
                    self.begin_writing()
        closed = StoreClosedError(f"store {self.path} is closed")
        for writer in list(writers.loaded.values()):
            try:
                writer.close(closed, write_down=self._marks.is_writing)
            except LogStoreError as error:
                failure = self._failure = self._failure or error
        if failure is None and self._marks.is_writing:
            self._catalog.catch_up()
            ends = writers.ends()
            try:
                # Without a marker the next opening examines every partition again.
                if ends is not None:
                    self._marks.end(ends, writers.starts())
            except OSError as error:
                failure = storage_error(error, "close", self.path)
        if isinstance(failure, DiskFullError):
            # All records are durable; the next opening examines the logs again.
            logger.warning(
                "%s is durable and not marked as closed: %s", self.path, failure
            )
            return None
        return failure

    def _let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self.descriptors.close()
        if self._store_lock is not None:
            self._store_lock.release()
        self._root.close()
        self._is_finished = True

    @property
    def _forked(self) -> bool:
        """Whether this is the child of a fork, and the store belongs to its parent."""
        return native.forks() != self._forks

    def _after_fork(self) -> None:
        self._keeper.abandon()
        self._retention.abandon()
        if self._store_lock is not None:
            # The parent's lock must not stay held here when the parent has released it.
            self._store_lock.abandon()


def _take_lock(root: Directory) -> StoreLock:
    """Take the writer's lock. An unclosed store in a reference cycle keeps it until the
    garbage collector finds that store, so the collector is run once."""
    try:
        return StoreLock(root)
    except StoreLockedError as error:
        if error.holder_pid != os.getpid():
            raise
    gc.collect()
    return StoreLock(root)


def _ignore(action: RecoveryAction) -> None:
    """For loads whose actions are not needed."""


def _open_files_max(config: StoreConfig, files: Files) -> int:
    """`max_open_files`, but at most three quarters of what the process may have."""
    limit = files.resource_limits()[0]
    if limit is None:
        return config.max_open_files
    return max(min(config.max_open_files, limit * 3 // 4), 8)


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
            if not store._is_finished and not store._forked and not store.read_only:
                # The last one is called first, and if one raises (warnings may be
                # errors), the others are still called.
                stack.callback(store._close_forgotten)
                stack.callback(store._warn_unclosed)


os.register_at_fork(after_in_child=_mark_forked)
atexit.register(_close_at_exit)
