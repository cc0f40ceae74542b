"""The smallest size of the fault programme, with the other tests."""

import logging

import pytest

from faults import planted
from faults.method import SIZES, Tally
from faults.methods import METHODS


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.NAME)
def test_faults_smallest_size_shows_no_failure(method):
    """What must survive survives, in as many cases as a commit has time for."""
    tally = Tally(method.COUNTS[SIZES[0]])
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        method.run(tally.total, 1, tally)
    finally:
        logging.disable(before)
    assert tally.failures == []
    assert tally.done >= tally.total


@pytest.mark.parametrize("bug", planted.BUGS, ids=lambda bug: bug.what)
def test_bug_can_be_planted(bug):
    """Its lines are in the source: a list that rots catches nothing."""
    text = (planted._SOURCE / bug.file).read_text(encoding="utf-8")
    for old, new in bug.changes:
        assert old in text
        text = text.replace(old, new)
    compile(text, bug.file, "exec")
