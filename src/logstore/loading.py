"""Loading a partition at opening: what its log is, and what has to be mended.

`Loader` follows the table of labelled cases in docs/design.md, with the same labels.
Nothing below the durable point is ever cut, nor anything that is merely not understood.
It is one thing and long: the cases share what they have found so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable

from logstore import _binding as native
from logstore import checkpoints, layout
from logstore._files import Directory, Files
from logstore.config import TopicConfig
from logstore.descriptors import Descriptors
from logstore.errors import (
    CorruptCheckpointError,
    CorruptRecordError,
    LogStoreError,
    UnsupportedError,
    storage_error,
)
from logstore.index import STALE_DIGEST, OffsetEntries, TimeEntries, digest_of
from logstore.layout import (
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    parse_segment_file,
    segment_file,
)
from logstore.reader import unreadable
from logstore.recovery import (
    CORRUPT,
    INDEX_REBUILT,
    LEFTOVERS_REMOVED,
    LOST_END,
    LOST_SEGMENT,
    LOST_TOLD,
    STATE_DAMAGED,
    SWAP_FINISHED,
    TAIL_KEPT,
    TORN_TAIL,
    UNKNOWN_TIMESTAMP,
    UNREADABLE,
    UNSUPPORTED,
    PartitionState,
    RecoveryAction,
    Situation,
    Survey,
    rebuild,
    segment_state,
    survey,
)
from logstore.segment import (
    LOOKUP_BYTES,
    Place,
    Segment,
    TailScan,
    scan_log,
)

__all__ = ["Loaded", "Loader"]


@dataclasses.dataclass(slots=True)
class Loaded:
    """A partition as opening found it.

    Attributes:
        segments: in order; empty only when read-only and there is none.
        start_offset, durable_offset, end_offset: see docs/glossary.md.
        active_state: of the last segment, at `end_offset`.
        index, times: of the last segment.
        damage: why nothing may be appended; None if all is well.
        actions: for the report.
        tail_start: where the bytes past the log begin in the last file, and
        tail_bytes: how many there are (read-only: they are not cut).
        is_written_down: logstore's own state says all this already, and
        is_unclean: it does not say where the log ends.
        deleted: `.deleted` files that wait for their end.
        digested: base offsets of the segments that have a digest.
        truncations, is_gapless, is_truncating: as in `PartitionState`.
    """

    segments: list[Segment]
    start_offset: int
    durable_offset: int
    end_offset: int
    active_state: native.SegmentState
    index: OffsetEntries
    times: TimeEntries
    damage: LogStoreError | None
    actions: list[RecoveryAction]
    tail_start: int = 0
    tail_bytes: int = 0
    is_written_down: bool = False
    is_unclean: bool = False
    deleted: list[str] = dataclasses.field(default_factory=list)
    digested: set[int] = dataclasses.field(default_factory=set)
    truncations: int = 0
    is_gapless: bool = False
    is_truncating: bool = False


class Loader:
    """Loads one partition. `writable` mends; without it nothing on disk changes.
    `on_checked` is called with the bytes of log that were checked, again and again."""

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        topic: str,
        partition: int,
        config: TopicConfig,
        situation: Situation,
        *,
        writable: bool,
        on_checked: Callable[[int], None] | None = None,
    ) -> None:
        self.directory = directory
        self.descriptors = descriptors
        self.topic = topic
        self.partition = partition
        self.config = config
        self.situation = situation
        self.writable = writable
        self.on_checked = on_checked
        self.actions: list[RecoveryAction] = []
        self.damage: LogStoreError | None = None
        self.tail_start = 0
        self.tail_bytes = 0

    def report(
        self,
        label: str,
        name: str,
        message: str,
        *,
        position: int = -1,
        size: int = 0,
        first_offset: int = -1,
        kept_at: str | None = None,
    ) -> None:
        self.actions.append(
            RecoveryAction(
                label,
                self.topic,
                self.partition,
                self.directory.path_of(name),
                position,
                size,
                first_offset,
                kept_at,
                message,
            )
        )

    def load(self) -> Loaded:
        situation = self.situation
        if situation.state_error is not None:
            self.report(
                STATE_DAMAGED,
                layout.PARTITION_STATE,
                f"{situation.state_error}; the log was checked as if it were not there",
            )
        found = survey(self.directory, self.descriptors)
        self.finish_truncation(found)
        self.finish_deletion(found)
        if self.writable:
            self.finish_transitions(found)
            self.remove_deleted(found)
            self.remove_orphans(found)
        segments = self.open_segments(found)
        self.drop_unconnected(segments)
        if self.writable:
            for segment in segments[:-1]:
                self.ensure_index(segment, found)
        loaded = self.settle(segments)
        loaded.deleted = found.deleted
        loaded.digested = self.digests_among(found)
        state = self.situation.state
        if state is not None:
            loaded.truncations = state.truncations
            loaded.is_gapless = state.is_gapless
            loaded.is_truncating = state.is_truncating
        elif not segments:
            loaded.is_gapless = self.is_without_epochs()
        return loaded

    def is_without_epochs(self) -> bool:
        """Whether logstore's leader epoch, 0, is right for a log that has no records: a
        broker may have had it before."""
        try:
            epochs = checkpoints.read_epochs(self.directory)
        except (CorruptCheckpointError, OSError):
            return False
        return not any(epoch for epoch, _ in epochs)

    # -- 1. names

    def finish_truncation(self, found: Survey) -> None:
        """Go on with a `truncate_to` that was cut short behind its commit.

        1. sync the directory: its commit may be in the page cache only; 2. cut the last
        segment that stays, and sync it; 3. remove the later ones; 4. sync the
        directory. The state file still says so: it is written again before the first
        append.
        """
        state = self.situation.state
        if state is None or not state.is_truncating:
            return
        base, size = state.active["base_offset"], state.active["size"]
        dropped = [b for b in found.logs if b > base]
        if self.writable:
            self.directory.sync()
        if self.writable and base in found.logs:
            files = self.directory.files
            with self.directory.opened(segment_file(base, LOG), write=True) as fd:
                if files.size(fd) >= size:
                    _cut_for_good(files, fd, size)
        for later in dropped:
            del found.logs[later]
            if self.writable:
                for suffix in SEGMENT_SUFFIXES:
                    self.directory.unlink(segment_file(later, suffix), missing_ok=True)
        if self.writable and dropped:
            self.directory.sync()

    def finish_deletion(self, found: Survey) -> None:
        """Go on with a deletion that was cut short behind its commit: the segments
        below the first one that the state knows. Their names may be back in any order.
        """
        state = self.situation.state
        if state is None:
            return
        first = min([row[0] for row in state.sealed] + [state.active["base_offset"]])
        if state.start_offset < first:
            return
        dropped = [b for b, swap in found.logs.items() if b < first and not swap]
        if dropped and self.writable:
            self.directory.sync()  # the state may be in the page cache only
        for base in dropped:
            del found.logs[base]
            if not self.writable:
                continue
            for suffix in SEGMENT_SUFFIXES:
                name = segment_file(base, suffix)
                with contextlib.suppress(FileNotFoundError):
                    self.directory.rename(name, name + DELETED)
                    found.deleted.append(name + DELETED)

    def finish_transitions(self, found: Survey) -> None:
        """Finish or undo what an interrupted compaction or swap left behind.

        1. remove what the swap supersedes; 2. rename `.swap` to the final names;
        3. sync the directory; 4. remove `.cleaned` and unfinished `.swap` files.
        """
        directory = self.directory
        for name in found.superseded:
            directory.unlink(name, missing_ok=True)
        for name in found.swaps:
            directory.rename(name, name.removesuffix(SWAP))
        if found.swaps:
            directory.sync()
            self.report(
                SWAP_FINISHED,
                found.swaps[0],
                f"renamed {len(found.swaps)} .swap files to their final names; removed "
                f"{len(found.superseded)} files that they supersede",
            )
        for name in found.leftovers:
            directory.unlink(name, missing_ok=True)
        if found.leftovers:
            self.report(
                LEFTOVERS_REMOVED,
                found.leftovers[0],
                f"removed {len(found.leftovers)} files of an unfinished compaction",
            )
        for base, transition in found.logs.items():
            if transition:
                found.logs[base] = ""
        if found.swaps or found.superseded:
            found.names = frozenset(directory.names())

    def remove_deleted(self, found: Survey) -> None:
        """Remove `.deleted` files whose delay is over; keep the others in `found`."""
        directory = self.directory
        now_ms = directory.files.now_ms()
        waiting: list[str] = []
        for name in found.deleted:
            with contextlib.suppress(FileNotFoundError):
                renamed_ms = directory.stat(name).ctime_ns // 1_000_000
                if 0 <= now_ms - renamed_ms < self.config.file_delete_delay_ms:
                    waiting.append(name)
                else:
                    directory.unlink(name, missing_ok=True)
        found.deleted = waiting

    def remove_orphans(self, found: Survey) -> None:
        """Remove index files without a log, as Kafka does."""
        for name in found.names:
            parsed = parse_segment_file(name)
            if (
                parsed is not None
                and not parsed.transition
                and parsed.suffix in (INDEX, TIME_INDEX, TXN_INDEX)
                and parsed.base_offset not in found.logs
            ):
                self.directory.unlink(name, missing_ok=True)

    def digests_among(self, found: Survey) -> set[int]:
        """The sealed segments that have a digest; one of a segment that is appended to,
        or gone, is stale, and removed."""
        bases = {
            base
            for name in found.names
            if (base := layout.parse_digest_file(name)) is not None
        }
        sealed = bases & set(sorted(found.logs)[:-1])
        if self.situation.state is None and self.situation.state_error is None:
            sealed = set()  # another program may have changed the segments
        if self.writable and self.damage is None:
            for base in bases - sealed:
                self.directory.unlink(layout.digest_file(base), missing_ok=True)
        return sealed

    # -- 2. segments

    def open_segments(self, found: Survey) -> list[Segment]:
        """Segments in order, all but the last taken at their file's size."""
        state = self.situation.state
        known = {row[0]: row for row in state.sealed} if state else {}
        active_base = state.active["base_offset"] if state else -1
        bases = set(found.logs)
        if state:
            # A segment that is gone stays in the list: reading it is an error.
            bases |= set(known) | {active_base}
        segments: list[Segment] = []
        lost: list[int] = []
        for base in sorted(bases):
            transition = found.logs.get(base, "")
            segment = Segment(
                self.directory,
                self.descriptors,
                base,
                0,
                base,
                transition=transition,
                is_gapless=state is not None and state.is_gapless,
            )
            if base not in found.logs:
                segment.is_lost = True
                lost.append(base)
                if len(lost) <= LOST_TOLD:
                    self.lost_segment(base)
            row = known.get(base)
            if row is not None:
                _, segment.size, segment.next_offset, largest, at, digest = row
                segment.time_digest = digest
                segment.max_timestamp_offset = at
                segment.max_timestamp = (
                    None if largest == UNKNOWN_TIMESTAMP else largest
                )
                if base in found.logs:
                    self.check_sealed(segment, row[1])
            elif base in found.logs:
                size = self.file_size(segment)
                if size < 0 and self.damage is not None and base != active_base:
                    # Its records would be left out, and nobody would notice.
                    raise self.damage
                segment.size = max(size, 0)
            segments.append(segment)
        self.more_lost_segments(lost[LOST_TOLD:])
        for segment, after in itertools.pairwise(segments):
            if segment.base_offset not in known:
                segment.next_offset = after.base_offset
        return segments

    def file_size(self, segment: Segment) -> int:
        """Size of a segment's file; damage where there is no regular file."""
        name = segment.file(LOG)
        try:
            with self.directory.opened(name) as fd:
                return self.directory.files.size(fd)
        except OSError as error:
            self.damage = storage_error(error, "open", segment.path)
            self.report(UNREADABLE, name, str(self.damage))
            return -1

    def check_sealed(self, segment: Segment, size: int) -> None:
        found = self.file_size(segment)
        if found in (size, -1):
            return
        self.damage = CorruptRecordError(
            f"a sealed segment has {found} bytes, not {size}",
            path=segment.path,
            position=min(found, size),
            offset=segment.base_offset,
        )
        self.report(
            LOST_END if found < size else CORRUPT,
            segment.file(LOG),
            str(self.damage),
            position=min(found, size),
            size=abs(size - found),
            first_offset=segment.base_offset,
        )

    def lost_segment(self, base: int) -> None:
        name = segment_file(base, LOG)
        self.damage = CorruptRecordError(
            "a segment file is gone",
            path=self.directory.path_of(name),
            position=0,
            offset=base,
        )
        self.report(LOST_SEGMENT, name, str(self.damage), first_offset=base)

    def more_lost_segments(self, bases: list[int]) -> None:
        """Those that are not told one by one: a file of state may have millions."""
        if bases:
            name = segment_file(bases[0], LOG)
            self.report(
                LOST_SEGMENT,
                name,
                f"{len(bases)} more segment files of {self.directory.path} are gone, "
                f"{name} to {segment_file(bases[-1], LOG)}",
                first_offset=bases[0],
            )

    def ensure_index(self, segment: Segment, found: Survey) -> None:
        """Build the indexes of a sealed segment whose offset index is missing, or which
        may not have been finished when it was sealed: where that failed, or where the
        roll was cut short."""
        base, state = segment.base_offset, self.situation.state
        name = segment_file(base, INDEX)
        is_small = segment.size <= self.config.index_interval_bytes
        is_doubtful = segment.time_digest == STALE_DIGEST
        is_doubtful |= state is not None and base >= state.active["base_offset"]
        if not is_doubtful and (name in found.names or is_small):
            return
        with contextlib.suppress(OSError):
            rebuild(self.directory, base, self.config)
            data = self.directory.read_file(segment_file(base, TIME_INDEX))
            segment.time_digest = digest_of(data)
            self.report(
                INDEX_REBUILT,
                name,
                f"built the missing index {name} from the log",
                first_offset=segment.base_offset,
            )

    def drop_unconnected(self, segments: list[Segment]) -> None:
        """Put aside segments that a roll began and that were undone: without a sync of
        the directory, a power cut may bring their names back.

        They are those behind the last one that the state knows of, where the one before
        is whole and ends at another offset than they begin at.
        """
        own = self.situation.state
        if own is None or self.situation.clean or self.damage is not None:
            return
        states = {own.active["base_offset"]: segment_state(own.active)}
        for slot, (segment, after) in enumerate(itertools.pairwise(segments)):
            base = segment.base_offset
            if base < own.active["base_offset"]:
                continue
            state = states.get(base) or native.SegmentState(base)
            try:
                with self.directory.opened(segment.file(LOG)) as fd:
                    size = self.directory.files.size(fd)
                    scan = scan_log(
                        self.directory, fd, size, state, checks=segment.checks
                    )
            except OSError:
                return
            if not scan.is_whole or size < own.active["size"]:
                return
            if state.last_offset + 1 != after.base_offset:
                for leftover in segments[slot + 1 :]:
                    self.put_aside(leftover)
                del segments[slot + 1 :]
                return

    def put_aside(self, segment: Segment) -> None:
        """Rename a segment that is left over from an undone roll; nobody was told of
        what is in it."""
        if not self.writable:
            return
        base, name = segment.base_offset, segment.file(LOG)
        size = max(self.file_size(segment), 0)
        taken = set(self.directory.names())
        kept = next(kept for kept in layout.torn_files(base, 0) if kept not in taken)
        self.directory.rename(name, kept)
        for suffix in SEGMENT_SUFFIXES:
            self.directory.unlink(segment_file(base, suffix), missing_ok=True)
        self.directory.sync()
        self.report(
            TORN_TAIL,
            name,
            f"{name} does not follow the segment before: it is left over from a roll "
            f"that was undone; its {size} bytes are kept in {kept}",
            position=0,
            size=size,
            first_offset=base,
            kept_at=self.directory.path_of(kept),
        )

    # -- 3. the end of the log

    def settle(self, segments: list[Segment]) -> Loaded:
        situation = self.situation
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
        """There is no segment at all, and there were records."""
        point = self.situation.recovery_point
        self.damage = CorruptRecordError(
            f"no segment is there; the log was flushed up to offset {point}",
            path=self.directory.path,
            position=0,
            offset=start,
        )
        self.report(LOST_SEGMENT, "", str(self.damage), first_offset=start)

    def settle_own(
        self, segments: list[Segment], start: int, own: PartitionState
    ) -> Loaded:
        """The active segment is the one that our state speaks of."""
        active = segments[-1]
        durable = own.active["size"]
        state = segment_state(own.active)
        size = -1 if active.is_lost else self.file_size(active)
        if size < 0 and not active.is_lost and not self.situation.clean:
            # The log may go on past the durable point: nobody knows where it ends.
            assert self.damage is not None
            raise self.damage
        index, times = self.load_indexes(active, state, own)
        if own.is_truncating and size > durable:
            # Read-only: what is to be cut is not served.
            self.tail_start, self.tail_bytes = durable, size - durable
            size = durable
        if 0 <= size < durable:
            self.lost_end(active, size, durable, own)
        is_whole = self.situation.clean and size == durable
        point = self.situation.recovery_point
        if is_whole and point > own.durable_offset and not own.is_truncating:
            self.older_partition(active, durable, point, own)
            return self.finish(segments, start, point, state, index, times)
        is_cut = own.is_truncating and not self.writable
        if size < durable or is_cut or (is_whole and index is not None):
            active.size = durable
            return self.finish(segments, start, own.durable_offset, state, index, times)
        if self.situation.clean and not is_whole:
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
        """The last segment was closed, and its indexes are not what they were."""
        name = active.file(INDEX)
        self.report(
            INDEX_REBUILT,
            name,
            f"{name} or its time index is missing or short; built again from the log",
            first_offset=active.base_offset,
        )

    def foreign_bytes(
        self, active: Segment, size: int, durable: int, own: PartitionState
    ) -> None:
        """Bytes behind a clean end: nobody of us wrote them. Not cut, not served."""
        active.size = durable
        self.damage = CorruptRecordError(
            f"{size - durable} bytes behind the end of a log that was closed",
            path=active.path,
            position=durable,
            offset=own.durable_offset,
        )
        self.report(
            CORRUPT,
            active.file(LOG),
            str(self.damage),
            position=durable,
            size=size - durable,
            first_offset=own.durable_offset,
        )

    def lost_end(
        self, active: Segment, size: int, durable: int, own: PartitionState
    ) -> None:
        self.damage = CorruptRecordError(
            f"the file has {size} bytes, {durable} were durable",
            path=active.path,
            position=size,
            offset=max(own.start_offset, active.base_offset),
        )
        self.report(
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
        """The whole partition is older than the marks of the store, as where a backup
        of it alone was put back: offsets up to `point` were given out."""
        self.damage = CorruptRecordError(
            f"the log and its state end at offset {own.durable_offset}; the store was "
            f"closed when it ended at {point}",
            path=active.path,
            position=durable,
            offset=own.durable_offset,
        )
        self.report(
            LOST_END,
            active.file(LOG),
            f"{self.damage} The partition takes no appends.",
            position=durable,
            first_offset=own.durable_offset,
        )

    def settle_scan(self, segments: list[Segment], start: int) -> Loaded:
        """No state of ours: what Kafka would check, we check."""
        situation = self.situation
        point = situation.recovery_point
        if self.writable and not situation.clean:
            # Readers check what they read; whoever owns the log has to know.
            for segment in segments[:-1]:
                if segment.next_offset > point and self.damage is None:
                    self.check_whole(segment)
        active = segments[-1]
        state = native.SegmentState(active.base_offset, self.created_ms(active))
        durable = max(point, active.base_offset)
        return self.scan_tail(
            segments, start, state, OffsetEntries(), TimeEntries(), 0, durable
        )

    def created_ms(self, segment: Segment) -> int:
        try:
            mtime_ns = self.directory.stat(segment.file(LOG)).mtime_ns
        except OSError:
            return 0
        return mtime_ns // 1_000_000

    def check_whole(self, segment: Segment) -> None:
        """Check a segment that may not have been flushed; damage is not cut here."""
        state = native.SegmentState(segment.base_offset)
        try:
            with self.directory.opened(segment.file(LOG)) as fd:
                scan = scan_log(
                    self.directory,
                    fd,
                    segment.size,
                    state,
                    on_checked=self.on_checked,
                )
        except OSError as error:
            self.damage = storage_error(error, "read", segment.path)
            self.report(UNREADABLE, segment.file(LOG), str(self.damage))
            return
        segment.max_timestamp = state.max_timestamp
        segment.max_timestamp_offset = state.max_timestamp_offset
        if not scan.is_whole:
            self.corrupt(segment, scan)

    def corrupt(self, segment: Segment, scan: TailScan) -> None:
        """Damage that must not be cut: note it, and take no appends."""
        unsupported = scan.error is not None and scan.error.is_unsupported
        first = scan.last_offset + 1
        if unsupported:
            self.damage = UnsupportedError(
                f"{segment.path} at byte {scan.pos} (offset {first}): {scan.reason}",
                path=segment.path,
                position=scan.pos,
                offset=first,
            )
        else:
            self.damage = CorruptRecordError(
                scan.reason, path=segment.path, position=scan.pos, offset=first
            )
        self.report(
            UNSUPPORTED if unsupported else CORRUPT,
            segment.file(LOG),
            f"{self.damage} Nothing was cut; the partition takes no appends.",
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
    ) -> Loaded:
        """Check the last segment from ``state.size`` on and settle where it ends.

        `durable_pos` and `durable_offset`: below them nothing is a torn tail.
        """
        active = segments[-1]
        name = active.file(LOG)
        begin, entries = state.copy(), (index.count, times.count)

        def walk(fd: int, end: int) -> TailScan:
            return scan_log(
                self.directory,
                fd,
                end,
                state,
                index=index,
                times=times,
                interval=self.config.index_interval_bytes,
                checks=active.checks,
                on_checked=self.on_checked,
            )

        try:
            with self.directory.opened(name) as fd:
                size = self.directory.files.size(fd)
                scan = walk(fd, size)
                active.size = scan.pos
                place = Place(durable_pos, durable_offset - 1)
                damage = None
                if scan.has_wrappers:
                    place = place if durable_pos else active.start
                    damage = unreadable(active, place)
                if damage is not None:
                    # As far as a reader would come, and no farther.
                    state = begin
                    index.cut(entries[0])
                    times.cut(entries[1])
                    scan = walk(fd, damage[0])._replace(size=size, why=damage[1])
        except OSError as error:
            self.damage = storage_error(error, "read", active.path)
            if self.situation.state is None or not self.situation.clean:
                raise self.damage from error  # nobody knows where it ends
            self.report(UNREADABLE, name, str(self.damage))
            active.size = durable_pos
            return self.finish(segments, start, durable_offset, begin, index, times)
        active.size = scan.pos
        if not scan.is_whole:
            # The offset of a batch may be what is damaged: after a clean stop, nothing
            # is torn, whatever the last one says.
            below = scan.pos < durable_pos or scan.last_offset + 1 < durable_offset
            below = below or self.situation.clean
            if below or self.is_foreign(scan):
                # Served up to here; what follows is an error for whoever reads it.
                active.size = max(size, durable_pos)
                self.corrupt(active, scan)
                end = max(durable_offset, scan.last_offset + 2)
                return self.finish(segments, start, end, state, index, times)
            self.tail_start, self.tail_bytes = scan.pos, size - scan.pos
            if self.writable and self.damage is None:
                self.cut_tail(active, scan)
        elif self.below_recovery_point(active, scan, durable_offset):
            return self.finish(segments, start, durable_offset, state, index, times)
        if self.writable and self.damage is None:
            if not self.situation.clean:
                relative = max(durable_offset - active.base_offset, 0)
                durable_pos = max(durable_pos, index.floor(relative)[1])
                self.make_durable(active, min(durable_pos, active.size))
            durable_offset = state.last_offset + 1
        return self.finish(
            segments, start, state.last_offset + 1, state, index, times, durable_offset
        )

    def is_foreign(self, scan: TailScan) -> bool:
        """Whether what ends the log is not understood: then it is not cut. A magic
        above 2 is garbage where logstore wrote last, since it writes none."""
        if scan.error is None or not scan.error.is_unsupported:
            return False
        return scan.error.status != native.E_MAGIC or not self.situation.is_own

    def below_recovery_point(
        self, active: Segment, scan: TailScan, durable_offset: int
    ) -> bool:
        """Whether a log that is whole ends before what is known to be flushed."""
        if scan.last_offset + 1 >= durable_offset:
            return False
        if scan.batches == 0 and not self.situation.clean:
            return False
        self.damage = CorruptRecordError(
            f"the log ends at offset {scan.last_offset + 1}, {durable_offset} was "
            f"durable",
            path=active.path,
            position=scan.pos,
            offset=scan.last_offset + 1,
        )
        self.report(
            LOST_END,
            active.file(LOG),
            f"{self.damage} The partition takes no appends.",
            position=scan.pos,
            first_offset=scan.last_offset + 1,
        )
        return True

    def cut_tail(self, active: Segment, scan: TailScan) -> None:
        """Put a torn tail aside and cut it.

        1. copy it to `.logstore-torn-...` and sync that; 2. sync the directory;
        3. truncate the log; 4. sync the log. What was torn at this place before stays.
        """
        directory, files = self.directory, self.directory.files
        base, pos, size = active.base_offset, scan.pos, scan.size
        kept, is_kept = "", False
        first = scan.last_offset + 1
        try:
            with directory.opened(active.file(LOG), write=True) as fd:
                taken = set(directory.names())
                kept = next(
                    name
                    for name in layout.torn_files(base, pos)
                    if name not in taken or _begins(directory, name, fd, pos, size)
                )
                copy = directory.create(kept, exclusive=False)
                try:
                    _copy(directory, fd, pos, size, copy)
                    files.sync(copy)
                finally:
                    files.close(copy)
                directory.sync()
                is_kept = True
                files.truncate(fd, pos)
                files.sync(fd)
        except OSError as error:
            failed = storage_error(error, "put aside the torn tail of", active.path)
            self.damage = failed
            if kept and not is_kept:
                with contextlib.suppress(OSError):
                    directory.unlink(kept, missing_ok=True)
            self.report(
                TAIL_KEPT,
                active.file(LOG),
                f"{failed}. The tail was not cut; the partition can be read, and takes "
                f"no appends until it is opened again.",
                position=pos,
                size=size - pos,
                first_offset=first,
            )
            return
        self.report(
            TORN_TAIL,
            active.file(LOG),
            f"cut {size - pos} bytes behind offset {first} ({scan.reason}) from "
            f"{active.path}; they are kept in {kept}",
            position=pos,
            size=size - pos,
            first_offset=first,
            kept_at=directory.path_of(kept),
        )

    def make_durable(self, active: Segment, durable_pos: int) -> None:
        """Write again what lies past the durable point, and sync it.

        A sync that failed before the crash may have left pages that are taken for
        clean and are not on the disk, or a size: syncing alone would do nothing for
        them.
        """
        directory, files = self.directory, self.directory.files
        with directory.opened(active.file(LOG), write=True) as fd:
            _copy(directory, fd, durable_pos, active.size, fd, durable_pos)
            _cut_for_good(files, fd, active.size)
        if active.size > durable_pos:
            directory.sync()

    def load_indexes(
        self, active: Segment, state: native.SegmentState, own: PartitionState
    ) -> tuple[OffsetEntries | None, TimeEntries | None]:
        """The index files of the active segment, up to the durable point; None where
        they do not hold what they should."""
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
            return None, None  # or they were not synced before that was written
        if not self.situation.clean and not self.is_borne_out(active, index):
            return None, None
        index.synced, times.synced = wanted, wanted_times
        return index, times

    def is_borne_out(self, active: Segment, index: OffsetEntries) -> bool:
        """Whether the log has what the last entry says. Index files are not synced with
        the log: after a power cut anything may stand in them."""
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
    ) -> Loaded:
        active = segments[-1]
        active.next_offset = end
        if self.damage is None:
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
    ) -> Loaded:
        return Loaded(
            segments,
            start,
            min(max(durable, start), end),
            end,
            state,
            OffsetEntries() if index is None else index,
            TimeEntries() if times is None else times,
            self.damage,
            self.actions,
            self.tail_start,
            self.tail_bytes,
            self.situation.state is not None,
            not self.situation.clean,
        )


def _cut_for_good(files: Files, fd: int, size: int) -> None:
    """Cut a file to `size` bytes, durably, also where an earlier cut to it was not."""
    with contextlib.suppress(OSError):
        # To the size that it has already, nothing would be done.
        files.truncate(fd, size + 1)
    files.truncate(fd, size)
    files.sync(fd)


def _copy(
    directory: Directory, fd: int, begin: int, end: int, to_fd: int, to_pos: int = 0
) -> None:
    """Copy bytes [begin, end) of one file to another."""
    files = directory.files
    buffer = native.Buffer(1 << 20)
    pos = begin
    while pos < end:
        n = files.read(fd, buffer.view[: min(buffer.capacity, end - pos)], pos)
        if n == 0:
            return
        files.write(to_fd, buffer.view[:n], to_pos + pos - begin)
        pos += n


def _begins(directory: Directory, name: str, fd: int, begin: int, end: int) -> bool:
    """Whether bytes [begin, end) of a file begin with all that is in the file `name`: a
    copy of them, perhaps one that was cut short."""
    files = directory.files
    mine, other = native.Buffer(1 << 16), native.Buffer(1 << 16)
    try:
        with directory.opened(name) as copy:
            size = files.size(copy)
            for pos in range(0, size, mine.capacity):
                n = files.read(copy, mine.view, pos)
                files.read(fd, other.view[:n], begin + pos)
                if mine.view[:n] != other.view[:n]:
                    return False
            return size <= end - begin
    except OSError:
        return False
