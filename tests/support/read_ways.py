"""Each way of reading a partition, as offsets with values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import logstore
from logstore.store.opening import open_store

COUNT = 2000
# Bytes of a value: COUNT such records are more than any reader has read ahead.
SIZE = 1500

Pair = tuple[int, bytes]
# With the options of the call.
Reading = Callable[..., Iterator[Pair]]


def pairs_of(records: Iterable[logstore.Record]) -> Iterator[Pair]:
    return ((record.offset, record.value or b"") for record in records)


def batches_of(partition: logstore.Partition, **options: Any) -> Iterator[Pair]:
    for batch in partition.read_batches(**options):
        yield from pairs_of(batch)


def arrow_of(partition: logstore.Partition, **options: Any) -> Iterator[Pair]:
    for batch in partition.read_arrow(batch_records=10, **options):
        offsets, values = batch.column("offset"), batch.column("value")
        yield from zip(offsets.to_pylist(), values.to_pylist(), strict=True)


WAYS: dict[str, Reading] = {
    "read": lambda p, **options: pairs_of(p.read(**options)),
    "skip": lambda p, **options: pairs_of(p.read(on_corruption="skip", **options)),
    "committed": lambda p, **options: pairs_of(
        p.read(1, isolation="read_committed", **options)
    ),
    "batches": batches_of,
    "arrow": arrow_of,
    "follow": lambda p, **options: pairs_of(p.follow(**{"timeout": 0.05, **options})),
}


def offsets_by_way(
    partition: logstore.Partition, start: int, **options: Any
) -> dict[str, Iterator[int]]:
    """Offsets from `start` on that each way of reading delivers, to the end."""

    def of_batches() -> Iterator[int]:
        for batch in partition.read_batches(start, **options):
            yield from (record.offset for record in batch if record.offset >= start)

    def of_arrow(threads: int) -> Iterator[int]:
        for rows in partition.read_arrow(start, threads=threads, **options):
            yield from rows["offset"].to_pylist()

    def of_chunks(max_bytes: int) -> Iterator[int]:
        pos = start
        while (chunk := partition.fetch(pos, max_bytes, **options)).next_offset > pos:
            yield from (record.offset for record in chunk)
            pos = chunk.next_offset

    followed = partition.follow(start, timeout=0, **options)
    return {
        "read": (record.offset for record in partition.read(start, **options)),
        "follow": (record.offset for record in followed),
        "read_batches": of_batches(),
        "read_arrow": of_arrow(1),
        "read_arrow, threads": of_arrow(2),
        "fetch": of_chunks(1 << 20),
        "fetch of batches": of_chunks(1),
    }


@contextlib.contextmanager
def beside(store: logstore.Store, path: Path, where: str) -> Iterator[Any]:
    """The store as the writer's process has it, or opened by a reader."""
    if where == "own":
        yield store
        return
    with open_store(path, read_only=True) as reading:
        yield reading


def append(
    partition: logstore.Partition, value: bytes, count: int, *, size: int = SIZE
) -> None:
    """Append batches of one record of the same size, so that positions agree whichever
    writer appends."""
    for _ in range(count):
        partition.append(value.ljust(size, b"."))
