"""Entries that are added to the transaction indexes of a log."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.errors import CorruptIndexError
from logstore.index import TxnEntry, format_txn_index
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.layout import TXN_INDEX, segment_file
from logstore.log.write.transaction_index import add_aborted
from logstore.segment import Segment


@pytest.mark.parametrize("last", [18, 19, 20])
def test_entry_of_an_offset_that_the_index_has_is_refused(
    tmp_path: Path, last: int
) -> None:
    """The log does not end there yet: the index is another log's, or damaged."""
    directory = Directory.open_root(Files(), str(tmp_path))
    descriptors = Descriptors(directory.files, 1)
    segments = [Segment(directory, descriptors, base, 0, base + 50) for base in (0, 50)]
    name = tmp_path / segment_file(0, TXN_INDEX)
    first = TxnEntry(0, 7, 10, 19, 10)
    add_aborted(directory, segments, [first])
    entry = TxnEntry(0, 8, 12, last, 12)
    if last == 20:
        later = TxnEntry(0, 8, 51, 60, 51)
        add_aborted(directory, segments, [entry, later])
        assert name.read_bytes() == format_txn_index([first, entry])
        other = tmp_path / segment_file(50, TXN_INDEX)
        assert other.read_bytes() == format_txn_index([later])
    else:
        with pytest.raises(CorruptIndexError, match="ends at offset 19"):
            add_aborted(directory, segments, [entry])
        assert name.read_bytes() == format_txn_index([first])
    directory.close()
