"""Single damages to finished stores: flipped bits, cut files, misplaced blocks.

Stores of every magic and codec, closed and not, written by logstore and as Kafka leaves
them (without logstore's own state), opened for reading and for writing. A damage may be
repaired or noticed; it must not change, hide or invent a record.

Without logstore's own state, Kafka's format has blind spots (`kafka_rules`): damages in
them are counted by class, and the read records must still follow the format.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from faults.damage_judge import (
    LOUD,
    RIGHT,
    SHORT,
    Truth,
    judge_reader,
    judge_writer,
)
from faults.damage_kinds import Damage, Damages
from faults.kafka_rules import Bodies, believable
from faults.method import Tally
from faults.workers import spread
from logstore import StoreConfig
from logstore.io.layout import (
    CLEAN_SHUTDOWN,
    DURABLE,
    LOCK_RECORD,
    OWN_PREFIX,
    OWNER,
    PARTITION_STATE,
    TOPIC_IDENTITY,
    TOPICS,
)
from logstore.store.opening import open_store
from support.memory_files import ROOT, MemoryFiles
from support.values import FORMATS, config_of, expected, fill

NAME = "damages"
UNIT = "single damages"
COUNTS = {"commit": 6_000, "nightly": 100_000, "release": 500_000}

_RECORDS = 24
_UNSYNCED = 6
# Endings of a store: closed; closed, with its head deleted; not closed.
_ENDINGS = ("closed", "trimmed", "killed")
_MODES = ("read", "write")
_TASK = 250


@dataclasses.dataclass(frozen=True)
class _Store:
    """A store to be damaged.

    Attributes:
        is_own: with logstore's own state.
        recovery_point: the flushed offset known without that state.
    """

    damages: Damages
    truth: Truth
    is_own: bool
    is_clean: bool
    recovery_point: int
    bodies: Bodies


# All kinds of stores, in each mode of opening.
_SCENARIOS = tuple(
    itertools.product(FORMATS, _ENDINGS, ("own", "kafka"), _MODES),
)


@functools.cache
def _store(magic: int, codec: str, ending: str, writer: str) -> _Store:
    files = MemoryFiles()
    store = open_store(ROOT, _files=files, config=StoreConfig(flush_checkpoint_ms=0))
    config = config_of(magic, codec, segment_bytes=400, index_interval_bytes=100)
    partition = store.create_topic("orders", config=config)[0]
    fill(partition, _RECORDS - _UNSYNCED, call=3)
    partition.flush()
    start = partition.delete_before(4) if ending == "trimmed" else 0
    if ending == "killed":
        # Kafka would have noted its recovery point, at the latest when it rolled.
        last = partition.segments[-1].base_offset
        files.put("recovery-point-offset-checkpoint", b"0\n1\norders 0 %d\n" % last)
    fill(partition, _UNSYNCED, call=3)
    tree = files.tree()
    durable = partition.durable_offset
    point = partition.segments[-1].base_offset
    store.close()
    if ending != "killed":
        tree = files.tree()
        durable = point = _RECORDS
    records = expected(magic, start, _RECORDS)
    is_wrapped = magic < 2 and codec != "none"
    truth = Truth(magic, records, start, durable, is_wrapped=is_wrapped)
    if writer == "kafka":
        own = (DURABLE, LOCK_RECORD, OWNER, PARTITION_STATE, TOPIC_IDENTITY, TOPICS)
        tree = {p: v for p, v in tree.items() if p.rpartition("/")[2] not in own}
        durable = _RECORDS if ending != "killed" else point
        truth = dataclasses.replace(truth, durable_offset=durable, is_own=False)
    elif ending == "killed":
        # Logstore has written no recovery point yet.
        tree.pop("recovery-point-offset-checkpoint")
    assert not any(OWN_PREFIX in p for p in tree) or writer == "own"
    assert (CLEAN_SHUTDOWN in tree) == (ending != "killed")
    return _Store(
        Damages(tree, _RECORDS),
        truth,
        writer == "own",
        ending != "killed",
        point,
        Bodies(tree, expected(magic, 0, _RECORDS)),
    )


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` random damages; all of them, if there are no more."""
    chosen = _chosen(count, seed)
    tasks = [
        (scenario, numbers[at : at + _TASK], seed)
        for scenario, numbers in chosen.items()
        for at in range(0, len(numbers), _TASK)
    ]
    random.Random(seed).shuffle(tasks)
    outcomes: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    for found, blind, failures in spread(_do, tasks):
        outcomes += found
        unseen += blind
        tally.passed(sum(found.values()) + sum(blind.values()))
        for failure in failures:
            tally.failed(failure)
    tally.note(
        f"{outcomes[LOUD]:,} named errors, {outcomes[RIGHT]:,} without effect or "
        f"mended, {outcomes[SHORT]:,} torn tails past the durable point"
    )
    if unseen:
        tally.note(
            "not detectable by Kafka's format (stores without own state): "
            + ", ".join(f"{kind} {n:,}" for kind, n in sorted(unseen.items()))
        )


def _chosen(count: int, seed: int) -> dict[Any, list[int]]:
    """Numbers of damages for each scenario, the same count for each."""
    rng = random.Random(seed)
    share, more = divmod(count, len(_SCENARIOS))
    order = list(_SCENARIOS)
    rng.shuffle(order)
    chosen = {}
    for slot, scenario in enumerate(order):
        total = len(_store(*scenario[0], *scenario[1:3]).damages)
        want = share + (slot < more)
        numbers = rng.sample(range(total), min(want, total))
        # A store has fewer damages than requested: repeat some, with other reads.
        while len(numbers) < want:
            numbers.append(rng.randrange(total))
        chosen[scenario] = numbers
    return chosen


def drawn(count: int, seed: int) -> Iterator[tuple[Any, int]]:
    """Scenarios and numbers of damages for `judge`, one at a time."""
    rng = random.Random(seed)
    for _ in range(count):
        scenario = rng.choice(_SCENARIOS)
        yield scenario, rng.randrange(len(_store(*scenario[0], *scenario[1:3]).damages))


def _do(
    scenario: Any, numbers: list[int], seed: int
) -> tuple[Counter[str], Counter[str], list[str]]:
    outcomes: Counter[str] = Counter()
    unseen: Counter[str] = Counter()
    failures = []
    for number in numbers:
        wrong, outcome, blind = judge(scenario, number, seed)
        if wrong:
            failures.append(wrong)
        elif blind:
            unseen[blind] += 1
        else:
            outcomes[outcome] += 1
    return outcomes, unseen, failures


def judge(scenario: Any, number: int, seed: int) -> tuple[str, str, str]:
    """(problem or "", outcome, class of a blind spot or "") of one damage."""
    (magic, codec), ending, writer, mode = scenario
    store = _store(magic, codec, ending, writer)
    damage = store.damages[number]
    tree = store.damages.done(damage)
    look = judge_reader if mode == "read" else judge_writer
    text = f"{seed}/{number}"
    wrong, outcome = look(tree, store.truth, random.Random(text))
    if not wrong:
        return "", outcome, ""
    if not store.is_own:
        seen = believable(
            tree,
            store.bodies,
            log_start=_noted(tree, "log-start-offset-checkpoint"),
            recovery_point=_noted(tree, "recovery-point-offset-checkpoint"),
            is_clean=store.is_clean and CLEAN_SHUTDOWN in tree,
        )
        if seen.is_broken or seen.hidden or seen.records != store.truth.records:
            records = seen.records
            start = records[0].offset if records else store.truth.start_offset
            # All of it must be there, then an error if a rule is broken.
            short = start if seen.is_broken else min(store.truth.durable_offset, start)
            undamaged = tuple(store.truth.records) if seen.is_broken else ()
            believed = Truth(
                magic, records, start, short, False, undamaged, seen.hidden,
                store.truth.is_wrapped,
            )  # fmt: skip
            again, outcome = look(tree, believed, random.Random(text))
            if not again and seen.is_broken and outcome != LOUD:
                again = "a rule of the format is broken, and nobody says so"
            if not again:
                return "", outcome, "" if seen.is_broken else _class_of(damage)
            wrong = f"{again} (by the rules of the format)"
    where = f"magic{magic}-{codec} {ending} {writer} {mode}"
    return f"{where}, {damage} (number {number}): {wrong}", outcome, ""


def _noted(tree: dict[str, bytes | None], name: str) -> int:
    """The offset in a checkpoint; 0 if it follows no rule."""
    match = re.fullmatch(rb"0\n1\norders 0 (\d+)\n?", tree.get(name) or b"")
    return int(match[1]) if match else 0


def _class_of(damage: Damage) -> str:
    """A blind spot of the format, in words."""
    path, kind, _ = damage
    if not path.endswith(".log"):
        return f"{path.rpartition('/')[2]} changed"
    if kind in ("flip", "to-00", "to-ff", "zero-block"):
        return "offset of a batch"
    return kind


__all__ = ["COUNTS", "NAME", "UNIT", "drawn", "judge", "run"]
