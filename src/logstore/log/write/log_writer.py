"""Grows a log by segments, and returns to a savepoint if a call fails half-way.

There are two locks. `LogWriter.lock` orders appends and every change of the list of
segments. `sync_lock` excludes operations that must not run during a sync. A thread
takes `sync_lock` first (docs/design.md has the order of all locks). Methods whose names
end in ``_held`` need both locks; the others need `lock`, if they do not take it.

After a failed sync, or an append that could not be undone, the log has failed: each
later call raises the first cause, and readers continue. If an interrupt ends a call
while it is being undone, its `Savepoint` remains; the next call finishes the undo.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import Final

from logstore import _native as native
from logstore._native.locks import RANK_APPEND, RANK_SYNC, Signal, logger
from logstore.config import TopicConfig
from logstore.errors import (
    LogStoreError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
)
from logstore.index import STALE_DIGEST, OffsetEntries, TimeEntries
from logstore.io.directory import Directory
from logstore.io.files import replaced_calls
from logstore.log.producers import EXPIRY_MS
from logstore.log.read.view import Bounds, Segments
from logstore.log.recover import RecoveredLog
from logstore.log.recover.rebuild import cut_transactions
from logstore.log.write.active_segment import ActiveSegment
from logstore.log.write.context import LogContext, StoreServices
from logstore.log.write.durable_page import DurablePage
from logstore.log.write.durable_point import DurablePointWriter
from logstore.log.write.health import Health
from logstore.log.write.idempotence import Idempotence
from logstore.log.write.leader_epochs import LeaderEpochWriter
from logstore.log.write.log_bounds import LogBounds, Visibility, VisibilityBarrier
from logstore.log.write.sealed_digests import SealedDigests
from logstore.log.write.segment_writer import Mark, SegmentWriter
from logstore.segment import Segment

__all__ = ["LogWriter", "Savepoint"]

# Log bounds without the call of `LogBounds`, for each append.
_new: Final = tuple.__new__


class Savepoint:
    """The state of a log before an append, a roll, or the exchange of a file.

    If the call fails, its `except` clause first sets `LogWriter.pending` to this,
    `Health.is_blocked` and `Health.is_torn`, in assignments: before a call there could
    be an interrupt. Then it calls `LogWriter.roll_back`.

    Attributes:
        segments: the list of segments.
        mark: of the active segment.
        index, times: its entries; there may be more of them than `mark` counts.
        is_exchanged: a staged file replaces that segment, which is empty.
        is_indexed: its transaction index may get entries, too.
        new: segments that the call began.
    """

    __slots__ = (
        "index",
        "is_exchanged",
        "is_indexed",
        "mark",
        "new",
        "segments",
        "times",
    )

    def __init__(
        self,
        bounds: LogBounds,
        writer: SegmentWriter,
        *,
        is_exchanged: bool = False,
        is_indexed: bool = False,
    ) -> None:
        self.segments = bounds.segments
        self.mark = writer.mark()
        self.index = writer.index
        self.times = writer.times
        self.is_exchanged = is_exchanged
        self.is_indexed = is_indexed
        self.new: tuple[Segment, ...] = ()


class LogWriter(native.LogFields):
    """The parts of a log that is being written, and every change that needs several of
    them. Its users are `Appender`, `Syncs`, `truncate` and others in this package.

    Attributes:
        bounds: where the log begins and ends; replaced in one assignment.
        pending: what the next call must undo first.
        appended: set whenever there may be more to read, or the log was closed.
        visibility: of the publication in progress, or of the last one.
    """

    bounds: LogBounds
    __slots__ = (
        "__weakref__",
        "_deleted",
        "active",
        "appended",
        "context",
        "digests",
        "epochs",
        "health",
        "idempotence",
        "lock",
        "page",
        "pending",
        "point",
        "sync_lock",
        "visibility",
    )

    def __init__(
        self,
        services: StoreServices,
        directory: Directory,
        topic: str,
        partition: int,
        config: TopicConfig,
        loaded: RecoveredLog,
    ) -> None:
        self.context = LogContext(
            services,
            directory,
            topic,
            partition,
            config,
            log_id=loaded.log_id or uuid.uuid4().hex,
            is_contiguous=loaded.is_contiguous,
            foreign_end=loaded.foreign_end,
            is_identified=loaded.is_identified,
            is_renamed=bool(loaded.segments) and loaded.is_renamed,
        )
        name, group = self.context.name, services.lock_group
        self.lock = native.Mutex(RANK_APPEND, f"partition {name}", group)
        self.sync_lock = native.Mutex(RANK_SYNC, f"a sync of {name}", group)
        self.appended = Signal()
        self.health = Health(self.context, loaded.damage, self.appended)
        segments = Segments(loaded.segments)
        self.bounds = LogBounds(
            segments,
            loaded.start_offset,
            loaded.end_offset,
            loaded.durable_offset,
            loaded.cuts,
        )
        self.visibility = Visibility(VisibilityBarrier(is_open=True), 0)
        quiet, facts = (self.appended.waiters, services.unreported), native.StepFacts()
        prepared = native.PreparedAppend(
            self, self.health, self.lock, self.undo_write, LogBounds, quiet,
            replaced_calls(self.context.files), facts, facts.address,
        )  # fmt: skip
        self.active = ActiveSegment(
            self.context,
            self.health,
            prepared,
            facts,
            loaded.active_state,
            loaded.index,
            loaded.times,
            self._record_append_cut,
        )
        if segments:
            segments[-1].show_indexes(loaded.index, loaded.times)
        self.point = DurablePointWriter(self.context, self.health, self.active, loaded)
        self.page = DurablePage(self.context, self.rest)
        self.epochs = LeaderEpochWriter(self.context)
        self.idempotence = Idempotence(self.context, loaded.end_offset)
        self.idempotence.table.show_to(prepared, EXPIRY_MS)
        self.digests = SealedDigests(self.context, loaded.digested)
        self.pending: Savepoint | None = None
        self._deleted = loaded.deleted

    # ------------------------------------------------------------ what readers see

    def seen(self) -> LogBounds:
        """The log as readers see it. Its end is the offset at which they stop; this is
        lower during a publication, and while records are removed. Needs no lock.

        start <= durable <= end, if start <= end.
        """
        while True:
            # If a publication begins now, the bounds may have some of its records.
            visibility = self.visibility
            is_open, bounds = visibility.barrier.is_open, self.bounds
            if self.visibility is visibility:
                break
        segments, start, end, durable, cuts, limit = bounds
        if is_open and start <= durable <= end <= limit:
            return bounds
        end = min(end, limit) if is_open else min(end, limit, visibility.high_watermark)
        durable = max(min(durable, end), start)
        return _new(LogBounds, (segments, start, end, durable, cuts, limit))

    def settled(self) -> Bounds:
        """The log as readers see it, for a reading thread. The work of an interrupted
        call is finished first, so that all readers see the same log."""
        health = self.health
        if not (self.visibility.barrier.is_open or health.has_ended):
            # A thread that publishes has the lock: readers do not wait for it.
            with (
                contextlib.suppress(ReentrantCallError, StorageError),
                self.lock.attempt() as is_mine,
            ):
                if is_mine:
                    self.repair()
        elif health.is_torn and not health.has_ended:
            with contextlib.suppress(ReentrantCallError, StorageError), self.lock:
                self.repair()
        segments, start, end, durable, cuts, _ = self.seen()
        removal = None if segments else health.closed
        # Logstore itself writes no transactions.
        free = range(self.context.foreign_end, native.OFFSET_MAX)
        compactions = self.point.compactions
        return _new(
            Bounds,
            (segments, start, end, durable, cuts, 0, removal, free, None, compactions),
        )

    def show(self, writer: SegmentWriter) -> None:
        """Let readers see what was appended. Nothing here may fail: the records are
        in."""
        end = writer.show()
        segments, start, _, durable, cuts, limit = self.bounds
        self.bounds = _new(LogBounds, (segments, start, end, durable, cuts, limit))
        if self.appended.waiters:
            self.appended.set()

    def record_cut(self, offset: int) -> None:
        """Record that all records from an offset on are being, or were, removed, for
        readers that have read them."""
        self.idempotence.forget()
        self.page.pause()
        cuts = self.bounds.cuts.after(offset, self.context.files.now_ms())
        self.bounds = self.bounds._replace(cuts=cuts)

    def limit_visibility(self, barrier: VisibilityBarrier, high_watermark: int) -> None:
        """Hide all records from an offset on from readers until the barrier is open."""
        self.visibility = Visibility(barrier, high_watermark)
        # If the publication is interrupted, the next call must check.
        self.health.is_blocked = True

    # ------------------------------------------------------------ may it be appended to

    def get_ready(self) -> None:
        """`check`, if there may be a reason. Call it before the offsets of an append
        are determined: a repair may change the end of the log."""
        writer = self.active.writer
        if self.health.is_blocked or (
            writer is not None and writer.next_offset != self.bounds.end
        ):
            self.health.is_blocked = True
            self.check()
            if self.health.release is not None:
                self.health.release()
                self.health.release = None
                self.health.is_blocked = self._has_reason

    def check(self) -> None:
        """Raise the reason if nothing may be written; finish the work of an interrupted
        call."""
        self.health.check(self.repair)
        if self.point.must_record:
            self.active.retire()  # `writable` writes the state file
            self.health.is_blocked = self._has_reason

    def repair(self) -> None:
        """Finish the work of an interrupted call.

        Raises:
            StorageError: this is not possible now.
        """
        health, barrier = self.health, self.visibility.barrier
        barrier.settle()
        if health.is_poisoned or barrier.is_stuck:
            health.poison()
            return
        if self.pending is not None:
            self._undo()
        if self.active.stray is not None:
            self.active.remove_stray()
        writer = self.active.writer
        if writer is not None and health.failed is None:
            if writer.dirty is not None:
                self._clean(writer)
            if writer.next_offset != self.bounds.end:
                # The call was interrupted after its records were written.
                self.show(writer)
        health.is_blocked = self._has_reason
        health.is_torn = False

    @property
    def _has_reason(self) -> bool:
        """Whether there is, or may be, a reason to refuse appends: a closed barrier may
        belong to a publication that was interrupted. Or some work is due before the
        next append."""
        health, barrier = self.health, self.visibility.barrier
        is_held = health.suspended is not None or health.release is not None
        is_held = is_held or (self.point.must_record and self.active.writer is not None)
        return not barrier.is_open or health.has_ended or is_held

    def _clean(self, writer: SegmentWriter) -> None:
        """Undo a write, after an undo that did not finish."""
        try:
            writer.clean()
        except SyncFailedError as error:
            self.health.fail(error)
            return
        self._record_append_cut(writer.state, is_done=True)

    def _record_append_cut(
        self, state: native.SegmentState, *, is_done: bool = False
    ) -> None:
        """Record that all after a durable state of the active segment is being removed,
        or was, if `is_done`: a reader in another process may have counted records of
        it. If this fails, the next append does so first: only the recorded cut shows
        that other records have their offsets. When it is done, that is another cut: a
        reader may have seen the old end together with the first."""
        if is_done and not self.point.must_record:
            return
        self.point.must_record = self.health.is_blocked = True
        self.record_cut(state.last_offset + 1)
        self.point.record(self.bounds, state, is_truncating=not is_done)

    def undo_write(self, writer: SegmentWriter, error: BaseException) -> BaseException:
        """Undo a write by `PreparedAppend` that failed; returns the error to raise. If
        this is interrupted, `repair` will undo the write."""
        try:
            try:
                writer.undo_failed(error)
            except BaseException as undone:
                error = undone
            if isinstance(error, SyncFailedError):
                self.health.fail(error)
            if writer.dirty is None and self.active.writer is writer:
                self._record_append_cut(writer.state, is_done=True)
                with contextlib.suppress(StorageError):
                    self.repair()
            return error
        finally:
            del error  # it would keep itself, by the frame of this call

    # ------------------------------------------------------------ savepoints

    def roll_back(self, error: BaseException) -> None:
        """Undo a call that failed half-way with an error, which the caller raises."""
        self._undo()
        if isinstance(error, SyncFailedError):
            self.health.fail(error)

    def _undo(self) -> None:
        """Undo a call that failed half-way: its writes, and the segments it began.

        If the undo is interrupted, it starts again from its beginning.
        """
        saved, active = self.pending, self.active
        if saved is None:
            return
        if active.creating is not None:
            # At once: an append that is not blocked does not check for a stray file.
            active.stray, active.creating = active.creating, None
        try:
            with contextlib.suppress(StorageError):
                active.remove_stray()
            if saved.is_exchanged:
                self._undo_exchange(saved)
            else:
                self._undo_append(saved)
        except (OSError, LogStoreError) as error:
            self.health.cannot_undo(
                f"an append to {self.context.name} failed and cannot be undone: "
                f"{error}. Open the store again to recover."
            )
        # Another thread may have synced meanwhile: no more than what was there before
        # the call counts as durable.
        self.set_durable(min(self.bounds.durable, saved.mark.next_offset))
        self.pending = None
        self.health.is_blocked = self._has_reason or active.stray is not None
        self.health.is_torn = False

    def _undo_append(self, saved: Savepoint) -> None:
        """Cut the active segment, or return to an earlier one."""
        active, before, mark = self.active, saved.segments, saved.mark
        new = saved.new = saved.new or self.bounds.segments[len(before) :]
        if not new:
            if active.writer is not None:
                if active.writer.differs_from(mark):
                    active.writer.back_to(mark)
                self._record_append_cut(active.writer.state, is_done=True)
        else:
            active.retire()
            self.bounds = self.bounds._replace(segments=before)
            self.digests.drop(before[-1:])
            active.state = mark.state.copy()
            active.state.raw.time_entries = mark.time_count
            # From memory: an earlier try may have left the files shorter.
            active.index, active.times = saved.index, saved.times
            self.record_cut(self.bounds.end)
            # The state file names the new segments: first it must stop naming them.
            self.point.commit(self.bounds, active.state, is_truncating=True)
            for segment in reversed(new):
                active.remove_files(segment.base_offset)
            self.context.directory.sync()
            active.writer = active.open(before[-1], self.rest)
            active.writer.back_to(mark)
        if saved.is_indexed:
            base_offset = before[-1].base_offset
            cut_transactions(self.context.directory, base_offset, mark.next_offset)
        if new or self.point.is_barred:
            assert active.writer is not None
            self.point.commit(self.bounds, active.writer.state)
            self.point.is_barred = False

    def _undo_exchange(self, saved: Savepoint) -> None:
        """Make the active segment empty again, whichever file has its name now."""
        active = self.active
        active.retire()
        active.state = saved.mark.state.copy()
        active.index, active.times = OffsetEntries(), TimeEntries()
        active.writer = active.open(self.bounds.segments[-1], self.rest)
        active.writer.back_to(Mark(active.state, 0, 0))
        # The next append must go to the file that has the name durably.
        self.context.directory.sync()
        # A reader in another process may have counted the records.
        self.record_cut(self.bounds.end)
        self.point.commit(self.bounds, active.writer.state)

    # ------------------------------------------------------------ segments

    def writable(self, *, is_append: bool = True) -> SegmentWriter:
        """The active segment; the first append opens it for writing.

        Args:
            is_append: the caller may append to it.

        Raises:
            StorageError: the file cannot be opened, or, if `is_append`, the state file
                cannot be written and must be.
        """
        active, context, services = self.active, self.context, self.context.services
        if active.writer is None:
            services.state.begin_writing()
            if context.is_renamed:
                self.point.commit(self.bounds, active.state)
                context.is_renamed = False
            context.identify(is_empty=not self.bounds.segments)
            if not self.bounds.segments:
                self._add_segment(self.bounds.end)
                self.point.must_record = True
            if self.point.must_record:
                self.point.commit(self.bounds, active.state, is_needed=is_append)
            segments = self.bounds.segments
            active.writer = active.open(segments[-1], self.rest)
            # Also what a recovery has made durable.
            self.page.tell(self.bounds.durable, self.bounds.cuts.serial)
            deleted, self._deleted = self._deleted, []
            if deleted:
                delay_ms = context.config.file_delete_delay_ms
                services.unlink_later(context.directory, deleted, delay_ms, ())
            if context.config.segment_digests and segments[:-1]:
                services.call_later(self.digests_due, 0)
        return active.writer

    def admit_transactions(self) -> None:
        """Record, before the first batch of a transaction is appended, that the log may
        have some from here on: until then readers do not look for any.

        Raises:
            StorageError, SyncFailedError: this is not recorded.
        """
        context, writer = self.context, self.active.writer or self.writable()
        before = context.foreign_end
        if before == native.OFFSET_MAX:
            return
        self.sync_all()
        try:
            context.foreign_end = native.OFFSET_MAX
            self.point.commit(self.bounds, writer.state)
        except BaseException:
            context.foreign_end = before
            raise

    def _add_segment(self, base_offset: int) -> None:
        """Create a segment, and put it into the list."""
        segment = self.active.create(base_offset)
        segments = Segments((*self.bounds.segments, segment))
        bounds = self.bounds._replace(segments=segments)
        # At once: a segment in the list must not be removed as half created.
        self.bounds, self.active.creating = bounds, None

    def roll(self, writer: SegmentWriter) -> SegmentWriter:
        """Begin a new segment after the active one. The caller has a savepoint.

        1. sync the log of the active one; 2. finish and sync its indexes; 3. create the
        new segment; 4. record the durable point.
        """
        active, context = self.active, self.context
        active.sync(writer, self.bounds.durable)
        base = writer.show()
        try:
            writer.seal()
        except OSError as error:
            # Indexes can be rebuilt from the log, which is synced.
            writer.segment.time_digest = STALE_DIGEST
            logger.warning("cannot finish the indexes of %s: %s", writer.path, error)
        self._add_segment(base)
        # The old writer stays until the new one exists: without any, no undo works.
        opened = active.open(self.bounds.segments[-1], self.rest)
        active.replace(opened)
        self.set_durable(base)
        if not self.point.is_barred:
            self.point.record(self.bounds, opened.state.copy())
        if base == self.bounds.end:
            # Else the roll is inside an append, whose batches are not known yet.
            self.idempotence.write_snapshot(self.bounds)
        if context.config.segment_digests:
            context.services.call_later(self.digests_due, 0)
        return opened

    def roll_or_undo(
        self, writer: SegmentWriter, base: int | None = None
    ) -> SegmentWriter:
        """Begin a new segment after one that is not empty, or change nothing.

        Args:
            base: its base offset, to leave a gap before it; the previous segment may be
                empty then.
        """
        saved, health = Savepoint(self.bounds, writer), self.health
        try:
            if base is not None:
                writer.state.raw.last_offset = base - 1
            return self.roll(writer)
        except BaseException as error:
            # This comes first and makes no call that could be interrupted.
            self.pending, health.is_blocked, health.is_torn = saved, True, True
            self.roll_back(error)
            raise

    def rest(self) -> bool:
        """Sync everything, and release the descriptor of the log until the next append.
        Returns whether this was done. It never waits: another thread, or this one, may
        be in a call here."""
        with self.sync_lock.attempt() as is_mine:
            if not is_mine:
                return False
            with self.lock.attempt() as is_mine:
                if not is_mine or self.health.is_blocked or self.active.writer is None:
                    return False
                try:
                    self.release_held()
                except (LogStoreError, OSError) as error:
                    logger.warning(
                        "%s keeps its file open: %s", self.context.name, error
                    )
                    return False
                return True

    def release_held(self) -> None:
        """Sync, and release the active segment's file."""
        active, writer = self.active, self.active.writer
        if writer is None:
            return
        self.sync_all()
        writer.give_back_space()
        # Closing must record the end even if nothing is written from here on.
        self.point.is_recorded = False
        active.retire()
        self.page.close()
        self.bounds.segments[-1].show_indexes(active.index, active.times)

    def digests_due(self) -> None:
        """Called by the store's thread: write the digests of sealed segments that have
        none. A damaged segment gets none."""
        digests = self.digests
        for segment in digests.missing(self.bounds.segments):
            version = segment.version
            if self.health.is_blocked:
                continue
            try:
                digest = digests.make(segment)
                with self.lock:
                    if (
                        segment.version == version
                        and segment in self.bounds.segments[:-1]
                    ):
                        digests.keep(segment, digest)
            except OSError as error:
                logger.warning("cannot write the digest of %s: %s", segment.path, error)

    # ------------------------------------------------------------ durable

    def set_durable(self, offset: int) -> None:
        """All records below an offset are durable, and no others are known to be."""
        segments, start, end, _, cuts, limit = self.bounds
        self.bounds = _new(LogBounds, (segments, start, end, offset, cuts, limit))
        self.page.tell(offset, cuts.serial)

    def sync_all(self) -> None:
        """Sync everything."""
        writer, bounds = self.active.writer, self.bounds
        if writer is None:
            if bounds.durable >= bounds.end:
                return
            writer = self.writable()
        if self.bounds.durable >= writer.next_offset:
            return
        mark = writer.mark()
        try:
            self.active.sync(writer, self.bounds.durable)
        except SyncFailedError as error:
            raise self.health.fail(error) from error.__cause__
        self.after_sync(writer, mark)

    def after_sync(self, writer: SegmentWriter, mark: Mark) -> None:
        """The log of a segment is synced up to a mark. It may be another one than the
        active segment now."""
        self.set_durable(max(self.bounds.durable, mark.next_offset))
        is_whole = self.pending is None and self.active.writer is writer
        if is_whole and not self.point.is_barred:
            self.point.after_sync(self.bounds, writer, mark, self.point_due)
        if self.appended.waiters:
            self.appended.set()

    def keep_prepared(self) -> None:
        """Keep the prepared appends valid: the caller took the lock, and changed none
        of their facts but the durable offset."""
        self.active.prepared.keep(self.bounds.durable, self.point.quiet_size)

    def point_due(self) -> None:
        """Called by the store's thread: record the durable point if it is out of
        date."""
        with self.sync_lock, self.lock:
            self.point.is_scheduled = False
            if not self.health.is_blocked:
                self.point.record_last(self.bounds)
