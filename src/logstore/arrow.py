"""Records as Arrow columns, both ways, without a Python object per record.

pyarrow is optional: it is imported when this module is, which `logstore.partition` does
at the first use.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore import _binding as native
from logstore.decoding import Columns, read_headers
from logstore.errors import ConfigError, UnsupportedError

__all__ = [
    "SCHEMA",
    "BatchMaker",
    "check_columns",
    "partitions_of",
    "reader_of",
    "rows_of",
    "schema_of",
    "tables_of",
]

_HEADER: Final = pa.struct([("key", pa.string()), ("value", pa.binary())])
SCHEMA: Final = {
    "offset": pa.field("offset", pa.int64(), nullable=False),
    "timestamp": pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
    "key": pa.field("key", pa.binary()),
    "value": pa.field("value", pa.binary()),
    "timestampType": pa.field("timestampType", pa.int32(), nullable=False),
    "headers": pa.field("headers", pa.list_(_HEADER)),
}
# Columns of other tables of records that say nothing about what is to be written.
_IGNORED: Final = frozenset({"topic", "partition", "offset", "timestampType"})
# Arrow's binary columns have 32 bit positions; a batch ends well before their end.
_DATA_BYTES_MAX: Final = 1 << 30


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    for name in columns:
        if name not in SCHEMA:
            raise ConfigError(
                f"columns has {name!r}, which is not one of {', '.join(SCHEMA)}",
                name="columns",
                value=name,
            )
    return tuple(columns)


def schema_of(columns: Sequence[str]) -> Any:
    return pa.schema([SCHEMA[name] for name in columns])


class _Fixed:
    """A column of numbers that is being filled."""

    def __init__(self, capacity: int, width: int) -> None:
        self.buffer = pa.allocate_buffer(capacity * width)
        self.address = self.buffer.address


class _Binary:
    """A binary column that is being filled: data, positions and nulls."""

    def __init__(self, capacity: int, data_bytes: int) -> None:
        self.capacity = capacity
        self.data = pa.allocate_buffer(max(data_bytes, 64), resizable=True)
        self.offsets = pa.allocate_buffer((capacity + 1) * 4)
        self.validity = pa.allocate_buffer(capacity // 8 + 8)
        self.used = 0
        self.nulls = 0
        offsets = native.address_pointer(self.offsets.address, "int32_t *")
        offsets[0] = 0
        self._offsets = offsets

    def add(
        self, run: Columns, pos: Any, length: Any, first: int, n: int, at: int
    ) -> None:
        more = run.decoder.sum_lengths(length, first, first + n)
        if self.used + more > self.data.size:
            self.data.resize(max(self.used + more, self.data.size * 2), False)
        self.nulls += native.gather(
            run.c,
            pos + first,
            length + first,
            n,
            native.address_pointer(self.data.address),
            self.data.size,
            self._offsets,
            native.address_pointer(self.validity.address),
            at,
        )
        self.used += more

    def array(self, count: int) -> Any:
        validity = self.validity if self.nulls else None
        return pa.Array.from_buffers(
            pa.binary(),
            count,
            [validity, self.offsets, self.data],
            null_count=self.nulls,
        )


class BatchMaker:
    """Turns runs of decoded records into record batches of `batch_records` each."""

    def __init__(self, columns: Sequence[str], batch_records: int) -> None:
        self.columns = columns
        self.batch_records = batch_records
        self.schema = schema_of(columns)
        self._sizes = {"key": 4096, "value": 65536}
        self._begin()

    def _begin(self) -> None:
        n = self.batch_records
        self._count = 0
        self._fixed = {
            name: _Fixed(n, width)
            for name, width in (("offset", 8), ("timestamp", 8), ("timestampType", 4))
            if name in self.columns
        }
        self._binary = {
            name: _Binary(n, self._sizes[name])
            for name in ("key", "value")
            if name in self.columns
        }
        self._headers: list[Any] = []
        self._untimed: list[tuple[int, int]] = []

    def batches(self, runs: Iterable[Columns]) -> Iterator[Any]:
        """Record batches, full but for the last one. What was read before damage is
        given out before the error goes on."""
        try:
            for run in runs:
                yield from self._add(run)
        except GeneratorExit:
            raise
        except BaseException:
            if self._count:
                yield self._finish()
            raise
        if self._count:
            yield self._finish()

    def _add(self, run: Columns) -> Iterator[Any]:
        total = run.decoder.count
        first = 0
        while first < total:
            n = min(total - first, self.batch_records - self._count)
            self._copy(run, first, n)
            first += n
            if self._count == self.batch_records or self._is_large():
                yield self._finish()

    def _is_large(self) -> bool:
        return any(column.used > _DATA_BYTES_MAX for column in self._binary.values())

    def _copy(self, run: Columns, first: int, n: int) -> None:
        d, at = run.decoder, self._count
        for name, source in (("offset", d.offset), ("timestamp", d.timestamp)):
            column = self._fixed.get(name)
            if column is not None:
                native.copy_int64(column.address, at, source, first, n)
        if "key" in self._binary:
            self._binary["key"].add(run, d.key_pos, d.key_len, first, n, at)
        if "value" in self._binary:
            self._binary["value"].add(run, d.value_pos, d.value_len, first, n, at)
        untimed = native.is_untimed(d.timestamp_type, first, n)
        if "timestampType" in self._fixed:
            native.copy_int8_to_int32(
                self._fixed["timestampType"].address, at, d.timestamp_type, first, n
            )
        if untimed and "timestamp" in self._fixed:
            kinds = d.unpack(d.timestamp_type)
            self._untimed += [(at + i, 1) for i in range(n) if kinds[first + i] == -1]
        if "headers" in self.columns:
            self._add_headers(run, first, n)
        self._count += n

    def _add_headers(self, run: Columns, first: int, n: int) -> None:
        d = run.decoder
        counts, places = d.unpack(d.header_count), d.unpack(d.header_pos)
        for i in range(first, first + n):
            found = (
                read_headers(run.c, run.raw, run.size, places[i], counts[i])
                if counts[i]
                else ()
            )
            self._headers.append([{"key": k, "value": v} for k, v in found])

    def _finish(self) -> Any:
        count = self._count
        arrays = []
        for name in self.columns:
            if name in self._binary:
                column = self._binary[name]
                self._sizes[name] = min(column.used + column.used // 16, 1 << 30)
                arrays.append(column.array(count))
            elif name == "headers":
                arrays.append(pa.array(self._headers, type=SCHEMA["headers"].type))
            else:
                arrays.append(self._fixed_array(name, count))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._begin()
        return batch

    def _fixed_array(self, name: str, count: int) -> Any:
        validity = None
        if name == "timestamp" and self._untimed:
            bits = bytearray(b"\xff" * (count // 8 + 1))
            for at, _ in self._untimed:
                bits[at >> 3] &= ~(1 << (at & 7))
            validity = pa.py_buffer(bytes(bits))
        return pa.Array.from_buffers(
            SCHEMA[name].type, count, [validity, self._fixed[name].buffer]
        )


def reader_of(
    columns: Sequence[str], batch_records: int, runs: Iterable[Columns]
) -> Any:
    """A RecordBatchReader over runs of decoded records."""
    maker = BatchMaker(columns, batch_records)
    return pa.RecordBatchReader.from_batches(maker.schema, maker.batches(runs))


# ---------------------------------------------------------------- to be written


def tables_of(data: Any) -> Iterator[Any]:
    """Record batches of a batch, table or reader (also anything with Arrow's C stream).

    Raises:
        TypeError: it is none of these.
    """
    if isinstance(data, pa.RecordBatch):
        yield data
    elif isinstance(data, pa.Table):
        yield from data.to_batches()
    elif isinstance(data, pa.RecordBatchReader):
        yield from data
    else:
        try:
            found = pa.RecordBatchReader.from_stream(data)
        except (TypeError, pa.ArrowInvalid) as error:
            raise TypeError(
                f"append_arrow takes a RecordBatch, Table or RecordBatchReader, not "
                f"{type(data).__name__}; nothing was written"
            ) from error
        yield from found


def _column_names(batch: Any) -> None:
    allowed = {"key", "value", "timestamp", "headers"} | _IGNORED
    names = batch.schema.names
    if "value" not in names:
        raise ConfigError(
            f"append_arrow needs a column 'value'; there are {', '.join(names)}. "
            f"Nothing was written",
            name="value",
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"append_arrow found {names.count(name)} columns {name!r}; nothing was "
                f"written",
                name=name,
            )
        if name not in allowed:
            raise ConfigError(
                f"append_arrow does not know the column {name!r}; it takes "
                f"{', '.join(sorted(allowed))}. Nothing was written",
                name=name,
            )


def _binary_slices(array: Any, name: str) -> native.Slices:
    """Slices of a binary or string column, where they lie."""
    kind = array.type
    if pa.types.is_dictionary(kind):
        array = array.dictionary_decode()
        kind = array.type
    if pa.types.is_null(kind):
        return native.Slices.nulls(len(array))
    small = pa.types.is_binary(kind) or pa.types.is_string(kind)
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not small and not large:
        try:
            array = array.cast(pa.large_binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"column {name} has type {kind}, not binary, large_binary or string; "
                f"nothing was written"
            ) from error
        large = True
    validity, offsets, data = array.buffers()
    return native.Slices.from_arrow(
        len(array),
        array.offset,
        None if validity is None or not array.null_count else validity.address,
        offsets.address if offsets is not None else 0,
        data.address if data is not None else 0,
        large=large,
        keep=array,
    )


def _milliseconds(array: Any, now_ms: int) -> Any:
    """int64 milliseconds of a timestamp column, nulls as `now_ms`."""
    kind = array.type
    if pa.types.is_null(kind):
        array = pa.array([now_ms] * len(array), pa.int64())
    elif pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        array = _int64_milliseconds(array)
    else:
        raise TypeError(
            f"column timestamp has type {kind}, not a timestamp or int64 milliseconds; "
            f"nothing was written"
        )
    if array.null_count:
        array = array.fill_null(now_ms)
    if len(array):
        smallest = pc.min(array).as_py()
        if smallest < -1:
            raise ConfigError(
                f"timestamp {smallest} is below -1; nothing was written",
                name="timestamp",
                value=smallest,
            )
    return array


def _int64_milliseconds(array: Any) -> Any:
    """Milliseconds since 1970, rounded down, of a timestamp or integer column."""
    kind = array.type
    try:
        if not pa.types.is_timestamp(kind):
            return array.cast(pa.int64())
        numbers = array.cast(pa.int64())
        if kind.unit == "s":
            return pc.multiply_checked(numbers, 1000)
        divisor = {"ms": 1, "us": 1000, "ns": 1_000_000}[kind.unit]
        if divisor == 1:
            return numbers
        floor = pc.divide(numbers, divisor)
        lower = pc.less(pc.multiply(floor, divisor), 0)
        rounded = pc.not_equal(pc.multiply(floor, divisor), numbers)
        below = pc.and_(pc.or_(lower, pc.less(numbers, 0)), rounded)
        return pc.subtract(floor, below.cast(pa.int64()))
    except pa.ArrowInvalid as error:
        raise ConfigError(
            f"column timestamp of type {kind} has a value beyond 64 bit milliseconds: "
            f"{error}; nothing was written",
            name="timestamp",
        ) from error


def _header_columns(column: Any, magic: int) -> tuple[Any, Any, Any]:
    """(counts, names, values) of a headers column; counts None where it has none.

    Raises:
        TypeError: it is no list of struct(key, value).
        ConfigError: a null header or a null name.
        UnsupportedError: headers in magic 0 or 1.
    """
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    names: set[str] = set()
    if is_list and pa.types.is_struct(kind.value_type):
        names = {field.name for field in kind.value_type}
    if names != {"key", "value"} and not pa.types.is_null(kind):
        raise TypeError(
            f"column headers has type {kind}, not list<struct<key, value>>; nothing "
            f"was written"
        )
    if pa.types.is_null(kind):
        return None, None, None
    flat = column.flatten()
    if not len(flat):
        return None, None, None
    if magic < 2:
        raise UnsupportedError(
            f"column headers needs message_format=2; this topic has {magic}. Nothing "
            f"was written"
        )
    keys, values = flat.field("key"), flat.field("value")
    if flat.null_count or keys.null_count:
        raise ConfigError(
            "column headers has a header that is null, or whose key is; nothing was "
            "written",
            name="headers",
        )
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    return (
        native.int32_array(lengths.to_pylist()),
        _binary_slices(keys, "headers.key"),
        _binary_slices(values, "headers.value"),
    )


def rows_of(batch: Any, *, now_ms: int, magic: int) -> native.Rows:
    """Rows for C from one record batch; the columns are not copied.

    Raises:
        ConfigError, TypeError, UnsupportedError: a column that cannot be written.
    """
    _column_names(batch)
    names = batch.schema.names
    count = batch.num_rows
    value = _binary_slices(batch.column("value"), "value")
    key = _binary_slices(batch.column("key"), "key") if "key" in names else None
    timestamps = None
    if "timestamp" in names:
        array = _milliseconds(batch.column("timestamp"), now_ms)
        timestamps = native.address_pointer(
            array.buffers()[1].address + 8 * array.offset, "int64_t *"
        )
        value.keep = (value.keep, array)
    header_count = header_key = header_value = None
    if "headers" in names:
        header_count, header_key, header_value = _header_columns(
            batch.column("headers"), magic
        )
    return native.Rows(
        count,
        key,
        value,
        timestamps=timestamps,
        timestamp_all=now_ms,
        header_count=header_count,
        header_key=header_key,
        header_value=header_value,
    )


def partitions_of(keys: Any, partitions: int) -> Any:
    """Kafka's partition of each key of an array: int32, -1 where the key is null.

    Raises:
        TypeError: it is no binary or string array.
    """
    out = pa.allocate_buffer(4 * len(keys))
    native.partition_keys(
        _binary_slices(keys, "key"), len(keys), partitions, out.address
    )
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, out])
