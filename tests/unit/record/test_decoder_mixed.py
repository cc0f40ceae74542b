"""Wrappers around messages of another magic, as cleaners of Kafka 0.10 left them."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import logstore
from support.compacting import Item, message

TIME = 1_700_000_000_000


def mixed(outer: int, inner: tuple[int, ...], first: int) -> bytes:
    """A wrapper around messages of these magics, from an offset on."""
    packed = b"".join(
        message(
            Item(n if outer else first + n, b"k%d" % n, b"v%d" % n, TIME + n), magic
        )
        for n, magic in enumerate(inner)
    )
    last = first + len(inner) - 1
    return message(Item(last, None, gzip.compress(packed), TIME), outer, 1)


def made(path: Path, *segments: bytes, base: int = 0) -> None:
    (path / "t-0").mkdir(mode=0o700)
    for data in segments:
        (path / "t-0" / f"{base:020}.log").write_bytes(data)
        base += 10


@pytest.mark.parametrize("outer", [0, 1])
@pytest.mark.parametrize("inner", [(0, 0, 0), (1, 1, 1), (0, 1, 0)])
def test_wrapper_of_another_magic_is_read(
    tmp_path: Path, outer: int, inner: tuple[int, ...]
) -> None:
    """By all ways, and it is no damage. A message of magic 0 has no timestamp."""
    made(tmp_path, mixed(outer, inner, 4))
    with logstore.open(tmp_path, read_only=True) as store:
        partition = store.topic("t")[0]
        records = list(partition.read())
        assert [r.offset for r in records] == [4, 5, 6]
        assert [r.value for r in records] == [b"v0", b"v1", b"v2"]
        times = [TIME + n if magic else -1 for n, magic in enumerate(inner)]
        assert [r.timestamp_ms for r in records] == times
        assert [r.offset for r in partition.read(5)] == [5, 6]
        assert list(partition.fetch(4, 1 << 20)) == records
        table = partition.read_arrow().read_all()
        assert table.column("value").to_pylist() == [b"v0", b"v1", b"v2"]
    assert logstore.verify(tmp_path, deep=True).ok


def test_wrapper_of_another_magic_is_compacted(tmp_path: Path) -> None:
    """Its remaining records are unchanged."""
    made(
        tmp_path,
        mixed(1, (0, 0, 0), 0) + message(Item(5, b"k1", b"newer", TIME), 1),
        message(Item(10, b"z", b"last", TIME), 1),
    )
    with logstore.open(tmp_path) as store:
        topic = store.topic("t")
        topic.configure(logstore.TopicConfig(cleanup_policy="compact"))
        topic[0].compact(force=True)
        records = list(topic[0].read())
        assert [r.offset for r in records] == [0, 2, 5, 10]
        assert [r.value for r in records] == [b"v0", b"v2", b"newer", b"last"]
        assert [r.timestamp_ms for r in records] == [-1, -1, TIME, TIME]


@pytest.mark.parametrize("outer", [0, 1])
def test_wrapper_of_another_magic_is_none_of_a_producer(
    tmp_path: Path, outer: int
) -> None:
    """Producers make none: it is refused, and nothing is written."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=outer)
        partition = store.create_topic("t", config=config)[0]
        with pytest.raises(logstore.CorruptRecordError, match="holds a message of"):
            partition.append_batches(mixed(outer, (1 - outer,) * 3, 0))
        assert partition.end_offset == 0
