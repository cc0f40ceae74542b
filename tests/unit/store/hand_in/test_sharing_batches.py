"""`append_batches` of stores that are open for sharing."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

import logstore
from logstore import Store, TopicConfig
from support.values import config_of


def values(store: Store) -> list[bytes | None]:
    return [record.value for record in store.topic("a")[0].read()]


def staged_in(path: str) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith(".logstore-staged")]


def batches_of(path: Path, config: TopicConfig, values: list[bytes]) -> bytes:
    """The batches of a log with these records."""
    with logstore.open(path) as other:
        source = other.create_topic("b", 1, config)[0]
        source.append_many(values)
        return b"".join(bytes(batch.buffer) for batch in source.read_batches())


@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("segment_bytes", [1 << 30, 1 << 20])
@pytest.mark.parametrize("compression", ["none", "lz4"])
@pytest.mark.parametrize("size", [2 << 20, 10 << 20])
def test_batches_of_more_than_a_request_are_appended_whole(
    tmp_path: Path, magic: int, size: int, compression: str, segment_bytes: int
) -> None:
    """They are staged in a file as other large appends are, and are unchanged."""
    many = [os.urandom(50_000) for _ in range(size // 50_000)]
    config = config_of(magic, compression)
    batches = batches_of(tmp_path / "other", config, many)
    assert len(batches) > size * 0.9
    path = str(tmp_path / "store")
    with logstore.open(path) as store:
        store.create_topic("a", 1, TopicConfig(segment_bytes=segment_bytes))
    with logstore.open(path, shared=True) as store:
        partition = store.topic("a")[0]
        assert partition.append(b"first") == 0
        assert partition.append_batches(batches) == range(1, len(many) + 1)
        assert partition.append(b"last") == len(many) + 1
        assert values(store) == [b"first", *many, b"last"]
        formats = {(b.magic, b.compression) for b in partition.read_batches(1, 2)}
    assert formats == {(magic, compression)}
    assert staged_in(path) == []
    assert logstore.verify(path, deep=True).ok


@pytest.mark.parametrize("is_owned", [False, True])
def test_large_batches_that_are_refused_leave_nothing(
    tmp_path: Path, is_owned: bool
) -> None:
    """No record, and no file."""
    large = batches_of(tmp_path / "other", config_of(2), [bytes(500_000)] * 5)
    path = str(tmp_path / "store")
    with contextlib.ExitStack() as stack:
        with logstore.open(path) as store:
            store.create_topic("a", 1)
        if is_owned:
            stack.enter_context(logstore.open(path))
        shared = stack.enter_context(logstore.open(path, shared=True))
        partition = shared.topic("a")[0]
        with pytest.raises(logstore.errors.OffsetConflictError):
            partition.append_batches(large, expected_offset=7)
        assert values(shared) == []
    assert staged_in(path) == []


@pytest.mark.parametrize("count", [1, 30])
def test_batches_are_of_any_format_whatever_the_topic_has(
    tmp_path: Path, count: int
) -> None:
    """Large ones, too: only records that are staged are of the topic's format."""
    many = [bytes(100_000)] * count
    batches = batches_of(tmp_path / "other", config_of(1), many)
    path = str(tmp_path / "store")
    with logstore.open(path) as store:
        store.create_topic("a", 1, config_of(0))
    with logstore.open(path, shared=True) as store:
        assert store.topic("a")[0].append_batches(batches) == range(count)
        assert {one.magic for one in store.topic("a")[0].read_batches()} == {1}
