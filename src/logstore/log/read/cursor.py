"""The place of one read in a log: the only code that knows segments, changes, damage.

Every way of reading decodes the chunks of a `Cursor`. A cursor works on a `View`, the
immutable list of segments and bounds at the time the read began, and takes no lock:
records appended or deleted meanwhile do not change what it delivers. After each call
that reads bytes it checks whether the log was cut before that call: those bytes may
have been written since. If so, it continues in the changed log, if that is still the
same log.

A cursor has three parts: `Route`, the segments that are left; `SegmentRead`, the place
in the present one; `Buffers`, the memory for the chunks. `log/read/resume.py` decides
how to handle damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

from logstore import _native as native
from logstore.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedError,
)
from logstore.io.segment_place import FollowingSegments
from logstore.log.read.corruption import RAISE, Damaged, DamagePolicy
from logstore.log.read.damage import confirmed, first_behind
from logstore.log.read.resume import Met, Resume, after_damage
from logstore.log.read.view import ChangedError, View, slot_of
from logstore.log.resync import Sound
from logstore.record.decoder import Damage
from logstore.record.file_walk import FRAME_BYTES, FileWalk
from logstore.segment import (
    READ_BYTES,
    OffsetPosition,
    Segment,
    SegmentGoneError,
    SegmentReplacedError,
)

__all__ = ["Buffers", "SegmentChunk", "Cursor", "Route", "SegmentRead"]


class Cursor:
    """The place of one read. For one thread.

    After each chunk the caller says how far it was decoded (`advance`), or what is
    wrong with it (`damaged`, `on_damage`).

    Attributes:
        view: the log that it reads now.
        offset: the next one to be delivered. The caller sets it.
        stop: where the read ends. It grows with the end of a log that is compacted
            meanwhile: the last records of some keys may lie beyond the former end.
        compacted_end: the end of the log then; 0: it was not compacted.
        part: the read of the present segment; None: the next one must be entered.
        chunk: the one that is being decoded; None: the next one must be requested.

    Args:
        since: damage that lies wholly below it is ignored; None: `start`.
        buffer_bytes, first_bytes, pool, keeps: the `capacity`, `first`, ... of its
            `Buffers`. The first read may be all that is needed.
        follows: whether it continues if the log is changed. If not, it raises
            `ChangedError`: what the caller has found so far may be wrong.
        is_exact: each chunk begins with the batch that has the offset, or the one
            after it. The caller checks for a change (`check_for_change`) when it has
            read all that it needs.
        place: where to begin in the first segment, if that is known.
        resumed: gets how the cursor has continued after damage, each time.
    """

    def __init__(
        self,
        view: View,
        start: int,
        stop: int,
        policy: DamagePolicy = RAISE,
        *,
        since: int | None = None,
        buffer_bytes: int | None = None,
        first_bytes: int | None = None,
        pool: native.BufferPool | None = None,
        keeps: bool = False,
        follows: bool = True,
        is_exact: bool = False,
        place: OffsetPosition | None = None,
        resumed: list[Resume] | None = None,
    ) -> None:
        self.offset = start
        self.stop = stop
        self.compacted_end = 0
        self._resumed = resumed
        self._policy = policy
        self._since = start if since is None else since
        self._follows = follows
        self._is_exact = is_exact
        self._is_to_end = stop >= view.end_offset
        self._buffers = Buffers(buffer_bytes, first_bytes, pool, keeps=keeps)
        self._begin_in(view, place)

    def _begin_in(self, view: View, place: OffsetPosition | None = None) -> None:
        self.view = view
        segments, end = view.segments, min(self.stop, view.end_offset)
        self._route = Route(segments, slot_of(segments, self.offset), end, place)
        self.part: SegmentRead | None = None
        self.chunk: SegmentChunk | None = None

    # -- chunks

    def chunks(self) -> Iterator[SegmentChunk]:
        """The chunks up to the end of the read.

        Raises:
            OffsetOutOfRangeError: the next records were deleted, or cut off.
            PartitionNotFoundError: another log is in the place of this one.
            CorruptRecordError, UnsupportedError: damage that is not left out.
            ChangedError: see `follows`.
        """
        while (chunk := self.next_chunk()) is not None:
            yield chunk

    def next_chunk(self) -> SegmentChunk | None:
        """The next of `chunks`; None: the read has ended."""
        while self.part is not None or self._route.has_next(self.offset):
            try:
                chunk = self._read(self.part or self._enter())
                if chunk is not None:
                    self._buffers.give(chunk.buffer)
                    self.chunk = chunk
                    return chunk
            except ChangedError as changed:
                self._go_on_in(changed.view)
            except Damage as damage:
                assert self.chunk is not None
                self.damaged(damage, self.chunk.last_offset)
            except (CorruptRecordError, UnsupportedError) as error:
                is_gone = isinstance(error, SegmentGoneError | SegmentReplacedError)
                self.on_damage(error, None if is_gone else error.position)
        if self._follows:
            self.view.check_end(self.stop)
        return None

    def _enter(self) -> SegmentRead:
        """Begin the next segment."""
        route = self._route
        if route.is_begun and self._follows:
            again: View | None = None
            with contextlib.suppress(StorageError):  # reading on does not need it
                again = self.view.now(self.offset)
            if again is not None:
                raise ChangedError(again)
        ended_at = route.broken_at()
        if ended_at is not None:
            # The log was truncated during this read: the rest is another log.
            raise OffsetOutOfRangeError(
                self.offset,
                self.view.start_offset,
                ended_at,
                partition=self.view.name,
            )
        part = self.part = route.enter(self._buffers)
        self.offset = max(self.offset, part.segment.base_offset)
        return part

    def _read(self, part: SegmentRead) -> SegmentChunk | None:
        """The next chunk of a segment. None: it has ended, or the read must continue at
        another place."""
        if part.version != part.segment.version:
            # A failed append was undone; this read may have seen part of it.
            self.check_for_change()
            part.restart()
        if not part.has_bytes(self.offset, is_exact=self._is_exact):
            self.check_for_change()
            ended_at = part.end(self.offset, is_last=not self._route)
            self._route.ended_at = None if self._policy.skips else ended_at
            self.part = None
            return None
        chunk = part.read()
        if not self._is_exact:
            self.check_for_change()
        if part.version != part.segment.version:
            return None
        self.chunk = chunk
        n = part.confirmed(chunk, self.offset)
        return chunk if n == chunk.n else chunk._replace(n=n)

    def advance(self, consumed: int, stop: int, last_offset: int) -> None:
        """Note that the first `consumed` bytes of the chunk were decoded.

        Args:
            stop: why no more: native.STOP_*. STOP_OFFSET: a batch there begins at or
                after the end of the read, or of the segment.
            last_offset: where the last batch of them ends.

        Raises: as `chunks`.
        """
        chunk, part = self.chunk, self.part
        assert chunk is not None
        assert part is not None
        try:
            part.check_bound(chunk, last_offset, self.offset)
            is_over = self.offset >= chunk.bound
            if is_over and self.stop > chunk.bound:
                # Bytes held back belong to this segment, whatever their offset.
                is_over = not part.is_held_back(chunk)
            if stop == native.STOP_OFFSET or is_over:
                part.check_beyond(chunk, consumed, last_offset, self.offset)
                self.chunk = self.part = None
                return
            part.advance(chunk, consumed, stop, last_offset, self.offset)
        except ChangedError as changed:
            self._go_on_in(changed.view)
        except Damage as damage:
            self.damaged(damage)
        except CorruptRecordError as error:
            self.on_damage(error, error.position)
        self.chunk = None

    # -- changes

    def check_for_change(self) -> None:
        """Raise `ChangedError` if the log was cut: the bytes that were read may have
        been written since."""
        view = self.view
        if view.source.is_as_it_was(view.life, view.cuts.serial):
            return
        again = view.now(self.offset) if self._follows else view.if_changed()
        if again is not None:
            raise ChangedError(again)

    def changed(self, view: View) -> None:
        """Continue in the changed log: a look at another place of it has found the
        change, and this view.

        Raises: as `chunks`.
        """
        self._go_on_in(self.view.now(self.offset) or view)

    def _go_on_in(self, view: View) -> None:
        if not self._follows:
            raise ChangedError(view)
        self.chunk = None
        if view.compactions != self.view.compactions:
            self.compacted_end = view.end_offset
            if self._is_to_end:
                self.stop = max(self.stop, view.end_offset)
        self._begin_in(view)

    # -- damage

    def damaged(self, damage: Damage, last_offset: int = native.OFFSET_UNKNOWN) -> None:
        """`on_damage` of damage in the chunk.

        Args:
            last_offset: where the batch before the damage ends.
        """
        chunk = self.chunk
        assert chunk is not None
        if self._is_beyond(chunk.segment, damage, last_offset):
            self.chunk = self.part = None
            return
        self.on_damage(
            chunk.segment.error_of(damage, chunk.pos, self.offset),
            chunk.pos + damage.pos,
            last_offset,
        )

    def _is_beyond(self, segment: Segment, damage: Damage, last_offset: int) -> bool:
        """Whether the read ends in this segment, before the damage: it has passed over
        all that it wants. In a log that may have gaps, the batch after them must show
        that the offsets of the last one are right."""
        is_passed = last_offset + 1 >= self.stop and self.stop < segment.next_offset
        return is_passed and segment.is_contiguous and not damage.is_order

    def on_damage(
        self,
        error: Exception,
        pos: int | None = None,
        last_offset: int = native.OFFSET_UNKNOWN,
    ) -> None:
        """Continue after apparent damage: in the present log, if it was changed; in the
        same place, if the damage lies below the read; after the damage, if it is left
        out. Else raise the error.

        Args:
            pos: where the damage begins; None: the segment cannot be read.
            last_offset: as in `damaged`.
        """
        failure: Exception | None = None
        try:
            failure = self._failure(error, pos, last_offset)
            if failure is not None:
                raise failure from failure.__cause__
        finally:
            # Otherwise this frame and the error would keep each other alive, and with
            # them the buffers of the read, until the garbage collector runs.
            del error, failure

    def end(
        self, error: CorruptRecordError | UnsupportedError | None, last_offset: int
    ) -> None:
        """End the read at the first batch of a transaction of which it is not known
        whether it was committed.

        Args:
            error: the damage that hides it; None: the transaction is open.
            last_offset: where the batch before ends.

        Raises: that error, unless it is left out.
        """
        if error is not None:
            damaged = Damaged(max(self.offset, last_offset + 1), None, error)
            if not self._policy.leaves_out(damaged):
                if isinstance(error, CorruptRecordError):
                    error.offset = damaged.first
                    error.goes_on_at(error.next_offset)
                raise error

    def _failure(
        self, error: Exception, pos: int | None, last_offset: int
    ) -> Exception | None:
        """The error to raise; None: the read continues."""
        self.chunk = None
        part = self.part
        if part is None or not isinstance(error, CorruptRecordError | UnsupportedError):
            return error  # a limit
        if self._follows:
            again = self.view.again(self.offset, error)
        else:
            again = self.view.if_changed(error)
        if again is not None:
            self._go_on_in(again)
            return None
        met = Met(part.segment, error, pos, last_offset, self.offset, self._since)
        resumed = after_damage(met, self._policy, self.view)
        if isinstance(resumed, Exception):
            return resumed
        if self._resumed is not None:
            self._resumed.append(resumed)
        if resumed.place is None:
            self.part = None
        else:
            part.move(resumed.place)
        return None


class SegmentChunk(NamedTuple):
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
        keeps: each chunk has a separate buffer.
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
        # The buffer to read into next; None: a new one.
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

    def after(
        self, chunk: SegmentChunk, buffer: native.Buffer, size: int
    ) -> native.Buffer:
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
        rest: FollowingSegments,
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
        """Continue in the segment after it was replaced."""
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
                walk = segment.walk_at(place, offset, buffer)
            elif place is None:
                walk = segment.walk_from(offset, buffer, self._rest, self._end)
            else:
                walk = FileWalk(segment, place, buffer, checks=segment.checks)
            self._walk = walk
        return walk.pos < segment.size

    def read(self) -> SegmentChunk:
        """The next chunk. `has_bytes` was called before."""
        segment, walk = self.segment, self._walk
        assert walk is not None
        if not walk.is_filled:
            buffer = self._buffers.take(segment.size)
            if buffer is not walk.buffer:
                walk.use(buffer)
            walk.n = segment.read(walk.into, walk.pos, self._rest, self._end)
        walk.is_filled = False
        return SegmentChunk(
            segment,
            walk.buffer,
            walk.n,
            walk.pos,
            walk.last_offset,
            walk.checks,
            self.bound,
        )

    def advance(
        self,
        chunk: SegmentChunk,
        consumed: int,
        stop: int,
        last_offset: int,
        offset: int,
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
        if not (segment.is_contiguous or is_last):
            self._check_behind(offset)
            return None
        last = walk.last_offset
        if last == native.OFFSET_UNKNOWN:
            return None
        if last + 1 < min(self.bound, segment.next_offset):
            raise segment.missing(segment.size, max(offset, last + 1))
        return last + 1

    def _check_behind(self, offset: int) -> None:
        """Raise if records of a segment that may have gaps lie after the end that it
        had when it was sealed: its batches have moved."""
        segment = self.segment
        behind = None if self.was_cut else first_behind(segment)
        if behind is not None and offset <= behind.last_offset < segment.next_offset:
            reason = f"offset {behind.last_offset} is past the end of its segment"
            raise segment.error_of(Damage(reason, 0, offset), segment.size, offset)

    def is_too_far(self, last_offset: int) -> bool:
        """Whether a batch that ends there does so after the end of the segment."""
        end = max(self._next_offset, self.segment.next_offset)
        return last_offset >= end and not self.was_cut

    def check_bound(self, chunk: SegmentChunk, last: int, offset: int) -> None:
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

    def check_beyond(
        self, chunk: SegmentChunk, consumed: int, last: int, offset: int
    ) -> None:
        """Raise if records below the end of a read may be hidden: the offset of the
        batch there, which no checksum covers, may be wrong. It is looked at if it is in
        the chunk.

        Args:
            last: the last offset of the batch before; `OFFSET_UNKNOWN`.
            offset: the first offset that was not delivered.
        """
        if self.was_cut:
            return
        segment, buffer = self.segment, chunk.buffer
        beyond = native.first_header(buffer.c, chunk.n, pos=consumed, checks=0)
        for header in beyond.headers:
            pos, end = chunk.pos + header.pos, header.last_offset
            first = end
            if not segment.is_contiguous:
                first = Sound(pos, header, buffer).least_offset()
            if first <= last or end < offset:
                reason = (
                    f"offset {first} does not follow offset {max(last, offset - 1)}"
                )
                raise segment.error_of(Damage(reason, 0, offset), pos, offset)
            if end >= segment.next_offset:
                far = segment.too_far(end, 0, offset)
                raise segment.error_of(far, pos, offset)

    def is_held_back(self, chunk: SegmentChunk) -> bool:
        """Whether not all of a chunk that was read may be decoded (`confirmed`): the
        next one begins with a batch that is wrong, perhaps."""
        assert self._walk is not None
        return chunk.n < self._walk.n

    def confirmed(self, chunk: SegmentChunk, offset: int) -> int:
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

    Each is entered once. The next one begins at the end of the one before, if that is
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
        index: int,
        end: int,
        place: OffsetPosition | None = None,
    ) -> None:
        self._segments = segments
        self._at = index
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
        """The base offset of the first one; the end of the read if none is left."""
        index, segments = self._at, self._segments
        return segments[index].base_offset if index < len(segments) else self.end

    def has_next(self, offset: int) -> bool:
        """Whether records from an offset on may be in the segments left."""
        return offset < self.end and self.base() < self.end

    def broken_at(self) -> int | None:
        """The end of the segment before, if the next one does not begin there."""
        return None if self.ended_at == self.base() else self.ended_at

    def enter(self, buffers: Buffers) -> SegmentRead:
        """The read of the next segment, which is not left any more."""
        segment, place = self._segments[self._at], self._place
        self._at += 1
        self._place, self.is_begun, self.ended_at = None, True, None
        # A segment that is not the last ends where the next one begins.
        bound = min(self.end, self.base())
        return SegmentRead(segment, bound, buffers, self, self.end, place)
