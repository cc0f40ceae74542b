"""What has become of a log: it has grown, was cut, or is another.

Logstore's own writer records each cut. Of the log of another program, or after a backup
was put back, only the files and the leader epochs show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from logstore.io.checkpoint.cuts import NO_CUT
from logstore.io.checkpoint.leader_epochs import LeaderEpochs
from logstore.io.checkpoint.partition_state import PartitionMetadata, PartitionState
from logstore.io.files import FileStamp
from logstore.io.layout import LOG, segment_file
from logstore.log.follow.file_identity import LogFiles, adopt_copy
from logstore.log.recover import RecoveredLog
from logstore.segment import Segment

__all__ = [
    "Difference",
    "LogSnapshot",
    "has_come_back",
    "has_same_files",
    "is_other_log",
    "retire_changed",
]


class LogSnapshot(NamedTuple):
    """A log as a reader loaded it, and has read it since.

    Attributes:
        segments, loaded, files: of the log.
        epochs: of a foreign log: the leader epochs of what was read of it.
        directory_id: device and inode of the directory.
        writer: of logstore's own log: the writer's mark in the root when what was read
            certainly existed.
    """

    segments: tuple[Segment, ...]
    loaded: RecoveredLog
    files: LogFiles
    epochs: LeaderEpochs
    directory_id: tuple[int, int]
    writer: FileStamp | None


class Difference(NamedTuple):
    """How a log differs from an earlier snapshot of it.

    Attributes:
        is_other: another log is in its place.
        has_changed: it was cut, or its files are others.
        low: the lowest offset to which it may have been cut; `NO_CUT`: it was not.
    """

    is_other: bool
    has_changed: bool
    low: int


def is_other_log(
    was: RecoveredLog, metadata: PartitionMetadata, first: int, *, is_foreign: bool
) -> bool:
    """Whether a log was cut, or is about to be, or was compacted, or has another owner,
    or has lost its last segment or those before `first`, since it was loaded."""
    state = metadata.state
    if state is None or is_foreign:
        return (state is None) != is_foreign
    # A deletion is recorded first; so is the fact that the next append may be removed
    # again. The start falls only if an older state was put back.
    return (
        was.log_id not in ("", state.log_id)
        or state.is_truncating
        or state.cuts.serial != was.cuts.serial
        or state.compactions != was.compactions
        or state.start_offset < max(first, was.start_offset)
        or _is_last_lost(was, state)
    )


def _is_last_lost(was: RecoveredLog, state: PartitionState) -> bool:
    """Whether the active segment of a state has no file: that is made first."""
    base = state.active["base_offset"]
    if not was.segments or base <= was.active_state.raw.base_offset:
        return False
    return not was.segments[-1].directory.exists(segment_file(base, LOG))


def has_come_back(logs: Sequence[int], first: int, log_start: int) -> bool:
    """Whether a foreign log has segments again before the first known one: a backup was
    put back.

    Args:
        logs: base offsets of its files, in no order.
        first: that of the first segment that was known.
    """
    if min(logs) >= first:
        return False
    # Those below the start are not part of the log: its owner has yet to remove them.
    return min(base for base in logs if base > min(logs)) > log_start


def has_same_files(
    before: PartitionMetadata, read_again: Callable[[], PartitionMetadata]
) -> bool:
    """Whether logstore's own writer has replaced no segments since its state was
    read."""
    was = before.state
    now = None if was is None else read_again().state
    return was is None or (now is not None and now.compactions == was.compactions)


def retire_changed(
    before: LogSnapshot, now: LogSnapshot, *, is_cut: bool
) -> Difference:
    """Compare a log with an earlier snapshot of it, and retire the former segments
    whose file is another one now: nothing more is read through them.

    Args:
        is_cut: the log may have lost its end, and have grown again.

    Raises:
        OSError: a file cannot be read.
    """
    was, loaded = before.loaded, now.loaded
    was_foreign = before.files.is_foreign
    # A reader that met the damage and asks again gets the same error, however the
    # log grows after it.
    if was.damage is not None and str(was.damage) == str(loaded.damage):
        is_cut = False
    is_own = not (was_foreign or now.files.is_foreign)
    is_other = now.directory_id != before.directory_id or (
        # If either id is unknown, they may be the same.
        bool(was.log_id and loaded.log_id and was.log_id != loaded.log_id)
    )
    if not loaded.log_id:
        loaded.log_id = was.log_id
    low = NO_CUT
    same_below = before.epochs.same_below(now.epochs)
    if same_below is not None and same_below >= was.end_offset:
        same_below = NO_CUT
    if is_own:
        low = loaded.cuts.lowest_since(was.cuts.serial)
        is_cut |= low != NO_CUT
        # These fall only if an older state was put back.
        is_other |= loaded.cuts.serial < was.cuts.serial
        is_other |= loaded.durable_offset < min(was.durable_offset, low)
        is_other |= loaded.start_offset < was.start_offset
    # Its owner has replaced segments by others with the same offsets: reads of the
    # former ones continue with their files.
    is_compacted_now = is_own and not is_other and loaded.compactions != was.compactions
    # If logstore's own log has lost something, reading reports it.
    is_hurt = is_own and loaded.damage is not None
    may_be_backup = is_own and not is_compacted_now
    if (
        may_be_backup
        and before.segments
        and (now.writer != before.writer or not is_hurt)
    ):
        # A backup was put back, perhaps over the same files, and the log has grown
        # again.
        low = min(low, before.files.same_below(now.segments, low))
    by_base = {segment.base_offset: segment for segment in now.segments}
    if is_own:
        for segment in before.segments:
            if segment.base_offset in by_base:
                adopt_copy(segment, by_base[segment.base_offset])
    first = min(by_base, default=loaded.start_offset)
    has_changed = low != NO_CUT
    unlike: int | None = None
    for segment in before.segments:
        same = by_base.get(segment.base_offset)
        is_last = same is not None and same is now.segments[-1]
        if is_compacted_now and not is_last:
            continue
        is_same = segment.base_offset < first  # deleted: its readers may continue
        if same is not None:
            may_be_cut = same is now.segments[-1] or segment is before.segments[-1]
            is_same = (
                segment.inode == same.inode
                and segment.size <= same.size
                and not (is_cut and may_be_cut)
            )
        is_present = same is not None and not same.is_lost
        is_replaced = is_present and same is not None and segment.inode != same.inode
        if is_own and is_replaced and segment.size:
            # Put back from a backup: logstore itself replaces a file by a copy only.
            low = min(low, segment.base_offset)
        is_changed = not is_same or is_other
        # It may have been another file in between, which a backup has undone.
        if is_changed or (is_own and now.writer != before.writer):
            segment.is_retired = has_changed = True
        if is_changed:
            # A segment that another program has compacted has the same offsets.
            # That program may have begun the next segment since the snapshot.
            is_compacted = was_foreign and segment.is_sealed and same is not None
            if same_below == NO_CUT and (same is None or is_replaced):
                is_compacted |= segment.next_offset <= max(by_base, default=-1)
            if unlike is None and not is_compacted:
                unlike = segment.base_offset
    if has_changed and not is_other and unlike is not None and not is_hurt:
        stands = before.files.highest_that_stands(now.segments, low)
        if low == NO_CUT:
            low = _lowest_cut(
                stands, unlike, same_below, was.end_offset, loaded.end_offset
            )
        elif stands < before.files.highest_end(low):
            # A backup was put back, and cut since.
            low = min(low, max(unlike, stands))
    return Difference(is_other, has_changed, low)


def _lowest_cut(
    stands: int, unlike: int, same_below: int | None, old_end: int, end_offset: int
) -> int:
    """The offset to which a log was cut, if the cut was not recorded.

    Args:
        stands: up to there the log was seen to be unchanged.
        unlike: base offset of the first segment that may have changed.
        same_below: up to there the leader epochs say that it is unchanged, if there
            are any; also of segments that have their old names and sizes again.
        known_end, end_offset: the former end of the log, and the present one.
    """
    if same_below is not None:
        low = same_below
        if end_offset < old_end:
            low = min(low, end_offset)
        if low != NO_CUT:
            return low
    # The end of what is seen to be unchanged, which may lie above `unlike`.
    return max(unlike, stands)
