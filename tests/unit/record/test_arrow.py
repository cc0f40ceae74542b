"""Arrow columns in and out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from support.arrow import HEADERS, NOW, pa
from support.damage import FixedClock
from support.values import (
    every_format,
    every_magic,
    expected,
    fill,
    new_partition,
)


def rows_of(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def arrow_of(records: list[logstore.Record], headers: bool) -> Any:
    """The table that holds the same records."""
    columns = {
        "value": pa.array([r.value for r in records], pa.binary()),
        "key": pa.array([r.key for r in records], pa.binary()),
        "timestamp": pa.array(
            [max(r.timestamp_ms, 0) for r in records], pa.timestamp("ms", "UTC")
        ),
    }
    if headers:
        columns["headers"] = pa.array(
            [[{"key": k, "value": v} for k, v in r.headers] for r in records], HEADERS
        )
    return pa.table(columns)


@every_format
@pytest.mark.parametrize("kind", ["batch", "table", "chunked", "reader", "stream"])
def test_append_arrow_takes_every_kind_of_table(
    tmp_path: Path, magic: int, codec: str, kind: str
) -> None:
    """RecordBatch, Table, chunked Table, RecordBatchReader, anything with a stream."""
    want = expected(magic, 0, 60)
    table = arrow_of(want, magic == 2)
    if kind == "batch":
        data = table.combine_chunks().to_batches()[0]
    elif kind == "chunked":
        data = pa.concat_tables([table.slice(0, 7), table.slice(7, 0), table.slice(7)])
    elif kind == "reader":
        data = table.to_reader(max_chunksize=11)
    elif kind == "stream":

        class Stream:
            def __arrow_c_stream__(self, schema: object = None) -> object:
                return table.__arrow_c_stream__(schema)

        data = Stream()
    else:
        data = table
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec, segment_bytes=1500)
        assert partition.append_arrow(data) == range(60)
        assert list(partition.read()) == want


@every_magic
@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.string(), pa.large_string(),
     pa.dictionary(pa.int8(), pa.binary()), pa.dictionary(pa.int32(), pa.string())],
    ids=str,
)  # fmt: skip
def test_append_arrow_takes_every_binary_type(
    tmp_path: Path, magic: int, kind: Any
) -> None:
    """Values and keys as binary or text of either width, dictionaries, with nulls."""
    items = [b"a", None, b"", b"long " * 20, b"a"]
    texts: list[Any] = items
    if "string" in str(kind):
        texts = [None if i is None else i.decode() for i in items]
    column = pa.array(texts, kind)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        partition.append_arrow(pa.table({"key": column, "value": column}))
        partition.append_arrow(
            pa.table({"value": column.slice(1, 3), "key": column[2:]})
        )
        records = list(partition.read())
        assert [r.value for r in records] == items + items[1:4]
        assert [r.key for r in records] == items + items[2:]


@pytest.mark.parametrize("kind", ["string_view", "binary_view", "string", "null"])
def test_append_arrow_takes_a_dictionary_of_any_text(tmp_path: Path, kind: str) -> None:
    """A Categorical column of Polars, for example, has a dictionary of views: as keys,
    values, header names, partition and topic."""
    texts = [None, None] if kind == "null" else ["a", "b"]
    column = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.uint32()), pa.array(texts, getattr(pa, kind)())
    )
    table = pa.table({"key": column, "value": column})
    wanted = [None] * 4 if kind == "null" else [b"a", b"b", None, b"a"]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        partition.append_arrow(table)
        assert [r.key for r in partition.read()] == wanted
        assert [r.value for r in partition.read()] == wanted
        topic = store.create_topic("many", 2)
        topic.append_arrow(table)
        found = [r.value for part in topic for r in part.read()]
        assert sorted(map(str, found)) == sorted(map(str, wanted))


def test_append_arrow_takes_a_null_column(tmp_path: Path) -> None:
    """A column of nulls gives null keys or values."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_arrow(pa.table({"value": pa.nulls(3), "key": pa.nulls(3)}))
        assert [(r.key, r.value) for r in partition.read()] == [(None, None)] * 3


@every_format
def test_append_arrow_of_slices_appends_what_they_show(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """Slices share buffers with rows outside of them."""
    want = expected(magic, 0, 60)
    table = arrow_of(want, magic == 2)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic, codec)
        offset = 0
        for size in (1, 8, 3, 20, 9, 19):
            partition.append_arrow(table.slice(offset, size))
            offset += size
        assert offset == 60
        assert list(partition.read()) == want


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kathmandu"])
def test_append_arrow_takes_every_timestamp_type(
    tmp_path: Path, unit: str, zone: str | None
) -> None:
    """Each unit is stored as milliseconds since 1970; a null is now."""
    seconds = [0, 1, None, 1_600_000_000]
    scale = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    column = pa.array(
        [None if s is None else s * scale for s in seconds], pa.timestamp(unit, zone)
    )
    with open_store(tmp_path, _files=FixedClock(NOW)) as store:
        partition = new_partition(store)
        table = pa.table({"value": pa.nulls(4), "timestamp": column})
        partition.append_arrow(table)
        partition.append_arrow(table.slice(1, 2))
        stamps = [r.timestamp_ms for r in partition.read()]
        assert stamps == [0, 1000, NOW, 1_600_000_000_000, 1000, NOW]


@pytest.mark.parametrize("kind", [pa.int64(), pa.int32(), pa.null()], ids=str)
def test_append_arrow_takes_integer_milliseconds(tmp_path: Path, kind: Any) -> None:
    """int64 is milliseconds."""
    stamps = [None, None] if kind == pa.null() else [5, None]
    with open_store(tmp_path, _files=FixedClock(NOW)) as store:
        partition = new_partition(store)
        column = pa.array(stamps, kind)
        partition.append_arrow(pa.table({"value": pa.nulls(2), "timestamp": column}))
        found = [r.timestamp_ms for r in partition.read()]
        assert found == [NOW if s is None else s for s in stamps]


def test_append_arrow_without_timestamps_is_now(tmp_path: Path) -> None:
    """Without the column all records have the time of the call."""
    with open_store(tmp_path, _files=FixedClock(NOW)) as store:
        partition = new_partition(store)
        partition.append_arrow(pa.table({"value": pa.nulls(3)}))
        assert {r.timestamp_ms for r in partition.read()} == {NOW}


def test_append_arrow_ignores_what_reading_gives(tmp_path: Path) -> None:
    """Tables of read_arrow (and Spark) can be appended again unchanged."""
    names = ("offset", "timestamp", "key", "value", "timestampType", "headers")
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        fill(partition, 20)
        table = partition.read_arrow(columns=names).read_all()
        table = table.append_column("topic", pa.array(["t"] * 20))
        table = table.append_column("partition", pa.array([3] * 20))
        assert partition.append_arrow(table) == range(20, 40)
        assert [r[1:] for r in partition.read(20)] == [
            r[1:] for r in expected(2, 0, 20)
        ]


BAD = {
    "no value": pa.table({"key": pa.nulls(1)}),
    "another column": pa.table({"value": pa.nulls(1), "foo": [1]}),
    "twice": pa.Table.from_arrays([pa.nulls(1), pa.nulls(1)], names=["value", "value"]),
    "timestamp below -1": pa.table({"value": pa.nulls(1), "timestamp": [-2]}),
    "timestamp too large": pa.table(
        {"value": pa.nulls(1), "timestamp": pa.array([1 << 63], pa.uint64())}
    ),
    "timestamp overflows": pa.table(
        {"value": pa.nulls(1), "timestamp": pa.array([10**17], pa.timestamp("s"))}
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_append_arrow_of_bad_columns_raises_config_error(
    tmp_path: Path, name: str
) -> None:
    """A column that is not known, missing or out of range is refused before writing."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        with pytest.raises(logstore.ConfigError):
            partition.append_arrow(BAD[name])
        assert partition.end_offset == 0


BAD_TYPES = {
    "list": [b"x"],
    "array": pa.array([b"x"]),
    "none": None,
    "integers": pa.table({"value": [1]}),
    "dictionary of integers": pa.table({"value": pa.array([1]).dictionary_encode()}),
    "lists": pa.table({"value": [[b"x"]]}),
    "integer key": pa.table({"value": pa.nulls(1), "key": [1]}),
    "text timestamp": pa.table({"value": pa.nulls(1), "timestamp": ["1"]}),
    "float timestamp": pa.table({"value": pa.nulls(1), "timestamp": [1.0]}),
    "integer headers": pa.table({"value": pa.nulls(1), "headers": [1]}),
    "text headers": pa.table({"value": pa.nulls(1), "headers": [["a"]]}),
}


@pytest.mark.parametrize("name", BAD_TYPES)
def test_append_arrow_of_another_type_raises_type_error(
    tmp_path: Path, name: str
) -> None:
    """An argument that is not a table, or a column of a wrong type, is a TypeError;
    nothing is written."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        with pytest.raises(TypeError):
            partition.append_arrow(BAD_TYPES[name])
        assert partition.end_offset == 0


def test_append_arrow_of_a_null_header_name_is_refused(tmp_path: Path) -> None:
    """A header has a name."""
    column = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        with pytest.raises((logstore.ConfigError, TypeError)):
            partition.append_arrow(pa.table({"value": pa.nulls(1), "headers": column}))
        assert partition.end_offset == 0


def test_append_arrow_of_null_and_empty_headers_has_none(tmp_path: Path) -> None:
    """A null list means no headers."""
    lists = [None, [], [{"key": "a", "value": None}], None, [{"key": "", "value": b""}]]
    column = pa.array(lists, HEADERS)
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, 2)
        table = pa.table({"value": pa.nulls(5), "headers": column})
        partition.append_arrow(table)
        partition.append_arrow(table.slice(2, 2))
        assert [r.headers for r in partition.read()] == [
            (), (), (("a", None),), (), (("", b""),), (("a", None),), (),
        ]  # fmt: skip


@pytest.mark.parametrize("magic", [0, 1])
def test_append_arrow_of_headers_in_old_magic_raises_unsupported(
    tmp_path: Path, magic: int
) -> None:
    """`append` does the same; a column of empty lists counts as no headers."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, magic)
        some = pa.array([[], [{"key": "a", "value": b"x"}]], HEADERS)
        with pytest.raises(logstore.errors.UnsupportedError):
            partition.append_arrow(pa.table({"value": pa.nulls(2), "headers": some}))
        assert partition.end_offset == 0
        none = pa.array([[], None], HEADERS)
        partition.append_arrow(pa.table({"value": pa.nulls(2), "headers": none}))
        assert partition.end_offset == 2


def test_append_arrow_whose_reader_raises_writes_nothing(tmp_path: Path) -> None:
    """All or nothing: a source that fails half-way leaves the log unchanged."""
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Any:
        yield pa.record_batch([pa.array([b"a"], pa.binary())], schema=schema)
        raise RuntimeError("mine")

    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        with pytest.raises(RuntimeError, match="mine"):
            partition.append_arrow(pa.RecordBatchReader.from_batches(schema, batches()))
        assert partition.end_offset == 0


def test_append_arrow_with_one_record_too_large_writes_nothing(tmp_path: Path) -> None:
    """The limit is on each message, in the last batch, too."""
    tables = [pa.table({"value": [b"a"] * 5}), pa.table({"value": [bytes(1000)]})]
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, max_message_bytes=500)
        with pytest.raises(logstore.errors.RecordTooLargeError):
            partition.append_arrow(pa.concat_tables(tables))
        assert partition.end_offset == 0


def test_append_arrow_with_expected_offset_and_durable(tmp_path: Path) -> None:
    """The options of append."""
    table = pa.table({"value": [b"a", b"b"]})
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        partition.append_arrow(table, expected_offset=0, durable=True)
        assert partition.durable_offset == 2
        with pytest.raises(logstore.errors.OffsetConflictError):
            partition.append_arrow(table, expected_offset=0)
        assert partition.append_arrow(table.slice(0, 0)) == range(2, 2)
