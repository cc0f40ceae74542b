"""The decisions of opening about a partition, as findings of `verify`.

The decision is that of opening itself (`logstore.log.recover.make_plan`). A case after
which the partition takes no appends is a problem, any other one is a note.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Final

from logstore.config import TopicConfig
from logstore.errors import CorruptCheckpointError
from logstore.io.checkpoint.partition_state import PartitionMetadata, PartitionState
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    INDEX_REBUILT,
    LOST_END,
    LOST_REPORTED_MAX,
)
from logstore.io.checkpoint.recovery_report import LOST_SEGMENT as SEGMENT_IS_LOST
from logstore.io.checkpoint.recovery_report import START_BEYOND_END as BEYOND_END
from logstore.io.directory import Directory
from logstore.io.layout import CLEANED, DAMAGED, DELETED, LOG, SWAP, segment_file
from logstore.log.recover import RecoveryContext
from logstore.log.recover.facts import Facts
from logstore.log.recover.names import classify, readable
from logstore.log.recover.plan import (
    CASES,
    FOREIGN_SEGMENT,
    TAKES_NO_APPENDS,
    UNREAD_VERDICT,
    OpeningFinding,
    Plan,
    UnservedTail,
)
from logstore.log.recover.survey import survey
from logstore.maintenance.finding import (
    DAMAGED_BATCH,
    EXTRA_BYTES,
    KNOWN_DAMAGE,
    LEFTOVER,
    LOST_BYTES,
    LOST_SEGMENT,
    MISSING_INDEX,
    OFFSETS,
    START_BEYOND_END,
)
from logstore.maintenance.verify.log import EndVerdict
from logstore.maintenance.verify.log_facts import LogFacts
from logstore.maintenance.verify.report import Run

__all__ = ["Decided", "plan_of"]

_ATTEMPTS: Final = 3


def plan_of(
    run: Run, directory: Directory, context: PartitionMetadata
) -> tuple[Facts, Plan]:
    """The decisions of opening for writing about a partition."""
    case = RecoveryContext(
        directory,
        run.descriptors,
        "",
        0,
        TopicConfig(),
        context,
        writable=True,
    )
    result = survey(case)
    return result.facts, result.plan


class Decided:
    """The decision about one partition.

    Attributes:
        logs: base offset -> transition of the `.log` files in use.
        rebuilt: base offsets of segments whose indexes are built by opening, and
        indexed: of those among them that are sealed.
        foreign: base offsets of files that are not of this log, which is reported;
        aside: the same, and files that are left over.
    """

    def __init__(
        self, run: Run, directory: Directory, context: PartitionMetadata
    ) -> None:
        self.run_of = run
        self.directory = directory
        self.context = context
        self.facts, self.plan = plan_of(run, directory, context)
        facts, plan = self.facts, self.plan
        if plan.damage is not None:
            run.refusing.add(directory.path)
        logs = classify(
            facts.names, readable(facts.swap_ends), facts.metadata.swapping
        ).logs
        removed = {*plan.operations.dropped, *plan.operations.deleted}
        self.logs = {base: end for base, end in logs.items() if base not in removed}
        self.rebuilt = {f.base for f in plan.findings if f.label == INDEX_REBUILT}
        self.indexed = set(plan.indexed)
        foreign = {f.base for f in plan.findings if f.detail == FOREIGN_SEGMENT}
        self.foreign = frozenset(foreign)
        self.aside = frozenset({*plan.put_aside, *foreign})
        self._next = {s.base_offset: s.next_offset for s in plan.segments}
        # Otherwise the decision ended before it came to the last segment.
        self._is_complete = not plan.is_end_unknown
        self._following: dict[int, int] = {}

    # -- the files

    def bases(self, names: Sequence[str]) -> list[int]:
        """Base offsets of the `.log` files to be checked, in order."""
        regular = set(names)
        bases = [
            base
            for base, transition in sorted(self.logs.items())
            if segment_file(base, LOG) + transition in regular
        ]
        kept = [base for base in bases if base not in self.aside]
        self._following = dict(itertools.pairwise(kept))
        return bases

    def following(self, base: int) -> int | None:
        """The base offset after a segment; None: it is the last one."""
        return self._following.get(base)

    def end_of(self, base: int) -> EndVerdict:
        """Where a file ends, and what in it is not part of the log."""
        plan, size = self.plan, self.facts.sizes[base]
        if not isinstance(size, int):
            return EndVerdict()
        if base in plan.put_aside:
            reason = "left over from a roll that was undone"
            return EndVerdict(
                UnservedTail(segment_file(base, LOG), 0, size, base, reason), size
            )
        if base != self._last_base:
            return EndVerdict()
        walks = [walk for asked, walk in self.facts.walks.items() if asked.base == base]
        if plan.tail is None:
            moved = next((walk.moved for walk in walks if walk.moved), None)
            return EndVerdict(None, max([size, *(walk.size for walk in walks)]), moved)
        return EndVerdict(plan.tail, plan.tail.pos + plan.tail.size)

    @property
    def _last_base(self) -> int:
        """Base offset of the last segment, if its end was decided."""
        if not self._is_complete or not self.plan.segments:
            return -1
        return self.plan.segments[-1].base_offset

    # -- findings

    def report(self) -> None:
        """Report what does not depend on the contents of the segments."""
        run, directory, operations = self.run_of, self.directory, self.plan.operations
        removed = [segment_file(base, LOG) for base in operations.dropped]
        deleted = [segment_file(base, LOG) for base in operations.deleted]
        for suffix, some, meaning in (
            (DELETED, operations.waiting, "wait to be deleted"),
            (CLEANED, operations.leftovers, "are left of an unfinished compaction"),
            (SWAP, operations.swaps, "replace others as soon as the log is opened"),
            (LOG, removed, "are left of an unfinished truncation"),
            (LOG, deleted, "will be deleted"),
        ):
            if some:
                path = directory.path_of(some[0])
                text = f"{directory.path}: {len(some)} {suffix} files {meaning}"
                run.note(LEFTOVER, path, text)
        self._lost_segments()
        for finding in self.plan.findings:
            if finding.label == INDEX_REBUILT:
                self._index(finding)
            elif _is_size(finding) and not self._is_walked(finding):
                self._size(finding, None)

    def _is_walked(self, finding: OpeningFinding) -> bool:
        """Whether a walk over its file says which offsets a finding concerns."""
        is_known = finding.base in {*self.logs, self._last_base}
        return is_known and finding.detail != FOREIGN_SEGMENT

    def report_size(self, log: LogFacts) -> None:
        """Report the bytes that are missing at the end of a sealed segment, or added.

        Args:
            log: the segment.
        """
        for finding in self.plan.findings:
            is_of_it = finding.base == log.base != self._last_base
            if is_of_it and _is_size(finding) and self._is_walked(finding):
                self._size(finding, log)

    def _index(self, finding: OpeningFinding) -> None:
        path = self.directory.path_of(finding.name)
        self.run_of.note(
            MISSING_INDEX,
            path,
            f"index {path} or its time index is missing, short or not finished; they "
            f"are built when the log is opened for writing",
        )

    def _lost_segments(self) -> None:
        findings = [f for f in self.plan.findings if f.label == SEGMENT_IS_LOST]
        deleted = self._deleted_since([f.base for f in findings if f.base >= 0])
        for finding in findings:
            if finding.base in deleted:
                continue
            path, message = self.directory.path_of(finding.name), finding.message
            first, last = finding.first_offset, None
            if not finding.name:
                path, last = self.directory.path, self.context.recovery_point - 1
            elif finding.base >= 0:
                last = max(self._next.get(finding.base, first), first + 1) - 1
                message = f"segment {path} is gone: offsets {first} to {last}"
            else:
                rest = [s for s in self.plan.segments if s.is_lost][LOST_REPORTED_MAX:]
                last = max(rest[-1].next_offset, first + 1) - 1
                message = (
                    f"{len(rest)} more segments of {self.directory.path} are gone, "
                    f"between offsets {first} and {last}"
                )
            self.run_of.problem(LOST_SEGMENT, path, message, None, first, last)

    def _deleted_since(self, bases: list[int]) -> set[int]:
        """Which of these segments a writer has deleted after its state was read."""
        deleted: set[int] = set()
        if self.context.state is None:
            return deleted
        for _ in range(_ATTEMPTS):
            if len(deleted) == len(bases):
                break
            try:
                state = PartitionState.read(self.directory)
            except CorruptCheckpointError:
                break
            except OSError:
                state = None
            listed = {row[0] for row in state.sealed} if state else set()
            listed |= {state.active["base_offset"]} if state else set()
            start = None if state is None else state.start_offset
            deleted.update(
                base
                for base in bases
                if base not in listed and (start is None or base < start)
            )
        return deleted

    def report_rest(self, last: LogFacts | None) -> None:
        """Report what is left when all segments were checked.

        Args:
            last: the last segment; None: no segment.
        """
        reported = {problem.path for problem in self.run_of.problems}
        for finding in self.plan.findings:
            path = self._path(finding)
            if finding.label == BEYOND_END and last is not None:
                self._beyond_end(finding, last)
            if CASES[finding.label] != TAKES_NO_APPENDS:
                continue
            if _is_size(finding):
                if finding.base == self._last_base:
                    self._size(finding, last)
            elif finding.label != SEGMENT_IS_LOST and path not in reported:
                # Usually the check of the file has found it, too, and says more.
                kind = {CORRUPT: DAMAGED_BATCH}.get(finding.label, finding.label)
                place = _known(finding.position), _known(finding.first_offset)
                self.run_of.problem(kind, path, finding.message, *place)

    def _beyond_end(self, finding: OpeningFinding, last: LogFacts) -> None:
        """The log has records, and none of them is read."""
        first = min(self._following, default=last.base)
        if last.last_offset >= first:
            path, place = self.directory.path, (None, first, last.last_offset)
            self.run_of.problem(START_BEYOND_END, path, finding.message, *place)

    def report_verdicts(self) -> None:
        """Report what an earlier opening has recorded of the damage."""
        path = self.directory.path_of(DAMAGED)
        for standing in self.facts.standings:
            v = standing.verdict
            when = datetime.fromtimestamp(v.time_ms / 1000, tz=timezone.utc)
            place = f"{v.name} at byte {v.position}" if v.name else "the log"
            text = (
                f"{path}: release {v.release or '?'} found on {when:%Y-%m-%d} that "
                f"{place} is {v.kind}: {v.reason}. "
            ) + (standing.message or "The damage is unchanged: nothing is cut")
            self.run_of.note(KNOWN_DAMAGE, path, text, v.position, v.good_end)

    def _path(self, finding: OpeningFinding) -> str:
        """The present path of the file of a finding."""
        transition = self.logs.get(finding.base, "")
        name = finding.name
        if transition and not name.endswith(transition):
            name += transition
        return self.directory.path_of(name)

    def _size(self, finding: OpeningFinding, last: LogFacts | None) -> None:
        """A file is shorter or longer than it must be, or is not of this log."""
        path, size, position = self._path(finding), finding.size, finding.position
        if finding.detail == FOREIGN_SEGMENT:
            self.run_of.problem(OFFSETS, path, finding.message, 0)
        elif finding.detail:
            text = (
                f"{path} has {size} bytes after byte {position}, where it ended when "
                f"it was closed or sealed"
            )
            first = None if last is None else last.hidden
            end = None if last is None or first is None else last.last_offset
            self.run_of.problem(EXTRA_BYTES, path, text, position, first, end)
        elif last is not None and not last.is_deleted:
            first = max(last.last_offset, last.last_good) + 1
            end = self._recorded_end(last.base, first)
            place = (first, end - 1) if end > first else (None, None)
            self._lost_bytes(finding, path, *place)
        else:
            self._lost_bytes(finding, path, None, None)

    def _recorded_end(self, base: int, first: int) -> int:
        """The offset at which a segment ended that has lost bytes. The last one has
        lost at least `first`."""
        state, row = self.context.state, self.context.row(base)
        if row is not None:
            return row[2]
        durable = 0 if state is None else state.durable_offset
        return max(self.context.recovery_point, durable, first + 1)

    def _lost_bytes(
        self, finding: OpeningFinding, path: str, first: int | None, last: int | None
    ) -> None:
        size, position = finding.size, finding.position
        message = finding.message
        if size:
            message = (
                f"{path} has {position} bytes, {position + size} were durable: {size} "
                f"are gone"
            )
        self.run_of.problem(LOST_BYTES, path, message, position, first, last)


def _known(number: int) -> int | None:
    return None if number < 0 else number


def _is_size(finding: OpeningFinding) -> bool:
    """Whether a finding is known from names and sizes alone."""
    is_other = finding.detail not in ("", UNREAD_VERDICT)
    return is_other or finding.label == LOST_END
