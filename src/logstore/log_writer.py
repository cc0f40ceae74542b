"""Growing a log: append, roll, sync, and noting down what is durable.

Two locks: `lock` orders appends and every change of the list of segments; `sync_lock`
keeps syncs apart from what must not happen during one. `sync_lock` is taken first.
Callers of `sync` take turns: one syncs for all who wait (group commit).

Invariant: start_offset <= durable_offset <= end_offset.

After a failed sync, or an append that could not be undone, the writer is `failed`: it
raises the first cause at every later call, and readers go on.

It is one thing and long: an append, the roll it may need and the undoing of both share
all of their state.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import random
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

from logstore import _binding as native
from logstore import checkpoints, layout
from logstore._files import Directory
from logstore.config import StoreConfig, TopicConfig
from logstore.descriptors import Descriptors
from logstore.digests import SegmentDigest, hash_log, write_digest
from logstore.encoder import Encoder
from logstore.errors import (
    ConfigError,
    CorruptCheckpointError,
    DiskFullError,
    LogStoreError,
    OffsetConflictError,
    StorageError,
    SyncFailedError,
    storage_error,
)
from logstore.index import STALE_DIGEST, OffsetEntries, TimeEntries
from logstore.layout import LOG, SEGMENT_SUFFIXES, segment_file
from logstore.loading import Loaded
from logstore.recovery import (
    UNKNOWN_TIMESTAMP,
    PartitionState,
    state_fields,
)
from logstore.segment import Segment
from logstore.segment_writer import SegmentWriter
from logstore.tail import scan_log

__all__ = ["Gate", "Host", "LogWriter"]

logger = logging.getLogger("logstore")

# The durable point is written down after this many flushed bytes, whatever the time.
_CHECKPOINT_BYTES: Final = 16 << 20
# What a roll may take beside records: a step of reserved space, indexes, state, names.
_ROLL_BYTES: Final = 256 * 1024
# How long to wait for another thread's sync before looking whether it is still at it.
_TURN_S: Final = 0.05
# A flush_ms beyond this needs no thread: ten years.
_NEVER_MS: Final = 10 * 366 * 24 * 3600 * 1000


class Host(Protocol):
    """What a writer needs of the store it belongs to."""

    store_config: StoreConfig
    descriptors: Descriptors

    @property
    def generation(self) -> str:
        """What state files are written under."""

    def begin_writing(self) -> None:
        """Called before the first change: take away the marks of a clean stop."""

    def unlink_later(
        self, directory: Directory, names: list[str], delay_ms: int
    ) -> None:
        """Remove files after a while."""

    def waiting_bytes(self) -> int:
        """Bytes of the files that wait to be removed."""

    def call_later(self, task: Callable[[], None], delay_ms: int) -> None:
        """Run a task after a while."""

    def start_moved(self, topic: str, partition: int) -> None:
        """The start offset lies inside a segment: Kafka's checkpoint has to say so."""


class Gate:
    """Whether readers see what is being published. All logs of a publication have the
    same one: it opens for all of them at once."""

    __slots__ = ("is_open",)

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open


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
        self.lock = threading.RLock()
        self.sync_lock = threading.RLock()
        self.appended = threading.Condition(threading.Lock())
        self._turn = threading.Condition(threading.Lock())
        # Base offset of the segment that is being created, for `_roll_back`.
        self._creating: int | None = None
        # The same, once that has failed, until its file is gone.
        self._stray: int | None = None
        self._is_syncing = False
        self.waiting_readers = 0
        self.encoder = Encoder(config)
        self.segments: tuple[Segment, ...] = tuple(loaded.segments)
        self.start_offset = loaded.start_offset
        self.end_offset = loaded.end_offset
        # Where readers stop as long as the gate is closed.
        self.ceiling = 0
        self.gate = Gate(is_open=True)
        self.damage: LogStoreError | None = loaded.damage
        self.failed: LogStoreError | None = None
        # A failure that only the background has met.
        self._is_unheard = False
        self.closed: LogStoreError | None = None
        self._is_blocked = loaded.damage is not None
        # False where a full disk kept the end of the log from being written down.
        self.is_noted = True
        self._synced = loaded.durable_offset
        self._active_state = loaded.active_state
        self._active_index = loaded.index
        self._active_times = loaded.times
        self._active: SegmentWriter | None = None
        self._flush_scheduled = False
        self._point_scheduled = False
        self._synced_state: native.SegmentState | None = None
        self._epochs: list[tuple[int, int]] | None = None
        self._is_written_down = loaded.is_written_down
        self._is_unclean = loaded.is_unclean
        self.log_id = loaded.log_id or uuid.uuid4().hex
        self.cuts = loaded.cuts
        if loaded.end_offset:
            # Who knows more of the log than this has it from before a backup was put
            # back, or from a log that was there before.
            self.note_cut(loaded.end_offset)
        self._is_gapless = loaded.is_gapless
        self._is_truncating = loaded.is_truncating
        self._deleted = loaded.deleted
        self._digested = loaded.digested
        if self.segments:
            self.segments[-1].show_indexes(loaded.index, loaded.times)
        self._point_pos = loaded.active_state.size
        self._point_time = self.files.monotonic()

    # ------------------------------------------------------------ what readers see

    @property
    def high_watermark(self) -> int:
        """Where readers stop: the end, unless a publication is under way."""
        if self.gate.is_open:
            return self.end_offset
        return min(self.end_offset, self.ceiling)

    @property
    def durable_offset(self) -> int:
        return max(min(self._synced, self.high_watermark), self.start_offset)

    def note_cut(self, offset: int) -> None:
        """All from an offset on goes, or went: whoever has read it is to notice."""
        self.cuts = self.cuts.after(offset, self.files.now_ms())

    def _check(self) -> None:
        """Raise why nothing may be written, if so."""
        if self.closed is not None:
            # The same error each time, without the frames of those who had it before.
            raise self.closed.with_traceback(None)
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
        self._remove_stray()

    def _half_done(self) -> SyncFailedError:
        """A call was interrupted where it could not be undone: write no more."""
        return self._fail(
            SyncFailedError(
                f"an earlier append to {self.name} was interrupted half-way; what was "
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
        with self.appended:
            self.appended.notify_all()
        return error

    # ------------------------------------------------------------ append

    def append_rows(
        self,
        make_rows: Callable[[int], Sequence[native.Rows]],
        *,
        expected_offset: int | None,
        durable: bool,
    ) -> tuple[int, int, int]:
        """Append rows, made once the time of the append is known; all or none.

        Returns (first offset, one past the last, time of the append in ms).
        """
        with self.lock:
            self._check()
            now_ms = self.files.now_ms()
            base = self.end_offset
            self._check_expected(expected_offset, 0)
            groups = [rows for rows in make_rows(now_ms) if rows.count]
            if groups:
                self._check_expected(None, sum(rows.count for rows in groups))
                self._append(groups, base, now_ms)
            end = self.end_offset
            lagging = end - self._synced >= self.config.flush_messages
        if durable or lagging:
            self.sync(end)
        return base, end, now_ms

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
        with self.lock:
            if self._is_blocked:
                self._check()
            now_ms = self.files.now_ms()
            base = self.end_offset
            if expected_offset is not None or base == native.OFFSET_MAX:
                self._check_expected(expected_offset, 1)
            encoder = self.encoder
            if timestamp_ms is None or encoder.log_append_time:
                timestamp_ms = now_ms
            active = self._active or self._writable()
            if active.segment.next_offset != base:
                raise self._half_done()
            try:
                done = active.append_message(value, key, timestamp_ms, now_ms, encoder)
                if done:
                    self._published(active)
            except SyncFailedError as error:
                raise self._fail(error) from error.__cause__
            except BaseException:
                self._tell_of_cut(active)
                raise
            finally:
                # Also where a signal handler raised behind the commit: then it is in.
                if active.segment.next_offset != self.end_offset:
                    self._published(active)
            if not done:
                self._append(
                    [encoder.rows_of_one(value, key, timestamp_ms)], base, now_ms
                )
            end = self.end_offset
            lagging = end - self._synced >= self.config.flush_messages
        if durable or lagging:
            self.sync(end)
        return base, timestamp_ms if encoder.magic else -1

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
        with self.lock:
            self._check()
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
            self.sync(end)
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

        Space for them is reserved first, so that a full disk shows before a reader
        in another process could see a part. For the same reason what fits into one
        segment goes into one, as in Kafka: a roll is over before the first byte.
        """
        active = self._writable()
        if active.segment.next_offset != self.end_offset:
            raise self._half_done()
        if self._room(active) < total <= self.config.segment_bytes:
            active = self._roll_or_undo(active)
        before, synced = self.segments, self._synced
        mark = active.mark()
        try:
            active.reserve(min(total, self._room(active)))
            if total > self._room(active):
                rolls = total // self.config.segment_bytes + 1
                if not active.has_room(total + rolls * _ROLL_BYTES):
                    raise active.disk_full(total)
            for data, size in runs:
                done = 0
                while done < size:
                    taken, stop = active.append(data + done, size - done, now_ms)
                    done += taken
                    if done < size:
                        if not taken and not active.state.size:
                            raise AssertionError(f"an empty segment is full ({stop})")
                        active = self._roll(active)
            self._published(active)
        except BaseException as error:
            if self.end_offset != mark[0].last_offset + 1:
                raise  # it is all in, and published
            self._roll_back(before, mark)
            # Whoever keeps the error keeps this frame: not the files with it, which a
            # deletion may let go.
            before = ()
            self._synced = min(self._synced, max(synced, self._active_base()))
            if isinstance(error, SyncFailedError):
                raise self._fail(error) from error.__cause__
            raise

    def _published(self, active: SegmentWriter) -> None:
        """Let readers see what was appended, and see to it that it will be synced."""
        self.end_offset = active.segment.next_offset
        if not self._flush_scheduled:
            self._schedule_flush()
        if self.waiting_readers:
            with self.appended:
                self.appended.notify_all()

    def _active_base(self) -> int:
        """First offset of the active segment: all before it is synced."""
        return self.segments[-1].base_offset if self.segments else self.end_offset

    def _room(self, active: SegmentWriter) -> int:
        return max(self.config.segment_bytes - active.state.size, 0)

    def _roll_back(
        self,
        before: tuple[Segment, ...],
        mark: tuple[native.SegmentState, int, int],
    ) -> None:
        """Undo a call that failed half-way: what it wrote, and segments it began."""
        active = self._active
        if active is None:
            return
        if self._creating is not None:
            # At once: an append that is not blocked does not look for a stray file.
            self._is_blocked, self._stray, self._creating = True, self._creating, None
            with contextlib.suppress(StorageError):
                self._remove_stray()
        if self.segments is before:
            try:
                if (active.state.size, active.times.count) != (mark[0].size, mark[2]):
                    active.back_to(mark)
                self._tell_of_cut(active)
            except SyncFailedError as error:
                self._fail(error)
            return
        new = self.segments[len(before) :]
        try:
            self._retire_active()
            self.segments = before
            self._drop_digests(before[-1:])
            self._active_state = mark[0].copy()
            self._active_state.raw.time_entries = mark[2]
            self.note_cut(self.end_offset)
            # The state file names the new segments: first it has to let go of them.
            self._commit(self._active_state, is_truncating=True)
            for segment in reversed(new):
                self._remove_files(segment.base_offset)
            self.directory.sync()
            self._active_index = OffsetEntries(before[-1].offset_entries().data())
            self._active_times = TimeEntries(before[-1].time_entries().data())
            self._active = self._open_active(write_all=True)
            self._active.back_to(mark)
            self._synced = min(self._synced, self.end_offset)
            self._commit(self._active.state)
        except (OSError, LogStoreError) as error:
            self._fail(
                SyncFailedError(
                    f"an append to {self.name} failed and cannot be undone: {error}. "
                    f"Open the store again to recover.",
                    path=self.directory.path,
                    action="undo",
                )
            )

    def _tell_of_cut(self, active: SegmentWriter) -> None:
        """Note that a failed append was cut again: who follows the log in another
        process may have counted its records. Where that fails the next state tells."""
        if active.is_cut:
            active.is_cut = False
            self.note_cut(self.end_offset)
            self._write_point(active.state)

    def digests_due(self, *, closing: bool = False) -> None:
        """Called by the store's thread: write the digests of sealed segments that have
        none. What is damaged gets none."""
        for segment in self.segments[:-1]:
            base, generation = segment.base_offset, segment.generation
            if base in self._digested or (self._is_blocked and not closing):
                continue
            try:
                digest = self._digest_of(segment)
                with self.lock:
                    sealed = segment in self.segments[:-1]
                    if sealed and segment.generation == generation:
                        self._digested.add(base)
                        if digest is not None:
                            write_digest(self.directory, digest)
            except OSError as error:
                logger.warning("cannot write the digest of %s: %s", segment.path, error)

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
        self._is_blocked = bool(self.closed or self.failed or self.damage)

    # ------------------------------------------------------------ segments

    def _writable(self) -> SegmentWriter:
        """The active segment, opened for writing at the first append."""
        if self._active is None:
            self.host.begin_writing()
            if not self.segments:
                self._create_segment(self.end_offset)
                self._write_point(self._active_state)
            else:
                self._tell_opening()
            if self._is_truncating:
                # As long as the state says so, the next opening cuts what is appended.
                self._commit(self._active_state)
                self._is_truncating = False
            self._active = self._open_active()
            deleted, self._deleted = self._deleted, []
            if deleted:
                delay_ms = self.config.file_delete_delay_ms
                self.host.unlink_later(self.directory, deleted, delay_ms)
            if self.config.segment_digests and self.segments[:-1]:
                self.host.call_later(self.digests_due, 0)
        return self._active

    def _tell_opening(self) -> None:
        """Write down the cut that opening the log for writing is, before the first byte
        that follows: readers elsewhere that saw what is appended beside the old serial
        would take it for cut off later on."""
        try:
            state = PartitionState.read(self.directory)
            if state is None or state.generation != self.host.generation:
                return  # there is none that readers go by
            told = dataclasses.replace(state, cuts=self.cuts, log_id=self.log_id)
            checkpoints.write_state(
                self.directory, layout.PARTITION_STATE, told.to_dict()
            )
        except (OSError, CorruptCheckpointError) as error:
            logger.warning(
                "cannot write down the durable point of %s: %s", self.name, error
            )

    def _open_active(self, *, write_all: bool = False) -> SegmentWriter:
        segment = self.segments[-1]
        try:
            fd = self.directory.open(segment.file(LOG), write=True)
        except OSError as error:
            raise storage_error(error, "open", segment.path) from error
        if not write_all:
            # Kafka's counter begins anew at every opening.
            self._active_state.raw.bytes_since = 0
        return self._writer_on(segment, fd)

    def _writer_on(self, segment: Segment, fd: int) -> SegmentWriter:
        """The writing side of the active segment, with its log open."""
        return SegmentWriter(
            segment,
            fd,
            self._active_state,
            self._active_index,
            self._active_times,
            self.config,
            self.host.store_config,
            jitter_ms=self._jitter(),
        )

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
        base = active.state.last_offset + 1
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

    def _roll_or_undo(self, active: SegmentWriter) -> SegmentWriter:
        """Begin a new segment behind one that is not empty, or change nothing."""
        before, mark = self.segments, active.mark()
        try:
            return self._roll(active)
        except BaseException as error:
            self._roll_back(before, mark)
            if isinstance(error, SyncFailedError):
                raise self._fail(error) from error.__cause__
            raise

    # ------------------------------------------------------------ sync

    def _schedule_flush(self) -> None:
        if self.config.flush_ms < _NEVER_MS:
            self._flush_scheduled = True
            self.host.call_later(self.flush_due, self.config.flush_ms)

    def flush_due(self) -> None:
        """Called by the store's thread when flush_ms is over."""
        self._flush_scheduled = False
        if self._is_blocked and self._stray is None:
            return
        try:
            self.sync(self.end_offset)
        except LogStoreError:
            # Whoever appends or closes next gets the error.
            self._is_unheard = self.failed is not None

    def sync(self, upto: int) -> None:
        """Return when everything below `upto` is on stable storage.

        Concurrent callers share one sync: one syncs for all that was appended by then,
        the others wait for the end of it, and one of those whom it did not cover is
        the next.

        Raises:
            SyncFailedError: it is not, and nobody can tell what is.
        """
        is_mine = False
        try:
            with self._turn:
                while self._is_syncing and self._synced < upto and self.failed is None:
                    if not self._turn.wait(_TURN_S) and self._is_nobody_syncing():
                        break
                if self._synced >= upto:
                    return
                if self.failed is not None:
                    self._check()
                is_mine = self._is_syncing = True
            self._sync_now(upto)
        finally:
            if is_mine:
                with self._turn:
                    self._is_syncing = False
                    self._turn.notify_all()

    def _is_nobody_syncing(self) -> bool:
        """Whether the one whose turn it is was interrupted before it could say so."""
        if not self.sync_lock.acquire(blocking=False):
            return False
        self.sync_lock.release()
        return True

    def _sync_now(self, upto: int) -> None:
        with self.sync_lock:
            if self._synced >= upto:
                return
            with self.lock:
                if self.failed is not None:
                    self._check()
                active = self._active
                if active is None:
                    return
                state, index_count, time_count = active.mark()
                borrowed = active.segment.borrow()
            try:
                self._sync_fd(active, borrowed.fd)
            except SyncFailedError as error:
                raise self._fail(error) from error.__cause__
            finally:
                self.host.descriptors.give_back(borrowed)
            with self.lock:
                self._synced = max(self._synced, state.last_offset + 1)
                if self._active is active:
                    self._after_sync(active, state, index_count, time_count)
            if self.waiting_readers:
                self.wake_readers()

    def _sync_fd(self, active: SegmentWriter, fd: int | None = None) -> None:
        try:
            self.files.sync(active.fd if fd is None else fd)
        except OSError as error:
            raise SyncFailedError(
                f"a sync of {active.path} failed: {error.strerror or error}. Records "
                f"of {self.name} from offset {self._synced} to "
                f"{active.state.last_offset} may be lost in a power cut; nothing more "
                f"is appended. Open the store again.",
                errno=error.errno,
                path=active.path,
                action="sync",
            ) from error

    def _after_sync(
        self,
        active: SegmentWriter,
        state: native.SegmentState,
        index_count: int,
        time_count: int,
    ) -> None:
        self._synced_state = state
        try:
            active.write_indexes(index_count, time_count)
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
            self._point_scheduled = True
            self.host.call_later(self.point_due, config.flush_checkpoint_ms)

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
        """The state file's content with `state` as that of the active segment."""
        sealed = []
        for segment, after in itertools.pairwise(self.segments):
            largest = segment.max_timestamp
            sealed.append(
                (
                    segment.base_offset,
                    segment.size,
                    after.base_offset,
                    UNKNOWN_TIMESTAMP if largest is None else largest,
                    segment.max_timestamp_offset,
                    segment.time_digest,
                )
            )
        times = self._active_times if self._active is None else self._active.times
        return PartitionState(
            self.start_offset,
            sealed,
            state_fields(state),
            times.digest(state.raw.time_entries),
            self.cuts,
            self._is_gapless,
            self.host.generation,
            log_id=self.log_id,
        )

    def _write_point(self, state: native.SegmentState) -> None:
        """Write down the durable point. The old one stays true if that fails."""
        point = self._state_at(state)
        try:
            self._sync_indexes(state)
            checkpoints.write_state(
                self.directory, layout.PARTITION_STATE, point.to_dict()
            )
        except OSError as error:
            logger.warning(
                "cannot write down the durable point of %s: %s", self.name, error
            )
            return
        self._is_written_down = True
        self._point_pos = state.size
        self._point_time = self.files.monotonic()

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
        written = True
        point = dataclasses.replace(self._state_at(state), is_truncating=is_truncating)
        directory = self.directory
        try:
            self._sync_indexes(state)
            checkpoints.write_state(directory, layout.PARTITION_STATE, point.to_dict())
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
            written = False
        self._is_written_down = True
        self._point_pos = state.size
        self._point_time = self.files.monotonic()
        return written

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
        with self.appended:
            self.appended.notify_all()

    def wait_for_more(self, is_there: Callable[[], bool], seconds: float) -> None:
        """Sleep until what a follower waits for `is_there`, for so many seconds at the
        most; not at all once the log is closed."""
        with self.appended:
            if self.closed is not None or is_there():
                return
            self.waiting_readers += 1
            try:
                self.appended.wait(seconds)
            finally:
                self.waiting_readers -= 1
