"""The second step of loading: the segments, checked against the state file."""

from __future__ import annotations

import contextlib
import itertools

from logstore import _native as native
from logstore.errors import CorruptRecordError, UnsupportedError
from logstore.index import STALE_DIGEST, digest_of
from logstore.io import layout
from logstore.io.checkpoint.partition_state import UNKNOWN_TIMESTAMP, segment_state
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    INDEX_REBUILT,
    LOST_END,
    LOST_SEGMENT,
    LOST_TOLD,
    TORN_TAIL,
    UNSUPPORTED,
)
from logstore.io.layout import (
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    segment_file,
)
from logstore.log.recover.context import Case
from logstore.log.recover.rebuild import rebuild
from logstore.log.recover.survey import Survey
from logstore.log.scan import scan_log
from logstore.segment import (
    Segment,
)

__all__ = ["Segments"]


class Segments:
    """Opens the segments of a partition, and checks their sizes and indexes."""

    def __init__(self, case: Case, found: Survey) -> None:
        self.case = case
        self.found = found

    def open(self) -> list[Segment]:
        """The segments of the log, in order; the sealed ones have indexes."""
        segments = self.open_all()
        self.drop_unconnected(segments)
        if self.case.writable:
            for segment in segments[:-1]:
                self.ensure_index(segment)
        return segments

    def open_all(self) -> list[Segment]:
        """Segments in order; all but the last have the size of their file."""
        state = self.case.situation.state
        known = {row[0]: row for row in state.sealed} if state else {}
        active_base = state.active["base_offset"] if state else -1
        bases = set(self.found.logs)
        if state:
            # A missing segment stays in the list: reading it raises an error.
            bases |= set(known) | {active_base}
        segments: list[Segment] = []
        lost: list[int] = []
        first = min(known, default=active_base)
        for base in sorted(bases):
            if first < base < active_base and base not in known:
                self.foreign_segment(base)
                continue
            transition = self.found.logs.get(base, "")
            segment = Segment(
                self.case.directory,
                self.case.descriptors,
                base,
                0,
                base,
                transition=transition,
                is_gapless=state is not None and state.is_gapless,
            )
            if base not in self.found.logs:
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
                if base in self.found.logs:
                    self.check_sealed(segment, row[1])
            elif base in self.found.logs:
                size = self.case.file_size(segment)
                if size < 0 and self.case.damage is not None and base != active_base:
                    # Otherwise its records would be missing without any report.
                    raise self.case.damage
                segment.size = max(size, 0)
            segments.append(segment)
        self.more_lost_segments(lost[LOST_TOLD:])
        for segment, after in itertools.pairwise(segments):
            if segment.base_offset not in known:
                segment.next_offset = after.base_offset
        return segments

    def check_sealed(self, segment: Segment, size: int) -> None:
        found = self.case.file_size(segment)
        if found in (size, -1):
            return
        self.case.damage = CorruptRecordError(
            f"a sealed segment has {found} bytes, not {size}",
            path=segment.path,
            position=min(found, size),
            offset=segment.base_offset,
        )
        self.case.report(
            LOST_END if found < size else CORRUPT,
            segment.file(LOG),
            str(self.case.damage),
            position=min(found, size),
            size=abs(size - found),
            first_offset=segment.base_offset,
        )

    def foreign_segment(self, base: int) -> None:
        """Report a segment file between the sealed segments that is not one of them: it
        was put there later. It stays in place, and is not part of the log."""
        name = segment_file(base, LOG)
        self.case.damage = CorruptRecordError(
            "a segment file that is not of this log, between two that are",
            path=self.case.directory.path_of(name),
            position=0,
            offset=base,
        )
        self.case.report(CORRUPT, name, str(self.case.damage), first_offset=base)

    def lost_segment(self, base: int) -> None:
        name = segment_file(base, LOG)
        self.case.damage = CorruptRecordError(
            "a segment file is gone",
            path=self.case.directory.path_of(name),
            position=0,
            offset=base,
        )
        self.case.report(LOST_SEGMENT, name, str(self.case.damage), first_offset=base)

    def more_lost_segments(self, bases: list[int]) -> None:
        """Report the lost segments that are not reported one by one: a state file may
        name millions of them."""
        if bases:
            name = segment_file(bases[0], LOG)
            self.case.report(
                LOST_SEGMENT,
                name,
                f"{len(bases)} more segment files of "
                f"{self.case.directory.path} are gone, "
                f"{name} to {segment_file(bases[-1], LOG)}",
                first_offset=bases[0],
            )

    def ensure_index(self, segment: Segment) -> None:
        """Build the indexes of a sealed segment if one is missing, or if they may be
        unfinished because sealing failed or the roll was interrupted."""
        base, state = segment.base_offset, self.case.situation.state
        name = segment_file(base, INDEX)
        names = {name, segment_file(base, TIME_INDEX)}
        is_doubtful = segment.time_digest == STALE_DIGEST
        is_doubtful |= state is not None and base >= state.active["base_offset"]
        if not is_doubtful and names <= self.found.names:
            return
        with contextlib.suppress(OSError):
            try:
                rebuild(self.case.directory, base, self.case.config)
            except (CorruptRecordError, UnsupportedError) as error:
                self.unindexed(segment, error)
                return
            data = self.case.directory.read_file(segment_file(base, TIME_INDEX))
            segment.time_digest = digest_of(data)
            self.case.report(
                INDEX_REBUILT,
                name,
                f"built the missing index {name} from the log",
                first_offset=segment.base_offset,
            )

    def unindexed(
        self, segment: Segment, error: CorruptRecordError | UnsupportedError
    ) -> None:
        """Report a sealed segment whose index cannot be built because not all of it can
        be read: it stays as it is, and readers use no index."""
        is_damage = isinstance(error, CorruptRecordError)
        self.case.damage = error
        self.case.report(
            CORRUPT if is_damage else UNSUPPORTED,
            segment.file(LOG),
            f"{error} Nothing was cut; the partition takes no appends.",
            position=error.position or 0,
            first_offset=error.offset if error.offset is not None else -1,
        )

    def drop_unconnected(self, segments: list[Segment]) -> None:
        """Put aside segments that a roll began and that were undone: without a sync of
        the directory, a power failure may bring their names back.

        These are segments after the last one that the state knows of, if the previous
        segment is intact and does not end at the offset that they begin at.
        """
        own = self.case.situation.state
        if own is None or self.case.situation.clean or self.case.damage is not None:
            return
        states = {own.active["base_offset"]: segment_state(own.active)}
        for slot, (segment, after) in enumerate(itertools.pairwise(segments)):
            base = segment.base_offset
            if base < own.active["base_offset"]:
                continue
            state = states.get(base) or native.SegmentState(base)
            try:
                with self.case.directory.opened(segment.file(LOG)) as fd:
                    size = self.case.directory.files.size(fd)
                    scan = scan_log(
                        self.case.directory, fd, size, state, checks=segment.checks
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
        """Rename a segment that is left over from an undone roll; none of its records
        was acknowledged."""
        if not self.case.writable:
            return
        base, name = segment.base_offset, segment.file(LOG)
        size = max(self.case.file_size(segment), 0)
        taken = set(self.case.directory.names())
        kept = next(kept for kept in layout.torn_files(base, 0) if kept not in taken)
        self.case.directory.rename(name, kept)
        for suffix in SEGMENT_SUFFIXES:
            self.case.directory.unlink(segment_file(base, suffix), missing_ok=True)
        self.case.directory.sync()
        self.case.report(
            TORN_TAIL,
            name,
            f"{name} does not follow the segment before: it is left over from a roll "
            f"that was undone; its {size} bytes are kept in {kept}",
            position=0,
            size=size,
            first_offset=base,
            kept_at=self.case.directory.path_of(kept),
        )
