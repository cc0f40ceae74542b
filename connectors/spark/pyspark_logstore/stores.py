"""The stores a process has open, and which partitions of them a query reads.

Everything is opened read-only. A Spark worker serves many tasks, so stores stay open
between them; an open store is closed when another directory is at its path.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import platform
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

import logstore
from logstore import (
    ConfigError,
    LogStoreError,
    OffsetOutOfRangeError,
    Partition,
    StorageError,
    Store,
    TopicNotFoundError,
    TopicPartition,
)
from logstore.errors import PartitionNotFoundError
from logstore.log.read.options import ReadOptions
from logstore.store.package_access import publication_key, readable_end
from pyspark_logstore.read.offsets import Bounds, LossPolicy, Mark
from pyspark_logstore.read.options import Selection, SourceOptions

__all__ = [
    "DELETED",
    "Identity",
    "NotSharedError",
    "OpenStore",
    "StoreCache",
    "check_partition",
    "check_store",
    "directory_of",
    "find_time",
    "identity_of",
    "settled",
    "reopen_store",
    "store_at",
]

logger = logging.getLogger("logstore.spark")

Result = TypeVar("Result")

_COMMITTED: Final = ReadOptions.of(False, "read_committed", "skip")

# The errors of a partition that no longer exists. Not `LookupError`: the error of a
# deleted offset is one, too.
DELETED: Final = (TopicNotFoundError, PartitionNotFoundError)

STORES_MAX: Final = 8
# How often the ends of all partitions are read until no publication intervenes.
_ATTEMPTS_MAX: Final = 100
# Kafka's own topics, which Kafka's consumers also exclude from patterns.
INTERNAL_TOPICS: Final = frozenset({"__consumer_offsets", "__transaction_state"})


class NotSharedError(LogStoreError):
    """A task finds a different directory at the path of the store, or none."""


class Identity(NamedTuple):
    """Identifies a directory among others at the same path.

    Neither half is enough. Inode numbers repeat: the root of a file system has the same
    one on every disk, and machines that were set up alike get the same ones. The names
    in the files of a store are also in its copies. The device number is left out, since
    it differs between hosts.

    Attributes:
        inode: the inode number.
        names: the names that programs that write to a store give it, by file. Each is
            random, so that no other store has it.
    """

    inode: int
    names: tuple[tuple[str, str], ...] = ()

    def is_same(self, other: Identity) -> bool:
        """Whether it can be the same directory at a later time, or seen from another
        host: a name may be added, but none is removed or changed."""
        return self.inode == other.inode and set(self.names) <= set(other.names)

    def __str__(self) -> str:
        names = "".join(f", {name} in {file}" for file, name in self.names)
        return f"inode {self.inode}{names}"


NO_IDENTITY: Final = Identity(-1)

# docs/format.md, `.logstore-owner` and `meta.properties`. Their size is limited here so
# that any other file does no harm.
OWNER: Final = ".logstore-owner"
META_PROPERTIES: Final = "meta.properties"
NAME_FILE_BYTES_MAX: Final = 1 << 20
NAME_FILE_ATTEMPTS: Final = 3
OPEN_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


def identity_of(path: str, *, names: bool = False) -> Identity | None:
    """The identity of a directory; None if it does not exist.

    Args:
        names: whether to read the names of a store. Takes some 50 us.

    Raises:
        OSError: it cannot be looked at.
    """
    try:
        inode = os.stat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None
    return Identity(inode, _names(path) if names else ())


def _names(path: str) -> tuple[tuple[str, str], ...]:
    """Names by file, without files that are missing or invalid: code that needs their
    content reports the error."""
    names = {
        OWNER: _generation(_text(os.path.join(path, OWNER))),
        META_PROPERTIES: _broker(_text(os.path.join(path, META_PROPERTIES))),
    }
    return tuple((file, name) for file, name in names.items() if name)


def _text(path: str) -> str:
    for _ in range(NAME_FILE_ATTEMPTS):
        try:
            # Not blocking: a named pipe in its place has no data.
            fd = os.open(path, OPEN_FLAGS)
            try:
                return os.read(fd, NAME_FILE_BYTES_MAX).decode(errors="replace")
            finally:
                os.close(fd)
        except OSError as error:
            # Replaced by another host while it was read, over NFS.
            if error.errno != errno.ESTALE:
                break
    return ""


def _generation(text: str) -> str:
    """The generation in an owner file, which changes when logstore begins to write
    after another program."""
    try:
        return str(json.loads(text.partition("\n")[2])["generation"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _broker(text: str) -> str:
    """Kafka's id of a log directory; before 3.7, that of the broker it belongs to."""
    properties = dict(re.findall(r"^(directory\.id|cluster\.id)=(.+?)\s*$", text, re.M))
    name: str = properties.get("directory.id") or properties.get("cluster.id", "")
    number = re.search(r"^(?:node|broker)\.id=(\d+)", text, re.M)
    if name and number and "directory.id" not in properties:
        name += f"/{number[1]}"
    return name


class OpenStore:
    """A store that is open for reading, with the recorded partition directories."""

    def __init__(self, path: str, identity: Identity = NO_IDENTITY) -> None:
        self.path = path
        self.identity = identity
        self.process = os.getpid()
        self.store: Store = logstore.open(path, read_only=True)
        self._seen: dict[TopicPartition, Identity] = {}
        # By partition: (end offset and mark, last stable offset for these).
        self._stable: dict[TopicPartition, tuple[tuple[int, Mark | None], int]] = {}

    def select(self, selection: Selection) -> list[TopicPartition]:
        """The existing partitions, in order. None of a topic that does not exist."""
        topics = self.store.topics()
        if selection.assigned:
            requested = {p.topic for p in selection.assigned}
        elif selection.pattern is not None:
            matches = selection.pattern.fullmatch
            requested = {t for t in topics if matches(t) and t not in INTERNAL_TOPICS}
        else:
            requested = set(selection.topics)
        partitions = [
            TopicPartition(topic, number)
            for topic in sorted(requested.intersection(topics))
            for number in self.store.topic(topic).numbers
        ]
        if selection.assigned:
            partitions = [p for p in partitions if p in selection.assigned]
        return partitions

    def check_selected(self, selection: Selection) -> list[TopicPartition]:
        """Do the same as `select`, and check the names.

        Raises:
            ConfigError: a topic or partition given by name does not exist.
        """
        partitions = self.select(selection)
        topics = ", ".join(self.store.topics()) or "none"
        missing = sorted(set(selection.topics) - {p.topic for p in partitions})
        if missing:
            raise ConfigError(
                f"option subscribe: the store {self.path} has no topic "
                f"{', '.join(missing)}; its topics: {topics}",
                name="subscribe",
                value=missing[0],
            )
        absent = sorted(selection.assigned - set(partitions))
        if absent:
            raise ConfigError(
                f"option assign: the store {self.path} has no partition "
                f"{', '.join(map(str, absent))}; its topics: {topics}",
                name="assign",
                value=str(absent[0]),
            )
        if not partitions:
            logger.warning(
                "option subscribePattern matches no topic of %s; there are: %s",
                self.path,
                topics,
            )
        return partitions

    def partition(self, partition: TopicPartition) -> Partition:
        """An open partition.

        Raises:
            LookupError: it does not exist (`TopicNotFoundError` and others of
                logstore).
        """
        self.is_same(partition)  # records its directory before it is opened
        return self.store.topic(partition.topic)[partition.partition]

    def identity_of(self, partition: TopicPartition) -> Identity | None:
        """The identity of a partition's directory now; None: it is gone.

        Raises:
            StorageError: it cannot be read.
        """
        return directory_of(self.path, partition)

    def identity_seen(self, partition: TopicPartition) -> Identity | None:
        """The identity of the directory when the partition was first requested here:
        its data was read later. None: it was not requested yet, or it was gone."""
        return self._seen.get(partition)

    def is_same(self, partition: TopicPartition) -> bool:
        """Whether the partition is still the same as when it was first requested
        here."""
        now = self.identity_of(partition)
        return now is not None and self._seen.setdefault(partition, now) == now

    def mark(self, name: TopicPartition, partition: Partition) -> Mark | None:
        """Which log the partition has now; None: no program records it."""
        mark, seen = partition.mark(), self._seen.get(name)
        if mark is None or seen is None:
            return None
        return Mark(mark.log_id, mark.serial, seen.inode)

    def starts(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The start offsets of those partitions that exist."""
        starts = {}
        for name in partitions:
            with contextlib.suppress(*DELETED):
                starts[name] = self.partition(name).start_offset
        return starts

    def bounds(
        self,
        partitions: Iterable[TopicPartition],
        options: SourceOptions,
    ) -> dict[TopicPartition, Bounds]:
        """The readable offsets of the partitions that exist, as limited by the options;
        of a publication, all or nothing. A reader of the log finds damage."""
        partitions = tuple(partitions)
        for _ in range(_ATTEMPTS_MAX):
            token = publication_key(self.store)
            bounds = {}
            for name in partitions:
                with contextlib.suppress(*DELETED):
                    bounds[name] = self._bounds_of(name, options)
            if publication_key(self.store) == token:
                break
        return bounds

    def _bounds_of(self, name: TopicPartition, options: SourceOptions) -> Bounds:
        partition = self.partition(name)
        for attempt in range(_ATTEMPTS_MAX):
            # The mark first: a later comparison detects a cut made after it.
            mark = self.mark(name, partition)
            end = partition.end_offset
            try:
                if options.isolation == "read_committed":
                    end = min(end, self._stable_end(name, partition, end, mark))
            except OffsetOutOfRangeError:  # deleted or cut meanwhile
                if attempt + 1 == _ATTEMPTS_MAX:
                    raise
                continue
            if options.durable_only:
                end = min(end, partition.durable_offset)
            start = partition.start_offset
            break
        return Bounds(start, max(start, end), mark)

    def _stable_end(
        self, name: TopicPartition, partition: Partition, end: int, mark: Mark | None
    ) -> int:
        """The last stable offset of a log; damage is left out, which a read meets by
        itself. It may read the whole log: called again only if the log has changed. The
        end of a transaction is a record, too."""
        entry = self._stable.get(name)
        if entry is None or entry[0] != (end, mark):
            stable = readable_end(partition, _COMMITTED)
            entry = self._stable[name] = (end, mark), stable
        return entry[1]


class StoreCache:
    """Open stores by path; the least recently used one is closed first."""

    def __init__(self, capacity: int = STORES_MAX) -> None:
        self._capacity = capacity
        self._open: OrderedDict[str, OpenStore] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def get(self, path: str) -> OpenStore:
        """The store at an absolute path.

        Raises:
            StoreNotFoundError, StorageError: it does not exist, or cannot be read.
        """
        try:
            identity = identity_of(path, names=True) or NO_IDENTITY
        except OSError:
            identity = NO_IDENTITY  # opening it raises the error
        opened = self._open.get(path)
        if opened is not None and (
            not opened.identity.is_same(identity) or opened.process != os.getpid()
        ):
            self.drop(path)
            opened = None
        if opened is None:
            opened = OpenStore(path, identity)
            self._open[path] = opened
        opened.identity = identity
        self._open.move_to_end(path)
        while len(self._open) > self._capacity:
            self.drop(next(iter(self._open)))
        return opened

    def drop(self, path: str) -> None:
        """Close the store at a path, if it is open."""
        opened = self._open.pop(path, None)
        if opened is not None and opened.process == os.getpid():
            opened.store.close()


_CACHE: Final = StoreCache()


def store_at(path: str, partitions: Iterable[TopicPartition] = ()) -> OpenStore:
    """The store at an absolute path, kept open in this process.

    It is reopened if one of `partitions` has a different directory than before: a topic
    was deleted and created again.
    """
    partitions = tuple(partitions)
    opened = _CACHE.get(path)
    others = [name for name in partitions if not opened.is_same(name)]
    if others:
        _CACHE.drop(path)
        opened = _CACHE.get(path)
        for name in partitions:
            opened.is_same(name)  # records it before it is opened
    return opened


def reopen_store(path: str) -> OpenStore:
    """Close the store if it is open in this process, and open it again."""
    _CACHE.drop(path)
    return _CACHE.get(path)


ADVICE: Final = (
    "The path must lead to the same directory in the driver and in all executors: a "
    "local disk in local mode, else a mount that all share"
)


def check_store(path: str, expected: Identity) -> None:
    """Raise unless a task sees the store that the driver saw.

    Args:
        path: of the store, absolute.
        expected: `identity_of(path, names=True)` in the driver.

    Raises:
        NotSharedError: it sees another directory or none, or has no permission.
    """
    where = f"option path: {path} on host {platform.node()}, where a task runs,"
    try:
        identity = identity_of(path, names=True)
    except OSError as error:
        raise NotSharedError(
            f"{where} cannot be examined: {error.strerror} (user {os.geteuid()}); the "
            f"driver sees a store there. {ADVICE}, and be open to the user that "
            "the executors run as"
        ) from error
    if identity is None:
        raise NotSharedError(
            f"option path: there is no directory {path} on host {platform.node()}, "
            f"where a task runs; the driver sees one. {ADVICE}"
        )
    if not expected.is_same(identity):
        raise NotSharedError(
            f"{where} is not the directory that the driver saw ({identity}; not "
            f"{expected}). {ADVICE}; or it was replaced since the query was planned, "
            f"then load it again"
        )


def directory_of(path: str, partition: TopicPartition) -> Identity | None:
    """The identity of a partition's directory in a store; None: it does not exist.

    Raises:
        StorageError: it cannot be read.
    """
    directory = os.path.join(path, str(partition))
    try:
        return identity_of(directory)
    except OSError as error:
        raise StorageError(
            f"cannot examine {directory}, the directory of {partition}, on host "
            f"{platform.node()}: {error.strerror}. {ADVICE}",
            errno=error.errno,
            path=directory,
            action="examine",
        ) from error


def check_partition(
    path: str, partition: TopicPartition, expected: Identity | None, loss: LossPolicy
) -> None:
    """Raise if the directory of a partition is not the one that the driver saw. If it
    does not exist, opening it raises the error.

    Args:
        path: of the store, which `check_store` has found to be the driver's.

    Raises:
        NotSharedError: it is another one, and ``failOnDataLoss`` is true.
        PartitionNotFoundError: it is another one, and ``failOnDataLoss`` is false:
            the partition to be read is gone.
        StorageError: it cannot be read.
    """
    if directory_of(path, partition) in (None, expected):
        return
    what = (
        f"option path: {path} on host {platform.node()}, where a task runs, has "
        f"another directory {partition} than the driver saw"
    )
    why = "its topic was deleted and created again since the query was planned"
    if loss.fails:
        raise NotSharedError(f"{what}. {ADVICE}; or {why}, then load it again")
    raise PartitionNotFoundError(
        f"{what}: {why}", topic=partition.topic, partition=partition.partition
    )


def settled(plan: Callable[[], Result]) -> Result:
    """The result of `plan`, which is called again if data that it was about to read was
    deleted meanwhile: nothing has been promised yet."""
    for _ in range(_ATTEMPTS_MAX):
        with contextlib.suppress(*DELETED, OffsetOutOfRangeError):
            return plan()
    return plan()


def find_time(opened: OpenStore) -> Callable[[TopicPartition, int], int | None]:
    """`Partition.offset_for_time` by name."""

    def find(name: TopicPartition, timestamp_ms: int) -> int | None:
        return opened.partition(name).offset_for_time(timestamp_ms)

    return find
