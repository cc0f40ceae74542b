"""The reader in Java compared with Python's, on damaged and changing logs.

Logs of logstore and of brokers, with and without gaps, transactions among them, are
damaged before or after a query is planned, or changed while it is read. Both readers
get the same tasks. They deliver the same rows, or the same error after the same rows;
while a log changes, the rows of the log before or after the change, each once and in
order, and none of them is left out without an error.

Some logs are read through Spark itself: errors of a task in Java must reach the driver
whole, even if the jar was added to a running session.
"""

from __future__ import annotations

import functools
import json
import os
import random
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import logstore
from faults.cases import folder_of, run_cases
from faults.method import Skip, Tally
from faults.spark_children import no_spark, through_spark
from logstore import LogStoreError
from logstore.store.opening import open_store
from support.broker import foreign
from support.damage import Unsynced, frames, logs_in
from support.transactions import Transactions
from support.values import FORMATS, config_of

NAME = "java"
UNIT = "logs read by Java and by Python"
COUNTS = {"commit": 900, "nightly": 10_000, "release": 60_000}

# A session of Spark is slow: one log in this number is read through it.
_FOR_ONE_WITH_SPARK = 300
_CLASSES = "LOGSTORE_FAULTS_CLASSES"
# Right after a file was changed its guard does not hold, and Python reads all.
_SETTLED_S = 0.03
# Classes that a case run alone compiles.
_OWN: list[tempfile.TemporaryDirectory[str]] = []
_T = 1_700_000_000_000


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` logs."""
    reason = no_spark()
    if reason:
        tally.skip(reason, count)
        return
    from support import java_tasks

    with tempfile.TemporaryDirectory(prefix="faults-") as classes:
        java_tasks.compile_check(Path(classes))
        os.environ[_CLASSES] = classes
        try:
            for_spark = count // _FOR_ONE_WITH_SPARK
            notes = run_cases(__name__, count - for_spark, seed, tally)
        finally:
            del os.environ[_CLASSES]
    if for_spark:
        through_spark("faults.java_driver", for_spark, seed, tally)
    tally.note(", ".join(f"{n:,} {what}" for what, n in notes.most_common()))


@functools.cache
def _java() -> Any:
    from support.java_tasks import JavaTasks, compile_check

    classes = os.environ.get(_CLASSES)
    if classes is None:
        _OWN.append(tempfile.TemporaryDirectory(prefix="java-"))
        classes = _OWN[0].name
        compile_check(Path(classes))
    return JavaTasks(Path(classes))


def problem(key: str, notes: Counter[str]) -> str:
    """Run a case; return its problem, or ""."""
    if reason := no_spark():
        raise Skip(reason)
    rng = random.Random(f"java {key}")
    with folder_of(in_memory=True) as folder:
        case = Case(Path(folder) / "store", rng, notes)
        kind = rng.choice(("damage", "damage", "damage", "change", "filter"))
        found = {"damage": case.damaged, "change": case.changed, "filter": case.filter}[
            kind
        ]()
    return f"{case.what}: {found}" if found else ""


# ------------------------------------------------------------------------- the logs


class Case:
    """A log, its damage and its changes."""

    def __init__(self, path: Path, rng: random.Random, notes: Counter[str]) -> None:
        self.path, self.rng, self.notes = path, rng, notes
        self.partition = path / "orders-0"
        self.start = self.end = 0
        self.kind = rng.choice(("own", "gaps", "broker", "broker gaps", "transactions"))
        self.magic, self.codec = rng.choice(FORMATS)
        if self.kind == "transactions":
            self._make_transactions()
        else:
            self._make()
        self.options = self._options()
        self.what = f"{self.kind}, magic {self.magic}, {self.codec}, {self.options}"

    @property
    def is_foreign(self) -> bool:
        return self.kind not in ("own", "gaps")

    def _make(self) -> None:
        rng = self.rng
        compacts = "gaps" in self.kind
        config = config_of(
            self.magic,
            self.codec,
            segment_bytes=rng.choice([400, 2_000, 1 << 20]),
            index_interval_bytes=rng.choice([1, 100, 4096]),
            file_delete_delay_ms=0,
            cleanup_policy="compact" if compacts else "delete",
        )
        with open_store(self.path, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config)[0]
            for _ in range(rng.randrange(1, 40)):
                self.append(partition)
                if rng.random() < 0.05:
                    partition.roll()
            if compacts:
                partition.roll()
                self.append(partition)
                partition.compact(force=True)
            elif rng.random() < 0.2:
                partition.delete_before(rng.randrange(partition.end_offset))
            if rng.random() < 0.2 and partition.end_offset > partition.start_offset:
                partition.truncate_to(self._boundary(partition))
                self.append(partition)
            self.start, self.end = partition.start_offset, partition.end_offset
        if self.is_foreign:
            foreign(self.path)

    def _boundary(self, partition: Any) -> int:
        """Base offset of a random batch, or the end offset."""
        begins = [batch.base_offset for batch in partition.read_batches()]
        begins = [begin for begin in begins if begin >= partition.start_offset]
        return self.rng.choice([*begins, partition.end_offset])

    def append(self, partition: Any) -> None:
        """Append a batch of different records."""
        rng = self.rng
        count = rng.randrange(1, 5)
        first = partition.end_offset
        tail = rng.choice([b"", b"x" * rng.randrange(200), rng.randbytes(50)])
        given = [("h", None), ("", b"1"), ("é", b"2")][: rng.randrange(4)]
        partition.append_many(
            [rng.choice([b"%d" % (first + n) + tail, b"", None]) for n in range(count)],
            [b"k%d" % rng.randrange(20) for _ in range(count)],
            [_T + rng.randrange(10**6) for _ in range(count)],
            **({"headers": [given] * count} if self.magic > 1 else {}),
        )

    def _make_transactions(self) -> None:
        """Make a broker's log, in two segments, some of whose offsets are missing."""
        rng, self.magic, self.codec = self.rng, 2, "none"
        self.partition.mkdir(parents=True)
        made = Transactions(rng, producers=2)
        gaps = rng.random() < 0.3
        for _ in range(rng.randrange(1, 3)):
            log = self.partition / f"{made.end:020d}.log"
            data = b""
            for _ in range(rng.randrange(1, 15)):
                batch = made.next_batch()
                data += b"" if gaps and rng.random() < 0.2 else batch
            if rng.random() < 0.7:
                for producer in sorted(made.open):
                    data += made.ended(producer, commit=rng.random() < 0.5)
            log.write_bytes(data)
        self.end = made.end

    def _options(self) -> dict[str, str]:
        rng = self.rng
        options = {
            "path": str(self.path),
            "subscribe": "orders",
            "includeHeaders": "true",
            "isolation": rng.choice(["read_uncommitted", "read_committed"]),
            "onCorruption": rng.choice(["raise", "raise", "skip"]),
            "failOnDataLoss": rng.choice(["true", "true", "false"]),
        }
        if rng.random() < 0.3:
            options["minPartitions"] = str(rng.randrange(2, 5))
        if rng.random() < 0.3:
            stop = rng.randrange(self.start, self.end + 1)
            options["endingOffsets"] = json.dumps({"orders": {"0": stop}})
        return options

    # ---------------------------------------------------------------- what happens

    def damaged(self) -> str:
        """A damage before or after the plan."""
        if self.rng.random() < 0.1:
            damage = "no damage"
        elif self.rng.random() < 0.5:
            damage = self.damage()
        else:
            damage = ""
        time.sleep(_SETTLED_S)
        tasks = self._plan()
        if tasks is None:
            return ""
        if not damage:
            damage = self.damage() + " after the plan"
        self.what += f", {damage}"
        return self._same(tasks)

    def _plan(self, conditions: Sequence[Mapping[str, Any]] = ()) -> Any:
        from support.java_tasks import plan_of

        try:
            return plan_of(self.options, conditions)["tasks"]
        except LogStoreError as error:
            self.notes[f"not planned: {type(error).__name__}"] += 1
            return None

    def _same(self, tasks: Any) -> str:
        """Problem if the readers deliver different results of a task, or ""."""
        return next(filter(None, map(self._same_of, tasks)), "")

    def _same_of(self, task: Any) -> str:
        from support.java_tasks import by_python

        in_python = by_python([task], self.options)
        in_java = _java().read([task], self.options)
        self.notes["errors" if in_java.error else "whole"] += 1
        self.notes["left to Python"] += in_java.ranges_of_python > 0
        stop = max(r["stop"] for r in task["ranges"])
        if not in_java.error and in_python.damage >= stop:
            # Python may read past the range: for the ends of transactions, or since a
            # wrapper does not hold its base offset.
            self.notes["damage behind the range"] += 1
            return ""
        counts = len(in_java.rows), len(in_python.rows)
        # The number of rows before an error depends on the sizes of batches.
        count = min(counts) if in_java.error else max(counts)
        is_same = in_java.rows[:count] == in_python.rows[:count]
        if in_java.error != in_python.error or not is_same:
            return f"Java: {_short(in_java)}; Python: {_short(in_python)}"
        return ""

    def damage(self) -> str:
        """Damage a file of the log; returns the damage."""
        rng = self.rng
        logs = [log for log in logs_in(self.partition) if log.stat().st_size]
        if not logs:
            return "nothing to damage"
        log = rng.choice(logs)
        data, found = bytearray(log.read_bytes()), frames(log)
        at = rng.choice(found)
        after = rng.choice(found)
        kind = rng.choice(sorted(_DAMAGES))
        log.write_bytes(_DAMAGES[kind](data, at, after, rng))
        if kind == "missing":
            log.unlink()
        return f"{kind} in {log.name} at {at.pos}"

    def changed(self) -> str:
        """Change the log while it is read, after some batches; the problem, or ""."""
        from support.java_tasks import by_python

        time.sleep(_SETTLED_S)
        self.options |= {"onCorruption": "raise", "isolation": "read_uncommitted"}
        self.options.pop("minPartitions", None)
        tasks = self._plan()
        if not tasks:
            return ""
        before = by_python(tasks, self.options)
        kinds = ["cut", "damage", "grow", "deleted", "replaced"]
        if not self.is_foreign:
            kinds += ["made again", "head", "compacted"]
        kind = self.rng.choice(kinds)
        self.what += f", {kind} while it is read"
        seen: list[int] = []

        def change(count: int) -> None:
            seen.append(count)
            self._change(kind)

        in_java = _java().read(
            tasks, self.options, pause=self.rng.randrange(3), meanwhile=change
        )
        after = by_python(tasks, self.options) if seen else before
        self.notes["changed while read" if seen else "read before a change"] += 1
        return _between(in_java, before, after, seen[0] if seen else 1 << 62)

    def _change(self, kind: str) -> None:
        rng = self.rng
        if kind == "damage":
            self.what += f": {self.damage()}"
            return
        logs = logs_in(self.partition)
        if kind == "deleted":
            rng.choice(logs).unlink()
        elif kind == "replaced":
            log = rng.choice(logs)
            copy = log.with_suffix(".copy")
            copy.write_bytes(log.read_bytes()[: rng.randrange(log.stat().st_size + 1)])
            copy.replace(log)
        elif self.is_foreign:
            log = logs[-1]
            data = log.read_bytes()
            if kind == "grow":
                log.write_bytes(data + data[: rng.randrange(len(data) + 1)])
            else:
                os.truncate(log, rng.randrange(len(data) + 1))
        else:
            with open_store(self.path, _files=Unsynced()) as store:
                self._change_own(store, kind)

    def _change_own(self, store: logstore.Store, kind: str) -> None:
        rng = self.rng
        partition = store.topic("orders")[0]
        if kind == "made again":
            config = partition.config
            store.delete_topic("orders")
            partition = store.create_topic("orders", config=config)[0]
        elif kind == "cut":
            partition.truncate_to(self._boundary(partition))
        elif kind == "head":
            span = range(partition.start_offset, partition.end_offset + 1)
            partition.delete_before(rng.choice(span))
        elif kind == "compacted" and "gaps" in self.kind:
            partition.roll()
            self.append(partition)
            partition.compact(force=True)
        for _ in range(rng.randrange(20)):
            self.append(partition)

    def filter(self) -> str:
        """Read with a filter on times, over a time index that may be wrong."""
        from support.java_tasks import by_python

        rng = self.rng
        self.options |= {"onCorruption": "raise"}
        if self.is_foreign and rng.random() < 0.8:
            self._spoil_times()
        time.sleep(_SETTLED_S)
        micros = 1000 * (_T + rng.randrange(-10, 10**6))
        condition = {"column": "timestamp", "is": ">=", "values": [micros]}
        everything, tasks = self._plan(), self._plan([condition])
        if everything is None or tasks is None:
            return ""
        in_python = by_python(everything, self.options)
        in_java = _java().read(tasks, self.options)
        self.notes["filtered"] += 1
        if in_java.error or in_python.error:
            return f"Java: {_short(in_java)}; Python: {_short(in_python)}"
        wanted = [row for row in in_python.rows if (row[4] or -1) >= micros]
        found = [row for row in in_java.rows if (row[4] or -1) >= micros]
        if wanted != found:
            return f"{[r[0] for r in found]} for {[r[0] for r in wanted]}"
        return ""

    def _spoil_times(self) -> None:
        """Write time indexes with missing entries. Each entry is right for its batch,
        and an earlier batch may have a later time."""
        rng = self.rng
        for log in logs_in(self.partition):
            data, entries, latest = log.read_bytes(), b"", -1
            for frame in frames(log) if self.magic else ():
                at, base = frame.pos, int(log.stem)
                last = frame.offset - base
                if self.magic == 2:
                    last += int.from_bytes(data[at + 23 : at + 27], "big")
                at += 35 if self.magic == 2 else 18
                largest = int.from_bytes(data[at : at + 8], "big", signed=True)
                if largest > latest and rng.random() < 0.4:
                    latest = largest
                    entries += struct.pack(">qi", largest, last)
            log.with_suffix(".timeindex").write_bytes(entries)
        self.what += ", its time indexes spoiled"


def _flip(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    bit = rng.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    return bytes(data)


def _flip_header(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    data[at.pos + rng.randrange(min(61, at.size))] ^= 1 << rng.randrange(8)
    return bytes(data)


def _flip_offset(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    data[at.pos + 7] ^= 1 << rng.randrange(8)
    return bytes(data)


def _swap(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    first, second = sorted((at, after))
    if first == second:
        return bytes(data)
    one = data[first.pos : first.pos + first.size]
    two = data[second.pos : second.pos + second.size]
    between = data[first.pos + first.size : second.pos]
    return bytes(
        data[: first.pos] + two + between + one + data[second.pos + second.size :]
    )


def _repeat(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    batch = data[at.pos : at.pos + at.size]
    return bytes(data[: after.pos] + batch + data[after.pos + after.size :])


def _old_block(data: bytearray, at: Any, after: Any, rng: random.Random) -> bytes:
    """Overwrite a block of 512 bytes with another one."""
    to, source = (rng.randrange(-(-len(data) // 512)) * 512 for _ in range(2))
    size = len(data) - to
    data[to : to + min(512, size)] = data[source : source + min(512, size)]
    return bytes(data)


_DAMAGES: dict[str, Callable[..., bytes]] = {
    "a bit": _flip,
    "a bit of a header": _flip_header,
    "a bit of an offset": _flip_offset,
    "another bit of an offset": _flip_offset,
    "zeros from a batch on": lambda data, at, after, rng: bytes(
        data[: at.pos] + bytes(len(data) - at.pos)
    ),
    "a batch of zeros": lambda data, at, after, rng: bytes(
        data[: at.pos] + bytes(at.size) + data[at.pos + at.size :]
    ),
    "zeros behind the end": lambda data, at, after, rng: bytes(data) + bytes(99),
    "all zeros": lambda data, at, after, rng: bytes(len(data)),
    "1 MiB of zeros": lambda data, at, after, rng: bytes(
        data[: at.pos] + bytes(1 << 20) + data[at.pos :]
    ),
    "cut": lambda data, at, after, rng: bytes(data[: rng.randrange(len(data))]),
    "cut at a batch": lambda data, at, after, rng: bytes(data[: at.pos]),
    "a batch less": lambda data, at, after, rng: bytes(
        data[: at.pos] + data[at.pos + at.size :]
    ),
    "batches swapped": _swap,
    "a batch repeated": _repeat,
    "an old block": _old_block,
    "bytes behind the end": lambda data, at, after, rng: bytes(data) + rng.randbytes(9),
    "missing": lambda data, at, after, rng: b"",
    "emptied": lambda data, at, after, rng: b"",
}


def _between(in_java: Any, before: Any, after: Any, count: int) -> str:
    """Problem of the rows that Java read of a log changed after `count` rows, or "":
    expected are old rows, then new ones."""
    old = {row[0]: row for row in before.rows}
    new = {row[0]: row for row in after.rows}
    offsets = in_java.offsets
    told = f"Java: {_short(in_java)}; before: {_short(before)}; after: {_short(after)}"
    if sorted(set(offsets)) != offsets:
        return f"rows twice, or out of order. {told}"
    for row in in_java.rows:
        if row not in (old.get(row[0]), new.get(row[0])):
            return f"{row} is in neither log. {told}"
    if in_java.error:
        if not after.error and not before.error:
            return f"an error that Python does not have. {told}"
        return ""
    if in_java.rows == before.rows and not before.error:
        return ""
    seen = offsets[count - 1] if count <= len(offsets) else 1 << 62
    missing = [n for n in new if n > seen and n not in offsets]
    if missing or after.error:
        return f"{missing} is left out without an error. {told}"
    return ""


def _short(outcome: Any) -> str:
    error = outcome.error[:300] or "whole"
    return f"{len(outcome.rows)} rows {outcome.offsets}, {error}"
