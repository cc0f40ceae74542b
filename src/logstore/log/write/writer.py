"""The writing side of a partition: a log with deletion, truncation and closing."""

from __future__ import annotations

import bisect
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from logstore import _native as native
from logstore._native.locks import logger
from logstore.config import TopicConfig
from logstore.errors import (
    DiskFullError,
    LogStoreError,
    OffsetOutOfRangeError,
    StorageError,
    SyncFailedError,
    UnsupportedError,
    is_system_error,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries
from logstore.io.checkpoint import checkpoints
from logstore.io.directory import Directory, held_open
from logstore.io.files import PRIVATE
from logstore.io.layout import DELETED, LOG, SEGMENT_SUFFIXES, segment_file
from logstore.log.recover.rebuild import cut_transactions, remove_snapshots
from logstore.log.scan import take_batches
from logstore.log.write.import_segment import Adoptable, settle
from logstore.log.write.log_writer import Gate, LogWriter, Savepoint
from logstore.log.write.segment_appender import SegmentWriter
from logstore.record.encoder import Encoder
from logstore.segment import Segment

__all__ = ["PartitionWriter"]


class PartitionWriter(LogWriter):
    """Writes to one partition of a store. Any thread may call its methods."""

    # ------------------------------------------------------------ delete, truncate

    def configure(self, config: TopicConfig) -> None:
        """Apply other settings, from the next append on.

        Raises:
            SyncFailedError, StorageError: the active segment could not be released; the
                old settings stay in use.
        """
        encoder = Encoder(config)
        with self.sync_lock, self.lock:
            self._check()
            try:
                self._settle_held()
            except OSError as error:
                if not is_system_error(error):
                    raise
                path = self.segments[-1].path
                text = "The partition has its old settings until it is opened again."
                raise storage_error(error, "give back the space of", path, text) from (
                    error
                )
            self.config, self.encoder = config, encoder
            # All is synced: the next append schedules its sync by these settings.
            self._flush_scheduled = False

    def delete_before(self, offset: int, reason: str) -> int:
        """Raise the start offset; drop the segments that lie wholly below it.

        1. record the new start (commit); 2. replace the list of segments; 3. rename the
        files to `.deleted`; 4. unlink them later.
        """
        with self.sync_lock, self.lock:
            self._check()
            return self._delete_before_held(offset, reason)

    def _delete_before_held(self, offset: int, reason: str) -> int:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(
                offset, self.start_offset, self.end_offset, partition=self.name
            )
        if offset == self.start_offset and self._first_needed(offset) == 0:
            return offset
        active = self._writable()
        if offset == self.end_offset and active.state.size:
            active = self._roll_or_undo(active)
        dropped = self.segments[: self._first_needed(offset)]
        before = self.segments, self.start_offset
        try:
            self.segments = self.segments[len(dropped) :]
            self.start_offset = offset
            is_committed = self._commit_state(active)
        except BaseException:
            self.segments, self.start_offset = before
            raise
        del before
        if offset > self.segments[0].base_offset or dropped:
            self.host.start_moved(self.topic, self.partition)
        self._rename_deleted(dropped, is_committed=is_committed)
        logger.info(
            "%s starts at offset %d: %s; %d segments with %d bytes deleted",
            self.name,
            offset,
            reason,
            len(dropped),
            sum(segment.size for segment in dropped),
        )
        return offset

    def _first_needed(self, offset: int) -> int:
        """Index of the first segment that has offsets >= `offset` or is active."""
        after = bisect.bisect_right(
            self.segments, offset, key=lambda segment: segment.base_offset
        )
        return max(after - 1, 0)

    def _commit_state(self, active: SegmentWriter) -> bool:
        """Record a changed list of segments; return False as `_commit`."""
        point = active.state.copy()
        self._sync_held()
        return self._commit(point)

    def _rename_deleted(
        self,
        segments: Iterable[Segment],
        *,
        is_committed: bool = True,
        is_needed: bool = False,
    ) -> None:
        """Rename the files of dropped segments; another process may still read them.

        Raises:
            StorageError: a file keeps its name, which matters in two cases: not
                `is_committed`, when only the new names say that the segments are
                dropped; or `is_needed`, when the log would grow into the offsets of a
                segment that stayed.
        """
        names: list[str] = []
        segments = list(segments)
        with contextlib.suppress(OSError):
            self._drop_digests(segments)
        for segment in segments:
            if names and not is_committed:
                self._sync_names()
            for suffix in SEGMENT_SUFFIXES:
                name = segment_file(segment.base_offset, suffix)
                try:
                    self.directory.rename(name, name + DELETED)
                except FileNotFoundError:
                    continue
                except OSError as error:
                    if is_needed or not is_committed:
                        raise storage_error(
                            error, "rename", self.directory.path_of(name)
                        ) from error
                    logger.warning("cannot rename %s: %s", name, error)
                    continue
                names.append(name + DELETED)
        if not is_committed:
            self._sync_names()
        if names:
            # A read in progress finishes on the files that it began with.
            self.host.unlink_later(
                self.directory, names, self.config.file_delete_delay_ms, segments
            )

    def _sync_names(self) -> None:
        try:
            self.directory.sync()
        except OSError as error:
            raise storage_error(error, "sync", self.directory.path) from error

    def truncate_to(
        self, offset: int, find: Callable[[], tuple[int, int] | None]
    ) -> int:
        """Drop all records from `offset` on.

        Args:
            find: called with the locks held; returns (index of the segment, position)
                where the batch of the offset begins; None at the end.
        """
        with self.sync_lock, self.lock:
            self._check()
            return self.truncate_held(offset, find())

    def truncate_held(self, offset: int, boundary: tuple[int, int] | None) -> int:
        """The same; the caller holds both locks.

        1. record the lower durable point, and that all after it is to be removed
        (commit: opening finishes it); 2. rename later segments to `.deleted` and sync
        the directory; 3. truncate and sync the log; 4. cut the indexes; 5. drop
        producer snapshots and leader epochs that refer to removed offsets; 6. if
        `offset` is in a gap, begin a segment there.

        Returns the new end.
        """
        if offset == self.end_offset:
            return offset
        if boundary is None:
            raise self._half_done()
        index, pos = boundary
        while index and (
            self.segments[index].base_offset > offset
            or (pos == 0 and self.segments[index].base_offset < offset)
        ):
            # `offset` is in a gap before a segment, or before all of its records: drop
            # this segment, too.
            index -= 1
            pos = self.segments[index].size
        self._sync_held()
        self._writable()
        keep, dropped = self.segments[: index + 1], self.segments[index + 1 :]
        segment = keep[-1]
        state, entries, times = self._state_up_to(segment, pos)
        # If `offset` is in a gap, `end` follows the last record before it.
        end, start = state.last_offset + 1, self.start_offset
        before, size = self.segments, state.size
        # First: from now on a reader sees only records that stay.
        self.cutting_to = end
        try:
            self._retire_active()
            self.segments = keep
            self.note_cut(offset)
            self._active_state, self._active_index = state, entries
            self._active_times = times
            self._truncate(segment, dropped, offset, end)
        except BaseException as error:
            # Half done, in memory or on disk: the next opening finds out. This comes
            # first and makes no call that could be interrupted.
            self._is_half_done = self._is_blocked = True
            self.cutting_to = native.OFFSET_MAX
            if segment.next_offset == end:
                segment.size, self.end_offset = size, end
            else:
                self.segments = before
            failed = SyncFailedError(
                f"cannot truncate {self.name} to offset {offset}: {error!r}. Open "
                f"the store again.",
                errno=getattr(error, "errno", None),
                path=self.directory.path,
                action="truncate",
            )
            self._fail(failed)
            if isinstance(error, OSError):
                raise failed from error
            raise
        if end < offset:
            self._leave_gap(offset, start)
        return self.end_offset

    def _leave_gap(self, offset: int, start: int) -> None:
        """Let the log continue at an offset after its last record, in a segment that
        begins there: a segment that ends before the next offset looks like damage."""
        try:
            self._roll_or_undo(self._writable(), offset)
            self.end_offset, self.start_offset = offset, start
        except SyncFailedError:
            raise
        except StorageError as error:
            logger.warning(
                "%s ends at offset %d, not at %d: no segment can begin there: %s",
                self.name,
                self.end_offset,
                offset,
                error,
            )

    def _truncate(
        self, segment: Segment, dropped: tuple[Segment, ...], offset: int, end: int
    ) -> None:
        """The steps of `truncate_to`, after the state and list of segments are set.
        There are no records from `end` to `offset`."""
        state = self._active_state
        pos = state.size
        self._write_state(state, is_truncating=True)
        self._drop_digests([segment])
        self._rename_deleted(reversed(dropped), is_needed=True)
        self.directory.sync()
        segment.generation += 1
        segment.next_offset = end  # from here on, readers see the truncation
        segment.size = pos
        segment.max_timestamp = state.max_timestamp
        segment.max_timestamp_offset = state.max_timestamp_offset
        with self.directory.opened(segment.file(LOG), write=True) as fd:
            self.files.truncate(fd, pos)
            self.files.sync(fd)
        self._active = self._open_active()
        self._active.write_indexes()
        remove_snapshots(self.directory, above=offset)
        cut_transactions(self.directory, segment.base_offset, offset)
        self._cut_epochs(offset)
        logger.info(
            "%s truncated to offset %d: asked for; %d offsets dropped",
            self.name,
            offset,
            self.end_offset - offset,
        )
        self.end_offset, self.cutting_to = end, native.OFFSET_MAX
        # Again: a reader may meanwhile have seen the old end together with the cut.
        self.note_cut(offset)
        self._synced = end
        self._synced_state = None
        self.start_offset = min(self.start_offset, end)
        # While the state on disk says "truncating", an opening would cut appends.
        self._commit(self._active.state)

    def _state_up_to(
        self, segment: Segment, pos: int
    ) -> tuple[native.SegmentState, OffsetEntries, TimeEntries]:
        """State and index entries of a segment that ends at `pos`."""
        from_start = native.SegmentState(segment.base_offset, self.files.now_ms())
        index, times = OffsetEntries(), TimeEntries()
        planner = native.Planner(self.config.index_interval_bytes, None)
        for run, size in _runs(segment, pos):
            taken, _ = take_batches(planner, from_start, run.c, size, index, times)
            if taken < size:
                raise UnsupportedError(
                    f"{segment.path} cannot be indexed", path=segment.path
                )
        return from_start, index, times

    def _cut_epochs(self, offset: int) -> None:
        epochs = self._read_epochs()
        kept = [entry for entry in epochs if entry[1] < offset]
        if kept != epochs:
            checkpoints.write_epochs(self.directory, kept)
        self._epochs = kept or None

    # ------------------------------------------------------------ publishing
    # The caller holds `sync_lock` and `lock` from the first of these calls to the last.

    def place_of_end(self) -> tuple[int, int]:
        """(index of the last segment, its size), for `truncate_held`.

        Raises:
            LogStoreError: the reason why nothing can be appended.
        """
        self._check()
        active = self._writable()
        return len(self.segments) - 1, active.state.size

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` if the disk does not have `size` bytes to spare."""
        active = self._writable()
        if not active.has_room(size):
            raise active.disk_full(size)

    def append_runs(
        self, runs: Iterable[tuple[Any, int]], size: int, count: int
    ) -> None:
        """Append whole batches that have their offsets, all of them or none.

        `size` and `count`: the number of bytes and offsets they take.
        """
        self._check()
        self._check_expected(None, count)
        self._write_runs(runs, size, self.files.now_ms())

    def take_over(self, root: Directory, staged: Adoptable) -> None:
        """Append the records of a staged file: the file becomes a segment.

        1. begin a segment, unless the active one is empty; 2. give the batches their
        offsets, and sync the file: recovery treats bytes that it cannot read as a torn
        tail, and keeps a copy; 3. rename the file to the empty segment's log (no reader
        has that log open, because it is empty); 4. sync the directory.

        Raises:
            StorageError: nothing was appended.
            SyncFailedError: whether the records were appended is unknown.
        """
        self._check()
        self._check_expected(None, staged.log.records)
        active = self._writable()
        base = self.end_offset
        if active.next_offset != base:
            raise self._half_done()
        epoch = self.leader_epoch(base)
        if not self._flush_scheduled:
            self._schedule_flush()
        if active.state.size:
            active = self._roll_or_undo(active)
        saved = Savepoint(self.segments, active, is_exchanged=True)
        name = staged.log.file
        try:
            file = held_open(root.files, root.open(name, write=True))
            settle(root, file.fd, staged, base, epoch)
            if self.directory.access != PRIVATE:
                self.files.set_access(file.fd, self.directory.access)
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            what = "Nothing was published."
            raise storage_error(error, "publish", root.path_of(name), what) from error
        try:
            self._exchange(root, staged, file)
        except BaseException as error:
            if self.end_offset != base:
                raise  # the records are in
            # This comes first and makes no call that could be interrupted.
            self._savepoint, self._is_blocked, self._is_torn = saved, True, True
            self._undo()
            if is_system_error(error):
                path = self.segments[-1].path
                raise storage_error(error, "rename a staged file to", path) from error
            raise

    def _exchange(
        self, root: Directory, staged: Adoptable, file: native.OpenFile
    ) -> None:
        """Put an open staged file in the place of the active segment's empty log."""
        segment = self.segments[-1]
        self._retire_active()
        state = staged.state_at(segment.base_offset, self.files.now_ms())
        self._active_state = state
        self._active_index, self._active_times = staged.index, staged.times
        self._active = self._writer_on(segment, file)
        root.move(staged.log.file, self.directory, segment.file(LOG))
        self.directory.sync()
        self._show(self._active)

    def sync_held(self) -> None:
        """As `sync`; the caller holds the locks."""
        self._sync_held()

    def close_gate(self, gate: Gate, ceiling: int) -> None:
        """Hide all records from an offset on from readers until the gate is open."""
        self.ceiling = ceiling
        self.gate = gate
        # If the publication is interrupted, the next call must check.
        self._is_blocked = True

    def end_for_good(self, error: BaseException) -> None:
        """Refuse all appends: the next opening of the store cuts what follows here."""
        self._fail(
            SyncFailedError(
                f"a publication to {self.name} could not be undone: {error}. Open the "
                f"store again.",
                path=self.directory.path,
                action="undo",
            )
        )

    # ------------------------------------------------------------ close

    @property
    def is_sound(self) -> bool:
        """Whether the whole log is known to be readable and can be made durable."""
        return self.failed is None and self.damage is None

    def close(self, reason: LogStoreError, *, write_down: bool) -> None:
        """Sync, finish the indexes and, with `write_down`, record where the log ends.
        May be called again after an interrupt or a failure.

        Later calls raise `reason`.

        Raises:
            SyncFailedError, StorageError: the log may not be durable. A full disk
                raises neither: the records that were appended have their space.
        """
        with self.sync_lock, self.lock:
            if self._is_finished:
                return
            if self.is_sound:
                with contextlib.suppress(StorageError):
                    self._mend()
            self.closed = self.closed or reason
            self._is_blocked = True
            self.wake_readers()
            self._turn.set()
            try:
                if self.is_sound:
                    self._finish(write_down)
                if self.failed is not None and self._is_unheard:
                    raise self.failed
            except LogStoreError as error:
                self._end_close()
                if isinstance(error, SyncFailedError):
                    raise self._fail(error) from error.__cause__
                raise
            except OSError as error:
                self._end_close()
                raise storage_error(error, "close", self.directory.path) from error
            self._end_close()

    def _end_close(self) -> None:
        self._retire_active()
        self._is_finished = True

    def _finish(self, write_down: bool) -> None:
        is_known = self._is_written_down and not self._is_unclean
        if self._active is None and (is_known or not write_down or not self.segments):
            return
        active = self._active or self._writable()
        self._sync_fd(active)
        self._synced = self.end_offset
        try:
            active.seal()
            if self.config.segment_digests:
                self._write_digests_held()
            if write_down:
                self._write_state(active.state)
        except OSError as error:
            failed = storage_error(error, "close", self.directory.path)
            if not isinstance(failed, DiskFullError):
                raise failed from error
            # All records are durable; the next opening rebuilds the missing files.
            self.is_noted = False
            logger.warning(
                "%s is durable and not marked as closed: %s", self.name, failed
            )

    def abandon(self) -> None:
        """Release everything that a reader of a deleted topic does not need."""
        self.segments = ()


def _runs(segment: Segment, end: int) -> Iterator[tuple[native.Buffer, int]]:
    """Buffers of whole batches of a segment from its start to `end`."""
    buffer = native.Buffer(1 << 20)
    pos = 0
    while pos < end:
        n = segment.read(buffer.view[: min(buffer.capacity, end - pos)], pos)
        size, _, _, stop, error, _ = native.walk_batches(
            buffer.c, n, pos=0, last_offset=-1, checks=0
        )
        if error is not None:
            raise segment.missing(pos + size, segment.base_offset)
        if size:
            yield buffer, size
        buffer = segment.next_buffer(buffer, n, size, stop, pos, segment.base_offset)
        pos += size
