"""Files that are cut with a log: transaction indexes and producer snapshots."""

from __future__ import annotations

import pytest

from logstore.index import TXN_ENTRY_BYTES, TxnEntry, format_txn_index
from logstore.io.directory import Directory
from logstore.io.layout import SNAPSHOT, TXN_INDEX, segment_file
from logstore.log.recover.rebuild import (
    cut_transactions,
    remove_snapshots,
    write_transactions,
)

ENTRIES = [TxnEntry(0, 7, 5 * n, 5 * n + 4, 5 * n) for n in range(3)]
NAME = segment_file(0, TXN_INDEX)


@pytest.mark.parametrize(
    ("above", "kept"),
    [(9, []), (10, [10]), (14, [10]), (15, [10, 15]), (20, [10, 15, 20])],
)
def test_snapshot_behind_the_end_is_removed(
    directory: Directory, above: int, kept: list[int]
) -> None:
    """A snapshot at the end covers all remaining records."""
    for offset in (10, 15, 20):
        directory.write_file(segment_file(offset, SNAPSHOT), b"")
    remove_snapshots(directory, above=above)
    assert sorted(directory.names()) == [segment_file(o, SNAPSHOT) for o in kept]


@pytest.mark.parametrize(
    ("offset", "count"), [(0, 0), (4, 0), (5, 1), (9, 1), (10, 2), (14, 2), (15, 3)]
)
@pytest.mark.parametrize("torn", [b"", b"\0\0\1"])
def test_transaction_whose_marker_was_cut_leaves_the_index(
    directory: Directory, offset: int, count: int, torn: bytes
) -> None:
    """Data that cannot be an entry leaves it, too. An index without entries is
    removed."""
    directory.write_file(NAME, format_txn_index(ENTRIES) + torn)
    cut_transactions(directory, 0, offset)
    data = directory.read_file(NAME) if count else None
    expected = format_txn_index(ENTRIES[:count])
    assert data == (expected or None)
    assert (NAME in directory.names()) is bool(count)
    assert len(expected) == count * TXN_ENTRY_BYTES


def test_segment_without_a_transaction_index_gets_none(directory: Directory) -> None:
    cut_transactions(directory, 0, 5)
    write_transactions(directory, 0, None, b"")
    assert directory.names() == []
    write_transactions(directory, 0, None, format_txn_index(ENTRIES[:1]))
    assert directory.read_file(NAME) == format_txn_index(ENTRIES[:1])
    # For Kafka, an empty file counts as missing.
    directory.write_file(NAME, b"")
    write_transactions(directory, 0, b"", b"")
    assert directory.names() == []
