"""Queries of Spark that continue with a copy of the store that they read, or write to.

A stream with a checkpoint reads a store, or publishes in it. The store is copied in one
of the ways of `copies`; perhaps the query sees more of the original. Then it continues
with the copy, which was written to: it has each row once, or an error explains why
that is unknown. All copies share one session, in a separate process.
"""

from __future__ import annotations

import json
import logging
import random
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import logstore
from faults.method import Tally
from faults.spark_children import no_spark, through_spark

if TYPE_CHECKING:
    from faults.copies import Case

_WAIT_S: Final = 120
# These copies lack groups and publications, or have files of several moments.
_WITHOUT: Final = ("topics handed over", "touched", "over", "linked open")
# Texts of the error for a query that has read records which the copy lacks.
_NAMED: Final = ("its tail was cut at", "is another log now", "ends before", "ends at")

# Message of Spark on a machine that is too busy to start its workers: try again.
_BUSY: Final = "Python worker failed to connect back"
_TRIES: Final = 4

_Row = tuple[str, int, int, bytes]


def run(count: int, seed: int, tally: Tally) -> None:
    """Check `count` copies."""
    reason = no_spark()
    if reason:
        tally.skip(reason, count)
        return
    through_spark(__name__, count, seed, tally)


class _Query:
    """A query with a checkpoint.

    Attributes:
        batches: the rows of each batch that it has read; one that is repeated counts
            once.
    """

    def __init__(self, spark: Any, folder: Path, source: str) -> None:
        self.spark, self.source = spark, source
        self.checkpoint = str(folder / "checkpoint")
        self.batches: dict[int, list[_Row]] = {}

    def _frame(self, path: Path, topics: str) -> Any:
        options = {"subscribe": topics, "startingOffsets": "earliest"}
        return self.spark.readStream.format(self.source).options(**options).load(
            str(path)
        )  # fmt: skip

    def read(self, path: Path) -> str:
        """Read a store to its end; the error, or ""."""

        def take(frame: Any, number: int) -> None:
            self.batches[number] = [
                (row.topic, row.partition, row.offset, bytes(row.value))
                for row in frame.select(
                    "topic", "partition", "offset", "value"
                ).collect()
            ]

        return self._ended(self._frame(path, "a,b").writeStream.foreachBatch(take))

    def write(self, path: Path, to: Path) -> str:
        """Publish what is new in another store; the error, or ""."""
        frame = self._frame(path, "input").select("value")
        writer = frame.writeStream.format("logstore").option("topic", "sunk")
        return self._ended(writer.option("path", str(to)))

    def _ended(self, writer: Any) -> str:
        writer = writer.option("checkpointLocation", self.checkpoint)
        for _ in range(_TRIES - 1):
            if _BUSY not in (found := self._ended_once(writer)):
                return found
        return self._ended_once(writer)

    def _ended_once(self, writer: Any) -> str:
        query = writer.trigger(availableNow=True).start()
        try:
            return "" if query.awaitTermination(_WAIT_S) else f"hangs for {_WAIT_S} s"
        except Exception as error:
            return str(error)
        finally:
            query.stop()

    def rows(self) -> Counter[_Row]:
        return Counter(row for rows in self.batches.values() for row in rows)


def _contents(path: Path) -> Counter[_Row]:
    with logstore.open(path, read_only=True) as store:
        return Counter(
            (name, partition.number, record.offset, record.value or b"")
            for name in ("a", "b")
            for partition in store.topic(name)
            for record in partition.read()
        )


def reader_goes_on(spark: Any, folder: Path, case: Case, way: str) -> str:
    """Read with a query that continues on a copy; return its problem, or ""."""
    rng = case.rng
    query = _Query(spark, folder, rng.choice(("logstore", "logstore-jvm")))
    case.what = f"{way}, read by {query.source}"
    if rng.random() < 0.8:
        if found := query.read(case.data):
            return f"of the original: {found}"
        case.later()
    case.keep()
    case.copy_by(way)
    if case.data.exists() and rng.random() < 0.5:
        case.notes["saw more of the original"] += 1
        if found := query.read(case.data):
            return f"of the original behind the copy: {found}"
    before, had = _contents(case.copy), query.rows()
    with logstore.open(case.copy) as store:
        for name in ("a", "b"):
            for partition in store.topic(name):
                partition.append_many([case.value() for _ in range(rng.randrange(9))])
    found = query.read(case.copy)
    if not had <= before:
        case.notes["had read what the copy has not"] += 1
    if found:
        is_told = any(text in found for text in _NAMED)
        case.notes["told"] += is_told
        if is_told and not had <= before:
            return ""
        return f"of the copy, {len(had - before)} rows of which are gone: {found}"
    now = _contents(case.copy)
    rows = query.rows()
    if rows != now:
        return f"{len(rows - now)} rows too many, {len(now - rows)} are not there"
    return ""


def sink_goes_on(spark: Any, folder: Path, case: Case, way: str) -> str:
    """Publish with a query that continues on a copy; return its problem, or ""."""
    case.what = f"{way}, published by a query"
    source, values = folder / "source", []
    with logstore.open(source) as store:
        store.create_topic("input")

    def more() -> None:
        with logstore.open(source) as store:
            some = [case.value() for _ in range(case.rng.randrange(1, 30))]
            store.topic("input")[0].append_many(some)
            values.extend(some)

    with logstore.open(case.data) as store:
        store.create_topic("sunk", 1, store.topic("a").config)
    query = _Query(spark, folder, "logstore")
    for _ in range(case.rng.randrange(1, 3)):
        more()
        if found := query.write(source, case.data):
            return f"into the original: {found}"
    case.keep()
    case.copy_by(way)
    more()
    if found := query.write(source, case.copy):
        return f"into the copy: {found}"
    with logstore.open(case.copy, read_only=True) as store:
        rows = [record.value for record in store.topic("sunk")[0].read()]
    if rows != values:
        return f"{len(values)} rows were published, and {len(rows)} are there"
    return ""


def main() -> None:
    """Check the copies of a seed: a line for each."""
    from faults.copies import WHOLE, Case
    from faults.java_driver import session

    seed, count = sys.argv[1], int(sys.argv[2])
    logging.disable(logging.CRITICAL)
    ways = [way for way in WHOLE if way not in _WITHOUT]
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        spark = session(folder)
        for number in range(count):
            rng = random.Random(f"copies for Spark {seed}/{number}")
            at, notes = Path(folder) / str(number), Counter[str]()
            at.mkdir()
            case = Case(at, rng, notes)
            case.fill()
            goes_on = reader_goes_on if rng.random() < 0.7 else sink_goes_on
            notes[goes_on.__name__.replace("_", " ")] += 1
            try:
                text = goes_on(spark, at, case, rng.choice(ways))
            except Exception:
                text = traceback.format_exc()
            line = [f"{case.what}: {text[-1500:]}" if text else "", notes]
            print(json.dumps(line), flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
