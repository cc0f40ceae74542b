"""The writing side of a partition, as used by a store."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

from logstore import _native as native
from logstore._native.locks import Signal, logger
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptionError,
    DiskFullError,
    LogStoreError,
    StorageError,
    SyncFailedError,
    UnsupportedError,
    again,
    error_text,
    is_system_error,
    storage_error,
)
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.directory import Directory
from logstore.log.read.view import Bounds, Segments
from logstore.log.recover import RecoveredLog
from logstore.log.write.appender import Appender
from logstore.log.write.compaction_gate import CompactionGate
from logstore.log.write.context import LogContext, StoreServices
from logstore.log.write.deletion import delete_before
from logstore.log.write.exclusive import ExclusiveLog
from logstore.log.write.health import Health
from logstore.log.write.log_bounds import LogBounds, VisibilityBarrier
from logstore.log.write.log_cut import LogCut, cut_of
from logstore.log.write.log_writer import LogWriter
from logstore.log.write.replacement import Replacement
from logstore.log.write.syncs import Syncs
from logstore.log.write.truncation import truncate
from logstore.record.encoder import Encoder

__all__ = ["PartitionWriter"]

Result = TypeVar("Result")


class PartitionWriter:
    """Writes to one partition of a store. Any thread may call its methods.

    Attributes:
        context: which partition, and its settings.
        directory: of the partition.
        health: why it takes no appends.
        appends: appends to it.
        syncs: makes it durable.
        replacement: replaces its segments by compacted ones.
        compaction_gate: when the steps of a compaction may begin.
        cut: returns the present log, for a copy; see `cut_of`.
        lock, sync_lock: of the log; see docs/design.md.
        is_end_recorded: False while `close` has not recorded the end of the log, or the
            cuts of a damaged one: a full disk prevented it, or the call was
            interrupted.
    """

    def __init__(
        self,
        services: StoreServices,
        directory: Directory,
        topic: str,
        partition: int,
        config: TopicConfig,
        loaded: RecoveredLog,
    ) -> None:
        self._log = LogWriter(services, directory, topic, partition, config, loaded)
        self.context: LogContext = self._log.context
        self.directory = directory
        self.health: Health = self._log.health
        self.lock = self._log.lock
        self.sync_lock = self._log.sync_lock
        self.syncs = Syncs(self._log)
        self.appends = Appender(self._log, self.syncs)
        self.replacement = Replacement(self._log)
        self.compaction_gate = CompactionGate(self.context.name, services.lock_group)
        self.cut: Callable[[], LogCut] = functools.partial(cut_of, self._log)
        self.is_end_recorded = True
        # Closing is complete, and what it raised.
        self._is_finished = False
        self._failure: LogStoreError | None = None

    # ------------------------------------------------------------ what readers see

    @property
    def segments(self) -> Segments:
        return self._log.bounds.segments

    @property
    def start_offset(self) -> int:
        return self._log.bounds.start

    @property
    def end_offset(self) -> int:
        """The next offset to be assigned."""
        return self._log.bounds.end

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is in progress, or all
        records from an offset on are about to be removed."""
        return self._log.seen().end

    @property
    def durable_offset(self) -> int:
        return self._log.seen().durable

    @property
    def cuts(self) -> Cuts:
        """How the log was cut."""
        return self._log.bounds.cuts

    def compacted_upto(self) -> int | None:
        """The offset up to which it is compacted; None: it never was.

        Raises:
            StorageError: the checkpoint cannot be read.
        """
        return self.context.compacted_upto()

    def at_once(
        self,
        ask: Callable[[Segments, int, int, int], Result | None],
        durable_only: bool,
        target: int,
    ) -> Result | None:
        """The result of `ask` on the present log, between its first and its last
        offset; None also if the log was cut meanwhile."""
        if self.health.is_torn:
            return None
        segments, start, end, durable, cuts, _ = self._log.seen()
        result = ask(segments, start, durable if durable_only else end, target)
        return result if self._log.bounds.cuts is cuts else None

    def seen(self) -> LogBounds:
        """The log as readers see it now."""
        return self._log.seen()

    def refreshed(self, *, fully: bool = False) -> Bounds:
        """The present log, for a reading thread; `fully` changes nothing, as no other
        process writes it.

        Raises:
            StoreClosedError, ForkedError: the store cannot be used.
        """
        self.context.services.check_open()
        return self._log.settled()

    def is_as_it_was(self, life: int, serial: int) -> bool:
        """Whether nothing was cut since `refreshed` returned this serial number."""
        return self._log.bounds.cuts.serial == serial

    @property
    def appended(self) -> Signal:
        """Set whenever there may be more to read, or the log was closed."""
        return self._log.appended

    def wake_readers(self) -> None:
        """Wake the waiting readers, so that they check again."""
        self._log.appended.set()

    def make_durable(self) -> None:
        """Make all records of the log durable, and publish the durable offset to other
        processes: the one that the last owner has published no longer counts.

        Raises:
            SyncFailedError: a sync failed; the log takes no more appends.
        """
        self.syncs.sync(self.end_offset)
        with self.lock:
            bounds = self._log.bounds
            self._log.page.tell(bounds.durable, bounds.cuts.serial)

    def free_bytes(self) -> int:
        """Bytes free on the file system, including the files that are waiting to be
        removed."""
        directory = self.directory
        try:
            return directory.free_bytes() + self.context.services.waiting_bytes()
        except OSError as error:
            raise storage_error(error, "examine", directory.path) from error

    def flush_counts(self) -> tuple[int, float, float]:
        """The number of syncs of the log so far, and their duration in seconds: the
        sum, and the longest one."""
        return self._log.active.sync_times.get()

    # ------------------------------------------------------------ changes

    def configure(self, config: TopicConfig) -> None:
        """Apply other settings, from the next append on.

        Raises:
            SyncFailedError, StorageError: the active segment could not be released; the
                old settings stay in use.
        """
        encoder = Encoder(config)
        with self.sync_lock, self.lock:
            self._log.check()
            try:
                self._log.release_held()
            except OSError as error:
                if not is_system_error(error):
                    raise
                path = self.segments[-1].path
                text = "The partition has its old settings until it is opened again."
                raise storage_error(error, "release the space of", path, text) from (
                    error
                )
            self.context.config, self.appends.encoder = config, encoder
            # All is synced: the next append schedules its sync by these settings.
            self.syncs.is_scheduled = False

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        with self.sync_lock, self.lock:
            self._log.check()
            writer = self._log.writable()
            if writer.state.size:
                self._log.roll_or_undo(writer)

    def delete_before(self, offset: int, reason: str) -> int:
        """Raise the start offset; drop the segments that lie wholly below it."""
        with self.sync_lock, self.lock:
            if not self.health.is_only_damaged:
                self._log.check()
            return delete_before(self._log, offset, reason)

    def truncate_to(
        self, offset: int, find: Callable[[], tuple[int, int] | None], reason: str
    ) -> int:
        """Drop all records from `offset` on.

        Args:
            find: called with the locks held; returns (index of the segment, position)
                where the batch of the offset begins; None at the end.
            reason: why, for the log message.
        """
        with self.sync_lock, self.lock:
            log = self._log
            log.check()
            if offset != log.bounds.end:
                context = log.context
                context.services.state.before_cut(context.key, offset)
            return truncate(log, offset, find(), reason)

    def exclusive(self) -> ExclusiveLog:
        """The log, for a caller that holds both locks as long as it uses it."""
        assert self.lock.is_mine
        assert self.sync_lock.is_mine
        return ExclusiveLog(self._log, self.appends)

    # ------------------------------------------------------------ no more appends

    def suspend(self, reason: LogStoreError) -> None:
        """Refuse appends and compactions, which raise `reason`, until `resume`. No step
        of a compaction is under way when this returns."""
        self.compaction_gate.suspend(reason)
        with self.sync_lock, self.lock:
            self.health.suspended = reason
            self.health.is_blocked = True

    def resume(self) -> None:
        """Accept appends and compactions again; the next one checks for another
        reason."""
        self.compaction_gate.resume()
        self.health.suspended = None

    def fail(self, error: BaseException) -> None:
        """Refuse all appends: the next opening of the store cuts the log here."""
        self.health.cannot_undo(
            f"a publication to {self.context.name} could not be undone: "
            f"{error_text(error)}. Open the store again."
        )

    def hide_from(self, offset: int, publisher: native.Mutex | None = None) -> None:
        """Hide all records from an offset on from readers, for good."""
        self._log.limit_visibility(
            VisibilityBarrier(is_open=False, publisher=publisher), offset
        )

    def close(self, reason: LogStoreError, *, record_end: bool) -> None:
        """Sync, finish the indexes and, with `record_end`, record where the log ends.
        May be called again after an interrupt or a failure.

        Later calls raise `reason`.

        Raises:
            SyncFailedError, StorageError: the log may not be durable. A full disk
                raises neither: the records that were appended have their space.
        """
        health = self.health
        self.compaction_gate.stop(reason)
        with self.sync_lock, self.lock:
            if self._is_finished:
                if self._failure is not None:
                    # An interrupt may have kept the error from its caller.
                    raise again(self._failure)
                return
            self.is_end_recorded = False  # until it is, whatever ends this call
            if health.is_intact:
                with contextlib.suppress(StorageError):
                    self._log.repair()
            health.closed = health.closed or reason
            health.is_blocked = True
            health.wake()
            try:
                if health.is_intact:
                    self._finish(record_end)
                elif record_end and health.failed is None:
                    self.is_end_recorded = _record_cuts(self._log)
                if health.failed is not None and health.is_unheard:
                    raise health.failed
            except LogStoreError as error:
                if isinstance(error, SyncFailedError):
                    health.fail(error)
                self._failure = again(error)
                self._end_close()
                raise
            except OSError as error:
                failure = storage_error(error, "close", self.directory.path)
                self._failure = again(failure)
                self._end_close()
                raise failure from error
            self._end_close()

    def _end_close(self) -> None:
        self._log.active.retire()
        self._log.page.close()
        self._is_finished = True

    def _finish(self, record_end: bool) -> None:
        log, point, writer = self._log, self._log.point, self._log.active.writer
        if writer is None and (point.is_known or not record_end or not self.segments):
            self.is_end_recorded = True
            return
        writer = writer or log.writable(is_append=False)
        log.active.sync(writer, log.bounds.durable)
        log.set_durable(log.bounds.end)
        try:
            writer.seal()
            if self.context.config.segment_digests:
                log.digests.write_all(self.segments)
            log.idempotence.write_snapshot(log.bounds)
            if record_end:
                point.write(log.bounds, writer.state)
            self.is_end_recorded = True
        except OSError as error:
            failed = storage_error(error, "close", self.directory.path)
            if not isinstance(failed, DiskFullError):
                raise failed from error
            # All records are durable; the next opening rebuilds the missing files.
            logger.warning(
                "%s is durable, but not marked as closed: %s", self.context.name, failed
            )

    def abandon(self) -> None:
        """Release everything that a reader of a deleted topic does not need."""
        self._log.bounds = self._log.bounds._replace(segments=Segments())


def _record_cuts(log: LogWriter) -> bool:
    """Record the cuts of a damaged log; False if that failed, or if the log is not
    damaged but the system refused to repair it, which may succeed the next time.
    Without a state that counts, the next opening makes the cuts again."""
    if isinstance(log.health.damage, StorageError):
        return False
    cuts = log.bounds.cuts
    try:
        log.point.amend(lambda state: dataclasses.replace(state, cuts=cuts))
    except (OSError, CorruptionError, UnsupportedError) as error:
        logger.warning("the state of %s was not written: %s", log.context.name, error)
        return False
    return True
