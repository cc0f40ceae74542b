"""Records as Arrow columns, both ways, without a Python object per record.

pyarrow is optional: this module imports it, and `extras` imports this module at the
first use. pyarrow does not check data from IPC or the C interface: this module checks
the columns of a caller before it follows any of their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore import _native as native
from logstore.errors import ConfigError, RecordTooLargeError, UnsupportedError
from logstore.record.decoder import Columns, read_headers

__all__ = [
    "SCHEMA",
    "BatchMaker",
    "check_columns",
    "first_sizes",
    "partitions_of",
    "reader_of",
    "rows_of",
    "schema_of",
    "stream_of",
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
# Columns of other tables of records; they have no effect on what is written.
_IGNORED: Final = frozenset({"topic", "partition", "offset", "timestampType"})
# Arrow's binary columns have 32 bit positions: a batch ends before one has more bytes,
# unless it is a single record, which is always smaller than 2 GiB.
_DATA_BYTES_MAX: Final = 1 << 30
_ROWS_MAX: Final = (1 << 31) - 1


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
    ) -> tuple[int, int]:
        """Put elements after the first `at`; returns the new (bytes, nulls), which
        `keep` sets when all columns have their elements."""
        more = run.decoder.sum_lengths(length, first, first + n)
        if self.used + more > self.data.size:
            doubled = min(self.data.size * 2, _DATA_BYTES_MAX)
            self.data.resize(max(self.used + more, doubled), False)
        nulls = native.gather(
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
        return self.used + more, self.nulls + nulls

    def keep(self, used: int, nulls: int) -> None:
        self.used, self.nulls = used, nulls

    def array(self, count: int) -> Any:
        validity = self.validity if self.nulls else None
        return pa.Array.from_buffers(
            pa.binary(),
            count,
            [validity, self.offsets, self.data],
            null_count=self.nulls,
        )


def first_sizes() -> dict[str, int]:
    """`sizes` of a `BatchMaker` before its first batch."""
    return {"key": 4096, "value": 65536}


class BatchMaker:
    """Turns runs of decoded records into record batches of `batch_records` each.

    Args:
        sizes: bytes that a batch's keys and values may need; makers of the same log
            share and update them. None: only for this maker.
    """

    def __init__(
        self,
        columns: Sequence[str],
        batch_records: int,
        sizes: dict[str, int] | None = None,
    ) -> None:
        self.columns = columns
        self.batch_records = batch_records
        self.schema = schema_of(columns)
        self._sizes = first_sizes() if sizes is None else sizes
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
        self._header_bytes = 0
        self._untimed: list[tuple[int, int]] = []

    def batches(self, runs: Iterable[Columns]) -> Iterator[Any]:
        """Record batches, full except for the last one. Records read before damage are
        yielded before the error is raised."""
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
            n = self._fitting(run, first, n)
            headers, header_bytes = self._headers_of(run, first, n)
            if "headers" in self.columns:
                n = len(headers)
            if n:
                self._copy(run, first, n, headers)
                self._header_bytes += header_bytes
                first += n
            if self._count == self.batch_records or first < total:
                yield self._finish()

    def _fitting(self, run: Columns, first: int, n: int) -> int:
        """How many of the next n records fit into this batch: at least one if the batch
        is empty."""
        d = run.decoder
        lengths = {"key": d.key_len, "value": d.value_len}
        for name, column in self._binary.items():
            room = _DATA_BYTES_MAX - column.used
            if d.sum_lengths(lengths[name], first, first + n) <= room:
                continue
            low, high = 0, n
            while high - low > 1:
                middle = (low + high) // 2
                fits = d.sum_lengths(lengths[name], first, first + middle) <= room
                low, high = (middle, high) if fits else (low, middle)
            n = low
        return n if n or self._count else 1

    def _headers_of(self, run: Columns, first: int, n: int) -> tuple[list[Any], int]:
        """(headers of as many of the next n records as there is room for, upper bound
        of their bytes)."""
        headers: list[Any] = []
        used = 0
        if "headers" not in self.columns:
            return headers, used
        d = run.decoder
        counts = d.unpack(d.header_count + first, n)
        places = d.unpack(d.header_pos + first, n)
        for place, count in zip(places, counts, strict=True):
            if not count:
                headers.append([])
                continue
            pairs = read_headers(run.c, run.raw, run.size, place, count)
            more = sum(len(k) * 4 + len(v or b"") for k, v in pairs)
            is_first = not headers and not self._count
            if self._header_bytes + used + more > _DATA_BYTES_MAX and not is_first:
                break
            used += more
            headers.append([{"key": k, "value": v} for k, v in pairs])
        return headers, used

    def _copy(self, run: Columns, first: int, n: int, headers: list[Any]) -> None:
        """Append n records to the batch: all of each, or nothing."""
        d, at = run.decoder, self._count
        for name, source in (("offset", d.offset), ("timestamp", d.timestamp)):
            column = self._fixed.get(name)
            if column is not None:
                native.copy_int64(column.address, at, source, first, n)
        sources = {"key": (d.key_pos, d.key_len), "value": (d.value_pos, d.value_len)}
        added = [
            (binary, binary.add(run, *sources[name], first, n, at))
            for name, binary in self._binary.items()
        ]
        untimed: list[tuple[int, int]] = []
        if "timestampType" in self._fixed:
            native.copy_int8_to_int32(
                self._fixed["timestampType"].address, at, d.timestamp_type, first, n
            )
        if "timestamp" in self._fixed and native.is_untimed(d.timestamp_type, first, n):
            kinds = d.unpack(d.timestamp_type + first, n)
            untimed = [(at + i, 1) for i in range(n) if kinds[i] == -1]
        # Before this line, data after `_count` is not part of the batch.
        for binary, (used, nulls) in added:
            binary.keep(used, nulls)
        self._untimed += untimed
        self._headers += headers
        self._count += n

    def _finish(self) -> Any:
        count = self._count
        arrays = []
        for name in self.columns:
            if name in self._binary:
                column = self._binary[name]
                size = min(column.used + column.used // 16, _DATA_BYTES_MAX)
                self._sizes[name] = size
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


class _Batches:
    """Record batches until the end, or until an error, which is raised again at each
    further call: a reader must not take the error for the end."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._error: BaseException | None = None

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Any:
        if self._error is not None:
            raise self._error.with_traceback(None)
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:
            self._error = error
            raise


def reader_of(
    columns: Sequence[str], batch_records: int, runs: Iterable[Columns]
) -> Any:
    """A RecordBatchReader over runs of decoded records."""
    maker = BatchMaker(columns, batch_records)
    return stream_of(maker.schema, maker.batches(runs))


def stream_of(schema: Any, batches: Iterator[Any]) -> Any:
    """A RecordBatchReader over record batches; it raises an error again each time."""
    return pa.RecordBatchReader.from_batches(schema, _Batches(batches))


# ---------------------------------------------------------------- to be written


def tables_of(data: Any) -> Iterator[Any]:
    """Record batches of a batch, table or reader (or any object with Arrow's C stream).

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
            reader = pa.RecordBatchReader.from_stream(data)
        except (TypeError, pa.ArrowInvalid) as error:
            raise TypeError(
                f"append_arrow takes a RecordBatch, Table or RecordBatchReader, not "
                f"{type(data).__name__}; nothing was written"
            ) from error
        yield from reader


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


def _checked(array: Any, name: str, *, full: bool = False) -> Any:
    """`array`, whose buffers have the length that it states; `full` checks all values.

    Raises:
        ConfigError: the check fails (pyarrow does not check data from IPC).
    """
    try:
        array.validate(full=full)
    except pa.ArrowException as error:
        raise _not_intact(name, str(error)) from error
    return array


def _not_intact(name: str, why: str) -> ConfigError:
    return ConfigError(
        f"column {name} contradicts itself: {why}; nothing was written", name=name
    )


def _address(buffer: Any) -> tuple[int, int]:
    """(address, bytes) of a buffer."""
    return (0, 0) if buffer is None else (buffer.address, buffer.size)


def _binary_slices(array: Any, name: str) -> native.Slices | None:
    """Slices of a binary or string column, without a copy; None if all are null.

    Raises:
        TypeError: it is another kind of column.
        ConfigError: it contradicts itself.
        RecordTooLargeError: an element has 2 GiB or more.
    """
    kind = array.type
    if pa.types.is_null(kind):
        return None
    small = pa.types.is_binary(kind) or pa.types.is_string(kind)
    large = pa.types.is_large_binary(kind) or pa.types.is_large_string(kind)
    if not small and not large:
        # pyarrow uses its values without checks.
        _checked(array, name, full=True)
        if pa.types.is_dictionary(kind):
            return _binary_slices(array.dictionary_decode(), name)
        try:
            array = array.cast(pa.large_binary())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(
                f"column {name} has type {kind}, not binary, large_binary or string; "
                f"nothing was written"
            ) from error
        large = True
    validity, offsets, data = array.buffers()
    try:
        return native.Slices.from_arrow(
            len(array),
            array.offset,
            _address(validity),
            _address(offsets),
            _address(data),
            large=large,
            keep=array,
        )
    except native.NativeError as error:
        if error.status == native.E_TOO_LARGE:
            raise RecordTooLargeError(
                f"row {error.offset} of column {name} has {error.found} bytes, 2 GiB "
                f"or more; nothing was written",
                limit_name="max_message_bytes",
                limit=(1 << 31) - 1,
                size=error.found,
            ) from error
        row = f"at row {error.offset} " if error.offset >= 0 else ""
        raise _not_intact(
            name,
            f"{row}its positions lead out of its buffers ({error.found}, of "
            f"{error.expected})",
        ) from error


def _milliseconds(array: Any, now_ms: int) -> Any:
    """int64 milliseconds of a timestamp column, nulls as `now_ms`; None if all are."""
    kind = array.type
    if pa.types.is_null(kind) or not len(array):
        return None
    _checked(array, "timestamp", full=True)
    if pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        array = _int64_milliseconds(array)
    else:
        raise TypeError(
            f"column timestamp has type {kind}, not a timestamp or int64 milliseconds; "
            f"nothing was written"
        )
    if array.null_count:
        array = array.fill_null(now_ms)
    smallest = pc.min(array).as_py()
    if smallest < -1:
        raise ConfigError(
            f"timestamp {smallest} is below -1; nothing was written",
            name="timestamp",
            value=smallest,
        )
    return _aligned(array)


def _aligned(array: Any) -> Any:
    """An int64 array without nulls whose elements are aligned for C: data from IPC
    begins wherever its message begins."""
    data = array.buffers()[1]
    if (data.address + 8 * array.offset) % 8 == 0:
        return array
    copy = data.slice(8 * array.offset, 8 * len(array)).to_pybytes()
    return pa.Array.from_buffers(pa.int64(), len(array), [None, pa.py_buffer(copy)])


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
    """(counts, names, values) of a headers column; counts None if it has none.

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
    flat = _checked(column, "headers", full=True).flatten()
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
    most = pc.max(lengths).as_py()
    if most > native.HEADERS_MAX:
        raise RecordTooLargeError(
            f"a record has {most} headers, more than {native.HEADERS_MAX}; nothing was "
            f"written",
            limit_name="headers",
            limit=native.HEADERS_MAX,
            size=most,
        )
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
    if count > _ROWS_MAX:
        # It may need no memory for the rows: a column of nulls has no bytes.
        raise RecordTooLargeError(
            f"a record batch has {count} rows, more than {_ROWS_MAX}; nothing was "
            f"written",
            limit_name="rows",
            limit=_ROWS_MAX,
            size=count,
        )
    value = _column_slices(batch, "value")
    key = _column_slices(batch, "key") if "key" in names else None
    timestamps = array = None
    if "timestamp" in names:
        array = _milliseconds(_column(batch, "timestamp"), now_ms)
    if array is not None:
        timestamps = native.address_pointer(
            array.buffers()[1].address + 8 * array.offset, "int64_t *"
        )
    header_count = header_key = header_value = None
    if "headers" in names:
        header_count, header_key, header_value = _header_columns(
            _column(batch, "headers"), magic
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
        keep=array,
    )


def _column(batch: Any, name: str) -> Any:
    """A column of a batch, checked to have as many elements as the batch has rows."""
    column = batch.column(name)
    if len(column) != batch.num_rows:
        raise _not_intact(name, f"it has {len(column)} of {batch.num_rows} rows")
    return _checked(column, name)


def _column_slices(batch: Any, name: str) -> native.Slices | None:
    return _binary_slices(_column(batch, name), name)


def partitions_of(keys: Any, partitions: int) -> Any:
    """Kafka's partition of each key of an array: int32, -1 for a null key.

    Raises:
        TypeError: it is no binary or string array.
    """
    out = pa.allocate_buffer(4 * len(keys))
    slices = _binary_slices(_checked(keys, "key"), "key")
    native.partition_keys(slices, len(keys), partitions, out.address)
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, out])


# The last line of the import: the module must not be used before it.
IS_COMPLETE: Final = True
