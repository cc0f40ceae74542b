"""The ranges of offsets that a scan reads: one for each segment, then joined or cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from logstore.errors import CorruptRecordError, StorageError, UnsupportedError
from logstore.log.frames.log import Log
from logstore.log.read.view import slot_of
from logstore.segment import Segment

__all__ = [
    "PIECE_BYTES",
    "Piece",
    "cut_to_size",
    "later_than",
    "latest_in",
    "segments_of",
]

# Bytes that a thread reads at a time: enough that the start of a read, a lookup of
# about 0.1 ms, takes below 1 %; few enough that a file of 1 GiB is work for many
# threads, and that they hold few decoded bytes.
PIECE_BYTES: Final = 16 << 20


class Piece(NamedTuple):
    """A range of a log to be read by one thread.

    Attributes:
        start, stop: offsets, half open; inside of `log.start` and `log.stop`.
        size: bytes of log in it, about.
        can_be_cut: whether reads of its parts find all damage that a single read finds.
        segment: the segment that it is a part of, or the first of several.
    """

    log: Log
    start: int
    stop: int
    size: int
    can_be_cut: bool
    segment: Segment


def segments_of(log: Log) -> Iterator[Piece]:
    """One piece for each segment that has offsets to read."""
    segments = log.view.segments
    for number in range(slot_of(segments, log.start), len(segments)):
        segment = segments[number]
        first = max(log.start, segment.base_offset)
        if number + 1 < len(segments):
            end = min(log.stop, segments[number + 1].base_offset)
        else:
            end = log.stop
        if first >= end:
            if segment.base_offset >= log.stop:
                return
            continue
        spread = max(segment.next_offset - segment.base_offset, 1)
        size = int(segment.size * min((end - first) / spread, 1.0))
        yield Piece(log, first, end, size, segment.is_contiguous, segment)


def latest_in(piece: Piece) -> int | None:
    """The largest timestamp in the segment of a piece, Unix milliseconds.

    None: it is not known for sure. This is so if the segment has any error, which a
    read of it reports, and for the last segment if another process may append to it.
    """
    segment = piece.segment
    is_growing = segment is piece.log.view.segments[-1] and segment.live_state is None
    if segment.is_lost or is_growing:
        return None
    try:
        return segment.largest_timestamp()
    except (CorruptRecordError, UnsupportedError, StorageError):
        return None


def later_than(piece: Piece, timestamp_ms: int) -> Piece | None:
    """The part of a segment's piece that can have records of this time or later; None
    if there is no such part.

    It follows from the time index only, as far as the log confirms its entries.
    """
    latest = latest_in(piece)
    if latest is not None and latest < timestamp_ms:
        return None
    if piece.segment.is_lost:
        return piece
    try:
        place = piece.segment.locate_time(timestamp_ms)
    except (CorruptRecordError, UnsupportedError, StorageError):
        return piece
    # If it is unknown (a wrapper of magic 0 or 1), it is below every offset.
    first = max(piece.start, place.last_offset + 1)
    if first >= piece.stop:
        return None
    fraction = (piece.stop - first) / (piece.stop - piece.start)
    return piece._replace(start=first, size=int(piece.size * fraction))


def cut_to_size(pieces: Iterable[Piece], *, is_parallel: bool) -> Iterator[Piece]:
    """The same ranges as pieces of about `PIECE_BYTES`: small neighbours are joined,
    large ones cut. With one thread, neighbours are joined and nothing is cut.

    A segment with gaps in its offsets (Kafka's) is never cut: only a read of all its
    batches in order can distinguish a gap from a batch whose offset was damaged.
    """
    size_max = PIECE_BYTES if is_parallel else 1 << 62
    joined: Piece | None = None
    for piece in pieces:
        if joined is not None and _fit(joined, piece, size_max):
            size = joined.size + piece.size
            joined = joined._replace(stop=piece.stop, size=size, can_be_cut=False)
            continue
        if joined is not None:
            yield joined
            joined = None
        if piece.can_be_cut and piece.size > size_max:
            yield from _parts(piece)
        else:
            joined = piece
    if joined is not None:
        yield joined


def _fit(before: Piece, piece: Piece, size_max: int) -> bool:
    is_next = before.log is piece.log and before.stop == piece.start
    return is_next and before.size + piece.size <= size_max


def _parts(piece: Piece) -> Sequence[Piece]:
    """A piece cut at entries of the offset index: batches begin there, so that none is
    decoded twice. Wrong entries only make it slower."""
    count = min(-(-piece.size // PIECE_BYTES), piece.stop - piece.start)
    segment, spread = piece.segment, piece.stop - piece.start
    entries = segment.offset_entries()
    bounds = [piece.start]
    for number in range(1, count):
        offset = piece.start + spread * number // count
        slot = entries.slot_of(offset - segment.base_offset)
        if slot >= 0:  # an entry has the last offset of its batch
            offset = segment.base_offset + entries.entry(slot)[0] + 1
        if bounds[-1] < offset < piece.stop:
            bounds.append(offset)
    bounds.append(piece.stop)
    size = piece.size // (len(bounds) - 1)
    return [
        piece._replace(start=first, stop=stop, size=size)
        for first, stop in itertools.pairwise(bounds)
    ]
