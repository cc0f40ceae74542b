"""The context of a partition's writer: its store, its directory, its settings."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from logstore import _native as native
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import LogStoreError
from logstore.io.checkpoint.cleaner import CompactedOffsets
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import TopicPartition, partition_directory

__all__ = ["LogContext", "StateServices", "StoreServices"]


class StateServices(Protocol):
    """The files in the root of a store, for its writers."""

    @property
    def ownership(self) -> Ownership:
        """The last writer of the store, and the epoch for writing state files."""

    @property
    def compacted(self) -> CompactedOffsets:
        """How far each log is compacted."""

    @property
    def has_named_producers(self) -> bool:
        """Whether the store has, or had, named producers: then their state is kept in
        all logs."""

    def begin_writing(self, *, is_deletion: bool = False) -> None:
        """Called before the first change: remove the clean-shutdown markers, and start
        a thread for `call_later`. `is_deletion`: the change makes room. Raises:
        `LogStoreError`."""

    def identify(
        self, key: TopicPartition, directory: Directory, log_id: str, *, is_empty: bool
    ) -> None:
        """Called before the first append to a partition: record which topic and which
        log its directory has. `is_empty`: its first segment is created next, durably.
        Raises: `StorageError`."""

    def before_cut(self, key: TopicPartition, offset: int) -> None:
        """A log is about to be cut at an offset, and may lose published records.
        Raises: `LogStoreError`; then nothing may be cut."""

    def start_moved(self) -> None:
        """A start offset lies inside a segment: Kafka's checkpoint must record it."""

    def record_start(self, key: TopicPartition, offset: int) -> None:
        """Record a start offset in Kafka's checkpoint, durably: nothing else has it.
        Raises: `OSError`."""


class StoreServices(Protocol):
    """The store, for the writers of its partitions."""

    store_config: StoreConfig
    descriptors: Descriptors
    lock_group: int
    unreported: deque[LogStoreError]

    @property
    def state(self) -> StateServices:
        """The state of the store, which files in its root record."""

    def check_open(self) -> None:
        """Raise `StoreClosedError` or `ForkedError` unless the store can be used."""

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        """Remove files after `delay_ms`, when their users are gone."""

    def waiting_bytes(self) -> int:
        """Bytes of the files that are waiting to be removed."""

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        """Run a task after `delay_ms`. It is a method; it runs if its object still
        exists then."""

    def lock_taken_by(self) -> int | None:
        """The pid of another program that holds the lock of the store now (0: unknown);
        None: this program holds it."""

    @property
    def lock_file(self) -> native.OpenFile | None:
        """The file that this program has locked."""


class LogContext:
    """The context of one log. Only `config` changes (`PartitionWriter.configure`).

    Attributes:
        key, name: (topic, partition), and ``topic-partition``.
        log_id, is_contiguous, foreign_end: as in `PartitionState`.
        is_identified: `.logstore-topic` says which topic and log this is.
        is_renamed: the log was copied from an existing one, whose id is still in its
            state file: this is written before `.logstore-topic`.
    """

    __slots__ = (
        "config",
        "directory",
        "files",
        "foreign_end",
        "is_contiguous",
        "is_identified",
        "is_renamed",
        "key",
        "log_id",
        "name",
        "partition",
        "services",
        "topic",
    )

    def __init__(
        self,
        services: StoreServices,
        directory: Directory,
        topic: str,
        partition: int,
        config: TopicConfig,
        *,
        log_id: str,
        is_contiguous: bool,
        foreign_end: int,
        is_identified: bool = False,
        is_renamed: bool = False,
    ) -> None:
        self.services = services
        self.directory = directory
        self.files = directory.files
        self.topic = topic
        self.partition = partition
        self.key = TopicPartition(topic, partition)
        self.name = partition_directory(topic, partition)
        self.config = config
        self.log_id = log_id
        self.is_contiguous = is_contiguous
        self.foreign_end = foreign_end
        self.is_identified = is_identified
        self.is_renamed = is_renamed

    def identify(self, *, is_empty: bool) -> None:
        """Before an append: see that `.logstore-topic` is there.

        Args:
            is_empty: there is no segment yet.

        Raises:
            StorageError: it cannot be written; nothing may be appended.
        """
        if not self.is_identified:
            self.services.state.identify(
                self.key, self.directory, self.log_id, is_empty=is_empty
            )
            self.is_identified = True

    def compacted_upto(self) -> int | None:
        """The offset up to which the log is compacted; None: it never was.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        return self.services.state.compacted.all().get(self.key)
