"""Columns of Python objects are packed while callers change them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.record.encoder import Encoder, pack_one, pack_rows
from support.arrow import NOW
from support.values import new_partition

COUNT = 3000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[logstore.Store]:
    with logstore.open(tmp_path) as store:
        yield store


class Changing(bytearray):
    """Bytes whose conversion is the caller's own code."""

    then: Callable[[], object]

    def __bytes__(self) -> bytes:
        self.then()
        return b"not what is in the buffer"


class Stamp:
    """An integer whose conversion is the caller's own code."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def __index__(self) -> int:
        self.then()
        return NOW + 1


class Headers:
    """Headers whose iterator is the caller's own code."""

    def __init__(self, then: Callable[[], object]) -> None:
        self.then = then

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        self.then()
        return iter([("name", b"header")])


def columns() -> dict[str, list[Any]]:
    return {
        "values": [b"value"] * COUNT,
        "keys": [b"key"] * COUNT,
        "timestamps_ms": [NOW] * COUNT,
        "headers": [()] * COUNT,
    }


@pytest.mark.parametrize("changed", ["values", "keys", "timestamps_ms", "headers"])
@pytest.mark.parametrize("at", [0, COUNT - 1])
@pytest.mark.parametrize("by", ["timestamps_ms", "headers"])
def test_records_are_those_of_the_call_if_the_code_of_the_caller_changes_a_column(
    store: logstore.Store, changed: str, at: int, by: str
) -> None:
    given = columns()
    given[by][at] = (Stamp if by == "timestamps_ms" else Headers)(given[changed].clear)
    partition = new_partition(store, 2)
    assert partition.append_many(**given) == range(COUNT)  # type: ignore[arg-type]
    assert given[changed] == []
    records = list(partition.read())
    others = records[:at] + records[at + 1 :]
    assert len(others) == COUNT - 1
    expected = (b"key", b"value", NOW, ())
    assert {(r.key, r.value, r.timestamp_ms, r.headers) for r in others} == {expected}
    one = records[at]
    assert (one.key, one.value) == (b"key", b"value")
    is_by_time = by == "timestamps_ms"
    assert one.timestamp_ms == NOW + is_by_time
    assert one.headers == (() if is_by_time else (("name", b"header"),))


def test_topic_appends_the_records_of_the_call_if_the_partitioner_changes_a_column(
    store: logstore.Store,
) -> None:
    given = columns()

    class Partitioner:
        def partition(self, key: bytes | None, size: int, count: int) -> int:
            for column in given.values():
                column.clear()
            return 0

    partition = new_partition(store, 2)
    topic = store.topic("orders", partitioner=Partitioner())
    topic.append_many(**given)  # type: ignore[arg-type]
    assert [r.key for r in partition.read()] == [b"key"] * COUNT


@pytest.mark.parametrize("many", [True, False])
def test_bytes_are_those_of_the_buffer_whatever_a_subclass_says(
    store: logstore.Store, many: bool
) -> None:
    value = Changing(b"buffer")
    value.then = lambda: pytest.fail("asked")
    partition = new_partition(store)
    if many:
        partition.append_many([value, b"next"], [value, None])
    else:
        partition.append(value, value)
    record = partition.get(0)
    assert (record.key, record.value) == (b"buffer", b"buffer")


def test_threads_that_change_a_list_never_change_its_records(
    store: logstore.Store,
) -> None:
    partition = new_partition(store)
    keys = [b"key"] * COUNT
    values = [bytearray(b"value")] * COUNT  # the usual way
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            keys[:] = [b"key"] * COUNT
            del keys[10:]

    thread = threading.Thread(target=change)
    thread.start()
    appended = 0
    try:
        for _ in range(8):
            try:
                appended += len(partition.append_many(values, keys))
            except ValueError:
                continue  # the lengths differed
    finally:
        stop.set()
        thread.join()
    records = list(partition.read())
    assert len(records) == appended
    assert {(r.key, r.value) for r in records} <= {(b"key", b"value")}


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("timestamp_ms", [None, -1, 0, NOW + 5])
@pytest.mark.parametrize("key", [None, b"", b"key"])
def test_record_that_is_packed_alone_has_the_bytes_of_a_list(
    magic: int, timestamp_ms: int | None, key: bytes | None
) -> None:
    """The time is its own, or one that is set later."""
    stamps = None if timestamp_ms is None else (timestamp_ms,)
    keys = None if key is None else (key,)
    encoder = Encoder(logstore.TopicConfig(message_format=magic))
    found = []
    for value in (None, b"", b"value"):
        for rows in (
            pack_one(value, key, timestamp_ms),
            pack_rows((value,), keys, stamps, None, magic=magic),
        ):
            rows.set_time(NOW)
            ((data, size),) = encoder.encode(rows, 3, NOW, 0)
            found.append(bytes(native.buffer_of(data, size)))
    assert found[::2] == found[1::2]
    assert len(set(found)) == 3
