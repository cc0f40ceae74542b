"""The third step of loading: where the log ends. It checks the bytes past the durable
point, cuts a torn tail, and makes the remaining log durable."""

from __future__ import annotations

import contextlib
import dataclasses

from logstore import _native as native
from logstore.errors import (
    CorruptRecordError,
    UnsupportedError,
    storage_error,
)
from logstore.index import OffsetEntries, TimeEntries, add_closing_entry
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import (
    PartitionState,
    segment_state,
    state_fields,
)
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    INDEX_REBUILT,
    LOST_END,
    LOST_SEGMENT,
    TAIL_KEPT,
    TORN_TAIL,
    UNREADABLE,
    UNSUPPORTED,
)
from logstore.io.layout import (
    INDEX,
    LOG,
    TIME_INDEX,
)
from logstore.log.read.damage import unreadable
from logstore.log.recover.context import Case, RecoveredLog
from logstore.log.recover.durable import begins, copy, make_durable
from logstore.log.scan import TailScan, scan_log
from logstore.segment import (
    LOOKUP_BYTES,
    Place,
    Segment,
)

__all__ = ["End"]


class End:
    """Determines where a log ends."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.is_rebuilt = False

    def settle(self, segments: list[Segment]) -> RecoveredLog:
        situation = self.case.situation
        start = situation.log_start
        if situation.state is not None:
            start = situation.state.start_offset
        if not segments:
            if situation.recovery_point > start:
                self.lost_log(start)
            return self.loaded(
                [],
                start,
                start,
                start,
                native.SegmentState(start),
                OffsetEntries(),
                TimeEntries(),
            )
        active = segments[-1]
        start = max(start, segments[0].base_offset)
        own = situation.state
        if own is not None and own.active["base_offset"] == active.base_offset:
            return self.settle_own(segments, start, own)
        return self.settle_scan(segments, start)

    def lost_log(self, start: int) -> None:
        """There is no segment at all, although there were records."""
        point = self.case.situation.recovery_point
        self.case.damage = CorruptRecordError(
            f"no segment is there; the log was flushed up to offset {point}",
            path=self.case.directory.path,
            position=0,
            offset=start,
        )
        self.case.report(LOST_SEGMENT, "", str(self.case.damage), first_offset=start)

    def settle_own(
        self, segments: list[Segment], start: int, own: PartitionState
    ) -> RecoveredLog:
        """The active segment is the one in logstore's own state file."""
        active = segments[-1]
        durable = own.active["size"]
        state = segment_state(own.active)
        size = -1 if active.is_lost else self.case.file_size(active)
        if size < 0 and not active.is_lost and not self.case.situation.clean:
            # The log may continue past the durable point: its end is unknown.
            assert self.case.damage is not None
            raise self.case.damage
        index, times = self.load_indexes(active, state, own)
        if own.is_truncating and size > durable:
            # Read-only: bytes that are to be cut are not served.
            self.case.tail_start, self.case.tail_bytes = durable, size - durable
            size = durable
        if 0 <= size < durable:
            self.lost_end(active, size, durable, own)
        is_whole = self.case.situation.clean and size == durable
        point = self.case.situation.recovery_point
        if is_whole and point > own.durable_offset and not own.is_truncating:
            self.older_partition(active, durable, point, own)
            return self.finish(segments, start, point, state, index, times)
        is_cut = own.is_truncating and not self.case.writable
        if size < durable or is_cut or (is_whole and index is not None):
            active.size = durable
            return self.finish(segments, start, own.durable_offset, state, index, times)
        if self.case.situation.clean and not is_whole:
            self.foreign_bytes(active, size, durable, own)
            return self.finish(segments, start, own.durable_offset, state, index, times)
        if index is None or times is None:
            # The index files do not reach the durable point: index all of it again.
            if is_whole:
                self.index_rebuilt(active)
            state = native.SegmentState(active.base_offset, own.active["created_ms"])
            index, times = OffsetEntries(), TimeEntries()
        return self.scan_tail(
            segments, start, state, index, times, durable, own.durable_offset
        )

    def index_rebuilt(self, active: Segment) -> None:
        """Report that the indexes of the last segment of a closed log are rebuilt."""
        self.is_rebuilt = True
        name = active.file(INDEX)
        self.case.report(
            INDEX_REBUILT,
            name,
            f"{name} or its time index is missing or short; built again from the log",
            first_offset=active.base_offset,
        )

    def write_indexes(self, loaded: RecoveredLog, names: frozenset[str]) -> None:
        """Write missing indexes of the last segment of a closed log, as closing does:
        there may be no append that would write them.

        1. write both, the offset index last; 2. record their content in the state file.
        If a step fails, the next opening does it, and readers use no index.
        """
        case, situation = self.case, self.case.situation
        if not case.writable or not situation.clean or case.damage is not None:
            return
        active, state = loaded.segments[-1], loaded.active_state
        wanted = {active.file(INDEX), active.file(TIME_INDEX)}
        if not active.size or (wanted <= names and not self.is_rebuilt):
            return
        if not self.is_rebuilt:
            self.index_rebuilt(active)
        index, times = loaded.index, loaded.times
        add_closing_entry(state, times)
        with contextlib.suppress(OSError):
            case.directory.write_file(active.file(TIME_INDEX), times.data())
            times.written = times.synced = times.count
            case.directory.write_file(active.file(INDEX), index.data())
            index.written = index.synced = index.count
            if situation.state is not None:
                noted = dataclasses.replace(
                    situation.state,
                    active=state_fields(state),
                    time_digest=times.digest(),
                )
                value = noted.to_dict()
                checkpoints.write_state(case.directory, layout.PARTITION_STATE, value)

    def foreign_bytes(
        self, active: Segment, size: int, durable: int, own: PartitionState
    ) -> None:
        """Report bytes after a clean end: logstore did not write them. They are neither
        cut nor served."""
        active.size = durable
        self.case.damage = CorruptRecordError(
            f"{size - durable} bytes after the end of a log that was closed",
            path=active.path,
            position=durable,
            offset=own.durable_offset,
        )
        self.case.report(
            CORRUPT,
            active.file(LOG),
            str(self.case.damage),
            position=durable,
            size=size - durable,
            first_offset=own.durable_offset,
        )

    def lost_end(
        self, active: Segment, size: int, durable: int, own: PartitionState
    ) -> None:
        self.case.damage = CorruptRecordError(
            f"the file has {size} bytes, {durable} were durable",
            path=active.path,
            position=size,
            offset=max(own.start_offset, active.base_offset),
        )
        self.case.report(
            LOST_END,
            active.file(LOG),
            f"{durable - size} durable bytes are gone from the end of {active.path}; "
            f"the partition takes no appends",
            position=size,
            size=durable - size,
            first_offset=own.durable_offset,
        )

    def older_partition(
        self, active: Segment, durable: int, point: int, own: PartitionState
    ) -> None:
        """The whole partition is older than the marks of the store, for example after a
        backup of it alone was restored: offsets up to `point` were assigned before."""
        self.case.damage = CorruptRecordError(
            f"the log and its state end at offset {own.durable_offset}; the store was "
            f"closed when it ended at {point}",
            path=active.path,
            position=durable,
            offset=own.durable_offset,
        )
        self.case.report(
            LOST_END,
            active.file(LOG),
            f"{self.case.damage} The partition takes no appends.",
            position=durable,
            first_offset=own.durable_offset,
        )

    def settle_scan(self, segments: list[Segment], start: int) -> RecoveredLog:
        """No state file of logstore has the last segment: check what Kafka checks."""
        situation = self.case.situation
        point = situation.recovery_point
        if situation.state is not None and not situation.clean:
            # Kafka's point is of the last clean stop; the log may have become shorter.
            point = situation.state.durable_offset
        if self.case.writable and not situation.clean:
            # Readers check what they read; the owner of the log must know of damage.
            for segment in segments[:-1]:
                if segment.next_offset > point and self.case.damage is None:
                    self.check_whole(segment)
        active = segments[-1]
        state = native.SegmentState(active.base_offset, self.created_ms(active))
        durable = max(point, active.base_offset)
        return self.scan_tail(
            segments, start, state, OffsetEntries(), TimeEntries(), 0, durable
        )

    def created_ms(self, segment: Segment) -> int:
        try:
            mtime_ns = self.case.directory.stat(segment.file(LOG)).mtime_ns
        except OSError:
            return 0
        return mtime_ns // 1_000_000

    def check_whole(self, segment: Segment) -> None:
        """Check a segment that may not have been flushed; do not cut damage here."""
        state = native.SegmentState(segment.base_offset)
        try:
            with self.case.directory.opened(segment.file(LOG)) as fd:
                scan = scan_log(
                    self.case.directory,
                    fd,
                    segment.size,
                    state,
                    on_checked=self.case.on_checked,
                )
        except OSError as error:
            self.case.damage = storage_error(error, "read", segment.path)
            self.case.report(UNREADABLE, segment.file(LOG), str(self.case.damage))
            return
        segment.max_timestamp = state.max_timestamp
        segment.max_timestamp_offset = state.max_timestamp_offset
        if not scan.is_whole:
            self.corrupt(segment, scan)

    def corrupt(self, segment: Segment, scan: TailScan) -> None:
        """Record damage that must not be cut; the partition takes no appends."""
        unsupported = scan.error is not None and scan.error.is_unsupported
        first = scan.last_offset + 1
        if unsupported:
            self.case.damage = UnsupportedError(
                f"{segment.path} at byte {scan.pos} (offset {first}): {scan.reason}",
                path=segment.path,
                position=scan.pos,
                offset=first,
            )
        else:
            self.case.damage = CorruptRecordError(
                scan.reason, path=segment.path, position=scan.pos, offset=first
            )
        self.case.report(
            UNSUPPORTED if unsupported else CORRUPT,
            segment.file(LOG),
            f"{self.case.damage} Nothing was cut; the partition takes no appends.",
            position=scan.pos,
            size=scan.size - scan.pos,
            first_offset=first,
        )

    def scan_tail(
        self,
        segments: list[Segment],
        start: int,
        state: native.SegmentState,
        index: OffsetEntries,
        times: TimeEntries,
        durable_pos: int,
        durable_offset: int,
    ) -> RecoveredLog:
        """Check the last segment from ``state.size`` on and determine its end.

        `durable_pos` and `durable_offset`: there is no torn tail below them.
        """
        active = segments[-1]
        name = active.file(LOG)
        begin, entries = state.copy(), (index.count, times.count)

        def walk(fd: int, end: int) -> TailScan:
            return scan_log(
                self.case.directory,
                fd,
                end,
                state,
                index=index,
                times=times,
                interval=self.case.config.index_interval_bytes,
                checks=active.checks,
                on_checked=self.case.on_checked,
            )

        try:
            with self.case.directory.opened(name) as fd:
                size = self.case.directory.files.size(fd)
                scan = walk(fd, size)
                active.size = scan.pos
                place = Place(durable_pos, durable_offset - 1)
                damage = None
                if scan.has_wrappers:
                    place = place if durable_pos else active.start
                    damage = unreadable(active, place)
                if damage is not None:
                    # Only as far as a reader could read.
                    state = begin
                    index.cut(entries[0])
                    times.cut(entries[1])
                    scan = walk(fd, damage[0])._replace(size=size, why=damage[1])
        except OSError as error:
            self.case.damage = storage_error(error, "read", active.path)
            if self.case.situation.state is None or not self.case.situation.clean:
                raise self.case.damage from error  # the end is unknown
            self.case.report(UNREADABLE, name, str(self.case.damage))
            active.size = durable_pos
            return self.finish(segments, start, durable_offset, begin, index, times)
        active.size = scan.pos
        if not scan.is_whole:
            # The damage may be in the offset of a batch: after a clean stop there is no
            # torn tail, whatever the offset of the last batch is.
            below = scan.pos < durable_pos or scan.last_offset + 1 < durable_offset
            below = below or self.case.situation.clean
            if below or self.is_foreign(scan):
                # Records are served up to here; reading what follows raises an error.
                active.size = max(size, durable_pos)
                self.corrupt(active, scan)
                end = max(durable_offset, scan.last_offset + 2)
                return self.finish(segments, start, end, state, index, times)
            self.case.tail_start, self.case.tail_bytes = scan.pos, size - scan.pos
            if self.case.writable and self.case.damage is None:
                self.cut_tail(active, scan)
        elif self.below_recovery_point(active, scan, durable_offset):
            return self.finish(segments, start, durable_offset, state, index, times)
        if self.case.writable and self.case.damage is None:
            if not self.case.situation.clean:
                relative = max(durable_offset - active.base_offset, 0)
                durable_pos = max(durable_pos, index.floor(relative)[1])
                make_durable(
                    self.case.directory,
                    name,
                    active.size,
                    min(durable_pos, active.size),
                )
            durable_offset = state.last_offset + 1
        return self.finish(
            segments, start, state.last_offset + 1, state, index, times, durable_offset
        )

    def is_foreign(self, scan: TailScan) -> bool:
        """Whether the log ends with bytes that are not understood: these are not cut.
        If logstore wrote last, a magic above 2 is garbage, since it writes none."""
        if scan.error is None or not scan.error.is_unsupported:
            return False
        return scan.error.status != native.E_MAGIC or not self.case.situation.is_own

    def below_recovery_point(
        self, active: Segment, scan: TailScan, durable_offset: int
    ) -> bool:
        """Whether an intact log ends before the offset that is known to be flushed."""
        if scan.last_offset + 1 >= durable_offset:
            return False
        if scan.batches == 0 and not self.case.situation.clean:
            return False
        self.case.damage = CorruptRecordError(
            f"the log ends at offset {scan.last_offset + 1}, {durable_offset} was "
            f"durable",
            path=active.path,
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
        self.case.report(
            LOST_END,
            active.file(LOG),
            f"{self.case.damage} The partition takes no appends.",
            position=scan.pos,
            first_offset=scan.last_offset + 1,
        )
        return True

    def cut_tail(self, active: Segment, scan: TailScan) -> None:
        """Put a torn tail aside and cut it.

        1. copy it to `.logstore-torn-...` and sync the copy; 2. sync the directory;
        3. truncate the log; 4. sync the log. Copies of earlier torn tails at this
        position stay.
        """
        directory, files = self.case.directory, self.case.directory.files
        base, pos, size = active.base_offset, scan.pos, scan.size
        kept, is_kept = "", False
        first = scan.last_offset + 1
        try:
            with directory.opened(active.file(LOG), write=True) as fd:
                taken = set(directory.names())
                kept = next(
                    name
                    for name in layout.torn_files(base, pos)
                    if name not in taken or begins(directory, name, fd, pos, size)
                )
                torn = directory.create(kept, exclusive=False)
                try:
                    copy(directory, fd, pos, size, torn)
                    files.sync(torn)
                finally:
                    files.close(torn)
                directory.sync()
                is_kept = True
                files.truncate(fd, pos)
                files.sync(fd)
        except OSError as error:
            failed = storage_error(error, "put aside the torn tail of", active.path)
            self.case.damage = failed
            if kept and not is_kept:
                with contextlib.suppress(OSError):
                    directory.unlink(kept, missing_ok=True)
            self.case.report(
                TAIL_KEPT,
                active.file(LOG),
                f"{failed}. The tail was not cut; the partition can be read, and takes "
                f"no appends until it is opened again.",
                position=pos,
                size=size - pos,
                first_offset=first,
            )
            return
        self.case.report(
            TORN_TAIL,
            active.file(LOG),
            f"cut {size - pos} bytes behind offset {first} ({scan.reason}) from "
            f"{active.path}; they are kept in {kept}",
            position=pos,
            size=size - pos,
            first_offset=first,
            kept_at=directory.path_of(kept),
        )

    def load_indexes(
        self, active: Segment, state: native.SegmentState, own: PartitionState
    ) -> tuple[OffsetEntries | None, TimeEntries | None]:
        """The index files of the active segment, up to the durable point; None if their
        content is not as expected."""
        active.size = state.size
        index = OffsetEntries.load(active._index_bytes(INDEX), state.size)
        times = TimeEntries.load(active._index_bytes(TIME_INDEX))
        wanted = state.raw.index_entries
        wanted_times = state.raw.time_entries
        if index.count < wanted or times.count < wanted_times:
            return None, None
        index.cut(wanted)
        times.cut(wanted_times)
        if own.is_truncating or times.digest() != own.time_digest:
            return None, None  # or they were not synced before the state was written
        if not self.case.situation.clean and not self.is_borne_out(active, index):
            return None, None
        index.synced, times.synced = wanted, wanted_times
        return index, times

    def is_borne_out(self, active: Segment, index: OffsetEntries) -> bool:
        """Whether the log agrees with the last entry. Index files are not synced with
        the log: after a power failure they may contain anything."""
        if not index.count:
            return True
        relative, pos = index.entry(index.count - 1)
        found = active.first_header(pos, native.Buffer(LOOKUP_BYTES))
        return found is not None and (
            found[0].last_offset == active.base_offset + relative
        )

    def finish(
        self,
        segments: list[Segment],
        start: int,
        end: int,
        state: native.SegmentState,
        index: OffsetEntries | None,
        times: TimeEntries | None,
        durable: int | None = None,
    ) -> RecoveredLog:
        active = segments[-1]
        active.next_offset = end
        if self.case.damage is None:
            active.max_timestamp = state.max_timestamp
            active.max_timestamp_offset = state.max_timestamp_offset
        return self.loaded(
            segments,
            min(start, end),
            end if durable is None else durable,
            end,
            state,
            index,
            times,
        )

    def loaded(
        self,
        segments: list[Segment],
        start: int,
        durable: int,
        end: int,
        state: native.SegmentState,
        index: OffsetEntries | None,
        times: TimeEntries | None,
    ) -> RecoveredLog:
        return RecoveredLog(
            segments,
            start,
            min(max(durable, start), end),
            end,
            state,
            OffsetEntries() if index is None else index,
            TimeEntries() if times is None else times,
            self.case.damage,
            self.case.actions,
            self.case.tail_start,
            self.case.tail_bytes,
            self.case.situation.state is not None,
            not self.case.situation.clean,
        )
