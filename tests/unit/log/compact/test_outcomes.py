"""Batches that a compaction must keep because of the log as a whole."""

from __future__ import annotations

import pytest

from logstore import _native as native
from logstore.index import TxnEntry
from logstore.io.checkpoint.producer_names import NAMED_ID_MIN
from logstore.io.layout import OFFSET_MAX
from logstore.log.compact.outcomes import ProducerSurvey
from logstore.log.producers import EXPIRY_MS
from logstore.record.batch import ABORT, COMMIT
from support.transactions import batch, marker

NOW = 10 * EXPIRY_MS
OLD = NOW - EXPIRY_MS


def header(data: bytes) -> native.BatchHeader:
    scan = native.first_header(native.pointer(data), len(data), checks=0)
    return scan.headers[0]


def send(
    survey: ProducerSurvey,
    base: int,
    producer: int,
    *,
    time_ms: int = NOW,
    transactional: bool = False,
    epoch: int = 0,
) -> None:
    """A batch of two records."""
    rows = [(b"k", b"v")] * 2
    data = batch(
        base, rows, producer, control=False, timestamp_ms=time_ms, epoch=epoch,
        transactional=transactional,
    )  # fmt: skip
    survey.take(header(data), None)


def end(survey: ProducerSurvey, offset: int, producer: int, kind: int) -> None:
    data = marker(offset, producer, commit=kind == COMMIT, timestamp_ms=NOW)
    survey.take(header(data), kind)


@pytest.mark.parametrize(
    ("time_ms", "producer", "transactional", "is_needed"),
    [
        (OLD + 1, 7, False, True),
        (OLD, 7, False, False),  # no batch of it is sent again
        (OLD, 7, True, True),  # its transaction is open
        (OLD, NAMED_ID_MIN, False, True),  # named ones are never forgotten
    ],
)
def test_last_batch_of_a_producer_stays_as_long_as_it_may_be_active(
    time_ms: int, producer: int, transactional: bool, is_needed: bool
) -> None:
    survey = ProducerSurvey()
    for base in (0, 2):
        send(survey, base, producer, time_ms=time_ms, transactional=transactional)
    assert list(survey.needed(NOW)) == [3] * is_needed


def test_markers_stay_of_a_producer_that_has_no_batch_of_its_epoch() -> None:
    """The markers hold the epoch."""
    survey = ProducerSurvey()
    send(survey, 0, 7, transactional=True)
    end(survey, 2, 7, COMMIT)
    assert list(survey.needed(NOW)) == [1]
    fence = marker(3, 7, commit=False, epoch=1, timestamp_ms=NOW)
    survey.take(header(fence), ABORT)
    assert list(survey.needed(NOW)) == [3]


def test_aborted_transaction_has_the_offset_that_was_stable_then() -> None:
    survey = ProducerSurvey()
    send(survey, 0, 7, transactional=True)
    send(survey, 2, 8, transactional=True)
    send(survey, 4, 7, transactional=True)
    assert (survey.stable(0), survey.stable(3)) == (0, 3)
    end(survey, 6, 8, ABORT)
    end(survey, 7, 7, ABORT)
    assert survey.aborted == [TxnEntry(0, 8, 2, 6, 0), TxnEntry(0, 7, 0, 7, 8)]
    assert survey.ranges == [(8, 2, 3), (7, 0, 5)]
    assert survey.end == 8
    assert survey.stable(0) == OFFSET_MAX


def test_marker_that_ends_nothing_is_spent() -> None:
    survey = ProducerSurvey()
    end(survey, 0, 7, COMMIT)
    send(survey, 1, 7, transactional=True)
    end(survey, 3, 7, COMMIT)
    assert survey.spent == [0]
    assert survey.aborted == []
