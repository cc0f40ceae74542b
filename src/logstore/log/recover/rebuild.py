"""Rebuilds indexes of whole segments from their logs; cuts other files with a log."""

from __future__ import annotations

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    UnsupportedError,
)
from logstore.index import (
    OffsetEntries,
    TimeEntries,
    add_closing_entry,
    format_txn_index,
    valid_txn_entries,
)
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.checkpoint.producer_snapshot import snapshot_offsets
from logstore.io.directory import Directory
from logstore.io.full_disk import write_file_anyway
from logstore.io.layout import (
    INDEX,
    LOG,
    PARTITION_STATE,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    segment_file,
)
from logstore.log.scan import scan_log

__all__ = [
    "cut_transactions",
    "index_segment",
    "rebuild",
    "remove_snapshots",
    "write_indexes",
    "write_transactions",
]


def index_segment(
    directory: Directory, base_offset: int, config: TopicConfig, created_ms: int = 0
) -> tuple[native.SegmentState, OffsetEntries, TimeEntries]:
    """Walk over the log of a whole segment: return the state that an append to it
    would start from, and the index entries that it should have.

    Raises:
        CorruptRecordError: the log is damaged.
        UnsupportedError: a later version wrote it.
        OSError: as the system gives it.
    """
    name = segment_file(base_offset, LOG)
    state = native.SegmentState(base_offset, created_ms)
    index, times = OffsetEntries(), TimeEntries()
    with directory.opened(name) as fd:
        scan = scan_log(
            directory,
            fd,
            directory.files.size(fd),
            state,
            index=index,
            times=times,
            interval=config.index_interval_bytes,
        )
    if scan.error is not None and scan.error.is_unsupported:
        raise UnsupportedError(
            f"{directory.path_of(name)} at byte {scan.pos} (offset "
            f"{scan.last_offset + 1}): {scan.reason}",
            path=directory.path_of(name),
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
    if not scan.is_whole:
        raise CorruptRecordError(
            scan.reason,
            path=directory.path_of(name),
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
    return state, index, times


def rebuild(
    directory: Directory, base_offset: int, config: TopicConfig
) -> tuple[int, int]:
    """Build both indexes of a sealed segment from its log.

    1. walk the log; 2. write each index under a temporary name and sync it; 3. rename
    it; 4. sync the directory; 5. if the state file has the segment, record the digest
    of the time index there. The offset index comes last: opening builds both if it is
    missing, so a crash between the two omits none. Returns the numbers of entries.

    Raises:
        CorruptRecordError, UnsupportedError: the log is damaged, or of a later version;
            the indexes are unchanged.
        OSError: as the system gives it.
    """
    state, index, times = index_segment(directory, base_offset, config)
    write_indexes(directory, base_offset, state, index, times)
    return index.count, times.count


def write_indexes(
    directory: Directory,
    base_offset: int,
    state: native.SegmentState,
    index: OffsetEntries,
    times: TimeEntries,
) -> int:
    """Steps 2 to 5 of `rebuild`. Returns the digest of the time index.

    Raises:
        OSError: as the system gives it.
    """
    add_closing_entry(state, times)
    directory.write_file(segment_file(base_offset, TIME_INDEX), times.data())
    directory.write_file(segment_file(base_offset, INDEX), index.data())
    digest = times.digest()
    _record_time_digest(directory, base_offset, digest)
    return digest


def _record_time_digest(directory: Directory, base_offset: int, digest: int) -> None:
    """Record in the state file that a sealed segment has another time index."""
    try:
        state = PartitionState.read(directory)
    except (CorruptCheckpointError, UnsupportedError):
        return
    if state is None:
        return
    changed = [
        (*row[:5], digest) if row[0] == base_offset else row for row in state.sealed
    ]
    if changed != state.sealed:
        state.sealed = changed
        checkpoints.write_state(directory, PARTITION_STATE, state.to_dict())


def cut_transactions(directory: Directory, base_offset: int, offset: int) -> None:
    """Drop the aborted transactions of a segment that end at or after `offset`, and
    invalid entries, such as a partial one from an interrupted write."""
    name = segment_file(base_offset, TXN_INDEX)
    try:
        data = directory.read_file(name)
    except FileNotFoundError:
        return
    kept = [entry for entry in valid_txn_entries(data) if entry.last_offset < offset]
    write_transactions(directory, base_offset, data, format_txn_index(kept))


def write_transactions(
    directory: Directory, base_offset: int, before: bytes | None, data: bytes
) -> None:
    """Replace a transaction index, whose content is `before` (None: no file). One
    without entries is removed: Kafka creates it with the first entry."""
    if data == (before or b"") and (before is None or data):
        return
    name = segment_file(base_offset, TXN_INDEX)
    if data:
        write_file_anyway(directory, name, data)
    else:
        directory.unlink(name, missing_ok=True)
        directory.sync()


def remove_snapshots(directory: Directory, *, above: int) -> None:
    """Remove producer snapshots that refer to removed offsets."""
    for offset in snapshot_offsets(directory):
        if offset > above:
            directory.unlink(segment_file(offset, SNAPSHOT), missing_ok=True)
