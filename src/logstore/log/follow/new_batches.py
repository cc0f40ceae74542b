"""The batches that were appended to a segment since it was read."""

from __future__ import annotations

from logstore.config import TopicConfig
from logstore.io.directory import Directory
from logstore.io.layout import LOG
from logstore.log.read.damage import unreadable
from logstore.log.recover import RecoveredLog
from logstore.log.scan import TailScan, scan_log
from logstore.segment import OffsetPosition, Segment

__all__ = ["read_new_batches"]


def read_new_batches(
    directory: Directory, config: TopicConfig, loaded: RecoveredLog, segment: Segment
) -> None:
    """Advance the end of the log over whole batches with valid checksums."""
    state = loaded.active_state
    with directory.opened(segment.file.name(LOG)) as fd:
        size = directory.files.size(fd)
        if size <= state.size:
            return
        scan = _walk(directory, config, loaded, segment, fd, size)
    state = loaded.active_state
    # In this order: see `SegmentWriter.show`.
    segment.next_offset = state.last_offset + 1
    segment.size = scan.pos
    segment.max_timestamp = None
    loaded.end_offset = max(loaded.end_offset, state.last_offset + 1)
    loaded.tail_start, loaded.tail_bytes = scan.pos, size - scan.pos


def _walk(
    directory: Directory,
    config: TopicConfig,
    loaded: RecoveredLog,
    segment: Segment,
    fd: int,
    size: int,
) -> TailScan:
    """Walk over the new bytes, as far as a reader can read them.

    No checksum covers the offset of a wrapper, and a reused block of the disk may
    hold an old one.
    """
    begin = loaded.active_state.copy()
    counts = loaded.index.count, loaded.times.count

    def walk(end: int) -> TailScan:
        return scan_log(
            directory,
            fd,
            end,
            loaded.active_state,
            index=loaded.index,
            times=loaded.times,
            interval=config.index_interval_bytes,
            checks=segment.checks,
        )

    scan = walk(size)
    if not scan.has_wrappers:
        return scan
    # For readers in other threads in this order, as in `SegmentWriter.show`.
    before, segment.next_offset = segment.next_offset, scan.last_offset + 1
    old_size, segment.size = segment.size, scan.pos
    try:
        damage = unreadable(segment, OffsetPosition(begin.size, begin.last_offset))
    finally:
        segment.size, segment.next_offset = old_size, before
    if damage is None:
        return scan
    loaded.active_state = begin
    loaded.index.cut(counts[0])
    loaded.times.cut(counts[1])
    return walk(damage[0])
