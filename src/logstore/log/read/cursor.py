"""The place of one read in a log: the only code that knows segments, changes, damage.

Every way of reading decodes the chunks of a `Cursor`. A cursor works on a `View`, the
immutable list of segments and bounds at the time the read began, and takes no lock:
records appended or deleted meanwhile do not change what it delivers. After each call
that reads bytes it checks whether the log was cut before that call: those bytes may
have been written since. If so, it continues in the log as it is now, as far as that is
still the same log.
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
from logstore.log.read.corruption import RAISE, Damaged, DamagePolicy
from logstore.log.read.damage import (
    check_stop,
    first_hidden,
    place_past,
    with_next_offset,
)
from logstore.log.read.view import ChangedError, View, slot_of
from logstore.log.resync import Sound, may_end_transaction, next_valid_batch
from logstore.record.decoder import Damage, damage_of
from logstore.record.file_walk import FRAME_BYTES, FileWalk
from logstore.segment import (
    READ_BYTES,
    OffsetPosition,
    Segment,
    SegmentGoneError,
    SegmentReplacedError,
)

__all__ = ["Chunk", "Cursor"]


class _Left:
    """The segments that are left to be read, without a copy: there may be a hundred
    thousand, and a read needs one."""

    __slots__ = ("_at", "_segments")

    def __init__(self, segments: tuple[Segment, ...], at: int) -> None:
        self._segments = segments
        self._at = at

    def __len__(self) -> int:
        return len(self._segments) - self._at

    def __getitem__(self, number: int) -> Segment:
        """The segment of this number; 0 is the first one left."""
        return self._segments[self._at + number]

    def base(self, end: int) -> int:
        """The base offset of the first one; `end` if there is none."""
        at, segments = self._at, self._segments
        return segments[at].base_offset if at < len(segments) else end

    def popleft(self) -> Segment:
        """Remove and return the first one."""
        segment = self._segments[self._at]
        self._at += 1
        return segment


class Chunk(NamedTuple):
    """Bytes of a segment: whole batches, and perhaps the beginning of one more.

    Attributes:
        buffer: its first `n` bytes are the chunk, until the next one is requested.
        pos: of its first byte in the file.
        last_offset: where the batch before it ends; `OFFSET_UNKNOWN`.
        checks: of its batches.
    """

    segment: Segment
    buffer: native.Buffer
    n: int
    pos: int
    last_offset: int
    checks: int


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
        bound: where the part of the read ends that is in the present segment.
        passed: how often it has continued after damage.
        left_out: the last damage that was left out.
        hides_end: whether that may have been the end of a transaction.

    Args:
        since: damage that lies wholly below it is no concern; None: `start`.
        buffer_bytes: of each read but the first; None: `READ_BYTES`.
        first_bytes: of the first one, which may be all that is needed, at most.
        pool: gives buffers for the reads but the first, instead of `buffer_bytes`.
        keeps: each chunk has a buffer of its own.
        follows: whether it continues if the log is changed. If not, it raises
            `ChangedError`: what the caller has found so far may be wrong.
        is_exact: each chunk begins with the batch that has the offset, or the one
            after it. The caller checks for a change (`check_for_change`) when it has
            read all that it needs.
        place: where to begin in the first segment, if that is known.
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
    ) -> None:
        self.offset = start
        self.stop = stop
        self.compacted_end = 0
        self.passed = 0
        self.left_out: Damaged | None = None
        self.hides_end = False
        self._policy = policy
        self._since = start if since is None else since
        size = buffer_bytes or READ_BYTES
        self._buffer_bytes = size if pool is None else pool.capacity
        self._first_bytes = min(first_bytes or READ_BYTES, self._buffer_bytes)
        self._pool = pool
        self._keeps = keeps
        self._follows = follows
        self._is_exact = is_exact
        self._is_to_end = stop >= view.end_offset
        self._walk: FileWalk | None = None
        self._is_used = False
        self._chunk: Chunk | None = None
        self._begin_in(view)
        self._place = place

    def _begin_in(self, view: View) -> None:
        self.view = view
        self._end = min(self.stop, view.end_offset)
        self._segments = _Left(view.segments, slot_of(view.segments, self.offset))
        self.bound = self._end
        self._segment: Segment | None = None
        self._is_first = True
        # The place to continue at if the walk is not there yet; None: the index has it.
        self._place = None
        # One past the last offset of the segment before, if the next must follow.
        self._ended_at: int | None = None

    # -- chunks

    def chunks(self) -> Iterator[Chunk]:
        """The chunks up to the end of the read.

        Raises:
            OffsetOutOfRangeError: what was to be read was deleted, or cut off.
            PartitionNotFoundError: another log is in the place of this one.
            CorruptRecordError, UnsupportedError: damage that is not left out.
            ChangedError: see `follows`.
        """
        while (chunk := self.next_chunk()) is not None:
            yield chunk

    def next_chunk(self) -> Chunk | None:
        """The next of `chunks`; None: there is none."""
        while self._segment is not None or self._has_next():
            try:
                if self._segment is None:
                    self._enter()
                chunk = self._read()
                if chunk is not None:
                    self._chunk, self._is_used = chunk, True
                    return chunk
            except ChangedError as changed:
                self._go_on_in(changed.view)
            except (CorruptRecordError, UnsupportedError) as error:
                is_gone = isinstance(error, SegmentGoneError | SegmentReplacedError)
                self.on_damage(error, None if is_gone else error.position)
        if self._follows:
            self.view.check_end(self.stop)
        return None

    def _has_next(self) -> bool:
        return max(self.offset, self._segments.base(self._end)) < self._end

    def _enter(self) -> None:
        """Begin the next segment."""
        if not self._is_first and self._follows:
            again: View | None = None
            with contextlib.suppress(StorageError):  # reading on does not need it
                again = self.view.now(self.offset)
            if again is not None:
                raise ChangedError(again)
        segment = self._segments.popleft()
        if self._ended_at is not None and self._ended_at != segment.base_offset:
            # The log was truncated during this read: the rest is another log.
            raise OffsetOutOfRangeError(
                self.offset,
                self.view.start_offset,
                self._ended_at,
                partition=self.view.name,
            )
        self._segment, self._is_first, self._ended_at = segment, False, None
        self._version = self._first_version = segment.version
        self._next_offset = segment.next_offset
        # A segment that is not the last ends where the next one begins.
        self.bound = min(self._end, self._segments.base(self._end))
        self.offset = max(self.offset, segment.base_offset)
        self._is_placed = False

    def _move(self, place: OffsetPosition | None) -> None:
        self._place, self._is_placed = place, False

    def _begin_walk(self, segment: Segment) -> FileWalk:
        """A walk from the place at which the read continues in a segment."""
        place, self._place = self._place, None
        buffer = self._buffer_for(segment)
        if self._is_exact:
            # Its chunk begins elsewhere: little is read to find that.
            found = segment.seek(place, self.offset)
            place = found[0] if found else OffsetPosition(segment.size, self.offset - 1)
        if place is None:
            return segment.walk_from(self.offset, buffer, self._segments, self._end)
        return FileWalk(segment, place, buffer, checks=segment.checks)

    def _read(self) -> Chunk | None:
        segment = self._segment
        assert segment is not None
        if segment.version != self._version:
            # A failed append was undone; this read may have seen part of it.
            self.check_for_change()
            self._version = segment.version
            self._move(None)
        if not self._is_placed:
            self._walk, self._is_placed = self._begin_walk(segment), True
        walk = self._walk
        assert walk is not None
        if walk.pos >= segment.size:
            self.check_for_change()
            self._end_segment(segment, walk.last_offset)
            return None
        if not walk.is_filled:
            if self._keeps and self._is_used:
                walk.use(self._new_buffer(segment))
                self._is_used = False
            walk.n = segment.read(walk.into, walk.pos, self._segments, self._end)
        walk.is_filled = False
        if not self._is_exact:
            self.check_for_change()
        if segment.version != self._version:
            return None
        return Chunk(
            segment, walk.buffer, walk.n, walk.pos, walk.last_offset, walk.checks
        )

    def _buffer_for(self, segment: Segment) -> native.Buffer:
        """The buffer to begin a segment with."""
        if self._walk is None:
            size = min(self._first_bytes, max(segment.size, READ_BYTES))
            return native.Buffer(max(size, FRAME_BYTES))
        if self._keeps and self._is_used:
            self._is_used = False
            return self._new_buffer(segment)
        return self._walk.buffer

    def _size_for(self, segment: Segment) -> int:
        """The bytes of a buffer for a segment. The caller of a fetch may ask for more
        than there is memory."""
        if self._pool is not None:
            return self._buffer_bytes
        return min(self._buffer_bytes, max(segment.size, READ_BYTES))

    def _new_buffer(self, segment: Segment) -> native.Buffer:
        if self._pool is None:
            return native.Buffer(self._size_for(segment))
        return self._pool.take()

    def _end_segment(self, segment: Segment, last: int) -> None:
        """Raise if the segment ends too early. A segment that is not the last may do so
        if its log may have gaps."""
        stop = min(self.bound, segment.next_offset)
        is_whole = segment.is_contiguous or not self._segments
        if is_whole and last != native.OFFSET_UNKNOWN:
            if last + 1 < stop:
                raise segment.missing(segment.size, max(self.offset, last + 1))
            self._ended_at = None if self._policy.skips else last + 1
        self._segment = None

    def advance(self, consumed: int, stop: int, last_offset: int) -> None:
        """Note that the first `consumed` bytes of the chunk were decoded.

        Args:
            stop: why no more: native.STOP_*. STOP_OFFSET: a batch there begins at or
                after the end of the read, or of the segment.
            last_offset: where the last batch of them ends.

        Raises: as `chunks`.
        """
        chunk, walk = self._chunk, self._walk
        assert chunk is not None
        assert walk is not None
        try:
            self._check_bound(chunk, last_offset)
            if stop == native.STOP_OFFSET or self.offset >= self.bound:
                self._check_beyond(chunk, consumed, last_offset)
                self._chunk = self._segment = None
                return
            walk.advance(consumed, stop, last_offset, self.offset)
            if walk.buffer.capacity < self._size_for(chunk.segment):
                walk.use(self._new_buffer(chunk.segment))
            self._is_used = walk.buffer is chunk.buffer
        except ChangedError as changed:
            self._go_on_in(changed.view)
        except Damage as damage:
            self.damaged(damage)
        except CorruptRecordError as error:
            self.on_damage(error, error.position)
        self._chunk = None

    def headers(self) -> Iterator[tuple[native.BatchHeader, Chunk, int]]:
        """The headers of the batches that end at the offset or above, in order, each
        with its chunk and the offset where the batch before it ends."""
        for chunk in self.chunks():
            segment, last = chunk.segment, chunk.last_offset
            headers = native.Headers(
                chunk.buffer.c, chunk.n, last_offset=last, checks=chunk.checks
            )
            damage: Damage | None = None
            for header in headers:
                pos = header.pos
                if header.base_offset >= self.bound:
                    stop = native.STOP_OFFSET
                    break
                far = header.last_offset
                bound = max(self._next_offset, segment.next_offset)
                if far >= bound and not self._was_cut(segment):
                    damage = segment.too_far(far, pos, self.offset)
                    break
                if far >= self.offset:
                    yield header, chunk, last
                    if self._chunk is not chunk:
                        break
                last = far
            else:
                pos, last, stop = headers.pos, headers.last_offset, headers.stop
                if headers.error is not None:
                    damage = damage_of(headers.error, offset=max(last + 1, -1))
            if self._chunk is not chunk:
                continue
            if damage is None:
                self.advance(pos, stop, last)
            else:
                self.damaged(damage, last)

    # -- order

    def _check_bound(self, chunk: Chunk, last: int) -> None:
        """Raise `Damage` if a batch that was walked over ends after the end of its
        segment: its offset, which no checksum covers, may hide its records."""
        segment = chunk.segment
        bound = max(self._next_offset, segment.next_offset)
        if last < bound or last == native.OFFSET_UNKNOWN or self._was_cut(segment):
            return
        for header in native.Headers(chunk.buffer.c, chunk.n, checks=0):
            if header.last_offset >= bound:
                raise segment.too_far(header.last_offset, header.pos, self.offset)
        raise segment.too_far(last, 0, self.offset)

    def _check_beyond(self, chunk: Chunk, consumed: int, last: int) -> None:
        """`check_stop` of the batch after the last one, if it is in the buffer."""
        segment = chunk.segment
        if self._was_cut(segment):
            return
        beyond = native.first_header(chunk.buffer.c, chunk.n, pos=consumed, checks=0)
        for header in beyond.headers:
            check_stop(
                segment,
                header,
                chunk.buffer,
                chunk.pos + header.pos,
                last,
                self.bound,
                self.offset,
            )
            if not segment.is_contiguous:  # it has read one more batch
                self.check_for_change()

    def _was_cut(self, segment: Segment) -> bool:
        """Whether a concurrent truncation may explain why the data has moved."""
        return segment.version != self._first_version

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
        """Continue in the log as it is now: a look at another place of it has found a
        change, and this view.

        Raises: as `chunks`.
        """
        self._go_on_in(self.view.now(self.offset) or view)

    def _go_on_in(self, view: View) -> None:
        if not self._follows:
            raise ChangedError(view)
        self._chunk = None
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
        chunk = self._chunk
        assert chunk is not None
        if self._is_beyond(chunk.segment, damage, last_offset):
            self._chunk = self._segment = None
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
        """Continue after apparent damage: in the log as it is now, if it was changed;
        in the same place, if the damage lies below the read; after the damage, if it
        is left out. Else raise the error.

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
        self._chunk = None
        segment = self._segment
        if segment is None or not isinstance(
            error, CorruptRecordError | UnsupportedError
        ):
            return error  # a limit
        if self._follows:
            again = self.view.again(self.offset, error)
        else:
            again = self.view.if_changed(error)
        if again is not None:
            self._go_on_in(again)
            return None
        if self.offset <= self._since:
            place = place_past(segment, error, self._since, self.view)
            if place is not None:
                self._move(place)
                self.passed += 1
                return None
        first = max(self.offset, last_offset + 1)
        if pos is not None and isinstance(error, CorruptRecordError):
            hidden = max(first_hidden(segment, pos, self.offset), self._since)
            if hidden < self.offset:
                first = error.offset = hidden
                error.goes_on_at(error.next_offset)
        is_below = self._since >= segment.next_offset
        if not (is_below or self._policy.skips):
            return with_next_offset(segment, error, self.offset)
        intact: Sound | None = None
        if pos is not None:
            with contextlib.suppress(SegmentGoneError):
                intact = next_valid_batch(segment, pos, self.offset)
        if not is_below:
            damaged = self._damaged(segment, error, intact, first)
            if not self._policy.leaves_out(damaged):
                return with_next_offset(segment, error, self.offset)
            self.left_out = damaged
            self.hides_end = intact is None or may_end_transaction(
                segment, intact.pos if pos is None else pos, intact.pos
            )
        self.passed += 1
        if intact is None:
            self._segment = None
        else:
            self._move(OffsetPosition(intact.pos, native.OFFSET_UNKNOWN))
        return None

    def _damaged(
        self,
        segment: Segment,
        error: CorruptRecordError | UnsupportedError,
        intact: Sound | None,
        first: int,
    ) -> Damaged:
        """The damage as the policy, and the caller, see it."""
        if intact is not None:
            found = intact.first_offset()
            next_offset: int | None = (
                intact.header.last_offset + 1 if found < 0 else found
            )
        else:
            next_offset = segment.next_offset if self._segments else None
        if next_offset is not None and first >= next_offset:
            first = self.offset  # that of a batch whose content is damaged
        if type(error) is CorruptRecordError and next_offset is not None:
            error.goes_on_at(next_offset)
        return Damaged(first, next_offset, error)
