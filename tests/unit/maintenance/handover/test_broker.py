"""Reactions of a broker to damage of a directory: facts in, findings out, without a
disk."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.io import layout
from logstore.io.layout import TopicPartition
from logstore.io.segment_info import SegmentInfo
from logstore.maintenance import finding as kinds
from logstore.maintenance.cluster import NO_CLUSTER
from logstore.maintenance.facts import PartitionFacts, StoreFacts
from logstore.maintenance.finding import CONTENTS, NOTE, PROBLEM, Finding
from logstore.maintenance.handover.broker import Broker

STORE = "/store"
OF = f"{STORE}/orders-0"


def log_of(base: int) -> str:
    return f"{OF}/{layout.segment_file(base, layout.LOG)}"


def segment(base: int) -> SegmentInfo:
    values = {"base_offset": base, "next_offset": base + 10, "size_bytes": 100}
    fields = {name: values.get(name, 0) for name in SegmentInfo._fields}
    return SegmentInfo(**cast(Any, {**fields, "path": log_of(base)}))


def told(*contents: Finding, is_clean: bool = False) -> list[Finding]:
    """Findings about a store with segments 0, 10 and 20, flushed up to offset 15."""
    partition = PartitionFacts(
        TopicPartition("orders", 0),
        OF,
        cast(Any, SimpleNamespace(recovery_point=15)),
        segments=tuple(map(segment, (0, 10, 20))),
    )
    facts = StoreFacts(
        root=cast(Any, SimpleNamespace(path=STORE, path_of=f"{STORE}/{{}}".format)),
        directories=("orders-0",),
        identified=frozenset(),
        names=frozenset(),
        meta=None,
        holder=None,
        is_own=True,
        is_clean=is_clean,
        is_closed=is_clean,
        points={},
        settings={},
        refused={},
        cluster=NO_CLUSTER,
        partitions=(partition,),
        contents=contents,
        now_ms=0,
    )
    found = Broker(facts, "4.2", None, None, -1, -1).findings()
    named = ("damage", "torn-tail", "transaction-index")
    return [one for one in found if one.kind in named]


def problem(kind: str, path: str, first: int = 12, severity: str = PROBLEM) -> Finding:
    return Finding(CONTENTS, kind, severity, path, f"{kind} of {path}", 7, first, 19)


@pytest.mark.parametrize(
    ("base", "is_clean", "is_cut"),
    [
        (0, False, False),  # flushed whole: a broker does not read it again
        (10, False, True),
        (20, False, True),
        (10, True, False),  # nothing is read again after a clean stop
    ],
)
def test_damage_is_cut_where_a_broker_reads_the_log_again(
    base: int, is_clean: bool, is_cut: bool
) -> None:
    """Elsewhere the damage is found by a consumer first. Both lose records."""
    damage = problem(kinds.DAMAGED_BATCH, log_of(base))
    (one,) = told(damage, is_clean=is_clean)
    assert (one.kind, one.severity, one.path) == ("damage", "loses", log_of(base))
    assert (one.position, one.first_offset, one.last_offset) == (7, 12, 19)
    assert bool(one.values.get("isCut")) is is_cut
    assert ("the log is cut there" in one.message) is is_cut


def test_first_damage_says_it_for_its_log() -> None:
    """A broker stops at the first damage. Damage of another directory is reported,
    too."""
    found = told(
        problem(kinds.ZEROS, log_of(10)),
        problem(kinds.OFFSETS, log_of(20)),
        problem(kinds.LOST_SEGMENT, f"{STORE}/orders-1", 0),
        problem(kinds.LOST_SEGMENT, f"{STORE}/orders-2", 0),
    )
    paths = [one.path for one in found]
    assert paths == [log_of(10), f"{STORE}/orders-1", f"{STORE}/orders-2"]
    assert "serves an empty log" in found[1].message


@pytest.mark.parametrize(
    ("contents", "effect", "text"),
    [
        (problem(kinds.NOT_REGULAR, log_of(10)), "warns", "follows a link"),
        (problem(kinds.START_BEYOND_END, OF, 0), "loses", "deletes all of them"),
        (problem(kinds.TORN_TAIL, log_of(20), 25, NOTE), "changes", "it is cut"),
        (problem(kinds.ZERO_TAIL, f"{OF}/x.index", 0, NOTE), "changes", "it is cut"),
    ],
)
def test_effect_of_what_is_no_damaged_batch(
    contents: Finding, effect: str, text: str
) -> None:
    (one,) = told(contents)
    assert one.severity == effect
    assert text in one.message


def test_transaction_index_is_built_again_unless_the_stop_was_clean() -> None:
    """After a clean stop, records of aborted transactions would be read."""
    fault = problem(kinds.TXN_INDEX_FAULT, f"{OF}/{20:020d}.txnindex")
    assert told(fault) == []
    (one,) = told(fault, is_clean=True)
    assert (one.kind, one.severity) == ("transaction-index", "loses")


def test_problems_that_cost_no_record_and_notes_are_no_damage() -> None:
    assert not told(
        problem(kinds.TIME_INDEX_FAULT, f"{OF}/{20:020d}.timeindex"),
        problem(kinds.UNSUPPORTED, log_of(10), 12, NOTE),
        problem(kinds.UNREADABLE, f"{OF}/{20:020d}.index"),
    )
