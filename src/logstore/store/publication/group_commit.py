"""Puts the records of requests into all of their logs, or undoes it.

`Publisher` makes one for each group, and holds the locks of the logs meanwhile. The
entry that commits them is written in publication_journal.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import (
    LogStoreError,
    StorageError,
    SyncFailedError,
    error_text,
    is_system_error,
    storage_error,
)
from logstore.io.checkpoint.append_file import SyncedFiles
from logstore.io.checkpoint.ledger import Changes
from logstore.io.checkpoint.log_spans import Spans
from logstore.io.checkpoint.publication_journal import PublicationJournal
from logstore.io.directory import Directory
from logstore.log.write.import_segment import SegmentImport
from logstore.log.write.log_bounds import VisibilityBarrier
from logstore.log.write.staged_files import StagedLog, moved_content, moved_runs
from logstore.store.publication.publication_group import RequestGroup, TargetPartition

__all__ = ["GroupCommit"]

# Upper bound of the space that a new segment takes besides its log.
_SEGMENT_BYTES: Final = 64 * 1024
# For messages.
_WHAT: Final = "publish to"


class GroupCommit:
    """Commits one group, or undoes its appends.

    Args:
        targets: the partitions of the group, in the order of their locks.
        lock: of publications; the caller holds it.
        end_interrupted: calls the method of this name, for a log that finds the barrier
            closed.

    Attributes:
        barrier: closed until the group is committed or undone.

    Invariant: while the barrier is closed, readers see no record of the group. When it
    opens, each log has all of its records or none; a log that could not be restored
    hides them. An interrupt may leave it closed: the next call that looks at one of the
    logs, appends to it, or publishes, opens it, unless the group is there in part.
    """

    def __init__(
        self,
        root: Directory,
        journal: PublicationJournal,
        targets: Sequence[TargetPartition],
        lock: native.Mutex,
        end_interrupted: Callable[[], None],
    ) -> None:
        self._root = root
        self._journal = journal
        self._targets = targets
        self._lock = lock
        self.barrier = VisibilityBarrier(
            is_open=False, publisher=lock, end_interrupted=end_interrupted
        )
        # All logs have the barrier, and the journal has their ends.
        self._has_begun = False
        # The logs that the commit syncs.
        self._synced = SyncedFiles(())
        self._is_stuck = False

    def publish(
        self, group: RequestGroup, imports: Mapping[StagedLog, SegmentImport]
    ) -> SyncFailedError | None:
        """Publish, with the locks of the partitions held: no other thread appends.

        A second interrupt, in the middle of undoing, leaves the barrier closed: then
        each of the partitions refuses appends, and opening the store again undoes the
        publication.

        Args:
            imports: the staged logs that become segments.

        Returns:
            The error if all was published, and its commit may not be durable.

        Raises:
            LogStoreError: nothing was published.
        """
        self._check_room(imports)
        is_settled = False
        try:
            self._put_in(group, imports)
            # The commit counts. No call comes between, which could be interrupted.
            self.barrier.is_open = is_settled = True
        except BaseException as error:
            in_doubt = self._failed(error)
            is_settled = True
            if in_doubt is not None:
                return in_doubt
            if is_system_error(error):
                path, note = self._root.path, "Nothing was published."
                raise storage_error(error, _WHAT, path, note) from error
            raise
        finally:
            if is_settled:
                self._show()
                # They hold descriptors, and a closed store still has its last commit.
                self._synced = SyncedFiles(())
        return None

    def _check_room(self, imports: Mapping[StagedLog, SegmentImport]) -> None:
        """Before the first byte: raise `DiskFullError` unless the disk has room for
        everything."""
        targets = self._targets
        sizes = [
            sum([log.bytes for log in target.parts if log not in imports])
            for target in targets
        ]
        if imports or not all(
            t.log.has_room(size) for t, size in zip(targets, sizes, strict=True)
        ):
            targets[0].log.check_room(sum(sizes) + len(targets) * _SEGMENT_BYTES)

    def has_stuck(self) -> bool:
        """Whether the group was neither committed nor undone."""
        if self.barrier.is_open or self._is_stuck:
            return self._is_stuck
        is_half = self._is_there() and not self._has_committed()
        # Another thread may have opened it meanwhile, and appended.
        return is_half and not self.barrier.is_open

    def end_interrupted(self) -> None:
        """Open the barrier if an interrupt has left it closed, unless the group is
        there in part. The caller holds the lock of publications, or of one of the logs.

        Raises:
            CorruptCheckpointError, OSError: the journal cannot be read, or made
                durable, and the barrier stays closed.
        """
        if not (self.barrier.is_open or self.has_stuck()):
            self._journal.confirm()
            self.barrier.is_open = True

    def _is_there(self) -> bool:
        """Whether the logs have any records of the group. Deleted logs do not count:
        they have no segments, and the journal has forgotten their ends."""
        return self._has_begun and any(
            target.writer.segments and target.writer.end_offset > target.base
            for target in self._targets
        )

    def _has_committed(self) -> bool:
        return self._journal.has_committed({t.key: t.base for t in self._targets})

    def _put_in(
        self, group: RequestGroup, imports: Mapping[StagedLog, SegmentImport]
    ) -> None:
        """Append, make durable, commit.

        1. record where the logs end, durably, unless that is recorded; 2. append to
        each log; then in one call: 3. record the new ends of the logs, and the entries
        to remember; 4. sync the logs and the journal at the same time; 5. seal the
        entry: the commit for readers.
        """
        journal, targets = self._journal, self._targets
        for target in targets:
            # Before the journal has its end.
            release = functools.partial(journal.release, target.key)
            target.log.raise_barrier(self.barrier, release)
        journal.begin({target.key: target.base for target in targets})
        self._has_begun = True
        # All locks are held: no record with a later time is appended before these.
        now_ms = self._root.files.now_ms()
        for target in targets:
            self._append(target, imports, group.contents, now_ms)
        if imports:
            # The files that became segments must not have their old names again.
            self._root.sync()
        spans = {t.key: t.log.span_from(t.base, t.place, t.written) for t in targets}
        group.check_wanted()
        self._commit(spans, group.committed_changes())

    def _commit(self, spans: Spans, changes: Changes) -> None:
        """Make the journal's entry, and with it the logs, durable.

        Raises:
            SyncFailedError: the sync of a log has failed.
            OSError: the sync of the journal has failed, and no sync of a log has.
        """
        files, targets = self._root.files, self._targets
        begun = [(target.log, target.log.begin_sync()) for target in targets]
        syncs = [(log, sync) for log, sync in begun if sync is not None]
        logs = self._synced = SyncedFiles([sync.writer.fd for _, sync in syncs])
        since = files.monotonic()
        try:
            self._journal.publish(spans, changes, logs, self._sync_logs)
        finally:
            # Also after an interrupt: the syncs were made.
            seconds, failures = files.monotonic() - since, list[SyncFailedError]()
            for (log, sync), error in zip(syncs, logs.errors, strict=True):
                if error != errno.ECANCELED:
                    failures += log.end_sync(sync, error, seconds)
            if failures:
                raise failures[0]

    def _sync_logs(self) -> None:
        for target in self._targets:
            target.log.sync()

    def _failed(self, error: BaseException) -> SyncFailedError | None:
        """Undo the group if it was not committed, else return the error.

        If something cannot be made durable now, the writers end: records appended later
        would be removed together with it.
        """
        try:
            if not (self._is_there() and self._has_committed()):
                self._undo()
                return None
            is_failure = isinstance(error, LogStoreError) or is_system_error(error)
            if self._synced.is_all_synced and not is_failure:
                return None  # an interrupt after the commit: nothing is in doubt
            self._show()
            self._end_writers(error)
            for target in self._targets:
                # The next opening may cut records synced after it.
                target.log.doubt_from(target.base)
            what = "it was published to {}, but a power cut may undo it"
        except (LogStoreError, OSError) as failure:
            self._is_stuck = True
            self._end_writers(failure)
            if not self._journal.is_in_doubt():
                return None
            what = "whether it was published to {} is not known"
        path = self._root.path
        in_doubt = SyncFailedError(
            f"{what.format(path)}: {error_text(error)}. Open the store again and "
            f"repeat it.",
            errno=getattr(error, "errno", None),
            path=path,
            action=_WHAT,
        )
        in_doubt.__cause__ = error
        return in_doubt

    def _end_writers(self, error: BaseException) -> None:
        for target in self._targets:
            target.writer.fail(error)

    def _show(self) -> None:
        """Let readers see all records again, except in logs that could not be
        restored."""
        if not self.barrier.is_open:
            for target in self._targets:
                if target.writer.health.failed is not None:
                    target.writer.hide_from(target.base, self._lock)
            self.barrier.is_open = True
        for target in self._targets:
            target.writer.wake_readers()

    def _undo(self) -> None:
        """Remove the records again: the logs end where the journal says. A log in which
        this fails takes no more appends, and is restored when the store is opened
        again."""
        for target in self._targets:
            writer, failed = target.writer, target.writer.health.failed
            if failed is None and writer.end_offset == target.base:
                continue
            try:
                if failed is not None:
                    raise failed
                reason = "a publication failed, and its records are removed"
                target.log.truncate_to(target.base, target.place, reason)
            except (LogStoreError, OSError) as error:
                name = writer.context.name
                logger.error("cannot undo a publication to %s: %s", name, error)
                writer.fail(error)
                self._is_stuck = True

    # ------------------------------------------------------------ appends

    def _append(
        self,
        target: TargetPartition,
        imports: Mapping[StagedLog, SegmentImport],
        contents: Mapping[str, bytes],
        now_ms: int,
    ) -> None:
        """All that was staged for one partition, in order."""
        if not imports:
            self._copy(target, target.parts, contents, now_ms)
            return
        config = target.writer.context.config

        def is_import(log: StagedLog) -> bool:
            # If it was examined with other settings, it differs from the batches that
            # an append makes now.
            return log in imports and imports[log].config == config

        for imports_segment, logs in itertools.groupby(target.parts, is_import):
            if imports_segment:
                for log in logs:
                    self._import(target, imports[log].stamped(now_ms), now_ms)
            else:
                self._copy(target, list(logs), contents, now_ms)

    def _import(
        self, target: TargetPartition, staged: SegmentImport, now_ms: int
    ) -> None:
        base = target.writer.end_offset
        try:
            target.log.import_segment(self._root, staged)
        except StorageError as error:
            if error.errno != errno.EXDEV or target.writer.health.failed:
                raise
            # Another mount of the same device, or a separate quota, is between them.
            # The batches already have their offsets.
            self._copy(target, [staged.log._replace(first=base)], {}, now_ms)

    def _copy(
        self,
        target: TargetPartition,
        logs: Sequence[StagedLog],
        contents: Mapping[str, bytes],
        now_ms: int,
    ) -> None:
        """Staged logs as one append: in one piece if all are small."""
        log, config = target.log, target.writer.context.config
        base = target.writer.end_offset
        count = sum([staged_log.records for staged_log in logs])
        if all(staged_log.file in contents for staged_log in logs):
            moved = self._moved(target, logs, contents, now_ms)
            log.append_placed(moved, count)
            target.written = moved if logs is target.parts else None
            return

        def runs() -> Generator[tuple[Any, int]]:
            root, begin = self._root, base
            for staged_log in logs:
                epoch = log.leader_epoch(base) if staged_log.magic == 2 else 0
                content = contents.get(staged_log.file)
                if content is None:
                    yield from moved_runs(
                        root, staged_log, begin, epoch, config, now_ms
                    )
                else:
                    piece = moved_content(
                        root, staged_log, content, begin, epoch, config, now_ms
                    )
                    yield native.pointer(piece), len(piece)
                begin += staged_log.records

        total = sum([staged_log.bytes for staged_log in logs])
        # Closed here: a caller that keeps the error of a failed append keeps its
        # frames.
        with contextlib.closing(runs()) as moved_one_by_one:
            log.append_runs(moved_one_by_one, total, count)

    def _moved(
        self,
        target: TargetPartition,
        logs: Sequence[StagedLog],
        contents: Mapping[str, bytes],
        now_ms: int,
    ) -> bytearray:
        """The batches of staged logs, whose contents are all in memory, in one piece,
        with the next offsets of their partition."""
        log, config = target.log, target.writer.context.config
        begin = base = target.writer.end_offset
        moved = bytearray()
        for staged_log in logs:
            epoch = log.leader_epoch(base) if staged_log.magic == 2 else 0
            content = contents[staged_log.file]
            piece = moved_content(
                self._root, staged_log, content, begin, epoch, config, now_ms
            )
            begin += staged_log.records
            if moved:
                moved += piece
            else:
                moved = piece
        return moved
