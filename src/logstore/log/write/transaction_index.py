"""Writes Kafka's transaction index: the aborted transactions, in files next to the
segments that have their markers (docs/format.md, "Transaction index").

An entry is durable before the marker is in the log. So the index has all aborts of the
log at any time, and never misses one after a crash; an undo or the next opening removes
entries whose markers are not in the log.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from logstore.errors import CorruptIndexError, storage_error
from logstore.index import (
    TXN_ENTRY_BYTES,
    TxnEntry,
    format_txn_index,
    parse_txn_index,
)
from logstore.io.directory import Directory
from logstore.io.layout import TXN_INDEX, segment_file
from logstore.log.read.view import slot_of
from logstore.segment import Segment

__all__ = ["add_aborted"]


def add_aborted(
    directory: Directory, segments: Sequence[Segment], entries: Iterable[TxnEntry]
) -> None:
    """Add entries, by offset, to the indexes of the segments that get their markers;
    they are durable then.

    Raises:
        CorruptIndexError: an index is damaged, or has these offsets already.
        StorageError: the system refuses; some of them may be there.
    """

    def base_of(entry: TxnEntry) -> int:
        return segments[slot_of(segments, entry.last_offset)].base_offset

    for base, group in itertools.groupby(entries, key=base_of):
        name = segment_file(base, TXN_INDEX)
        try:
            _extend(directory, name, list(group))
        except OSError as error:
            raise storage_error(
                error, "append to", directory.path_of(name), "Nothing was written."
            ) from error


def _extend(directory: Directory, name: str, entries: list[TxnEntry]) -> None:
    files, path = directory.files, directory.path_of(name)
    try:
        fd = directory.open(name, write=True)
    except FileNotFoundError:
        directory.write_file(name, format_txn_index(entries))
        return
    try:
        size = files.size(fd)
        # The last entry, and a partial one: to read all would take longer with each.
        begin = max(size - size % TXN_ENTRY_BYTES - TXN_ENTRY_BYTES, 0)
        last = bytearray(size - begin)
        files.read(fd, last, begin)
        known = parse_txn_index(bytes(last), path)
        if known and known[-1].last_offset >= entries[0].last_offset:
            raise CorruptIndexError(
                f"transaction index {path} has an aborted transaction that ends "
                f"at offset {known[-1].last_offset}, past the end of the log",
                path=path,
                position=begin,
            )
        files.write(fd, format_txn_index(entries), size)
        files.sync(fd)
    finally:
        files.close(fd)
