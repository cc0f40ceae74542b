"""The fault programme, in a size that there is time for, with the other tests."""

import logging

import pytest

from faults import planted
from faults.method import SIZES, Method, Tally
from faults.methods import METHODS
from support.levels import IS_ALL

# All planted bugs take half an hour.
SECONDS = 3600


def _count(method: Method) -> int:
    """At the level ``all`` a commit's size, and each planted bug; at the commit level a
    tenth, and the bugs that are caught quickly."""
    count = method.COUNTS[SIZES[0]]
    if method.NAME == planted.NAME:
        return len(planted.BUGS) if IS_ALL else count
    return count if IS_ALL else count // 10


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_faults_smallest_size_shows_no_failure(method):
    """What must survive survives, in as many cases as there is time for."""
    tally = Tally(_count(method))
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        method.run(tally.total, 1, tally)
    finally:
        logging.disable(before)
    assert tally.failures == []
    assert tally.done >= tally.total


def test_commit_level_catches_most_planted_bugs():
    assert planted.COUNTS["commit"] >= 56


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.what)
def test_bug_can_be_planted(bug):
    """Its lines are in the source: a list that rots catches nothing."""
    text = bug.source.read_text(encoding="utf-8")
    for old, new in bug.changes:
        assert old in text
        text = text.replace(old, new)
    if bug.source.suffix == ".py":
        compile(text, bug.file, "exec")
