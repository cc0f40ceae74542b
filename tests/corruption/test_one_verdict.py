"""Whether a directory is damaged has one answer: of `verify`, the report, the hand-over
in both directions, a dry run of `repair`, opening and reading, however often they are
asked, also after the store was closed or killed meanwhile."""

from __future__ import annotations

import dataclasses
import logging
import random
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import logstore
from faults.damage_kinds import Damage, Damages
from logstore.store.store import open_store
from support.damage import (
    Unsynced,
    crash,
    fix_crc,
    frames,
    logs_in,
    overwrite,
)
from support.levels import some
from support.values import config_of, fill, write_store

COUNT = 24
ENDINGS = ("closed", "killed", "copy", "broker", "killed-broker")
FORMATS = ((2, "none"), (2, "gzip"), (1, "none"), (1, "gzip"), (0, "none"))
PLACES = ("first", "inside", "last", "beside")
MARKS = (".logstore-owner", ".kafka_cleanshutdown", "recovery-point-offset-checkpoint")
META = b"version=1\nnode.id=1\ncluster.id=AAECAwQFBgcICQoLDA0ODw\n"
ID = b"version: 0\ntopic_id: 2f1rYkIjTKyCf-0hQMvLDg"
BROKER: dict[str, Any] = {"release": "3.9", "retention_ms": -1}
# What a dry run of `repair` does beside the log.
BESIDE = {"index-rebuilt", "put-aside", "state-rebuilt", "verdict-gone", "left-alone"}
# A whole segment has another name: where a log may have gaps, nothing tells which
# offsets it had.
DISPLACED = {"rename-to", "copy-as", "swap-segments", "copy-over"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@dataclasses.dataclass
class Answers:
    """What is said of one directory.

    Attributes:
        verified: by `verify`, deeply.
        damage: its problems that are damage to records.
        read: offsets that a reader gets, and the name of the error.
    """

    verified: logstore.VerifyReport
    damage: list[logstore.Problem]
    read: tuple[list[int], str]


# --------------------------------------------------------------- stores and damages


def write(path: Path, magic: int, codec: str, ending: str) -> None:
    """A store of several segments, as it is left."""
    config = config_of(magic, codec, segment_bytes=400, index_interval_bytes=100)
    made = path.with_name("made")
    with open_store(made, files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]
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


@cache
def tree_of(base: Path, magic: int, codec: str, ending: str) -> dict[str, bytes | None]:
    path = base / f"{magic}-{codec}-{ending}" / "store"
    path.parent.mkdir(parents=True)
    write(path, magic, codec, ending)
    found = {
        str(one.relative_to(path)): None if one.is_dir() else one.read_bytes()
        for one in sorted(path.rglob("*"))
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
    """One damage of each kind to the files of a place."""
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
    return [damages[rng.choice(some)] for some in numbers.values()]


# ---------------------------------------------------------------------- the answers


def read(path: Path) -> tuple[list[int], str]:
    offsets: list[int] = []
    try:
        with open_store(path, read_only=True, files=Unsynced()) as store:
            for record in store.topic("orders")[0].read():
                offsets.append(record.offset)
    except logstore.LogStoreError as error:
        return offsets, type(error).__name__
    return offsets, ""


def repaired(path: Path, mode: str) -> set[str]:
    """What a dry run would do."""
    return {one.label for one in logstore.repair(path, mode, dry_run=True).actions}


def answers_of(path: Path) -> Answers:
    """All answers, which do not contradict each other."""
    verified = logstore.verify(path, deep=True)
    assert logstore.verify(path, deep=True) == verified
    report = logstore.report(path, deep=True)
    assert report.verified == verified
    facts = report.to_dict()
    damage = [p for p in verified.problems if p.message in _damage_of(path, facts)]
    is_damaged = bool(damage)
    criticals = [f for f in report.findings if f.level == "critical"]
    assert any(f.kind == "damage" for f in criticals) is is_damaged, verified.problems
    to_broker = logstore.check_handover(path, from_kafka=False, **BROKER)
    assert [p for p in to_broker.problems if p.kind == "damage"] or not is_damaged
    assert not [p for p in to_broker.problems if p.kind == "damage"] or is_damaged
    steps = {f"{step['title']}. {step['detail']}" for step in facts["broker"]["steps"]}
    for one in to_broker.findings:
        if one.kind == "damage":
            assert one.message.replace(f"{path}/", "") in steps
    to_logstore = logstore.check_handover(path, from_kafka=True, **BROKER)
    assert bool(to_logstore.problems) is bool(verified.problems)
    inside = [p for p in verified.problems if "orders-0" in p.path]
    for mode in ("cut", "skip"):
        actions = repaired(path, mode)
        assert actions or not inside
        # To skip what is missing changes no byte of the log.
        is_done = actions if mode == "skip" else actions - BESIDE
        assert is_done or "left-alone" in actions or not is_damaged
        assert not actions - {"put-aside"} or inside or verified.notes
    got, error = read(path)
    assert error or is_damaged or len(got) == verified.records
    assert is_damaged or not error or verified.problems
    assert not is_damaged or error or got == list(range(COUNT))
    return Answers(verified, damage, (got, error))


def _damage_of(path: Path, facts: dict[str, Any]) -> set[str]:
    """The messages of what the report takes for damage."""
    found = list(facts["root_damage"])
    for topic in facts["topics"]:
        for one in topic["partitions"]:
            found += one["damage"]
    prefix = f"{path}/"
    texts = [p.message for p in logstore.verify(path, deep=True).problems]
    return {text for text in texts if text.replace(prefix, "") in found}


def check_first(answers: Answers, damage: Damage) -> None:
    """Damage is named by the first offset that a reader does not get."""
    got, error = answers.read
    firsts = [p.first_offset for p in answers.damage if p.first_offset is not None]
    if not firsts or not error:
        return
    assert min(firsts) not in got
    # Damage that costs no offset has none.
    if damage.kind not in DISPLACED and len(firsts) == len(answers.damage):
        assert set(range(min(firsts))) <= set(got)


def opened(path: Path, killed: Path) -> str:
    """Open for writing, append; the name of the error, and a copy as of a kill."""
    with open_store(path, files=Unsynced()) as store:
        try:
            store.topic("orders")[0].append(b"more")
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
    """Nor one of them itself, after the store was opened and closed, or killed."""
    damages = Damages(tree_of(base, magic, codec, ending), COUNT)
    rng = random.Random(f"{magic} {codec} {ending} {place}")
    for number, damage in enumerate(some(damages_at(damages, place, rng), 7)):
        path = put(damages.done(damage), tmp_path / f"{number}")
        try:
            before = answers_of(path)
            check_first(before, damage)
            killed = tmp_path / f"{number}-killed"
            refused = opened(path, killed)
            assert not refused or before.verified.problems
            for later in (path, killed):
                if refused:
                    after = answers_of(later)
                    assert bool(after.damage) is bool(before.damage)
                    found = [p.kind for p in logstore.doctor(later).problems]
                    assert ("damage" in found) is bool(before.damage)
                elif before.damage:
                    assert not logstore.verify(later, deep=True).ok
        except Exception as error:
            error.add_note(f"{damage}") if hasattr(error, "add_note") else None
            raise


# ----------------------------------------------------------------- kinds of their own


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
    """None of the records of the log is read: a broker deletes them."""
    store = tmp_path / "store"
    write(store, 2, "none", "broker")
    (store / "log-start-offset-checkpoint").write_text("0\n1\norders 0 1000\n")
    (problem,) = logstore.verify(store).problems
    assert (problem.kind, problem.first_offset) == ("start-beyond-end", 0)
    assert any(f.level == "critical" for f in logstore.report(store).findings)
    for direction in (False, True):
        report = logstore.check_handover(store, from_kafka=direction, **BROKER)
        assert not report.ok
    assert repaired(store, "cut")


def test_partition_that_is_gone_is_damage_for_all(tmp_path: Path) -> None:
    """Its directory is missing, and the list of topics has it."""
    store = tmp_path / "store"
    write(store, 2, "none", "closed")
    shutil.rmtree(store / "orders-0")
    assert [p.kind for p in logstore.verify(store).problems] == ["lost-segment"]
    assert any(f.level == "critical" for f in logstore.report(store).findings)
    for direction in (False, True):
        report = logstore.check_handover(store, from_kafka=direction, **BROKER)
        assert any(p.path == str(store / "orders-0") for p in report.problems)


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("orders-+5", "takes it for orders-5"), ("lost+found", "refuses to start on it")],
)
def test_directory_is_foreign_for_all_or_for_none(
    tmp_path: Path, name: str, meaning: str
) -> None:
    """One that logstore does not take for a partition is noted with what it is for a
    broker."""
    store = tmp_path / "store"
    write(store, 2, "none", "broker")
    (store / name).mkdir()
    (note,) = [n for n in logstore.verify(store).notes if n.kind == "foreign"]
    assert meaning in note.message
    facts = logstore.report(store).to_dict()
    assert facts["foreign"] == [name]
    report = logstore.check_handover(store, from_kafka=False, **BROKER)
    (found,) = [f for f in report.findings if f.path == str(store / name)]
    assert found.is_problem is ("refuses" in meaning)
    doctor = logstore.doctor(store).findings
    assert "foreign" in [f.kind for f in doctor if name in f.message]
