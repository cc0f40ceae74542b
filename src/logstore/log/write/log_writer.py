"""Grows a log: append, roll, sync, and recording the durable point.

There are two locks. `lock` orders appends and every change of the list of segments.
`sync_lock` excludes operations that must not run during a sync. A thread takes
`sync_lock` first (`logstore._native.locks` has the order of all locks). Callers of
`sync` take turns: one caller syncs for all waiting callers (group commit). Methods
whose names end in ``_held`` need both locks.

Invariant: start_offset <= durable_offset <= end_offset.

After a failed sync, or an append that could not be undone, the writer is `failed`: it
raises the first cause at every later call, and readers continue. If an interrupt ends
a call while it is being undone, a `Savepoint` remains; the next call finishes the undo.

The module is long because an append, the roll it may need and the undo of both share
all of their state.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from logstore import _native as native
from logstore._native.locks import RANK_APPEND, RANK_SYNC, Signal, logger
from logstore.config import StoreConfig, TopicConfig
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    CorruptionError,
    DiskFullError,
    LogStoreError,
    OffsetConflictError,
    ReentrantCallError,
    StorageError,
    SyncFailedError,
    storage_error,
)
from logstore.index import STALE_DIGEST, OffsetEntries, TimeEntries
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import (
    UNKNOWN_TIMESTAMP,
    PartitionState,
    state_fields,
)
from logstore.io.checkpoint.segment_digest import SegmentDigest, hash_log, write_digest
from logstore.io.directory import Directory, held_open
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG, SEGMENT_SUFFIXES, segment_file
from logstore.log.recover import RecoveredLog
from logstore.log.scan import scan_log
from logstore.log.write.segment_appender import Mark, SegmentWriter
from logstore.record.encoder import Encoder, check_headers
from logstore.segment import Segment

__all__ = ["Gate", "Host", "LogWriter", "Savepoint"]

# The durable point is recorded after this many flushed bytes, whatever the time.
_CHECKPOINT_BYTES: Final = 16 << 20
# Bytes that a roll may need in addition to records: a step of reserved space, indexes,
# state, names.
_ROLL_BYTES: Final = 256 * 1024
# A sync that is due while another thread appends is retried this often, at this
# interval.
_FLUSH_TRIES: Final = 20
_FLUSH_RETRY_MS: Final = 5
# How long to wait for another thread's sync before checking that it still runs.
_TURN_S: Final = 0.05
# No sync needs a deeper call stack than this until its records are durable.
_SYNC_DEPTH: Final = 30
# A flush_ms beyond this (ten years) needs no thread.
_NEVER_MS: Final = 10 * 366 * 24 * 3600 * 1000


class Host(Protocol):
    """The parts of the store that a writer needs."""

    store_config: StoreConfig
    descriptors: Descriptors
    lock_group: int

    @property
    def generation(self) -> str:
        """The generation that state files are written under."""

    def begin_writing(self) -> None:
        """Called before the first change: remove the marks of a clean stop, and start
        a thread for `call_later`."""

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        """Remove files after `delay_ms`, when their users are gone."""

    def waiting_bytes(self) -> int:
        """Bytes of the files that are waiting to be removed."""

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        """Run a task after `delay_ms`. It is a method; it runs if its object still
        exists then."""

    def lock_taken_by(self) -> int | None:
        """The pid of another program that holds the lock of the store now (0: unknown);
        None: this program holds it."""

    def start_moved(self, topic: str, partition: int) -> None:
        """The start offset lies inside a segment: Kafka's checkpoint must record it."""


class Gate:
    """Whether readers see what is being published. All logs of a publication share one
    gate: it opens for all of them at once.

    Attributes:
        publisher: held by the thread that publishes. A gate that is closed while no
            thread publishes belongs to a publication that was interrupted.
    """

    __slots__ = ("is_open", "publisher")

    def __init__(self, *, is_open: bool, publisher: native.Mutex | None = None) -> None:
        self.is_open = is_open
        self.publisher = publisher

    @property
    def is_stuck(self) -> bool:
        """Whether it will never open. The caller holds the lock of the log."""
        if self.is_open:
            return False
        return self.publisher is None or not self.publisher.is_mine


class Savepoint:
    """The state of a log before a call that changed it half-way.

    Attributes:
        segments: the list of segments.
        mark: of the active segment.
        index, times: its entries; there may be more of them than `mark` counts.
        is_exchanged: a staged file replaces that segment, which is empty.
        new: segments that the call began.
    """

    __slots__ = ("index", "is_exchanged", "mark", "new", "segments", "times")

    def __init__(
        self,
        segments: tuple[Segment, ...],
        active: SegmentWriter,
        *,
        is_exchanged: bool = False,
    ) -> None:
        self.segments = segments
        self.mark = active.mark()
        self.index = active.index
        self.times = active.times
        self.is_exchanged = is_exchanged
        self.new: tuple[Segment, ...] = ()


class LogWriter:
    """Appends to one log and makes it durable. Any thread may call its methods."""

    def __init__(
        self,
        host: Host,
        directory: Directory,
        topic: str,
        partition: int,
        config: TopicConfig,
        loaded: RecoveredLog,
    ) -> None:
        self.host = host
        self.directory = directory
        self.files = directory.files
        self.topic = topic
        self.partition = partition
        self.name = layout.partition_directory(topic, partition)
        self.config = config
        group = host.lock_group
        self.lock = native.Mutex(RANK_APPEND, f"partition {self.name}", group)
        self.sync_lock = native.Mutex(RANK_SYNC, f"a sync of {self.name}", group)
        self._appended = Signal()
        self._turn = Signal()
        # State that the next call must undo first; whether no call can undo it.
        self._savepoint: Savepoint | None = None
        self._is_half_done = False
        # A call was interrupted: readers finish it first (`settle`).
        self._is_torn = False
        # Closing is complete.
        self._is_finished = False
        # Base offset of the segment that is being created, for `_roll_back`.
        self._creating: int | None = None
        # The same, after its creation has failed, until its file is removed.
        self._stray: int | None = None
        self._is_syncing = False
        # The state file says that all bytes after its durable point will be removed:
        # readers in other processes do not look there.
        self._is_barred = False
        self.encoder = Encoder(config)
        self.segments: tuple[Segment, ...] = tuple(loaded.segments)
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        # Where readers stop while the log is being cut to this offset.
        self.cutting_to = native.OFFSET_MAX
        # Where readers stop while the gate is closed.
        self.ceiling = 0
        self.gate = Gate(is_open=True)
        self.damage: LogStoreError | None = loaded.damage
        self.failed: LogStoreError | None = None
        # Only a background thread has seen the failure so far.
        self._is_unheard = False
        self.closed: LogStoreError | None = None
        # Why appends are refused for now.
        self.suspended: LogStoreError | None = None
        self._is_blocked = loaded.damage is not None
        # False if a full disk prevented recording the end of the log.
        self.is_noted = True
        # Number and duration of the syncs of the log so far; `sync_lock` guards them.
        self.flushes = 0
        self.flush_seconds = self.flush_seconds_max = 0.0
        self._synced = loaded.durable_offset
        self._active_state = loaded.active_state
        self._active_index = loaded.index
        self._active_times = loaded.times
        self._active: SegmentWriter | None = None
        self._flush_scheduled = False
        self._flush_tries = 0
        self._point_scheduled = False
        self._synced_state: native.SegmentState | None = None
        self._epochs: list[tuple[int, int]] | None = None
        self._is_written_down = loaded.is_written_down
        self._is_unclean = loaded.is_unclean
        self.log_id = loaded.log_id or uuid.uuid4().hex
        self.cuts = loaded.cuts
        self._is_gapless = loaded.is_gapless
        self._is_truncating = loaded.is_truncating
        self._deleted = loaded.deleted
        self._digested = loaded.digested
        # Of the last state file: serials of the first and the last sealed segment (not
        # references, which would keep deleted segments), their number, their rows.
        self._rows: tuple[int, int, int, str] = (0, 0, 0, "")
        if self.segments:
            self.segments[-1].show_indexes(loaded.index, loaded.times)
        self._point_pos = loaded.active_state.size
        self._point_time = self.files.monotonic()

    # ------------------------------------------------------------ what readers see

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is in progress, or all
        records from an offset on are about to be removed."""
        end = min(self.end_offset, self.cutting_to)
        return end if self.gate.is_open else min(end, self.ceiling)

    @property
    def durable_offset(self) -> int:
        return max(min(self._synced, self.high_watermark), self.start_offset)

    def note_cut(self, offset: int) -> None:
        """Record that all from an offset on is being, or was, removed, for readers that
        have read it."""
        self.cuts = self.cuts.after(offset, self.files.now_ms())

    def _check(self) -> None:
        """Raise the reason if nothing may be written; finish what an interrupted call
        left half done."""
        if self.closed is not None:
            # The same error each time, without the frames of earlier callers.
            raise self.closed.with_traceback(None)
        if self.suspended is not None:
            raise self.suspended.with_traceback(None)
        if self.failed is None and self.damage is None:
            self._mend()
        if self.failed is not None:
            self._is_unheard = False
            raise SyncFailedError(
                str(self.failed),
                errno=getattr(self.failed, "errno", None),
                path=getattr(self.failed, "filename", None),
                action="append to",
            ) from self.failed
        if self.damage is not None:
            raise self.damage.with_traceback(None)

    def _get_ready(self) -> None:
        """`_check`, if there may be a reason. Call it before the offsets of an append
        are determined: a repair may change the end of the log."""
        active = self._active
        if self._is_blocked or (
            active is not None and active.next_offset != self.end_offset
        ):
            self._is_blocked = True
            self._check()

    def _mend(self) -> None:
        """Finish what an interrupted call left half done.

        Raises:
            StorageError: this is not possible now.
        """
        if self._is_half_done or self.gate.is_stuck:
            self._half_done()
            return
        if self._savepoint is not None:
            self._undo()
        if self._stray is not None:
            self._remove_stray()
        active = self._active
        if active is not None and self.failed is None:
            if active.dirty is not None:
                self._clean(active)
            if active.next_offset != self.end_offset:
                # The call was interrupted after its records were written.
                self._show(active)
        self._is_blocked = self._has_reason
        self._is_torn = False

    @property
    def _has_reason(self) -> bool:
        """Whether there is, or may be, a reason to refuse appends: a closed gate may
        belong to a publication that was interrupted."""
        return not self.gate.is_open or bool(
            self.closed or self.failed or self.damage or self.suspended
        )

    def suspend(self, reason: LogStoreError) -> None:
        """Refuse appends, which raise `reason`, until `resume`."""
        with self.sync_lock, self.lock:
            self.suspended = reason
            self._is_blocked = True

    def resume(self) -> None:
        """Accept appends again; the next one checks for another reason."""
        self.suspended = None

    def settle(self) -> None:
        """For a reading thread: finish what an interrupted call left half done, so
        that all readers see the same log."""
        if not self._is_torn or self.failed or self.damage or self.closed:
            return
        with contextlib.suppress(ReentrantCallError, StorageError), self.lock:
            self._mend()

    def _half_done(self) -> SyncFailedError:
        """A call was interrupted at a point that cannot be undone: write no more."""
        return self._fail(
            SyncFailedError(
                f"an earlier call on {self.name} was interrupted half-way; what was "
                f"acknowledged can be read. Open the store again to append.",
                path=self.directory.path,
                action="append to",
            )
        )

    def _fail(self, error: SyncFailedError) -> SyncFailedError:
        if self.failed is None:
            self.failed = error
            self._is_blocked = True
            logger.error("%s takes no more appends: %s", self.name, error)
        self.wake_readers()
        self._turn.set()
        return error

    # ------------------------------------------------------------ append

    def append_rows(
        self,
        groups: Sequence[native.Rows],
        *,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int, int]:
        """Append rows, all or none. No code of the caller runs in here: the caller has
        packed lists already.

        Returns (first offset, one past the last, time of the append in ms).
        """
        self._check_can_sync(durable)
        with self.lock:
            self._get_ready()
            now_ms = self.files.now_ms()
            base = self.end_offset
            count = sum(rows.count for rows in groups)
            self._check_expected(expected_offset, count)
            if count:
                for rows in groups:
                    check_headers(rows, self.encoder.magic)
                    rows.set_time(now_ms)
                self._append([rows for rows in groups if rows.count], base, now_ms)
            end = self.end_offset
            lagging = end - self._synced >= self.config.flush_messages
        if durable or lagging:
            self._sync_appended(end, durable)
        return base, end, now_ms

    def check_append(self, groups: Sequence[native.Rows], durable: bool) -> None:
        """Raise now what `append_rows` would raise, as far as it can be known: for
        calls that append to several logs, one after the other. It may be called with no
        lock held. It does not foresee a failing or full disk."""
        self._check_can_sync(durable)
        if not self.lock.may_wait:
            raise ReentrantCallError(
                f"an append to several partitions, {self.name} among them, came in "
                f"from inside another call of this thread; nothing was written"
            )
        with self.lock:
            self._check()
        encoder = self.encoder
        for rows in groups:
            check_headers(rows, encoder.magic)
            encoder.check_sizes(rows)

    def append_one(
        self,
        value: Any,
        key: Any,
        timestamp_ms: int | None,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """Append one uncompressed message of magic 0 or 1: the fast path.

        Returns (offset, timestamp stored).
        """
        if durable:
            self._check_can_sync(durable)
        with self.lock:
            self._get_ready()
            now_ms = self.files.now_ms()
            base = self.end_offset
            if expected_offset is not None or base == native.OFFSET_MAX:
                self._check_expected(expected_offset, 1)
            encoder = self.encoder
            if timestamp_ms is None or encoder.log_append_time:
                timestamp_ms = now_ms
            if encoder.is_plain:
                active = self._active or self._writable()
                if not self._flush_scheduled:
                    self._schedule_flush()
                try:
                    done = active.append_message(
                        value, key, timestamp_ms, now_ms, encoder
                    )
                    if done:
                        self._show(active)
                except BaseException as error:
                    # This comes first and makes no call that could be interrupted. If
                    # the error came after the commit, the record is in, and is shown.
                    self._is_blocked = self._is_torn = True
                    self._after_failure(active, error)
                    raise
            else:
                done = False  # the settings have changed meanwhile
            if not done:
                rows = encoder.rows_of_one(value, key, timestamp_ms)
                self._append([rows], base, now_ms)
            end = self.end_offset
            lagging = end - self._synced >= self.config.flush_messages
        if durable or lagging:
            self._sync_appended(end, durable)
        return base, timestamp_ms if encoder.magic else -1

    def _check_can_sync(self, durable: bool) -> None:
        """Raise if the sync after an append could be refused, because this thread is in
        the middle of another call, or because the stack would be too deep: after the
        append it would be too late."""
        if not durable:
            return
        if not self.sync_lock.may_wait:
            raise ReentrantCallError(
                f"a durable append to {self.name} came in from inside another call of "
                f"this thread, and could wait for that; nothing was written"
            )
        _descend(_SYNC_DEPTH)

    def _sync_appended(self, end: int, durable: bool) -> None:
        """Sync after an append, whose records are in. If this runs inside another call,
        or memory or stack is short, the sync is left to the thread that syncs in
        time."""
        if not durable and not self.sync_lock.may_wait:
            return
        try:
            self.sync(end)
        except (MemoryError, RecursionError):
            if durable and self._synced < end:
                raise

    def _after_failure(self, active: SegmentWriter, error: BaseException) -> None:
        """A write failed. It is already undone, or `_mend` will undo it."""
        if isinstance(error, SyncFailedError):
            self._fail(error)
        if active.dirty is None:
            self._tell_of_cut(active)
            with contextlib.suppress(StorageError):
                self._mend()

    def _clean(self, active: SegmentWriter) -> None:
        """Undo a write, after an undo that did not finish."""
        try:
            active.clean()
        except SyncFailedError as error:
            self._fail(error)
        self._tell_of_cut(active)

    def _check_expected(self, expected_offset: int | None, count: int) -> None:
        base = self.end_offset
        if expected_offset is not None and expected_offset != base:
            raise OffsetConflictError(expected_offset, base, partition=self.name)
        if count > native.OFFSET_MAX - base:
            raise ConfigError(
                f"{self.name} has no room for {count} more offsets after {base}",
                name="count",
                value=count,
            )

    def _append(self, groups: Sequence[native.Rows], base: int, now_ms: int) -> None:
        encoder = self.encoder
        total = sum(encoder.measure(rows) for rows in groups)
        epoch = self.leader_epoch(base) if encoder.magic == 2 else 0
        runs = self._encode(groups, base, now_ms, epoch)
        if encoder.buffers_whole_call:
            copies = [bytes(native.buffer_of(data, size)) for data, size in runs]
            total = sum(map(len, copies))
            runs = iter([(native.pointer(copy), len(copy)) for copy in copies])
        self._write_runs(runs, total, now_ms)

    def _encode(
        self, groups: Sequence[native.Rows], base: int, now_ms: int, epoch: int
    ) -> Iterator[tuple[Any, int]]:
        for rows in groups:
            yield from self.encoder.encode(rows, base, now_ms, epoch)
            base += rows.count

    def append_encoded(
        self,
        make_runs: Callable[[int, int], tuple[list[memoryview], int]],
        *,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int]:
        """Append whole batches. `make_runs(base offset, leader epoch)` returns them
        with their offsets, and the number of offsets they take."""
        self._check_can_sync(durable)
        with self.lock:
            self._get_ready()
            base = self.end_offset
            self._check_expected(expected_offset, 0)
            runs, count = make_runs(base, self.leader_epoch(base))
            if count:
                self._check_expected(None, count)
                self._write_runs(
                    [(native.pointer(run), len(run)) for run in runs],
                    sum(map(len, runs)),
                    self.files.now_ms(),
                )
            end = self.end_offset
            lagging = end - self._synced >= self.config.flush_messages
        if durable or lagging:
            self._sync_appended(end, durable)
        return base, base + count

    def append_time(self) -> int | None:
        """The time of an append if it replaces the producers' timestamps, else None."""
        return self.files.now_ms() if self.encoder.log_append_time else None

    def leader_epoch(self, base: int) -> int:
        """The epoch to stamp on batches of magic 2; the first is 0, from `base` on.

        Kafka wants the epoch in leader-epoch-checkpoint before the data.
        """
        try:
            if self._epochs is None:
                self._epochs = self._read_epochs()
            if not self._epochs:
                self.host.begin_writing()
                epoch = 0 if self._is_gapless else self._newest_epoch()
                epochs = [(epoch, base)]
                checkpoints.write_epochs(self.directory, epochs)
                self._epochs = epochs
        except OSError as error:
            if isinstance(error, LogStoreError):
                raise
            path = self.directory.path_of(layout.LEADER_EPOCHS)
            raise storage_error(
                error, "read or write", path, "Nothing was appended."
            ) from error
        return self._epochs[-1][0]

    def _read_epochs(self) -> list[tuple[int, int]]:
        """The epochs in the checkpoint; empty if they are impossible. No checksum
        covers the file, and logstore alone writes epoch 0 only."""
        try:
            epochs = checkpoints.read_epochs(self.directory)
        except CorruptCheckpointError:
            if self._is_gapless:
                return []
            raise
        if self._is_gapless and any(epoch for epoch, _ in epochs):
            return []
        return epochs

    def _newest_epoch(self) -> int:
        """The epoch of the last batches of magic 2; 0 if there are none."""
        if not self.segments or not self.segments[-1].size:
            return 0
        headers = self.segments[-1].headers(checks=0)
        return max(0, max(header.leader_epoch for header, _, _ in headers))

    def _write_runs(
        self, runs: Iterable[tuple[Any, int]], total: int, now_ms: int
    ) -> None:
        """Write runs of whole batches; all of them or none.

        Readers in other processes see no part of it before the end. If the runs fit
        into one segment they go into one, as in Kafka: a roll is over before the first
        byte. In that case the frame of the first batch is written last: until then
        zeros in its place end the log for readers. Runs that need several segments are
        protected by a bar (`_bar`). Space is reserved first, so that a full disk shows
        before the first byte.
        """
        active = self._active or self._writable()
        if active.next_offset != self.end_offset:
            raise self._half_done()
        if not self._flush_scheduled:
            self._schedule_flush()
        if self._room(active) < total <= self.config.segment_bytes:
            active = self._roll_or_undo(active)
        base = self.end_offset
        saved = Savepoint(self.segments, active)
        # No reader looks at the records of a publication before its commit anyway.
        is_hidden = not self.gate.is_open
        try:
            active.reserve(min(total, self._room(active)))
            if total > self._room(active):
                rolls = total // self.config.segment_bytes + 1
                if not active.has_room(total + rolls * _ROLL_BYTES):
                    raise active.disk_full(total)
                if not is_hidden:
                    self._bar(active, saved.mark)
            for data, size in runs:
                done = 0
                while done < size:
                    is_first = not (
                        is_hidden or self._is_barred or active.differs_from(saved.mark)
                    )
                    taken, stop = active.append(
                        data + done, size - done, now_ms, total if is_first else 0
                    )
                    done += taken
                    if done < size and stop != native.STOP_FULL:
                        if not taken and not active.state.size:
                            raise self._misplaced(active)
                        is_bare = not (is_hidden or self._is_barred)
                        if is_bare and active.differs_from(saved.mark):
                            self._bar(active, saved.mark)
                        active.write_first_frame()
                        active = self._roll(active)
            active.write_first_frame()
            if self._is_barred:
                self._unbar(active)
            self._show(active)
        except BaseException as error:
            if self.end_offset != base:
                raise  # all of it is in, and shown
            # This comes first and makes no call that could be interrupted.
            self._savepoint, self._is_blocked, self._is_torn = saved, True, True
            self._undo()
            # A caller that keeps the error keeps this frame, which would keep the files
            # open.
            del saved
            if isinstance(error, SyncFailedError):
                raise self._fail(error) from error.__cause__
            raise

    def _misplaced(self, active: SegmentWriter) -> CorruptionError:
        """The error for a batch that does not fit into an empty segment."""
        return CorruptionError(
            f"a batch for {self.name} has offsets that are not the next, "
            f"{active.next_offset}: nothing was appended",
            path=active.path,
        )

    def _bar(self, active: SegmentWriter, mark: Mark) -> None:
        """Set a bar at a mark, which is the end: readers do not look after it, and
        after a crash the next opening removes what follows it. All records before it
        are made durable first."""
        self._sync_fd(active)
        self._synced = max(self._synced, mark.next_offset)
        self._is_barred = True
        self._write_bar(active, mark.state, is_truncating=True)

    def _unbar(self, active: SegmentWriter) -> None:
        """Commit an append that is protected by a bar."""
        self._sync_held()
        self._write_bar(active, active.state, is_truncating=False)
        self._is_barred = False

    def _write_bar(
        self, active: SegmentWriter, state: native.SegmentState, *, is_truncating: bool
    ) -> None:
        try:
            self._write_state(state, is_truncating=is_truncating)
        except OSError as error:
            raise storage_error(
                error, "append to", active.path, "Nothing was written."
            ) from error

    def _show(self, active: SegmentWriter) -> None:
        """Let readers see what was appended. Nothing here may fail: the records are
        in."""
        active.show()
        self.end_offset = active.next_offset
        if self._appended.has_waiters:
            self._appended.set()

    def _room(self, active: SegmentWriter) -> int:
        return max(self.config.segment_bytes - active.state.size, 0)

    def _undo(self) -> None:
        """Undo a call that failed half-way: its writes, and the segments it began.

        If the undo is interrupted, it starts again from its beginning.
        """
        saved = self._savepoint
        if saved is None:
            return
        if self._creating is not None:
            # At once: an append that is not blocked does not check for a stray file.
            self._stray, self._creating = self._creating, None
        try:
            with contextlib.suppress(StorageError):
                self._remove_stray()
            if saved.is_exchanged:
                self._exchange_back(saved)
            else:
                self._roll_back(saved)
        except (OSError, LogStoreError) as error:
            self._fail(
                SyncFailedError(
                    f"an append to {self.name} failed and cannot be undone: {error}. "
                    f"Open the store again to recover.",
                    path=self.directory.path,
                    action="undo",
                )
            )
        # Another thread may have synced meanwhile: no more than what was there before
        # the call counts as durable.
        self._synced = min(self._synced, saved.mark.next_offset)
        self._savepoint = None
        self._is_blocked = self._has_reason or self._stray is not None
        self._is_torn = False

    def _roll_back(self, saved: Savepoint) -> None:
        before, mark = saved.segments, saved.mark
        new = saved.new = saved.new or self.segments[len(before) :]
        active = self._active
        if not new:
            if active is not None:
                if active.differs_from(mark):
                    active.back_to(mark)
                self._tell_of_cut(active)
        else:
            self._retire_active()
            self.segments = before
            self._drop_digests(before[-1:])
            self._active_state = mark.state.copy()
            self._active_state.raw.time_entries = mark.time_count
            # From memory: an earlier try may have left the files shorter.
            self._active_index, self._active_times = saved.index, saved.times
            self.note_cut(self.end_offset)
            # The state file names the new segments: first it must stop naming them.
            self._commit(self._active_state, is_truncating=True)
            for segment in reversed(new):
                self._remove_files(segment.base_offset)
            self.directory.sync()
            self._active = self._open_active(write_all=True)
            self._active.back_to(mark)
        if new or self._is_barred:
            assert self._active is not None
            self._commit(self._active.state)
            self._is_barred = False

    def _exchange_back(self, saved: Savepoint) -> None:
        """Make the active segment empty again, whichever file has its name now."""
        self._retire_active()
        self._active_state = saved.mark.state.copy()
        self._active_index, self._active_times = OffsetEntries(), TimeEntries()
        self._active = self._open_active()
        self._active.back_to(Mark(self._active_state, 0, 0))
        # The next append must go to the file that has the name durably.
        self.directory.sync()
        # A reader in another process may have counted the records.
        self.note_cut(self.end_offset)
        self._commit(self._active.state)

    def _tell_of_cut(self, active: SegmentWriter) -> None:
        """Record that a failed append was cut again: a reader in another process may
        have counted its records. If this fails, the next state file records it."""
        if active.is_cut:
            active.is_cut = False
            self.note_cut(self.end_offset)
            self._write_point(active.state)

    def digests_due(self) -> None:
        """Called by the store's thread: write the digests of sealed segments that have
        none. A damaged segment gets none."""
        for segment in self.segments[:-1]:
            generation = segment.generation
            if segment.base_offset in self._digested or self._is_blocked:
                continue
            try:
                digest = self._digest_of(segment)
                with self.lock:
                    if segment.generation == generation:
                        self._keep_digest(segment, digest)
            except OSError as error:
                logger.warning("cannot write the digest of %s: %s", segment.path, error)

    def _write_digests_held(self) -> None:
        """The same, at the close."""
        for segment in self.segments[:-1]:
            if segment.base_offset not in self._digested:
                self._keep_digest(segment, self._digest_of(segment))

    def _keep_digest(self, segment: Segment, digest: SegmentDigest | None) -> None:
        if segment in self.segments[:-1]:
            self._digested.add(segment.base_offset)
            if digest is not None:
                write_digest(self.directory, digest)

    def _digest_of(self, segment: Segment) -> SegmentDigest | None:
        """The digest of a sealed segment whose batches are all valid, else None."""
        base, size = segment.base_offset, segment.size
        state = native.SegmentState(base)
        with self.directory.opened(segment.file(LOG)) as fd:
            found = self.files.size(fd)
            scan = scan_log(self.directory, fd, found, state, checks=segment.checks)
        if found != size or not scan.is_whole:
            logger.warning("no digest of %s: it is damaged", segment.path)
            return None
        return SegmentDigest(
            base,
            segment.next_offset,
            size,
            state.max_timestamp,
            state.max_timestamp_offset,
            hash_log(self.directory, base, size),
        )

    def _drop_digests(self, segments: Iterable[Segment]) -> None:
        """Remove the digests of segments that are dropped or appended to again."""
        for segment in segments:
            base = segment.base_offset
            self._digested.discard(base)
            self.directory.unlink(layout.digest_file(base), missing_ok=True)

    def _remove_files(self, base_offset: int) -> None:
        """Remove the files of a segment that no reader knows of."""
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(base_offset, suffix)
            self.directory.unlink(name, missing_ok=True)

    def _remove_stray(self) -> None:
        """Remove, durably, the files that a failed creation of a segment may have left.

        Nothing may be appended before: an opening would take the file for the active
        segment, and the records after its base in the previous segment for damage.

        Raises:
            StorageError: the files may still exist.
        """
        if self._stray is None:
            return
        try:
            self._remove_files(self._stray)
            self.directory.sync()
        except OSError as error:
            path = self.directory.path_of(segment_file(self._stray, LOG))
            raise storage_error(error, "remove", path, "Nothing was written.") from (
                error
            )
        self._stray = None

    # ------------------------------------------------------------ segments

    def _writable(self) -> SegmentWriter:
        """The active segment; the first append opens it for writing."""
        if self._active is None:
            self.host.begin_writing()
            if not self.segments:
                self._create_segment(self.end_offset)
                self._write_point(self._active_state)
            if self._is_truncating:
                # While the state says so, the next opening cuts what is appended.
                self._commit(self._active_state)
                self._is_truncating = False
            self._active = self._open_active()
            deleted, self._deleted = self._deleted, []
            if deleted:
                delay_ms = self.config.file_delete_delay_ms
                self.host.unlink_later(self.directory, deleted, delay_ms, ())
            if self.config.segment_digests and self.segments[:-1]:
                self.host.call_later(self.digests_due, 0)
        return self._active

    def _open_active(self, *, write_all: bool = False) -> SegmentWriter:
        segment = self.segments[-1]
        self.host.descriptors.make_room()
        try:
            fd = self.directory.open(segment.file(LOG), write=True)
        except OSError as error:
            raise storage_error(error, "open", segment.path) from error
        file = held_open(self.files, fd)
        if not write_all:
            # Kafka resets its counter at every opening.
            self._active_state.raw.bytes_since = 0
        return self._writer_on(segment, file)

    def _writer_on(self, segment: Segment, file: native.OpenFile) -> SegmentWriter:
        """A writer for the active segment, with its log open."""
        writer = SegmentWriter(
            segment,
            file,
            self._active_state,
            self._active_index,
            self._active_times,
            self.config,
            self.host.store_config,
            jitter_ms=self._jitter(),
        )
        self.host.descriptors.adopt(segment._serial, file, self.rest)
        return writer

    def rest(self) -> bool:
        """Sync everything, and release the descriptor of the log until the next append.
        Returns whether this was done. It never waits: another thread, or this one, may
        be in a call here."""
        with self.sync_lock.attempt() as is_mine:
            if not is_mine:
                return False
            with self.lock.attempt() as is_mine:
                if not is_mine or self._is_blocked or self._active is None:
                    return False
                try:
                    self._settle_held()
                except (LogStoreError, OSError) as error:
                    logger.warning("%s keeps its file open: %s", self.name, error)
                    return False
                return True

    def _settle_held(self) -> None:
        """Sync, and release the active segment's file."""
        active = self._active
        if active is None:
            return
        self._sync_held()
        active.give_back_space()
        self._active_state = active.state
        # Closing must record the end even if nothing is written from here on.
        self._is_written_down = False
        self._retire_active()
        self.segments[-1].show_indexes(self._active_index, self._active_times)

    def _jitter(self) -> int:
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return random.randrange(most) if most > 0 else 0

    def _create_segment(self, base_offset: int) -> None:
        """Begin a segment: 1. create its log; 2. sync the directory; 3. replace the
        list of segments."""
        name = segment_file(base_offset, LOG)
        self._creating = base_offset
        try:
            try:
                fd = self.directory.create(name)
            except FileExistsError:
                fd = self.directory.open(name, write=True)
                if self.files.size(fd):
                    self.files.close(fd)
                    raise
            self.files.close(fd)
            for suffix in (layout.INDEX, layout.TIME_INDEX):
                self.directory.unlink(
                    segment_file(base_offset, suffix), missing_ok=True
                )
            self.directory.sync()
        except OSError as error:
            self._is_blocked, self._stray = True, base_offset
            with contextlib.suppress(StorageError):
                self._remove_stray()
            raise storage_error(
                error, "create", self.directory.path_of(name), "Nothing was written."
            ) from error
        segment = Segment(
            self.directory,
            self.host.descriptors,
            base_offset,
            0,
            base_offset,
            max_timestamp=-1,
            is_gapless=self._is_gapless,
        )
        self._active_state = native.SegmentState(base_offset, self.files.now_ms())
        self._active_index = OffsetEntries()
        self._active_times = TimeEntries()
        # At once: a segment in the list must not be removed as half created.
        self.segments, self._creating = (*self.segments, segment), None

    def _roll(self, active: SegmentWriter) -> SegmentWriter:
        """Begin a new segment after the active one.

        1. sync the log of the active one; 2. finish and sync its indexes; 3. create the
        new segment; 4. record the durable point.
        """
        self._sync_fd(active)
        base = active.next_offset
        active.show()
        try:
            active.seal()
        except OSError as error:
            # Indexes can be rebuilt from the log, which is synced.
            active.segment.time_digest = STALE_DIGEST
            logger.warning("cannot finish the indexes of %s: %s", active.path, error)
        self._create_segment(base)
        # The old writer stays until the new one exists: without any, no undo works.
        opened = self._open_active()
        self._retire_active()
        self._active = opened
        self._synced = base
        if not self._is_barred:
            self._write_point(self._active.state.copy())
        if self.config.segment_digests:
            self.host.call_later(self.digests_due, 0)
        return self._active

    def _retire_active(self) -> None:
        if self._active is not None:
            self._active.release()
            self._active = None

    def roll(self) -> None:
        """Begin a new segment, unless the active one is empty."""
        with self.sync_lock, self.lock:
            self._check()
            active = self._writable()
            if active.state.size:
                self._roll_or_undo(active)

    def _roll_or_undo(
        self, active: SegmentWriter, base: int | None = None
    ) -> SegmentWriter:
        """Begin a new segment after one that is not empty, or change nothing.

        Args:
            base: its base offset if there is to be a gap before it; the previous
                segment may be empty then.
        """
        saved = Savepoint(self.segments, active)
        try:
            if base is not None:
                active.state.raw.last_offset = base - 1
            return self._roll(active)
        except BaseException as error:
            self._savepoint, self._is_blocked, self._is_torn = saved, True, True
            self._undo()
            if isinstance(error, SyncFailedError):
                raise self._fail(error) from error.__cause__
            raise

    # ------------------------------------------------------------ sync

    def _schedule_flush(self) -> None:
        """Ensure that the next records will be synced in time. Call it before they are
        written: nothing may fail afterwards."""
        if self.config.flush_ms < _NEVER_MS:
            self.host.call_later(self.flush_due, self.config.flush_ms)
            self._flush_scheduled = True

    def flush_due(self) -> None:
        """Called by the store's thread when flush_ms is over."""
        if self.closed or self.failed or self.damage:
            return
        with self.lock.attempt() as is_mine:
            # With the lock: later appends schedule a sync of their own.
            if is_mine:
                self._flush_scheduled, self._flush_tries = False, 0
                end = self.end_offset
        if not is_mine and self._flush_tries < _FLUSH_TRIES:
            # Another thread appends: other partitions do not wait for it.
            self._flush_tries += 1
            self.host.call_later(self.flush_due, _FLUSH_RETRY_MS)
            return
        if not is_mine:
            with self.lock:
                self._flush_scheduled, self._flush_tries = False, 0
                end = self.end_offset
        try:
            self.sync(end)
        except LogStoreError:
            # The next append or close raises the error.
            self._is_unheard = self.failed is not None
            if not (self.failed or self.damage or self.closed):
                self._schedule_flush()  # it is not possible now, but may be later
        except BaseException:
            self._schedule_flush()  # no memory now, perhaps
            raise

    def sync(self, upto: int) -> None:
        """Return when everything below `upto` is on stable storage, or the log was
        cut below it meanwhile.

        Concurrent callers share one sync: one caller syncs all that was appended by
        then, and the others wait until it ends. If it did not cover some of them, one
        of these syncs next.

        Raises:
            SyncFailedError: the sync failed; which records are durable is unknown.
            LogStoreError: the partition was found damaged, and has records that are
                not durable.
            ReentrantCallError: this thread is in the middle of an append or a sync.
        """
        if self._synced >= upto:
            return
        if self.lock.top >= RANK_SYNC:
            raise ReentrantCallError(
                f"a sync of {self.name} came in from inside another call of this "
                f"thread, and would wait for that"
            )
        while self._synced < upto:
            if self._is_syncing and self._wait_for_turn():
                continue
            with self.sync_lock:
                try:
                    self._is_syncing = True
                    if not self._sync_now(upto):
                        return
                finally:
                    self._is_syncing = False
                    self._turn.set()

    def _wait_for_turn(self) -> bool:
        """Wait until the sync of another thread is over; False if that takes long: an
        interrupt may have ended it before it could signal its end."""
        waiter = self._turn.register()
        if not self._is_syncing:
            waiter.cancel()
            return True
        return waiter.wait(_TURN_S)

    def _sync_now(self, upto: int) -> bool:
        """Sync what was appended by now; False if the log was cut below `upto`. The
        caller holds `sync_lock`, but not `lock`: other threads append meanwhile."""
        with self.lock:
            if self._synced >= upto:
                return True
            if self._is_blocked and self.suspended is None:
                self._check()
            active = self._active or self._writable()
            mark, file = active.mark(), active.file
            if self.end_offset < upto:
                return False
            if mark.next_offset < upto:
                raise self._half_done()  # there is nothing more to sync
        try:
            self._sync_fd(active, file.fd)
        except SyncFailedError as error:
            raise self._fail(error) from error.__cause__
        with self.lock:
            self._synced = max(self._synced, mark.next_offset)
            if self._active is active:
                self._after_sync(active, mark)
        if self._appended.has_waiters:
            self._appended.set()
        return True

    def _sync_held(self) -> None:
        """Sync everything. The caller holds both locks."""
        active = self._active
        if active is None:
            if self._synced < self.end_offset:
                active = self._writable()
            else:
                return
        if self._synced >= active.next_offset:
            return
        mark = active.mark()
        try:
            self._sync_fd(active)
        except SyncFailedError as error:
            raise self._fail(error) from error.__cause__
        self._synced = max(self._synced, mark.next_offset)
        if not self._is_barred:
            self._after_sync(active, mark)
        if self._appended.has_waiters:
            self._appended.set()

    def _sync_fd(self, active: SegmentWriter, fd: int | None = None) -> None:
        try:
            pid = self.host.lock_taken_by()
        except OSError as error:
            # There may be two writers: nothing is synced.
            raise self._sync_failed(active, error) from error
        if pid is not None:
            raise SyncFailedError(
                f"another program (process {pid or 'unknown'}) has taken the lock of "
                f"the store, which something in this process dropped by closing the "
                f"lock file; {self.name} may have two writers, and takes no more "
                f"appends here. End that program, keep a copy, and verify the store.",
                path=active.path,
                action="sync",
            )
        begun = self.files.monotonic()
        try:
            self.files.sync(active.fd if fd is None else fd)
        except OSError as error:
            raise self._sync_failed(active, error) from error
        took = self.files.monotonic() - begun
        self.flushes += 1
        self.flush_seconds += took
        self.flush_seconds_max = max(self.flush_seconds_max, took)

    def _sync_failed(self, active: SegmentWriter, error: OSError) -> SyncFailedError:
        return SyncFailedError(
            f"a sync of {active.path} failed: {error.strerror or error}. Records "
            f"of {self.name} from offset {self._synced} to "
            f"{active.state.last_offset} may be lost in a power cut; nothing more "
            f"is appended. Open the store again.",
            errno=error.errno,
            path=active.path,
            action="sync",
        )

    def _after_sync(self, active: SegmentWriter, mark: Mark) -> None:
        state = self._synced_state = mark.state
        try:
            active.write_indexes(mark.index_count, mark.time_count)
        except OSError as error:
            logger.warning("cannot write the indexes of %s: %s", active.path, error)
        now = self.files.monotonic()
        config = self.host.store_config
        if (
            state.size - self._point_pos >= _CHECKPOINT_BYTES
            or (now - self._point_time) * 1000 >= config.flush_checkpoint_ms
        ):
            self._write_point(state)
        elif not self._point_scheduled:
            # Other processes learn the durable offset from the state file, which must
            # not be too old.
            self.host.call_later(self.point_due, config.flush_checkpoint_ms)
            self._point_scheduled = True

    def point_due(self) -> None:
        """Called by the store's thread: record the durable point if it is out of
        date."""
        with self.sync_lock, self.lock:
            self._point_scheduled = False
            active = self._active
            if self._is_blocked or active is None:
                return
            synced = self._synced_state
            if synced is not None and synced.raw.base_offset == (
                active.state.raw.base_offset
            ):
                self._write_point(synced)

    def free_bytes(self) -> int:
        """Bytes free on the file system, including those that wait to be freed."""
        try:
            return self.directory.free_bytes() + self.host.waiting_bytes()
        except OSError as error:
            raise storage_error(error, "look at", self.directory.path) from error

    def _state_at(self, state: native.SegmentState) -> PartitionState:
        """The content of the state file, except the rows of sealed segments; `state` is
        that of the active segment."""
        times = self._active_times if self._active is None else self._active.times
        return PartitionState(
            self.start_offset,
            [],
            state_fields(state),
            times.digest(state.raw.time_entries),
            self.cuts,
            self._is_gapless,
            self.host.generation,
            log_id=self.log_id,
        )

    def _write_state(
        self, state: native.SegmentState, *, is_truncating: bool = False
    ) -> None:
        """Write the state file.

        Raises:
            OSError: as the system gives it; the file is unchanged, or its content is
                unknown.
        """
        point = self._state_at(state)
        point.is_truncating = is_truncating
        self._sync_indexes(state)
        text = point.to_json(self._sealed_rows())
        checkpoints.write_prepared(self.directory, layout.PARTITION_STATE, text)
        self._is_written_down = True
        self._point_pos = state.size
        self._point_time = self.files.monotonic()

    def _sealed_rows(self) -> str:
        """The rows of the sealed segments, as text. A roll adds one row to the existing
        ones, so that its cost does not depend on their number."""
        segments = self.segments
        first, last, count, text = self._rows
        if not (
            0 < count < len(segments)
            and (segments[0]._serial, segments[count - 1]._serial) == (first, last)
            and segments[count - 1].row
        ):
            count, text = 0, ""
        rows = [
            segment.row or _sealed_row(segment, after.base_offset)
            for segment, after in itertools.pairwise(segments[count:])
        ]
        if rows:
            text = ",".join([text, *rows] if text else rows)
            ends = segments[0]._serial, segments[-2]._serial
            self._rows = (*ends, len(segments) - 1, text)
        return text

    def _write_point(self, state: native.SegmentState) -> None:
        """Record the durable point. If this fails, the old one stays true."""
        try:
            self._write_state(state)
        except OSError as error:
            logger.warning(
                "cannot write down the durable point of %s: %s", self.name, error
            )

    def _commit(
        self, state: native.SegmentState, *, is_truncating: bool = False
    ) -> bool:
        """Record a changed list of segments, or raise.

        A full disk must not stop a call that frees space: in that case the state file
        is removed. Without it the next opening loads the partition as Kafka would. This
        costs only time, if the log starts at the base of its first segment.

        Returns False if the state file was removed.

        Raises:
            StorageError: the state file is unchanged, or its content is unknown.
        """
        directory = self.directory
        try:
            self._write_state(state, is_truncating=is_truncating)
        except OSError as error:
            failed = storage_error(error, "write the state of", directory.path)
            at_boundary = self.start_offset == self.segments[0].base_offset
            if not isinstance(failed, DiskFullError) or not at_boundary:
                raise failed from error
            try:
                for name in (layout.PARTITION_STATE + ".tmp", layout.PARTITION_STATE):
                    directory.unlink(name, missing_ok=True)
                directory.sync()
            except OSError:
                raise failed from error
            self._is_written_down = True
            self._point_pos = state.size
            self._point_time = self.files.monotonic()
            return False
        return True

    def _sync_indexes(self, state: native.SegmentState) -> None:
        """Make the index entries durable that a state is about to count: opening loads
        them without checking each."""
        active = self._active
        if active is not None and active.segment.base_offset == state.raw.base_offset:
            entries = state.raw.index_entries, state.raw.time_entries
            if any(entries):
                active.write_indexes(*entries, sync=True)

    # ------------------------------------------------------------ followers

    def wake_readers(self) -> None:
        """Wake the waiting readers, so that they check again."""
        self._appended.set()

    @property
    def appended(self) -> Signal:
        """Set whenever there may be more to read, or the log was closed."""
        return self._appended

    def wait_for_more(self, is_there: Callable[[], bool], seconds: float) -> None:
        """Sleep until there may be more to read, for at most `seconds`. Return at once
        if `is_there()` is true or the log is closed."""
        waiter = self._appended.register()
        if self.closed is not None or is_there():
            waiter.cancel()
        else:
            waiter.wait(seconds)


def _descend(depth: int) -> None:
    """Raise RecursionError if the stack has no room for `depth` calls."""
    if depth:
        _descend(depth - 1)


def _sealed_row(segment: Segment, next_offset: int) -> str:
    """The row of a sealed segment in a state file (`PartitionState.sealed`). The
    segment keeps it."""
    largest = segment.max_timestamp
    if largest is None:
        largest = UNKNOWN_TIMESTAMP
    segment.row = (
        f"[{segment.base_offset},{segment.size},{next_offset},{largest},"
        f"{segment.max_timestamp_offset},{segment.time_digest}]"
    )
    return segment.row
