"""Cuts the tail of a log."""

from __future__ import annotations

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    StorageError,
    SyncFailedError,
    UnsupportedError,
    is_disk_full,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.full_disk import UnknownContentError
from logstore.io.layout import LOG
from logstore.log.read.view import Segments
from logstore.log.recover.rebuild import cut_transactions, remove_snapshots
from logstore.log.scan import take_batches
from logstore.log.write.deletion import rename_deleted
from logstore.log.write.log_bounds import LogBounds
from logstore.log.write.log_writer import LogWriter
from logstore.record.file_walk import FileWalk
from logstore.segment import Segment

__all__ = ["truncate"]


def truncate(
    log: LogWriter, offset: int, boundary: tuple[int, int] | None, reason: str
) -> int:
    """Drop all records from `offset` on. The caller holds both locks.

    1. record the lower durable point, and the removal of all bytes after it (commit:
    opening finishes it; if a full disk has no room for it, and the state file is
    unchanged, nothing is done); 2. rename later segments to `.deleted` and sync the
    directory; 3. truncate and sync the log; 4. cut the indexes; 5. drop producer
    snapshots and leader epochs that refer to removed offsets; 6. if `offset` is in a
    gap, begin a segment there.

    Args:
        boundary: (index of the segment, position) where the batch of the offset
            begins; None at the end.
        reason: why, for the log message.

    Returns the new end.
    """
    active, health, segments = log.active, log.health, log.bounds.segments
    if offset == log.bounds.end:
        return offset
    if boundary is None:
        raise health.poison()
    index, pos = boundary
    while index and (
        segments[index].base_offset > offset
        or (pos == 0 and segments[index].base_offset < offset)
    ):
        # `offset` is in a gap before a segment, or before all of its records: drop
        # this segment, too.
        index -= 1
        pos = segments[index].size
    log.sync_all()
    writer = log.writable()
    log.context.services.state.compacted.lower(log.context.key, offset)
    segment = segments[index]
    state, entries, times = _state_up_to(log, segment, pos)
    # If `offset` is in a gap, `end` follows the last record before it.
    before, end, size = log.bounds, state.last_offset + 1, state.size
    cuts = before.cuts.after(offset, log.context.files.now_ms())
    # A reader sees only records that stay, in one of these.
    kept_segments = Segments(segments[: index + 1])
    during = before._replace(segments=kept_segments, cuts=cuts, limit=end)
    undone = before._replace(cuts=cuts)
    stopped = during._replace(end=end, limit=native.OFFSET_MAX)
    producers = log.idempotence.before_cut(before, end, offset)
    kept = writer.state, writer.index, writer.times
    is_begun = False
    try:
        log.bounds = during
        log.idempotence.forget()
        log.page.pause()
        active.retire()
        active.state, active.index, active.times = state, entries, times
        log.point.write(during, state, is_truncating=True, in_place=True)
        is_begun = True
        _cut(log, segment, segments[index + 1 :], offset, end, reason)
    except BaseException as error:
        # Half done, in memory or on disk: the next opening determines which. This comes
        # first and makes no call that could be interrupted.
        health.is_poisoned = health.is_blocked = True
        if not is_begun and isinstance(error, OSError) and _is_unchanged(error):
            # The cut in memory is a new one: it is recorded before the next append.
            log.point.must_record = True
            active.state, active.index, active.times = kept
            segments[-1].show_indexes(active.index, active.times)
            log.bounds = undone
            health.is_poisoned = False
            raise storage_error(
                error, "write the state of", log.context.directory.path,
                "Nothing was cut.",
            ) from error  # fmt: skip
        if segment.next_offset == end:
            segment.size = size
        if log.bounds is during:
            # Without the record on disk, the next opening finds the records again, and
            # a publication that this cut was to undo is not undone yet.
            is_shown = is_begun and segment.next_offset == end
            log.bounds = stopped if is_shown else undone
        # The next opening may end the cut: a flush must not promise these records.
        durable = min(log.bounds.durable, end)
        log.bounds = log.bounds._replace(durable=durable)
        failed = SyncFailedError(
            f"cannot truncate {log.context.name} to offset {offset}: {error!r}. Open "
            f"the store again.",
            errno=getattr(error, "errno", None),
            path=log.context.directory.path,
            action="truncate",
        )
        health.fail(failed)
        if isinstance(error, OSError):
            raise failed from error
        raise
    if end < offset:
        _leave_gap(log, offset, before.start)
        if producers is not None and log.bounds.end == offset:
            log.idempotence.after_gap(producers, offset)
    return log.bounds.end


def _is_unchanged(error: OSError) -> bool:
    """Whether the state file could not be written, and has its former content."""
    return is_disk_full(error) and not isinstance(error, UnknownContentError)


def _leave_gap(log: LogWriter, offset: int, start: int) -> None:
    """Let the log continue at an offset after its last record, in a segment that
    begins there: a segment that ends before the next offset looks like damage."""
    try:
        log.roll_or_undo(log.writable(), offset)
        log.bounds = log.bounds._replace(end=offset, start=start)
    except SyncFailedError:
        raise
    except StorageError as error:
        logger.warning(
            "%s ends at offset %d, not at %d: no segment can begin there: %s",
            log.context.name,
            log.bounds.end,
            offset,
            error,
        )


def _cut(
    log: LogWriter,
    segment: Segment,
    dropped: tuple[Segment, ...],
    offset: int,
    end: int,
    reason: str,
) -> None:
    """The steps of `truncate`, after the commit. There are no records from `end` to
    `offset`."""
    context, active = log.context, log.active
    directory, files = context.directory, context.files
    state = active.state
    pos = state.size
    log.digests.drop([segment])
    rename_deleted(log, reversed(dropped), is_needed=True)
    directory.sync()
    segment.version += 1
    segment.next_offset = end  # from here on, readers see the truncation
    segment.size = pos
    segment.max_timestamp = state.max_timestamp
    segment.max_timestamp_offset = state.max_timestamp_offset
    with directory.opened(segment.file.name(LOG), write=True) as fd:
        files.truncate(fd, pos)
        files.sync(fd)
    active.writer = active.open(segment, log.rest)
    try:
        active.writer.write_indexes()
    except OSError as error:
        # Nothing false is left in them. They can be built again.
        if not is_disk_full(error):
            raise
        logger.warning("cannot write the indexes of %s: %s", segment.path, error)
    remove_snapshots(directory, above=offset)
    cut_transactions(directory, segment.base_offset, offset)
    log.epochs.cut(offset)
    logger.info(
        "%s truncated to offset %d: %s; %d offsets dropped",
        context.name,
        offset,
        reason,
        log.bounds.end - offset,
    )
    segments, start, _, _, cuts, _ = log.bounds
    # Another cut: a reader may meanwhile have seen the old end together with the first.
    cuts = cuts.after(offset, files.now_ms())
    log.point.forget_synced()
    log.bounds = LogBounds(segments, min(start, end), end, end, cuts)
    # While the state on disk says "truncating", an opening would cut appends.
    log.point.commit(log.bounds, active.writer.state)


def _state_up_to(
    log: LogWriter, segment: Segment, pos: int
) -> tuple[native.SegmentState, OffsetEntries, TimeEntries]:
    """State and index entries of a segment that ends at `pos`."""
    context = log.context
    from_start = native.SegmentState(segment.base_offset, context.files.now_ms())
    index, times = OffsetEntries(), TimeEntries()
    planner = native.Planner(context.config.index_interval_bytes, None)
    walk = FileWalk(segment, segment.start, native.Buffer(1 << 20), end=pos)
    while walk.read():
        walked = native.walk_batches(
            walk.buffer.c, walk.n, last_offset=walk.last_offset, checks=0
        )
        planned, _ = take_batches(
            planner, from_start, walk.buffer.c, walked.pos, index, times
        )
        if planned < walked.pos:
            raise UnsupportedError(
                f"{segment.path} cannot be indexed", path=segment.path
            )
        walk.take(walked)
    assert walk.pos == pos
    from_start.raw.bytes_since = 0  # as in Kafka
    return from_start, index, times
