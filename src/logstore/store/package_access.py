"""Access to an open store for other rooms of the package, besides public names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from logstore.errors import LogStoreError, storage_error, storage_errors
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.ownership import Ownership
from logstore.io.checkpoint.topic_identity import counts_in
from logstore.io.directory import Directory
from logstore.io.filesystem import prepare_beside
from logstore.io.layout import TopicPartition
from logstore.log.follow.read_only_log import ReadOnlyLog
from logstore.log.read.options import ReadOptions
from logstore.log.write.staged_files import Staged, logs_of
from logstore.log.write.staging import Stage
from logstore.store.catalog.identifying import cuts_after, may_be_changed
from logstore.store.catalog.topic_ids import identity_in
from logstore.store.copy.copies import LoweredTo, lowered_in
from logstore.store.partition.partition import Partition
from logstore.store.partition.partition_views import PartitionViews
from logstore.store.publication.publication import Publication, request_of
from logstore.store.store import Store

__all__ = [
    "files_directory",
    "lowered_in_copy",
    "partition_id",
    "publication_key",
    "published_ms",
    "readable_end",
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
    """Same as `Store.stage`, under the identity of a group."""
    return store._publishing.stage(identity, sequence)


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
    """Same as `Store.submit`, under the identity of a group."""
    store._context.check_open()
    request = request_of(
        logs_of(staged), identity, sequence, metadata=metadata, pinned=pinned
    )
    return store._submit(request, timeout_ms)


def recover_unclean(store: Store) -> None:
    """Call `Store.recover` if the store was not closed cleanly: otherwise the first use
    of a partition may take long."""
    if not store.read_only and not store._context.state.ownership.is_clean:
        store.recover()


def topics_now(
    store: Store, names: Iterable[str] | None = None
) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """The id ("" if unknown) and the partition numbers of each topic that exists now,
    by name.

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
        name: (catalog.ids.topic_id(name), numbers[name])
        for name in wanted
        if numbers.get(name)
    }


def partition_id(store: Store, key: TopicPartition) -> str:
    """The id of the topic that a partition's directory belongs to; "" if it has no id,
    or there is no such partition."""
    if key.partition not in topics_now(store, [key.topic]).get(key.topic, ("", ()))[1]:
        return ""
    return store._topics.catalog.ids.partition_id(key)


def lowered_in_copy(store: Store) -> LoweredTo | None:
    """A function that computes to which offset the first opening for writing of a copy
    will lower a group's position. None if the store is not open read-only, or is not a
    copy that still awaits that opening."""
    if not store.read_only:
        return None
    with storage_errors("read", store.path):
        ownership = store._publishing.publications.owner_now()
        if not ownership.is_copy:
            return None

    def lowered_to(
        key: TopicPartition, topic_id: str, position: int, commit_ms: int
    ) -> int | None:
        try:
            if not counts_in(partition_id(store, key), topic_id):
                return None
            views = store.topic(key.topic)[key.partition]._views
            end, log = views.refreshed().end_offset, views.log
        except LogStoreError:
            return None
        if not isinstance(log, ReadOnlyLog) or log.loaded.damage is not None:
            return None
        if position <= end:
            return None
        with storage_errors("read", log.directory.path):
            return lowered_in(_cuts_of(log, key, ownership), end, position, commit_ms)

    return lowered_to


def _cuts_of(log: ReadOnlyLog, key: TopicPartition, ownership: Ownership) -> Cuts:
    """The cuts that the first opening for writing will find."""
    metadata = ownership.metadata(log.directory, key)
    state = metadata.state
    identity = None if state else identity_in(log.directory)
    if not may_be_changed(state, metadata.stale, identity):
        return state.cuts if state else Cuts()
    start, end = log.start_offset, log.high_watermark
    now_ms = log.directory.files.now_ms()
    return cuts_after(log.directory, metadata.stale, start, end, now_ms)


def publication_key(store: Store) -> object:
    """A value that changes with each step of a publication that readers may see, by any
    process.

    A caller that reads the ends of several partitions, and gets the same key before
    and after, has seen each publication whole or not at all; else it must read them
    again.

    Raises:
        StorageError: the directory cannot be examined.
    """
    store._context.check_open()
    try:
        publishing = store._publishing
        return publishing.publisher.visible(), publishing.publications.cache_key()
    except OSError as error:
        raise storage_error(error, "examine", store.path) from error


def published_ms(store: Store, identity: str) -> int:
    """When an identity has published last, in Unix ms; -1: never."""
    entry = store._publishing.publications.published().get(identity)
    return -1 if entry is None else entry.time_ms


def views_of(partition: Partition) -> PartitionViews:
    """The views from which a partition's reads begin."""
    return partition._views


def readable_end(partition: Partition, options: ReadOptions) -> int:
    """The offset up to which a reader may deliver records now. Damage is not examined
    here; a read meets it itself."""
    return views_of(partition).bounds(None, None, options, to_stable=True)[2]
