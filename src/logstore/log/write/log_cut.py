"""A cut of one log: its bounds and state at one moment, for a copy made later.

Its bytes do not change unless the log is truncated below its end: batches are only
appended, and the files of deleted or compacted segments stay until nothing refers to
the segments, under other names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.io import layout
from logstore.io.checkpoint.cuts import Cuts
from logstore.log.write.log_writer import LogWriter
from logstore.segment import Segment

__all__ = ["LogCut", "cut_of", "names_beside"]


class LogCut(NamedTuple):
    """A log at one moment.

    Attributes:
        segments: in order; the last one is active.
        sizes: how many bytes of each belong to the cut.
        start, end: of the log.
        serial: of the newest cut of its tail.
        state: the text of a state file that says all this.
        offset_index, time_index: the contents of the active segment's indexes.
    """

    segments: tuple[Segment, ...]
    sizes: tuple[int, ...]
    start: int
    end: int
    serial: int
    state: str
    offset_index: bytes
    time_index: bytes

    def is_gone(self, cuts: Cuts) -> bool:
        """Whether some of its records were removed since, according to the present cuts
        of the log."""
        return cuts.lowest_since(self.serial) < self.end


def names_beside(
    segment: Segment, name: str, now: Sequence[Segment]
) -> tuple[str, ...]:
    """The names that another file of a segment of a cut may have, while the log has the
    segments `now`; the first one that exists is it.

    The caller holds the log's lock: without it, the file of another segment may get a
    name. A segment that was compacted is not the only one with its base offset.

    Args:
        name: of the file while its segment is in the log.
    """
    if segment.file.moved_to:
        log_name = layout.segment_file(segment.base_offset, layout.LOG)
        return (name + segment.file.moved_to.removeprefix(log_name),)
    if not now or segment.base_offset < now[0].base_offset:
        return (layout.deleted_file(name, 0), name)
    return (name,)


def cut_of(log: LogWriter) -> LogCut:
    """The cut of an intact log; the caller holds its lock.

    Raises:
        StorageError: an earlier call was interrupted, and cannot be finished.
    """
    assert log.lock.is_mine
    if log.health.failed is None:
        log.repair()
    bounds, active = log.bounds, log.active.writer or log.active
    segments, state = bounds.segments, active.state
    if not segments:
        _, start, end, _, cuts, _ = bounds
        return LogCut((), (), start, end, cuts.serial, "", b"", b"")
    return LogCut(
        segments,
        (*(segment.size for segment in segments[:-1]), state.size),
        bounds.start,
        bounds.end,
        bounds.cuts.serial,
        log.point.text(bounds, state),
        active.index.data(0, active.index.count),
        active.times.data(0, active.times.count),
    )
