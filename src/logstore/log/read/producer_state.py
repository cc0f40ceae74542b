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
from logstore.record.decoder import Damage
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
        """Why readers of a broker would take the transaction for something else with
        an entry of the index, or with none; empty if they would not.

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
    buffer = native.Buffer(READ_BYTES)
    pos, last_offset = segment.locate(begin)
    checks = segment.checks
    while pos < segment.size:
        n = segment.read(buffer.view, pos)
        size, walked, _, stop, error, _ = native.walk_batches(
            buffer.c, n, pos=0, last_offset=last_offset, checks=checks
        )
        if native.has_producer(buffer.c, size):
            for batch, at in _sent_in(segment, buffer, size, pos, limit):
                if at[0] >= end:
                    return
                if at[1] >= begin:
                    yield batch, at[1]
        if error is not None:
            damage = Damage(error.reason, error.pos, unsupported=error.is_unsupported)
            raise segment.error_of(damage, pos, walked + 1)
        if walked >= end:
            return
        last_offset = walked
        buffer = segment.next_buffer(buffer, n, size, stop, pos, walked + 1)
        pos += size


def _sent_in(
    segment: Segment, buffer: native.Buffer, size: int, file_pos: int, limit: int
) -> Iterator[tuple[SentBatch, tuple[int, int]]]:
    """The batches of producers in a buffer, which were checked, with their offsets."""
    pos = 0
    while pos < size:
        scan = native.scan_batches(buffer.c, size, pos=pos, last_offset=-1, checks=0)
        for header in scan.headers:
            if header.producer_id < 0:
                continue
            marker = None
            if header.is_control:
                place = file_pos + header.pos
                marker = _marker_of(segment, header, buffer, place, limit)
                if marker is None:
                    continue
            offsets = header.base_offset, header.last_offset
            yield sent_batch(header, marker), offsets
        if scan.pos <= pos:
            return
        pos = scan.pos


def _marker_of(
    segment: Segment,
    header: native.BatchHeader,
    buffer: native.Buffer,
    file_pos: int,
    limit: int,
) -> Marker | None:
    """What a control batch says; None if it ends no transaction, or was emptied."""
    if not header.is_transactional:
        return None
    batch = make_batch(segment, header, buffer, file_pos, limit)
    control = batch.control_record()
    if control is None or control.type not in (ABORT, COMMIT):
        return None
    return Marker(control.type == ABORT, control.coordinator_epoch)
