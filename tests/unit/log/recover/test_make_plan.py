"""The decision about a partition, row by row of the table in docs/design.md: facts in,
plan out, without a disk."""

from __future__ import annotations

import errno
import operator
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from logstore.errors import CorruptCheckpointError, CorruptRecordError, UnsupportedError
from logstore.index import STALE_DIGEST
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.cuts import Cuts
from logstore.io.checkpoint.log_tail import LogTail
from logstore.io.checkpoint.partition_state import (
    STATE_FIELDS,
    PartitionMetadata,
    PartitionState,
)
from logstore.io.checkpoint.recovery_report import (
    CORRUPT,
    DAMAGE_GONE,
    FOREIGN_PARTITION,
    ID_RENEWED,
    INDEX_REBUILT,
    LEFTOVERS_REMOVED,
    LOST_END,
    LOST_SEGMENT,
    OTHER_WRITER,
    POSITION_ABOVE_END,
    POSITION_LOWERED,
    START_BEYOND_END,
    STATE_DAMAGED,
    SWAP_FINISHED,
    TAIL_KEPT,
    TORN_TAIL,
    UNPUBLISHED,
    UNREADABLE,
    UNSUPPORTED,
    RecoveryAction,
)
from logstore.io.checkpoint.verdicts import Verdict, Verdicts
from logstore.io.directory import Directory
from logstore.io.layout import (
    INDEX,
    LOG,
    OWNER,
    PUBLICATION,
    TIME_INDEX,
    TORN_PREFIX,
    segment_file,
)
from logstore.log.recover.facts import (
    Facts,
    LastBatch,
    MissingFactError,
    Question,
    ReadIndexes,
    ReadLast,
    ReadLog,
    Refusal,
    Standing,
    WalkFacts,
)
from logstore.log.recover.make_plan import make_plan
from logstore.log.recover.plan import CASES, TAKES_NO_APPENDS, Plan
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from support.memory_files import ROOT, MemoryFiles
from support.values import fill, new_partition

DESIGN = Path(__file__).parents[4] / "docs" / "design.md"

# A log of two segments, [0, 10) of 100 bytes and [10, 15) of 50, closed at its end.
NAMES = [segment_file(b, s) for b in (0, 10) for s in (LOG, INDEX, TIME_INDEX)]
REFUSED = Refusal("open", errno.EACCES, "Permission denied")
LAST = ReadLog(10, is_from_state=True, is_last=True)
WHOLE_LAST = ReadLog(10, is_last=True)


def state(
    *, base: int = 10, size: int = 50, end: int = 15, digest: int = 7, **changes: Any
) -> PartitionState:
    active = {**dict.fromkeys(STATE_FIELDS, 0), "base_offset": base, "size": size}
    active["last_offset"] = end - 1
    sealed = [(0, 100, 10, 5, 9, digest)]
    own = PartitionState(0, sealed, active, 7, Cuts(), True, "generation", log_id="id")
    return replace(own, **changes)


def own(*, clean: bool = True, **changes: Any) -> PartitionMetadata:
    """Marks of logstore as the last writer."""
    return PartitionMetadata(state(**changes), clean, 0, 0, True, None, "generation")


def kafka(
    *, clean: bool = True, point: int = 10, is_known: bool = True
) -> PartitionMetadata:
    """Marks of a broker as the last writer."""
    return PartitionMetadata(None, clean, point, 0, False, is_point_known=is_known)


def facts(metadata: PartitionMetadata, **changes: Any) -> Facts:
    """Facts of a log without problems except the `changes`."""
    found = Facts(
        "/orders-0",
        metadata,
        is_writable=True,
        names=frozenset(NAMES),
        sizes={0: 100, 10: 50},
        walks={
            LAST: WalkFacts(50, 50, 14),
            WHOLE_LAST: WalkFacts(50, 50, 14),
            ReadLog(0): WalkFacts(100, 100, 9),
            ReadLog(0, is_end=True): WalkFacts(100, 100, 9),
            ReadLog(10): WalkFacts(50, 50, 14),
        },
        indexes={ReadIndexes(10): True, ReadIndexes(10, is_lost=True): True},
        lasts={ReadLast(10): LogTail(14, 40, 7)},
    )
    if "walk" in changes:
        one = changes.pop("walk")
        changes["walks"] = {**found.walks, LAST: one, WHOLE_LAST: one}
        changes.setdefault("sizes", {0: 100, 10: one.size})
    if "size" in changes:
        changes["sizes"] = {0: 100, 10: changes.pop("size")}
    return replace(found, **changes)


def without(*names: str, also: tuple[str, ...] = ()) -> frozenset[str]:
    return frozenset([*NAMES, *also]) - set(names)


def rolled(*, walk: WalkFacts, after: int) -> Facts:
    """A segment was rolled after the state was written."""
    names = [segment_file(after, s) for s in (LOG, INDEX, TIME_INDEX)]
    last = ReadLog(after, is_last=True)
    return facts(
        own(clean=False),
        names=without(also=tuple(names)),
        sizes={0: 100, 10: walk.size, after: 20},
        walks={
            ReadLog(10, is_from_state=True): walk,
            ReadLog(10): walk,
            LAST: walk,
            last: WalkFacts(20, 20, after + 1),
        },
    )


def told(offset: int, found: Facts) -> Facts:
    return replace(found, metadata=replace(found.metadata, announced=offset))


TORN = WalkFacts(80, 50, 14, reason="a batch extends past the end of the file")
HOLE = WalkFacts(80, 60, 15, reason="zeros instead of a batch")
OLD = WalkFacts(80, 20, 11, reason="checksum")
CODEC = WalkFacts(80, 50, 14, reason="codec 7", is_unsupported=True)
MAGIC = CODEC._replace(reason="magic 3", is_unknown_magic=True)
NO_LOG = WalkFacts(80, 0, 9, 0, reason="length", is_no_log=True)
MORE = HOLE._replace(has_more=True)
MOVED = LastBatch(40, 50, first=16, last=17, before=12)
SWAPPED = without(also=(segment_file(0, LOG) + ".swap",))
SEALED = {ReadLog(0, is_end=True): WalkFacts(100, 100, 9)}
# Damage that an earlier opening has found in the last segment.
KNOWN = Verdict(CORRUPT, "", 10, 60, 20, "0" * 16, 16, 80, 17, "checksum", "1.0", 1)
SAME = (Standing(KNOWN),)
TRUNCATING = own(clean=False, is_truncating=True)


class Row(NamedTuple):
    """A row of the table: facts, and what the plan must have besides the label."""

    label: str
    what: str
    facts: Facts
    wanted: dict[str, Any] = {}


ROWS = [
    Row(TORN_TAIL, "a batch is cut off", facts(own(clean=False), walk=TORN),
        {"end_offset": 15, "is_tail_cut": True, "rewritten_from": (50, 15)}),
    Row(TORN_TAIL, "zeros", facts(own(clean=False), walk=HOLE),
        {"end_offset": 16, "durable_before": 15, "durable_offset": 16}),
    Row(TORN_TAIL, "Kafka's, past the recovery point", facts(kafka(clean=False),
        walk=HOLE), {"end_offset": 16, "durable_before": 10}),
    Row(TORN_TAIL, "garbage with a magic, logstore wrote last",
        facts(own(clean=False), walk=MAGIC), {"end_offset": 15}),
    Row(TORN_TAIL, "left from a roll that was undone",
        rolled(walk=WalkFacts(50, 50, 14), after=20),
        {"put_aside": (20,), "end_offset": 15}),
    Row(INDEX_REBUILT, "a sealed segment has none",
        facts(own(), names=without(segment_file(0, INDEX))), {"indexed": (0,)}),
    Row(INDEX_REBUILT, "sealing failed", facts(own(digest=STALE_DIGEST)),
        {"indexed": (0,)}),
    Row(INDEX_REBUILT, "its roll was interrupted",
        rolled(walk=WalkFacts(70, 70, 16), after=17),
        {"indexed": (10,), "end_offset": 19, "put_aside": ()}),
    Row(INDEX_REBUILT, "the last one of a closed log has another",
        facts(own(), indexes={ReadIndexes(10): False}),
        {"is_index_written": True, "end_offset": 15}),
    Row(INDEX_REBUILT, "the last one of a closed log has none",
        facts(kafka(), names=without(segment_file(10, TIME_INDEX))),
        {"is_index_written": True}),
    Row(SWAP_FINISHED, "a committed compaction",
        facts(kafka(), names=SWAPPED, swap_ends={0: 10}),
        {"operations.swaps": (segment_file(0, LOG) + ".swap",), "indexed": (0,),
         "operations.superseded": tuple(
            segment_file(0, s) for s in (INDEX, LOG, TIME_INDEX))}),
    Row(LEFTOVERS_REMOVED, "one that was not committed",
        facts(kafka(), names=without(also=(segment_file(0, LOG) + ".cleaned",))),
        {"operations.leftovers": (segment_file(0, LOG) + ".cleaned",)}),
    Row(STATE_DAMAGED, "logstore's state is bad", facts(replace(kafka(),
        state_error=CorruptCheckpointError("it is bad", path="state"), is_own=True))),
    Row(START_BEYOND_END, "Kafka's", facts(replace(kafka(), log_start=30)),
        {"start_offset": 30, "end_offset": 30}),
    Row(DAMAGE_GONE, "whole batches are in its place",
        facts(own(), standings=(Standing(KNOWN, False, "it is gone"),)),
        {"verdicts": (), "end_offset": 15}),
    Row(LOST_END, "a sealed segment is shorter",
        facts(own(), sizes={0: 60, 10: 50}), {"end_offset": 15}),
    Row(LOST_END, "the last segment is shorter", facts(own(), size=30),
        {"end_offset": 15, "durable_offset": 15}),
    Row(LOST_END, "also after an unclean stop", facts(own(clean=False), size=30),
        {"end_offset": 15}),
    Row(LOST_END, "the partition is older than the store",
        facts(replace(own(), recovery_point=30)), {"end_offset": 30}),
    Row(LOST_END, "Kafka's, before the recovery point",
        facts(kafka(point=20)), {"end_offset": 20}),
    Row(LOST_SEGMENT, "a sealed one",
        facts(own(), names=without(segment_file(0, LOG)), sizes={10: 50})),
    Row(LOST_SEGMENT, "the last one",
        facts(own(), names=without(segment_file(10, LOG)), sizes={0: 100}),
        {"end_offset": 15}),
    Row(LOST_SEGMENT, "the last one, which was empty",
        facts(own(size=0, end=10), names=without(segment_file(10, LOG)),
              sizes={0: 100}), {"end_offset": 10}),
    Row(LOST_SEGMENT, "the last one of a log that was not closed",
        facts(own(clean=False), names=without(segment_file(10, LOG)), sizes={0: 100}),
        {"end_offset": 16, "durable_offset": 15}),
    Row(LOST_END, "less than the store was closed with",
        facts(replace(own(clean=False), closed_at=20), size=70,
              walk=WalkFacts(70, 70, 17)),
        {"end_offset": 20}),
    Row(LOST_END, "less than other processes were told is durable",
        facts(replace(own(clean=False), announced=20), size=70,
              walk=WalkFacts(70, 70, 17)),
        {"end_offset": 20}),
    Row(LOST_END, "they were told more than the segment before a roll has",
        told(18, rolled(walk=WalkFacts(50, 50, 14), after=20)),
        {"put_aside": (), "end_offset": 22}),
    Row(CORRUPT, "other processes were told that it is durable",
        facts(replace(own(clean=False), announced=17), walk=HOLE),
        {"tail": None, "end_offset": 17}),
    Row(LOST_SEGMENT, "all of a flushed log",
        facts(kafka(), names=frozenset(), sizes={}), {"segments": ()}),
    Row(CORRUPT, "below the durable point",
        facts(own(clean=False), indexes={ReadIndexes(10): False}, walk=OLD),
        {"tail": None, "end_offset": 15}),
    Row(CORRUPT, "the last durable batch is not the one of the state",
        facts(own(), lasts={ReadLast(10): LogTail(17, 40, 7)}, walks={
            ReadLog(10, end=50): WalkFacts(50, 50, 17),
            ReadLog(10, end=40): WalkFacts(40, 40, 12)}),
        {"tail": None, "end_offset": 15}),
    Row(CORRUPT, "the same, behind it what was not durable",
        facts(own(clean=False), size=70, lasts={ReadLast(10): LogTail(13, 40, 7)},
            walks={ReadLog(10, end=50): WalkFacts(50, 50, 13),
                ReadLog(10, end=40): WalkFacts(40, 40, 12)}),
        {"tail": None, "end_offset": 15, "is_tail_cut": False}),
    Row(CORRUPT, "Kafka's, below the recovery point",
        facts(kafka(clean=False, point=13), walk=OLD), {"end_offset": 13}),
    Row(CORRUPT, "Kafka's, after a clean stop", facts(kafka(), walk=HOLE),
        {"end_offset": 17}),
    Row(CORRUPT, "the last batch of Kafka's has moved since it was closed",
        facts(kafka(point=15), walk=WalkFacts(50, 50, 17, moved=MOVED)),
        {"tail": None, "end_offset": 15, "durable_offset": 15}),
    Row(CORRUPT, "the same, too far from the name of its segment",
        facts(kafka(point=15), walk=WalkFacts(50, 40, 12, reason="offset",
            is_misplaced=True, readable_end=1 << 40, moved=MOVED)),
        {"tail": None, "end_offset": 15}),
    Row(CORRUPT, "a sealed segment that has to be indexed",
        facts(own(), names=without(segment_file(0, INDEX)),
              walks={ReadLog(0): OLD}), {"indexed": ()}),
    Row(CORRUPT, "a sealed segment of Kafka's that may not be flushed",
        facts(kafka(clean=False, point=5), walks={
            ReadLog(0): OLD, WHOLE_LAST: WalkFacts(50, 50, 14)})),
    Row(CORRUPT, "its offsets reach into the next segment",
        facts(kafka(clean=False, point=5), walks={
            ReadLog(0): WalkFacts(100, 100, 10), WHOLE_LAST: WalkFacts(50, 50, 14)})),
    Row(CORRUPT, "bytes after the end of a closed log", facts(own(), size=60),
        {"end_offset": 15, "tail": None}),
    Row(CORRUPT, "a sealed segment has grown", facts(own(), sizes={0: 101, 10: 50})),
    Row(CORRUPT, "a segment between those of the log",
        facts(own(), names=without(also=(segment_file(5, LOG),)),
              sizes={0: 100, 5: 9, 10: 50})),
    Row(CORRUPT, "it does not begin as a log does",
        facts(kafka(clean=False), walk=NO_LOG), {"tail": None}),
    Row(CORRUPT, "valid batches follow, and nothing says what was flushed",
        facts(kafka(clean=False, point=0, is_known=False), walk=MORE), {"tail": None}),
    Row(CORRUPT, "valid batches follow, and the machine runs since",
        facts(replace(own(clean=False), is_same_boot=True), walk=MORE),
        {"tail": None, "end_offset": 17}),
    Row(CORRUPT, "Kafka's, an intact batch with another offset",
        facts(kafka(clean=False), walk=HOLE._replace(is_misplaced=True)),
        {"tail": None, "end_offset": 17}),
    Row(CORRUPT, "Kafka's, bytes after the last batch of a sealed segment",
        facts(kafka(), walks={**SEALED, ReadLog(0, is_end=True): HOLE,
            ReadLog(0): WalkFacts(100, 90, 9), WHOLE_LAST: WalkFacts(50, 50, 14)})),
    Row(CORRUPT, "it was found before, and is there",
        facts(own(clean=False), walk=HOLE, standings=SAME),
        {"tail": None, "end_offset": 17, "verdicts": (KNOWN,)}),
    Row(CORRUPT, "it was found before, and the batches are whole now",
        facts(own(clean=False), walk=WalkFacts(80, 80, 17), standings=SAME),
        {"end_offset": 18, "rewritten_from": None}),
    Row(CORRUPT, "what was found before cannot be read",
        facts(replace(own(clean=False), verdicts=Verdicts(fault="it is bad")),
            walk=HOLE), {"tail": None, "end_offset": 17}),
    Row(UNSUPPORTED, "a codec", facts(own(clean=False), walk=CODEC), {"tail": None}),
    Row(UNSUPPORTED, "a magic, another program wrote last",
        facts(kafka(clean=False), walk=MAGIC), {"tail": None}),
    Row(UNREADABLE, "a sealed segment", facts(own(), sizes={0: REFUSED, 10: 50})),
    Row(UNREADABLE, "the last one of a closed log", facts(own(), size=REFUSED),
        {"end_offset": 15}),
    Row(UNREADABLE, "the last one after an unclean stop",
        facts(own(clean=False), size=REFUSED), {"is_end_unknown": True}),
    Row(UNREADABLE, "a segment of Kafka's", facts(kafka(), size=REFUSED),
        {"is_end_unknown": True}),
    Row(UNREADABLE, "reading fails", facts(kafka(),
        walk=WalkFacts(50, 0, 9, refusal=Refusal("read", errno.EIO, "I/O error")),
        sizes={0: 100, 10: 50}), {"is_end_unknown": True}),
    Row(UNREADABLE, "a `.swap` file", facts(kafka(), names=SWAPPED,
        swap_ends={0: REFUSED}), {"is_end_unknown": True}),
]  # fmt: skip

# Decided for a store, or by a call that fails: see the tests below.
ELSEWHERE = {
    FOREIGN_PARTITION,
    ID_RENEWED,
    OTHER_WRITER,
    POSITION_ABOVE_END,
    POSITION_LOWERED,
    TAIL_KEPT,
    UNPUBLISHED,
}


def table() -> list[str]:
    """The labels of the table in docs/design.md."""
    text = DESIGN.read_text(encoding="utf-8")
    chapter = text[text.index("\n## Recovery\n") : text.index("\n## Repair\n")]
    return re.findall(r"^\| `([a-z-]+)` \|", chapter, re.MULTILINE)


def test_cases_are_in_the_order_of_the_table() -> None:
    """The code has the table of the design."""
    assert list(CASES) == table()


def test_each_label_has_a_row() -> None:
    """No case is missing here."""
    assert {row.label for row in ROWS} == set(CASES) - ELSEWHERE


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.label}: {row.what}")
def test_row_of_the_table(row: Row) -> None:
    """The facts lead to the case, which decides whether the log takes appends."""
    plan = make_plan(row.facts)
    assert row.label in plan.labels
    assert {label for label in plan.labels if label != row.label} <= {INDEX_REBUILT}
    assert (plan.damage is not None) == (CASES[row.label] == TAKES_NO_APPENDS)
    for name, value in row.wanted.items():
        assert operator.attrgetter(name)(plan) == value, name
    if not plan.is_end_unknown:
        bounds = plan.start_offset, plan.durable_before, plan.durable_offset
        assert [*bounds, plan.end_offset] == sorted([*bounds, plan.end_offset])
        assert all(s.next_offset == plan.end_offset for s in plan.segments[-1:])
    # A plan is a value: made again it is equal, and it can be printed.
    assert make_plan(row.facts) == plan
    assert row.label in repr(plan)
    if plan.damage is not None:
        assert not plan.is_tail_cut
        assert plan.rewritten_from is None
        assert plan.damage.path in str(plan.damage.error())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.label}: {row.what}")
def test_read_only_opening_ends_the_log_where_writing_does(row: Row) -> None:
    """It reads less, and finds the same end."""
    plan = make_plan(row.facts)
    seen = make_plan(replace(row.facts, is_writable=False))
    ends = (seen.start_offset, seen.end_offset, seen.tail)
    if not plan.is_end_unknown:
        assert ends == (plan.start_offset, plan.end_offset, plan.tail)
    assert not seen.indexed
    assert not seen.is_index_written
    assert seen.rewritten_from is None


@pytest.mark.parametrize(
    "metadata", [own(), own(clean=False), kafka(), kafka(clean=False), TRUNCATING],
    ids=["closed", "killed", "Kafka's", "Kafka's, killed", "truncating"],
)  # fmt: skip
def test_log_of_which_nothing_is_wrong_has_no_findings(
    metadata: PartitionMetadata,
) -> None:
    """The log is only made durable, and all of it is served."""
    found = facts(metadata)
    found = replace(
        found, walks={**found.walks, LAST._replace(end=50): WalkFacts(50, 50, 14)}
    )
    plan = make_plan(found)
    assert plan.findings == ()
    assert (plan.start_offset, plan.end_offset) == (0, 15)
    assert plan.durable_offset == 15
    assert (plan.rewritten_from is None) == metadata.clean
    assert [s.base_offset for s in plan.segments] == [0, 10]


def test_interrupted_truncation_is_finished() -> None:
    """Later segments are removed, and so are the bytes after the new end."""
    names = without(also=(segment_file(15, LOG), segment_file(15, INDEX)))
    end = LAST._replace(is_from_state=False, end=50)
    plan = make_plan(
        facts(
            TRUNCATING,
            names=names,
            sizes={0: 100, 10: 90, 15: 20},
            indexes={ReadIndexes(10): False},
            walks={end: WalkFacts(50, 50, 14)},
        )
    )
    assert plan.findings == ()
    operations = plan.operations
    assert (operations.truncated, operations.dropped) == ((10, 50), (15,))
    assert (plan.end_offset, operations.orphans) == (15, ())
    assert plan.tail is not None
    assert (plan.tail.pos, plan.tail.size) == (50, 40)


def test_interrupted_deletion_is_finished() -> None:
    """Segments below the first one of the state are deleted."""
    metadata = own(start_offset=10, sealed=[])
    plan = make_plan(facts(metadata))
    assert plan.operations.deleted == (0,)
    assert [s.base_offset for s in plan.segments] == [10]
    assert plan.start_offset == 10


def test_index_without_a_log_is_an_orphan() -> None:
    """A broker does the same."""
    plan = make_plan(facts(kafka(), names=without(also=(segment_file(3, INDEX),))))
    assert plan.operations.orphans == (segment_file(3, INDEX),)


def test_digest_counts_only_of_a_sealed_segment() -> None:
    """The digest of the last segment is stale: it will be written to."""
    also = tuple(f".logstore-digest-{base:020d}" for base in (0, 10, 99))
    plan = make_plan(facts(own(), names=without(also=also)))
    assert plan.digested == {0}
    assert plan.stale_digests == {10, 99}


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (facts(own(), indexes={}), ReadIndexes(10)),
        (facts(own(clean=False), walks={}), LAST),
        (facts(kafka(), walks={}), ReadLog(0, is_end=True)),
        (facts(kafka(), walks=SEALED), WHOLE_LAST),
        (facts(kafka(clean=False, point=5), walks={}), ReadLog(0)),
    ],
)
def test_decision_asks_for_what_it_does_not_know(known: Facts, asked: Question) -> None:
    """The decision reads nothing itself."""
    with pytest.raises(MissingFactError) as caught:
        make_plan(known)
    assert caught.value.question == asked


@pytest.mark.parametrize(
    ("last", "has_moved"),
    [
        (LastBatch(40, 50, first=13, last=14, before=12), False),  # ends there
        (LastBatch(40, 50, first=12, last=13, before=11), False),  # before it
        (LastBatch(40, 50, first=14, last=15, before=12), True),
        (LastBatch(40, 50, first=1 << 40, last=(1 << 40) + 1, before=12), True),
        (LastBatch(40, 50, first=16, last=17, before=9), True),  # after a gap
        (LastBatch(40, 50, first=13, last=15, before=12), False),  # the point is in it
        (LastBatch(40, 50, first=16, last=18, before=12), False),  # did not fit there
        (LastBatch(40, 50, first=15, last=15, before=14), False),  # was appended
        (LastBatch(40, 50, first=19, last=19, before=14), False),
    ],
)
def test_batch_has_moved_if_it_was_before_the_closed_end(
    last: LastBatch, has_moved: bool
) -> None:
    """It ends beyond offset 15, at which the log was closed, and before that as many
    offsets are free as it has."""
    assert last.has_moved(15) is has_moved


def test_segment_ends_before_a_batch_that_has_moved() -> None:
    """Readers would not see that its offset is wrong."""
    plan = make_plan(facts(kafka(point=15), walk=WalkFacts(50, 50, 17, moved=MOVED)))
    assert plan.segments[-1].size == 40
    assert plan.segments[-1].next_offset == 15
    assert plan.damage is not None
    assert (plan.damage.position, plan.damage.offset) == (40, 13)


def test_closed_log_is_opened_without_reading_a_batch() -> None:
    """The state has everything that is needed."""
    assert make_plan(facts(own(), walks={})).end_offset == 15


def test_damage_has_the_error_of_its_case() -> None:
    """An append raises it."""
    kinds: dict[str, type[Exception] | tuple[type[Exception], ...]] = {
        UNSUPPORTED: UnsupportedError,
        UNREADABLE: OSError,
    }
    for row in ROWS:
        damage = make_plan(row.facts).damage
        if damage is not None:
            wanted = kinds.get(row.label, CorruptRecordError)
            assert isinstance(damage.error(), wanted), row.what


# ------------------------------------------------------------------ the other labels


def tree_of_a_store() -> dict[str, bytes | None]:
    files = MemoryFiles()
    store = open_store(ROOT, _files=files)
    fill(new_partition(store, 1, "none"), 5)
    store.close()
    return files.tree()


def actions_of(tree: dict[str, bytes | None], files: MemoryFiles | None = None) -> Any:
    store = open_store(ROOT, _files=files or MemoryFiles(tree))
    try:
        return store.recovery_report.actions
    finally:
        store._context.is_closed = True


def test_row_other_writer() -> None:
    """The marks differ from logstore's last ones: a broker was there."""
    tree = tree_of_a_store()
    assert actions_of(tree) == ()
    tree["recovery-point-offset-checkpoint"] = b"0\n1\norders 0 4\n"
    (action,) = actions_of(tree)
    assert (action.label, action.path) == (OTHER_WRITER, f"{ROOT}/{OWNER}")


def test_row_unpublished() -> None:
    """A publication was cut short: its records are removed again."""
    files = MemoryFiles(tree_of_a_store())
    root = Directory.open_root(files, ROOT)
    owner = checkpoints.read_state(root, OWNER)
    assert owner is not None
    value = {"generation": owner["generation"], "bases": [["orders", 0, 3]]}
    checkpoints.write_state(root, PUBLICATION, {**value, "published": [], "notes": []})
    root.close()
    tree = files.tree()
    (action,) = actions_of(tree)
    assert (action.label, action.first_offset) == (UNPUBLISHED, 3)
    notes = verify(ROOT, _files=MemoryFiles(tree)).notes
    assert [note.kind for note in notes] == [UNPUBLISHED]


class _NoCopies(MemoryFiles):
    """No torn tail can be put aside."""

    def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
        if name.startswith(TORN_PREFIX):
            raise OSError(errno.ENOSPC, "no space")
        return super().create(dir_fd, name, exclusive=exclusive)


def test_row_tail_kept() -> None:
    """A torn tail must be cut, and cannot be copied: nothing is cut."""
    files = MemoryFiles()
    store = open_store(ROOT, _files=files)
    fill(new_partition(store, 1, "none"), 5)
    tree = files.tree()
    store._context.is_closed = True
    log = f"orders-0/{segment_file(0, LOG)}"
    torn = (tree[log] or b"") + b"torn"
    tree[log] = torn
    files = _NoCopies(tree)
    found: list[RecoveryAction] = list(actions_of(tree, files))
    assert [action.label for action in found] == [TAIL_KEPT]
    assert files.tree()[log] == torn


def test_plan_is_a_value() -> None:
    """It can be compared, and has no other identity."""
    assert make_plan(facts(own())) == make_plan(facts(own()))
    assert make_plan(facts(own())) != make_plan(facts(own(clean=False)))
    assert Plan() == Plan()
