"""Rebuilding indexes from the log, under the writer's lock.

Offset and time index of a segment need its log alone. A transaction index also needs
the logs before it, in which a transaction may have begun.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

from logstore import _native as native
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    LogStoreError,
    RecordTooLargeError,
    StoreNotFoundError,
    UnsupportedError,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries, add_closing_entry
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.filesystem import is_directory, open_root, prepare_root
from logstore.io.layout import (
    INDEX,
    LOG,
    TIME_INDEX,
    parse_partition_directory,
    parse_segment_file,
    segment_file,
)
from logstore.io.lock_record import TOOL
from logstore.io.lock_wait import take_lock
from logstore.log.recover.rebuild import index_segment, rebuild
from logstore.log.recover.transactions import rebuild_all
from logstore.log.resync import next_valid
from logstore.log.scan import scan_log
from logstore.maintenance.finding import TORN_TAIL
from logstore.maintenance.verify.context import topic_config
from logstore.maintenance.verify.partition import log_bytes
from logstore.maintenance.verify.paths import open_given, partitions_in
from logstore.maintenance.verify.report import Meter, Progress
from logstore.maintenance.verify.store import verify
from logstore.segment import Segment

PathLike = str | os.PathLike[str]
OnDamage = Callable[[LogStoreError], None]


class BuiltIndexes(tuple[str, int, int]):
    """The indexes of a segment that were built, or would be.

    A tuple: (path of the `.log`, offset index entries, time index entries).

    Attributes:
        aborted_transactions: entries of its transaction index; None if that stays as it
            is, because the segment is after damage.
    """

    aborted_transactions: int | None

    def __new__(
        cls, path: str, entries: int, time_entries: int, aborted: int | None
    ) -> BuiltIndexes:
        row = super().__new__(cls, (path, entries, time_entries))
        row.aborted_transactions = aborted
        return row

    def __getnewargs__(self) -> tuple[str, int, int, int | None]:
        return (*self, self.aborted_transactions)


def rebuild_index(
    path: PathLike,
    *,
    dry_run: bool = False,
    on_damage: OnDamage | None = None,
    on_progress: Progress | None = None,
    config: TopicConfig | None = None,
    store_config: StoreConfig | None = None,
    _files: Files | None = None,
) -> tuple[BuiltIndexes, ...]:
    """Rebuild the offset, time and transaction indexes from the log.

    Holds the writer's lock of the store during the call; the new files replace the old
    ones one by one, each whole. A torn tail, which `verify` notes and the next opening
    for writing cuts, is not damage: the indexes describe the log before it.

    Args:
        path: a store, a partition directory, or one `.log`, `.index`, `.timeindex` or
            `.txnindex`: the indexes of that segment are built.
        dry_run: only report the indexes that would be built; takes no lock.
        on_damage: called with the error of each log that is damaged or of a later
            version, and of each partition that the system refuses; all others are
            built. None: the first of these errors is raised when the rest is done.
        on_progress: called with (bytes done, bytes in all) of `.log` files.
        config: its ``index_interval_bytes`` is used; None: that of the topic.
        store_config: whether a directory that others may change, or a network file
            system, is written to, and the modes of new files.

    Returns:
        (path of the `.log`, offset index entries, time index entries) of each segment;
        `BuiltIndexes` also has the number of its aborted transactions.

    Raises:
        StoreLockedError: a writer has the store.
        ConfigError: others may change the directory, or it is on a network file system,
            and `store_config` does not allow that.
        StoreNotFoundError: there is nothing at `path` that has an index.
        CorruptRecordError, UnsupportedError: a log is damaged, or a later version wrote
            it; its indexes are unchanged, all others' indexes were built. Not with
            `on_damage`.
        StorageError: the system refuses.
    """
    files = _files or Files()
    full = os.path.abspath(os.fspath(path))
    base: int | None = None
    if not is_directory(files, full):
        parsed = parse_segment_file(os.path.basename(full))
        if parsed is None or parsed.transition:
            raise StoreNotFoundError(f"{full} has no index to be built", path=full)
        base, full = parsed.base_offset, os.path.dirname(full)
    with contextlib.ExitStack() as stack:
        directory, _, is_one = open_given(files, full)
        stack.callback(directory.close)
        if is_one and parse_partition_directory(directory.name) is None:
            raise StoreNotFoundError(
                f"{full} has files of a partition, but its name is not that of one "
                f"(topic-0); nothing was done",
                path=full,
            )
        root, partitions = directory, [directory]
        if is_one:
            root = open_root(files, os.path.dirname(full))
            stack.callback(root.close)
        else:
            partitions = [directory.child(name) for name in partitions_in(directory)]
        if not dry_run:
            prepare_root(root, store_config or StoreConfig())
            for partition in partitions:
                partition.access = root.access
            stack.callback(take_lock(root, TOOL).release)
        failures: list[LogStoreError] = []
        report = failures.append if on_damage is None else on_damage
        meter = Meter(on_progress)
        built = _rebuild_all(root, partitions, base, dry_run, config, report, meter)
    if failures:
        raise failures[0]
    return built


def _rebuild_all(
    root: Directory,
    partitions: list[Directory],
    only: int | None,
    dry_run: bool,
    config: TopicConfig | None,
    on_damage: OnDamage,
    meter: Meter,
) -> tuple[BuiltIndexes, ...]:
    built: list[BuiltIndexes] = []
    is_found = only is None
    meter.total = sum(log_bytes(directory) for directory in partitions)
    for directory in partitions:
        chosen = config or topic_config(root, directory)
        try:
            logs = sorted(
                p.base_offset
                for name in directory.names()
                if (p := parse_segment_file(name))
                if p.suffix == LOG and not p.transition
            )
            rows: list[_Built] = []
            for base, following in zip(logs, [*logs[1:], None], strict=False):
                if only is not None and base != only:
                    continue
                is_found = True
                try:
                    row = _rebuild_one(directory, base, chosen, dry_run=dry_run)
                except CorruptRecordError as error:
                    _set_end(error, directory, base, following)
                    on_damage(error)
                    continue
                except UnsupportedError as error:
                    on_damage(error)
                    continue
                rows.append(row)
                meter.advance(directory.stat(segment_file(base, LOG)).size)
            aborted = _transactions(directory, logs, rows, on_damage, dry_run=dry_run)
            for row in rows:
                path = directory.path_of(segment_file(row.base, LOG))
                counts = row.entries, row.time_entries
                built.append(BuiltIndexes(path, *counts, aborted.get(row.base)))
        except LogStoreError as error:
            on_damage(error)
        except OSError as error:
            on_damage(storage_error(error, "rebuild the indexes of", directory.path))
    if not is_found:
        path = partitions[0].path_of(segment_file(only or 0, LOG))
        raise StoreNotFoundError(f"there is no log {path}", path=path)
    return tuple(built)


def _set_end(
    error: CorruptRecordError, directory: Directory, base: int, following: int | None
) -> None:
    """Have the error of a log name the end of the damage: the next intact batch, or
    the next segment."""
    name, position = segment_file(base, LOG), error.position
    assert position is not None  # of a record error
    descriptors = Descriptors(directory.files, 1)
    try:
        size = directory.stat(name).size
        segment = Segment.of_file(directory, descriptors, name, base, size)
        next_batch = next_valid(segment, position, error.offset - 1, following)
        end = following if next_batch is None else next_batch.first_offset()
    except (OSError, LogStoreError):
        return  # the log itself was readable a moment ago; its error stays
    finally:
        descriptors.close()
    if end is not None and end > error.offset:
        error.goes_on_at(end)


class _Built(NamedTuple):
    """A segment whose offset and time index were built, or would be.

    Attributes:
        size: where its batches end.
    """

    base: int
    entries: int
    time_entries: int
    size: int


def _rebuild_one(
    directory: Directory, base: int, config: TopicConfig, *, dry_run: bool
) -> _Built:
    """Build the offset and time index of a segment."""
    try:
        counts = (_dry_rebuild if dry_run else rebuild)(directory, base, config)
        size = directory.stat(segment_file(base, LOG)).size
        return _Built(base, *counts, size)
    except CorruptRecordError as error:
        path = directory.path_of(segment_file(base, LOG))
        if not _is_torn_tail(directory, path, error.position):
            raise
        end = error.position
    assert end is not None  # of a record error
    state, index, times = _index_until(directory, base, end, config)
    add_closing_entry(state, times)
    if not dry_run:
        directory.write_file(segment_file(base, TIME_INDEX), times.data())
        directory.write_file(segment_file(base, INDEX), index.data())
    return _Built(base, index.count, times.count, end)


def _transactions(
    directory: Directory,
    logs: list[int],
    rows: list[_Built],
    on_damage: OnDamage,
    *,
    dry_run: bool,
) -> dict[int, int]:
    """Build the transaction indexes of segments; returns the numbers of their entries,
    by base offset. Indexes after a damaged log are left out.

    Args:
        logs: the base offsets of all segments.
        rows: the segments that are asked for, and were read.
    """
    if not _may_have_transactions(directory):
        return dict.fromkeys((row.base for row in rows), 0)
    if not rows:
        return {}
    sizes = {row.base: row.size for row in rows}
    is_all = len(rows) == len(logs)
    only = None if is_all or len(rows) > 1 else rows[0].base
    descriptors = Descriptors(directory.files, 1)
    try:
        segments: list[Segment] = []
        for base in logs:
            if base > rows[-1].base or (only is None and base not in sizes):
                break
            name = segment_file(base, LOG)
            size = sizes.get(base)
            if size is None:
                size = directory.stat(name).size
            segments.append(Segment.of_file(directory, descriptors, name, base, size))
        counts = rebuild_all(
            directory, segments, native.OFFSET_MAX, only=only, dry_run=dry_run
        )
    except (CorruptRecordError, UnsupportedError, RecordTooLargeError) as error:
        on_damage(error)
        return {}
    finally:
        descriptors.close()
    read = {segment.base_offset for segment in segments}
    return {base: counts.get(base, 0) for base in read}


def _may_have_transactions(directory: Directory) -> bool:
    """Whether the log may have any: not if logstore's own state says so."""
    try:
        state = PartitionState.read(directory)
    except (CorruptCheckpointError, UnsupportedError):
        return True
    return state is None or state.foreign_end > 0


def _is_torn_tail(directory: Directory, path: str, position: int | None) -> bool:
    """Whether `verify` reports a torn tail at a position, and finds no problem in that
    log."""
    report = verify(directory.path, _files=directory.files)
    return not any(problem.path == path for problem in report.problems) and any(
        note.kind == TORN_TAIL and note.path == path and note.position == position
        for note in report.notes
    )


def _index_until(
    directory: Directory, base: int, end: int, config: TopicConfig
) -> tuple[native.SegmentState, OffsetEntries, TimeEntries]:
    """The result of `index_segment` for the first `end` bytes of a log."""
    state = native.SegmentState(base, 0)
    index, times = OffsetEntries(), TimeEntries()
    with directory.opened(segment_file(base, LOG)) as fd:
        scan_log(
            directory,
            fd,
            end,
            state,
            index=index,
            times=times,
            interval=config.index_interval_bytes,
        )
    return state, index, times


def _dry_rebuild(
    directory: Directory, base: int, config: TopicConfig
) -> tuple[int, int]:
    """The result that `rebuild` would return."""
    state, index, times = index_segment(directory, base, config)
    add_closing_entry(state, times)
    return index.count, times.count
