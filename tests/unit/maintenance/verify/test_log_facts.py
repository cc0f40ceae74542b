"""The judges of a walk over a `.log` file: values in, findings out, without a disk."""

from __future__ import annotations

from logstore import _native as native
from logstore.log.recover.plan import Tail
from logstore.maintenance.finding import NOTE, PROBLEM
from logstore.maintenance.verify import log_facts as judges
from logstore.maintenance.verify.log_facts import LogFacts

PATH = "/store/orders-0/00000000000000000100.log"


def facts(**values: object) -> LogFacts:
    """A segment from offset 100 on, of which the offsets up to 119 were seen."""
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


def place(finding: judges.Finding) -> tuple[int | None, int | None, int | None]:
    return finding.position, finding.first_offset, finding.last_offset


def test_gap_ends_before_the_next_batch() -> None:
    """Or nobody knows where."""
    fault = "zeros", "zeros instead of a batch"
    found = judges.gap(PATH, 10, 30, fault, 120, 125)
    assert (found.kind, found.severity, place(found)) == (
        "zeros",
        PROBLEM,
        (10, 120, 124),
    )
    assert "20 bytes, offsets from 120 to 124, cannot be read" in found.message
    assert place(judges.gap(PATH, 10, 30, fault, 120, None)) == (10, 120, None)


def test_gap_between_offsets_loses_none() -> None:
    """The batches around it follow each other."""
    found = judges.gap(PATH, 10, 30, ("zeros", "zeros"), 120, 120)
    assert place(found) == (10, None, None)
    assert "20 bytes between offsets cannot be read" in found.message


def test_offsets_that_are_missing_are_those_of_a_gap() -> None:
    """The log was written without gaps."""
    found = judges.misplaced(facts(), 50, (130, 139), 119, None)
    assert place(found) == (50, 120, 129)
    assert "without gaps" in found.message
    assert "the batch before ends with 119" in found.message


def test_offsets_again_are_named_from_the_last_good_one_on() -> None:
    """The batch is intact; a reader does not deliver what it was given already."""
    found = judges.misplaced(facts(), 50, (110, 129), 119, None)
    assert place(found) == (50, 120, 129)
    found = judges.misplaced(facts(), 50, (110, 115), 119, None)
    assert place(found) == (50, 120, None)


def test_batch_that_jumped_ahead_is_the_wrong_one() -> None:
    """If the batch after it follows the one before it."""
    found = judges.misplaced(facts(last_good=999), 50, (120, 129), 999, 109)
    assert place(found) == (50, 110, 119)


def test_jump_that_the_next_batch_contradicts_loses_what_lies_below_that() -> None:
    """A gap ends at the latest where the segment does: no checksum covers an offset."""
    log = facts()
    log.findings.append(judges.misplaced(log, 50, (1000, 1009), 119, None))
    assert place(log.findings[0]) == (50, 120, 199)
    judges.contradict(log, 130)
    assert place(log.findings[0]) == (50, 120, 129)
    judges.contradict(log, 120)
    assert place(log.findings[0]) == (50, 120, 120)
    log.findings.append(judges.bad_batch(log, 60, 130, 139, "it is damaged"))
    judges.contradict(log, 131)
    assert place(log.findings[1]) == (60, 130, 139)


def test_what_is_behind_a_batch_may_end_what_is_lost() -> None:
    """The batch has lower offsets, or it and the one before have changed places."""
    found = judges.misplaced(facts(), 50, (110, 115), 119, None, 122)
    assert place(found) == (50, 120, 121)
    found = judges.misplaced(facts(), 50, (110, 115), 119, None, 120)
    assert place(found) == (50, 120, None)
    found = judges.misplaced(facts(), 50, (120, 129), 139, 119, 140)
    assert place(found) == (50, 120, 139)


def test_finding_about_a_batch_that_has_changed_places_is_forgotten() -> None:
    """Only that one, and only if it is about the order."""
    log = facts()
    judges.forget(log, 50)
    log.findings.append(judges.misplaced(log, 50, (130, 139), 119, None))
    judges.forget(log, 60)
    assert len(log.findings) == 1
    judges.forget(log, 50)
    assert log.findings == []
    log.findings.append(judges.bad_batch(log, 50, 130, 139, "it is damaged"))
    judges.forget(log, 50)
    assert len(log.findings) == 1


def test_first_batch_is_compared_with_the_name_of_its_segment() -> None:
    found = judges.misplaced(facts(last_good=99), 0, (90, 95), 99, None)
    assert "the segment begins at 100" in found.message
    assert place(found) == (0, 100, None)


def test_bad_batch_behind_one_out_of_order_loses_no_offset_twice() -> None:
    """Its offsets up to the last good one were read."""
    assert place(judges.bad_batch(facts(), 50, 110, 125, "bad")) == (50, 120, 125)
    assert place(judges.bad_batch(facts(), 50, 110, 115, "bad")) == (50, 120, None)


def test_batch_that_is_too_large_is_a_note() -> None:
    """One of an unknown codec is a problem."""
    for severity in (NOTE, PROBLEM):
        found = judges.not_looked_into(PATH, severity, (50, 120, 125), "why")
        assert (found.kind, found.severity) == ("unsupported", severity)
        assert (place(found), found.touches_records) == (
            (50, 120, 125),
            severity == PROBLEM,
        )


def test_torn_end_names_the_intact_batches_in_it() -> None:
    """Only those behind the end of the log lose anything."""
    tail = Tail("x.log", 50, 20, 120, "a part of a batch")
    found = judges.torn_end(PATH, tail, -1)
    assert (found.severity, place(found)) == (NOTE, (50, 120, None))
    assert "intact" not in found.message
    found = judges.torn_end(PATH, tail, 124)
    assert place(found) == (50, 120, 124)
    assert "with intact batches up to offset 124 among them" in found.message
    assert place(judges.torn_end(PATH, tail, 110)) == (50, 120, None)


def test_segment_in_those_before_it_is_named_by_what_they_have() -> None:
    """The offsets behind theirs cannot be read."""
    assert place(judges.overlap(facts(), 109)) == (0, 110, 119)
    assert place(judges.overlap(facts(), 150)) == (0, 151, None)
    # One whose records the next segment has, too, loses none of these.
    shorter = facts(next_offset=115)
    assert place(judges.overlap(shorter, 109)) == (0, 110, 114)
    assert place(judges.overlap(shorter, 114)) == (0, 115, None)


def test_sealed_segment_ends_where_it_did() -> None:
    """The offsets between the two ends are lost, or too many."""
    assert place(judges.other_end(facts(end=70), 130)) == (70, 120, 129)
    assert place(judges.other_end(facts(end=70), 110)) == (70, 110, 119)


def test_offsets_beyond_an_index_have_no_end() -> None:
    found = judges.far_offsets(facts(), 50, 1 << 40, (1 << 31) - 1)
    assert (found.kind, place(found)) == ("offsets", (50, None, None))


def test_bad_header_costs_its_record() -> None:
    found = judges.bad_header(PATH, 120, "bad")
    assert (found.kind, place(found)) == ("damaged-batch", (None, 120, 120))


def test_damage_covers_what_lies_in_it() -> None:
    """Half open, as all ranges of bytes."""
    log = facts(gaps=[(10, 20)])
    assert [log.is_damaged_at(pos) for pos in (9, 10, 19, 20)] == [
        False, True, True, False,
    ]  # fmt: skip
    assert not log.is_damaged_between(20, 30)
