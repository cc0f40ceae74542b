"""The producers of a log: which of their batches it has, by Kafka's rules.

A producer numbers its records for each partition: a sequence of 31 bits, which begins
at 0 with each epoch and, after 2^31 - 1, at 0 again. A log keeps the last five batches
of each producer, so that a batch that is sent again is found, and one that is missing,
too (KIP-98, "Idempotent producer guarantees").

Named producers (`Store.producer`) have separate ids, from `NAMED_ID_MIN` on. Their
sequences continue when another epoch begins, and they are never forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    OutOfOrderSequenceError,
    UnsupportedError,
)
from logstore.index import TxnEntry
from logstore.io.checkpoint.producer_names import NAMED_ID_MIN
from logstore.io.checkpoint.producer_snapshot import ProducerEntry

__all__ = [
    "EXPIRY_MS",
    "SEQUENCES",
    "WINDOW",
    "Identity",
    "Marker",
    "Producers",
    "SentBatch",
    "sent_batch",
]

# How many batches of a producer are kept.
WINDOW: Final = 5
# A producer is forgotten when its newest record is this old, as with Kafka's default of
# `producer.id.expiration.ms`.
EXPIRY_MS: Final = 24 * 3600 * 1000

# How many sequences there are: 0 follows the last one.
SEQUENCES: Final = 1 << 31
_NONE: Final = -1


class Marker(NamedTuple):
    """The content of a control batch that ends a transaction.

    Attributes:
        is_abort: else it commits.
        coordinator_epoch: of the coordinator that wrote it.
    """

    is_abort: bool
    coordinator_epoch: int


class SentBatch(NamedTuple):
    """A batch in the log, or to append.

    Attributes:
        producer_id: -1 if its producer does not number its records.
        size: number of its offsets.
        is_transactional: it is part of a transaction, or ends one.
        marker: of a batch that ends one.
    """

    producer_id: int
    epoch: int
    first_sequence: int
    size: int
    timestamp_ms: int
    is_transactional: bool = False
    marker: Marker | None = None

    @property
    def last_sequence(self) -> int:
        return (self.first_sequence + self.size - 1) % SEQUENCES


class Identity(NamedTuple):
    """A named producer, as its batches have it.

    Attributes:
        earlier_ids: its former ids, whose epochs are used up, newest first.
    """

    producer_id: int
    epoch: int
    earlier_ids: tuple[int, ...] = ()


class _Known(NamedTuple):
    """A batch that the log has, or had.

    Attributes:
        last_offset: -1 if it was deleted and its offsets are not known.
    """

    first_sequence: int
    last_sequence: int
    last_offset: int
    size: int

    @property
    def offsets(self) -> range:
        return range(self.last_offset - self.size + 1, self.last_offset + 1)


class _Producer:
    """One producer.

    Attributes:
        epoch: the highest one.
        batches: the newest ones of that epoch, at most `WINDOW`; batches of a named
            producer may have earlier epochs.
        timestamp_ms: the largest one of the last batch or marker.
        coordinator_epoch: of the last marker, or -1.
        transaction: the first offset of its open transaction, or -1.
    """

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "is_named",
        "timestamp_ms",
        "transaction",
    )

    def __init__(self, key: int, epoch: int) -> None:
        self.is_named = key >= NAMED_ID_MIN
        self.epoch = epoch
        self.batches: deque[_Known] = deque(maxlen=WINDOW)
        self.timestamp_ms = _NONE
        self.coordinator_epoch = _NONE
        self.transaction = _NONE

    def is_old(self, now_ms: int) -> bool:
        """Whether its newest record is so old that no batch is sent again."""
        return self.transaction < 0 and now_ms - self.timestamp_ms >= EXPIRY_MS

    def has_expired(self, now_ms: int) -> bool:
        return not self.is_named and self.is_old(now_ms)

    def set_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            if not self.is_named:
                self.batches.clear()


class Producers:
    """The producers of a log up to an offset.

    Attributes:
        end: all batches below it were added.
    """

    def __init__(self, end: int, entries: Iterable[ProducerEntry] = ()) -> None:
        """Args:
        entries: of the snapshot at `end`.
        """
        self.end = end
        self._by_id: dict[int, _Producer] = {}
        # The first offsets of the open transactions, by producer; ascending.
        self._open: dict[int, int] = {}
        for entry in entries:
            key = entry.producer_id
            producer = self._by_id[key] = _Producer(key, entry.producer_epoch)
            producer.timestamp_ms = entry.timestamp
            producer.coordinator_epoch = entry.coordinator_epoch
            producer.transaction = entry.current_txn_first_offset
            if producer.transaction >= 0:
                self._open[key] = producer.transaction
            if entry.last_sequence >= 0:
                count = entry.offset_delta + 1
                first = (entry.last_sequence - entry.offset_delta) % SEQUENCES
                known = _Known(first, entry.last_sequence, entry.last_offset, count)
                producer.batches.append(known)
        self._sort_open()

    def _sort_open(self) -> None:
        self._open = dict(sorted(self._open.items(), key=lambda item: item[1]))

    # ------------------------------------------------------------ before an append

    def check(
        self, batches: Sequence[SentBatch], now_ms: int, where: str
    ) -> range | None:
        """Whether batches of producers may be appended, one after the other.

        Args:
            where: the partition, for messages.

        Returns the offsets that all of them have already; None: they are new.

        Raises:
            OutOfOrderSequenceError: batches before one of them are missing, or a part
                of it is there.
            DuplicateSequenceError: one is there, but its offsets are not known; or some
                are there, and some are not.
            InvalidProducerEpochError: a later epoch of the producer has appended.
            UnsupportedError: the producer has an open transaction.
        """
        spans: list[range] = []
        repeated = _NONE  # a producer that has sent one before
        # (epoch, last sequence, whether it has an open transaction) by producer
        ahead: dict[int, tuple[int, int, bool]] = {}
        for batch in batches:
            key = batch.producer_id
            if key < 0:
                continue
            producer = self._by_id.get(key)
            if producer is not None and producer.has_expired(now_ms):
                producer = None
            is_open = producer is not None and producer.transaction >= 0
            epoch, last, is_open = ahead.get(key) or (*_state_of(producer), is_open)
            if batch.marker is not None:
                _check_marker(batch, batch.marker, epoch, producer, where)
                last = last if batch.epoch == epoch else _NONE
                ahead[key] = batch.epoch, last, False
                continue
            offsets = None
            if key not in ahead and producer is not None:
                offsets = _offsets_of(producer, batch)
            if offsets is not None:
                spans.append(offsets)
                repeated = key
                continue
            if is_open and not batch.is_transactional:
                since = "in"
                if producer is not None and key not in ahead:
                    since = f"since offset {producer.transaction} of"
                raise UnsupportedError(
                    f"producer {key} has a transaction open {since} {where}, and "
                    f"this batch is not part of it: nothing was written"
                )
            window = producer.batches if producer and key not in ahead else ()
            _check_next(batch, epoch, last, window, where)
            is_open = is_open or batch.is_transactional
            ahead[key] = batch.epoch, batch.last_sequence, is_open
        if not spans:
            return None
        first, end = spans[0].start, spans[-1].stop
        if len(spans) < len(batches) or sum(map(len, spans)) != end - first:
            raise DuplicateSequenceError(
                f"{len(spans)} of {len(batches)} batches for {where} are already "
                f"in the log, the first at offset {first}: send them again by "
                "themselves; nothing was written",
                producer_id=repeated,
                partition=where,
            )
        return range(first, end)

    # ------------------------------------------------------------ named producers

    def last_sequence(self, identity: Identity) -> int | None:
        """The last one of a named producer; None if it has no batch in the log."""
        producer = self._named(identity)
        return None if producer is None else _state_of(producer)[1]

    def check_named(self, identity: Identity, batch: SentBatch, where: str) -> None:
        """Raise unless the records of a call, as one batch, are the next ones of a
        named producer.

        Raises: as `check`, but for `UnsupportedError`.
        """
        producer = self._named(identity)
        if producer is not None:
            epoch = _state_of(self._by_id.get(identity.producer_id))[0]
            last = _state_of(producer)[1]
            _check_next(batch, max(epoch, 0), last, producer.batches, where)

    def batch_that_ends(self, identity: Identity, last_sequence: int) -> range | None:
        """The offsets of the newest batch of a named producer that ends with a
        sequence; None if that is not one of the last five."""
        producer = self._named(identity)
        for known in reversed(producer.batches if producer else ()):
            if known.last_sequence == last_sequence and known.last_offset >= 0:
                return known.offsets
        return None

    @property
    def has_named(self) -> bool:
        return any(producer.is_named for producer in self._by_id.values())

    def named_before(self, offset: int) -> Producers:
        """The state of the named producers at an offset, as far as known: only the
        producers with a known batch below it."""
        before = Producers(offset)
        for key, producer in self._by_id.items():
            batches = [
                batch for batch in producer.batches if batch.last_offset < offset
            ]
            if producer.is_named and batches:
                earlier_producer = before._by_id[key] = _Producer(key, producer.epoch)
                earlier_producer.batches.extend(batches)
                earlier_producer.timestamp_ms = producer.timestamp_ms
        return before

    def forget_named_from(self, offset: int) -> None:
        """Forget the known batches of named producers from an offset on."""
        for producer in self._by_id.values():
            if producer.is_named:
                kept = [
                    batch for batch in producer.batches if batch.last_offset < offset
                ]
                producer.batches.clear()
                producer.batches.extend(kept)

    def named_that_differ(self, other: Producers) -> set[int]:
        """The ids of the named producers whose last sequence another state of the same
        log does not have."""
        return {
            key
            for key, producer in self._by_id.items()
            if producer.is_named
            and _state_of(producer)[1] != _state_of(other._by_id.get(key))[1]
        }

    def named_from(
        self, offset: int, keys: AbstractSet[int]
    ) -> dict[int, tuple[int, SentBatch]]:
        """The first known batch of each named producer that ends at or after an offset,
        with its first offset."""
        first_batches = {}
        for key in self._by_id.keys() & keys:
            producer = self._by_id[key]
            for known_batch in producer.batches:
                if known_batch.last_offset >= offset:
                    batch = SentBatch(
                        key,
                        producer.epoch,
                        known_batch.first_sequence,
                        known_batch.size,
                        producer.timestamp_ms,
                    )
                    first_batches[key] = known_batch.offsets.start, batch
                    break
        return first_batches

    def set_before(self, batch: SentBatch, base: int, before: int, offset: int) -> None:
        """Set a named producer to its state at an offset.

        Args:
            batch: its first batch from there on, which begins at `base`.
            before: where the last batch of the log before that ends; at least `offset`.
                The batches between these were compacted away. They were of this
                producer, as far as there are sequences for them: compactions keep the
                header of each batch that its next one does not follow at once.
        """
        key = batch.producer_id
        last = _state_of(self._by_id.get(key))[1]
        missing = (batch.first_sequence - 1 - last) % SEQUENCES
        count = missing - min(missing, max(base - before, 0))
        if count:
            producer = self._producer(key, batch.epoch)
            last = (last + count) % SEQUENCES
            # If the batch before the offset was compacted away, it is of this producer.
            is_before = before == offset and (base > before or self.end < offset)
            last_offset = offset - 1 if is_before else _NONE
            producer.batches.clear()
            producer.batches.append(_Known(last, last, last_offset, 1))
            producer.timestamp_ms = batch.timestamp_ms

    def take_named(self, other: Producers, keys: Iterable[int]) -> None:
        """Take named producers from another state of the log."""
        for key in keys:
            self._by_id[key] = other._by_id[key]

    def _named(self, identity: Identity) -> _Producer | None:
        """A named producer under its newest id that has a batch in the log."""
        for key in (identity.producer_id, *identity.earlier_ids):
            producer = self._by_id.get(key)
            if producer is not None and producer.batches:
                return producer
        return None

    def inherit(self, other: Producers) -> None:
        """Take over the producers that only another state of the same log has, from
        before the batches that were added here, and its open transactions. Take over
        named producers with another last sequence there: it may have seen batches that
        were compacted away."""
        for key, producer in other._by_id.items():
            mine = self._by_id.setdefault(key, producer)
            if mine.is_named and _state_of(mine)[1] != _state_of(producer)[1]:
                self._by_id[key] = producer
            if producer.transaction >= 0:
                mine.transaction = self._open[key] = producer.transaction
            coordinators = mine.coordinator_epoch, producer.coordinator_epoch
            mine.coordinator_epoch = max(coordinators)
        self._sort_open()

    # ------------------------------------------------------------ what is in the log

    def add(self, batch: SentBatch, last_offset: int) -> TxnEntry | None:
        """Add a batch that is in the log, whatever its epoch and sequence. Returns the
        entry of the transaction index that it makes: that of an ABORT marker that ends
        a transaction."""
        if batch.producer_id < 0:
            return None
        producer = self._producer(batch.producer_id, batch.epoch)
        if batch.marker is not None:
            return self._end_transaction(producer, batch, batch.marker, last_offset)
        first = last_offset - batch.size + 1
        if batch.first_sequence >= 0:
            known = _Known(
                batch.first_sequence, batch.last_sequence, last_offset, batch.size
            )
            last = _state_of(producer)[1]
            if last >= 0 and batch.first_sequence != (last + 1) % SEQUENCES:
                # It had expired, and began again: a new batch must not be mistaken for
                # an old one.
                producer.batches.clear()
            producer.batches.append(known)
        producer.timestamp_ms = batch.timestamp_ms
        if batch.is_transactional and producer.transaction < 0:
            producer.transaction = self._open[batch.producer_id] = first
        return None

    def _end_transaction(
        self, producer: _Producer, batch: SentBatch, marker: Marker, offset: int
    ) -> TxnEntry | None:
        first = producer.transaction
        producer.transaction = _NONE
        producer.coordinator_epoch = marker.coordinator_epoch
        producer.timestamp_ms = batch.timestamp_ms
        self._open.pop(batch.producer_id, None)
        if first < 0 or not marker.is_abort:
            return None
        stable = self.first_open(offset + 1)
        return TxnEntry(0, batch.producer_id, first, offset, stable)

    def first_open(self, end: int) -> int:
        """The first offset of the oldest open transaction; `end` if none is open."""
        return next(iter(self._open.values()), end)

    def aborted_by(self, batches: Iterable[SentBatch], base: int) -> list[TxnEntry]:
        """The entries of the transaction index for batches that are about to be
        appended at an offset. Nothing is added."""
        ahead = Producers(base)
        ahead._open = dict(self._open)
        for key, first in self._open.items():
            ahead._by_id[key] = _Producer(key, self._by_id[key].epoch)
            ahead._by_id[key].transaction = first
        made = []
        for batch in batches:
            base += batch.size
            entry = ahead.add(batch, base - 1)
            if entry is not None:
                made.append(entry)
        return made

    def next_place(self, producer_id: int) -> tuple[int, int, int] | None:
        """(epoch, last sequence, timestamp) that the next batch of a producer follows;
        None if it is not known, or has an open transaction."""
        producer = self._by_id.get(producer_id)
        if producer is None or not producer.batches or producer.transaction >= 0:
            return None
        return *_state_of(producer), producer.timestamp_ms

    def _producer(self, producer_id: int, epoch: int) -> _Producer:
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = _Producer(producer_id, epoch)
        producer.set_epoch(epoch)
        return producer

    # ------------------------------------------------------------ snapshots

    def entries(self, now_ms: int) -> list[ProducerEntry]:
        """Entries for a snapshot at `end`. Producers that have expired are
        forgotten."""
        for key in [
            k for k, producer in self._by_id.items() if producer.has_expired(now_ms)
        ]:
            del self._by_id[key]
        keys = sorted(self._by_id, key=_hash_order(len(self._by_id)))
        return [_entry_of(key, self._by_id[key]) for key in keys]

    def is_short(self, now_ms: int) -> bool:
        """Whether producers may have fewer batches here than they would have if the
        batches before the added ones were read, too."""
        return any(
            len(producer.batches) < WINDOW
            and not producer.is_old(now_ms)
            and not (producer.batches and producer.batches[0].first_sequence == 0)
            for producer in self._by_id.values()
        )


def _state_of(producer: _Producer | None) -> tuple[int, int]:
    """(epoch, last sequence) of a producer; -1: no producer, or no batch of its
    epoch."""
    if producer is None:
        return _NONE, _NONE
    batches = producer.batches
    return producer.epoch, batches[-1].last_sequence if batches else _NONE


def _offsets_of(producer: _Producer, batch: SentBatch) -> range | None:
    """The offsets of a batch that is one of the newest of its producer, else None."""
    if batch.epoch == producer.epoch:
        for known in producer.batches:
            sequences = batch.first_sequence, batch.last_sequence
            if known[:2] == sequences and known.last_offset >= 0:
                return known.offsets
    return None


def _check_marker(
    batch: SentBatch,
    marker: Marker,
    epoch: int,
    producer: _Producer | None,
    where: str,
) -> None:
    """Raise if a marker is older than what is known of its producer."""
    key = batch.producer_id
    known = producer.coordinator_epoch if producer else _NONE
    is_old = batch.epoch < epoch
    if not is_old and marker.coordinator_epoch >= known:
        return
    mine, theirs = (batch.epoch, epoch) if is_old else (marker.coordinator_epoch, known)
    what = "epoch" if is_old else "a transaction coordinator of epoch"
    raise InvalidProducerEpochError(
        f"producer {key} has {what} {theirs} in {where}, and this marker has "
        f"{mine}: a newer one has replaced it; nothing was written",
        producer_id=key,
        partition=where,
        epoch=mine,
        expected=theirs,
    )


def _check_next(
    batch: SentBatch, epoch: int, last: int, window: Iterable[_Known], where: str
) -> None:
    """Raise unless a batch is the next of its producer, which is at a sequence of an
    epoch."""
    key = batch.producer_id
    if epoch < 0:
        return  # nothing is known of it: any sequence will do
    if batch.epoch < epoch:
        raise InvalidProducerEpochError(
            f"producer {key} has epoch {epoch} in {where}, and this batch has "
            f"epoch {batch.epoch}: a newer one has replaced it; nothing was "
            "written",
            producer_id=key,
            partition=where,
            epoch=batch.epoch,
            expected=epoch,
        )
    is_new = batch.epoch > epoch and key < NAMED_ID_MIN
    expected = 0 if is_new else (last + 1) % SEQUENCES
    if batch.first_sequence == expected:
        return
    oldest = next(iter(window), None)
    if oldest is not None and not is_new:
        # By half the circle: the nearer side decides whether it lies before or after.
        is_known = oldest.last_offset >= 0
        before = oldest.first_sequence - 1 if is_known else oldest.last_sequence
        distance = (before - batch.last_sequence) % SEQUENCES
        if distance < SEQUENCES // 2:
            raise DuplicateSequenceError(
                f"{where} already has sequences {batch.first_sequence} to "
                f"{batch.last_sequence} of producer {key} and later ones: their "
                "offsets are no longer known; nothing was written",
                producer_id=key,
                partition=where,
            )
    raise OutOfOrderSequenceError(
        f"the next sequence of producer {key} in {where} is {expected}, and this batch "
        f"begins at {batch.first_sequence}: nothing was written",
        producer_id=key,
        partition=where,
        sequence=batch.first_sequence,
        expected=expected,
    )


def _entry_of(key: int, producer: _Producer) -> ProducerEntry:
    last = producer.batches[-1] if producer.batches else _Known(_NONE, _NONE, _NONE, 1)
    return ProducerEntry(
        key,
        producer.epoch,
        last.last_sequence,
        last.last_offset,
        last.size - 1,
        producer.timestamp_ms,
        producer.coordinator_epoch,
        producer.transaction,
    )


def _hash_order(count: int) -> Callable[[int], int]:
    """The order in which the JVM's hash map of `count` ids iterates over them. Kafka's
    snapshots have the same order, as long as the map was not larger before."""
    slots = 16
    while count > slots * 3 // 4:
        slots *= 2

    def slot(key: int) -> int:
        code = (key ^ key >> 32) & 0xFFFFFFFF
        return (code ^ code >> 16) & slots - 1

    return slot


def sent_batch(header: native.BatchHeader, marker: Marker | None = None) -> SentBatch:
    """A batch with this header; `marker` if it ends a transaction."""
    return SentBatch(
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        header.last_offset - header.base_offset + 1,
        header.max_timestamp,
        header.is_transactional,
        marker,
    )
