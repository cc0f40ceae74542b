"""The parts of a cursor: the segments that are left, the place in the present one, and
the memory for the chunks that are read.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore import _native as native
from logstore.io.segment_place import Rest
from logstore.log.read.damage import check_stop, confirmed
from logstore.record.file_walk import FRAME_BYTES, FileWalk
from logstore.segment import READ_BYTES, OffsetPosition, Segment

__all__ = ["Buffers", "Chunk", "Route", "SegmentRead"]


class Chunk(NamedTuple):
    """Bytes of a segment: whole batches, and perhaps the beginning of one more.

    Attributes:
        buffer: its first `n` bytes are the chunk, until the next one is requested.
        pos: of its first byte in the file.
        last_offset: where the batch before it ends; `OFFSET_UNKNOWN`.
        checks: of its batches.
        bound: where the part of the read ends that is in the segment.
    """

    segment: Segment
    buffer: native.Buffer
    n: int
    pos: int
    last_offset: int
    checks: int
    bound: int


class Buffers:
    """The memory that the chunks of a read are in.

    The bytes of a chunk stay until the next one is read; with `keeps`, for as long as
    something refers to its buffer: that is never free again.

    Args:
        capacity: bytes of each buffer but the first; None: `READ_BYTES`.
        first: bytes of the first one, at most; None: `READ_BYTES`.
        pool: gives the buffers but the first, in place of `capacity`.
        keeps: each chunk has a buffer of its own.
    """

    __slots__ = ("_capacity", "_first", "_free", "_keeps", "_pool")

    def __init__(
        self,
        capacity: int | None = None,
        first: int | None = None,
        pool: native.BufferPool | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        self._capacity = (capacity or READ_BYTES) if pool is None else pool.capacity
        self._first = min(first or READ_BYTES, self._capacity)
        self._pool = pool
        self._keeps = keeps
        # The one to read into next; None: a new one.
        self._free: native.Buffer | None = None

    def take(self, size: int) -> native.Buffer:
        """The buffer to read into next, of a segment with `size` bytes."""
        buffer = self._free
        if buffer is None:
            buffer = self._free = self._new(size)
        return buffer

    def give(self, buffer: native.Buffer) -> None:
        """Note that a chunk is in a buffer from now on."""
        self._free = None if self._keeps else buffer

    def after(self, chunk: Chunk, buffer: native.Buffer, size: int) -> native.Buffer:
        """The buffer to read into after a chunk: `buffer`, which the walk has chosen,
        or a new one if that is smaller than a segment with `size` bytes needs."""
        if buffer.capacity < self._capacity_for(size):
            buffer = self._new(size)
        if buffer is not chunk.buffer:
            self._free = buffer
        return buffer

    def _capacity_for(self, size: int) -> int:
        """The bytes of a buffer for a segment. The caller of a fetch may ask for more
        than there is memory."""
        if self._pool is not None:
            return self._capacity
        return min(self._capacity, max(size, READ_BYTES))

    def _new(self, size: int) -> native.Buffer:
        if self._first:
            capacity = min(self._first, max(size, READ_BYTES))
            self._first = 0
            return native.Buffer(max(capacity, FRAME_BYTES))
        if self._pool is None:
            return native.Buffer(self._capacity_for(size))
        return self._pool.take()


class SegmentRead:
    """The part of a read that is in one segment.

    Chunks follow each other in the file, and are bytes of one `version` of the segment:
    if the segment has another one, the walk must begin again (`restart`).

    Attributes:
        bound: where the part ends.

    Args:
        rest, end: what may be read ahead, as in `Segment.read`.
        place: where to begin; None: the index has it.
    """

    __slots__ = (
        "_buffers",
        "_end",
        "_first_version",
        "_next_offset",
        "_place",
        "_rest",
        "_walk",
        "bound",
        "segment",
        "version",
    )

    def __init__(
        self,
        segment: Segment,
        bound: int,
        buffers: Buffers,
        rest: Rest,
        end: int,
        place: OffsetPosition | None = None,
    ) -> None:
        self.segment = segment
        self.bound = bound
        self._buffers = buffers
        self._rest, self._end = rest, end
        self.version = self._first_version = segment.version
        self._next_offset = segment.next_offset
        self._place = place
        self._walk: FileWalk | None = None  # None: it begins at the place

    @property
    def was_cut(self) -> bool:
        """Whether a concurrent truncation may explain why the data has moved."""
        return self.segment.version != self._first_version

    def move(self, place: OffsetPosition) -> None:
        """Continue at a place."""
        self._place, self._walk = place, None

    def restart(self) -> None:
        """Continue in the segment as it is now."""
        self.version = self.segment.version
        self._place = self._walk = None

    def has_bytes(self, offset: int, *, is_exact: bool) -> bool:
        """Whether bytes are left to be read. If the walk has not begun, it begins at
        the place of the offset. `is_exact`: as in `Cursor`."""
        segment, walk = self.segment, self._walk
        if walk is None:
            place, self._place = self._place, None
            buffer = self._buffers.take(segment.size)
            if is_exact:
                # Its chunk begins elsewhere: little is read to find that.
                found = segment.seek(place, offset)
                end = OffsetPosition(segment.size, offset - 1)
                place = found[0] if found else end
            if place is None:
                walk = segment.walk_from(offset, buffer, self._rest, self._end)
            else:
                walk = FileWalk(segment, place, buffer, checks=segment.checks)
            self._walk = walk
        return walk.pos < segment.size

    def read(self) -> Chunk:
        """The next chunk. `has_bytes` was called before."""
        segment, walk = self.segment, self._walk
        assert walk is not None
        if not walk.is_filled:
            buffer = self._buffers.take(segment.size)
            if buffer is not walk.buffer:
                walk.use(buffer)
            walk.n = segment.read(walk.into, walk.pos, self._rest, self._end)
        walk.is_filled = False
        return Chunk(
            segment,
            walk.buffer,
            walk.n,
            walk.pos,
            walk.last_offset,
            walk.checks,
            self.bound,
        )

    def advance(
        self, chunk: Chunk, consumed: int, stop: int, last_offset: int, offset: int
    ) -> None:
        """Continue after the first bytes of a chunk; as `FileWalk.advance`."""
        walk = self._walk
        assert walk is not None
        walk.advance(consumed, stop, last_offset, offset)
        buffer = self._buffers.after(chunk, walk.buffer, self.segment.size)
        if buffer is not walk.buffer:
            walk.use(buffer)

    # -- order

    def end(self, offset: int, *, is_last: bool) -> int | None:
        """One past the last offset in the segment, which the next one must follow;
        None: it need not.

        Raises:
            CorruptRecordError: it ends too early. A segment that is not the last may do
                so if its log may have gaps. `offset`: the first one not delivered.
        """
        segment, walk = self.segment, self._walk
        assert walk is not None
        last = walk.last_offset
        is_whole = segment.is_contiguous or is_last
        if last == native.OFFSET_UNKNOWN or not is_whole:
            return None
        if last + 1 < min(self.bound, segment.next_offset):
            raise segment.missing(segment.size, max(offset, last + 1))
        return last + 1

    def is_too_far(self, last_offset: int) -> bool:
        """Whether a batch that ends there does so after the end of the segment."""
        end = max(self._next_offset, self.segment.next_offset)
        return last_offset >= end and not self.was_cut

    def check_bound(self, chunk: Chunk, last: int, offset: int) -> None:
        """Raise `Damage` if a batch that was walked over ends after the end of its
        segment: its offset, which no checksum covers, may hide its records."""
        if not self.is_too_far(last):
            return
        segment, pos = self.segment, 0
        for header in native.Headers(chunk.buffer.c, chunk.n, checks=0):
            if self.is_too_far(header.last_offset):
                last, pos = header.last_offset, header.pos
                break
        raise segment.too_far(last, pos, offset)

    def check_beyond(self, chunk: Chunk, consumed: int, last: int, offset: int) -> None:
        """`check_stop` of the batch after the last one, if it is in the chunk."""
        if self.was_cut:
            return
        beyond = native.first_header(chunk.buffer.c, chunk.n, pos=consumed, checks=0)
        for header in beyond.headers:
            pos = chunk.pos + header.pos
            check_stop(self.segment, header, chunk.buffer, pos, last, offset)

    def is_held_back(self, chunk: Chunk) -> bool:
        """Whether not all of a chunk that was read may be decoded (`confirmed`): the
        next one begins with a batch that is wrong, perhaps."""
        assert self._walk is not None
        return chunk.n < self._walk.n

    def confirmed(self, chunk: Chunk, offset: int) -> int:
        """How many bytes of a chunk may be decoded: `confirmed` in `damage`."""
        segment = self.segment
        if segment.is_contiguous:
            return chunk.n
        end = max(self._next_offset, segment.next_offset)
        if self.was_cut:
            end = native.OFFSET_MAX
        return confirmed(segment, *chunk[1:5], offset, end, (self._rest, self._end))


class Route:
    """The segments of a view that are left to be read, in order, without a copy: there
    may be a hundred thousand, and a read needs one.

    Each is entered once. The next one begins where the one before has ended, if that is
    known (`ended_at`).

    Attributes:
        end: where the read ends in the view.
        is_begun: whether a segment was entered.
        ended_at: one past the last offset of the segment before; None: the next one
            need not follow.

    Args:
        at: the number of the first one.
        place: as in `SegmentRead`, in the first one.
    """

    __slots__ = ("_at", "_place", "_segments", "end", "ended_at", "is_begun")

    def __init__(
        self,
        segments: tuple[Segment, ...],
        at: int,
        end: int,
        place: OffsetPosition | None = None,
    ) -> None:
        self._segments = segments
        self._at = at
        self._place = place
        self.end = end
        self.is_begun = False
        self.ended_at: int | None = None

    def __len__(self) -> int:
        return len(self._segments) - self._at

    def __getitem__(self, number: int) -> Segment:
        """The segment of this number; 0 is the first one left."""
        return self._segments[self._at + number]

    def base(self) -> int:
        """The base offset of the first one; the end of the read if there is none."""
        at, segments = self._at, self._segments
        return segments[at].base_offset if at < len(segments) else self.end

    def has_next(self, offset: int) -> bool:
        """Whether records from an offset on may be in the segments left."""
        return offset < self.end and self.base() < self.end

    def broken_at(self) -> int | None:
        """Where the segment before has ended, if the next one does not begin there."""
        return None if self.ended_at == self.base() else self.ended_at

    def enter(self, buffers: Buffers) -> SegmentRead:
        """The read of the next segment, which is not left any more."""
        segment, place = self._segments[self._at], self._place
        self._at += 1
        self._place, self.is_begun, self.ended_at = None, True, None
        # A segment that is not the last ends where the next one begins.
        bound = min(self.end, self.base())
        return SegmentRead(segment, bound, buffers, self, self.end, place)
