"""All judges of a directory agree on whether it is damaged: `verify`, the report, the
hand-over in both directions, a dry run of `repair`, `doctor`, opening and every way of
reading, however often they run, also after the store was closed or killed meanwhile.

A reader that skips damage leaves out the offsets that `verify` reports as lost.
"""

from __future__ import annotations

import dataclasses
import logging
import random
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import logstore
from faults.damage_kinds import Damage, Damages
from logstore.store.opening import open_store
from support.damage import (
    Unsynced,
    crash,
    fix_crc,
    frames,
    logs_in,
    overwrite,
)
from support.levels import some
from support.values import config_of, fill, value_of, write_store

COUNT = 24
OWN = ("closed", "killed", "compacted", "killed-compacted")
ENDINGS = (*OWN, "copy", "broker", "killed-broker")
FORMATS = ((2, "none"), (2, "gzip"), (1, "none"), (1, "gzip"), (0, "none"))
PLACES = ("first", "inside", "last", "beside")
# Offsets that compaction removes, and the offsets of newer records with their keys.
NEWER = {1: 5, 6: 9, 7: 10, 11: 16, 14: 18}
MARKS = (".logstore-owner", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint")
META = b"version=1\nnode.id=1\ncluster.id=AAECAwQFBgcICQoLDA0ODw\n"
ID = b"version: 0\ntopic_id: 2f1rYkIjTKyCf-0hQMvLDg"
BROKER: dict[str, Any] = {"release": "3.9", "retention_ms": -1}
# Actions of a dry run of `repair` outside the log.
BESIDE = {"index-rebuilt", "put-aside", "state-rebuilt", "verdict-gone", "left-alone"}
# A whole segment has another name: if a log may have gaps, its offsets are unknown.
DISPLACED = {"rename-to", "copy-as", "swap-segments", "copy-over"}
# A missing batch leaves no trace in a log that may have gaps.
UNNAMED = {*DISPLACED, "lose-batch"}
# Fields in which two reports of the same directory differ.
TIMES = {"made_ms", "seconds", "free_bytes", "environment"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclasses.dataclass
class Answers:
    """Results for one directory.

    Attributes:
        verified: by `verify`, deeply.
        damage: its problems that are damage to records.
        read: offsets that a reader gets, and the name of the error.
        skipped: the same for a reader that skips damage.
        told: offsets that this reader reports as left out.
        end: the end offset for it.
    """

    verified: logstore.types.VerifyReport
    damage: list[logstore.types.VerifyProblem]
    read: tuple[list[int], str]
    skipped: tuple[list[int], str]
    told: set[int]
    end: int


# --------------------------------------------------------------- stores and damages


def write(path: Path, magic: int, codec: str, ending: str) -> None:
    """Write a store of several segments, ended as `ending` says."""
    is_compacted = ending.endswith("compacted")
    config = config_of(
        magic,
        codec,
        segment_bytes=400,
        index_interval_bytes=100,
        cleanup_policy="compact" if is_compacted else "delete",
    )
    made = path.with_name("made")
    with open_store(made, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]
        if is_compacted:
            fill_and_compact(partition)
        else:
            fill(partition, COUNT, call=2)
        partition.flush()
        last = partition.segments[-1].base_offset
        if "killed" in ending:
            crash(made, path)
    if "killed" not in ending:
        made.rename(path)
    if ending == "copy":
        for name in MARKS:
            (path / name).unlink(missing_ok=True)
    if "broker" in ending:
        for own in path.rglob(".logstore*"):
            own.unlink()
        (path / "meta.properties").write_bytes(META)
        (path / "orders-0" / "partition.metadata").write_bytes(ID)
        point = last if "killed" in ending else COUNT
        text = f"0\n1\norders 0 {point}\n"
        (path / "recovery-point-offset-checkpoint").write_text(text)


def fill_and_compact(partition: logstore.Partition) -> None:
    """Records of which compaction has removed the keys of `NEWER`."""
    for first in range(0, COUNT, 2):
        if first == COUNT - 2:
            partition.roll()
        offsets = first, first + 1
        keys = [b"k%d" % NEWER.get(offset, offset) for offset in offsets]
        partition.append_many([value_of(offset) or b"v" for offset in offsets], keys)
    partition.compact(force=True)


@cache
def tree_of(base: Path, magic: int, codec: str, ending: str) -> dict[str, bytes | None]:
    path = base / f"{magic}-{codec}-{ending}" / "store"
    path.parent.mkdir(parents=True)
    write(path, magic, codec, ending)
    found = {
        str(one.relative_to(path)): None if one.is_dir() else one.read_bytes()
        for one in sorted(path.rglob("*"))
        if not one.name.endswith(".deleted")
    }
    shutil.rmtree(path.parent)
    return found


def put(tree: dict[str, bytes | None], path: Path) -> Path:
    path.mkdir(mode=0o700)
    for name, data in tree.items():
        if data is None:
            (path / name).mkdir(exist_ok=True)
        else:
            (path / name).write_bytes(data)
    return path


def damages_at(damages: Damages, place: str, rng: random.Random) -> list[Damage]:
    """One damage of each kind to the files of a place, in any order."""
    logs = damages.logs
    of = {"first": logs[:1], "inside": logs[1:-1], "last": logs[-1:]}
    numbers: dict[str, list[int]] = {}
    begin = 0
    for end, path, kind in damages._blocks:
        is_there = path in of[place] if place in of else path not in logs
        if is_there:
            what = kind if place in of else f"{kind} {path.rpartition('/')[2]}"
            numbers.setdefault(what, []).append(rng.randrange(begin, end))
        begin = end
    found = [damages[rng.choice(some)] for some in numbers.values()]
    rng.shuffle(found)
    return found


# ---------------------------------------------------------------------- the answers


Policy: TypeAlias = "logstore.OnCorruption"
Way: TypeAlias = "Callable[[logstore.Partition, Policy], Iterator[int]]"


def fetched(partition: logstore.Partition, policy: Policy) -> Iterator[int]:
    offset = partition.start_offset
    while offset < partition.end_offset:
        chunk = partition.fetch(offset, 200, on_corruption=policy)
        yield from (record.offset for record in chunk)
        offset = chunk.next_offset


def consumed(partition: logstore.Partition, policy: Policy) -> Iterator[int]:
    path = Path(partition.path).parent
    with logstore.Consumer(
        path, reset="earliest", durable_only=False, on_corruption=policy
    ) as consumer:
        consumer.assign([("orders", 0)])
        while found := consumer.poll(0):
            for records in found.values():
                yield from (record.offset for record in records)


def got(partition: logstore.Partition, policy: Policy) -> Iterator[int]:
    """Offsets that `get` finds, one call for each."""
    for offset in range(partition.start_offset, partition.end_offset):
        try:
            yield partition.get(offset).offset
        except logstore.errors.RecordNotFoundError:
            pass  # compaction has removed it
        except (logstore.CorruptRecordError, logstore.errors.UnsupportedError):
            if policy == "raise":
                raise


# Ways of reading a log other than `read`.
WAYS: dict[str, Way] = {
    "batches": lambda p, c: (
        r.offset for b in p.read_batches(on_corruption=c) for r in b
    ),
    "arrow": lambda p, c: (
        offset.as_py()
        for b in p.read_arrow(columns=["offset"], on_corruption=c)
        for offset in b.column(0)
    ),
    "follow": lambda p, c: (r.offset for r in p.follow(timeout=0, on_corruption=c)),
    "fetch": fetched,
    "get": got,
    "Consumer": consumed,
}


def read(
    path: Path, policy: Policy = "raise", way: Way | None = None
) -> tuple[list[int], str]:
    """The offsets that a way of reading gives (by default `read`), and the name of the
    error that ends it."""
    offsets: list[int] = []
    try:
        with open_store(path, read_only=True, _files=Unsynced()) as store:
            partition = store.topic("orders")[0]
            if way is not None:
                offsets.extend(way(partition, policy))
                return offsets, ""
            for record in partition.read(on_corruption=policy):
                offsets.append(record.offset)
    except logstore.LogStoreError as error:
        return offsets, type(error).__name__
    return offsets, ""


def twice(ask: Callable[[], Any]) -> Any:
    """The result of a call, which must be the same the second time."""
    answer = ask()
    assert ask() == answer
    return answer


def repaired(path: Path, mode: str) -> logstore.types.RepairReport:
    """Planned actions and problems."""
    return logstore.repair(path, mode, dry_run=True)


def answers_of(path: Path) -> Answers:
    """All answers, which do not contradict each other."""
    verified = twice(lambda: logstore.verify(path, deep=True))
    report, facts = twice(lambda: reported(path))
    assert report == verified
    damage = [p for p in verified.problems if p.message in _damage_of(path, facts)]
    is_damaged = bool(damage)
    criticals = [f for f in facts["findings"] if f["level"] == "critical"]
    assert any(f["kind"] == "damage" for f in criticals) is is_damaged
    to_broker = twice(
        lambda: logstore.kafka.check_handover(path, from_kafka=False, **BROKER)
    )
    assert any(p.kind == "damage" for p in to_broker.problems) is is_damaged
    steps = {f"{step['title']}. {step['detail']}" for step in facts["broker"]["steps"]}
    for one in to_broker.findings:
        if one.kind == "damage":
            assert one.message.replace(f"{path}/", "") in steps
    to_logstore = twice(
        lambda: logstore.kafka.check_handover(path, from_kafka=True, **BROKER)
    )
    assert bool(to_logstore.problems) is bool(verified.problems)
    inside = [p for p in verified.problems if "orders-0" in p.path]
    for mode in ("cut", "skip"):
        would = twice(lambda mode=mode: repaired(path, mode))
        assert would.remaining == verified.problems
        actions = {action.label for action in would.actions}
        assert actions or not inside
        # Mode skip changes no byte of the log if batches are merely missing.
        is_done = actions if mode == "skip" else actions - BESIDE
        assert is_done or "left-alone" in actions or not is_damaged
        assert not actions - {"put-aside"} or inside or verified.notes
    # Only the findings of an opening.
    doctor = twice(lambda: [f.kind for f in logstore.doctor(path).problems])
    assert ("damage" in doctor) is bool(list(path.glob("*/.logstore-damaged")))
    assert "damage" not in doctor or is_damaged
    offsets, error = read(path)
    assert error or is_damaged or len(offsets) == verified.records
    assert is_damaged or not error or verified.problems
    told: set[int] = set()
    end = end_of(path)

    def leave_out(damaged: logstore.types.Damaged) -> bool:
        next_offset = end if damaged.next_offset is None else damaged.next_offset
        told.update(range(damaged.first, next_offset))
        return True

    skipped = read(path, leave_out)
    return Answers(verified, damage, (offsets, error), skipped, told, end)


def end_of(path: Path) -> int:
    """End offset for a reader; 0 if the log has no end."""
    try:
        with open_store(path, read_only=True, _files=Unsynced()) as store:
            return store.topic("orders")[0].end_offset
    except logstore.LogStoreError:
        return 0


def reported(path: Path) -> tuple[logstore.types.VerifyReport, dict[str, Any]]:
    """The report, without the times that it was made at."""
    report = logstore.report(path, deep=True)
    facts = report.to_dict()
    return report.verified, {n: v for n, v in facts.items() if n not in TIMES}


def _damage_of(path: Path, facts: dict[str, Any]) -> set[str]:
    """Messages of everything that the report takes for damage."""
    found = list(facts["root_damage"])
    for topic in facts["topics"]:
        for one in topic["partitions"]:
            found += one["damage"]
    prefix = f"{path}/"
    texts = [p.message for p in logstore.verify(path, deep=True).problems]
    return {text for text in texts if text.replace(prefix, "") in found}


def check_first(
    answers: Answers, damage: Damage, offsets: list[int], *, has_gaps: bool
) -> None:
    """Check that damage names the log's first offset that a reader does not get."""
    got, error = answers.read
    firsts = [p.first_offset for p in answers.damage if p.first_offset is not None]
    if not firsts or not error:
        return
    assert min(firsts) not in got
    # Damage that loses no record names no offset.
    unnamed = UNNAMED if has_gaps else DISPLACED
    if damage.kind not in unnamed and len(firsts) == len(answers.damage):
        assert {offset for offset in offsets if offset < min(firsts)} <= set(got)


def is_comparable(answers: Answers, damage: Damage, *, has_gaps: bool) -> bool:
    """Whether the judges agree on the offsets that are lost. No checksum covers an
    offset: of two batches that are out of order one is wrong."""
    is_in_order = all(one.kind != "offsets" for one in answers.damage)
    return is_in_order and not (has_gaps and damage.kind in DISPLACED)


def check_left_out(answers: Answers, offsets: list[int], *, has_gaps: bool) -> None:
    """Check that a read that skips damage reports the offsets that `verify` reports as
    lost, and delivers all others.

    Args:
        offsets: of the log before the damage.
        has_gaps: a log may have gaps, so a missing batch is not noticed.
    """
    lost: set[int] = set()
    maybe: set[int] = set()
    behind = answers.end
    for one in answers.damage:
        if one.first_offset is None:
            continue
        if one.last_offset is None:  # none, or an unknown number
            maybe.update(range(one.first_offset, COUNT))
        else:
            lost.update(range(one.first_offset, one.last_offset + 1))
    known, got = set(offsets), set(answers.skipped[0])
    told = answers.told & known - got
    assert not lost & got
    assert told <= lost | maybe
    assert {offset for offset in lost & known if offset < behind} <= told
    if not has_gaps:
        assert {offset for offset in known - got if offset < behind} <= told


def check_way(path: Path, name: str, answers: Answers, offsets: list[int]) -> None:
    """Check that another way of reading gives the same offsets, or the same error.

    `fetch`, `get` and a poll may begin after damage: if it loses no record, they do
    not meet it. A record needs the batch after it, which may show that its offset is
    wrong.
    """
    raised, error = read(path, "raise", WAYS[name])
    skipped = read(path, "skip", WAYS[name])
    delivered = answers.skipped[0]
    left_out = answers.told & set(offsets) - set(delivered)
    is_whole = not left_out and raised == delivered
    if name not in ("fetch", "get"):
        is_passed = name == "Consumer" and is_whole and not error
        assert (raised, error) == answers.read or is_passed, name
        assert skipped == answers.skipped, name
        return
    assert raised == delivered[: len(raised)], name
    assert not [one for one in left_out if raised and one < raised[-1]], name
    assert error == answers.read[1] or (is_whole and not error), name
    assert set(skipped[0]) <= set(delivered), name
    assert name == "get" or skipped == answers.skipped, name


def opened(path: Path, killed: Path) -> str:
    """Open for writing, append and copy to `killed` as a kill leaves it; the name of
    the error."""
    with open_store(path, _files=Unsynced()) as store:
        try:
            store.topic("orders")[0].append(b"more", key=b"key")
            error = ""
        except logstore.LogStoreError as refused:
            error = type(refused).__name__
        crash(path, killed)
    killed.chmod(0o700)
    return error


# ------------------------------------------------------------------------ the matrix


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.mark.sampled(14)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(("magic", "codec"), FORMATS, ids=lambda one: str(one))
def test_judges_do_not_contradict_each_other(
    tmp_path: Path, base: Path, magic: int, codec: str, ending: str, place: str
) -> None:
    """No judge contradicts itself after the store was opened and closed, or killed."""
    tree = tree_of(base, magic, codec, ending)
    offsets, error = read(put(tree, tmp_path / "intact"))
    assert not error
    removed = NEWER if ending.endswith("compacted") else ()
    assert offsets == [offset for offset in range(COUNT) if offset not in removed]
    has_gaps = ending not in ("closed", "killed")
    damages = Damages(tree, COUNT)
    rng = random.Random(f"{magic} {codec} {ending} {place}")
    ways = rng.sample(sorted(WAYS), len(WAYS))
    for number, damage in enumerate(some(damages_at(damages, place, rng), 3)):
        path = put(damages.done(damage), tmp_path / f"{number}")
        try:
            before = answers_of(path)
            is_known = is_comparable(before, damage, has_gaps=has_gaps)
            if is_known or not has_gaps:
                check_first(before, damage, offsets, has_gaps=has_gaps)
            if is_known:
                check_left_out(before, offsets, has_gaps=has_gaps)
                check_way(path, ways[number % len(ways)], before, offsets)
            killed = tmp_path / f"{number}-killed"
            refused = opened(path, killed)
            assert not refused or before.verified.problems
            for later in (path, killed):
                after = answers_of(later)
                assert bool(after.damage) is bool(before.damage)
                has_verdict = any(later.glob("*/.logstore-damaged"))
                assert has_verdict or not refused or not before.damage
        except Exception as error:
            error.add_note(f"{damage}") if hasattr(error, "add_note") else None
            raise


# ---------------------------------------------------------------------- special cases


def batch_of(store: Path, magic: int, codec: str = "none") -> Path:
    write_store(store, COUNT, magic, codec, segment_bytes=400)
    return logs_in(store / "orders-0")[1]


@pytest.mark.parametrize("what", ["magic", "codec"])
def test_what_is_not_understood_is_a_problem_for_all_and_is_not_cut(
    tmp_path: Path, what: str
) -> None:
    """A batch of an unknown magic, or of an unknown codec."""
    store = tmp_path / "store"
    log = batch_of(store, 2)
    frame = frames(log)[0]
    if what == "magic":
        overwrite(log, frame.pos + 16, b"\x03")
    else:
        overwrite(log, frame.pos + 22, b"\x07")
        fix_crc(log, frame)
    before = log.read_bytes()
    answers = answers_of(store)
    assert {p.kind for p in answers.damage} == {"unsupported"}
    assert answers.read[1] == "UnsupportedError"
    for mode in ("cut", "skip"):
        logstore.repair(store, mode)
    assert log.read_bytes() == before


def test_start_beyond_the_end_is_damage_for_all(tmp_path: Path) -> None:
    """No record of the log is read: a broker deletes all of them."""
    store = tmp_path / "store"
    write(store, 2, "none", "broker")
    (store / "log-start-offset-checkpoint").write_text("0\n1\norders 0 1000\n")
    (problem,) = logstore.verify(store).problems
    assert (problem.kind, problem.first_offset) == ("start-beyond-end", 0)
    assert any(f.level == "critical" for f in logstore.report(store).findings)
    for direction in (False, True):
        report = logstore.kafka.check_handover(store, from_kafka=direction, **BROKER)
        assert not report.ok
    assert repaired(store, "cut")


def test_partition_that_is_gone_is_damage_for_all(tmp_path: Path) -> None:
    """The list of topics has a partition whose directory is missing."""
    store = tmp_path / "store"
    write(store, 2, "none", "closed")
    shutil.rmtree(store / "orders-0")
    assert [p.kind for p in logstore.verify(store).problems] == ["lost-segment"]
    assert any(f.level == "critical" for f in logstore.report(store).findings)
    for direction in (False, True):
        report = logstore.kafka.check_handover(store, from_kafka=direction, **BROKER)
        assert any(p.path == str(store / "orders-0") for p in report.problems)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("orders-+5", "takes it for orders-5"), ("lost+found", "refuses to start on it")],
)
def test_directory_is_foreign_for_all_or_for_none(
    tmp_path: Path, name: str, meaning: str
) -> None:
    """A directory that logstore does not take for a partition is noted with its meaning
    for a broker."""
    store = tmp_path / "store"
    write(store, 2, "none", "broker")
    (store / name).mkdir()
    (note,) = [n for n in logstore.verify(store).notes if n.kind == "foreign"]
    assert meaning in note.message
    facts = logstore.report(store).to_dict()
    assert facts["foreign"] == [name]
    report = logstore.kafka.check_handover(store, from_kafka=False, **BROKER)
    (found,) = [f for f in report.findings if f.path == str(store / name)]
    assert found.is_problem is ("refuses" in meaning)
    doctor = logstore.doctor(store).findings
    assert "foreign" in [f.kind for f in doctor if name in f.message]
