"""Records to be written, from Arrow columns, without a Python object per record.

pyarrow is optional: this module imports it, and `extras` imports this module at the
first use. pyarrow does not check data from IPC or the C interface: this module checks
the columns of a caller before it follows any of their values.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from logstore import _native as native
from logstore.errors import ConfigError, RecordTooLargeError, UnsupportedError

__all__ = ["exported", "large_binary_of", "partitions_of", "rows_of", "tables_of"]

# Columns of other tables of records; they have no effect on the written records.
_IGNORED: Final = frozenset({"topic", "partition", "offset", "timestampType"})
_ROWS_MAX: Final = (1 << 31) - 1
# Types of columns whose buffers C reads without conversion.
_SMALL: Final = frozenset({pa.binary().id, pa.string().id})
_LARGE: Final = frozenset({pa.large_binary().id, pa.large_string().id})
_INT64: Final = pa.int64().id


def tables_of(data: Any) -> Iterator[Any]:
    """Record batches of a batch, table or reader (or any object with Arrow's C stream).

    Raises:
        TypeError: it is another object.
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


@functools.lru_cache(maxsize=64)
def _check_names(names: tuple[str, ...]) -> None:
    """Raise `ConfigError` unless these are the columns of a table of records."""
    allowed = {"key", "value", "timestamp", "headers"} | _IGNORED
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


@functools.lru_cache(maxsize=64)
def _places(names: tuple[str, ...]) -> tuple[int, int, int] | None:
    """Where value, key and timestamp are among the columns of a batch, -1 if it has no
    such column; None if it has others, or these are not the columns of records."""
    try:
        _check_names(names)
    except ConfigError:
        return None
    if "headers" in names:
        return None
    value, key, timestamp = (
        names.index(name) if name in names else -1
        for name in ("value", "key", "timestamp")
    )
    return value, key, timestamp


def exported(data: Any) -> tuple[Any, ...] | None:
    """A record batch as `PreparedAppend.append_arrow` takes it, validated; None if it
    is not such a batch, or not valid: `rows_of` raises the reason."""
    if type(data) is not pa.RecordBatch:
        return None
    places = _places(tuple(data.schema.names))
    if places is None:
        return None
    try:
        data.validate()
    except pa.ArrowException:
        return None
    value, key, timestamp = places
    value_bytes = _data_bytes(data.column(value))
    key_bytes = 0 if key < 0 else _data_bytes(data.column(key))
    capsules = data.__arrow_c_array__()
    return *capsules, value, value_bytes, key, key_bytes, timestamp


def _data_bytes(column: Any) -> int:
    """The size of the data of a binary column; 0 for other kinds of columns."""
    buffers = column.buffers()
    return 0 if len(buffers) != 3 or buffers[2] is None else int(buffers[2].size)


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
    large = kind.id in _LARGE
    if not large and kind.id not in _SMALL:
        if pa.types.is_null(kind):
            return None
        # pyarrow uses its values without checks.
        array = large_binary_of(_checked(array, name, full=True), name)
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


def large_binary_of(array: Any, name: str) -> Any:
    """A binary or string column of any type as large_binary, also one with a dictionary
    of such values.

    Raises:
        TypeError: it is another kind of column.
    """
    kind = array.type
    try:
        if not pa.types.is_dictionary(kind):
            return array.cast(pa.large_binary())
        # Not `dictionary_decode`: pyarrow cannot take elements of views.
        return array.dictionary.cast(pa.large_binary()).take(array.indices)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TypeError(
            f"column {name} has type {kind}, not binary, large_binary or string; "
            f"nothing was written"
        ) from error


def _milliseconds(array: Any, now_ms: int) -> Any:
    """64 bit milliseconds of a timestamp column, nulls as `now_ms`; None if all are."""
    kind = array.type
    if pa.types.is_null(kind) or not len(array):
        return None
    _checked(array, "timestamp", full=True)
    if pa.types.is_timestamp(kind) or pa.types.is_integer(kind):
        if array.null_count or not _is_milliseconds(kind):
            array = _int64_milliseconds(array)
    else:
        raise TypeError(
            f"column timestamp has type {kind}, not a timestamp or int64 milliseconds; "
            f"nothing was written"
        )
    if array.null_count:
        array = array.fill_null(now_ms)
    array = _aligned(array)
    smallest = native.smallest(_int64_pointer(array), len(array))
    if smallest < -1:
        raise ConfigError(
            f"timestamp {smallest} is below -1; nothing was written",
            name="timestamp",
            value=smallest,
        )
    return array


def _is_milliseconds(kind: Any) -> bool:
    """Whether the values of a type are stored unchanged."""
    return bool(
        kind.id == _INT64 or (pa.types.is_timestamp(kind) and kind.unit == "ms")
    )


def _int64_pointer(array: Any) -> Any:
    """The first element of an aligned array of 64 bit integers."""
    return native.address_pointer(
        array.buffers()[1].address + 8 * array.offset, "int64_t *"
    )


def _aligned(array: Any) -> Any:
    """An array of 64 bit integers without nulls whose elements are aligned for C: data
    from IPC begins wherever its message begins."""
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
    """(counts, names, values) of a headers column; counts None without headers.

    Raises:
        TypeError: it is not a list of struct(key, value).
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


def rows_of(batch: Any, *, now_ms: int, magic: int) -> native.EncodedColumns:
    """Rows for C from one record batch; the columns are not copied.

    Raises:
        ConfigError, TypeError, UnsupportedError: a column that cannot be written.
    """
    names = tuple(batch.schema.names)
    _check_names(names)
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
        timestamps = _int64_pointer(array)
    header_count = header_key = header_value = None
    if "headers" in names:
        header_count, header_key, header_value = _header_columns(
            _column(batch, "headers"), magic
        )
    return native.EncodedColumns(
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
        TypeError: it is not a binary or string array.
    """
    out = pa.allocate_buffer(4 * len(keys))
    slices = _binary_slices(_checked(keys, "key"), "key")
    native.partition_keys(slices, len(keys), partitions, out.address)
    return pa.Array.from_buffers(pa.int32(), len(keys), [None, out])


# The last line of the import: the module must not be used before it.
IS_COMPLETE: Final = True
