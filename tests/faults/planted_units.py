"""Bugs planted for the unit level: unit tests alone must catch each of them.

Each bug runs the test files that are responsible for the changed lines, on a copy of
the sources with the bug, until one of their tests fails. A unit test that no bug makes
fail is not known to carry weight.
"""

from __future__ import annotations

import pathlib
import sys

import pytest

import logstore
from faults.method import Part, Tally
from faults.planted_bug import Bug, hunt_all, run_on_copy
from faults.planted_units_groups import BUGS_OF_GROUP_ROOMS
from faults.planted_units_io import BUGS_OF_IO
from faults.planted_units_log import BUGS_OF_LOGS
from faults.planted_units_records import BUGS_OF_RECORDS
from faults.planted_units_store import BUGS_OF_STORES
from faults.planted_units_tools import BUGS_OF_TOOLS

NAME = "planted-units"
UNIT = "bugs caught"

_UNIT_TESTS = pathlib.Path(__file__).resolve().parents[1] / "unit"

BUGS = (
    *BUGS_OF_RECORDS,
    *BUGS_OF_IO,
    *BUGS_OF_LOGS,
    *BUGS_OF_STORES,
    *BUGS_OF_GROUP_ROOMS,
    *BUGS_OF_TOOLS,
)

COUNTS = {
    "commit": sum(bug.quick > 0 for bug in BUGS),
    "nightly": len(BUGS),
    "release": len(BUGS),
}


def run(count: int, seed: int, tally: Tally) -> None:
    """Hunt `count` bugs, the quick ones first. The seed has no effect."""
    hunt_all(sorted(BUGS, key=lambda bug: not bug.quick)[:count], hunt, tally)


def run_part(count: int, seed: int, part: Part, tally: Tally) -> None:
    """Hunt the bugs of a part: each bug is in one of them."""
    span = part.span(min(count, len(BUGS)))
    hunt_all(BUGS[span.start : span.stop], hunt, tally)


def hunt(bug: Bug, folder: pathlib.Path) -> tuple[bool, str]:
    """Whether the bug's tests fail on the copy with it, and the test that did."""
    # The tests that a commit runs, also if this process runs all of them.
    level = {"LOGSTORE_TEST_LEVEL": "commit"}
    done = run_on_copy(folder, "faults.planted_units", *bug.only, env=level)
    failed = [
        line.partition(" - ")[0].rpartition("tests/unit/")[2]
        for line in done.stdout.splitlines()
        if line.startswith(("FAILED ", "ERROR ")) and "tests/unit/" in line
    ]
    if done.returncode == pytest.ExitCode.TESTS_FAILED and failed:
        return True, f"caught by {failed[0][:120]}"
    return False, f"not caught by {', '.join(bug.only)}: {done.stdout[-600:]}"


def main(names: list[str]) -> int:
    """Run test files on the copy in the working directory; returns pytest's status.

    Raises:
        RuntimeError: the tests would run on other sources.
    """
    if pathlib.Path(logstore.__file__).parents[1] != pathlib.Path.cwd():
        raise RuntimeError(f"logstore is {logstore.__file__}, not the copy")
    paths = [str(_UNIT_TESTS / name) for name in names]
    return pytest.main(["-x", "-q", "-p", "no:cacheprovider", *paths])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
