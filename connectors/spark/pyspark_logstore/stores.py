"""The stores a process has open, and which partitions of them a query reads.

Everything is opened read-only. A worker of Spark's serves many tasks, so stores stay
open between them; what is open is thrown away when something else lies at its path.
"""

from __future__ import annotations

import errno
import logging
import os
import platform
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import logstore
from logstore import ConfigError, LogStoreError, Partition, Store
from pyspark_logstore.offsets import Bounds
from pyspark_logstore.options import Selection, SourceOptions, TopicPartition

__all__ = [
    "Identity",
    "NotSharedError",
    "OpenStore",
    "StoreCache",
    "check_shared",
    "find_time",
    "store_at",
]

logger = logging.getLogger("logstore.spark")

STORES_MAX: Final = 8
# Kafka's own topics, which its consumers leave out of patterns, too.
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


class NotSharedError(LogStoreError):
    """A task finds another directory at the path of the store, or none."""


class Identity(NamedTuple):
    """What tells a directory from another one at the same path.

    Without the number of the device, which is not the same on all hosts.
    """

    inode: int


def identity_of(path: str) -> Identity | None:
    """The identity of a directory; None where there is none."""
    try:
        return Identity(os.stat(path).st_ino)
    except (FileNotFoundError, NotADirectoryError):
        return None


class OpenStore:
    """A store that is open for reading, with the directories its partitions had."""

    def __init__(self, path: str, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.process = os.getpid()
        self.store: Store = logstore.open(path, read_only=True)
        self._seen: dict[TopicPartition, Identity] = {}
        self._stable: dict[TopicPartition, tuple[int, int]] = {}

    def select(self, selection: Selection) -> list[TopicPartition]:
        """The partitions there are now, in order. None of a topic that is not there."""
        topics = self.store.topics()
        if selection.assigned:
            wanted = {p.topic for p in selection.assigned}
        elif selection.pattern is not None:
            matches = selection.pattern.fullmatch
            wanted = {t for t in topics if matches(t) and t not in INTERNAL_TOPICS}
        else:
            wanted = set(selection.topics)
        found = [
            TopicPartition(topic, number)
            for topic in sorted(wanted.intersection(topics))
            for number in self.store.partition_numbers(topic)
        ]
        if selection.assigned:
            found = [p for p in found if p in selection.assigned]
        return found

    def check_selected(self, selection: Selection) -> list[TopicPartition]:
        """The same.

        Raises:
            ConfigError: something that is asked for by name is not there.
        """
        found = self.select(selection)
        there = ", ".join(self.store.topics()) or "none"
        missing = sorted(set(selection.topics) - {p.topic for p in found})
        if missing:
            raise ConfigError(
                f"option subscribe: the store {self.path} has no topic "
                f"{', '.join(missing)}; its topics: {there}",
                name="subscribe",
                value=missing[0],
            )
        absent = sorted(selection.assigned - set(found))
        if absent:
            raise ConfigError(
                f"option assign: the store {self.path} has no partition "
                f"{', '.join(map(str, absent))}; its topics: {there}",
                name="assign",
                value=str(absent[0]),
            )
        if not found:
            logger.warning(
                "option subscribePattern matches no topic of %s; there are: %s",
                self.path,
                there,
            )
        return found

    def partition(self, partition: TopicPartition) -> Partition:
        """An open partition.

        Raises:
            LookupError: it is not there (`TopicNotFoundError` and others of logstore).
        """
        self.is_same(partition)  # its directory is remembered before it is opened
        return self.store.topic(partition.topic)[partition.number]

    def identity_of(self, partition: TopicPartition) -> Identity | None:
        """The identity of a partition's directory now; None: it is gone."""
        return identity_of(os.path.join(self.path, str(partition)))

    def is_same(self, partition: TopicPartition) -> bool:
        """Whether the partition is still what it was when first asked about here."""
        now = self.identity_of(partition)
        return now is not None and self._seen.setdefault(partition, now) == now

    def bounds(
        self, partitions: Iterable[TopicPartition], options: SourceOptions
    ) -> dict[TopicPartition, Bounds]:
        """What can be read of those that are there, as the options bound it."""
        found = {}
        for name in partitions:
            try:
                partition = self.partition(name)
                end = partition.end_offset
                if options.isolation == "read_committed":
                    end = min(end, self._stable_end(name, partition, end))
                if options.durable_only:
                    end = min(end, partition.durable_offset)
                start = partition.start_offset
            except LookupError:
                continue
            except OSError as error:
                # Deleted between two looks; anything else is an error.
                if error.errno != errno.ENOENT:
                    raise
                continue
            found[name] = Bounds(start, max(start, end))
        return found

    def _stable_end(self, name: TopicPartition, partition: Partition, end: int) -> int:
        """`Partition.last_stable_offset`, which may read the whole log: asked again
        only where the end has moved. What ends a transaction is a record, too."""
        found = self._stable.get(name)
        if found is None or found[0] != end:
            found = self._stable[name] = (end, partition.last_stable_offset())
        return found[1]


class StoreCache:
    """Open stores by path; the one that was not used for longest is closed first."""

    def __init__(self, capacity: int = STORES_MAX) -> None:
        self._capacity = capacity
        self._open: OrderedDict[str, OpenStore] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> OpenStore:
        """The store at an absolute path.

        Raises:
            StoreNotFoundError, StorageError: there is none, or it cannot be read.
        """
        identity = identity_of(path)
        found = self._open.get(path)
        if found is not None and (
            found.identity != identity or found.process != os.getpid()
        ):
            self.drop(path)
            found = None
        if found is None:
            found = OpenStore(path, identity or Identity(-1))
            self._open[path] = found
        self._open.move_to_end(path)
        while len(self._open) > self._capacity:
            self.drop(next(iter(self._open)))
        return found

    def drop(self, path: str) -> None:
        """Close the store at a path, if it is open."""
        found = self._open.pop(path, None)
        if found is not None and found.process == os.getpid():
            found.store.close()


_CACHE: Final = StoreCache()


def store_at(path: str, partitions: Iterable[TopicPartition] = ()) -> OpenStore:
    """The store at an absolute path, kept open in this process.

    Opened anew where one of `partitions` is not the directory any more that it was: a
    topic was deleted and created again.
    """
    found = _CACHE.get(path)
    if not all(found.is_same(partition) for partition in partitions):
        _CACHE.drop(path)
        found = _CACHE.get(path)
    return found


def check_shared(
    path: str,
    expected: Identity,
    partition: TopicPartition,
    expected_partition: Identity | None,
) -> None:
    """Raise unless a task sees the directories that the driver saw.

    Raises:
        NotSharedError: it does not.
    """
    found = identity_of(path)
    host = platform.node()
    advice = (
        "The path must lead to the same directory in the driver and in all executors: "
        "a local disk in local mode, else a mount that all share"
    )
    if found is None:
        raise NotSharedError(
            f"option path: there is no directory {path} on host {host}, where a task "
            f"runs; the driver sees one. {advice}"
        )
    if found != expected:
        raise NotSharedError(
            f"option path: {path} on host {host}, where a task runs, is not the "
            f"directory that the driver saw (inode {found.inode}, not "
            f"{expected.inode}). {advice}; or it was replaced since the query was "
            f"planned, then load it again"
        )
    there = identity_of(os.path.join(path, str(partition)))
    if expected_partition is not None and there not in (None, expected_partition):
        raise NotSharedError(
            f"option path: {path} on host {host}, where a task runs, has another "
            f"directory {partition} than the driver saw. {advice}; or its topic was "
            f"deleted and created again since the query was planned, then load it again"
        )


def find_time(opened: OpenStore) -> Callable[[TopicPartition, int], int | None]:
    """`Partition.offset_for_time` by name."""

    def find(name: TopicPartition, timestamp_ms: int) -> int | None:
        return opened.partition(name).offset_for_time(timestamp_ms)

    return find
