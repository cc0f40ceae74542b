"""Agreement of `verify` and recovery about a damaged store.

The stores of `damages`, with one damage or two. `verify` checks a copy, another one is
opened for writing and appended to, a third one is opened read-only:

- If the partition takes no appends, `verify` has a problem; for each entry of the
  recovery report, one of that file.
- If it takes appends, `verify` has no problem in the bytes that the opening has read
  (docs/design.md, "Recovery"); no bytes and no segments are missing or in excess.
- Bytes are cut as a torn tail exactly at the place that `verify` notes.
- `verify` mentions everything else that the opening reports.
- A read-only store ends at the same offset as one opened for writing.
"""

from __future__ import annotations

import dataclasses
import random

from faults import damages
from faults.damage_kinds import Damages
from faults.method import Tally
from faults.workers import spread
from logstore import LogStoreError
from logstore.io.checkpoint.partition_state import PartitionMetadata
from logstore.io.checkpoint.recovery_report import (
    INDEX_REBUILT,
    OTHER_WRITER,
    STATE_DAMAGED,
    TORN_TAIL,
    RecoveryAction,
)
from logstore.io.directory import Directory
from logstore.io.layout import INDEX, LOG, TIME_INDEX, parse_segment_file, segment_file
from logstore.log.recover.plan import CASES, TAKES_NO_APPENDS
from logstore.maintenance.verify.context import StoreMetadata
from logstore.maintenance.verify.report import VerifyReport
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from support.memory_files import ROOT, MemoryFiles

NAME = "agreement"
UNIT = "damaged stores"
COUNTS = {"commit": 3_000, "nightly": 50_000, "release": 300_000}

_TASK = 250
_FOLDER = f"{ROOT}/orders-0"
# Damages that need no batches: they may come second.
_SECOND = ("flip", "to-00", "cut", "zero-block", "grow-zeros", "grow-copy", "missing")
# Problems of files that are derived from the log, or read as if they were missing.
_DERIVED = {
    "offset-index",
    "time-index",
    "transaction-index",
    "producer-snapshot",
    "checkpoint",
    "state",
    "digest",
}
# Problems that opening sees without reading a batch.
_OF_SIZES = {"lost-bytes", "extra-bytes", "lost-segment", "unreadable"}

Tree = dict[str, bytes | None]


@dataclasses.dataclass(frozen=True)
class _Opened:
    """Result of opening for writing."""

    actions: tuple[RecoveryAction, ...]
    error: LogStoreError | None
    end_offset: int


def run(count: int, seed: int, tally: Tally) -> None:
    """Checks `count` damaged stores, of all kinds."""
    numbers = range(count)
    tasks = [(numbers[at : at + _TASK], seed) for at in range(0, count, _TASK)]
    refused = cut = 0
    for done, one_refused, one_cut, failures in spread(_do, tasks):
        refused, cut = refused + one_refused, cut + one_cut
        tally.passed(done - len(failures))
        for failure in failures:
            tally.failed(failure)
    tally.note(f"{refused:,} take no appends, of {cut:,} a torn tail was cut")


def _do(numbers: range, seed: int) -> tuple[int, int, int, list[str]]:
    refused = cut = 0
    failures = []
    for number in numbers:
        where, tree = damaged(seed, number)
        wrong, opened = disagreement(tree, deep=number % 2 == 0)
        refused += opened.error is not None
        cut += any(action.label == TORN_TAIL for action in opened.actions)
        if wrong:
            failures.append(f"{where} (number {number} of seed {seed}): {wrong}")
    return len(numbers), refused, cut, failures


def damaged(seed: int, number: int) -> tuple[str, Tree]:
    """(damage and store, in words; the damaged files)."""
    rng = random.Random(f"{seed}/{number}")
    (magic, codec), ending, writer, _ = rng.choice(damages._SCENARIOS)
    known = damages._store(magic, codec, ending, writer).damages
    kind = rng.random()
    damage = known[rng.randrange(len(known))]
    if kind < 0.2:
        # One case in five: the file at the end of the log is missing.
        damage = damage._replace(path=known.logs[-1], kind="missing", at=0)
    elif kind < 0.4:
        path = rng.choice(known.logs[-3:])
        size = len(known.tree[path] or b"")
        damage = damage._replace(path=path, kind="flip", at=rng.randrange(8 * size))
    elif kind < 0.5:
        path = rng.choice(known.logs)
        damage = damage._replace(path=path, kind="grow-zeros", at=rng.randrange(4))
    tree = known.done(damage)
    text = f"magic{magic}-{codec} {ending} {writer}, {damage}"
    if rng.random() < 0.4:
        again = Damages({p: d for p, d in tree.items() if d != b""}, damages._RECORDS)
        for _ in range(50):
            second = again[rng.randrange(len(again))]
            if second.kind in _SECOND:
                tree = {
                    **again.done(second),
                    **{p: b"" for p in tree if tree[p] == b""},
                }
                text += f", {second}"
                break
    return text, tree


def disagreement(tree: Tree, *, deep: bool) -> tuple[str, _Opened]:
    """(their disagreement or "", result of opening) of a store."""
    opened = _open(tree)
    try:
        report = verify(ROOT, deep=deep, _files=MemoryFiles(tree), threads=1)
    except LogStoreError as error:
        wrong = "" if opened.error else f"verify: {error!r}, opening has nothing"
        return wrong, opened
    end = _read_only_end(tree)
    wrong = (
        _of_refusal(report, opened)
        or _of_acceptance(report, opened, tree)
        or _of_tails(report, opened)
        or _of_reports(report, opened)
    )
    if not wrong and not opened.error and end != opened.end_offset:
        wrong = f"it ends at {opened.end_offset}, and at {end} read-only"
    return wrong, opened


def _open(tree: Tree) -> _Opened:
    """Open it for writing, and append a record."""
    try:
        store = open_store(ROOT, _files=MemoryFiles(tree))
    except LogStoreError as error:
        return _Opened((), error, -1)
    error: LogStoreError | None = None
    end = -1
    try:
        store.recover()
        partition = store.topic("orders")[0]
        end = partition.end_offset
        partition.append(b"x")
    except LogStoreError as refused:
        error = refused
    actions = tuple(store._topics.writers.report().actions)
    store._context.is_closed = True  # nothing of it is written any more
    return _Opened(actions, error, end)


def _read_only_end(tree: Tree) -> int:
    try:
        with open_store(ROOT, read_only=True, _files=MemoryFiles(tree)) as store:
            return int(store.topic("orders")[0].end_offset)
    except LogStoreError:
        return -1


def _of_refusal(report: VerifyReport, opened: _Opened) -> str:
    if opened.error is None:
        return ""
    if report.ok:
        return f"verify is content; opening: {opened.error}"
    paths = {problem.path for problem in report.problems}
    for action in opened.actions:
        of_log = action.path.rstrip("/").startswith(_FOLDER)
        if CASES[action.label] == TAKES_NO_APPENDS and of_log:
            many = "more segment files" in action.message
            if action.path.rstrip("/") not in paths and not many:
                return f"no problem of {action.path}: {action.message}"
    return ""


def _of_acceptance(report: VerifyReport, opened: _Opened, tree: Tree) -> str:
    if opened.error is not None:
        return ""
    context = _context(tree)
    for problem in report.problems:
        if problem.kind in _DERIVED:
            continue
        if problem.kind in _OF_SIZES or not problem.path.endswith(LOG):
            return f"opening accepts it; {problem.kind}: {problem.message}"
        position, message = problem.position or 0, problem.message
        if _is_read(problem.path, position, message, context, tree):
            if context.state is None and _is_of_contents(problem.path, tree):
                continue
            return f"opening has read it; {problem.kind}: {problem.message}"
    return ""


def _context(tree: Tree) -> PartitionMetadata:
    files = MemoryFiles(tree)
    root = Directory.open_root(files, ROOT)
    try:
        return StoreMetadata(root).context(root.child("orders-0"), None)
    finally:
        root.close()


def _is_read(
    path: str, position: int, message: str, context: PartitionMetadata, tree: Tree
) -> bool:
    """Whether opening reads the batches of a file from a position on."""
    name = path.rpartition("/")[2]
    parsed = parse_segment_file(name)
    assert parsed is not None
    base = parsed.base_offset
    bases = sorted(
        p.base_offset
        for other in tree
        if (p := parse_segment_file(other.rpartition("/")[2])) and p.suffix == LOG
    )
    if position == 0 and "which is in the segments before" in message:
        # Found only if both segments are read.
        before = f"{segment_file(bases[bases.index(base) - 1], LOG)}"
        if not _is_read(f"/{before}", 1, "", context, tree):
            return False
    is_last = base == bases[-1]
    indexes = {f"orders-0/{segment_file(base, s)}" for s in (INDEX, TIME_INDEX)}
    if not is_last and not indexes <= set(tree):
        return True
    state = context.state
    if state is not None and base == state.active["base_offset"]:
        return not context.clean and position >= state.active["size"]
    if state is not None and base < state.active["base_offset"]:
        return False
    if is_last:
        return True
    after = bases[bases.index(base) + 1]
    return not context.clean and after > context.recovery_point


def _is_of_contents(path: str, tree: Tree) -> bool:
    """Whether a log has wrappers: without own state, only `verify` decodes them."""
    data = tree[path.removeprefix(f"{ROOT}/")] or b""
    return len(data) > 17 and data[16] < 2


def _of_tails(report: VerifyReport, opened: _Opened) -> str:
    if opened.error is not None:
        return ""
    cut = {(a.path, a.position) for a in opened.actions if a.label == TORN_TAIL}
    noted = {(n.path, n.position) for n in report.notes if n.kind == TORN_TAIL}
    if cut != noted:
        return f"cut as torn tails: {sorted(cut)}, noted: {sorted(noted)}"
    for path, position in cut:
        for problem in report.problems:
            if problem.path == path and (problem.position or -1) >= position:
                return f"in a torn tail, from {position} on: {problem.message}"
    return ""


def _of_reports(report: VerifyReport, opened: _Opened) -> str:
    findings = (*report.problems, *report.notes)
    for action in opened.actions:
        stem = action.path.rpartition(".")[0]
        is_told = True
        if action.label == INDEX_REBUILT:
            is_told = any(
                f.path.rpartition(".")[0] == stem and not f.path.endswith(LOG)
                for f in findings
            )
        elif action.label == STATE_DAMAGED:
            is_told = any(f.path == action.path for f in report.problems)
        elif action.label == OTHER_WRITER:
            is_told = any(f.kind == OTHER_WRITER for f in report.notes)
        if not is_told:
            return f"not mentioned: {action.message}"
    return ""


__all__ = ["COUNTS", "NAME", "UNIT", "damaged", "disagreement", "run"]
