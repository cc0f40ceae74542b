"""Record batches in one step of C: the same records and bytes as the usual way, which
takes every batch that is not read there."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.record.arrow import exported
from support import prepared
from support.arrow import pa
from support.prepared import T, files_of
from support.values import every_magic


class Counted:
    """Counts which batches were taken by the step of C."""

    def __init__(self, partition: Any) -> None:
        self.taken = self.refused = 0
        self._prepared = partition._prepared
        partition._prepared = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prepared, name)

    def append_arrow(self, *args: Any) -> range | None:
        offsets: range | None = self._prepared.append_arrow(*args)
        if offsets is None:
            self.refused += 1
        else:
            self.taken += 1
        return offsets


def partition_of(path: Path, magic: int, **settings: Any) -> logstore.Partition:
    """A partition whose next append may be one step."""
    partition = prepared.partition_of(path, magic, **settings)
    partition.append(b"first", timestamp_ms=T)
    return partition


def random_batch(rng: random.Random, magic: int) -> Any:
    rows = rng.choice((1, 2, 7, 8, 9, 64, 300))

    def payloads(null: float) -> list[bytes | None]:
        most = rng.choice((0, 1, 8, 100, 500))
        return [
            None if rng.random() < null else rng.randbytes(rng.randint(0, most))
            for _ in range(rows)
        ]

    columns: dict[str, Any] = {
        "value": pa.array(payloads(rng.choice((0, 0.3, 1))), pa.binary())
    }
    if rng.random() < 0.7:
        columns["key"] = pa.array(payloads(rng.choice((0, 0.5))), pa.binary())
    if rng.random() < 0.3:
        columns["value"] = pa.array([rng.choice("aäö€") * 3] * rows, pa.string())
    kind = rng.choice((pa.int64(), pa.timestamp("ms"), pa.timestamp("ms", tz="UTC")))
    # Without times they would differ by the time of the clock.
    times = [T + rng.randrange(10**6) for _ in range(rows)]
    columns["timestamp"] = pa.array(times, pa.int64()).cast(kind)
    if rng.random() < 0.3:
        columns["offset"] = pa.array(range(rows), pa.int64())
        columns["topic"] = pa.array(["x"] * rows)
    names = list(columns)
    rng.shuffle(names)
    batch = pa.record_batch({name: columns[name] for name in names})
    start = rng.randrange(rows)
    return batch.slice(start, rng.randint(1, rows - start))


@every_magic
@pytest.mark.parametrize("seed", range(2))
def test_batches_in_one_step_are_those_of_the_usual_way(
    tmp_path: Path, magic: int, seed: int
) -> None:
    """Columns have nulls, slices, strings, times of three types, and ignored ones; the
    log and its indexes are equal, byte by byte."""
    rng = random.Random(seed)
    settings = {"segment_bytes": 60_000, "index_interval_bytes": 500}
    fast = partition_of(tmp_path / "fast", magic, **settings)
    usual = partition_of(tmp_path / "usual", magic, **settings)
    counted = Counted(fast)
    for _ in range(120):
        batch = random_batch(rng, magic)
        expected = usual.append_arrow(batch, expected_offset=usual.end_offset)
        assert fast.append_arrow(batch) == expected
    assert counted.taken > 80
    assert list(fast.read()) == list(usual.read())
    for partition in (fast, usual):
        partition.flush()
    fast_files, usual_files = files_of(tmp_path / "fast"), files_of(tmp_path / "usual")
    assert fast_files == usual_files
    assert len([name for name in fast_files if name.endswith(".log")]) > 1


V = [b"a", b"b", b"c"]
USUAL = {
    "large": {"value": pa.array(V, pa.large_binary())},
    "dictionary": {"value": pa.array(V).dictionary_encode()},
    "seconds": {
        "value": pa.array(V),
        "timestamp": pa.array([1] * 3, pa.timestamp("s")),
    },
    "time missing": {"value": pa.array(V), "timestamp": pa.array([1, None, 1])},
    "no type": {"value": pa.nulls(3)},
    "headers": {
        "value": pa.array(V),
        "headers": pa.nulls(
            3, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
        ),
    },
}


@pytest.mark.parametrize("name", USUAL)
def test_other_types_go_the_usual_way(tmp_path: Path, name: str) -> None:
    partition = partition_of(tmp_path, 2)
    counted = Counted(partition)
    batch = pa.record_batch(USUAL[name])
    assert partition.append_arrow(batch) == range(1, 4)
    assert not counted.taken
    values = batch.column("value").cast(pa.binary()).to_pylist()
    assert [r.value for r in partition.read(1)] == values


def test_field_with_metadata_goes_the_usual_way(tmp_path: Path) -> None:
    """It may say that the values are of an extension type."""
    partition = partition_of(tmp_path, 1)
    counted = Counted(partition)
    field = pa.field("value", pa.binary(), metadata={"ARROW:extension:name": "x"})
    partition.append_arrow(pa.record_batch([pa.array(V)], pa.schema([field])))
    assert counted.refused == 1
    assert [r.value for r in partition.read(1)] == V


@pytest.mark.parametrize("stamp", [-2, -(1 << 63)])
def test_time_below_minus_1_is_refused(tmp_path: Path, stamp: int) -> None:
    partition = partition_of(tmp_path, 1)
    batch = pa.record_batch(
        {"value": pa.array(V), "timestamp": pa.array([1, stamp, 1])}
    )
    with pytest.raises(logstore.ConfigError, match="below -1"):
        partition.append_arrow(batch)
    assert partition.end_offset == 1


@pytest.mark.parametrize(
    "columns",
    [{"key": V}, {"value": V, "colour": V}],
    ids=["no value", "unknown column"],
)
def test_columns_that_are_not_those_of_records_are_refused(
    tmp_path: Path, columns: dict[str, Any]
) -> None:
    partition = partition_of(tmp_path, 1)
    with pytest.raises(logstore.ConfigError, match=r"[Nn]othing was written"):
        partition.append_arrow(pa.record_batch(columns))
    twice = pa.RecordBatch.from_arrays([pa.array(V)] * 2, ["value", "value"])
    with pytest.raises(logstore.ConfigError, match="2 columns 'value'"):
        partition.append_arrow(twice)
    assert partition.end_offset == 1


def test_empty_and_large_batches_are_appended(tmp_path: Path) -> None:
    """A batch has no rows, more rows than a step takes, or more bytes than a step
    takes."""
    partition = partition_of(tmp_path, 1)
    counted = Counted(partition)
    for values in ([], [b""] * 8193, [bytes(300_000)]):
        batch = pa.record_batch({"value": pa.array(values, pa.binary())})
        assert len(partition.append_arrow(batch)) == len(values)
    assert not counted.taken
    assert partition.end_offset == 8195


def test_batch_with_times_of_the_append_has_them(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, 2, message_timestamp_type="LogAppendTime")
    counted = Counted(partition)
    batch = pa.record_batch({"value": pa.array(V), "timestamp": pa.array([1, 2, 3])})
    partition.append_arrow(batch)
    assert counted.taken == 1
    assert min(r.timestamp_ms for r in partition.read(1)) > T


def test_what_is_no_capsule_is_refused(tmp_path: Path) -> None:
    partition = partition_of(tmp_path, 1)
    append_arrow = partition._prepared.append_arrow
    columns = {"value": V, "time": [T] * 3}
    schema, batch = pa.record_batch(columns).__arrow_c_array__()
    for args in ((batch, schema, 0, 3, -1, 0, 1), (schema, None, 0, 3, -1, 0, 1)):
        with pytest.raises(ValueError, match="PyCapsule"):
            append_arrow(*args)
    with pytest.raises(TypeError):
        append_arrow(schema, batch)
    for numbers in (
        (2, 3, -1, 0, 1),
        (0, 3, 5, 0, 1),
        (0, 3, 1, 9, 1),
        (0, 3, -1, 0, 0),
    ):
        assert append_arrow(schema, batch, *numbers) is None
    assert append_arrow(schema, batch, 0, 3, -1, 0, 1) == range(1, 4)
    assert [r.value for r in partition.read(1)] == V


@pytest.mark.parametrize("column", ["value", "key"])
@pytest.mark.parametrize("ends", [(0, 1, 2, 4), (0, 9, 2, 3), (-1, 1, 2, 3)])
def test_positions_that_change_after_the_validation_are_not_followed(
    tmp_path: Path, column: str, ends: tuple[int, ...]
) -> None:
    """Another thread or process may write to the memory of the positions."""
    partition = partition_of(tmp_path, 1)
    append_arrow = partition._prepared.append_arrow
    positions = bytearray(struct.pack("<4i", 0, 1, 2, 3))
    buffers = [None, pa.py_buffer(positions), pa.py_buffer(b"abc")]
    columns = {"value": pa.array(V), "key": pa.array(V), "timestamp": [T] * 3}
    columns[column] = pa.Array.from_buffers(pa.binary(), 3, buffers)
    batch = exported(pa.record_batch(columns))
    assert batch is not None
    struct.pack_into("<4i", positions, 0, *ends)
    assert append_arrow(*batch) is None
    struct.pack_into("<4i", positions, 0, 0, 1, 2, 3)
    assert append_arrow(*batch) == range(1, 4)
