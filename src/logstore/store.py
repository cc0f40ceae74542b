"""A store: a directory of partitions, the same thing as one Kafka log directory.

What is kept beside Kafka's files (docs/format.md, "logstore's own files"):
`.logstore-owner` tells whether the last writer was logstore, and whether it closed
cleanly; `.logstore-topics` has the settings of topics.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import uuid
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from logstore import checkpoints, layout
from logstore._files import Directory, Files
from logstore.config import PARTITIONS_MAX, StoreConfig, TopicConfig, check_int
from logstore.descriptors import Descriptors
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    CorruptionError,
    DiskFullError,
    ForkedError,
    LogStoreError,
    PartitionNotFoundError,
    ReadOnlyError,
    StoreClosedError,
    StoreLockedError,
    StoreNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
    storage_error,
)
from logstore.housekeeper import Housekeeper
from logstore.live import LiveLog
from logstore.partition import Partition
from logstore.partitioners import Partitioner
from logstore.recovery import (
    LOST_SEGMENT,
    OTHER_WRITER,
    STATE_DAMAGED,
    UNREADABLE,
    Loader,
    PartitionState,
    RecoveryAction,
    RecoveryReport,
    Situation,
)
from logstore.topic import Topic
from logstore.writer import PartitionWriter

__all__ = ["Store", "open_store"]

logger = logging.getLogger("logstore")

TopicPartition = tuple[str, int]

# Locks of this process by (device, inode) of the lock file: a POSIX lock does not
# exclude its own process, and closing any descriptor of the file would drop it.
_held: set[tuple[int, int]] = set()
_held_lock = threading.Lock()
_open_stores: weakref.WeakSet[Store] = weakref.WeakSet()


def open_store(
    path: str | os.PathLike[str],
    *,
    read_only: bool = False,
    create: bool = True,
    config: StoreConfig | None = None,
    on_recovery: Callable[[RecoveryAction], None] | None = None,
    files: Files | None = None,
) -> Store:
    """Open a store.

    Args:
        path: its directory; a Kafka log directory is one.
        read_only: change nothing, take no lock; any number of processes may, also while
            a writer or a broker works on it.
        create: make the directory if it is not there (never with `read_only`).
        config: how this process uses it.
        on_recovery: called with each action of the recovery as it happens.
        files: the system calls to use (for tests).

    Raises:
        StoreNotFoundError: nothing is there and it is not to be created.
        StoreLockedError: another writer has it.
        StorageError: the system refuses.
    """
    return Store(
        os.path.abspath(os.fspath(path)),
        read_only=read_only,
        create=create and not read_only,
        config=config or StoreConfig(),
        on_recovery=on_recovery,
        files=files or Files(),
    )


class Store:
    """An open store; a context manager. Made by `logstore.open`.

    Attributes:
        path: absolute path of its directory.
        read_only: whether it was opened so.
        config: the `StoreConfig` it was opened with.
        recovery_report: what opening had to mend; false when nothing.
    """

    def __init__(
        self,
        path: str,
        *,
        read_only: bool,
        create: bool,
        config: StoreConfig,
        on_recovery: Callable[[RecoveryAction], None] | None,
        files: Files,
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.config = self.store_config = config
        self.recovery_report = RecoveryReport()
        self._files = files
        self._lock = threading.RLock()
        self._closed = False
        self._forked = False
        self._lock_fd = -1
        self._lock_key: tuple[int, int] | None = None
        self._writers: dict[TopicPartition, PartitionWriter] = {}
        self._partitions: dict[TopicPartition, Partition] = {}
        self._broken: dict[TopicPartition, LogStoreError] = {}
        self._numbers: dict[str, tuple[int, ...]] = {}
        self._topics: dict[str, Topic] = {}
        self._settings: dict[str, dict[str, Any]] = {}
        self._settings_damaged = False
        self._dying: list[str] = []
        self._root_mtime_ns = -1
        self._writing = False
        self._starts: dict[TopicPartition, int] = {}
        self._points: dict[TopicPartition, int] = {}
        self._root = self._open_root(create)
        self.descriptors = Descriptors(files, config.max_open_files)
        self._keeper = Housekeeper(files, os.path.basename(path))
        try:
            if not read_only:
                self._take_lock()
            self._load(on_recovery)
        except BaseException:
            self._let_go()
            raise
        _open_stores.add(self)

    def __repr__(self) -> str:
        mode = "read-only" if self.read_only else "read-write"
        return f"<logstore.Store {self.path} ({mode})>"

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ------------------------------------------------------------ opening

    def _open_root(self, create: bool) -> Directory:
        try:
            if create:
                self._files.make_root(self.path)
            return Directory.open_root(self._files, self.path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreNotFoundError(
                f"there is no store at {self.path}", path=self.path
            ) from error
        except OSError as error:
            raise storage_error(error, "open", self.path) from error

    def _take_lock(self) -> None:
        """Take Kafka's lock on the directory; it goes when the process dies."""
        root, files = self._root, self._files
        path = root.path_of(layout.LOCK)
        with _held_lock:
            try:
                with contextlib.suppress(FileNotFoundError):
                    info = root.stat(layout.LOCK)
                    if (info.device, info.inode) in _held:
                        raise self._locked(os.getpid())
                try:
                    fd = root.create(layout.LOCK)
                except FileExistsError:
                    fd = root.open(layout.LOCK, write=True)
                holder = files.lock(fd)
                if holder is not None:
                    files.close(fd)
                    raise self._locked(holder or None)
                found = files.stat(fd)
            except OSError as error:
                raise storage_error(error, "lock", path) from error
            self._lock_fd = fd
            self._lock_key = (found.device, found.inode)
            _held.add(self._lock_key)

    def _locked(self, pid: int | None) -> StoreLockedError:
        who = f"process {pid}" if pid else "another process"
        if pid == os.getpid():
            who = "this process"
        return StoreLockedError(
            f"store {self.path} is open for writing in {who}; open it with "
            f"read_only=True, or close it there",
            path=self.path,
            holder_pid=pid,
        )

    def _load(self, on_recovery: Callable[[RecoveryAction], None] | None) -> None:
        actions: list[RecoveryAction] = []

        def note(action: RecoveryAction) -> None:
            actions.append(action)
            logger.warning("recovery: %s: %s", action.label, action.message)
            if on_recovery is not None:
                on_recovery(action)

        try:
            names = self._root.names()
            self._read_settings(note)
            self._own, self._clean = self._read_owner(names, note)
            self._read_checkpoints(note)
            self._find_topics(names)
            self._check_directories(note)
            if not self.read_only:
                self._finish_deletions(self._root.names())
                for key in self._all_partitions():
                    if key not in self._broken:
                        self._load_writer(key, note)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, "read", self.path) from error
        self.recovery_report = RecoveryReport(tuple(actions))

    def _note_store(
        self,
        note: Callable[[RecoveryAction], None],
        label: str,
        name: str,
        message: str,
    ) -> None:
        path = self._root.path_of(name)
        note(RecoveryAction(label, "", -1, path, -1, 0, -1, None, message))

    def _read_settings(self, note: Callable[[RecoveryAction], None]) -> None:
        try:
            value = checkpoints.read_state(self._root, layout.TOPICS)
        except CorruptCheckpointError as error:
            self._note_store(
                note, STATE_DAMAGED, layout.TOPICS, f"{error}; topics have defaults"
            )
            self._settings_damaged = True
            return
        self._settings = dict(value["topics"]) if value else {}

    def _read_owner(
        self, names: list[str], note: Callable[[RecoveryAction], None]
    ) -> tuple[bool, bool]:
        """(logstore was the last writer, the last writer stopped cleanly)."""
        kafka_clean = layout.CLEAN_SHUTDOWN in names
        try:
            owner = checkpoints.read_state(self._root, layout.OWNER)
        except CorruptCheckpointError as error:
            self._note_store(
                note,
                STATE_DAMAGED,
                layout.OWNER,
                f"{error}; the store was taken as Kafka would take it",
            )
            return False, kafka_clean
        if owner is None:
            return False, kafka_clean
        now = checkpoints.store_fingerprint(self._root)
        if now not in owner["fingerprints"]:
            self._note_store(
                note,
                OTHER_WRITER,
                layout.OWNER,
                "another program has written to the store since logstore did; it was "
                "taken as Kafka would take it",
            )
            return False, kafka_clean
        return True, bool(owner["clean"])

    def _read_checkpoints(self, note: Callable[[RecoveryAction], None]) -> None:
        for name, target in (
            (layout.RECOVERY_CHECKPOINT, self._points),
            (layout.LOG_START_CHECKPOINT, self._starts),
        ):
            try:
                target.update(checkpoints.read_offsets(self._root, name))
            except CorruptCheckpointError as error:
                self._note_store(
                    note, STATE_DAMAGED, name, f"{error}; taken as empty, as Kafka does"
                )

    def _find_topics(self, names: list[str]) -> None:
        found: dict[str, list[int]] = {}
        for name in names:
            parsed = layout.parse_partition_directory(name)
            if parsed is None:
                continue
            try:
                is_directory = self._root.stat(name).is_directory
            except FileNotFoundError:
                continue
            if is_directory:
                found.setdefault(parsed[0], []).append(parsed[1])
        self._numbers = {
            topic: tuple(sorted(numbers)) for topic, numbers in sorted(found.items())
        }

    def _check_directories(self, note: Callable[[RecoveryAction], None]) -> None:
        """Hold the directories against what is known of topics: make those of a topic
        whose creation was cut short, note those that are lost."""
        if not self._own:
            return
        renamed = self._renamed_for_deletion()
        for topic, settings in list(self._settings.items()):
            gone = topic in renamed and topic not in self._numbers
            if gone or settings.get("deleting"):
                # Without a directory there is nothing that could be lost by it.
                self._finish_topic_deletion(topic)
                continue
            have = set(self._numbers.get(topic, ()))
            missing = [n for n in range(settings["partitions"]) if n not in have]
            for number in missing:
                name = layout.partition_directory(topic, number)
                if settings.get("creating"):
                    if not self.read_only:
                        self._root.make(name)
                        have.add(number)
                    continue
                lost = CorruptionError(
                    f"the directory of partition {name} is gone from {self.path}; the "
                    f"others can be used",
                    path=self._root.path_of(name),
                )
                self._broken[topic, number] = lost
                have.add(number)
                note(
                    RecoveryAction(
                        LOST_SEGMENT, topic, number, lost.path, -1, 0, -1, None,
                        str(lost),
                    )
                )  # fmt: skip
            if have:
                self._numbers[topic] = tuple(sorted(have))
            if settings.get("creating") and not self.read_only:
                done = {k: v for k, v in settings.items() if k != "creating"}
                self._write_settings(topic, done)

    def _renamed_for_deletion(self) -> set[str]:
        """Topics (of which logstore has settings) that have ``-delete`` directories."""
        found = map(layout.transition_topic, self._root.names())
        prefixes = [parsed[0] for parsed in found if parsed and parsed[2] == "delete"]
        return {
            topic
            for topic in self._settings
            if any(
                topic == prefix or (len(prefix) > 200 and topic.startswith(prefix))
                for prefix in prefixes
            )
        }

    def _finish_topic_deletion(self, topic: str) -> None:
        """Go on with a deletion that was cut short after its commit."""
        numbers = self._numbers.pop(topic, ())
        if self.read_only:
            return
        for number in numbers:
            self._root.rename(
                layout.partition_directory(topic, number),
                layout.deleted_directory(topic, number, uuid.uuid4().hex),
            )
        self._root.sync()
        self._write_settings(topic, None)

    def _all_partitions(self) -> list[TopicPartition]:
        return [(t, n) for t, numbers in self._numbers.items() for n in numbers]

    def _situation(self, directory: Directory, key: TopicPartition) -> Situation:
        """What is known of a partition before its files are looked at."""
        state: PartitionState | None = None
        state_error: LogStoreError | None = None
        if self._own:
            try:
                value = checkpoints.read_state(directory, layout.PARTITION_STATE)
                state = None if value is None else PartitionState.from_dict(value)
            except CorruptCheckpointError as error:
                state_error = error
            except (KeyError, TypeError, ValueError) as error:
                state_error = CorruptCheckpointError(
                    f"{directory.path_of(layout.PARTITION_STATE)} is no partition "
                    f"state: {error!r}",
                    path=directory.path_of(layout.PARTITION_STATE),
                )
        return Situation(
            state,
            self._clean,
            self._points.get(key, 0),
            self._starts.get(key, 0),
            self._own,
            state_error,
        )

    def _load_writer(
        self, key: TopicPartition, note: Callable[[RecoveryAction], None]
    ) -> None:
        topic, number = key
        directory = self._root.child(layout.partition_directory(topic, number))
        config = self.topic_config(topic)
        try:
            loaded = Loader(
                directory,
                self.descriptors,
                topic,
                number,
                config,
                self._situation(directory, key),
                writable=True,
            ).load()
        except (OSError, LogStoreError) as error:
            # One partition that cannot be read does not keep the others from opening.
            if isinstance(error, LogStoreError):
                broken = error
            else:
                broken = storage_error(error, "open", directory.path)
            self._broken[key] = broken
            note(
                RecoveryAction(
                    UNREADABLE, topic, number, directory.path, -1, 0, -1, None,
                    str(broken),
                )
            )  # fmt: skip
            return
        for action in loaded.actions:
            note(action)
        self._writers[key] = PartitionWriter(
            self, directory, topic, number, config, loaded
        )

    def partition_numbers(self, topic: str) -> tuple[int, ...]:
        """Numbers of a topic's partitions, in order.

        Raises:
            TopicNotFoundError: it was deleted.
        """
        self.check_open()
        if self.read_only:
            self._rescan()
        numbers = self._numbers.get(topic, ())
        if not numbers:
            raise TopicNotFoundError(
                f"store {self.path} has no topic {topic!r}", topic=topic
            )
        return numbers

    def topic_config(self, topic: str) -> TopicConfig:
        settings = self._settings.get(topic, {}).get("config", {})
        known = set(TopicConfig.__dataclass_fields__)
        return TopicConfig(**{k: v for k, v in settings.items() if k in known})

    # ------------------------------------------------------------ guards

    def check_open(self) -> None:
        """Raise unless the store can be used here and now."""
        if self._closed:
            raise StoreClosedError(f"store {self.path} is closed")
        if self._forked:
            raise ForkedError(
                f"store {self.path} was opened before a fork; open it in the child"
            )

    def _check_writable(self, what: str) -> None:
        self.check_open()
        if self.read_only:
            raise ReadOnlyError(
                f"store {self.path} was opened read-only; cannot {what}"
            )

    # ------------------------------------------------------------ topics

    def topics(self) -> list[str]:
        """Names of the topics, sorted."""
        self.check_open()
        if self.read_only:
            self._rescan()
        return sorted(self._numbers)

    def _rescan(self) -> None:
        """Read-only: see what the writer did meanwhile."""
        with self._lock:
            try:
                mtime_ns = self._root.info().mtime_ns
                if mtime_ns == self._root_mtime_ns:
                    return
                self._own, self._clean = self._read_owner(self._root.names(), _ignore)
                self._read_settings(_ignore)
                self._find_topics(self._root.names())
                self._broken.clear()
                self._check_directories(_ignore)
                self._root_mtime_ns = mtime_ns
            except OSError as error:
                raise storage_error(error, "read", self.path) from error

    def topic(self, name: str, *, partitioner: Partitioner | None = None) -> Topic:
        """An existing topic.

        Raises:
            TopicNotFoundError: there is none of this name.
        """
        self.check_open()
        if self.read_only:
            self._rescan()
        with self._lock:
            if name not in self._numbers:
                raise TopicNotFoundError(
                    f"store {self.path} has no topic {name!r}", topic=str(name)
                )
            topic = self._topics.get(name)
            if topic is None:
                topic = Topic(self, name)
                self._topics[name] = topic
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
        """Create a topic.

        1. write down its settings, as being created (commit: opening finishes it);
        2. create the directories; 3. sync the store's; 4. write the settings again.

        Args:
            name: 1 to 249 characters out of ``[A-Za-z0-9._-]``, not ``.`` or ``..``.
            partitions: how many (1 to 1,000,000).
            config: its settings, kept in the store; None: the defaults.
            exist_ok: return a topic that is there, if it is as asked for.

        Raises:
            ConfigError: a bad name or number.
            TopicExistsError: it is there (and differs, with `exist_ok`), or only
                ``.`` and ``_`` tell its name from another's, as in Kafka.
        """
        self._check_writable(f"create topic {name!r}")
        layout.check_new_topic_name(name)
        check_int("partitions", partitions, 1, PARTITIONS_MAX)
        with self._lock:
            if name in self._numbers:
                return self._existing(name, partitions, config, exist_ok)
            self._check_collision(name)
            self._create(name, range(partitions), config or TopicConfig())
            return self.topic(name)

    def _existing(
        self, name: str, partitions: int, config: TopicConfig | None, exist_ok: bool
    ) -> Topic:
        topic = self.topic(name)
        if not exist_ok:
            raise TopicExistsError(f"topic {name} is already there", topic=name)
        if len(topic) != partitions:
            raise TopicExistsError(
                f"topic {name} has {len(topic)} partitions, not {partitions}",
                topic=name,
            )
        if config is not None and name not in self._settings:
            # Only its directories were there: now it has settings, too.
            topic.configure(config)
        if config is not None and config != topic.config:
            was, asked = topic.config.to_dict(), config.to_dict()
            differing = [k for k in was if was[k] != asked[k]]
            raise TopicExistsError(
                f"topic {name} has other settings: "
                + ", ".join(f"{k}={was[k]!r}, not {asked[k]!r}" for k in differing),
                topic=name,
            )
        return topic

    def _check_collision(self, name: str) -> None:
        flat = name.replace(".", "_")
        for other in self._numbers:
            if other.replace(".", "_") == flat:
                raise TopicExistsError(
                    f"topic {name} collides with {other}: Kafka does not tell '.' "
                    f"from '_'",
                    topic=name,
                )

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
            total = numbers[-1] + 1
            settings = {"partitions": total, "config": config.to_dict()}
            self._write_settings(name, {**settings, "creating": True})
            for number in numbers:
                with contextlib.suppress(FileExistsError):
                    self._root.make(layout.partition_directory(name, number))
            self._root.sync()
            self._write_settings(name, settings)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(error, f"create topic {name} in", self.path) from error
        for number in numbers:
            self._starts.pop((name, number), None)
            self._points.pop((name, number), None)
            self._load_writer((name, number), _ignore)
        self._numbers[name] = (*self._numbers.get(name, ()), *numbers)

    def _write_settings(self, name: str, value: dict[str, Any] | None) -> None:
        if self._settings_damaged:
            # What cannot be read is kept: it has the settings of other topics.
            kept = f"{layout.TOPICS}.damaged-{self._files.now_ms()}"
            self._root.rename(layout.TOPICS, kept)
            self._settings_damaged = False
        settings = dict(self._settings)
        settings.pop(name, None)
        if value is not None:
            settings[name] = value
        checkpoints.write_state(self._root, layout.TOPICS, {"topics": settings})
        self._settings = settings

    def configure_topic(self, name: str, config: TopicConfig) -> None:
        self._check_writable(f"configure topic {name}")
        with self._lock:
            numbers = self.partition_numbers(name)
            self.begin_writing()
            settings = {"partitions": numbers[-1] + 1, "config": config.to_dict()}
            try:
                self._write_settings(name, settings)
            except OSError as error:
                raise storage_error(
                    error, f"write the settings of {name} in", self.path
                ) from error
            for number in numbers:
                writer = self._writers.get((name, number))
                if writer is not None and writer.is_sound:
                    writer.configure(config)
                partition = self._partitions.get((name, number))
                if partition is not None:
                    partition.config = config

    def grow_topic(self, name: str, count: int) -> int:
        self._check_writable(f"add partitions to {name}")
        with self._lock:
            topic = self.topic(name)
            first = self._numbers[name][-1] + 1
            if first + count > PARTITIONS_MAX:
                raise ConfigError(
                    f"{first + count} partitions are more than {PARTITIONS_MAX}",
                    name="count",
                    value=count,
                )
            self._create(name, range(first, first + count), topic.config)
            return len(self._numbers[name])

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
            topic = self.topic(name)
            self.begin_writing()
            numbers = self._numbers[name]
            renamed: list[str] = []
            delay_ms = topic.config.file_delete_delay_ms
            settings = self._settings.get(name, {"partitions": numbers[-1] + 1})
            self._write_settings_if_room(name, {**settings, "deleting": True})
            try:
                for number in numbers:
                    key = (name, number)
                    writer = self._writers.pop(key, None)
                    if writer is not None:
                        self._end_writer(writer)
                    self._partitions.pop(key, None)
                    self._broken.pop(key, None)
                    old = layout.partition_directory(name, number)
                    new = layout.deleted_directory(name, number, uuid.uuid4().hex)
                    self._root.rename(old, new)
                    renamed.append(new)
                self._root.sync()
                self._topics.pop(name, None)
                self._numbers.pop(name, None)
            except OSError as error:
                if isinstance(error, LogStoreError):
                    raise
                raise storage_error(error, f"delete topic {name} of", self.path) from (
                    error
                )
            self._write_settings_if_room(name, None)
            logger.info("topic %s with %d partitions deleted", name, len(numbers))
            self._keeper.later(delay_ms, lambda: self._remove_directories(renamed))

    def _write_settings_if_room(self, name: str, value: dict[str, Any] | None) -> None:
        """As `_write_settings`; a full disk must not stop a deletion."""
        try:
            self._write_settings(name, value)
        except OSError as error:
            failed = storage_error(error, "write the settings in", self.path)
            if not isinstance(failed, DiskFullError):
                raise failed from error
            logger.warning("deleting topic %s goes on: %s", name, failed)

    def _end_writer(self, writer: PartitionWriter) -> None:
        """Let go of a partition that is about to be deleted; readers keep its files."""
        writer.pin_all()
        gone = TopicNotFoundError(
            f"topic {writer.topic} was deleted", topic=writer.topic
        )
        with contextlib.suppress(LogStoreError):
            writer.close(gone, write_down=False)

    def _remove_directories(self, names: list[str]) -> None:
        for name in names:
            directory = self._root.child(name)
            try:
                for file in directory.names():
                    directory.unlink(file, missing_ok=True)
                self._root.remove(name)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.warning("cannot remove %s: %s", directory.path, error)

    def _finish_deletions(self, names: list[str]) -> None:
        """Go on with deletions of topics that an earlier writer began: now where the
        delay is over, else when this one begins to write."""
        delay_ms = TopicConfig().file_delete_delay_ms
        over: list[str] = []
        for name in names:
            parsed = layout.transition_topic(name)
            if parsed is None or parsed[2] != "delete":
                continue
            age_ms = self._files.now_ms() - self._root.stat(name).ctime_ns // 1_000_000
            (self._dying if 0 <= age_ms < delay_ms else over).append(name)
        self._remove_directories(over)

    # ------------------------------------------------------------ partitions

    def open_partition(self, topic: str, number: int) -> Partition:
        """A partition; the same object every time."""
        key = (topic, number)
        found = self._partitions.get(key)
        if found is not None:
            return found
        with self._lock:
            broken = self._broken.get(key)
            if broken is not None:
                raise broken
            if number not in self._numbers.get(topic, ()):
                raise PartitionNotFoundError(
                    f"topic {topic} has no partition {number}",
                    topic=topic,
                    partition=number,
                )
            partition = self._partitions.get(key)
            if partition is None:
                config = self.topic_config(topic)
                partition = Partition(
                    topic,
                    number,
                    config,
                    self._writers[key] if not self.read_only else self._live(key),
                    self.check_open,
                    self.config.max_batch_decompressed_bytes,
                )
                self._partitions[key] = partition
            return partition

    def _live(self, key: TopicPartition) -> LiveLog:
        topic, number = key
        directory = self._root.child(layout.partition_directory(topic, number))

        def situation() -> Situation:
            self._own, self._clean = self._read_owner(self._root.names(), _ignore)
            self._read_checkpoints(_ignore)
            return self._situation(directory, key)

        return LiveLog(
            directory,
            self.descriptors,
            topic,
            number,
            self.topic_config(topic),
            situation,
        )

    # ------------------------------------------------------------ for the writers

    def begin_writing(self) -> None:
        """Take away the marks of a clean stop, durably, before the first change.

        1. write the owner file: not clean, as it is now or without Kafka's marker;
        2. remove Kafka's marker; 3. sync the directory.
        """
        with self._lock:
            if self._writing:
                return
            now = checkpoints.store_fingerprint(self._root)
            after = {**now, "clean_shutdown": None}
            try:
                checkpoints.write_state(
                    self._root,
                    layout.OWNER,
                    {"clean": False, "fingerprints": [now, after]},
                )
                self._root.unlink(layout.CLEAN_SHUTDOWN, missing_ok=True)
                self._root.sync()
            except OSError as error:
                failed = storage_error(
                    error, "begin writing to", self.path, "Nothing was written."
                )
                if not isinstance(failed, DiskFullError):
                    raise failed from error
                self._begin_without_space(failed)
            self._writing = True
            dying, self._dying = self._dying, []
            if dying:
                delay_ms = TopicConfig().file_delete_delay_ms
                self._keeper.later(delay_ms, lambda: self._remove_directories(dying))

    def _begin_without_space(self, failed: DiskFullError) -> None:
        """A full disk must not stop deletion: without the owner file, which cannot be
        written, the next opening takes the store as Kafka would."""
        root = self._root
        try:
            for name in (layout.OWNER + ".tmp", layout.OWNER, layout.CLEAN_SHUTDOWN):
                root.unlink(name, missing_ok=True)
            root.sync()
        except OSError as error:
            raise failed from error

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        self._keeper.later(delay_ms, task)

    def waiting_bytes(self) -> int:
        return self._keeper.waiting_bytes

    def unlink_later(
        self, directory: Directory, names: list[str], delay_ms: int
    ) -> None:
        self._keeper.unlink_later(directory, names, delay_ms)

    def start_moved(self, topic: str, partition: int) -> None:
        """Keep Kafka's log-start-offset-checkpoint true."""
        with self._lock:
            try:
                self._write_starts()
            except OSError as error:
                logger.warning(
                    "cannot write %s: %s; logstore's own state has the start offset",
                    layout.LOG_START_CHECKPOINT,
                    error,
                )

    def _write_starts(self) -> None:
        starts = {
            key: writer.start_offset
            for key, writer in self._writers.items()
            if writer.segments and writer.start_offset > writer.segments[0].base_offset
        }
        if starts or self._root.exists(layout.LOG_START_CHECKPOINT):
            checkpoints.write_offsets(self._root, layout.LOG_START_CHECKPOINT, starts)

    # ------------------------------------------------------------ close

    def close(self) -> None:
        """Flush everything, mark the store as cleanly closed, let go of the lock.

        Closing twice is fine. What is read from it later raises `StoreClosedError`.

        1. close each partition (sync, indexes, state); 2. write Kafka's checkpoints;
        3. write Kafka's clean-shutdown marker; 4. write the owner file: clean.

        Raises:
            SyncFailedError, StorageError: a partition could not be made durable; the
                rest is closed all the same, and the store is not marked as clean.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
            failure: BaseException | None = None
            if not self.read_only and not self._forked:
                self._keeper.stop()
                failure = self._close_writable()
            self._let_go()
        if failure is not None:
            raise failure

    def _close_writable(self) -> LogStoreError | None:
        """Close the partitions and leave the marks of a clean stop, if it is one.

        Returns what went wrong. A store that was neither changed nor in need of a
        recovery is left as it is.
        """
        failure: LogStoreError | None = None
        recovered = bool(self._writers) and not self._clean
        if recovered and not self._writing:
            # Only so that the next opening is quick: no reason to fail.
            with contextlib.suppress(LogStoreError):
                self.begin_writing()
        closed = StoreClosedError(f"store {self.path} is closed")
        for writer in self._writers.values():
            try:
                writer.close(closed, write_down=self._writing)
            except LogStoreError as error:
                failure = failure or error
        if failure is None and self._writing:
            try:
                self._mark_clean()
            except OSError as error:
                failure = storage_error(error, "close", self.path)
        return failure

    def _mark_clean(self) -> None:
        root = self._root
        sound = {
            key: writer.end_offset
            for key, writer in self._writers.items()
            if writer.is_sound
        }
        if len(sound) != len(self._writers) or self._broken:
            # Without a marker the next opening looks at every partition again.
            return
        now = checkpoints.store_fingerprint(root)
        points = checkpoints.format_offsets(sound)
        marker = checkpoints.CLEAN_SHUTDOWN_TEXT
        after = {
            "clean_shutdown": checkpoints.digest_of(marker),
            "recovery_points": checkpoints.digest_of(points),
        }
        between = {**after, "clean_shutdown": None}
        checkpoints.write_state(
            root,
            layout.OWNER,
            {"clean": False, "fingerprints": [now, between, after]},
        )
        checkpoints.write_offsets(root, layout.RECOVERY_CHECKPOINT, sound)
        self._write_starts()
        root.write_file(layout.CLEAN_SHUTDOWN, marker)
        checkpoints.write_state(
            root, layout.OWNER, {"clean": True, "fingerprints": [after]}
        )

    def _let_go(self) -> None:
        """Close all descriptors and, with the last, the lock."""
        self.descriptors.close()
        if self._lock_fd >= 0:
            with _held_lock:
                if self._lock_key is not None:
                    _held.discard(self._lock_key)
                self._files.close(self._lock_fd)
            self._lock_fd = -1
        self._root.close()

    def _after_fork(self) -> None:
        self._forked = True
        self._keeper.abandon()
        self.descriptors.abandon()


def _ignore(action: RecoveryAction) -> None:
    """For loads whose actions nobody waits for."""


def _mark_forked() -> None:
    """In the child of a fork: no store that was open may be used.

    The lock was not inherited (POSIX locks are not), and the parent goes on writing.
    """
    global _held_lock
    _held_lock = threading.Lock()
    _held.clear()
    for store in list(_open_stores):
        store._after_fork()


os.register_at_fork(after_in_child=_mark_forked)
