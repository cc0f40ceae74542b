"""Every way of reading asks for far segments ahead, and gives the records of near ones.

The sealed segments are served from memory. To read one of their files is an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow.feather
import pytest

import logstore
import logstore.aio
from logstore.cli.main import main
from support.far import BLOCK_BYTES, MemoryPlace, far_store, serve
from support.transactions import Transactions

# Requests that a segment may cost beyond its bytes: its index, and blocks that are not
# full.
MORE = 3

Row: TypeAlias = "tuple[int, int, bytes]"  # partition, offset, value
Way: TypeAlias = "Callable[[Path, str], list[Row]]"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return far_store(tmp_path_factory.mktemp("far") / "s", 1 << 20, 4096)


def partition_of(read: Callable[[Any], Iterator[Any]]) -> Way:
    """A way that reads the partitions, one after the other."""

    def way(path: Path, topic: str) -> list[Row]:
        with logstore.open(path, read_only=True) as store:
            return [
                (partition.number, record.offset, record.value or b"")
                for partition in store.topic(topic).partitions
                for record in read(partition)
            ]

    return way


def topic_of(read: Callable[[Any], Iterator[Any]]) -> Way:
    """A way that reads the whole topic."""

    def way(path: Path, topic: str) -> list[Row]:
        with logstore.open(path, read_only=True) as store:
            return sorted(
                (record.partition, record.offset, record.value or b"")
                for record in read(store.topic(topic))
            )

    return way


def arrow_of(read: Callable[[Any], Any]) -> Way:
    """A way that gives an Arrow table of a topic."""

    def way(path: Path, topic: str) -> list[Row]:
        with logstore.open(path, read_only=True) as store:
            table = read(store.topic(topic))
            rows = zip(
                table.column("partition").to_pylist(),
                table.column("offset").to_pylist(),
                table.column("value").to_pylist(),
                strict=True,
            )
            return sorted(rows)

    return way


def batches(partition: Any) -> Iterator[Any]:
    for batch in partition.read_batches():
        yield from batch


def partition_arrow(partition: Any) -> Iterator[Any]:
    for batch in partition.read_arrow(batch_records=100):
        offsets, values = batch.column("offset"), batch.column("value")
        for offset, value in zip(offsets, values, strict=True):
            yield logstore.Record(offset.as_py(), 0, None, value.as_py(), ())


def fetches(partition: Any, **options: Any) -> Iterator[Any]:
    offset = partition.start_offset
    while chunk := partition.fetch(offset, 128 << 10, **options):
        yield from chunk
        offset = chunk.next_offset


def consumed(path: Path, topic: str, **options: Any) -> list[Row]:
    """A consumer polls until it has everything."""
    with logstore.open(path, read_only=True) as store:
        partitions = store.topic(topic).partitions
        count = sum(map(len, partitions))
        numbers = [(topic, partition.number) for partition in partitions]
    found: list[Row] = []
    around = options.pop("around", contextlib.nullcontext)
    if "group" in options:
        options["topics"] = [topic]
    with logstore.Consumer(path, reset="earliest", **options) as consumer:
        if "group" not in options:
            consumer.assign(numbers)
        with around(consumer):
            while len(found) < count:
                for records in consumer.poll(1000).values():
                    found += [(r.partition, r.offset, r.value or b"") for r in records]
    return sorted(found)


def aio_of(read: Callable[[Any], Any]) -> Way:
    """A way that reads the partitions in an event loop."""

    def way(path: Path, topic: str) -> list[Row]:
        async def main() -> list[Row]:
            async with logstore.aio.open(path, read_only=True) as store:
                found: list[Row] = []
                for partition in store.topic(topic).partitions:
                    async for record in read(partition):
                        row = (partition.number, record.offset, record.value or b"")
                        found.append(row)
                return found

        return asyncio.run(main())

    return way


def aio_blocking(read: Callable[[Any], Iterator[Any]]) -> Way:
    """A way that reads the partitions of a store of an event loop in its thread."""

    async def found_by(partition: Any) -> AsyncIterator[Any]:
        for record in read(partition):
            yield record

    return aio_of(found_by)


def aio_topic(path: Path, topic: str) -> list[Row]:
    async def main() -> list[Row]:
        async with logstore.aio.open(path, read_only=True) as store:
            return sorted(
                [
                    (record.partition, record.offset, record.value or b"")
                    async for record in store.topic(topic).follow(timeout=0.05)
                ]
            )

    return asyncio.run(main())


def aio_consumed(path: Path, topic: str) -> list[Row]:
    async def main() -> list[Row]:
        with logstore.open(path, read_only=True) as store:
            count = sum(map(len, store.topic(topic).partitions))
        found: list[Row] = []
        async with logstore.aio.Consumer(
            path, topics=[topic], group="aio", reset="earliest"
        ) as consumer:
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    found += [(r.partition, r.offset, r.value or b"") for r in records]
        return sorted(found)

    return asyncio.run(main())


def in_transactions(path: Path, topic: str) -> list[Row]:
    """A consumer that publishes its positions together with its results."""
    return consumed(path, topic, group="t", around=logstore.Consumer.transaction)


def by_spark_task(path: Path, topic: str) -> list[Row]:
    """The tasks of Spark's Python reader, as an executor runs them, without Spark."""
    pytest.importorskip("pyspark")
    from pyspark_logstore.read.tasks import read_task
    from support.java_tasks import SCHEMA, parse, plan_of, task_from

    options = {"path": str(path), "subscribe": topic}
    found: list[Row] = []
    for task in plan_of(options)["tasks"]:
        parsed = parse(options, streaming=False)
        for batch in read_task(task_from(task["task"]), SCHEMA, str(path), parsed):
            names = ("partition", "offset", "value")
            columns = (batch.column(name).to_pylist() for name in names)
            found += zip(*columns, strict=True)
    return found


def exported(path: Path, topic: str) -> list[Row]:
    """`logstore-dump export`."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "records.arrow"
        assert main(["export", str(path), "--topic", topic, "-o", str(file)]) == 0
        table = pyarrow.feather.read_table(file)
    columns = (table.column(name) for name in ("partition", "offset", "value"))
    return sorted(zip(*(column.to_pylist() for column in columns), strict=True))


def printed(path: Path, topic: str) -> list[Row]:
    """`logstore-dump records`."""
    shown = io.StringIO()
    options = ["--topic", topic, "--payload", "hex", "--format", "jsonl"]
    with contextlib.redirect_stdout(shown):
        assert main(["records", str(path), *options]) == 0
    rows = map(json.loads, shown.getvalue().splitlines())
    return sorted(
        (r["partition"], r["offset"], bytes.fromhex(r["value"])) for r in rows
    )


WAYS: dict[str, Way] = {
    "read": partition_of(lambda p: p.read()),
    "durable": partition_of(lambda p: p.read(durable_only=True)),
    "committed": partition_of(lambda p: p.read(isolation="read_committed")),
    "skip": partition_of(lambda p: p.read(on_corruption="skip")),
    "asked": partition_of(lambda p: p.read(on_corruption=lambda damaged: False)),
    "batches": partition_of(batches),
    "arrow of a partition": partition_of(partition_arrow),
    "fetch": partition_of(fetches),
    "fetch committed": partition_of(lambda p: fetches(p, isolation="read_committed")),
    "follow": partition_of(lambda p: p.follow(timeout=0.05)),
    "topic by partition": topic_of(lambda t: t.read(order="partition")),
    "topic by time": topic_of(lambda t: t.read()),
    "topic follow": topic_of(lambda t: t.follow(timeout=0.05)),
    "arrow": arrow_of(
        lambda t: t.read_arrow(columns=("partition", "offset", "value")).read_all()
    ),
    "arrow threads": arrow_of(
        lambda t: t.read_arrow(
            columns=("partition", "offset", "value"), threads=4
        ).read_all()
    ),
    "arrow view": arrow_of(
        lambda t: t.read_arrow(
            columns=("partition", "offset", "value"), view=True
        ).read_all()
    ),
    "dataset": arrow_of(
        lambda t: t.to_dataset(threads=2).to_table(
            columns=["partition", "offset", "value"]
        )
    ),
    "consumer": lambda path, topic: consumed(path, topic),
    "consumer group": lambda path, topic: consumed(path, topic, group="g"),
    "consumer transaction": in_transactions,
    "aio read": aio_blocking(lambda p: p.read()),
    "aio fetch": aio_blocking(fetches),
    "aio follow": aio_of(lambda p: p.follow(timeout=0.05)),
    "aio topic follow": aio_topic,
    "aio consumer": aio_consumed,
    "Spark's task": by_spark_task,
    "export": exported,
    "records": printed,
}


@pytest.fixture(scope="module")
def expected(path: Path) -> dict[str, list[Row]]:
    """The records of each topic, read from the files."""
    read = WAYS["read"]
    return {topic: read(path, topic) for topic in ("one", "three")}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> MemoryPlace:
    place = MemoryPlace(is_patient=True)
    serve(monkeypatch, place)
    return place


# Several partitions are a separate case if they are read together.
CASES = [(name, "one") for name in WAYS] + [
    (name, "three")
    for name in WAYS
    if name.startswith(
        ("topic", "arrow t", "dataset", "consumer", "aio consumer", "aio topic")
    )
]


@pytest.mark.parametrize(("name", "topic"), CASES)
def test_way_of_reading_keeps_requests_in_flight_across_segments(
    path: Path,
    expected: dict[str, list[Row]],
    place: MemoryPlace,
    name: str,
    topic: str,
) -> None:
    """The maximum number of requests is in flight, except at the beginning of each log;
    and there are no more requests than the bytes need."""
    assert WAYS[name](path, topic) == expected[topic]
    assert place.most == place.in_flight
    assert place.segments == 12
    blocks = place.log_bytes // BLOCK_BYTES
    assert len(place.requests) + place.index_requests <= blocks + MORE * place.segments
    # The reads of three logs begin three times.
    assert place.mean() > 0.75 * place.in_flight


COMMITTED: dict[str, Callable[[Any], Iterator[int]]] = {
    "read": lambda p: (r.offset for r in p.read(isolation="read_committed")),
    "batches": lambda p: (
        record.offset
        for batch in p.read_batches(isolation="read_committed")
        for record in batch
    ),
    "fetch": lambda p: (r.offset for r in fetches(p, isolation="read_committed")),
    "arrow": lambda p: (
        offset.as_py()
        for batch in p.read_arrow(isolation="read_committed", columns=("offset",))
        for offset in batch.column("offset")
    ),
}


@pytest.fixture(scope="module")
def transactions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """Return (a broker's log of transactions in segments of 400 kB, the committed
    offsets)."""
    path, made = tmp_path_factory.mktemp("far"), Transactions(random.Random(1))
    (path / "t-0").mkdir()
    for _ in range(8):
        base, data = made.end, b""
        while len(data) < 400_000:
            data += made.next_batch()
        (path / "t-0" / f"{base:020}.log").write_bytes(data)
    return path, made.readable


@pytest.mark.parametrize("name", COMMITTED)
def test_reader_of_transactions_requests_nothing_twice(
    transactions: tuple[Path, list[int]], place: MemoryPlace, name: str
) -> None:
    """It shares the blocks with the reader that looks for the ends of transactions. A
    fetch finds the last stable offset first."""
    path, committed = transactions
    with logstore.open(path, read_only=True) as store:
        assert list(COMMITTED[name](store.topic("t")[0])) == committed
    times = 2 if name == "fetch" else 1
    blocks = place.log_bytes // BLOCK_BYTES
    assert len(place.requests) <= times * (blocks + MORE * place.segments)
    assert place.most == place.in_flight
