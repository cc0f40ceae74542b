"""Records that belong to offsets, appended in one call or as a producer's batches."""

from __future__ import annotations

import functools

from faults.checker import open_quietly
from logstore import (
    Partition,
)
from support.disk import MemoryDisk
from support.values import (
    config_of,
    headers_of,
    key_of,
    timestamp_of,
    value_of,
)


@functools.lru_cache(maxsize=512)
def encoded(magic: int, codec: str, count: int, first: int, seed: int) -> bytes:
    """Batches as a producer would send them, with the records from `first` on."""
    with open_quietly(MemoryDisk()) as store:
        topic = store.create_topic("source", config=config_of(magic, codec))
        append_rows(topic[0], range(first, first + count), magic, seed)
        return b"".join(bytes(b.buffer) for b in topic[0].read_batches())


def append_rows(
    partition: Partition,
    offsets: range,
    magic: int,
    seed: int,
    *,
    durable: bool = False,
) -> None:
    """Append the records that belong to these offsets, in one call."""
    partition.append_many(
        [value_of(o, seed) for o in offsets],
        [key_of(o, seed) for o in offsets],
        [timestamp_of(o, seed) for o in offsets],
        [headers_of(o, seed) for o in offsets] if magic == 2 else None,
        durable=durable,
    )
