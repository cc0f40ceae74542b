"""A log of which the caller holds both locks: for publications, which change several
logs at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import xxhash

from logstore import _native as native
from logstore.errors import (
    StorageError,
    SyncFailedError,
    is_system_error,
    storage_error,
    storage_errors,
)
from logstore.io.checkpoint.log_spans import LogSpan, digest_of
from logstore.io.directory import Directory
from logstore.io.files import PRIVATE, held_open
from logstore.io.layout import LOG
from logstore.log.write.appender import Appender
from logstore.log.write.import_segment import SegmentImport, settle
from logstore.log.write.log_bounds import VisibilityBarrier
from logstore.log.write.log_writer import LogWriter, Savepoint
from logstore.log.write.segment_writer import Mark, SegmentWriter
from logstore.log.write.truncation import truncate

__all__ = ["ExclusiveLog"]


class BegunSync(NamedTuple):
    """A sync of the active segment.

    Attributes:
        writer: of the segment; the caller syncs its file.
        mark: what is durable when the sync has ended.
    """

    writer: SegmentWriter
    mark: Mark


class ExclusiveLog:
    """Operations on a log by a thread that holds both of its locks."""

    __slots__ = ("_appender", "_log")

    def __init__(self, log: LogWriter, appender: Appender) -> None:
        self._log = log
        self._appender = appender

    def position(self) -> tuple[int, int]:
        """(index of the last segment, its size), for `truncate_to`.

        Raises:
            LogStoreError: the reason why nothing can be appended.
        """
        self._log.check()
        writer = self._log.writable()
        return len(self._log.bounds.segments) - 1, writer.state.size

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes fit into the active segment, and the disk certainly has
        room for them."""
        writer = self._log.writable()
        end = writer.state.size + size
        is_one = end <= self._log.context.config.segment_bytes
        return is_one and writer.has_reserved(size)

    def check_room(self, size: int) -> None:
        """Raise `DiskFullError` if the disk does not have `size` bytes to spare."""
        writer = self._log.writable()
        if not writer.has_room(size):
            raise writer.disk_full(size)

    def raise_barrier(
        self, barrier: VisibilityBarrier, release: Callable[[], None]
    ) -> None:
        """Hide all later appends from readers until the barrier is open; `release` is
        called before others append (`Health.release`)."""
        self._log.health.release = release
        self._log.limit_visibility(barrier, self._log.bounds.end)

    def leader_epoch(self, base: int) -> int:
        """The epoch to stamp on batches of magic 2, which begin at `base`."""
        return self._appender.leader_epoch(base)

    def append_runs(
        self, runs: Iterable[tuple[Any, int]], size: int, count: int
    ) -> None:
        """Append whole batches that have their offsets, all of them or none.

        `size` and `count`: the number of bytes and offsets they take.
        """
        self._log.check()
        self._appender.check_expected(None, count)
        now_ms = self._log.context.files.now_ms()
        self._appender.write_runs(runs, size, now_ms, is_in_parts=True)

    def append_placed(self, data: bytearray, count: int) -> None:
        """The same for one run in memory; in one step of C, if that is possible."""
        log, appender, size = self._log, self._appender, len(data)
        log.check()
        appender.check_expected(None, count)
        writer, encoder = log.active.writer, appender.encoder
        if (
            writer is not None
            and encoder.magic == 2
            and log.epochs.known >= 0
            and appender.prepare_step(writer, size)
            and log.active.prepared.append_encoded(data, count, True) is not None
        ):
            return
        runs, now_ms = [(native.pointer(data), size)], log.context.files.now_ms()
        appender.write_runs(runs, size, now_ms, is_in_parts=True)

    def sync(self) -> None:
        """Sync everything."""
        self._log.sync_all()

    def begin_sync(self) -> BegunSync | None:
        """Begin a sync by a caller that syncs several files at the same time. Returns
        what it must sync; None if everything is durable.

        Raises:
            SyncFailedError: there may be two writers.
        """
        log = self._log
        writer, durable = log.active.writer, log.bounds.durable
        if writer is None and durable < log.bounds.end:
            writer = log.writable()
        if writer is None or durable >= writer.next_offset:
            return None
        try:
            log.active.check_sole(writer, durable)
        except SyncFailedError as error:
            raise log.health.fail(error) from error.__cause__
        return BegunSync(writer, writer.mark())

    def end_sync(
        self, begun: BegunSync, code: int, seconds: float
    ) -> Sequence[SyncFailedError]:
        """Take in the result of a sync: its errno (0: no error) and its duration.
        Returns the error for the caller, if there is one."""
        log, (writer, mark) = self._log, begun
        if not code:
            log.active.sync_times.add(seconds)
            log.after_sync(writer, mark)
            return ()
        error = OSError(code, os.strerror(code))
        failed = log.active.sync_refused(writer, log.bounds.durable, error)
        failed.__cause__ = error
        log.health.fail(failed)
        return (failed,)

    def span_from(
        self, base: int, place: tuple[int, int], written: bytearray | None
    ) -> LogSpan:
        """The records appended since the log ended at an offset and a `position`.

        Args:
            written: all of its bytes, if the caller has them.

        Raises:
            StorageError: it cannot be read.
        """
        log, (number, pos) = self._log, place
        writer, segments = log.writable(), log.bounds.segments
        if number != len(segments) - 1:
            pos = 0
        size = writer.state.size - pos
        digest: int | None
        if written is not None and len(written) == size:
            digest = xxhash.xxh3_64_intdigest(written)
        else:
            with storage_errors("read", writer.path):
                digest = digest_of(log.context.files, writer.fd, pos, size)
        if digest is None:
            raise StorageError(
                f"{writer.path} is shorter than its appended data: another "
                "program has truncated it",
                path=writer.path,
                action="read",
            )
        end = log.bounds.end
        return LogSpan(base, end, segments[-1].base_offset, pos, size, digest)

    def doubt_from(self, offset: int) -> None:
        """Stop counting the records from an offset on as durable: although synced, they
        may be lost."""
        self._log.set_durable(min(offset, self._log.bounds.durable))

    def truncate_to(
        self, offset: int, boundary: tuple[int, int] | None, reason: str
    ) -> int:
        """Drop all records from `offset` on; see `truncate`."""
        # An interrupted append is undone before the cut: after it, the segments that
        # the undo changes are gone.
        self._log.repair()
        return truncate(self._log, offset, boundary, reason)

    def import_segment(self, root: Directory, staged: SegmentImport) -> None:
        """Append the records of a staged file: the file becomes a segment.

        1. begin a segment, unless the active one is empty; 2. give the batches their
        offsets, and sync the file: recovery treats bytes that it cannot read as a torn
        tail, and keeps a copy; 3. rename the file to the empty segment's log (no reader
        has that log open, because it is empty); 4. sync the directory.

        Raises:
            StorageError: nothing was appended.
            SyncFailedError: whether the records were appended is unknown.
        """
        log, health, appender = self._log, self._log.health, self._appender
        log.check()
        appender.check_expected(None, staged.log.records)
        writer = appender.begin()
        base = log.bounds.end
        epoch = appender.leader_epoch(base)
        if writer.state.size:
            writer = log.roll_or_undo(writer)
        saved = Savepoint(log.bounds, writer, is_exchanged=True)
        directory, name = log.context.directory, staged.log.file
        what = "Nothing was published."
        with storage_errors("publish", root.path_of(name), what):
            file = held_open(root.files, root.open(name, write=True))
            settle(root, file.fd, staged, base, epoch)
            if directory.access != PRIVATE:
                root.files.set_access(file.fd, directory.access)
        try:
            self._exchange(root, staged, file)
        except BaseException as error:
            if log.bounds.end != base:
                raise  # the records are in
            # This comes first and makes no call that could be interrupted.
            log.pending, health.is_blocked, health.is_torn = saved, True, True
            log.roll_back(error)
            if is_system_error(error):
                path = log.bounds.segments[-1].path
                raise storage_error(error, "rename a staged file to", path) from error
            raise

    def _exchange(
        self, root: Directory, staged: SegmentImport, file: native.OpenFile
    ) -> None:
        """Put an open staged file in the place of the active segment's empty log."""
        log, active, directory = (
            self._log,
            self._log.active,
            self._log.context.directory,
        )
        segment = log.bounds.segments[-1]
        active.retire()
        active.state = staged.state_at(segment.base_offset, root.files.now_ms())
        active.index, active.times = staged.index, staged.times
        writer = active.writer = active.on_file(segment, file, log.rest)
        root.move(staged.log.file, directory, segment.file.name(LOG))
        directory.sync()
        log.show(writer)
