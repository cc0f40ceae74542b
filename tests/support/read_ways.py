"""Each way of reading a partition, as offsets with values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import logstore
from logstore.store.opening import open_store

COUNT = 2000
# Bytes of a value: COUNT such records are more than any reader has read ahead.
SIZE = 1500

Pair = tuple[int, bytes]
Reading = Callable[[logstore.Partition], Iterator[Pair]]


def batches_of(partition: logstore.Partition, **options: Any) -> Iterator[Pair]:
    for batch in partition.read_batches(**options):
        for record in batch:
            yield record.offset, record.value or b""


def pairs_of(records: Iterator[logstore.Record]) -> Iterator[Pair]:
    return ((record.offset, record.value or b"") for record in records)


def arrow_of(partition: logstore.Partition) -> Iterator[Pair]:
    for batch in partition.read_arrow(batch_records=10):
        offsets, values = batch.column("offset"), batch.column("value")
        yield from zip(offsets.to_pylist(), values.to_pylist(), strict=True)


def fetched(partition: logstore.Partition, **options: Any) -> Iterator[Pair]:
    """Records of one `fetch`: in a loop, a caller would not notice a truncation."""
    for record in partition.fetch(0, 1 << 24, **options):
        yield record.offset, record.value or b""


WAYS: dict[str, Reading] = {
    "read": lambda p: ((r.offset, r.value or b"") for r in p.read()),
    "skip": lambda p: (
        (r.offset, r.value or b"") for r in p.read(on_corruption="skip")
    ),
    "committed": lambda p: (
        (r.offset, r.value or b"") for r in p.read(1, isolation="read_committed")
    ),
    "batches": batches_of,
    "arrow": arrow_of,
    "follow": lambda p: ((r.offset, r.value or b"") for r in p.follow(timeout=0.05)),
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
