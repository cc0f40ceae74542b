"""The files of a compacted segment."""

from __future__ import annotations

from pathlib import Path

from logstore.index import TxnEntry, format_txn_index
from logstore.io.directory import Directory
from logstore.io.layout import INDEX, LOG, TIME_INDEX, TXN_INDEX, segment_file
from logstore.log.compact.output import Output
from support.transactions import batch

MODIFIED_NS = 1_600_000_000_123_456_789
BATCHES = [
    batch(base, [(b"k", b"v" * 100)] * 2, -1, control=False, timestamp_ms=1000 + base)
    for base in (10, 12, 14)
]


def path_of(path: Path, suffix: str) -> Path:
    return path / (segment_file(10, suffix) + ".cleaned")


def test_segment_is_as_old_as_the_files_that_it_replaces(
    tmp_path: Path, directory: Directory
) -> None:
    """Retention by age uses the file time if its records have no times."""
    output = Output(directory, 10, 0)
    output.write(BATCHES[0])
    output.write(b"".join(BATCHES[1:]))
    made = output.finish(MODIFIED_NS, [])
    log = path_of(tmp_path, LOG)
    assert log.stat().st_mtime_ns == MODIFIED_NS
    assert log.read_bytes() == b"".join(BATCHES)
    assert made.base_offset == 10
    assert made.size == len(b"".join(BATCHES))
    assert (made.max_timestamp, made.max_timestamp_offset) == (1014, 15)
    assert made.suffixes == (LOG, INDEX, TIME_INDEX)
    assert path_of(tmp_path, INDEX).read_bytes()
    assert path_of(tmp_path, TIME_INDEX).read_bytes()
    assert len(list(tmp_path.iterdir())) == 3


def test_aborted_transactions_get_an_index(
    tmp_path: Path, directory: Directory
) -> None:
    entry = TxnEntry(0, 7, 10, 15, 10)
    output = Output(directory, 10, 0)
    output.write(BATCHES[0])
    made = output.finish(MODIFIED_NS, [entry])
    assert made.suffixes == (LOG, INDEX, TIME_INDEX, TXN_INDEX)
    assert path_of(tmp_path, TXN_INDEX).read_bytes() == format_txn_index([entry])


def test_files_of_an_earlier_try_are_written_over(
    tmp_path: Path, directory: Directory
) -> None:
    for suffix in (LOG, INDEX, TIME_INDEX):
        path_of(tmp_path, suffix).write_bytes(b"x" * 10_000)
    output = Output(directory, 10, 0)
    output.write(BATCHES[0])
    output.finish(MODIFIED_NS, [])
    assert path_of(tmp_path, LOG).read_bytes() == BATCHES[0]
    assert path_of(tmp_path, INDEX).stat().st_size < 100


def test_output_that_is_discarded_leaves_nothing(
    tmp_path: Path, directory: Directory
) -> None:
    output = Output(directory, 10, 0)
    output.write(BATCHES[0])
    output.discard()
    assert list(tmp_path.iterdir()) == []
