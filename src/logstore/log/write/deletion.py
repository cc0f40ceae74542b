"""Deletes the head of a log, and gives the files of dropped segments other names."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable

from logstore._native.locks import logger
from logstore.errors import DiskFullError, OffsetOutOfRangeError, storage_error
from logstore.io.checkpoint.partition_state import PartitionState
from logstore.io.directory import Directory
from logstore.io.full_disk import rename_or_unlink
from logstore.io.layout import (
    DELETED,
    SEGMENT_SUFFIXES,
    segment_file,
)
from logstore.log.read.view import slot_of
from logstore.log.write.log_writer import LogWriter
from logstore.segment import Segment

__all__ = ["delete_before", "rename_deleted"]


def delete_before(log: LogWriter, offset: int, reason: str) -> int:
    """Raise the start offset; drop the segments that lie wholly below it. The caller
    holds both locks. The log may be damaged.

    Raises:
        DiskFullError: there is no room for the state. The segments that lie wholly
            below are dropped nevertheless, so that there will be some.
    """
    delete = _delete_damaged if log.health.is_only_damaged else _delete_intact
    try:
        return delete(log, offset, reason)
    except DiskFullError:
        segments = log.bounds.segments
        below = segments[slot_of(segments, offset)].base_offset
        if not log.bounds.start < below < offset:
            raise
    delete(log, below, reason)
    return delete(log, offset, reason)


def _delete_intact(log: LogWriter, offset: int, reason: str) -> int:
    """1. sync the log; 2. record the new start (commit); 3. replace the list of
    segments; 4. rename the files to `.deleted`; 5. unlink them later.
    """
    context, bounds = log.context, log.bounds
    _check_range(log, offset)
    if offset == bounds.start and slot_of(bounds.segments, offset) == 0:
        return offset
    context.services.state.begin_writing(is_deletion=True)
    writer = log.writable(is_append=False)
    if offset == bounds.end and writer.state.size:
        writer = log.roll_or_undo(writer)
    point = writer.state.copy()
    log.sync_all()
    before = log.bounds
    needed = slot_of(before.segments, offset)
    dropped, kept = before.segments[:needed], before.segments.since(needed)
    if dropped:
        log.idempotence.before_deletion(before)
    after = before._replace(segments=kept, start=offset)
    is_committed = log.point.commit(after, point)
    log.bounds = after
    if offset > kept[0].base_offset or dropped:
        context.services.state.start_moved()
    rename_deleted(log, dropped, is_committed=is_committed)
    _tell(log, offset, reason, dropped)
    return offset


def _delete_damaged(log: LogWriter, offset: int, reason: str) -> int:
    """The same for a damaged log, whose last segment does not change.

    Of the state file only the start and the list of segments change: the end in it was
    durable. Without a state file that counts, the commit of a start inside a segment is
    Kafka's checkpoint; the commit of a start at a segment's base is the renaming.
    """
    context, bounds = log.context, log.bounds
    _check_range(log, offset)
    needed = slot_of(bounds.segments, offset)
    if offset == bounds.start and needed == 0:
        return offset
    context.services.state.begin_writing(is_deletion=True)
    dropped, kept = bounds.segments[:needed], bounds.segments.since(needed)
    bases = {segment.base_offset for segment in kept}

    def raised(state: PartitionState) -> PartitionState:
        sealed = [row for row in state.sealed if row[0] in bases]
        return dataclasses.replace(state, start_offset=offset, sealed=sealed)

    try:
        is_committed = log.point.amend(raised)
        if not is_committed and offset > kept[0].base_offset:
            context.services.state.record_start(context.key, offset)
    except OSError as error:
        path = context.directory.path
        raise storage_error(error, "write the state of", path) from error
    log.bounds = bounds._replace(segments=kept, start=offset)
    context.services.state.start_moved()
    rename_deleted(log, dropped, is_committed=is_committed)
    _tell(log, offset, reason, dropped)
    return offset


def _check_range(log: LogWriter, offset: int) -> None:
    bounds = log.bounds
    if not bounds.start <= offset <= bounds.end:
        raise OffsetOutOfRangeError(
            offset, bounds.start, bounds.end, partition=log.context.name
        )


def _tell(log: LogWriter, offset: int, reason: str, dropped: Iterable[Segment]) -> None:
    sizes = [segment.size for segment in dropped]
    logger.info(
        "%s starts at offset %d: %s; %d segments with %d bytes deleted",
        log.context.name,
        offset,
        reason,
        len(sizes),
        sum(sizes),
    )


def rename_deleted(
    log: LogWriter,
    segments: Iterable[Segment],
    *,
    is_committed: bool = True,
    is_needed: bool = False,
) -> None:
    """Rename the files of dropped segments; another process may still read them. On a
    full disk a file is removed at once if its new name does not fit.

    Raises:
        StorageError: a file keeps its name, which matters in two cases: not
            `is_committed`, when only the new names say that the segments are
            dropped; or `is_needed`, when the log would grow into the offsets of a
            segment that stayed.
    """
    directory = log.context.directory
    names: list[str] = []
    segments = list(segments)
    with contextlib.suppress(OSError):
        log.digests.drop(segments)
    is_changed = False
    for segment in segments:
        if is_changed and not is_committed:
            _sync_names(directory)
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(segment.base_offset, suffix)
            try:
                is_renamed = rename_or_unlink(directory, name, name + DELETED)
            except FileNotFoundError:
                continue
            except OSError as error:
                if is_needed or not is_committed:
                    raise storage_error(
                        error, "rename", directory.path_of(name)
                    ) from error
                logger.warning("cannot rename %s: %s", name, error)
                continue
            if is_renamed:
                names.append(name + DELETED)
            is_changed = True
    if not is_committed:
        _sync_names(directory)
    if names:
        # A read in progress finishes on the files that it began with.
        delay_ms = log.context.config.file_delete_delay_ms
        log.context.services.unlink_later(directory, names, delay_ms, segments)


def _sync_names(directory: Directory) -> None:
    try:
        directory.sync()
    except OSError as error:
        raise storage_error(error, "sync", directory.path) from error
