"""Records that follow from a seed and their offset, and partitions full of them.

A reader of such a partition knows what has to be in it without having kept a copy:
`expected` says so for any range of offsets.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import Record, TimestampType, TopicConfig
from logstore.store.opening import open_store
from support.damage import Unsynced

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FORMATS = tuple(
    (magic, codec)
    for magic in (0, 1, 2)
    for codec in CODECS
    if magic == 2 or codec != "zstd"
)

every_format = pytest.mark.parametrize(
    ("magic", "codec"), FORMATS, ids=[f"magic{m}-{c}" for m, c in FORMATS]
)
few_formats = pytest.mark.parametrize(
    ("magic", "codec"),
    [(0, "none"), (1, "none"), (1, "gzip"), (2, "none"), (2, "lz4")],
    ids=["magic0-none", "magic1-none", "magic1-gzip", "magic2-none", "magic2-lz4"],
)
every_compressed_format = pytest.mark.parametrize(
    ("magic", "codec"),
    [(m, c) for m, c in FORMATS if c != "none"],
    ids=[f"magic{m}-{c}" for m, c in FORMATS if c != "none"],
)
every_magic = pytest.mark.parametrize("magic", [0, 1, 2], ids="magic{}".format)

# Far in the past, so that no clock comes near it.
FIRST_TIMESTAMP = 1_600_000_000_000

# Tests ask for the same few values again and again, and making them takes time.
_remembered = functools.lru_cache(1024)


def _random(seed: int, offset: int, what: str) -> random.Random:
    return random.Random(f"{seed}/{offset}/{what}")


@_remembered
def value_of(offset: int, seed: int = 0) -> bytes | None:
    """The value at an offset: now and then null or empty, mostly a few bytes."""
    rng = _random(seed, offset, "value")
    kind = rng.randrange(10)
    if kind == 0:
        return None
    if kind == 1:
        return b""
    return rng.randbytes(rng.randrange(1, 20)) * rng.randrange(1, 5)


@_remembered
def key_of(offset: int, seed: int = 0) -> bytes | None:
    """The key at an offset."""
    rng = _random(seed, offset, "key")
    return None if rng.randrange(4) == 0 else b"k%d" % rng.randrange(50)


@_remembered
def timestamp_of(offset: int, seed: int = 0) -> int:
    """The timestamp at an offset: they rise, but not strictly and not always."""
    return (
        FIRST_TIMESTAMP + 10 * offset + _random(seed, offset, "time").randrange(-40, 41)
    )


@_remembered
def headers_of(offset: int, seed: int = 0) -> tuple[tuple[str, bytes | None], ...]:
    """The headers at an offset (magic 2)."""
    rng = _random(seed, offset, "headers")
    if rng.randrange(3):
        return ()
    pairs: list[tuple[str, bytes | None]] = [
        ("schema", b"v%d" % rng.randrange(3)),
        ("schema", None),
        ("", b""),
        ("größe", b"\x00\xff"),
    ]
    return tuple(pairs[: rng.randrange(1, 5)])


@_remembered
def record_of(offset: int, magic: int, seed: int = 0) -> Record:
    """The record that is read at an offset."""
    kind = TimestampType.NO_TIMESTAMP if magic == 0 else TimestampType.CREATE_TIME
    return Record(
        offset,
        -1 if magic == 0 else timestamp_of(offset, seed),
        key_of(offset, seed),
        value_of(offset, seed),
        headers_of(offset, seed) if magic == 2 else (),
        kind,
    )


def expected(magic: int, start: int, end: int, seed: int = 0) -> list[Record]:
    """The records that are read from offset `start` up to (without) `end`."""
    return [record_of(offset, magic, seed) for offset in range(start, end)]


def append_one(partition: Any, seed: int = 0, **options: Any) -> int:
    """Append the record that belongs at the end; return its offset."""
    offset = partition.end_offset
    two = partition.config.message_format == 2
    return partition.append(
        value_of(offset, seed),
        key_of(offset, seed),
        timestamp_ms=timestamp_of(offset, seed),
        headers=headers_of(offset, seed) if two else (),
        **options,
    )


def append_records(partition: Any, count: int, seed: int = 0, **options: Any) -> range:
    """Append the next `count` records in one call."""
    first = partition.end_offset
    offsets = range(first, first + count)
    two = partition.config.message_format == 2
    return partition.append_many(
        [value_of(o, seed) for o in offsets],
        [key_of(o, seed) for o in offsets],
        [timestamp_of(o, seed) for o in offsets],
        [headers_of(o, seed) for o in offsets] if two else None,
        **options,
    )


def fill(partition: Any, count: int, seed: int = 0, call: int = 5) -> None:
    """Append the next `count` records, `call` of them in each call."""
    while count > 0:
        append_records(partition, min(call, count), seed)
        count -= call


def config_of(magic: int = 1, codec: str = "none", **settings: Any) -> TopicConfig:
    """A topic's settings without a timer that syncs or rolls unnoticed by a test."""
    settings.setdefault("segment_ms", (1 << 63) - 1)
    settings.setdefault("flush_ms", 1 << 62)
    settings.setdefault("flush_messages", 1 << 40)
    return TopicConfig(message_format=magic, compression_type=codec, **settings)


def new_partition(
    store: logstore.Store, magic: int = 1, codec: str = "none", **settings: Any
) -> logstore.Partition:
    """The one partition of a new topic named `orders`."""
    return store.create_topic("orders", config=config_of(magic, codec, **settings))[0]


def write_store(
    path: Path,
    count: int,
    magic: int = 1,
    codec: str = "none",
    seed: int = 0,
    call: int = 5,
    **settings: Any,
) -> Path:
    """Make a store with `count` records in partition orders-0, close it, return the
    partition's directory."""
    with open_store(path, _files=Unsynced()) as store:
        fill(new_partition(store, magic, codec, **settings), count, seed, call)
    return path / "orders-0"


def values(partition: Any) -> list[Any]:
    """The values of all records."""
    return [record.value for record in partition.read()]


def read_all(path: Path, **options: Any) -> list[Record]:
    """The records of orders-0 as another reader of the store gets them."""
    with logstore.open(path, read_only=True) as store:
        return list(store.topic("orders")[0].read(**options))
