"""The durable point of a log: its state file, for the next opening and for others."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger
from logstore.errors import DiskFullError, is_disk_full, storage_error
from logstore.index import UNKNOWN_DIGEST
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.partition_state import (
    UNKNOWN_TIMESTAMP,
    PartitionState,
    state_fields,
)
from logstore.log.recover import RecoveredLog
from logstore.log.write.active_segment import ActiveSegment
from logstore.log.write.context import LogContext
from logstore.log.write.health import Health
from logstore.log.write.log_bounds import LogBounds
from logstore.log.write.segment_writer import Mark, SegmentWriter
from logstore.segment import Segment

__all__ = ["DurablePointWriter"]

# The durable point is recorded after this many flushed bytes, whatever the time.
_CHECKPOINT_BYTES: Final = 16 << 20
# In the place of the base offset of a segment: none.
_NO_BASE: Final = -1


class DurablePointWriter:
    """Writes the state file of a log. The log's lock guards it.

    Invariant: all records up to the state that it writes are durable.

    Attributes:
        is_barred: the state file says that all bytes after its durable point will be
            removed: readers in other processes do not look there.
        must_record: before the first append, and before the end of the log counts as
            recorded, the state file must be written: it says that a truncation is under
            way, so that an opening would cut the appended records; or the file does not
            exist, so that an opening would attribute our records to another program; or
            the cut of a failed append is not in it.
        is_recorded: the state file records all this already.
        synced: the state of the active segment at the last sync, or at opening if all
            of it was durable then; else that of no segment. It is one object, which C
            writes to (`SharedSync`).
        is_scheduled: `LogWriter.point_due` will be called.
        compactions, swapping: as in `PartitionState`.
    """

    __slots__ = (
        "_active",
        "_context",
        "_file",
        "_health",
        "_in_file",
        "_is_unclean",
        "_last",
        "_rows",
        "compactions",
        "is_barred",
        "is_recorded",
        "is_scheduled",
        "must_record",
        "swapping",
        "synced",
    )

    def __init__(
        self,
        context: LogContext,
        health: Health,
        active: ActiveSegment,
        loaded: RecoveredLog,
    ) -> None:
        self._context = context
        self._health = health
        self._active = active
        self.is_barred = False
        is_of_others = bool(loaded.segments) and not loaded.is_recorded
        self.must_record = loaded.is_truncating or is_of_others
        self.compactions = loaded.compactions
        self.swapping: tuple[int, ...] = ()
        self.is_recorded = loaded.is_recorded
        self._is_unclean = loaded.is_unclean
        self.synced = native.SegmentState(_NO_BASE)
        if loaded.durable_offset >= loaded.end_offset:
            self.synced.assign(loaded.active_state)
        self.is_scheduled = False
        # Size of the active segment, and time, when the file was last written.
        self._last = loaded.active_state.size, context.files.monotonic()
        # When the state file was last written whole: serials of the first and the last
        # sealed segment (not references, which would keep deleted segments), their
        # number, their rows.
        self._rows: tuple[int, int, int, str] = (0, 0, 0, "")
        self._file = GrowingFile(context.directory, layout.PARTITION_STATE)
        # The values in the file that an entry does not change; its sealed segments, as
        # in `_rows`; the base offset of the segment whose indexes have durable names.
        # None: the next write is of the whole file.
        self._in_file: tuple[object, tuple[int, int, int], int] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the state file records where the log ends."""
        return self.is_recorded and not self._is_unclean and not self.must_record

    def text(self, bounds: LogBounds, state: native.SegmentState) -> str:
        """The text of a state file of the log, durable to its end."""
        return self._state(bounds, state).to_json(self._sealed_rows(bounds.segments))

    def _state(self, bounds: LogBounds, state: native.SegmentState) -> PartitionState:
        context = self._context
        return PartitionState(
            bounds.start,
            [],
            state_fields(state),
            self._active.time_digest(state.raw.time_entries),
            bounds.cuts,
            context.is_contiguous,
            context.services.state.ownership.store_epoch,
            log_id=context.log_id,
            foreign_end=context.foreign_end,
            compactions=self.compactions,
            swapping=self.swapping,
        )

    def write(
        self,
        bounds: LogBounds,
        state: native.SegmentState,
        *,
        is_truncating: bool = False,
        is_record: bool = False,
        in_place: bool = False,
    ) -> None:
        """Write the state file; `state` is that of the active segment.

        Args:
            in_place: as `GrowingFile.replace`; nor do index files for which there is no
                room stop it: the next opening then builds them.
            is_record: no call depends on it. If a bit of the new last entry is damaged,
                the file has its former content.

        Raises:
            OSError: as the system gives it. With `in_place`, an `UnknownContentError`
                unless the file is unchanged.
        """
        point = self._state(bounds, state)
        point.is_truncating = is_truncating
        try:
            self._sync_indexes(state)
        except OSError as error:
            if not (in_place and is_disk_full(error)):
                raise
            point.time_digest = UNKNOWN_DIGEST
        if not (is_record and self._append(bounds, point)):
            self._in_file = None
            point.tail = self._tail(state)
            text = point.to_json(self._sealed_rows(bounds.segments))
            self._file.replace(text, in_place=in_place)
            if not is_truncating:
                sealed = _sealed_range(bounds.segments, len(bounds.segments) - 1)
                self._in_file = _constants(point), sealed, _indexed_base(point)
                self.must_record = False
        self.is_recorded = True
        self._looked_after(state)

    def _tail(self, state: native.SegmentState) -> LogTail | None:
        """The last batch of the active segment at a state of it."""
        base, size = state.raw.base_offset, state.size
        if not size:
            return None
        writer, index = self._active.writer, self._active.index
        if writer is not None and writer.segment.base_offset == base:
            index = writer.index
        position = index.floor(state.last_offset - base)[1]
        return LogTail.find(self._context.directory, base, position, size)

    def _append(self, bounds: LogBounds, point: PartitionState) -> bool:
        """Append an entry to the state file, if it is only the durable point that has
        moved, and segments that were sealed since. Returns whether that was done."""
        in_file, self._in_file = self._in_file, None
        if in_file is None or in_file[0] != _constants(point):
            return False
        segments, (_, _, count), named = bounds.segments, *in_file[1:]
        if not (
            count < len(segments)
            and _sealed_range(segments, count) == in_file[1]
            and (not count or segments[count - 1].row)
        ):
            return False
        if _indexed_base(point) not in (_NO_BASE, named):
            # As after writing the whole file: the index files that it counts exist.
            self._context.directory.sync()
        rows = ",".join(_rows_from(segments, count))
        if not self._file.append(point.change_to_json(rows)):
            return False
        sealed = _sealed_range(segments, len(segments) - 1)
        self._in_file = in_file[0], sealed, _indexed_base(point)
        return True

    def replaced(self) -> None:
        """Rebuild the rows of the file the next time: sealed segments were replaced."""
        self._rows = (0, 0, 0, "")
        self._in_file = None
        self.compactions += 1

    def _looked_after(self, state: native.SegmentState) -> None:
        self._last = state.size, self._context.files.monotonic()

    def _sync_indexes(self, state: native.SegmentState) -> None:
        """Make the index entries durable that a state is about to count: opening loads
        them without checking each."""
        writer = self._active.writer
        if writer is not None and writer.segment.base_offset == state.raw.base_offset:
            entries = state.raw.index_entries, state.raw.time_entries
            if any(entries):
                writer.write_indexes(*entries, sync=True)

    def _sealed_rows(self, segments: tuple[Segment, ...]) -> str:
        """The rows of the sealed segments, as text. A roll adds one row to the existing
        ones, so that its cost does not depend on their number."""
        *known, count, text = self._rows
        if not (
            0 < count < len(segments)
            and _sealed_range(segments, count) == (*known, count)
            and _ends_with_row(text, segments[count - 1])
        ):
            count, text = 0, ""
        rows = _rows_from(segments, count)
        if rows:
            text = ",".join([text, *rows] if text else rows)
            self._rows = (*_sealed_range(segments, len(segments) - 1), text)
        return text

    def amend(self, change: Callable[[PartitionState], PartitionState]) -> bool:
        """Change the state file of a damaged log. The end in it, which was durable, is
        to stay.

        Returns False if there is no state that counts: nothing was written.

        Raises:
            OSError: as the system gives it; the file is unchanged, or has its new
                content.
            CorruptCheckpointError, UnsupportedError: the state cannot be read.
        """
        directory = self._context.directory
        state = PartitionState.read(directory)
        epoch = self._context.services.state.ownership.store_epoch
        if state is None or state.store_epoch != epoch:
            return False
        new = change(state)
        if new != state:
            value = new.to_dict()
            checkpoints.write_state(directory, layout.PARTITION_STATE, value)
        return True

    def record(
        self,
        bounds: LogBounds,
        state: native.SegmentState,
        *,
        is_truncating: bool = False,
    ) -> None:
        """Record the durable point. If this fails, the old one stays true."""
        try:
            self.write(
                bounds, state, is_truncating=is_truncating, is_record=not is_truncating
            )
        except OSError as error:
            logger.warning(
                "cannot record the durable point of %s: %s",
                self._context.name,
                error,
            )

    def commit(
        self,
        bounds: LogBounds,
        state: native.SegmentState,
        *,
        is_truncating: bool = False,
        is_needed: bool = False,
    ) -> bool:
        """Record a changed list of segments, or raise.

        A full disk must not stop a call that frees space: the state file is changed in
        place, and if there is no room for that either, it is removed. Without it the
        next opening loads the partition as Kafka would. This costs only time, if the
        log starts at the base of its first segment. Before the next append, it must be
        written again.

        Args:
            is_needed: records may be appended next.

        Returns False if the state file was removed.

        Raises:
            StorageError: the state file is unchanged, or its content is unknown; if
                `is_needed`, it may be removed.
        """
        directory = self._context.directory
        try:
            self.write(bounds, state, is_truncating=is_truncating, in_place=True)
        except OSError as error:
            failed = storage_error(error, "write the state of", directory.path)
            at_boundary = bounds.start == bounds.segments[0].base_offset
            if not isinstance(failed, DiskFullError) or not at_boundary:
                raise failed from error
            try:
                for name in (layout.PARTITION_STATE + ".tmp", layout.PARTITION_STATE):
                    directory.unlink(name, missing_ok=True)
                directory.sync()
            except OSError:
                raise failed from error
            self._looked_after(state)
            self.is_recorded = False
            self.must_record = self._health.is_blocked = True
            if is_needed:
                raise failed from error
            return False
        return True

    # ------------------------------------------------------------ when

    @property
    def quiet_size(self) -> int:
        """While the active segment is smaller than this, and has no new index entries,
        `after_sync` would only set `synced`; 0 if it has something to do."""
        if self.is_barred or not self.is_scheduled:
            return 0
        return self._last[0] + _CHECKPOINT_BYTES

    def after_sync(
        self,
        bounds: LogBounds,
        writer: SegmentWriter,
        mark: Mark,
        point_due: Callable[[], None],
    ) -> None:
        """The log is synced up to a mark: write the index entries up to there, if they
        are many, and the durable point if it is old.

        Args:
            point_due: calls `record_if_due`; a method.
        """
        state = mark.state
        self.synced.assign(state)
        if writer.has_many_unwritten(mark):
            try:
                writer.write_indexes(mark.index_count, mark.time_count)
            except OSError as error:
                logger.warning("cannot write the indexes of %s: %s", writer.path, error)
        now, (pos, time) = self._context.files.monotonic(), self._last
        services = self._context.services
        config = services.store_config
        if (
            state.size - pos >= _CHECKPOINT_BYTES
            or (now - time) * 1000 >= config.flush_checkpoint_ms
        ):
            self.record(bounds, state)
        elif not self.is_scheduled:
            # Other processes learn the durable offset from the state file, which must
            # not be too old.
            services.call_later(point_due, config.flush_checkpoint_ms)
            self.is_scheduled = True

    def record_last(self, bounds: LogBounds) -> None:
        """Record what the last sync made durable, if the log has not rolled since."""
        writer, synced = self._active.writer, self.synced
        if writer and synced.raw.base_offset == writer.state.raw.base_offset:
            self.record(bounds, synced)

    def forget_synced(self) -> None:
        """The log is being cut: what the last sync covered may be gone."""
        self.synced.raw.base_offset = _NO_BASE


def _constants(point: PartitionState) -> object:
    """The values that a roll, or a later durable point, does not change."""
    changes = point.compactions, point.swapping, point.is_contiguous
    return (
        point.start_offset,
        point.cuts,
        point.store_epoch,
        point.is_truncating,
        point.foreign_end,
        changes,
    )


def _indexed_base(point: PartitionState) -> int:
    """The base offset of the active segment if the state counts entries of its indexes;
    `_NO_BASE`: it counts none."""
    active = point.active
    has_entries = active["index_entries"] or active["time_entries"]
    return active["base_offset"] if has_entries else _NO_BASE


def _sealed_range(segments: tuple[Segment, ...], count: int) -> tuple[int, int, int]:
    """Serials of the first and the last of `count` sealed segments, and that number.
    For none, of the active one."""
    return segments[0].file.serial, segments[max(count - 1, 0)].file.serial, count


def _rows_from(segments: tuple[Segment, ...], count: int) -> list[str]:
    """The rows of the sealed segments after the first `count`."""
    return [
        segment.row or _sealed_row(segment, after.base_offset)
        for segment, after in itertools.pairwise(segments[count:])
    ]


def _ends_with_row(text: str, segment: Segment) -> bool:
    """Whether some rows end with the one that a segment has now: a log that was cut
    back into the segment has grown, and sealed it again, since another was made."""
    return bool(segment.row) and text.endswith(segment.row)


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
