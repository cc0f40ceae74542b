"""The active segment of a log: created, opened for writing, synced, released."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable

from logstore import _native as native
from logstore.errors import StorageError, SyncFailedError, storage_error
from logstore.index import OffsetEntries, TimeEntries
from logstore.io import layout
from logstore.io.files import held_open
from logstore.io.layout import LOG, SEGMENT_SUFFIXES, segment_file
from logstore.log.write.context import LogContext
from logstore.log.write.health import Health
from logstore.log.write.segment_writer import SegmentWriter
from logstore.record.encoder import BATCH_BYTES_TARGET, Encoder
from logstore.segment import Segment

__all__ = ["ActiveSegment"]


class ActiveSegment:
    """The file that appends go to. The log's lock guards it.

    Invariant: `state`, `index` and `times` describe the last segment of the log while
    no writer is open. An open writer's attributes, which began as these, do otherwise.

    Attributes:
        writer: open for appends; None before the first append, and while its file is
            closed.
        state, index, times: the values with which the next `open` begins.
        prepared: the next small appends; empty without a writer.
        creating: base offset of the segment that is being created, for a rollback.
        stray: the same, after its creation has failed, until its file is removed.
        sync_times: of the syncs of the log so far.

    Args:
        facts: of `prepared`; set here alone.
        before_cut: as in `SegmentWriter`; a method.
    """

    __slots__ = (
        "_before_cut",
        "_context",
        "_described",
        "_facts",
        "_health",
        "creating",
        "index",
        "prepared",
        "state",
        "stray",
        "sync_times",
        "times",
        "writer",
    )

    def __init__(
        self,
        context: LogContext,
        health: Health,
        prepared: native.PreparedAppend,
        facts: native.StepFacts,
        state: native.SegmentState,
        index: OffsetEntries,
        times: TimeEntries,
        before_cut: Callable[[native.SegmentState], None],
    ) -> None:
        self._before_cut = before_cut
        self._context = context
        self._health = health
        self.prepared = prepared
        # The facts that C has, and the writer that they describe.
        self._facts = facts
        self._described: SegmentWriter | None = None
        self.writer: SegmentWriter | None = None
        self.state = state
        # Kafka counts from 0 at every opening of a log. Reopening the file of a resting
        # log is not such an opening: its entries must not depend on how many other logs
        # are open.
        state.raw.bytes_since = 0
        self.index = index
        self.times = times
        self.creating: int | None = None
        self.stray: int | None = None
        self.sync_times = native.Durations()

    def time_digest(self, count: int) -> int:
        """The digest of the first `count` entries of its time index."""
        times = self.times if self.writer is None else self.writer.times
        return times.digest(count)

    # ------------------------------------------------------------ create

    def create(self, base_offset: int) -> Segment:
        """Begin a segment: 1. create its log; 2. sync the directory. Then the caller
        replaces the list of segments, and ends `creating`.

        Raises:
            StorageError: nothing was written; `stray` if its file may exist.
        """
        context = self._context
        directory, files = context.directory, context.files
        name = segment_file(base_offset, LOG)
        self.creating = base_offset
        try:
            try:
                fd = directory.create(name)
            except FileExistsError:
                fd = directory.open(name, write=True)
                if files.size(fd):
                    files.close(fd)
                    raise
            files.close(fd)
            for suffix in (layout.INDEX, layout.TIME_INDEX):
                directory.unlink(segment_file(base_offset, suffix), missing_ok=True)
            directory.sync()
        except OSError as error:
            self._health.is_blocked, self.stray = True, base_offset
            with contextlib.suppress(StorageError):
                self.remove_stray()
            raise storage_error(
                error, "create", directory.path_of(name), "Nothing was written."
            ) from error
        segment = Segment(
            directory,
            context.services.descriptors,
            base_offset,
            0,
            base_offset,
            max_timestamp=-1,
            is_contiguous=context.is_contiguous,
        )
        self.state = native.SegmentState(base_offset, files.now_ms())
        self.index = OffsetEntries()
        self.times = TimeEntries()
        return segment

    def remove_files(self, base_offset: int) -> None:
        """Remove the files of a segment that no reader has seen."""
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(base_offset, suffix)
            self._context.directory.unlink(name, missing_ok=True)

    def remove_stray(self) -> None:
        """Remove, durably, the files that a failed creation of a segment may have left.

        Nothing may be appended before: an opening would take the file for the active
        segment, and the records after its base in the previous segment for damage.

        Raises:
            StorageError: the files may still exist.
        """
        if self.stray is None:
            return
        directory = self._context.directory
        try:
            self.remove_files(self.stray)
            directory.sync()
        except OSError as error:
            path = directory.path_of(segment_file(self.stray, LOG))
            raise storage_error(error, "remove", path, "Nothing was written.") from (
                error
            )
        self.stray = None

    # ------------------------------------------------------------ open

    def open(self, segment: Segment, rest: Callable[[], bool]) -> SegmentWriter:
        """A writer for the last segment; the caller makes it the `writer`.

        Args:
            rest: asks the log to release the file; a method.
        """
        context = self._context
        context.services.descriptors.make_room()
        try:
            fd = context.directory.open(segment.file.name(LOG), write=True)
        except OSError as error:
            raise storage_error(error, "open", segment.path) from error
        return self.on_file(segment, held_open(context.files, fd), rest)

    def on_file(
        self, segment: Segment, file: native.OpenFile, rest: Callable[[], bool]
    ) -> SegmentWriter:
        """Open it, like `open`, with a `.log` file that is already open."""
        context = self._context
        most = min(context.config.segment_jitter_ms, context.config.roll_ms)
        writer = SegmentWriter(
            segment,
            file,
            self.state,
            self.index,
            self.times,
            context.config,
            context.services.store_config,
            self._before_cut,
            jitter_ms=random.randrange(most) if most > 0 else 0,
        )
        context.services.descriptors.insert(segment.file.serial, file, rest)
        return writer

    # ------------------------------------------------------------ the next appends

    def prepare(
        self,
        encoder: Encoder,
        leader_epoch: int,
        durable: int,
        quiet_size: int,
        steps_end: int,
    ) -> None:
        """Prepare small appends, like the one that has just ended, and syncs. It does
        not fail: the records of that append are in the log.

        Args:
            durable: all records below it are durable.
            quiet_size: as `DurablePoint.quiet_size`.
            steps_end: as `Syncs.steps_end`.
        """
        try:
            writer, facts = self.writer, self._facts
            assert writer is not None
            if self._described is not writer:
                self._describe(writer, encoder)
            facts.set_end(
                writer.state, leader_epoch, durable, min(writer.reserved, steps_end),
                quiet_size,
            )  # fmt: skip
            self.prepared.prepare(writer, writer.segment, writer.index, writer.times)
        except (MemoryError, RecursionError):
            self.prepared.clear()

    def _describe(self, writer: SegmentWriter, encoder: Encoder) -> None:
        """Pass to C the facts that do not change while this writer is in use: changed
        settings apply from the next writer on."""
        config = writer.config
        self._facts.set_topic(
            magic=encoder.magic,
            attributes=encoder.plain_attributes,
            max_bytes=config.max_message_bytes,
            batch_target=BATCH_BYTES_TARGET,
            flush_messages=config.flush_messages,
            is_append_time=encoder.log_append_time,
            is_plain=encoder.is_plain,
            needs_keys=encoder.needs_keys,
        )
        self._facts.set_segment(writer.fd, writer.planner)
        self._described = writer

    def _forget(self) -> None:
        """Prepare no more steps for the writer."""
        self.prepared.clear()
        self._described = None

    def retire(self) -> None:
        """Stop writing to it; readers keep its file. The next `open` begins with the
        last state of the writer, which an undo, for example, has changed."""
        self._forget()
        writer = self.writer
        if writer is not None:
            self.state, self.index, self.times = (
                writer.state, writer.index, writer.times,
            )  # fmt: skip
            writer.release()
            self.writer = None

    def replace(self, opened: SegmentWriter) -> None:
        """Write to a segment that was created after the one that has the writer."""
        self._forget()
        if self.writer is not None:
            self.writer.release()
        self.writer = opened

    # ------------------------------------------------------------ sync

    def sync(self, writer: SegmentWriter, durable: int, fd: int | None = None) -> None:
        """Sync the log of a segment, unless there may be two writers.

        Args:
            durable: all records below it are durable already; for the error.
            fd: its descriptor, if that may be released meanwhile.

        Raises:
            SyncFailedError: write no more.
        """
        context = self._context
        self.check_sole(writer, durable)
        begun = context.files.monotonic()
        try:
            context.files.sync(writer.fd if fd is None else fd)
        except OSError as error:
            raise self.sync_refused(writer, durable, error) from error
        self.sync_times.add(context.files.monotonic() - begun)

    def check_sole(self, writer: SegmentWriter, durable: int) -> None:
        """Before a sync: raise `SyncFailedError` if there may be two writers."""
        context = self._context
        try:
            pid = context.services.lock_taken_by()
        except OSError as error:
            # There may be two writers: nothing is synced.
            raise self.sync_failed(writer, durable, error) from error
        if pid is not None:
            raise SyncFailedError(
                f"another program (process {pid or 'unknown'}) has taken the lock of "
                f"the store, which something in this process dropped by closing the "
                f"lock file; {context.name} may have two writers, and takes no more "
                f"appends here. End that program, keep a copy, and verify the store.",
                path=writer.path,
                action="sync",
            )

    def sync_refused(
        self, writer: SegmentWriter, durable: int, error: OSError
    ) -> SyncFailedError:
        """Stop appends and syncs, and return the error for a sync that failed, like
        `sync_failed`; for the caller of the sync."""
        # This comes first and makes no call that could be interrupted: a sync that
        # failed is not tried again.
        self._health.is_poisoned = self._health.is_blocked = True
        return self.sync_failed(writer, durable, error)

    def sync_failed(
        self, writer: SegmentWriter, durable: int, error: OSError
    ) -> SyncFailedError:
        """The error for a sync that failed; all records below `durable` are durable."""
        return SyncFailedError(
            f"a sync of {writer.path} failed: {error.strerror or error}. Records "
            f"of {self._context.name} from offset {durable} to "
            f"{writer.state.last_offset} may be lost in a power cut; nothing more "
            f"is appended. Open the store again.",
            errno=error.errno,
            path=writer.path,
            action="sync",
        )
