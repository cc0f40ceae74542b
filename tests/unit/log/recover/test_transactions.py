"""Transaction indexes built from a log."""

from __future__ import annotations

import pytest

from logstore.index import TxnEntry
from logstore.log.read.producer_state import AbortedTransaction
from logstore.log.recover.transactions import index_of

ENTRY = TxnEntry(0, 7, 10, 19, 10)
ABORTED = AbortedTransaction(0, 7, 19, 4, ENTRY)


def test_missing_entry_is_made() -> None:
    other = TxnEntry(0, 8, 10, 18, 10)
    assert index_of([ABORTED], []) == [ENTRY]
    assert index_of([ABORTED], [other]) == [ENTRY]


@pytest.mark.parametrize(
    "known",
    [
        ENTRY,
        ENTRY._replace(first_offset=5),  # its first records were deleted since
        ENTRY._replace(last_stable_offset=0),
    ],
)
def test_entry_that_the_log_does_not_contradict_stays(known: TxnEntry) -> None:
    assert index_of([ABORTED], [known]) == [known]


@pytest.mark.parametrize(
    "known",
    [
        ENTRY._replace(first_offset=11),  # a record of it would count as committed
        ENTRY._replace(first_offset=4),  # as would the transaction before
        ENTRY._replace(last_stable_offset=11),
        ENTRY._replace(last_stable_offset=-1),
    ],
)
def test_entry_that_the_log_contradicts_is_made_again(known: TxnEntry) -> None:
    assert index_of([ABORTED], [known]) == [ENTRY]


def test_transaction_without_records_needs_no_entry() -> None:
    """A compaction has removed them. An existing entry may stay."""
    emptied = ABORTED._replace(entry=None)
    assert index_of([emptied], []) == []
    assert index_of([emptied], [ENTRY]) == [ENTRY]
    assert index_of([emptied], [ENTRY._replace(first_offset=3)]) == []


def test_entries_are_in_the_order_of_the_markers() -> None:
    later = AbortedTransaction(0, 3, 30, -1, TxnEntry(0, 3, 12, 30, 12))
    assert index_of([ABORTED, later], [ENTRY]) == [ENTRY, later.entry]
