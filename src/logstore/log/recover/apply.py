"""Carries out the decision about a partition, and makes the log that it describes."""

from __future__ import annotations

import contextlib
import dataclasses

from logstore import _native as native
from logstore.errors import CorruptCheckpointError, storage_error
from logstore.index import OffsetEntries, TimeEntries, add_closing_entry
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.partition_state import (
    UNKNOWN_TIMESTAMP,
    segment_state,
    state_fields,
)
from logstore.io.checkpoint.recovery_report import (
    INDEX_REBUILT,
    TAIL_KEPT,
    TORN_TAIL,
    RecoveryAction,
)
from logstore.io.directory import Directory
from logstore.io.full_disk import rename_or_unlink, write_file_anyway
from logstore.io.layout import (
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SWAP,
    TIME_INDEX,
    segment_file,
)
from logstore.log.recover.context import RecoveredLog, RecoveryContext
from logstore.log.recover.durable import begins, copy_bytes, cut_for_good, make_durable
from logstore.log.recover.facts import ReadLog
from logstore.log.recover.names import Operations
from logstore.log.recover.plan import CASES, TAKES_NO_APPENDS, OpeningFinding, Plan
from logstore.log.recover.rebuild import (
    cut_transactions,
    index_segment,
    remove_snapshots,
    write_indexes,
)
from logstore.log.recover.survey import Reading, Survey
from logstore.log.recover.transactions import finish_transactions
from logstore.segment import Segment

__all__ = [
    "apply",
    "finish_deletion",
    "finish_transitions",
    "finish_truncation",
    "recovered_log",
]


def apply(context: RecoveryContext, plan: Plan, survey: Survey) -> RecoveredLog:
    """Carry out a plan: repair what it says, and report each act.

    After a crash at any step, the next plan for the partition is the same or a shorter
    one.

    Raises:
        OSError: a step failed.
    """
    return _Application(context, plan, survey).run()


def recovered_log(context: RecoveryContext, plan: Plan, survey: Survey) -> RecoveredLog:
    """The log that a plan describes, if nothing is carried out; its actions are the
    reasons why it takes no appends."""
    application = _Application(context, plan, survey)
    for finding in plan.findings:
        if CASES[finding.label] == TAKES_NO_APPENDS:
            application.report(finding)
    return application.log()


# ------------------------------------------------------- operations that names show


def finish_truncation(directory: Directory, operations: Operations) -> None:
    """Continue a `truncate_to` that was interrupted after its commit.

    1. make its commit durable; 2. cut the last segment that stays, and sync it;
    3. remove the later ones; 4. sync the directory.
    The state file still says that a truncation is in progress: it is written again
    before the first append.
    """
    truncated, dropped = operations.truncated, operations.dropped
    if truncated is None and not dropped:
        return
    _confirm(directory)
    if truncated is not None:
        base, size = truncated
        with directory.opened(segment_file(base, LOG), write=True) as fd:
            if directory.files.size(fd) >= size:
                cut_for_good(directory.files, fd, size)
    for base in dropped:
        for suffix in SEGMENT_SUFFIXES:
            directory.unlink(segment_file(base, suffix), missing_ok=True)
    if dropped:
        directory.sync()


def _confirm(directory: Directory) -> None:
    """Make the state file durable before the operation that it records is carried out.
    It may be in the page cache only, in pages that count as written: a writer on a full
    disk changes the file in place, and its sync may have failed. So the file is written
    again."""
    state = directory.read_file(layout.PARTITION_STATE)
    write_file_anyway(directory, layout.PARTITION_STATE, state)


def finish_deletion(directory: Directory, operations: Operations) -> list[str]:
    """Continue a deletion that was interrupted after its commit: rename the segments
    below the first one that the state knows. Returns their new names."""
    if operations.deleted:
        _confirm(directory)
    renamed = []
    for base in operations.deleted:
        for suffix in SEGMENT_SUFFIXES:
            name = segment_file(base, suffix)
            with contextlib.suppress(FileNotFoundError):
                if rename_or_unlink(directory, name, name + DELETED):
                    renamed.append(name + DELETED)
    return renamed


def finish_transitions(directory: Directory, operations: Operations) -> None:
    """Finish or undo an interrupted compaction or swap.

    1. remove the files that the swap supersedes, sync the directory; 2. rename `.swap`
    to final names; 3. sync the directory; 4. remove `.cleaned` and unfinished `.swap`
    files, sync the directory.
    """
    for name in operations.superseded:
        directory.unlink(name, missing_ok=True)
    if operations.superseded and operations.swaps:
        # Without a `.swap`, they would be segments of the log again.
        directory.sync()
    for name in operations.swaps:
        directory.rename(name, name.removesuffix(SWAP))
    if operations.swaps:
        directory.sync()
    for name in operations.leftovers:
        directory.unlink(name, missing_ok=True)
    if operations.leftovers:
        # With the next state, an unfinished `.swap` would count.
        directory.sync()


class _Application:
    """One plan, while it is carried out.

    Attributes:
        actions: for the report.
        deleted: `.deleted` files that wait for their removal.
        indexed: as in the plan.
        damage: why the partition takes no appends; None if it does.
        time_digests: base offset -> digest of the time index that was built.
    """

    def __init__(self, context: RecoveryContext, plan: Plan, survey: Survey) -> None:
        self.context = context
        self.plan = plan
        self.survey = survey
        self.directory = context.directory
        self.actions: list[RecoveryAction] = []
        self.deleted = list(plan.operations.waiting)
        self.indexed = frozenset(plan.indexed)
        self.time_digests: dict[int, int] = {}
        self.damage = None if plan.damage is None else plan.damage.error()

    def run(self) -> RecoveredLog:
        """1. finish operations; 2. put aside, build, cut, in the order of the findings;
        3. make the log durable, and its start; 4. remove producer snapshots after its
        end, and finish the transaction indexes; 5. write the indexes of a closed log;
        6. remove stale digests."""
        plan, directory = self.plan, self.directory
        finish_truncation(directory, plan.operations)
        self.deleted += finish_deletion(directory, plan.operations)
        finish_transitions(directory, plan.operations)
        self.remove_deleted()
        for name in plan.operations.orphans:
            directory.unlink(name, missing_ok=True)
        for finding in plan.findings:
            self.act(finding)
        self.make_durable()
        self.make_start_durable()
        log = self.log()
        if self.damage is None and not self.context.metadata.clean:
            # Later snapshots have offsets that were cut, or were never durable.
            remove_snapshots(directory, above=log.end_offset)
            self.recover_transactions(log)
        if plan.is_index_written:
            self.write_last_indexes(log)
        if self.damage is None:
            for base in plan.stale_digests:
                directory.unlink(layout.digest_file(base), missing_ok=True)
        return log

    def act(self, finding: OpeningFinding) -> None:
        """Do the action for a finding, and report it."""
        if finding.label == TORN_TAIL and finding.base in self.plan.put_aside:
            self.put_aside(finding)
        elif finding.label == TORN_TAIL:
            self.cut_tail(finding)
        elif finding.label == INDEX_REBUILT and finding.base in self.indexed:
            self.build_indexes(finding)
        else:
            self.report(finding)

    def report(self, finding: OpeningFinding, kept_at: str | None = None) -> None:
        self.actions.append(
            RecoveryAction(
                finding.label,
                self.context.topic,
                self.context.partition,
                self.directory.path_of(finding.name),
                finding.position,
                finding.size,
                finding.first_offset,
                kept_at,
                finding.message,
            )
        )

    def remove_deleted(self) -> None:
        """Remove `.deleted` files whose delay is over; keep the others in `deleted`."""
        now_ms = self.directory.files.now_ms()
        delay_ms = self.context.config.file_delete_delay_ms
        waiting: list[str] = []
        for name in self.deleted:
            with contextlib.suppress(FileNotFoundError):
                renamed_ms = self.directory.stat(name).ctime_ns // 1_000_000
                if 0 <= now_ms - renamed_ms < delay_ms:
                    waiting.append(name)
                else:
                    self.directory.unlink(name, missing_ok=True)
        self.deleted = waiting

    # -- the log

    def log(self) -> RecoveredLog:
        """The log after the actions so far."""
        plan, metadata = self.plan, self.context.metadata
        state = metadata.state
        if plan.segments:
            reading = self.reading()
        else:
            empty = native.SegmentState(plan.start_offset)
            reading = Reading(empty, OffsetEntries(), TimeEntries())
        if plan.damage is None and reading.state.last_offset + 1 < plan.start_offset:
            # The next record gets the start offset, which lies beyond the end.
            reading.state.raw.last_offset = plan.start_offset - 1
        segments = self.segments(reading.state)
        # If the torn tail could not be cut, nothing after the durable point was synced.
        has_failed = plan.damage is None and self.damage is not None
        log = RecoveredLog(
            segments,
            plan.start_offset,
            plan.durable_before if has_failed else plan.durable_offset,
            plan.end_offset,
            reading.state,
            reading.index,
            reading.times,
            damage=self.damage,
            actions=self.actions,
            is_recorded=state is not None,
            is_unclean=not metadata.clean,
            deleted=self.deleted,
            digested=set(plan.digested),
        )
        if plan.tail is not None:
            log.tail_start, log.tail_bytes = plan.tail.pos, plan.tail.size
        if state is not None:
            log.cuts, log.log_id = state.cuts, state.log_id
            log.is_contiguous = state.is_contiguous
            log.is_truncating = state.is_truncating
            log.foreign_end = state.foreign_end
            log.compactions = state.compactions
        else:
            if not segments:
                log.is_contiguous = _is_without_epochs(self.directory)
            if self.context.writable and self.damage is None:
                # From here on, logstore alone appends.
                log.foreign_end = log.end_offset
        return log

    def segments(self, last: native.SegmentState) -> list[Segment]:
        """`last`: the state of the last one at its end."""
        state = self.context.metadata.state
        rows = {row[0]: row for row in state.sealed} if state else {}
        segments = []
        for planned in self.plan.segments:
            base = planned.base_offset
            segment = Segment(
                self.directory,
                self.context.descriptors,
                base,
                planned.size,
                planned.next_offset,
                transition="" if self.context.writable else planned.transition,
                is_contiguous=state is not None and state.is_contiguous,
            )
            segment.is_lost = planned.is_lost
            if base in rows:
                *_, largest, largest_offset, digest = rows[base]
                segment.time_digest = digest
                if largest != UNKNOWN_TIMESTAMP:
                    segment.max_timestamp = largest
                segment.max_timestamp_offset = largest_offset
            elif ReadLog(base) in self.survey.readings:
                _take_timestamp(segment, self.survey.readings[ReadLog(base)].state)
            segment.time_digest = self.time_digests.get(base, segment.time_digest)
            segments.append(segment)
        if segments and self.damage is None:
            _take_timestamp(segments[-1], last)
        return segments

    # -- segments

    def build_indexes(self, finding: OpeningFinding) -> None:
        """Build the indexes of a sealed segment; readers use none if this fails."""
        directory, base = self.directory, finding.base
        reading = self.survey.readings.get(ReadLog(base))
        with contextlib.suppress(OSError):
            if reading is None:
                reading = Reading(*index_segment(directory, base, self.context.config))
            self.time_digests[base] = write_indexes(
                directory, base, reading.state, reading.index, reading.times
            )
            self.report(finding)

    def put_aside(self, finding: OpeningFinding) -> None:
        """Rename a segment that is left over from an undone roll."""
        directory, base = self.directory, finding.base
        names = set(directory.names())
        kept = next(kept for kept in layout.torn_files(base, 0) if kept not in names)
        directory.rename(finding.name, kept)
        for suffix in SEGMENT_SUFFIXES:
            directory.unlink(segment_file(base, suffix), missing_ok=True)
        directory.sync()
        message = (
            f"{finding.name}: {finding.message}; its {finding.size} bytes are kept in "
            f"{kept}"
        )
        self.report(finding._replace(message=message), directory.path_of(kept))

    # -- the end of the log

    def cut_tail(self, finding: OpeningFinding) -> None:
        """Put a torn tail aside and cut it.

        1. copy it to `.logstore-torn-...` and sync the copy; 2. sync the directory;
        3. truncate the log; 4. sync the log. Copies of earlier torn tails at this
        position stay.
        """
        directory, files = self.directory, self.directory.files
        base, pos, size = finding.base, finding.position, finding.size
        path = directory.path_of(finding.name)
        kept, is_kept = "", False
        try:
            with directory.opened(finding.name, write=True) as fd:
                names = set(directory.names())
                end = pos + size
                kept = next(
                    name
                    for name in layout.torn_files(base, pos)
                    if name not in names or begins(directory, name, fd, pos, end)
                )
                torn = directory.create(kept, exclusive=False)
                try:
                    copy_bytes(directory, fd, pos, end, torn)
                    files.sync(torn)
                finally:
                    files.close(torn)
                directory.sync()
                is_kept = True
                files.truncate(fd, pos)
                files.sync(fd)
        except OSError as error:
            failed = storage_error(error, "save the torn tail of", path)
            self.damage = failed
            if kept and not is_kept:
                with contextlib.suppress(OSError):
                    directory.unlink(kept, missing_ok=True)
            message = (
                f"{failed}. The tail was not cut; the partition can be read, and takes "
                f"no appends until it is opened again."
            )
            self.report(finding._replace(label=TAIL_KEPT, message=message))
            return
        message = (
            f"cut {size} bytes from offset {finding.first_offset} on "
            f"({finding.message}) from {path}; they are kept in {kept}"
        )
        self.report(finding._replace(message=message), directory.path_of(kept))

    def make_durable(self) -> None:
        """Make the last segment durable, from its durable point on."""
        plan = self.plan
        if plan.rewritten_from is None or self.damage is not None:
            return
        segment, (durable_pos, durable_offset) = plan.segments[-1], plan.rewritten_from
        relative = max(durable_offset - segment.base_offset, 0)
        durable_pos = max(durable_pos, self.reading().index.floor(relative)[1])
        name = segment_file(segment.base_offset, LOG)
        make_durable(self.directory, name, segment.size, min(durable_pos, segment.size))

    def make_start_durable(self) -> None:
        """Make the start of a log that was not closed durable, if only its state says
        so: it would be lower after a power cut."""
        plan, metadata = self.plan, self.context.metadata
        has_log = bool(plan.segments) and self.damage is None
        is_killed = metadata.state is not None and not metadata.clean
        if has_log and is_killed and plan.start_offset > plan.segments[0].base_offset:
            _confirm(self.directory)

    def reading(self) -> Reading:
        """The state and the index entries of the last segment at its end."""
        plan, state = self.plan, self.context.metadata.state
        question = plan.active_walk
        if question is not None and question in self.survey.readings:
            return self.survey.readings[question]
        index, times = OffsetEntries(), TimeEntries()
        if plan.is_indexed and self.survey.loaded is not None:
            index, times = self.survey.loaded
        if state is None:  # else it was walked over, unless it is lost
            return Reading(
                native.SegmentState(plan.segments[-1].base_offset), index, times
            )
        return Reading(segment_state(state.active), index, times)

    def recover_transactions(self, log: RecoveredLog) -> None:
        """Let the transaction indexes agree with a log that was not closed."""
        if not self.context.metadata.is_own:
            metadata, end = self.context.metadata, log.end_offset
            finish_transactions(self.directory, log.segments, end, metadata)
        elif log.segments:
            # An entry is written before its marker.
            base = log.segments[-1].base_offset
            cut_transactions(self.directory, base, log.end_offset)

    def write_last_indexes(self, log: RecoveredLog) -> None:
        """Write missing indexes of the last segment of a closed log.

        1. write both, the offset index last; 2. record their content in the state file.
        If a step fails, the next opening does it, and readers use no index.
        """
        state, directory = self.context.metadata.state, self.directory
        base, index, times = log.segments[-1].base_offset, log.index, log.times
        add_closing_entry(log.active_state, times)
        with contextlib.suppress(OSError):
            directory.write_file(segment_file(base, TIME_INDEX), times.data())
            times.written = times.synced = times.count
            directory.write_file(segment_file(base, INDEX), index.data())
            index.written = index.synced = index.count
            if state is not None:
                updated = dataclasses.replace(
                    state,
                    active=state_fields(log.active_state),
                    time_digest=times.digest(),
                    # Its log is whole, since its indexes are written.
                    is_damaged=False,
                )
                value = updated.to_dict()
                checkpoints.write_state(directory, layout.PARTITION_STATE, value)


def _take_timestamp(segment: Segment, state: native.SegmentState) -> None:
    segment.max_timestamp = state.max_timestamp
    segment.max_timestamp_offset = state.max_timestamp_offset


def _is_without_epochs(directory: Directory) -> bool:
    """Whether logstore's leader epoch, 0, is right for a log that has no records: a
    broker may have used the log before."""
    try:
        epochs = checkpoints.read_epochs(directory)
    except (CorruptCheckpointError, OSError):
        return False
    return not any(epoch for epoch, _ in epochs)
