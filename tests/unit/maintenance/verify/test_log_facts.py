"""The judges of a walk over a `.log` file: facts in, findings out, without a disk."""

from __future__ import annotations

import pytest

from logstore import _native as native
from logstore.log.recover.plan import UnservedTail
from logstore.maintenance.finding import NOTE, PROBLEM, Finding
from logstore.maintenance.verify.log_facts import (
    BadBatch,
    BadHeader,
    FarOffsets,
    Fault,
    Gap,
    LogFacts,
    Misplaced,
    NotInPlace,
    NotLookedInto,
    TornEnd,
    judged,
    other_end,
    overlap,
)

PATH = "/store/orders-0/00000000000000000100.log"


def facts(**values: object) -> LogFacts:
    """A segment from offset 100 on, whose offsets up to 119 were seen."""
    log = LogFacts(
        PATH,
        PATH.rpartition("/")[2],
        100,
        200,
        True,
        False,
        native.SegmentState(100),
        last_offset=119,
        last_good=119,
    )
    for name, value in values.items():
        setattr(log, name, value)
    return log


def judge(*faults: Fault, **values: object) -> list[Finding]:
    return judged(facts(faults=list(faults), **values))


def the(fault: Fault, **values: object) -> Finding:
    (finding,) = judge(fault, **values)
    return finding


def place(finding: Finding) -> tuple[int | None, int | None, int | None]:
    return finding.position, finding.first_offset, finding.last_offset


def test_gap_ends_before_the_next_batch() -> None:
    """Otherwise its end is unknown."""
    fault = "zeros", "zeros instead of a batch"
    found = the(Gap(10, 30, *fault, 120, 125))
    assert (found.kind, found.severity, place(found)) == (
        "zeros",
        PROBLEM,
        (10, 120, 124),
    )
    assert "20 bytes, offsets from 120 to 124, cannot be read" in found.message
    assert place(the(Gap(10, 30, *fault, 120, None))) == (10, 120, None)


def test_gap_between_offsets_loses_none() -> None:
    """The batches around it follow each other."""
    found = the(Gap(10, 30, "zeros", "zeros", 120, 120))
    assert place(found) == (10, None, None)
    assert "20 bytes between offsets cannot be read" in found.message


def test_offsets_that_are_missing_are_those_of_a_gap() -> None:
    """The log was written without gaps."""
    found = the(Misplaced(50, 130, 139, 119, 119))
    assert place(found) == (50, 120, 129)
    assert "without gaps" in found.message
    assert "the batch before ends with 119" in found.message


def test_offsets_again_are_named_from_the_last_good_one_on() -> None:
    """The batch is intact; a reader does not deliver records twice."""
    assert place(the(Misplaced(50, 110, 129, 119, 119))) == (50, 120, 129)
    assert place(the(Misplaced(50, 110, 115, 119, 119))) == (50, 120, None)


def test_batch_that_jumped_ahead_is_the_wrong_one() -> None:
    """The next batch continues after the previous one."""
    found = the(Misplaced(50, 120, 129, 999, 999, jumped_from=109))
    assert place(found) == (50, 110, 119)


JUMP = Misplaced(50, 1000, 1009, 119, 119)


@pytest.mark.parametrize(("following", "last"), [(130, 129), (120, 120)])
def test_jump_that_the_next_batch_contradicts_loses_what_lies_below_that(
    following: int, last: int
) -> None:
    """A gap ends at the latest at the end of the segment: no checksum covers an
    offset."""
    assert place(the(JUMP)) == (50, 120, 199)
    behind = Gap(70, 90, "zeros", "zeros", 140, following, is_contradicted=True)
    assert place(judge(JUMP, behind)[0]) == (50, 120, last)
    batch = Misplaced(
        70, following, 140, 1009, 119, jumped_from=119, is_contradicted=True
    )
    assert place(judge(JUMP, batch)[0]) == (50, 120, last)


def test_only_the_finding_about_the_batch_before_is_shortened() -> None:
    """A batch hidden by damage between them is not the previous one."""
    behind = Gap(70, 90, "zeros", "zeros", 140, 131, is_contradicted=True)
    bad = BadBatch(60, 130, 139, "it is damaged", 119)
    assert place(judge(bad, behind)[0]) == (60, 130, 139)
    hidden = NotInPlace(65, 105, 107, 119, 104)
    assert [place(one) for one in judge(JUMP, hidden, behind)[:2]] == [
        (50, 120, 130),
        (65, 104, 107),
    ]


def test_what_is_behind_a_batch_may_end_what_is_lost() -> None:
    """The batch has lower offsets, or has changed places with the previous one."""
    found = the(Misplaced(50, 110, 115, 119, 119, beyond=122))
    assert place(found) == (50, 120, 121)
    found = the(Misplaced(50, 110, 115, 119, 119, beyond=120))
    assert place(found) == (50, 120, None)
    found = the(Misplaced(50, 120, 129, 139, 119, jumped_from=119, beyond=140))
    assert place(found) == (50, 120, 139)


def test_batches_that_have_changed_places_have_one_finding() -> None:
    """The finding about the first is dropped, if it is about the order."""

    def second(swapped_with: int) -> Misplaced:
        return Misplaced(70, 120, 129, 139, 119, 119, 140, swapped_with)

    first = Misplaced(50, 130, 139, 119, 119)
    assert [f.position for f in judge(second(50))] == [70]
    assert [f.position for f in judge(first, second(50))] == [70]
    assert [f.position for f in judge(first, second(60))] == [50, 70]
    bad = BadBatch(50, 130, 139, "it is damaged", 119)
    assert [f.position for f in judge(bad, second(50))] == [50, 70]


def test_first_batch_is_compared_with_the_name_of_its_segment() -> None:
    found = the(Misplaced(0, 90, 95, 99, 99))
    assert "the segment begins at 100" in found.message
    assert place(found) == (0, 100, None)


def test_batch_among_damaged_bytes_is_named_by_what_is_missing() -> None:
    found = the(NotInPlace(65, 105, 107, 119, 104))
    assert (found.kind, place(found)) == ("offsets", (65, 104, 107))
    assert "the batch before them ends with 119" in found.message


def test_bad_batch_behind_one_out_of_order_loses_no_offset_twice() -> None:
    """Its offsets up to the last good one were read."""
    assert place(the(BadBatch(50, 110, 125, "bad", 119))) == (50, 120, 125)
    assert place(the(BadBatch(50, 110, 115, "bad", 119))) == (50, 120, None)


def test_batch_that_is_too_large_is_a_note() -> None:
    """A batch of an unknown codec is a problem."""
    for severity in (NOTE, PROBLEM):
        found = the(NotLookedInto(severity, 50, 120, 125, "why"))
        assert (found.kind, found.severity) == ("unsupported", severity)
        assert (place(found), found.touches_records) == (
            (50, 120, 125),
            severity == PROBLEM,
        )


def test_torn_end_names_the_intact_batches_in_it() -> None:
    """Only batches after the end of the log lose records."""
    tail = UnservedTail("x.log", 50, 20, 120, "a part of a batch")
    found = the(TornEnd(tail, -1))
    assert (found.severity, place(found)) == (NOTE, (50, 120, None))
    assert "intact" not in found.message
    found = the(TornEnd(tail, 124))
    assert place(found) == (50, 120, 124)
    assert "with intact batches up to offset 124 among them" in found.message
    assert place(the(TornEnd(tail, 110))) == (50, 120, None)


def test_segment_in_those_before_it_is_named_by_what_they_have() -> None:
    """The offsets after the overlap cannot be read."""
    assert place(overlap(facts(), 109)) == (0, 110, 119)
    assert place(overlap(facts(), 150)) == (0, 151, None)
    # If the next segment has its records, too, it loses none of these.
    shorter = facts(next_offset=115)
    assert place(overlap(shorter, 109)) == (0, 110, 114)
    assert place(overlap(shorter, 114)) == (0, 115, None)


def test_sealed_segment_ends_where_it_did() -> None:
    """The offsets between the two ends are lost, or surplus."""
    assert place(other_end(facts(end=70), 130)) == (70, 120, 129)
    assert place(other_end(facts(end=70), 110)) == (70, 110, 119)


def test_offsets_beyond_an_index_have_no_end() -> None:
    found = the(FarOffsets(50, 1 << 40, (1 << 31) - 1))
    assert (found.kind, place(found)) == ("offsets", (50, None, None))


def test_bad_header_costs_its_record() -> None:
    found = the(BadHeader(120, "bad"))
    assert (found.kind, place(found)) == ("damaged-batch", (None, 120, 120))


def test_damage_covers_what_lies_in_it() -> None:
    """All ranges of bytes are half open."""
    log = facts(gaps=[(10, 20)])
    assert [log.is_damaged_at(pos) for pos in (9, 10, 19, 20)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not log.is_damaged_between(20, 30)
