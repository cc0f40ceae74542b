"""The findings of a decision: the added ones, and the refusal of a partition."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    INDEX_REBUILT,
    LEFTOVERS_REMOVED,
    LOST_END,
    SWAP_FINISHED,
    TORN_TAIL,
    UNREADABLE,
    UNSUPPORTED,
)
from logstore.io.checkpoint.verdicts import Verdict, Verdicts
from logstore.io.layout import DAMAGED, INDEX, LOG, segment_file
from logstore.log.recover.facts import Facts, Refusal, Standing, WalkFacts
from logstore.log.recover.findings import EndUnknownError, Findings
from logstore.log.recover.names import Operations
from logstore.log.recover.plan import UNREAD_VERDICT, OpeningFinding

PATH = "/orders-0"
VERDICT = Verdict(CORRUPT, "", 10, 60, 20, "0" * 16, 16, 80, 17, "checksum", "1.0", 1)
REFUSED = Refusal("read", errno.EIO, "I/O error")


def findings(*, fault: str = "", is_writable: bool = True, **facts: Any) -> Findings:
    known = PartitionMetadata(None, False, 0, 0, True, verdicts=Verdicts(fault=fault))
    return Findings(Facts(PATH, known, is_writable, frozenset(), **facts))


def test_finding_that_is_no_damage_refuses_nothing() -> None:
    """Bytes that are cut, and indexes that are built, are no reason."""
    found = findings()
    found.add(OpeningFinding(TORN_TAIL, "name", "zeros"))
    found.add_rebuilt(10, "{} is missing")
    assert [one.label for one in found.all()] == [TORN_TAIL, INDEX_REBUILT]
    name = segment_file(10, INDEX)
    assert (found.all()[1].name, found.all()[1].message) == (name, f"{name} is missing")
    assert not found.is_refused
    assert found.damage is None


def test_damage_refuses_the_partition() -> None:
    """The finding has the message of the error, and more."""
    found = findings()
    found.refuse(LOST_END, 10, "it is short", position=7, offset=12, more=" So!")
    assert found.is_refused
    assert found.damage is not None
    (one,) = found.all()
    assert (one.name, one.position, one.first_offset) == (segment_file(10, LOG), 7, 12)
    assert one.message == f"{found.damage.error()} So!"
    assert found.damage.path == f"{PATH}/{one.name}"


def test_only_damage_is_refused() -> None:
    """A finding with another label would be reported, and the partition appended to."""
    with pytest.raises(AssertionError):
        findings().refuse(TORN_TAIL, 10, "zeros", position=0, offset=0)


@pytest.mark.parametrize("is_unsupported", [False, True])
def test_bytes_that_are_not_cut_are_damage_from_where_a_walk_ended(
    is_unsupported: bool,
) -> None:
    found = findings()
    walk = WalkFacts(80, 60, 15, reason="codec 7", is_unsupported=is_unsupported)
    found.add_corrupt(10, walk, size=20)
    (one,) = found.all()
    assert one.label == (UNSUPPORTED if is_unsupported else CORRUPT)
    assert (one.position, one.size, one.first_offset) == (60, 20, 16)


@pytest.mark.parametrize("is_writable", [False, True])
def test_file_of_a_swap_has_its_present_name_until_opening_renames_it(
    is_writable: bool,
) -> None:
    """Read-only opening renames nothing, so its errors name the `.swap` file."""
    found = findings(swap_ends={10: 15}, is_writable=is_writable)
    assert found.name_of(10) == segment_file(10, LOG) + ("" if is_writable else ".swap")
    assert found.name_of(15) == segment_file(15, LOG)


def test_swap_that_cannot_be_read_hides_the_end() -> None:
    """The replaced segments are unknown."""
    found = findings(swap_ends={10: REFUSED})
    with pytest.raises(EndUnknownError):
        found.add_operations(Operations())
    (one,) = found.all()
    assert (one.label, one.name) == (UNREADABLE, segment_file(10, LOG) + ".swap")
    assert found.damage is not None
    assert isinstance(found.damage.error(), OSError)


def test_interrupted_operations_are_reported_by_their_first_file() -> None:
    found = findings(swap_ends={10: 15})
    found.add_operations(Operations(swaps=("a", "b"), leftovers=("c",)))
    names = [(one.label, one.name) for one in found.all()]
    assert names == [(SWAP_FINISHED, "a"), (LEFTOVERS_REMOVED, "c")]
    assert not found.is_refused


def test_recorded_damage_refuses_from_the_beginning() -> None:
    """The finding is added last, and only if there is no other damage."""
    found = findings(standings=(Standing(VERDICT),))
    assert found.is_refused
    assert found.damage is None
    assert (found.is_condemned(10), found.is_condemned(0)) == (True, False)
    assert (found.known_end(0), found.known_end(20)) == (17, 20)
    found.add_recorded()
    (one,) = found.all()
    assert (one.label, one.position, one.base) == (CORRUPT, 60, 10)
    found.add_recorded()
    assert found.all() == (one,)


def test_recorded_damage_that_is_gone_is_only_reported() -> None:
    found = findings(standings=(Standing(VERDICT, False, "it is gone"),))
    assert not found.is_refused
    assert not found.is_condemned(10)
    assert found.known_end(0) == 0
    found.add_recorded()
    (one,) = found.all()
    assert (one.label, one.message, one.first_offset) == (DAMAGE_GONE, "it is gone", 16)
    assert found.damage is None


def test_record_that_cannot_be_read_condemns_every_segment() -> None:
    """Any segment may be the damaged one."""
    found = findings(fault="bad checksum")
    assert found.is_refused
    assert found.is_condemned(0)
    found.add_recorded()
    (one,) = found.all()
    assert (one.label, one.name, one.detail) == (CORRUPT, DAMAGED, UNREAD_VERDICT)
    assert found.damage is not None
