"""Replaces sealed segments by compacted ones, as Kafka's cleaner does."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import LogStoreError, SyncFailedError, storage_error
from logstore.index import STALE_DIGEST
from logstore.io.full_disk import rename_or_unlink
from logstore.io.layout import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    deleted_file,
    parse_segment_file,
    segment_file,
)
from logstore.log.read.view import Segments
from logstore.log.write.log_bounds import LogBounds
from logstore.log.write.log_writer import LogWriter
from logstore.segment import Segment

__all__ = ["COMPACTED_SUFFIXES", "CompactedSegment", "Replacement"]

# The files of a compacted segment; the last one only if a transaction was aborted.
COMPACTED_SUFFIXES = (LOG, INDEX, TIME_INDEX, TXN_INDEX)


class CompactedSegment(NamedTuple):
    """A segment that was written under `.cleaned`, and synced, with its indexes.

    Attributes:
        base_offset, size: of its log.
        max_timestamp, max_timestamp_offset: as in `Segment`.
        time_digest: of its time index.
        suffixes: of its files.
    """

    base_offset: int
    size: int
    max_timestamp: int
    max_timestamp_offset: int
    time_digest: int
    suffixes: tuple[str, ...]


class Replacement:
    """The changes that a compaction makes to a log that is being written to.

    Invariant: the state names the old segments or the new ones, and the files of both
    are there until it does.
    """

    __slots__ = ("_log",)

    def __init__(self, log: LogWriter) -> None:
        self._log = log

    def begin(self) -> tuple[LogBounds, int | None]:
        """Make the log writable. Returns its present bounds, and the offset up to which
        it is compacted; None: it never was.

        Raises:
            LogStoreError: the reason why nothing may be written.
            StorageError: the checkpoint of compactions cannot be read.
        """
        with self._log.sync_lock, self._log.lock:
            self._log.check()
            self._log.writable()
            return self._log.seen(), self._log.context.compacted_upto()

    def record(self, seen: LogBounds, end: int, needed_end: int) -> bool:
        """Record that the log is compacted up to an offset.

        Returns False, with nothing done, if the log was cut below `needed_end` since
        `seen`: the cut has lowered what is recorded.

        Raises:
            StorageError: it cannot be written; the log is compacted again.
        """
        log = self._log
        with log.sync_lock, log.lock:
            if log.bounds.cuts.lowest_since(seen.cuts.serial) < needed_end:
                return False
            context = log.context
            context.services.state.compacted.record(context.key, end)
        return True

    def still_has(
        self, bounds: LogBounds, segments: Sequence[Segment], end: int
    ) -> bool:
        """Whether some sealed segments are still part of the log, and nothing below an
        offset was cut since log bounds were seen. The caller holds both locks, or asks
        again later."""
        now = self._log.bounds
        present = {id(segment) for segment in now.segments[:-1]}
        return (
            all(id(segment) in present for segment in segments)
            and now.cuts.lowest_since(bounds.cuts.serial) >= end
        )

    def swap(
        self, seen: LogBounds, old: Sequence[Segment], new: CompactedSegment, end: int
    ) -> bool:
        """Put a compacted segment in the place of old ones, which follow one another.

        1. remove the files of failed compactions, and record that the `.swap` files of
        this one are not part of the log yet; 2. rename
        `.cleaned` to `.swap`, sync the directory; 3. record the new list of segments
        (commit); 4. rename the files of the old ones to `.deleted`, sync; 5. rename
        `.swap` to the final names, sync; 6. replace the list of segments; 7. unlink the
        old files later. From the commit on, opening finishes this; before it, undoes
        it. Appends wait from 3 to 6.

        Args:
            seen: the log when the compaction began.
            end: the records and markers below it have determined which records stay.

        Returns False, with nothing done, if the log was cut below `end` since, or has
        lost one of the segments.

        Raises:
            StorageError: nothing was replaced.
            SyncFailedError: after the commit; the log takes no more appends.
        """
        log = self._log
        with log.sync_lock:
            with log.lock:
                log.check()
                log.writable()
                if not self.still_has(seen, old, end):
                    return False
                marked = log.point.swapping
                try:
                    self._remove_leftovers(new)
                    log.digests.drop(old)
                    self._mark(new)
                except OSError as error:
                    log.point.swapping = marked
                    raise self._failed(error, "prepare") from error
            try:
                self._to_swap(new)
            except BaseException as error:
                with log.lock:
                    self._undo(new)
                if isinstance(error, OSError):
                    raise self._failed(error, "compact") from error
                raise
            with log.lock:
                try:
                    # An append may have been interrupted since: its undo goes back to
                    # the segments that were there.
                    log.check()
                except BaseException:
                    self._undo(new)
                    raise
                self._commit(old, new)
        return True

    def _failed(self, error: OSError, action: str) -> LogStoreError:
        path = self._log.context.directory.path
        return storage_error(error, action, path, "No segment was replaced.")

    def _state(self) -> native.SegmentState:
        """The state of the active segment, after a sync of the log."""
        log = self._log
        log.sync_all()
        return log.writable().state.copy()

    def _remove_leftovers(self, new: CompactedSegment) -> None:
        """Remove what failed compactions have left: for a broker, a `.cleaned` below
        the new segment would mean that its `.swap` is not committed, and a `.swap`
        would count from the next state on. The caller holds both locks."""
        directory = self._log.context.directory
        kept = {segment_file(new.base_offset, s) + CLEANED for s in new.suffixes}
        leftovers = [
            name
            for name in directory.names()
            if name not in kept
            and (parsed := parse_segment_file(name))
            and parsed.transition in (CLEANED, SWAP)
        ]
        for name in leftovers:
            directory.unlink(name, missing_ok=True)
        if leftovers:
            directory.sync()

    def _mark(self, new: CompactedSegment) -> None:
        """Step 1. The caller holds both locks."""
        log = self._log
        state = self._state()
        log.point.swapping = (new.base_offset,)
        log.point.write(log.bounds, state)

    def _to_swap(self, new: CompactedSegment) -> None:
        """Step 2: the log comes last, because it makes the others count."""
        directory = self._log.context.directory
        for suffix in reversed(new.suffixes):
            name = segment_file(new.base_offset, suffix)
            directory.rename(name + CLEANED, name + SWAP)
        directory.sync()

    def _undo(self, new: CompactedSegment) -> None:
        """Undo steps 1 and 2; opening removes the rest."""
        log, directory = self._log, self._log.context.directory
        try:
            for suffix in new.suffixes:
                name = segment_file(new.base_offset, suffix)
                directory.unlink(name + SWAP, missing_ok=True)
            directory.sync()
            log.check()
            state = self._state()
            log.point.swapping = ()
            log.point.write(log.bounds, state)
        except (OSError, LogStoreError) as error:
            # The state on disk says that they do not count, and so does each later one.
            log.point.swapping = (new.base_offset,)
            logger.warning(
                "files of an unfinished compaction of %s stay: %s",
                log.context.name,
                error,
            )

    def _commit(self, old: Sequence[Segment], new: CompactedSegment) -> None:
        """Steps 3 to 7. The caller holds both locks."""
        log = self._log
        context = log.context
        begin = log.bounds.segments.index(old[0])
        after = log.bounds.segments[begin + len(old)]
        segment = Segment(
            context.directory,
            context.services.descriptors,
            new.base_offset,
            new.size,
            after.base_offset,
            max_timestamp=new.max_timestamp,
            max_timestamp_offset=new.max_timestamp_offset,
        )
        segment.time_digest = new.time_digest
        bounds = log.bounds
        rest = bounds.segments[begin + len(old) :]
        segments = Segments((*bounds.segments[:begin], segment, *rest))
        bounds = bounds._replace(segments=segments)
        try:
            state = self._state()
            bounds = bounds._replace(durable=log.bounds.durable, end=log.bounds.end)
            context.is_contiguous = False
            log.point.swapping = ()
            log.point.replaced()
            log.point.write(bounds, state)
            names = self._put_in_place(old, new)
        except BaseException as error:
            # On disk the log may have either segments. This comes first and makes no
            # call that could be interrupted.
            log.health.is_poisoned = log.health.is_blocked = True
            failed = SyncFailedError(
                f"a compaction of {context.name} failed half-way: {error!r}. Its "
                f"records can be read; open the store again to append.",
                errno=getattr(error, "errno", None),
                path=context.directory.path,
                action="compact",
            )
            log.health.fail(failed)
            if isinstance(error, OSError):
                raise failed from error
            raise
        log.bounds = bounds
        delay_ms = context.config.file_delete_delay_ms
        context.services.unlink_later(context.directory, names, delay_ms, old)

    def _put_in_place(self, old: Sequence[Segment], new: CompactedSegment) -> list[str]:
        """Steps 4 and 5; returns the new names of the old files."""
        directory = self._log.context.directory
        names: list[str] = []
        taken = set(directory.names())
        # Also snapshots that a lower cut needs: see `Idempotence.before_cut`.
        kept = self._log.bounds.cuts.offsets
        for segment in old:
            base = segment.base_offset
            log_name = segment_file(base, LOG)
            # Deleted files of an earlier compaction may still exist, and have readers.
            number = next(
                n for n in itertools.count() if deleted_file(log_name, n) not in taken
            )
            segment.file.move(deleted_file(log_name, number))
            # Its readers start again. Its indexes have other names, too.
            segment.version += 1
            segment.time_digest = STALE_DIGEST
            for suffix in SEGMENT_SUFFIXES:
                if suffix == SNAPSHOT and base in {new.base_offset, *kept}:
                    continue  # the state of producers before it has not changed
                name = segment_file(base, suffix)
                with contextlib.suppress(FileNotFoundError):
                    if rename_or_unlink(directory, name, deleted_file(name, number)):
                        names.append(deleted_file(name, number))
        directory.sync()
        for suffix in new.suffixes:
            name = segment_file(new.base_offset, suffix)
            directory.rename(name + SWAP, name)
        directory.sync()
        return names
