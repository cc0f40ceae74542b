"""The bounds of a log, as one value, and the barrier that hides a publication."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from logstore import _native as native
from logstore.io.checkpoint.cuts import Cuts
from logstore.log.read.view import Segments

__all__ = ["Visibility", "LogBounds", "VisibilityBarrier"]


class LogBounds(NamedTuple):
    """A log at one time. A writer replaces its bounds in one assignment, under the lock
    of its appends; a reader takes one reference, and needs no lock.

    Attributes:
        segments: in order; the last one is active.
        start: first offset that can be read.
        end: the next offset to be assigned.
        durable: all records below it are on stable storage. It may be outside of
            [start, end] (`LogWriter.seen` bounds it).
        cuts: how the log was cut, for readers that have read the removed part.
        limit: readers stop here while all from this offset on is being removed; else
            native.OFFSET_MAX.
    """

    segments: Segments
    start: int
    end: int
    durable: int
    cuts: Cuts
    limit: int = native.OFFSET_MAX


class VisibilityBarrier:
    """Whether readers see what is being published. All logs of a publication share one
    barrier: it opens for all of them at once.

    Attributes:
        publisher: held by the thread that publishes. A barrier that is closed while no
            thread publishes belongs to a publication that was interrupted.

    Args:
        end_interrupted: opens it if that publication was committed or undone.
    """

    __slots__ = ("_end_interrupted", "is_open", "publisher")

    def __init__(
        self,
        *,
        is_open: bool,
        publisher: native.Mutex | None = None,
        end_interrupted: Callable[[], None] | None = None,
    ) -> None:
        self.is_open = is_open
        self.publisher = publisher
        self._end_interrupted = end_interrupted

    def settle(self) -> None:
        """Open it if it belongs to a publication that was interrupted, and committed
        or undone. The caller holds the lock of the log."""
        if self._end_interrupted is not None and self.is_stuck:
            self._end_interrupted()

    @property
    def is_stuck(self) -> bool:
        """Whether it will not open by itself. The caller holds the lock of the log."""
        if self.is_open:
            return False
        return self.publisher is None or not self.publisher.is_mine


class Visibility(NamedTuple):
    """Readers stop at an offset while a barrier is closed. A publication sets both
    before it appends.

    Attributes:
        barrier: of the publication.
        high_watermark: the offset.
    """

    barrier: VisibilityBarrier
    high_watermark: int
