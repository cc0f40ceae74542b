"""Transaction indexes, compared with the transactions that a log has."""

from __future__ import annotations

from logstore.config import StoreConfig
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    StorageError,
    UnsupportedError,
)
from logstore.index import TXN_ENTRY_BYTES, TxnEntry, parse_txn_index
from logstore.io.directory import Directory
from logstore.io.layout import TXN_INDEX, SegmentFile, segment_file
from logstore.log.producers import Producers
from logstore.log.read.producer_state import AbortedTransaction, aborted_in
from logstore.maintenance.finding import LEFTOVER, TXN_INDEX_FAULT
from logstore.maintenance.verify.report import Run
from logstore.segment import Segment

__all__ = ["TransactionIndexes", "check_txn_index"]

_LIMIT = StoreConfig().max_batch_decompressed_bytes


def check_txn_index(
    run: Run,
    directory: Directory,
    name: str,
    parsed: SegmentFile,
    aborted: set[tuple[int, int]] | None,
    end: int | None = None,
) -> list[TxnEntry] | None:
    """Check a transaction index by itself, and that its markers are in the log.

    Args:
        aborted: (producer id, offset) of the ABORT markers; None: unknown.
        end: of a log that was not closed: the next opening removes entries from there
            on; None: they are a problem.

    Returns its entries; None if one of them is reported.
    """
    path = directory.path_of(name)
    entries: list[TxnEntry] | None = None
    with run.reporting(TXN_INDEX_FAULT, path):
        entries = parse_txn_index(directory.read_file(name), path)
    if entries is None:
        return None
    is_reported = False
    for slot, entry in enumerate(entries):
        position = slot * TXN_ENTRY_BYTES
        if end is not None and entry.last_offset >= end:
            text = f"entry {slot} names an ABORT marker that was not written"
            run.note(LEFTOVER, path, f"transaction index {path}: {text}: {entry}")
            continue
        reason = ""
        if not 0 <= entry.first_offset <= entry.last_offset or entry.version < 0:
            reason = "contradicts itself"
        elif entry.last_offset < parsed.base_offset:
            reason = "begins before its segment"
        elif (
            run.deep
            and aborted is not None
            and (entry.producer_id, entry.last_offset) not in aborted
        ):
            reason = "names an ABORT marker that is not in the log"
        if reason:
            text = f"transaction index {path}: entry {slot} {reason}: {entry}"
            run.problem(TXN_INDEX_FAULT, path, text, position)
            is_reported = True
    return None if is_reported else entries


class TransactionIndexes:
    """Whether the transaction indexes of a log have all that they should have. Call
    `add` for each segment, in order, then `check`.

    Attributes:
        aborted: (producer id, offset) of the ABORT markers of the log.
        entries: the entries of each usable index, by base offset.
    """

    def __init__(self, directory: Directory) -> None:
        self._directory = directory
        self._segments: list[Segment] = []
        self._is_whole = True
        self.aborted: set[tuple[int, int]] = set()
        self.entries: dict[int, list[TxnEntry] | None] = {}

    def add(self, run: Run, name: str, base: int, size: int | None) -> None:
        """The next segment; `size`: where its batches end, None: it is damaged."""
        self._is_whole = self._is_whole and size is not None
        if self._is_whole and size is not None:
            directory = self._directory
            segment = Segment.of_file(directory, run.descriptors, name, base, size)
            self._segments.append(segment)

    def check(self, run: Run, *, is_finished: bool) -> None:
        """Report the transactions whose entry is missing or wrong, up to the first
        damage in the log.

        Args:
            is_finished: opening builds these indexes: they are notes.
        """
        if not self.aborted or not self._segments:
            return
        producers = Producers(self._segments[0].base_offset)
        last = self._segments[-1]
        try:
            for transaction in aborted_in(
                producers, self._segments, last.next_offset, _LIMIT
            ):
                self._check_one(run, transaction, is_finished=is_finished)
        except (CorruptRecordError, UnsupportedError, RecordTooLargeError):
            return  # reported with its batch
        except StorageError as error:
            run.unreadable(last.path, error)

    def _check_one(
        self, run: Run, transaction: AbortedTransaction, *, is_finished: bool
    ) -> None:
        entries = self.entries.get(transaction.base_offset, [])
        if entries is None:
            return  # the whole index is reported
        matching = [
            (slot, entry)
            for slot, entry in enumerate(entries)
            if (entry.producer_id, entry.last_offset)
            == (transaction.producer_id, transaction.marker)
        ]
        slot, entry = matching[0] if matching else (0, None)
        fault = transaction.fault_of(entry)
        if not fault:
            return
        path = self._directory.path_of(segment_file(transaction.base_offset, TXN_INDEX))
        text = (
            f"transaction index {path}: the aborted transaction of producer "
            f"{transaction.producer_id} that ends at offset {transaction.marker} "
            f"{fault}; a broker would serve its records as committed"
        )
        if is_finished:
            run.note(TXN_INDEX_FAULT, path, f"{text}, if it did not read the log again")
        else:
            position = slot * TXN_ENTRY_BYTES if entry else None
            run.problem(TXN_INDEX_FAULT, path, text, position)
