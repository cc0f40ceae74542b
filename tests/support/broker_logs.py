"""Logs of a broker, and each way of reading them, as offsets."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import logstore
from logstore.store.opening import open_store
from support import read_ways
from support.broker import foreign
from support.damage import Unsynced, frames, logs_in
from support.read_ways import SIZE
from support.values import config_of

FEW = logstore.StoreConfig(max_open_files=16)
# Longer than a tick of any clock that file systems have.
TICK_S = 0.03


def fetched(
    partition: logstore.Partition, max_bytes: int = 600, **options: Any
) -> Iterator[int]:
    offset = partition.start_offset
    while True:
        chunk = partition.fetch(offset, max_bytes, **options)
        yield from (record.offset for record in chunk if record.offset >= offset)
        if chunk.next_offset <= offset:
            return
        offset = chunk.next_offset


def _offsets(way: str, **more: Any) -> Callable[..., Iterator[int]]:
    read = read_ways.WAYS[way]
    return lambda p, **options: (offset for offset, _ in read(p, **options, **more))


WAYS: dict[str, Callable[..., Iterator[int]]] = {
    **{way: _offsets(way) for way in ("read", "batches", "arrow")},
    "fetch": fetched,
    "follow": _offsets("follow", timeout=0),
}


def fresh(path: Path, way: str = "read", **options: Any) -> list[int]:
    """Records of `orders` that a new reader finds."""
    with open_store(path, read_only=True) as store:
        return list(WAYS[way](store.topic("orders")[0], **options))


def small_log(path: Path, magic: int, codec: str) -> Path:
    """Several small segments of a broker's."""
    config = config_of(magic, codec, segment_bytes=1200, index_interval_bytes=200)
    with open_store(path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", config=config)[0]
        for _ in range(24):
            partition.append_many([random.Random(1).randbytes(60)] * 3)
    return foreign(path)


def two_logs(path: Path, count: int, same: int) -> tuple[Path, bytes, bytes, list[int]]:
    """A foreign log, its bytes, the bytes of another log with the same first batches
    followed by batches of the same sizes, and the position of each batch."""
    data = []
    for name, value in (("one", b"old"), ("two", b"new")):
        with open_store(path / name, _files=Unsynced()) as store:
            partition = store.create_topic("orders", config=config_of(2))[0]
            for number in range(count):
                mine = b"old" if number < same else value
                partition.append(mine.ljust(SIZE, b"."), timestamp_ms=number)
        (log,) = logs_in(foreign(path / name))
        data.append(log.read_bytes())
    (path / "one" / "recovery-point-offset-checkpoint").unlink()
    (log,) = logs_in(path / "one" / "orders-0")
    return log, data[0], data[1], [frame.pos for frame in frames(log)]
