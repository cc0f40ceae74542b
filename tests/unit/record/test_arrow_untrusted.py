"""Arrow columns with wrong buffers, and modified streams: they raise a named error, and
no byte outside of the buffers is read."""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.arrow import HEADERS, NOW, arrow, pa
from support.values import (
    new_partition,
)


def int32s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}i", *numbers)


def int64s(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}q", *numbers)


# Functions that fill arrays without pyarrow's knowledge.
LIES: list[Callable[[], None]] = []


def raw(kind: Any, count: int, *buffers: bytes | None, **other: Any) -> Any:
    """An array of zeros; `LIES` then put in data that is not validated, like data from
    IPC."""
    memory = [None if b is None else bytearray(len(b)) for b in buffers]
    parts = [None if m is None else pa.py_buffer(m) for m in memory]

    def lie() -> None:
        for place, data in zip(memory, buffers, strict=True):
            if place is not None and data is not None:
                place[:] = data

    LIES.append(lie)
    return pa.Array.from_buffers(kind, count, parts, **other)


def lying_batch(columns: dict[str, Any]) -> Any:
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    for lie in LIES:
        lie()
    LIES.clear()
    return batch


DATA = b"0123456789"
THREE = pa.array([b"a", b"b", b"c"])


def lying_headers(**lies: Any) -> Any:
    """A column of three lists of one header each, except for the lies."""
    keys = raw(pa.string(), 3, None, lies.get("keys", int32s(0, 1, 2, 3)), b"abc")
    pairs = pa.StructArray.from_arrays([keys, THREE], ["key", "value"])
    ends = lies.get("ends", int32s(0, 1, 2, 3))
    return raw(HEADERS, 3, None, ends, children=[pairs])


def lying_columns() -> dict[str, dict[str, Any]]:
    binary, large, text = pa.binary(), pa.large_binary(), pa.string()
    dictionary = pa.dictionary(pa.int32(), binary)
    words = pa.array([b"x", b"y"])
    columns = {
        "behind": raw(binary, 3, None, int32s(0, 1, 2, 11), DATA),
        "far-behind": raw(binary, 3, None, int32s(0, 1, 2, 1 << 30), DATA),
        "middle": raw(binary, 3, None, int32s(0, 90, 2, 10), DATA),
        "falling": raw(binary, 3, None, int32s(0, 5, 4, 10), DATA),
        "negative": raw(binary, 3, None, int32s(-5, 1, 2, 3), DATA),
        "below": raw(binary, 3, None, int32s(0, -1, 2, 3), DATA),
        "text": raw(text, 3, None, int32s(0, 1, 2, 11), DATA),
        "large": raw(large, 3, None, int64s(0, 1, 2, 11), DATA),
        "large-2-gib": raw(large, 3, None, int64s(0, 1, 2, 1 << 31), DATA),
        "large-wraps": raw(
            large, 3, None, int64s(0, (1 << 63) - 1, -(1 << 63), 3), DATA
        ),
        "sliced": raw(binary, 3, None, int32s(0, 1, 2, 3, 4, 11), DATA, offset=2),
        "word": pa.DictionaryArray.from_arrays(
            pa.array([0, 1, 99], pa.int32()), words, safe=False
        ),
        "word-below": pa.DictionaryArray.from_arrays(
            pa.array([0, -7, 1], pa.int32()), words, safe=False
        ),
    }
    assert columns["word"].type == dictionary
    if hasattr(pa, "binary_view"):
        far = struct.pack("<i4sii", 500, b"0123", 0, 3)
        none = struct.pack("<i4sii", 20, b"0123", 7, 0)
        for name, view in (("view", far), ("view-of-no-buffer", none)):
            columns[name] = raw(pa.binary_view(), 3, None, view * 3, DATA)
    found = {name: {"value": column} for name, column in columns.items()}
    found |= {f"key-{name}": {"key": column} for name, column in columns.items()}
    found["headers"] = {"headers": lying_headers(keys=int32s(0, 1, 2, 99))}
    found["headers-far"] = {"headers": lying_headers(ends=int32s(0, 1, 2, 1 << 30))}
    found["headers-fall"] = {"headers": lying_headers(ends=int32s(0, 3, 1, 2))}
    found["headers-below"] = {"headers": lying_headers(ends=int32s(-3, 1, 2, 3))}
    return found


NAMES = list(lying_columns())
LIES.clear()


@pytest.mark.parametrize("name", NAMES)
def test_column_that_leads_out_of_its_buffers_is_a_named_error(
    tmp_path: Path, name: str
) -> None:
    """pyarrow does not validate data from IPC, or from the C interface: no byte that is
    not the caller's gets into the log, and nothing crashes."""
    columns = lying_columns()[name]
    count = len(next(iter(columns.values())))
    columns = {"value": pa.array([b"v"] * count), **columns}
    batch = lying_batch(columns)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        partition.append(b"the next append is one step of C")
        named = (logstore.ConfigError, logstore.errors.RecordTooLargeError)
        with pytest.raises(named, match="nothing was written"):
            partition.append_arrow(batch)
        with store.stage() as stage, pytest.raises(named):
            stage.append_arrow(partition, batch)
        if "key" in columns:
            with pytest.raises(named):
                arrow.partitions_of(columns["key"], 3)
        assert partition.end_offset == 1


def test_element_of_2_gib_is_a_named_error(tmp_path: Path) -> None:
    """The error comes at any limit of the topic: no length field holds it. None of its
    bytes is read."""
    data = pa.py_buffer(DATA)
    large = pa.foreign_buffer(data.address, (1 << 31) + 5, data)
    ends = pa.py_buffer(int64s(5, (1 << 31) + 5))
    array = pa.Array.from_buffers(pa.large_binary(), 1, [None, ends, large])
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, max_message_bytes=(1 << 31) - 1)
        with pytest.raises(
            logstore.errors.RecordTooLargeError, match="row 0"
        ) as caught:
            partition.append_arrow(pa.RecordBatch.from_arrays([array], ["value"]))
        assert caught.value.size == 1 << 31
        assert partition.end_offset == 0


def test_more_rows_than_bytes_are_a_named_error(tmp_path: Path) -> None:
    """A column of nulls can have any number of rows without using memory."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        many = pa.Array.from_buffers(pa.null(), 1 << 40, [None])
        batch = pa.RecordBatch.from_arrays([many], ["value"])
        with pytest.raises(logstore.errors.RecordTooLargeError, match="rows"):
            partition.append_arrow(batch)
        assert partition.end_offset == 0


@pytest.mark.parametrize("first", [0, 1, 3])
def test_columns_of_nulls_are_nulls(tmp_path: Path, first: int) -> None:
    """Such columns may have no type, or one, and may be slices."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        for kind in (pa.null(), pa.binary(), pa.large_string()):
            table = pa.table(
                {
                    "value": pa.nulls(5, kind),
                    "key": pa.nulls(5, kind),
                    "timestamp": pa.nulls(5, pa.null()),
                    "headers": pa.nulls(5, pa.null()),
                }
            )
            partition.append_arrow(table.slice(first))
        found = [(r.value, r.key, r.headers) for r in partition.read()]
        assert found == [(None, None, ())] * 3 * (5 - first)
        assert min(r.timestamp_ms for r in partition.read()) > NOW


def test_timestamps_stand_anywhere(tmp_path: Path) -> None:
    """Unaligned timestamps work, too: a message of IPC may begin at an odd address."""
    data = pa.py_buffer(b"?" + struct.pack("<4q", 1, 2, 3, 4)).slice(1)
    times = pa.Array.from_buffers(pa.int64(), 4, [None, data])
    batch = pa.RecordBatch.from_arrays([THREE, times.slice(1)], ["value", "timestamp"])
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_arrow(batch)
        assert [r.timestamp_ms for r in partition.read()] == [2, 3, 4]


def test_record_with_more_headers_than_can_be_read_is_refused(tmp_path: Path) -> None:
    """Both ways of appending refuse it."""
    many = [{"key": "k", "value": None}] * 100_001
    table = pa.table({"value": [b"x"], "headers": pa.array([many], HEADERS)})
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, max_message_bytes=1 << 28)
        with pytest.raises(logstore.errors.RecordTooLargeError, match="100001 headers"):
            partition.append_arrow(table)
        assert partition.end_offset == 0
        table = pa.table({"value": [b"x"], "headers": pa.array([many[1:]], HEADERS)})
        partition.append_arrow(table)
        assert len(next(partition.read()).headers) == 100_000


MUTATED = """
import random, struct, sys, tempfile
import logstore, pyarrow as pa
headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
values = [b"value %d" % i * (i % 5) if i % 7 else None for i in range(40)]
word = pa.dictionary(pa.int8(), pa.binary())
kinds = [pa.binary(), pa.large_binary(), pa.string(), word]
edges = -1, 1 << 30, -(1 << 31), 99, (1 << 31) - 1
pairs = [[{"key": "k", "value": b"v"}] * (i % 3) for i in range(40)]
if hasattr(pa, "binary_view"):
    kinds.append(pa.binary_view())
rng = random.Random(int(sys.argv[1]))
taken = refused = 0
with tempfile.TemporaryDirectory() as path, logstore.open(path) as store:
    config = logstore.TopicConfig(message_format=2, max_message_bytes=1 << 28)
    partition = store.create_topic("t", config=config)[0]
    for turn in range(int(sys.argv[2])):
        kind = rng.choice(kinds)
        column = pa.array(values).cast(kind) if not pa.types.is_dictionary(kind) else (
            pa.array(values).dictionary_encode().cast(kind))
        columns = {
            "value": column,
            "key": pa.array(values[::-1]).slice(0),
            "timestamp": pa.array(range(40), pa.timestamp("ms")),
            "headers": pa.array(pairs, headers),
        }
        if rng.random() < 0.5:
            del columns["headers"]  # what is left may be appended in one step of C
        batch = pa.record_batch(columns)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = bytearray(sink.getvalue().to_pybytes())
        for _ in range(rng.choice((1, 1, 2, 5))):
            at = rng.randrange(len(data) // 3, len(data) - 8)
            if rng.random() < 0.5:
                data[at] = rng.choice((0, 1, 127, 128, 255))
            else:
                at -= at % 4
                struct.pack_into("<i", data, at, rng.choice(edges))
        end = partition.end_offset
        try:
            received = list(pa.ipc.open_stream(bytes(data)))
        except Exception:
            continue  # pyarrow has seen it
        try:
            for one in received:
                partition.append_arrow(one)
            taken += 1
        except (logstore.LogStoreError, TypeError, pa.ArrowException) as error:
            if isinstance(error, pa.ArrowException):
                raise
            refused += 1
            assert partition.end_offset == end, error
    count = sum(1 for _ in partition.read())
    assert count == partition.end_offset
print(taken, refused)
"""


@pytest.mark.parametrize("seed", range(3))
def test_streams_that_were_changed_anywhere_are_refused_or_read(seed: int) -> None:
    """The test runs in a child process, which a crash would end."""
    done = subprocess.run(
        [sys.executable, "-c", MUTATED, str(seed), "300"],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    taken, refused = map(int, done.stdout.split())
    assert taken > 10
    assert refused > 10
