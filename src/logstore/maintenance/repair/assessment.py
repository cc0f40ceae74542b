"""Examining a partition before any decision: the findings of `verify`, and more."""

from __future__ import annotations

import dataclasses
import os

from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.verdicts import NO_VERDICTS, Verdicts
from logstore.io.directory import Directory
from logstore.io.layout import INDEX, TIME_INDEX, parse_segment_file
from logstore.maintenance.finding import (
    BUILD,
    CUT,
    DO_WITHOUT,
    LEAVE,
    PUT_ASIDE,
    Finding,
)
from logstore.maintenance.repair.plan import VerifiedSegment
from logstore.maintenance.verify.context import StoreMetadata
from logstore.maintenance.verify.log_facts import LogFacts
from logstore.maintenance.verify.parallel import run_jobs
from logstore.maintenance.verify.partition import PartitionCheck
from logstore.maintenance.verify.report import Run


@dataclasses.dataclass(slots=True)
class Assessment:
    """The facts about a partition.

    Attributes:
        context: the facts from outside its log.
        segments: its segments, in order of their names.
        findings: as `verify` with ``deep`` reports them.
        foreign: segments with contents that are not understood, or that the system
            refuses to read: (path, message). The log is then not changed.
        missing: base offsets of segments that must exist and do not.
        has_aborts: whether the log has markers that abort a transaction.
        verdicts: of earlier openings on its damage. They are no finding: the check
            looks at the bytes.
    """

    context: PartitionMetadata
    segments: list[VerifiedSegment]
    findings: list[Finding]
    foreign: list[tuple[str, str]]
    missing: list[int]
    has_aborts: bool = False
    verdicts: Verdicts = NO_VERDICTS

    @property
    def has_damage(self) -> bool:
        """Whether anything is wrong with the log, a torn tail included."""
        has_tail = any(finding.remedy == CUT for finding in self.findings)
        return bool(self.foreign or self.problems or has_tail)

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_problem]

    @property
    def is_contiguous(self) -> bool:
        state = self.context.state
        return state is not None and state.is_contiguous

    @property
    def floor(self) -> int:
        """Offsets below were assigned: they were durable."""
        state = self.context.state
        own = 0 if state is None else max(state.durable_offset, state.start_offset)
        return max(own, self.context.recovery_point, self.context.announced)

    @property
    def closed_end(self) -> int | None:
        """The end of the log when another program closed it; None: unknown."""
        return self.context.closed_end if self.context.state is None else None

    @property
    def start(self) -> int:
        state = self.context.state
        return self.context.log_start if state is None else state.start_offset

    def bad_indexes(self) -> set[int]:
        """Base offsets of segments whose indexes must be built."""
        parsed = [
            parse_segment_file(os.path.basename(finding.path))
            for finding in self.findings
            if finding.remedy in (BUILD, LEAVE)
        ]
        return {p.base_offset for p in parsed if p and p.suffix in (INDEX, TIME_INDEX)}

    def refused(self) -> list[Finding]:
        """Files that cannot be read or rebuilt. Their contents are unknown, so they
        must not be treated as missing."""
        return [
            problem
            for problem in self.problems
            if problem.remedy == LEAVE
            and not problem.path.endswith((INDEX, TIME_INDEX))
        ]

    def bad_files(self) -> dict[str, str]:
        """Small files that are damaged: name -> the fault."""
        return {
            os.path.basename(finding.path): finding.message
            for finding in self.findings
            if finding.remedy == PUT_ASIDE
        }

    def losses(self) -> list[Finding]:
        """Bytes and segments that no longer exist."""
        return [finding for finding in self.problems if finding.remedy == DO_WITHOUT]

    def reason(self, path: str, begin: int, end: int, default: str) -> str:
        """Why a range of a file is taken out: the words of `verify`, or the default."""
        for finding in self.findings:
            position = finding.position
            if (
                finding.path == path
                and position is not None
                and begin <= position < end
            ):
                return finding.message
        return default


def assess(
    run: Run, facts: StoreMetadata, directory: Directory, threads: int
) -> Assessment:
    """Check a partition and collect the facts for a decision."""
    context = facts.context(directory, run)
    verdicts = context.verdicts
    # The check looks at the bytes alone.
    context = dataclasses.replace(context, verdicts=NO_VERDICTS)
    state = context.state
    seen = Assessment(context, [], run.findings, [], [], verdicts=verdicts)

    def record(log: LogFacts) -> None:
        if log.is_foreign or log.is_unreadable or log.is_deleted:
            reasons = [f.message for f in seen.findings if f.path == log.path]
            seen.foreign.append((log.path, next(iter(reasons), log.path)))
            return
        min_size = next_offset = None
        if (row := context.row(log.base)) is not None:
            _, min_size, next_offset, *_ = row
        elif state is not None and log.base == state.active["base_offset"]:
            min_size = state.active["size"]
            if context.clean:
                next_offset = state.durable_offset
        seen.segments.append(
            VerifiedSegment(
                directory,
                run.descriptors,
                log.base,
                log.name,
                log.size,
                log.runs,
                log.bad_ranges,
                log.bad_offsets,
                log.jumps,
                min_size,
                next_offset,
            )
        )

    check = PartitionCheck(run, directory, context, record)
    run_jobs(check.jobs(), threads, run.meter.stop)
    reported = {path for path, _ in seen.foreign}
    seen.foreign += [
        (p.path, p.message) for p in seen.refused() if p.path not in reported
    ]
    seen.missing = [s.base_offset for s in check.decided.plan.segments if s.is_lost]
    seen.has_aborts = bool(check.transactions.aborted)
    return seen
