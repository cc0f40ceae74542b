"""A log as a read sees it, and what happens to the read if the log is changed.

A view is the immutable list of segments and bounds at the time a read began. A reader
asks it after each call that reads bytes, and before it reports apparent damage, whether
the log was cut since, and how low.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from logstore._native import Record
from logstore.errors import (
    LogStoreError,
    OffsetOutOfRangeError,
    PartitionNotFoundError,
    again,
)
from logstore.io.checkpoint.cuts import Cuts
from logstore.log.read.tail import VerifiedTail
from logstore.segment import Segment, SegmentGoneError, SegmentReplacedError

__all__ = [
    "Bounds",
    "ChangedError",
    "Segments",
    "ViewedLog",
    "View",
    "find_in",
    "slot_of",
]


_BASE_OFFSET = operator.attrgetter("base_offset")


class Segments(tuple[Segment, ...]):
    """The segments of a log, in order. Each change of the list makes a new one. So
    facts about all of them are kept here: they are valid, and in memory, only as long
    as the list is.

    Attributes:
        largest: the result of `LargestTimestamps`; None: not computed yet.
    """

    largest: list[int] | None = None

    def since(self, number: int) -> Segments:
        """The segments from a number on; this list itself if these are all."""
        return Segments(self[number:]) if number else self


def slot_of(segments: Sequence[Segment], offset: int) -> int:
    """The number of the first segment in which offsets >= `offset` can be."""
    return max(bisect.bisect_right(segments, offset, key=_BASE_OFFSET) - 1, 0)


def find_in(
    segments: tuple[Segment, ...], start: int, end: int, offset: int
) -> Record | None:
    """`Segment.find` of the segment with an offset in [start, end); None if there is
    none, or if it was cut meanwhile."""
    if not segments or not start <= offset < end:
        return None
    segment = segments[slot_of(segments, offset)]
    version = segment.version
    record = segment.find(offset)
    return record if segment.version == version else None


class Bounds(NamedTuple):
    """A log as one refresh found it. It may be written or deleted meanwhile.

    Attributes:
        segments: in order.
        start_offset, end_offset, durable_offset: where readers begin and stop.
        cuts: of the log so far, as far as the refresh found them.
        life: another number if another log has taken the place of this one.
        removal: why its writer has released the segments, if it has.
        transaction_free: offsets of which it is known that no batch there belongs to a
            transaction; if it is empty, its start is its stop.
        tail: the newest batches, if the refresh has them in memory.
        compactions: how often sealed segments were replaced by compacted ones.
    """

    segments: Segments
    start_offset: int
    end_offset: int
    durable_offset: int
    cuts: Cuts
    life: int = 0
    removal: LogStoreError | None = None
    transaction_free: range = range(0)
    tail: VerifiedTail | None = None
    compactions: int = 0


class ViewedLog(Protocol):
    """The log that a view shows."""

    def refreshed(self, *, fully: bool = False) -> Bounds:
        """The present log; `fully`: something seems to be wrong with it."""

    def is_as_it_was(self, life: int, serial: int) -> bool:
        """Whether certainly nothing was cut since a refresh that found these. It is
        cheap: it is called after each call that reads."""


class View(NamedTuple):
    """A log as a read sees it.

    Attributes:
        name: ``topic-partition``, for messages.
        segments: in order; never changed.
        start_offset, end_offset: what may be read, half open.
        log_end: the end of the log; above `end_offset` if only durable records may be
            read.
        decompressed_max: limit on one decompressed batch, bytes.
        cuts, life, transaction_free, compactions: as in `Bounds`, when the read began.
        source: the log that it shows.
    """

    name: str
    segments: Segments
    start_offset: int
    end_offset: int
    log_end: int
    decompressed_max: int
    cuts: Cuts
    life: int
    source: ViewedLog
    transaction_free: range = range(0)
    compactions: int = 0

    def check(self, offset: int) -> None:
        """Raise `OffsetOutOfRangeError` unless it is an offset of the log, or its end.
        An offset above `end_offset` is allowed: nothing can be read there yet."""
        end = max(self.end_offset, self.log_end)
        if not self.start_offset <= offset <= end:
            raise OffsetOutOfRangeError(
                offset, self.start_offset, end, partition=self.name
            )

    def from_offset(self, offset: int) -> Iterator[Segment]:
        """The segments in which offsets >= `offset` can be."""
        segments = self.segments
        numbers = range(slot_of(segments, offset), len(segments))
        return map(segments.__getitem__, numbers)

    def again(self, offset: int, error: Exception) -> View | None:
        """Call before reporting damage that a read met at `offset`: the log may have
        been changed during the read. Returns the view with which to continue at
        `offset`; its end may be lower. None: it is damage.

        Raises:
            OffsetOutOfRangeError: the offset was deleted, or cut off.
            PartitionNotFoundError: the whole log was deleted, or created again.
            StorageError: the log cannot be examined now, so this is unknown.
        """
        now = self.source.refreshed(fully=True)
        is_gone = _is_gone(error)
        if is_gone and offset < now.start_offset:
            raise self._out_of_range(offset, now)
        changed = self._changed(offset, now)
        if changed is None and is_gone and now.compactions != self.compactions:
            # The files with superseded records are removed.
            return self._with(now)
        return changed

    def _end_after(self, now: Bounds) -> int:
        """Where a read ends that continues in another list of segments. If they were
        compacted since it began, the last records of some keys may lie beyond its
        former end."""
        if now.compactions == self.compactions:
            return self.end_offset
        is_durable_only = self.end_offset < self.log_end
        end = now.durable_offset if is_durable_only else now.end_offset
        return max(end, self.end_offset)

    def now(self, offset: int) -> View | None:
        """The view with which a read continues at `offset`, if the log was changed
        since it began; None: it was not. Raises: as `again`."""
        return self._changed(offset, self.source.refreshed())

    def if_changed(self, error: Exception | None = None) -> View | None:
        """The whole present log, for a caller that is at no offset; None if nothing has
        changed. Raises: as `again`, except `OffsetOutOfRangeError`.

        Args:
            error: apparent damage that it has met.
        """
        source = self.source
        if error is None and source.is_as_it_was(self.life, self.cuts.serial):
            return None
        now = source.refreshed(fully=error is not None)
        if (now.life, now.cuts.serial) == (self.life, self.cuts.serial) and (
            error is None
            or (
                now.start_offset == self.start_offset
                and not (_is_gone(error) and now.compactions != self.compactions)
            )
        ):
            return None
        self._check_life(self.start_offset, now)
        return self._with(now)

    def check_same(self, offset: int, now: Bounds) -> None:
        """Raise `OffsetOutOfRangeError` or `PartitionNotFoundError` if the log below
        `offset` is no longer the same as in this view."""
        self._check_life(offset, now)
        low = now.cuts.lowest_since(self.cuts.serial)
        if offset > low:
            raise self._out_of_range(offset, now, cut_to=low)

    def _check_life(self, offset: int, now: Bounds) -> None:
        if now.removal is not None and not now.segments and offset < now.end_offset:
            # A read keeps the files that it began with, but they were cut before.
            raise again(now.removal)
        if now.life != self.life:
            topic, _, number = self.name.rpartition("-")
            raise PartitionNotFoundError(
                f"partition {self.name} was deleted, or put back from a backup, "
                "and another log is in its place: records read so far, up to "
                f"offset {offset}, are not part of it. Read it from its start, "
                f"{now.start_offset}",
                topic=topic,
                partition=int(number),
            )

    def _changed(self, offset: int, now: Bounds) -> View | None:
        if (now.life, now.cuts.serial) == (self.life, self.cuts.serial):
            return None
        self.check_same(offset, now)
        if offset < now.start_offset:
            raise self._out_of_range(offset, now)
        return self._with(now)

    def _with(self, now: Bounds) -> View:
        cut_to = now.cuts.lowest_since(self.cuts.serial)
        end = min(self._end_after(now), cut_to, now.end_offset)
        return self._replace(
            segments=now.segments,
            start_offset=now.start_offset,
            end_offset=max(now.start_offset, end),
            log_end=now.end_offset,
            cuts=now.cuts,
            transaction_free=now.transaction_free,
            compactions=now.compactions,
        )

    def _out_of_range(
        self, offset: int, now: Bounds, *, cut_to: int | None = None
    ) -> OffsetOutOfRangeError:
        return OffsetOutOfRangeError(
            offset, now.start_offset, now.end_offset, partition=self.name, cut_to=cut_to
        )

    def check_end(self, stop: int) -> None:
        """Raise `OffsetOutOfRangeError` if a read has reached the end of the log and
        should have continued to `stop`: the log was cut meanwhile."""
        end = self.end_offset
        if self.segments:
            # The writer cuts the segment first, and then moves the end of the log.
            end = min(end, self.segments[-1].next_offset)
        if end < stop:
            raise OffsetOutOfRangeError(
                stop, self.start_offset, self.log_end, partition=self.name, cut_to=end
            )


def _is_gone(error: Exception) -> bool:
    return isinstance(error, SegmentGoneError | SegmentReplacedError)


class ChangedError(Exception):
    """A walk has to continue in another view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view
