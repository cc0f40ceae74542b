"""What other rooms of the package may see of an open store, besides public names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.errors import LogStoreError, storage_errors
from logstore.io.directory import Directory
from logstore.io.filesystem import prepare_beside
from logstore.io.layout import TopicPartition
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.write.staged_files import Staged, logs_of
from logstore.log.write.staging import Stage
from logstore.store.copies import EndOf
from logstore.store.partition import Partition
from logstore.store.partition_views import PartitionViews
from logstore.store.publication import Publication, request_of
from logstore.store.store import Store

__all__ = [
    "ends_of_copy",
    "files_directory",
    "partition_id",
    "recover_unclean",
    "root_of",
    "stage_for_group",
    "submit_for_group",
    "topics_now",
    "views_of",
]


def files_directory(store: Store) -> Directory:
    """The directory of a store, for files that are put into it without its lock and
    that its owner may read.

    Raises: as `prepare_beside`.
    """
    root = root_of(store)
    if store.read_only:
        prepare_beside(root, store.config)
    return root


def root_of(store: Store) -> Directory:
    """The directory of a store, to look at it."""
    store._context.check_open()
    return store._context.root


def stage_for_group(store: Store, identity: str, sequence: int) -> Stage:
    """As `Store.stage`, under the identity of a group."""
    return store._stage(identity, sequence)


def submit_for_group(
    store: Store,
    staged: Iterable[Staged],
    *,
    identity: str,
    sequence: int,
    metadata: bytes,
    pinned: bool,
    timeout_ms: int | None,
) -> Publication:
    """As `Store.submit`, under the identity of a group."""
    store._context.check_open()
    request = request_of(
        logs_of(staged), identity, sequence, metadata=metadata, pinned=pinned
    )
    return store._submitted(request, timeout_ms)


def recover_unclean(store: Store) -> None:
    """As `Store.recover`, if the store was not closed cleanly, so that a partition may
    take long when it is first used."""
    if not store.read_only and not store._context.ownership.is_clean:
        store.recover()


def topics_now(
    store: Store, names: Iterable[str] | None = None
) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """The id ("" if it has none) and the numbers of the partitions of each topic that
    exists now, by name.

    Args:
        names: of these only; None: of all.
    """
    topics = store._topics
    topics.begin_call()
    if store.read_only:
        topics.rescan()
    catalog = topics.catalog
    numbers = catalog.numbers.copy()
    wanted = sorted(numbers) if names is None else names
    return {
        name: (catalog.topic_id(name), numbers[name])
        for name in wanted
        if numbers.get(name)
    }


def partition_id(store: Store, key: TopicPartition) -> str:
    """The id of the topic that a partition's directory belongs to; "" if it has none,
    or there is no such partition."""
    if key.partition not in topics_now(store, [key.topic]).get(key.topic, ("", ()))[1]:
        return ""
    return store._topics.catalog.partition_id(key)


def ends_of_copy(store: Store) -> EndOf | None:
    """What the first opening for writing of a copy lowers the positions of groups to,
    for a store that is open read-only, before there was that opening; else None."""
    if not store.read_only:
        return None
    with storage_errors("read", store.path):
        if not store._publications.owner_now().is_copy:
            return None

    def end_of(key: TopicPartition, topic_id: str) -> int | None:
        try:
            if topic_id and topic_id != partition_id(store, key):
                return None
            log = store.topic(key.topic)[key.partition]._views.refreshed()
        except LogStoreError:
            return None
        is_whole = isinstance(log, ReadOnlyLog) and log.loaded.damage is None
        return log.high_watermark if is_whole else None

    return end_of


def views_of(partition: Partition) -> PartitionViews:
    """What the reads of a partition begin with."""
    return partition._views
