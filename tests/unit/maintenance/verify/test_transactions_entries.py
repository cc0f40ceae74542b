"""The entries of one transaction index, checked by themselves."""

from __future__ import annotations

import pytest

from logstore.index import TXN_ENTRY_BYTES, TxnEntry, format_txn_index
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.layout import TXN_INDEX, parse_segment_file, segment_file
from logstore.maintenance.verify.report import Run
from logstore.maintenance.verify.transactions import check_txn_index

NAME = segment_file(10, TXN_INDEX)
ENTRIES = [TxnEntry(0, 7, 10, 14, 10), TxnEntry(0, 8, 12, 19, 12)]
MARKERS = {(7, 14), (8, 19)}


def checked(
    directory: Directory,
    entries: list[TxnEntry],
    *,
    aborted: set[tuple[int, int]] | None = None,
    end: int | None = None,
) -> tuple[bool, list[int | None], int]:
    """Whether the entries can be used, positions of the problems, number of notes."""
    directory.write_file(NAME, format_txn_index(entries))
    run, parsed = Run(Files(), True, None), parse_segment_file(NAME)
    assert parsed is not None
    found = check_txn_index(run, directory, NAME, parsed, aborted, end)
    assert found in (None, entries)
    problems = [one.position for one in run.problems]
    return found is not None, problems, len(run.findings) - len(problems)


@pytest.mark.parametrize(
    ("end", "notes"), [(None, 0), (20, 0), (19, 1), (15, 1), (14, 2), (0, 2)]
)
def test_marker_that_was_not_written_is_no_damage(
    directory: Directory, end: int | None, notes: int
) -> None:
    """The entry is written before it. The log ends at `end`, and its next opening
    removes the entries from there on."""
    markers = {one for one in MARKERS if end is None or one[1] < end}
    assert checked(directory, ENTRIES, aborted=markers, end=end) == (True, [], notes)


def test_marker_that_the_log_does_not_have_is_a_problem(directory: Directory) -> None:
    found = checked(directory, ENTRIES, aborted={(7, 14), (7, 19)})
    assert found == (False, [TXN_ENTRY_BYTES], 0)
    assert checked(directory, ENTRIES, aborted=None) == (True, [], 0)


@pytest.mark.parametrize(
    "wrong",
    [
        TxnEntry(0, 7, 15, 14, 10),  # it begins after its end
        TxnEntry(0, 7, -1, 14, 10),
        TxnEntry(-1, 7, 10, 14, 10),
        TxnEntry(0, 7, 5, 9, 5),  # it lies before the segment
    ],
)
def test_entry_that_contradicts_itself_is_a_problem(
    directory: Directory, wrong: TxnEntry
) -> None:
    assert checked(directory, [wrong, ENTRIES[1]]) == (False, [0], 0)
