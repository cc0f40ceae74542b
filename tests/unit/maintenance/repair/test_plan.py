"""The decision which parts of a log stay, from findings alone: no file is needed."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.io.layout import LOG, segment_file
from logstore.maintenance.repair.plan import VerifiedSegment, plan_cut
from logstore.maintenance.verify.log_facts import SoundRun


def source(
    base: int, size: int, last: int, *, min_size: int, next_offset: int
) -> VerifiedSegment:
    """A sealed segment with one run of intact batches, which reaches to its end."""
    nothing: Any = None  # nothing is read
    runs = [SoundRun(0, size, base, last, 10, base)] if size else []
    return VerifiedSegment(
        nothing, nothing, base, segment_file(base, LOG), size, runs, [], [], {},
        min_size, next_offset,
    )  # fmt: skip


# Offsets 8 and 9 were compacted away: the first segment ends at 10.
AFTER = source(10, 50, 14, min_size=50, next_offset=15)


@pytest.mark.parametrize("is_contiguous", [False, True])
def test_cut_ends_at_a_segment_that_has_lost_its_end(is_contiguous: bool) -> None:
    """Its batches are intact and the next segment is, too. In a log with gaps only the
    size shows that offsets are missing between them."""
    short = source(0, 60, 5, min_size=80, next_offset=10)
    (target,) = plan_cut([short, AFTER], [], is_contiguous=is_contiguous)
    assert (target.base, target.ranges, target.last) == (0, [(0, 60)], 5)
    assert target.is_whole


def test_cut_of_a_log_with_gaps_keeps_segments_that_have_their_sizes() -> None:
    """Missing offsets between them are no damage."""
    whole = source(0, 80, 7, min_size=80, next_offset=10)
    targets = plan_cut([whole, AFTER], [], is_contiguous=False)
    assert [(t.base, t.ranges) for t in targets] == [(0, [(0, 80)]), (10, [(0, 50)])]


def test_cut_of_a_log_without_gaps_ends_at_the_first_gap() -> None:
    """The same segments, whose sizes are right."""
    whole = source(0, 80, 7, min_size=80, next_offset=10)
    targets = plan_cut([whole, AFTER], [], is_contiguous=True)
    assert [target.base for target in targets] == [0]


@pytest.mark.parametrize(("min_size", "bases"), [(80, []), (0, [0, 10])])
def test_cut_keeps_an_empty_segment_only_if_it_was_empty(
    min_size: int, bases: list[int]
) -> None:
    """In a log with gaps, only this shows that its records are lost."""
    empty = source(0, 0, -1, min_size=min_size, next_offset=10)
    targets = plan_cut([empty, AFTER], [], is_contiguous=False)
    assert [target.base for target in targets] == bases


@pytest.mark.parametrize("is_contiguous", [False, True])
def test_cut_ends_before_a_segment_that_is_missing(is_contiguous: bool) -> None:
    """Its base offset is known, though not its records."""
    whole = source(0, 80, 9, min_size=80, next_offset=10)
    for missing, bases in (15, [0, 10]), (5, [0]):
        targets = plan_cut([whole, AFTER], [missing], is_contiguous=is_contiguous)
        assert [target.base for target in targets] == bases
