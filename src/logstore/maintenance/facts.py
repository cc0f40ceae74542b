"""The facts about a directory that is about to change hands."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from logstore.config import TopicConfig, from_stored
from logstore.errors import ConfigError, CorruptCheckpointError, LogStoreError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.io.lock import holder_of
from logstore.maintenance.cluster import cluster_topics
from logstore.maintenance.finding import Finding
from logstore.maintenance.names import broker_checkpoint_fault
from logstore.maintenance.verify.context import StoreFacts
from logstore.maintenance.verify.paths import OFFSET_CHECKPOINTS
from logstore.segment import SegmentInfo
from logstore.store.store import open_store

__all__ = ["Facts", "PartitionFacts", "look_at", "properties_of"]

_TOPIC_ID: Final = re.compile(r"topic_id:[ \t]*([A-Za-z0-9_-]{22})\s*")
_SMALL_BYTES_MAX: Final = 64 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One directory of a partition.

    Attributes:
        context: what the checkpoints, and logstore's own state, say of its log.
        sizes: bytes of each `.log` file, by base offset.
        files: the names of its regular files that do not wait for their removal.
        magics: those that the segments begin with, in order.
        segments: as a reader has them; none if they cannot be read, or were not asked
            for.
        topic_id: 22 characters; empty: none is stated.
        has_bad_epochs, has_bad_metadata: that file does not follow its format.
    """

    key: TopicPartition
    path: str
    context: PartitionMetadata
    sizes: dict[int, int]
    files: frozenset[str]
    magics: tuple[int, ...]
    topic_id: str
    has_bad_epochs: bool
    has_bad_metadata: bool
    segments: tuple[SegmentInfo, ...] = ()

    @property
    def unflushed(self) -> dict[int, int]:
        """The segments from the recovery point on: what is read again without a clean
        stop."""
        point = self.context.recovery_point
        floor = max((base for base in self.sizes if base <= point), default=0)
        return {base: size for base, size in self.sizes.items() if base >= floor}


@dataclasses.dataclass(frozen=True, slots=True)
class Facts:
    """A directory that is about to change hands.

    Attributes:
        directories: the names of its directories, sorted.
        identified: those of partitions that have a `partition.metadata`.
        names: of all its files and directories.
        meta: what meta.properties says; None: there is none.
        holder: the process that has the lock; 0: unknown; None: none has it.
        is_own: logstore was the last writer.
        is_clean: the last writer stopped cleanly, for a broker: it looks at the marker
            alone; is_closed: for logstore.
        points: Kafka's recovery points.
        settings: those that logstore has of its topics.
        refused: checkpoint of offsets -> why a broker refuses it.
        cluster: the ids of the topics that a KRaft cluster has; None: unknown.
        contents: what `verify` finds.
    """

    root: Directory
    directories: tuple[str, ...]
    identified: frozenset[str]
    names: frozenset[str]
    meta: dict[str, str] | None
    holder: int | None
    is_own: bool
    is_clean: bool
    is_closed: bool
    points: Mapping[TopicPartition, int]
    settings: Mapping[str, TopicConfig]
    refused: Mapping[str, str]
    cluster: Mapping[str, str] | None
    partitions: tuple[PartitionFacts, ...]
    contents: tuple[Finding, ...]
    now_ms: int

    @property
    def path(self) -> str:
        return self.root.path

    @property
    def unflushed(self) -> tuple[int, int]:
        """(segments, bytes) that are read again without a clean stop."""
        sizes = [size for one in self.partitions for size in one.unflushed.values()]
        return len(sizes), sum(sizes)

    def path_of(self, name: str) -> str:
        return self.root.path_of(name)


def look_at(
    root: Directory,
    contents: tuple[Finding, ...],
    only: str | None = None,
    *,
    with_segments: bool = False,
) -> Facts:
    """The facts about a directory.

    Args:
        contents: what `verify` finds.
        only: the one directory of a partition to be looked at.
        with_segments: with the times of the records, for retention.

    Raises:
        OSError: the system refuses.
    """
    store = StoreFacts(root)
    directories, names = tuple(sorted(root.directories())), frozenset(root.names())
    partitions = []
    for name in directories:
        key = layout.parse_partition_directory(name)
        if key is not None and only in (None, name):
            directory = root.child(name)
            try:
                partitions.append(_partition(directory, key, store))
            except OSError:
                pass  # deleted meanwhile, or among the contents
            finally:
                directory.close()
    try:
        holder = holder_of(root)
    except FileNotFoundError:
        holder = None
    return Facts(
        root,
        directories,
        frozenset(name for name in directories if _is_identified(root, name)),
        names,
        _meta(root),
        holder,
        store.own,
        store.clean or layout.CLEAN_SHUTDOWN in names,
        store.clean,
        store.points,
        _settings(root),
        _refused(root),
        cluster_topics(root),
        tuple(_with_segments(root, partitions) if with_segments else partitions),
        contents,
        root.files.now_ms(),
    )


def _is_identified(root: Directory, name: str) -> bool:
    if layout.transition_topic(name):
        return False
    directory = root.child(name)
    try:
        return directory.exists(layout.PARTITION_METADATA)
    except OSError:
        return False
    finally:
        directory.close()


def _settings(root: Directory) -> dict[str, TopicConfig]:
    found = {}
    try:
        value = checkpoints.read_state(root, layout.TOPICS) or {"topics": {}}
    except (OSError, LogStoreError, ValueError):
        return {}  # among the contents
    for topic, row in value["topics"].items():
        with contextlib.suppress(KeyError, TypeError, ConfigError):
            found[topic] = from_stored(row["config"])
    return found


def _refused(root: Directory) -> dict[str, str]:
    found = {}
    for name in OFFSET_CHECKPOINTS:
        try:
            fault = broker_checkpoint_fault(checkpoints.state_bytes(root, name) or b"")
        except CorruptCheckpointError as error:
            fault = error.reason
        except OSError as error:
            fault = str(error.strerror)
        if fault:
            found[name] = fault
    return found


def _with_segments(
    root: Directory, partitions: Iterable[PartitionFacts]
) -> Iterator[PartitionFacts]:
    try:
        store = open_store(root.path, read_only=True, files=root.files)
    except LogStoreError:
        yield from partitions  # what is wrong is among the contents
        return
    with store:
        for one in partitions:
            segments: tuple[SegmentInfo, ...] = ()
            with contextlib.suppress(LogStoreError):
                segments = store.topic(one.key.topic)[one.key.partition].segments
            yield dataclasses.replace(one, segments=segments)


def _meta(root: Directory) -> dict[str, str] | None:
    try:
        data = root.read_file(layout.META_PROPERTIES, _SMALL_BYTES_MAX)
    except FileNotFoundError:
        return None
    return properties_of(data.decode("utf-8", "replace"))


def properties_of(text: str) -> dict[str, str]:
    """The names and values of a file of Java properties with one in each line."""
    found = {}
    for line in text.splitlines():
        name, sign, value = line.strip().partition("=")
        if sign and not name.startswith(("#", "!")):
            found[name.strip()] = value.strip().replace("\\", "")
    return found


def _partition(
    directory: Directory, key: TopicPartition, store: StoreFacts
) -> PartitionFacts:
    files: dict[str, int] = {}
    for name in directory.names():
        if name.endswith(layout.DELETED):
            continue  # there may be very many
        with contextlib.suppress(FileNotFoundError):
            info = directory.stat(name)
            if info.is_file:
                files[name] = info.size
    sizes = {
        parsed.base_offset: size
        for name, size in files.items()
        if (parsed := layout.parse_segment_file(name))
        and parsed.suffix == layout.LOG
        and not parsed.transition
    }
    has_bad_epochs = False
    try:
        checkpoints.read_epochs(directory)
    except CorruptCheckpointError:
        has_bad_epochs = True
    topic_id, has_bad_metadata = _topic_id(directory)
    return PartitionFacts(
        key,
        directory.path,
        store.context(directory, None),
        dict(sorted(sizes.items())),
        frozenset(files),
        tuple(sorted(_magics(directory, sizes))),
        topic_id,
        has_bad_epochs,
        has_bad_metadata,
    )


def _magics(directory: Directory, bases: Iterable[int]) -> set[int]:
    found = set()
    for base in bases:
        head = bytearray(17)
        with (
            contextlib.suppress(FileNotFoundError),
            directory.opened(layout.segment_file(base, layout.LOG)) as fd,
        ):
            if directory.files.read(fd, head, 0) == len(head):
                found.add(head[16])
    return found


def _topic_id(directory: Directory) -> tuple[str, bool]:
    """(the topic id that is stated, whether the file does not follow its format)."""
    try:
        data = directory.read_file(layout.PARTITION_METADATA, _SMALL_BYTES_MAX)
    except FileNotFoundError:
        return "", False
    text = data.decode("utf-8", "replace")
    match = _TOPIC_ID.search(text)
    if not text.startswith("version:") or match is None:
        return "", True
    return match[1], not any(base64.urlsafe_b64decode(match[1] + "=="))
