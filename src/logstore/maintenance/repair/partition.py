"""Repairing one partition: check, decide, keep, change, and record.

A crash at any of the steps below leaves a log unchanged, or repaired further. It never
leaves a log that lacks an intact batch which is not in the quarantine:

1. finish an interrupted compaction or truncation (as opening does);
2. check (`assessment`) and decide (`plan`);
3. remove the mark of a clean stop;
4. keep the bytes to be taken out, durably, with the manifest;
5. the log: remove, cut, rewrite, from its end to its beginning (`rewrite`);
6. the files derived from it: indexes, leader epochs;
7. the empty segment that prevents offsets from being assigned again;
8. logstore's own state, if logstore was the last writer;
9. the verdicts of earlier openings on the damage (`.logstore-damaged`) go.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Final

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.errors import CorruptCheckpointError
from logstore.index import UNKNOWN_DIGEST, digest_of
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.partition_state import (
    UNKNOWN_TIMESTAMP,
    PartitionState,
    state_fields,
)
from logstore.io.checkpoint.recovery_report import (
    LEFTOVERS_REMOVED,
    LOST_END,
    SWAP_FINISHED,
)
from logstore.io.checkpoint.recovery_report import LOST_SEGMENT as SEGMENT_IS_LOST
from logstore.io.checkpoint.verdicts import forget_verdicts
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import (
    INDEX,
    LOG,
    OFFSET_MAX,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    TopicPartition,
    segment_file,
)
from logstore.log.recover import RecoveryContext, make_durable
from logstore.log.recover.apply import finish_transitions, finish_truncation
from logstore.log.recover.rebuild import index_segment, rebuild
from logstore.log.recover.survey import survey
from logstore.log.recover.transactions import rebuild_all
from logstore.maintenance.finding import OFFSETS
from logstore.maintenance.repair.assessment import Assessment, assess
from logstore.maintenance.repair.ownership import RepairedOwnership
from logstore.maintenance.repair.plan import (
    RepairedSegment,
    VerifiedSegment,
    plan_cut,
    plan_skip,
)
from logstore.maintenance.repair.quarantine import Quarantine
from logstore.maintenance.repair.report import (
    CUT,
    END_KEPT,
    INDEX_BUILT,
    LEFT_ALONE,
    LOST,
    PUT_ASIDE,
    REMOVED,
    RENAMED,
    SKIPPED,
    STATE_BUILT,
    TIDIED,
    VERDICT_GONE,
    RepairAction,
)
from logstore.maintenance.repair.rewrite import Rewrite
from logstore.maintenance.verify.context import StoreMetadata
from logstore.maintenance.verify.decided import plan_of
from logstore.maintenance.verify.report import Run
from logstore.segment import Segment

_LOSSES: Final = (LOST_END, SEGMENT_IS_LOST)


@dataclasses.dataclass(slots=True)
class RepairPlan:
    """The decision for a partition.

    Attributes:
        targets: the segments that stay, in order.
        removed: segments that do not.
        empty: base offset of an empty segment to be added at the end; None: none.
        start, end: the offsets of the log after the repair.
    """

    targets: list[RepairedSegment]
    removed: list[VerifiedSegment]
    empty: int | None
    start: int
    end: int

    @property
    def is_change(self) -> bool:
        """Whether any byte of the log changes."""
        changed = any(target.is_changed for target in self.targets)
        return changed or bool(self.removed) or self.empty is not None

    @property
    def lowest_change(self) -> int:
        """The offset from which the log may differ from before."""
        lowest = [source.base for source in self.removed]
        for target in self.targets:
            if not target.is_changed:
                continue
            if target.is_prefix and target.base == target.source.base:
                lowest.append(max(target.last + 1, target.base))
            else:
                lowest.append(min(target.base, target.source.base))
        return min(lowest, default=self.end)


class PartitionRepair:
    """The repair of one partition.

    Attributes:
        actions: the changes that were made, or would be made.
        end: the end of the log; None if nothing was changed.
    """

    def __init__(
        self,
        directory: Directory,
        key: TopicPartition,
        config: TopicConfig,
        facts: StoreMetadata,
        ownership: RepairedOwnership,
        mode: str | None,
        outside: str | None,
        *,
        dry_run: bool,
    ) -> None:
        self.directory = directory
        self.key = key
        self.config = config
        self.facts = facts
        self.ownership = ownership
        self.mode = mode
        self.dry_run = dry_run
        self.quarantine = Quarantine(directory, mode or "", outside, is_root=False)
        self.actions: list[RepairAction] = []
        self.end: int | None = None
        self._must_write = False

    def run(self, run: Run, threads: int) -> Assessment:
        """Repair the partition; returns the facts from before."""
        if self.mode is None:
            seen = assess(run, self.facts, self.directory, threads)
            if not (seen.has_damage or self._has_losses(run)):
                self._forget_verdicts(seen)
            return seen
        if not self.dry_run:
            self._tidy(run)
        seen = assess(run, self.facts, self.directory, threads)
        if seen.foreign:
            for path, message in seen.foreign:
                self._report(
                    LEFT_ALONE, path, f"{message}. The partition was not changed"
                )
            return seen
        plan = self._decide(seen)
        bad_files, bad_indexes = seen.bad_files(), seen.bad_indexes()
        if not (
            plan.is_change
            or bad_files
            or bad_indexes
            or seen.losses()
            or seen.problems
            or self._must_write
        ):
            self._forget_verdicts(seen)
            return seen
        if not self.dry_run:
            self.ownership.begin()
        try:
            self._keep(seen, plan, bad_files)
            if not self.dry_run:
                self.quarantine.ready()
        except OSError:
            self.quarantine.give_up()
            raise
        self._report_indexes(plan, bad_indexes)
        if not self.dry_run:
            self._change(seen, plan, bad_indexes)
            self.end = plan.end
        self._forget_verdicts(seen)
        return seen

    def _has_losses(self, run: Run) -> bool:
        """Whether something is still missing that a verdict says was there: no check of
        the bytes finds that, and to do without it takes a mode."""
        context = self.facts.context(self.directory)
        facts, _ = plan_of(run, self.directory, context)
        return any(
            standing.is_there and standing.verdict.kind in _LOSSES
            for standing in facts.standings
        )

    def _forget_verdicts(self, seen: Assessment) -> None:
        """Remove the damage that an opening has recorded, before the log may be written
        to: by a deep check, the log is whole."""
        verdicts = seen.verdicts
        if not self.dry_run:
            forget_verdicts(self.directory)
        if verdicts:
            path = self.directory.path_of(layout.DAMAGED)
            recorded_damage = verdicts.fault or "; ".join(
                v.reason for v in verdicts.rows[:3]
            )
            message = (
                f"{path} says: {recorded_damage}. That damage is no longer in the log"
            )
            self._report(VERDICT_GONE, path, message)

    # -- 1. names

    def _tidy(self, run: Run) -> None:
        """Finish or undo an operation that was interrupted before."""
        directory = self.directory
        metadata = self.facts.context(directory)
        is_truncating = metadata.state is not None and metadata.state.is_truncating
        case = RecoveryContext(
            directory, run.descriptors, *self.key, self.config, metadata, writable=True
        )
        plan = survey(case).plan
        operations = plan.operations
        if not (operations.swaps or operations.leftovers or is_truncating):
            return
        if plan.is_end_unknown and plan.damage is not None:
            raise plan.damage.error()
        self.ownership.begin()
        finish_truncation(directory, operations)
        finish_transitions(directory, operations)
        self._must_write = is_truncating
        for finding in plan.findings:
            if finding.label in (SWAP_FINISHED, LEFTOVERS_REMOVED):
                path = directory.path_of(finding.name)
                self._report(TIDIED, path, finding.message)

    # -- 2. deciding

    def _decide(self, seen: Assessment) -> RepairPlan:
        segments, floor = seen.segments, seen.floor
        contiguous = seen.is_contiguous
        if self.mode == "cut":
            targets = plan_cut(segments, seen.missing, is_contiguous=contiguous)
        else:
            targets = plan_skip(segments, is_contiguous=contiguous, end=seen.closed_end)
        end = _end_of(targets)
        start = max(seen.start, 0)
        if self.mode == "cut" and end < start:
            # The log ends before its start: like a broker, keep nothing.
            targets, end = [], start
        log_end = max(end, floor) if self.mode == "skip" else end
        if not targets:
            # Without a state only the first file name says where the log starts.
            is_named = segments and self.mode == "cut" and seen.context.state is None
            log_end = max(log_end, start, segments[0].base if is_named else 0)
        empty = None
        had_log = segments or log_end > 0 or seen.losses()
        if log_end > end or (not targets and had_log):
            empty = log_end
        kept = {id(target.source) for target in targets}
        removed = [f for f in segments if id(f) not in kept]
        first_base = targets[0].base if targets else log_end
        return RepairPlan(
            targets, removed, empty, min(max(start, first_base), log_end), log_end
        )

    # -- 4. keeping

    def _keep(
        self, seen: Assessment, plan: RepairPlan, bad_files: dict[str, str]
    ) -> None:
        """Put everything that will be removed into the quarantine; report it."""
        for loss in seen.losses():
            lost = loss.position, 0, loss.first_offset, loss.last_offset, None
            self.actions.append(RepairAction(LOST, loss.path, *lost, loss.message))
        self._keep_ranges(seen, plan)
        for source in plan.removed:
            path = self.directory.path_of(source.name)
            reason = seen.reason(path, 0, max(source.size, 1), self._default_reason)
            first, last = _offsets_of(seen, source)
            kept = self._move(source.name, first, last, reason)
            message = f"{path}, {source.size} bytes, is removed as a whole: {reason}"
            place = None, source.size, first, last, kept
            self.actions.append(RepairAction(REMOVED, path, *place, message))
            if self.directory.exists(segment_file(source.base, TXN_INDEX)):
                self._move(segment_file(source.base, TXN_INDEX), None, None, reason)
        for name, reason in bad_files.items():
            label, what = PUT_ASIDE, "Done without"
            if name.endswith(TXN_INDEX):
                label, what = INDEX_BUILT, "Rebuilt from the log"
            elif name == layout.PARTITION_STATE:
                label, what = STATE_BUILT, "Rebuilt from the log"
                if not self.facts.own:
                    what = "It did not count: another program wrote last"
            kept, is_there = None, self.directory.exists(name)
            if is_there:
                kept = self._move(name, None, None, reason)
            if is_there or label == INDEX_BUILT:
                path = self.directory.path_of(name)
                self._report(label, path, f"{reason}. {what}", kept)
        if plan.is_change:
            self._keep_derived(plan, set(bad_files))
        if plan.empty is not None:
            name = segment_file(plan.empty, LOG)
            self._report(
                END_KEPT,
                self.directory.path_of(name),
                f"the log continues at offset {plan.empty}, in a new segment {name}",
            )

    def _keep_ranges(self, seen: Assessment, plan: RepairPlan) -> None:
        """Keep the bytes that are taken out of segments that stay."""
        last_before: int | None = None
        for slot, target in enumerate(plan.targets):
            source, name = target.source, target.source.name
            path = self.directory.path_of(name)
            if target.base != source.base:
                to = segment_file(target.base, LOG)
                message = f"{path} has offsets from {target.base} on: renamed to {to}"
                self._report(RENAMED, path, message)
            higher_bases = [t.base for t in plan.targets[slot + 1 :]]
            higher_bases += [f.base for f in plan.removed if f.base > target.base]
            following = min(higher_bases, default=_end_of_last(seen, source))
            for begin, end in target.dropped():
                reason = seen.reason(path, begin, end, self._default_reason)
                before, after = self._offsets_around(source, target, begin, end)
                first = target.base if before is None else before + 1
                if before is None and last_before is not None:
                    first = max(first, last_before + 1)
                last = after if after is not None else following
                last = None if last is None else last - 1
                offsets: tuple[int | None, int | None] = first, last
                if last is not None and last < first:
                    offsets = None, None
                kept = None
                if not self.dry_run:
                    kept = self.quarantine.copy(name, begin, end, *offsets, reason)
                is_cut = end == source.size and target.is_prefix
                where = begin, end - begin, *offsets, kept
                message = f"bytes {begin} to {end} of {path} are removed: {reason}"
                label = CUT if is_cut else SKIPPED
                self.actions.append(RepairAction(label, path, *where, message))
            last_before = target.last if target.last >= 0 else last_before

    def _offsets_around(
        self, source: VerifiedSegment, target: RepairedSegment, begin: int, end: int
    ) -> tuple[int | None, int | None]:
        """Last offset that stays before a dropped range, first one after it."""
        before: int | None = None
        after: int | None = None
        for run in source.runs:
            if not any(
                low < run.end and run.begin < high for low, high in target.ranges
            ):
                continue
            if run.end <= begin:
                before = run.last
            elif run.begin >= end:
                if after is None:
                    after = run.first if run.first >= 0 else None
            else:
                # A part of a run: look at its batches.
                for low, high, first, last in source.batches(run):
                    if high <= begin:
                        before = last
                    elif low >= end and after is None and first >= 0:
                        after = first
        return before, after

    def _keep_derived(self, plan: RepairPlan, bad: set[str]) -> None:
        """Quarantine files about removed offsets: snapshots, leader epochs."""
        directory = self.directory
        for name in directory.names():
            parsed = layout.parse_segment_file(name)
            if (
                parsed is not None
                and parsed.suffix == SNAPSHOT
                and not parsed.transition
                and parsed.base_offset > plan.end
                and name not in bad
            ):
                reason = "it refers to offsets that no longer exist"
                kept = self._move(name, None, None, reason)
                path = directory.path_of(name)
                self._report(PUT_ASIDE, path, f"{path}: {reason}", kept)
        if layout.LEADER_EPOCHS in bad or self.dry_run:
            return
        epochs = checkpoints.read_epochs(directory)
        if any(offset >= plan.end for _, offset in epochs):
            name = layout.LEADER_EPOCHS
            size = directory.stat(name).size
            reason = "epochs that begin at or after the new end are removed"
            self.quarantine.copy(name, 0, size, None, None, reason)

    def _move(
        self, name: str, first: int | None, last: int | None, reason: str
    ) -> str | None:
        if self.dry_run:
            return None
        return self.quarantine.move(name, first, last, reason)

    @property
    def _default_reason(self) -> str:
        if self.mode == "cut":
            return "it follows the first damage"
        return "its offsets do not follow those before it"

    # -- 5. to 8. changing

    def _report_indexes(self, plan: RepairPlan, bad: set[int]) -> None:
        for target in plan.targets:
            if target.source.base in bad:
                path = self.directory.path_of(segment_file(target.base, INDEX))
                self._report(INDEX_BUILT, path, f"{path} and its time index: rebuilt")

    def _change(
        self, seen: Assessment, plan: RepairPlan, bad_indexes: set[int]
    ) -> None:
        directory = self.directory
        state = seen.context.state
        if self._leaves_gaps(seen, plan) and state and state.is_contiguous:
            # The next attempt must not treat the gaps as damage.
            loose = dataclasses.replace(state, is_contiguous=False)
            checkpoints.write_state(directory, layout.PARTITION_STATE, loose.to_dict())
        for kept in reversed(self.quarantine.kept):
            if not kept.source.endswith((LOG, layout.PARTITION_STATE)):
                self.quarantine.take_out(kept.source)
        rewrite = Rewrite(directory, self.quarantine)
        rewrite.remove(plan.removed)
        rewrite.cut(plan.targets)
        rewritten = rewrite.rewrite(plan.targets)
        if plan.is_change:
            self._cut_epochs(plan.end)
        if plan.empty is not None:
            rewrite.create(plan.empty)
        bases = [target.base for target in plan.targets]
        if plan.empty is not None:
            bases.append(plan.empty)
        for target in plan.targets:
            changed = target.is_changed or target in rewritten
            changed |= target.source.base in bad_indexes
            was_last = target.source is seen.segments[-1]
            if target.base != bases[-1] and (changed or was_last):
                rebuild(directory, target.base, self.config)
            if changed or target.base == bases[-1]:
                name = layout.digest_file(target.base)
                directory.unlink(name, missing_ok=True)
        self._write_down(seen, plan, bases)
        self._build_transactions(seen, bases)
        for name in directory.names():
            parsed = layout.parse_segment_file(name)
            if (
                parsed is not None
                and parsed.suffix in (INDEX, TIME_INDEX)
                and not parsed.transition
                and parsed.base_offset not in bases
            ):
                # Its log is missing: remove it, as opening would do.
                directory.unlink(name, missing_ok=True)

    def _build_transactions(self, seen: Assessment, bases: list[int]) -> None:
        """The transaction indexes, from the present log."""
        is_bad = any(name.endswith(TXN_INDEX) for name in seen.bad_files())
        if not (seen.has_aborts or is_bad):
            return
        descriptors = Descriptors(self.directory.files, 1)
        try:
            segments = [
                Segment.of_file(self.directory, descriptors, name, base, size)
                for base in bases
                for name in [segment_file(base, LOG)]
                for size in [self.directory.stat(name).size]
            ]
            rebuild_all(self.directory, segments, OFFSET_MAX)
        finally:
            descriptors.close()

    def _leaves_gaps(self, seen: Assessment, plan: RepairPlan) -> bool:
        """Whether offsets may be missing from the log after the repair."""
        if self.mode == "cut":
            return False
        is_out_of_order = any(p.kind == OFFSETS for p in seen.problems)
        return plan.is_change or is_out_of_order or bool(seen.losses())

    def _cut_epochs(self, end: int) -> None:
        with contextlib.suppress(FileNotFoundError, CorruptCheckpointError):
            epochs = checkpoints.read_epochs(self.directory)
            kept = [entry for entry in epochs if entry[1] < end]
            if kept != epochs:
                checkpoints.write_epochs(self.directory, kept)

    def _write_down(self, seen: Assessment, plan: RepairPlan, bases: list[int]) -> None:
        """Index the last segment, make it durable, and write logstore's own state.

        1. scan it; 2. write the part again that is not known to be durable, and sync;
        3. write its indexes; 4. write the state, or remove one that is not valid.
        """
        directory = self.directory
        if not bases:
            self.quarantine.take_out(layout.PARTITION_STATE)
            return
        created_ms = directory.stat(segment_file(bases[-1], LOG)).mtime_ns // 1_000_000
        state, index, times = index_segment(
            directory, bases[-1], self.config, created_ms
        )
        self._make_durable(seen, state)
        directory.write_file(segment_file(bases[-1], INDEX), index.data())
        directory.write_file(segment_file(bases[-1], TIME_INDEX), times.data())
        own = seen.context.state
        if not self.facts.own:
            self.quarantine.take_out(layout.PARTITION_STATE)
            if plan.is_change:
                directory.unlink(layout.PARTITION_STATE, missing_ok=True)
            return
        sealed = []
        for target, following in zip(plan.targets, bases[1:], strict=False):
            size = sum(end - begin for begin, end in target.ranges)
            row = seen.context.row(target.base)
            largest, largest_offset = UNKNOWN_TIMESTAMP, -1
            if row is not None and not target.is_changed:
                largest, largest_offset = row[3], row[4]
            digest = self._time_digest(target.base)
            sealed.append(
                (target.base, size, following, largest, largest_offset, digest)
            )
        contiguous = own is not None and own.is_contiguous
        contiguous = contiguous and not self._leaves_gaps(seen, plan)
        cuts = own.cuts if own else Cuts()
        # The lost records were part of the log, too.
        if plan.is_change or seen.losses():
            cuts = cuts.after(plan.lowest_change, directory.files.now_ms())
        new = PartitionState(
            plan.start,
            sealed,
            state_fields(state),
            times.digest(),
            cuts,
            contiguous,
            self.ownership.store_epoch,
            log_id=own.log_id if own else "",
            foreign_end=own.foreign_end if own else OFFSET_MAX,
            compactions=own.compactions + plan.is_change if own else 0,
        )
        self.quarantine.take_out(layout.PARTITION_STATE)
        checkpoints.write_state(directory, layout.PARTITION_STATE, new.to_dict())

    def _time_digest(self, base: int) -> int:
        """Digest of the time index of a segment, which is correct or was rebuilt."""
        try:
            return digest_of(self.directory.read_file(segment_file(base, TIME_INDEX)))
        except FileNotFoundError:
            return UNKNOWN_DIGEST

    def _make_durable(self, seen: Assessment, state: native.SegmentState) -> None:
        """Sync as in opening: after a failed sync, another sync alone does nothing."""
        own, base = seen.context.state, int(state.raw.base_offset)
        if seen.context.clean:
            return
        durable_pos = 0
        if own is not None and own.active["base_offset"] == base:
            durable_pos = min(own.active["size"], state.size)
        make_durable(self.directory, segment_file(base, LOG), state.size, durable_pos)

    # -- reporting

    def _report(
        self, label: str, path: str, message: str, kept: str | None = None
    ) -> None:
        place = None, 0, None, None, kept
        self.actions.append(RepairAction(label, path, *place, message))


def _offsets_of(seen: Assessment, source: VerifiedSegment) -> tuple[int, int | None]:
    """First and last offset that are lost with a whole segment."""
    first = source.base
    higher_bases = [other.base for other in seen.segments if other.base > source.base]
    following = min(higher_bases, default=_end_of_last(seen, source))
    is_wrong = any(begin == 0 for begin, _ in source.bad_ranges)
    if source.runs and source.runs[0].begin == 0 and not is_wrong:
        stored = source.runs[0].first
        if following is None or stored < following:
            first = max(stored, first)
    return first, None if following is None else max(following - 1, first)


def _end_of_last(seen: Assessment, source: VerifiedSegment) -> int | None:
    """The end of the offsets of the last segment, now or when it was closed; None:
    unknown."""
    if seen.context.closed_end is not None:
        return seen.context.closed_end
    if source.runs and source.runs[-1].end == source.size:
        return source.runs[-1].last + 1
    return None


def _end_of(targets: list[RepairedSegment]) -> int:
    """One past the last offset of the segments that stay."""
    if not targets:
        return 0
    last = targets[-1]
    return last.last + 1 if last.last >= 0 else last.base
