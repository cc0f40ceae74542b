"""Judges of a damaged store: it delivers right records, or raises a named error.

`Truth` holds the written records. `judge_reader` makes all calls of a reader on the
damaged store; `judge_writer` opens it for writing, appends, closes and opens it again.
Both return the problem in words, or "" and whether the damage was noticed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import pyarrow as pa

from faults.kafka_rules import has_torn_tail
from logstore import LogStoreError, Record
from logstore.io.checkpoint.recovery_report import INDEX_REBUILT, RecoveryAction
from logstore.io.layout import TOPICS
from logstore.maintenance.verify.store import verify
from logstore.store.opening import open_store
from support.memory_files import ROOT, MemoryFiles

__all__ = ["LOUD", "RIGHT", "SHORT", "Truth", "judge_reader", "judge_writer"]

TOPIC = "orders"

# Right outcomes: all records; all durable records, and the rest reported as a torn
# tail; a named error.
RIGHT, SHORT, LOUD = "right", "short", "loud"

Tree = Mapping[str, bytes | None]


@dataclasses.dataclass(frozen=True)
class Truth:
    """Contents of a store.

    Attributes:
        magic: of its records.
        records: all that may be read, in order.
        start_offset: where the log begins.
        durable_offset: below it nothing may be missing without an error.
        is_own: with logstore's own state, so that nothing is ambiguous.
        undamaged: the written records, if `records` holds only the credible ones, and
            the rules of the format are broken after them.
        hidden: ranges of offsets: a read from inside of one may begin after it.
        is_wrapped: the batches are wrappers, whose offset is under no checksum: a
            wrong one shows only when the content is decoded.
    """

    magic: int
    records: list[Record]
    start_offset: int
    durable_offset: int
    is_own: bool = True
    undamaged: tuple[Record, ...] = ()
    hidden: tuple[range, ...] = ()
    is_wrapped: bool = False

    @property
    def end_offset(self) -> int:
        return self.records[-1].offset + 1 if self.records else self.start_offset

    def since(self, offset: int) -> list[Record]:
        return [record for record in self.records if record.offset >= offset]

    def offset_for_time(self, timestamp: int, end: int) -> int | None:
        for record in self.records:
            if record.timestamp_ms >= timestamp and record.offset < end:
                return record.offset
        return None


class Wrong(Exception):
    """The store returned a wrong result."""


class _Case:
    """One damaged store, while it is judged."""

    def __init__(self, truth: Truth, rng: random.Random) -> None:
        self.truth = truth
        self.rng = rng
        self.errors: list[LogStoreError] = []
        self.is_short = False
        # The end of the log as found.
        self.end = truth.end_offset

    @contextlib.contextmanager
    def loud(self) -> Iterator[None]:
        """A named error is a valid result; any other is not."""
        try:
            yield
        except LogStoreError as error:
            self.errors.append(error)
        except Wrong:
            raise
        except Exception as error:
            raise Wrong(f"an error without a name: {error!r}") from error

    def read_all(self, partition: Any) -> None:
        truth, found = self.truth, []
        before = len(self.errors)
        with self.loud():
            for record in partition.read():
                found.append(record)
                if len(found) > len(truth.records):
                    break
        if found != truth.records[: len(found)]:
            raise Wrong(f"read: {_first_difference(found, truth.records)}")
        if len(self.errors) > before or len(found) == len(truth.records):
            end = partition.end_offset
            if self.may_end(end) and end < self.end:
                # Damage in the middle, which led to a torn tail.
                self.is_short, self.end = True, end
            return
        if not self.may_end(truth.start_offset + len(found)):
            raise Wrong(
                f"read: ends at {truth.start_offset + len(found)} without an error"
            )
        self.is_short = True
        self.end = truth.records[len(found)].offset

    def may_end(self, offset: int) -> bool:
        """Whether a torn tail may begin at an offset."""
        return self.truth.durable_offset <= offset

    def ask(self, partition: Any) -> None:
        """Make all kinds of reads, from offsets and times in the middle."""
        truth, rng = self.truth, self.rng
        if self.end <= truth.start_offset:
            return
        offset = rng.randrange(truth.start_offset, self.end)
        want = [r for r in truth.since(offset) if r.offset < self.end]
        with self.loud():
            self.same("read", offset, list(islice(partition.read(offset), 4)), want[:4])
        with self.loud():
            chunk = partition.fetch(offset, rng.choice((64, 300, 4096)))
            found: list[Record] = []
            with self.loud():
                found.extend(chunk)
                if not found and not any(offset in r for r in truth.hidden):
                    raise Wrong(f"fetch from {offset}: nothing")
                behind = found[-1].offset + 1 if found else offset
                is_hidden = any(chunk.next_offset in r for r in truth.hidden)
                if (chunk.next_offset < behind and not is_hidden) or (
                    chunk.next_offset > behind and truth.is_own
                ):
                    raise Wrong(f"fetch from {offset}: next is {chunk.next_offset}")
            self.same("fetch", offset, found, want[: len(found)])
        with self.loud():
            found = []
            for batch in islice(partition.read_batches(offset), 2):
                found += [record for record in batch if record.offset >= offset]
            self.same("read_batches", offset, found, want[: max(len(found), 1)])

    def ask_in_parts(self, partition: Any) -> None:
        """Check that consecutive reads meet a broken rule, too: none of them takes a
        wrong offset for the end of its part, or for its beginning."""
        truth, rng = self.truth, self.rng
        if not truth.undamaged or truth.undamaged[0].offset:
            return  # none is broken, or perhaps only below the start of the log
        first, end = truth.undamaged[0].offset, truth.undamaged[-1].offset + 1
        with self.loud():
            end = max(end, partition.end_offset)
        inner = range(first + 1, end)
        cuts = sorted(rng.sample(inner, min(rng.randrange(4), len(inner))))
        before = len(self.errors)
        with self.loud():
            for start, stop in itertools.pairwise((first, *cuts, end)):
                list(partition.read(start, stop))
            raise Wrong(f"reads up to {[*cuts, end]}: a broken rule, and no error")
        with self.loud():
            size, offset = rng.choice((64, 300, 4096)), first
            while (chunk := partition.fetch(offset, size)).next_offset > offset:
                list(chunk)
                offset = chunk.next_offset
            raise Wrong(f"fetches up to {offset}: a broken rule, and no error")
        del self.errors[before:]

    def ask_times(self, partition: Any) -> None:
        truth = self.truth
        if truth.magic == 0 or not truth.records:
            return
        for record in self.rng.sample(truth.records, min(4, len(truth.records))):
            stamp = record.timestamp_ms + self.rng.choice((0, 0, 1, -1))
            with self.loud():
                found = partition.offset_for_time(stamp)
                want = truth.offset_for_time(stamp, self.end)
                if found != want:
                    raise Wrong(f"time {stamp}: offset {found}, not {want}")

    def ask_arrow(self, partition: Any) -> None:
        with self.loud():
            rows: list[tuple[Any, ...]] = []
            with self.loud():
                for batch in partition.read_arrow(batch_records=5):
                    columns = (batch.column(n) for n in ("offset", "key", "value"))
                    stamps = batch.column("timestamp").cast(pa.int64())
                    lists = [column.to_pylist() for column in (*columns, stamps)]
                    rows += zip(*lists, strict=True)
            stamped = self.truth.magic > 0
            want = [
                (r.offset, r.key, r.value, r.timestamp_ms if stamped else None)
                for r in self.truth.records[: len(rows)]
            ]
            if rows != want:
                raise Wrong("read_arrow: other rows than were written")

    def same(
        self, what: str, offset: int, found: list[Record], want: list[Record]
    ) -> None:
        if found == want:
            return
        # Past a broken rule, an index may lead to the undamaged records.
        before = [r for r in self.truth.undamaged if r.offset >= offset]
        if found and found == before[: len(found)]:
            return
        for hidden in self.truth.hidden:
            behind = self.truth.since(hidden.stop)
            if offset in hidden and found == behind[: len(found)]:
                return
        raise Wrong(f"{what} from {offset}: {_first_difference(found, want)}")

    def look_through(self, files: MemoryFiles) -> None:
        """Check that `verify` finds at least the damage that readers meet."""
        is_deep = self.rng.random() < 0.5 or (self.truth.is_wrapped and self.errors)
        try:
            report = verify(ROOT, deep=bool(is_deep), _files=files)
        except LogStoreError as error:
            self.errors.append(error)
            return
        except Exception as error:
            raise Wrong(f"verify: an error without a name: {error!r}") from error
        if self.errors and report.ok and not report.notes:
            raise Wrong(f"verify is content, reading is not: {self.errors[0]!r}")
        if self.is_short and report.ok and not report.notes:
            raise Wrong("verify says nothing of a tail that is not served")

    @property
    def outcome(self) -> str:
        return LOUD if self.errors else SHORT if self.is_short else RIGHT


def judge_reader(tree: Tree, truth: Truth, rng: random.Random) -> tuple[str, str]:
    """(what is wrong or "", outcome) of a store that is opened read-only."""
    case = _Case(truth, rng)
    files = MemoryFiles(tree)
    try:
        with case.loud(), open_store(ROOT, read_only=True, _files=files) as store:
            partition = store.topic(TOPIC)[0]
            case.read_all(partition)
            case.ask(partition)
            case.ask_times(partition)
            case.ask_in_parts(partition)
            if rng.randrange(4) == 0:
                case.ask_arrow(partition)
        if rng.randrange(2) == 0:
            case.look_through(files)
    except Wrong as wrong:
        return str(wrong), case.outcome
    return "", case.outcome


def judge_writer(tree: Tree, truth: Truth, rng: random.Random) -> tuple[str, str]:
    """(what is wrong or "", outcome) of a store that is opened for writing, appended
    to, closed, and opened again."""
    case = _Case(truth, rng)
    files = MemoryFiles(tree)
    try:
        with case.loud():
            _write(case, tree, files)
    except Wrong as wrong:
        return str(wrong), case.outcome
    return "", case.outcome


def _write(case: _Case, tree: Tree, files: MemoryFiles) -> None:
    truth = case.truth
    new: Record | None = None
    with open_store(ROOT, _files=files) as store:
        report = store.recovery_report
        partition = store.topic(TOPIC)[0]
        case.read_all(partition)
        case.ask(partition)
        if case.is_short and not report and has_torn_tail(tree):
            raise Wrong("a tail was cut, and the report is empty")
        _check_kept(case, tree, files)
        with case.loud():
            offset = partition.append(b"new", b"k", timestamp_ms=5)
            # Without own state, an empty wrapper or segment may have moved the end.
            is_end = offset == case.end or (offset > case.end and not truth.is_own)
            if not is_end and not case.errors:
                raise Wrong(f"appended at {offset}, not at {case.end}")
            new = next(iter(partition.read(offset)))
            if (new.offset, new.value, new.key) != (offset, b"new", b"k"):
                raise Wrong(f"appended, and {new} was read")
    if new is None or case.errors:
        return
    grown = [r for r in truth.records if r.offset < case.end] + [new]
    with open_store(ROOT, _files=files) as store:
        for action in store.recovery_report.actions:
            # Settings that are lost are reported until they are set again.
            if not (action.path.endswith(TOPICS) or _is_late(action, tree, files)):
                raise Wrong(f"mended twice: {action.message}")
        found = list(store.topic(TOPIC)[0].read())
        if found != grown:
            raise Wrong(f"opened again: {_first_difference(found, grown)}")
    # Sealed segments are not read at opening: damage in them stays.
    before = {
        problem.path for problem in verify(ROOT, _files=MemoryFiles(tree)).problems
    }
    for problem in verify(ROOT, _files=files).problems:
        if problem.path not in before:
            raise Wrong(f"mended, and not sound: {problem.message}")


def _is_late(action: RecoveryAction, tree: Tree, files: MemoryFiles) -> bool:
    """Whether an index was rebuilt that had been wrong from the beginning: the first
    opening does not read it if the state file has the last batch."""
    if action.label != INDEX_REBUILT:
        return False
    stem, after = action.path.removeprefix(f"{ROOT}/").rpartition(".")[0], files.tree()
    names = (f"{stem}.index", f"{stem}.timeindex")
    return any(
        not (after.get(name) or b"").startswith(tree.get(name) or b"") for name in names
    )


def _check_kept(case: _Case, tree: Tree, files: MemoryFiles) -> None:
    """Check that opening cut only a torn tail, and changed no byte that it kept; bytes
    put aside are still there."""
    after = files.tree()
    aside = [
        data
        for path, data in after.items()
        if "/.logstore-torn-" in path or path.endswith(".deleted")
    ]
    for path, data in tree.items():
        if not path.endswith(".log") or data is None:
            continue
        kept = after.get(path) or b""
        lost = data[len(kept) :]
        if not data.startswith(kept) or (lost and lost not in aside):
            raise Wrong(f"opening changed {path}, and {len(lost)} bytes are nowhere")


def _first_difference(found: list[Record], want: list[Record]) -> str:
    for one, other in zip(found, want, strict=False):
        if one != other:
            return f"{one} instead of {other}"
    if len(found) < len(want):
        return f"{want[len(found)]} is missing"
    return f"{found[len(want)]} is not one that was written"
