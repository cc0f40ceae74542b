"""Decisions about single batches that need the whole log: transactions that were
aborted, markers that nothing refers to any more, and the last batch of each producer.

The batches themselves are read for it, and their checksums checked: a marker that is
read with a wrong producer would end no transaction, and aborted records would count.
Kafka reads its transaction indexes and producer snapshots instead, which may be
missing.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Generator, Iterator, Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.index import TxnEntry
from logstore.io.checkpoint.producer_names import NAMED_ID_MIN
from logstore.io.layout import OFFSET_MAX
from logstore.log.producers import EXPIRY_MS, SEQUENCES
from logstore.log.read.damage import make_batch
from logstore.record.batch import ABORT, COMMIT
from logstore.record.file_walk import FileWalk
from logstore.segment import Segment

__all__ = ["LogOutcomes", "ProducerSurvey", "survey_log"]

_BUFFER_BYTES: Final = 1 << 20
_NONE: Final = -1


class LogOutcomes(NamedTuple):
    """The findings of a survey of a log.

    Attributes:
        native: for the C core.
        aborted: the transactions that were aborted and still have batches, in the order
            of their markers: the content of transaction indexes.
        end: after the last marker. The findings are valid as long as the log below it
            does not change.
    """

    native: native.Outcomes
    aborted: tuple[TxnEntry, ...]
    end: int


class _Producer:
    """One producer, as the batches so far show it.

    Attributes:
        last_data: last offset of its last batch with data of that epoch; -1: none.
        last: (offset, sequence) of its last record, of any epoch; None: none.
    """

    __slots__ = ("epoch", "last", "last_data", "markers", "timestamp")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.last_data = _NONE
        self.last: tuple[int, int] | None = None
        self.markers: list[int] = []
        self.timestamp = _NONE

    def take(self, header: native.BatchHeader) -> None:
        if header.producer_epoch != self.epoch:
            self.epoch = header.producer_epoch
            self.last_data = _NONE
            self.markers.clear()
        self.timestamp = header.max_timestamp
        if header.is_control:
            self.markers.append(header.last_offset)
        else:
            self.last_data = header.last_offset
            size = header.last_offset - header.base_offset
            sequence = (header.base_sequence + size) % SEQUENCES
            self.last = header.last_offset, sequence

    def turn_before(self, header: native.BatchHeader) -> int | None:
        """The offset of its last record, if records of others were between it and a
        later batch."""
        if self.last is None:
            return None
        offset, sequence = self.last
        own = (header.base_sequence - sequence - 1) % SEQUENCES
        return None if header.base_offset - offset - 1 == own else offset


class ProducerSurvey:
    """The batches of producers, in their order.

    Attributes:
        end: after the last marker of a transaction; 0 without markers.
        memory_bytes: of the largest buffer that was needed to read them.
    """

    def __init__(self) -> None:
        self.end = self.memory_bytes = 0
        self.producers: dict[int, _Producer] = {}
        # (first offset, last offset so far) of each open transaction.
        self.open: dict[int, tuple[int, int]] = {}
        # (first offset, producer) of these, the lowest first, and of some that ended.
        self._begun: list[tuple[int, int]] = []
        self.ranges: list[tuple[int, int, int]] = []
        self.aborted: list[TxnEntry] = []
        self.spent: list[int] = []
        # The last offsets of batches of named producers that their next one does not
        # follow at once: for `Producers.set_before`, if the log is cut.
        self.turns = array("q")

    def take(self, header: native.BatchHeader, marker: int | None) -> None:
        """Add a batch; `marker` is its type if it is a control batch with a record."""
        producer_id = header.producer_id
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self.producers[producer_id] = _Producer(header.producer_epoch)
        elif producer_id >= NAMED_ID_MIN:
            turn = producer.turn_before(header)
            if turn is not None:
                self.turns.append(turn)
        if not (header.is_control and header.record_count == 0):
            producer.take(header)
        if header.is_control:
            self._end(header, marker)
        elif header.is_transactional:
            there = self.open.get(producer_id)
            first = header.base_offset if there is None else there[0]
            self.open[producer_id] = first, header.last_offset
            if there is None:
                heapq.heappush(self._begun, (first, producer_id))

    def _end(self, header: native.BatchHeader, marker: int | None) -> None:
        if marker not in (ABORT, COMMIT):
            return  # not of a transaction, or emptied already
        self.end = header.last_offset + 1
        transaction = self.open.pop(header.producer_id, None)
        if transaction is None:
            self.spent.append(header.last_offset)
            return
        if marker == ABORT:
            first, last = transaction
            offset = header.last_offset
            stable = self._oldest(offset + 1)
            self.ranges.append((header.producer_id, first, last))
            self.aborted.append(TxnEntry(0, header.producer_id, first, offset, stable))

    def _oldest(self, default: int) -> int:
        """Where the oldest open transaction begins."""
        while self._begun:
            first, producer_id = self._begun[0]
            if self.open.get(producer_id, (None, 0))[0] == first:
                return first
            heapq.heappop(self._begun)
        return default

    def stable(self, start: int) -> int:
        """The last stable offset by these batches, of a log that begins at `start`:
        the oldest transaction that is open begins there. OFFSET_MAX if none is."""
        begun = (
            max(first, start) for first, last in self.open.values() if last >= start
        )
        return min(begun, default=OFFSET_MAX)

    def outcomes(self, round_end: int, now_ms: int) -> LogOutcomes:
        """The findings.

        Args:
            round_end: where the compaction ends; the batch that ends there stays at
                least as a header.
            now_ms: wall clock.
        """
        needed = [*self.needed(now_ms), *self.turns, round_end - 1]
        outcomes = native.Outcomes(self.ranges, self.spent, needed)
        return LogOutcomes(outcomes, tuple(self.aborted), self.end)

    def needed(self, now_ms: int) -> Iterator[int]:
        """The last offsets of the batches that have the state of producers that may
        still be active."""
        for producer_id, producer in self.producers.items():
            is_named = producer_id >= NAMED_ID_MIN
            is_old = now_ms - producer.timestamp >= EXPIRY_MS
            if is_old and not is_named and producer_id not in self.open:
                continue
            if producer.last_data >= 0:
                yield producer.last_data
            else:
                yield from producer.markers


def survey_log(
    segments: Sequence[Segment], end: int
) -> Generator[int, None, ProducerSurvey]:
    """Read the headers of a log; yields the bytes of each step.

    Args:
        segments: all of it.
        end: of the log.

    Raises:
        CorruptRecordError, UnsupportedError: damage.
    """
    survey = ProducerSurvey()
    for segment in segments:
        for n, headers, buffer_bytes in _headers(segment):
            survey.memory_bytes = max(survey.memory_bytes, buffer_bytes)
            for header, marker in headers:
                if header.base_offset < end:
                    survey.take(header, marker)
            yield n
    return survey


def _headers(
    segment: Segment,
) -> Iterator[tuple[int, list[tuple[native.BatchHeader, int | None]], int]]:
    """The batches of producers in a segment, markers with their type; buffer by buffer,
    each with the number of bytes that were read, and the size of the buffer."""
    walk = FileWalk(
        segment,
        segment.start,
        native.Buffer(_BUFFER_BYTES),
        end=segment.size,  # it may grow meanwhile, or be cut
    )
    while walk.read():
        headers: list[tuple[native.BatchHeader, int | None]] = []
        stop = native.STOP_FULL
        while stop == native.STOP_FULL:
            scan = native.scan_producers(
                walk.buffer.c,
                walk.n,
                pos=walk.at,
                last_offset=walk.last_offset,
                checks=segment.checks,
            )
            before, position = walk.last_offset, walk.at
            segment.check_end(
                scan.last_offset, walk.buffer, walk.n, position, walk.pos, before
            )
            for header in scan.headers:
                headers.append((header, _marker_type(segment, header, walk)))
            stop = scan.stop
            walk.take(scan)
        yield walk.n, headers, walk.buffer.capacity


def _marker_type(
    segment: Segment, header: native.BatchHeader, walk: FileWalk
) -> int | None:
    """The type of a control batch's record; None without a record."""
    if not header.is_control or header.record_count == 0:
        return None
    batch = make_batch(segment, header, walk.buffer, walk.pos + header.pos, 1 << 20)
    record = batch.control_record()
    return None if record is None else record.type
