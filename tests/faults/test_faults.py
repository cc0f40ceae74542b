"""The fault programme, in a small size, with the other tests."""

import logging
from collections import Counter
from pathlib import Path

import pytest

from faults import planted, planted_units
from faults.checker import open_quietly
from faults.method import SIZES, Method, Tally
from faults.methods import METHODS
from faults.planted_bug import unit_bug
from logstore import StoreConfig, TopicConfig
from support.disk import MemoryDisk
from support.levels import IS_ALL

# All planted bugs take half an hour.
SECONDS = 3600
UNIT_TESTS = Path(__file__).parents[1] / "unit"
PLANTED = {method.NAME: method for method in (planted, planted_units)}


def _count(method: Method) -> int:
    """Number of cases: at the level ``all`` a commit's size, and each planted bug; at
    the commit level a twentieth, and the bugs that are caught quickly."""
    count = method.COUNTS[SIZES[0]]
    if method.NAME in PLANTED:
        return len(PLANTED[method.NAME].BUGS) if IS_ALL else count
    return count if IS_ALL else count // 20


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_faults_smallest_size_shows_no_failure(method):
    """Each method finds no failure in the cases of the smallest size."""
    tally = Tally(_count(method))
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        method.run(tally.total, 1, tally)
    finally:
        logging.disable(before)
    assert tally.failures == []
    assert tally.handled >= tally.total


def test_housekeeping_of_a_program_runs_the_tasks_that_are_due():
    """Once the scheduler's method had another name than the one of its test double:
    nothing was synced in time, in any program, and nothing failed."""
    disk = MemoryDisk()
    store = open_quietly(disk, config=StoreConfig(flush_checkpoint_ms=0))
    partition = store.create_topic("a", 1, TopicConfig(flush_ms=50))[0]
    partition.append(b"x")
    keeper = store._context.scheduler
    assert keeper.run_due() == 0
    assert partition.durable_offset == 0
    disk.advance(0.06)
    assert keeper.run_due() > 0
    assert partition.durable_offset == 1
    store.close()


def test_commit_level_catches_most_planted_bugs():
    assert planted.COUNTS["commit"] >= 56


@pytest.mark.parametrize(
    "bug", [*planted.BUGS, *planted_units.BUGS], ids=lambda bug: bug.what
)
def test_bug_can_be_planted(bug):
    """Its lines are in the source: an outdated bug would catch nothing."""
    text = bug.source.read_text(encoding="utf-8")
    for old, new in bug.changes:
        assert old in text
        text = text.replace(old, new)
    if bug.source.suffix == ".py":
        compile(text, bug.file, "exec")


def test_unit_bugs_are_many_and_each_names_its_tests():
    """At least 64, at most two in one file; the tests that must catch a bug exist."""
    files = Counter(bug.file for bug in planted_units.BUGS)
    assert len(planted_units.BUGS) >= 64
    assert max(files.values()) <= 2
    for bug in planted_units.BUGS:
        assert bug.only
        assert all((UNIT_TESTS / name).is_file() for name in bug.only), bug.what


def test_unit_bugs_are_hunted_in_the_copy_alone():
    """Tests that would run on other sources than the copy catch nothing."""
    with pytest.raises(RuntimeError, match="not the copy"):
        planted_units.main(["record/test_batch_search.py"])


def test_unit_bug_that_changes_nothing_is_not_caught(tmp_path):
    """Tests that pass are no catch."""
    bug = unit_bug("none", "errors.py", "import os", "import os", "test_errors.py")
    assert bug.plant(tmp_path) == ""
    assert not planted_units.hunt(bug, tmp_path)[0]
