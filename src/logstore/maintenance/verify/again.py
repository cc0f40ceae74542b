"""Checking a partition again that changed during the check.

A check takes no lock, so the files that it compares may be from different moments. A
writer may truncate, roll, delete, or remove the whole topic meanwhile. Files that were
intact at each moment then look damaged. So if a partition with problems has changed
since the check began, it is checked again, and only a problem that each check finds is
reported. Damage stays in its place; an intermediate state is never in the same place
again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.directory import Directory
from logstore.io.layout import parse_partition_directory
from logstore.maintenance.finding import IN_USE, Finding
from logstore.maintenance.verify.parallel import CheckJob, run_jobs
from logstore.maintenance.verify.partition import PartitionCheck
from logstore.maintenance.verify.report import Run

__all__ = ["CHECKS_MAX", "partition_jobs", "report_confirmed", "seen"]

# Maximum number of checks of a partition that changes all the time.
CHECKS_MAX: Final = 6


def partition_jobs(
    run: Run, directory: Directory, context_of: Callable[[Run], PartitionMetadata]
) -> Iterator[CheckJob]:
    """The jobs that check a partition; the last of them delivers its findings.

    `context_of`: returns the facts from outside the partition at the time of the call;
    it reports faults of their files to its argument.
    """
    findings = run.child()
    before = seen(directory)
    try:
        yield from PartitionCheck(findings, directory, context_of(findings)).jobs()
    except OSError as error:
        findings.unreadable(directory.path, error)

    def check(run: Run) -> None:
        try:
            jobs = PartitionCheck(run, directory, context_of(run)).jobs()
            run_jobs(jobs, 1, run.meter.stop)
        except OSError as error:
            run.unreadable(directory.path, error)

    yield CheckJob(
        None, partial(report_confirmed, run, findings, directory, before, check)
    )


def report_confirmed(
    run: Run,
    findings: Run,
    directory: Directory,
    before: object,
    check: Callable[[Run], None],
) -> None:
    """Report to `run` the findings of a first check, without the problems that further
    checks (`check`) do not find. `before`: the cache key of the directory (`seen`)
    when the first check began."""
    for _ in range(CHECKS_MAX - 1):
        if not findings.problems:
            break
        now = seen(directory)
        if now is None and parse_partition_directory(directory.name):
            findings.findings = [f for f in findings.findings if not f.is_problem]
            text = f"{directory.path} was removed during the check"
            findings.note(IN_USE, directory.path, text)
            break
        if now == before:
            break
        before = now
        again = run.child()
        check(again)
        places = set(map(_place, findings.problems))
        again.findings = [
            f for f in again.findings if not f.is_problem or _place(f) in places
        ]
        findings = again
    run.merge(findings)


def _place(problem: Finding) -> tuple[str, str, int | None]:
    return problem.kind, problem.path, problem.position


def seen(directory: Directory) -> object:
    """A value that changes whenever anything in a directory changes; None if the
    directory does not exist."""
    try:
        root = directory.info()
        rows = [
            (name, info.inode, info.mtime_ns, info.size)
            for name, info in sorted(directory.infos().items())
        ]
        return root.inode, root.mtime_ns, rows
    except FileNotFoundError:
        return None
    except OSError as error:
        return repr(error)
