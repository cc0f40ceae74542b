"""The writing side of a partition: a log that can also be trimmed and closed."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final

from logstore import _binding as native
from logstore import checkpoints, layout
from logstore._files import PRIVATE, Directory
from logstore.adoption import Adoptable, settle
from logstore.config import TopicConfig
from logstore.encoder import Encoder
from logstore.errors import (
    DiskFullError,
    LogStoreError,
    OffsetOutOfRangeError,
    SyncFailedError,
    UnsupportedError,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries
from logstore.layout import DELETED, LOG, SEGMENT_SUFFIXES, segment_file
from logstore.log_writer import Gate, LogWriter
from logstore.recovery import (
    cut_transactions,
    remove_snapshots,
)
from logstore.segment import Segment
from logstore.segment_writer import SegmentWriter
from logstore.tail import take_batches

__all__ = ["PartitionWriter"]

logger = logging.getLogger("logstore")

# Files of deleted segments that are kept open at once.
_PINNED_MAX: Final = 64
_SPARE_FILES: Final = 4


class PartitionWriter(LogWriter):
    """Writes to one partition of a store. Any thread may call its methods."""

    # ------------------------------------------------------------ delete, truncate

    def configure(self, config: TopicConfig) -> None:
        """Take over other settings, from the next append on."""
        with self.sync_lock, self.lock:
            self._check()
            if self._active is not None:
                self._sync_now(self.end_offset)
                self._active_state = self._active.state
                self._retire_active()
                # Closing has to note the end though nobody may write from here on.
                self._is_written_down = False
                self.segments[-1].show_indexes(self._active_index, self._active_times)
            self.config = config
            self.encoder = Encoder(config)

    def delete_before(self, offset: int, reason: str) -> int:
        """Raise the start offset; drop the segments that lie wholly below it.

        1. write down the new start (commit); 2. new list of segments; 3. rename the
        files to `.deleted`; 4. unlink them later.
        """
        with self.sync_lock, self.lock:
            self._check()
            if not self.start_offset <= offset <= self.end_offset:
                raise OffsetOutOfRangeError(
                    offset, self.start_offset, self.end_offset, partition=self.name
                )
            if offset == self.start_offset and self._first_needed(offset) == 0:
                return offset
            self.host.begin_writing()
            active = self._writable()
            if offset == self.end_offset and active.state.size:
                self.roll()
                active = self._writable()
            dropped = self.segments[: self._first_needed(offset)]
            self._pin(dropped)
            before = self.segments, self.start_offset
            try:
                self.segments = self.segments[len(dropped) :]
                self.start_offset = offset
                is_committed = self._commit_state(active)
            except BaseException:
                self.segments, self.start_offset = before
                raise
            self._rename_deleted(dropped, is_committed=is_committed)
            logger.info(
                "%s starts at offset %d: %s; %d segments with %d bytes deleted",
                self.name,
                offset,
                reason,
                len(dropped),
                sum(segment.size for segment in dropped),
            )
            if offset > self.segments[0].base_offset:
                self.host.start_moved(self.topic, self.partition)
            return offset

    def _first_needed(self, offset: int) -> int:
        """Index of the first segment that has offsets >= `offset` or is active."""
        for index, after in enumerate(self.segments[1:]):
            if after.base_offset > offset:
                return index
        return len(self.segments) - 1

    def _commit_state(self, active: SegmentWriter) -> bool:
        """Write down a changed list of segments; False as `_commit`."""
        point = active.state.copy()
        if self._synced < self.end_offset:
            self._sync_now(self.end_offset)
        return self._commit(point)

    def _pin(self, segments: Iterable[Segment], most: int = _PINNED_MAX) -> None:
        """Keep files open for readers that have begun: of the newest segments, which
        such a reader comes to last. Those of the others it finds as `.deleted` for
        ``file_delete_delay_ms``, as readers in other processes do."""
        newest = tuple(segments)[-most:]
        spare: list[int] = []
        with contextlib.suppress(OSError):
            # What is to be done next needs descriptors itself.
            for segment in newest[-_SPARE_FILES:]:
                spare.append(self.directory.open(segment.file(LOG)))
            for segment in newest:
                segment.pin()
        for fd in spare:
            with contextlib.suppress(OSError):
                self.files.close(fd)

    def pin_all(self) -> None:
        """Keep the files for readers that have begun: their directory is to go."""
        self._pin(self.segments, self.host.descriptors.max_open)

    def _rename_deleted(
        self,
        segments: Iterable[Segment],
        *,
        is_committed: bool = True,
        is_needed: bool = False,
    ) -> None:
        """Rename the files of dropped segments; another process may still read them.

        Raises:
            StorageError: a file keeps its name, and it matters: not `is_committed`, and
                so the new names are all that says that the segments are dropped; or
                `is_needed`, where the log would grow into the offsets of one that
                stayed.
        """
        names: list[str] = []
        segments = tuple(segments)
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
            self.host.unlink_later(
                self.directory, names, self.config.file_delete_delay_ms
            )

    def _sync_names(self) -> None:
        try:
            self.directory.sync()
        except OSError as error:
            raise storage_error(error, "sync", self.directory.path) from error

    def truncate_to(self, offset: int, boundary: tuple[int, int] | None) -> int:
        """Drop all records from `offset` on.

        `boundary`: (index of the segment, position) where its batch begins; None at the
        end.

        1. write down the lower durable point and that all behind it goes (commit:
        opening finishes it); 2. rename later segments to `.deleted`
        and sync the directory; 3. truncate and sync the log; 4. cut the indexes;
        5. drop producer snapshots and leader epochs that speak of what is gone.
        """
        with self.sync_lock, self.lock:
            self._check()
            if offset == self.end_offset:
                return offset
            if boundary is None:
                raise self._half_done()
            index, pos = boundary
            self._sync_now(self.end_offset)
            self._writable()
            keep, dropped = self.segments[: index + 1], self.segments[index + 1 :]
            segment = keep[-1]
            self._pin(dropped)
            state, entries, times = self._state_up_to(segment, pos)
            before = self.segments
            try:
                self._retire_active()
                self.segments = keep
                self.note_cut(offset)
                self._active_state, self._active_index = state, entries
                self._active_times = times
                self._truncate(segment, dropped, offset)
            except BaseException as error:
                # Half done, in memory or on disk: opening again finds out.
                failed = SyncFailedError(
                    f"cannot truncate {self.name} to offset {offset}: {error!r}. Open "
                    f"the store again.",
                    errno=getattr(error, "errno", None),
                    path=self.directory.path,
                    action="truncate",
                )
                self._fail(failed)
                if segment.next_offset == offset:
                    segment.size = state.size
                    self.end_offset = offset
                else:
                    self.segments = before
                if isinstance(error, OSError):
                    raise failed from error
                raise
            return offset

    def _truncate(
        self, segment: Segment, dropped: tuple[Segment, ...], offset: int
    ) -> None:
        """The steps of `truncate_to`, with its state and list of segments in place."""
        state = self._active_state
        pos = state.size
        commit = dataclasses.replace(self._state_at(state), is_truncating=True)
        checkpoints.write_state(
            self.directory, layout.PARTITION_STATE, commit.to_dict()
        )
        self._drop_digests([segment])
        self._rename_deleted(reversed(dropped), is_needed=True)
        self.directory.sync()
        segment.generation += 1
        segment.next_offset = offset  # from here on it has happened for readers
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
        self.end_offset = offset
        # Once more: whoever looked in between has seen the old end beside the cut.
        self.note_cut(offset)
        self._synced = offset
        self._synced_state = None
        self.start_offset = min(self.start_offset, offset)
        # As long as the state on disk says "truncating", what is appended would be cut.
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
    # The caller holds `sync_lock` and `lock` from the first of these to the last.

    def place_of_end(self) -> tuple[int, int]:
        """(index of the last segment, its size), for `truncate_to`.

        Raises:
            LogStoreError: why nothing can be appended.
        """
        self._check()
        active = self._writable()
        return len(self.segments) - 1, active.state.size

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` where the disk has no `size` bytes to spare."""
        active = self._writable()
        if not active.has_room(size):
            raise active.disk_full(size)

    def append_runs(
        self, runs: Iterable[tuple[Any, int]], size: int, count: int
    ) -> None:
        """Append whole batches that have their offsets, all of them or none.

        `size` and `count`: how many bytes and offsets they take.
        """
        self._check()
        self._check_expected(None, count)
        self._write_runs(runs, size, self.files.now_ms())

    def take_over(self, root: Directory, staged: Adoptable) -> None:
        """Append what is in a staged file: the file becomes a segment.

        1. begin a segment, unless the active one is empty; 2. give the batches their
        offsets, and sync the file: recovery takes what it cannot read for a torn tail,
        and keeps a copy; 3. rename it to the empty segment's log (no reader has that
        open: there is nothing in it); 4. sync the directory.

        Raises:
            StorageError: nothing was appended.
            SyncFailedError: nobody can tell.
        """
        self._check()
        self._check_expected(None, staged.log.records)
        active = self._writable()
        base = self.end_offset
        if active.segment.next_offset != base:
            raise self._half_done()
        epoch = self.leader_epoch(base)
        if active.state.size:
            active = self._roll_or_undo(active)
        empty = active.state.copy()
        name = staged.log.file
        try:
            fd = root.open(name, write=True)
            try:
                settle(root, fd, staged, base, epoch)
                if self.directory.access != PRIVATE:
                    self.files.set_access(fd, self.directory.access)
            except BaseException:
                self.files.close(fd)
                raise
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            what = "Nothing was published."
            raise storage_error(error, "publish", root.path_of(name), what) from error
        try:
            self._exchange(root, staged, fd)
        except BaseException as error:
            if self.end_offset != base:
                raise  # it is in
            self._exchange_back(empty)
            if isinstance(error, OSError) and not isinstance(error, LogStoreError):
                path = self.segments[-1].path
                raise storage_error(error, "rename a staged file to", path) from error
            raise

    def _exchange(self, root: Directory, staged: Adoptable, fd: int) -> None:
        """Put an open staged file in the place of the active segment's empty log."""
        segment = self.segments[-1]
        try:
            self._retire_active()
            state = staged.state_at(segment.base_offset, self.files.now_ms())
            self._active_state = state
            self._active_index, self._active_times = staged.index, staged.times
            self._active = self._writer_on(segment, fd)
        except BaseException:
            self.files.close(fd)
            raise
        segment.unpin()
        segment.size, segment.next_offset = state.size, state.last_offset + 1
        root.move(staged.log.file, self.directory, segment.file(LOG))
        self.directory.sync()
        self._published(self._active)

    def _exchange_back(self, empty: native.SegmentState) -> None:
        """The active segment is empty again, whichever file has its name now."""
        try:
            self._retire_active()
            self._active_state = empty
            self._active_index, self._active_times = OffsetEntries(), TimeEntries()
            self._active = self._open_active()
            self._active.back_to((self._active_state, 0, 0))
            # What is appended next has to be in the file that has the name for good.
            self.directory.sync()
            # Who follows the log in another process may have counted the records.
            self.note_cut(self.end_offset)
            self._commit(self._active.state)
        except (OSError, LogStoreError) as error:
            self.end_for_good(error)

    def sync_held(self) -> None:
        """As `sync`, for who holds the locks."""
        self._sync_now(self.end_offset)

    def close_gate(self, gate: Gate, ceiling: int) -> None:
        """Readers see nothing from an offset on until the gate is open."""
        self.ceiling = ceiling
        self.gate = gate

    def end_for_good(self, error: BaseException) -> None:
        """Take no more appends: opening the store again will cut what follows here."""
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
        """Whether all that is in it is known to be readable and can be made durable."""
        return self.failed is None and self.damage is None

    def close(self, reason: LogStoreError, *, write_down: bool) -> None:
        """Sync, finish the indexes and, with `write_down`, note where the log ends.

        `reason` is what later calls raise.

        Raises:
            SyncFailedError, StorageError: it may not be durable. A full disk is none of
                these: what was appended has its place.
        """
        with self.sync_lock, self.lock:
            if self.closed is not None:
                return
            self.closed = reason
            self._is_blocked = True
            with self.appended:
                self.appended.notify_all()
            try:
                if self.is_sound:
                    self._finish(write_down)
                elif self.failed is not None and self._is_unheard:
                    raise self.failed
            except SyncFailedError as error:
                raise self._fail(error) from error.__cause__
            except OSError as error:
                if isinstance(error, LogStoreError):
                    raise
                raise storage_error(error, "close", self.directory.path) from error
            finally:
                self._retire_active()

    def _finish(self, write_down: bool) -> None:
        is_known = self._is_written_down and not self._is_unclean
        if self._active is None and (is_known or not write_down or not self.segments):
            return
        active = self._writable()
        self._sync_fd(active)
        self._synced = self.end_offset
        try:
            active.seal()
            if self.config.segment_digests:
                self.digests_due(closing=True)
            if write_down:
                checkpoints.write_state(
                    self.directory,
                    layout.PARTITION_STATE,
                    self._state_at(active.state).to_dict(),
                )
        except OSError as error:
            failed = storage_error(error, "close", self.directory.path)
            if not isinstance(failed, DiskFullError):
                raise failed from error
            # All records are durable; the next opening builds what is missing.
            self.is_noted = False
            logger.warning(
                "%s is durable and not marked as closed: %s", self.name, failed
            )


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
