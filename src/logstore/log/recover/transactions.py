"""Builds transaction indexes from the log, as Kafka's recovery does.

An entry that the log does not contradict is kept: it may be of a transaction whose
records were deleted, or compacted away, since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from logstore._native.locks import logger
from logstore.config import StoreConfig
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    RecordTooLargeError,
    UnsupportedError,
)
from logstore.index import TxnEntry, format_txn_index, valid_txn_entries
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.producer_snapshot import (
    format_snapshot,
    read_snapshot,
    snapshot_offsets,
)
from logstore.io.directory import Directory
from logstore.io.layout import SNAPSHOT, TXN_INDEX, segment_file
from logstore.log.producers import Producers
from logstore.log.read.producer_state import AbortedTransaction, aborted_in
from logstore.log.read.view import slot_of
from logstore.log.recover.rebuild import write_transactions
from logstore.segment import Segment

__all__ = ["finish_transactions", "index_of", "read_transaction_index", "rebuild_all"]

_LIMIT = StoreConfig().max_batch_decompressed_bytes


def read_transaction_index(directory: Directory, base_offset: int) -> bytes | None:
    """The content of a transaction index; None if the file does not exist.

    Raises:
        OSError: as the system gives it.
    """
    try:
        return directory.read_file(segment_file(base_offset, TXN_INDEX))
    except FileNotFoundError:
        return None


def index_of(
    transactions: Iterable[AbortedTransaction], known: Iterable[TxnEntry]
) -> list[TxnEntry]:
    """The entries that the transaction index of a segment should have.

    Args:
        transactions: the ones that are aborted in the segment.
        known: the entries that the index has.
    """
    by_marker = {(entry.producer_id, entry.last_offset): entry for entry in known}
    entries = []
    for transaction in transactions:
        entry = by_marker.get((transaction.producer_id, transaction.marker))
        if entry is None or transaction.fault_of(entry):
            entry = transaction.entry
        if entry is not None:
            entries.append(entry)
    return entries


def rebuild_all(
    directory: Directory,
    segments: Sequence[Segment],
    end: int,
    *,
    only: int | None = None,
    dry_run: bool = False,
) -> dict[int, int]:
    """Build the transaction indexes of a log that is read from its start.

    Args:
        end: of the log.
        only: base offset of the segment whose index is written; None: all.
        dry_run: write nothing.

    Returns the number of entries, by base offset, of the segments that have some.

    Raises:
        CorruptRecordError, UnsupportedError: damage; no index was written.
        OSError: as the system gives it.
    """
    if not segments:
        return {}
    producers = Producers(segments[0].base_offset)
    return _build(directory, segments, producers, end, only=only, dry_run=dry_run)


def _build(
    directory: Directory,
    segments: Sequence[Segment],
    producers: Producers,
    end: int,
    *,
    first: int = 0,
    only: int | None = None,
    dry_run: bool = False,
) -> dict[int, int]:
    """Build the indexes of the segments from number `first` on; `producers` is the
    state at a place in them, or before."""
    aborted_by_base: dict[int, list[AbortedTransaction]] = {}
    read = segments[slot_of(segments, producers.end) :]
    for transaction in aborted_in(producers, read, end, _LIMIT):
        aborted_by_base.setdefault(transaction.base_offset, []).append(transaction)
    counts: dict[int, int] = {}
    for segment in segments[first:]:
        base = segment.base_offset
        if only is not None and base != only:
            continue
        data = read_transaction_index(directory, base)
        known = valid_txn_entries(data or b"")
        entries = index_of(aborted_by_base.get(base, ()), known)
        if entries:
            counts[base] = len(entries)
        if not dry_run:
            write_transactions(directory, base, data, format_txn_index(entries))
    return counts


def finish_transactions(
    directory: Directory,
    segments: Sequence[Segment],
    end: int,
    metadata: PartitionMetadata,
) -> None:
    """Recover the transactions of a log that a broker has left without a clean stop,
    like Kafka: build the indexes of the segments that may not have been flushed; write
    the producers at the end, if the log has no snapshot. Without any, a broker that
    finds a clean stop assumes that no transaction is open.

    Raises:
        OSError: as the system gives it.
    """
    if not segments:
        return
    first = slot_of(segments, metadata.recovery_point)
    floor = segments[first].base_offset
    offsets = [offset for offset in snapshot_offsets(directory) if offset <= end]
    producers = _producers_at(directory, segments, offsets, floor)
    try:
        _build(directory, segments, producers, end, first=first)
    except (CorruptRecordError, UnsupportedError, RecordTooLargeError) as error:
        logger.warning("the transaction indexes of %s stay: %s", directory.path, error)
        return
    entries = producers.entries(directory.files.now_ms())
    if entries and not offsets:
        directory.write_file(segment_file(end, SNAPSHOT), format_snapshot(entries))


def _producers_at(
    directory: Directory, segments: Sequence[Segment], offsets: list[int], floor: int
) -> Producers:
    """The producers at `floor`, or at an offset below, from which on the log has to be
    read: the offset of a snapshot; without one, the first that may be of a producer."""
    start = segments[0].base_offset
    for offset in reversed(offsets):
        if start <= offset <= floor:
            try:
                return Producers(offset, read_snapshot(directory, offset))
            except (CorruptCheckpointError, FileNotFoundError):
                continue
    try:
        epochs = checkpoints.read_epochs(directory)
    except (CorruptCheckpointError, FileNotFoundError):
        epochs = []
    # Batches of magic 2 have an epoch; others have no producers.
    return Producers(max(start, min(epochs[0][1], floor)) if epochs else floor)
