"""Growing a log: append, roll, sync, and noting down what is durable.

Two locks: `lock` orders appends and every change of the list of segments; `sync_lock`
keeps syncs apart from what must not happen during one. `sync_lock` is taken first
(`logstore._native.locks` has the order of all). Callers of `sync` take turns: one syncs
for all who wait (group commit). Methods that end in ``_held`` need both.

Invariant: start_offset <= durable_offset <= end_offset.

After a failed sync, or an append that could not be undone, the writer is `failed`: it
raises the first cause at every later call, and readers go on. A call that an interrupt
ended in the middle of being undone leaves a `Savepoint`; the next call finishes that.

It is one thing and long: an append, the roll it may need and the undoing of both share
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
from logstore.log.recover import Loaded
from logstore.log.scan import scan_log
from logstore.log.write.segment_appender import Mark, SegmentWriter
from logstore.record.encoder import Encoder, check_headers
from logstore.segment import Segment

__all__ = ["Gate", "Host", "LogWriter", "Savepoint"]

# The durable point is written down after this many flushed bytes, whatever the time.
_CHECKPOINT_BYTES: Final = 16 << 20
# What a roll may take beside records: a step of reserved space, indexes, state, names.
_ROLL_BYTES: Final = 256 * 1024
# A sync that is due while another thread appends is tried again so often, so soon.
_FLUSH_TRIES: Final = 20
_FLUSH_RETRY_MS: Final = 5
# How long to wait for another thread's sync before looking whether it is still at it.
_TURN_S: Final = 0.05
# No sync calls deeper than this, up to where its records are durable.
_SYNC_DEPTH: Final = 30
# A flush_ms beyond this needs no thread: ten years.
_NEVER_MS: Final = 10 * 366 * 24 * 3600 * 1000


class Host(Protocol):
    """What a writer needs of the store it belongs to."""

    store_config: StoreConfig
    descriptors: Descriptors
    lock_group: int

    @property
    def generation(self) -> str:
        """What state files are written under."""

    def begin_writing(self) -> None:
        """Called before the first change: take away the marks of a clean stop, and
        have a thread for `call_later`."""

    def unlink_later(
        self,
        directory: Directory,
        names: list[str],
        delay_ms: int,
        users: Iterable[object],
    ) -> None:
        """Remove files after a while, when their users are gone."""

    def waiting_bytes(self) -> int:
        """Bytes of the files that wait to be removed."""

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        """Run a task, which is a method, after a while, if its object is there then."""

    def lock_taken_by(self) -> int | None:
        """The pid of another program that has the lock of the store now (0: unknown);
        None: this one has it."""

    def start_moved(self, topic: str, partition: int) -> None:
        """The start offset lies inside a segment: Kafka's checkpoint has to say so."""


class Gate:
    """Whether readers see what is being published. All logs of a publication have the
    same one: it opens for all of them at once.

    Attributes:
        publisher: held by the thread that publishes. A gate that is closed while
            nobody does belongs to a publication that was cut short.
    """

    __slots__ = ("is_open", "publisher")

    def __init__(self, *, is_open: bool, publisher: native.Mutex | None = None) -> None:
        self.is_open = is_open
        self.publisher = publisher

    @property
    def is_stuck(self) -> bool:
        """Whether it will never open, as seen by who holds the lock of the log."""
        if self.is_open:
            return False
        return self.publisher is None or not self.publisher.is_mine


class Savepoint:
    """How a log was before a call that changed it half-way.

    Attributes:
        segments: the list of segments.
        mark: of the active segment.
        index, times: its entries, which may be more than `mark` counts.
        is_exchanged: a staged file takes the place of that segment, which is empty.
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
        loaded: Loaded,
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
        # What the next call has to undo first, and whether nobody could.
        self._savepoint: Savepoint | None = None
        self._is_half_done = False
        # A call was interrupted: who reads lets it be finished first.
        self._is_torn = False
        # Closing has come to its end.
        self._is_finished = False
        # Base offset of the segment that is being created, for `_roll_back`.
        self._creating: int | None = None
        # The same, once that has failed, until its file is gone.
        self._stray: int | None = None
        self._is_syncing = False
        # A state file says that what is behind its durable point goes: readers in other
        # processes do not look there.
        self._is_barred = False
        self.encoder = Encoder(config)
        self.segments: tuple[Segment, ...] = tuple(loaded.segments)
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        # Where readers stop while the log is cut to there.
        self.cutting_to = native.OFFSET_MAX
        # Where readers stop as long as the gate is closed.
        self.ceiling = 0
        self.gate = Gate(is_open=True)
        self.damage: LogStoreError | None = loaded.damage
        self.failed: LogStoreError | None = None
        # A failure that only the background has met.
        self._is_unheard = False
        self.closed: LogStoreError | None = None
        # Why nothing is to be appended for a while.
        self.suspended: LogStoreError | None = None
        self._is_blocked = loaded.damage is not None
        # False where a full disk kept the end of the log from being written down.
        self.is_noted = True
        # Syncs of the log so far, and how long they took; `sync_lock` guards them.
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
        # Of the last state file: serials of the first and the last sealed segment (no
        # reference keeps what was deleted), how many there are, their rows.
        self._rows: tuple[int, int, int, str] = (0, 0, 0, "")
        if self.segments:
            self.segments[-1].show_indexes(loaded.index, loaded.times)
        self._point_pos = loaded.active_state.size
        self._point_time = self.files.monotonic()

    # ------------------------------------------------------------ what readers see

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is under way, or all from
        an offset on is about to go."""
        end = min(self.end_offset, self.cutting_to)
        return end if self.gate.is_open else min(end, self.ceiling)

    @property
    def durable_offset(self) -> int:
        return max(min(self._synced, self.high_watermark), self.start_offset)

    def note_cut(self, offset: int) -> None:
        """All from an offset on goes, or went: whoever has read it is to notice."""
        self.cuts = self.cuts.after(offset, self.files.now_ms())

    def _check(self) -> None:
        """Raise why nothing may be written, if so; finish what an interrupted call
        left half done."""
        if self.closed is not None:
            # The same error each time, without the frames of those who had it before.
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
        """`_check`, if there may be a reason. It comes before the offsets of an append
        are known: what is mended may change the end of the log."""
        active = self._active
        if self._is_blocked or (
            active is not None and active.next_offset != self.end_offset
        ):
            self._is_blocked = True
            self._check()

    def _mend(self) -> None:
        """Finish what an interrupted call left half done.

        Raises:
            StorageError: that is not possible now.
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
                # The call was interrupted when its records were in.
                self._show(active)
        self._is_blocked = self._has_reason
        self._is_torn = False

    @property
    def _has_reason(self) -> bool:
        """Whether there is a reason to append nothing, or there may be: a gate that is
        closed may belong to a publication that is cut short."""
        return not self.gate.is_open or bool(
            self.closed or self.failed or self.damage or self.suspended
        )

    def suspend(self, reason: LogStoreError) -> None:
        """Take no appends, which get `reason`, until `resume`."""
        with self.sync_lock, self.lock:
            self.suspended = reason
            self._is_blocked = True

    def resume(self) -> None:
        """Take appends again; the next one looks whether there is another reason."""
        self.suspended = None

    def settle(self) -> None:
        """For a thread that reads: finish what an interrupted call left half done, so
        that all look at the same log."""
        if not self._is_torn or self.failed or self.damage or self.closed:
            return
        with contextlib.suppress(ReentrantCallError, StorageError), self.lock:
            self._mend()

    def _half_done(self) -> SyncFailedError:
        """A call was interrupted where it could not be undone: write no more."""
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
        """Append rows, all or none. No code of the caller runs in here: lists were
        packed before.

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
        """Raise now what `append_rows` would raise, as far as that can be known: for
        calls that append to several logs, one after the other. It may be called with no
        lock held; what it does not foresee is that the disk fails or is full."""
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
        """Append one uncompressed message of magic 0 or 1: the short way.

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
                    # First of all, and without a call that could be interrupted. Where
                    # it came behind the commit, the record is in, and is shown.
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
        """Raise where the sync behind an append could be refused, since this thread is
        in the middle of another call, or where it would have too deep a stack: behind
        the append that would be too late."""
        if not durable:
            return
        if not self.sync_lock.may_wait:
            raise ReentrantCallError(
                f"a durable append to {self.name} came in from inside another call of "
                f"this thread, and could wait for that; nothing was written"
            )
        _descend(_SYNC_DEPTH)

    def _sync_appended(self, end: int, durable: bool) -> None:
        """The sync behind an append. Its records are in: from inside another call, and
        where there is no memory or stack for it, it is left to the thread that syncs in
        time."""
        if not durable and not self.sync_lock.may_wait:
            return
        try:
            self.sync(end)
        except (MemoryError, RecursionError):
            if durable and self._synced < end:
                raise

    def _after_failure(self, active: SegmentWriter, error: BaseException) -> None:
        """A write failed. It was undone, or `_mend` undoes it."""
        if isinstance(error, SyncFailedError):
            self._fail(error)
        if active.dirty is None:
            self._tell_of_cut(active)
            with contextlib.suppress(StorageError):
                self._mend()

    def _clean(self, active: SegmentWriter) -> None:
        """Undo a write, once more."""
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
        """Append whole batches; `make_runs(base offset, leader epoch)` gives them with
        their offsets, and how many offsets they take."""
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
        """The time of an append where it replaces what producers say, else None."""
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
        """What the checkpoint says; nothing where it says what cannot be: it is under
        no checksum, and logstore alone writes epoch 0 only."""
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
        """The epoch of the last batches of magic 2; 0 where there are none."""
        if not self.segments or not self.segments[-1].size:
            return 0
        headers = self.segments[-1].headers(checks=0)
        return max(0, max(header.leader_epoch for header, _, _ in headers))

    def _write_runs(
        self, runs: Iterable[tuple[Any, int]], total: int, now_ms: int
    ) -> None:
        """Write runs of whole batches; all of them or none.

        Readers in other processes see none of it before the end. What fits into one
        segment goes into one, as in Kafka: a roll is over before the first byte. There
        the frame of the first batch is written last: zeros in its place end the log for
        who looks. What goes over several segments is behind a bar (`_bar`). Space is
        reserved first, so that a full disk shows before the first byte.
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
        # What a publication has put in, nobody looks at before its commit anyway.
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
                raise  # it is all in, and shown
            # First of all, and without a call that could be interrupted.
            self._savepoint, self._is_blocked, self._is_torn = saved, True, True
            self._undo()
            # A caller that keeps the error keeps this frame: not the files with it.
            del saved
            if isinstance(error, SyncFailedError):
                raise self._fail(error) from error.__cause__
            raise

    def _misplaced(self, active: SegmentWriter) -> CorruptionError:
        """A batch that does not go into an empty segment."""
        return CorruptionError(
            f"a batch for {self.name} has offsets that are not the next, "
            f"{active.next_offset}: nothing was appended",
            path=active.path,
        )

    def _bar(self, active: SegmentWriter, mark: Mark) -> None:
        """Let nobody look behind a mark, which is the end: also the next opening, after
        a crash, takes away what comes there. All before it is made durable first."""
        self._sync_fd(active)
        self._synced = max(self._synced, mark.next_offset)
        self._is_barred = True
        self._write_bar(active, mark.state, is_truncating=True)

    def _unbar(self, active: SegmentWriter) -> None:
        """The commit of an append that is behind a bar."""
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
        """Let readers see what was appended. Nothing here may fail: it is in."""
        active.show()
        self.end_offset = active.next_offset
        if self._appended.has_waiters:
            self._appended.set()

    def _room(self, active: SegmentWriter) -> int:
        return max(self.config.segment_bytes - active.state.size, 0)

    def _undo(self) -> None:
        """Undo a call that failed half-way: what it wrote, and segments it began.

        It may be interrupted, and is done again from its beginning then.
        """
        saved = self._savepoint
        if saved is None:
            return
        if self._creating is not None:
            # At once: an append that is not blocked does not look for a stray file.
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
        # Another thread may have synced meanwhile: what was before the call stays so.
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
            # As they are in memory: an earlier try may have left the files shorter.
            self._active_index, self._active_times = saved.index, saved.times
            self.note_cut(self.end_offset)
            # The state file names the new segments: first it has to let go of them.
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
        """The active segment is empty again, whichever file has its name now."""
        self._retire_active()
        self._active_state = saved.mark.state.copy()
        self._active_index, self._active_times = OffsetEntries(), TimeEntries()
        self._active = self._open_active()
        self._active.back_to(Mark(self._active_state, 0, 0))
        # What is appended next has to be in the file that has the name for good.
        self.directory.sync()
        # Who follows the log in another process may have counted the records.
        self.note_cut(self.end_offset)
        self._commit(self._active.state)

    def _tell_of_cut(self, active: SegmentWriter) -> None:
        """Note that a failed append was cut again: who follows the log in another
        process may have counted its records. Where that fails the next state tells."""
        if active.is_cut:
            active.is_cut = False
            self.note_cut(self.end_offset)
            self._write_point(active.state)

    def digests_due(self) -> None:
        """Called by the store's thread: write the digests of sealed segments that have
        none. What is damaged gets none."""
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
        """The same at the close."""
        for segment in self.segments[:-1]:
            if segment.base_offset not in self._digested:
                self._keep_digest(segment, self._digest_of(segment))

    def _keep_digest(self, segment: Segment, digest: SegmentDigest | None) -> None:
        if segment in self.segments[:-1]:
            self._digested.add(segment.base_offset)
            if digest is not None:
                write_digest(self.directory, digest)

    def _digest_of(self, segment: Segment) -> SegmentDigest | None:
        """The digest of a sealed segment whose batches are sound."""
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
        """Forget what segments were that go, or that are appended to again."""
        for segment in segments:
            base = segment.base_offset
            self._digested.discard(base)
            self.directory.unlink(layout.digest_file(base), missing_ok=True)

    def _remove_files(self, base_offset: int) -> None:
        """Remove the files of a segment that no reader was told of."""
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(base_offset, suffix)
            self.directory.unlink(name, missing_ok=True)

    def _remove_stray(self) -> None:
        """Remove what the failed beginning of a segment may have left, durably.

        Nothing may be appended before: an opening would take the file for the active
        segment, and what lies behind its base in the one before for damage.

        Raises:
            StorageError: it may be there still.
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
        """The active segment, opened for writing at the first append."""
        if self._active is None:
            self.host.begin_writing()
            if not self.segments:
                self._create_segment(self.end_offset)
                self._write_point(self._active_state)
            if self._is_truncating:
                # As long as the state says so, the next opening cuts what is appended.
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
            # Kafka's counter begins anew at every opening.
            self._active_state.raw.bytes_since = 0
        return self._writer_on(segment, file)

    def _writer_on(self, segment: Segment, file: native.OpenFile) -> SegmentWriter:
        """The writing side of the active segment, with its log open."""
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
        """Let go of the descriptor of the log, with everything synced, until the next
        append; whether that was done. It never waits: another thread may be at work
        here, or this one."""
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
        """Sync, and let go of the active segment's file."""
        active = self._active
        if active is None:
            return
        self._sync_held()
        active.give_back_space()
        self._active_state = active.state
        # Closing has to note the end though nobody may write from here on.
        self._is_written_down = False
        self._retire_active()
        self.segments[-1].show_indexes(self._active_index, self._active_times)

    def _jitter(self) -> int:
        most = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return random.randrange(most) if most > 0 else 0

    def _create_segment(self, base_offset: int) -> None:
        """Begin a segment: 1. create its log; 2. sync the directory; 3. new list."""
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
        # At once: what is in the list is no longer to be removed as half made.
        self.segments, self._creating = (*self.segments, segment), None

    def _roll(self, active: SegmentWriter) -> SegmentWriter:
        """Begin a new segment behind the active one.

        1. sync its log; 2. finish and sync its indexes; 3. create the new segment;
        4. write down the durable point.
        """
        self._sync_fd(active)
        base = active.next_offset
        active.show()
        try:
            active.seal()
        except OSError as error:
            # Indexes can be built again; what counts is that the log is synced.
            active.segment.time_digest = STALE_DIGEST
            logger.warning("cannot finish the indexes of %s: %s", active.path, error)
        self._create_segment(base)
        # The old one stays until there is another: without any, nothing can be undone.
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
        """Begin a new segment behind one that is not empty, or change nothing.

        Args:
            base: its base offset, where a gap is to be in front of it; the one before
                may be empty then.
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
        """See to it that what comes next will be synced in time. Before it is written:
        behind that, nothing may fail."""
        if self.config.flush_ms < _NEVER_MS:
            self.host.call_later(self.flush_due, self.config.flush_ms)
            self._flush_scheduled = True

    def flush_due(self) -> None:
        """Called by the store's thread when flush_ms is over."""
        if self.closed or self.failed or self.damage:
            return
        with self.lock.attempt() as is_mine:
            # With the lock: what comes behind this plans a sync of its own.
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
            # Whoever appends or closes next gets the error.
            self._is_unheard = self.failed is not None
            if not (self.failed or self.damage or self.closed):
                self._schedule_flush()  # it is not possible now, and may be later
        except BaseException:
            self._schedule_flush()  # no memory now, perhaps
            raise

    def sync(self, upto: int) -> None:
        """Return when everything below `upto` is on stable storage, or the log was
        cut below it meanwhile.

        Concurrent callers share one sync: one syncs for all that was appended by then,
        the others wait for the end of it, and one of those whom it did not cover is
        the next.

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
        """Wait until the sync of another thread is over; False where that takes long:
        it may have been interrupted before it could say so."""
        waiter = self._turn.register()
        if not self._is_syncing:
            waiter.cancel()
            return True
        return waiter.wait(_TURN_S)

    def _sync_now(self, upto: int) -> bool:
        """Sync what was appended by now; False where the log was cut below `upto`. The
        caller has `sync_lock`, and not `lock`: others append meanwhile."""
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
                raise self._half_done()  # there is no more that could be synced
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
        """Sync everything, for who holds both locks."""
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
            # Others learn the durable offset from the state file: not too late.
            self.host.call_later(self.point_due, config.flush_checkpoint_ms)
            self._point_scheduled = True

    def point_due(self) -> None:
        """Called by the store's thread: write down a durable point that lags behind."""
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
        """Bytes free on the file system, with those that wait to be freed."""
        try:
            return self.directory.free_bytes() + self.host.waiting_bytes()
        except OSError as error:
            raise storage_error(error, "look at", self.directory.path) from error

    def _state_at(self, state: native.SegmentState) -> PartitionState:
        """The state file's content with `state` as that of the active segment, but for
        the rows of sealed segments."""
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
            OSError: as the system gives it; it is as it was, or nobody knows.
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
        """The rows of the sealed segments, as text. A roll adds one to those that were
        there, so that it costs the same however many there are."""
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
        """Write down the durable point. The old one stays true if that fails."""
        try:
            self._write_state(state)
        except OSError as error:
            logger.warning(
                "cannot write down the durable point of %s: %s", self.name, error
            )

    def _commit(
        self, state: native.SegmentState, *, is_truncating: bool = False
    ) -> bool:
        """Write down a changed list of segments, or raise.

        A full disk must not stop what frees space: then the state file is removed.
        Without it the next opening takes the partition as Kafka would, which costs
        time and nothing else, as long as the log starts where its first segment does.

        Returns False where it was removed.

        Raises:
            StorageError: the state file is as it was, or nobody knows.
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
        """Make the index entries durable that a state is about to count: opening takes
        them up without looking at each."""
        active = self._active
        if active is not None and active.segment.base_offset == state.raw.base_offset:
            entries = state.raw.index_entries, state.raw.time_entries
            if any(entries):
                active.write_indexes(*entries, sync=True)

    # ------------------------------------------------------------ followers

    def wake_readers(self) -> None:
        """Let those that wait look again."""
        self._appended.set()

    @property
    def appended(self) -> Signal:
        """Set whenever there may be more to read, or the log was closed."""
        return self._appended

    def wait_for_more(self, is_there: Callable[[], bool], seconds: float) -> None:
        """Sleep until what a follower waits for `is_there`, for so many seconds at the
        most; not at all once the log is closed."""
        waiter = self._appended.register()
        if self.closed is not None or is_there():
            waiter.cancel()
        else:
            waiter.wait(seconds)


def _descend(depth: int) -> None:
    """Raise RecursionError where there is no room for so many calls."""
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
