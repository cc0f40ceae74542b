"""The place of one read in a log: the only code that knows segments, changes, damage.

Every way of reading decodes the chunks of a `Cursor`. A cursor works on a `View`, the
immutable list of segments and bounds at the time the read began, and takes no lock:
records appended or deleted meanwhile do not change what it delivers. After each call
that reads bytes it checks whether the log was cut before that call: those bytes may
have been written since. If so, it continues in the log as it is now, as far as that is
still the same log.

A cursor has three parts (`log/read/segment_read.py`): `Route`, the segments that are
left; `SegmentRead`, the place in the present one; `Buffers`, the memory for the chunks.
What becomes of damage is decided in `log/read/resume.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from logstore import _native as native
from logstore.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StorageError,
    UnsupportedError,
)
from logstore.log.read.corruption import RAISE, Damaged, DamagePolicy
from logstore.log.read.resume import Met, Resume, after_damage
from logstore.log.read.segment_read import Buffers, Chunk, Route, SegmentRead
from logstore.log.read.view import ChangedError, View, slot_of
from logstore.record.decoder import Damage
from logstore.segment import (
    OffsetPosition,
    Segment,
    SegmentGoneError,
    SegmentReplacedError,
)

__all__ = ["Cursor"]


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
        since: damage that lies wholly below it is no concern; None: `start`.
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
        self.chunk: Chunk | None = None

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

    def _read(self, part: SegmentRead) -> Chunk | None:
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
                # What was held back belongs to this segment, whatever its offset.
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
        """Continue in the log as it is now: a look at another place of it has found a
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
