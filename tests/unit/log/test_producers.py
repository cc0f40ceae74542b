"""The rules of idempotent producers, as a broker applies them."""

from __future__ import annotations

import random

import pytest

from logstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnsupportedError,
)
from logstore.io.checkpoint.producer_names import NAMED_ID_MIN
from logstore.log.producers import (
    EXPIRY_MS,
    WINDOW,
    Identity,
    Marker,
    Producers,
    SentBatch,
)

NOW = 1_700_000_000_000
LAST = 2**31 - 1


class Log:
    """The state of a log that appends what may be appended."""

    def __init__(self) -> None:
        self.producers = Producers(0)

    def append(
        self, *batches: tuple[int, int, int], producer: int = 1, now_ms: int = NOW
    ) -> range:
        """Batches of (epoch, first sequence, size)."""
        sent = [SentBatch(producer, *one, timestamp_ms=NOW) for one in batches]
        known = self.producers.check(sent, now_ms, "orders-0")
        if known is not None:
            return known
        base = end = self.producers.end
        for batch in sent:
            end += batch.size
            self.producers.add(batch, end - 1)
        self.producers.end = end
        return range(base, end)


def test_sequences_of_one_producer_as_kafka_takes_them() -> None:
    """Recorded calls and results of a broker."""
    log = Log()
    log.append((0, 50, 2), producer=2)
    assert log.append((0, 0, 2)) == range(2, 4)
    assert log.append((0, 0, 2)) == range(2, 4)
    for first in (0, 3):
        with pytest.raises(OutOfOrderSequenceError) as caught:
            log.append((0, first, 1))
        assert (caught.value.sequence, caught.value.expected) == (first, 2)
        assert (caught.value.producer_id, caught.value.partition) == (1, "orders-0")
    for n in range(2, 8):
        assert log.append((0, n, 1)) == range(n + 2, n + 3)
    with pytest.raises(DuplicateSequenceError):
        log.append((0, 2, 1))
    assert log.append((0, 3, 1)) == range(5, 6)
    with pytest.raises(OutOfOrderSequenceError):
        log.append((1, 5, 1))
    assert log.append((1, 0, 1)) == range(10, 11)
    with pytest.raises(InvalidProducerEpochError) as stale:
        log.append((0, 8, 1))
    assert (stale.value.epoch, stale.value.expected) == (0, 1)


def test_sequences_go_on_at_zero_after_the_largest() -> None:
    """This happens even inside a batch; earlier sequences are known as duplicates
    there, too."""
    log = Log()
    assert log.append((0, LAST - 1, 1)) == range(1)
    assert log.append((0, LAST, 1)) == range(1, 2)
    assert log.append((0, 0, 1)) == range(2, 3)
    with pytest.raises(DuplicateSequenceError):
        log.append((0, LAST - 10, 9))
    log = Log()
    assert log.append((0, LAST - 1, 5)) == range(5)
    assert log.append((0, LAST - 1, 5)) == range(5)
    assert log.append((0, 3, 1)) == range(5, 6)
    with pytest.raises(OutOfOrderSequenceError):
        log.append((0, 5, 1))


def test_only_exact_ranges_of_the_last_five_batches_are_duplicates() -> None:
    log = Log()
    for n in range(WINDOW + 2):
        log.append((0, 10 * n, 10))
    for n in range(2, WINDOW + 2):
        assert log.append((0, 10 * n, 10)) == range(10 * n, 10 * n + 10)
    for first, size in ((0, 10), (10, 10), (5, 10), (0, 20)):
        with pytest.raises(DuplicateSequenceError):
            log.append((0, first, size))
    for first, size in ((20, 9), (21, 9), (20, 11), (15, 10), (65, 10), (71, 1)):
        with pytest.raises(OutOfOrderSequenceError):
            log.append((0, first, size))
    assert log.append((0, 70, 1)) == range(70, 71)


def test_unknown_producer_begins_anywhere_and_an_expired_one_is_unknown() -> None:
    log = Log()
    assert log.append((7, 123, 1)) == range(1)
    with pytest.raises(OutOfOrderSequenceError):
        log.append((7, 125, 1), now_ms=NOW + EXPIRY_MS - 1)
    assert log.append((3, 500, 1), now_ms=NOW + EXPIRY_MS) == range(1, 2)
    entries = log.producers.entries(NOW)
    assert [(e.producer_epoch, e.last_sequence) for e in entries] == [(3, 500)]
    assert log.producers.entries(NOW + EXPIRY_MS) == []


def test_several_batches_at_once_follow_each_other() -> None:
    """The batches are all new, or all there already, consecutively."""
    log = Log()
    assert log.append((0, 0, 2), (0, 2, 3)) == range(5)
    assert log.append((0, 0, 2), (0, 2, 3)) == range(5)
    assert log.append((0, 2, 3)) == range(2, 5)
    with pytest.raises(DuplicateSequenceError):
        log.append((0, 2, 3), (0, 5, 1))
    with pytest.raises(DuplicateSequenceError):
        log.append((0, 2, 3), (0, 0, 2))
    with pytest.raises(OutOfOrderSequenceError):
        log.append((0, 5, 1), (0, 7, 1))
    with pytest.raises(OutOfOrderSequenceError):
        log.append((0, 5, 1), (0, 5, 1))
    assert log.append((0, 5, 1), (1, 0, 1), (1, 1, 1)) == range(5, 8)


def test_duplicate_beside_a_batch_without_a_producer_is_refused() -> None:
    """Such a batch would be dropped."""
    log = Log()
    log.append((0, 0, 2))
    known = SentBatch(1, 0, 0, 2, NOW)
    plain = SentBatch(-1, -1, -1, 3, NOW)
    for batches in ([known, plain], [plain, known]):
        with pytest.raises(DuplicateSequenceError) as caught:
            log.producers.check(batches, NOW, "orders-0")
        assert caught.value.producer_id == 1
    assert log.producers.check([plain], NOW, "orders-0") is None


def test_batch_outside_of_a_transaction_of_the_same_call_is_refused() -> None:
    """The result is that of separate calls: it may come after the marker."""
    log = Log()
    inside = SentBatch(1, 0, 0, 1, NOW, is_transactional=True)
    plain = SentBatch(1, 0, 1, 1, NOW)
    end = SentBatch(1, 0, -1, 1, NOW, True, Marker(False, 5))
    with pytest.raises(UnsupportedError, match="open in orders-0"):
        log.producers.check([inside, plain], NOW, "orders-0")
    assert log.producers.check([inside, end, plain], NOW, "orders-0") is None
    log.producers.add(inside, 0)
    assert log.producers.check([end, plain], NOW, "orders-0") is None
    again = SentBatch(1, 0, 1, 1, NOW, is_transactional=True)
    after = SentBatch(1, 0, 2, 1, NOW)
    for batches in ([again, after], [end, again, after]):
        with pytest.raises(UnsupportedError, match="open in orders-0"):
            log.producers.check(batches, NOW, "orders-0")


def test_transaction_begins_where_the_longer_state_has_its_first_batch() -> None:
    """A state that was read from a later place gets it from one that has all."""
    later, whole = Producers(5), Producers(0)
    for producers, first in ((whole, 0), (later, 5)):
        for offset in range(first, 8):
            batch = SentBatch(1, 0, offset, 1, NOW, is_transactional=True)
            producers.add(batch, offset)
    later.inherit(whole)
    assert later.first_open(8) == 0
    end = SentBatch(1, 0, -1, 1, NOW, True, Marker(True, 5))
    assert [one.first_offset for one in later.aborted_by([end], 8)] == [0]


def test_marker_ends_a_transaction_and_raises_the_epoch() -> None:
    """The next batch of the raised epoch begins at 0."""
    producers = Producers(0)
    producers.add(SentBatch(1, 0, 0, 2, NOW, is_transactional=True), 1)
    with pytest.raises(UnsupportedError, match="transaction open since offset 0"):
        producers.check([SentBatch(1, 0, 2, 1, NOW)], NOW, "orders-0")
    assert producers.entries(NOW + 2 * EXPIRY_MS)[0].current_txn_first_offset == 0
    producers.add(SentBatch(1, 0, -1, 1, NOW + 1, True, Marker(False, 5)), 2)
    assert producers.check([SentBatch(1, 0, 2, 1, NOW)], NOW, "orders-0") is None
    producers.add(SentBatch(1, 1, -1, 1, NOW + 2, True, Marker(False, 6)), 3)
    assert producers.entries(NOW)[0][1:] == (1, -1, -1, 0, NOW + 2, 6, -1)
    assert producers.check([SentBatch(1, 1, 0, 1, NOW)], NOW, "orders-0") is None
    with pytest.raises(OutOfOrderSequenceError):
        producers.check([SentBatch(1, 1, 2, 1, NOW)], NOW, "orders-0")


def test_snapshot_gives_the_last_batch_of_each_producer() -> None:
    log, rng = Log(), random.Random(5)
    following = dict.fromkeys(range(5), LAST - 20)
    for _ in range(50):
        producer, size = rng.randrange(5), rng.randrange(1, 9)
        log.append((0, following[producer], size), producer=producer)
        following[producer] = (following[producer] + size) % 2**31
    entries = log.producers.entries(NOW)
    again = Log()
    again.producers = Producers(log.producers.end, entries)
    assert again.producers.entries(NOW) == entries
    for producer, sequence in following.items():
        with pytest.raises(OutOfOrderSequenceError):
            again.append((0, sequence + 1, 1), producer=producer)
        assert again.append((0, sequence, 1), producer=producer)


def test_producer_that_begins_again_has_no_batches_of_before() -> None:
    """The producer has expired: its sequences are used a second time."""
    log = Log()
    log.append((0, 0, 2))
    log.append((0, 2, 2))
    later = NOW + EXPIRY_MS
    again = SentBatch(1, 0, 0, 2, later)
    assert log.producers.check([again], later, "orders-0") is None
    log.producers.add(again, 5)
    log.producers.end = 6
    assert log.producers.check([again], later, "orders-0") == range(4, 6)
    following = again._replace(first_sequence=2)
    assert log.producers.check([following], later, "orders-0") is None


def test_sequences_of_a_named_producer_go_on_over_its_epochs() -> None:
    """Sequences of another producer begin at 0 again there. A named producer never
    expires."""
    log, named = Log(), NAMED_ID_MIN
    log.append((0, 40, 2), producer=named)
    assert log.append((1, 42, 1), producer=named) == range(2, 3)
    late = NOW + 9 * EXPIRY_MS
    with pytest.raises(OutOfOrderSequenceError):
        log.append((2, 44, 1), producer=named, now_ms=late)
    with pytest.raises(DuplicateSequenceError):
        log.append((2, 0, 1), producer=named, now_ms=late)
    with pytest.raises(InvalidProducerEpochError):
        log.append((0, 43, 1), producer=named, now_ms=late)
    identity = Identity(named, 1)
    assert log.producers.last_sequence(identity) == 42
    assert log.producers.last_sequence(Identity(named + 1, 0)) is None
    assert log.producers.batch_that_ends(identity, 41) == range(2)
    assert [e.producer_id for e in log.producers.entries(late)] == [named]
    assert log.producers.has_named
    assert not Log().producers.has_named


def test_earlier_ids_of_a_named_producer_count_until_the_new_one_appends() -> None:
    log = Log()
    log.append((9, 40, 2), producer=NAMED_ID_MIN)
    new = Identity(NAMED_ID_MIN + 5, 0, (NAMED_ID_MIN,))
    assert log.producers.last_sequence(new) == 41
    batch = SentBatch(new.producer_id, 0, 42, 1, NOW)
    log.producers.check_named(new, batch, "orders-0")
    with pytest.raises(OutOfOrderSequenceError):
        log.producers.check_named(new, batch._replace(first_sequence=44), "orders-0")
    log.producers.add(batch, 2)
    assert log.producers.last_sequence(new) == 42
    assert log.producers.batch_that_ends(new, 41) is None


@pytest.mark.parametrize(
    ("offset", "known"),
    [(0, []), (3, []), (4, [4]), (7, [4]), (8, [4, 8]), (9, [4, 8])],
)
def test_named_producers_before_a_cut_know_what_is_left_of_them(
    offset: int, known: list[int]
) -> None:
    """A batch with its last record at the cut is unknown, since that record is cut off.
    `known`: end offsets of the known batches."""
    log = Log()
    log.append((0, 0, 4), producer=NAMED_ID_MIN)
    log.append((0, 4, 4), producer=NAMED_ID_MIN)
    log.append((0, 0, 1), producer=1)
    before = log.producers.named_before(offset)
    identity = Identity(NAMED_ID_MIN, 0)
    ends = [
        span.stop
        for last in (3, 7)
        if (span := before.batch_that_ends(identity, last)) is not None
    ]
    assert ends == known
    assert before.last_sequence(identity) == (known[-1] - 1 if known else None)
    assert before.has_named is bool(known)
    log.producers.forget_named_from(offset)
    assert log.producers.last_sequence(identity) == before.last_sequence(identity)
