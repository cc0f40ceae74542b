"""The facts about a store, collected once: names, files, small files, and the logs as a
reader has them. Judges look at these alone."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    CorruptCheckpointError,
    LogStoreError,
    TopicNotFoundError,
    storage_error,
)
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import TopicPartition
from logstore.io.lock import holder_of
from logstore.io.lock_record import state_of
from logstore.maintenance.cluster import Cluster, cluster_of
from logstore.maintenance.finding import Finding
from logstore.maintenance.names import broker_checkpoint_fault
from logstore.maintenance.sampling import HeaderFacts, Sampler, Sums
from logstore.maintenance.verify.context import (
    NOTHING_KNOWN,
    StoreMetadata,
    settings_of,
)
from logstore.maintenance.verify.paths import OFFSET_CHECKPOINTS
from logstore.maintenance.verify.report import Run
from logstore.segment import SegmentInfo
from logstore.store.catalog.topics import Catalog
from logstore.store.opening import open_store
from logstore.store.partition.partition import Partition
from logstore.store.store import Store

__all__ = ["PartitionFacts", "ReaderFacts", "StoreFacts", "look_at", "properties_of"]

_TOPIC_ID: Final = re.compile(r"topic_id:[ \t]*([A-Za-z0-9_-]{22})\s*")
_SMALL_BYTES_MAX: Final = 64 << 10
# Attempts to open a partition whose topic is created or deleted meanwhile.
_TRIES: Final = 5


@dataclasses.dataclass(frozen=True, slots=True)
class ReaderFacts:
    """A partition as a reader has it.

    Attributes:
        start_offset, end_offset, durable_offset: -1 if it cannot be opened.
        stable_offset: where read_committed stops, if there are transactions; else -1.
        segments: the segments that a reader sees.
        headers: sums over the batches, if they were asked for.
        fault: why it cannot be opened; "" if it can, or was not asked for.
    """

    start_offset: int = -1
    end_offset: int = -1
    durable_offset: int = -1
    stable_offset: int = -1
    segments: tuple[SegmentInfo, ...] = ()
    headers: HeaderFacts = dataclasses.field(default_factory=HeaderFacts)
    fault: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One directory of a partition.

    Attributes:
        context: what the checkpoints, and logstore's own state, say of its log.
        files: bytes of each regular file, by name.
        segments: the present `.log` files on disk, in order; `next_offset` is that
            of the next file's name, -1 of the last.
        magics: the magics that the segments begin with, in order.
        topic_id: 22 characters; empty: none is stated.
        has_bad_epochs, has_bad_metadata: that file does not follow its format, or
            cannot be read.
        reader: the log as a reader has it.
        takes_appends: an opening for writing would let it be appended to.
        is_listed: the system lets the directory be read.
    """

    key: TopicPartition
    path: str
    context: PartitionMetadata
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    segments: tuple[SegmentInfo, ...] = ()
    magics: tuple[int, ...] = ()
    topic_id: str = ""
    has_bad_epochs: bool = False
    has_bad_metadata: bool = False
    reader: ReaderFacts = dataclasses.field(default_factory=ReaderFacts)
    takes_appends: bool = True
    is_listed: bool = True

    @property
    def name(self) -> str:
        """Name of its directory."""
        return self.path.rpartition("/")[2]

    @property
    def unflushed(self) -> dict[int, int]:
        """Bytes of the segments from the recovery point on, by base offset: what is
        read again without a clean stop."""
        point = self.context.recovery_point
        bases = [segment.base_offset for segment in self.segments]
        floor = max((base for base in bases if base <= point), default=0)
        return {
            segment.base_offset: segment.size_bytes
            for segment in self.segments
            if segment.base_offset >= floor
        }

    @property
    def all_segments(self) -> list[SegmentInfo]:
        """The segments that a reader sees, and the later ones that are only on disk."""
        seen = self.reader.segments
        last = seen[-1].base_offset if seen else -1
        return [
            *seen,
            *(segment for segment in self.segments if segment.base_offset > last),
        ]


@dataclasses.dataclass(frozen=True, slots=True)
class StoreFacts:
    """The directory of a store, of logstore or of a broker.

    Attributes:
        directories: the names of its directories, sorted.
        identified: directories of partitions with a `partition.metadata`.
        names: of all its files and directories.
        meta: the content of meta.properties; None: not there.
        holder: the process that has the lock; 0: unknown; None: none has it.
        unowned_since: since when no process owns it, as in `LockState`.
        is_own: logstore was the last writer.
        is_clean: the last writer stopped cleanly, for a broker: it looks at the marker
            alone; is_closed: for logstore.
        points: Kafka's recovery points.
        settings: logstore's settings of its topics.
        formats: the magic of appends to the topics without settings, if requested.
        refused: checkpoint of offsets -> why a broker refuses it.
        cluster: what is known of a KRaft cluster.
        contents: what `verify` finds.
        others: directories of partitions that cannot be listed, and one of another name
            that was asked for.
        sums: of the batches of all partitions, if they were asked for.
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
    cluster: Cluster
    partitions: tuple[PartitionFacts, ...]
    contents: tuple[Finding, ...]
    now_ms: int
    others: tuple[PartitionFacts, ...] = ()
    unowned_since: int | None = None
    formats: Mapping[str, int] = dataclasses.field(default_factory=dict)
    sums: Sums = dataclasses.field(default_factory=Sums)

    @property
    def path(self) -> str:
        return self.root.path

    @property
    def unflushed(self) -> tuple[int, int]:
        """(segments, bytes) that are read again without a clean stop."""
        sizes = [
            size
            for partition in self.partitions
            for size in partition.unflushed.values()
        ]
        return len(sizes), sum(sizes)

    def path_of(self, name: str) -> str:
        return self.root.path_of(name)


def look_at(
    root: Directory,
    run: Run,
    only: str | None = None,
    *,
    reader: StoreConfig | None = None,
    with_headers: bool = False,
    with_formats: bool = False,
) -> StoreFacts:
    """The facts about a store.

    Args:
        run: with the findings of `verify`.
        only: the one directory of a partition to be looked at.
        reader: settings of the store that reads the partitions; None: they are not
            opened.
        with_headers: the reader walks over the headers of the batches, too.
        with_formats: `formats` is requested, which reads the end of logs.

    Raises:
        OSError: the system refuses.
    """
    store = StoreMetadata(root)
    directories, names = tuple(sorted(root.directories())), frozenset(root.names())
    try:
        holder = holder_of(root)
    except FileNotFoundError:
        holder = None
    except OSError:
        if root.stat(layout.LOCK).is_file:
            raise
        holder = None  # `verify` lists it; it cannot be locked
    partitions = []
    for name in directories if only is None else [only]:
        key = layout.parse_partition_directory(name)
        if only is None and key is None:
            continue
        key, directory = key or TopicPartition(name, -1), root.child(name)
        try:
            partitions.append(_partition(directory, key, store, run))
        except OSError as error:
            if root.exists(name):  # else it was deleted meanwhile
                seen = ReaderFacts(
                    fault=str(storage_error(error, "read", directory.path))
                )
                unreadable_partition = PartitionFacts(
                    key, directory.path, NOTHING_KNOWN, reader=seen
                )
                partitions.append(
                    dataclasses.replace(unreadable_partition, is_listed=False)
                )
        finally:
            directory.close()
    settings, sums = settings_of(root), Sums()
    if reader is not None:
        is_held = holder is not None
        partitions, sums = _as_read(root, partitions, reader, is_held, with_headers)
    formats: dict[str, int] = {}
    if with_formats:
        formats = _formats(root, is_own=store.own)
    return StoreFacts(
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
        settings,
        _refused(root),
        cluster_of(root),
        tuple(
            partition
            for partition in partitions
            if partition.is_listed and partition.key.partition >= 0
        ),
        tuple(dict.fromkeys(run.findings)),
        root.files.now_ms(),
        tuple(
            partition
            for partition in partitions
            if not partition.is_listed or partition.key.partition < 0
        ),
        state_of(root).unowned_since,
        formats,
        sums,
    )


def _formats(root: Directory, *, is_own: bool) -> dict[str, int]:
    """The magic of appends to the topics without settings, as an opening finds it."""
    catalog = Catalog(root, read_only=True)
    catalog.settings.read(lambda action: None)  # `verify` lists it
    catalog.find()
    if not is_own:
        catalog.claim()
    return {
        topic: catalog.settings.append_config(topic).message_format
        for topic in catalog.numbers
        if "config" not in catalog.settings.of(topic)
    }


def _as_read(
    root: Directory,
    partitions: Iterable[PartitionFacts],
    config: StoreConfig,
    is_held: bool,
    with_headers: bool,
) -> tuple[list[PartitionFacts], Sums]:
    """The partitions as a reader has them, without any that do not exist any more, or
    not yet, and sums over all batches."""
    store, reason = None, ""
    try:
        store = open_store(root.path, read_only=True, config=config, _files=root.files)
    except LogStoreError as error:
        reason = str(error)
    with store or contextlib.nullcontext():
        opened = [
            (seen, partition)
            for facts in partitions
            for seen, partition in _opened(root, store, facts, reason, is_held)
        ]
        if not with_headers:
            return [facts for facts, _ in opened], Sums()
        descriptors = Descriptors(root.files, 16)
        segments = [segment for facts, _ in opened for segment in facts.all_segments]
        sampler = Sampler(
            descriptors,
            sum(segment.size_bytes for segment in segments),
            len(segments),
            config.max_batch_decompressed_bytes,
        )
        walked = []
        for opened_facts, partition in opened:
            directory = root.child(opened_facts.name)
            headers = sampler.walk(
                directory, opened_facts.key.topic, opened_facts.all_segments
            )
            directory.close()
            stable = -1
            if headers.has_transactions and partition is not None:
                with contextlib.suppress(LogStoreError):  # this may take a walk
                    stable = partition.last_stable_offset()
            reader = dataclasses.replace(
                opened_facts.reader, headers=headers, stable_offset=stable
            )
            walked.append(dataclasses.replace(opened_facts, reader=reader))
        descriptors.close()
        return walked, sampler.sums


def _opened(
    root: Directory,
    store: Store | None,
    facts: PartitionFacts,
    reason: str,
    is_held: bool,
) -> Iterator[tuple[PartitionFacts, Partition | None]]:
    """A partition with a reader's view of it; nothing if it does not exist any more,
    or not yet."""
    fault, is_part = facts.reader.fault or reason, True
    if facts.key.partition < 0:
        fault = f"{facts.name} is not named as a partition: topic-number"
    for _ in range(0 if fault else _TRIES):
        assert store is not None  # else there is a reason
        try:
            partition = store.topic(facts.key.topic)[facts.key.partition]
            segments, end = partition.segments, partition.end_offset
            bounds = partition.start_offset, end, min(partition.durable_offset, end)
        except TopicNotFoundError as error:
            fault, is_part = f"it is not part of the store: {error}", False
            if not root.exists(facts.name):
                return
        except LogStoreError as error:
            fault, is_part = str(error), True
            break
        else:
            reader = ReaderFacts(*bounds, segments=segments)
            yield dataclasses.replace(facts, reader=reader), partition
            return
    if is_part or not is_held:
        yield dataclasses.replace(facts, reader=ReaderFacts(fault=fault)), None


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


def _refused(root: Directory) -> dict[str, str]:
    faults = {}
    for name in OFFSET_CHECKPOINTS:
        try:
            fault = broker_checkpoint_fault(checkpoints.state_bytes(root, name) or b"")
        except CorruptCheckpointError as error:
            fault = error.reason
        except OSError as error:
            fault = str(error.strerror)
        if fault:
            faults[name] = fault
    return faults


def _meta(root: Directory) -> dict[str, str] | None:
    try:
        data = root.read_file(layout.META_PROPERTIES, _SMALL_BYTES_MAX)
    except FileNotFoundError:
        return None
    return properties_of(data.decode("utf-8", "replace"))


def properties_of(text: str) -> dict[str, str]:
    """The names and values of a file of Java properties with one in each line."""
    properties = {}
    for line in text.splitlines():
        name, sign, value = line.strip().partition("=")
        if sign and not name.startswith(("#", "!")):
            properties[name.strip()] = value.strip().replace("\\", "")
    return properties


def _partition(
    directory: Directory, key: TopicPartition, store: StoreMetadata, run: Run
) -> PartitionFacts:
    files = {name: info for name, info in directory.infos().items() if info.is_file}
    logs = sorted(
        (parsed.base_offset, name)
        for name in files
        if (parsed := layout.parse_segment_file(name))
        and parsed.suffix == layout.LOG
        and not parsed.transition
    )
    segments = tuple(
        SegmentInfo(
            base,
            following,
            files[name].size,
            -1,
            files[name].mtime_ns // 1_000_000,
            False,
            directory.path_of(name),
        )
        for (base, name), (following, _) in itertools.pairwise([*logs, (-1, "")])
    )
    has_bad_epochs = False
    try:
        checkpoints.read_epochs(directory)
    except FileNotFoundError:
        pass
    except (CorruptCheckpointError, OSError):
        has_bad_epochs = True
    topic_id, has_bad_metadata = _topic_id(directory)
    return PartitionFacts(
        key,
        directory.path,
        store.context(directory),
        {name: info.size for name, info in files.items()},
        segments,
        tuple(sorted(_magics(directory, (name for _, name in logs)))),
        topic_id,
        has_bad_epochs,
        has_bad_metadata,
        takes_appends=directory.path not in run.refusing,
    )


def _magics(directory: Directory, names: Iterable[str]) -> set[int]:
    magics = set()
    for name in names:
        head = bytearray(17)
        with contextlib.suppress(OSError), directory.opened(name) as fd:
            if directory.files.read(fd, head, 0) == len(head):
                magics.add(head[16])
    return magics


def _topic_id(directory: Directory) -> tuple[str, bool]:
    """(the topic id that is stated, whether the file does not follow its format)."""
    try:
        data = directory.read_file(layout.PARTITION_METADATA, _SMALL_BYTES_MAX)
    except OSError as error:
        return "", not isinstance(error, FileNotFoundError)
    text = data.decode("utf-8", "replace")
    match = _TOPIC_ID.search(text)
    if not text.startswith("version:") or match is None:
        return "", True
    return match[1], not any(base64.urlsafe_b64decode(match[1] + "=="))
