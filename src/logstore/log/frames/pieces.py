"""What a scan reads, as ranges of offsets: one for each segment, then joined or cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from logstore.errors import CorruptRecordError, StorageError, UnsupportedError
from logstore.log.frames.log import Log
from logstore.segment import Segment

__all__ = [
    "PIECE_BYTES",
    "Piece",
    "cut_to_size",
    "later_than",
    "latest_in",
    "segments_of",
]

# What one thread reads at a time: long enough that the start of a read, a lookup of
# about 0.1 ms, is below 1 %; short enough that a file of 1 GiB is work for many, and
# that what they hold decoded stays small.
PIECE_BYTES: Final = 16 << 20


class Piece(NamedTuple):
    """A range of a log to be read by one thread.

    Attributes:
        start, stop: offsets, half open; inside of `log.start` and `log.stop`.
        size: bytes of log in it, about.
        can_be_cut: whether a read of a part notices all that a read of the whole does.
        segment: the one that it is a part of, or the first of several.
    """

    log: Log
    start: int
    stop: int
    size: int
    can_be_cut: bool
    segment: Segment


def segments_of(log: Log) -> Iterator[Piece]:
    """One piece for each segment in which there is something to read."""
    run = log.view.from_offset(log.start)
    while run:
        segment = run.popleft()
        first = max(log.start, segment.base_offset)
        end = min(log.stop, run[0].base_offset) if run else log.stop
        if first >= end:
            if segment.base_offset >= log.stop:
                return
            continue
        spread = max(segment.next_offset - segment.base_offset, 1)
        size = int(segment.size * min((end - first) / spread, 1.0))
        yield Piece(log, first, end, size, segment.is_gapless, segment)


def latest_in(piece: Piece) -> int | None:
    """The largest timestamp in the segment of a piece, Unix milliseconds.

    None: not known for sure. So it is where anything is wrong with the segment, which
    the read of it tells; and of the last one where another process may append to it.
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
    where it has none.

    Only the time index says so, and only as far as the log bears it out.
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
    # Unknown (a wrapper of magic 0 or 1): below each offset that there is.
    first = max(piece.start, place.last_offset + 1)
    if first >= piece.stop:
        return None
    left = (piece.stop - first) / (piece.stop - piece.start)
    return piece._replace(start=first, size=int(piece.size * left))


def cut_to_size(pieces: Iterable[Piece], *, is_parallel: bool) -> Iterator[Piece]:
    """The same ranges as pieces of about `PIECE_BYTES`: small neighbours are joined,
    large ones cut. With one thread, neighbours are joined and nothing is cut.

    A segment with gaps in its offsets (Kafka's) is never cut: only a read of all its
    batches in their order can tell a gap from a batch whose offset was damaged.
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
    """A piece cut at entries of the offset index: there batches begin, and none is
    decoded twice. Wrong entries make it slower, and nothing worse."""
    count = min(-(-piece.size // PIECE_BYTES), piece.stop - piece.start)
    segment, spread = piece.segment, piece.stop - piece.start
    entries = segment.offset_entries()
    bounds = [piece.start]
    for at in range(1, count):
        offset = piece.start + spread * at // count
        slot, _ = entries.floor(offset - segment.base_offset)
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
