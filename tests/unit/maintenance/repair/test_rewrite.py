"""The changes that a repair makes to the files of a log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.index import TxnEntry, format_txn_index
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.files import Files
from logstore.io.layout import INDEX, LOG, TIME_INDEX, TXN_INDEX, segment_file
from logstore.maintenance.repair.plan import RepairedSegment, VerifiedSegment
from logstore.maintenance.repair.quarantine import Quarantine
from logstore.maintenance.repair.rewrite import Rewrite

SIZE = 100
ENTRIES = [TxnEntry(0, 7, 5 * n, 5 * n + 4, 5 * n) for n in range(3)]


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    """A segment with its indexes, and three aborted transactions."""
    found = Directory.open_root(Files(), str(tmp_path))
    found.write_file(segment_file(0, LOG), b"x" * SIZE)
    for suffix in (INDEX, TIME_INDEX):
        found.write_file(segment_file(0, suffix), b"")
    found.write_file(segment_file(0, TXN_INDEX), format_txn_index(ENTRIES))
    yield found
    found.close()


def target(directory: Directory, end: int, last: int) -> RepairedSegment:
    """The segment with only its first `end` bytes, up to an offset."""
    source = VerifiedSegment(
        directory, Descriptors(directory.files, 8), 0, segment_file(0, LOG), SIZE, [],
        [], [], {},
    )  # fmt: skip
    return RepairedSegment(source, 0, [(0, end)] if end else [], 0 if end else -1, last)


@pytest.mark.parametrize(
    ("end", "last", "count"),
    [
        (90, 14, 3),
        (80, 13, 2),
        (60, 9, 2),
        (50, 8, 1),
        (10, 4, 1),
        (5, 3, 0),
        (0, -1, 0),
    ],
)
def test_cut_segment_keeps_the_transactions_whose_markers_stay(
    directory: Directory, end: int, last: int, count: int
) -> None:
    """This includes the one that ends with the last remaining record. The indexes are
    rebuilt."""
    rewrite = Rewrite(directory, Quarantine(directory, "cut", None, is_root=False))
    rewrite.cut([target(directory, end, last)])
    assert directory.read_file(segment_file(0, LOG)) == b"x" * end
    name = segment_file(0, TXN_INDEX)
    if count:
        assert directory.read_file(name) == format_txn_index(ENTRIES[:count])
    names = {segment_file(0, LOG)} | ({name} if count else set())
    assert set(directory.names()) == names


def test_segment_that_stays_whole_is_not_touched(directory: Directory) -> None:
    names = sorted(directory.names())
    rewrite = Rewrite(directory, Quarantine(directory, "cut", None, is_root=False))
    rewrite.cut([target(directory, SIZE, 14)])
    assert sorted(directory.names()) == names
