"""Decoded records as Arrow record batches."""

from __future__ import annotations

import datetime
import itertools
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.store.partition import partition_views
from support.arrow import batches as arrow_batches
from support.arrow import pa, pc
from support.values import (
    config_of,
    every_format,
    every_magic,
    expected,
    few_formats,
    fill,
    new_partition,
    write_store,
)


@every_format
def test_read_arrow_agrees_with_read(tmp_path: Path, magic: int, codec: str) -> None:
    """The same records as columns, whatever the size of the batches."""
    write_store(tmp_path, 50, magic, codec, segment_bytes=700)
    partition = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    names = ("offset", "timestamp", "key", "value", "timestampType", "headers")
    for size in (1, 7, 65536):
        reader = partition.read_arrow(columns=names, batch_records=size)
        batches = list(reader)
        assert all(0 < b.num_rows <= size for b in batches)
        rows = [row for b in batches for row in b.to_pylist()]
        want = expected(magic, 0, 50)
        assert [r["offset"] for r in rows] == [r.offset for r in want]
        assert [r["key"] for r in rows] == [r.key for r in want]
        assert [r["value"] for r in rows] == [r.value for r in want]
        assert [r["timestampType"] for r in rows] == [
            int(r.timestamp_type) for r in want
        ]
        assert [tuple((h["key"], h["value"]) for h in r["headers"]) for r in rows] == [
            r.headers for r in want
        ]
        stamps = [
            -1 if r["timestamp"] is None else round(r["timestamp"].timestamp() * 1000)
            for r in rows
        ]
        assert stamps == [r.timestamp_ms for r in want]


def test_read_arrow_schema_is_the_documented_one(tmp_path: Path) -> None:
    """Types of the columns, also of an empty log."""
    with logstore.open(tmp_path) as store:
        reader = new_partition(store).read_arrow()
        assert isinstance(reader, pa.RecordBatchReader)
        assert reader.schema == pa.schema(
            [
                ("offset", pa.int64()),
                ("timestamp", pa.timestamp("ms", "UTC")),
                ("key", pa.binary()),
                ("value", pa.binary()),
            ]
        ) or [f.type for f in reader.schema] == [
            pa.int64(), pa.timestamp("ms", "UTC"), pa.binary(), pa.binary(),
        ]  # fmt: skip
        assert reader.read_all().num_rows == 0


@pytest.mark.parametrize("start", [0, 3, 17, 40])
@pytest.mark.parametrize("stop", [None, 5, 17, 39])
def test_read_arrow_bounds_are_those_of_read(
    tmp_path: Path, start: int, stop: int | None
) -> None:
    """start inclusive, stop exclusive, even inside batches."""
    write_store(tmp_path, 40, 2, "lz4", call=7)
    partition = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    table = partition.read_arrow(start, stop, columns=["offset"]).read_all()
    assert table.column(0).to_pylist() == list(
        range(start, 40 if stop is None else stop)
    )


@pytest.mark.parametrize("columns", [["value"], ["key", "offset"], ("headers",)])
def test_read_arrow_gives_the_columns_asked_for(
    tmp_path: Path, columns: list[str]
) -> None:
    """The result has only these columns, in that order."""
    write_store(tmp_path, 10, 2)
    partition = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    table = partition.read_arrow(columns=columns).read_all()
    assert table.column_names == list(columns)
    assert table.num_rows == 10


@pytest.mark.parametrize(
    "options",
    [{"columns": ["nope"]}, {"batch_records": 0}, {"batch_records": -1}],
    ids=str,
)
def test_read_arrow_with_bad_options_raises_config_error(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """An option that cannot work is refused at the call."""
    with logstore.open(tmp_path) as store:
        with pytest.raises(logstore.ConfigError):
            new_partition(store).read_arrow(**options)


def test_arrow_batches_stay_valid_after_the_store_is_closed(tmp_path: Path) -> None:
    """Batches own their memory."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, "gzip")
        fill(partition, 30)
        batches = list(partition.read_arrow(batch_records=7))
    rows = [row for b in batches for row in b.to_pylist()]
    assert [r["value"] for r in rows] == [r.value for r in expected(2, 0, 30)]
    assert isinstance(rows[0]["timestamp"], datetime.datetime)


@every_magic
def test_untimed_records_are_null_timestamps(tmp_path: Path, magic: int) -> None:
    """Magic 0 has no timestamp: null; a stored -1 is not taken for 1969. Also in views,
    datasets and parts of batches."""
    with logstore.open(tmp_path) as store:
        topic = store.create_topic("orders", config=config_of(magic))
        topic[0].append_many([b"a"] * 20, timestamps_ms=[5, -1, 0, -1] * 5)
        expected = [None if t < 0 or magic == 0 else t for t in [5, -1, 0, -1] * 5]
        for table in (
            topic[0].read_arrow().read_all(),
            topic[0].read_arrow(view=True).read_all(),
            topic.to_dataset().to_table(),
        ):
            assert table.column("timestamp").cast("int64").to_pylist() == expected
        part = topic[0].read_arrow(start=3, batch_records=5).read_all()
        assert part.column("timestamp").cast("int64").to_pylist() == expected[3:]
        none = pc.field("timestamp").is_null()
        assert topic.to_dataset().count_rows(filter=none) == expected.count(None)


# ---------------------------------------------------------------- large columns

ALL_COLUMNS = ("offset", "timestamp", "key", "value", "timestampType", "headers")


@few_formats
@pytest.mark.parametrize("limit", [1, 50, 300])
def test_batches_end_before_a_column_is_full(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: int,
    magic: int,
    codec: str,
) -> None:
    """A column has 32 bit positions: it is split before they overflow, wherever a batch
    of the log begins; a record that is larger is returned alone."""
    write_store(tmp_path, 60, magic, codec, call=9)
    partition = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    wanted = [
        row for b in partition.read_arrow(columns=ALL_COLUMNS) for row in b.to_pylist()
    ]
    monkeypatch.setattr(arrow_batches, "_DATA_BYTES_MAX", limit)
    for size in (7, 65536):
        batches = list(partition.read_arrow(columns=ALL_COLUMNS, batch_records=size))
        assert [row for b in batches for row in b.to_pylist()] == wanted
        for batch in batches:
            batch.validate(full=True)
            assert 0 < batch.num_rows <= size
            for name in ("key", "value"):
                used = sum(len(v) for v in batch.column(name).to_pylist() if v)
                assert used <= limit or batch.num_rows == 1


def test_reader_that_failed_goes_on_failing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier records are delivered whole; then each call raises the error: an end of
    the stream would look as if no more records existed."""
    write_store(tmp_path, 60, 2, call=5)
    partition = logstore.open(tmp_path, read_only=True).topic("orders")[0]
    wanted = [(r.key, r.value) for r in partition.read()]
    monkeypatch.setattr(partition_views, "_DECODED", 16)
    monkeypatch.setattr(partition_views, "_DECODED_MIN", 16)
    fill = native.ArrowRows.fill
    calls = itertools.count()

    def failing(*args: Any) -> int:
        if next(calls) == 2:  # some records are in already
            raise MemoryError
        return fill(*args)

    monkeypatch.setattr(native.ArrowRows, "fill", failing)
    reader = partition.read_arrow(columns=("key", "value"))
    batch = reader.read_next_batch()
    batch.validate(full=True)
    rows = list(zip(*(c.to_pylist() for c in batch.columns), strict=True))
    assert 0 < len(rows) < 60
    assert rows == wanted[: len(rows)]
    for _ in range(3):
        with pytest.raises(MemoryError):
            reader.read_next_batch()


@pytest.mark.thorough
@pytest.mark.slow
def test_records_that_pass_2_gib_together_are_read(tmp_path: Path) -> None:
    """Each record comes in a separate batch."""
    sizes = [900 << 20, 1300 << 20]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2, max_message_bytes=(1 << 31) - 1)
        for size in sizes:
            partition.append(bytes(size))
        found = [b.column("value")[0].as_buffer().size for b in partition.read_arrow()]
        assert found == sizes
