"""A consistent cut of an open store: the contents of a copy, as of one moment.

The order makes it consistent. The positions of groups come first, then the
publications and the ends of all logs at one moment, then the named producers. So no
publication is remembered whose records are not there, and no producer is missing whose
records are there. No position lies above the end of a log, unless that was cut in
between: the first opening of the copy lowers it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.io import layout
from logstore.io.checkpoint.publications import remembered
from logstore.io.directory import Directory
from logstore.io.layout import TopicPartition
from logstore.log.write.log_cut import LogCut
from logstore.log.write.writer import PartitionWriter
from logstore.store.context import StoreContext
from logstore.store.publication.publisher import Publisher
from logstore.store.topic.open_topics import OpenTopics

__all__ = ["PartitionCut", "StoreCut", "take_cut"]

# Files of Kafka in the root, besides the files that logstore writes at each close.
_KAFKA_FILES: Final = (
    layout.META_PROPERTIES,
    layout.CLUSTER_BOOTSTRAP,
    layout.CLEANER_CHECKPOINT,
    layout.HIGH_WATERMARKS,
)


class PartitionCut(NamedTuple):
    """A partition of a cut.

    Attributes:
        key: topic and number.
        directory: of the partition.
        writer: None: it cannot be loaded.
        log: the cut of its log; None: there is no writer, or the log is damaged. Then
            all of its files are copied: they change only if its head is deleted.
        start: of the log; as Kafka's checkpoint has it, if it cannot be loaded.
    """

    key: TopicPartition
    directory: Directory
    writer: PartitionWriter | None
    log: LogCut | None
    start: int


class StoreCut(NamedTuple):
    """A store at one moment.

    Attributes:
        root: its directory.
        groups: name -> content of each group's file.
        files: the same of other files in the root, which are copied unchanged.
        settings: of topics, as `.logstore-topics` has them.
        ledger: the fields of `.logstore-published`; None: nothing was published.
        partitions: sorted.
        missing: partitions whose directory is gone.
        points: Kafka's recovery points, of the partitions without a `log`.
        store_epoch: the epoch under which partition states were written.
        is_clean: whether the last owner had closed the store.
    """

    root: Directory
    groups: dict[str, bytes]
    files: dict[str, bytes]
    settings: dict[str, Any]
    ledger: dict[str, Any] | None
    partitions: list[PartitionCut]
    missing: list[TopicPartition]
    points: dict[TopicPartition, int]
    store_epoch: str
    is_clean: bool


def take_cut(
    context: StoreContext, topics: OpenTopics, publisher: Publisher
) -> StoreCut:
    """Take a cut. Partitions that were not examined yet are recovered before; then
    nothing is read of the logs, and appends wait for some microseconds each.

    Raises:
        LogStoreError, OSError: a file cannot be read; an interrupted publication can
            neither be finished nor undone.
    """
    root = context.root
    with context.lock:
        context.check_open()
        topics.writers.recover()
    groups = {name: _whole_batches(root, name) for name in _group_files(root)}
    with publisher.lock:
        ledger = publisher.ledger()
        with context.lock:
            context.check_open()
            topics.writers.recover()
            partitions = _partitions(root, topics, context.state.ownership.starts)
            missing = sorted(topics.catalog.missing_partitions)
            # A first append, without this lock, may add a topic: it changes no value.
            settings = copy.deepcopy(dict(topics.catalog.settings.stored))
            points = {
                partition.key: context.state.ownership.points[partition.key]
                for partition in partitions
                if partition.log is None
                and partition.key in context.state.ownership.points
            }
            files = _contents(root, _KAFKA_FILES)
            ownership = context.state.ownership
            store_epoch, is_clean = ownership.store_epoch, ownership.is_clean
    files |= _contents(root, [layout.PRODUCERS, layout.UNKNOWN])
    return StoreCut(
        root,
        groups,
        files,
        settings,
        remembered(ledger) if ledger else None,
        partitions,
        missing,
        points,
        store_epoch,
        is_clean,
    )


def _partitions(
    root: Directory, topics: OpenTopics, starts: Mapping[TopicPartition, int]
) -> list[PartitionCut]:
    """All partitions, at one moment; the caller holds the store's lock."""
    loaded = topics.writers.loaded
    keys = [
        TopicPartition(topic, number)
        for topic, numbers in sorted(topics.catalog.numbers.items())
        for number in numbers
        if TopicPartition(topic, number) not in topics.catalog.missing_partitions
    ]
    intact = {
        key: loaded[key]
        for key in keys
        if key in loaded and loaded[key].health.damage is None
    }
    with native.Group([writer.lock for writer in intact.values()]):
        logs = {key: writer.cut() for key, writer in intact.items()}
    return [
        PartitionCut(
            key,
            root.child(layout.partition_directory(*key)),
            loaded.get(key),
            logs.get(key),
            _start(loaded.get(key), logs.get(key), starts.get(key, 0)),
        )
        for key in keys
    ]


def _start(writer: PartitionWriter | None, log: LogCut | None, recorded: int) -> int:
    if log is not None:
        return log.start
    return recorded if writer is None else writer.start_offset


def _group_files(root: Directory) -> list[str]:
    return layout.group_files(root.names())


def _contents(root: Directory, names: Iterable[str]) -> dict[str, bytes]:
    """The contents of the files that exist."""
    contents = {}
    for name in names:
        try:
            contents[name] = root.read_file(name)
        except FileNotFoundError:
            continue
    return contents


def _whole_batches(root: Directory, name: str) -> bytes:
    """The file of a group, without a batch that a member is writing. A damaged file is
    copied unchanged."""
    data = root.read_file(name)
    walk = native.walk_batches(native.pointer(data), len(data))
    return data[: walk.pos] if walk.error is None else data
