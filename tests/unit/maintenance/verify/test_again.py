"""A partition that changes while it is checked is checked again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.maintenance.finding import IN_USE
from logstore.maintenance.verify.again import CHECKS_MAX, report_confirmed, seen
from logstore.maintenance.verify.report import Run

KIND = "damaged-batch"


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Directory]:
    (tmp_path / "orders-0").mkdir()
    found = Directory.open_root(Files(), str(tmp_path / "orders-0"))
    yield found
    found.close()


def run_of(places: Iterable[int]) -> Run:
    """A check that finds problems at these positions of a file, and a note."""
    run = Run(Files(), False, None)
    _find(run, places)
    return run


def _find(run: Run, places: Iterable[int]) -> None:
    for position in places:
        run.problem(KIND, "/log", "broken", position)
    run.note("torn-tail", "/log", "torn")


def reported(directory: Directory, checks: list[set[int]]) -> tuple[set[int], int]:
    """The positions that are reported, and the number of checks. The directory changes
    during each check but the last."""
    run, todo = Run(Files(), False, None), checks[1:]
    before = seen(directory)

    def touch() -> None:
        if todo:
            (Path(directory.path) / f"file{len(todo)}").touch()

    def check(again: Run) -> None:
        found = todo.pop(0)
        touch()
        _find(again, found)

    touch()
    report_confirmed(run, run_of(checks[0]), directory, before, check)
    assert [one.kind for one in run.findings if not one.is_problem] == ["torn-tail"]
    positions = {one.position or 0 for one in run.problems}
    return positions, len(checks) - len(todo)


@pytest.mark.parametrize(
    ("checks", "expected"),
    [
        ([{1, 2}], {1, 2}),  # nothing has changed
        ([{1, 2}, {1, 2}], {1, 2}),
        ([{1, 2}, {2, 3}], {2}),  # a state between two changes, in both checks
        ([{1, 2}, {2, 3}, {1, 2, 3}], {2}),
        ([{1}, {2}], set()),
        ([{1}, set()], set()),
        ([set()], set()),
    ],
)
def test_problem_is_reported_that_each_check_finds(
    directory: Directory, checks: list[set[int]], expected: set[int]
) -> None:
    assert reported(directory, checks) == (expected, len(checks))


def test_partition_that_changes_all_the_time_is_checked_a_few_times(
    directory: Directory,
) -> None:
    positions, count = reported(directory, [{1}] * 20)
    assert positions == {1}
    assert count == CHECKS_MAX


def test_partition_that_went_away_has_no_problem(
    tmp_path: Path, directory: Directory
) -> None:
    run, before = Run(Files(), False, None), seen(directory)
    gone = Directory.open_root(Files(), str(tmp_path)).child("orders-0")
    (tmp_path / "orders-0").rmdir()
    assert before is not None
    assert seen(gone) is None

    def check(again: Run) -> None:
        raise AssertionError

    report_confirmed(run, run_of({1}), gone, before, check)
    assert run.problems == []
    assert [one.kind for one in run.findings] == ["torn-tail", IN_USE]
