"""Reads the producers of a log, and its transactions, from its batches.

`Producers` says what the batches mean; here they are read, from any offset on. Parts of
a log without batches of producers cost no more than a walk in C.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from logstore import _native as native
from logstore.index import TxnEntry
from logstore.log.producers import Marker, Producers, SentBatch, sent_batch
from logstore.log.read.damage import make_batch
from logstore.record.batch import ABORT, COMMIT
from logstore.record.file_walk import FileWalk
from logstore.segment import READ_BYTES, Segment

__all__ = ["AbortedTransaction", "aborted_in", "producer_batches", "read_producers"]


class AbortedTransaction(NamedTuple):
    """A transaction that an ABORT marker ends, as the log has it.

    Attributes:
        base_offset: of the segment that has the marker.
        producer_id: of the transaction.
        marker: its offset.
        after: the marker of the same producer before it; -1: none is known.
        entry: what Kafka writes of it to the transaction index; None: the log has no
            records of it, as after a compaction.
    """

    base_offset: int
    producer_id: int
    marker: int
    after: int
    entry: TxnEntry | None

    def fault_of(self, entry: TxnEntry | None) -> str:
        """The reason why readers of a broker would misjudge the transaction with this
        entry of the index, or without one; empty if they would not.

        The log may have lost the first records of the transaction, and of others, to a
        deletion or a compaction: then an entry may name earlier offsets than these.
        """
        if entry is None:
            return "is missing" if self.entry is not None else ""
        if self.entry is None:
            first, stable = self.marker, native.OFFSET_MAX
        else:
            first, stable = self.entry.first_offset, self.entry.last_stable_offset
        if not self.after < entry.first_offset <= first:
            return f"begins at offset {entry.first_offset}, not at {first}"
        if not 0 <= entry.last_stable_offset <= stable:
            return f"has the stable offset {entry.last_stable_offset}, not {stable}"
        return ""


def read_producers(
    producers: Producers, segment: Segment, end: int, limit: int
) -> None:
    """Add what a segment has from `producers.end` on, and before `end`.

    Args:
        limit: the most bytes that a batch may have when it is decompressed.

    Raises:
        CorruptRecordError, UnsupportedError: damage.
        StorageError: the system refuses.
    """
    for batch, last_offset in producer_batches(segment, producers.end, end, limit):
        producers.add(batch, last_offset)


def aborted_in(
    producers: Producers,
    segments: Iterable[Segment],
    end: int,
    limit: int,
) -> Iterator[AbortedTransaction]:
    """The transactions that were aborted from `producers.end` on, by their markers.
    Adds what is read to `producers`.

    Args:
        end, limit: as `read_producers`.

    Raises: as `read_producers`.
    """
    last: dict[int, int] = {}
    begin = producers.end
    for segment in segments:
        for batch, last_offset in producer_batches(segment, begin, end, limit):
            entry = producers.add(batch, last_offset)
            if batch.marker is None:
                continue
            key = batch.producer_id
            if batch.marker.is_abort:
                after = last.get(key, -1)
                yield AbortedTransaction(
                    segment.base_offset, key, last_offset, after, entry
                )
            last[key] = last_offset
    producers.end = end


def producer_batches(
    segment: Segment, begin: int, end: int, limit: int
) -> Iterator[tuple[SentBatch, int]]:
    """The batches of producers in a segment that end at or after `begin` and begin
    before `end`, each with its last offset.

    Args:
        limit: as `read_producers`.

    Raises: as `read_producers`.
    """
    walk = segment.walk_from(begin, native.Buffer(READ_BYTES))
    while walk.last_offset < end and walk.read():
        walked = native.walk_batches(
            walk.buffer.c, walk.n, last_offset=walk.last_offset, checks=segment.checks
        )
        if native.has_producer(walk.buffer.c, walked.pos):
            for header in native.Headers(walk.buffer.c, walked.pos, checks=0):
                if header.producer_id < 0 or header.last_offset < begin:
                    continue
                if header.base_offset >= end:
                    return
                marker = None
                if header.is_control:
                    marker = _marker_of(segment, header, walk, limit)
                    if marker is None:
                        continue
                yield sent_batch(header, marker), header.last_offset
        walk.take(walked)


def _marker_of(
    segment: Segment, header: native.BatchHeader, walk: FileWalk, limit: int
) -> Marker | None:
    """The marker in a control batch; None if it ends no transaction, or was emptied."""
    if not header.is_transactional:
        return None
    batch = make_batch(segment, header, walk.buffer, walk.pos + header.pos, limit)
    control = batch.control_record()
    if control is None or control.type not in (ABORT, COMMIT):
        return None
    return Marker(control.type == ABORT, control.coordinator_epoch)
