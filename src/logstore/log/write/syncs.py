"""When a log is synced: for a caller that waits, and by time."""

from __future__ import annotations

import contextlib
from typing import Final, NoReturn

from logstore import _native as native
from logstore._native.locks import RANK_TURN
from logstore.errors import (
    LogStoreError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
)
from logstore.log.write.log_writer import LogWriter
from logstore.log.write.segment_writer import Mark, SegmentWriter

__all__ = ["Syncs"]

# When this many bytes of a segment are not synced, a sync begins in the background. A
# roll or a deletion then has little left to sync, for which appends wait (some 200 ms
# for 128 MiB, and more than a second for 1 GiB).
_UNSYNCED_BYTES: Final = 8 << 20
# A sync that is due while another thread appends is retried this often, at this
# interval.
_FLUSH_TRIES: Final = 20
_FLUSH_RETRY_MS: Final = 5
# No sync needs a deeper call stack than this until its records are durable.
_SYNC_DEPTH: Final = 30
# A flush_ms beyond this (ten years) needs no thread.
_NEVER_MS: Final = 10 * 366 * 24 * 3600 * 1000


class Syncs:
    """Syncs one log. Any thread may call `sync`.

    Attributes:
        shared: syncs, and appends with a sync, in steps of C. Its `append` does nothing
            and says so, if the caller must use `Appender` and `sync_appended`.

    Invariants: if `is_scheduled`, `flush_due` will be called for all that is appended
    before. If `_is_catching_up`, `_catch_up` will be called, unless the store ends. The
    log's lock guards both.
    """

    __slots__ = (
        "__weakref__",
        "_is_catching_up",
        "_log",
        "_marked",
        "_tries",
        "_turns",
        "is_scheduled",
        "shared",
    )

    def __init__(self, log: LogWriter) -> None:
        self._log = log
        context = log.context
        self._turns = native.Turns(
            RANK_TURN, f"the turn to sync {context.name}", context.services.lock_group
        )
        # The segment state that the current sync covers; C writes to it.
        self._marked = native.SegmentState(0)
        owners = self._marked, log.point.synced, log.page.state
        self.shared = native.SharedSync(
            self.sync_usual,
            self.finish,
            self.failed,
            log.active.prepared,
            self._turns,
            log.sync_lock,
            context.services.lock_file,
            log.active.sync_times,
            owners,
            *(owner.address for owner in owners),
        )
        self.is_scheduled = False
        self._is_catching_up = False
        self._tries = 0

    # ------------------------------------------------------------ in the background

    def plan(self, writer: SegmentWriter) -> None:
        """Ensure that the next records, which go to the active segment, will be synced
        in time. Call it before they are written: nothing may fail afterwards."""
        if not self.is_scheduled:
            self._schedule()
        if not self._is_catching_up and writer.state.raw.size >= self._limit(writer):
            with contextlib.suppress(StorageError):
                self._plan_catch_up()

    def _limit(self, writer: SegmentWriter) -> int:
        """The size of a segment from which on so much is not synced that a sync
        begins."""
        synced, state = self._log.point.synced.raw, writer.state.raw
        is_new = synced.base_offset != state.base_offset
        return int(0 if is_new else synced.size) + _UNSYNCED_BYTES

    def steps_end(self, writer: SegmentWriter) -> int:
        """The size of the active segment from which on the next append must call `plan`
        again. Until then appends in steps of C, which do not call it, may follow."""
        if self._is_catching_up:
            return int(writer.state.raw.size) + _UNSYNCED_BYTES
        return self._limit(writer)

    def _schedule(self) -> None:
        context = self._log.context
        if context.config.flush_ms < _NEVER_MS:
            context.services.call_later(self.flush_due, context.config.flush_ms)
            self.is_scheduled = True

    def _plan_catch_up(self) -> None:
        self._is_catching_up = True  # before: it may be over when the call returns
        try:
            self._log.context.services.call_later(self._catch_up, 0)
        except BaseException:
            self._is_catching_up = False
            raise

    def _catch_up(self) -> None:
        """Called by the store's thread: sync what was appended by now."""
        try:
            if not self._log.health.has_ended:
                self._sync_unheard(self._log.bounds.end)
        finally:
            self._is_catching_up = False

    def _sync_unheard(self, end: int) -> bool:
        """Sync for no caller: if the sync fails, the next append or close raises the
        error. Returns whether it was possible."""
        health = self._log.health
        try:
            self.sync(end)
        except LogStoreError:
            health.is_unheard = health.failed is not None
            return False
        return True

    def flush_due(self) -> None:
        """Called by the store's thread when flush_ms is over."""
        log, health = self._log, self._log.health
        if health.has_ended:
            return
        with log.lock.attempt() as is_mine:
            # With the lock: later appends schedule another sync.
            if is_mine:
                self.is_scheduled, self._tries = False, 0
                end = log.bounds.end
        if not is_mine and self._tries < _FLUSH_TRIES:
            # Another thread appends: other partitions do not wait for it.
            self._tries += 1
            log.context.services.call_later(self.flush_due, _FLUSH_RETRY_MS)
            return
        if not is_mine:
            with log.lock:
                self.is_scheduled, self._tries = False, 0
                end = log.bounds.end
        try:
            if not self._sync_unheard(end) and not health.has_ended:
                self._schedule()  # it is not possible now, but may be later
        except BaseException:
            self._schedule()  # no memory now, perhaps
            raise

    # ------------------------------------------------------------ for a caller

    def sync(self, upto: int) -> None:
        """Return when everything below `upto` is on stable storage, or the log was
        cut below it meanwhile.

        Concurrent callers share one sync: one of them syncs all records appended by
        then, and the others wait until it ends. If it did not cover some callers, one
        of these syncs next.

        Raises:
            SyncFailedError: the sync failed; which records are durable is unknown.
            LogStoreError: the partition was found damaged, and has records that are
                not durable.
            ReentrantCallError: this thread is in the middle of an append or a sync.
        """
        log = self._log
        if log.bounds.durable >= upto:
            return
        if log.lock.top >= RANK_TURN:
            raise ReentrantCallError(
                f"a sync of {log.context.name} came in from inside another call of "
                f"this thread, and would wait for that"
            )
        self.shared.sync(upto)

    def sync_usual(self, upto: int) -> bool:
        """Sync all records appended by now; `SharedSync` calls it if a step of C is not
        enough. False if the log was cut below `upto`. The caller holds `sync_lock`, but
        not `lock`: other threads append meanwhile."""
        log, health = self._log, self._log.health
        with log.lock:
            if log.bounds.durable >= upto:
                return True
            if not health.is_blocked:
                log.keep_prepared()
            elif health.suspended is None:
                log.check()
            writer = log.active.writer or log.writable()
            mark, file = writer.mark(), writer.file
            if log.bounds.end < upto:
                return False
            if mark.next_offset < upto:
                raise health.poison()  # there is nothing more to sync
        try:
            log.active.sync(writer, log.bounds.durable, file.fd)
        except SyncFailedError as error:
            raise health.fail(error) from error.__cause__
        with log.lock:
            log.after_sync(writer, mark)
            log.keep_prepared()
        return True

    def finish(self, writer: SegmentWriter, index_count: int, time_count: int) -> None:
        """Take in a sync by `SharedSync`: the log of a segment is synced up to the
        mark, at which its indexes had these numbers of entries. The caller holds
        `sync_lock`."""
        log = self._log
        mark = Mark(self._marked.copy(), index_count, time_count)
        with log.lock:
            log.after_sync(writer, mark)
            log.keep_prepared()

    def failed(self, writer: SegmentWriter, error: OSError) -> NoReturn:
        """Raise the error for a sync by `SharedSync` that failed."""
        log = self._log
        failed = log.active.sync_failed(writer, log.bounds.durable, error)
        raise log.health.fail(failed) from error

    # ------------------------------------------------------------ after an append

    def check_may_sync(self, durable: bool) -> None:
        """Raise if the sync after an append could be refused, because this thread is in
        the middle of another call, or because the stack would be too deep: after the
        append it would be too late."""
        if not durable:
            return
        if not self._turns.may_wait:
            raise ReentrantCallError(
                f"a durable append to {self._log.context.name} came in from inside "
                f"another call of this thread, and could wait for that; nothing was "
                f"written"
            )
        _descend(_SYNC_DEPTH)

    def sync_appended(self, end: int, durable: bool) -> None:
        """Sync after an append, whose records are in. If this runs inside another call,
        or memory or stack is short, the sync is left to the thread that syncs in
        time."""
        if not durable and not self._turns.may_wait:
            return
        try:
            self.sync(end)
        except (MemoryError, RecursionError):
            if durable and self._log.bounds.durable < end:
                raise


def _descend(depth: int) -> None:
    """Raise RecursionError if the stack has no room for `depth` calls."""
    if depth:
        _descend(depth - 1)
