"""Building indexes anew from the log, under the writer's lock."""

from __future__ import annotations

import contextlib
import os

from logstore._files import Directory, Files
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    CorruptionError,
    CorruptRecordError,
    LogStoreError,
    StoreNotFoundError,
    UnsupportedError,
    storage_error,
)
from logstore.index import add_closing_entry
from logstore.layout import (
    LOG,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from logstore.locking import StoreLock
from logstore.place import prepare_root
from logstore.recovery import index_segment, rebuild
from logstore.verify.facts import topic_config
from logstore.verify.places import is_directory, is_partition, is_store, open_root

PathLike = str | os.PathLike[str]


def rebuild_index(
    path: PathLike,
    dry_run: bool = False,
    *,
    config: TopicConfig | None = None,
    store_config: StoreConfig | None = None,
    files: Files | None = None,
) -> tuple[tuple[str, int, int], ...]:
    """Build the offset and time indexes anew from the log.

    Takes the writer's lock of the store for the time; what is built replaces the old
    files one by one, each whole.

    Args:
        path: a store, a partition directory, or one `.log`, `.index` or `.timeindex`.
        dry_run: only tell what would be built; takes no lock.
        config: whose ``index_interval_bytes`` counts; None: that of the topic.
        store_config: whether a directory that others may change, or a network file
            system, is written to, and the modes of new files.

    Returns:
        (path of the `.log`, offset index entries, time index entries) of each segment.

    Raises:
        StoreLockedError: a writer has the store.
        ConfigError: others may change the directory, or it is on a network file system,
            and `store_config` does not allow that.
        StoreNotFoundError: there is nothing at `path` that has an index.
        CorruptRecordError, UnsupportedError: a log is damaged, or a later version wrote
            it; its indexes stay as they were, those of all others were built.
        StorageError: the system refuses.
    """
    files = files or Files()
    full = os.path.abspath(os.fspath(path))
    base: int | None = None
    if not is_directory(files, full):
        parsed = parse_segment_file(os.path.basename(full))
        if parsed is None or parsed.transition:
            raise StoreNotFoundError(f"{full} has no index to be built", path=full)
        base, full = parsed.base_offset, os.path.dirname(full)
    with contextlib.ExitStack() as stack:
        given = open_root(files, full)
        stack.callback(given.close)
        try:
            names = given.names()
        except OSError as error:
            raise storage_error(error, "rebuild the indexes of", full) from error
        if is_partition(given, names):
            root = open_root(files, os.path.dirname(full))
            stack.callback(root.close)
            partitions = [given]
        elif is_store(names):
            root = given
            partitions = [
                given.child(name) for name in names if parse_partition_directory(name)
            ]
        else:
            raise StoreNotFoundError(
                f"{full} is neither a store nor a partition directory", path=full
            )
        if not dry_run:
            prepare_root(root, store_config or StoreConfig())
            for partition in partitions:
                partition.access = root.access
            stack.callback(StoreLock(root).release)
        return _rebuild_all(root, partitions, base, dry_run, config)


def _rebuild_all(
    root: Directory,
    partitions: list[Directory],
    only: int | None,
    dry_run: bool,
    config: TopicConfig | None,
) -> tuple[tuple[str, int, int], ...]:
    built: list[tuple[str, int, int]] = []
    failure: CorruptionError | UnsupportedError | None = None
    for directory in partitions:
        chosen = config or topic_config(root, directory)
        try:
            logs = [
                p.base_offset
                for name in directory.names()
                if (p := parse_segment_file(name))
                if p.suffix == LOG and not p.transition
            ]
            for base in logs:
                if only is not None and base != only:
                    continue
                make = _dry_rebuild if dry_run else rebuild
                try:
                    counts = make(directory, base, chosen)
                except (CorruptRecordError, UnsupportedError) as error:
                    failure = failure or error
                    continue
                built.append((directory.path_of(segment_file(base, LOG)), *counts))
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            raise storage_error(
                error, "rebuild the indexes of", directory.path
            ) from error
    if failure is not None:
        raise failure
    if only is not None and not built:
        path = partitions[0].path_of(segment_file(only, LOG))
        raise StoreNotFoundError(f"there is no log {path}", path=path)
    return tuple(built)


def _dry_rebuild(
    directory: Directory, base: int, config: TopicConfig
) -> tuple[int, int]:
    """What `rebuild` would return."""
    state, index, times = index_segment(directory, base, config)
    add_closing_entry(state, times)
    return index.count, times.count
