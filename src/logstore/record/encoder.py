"""From rows to batches, according to a topic's settings.

`pack_rows` turns arguments of callers (lists of bytes) into `native.EncodedColumns`;
`arrow` does it with Arrow columns. `Encoder` turns rows into runs of whole batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from logstore import _native as native
from logstore.config import CODECS, TopicConfig
from logstore.errors import (
    ConfigError,
    InvalidRecordError,
    RecordTooLargeError,
    UnsupportedError,
)
from logstore.record import compression
from logstore.record.arguments import as_items

__all__ = ["Encoder", "pack_one", "pack_rows"]

# The most uncompressed bytes of one batch, unless a single record is larger. It is
# small enough that a random read checks and decompresses little more than it needs.
BATCH_BYTES_TARGET: Final = 128 * 1024
# Messages are encoded this many bytes at a time, so that they are still in the cache
# when they are indexed and written.
RUN_BYTES: Final = 256 * 1024
# The memory of encoders that is not in use: an idle log keeps none.
_SPARES_MAX: Final = 4
_buffers: Final = native.BufferPool(RUN_BYTES, _SPARES_MAX)

_INT32_MAX: Final = (1 << 31) - 1
LOG_APPEND_TIME_BIT: Final = 0x08


_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


def check_payload_type(value: object, what: str, index: int | None = None) -> None:
    """Raise `TypeError` unless `value` is allowed as a key or value."""
    if type(value) is bytes or value is None:
        return
    if isinstance(value, _BYTES_LIKE):
        return
    row_text = "" if index is None else f" at index {index}"
    raise TypeError(
        f"{what}{row_text} is {type(value).__name__}, not bytes, bytearray, memoryview "
        f"or None; nothing was written"
    )


def as_bytes(value: Any) -> bytes | None:
    """Bytes of an accepted key or value (a memoryview of any shape is flattened).

    A subclass may have a `__bytes__` that returns something else: it is not asked.
    """
    if value is None or type(value) is bytes:
        return value
    return memoryview(value).tobytes()


def pack_column(items: Sequence[Any], what: str) -> native.Slices:
    """A column of keys or values for C.

    Raises:
        TypeError: an element is neither a bytes-like object nor None.
    """
    packed = native.Slices.of_bytes(items)
    if packed is not None:
        return packed
    for index, item in enumerate(items):
        check_payload_type(item, what, index)
    packed = native.Slices.of_bytes([as_bytes(item) for item in items])
    if packed is None:
        raise RecordTooLargeError(
            f"a {what} has 2 GiB or more; nothing was written",
            limit_name="max_message_bytes",
            limit=(1 << 31) - 1,
        )
    return packed


def check_timestamp(value: Any, index: int | None = None) -> int:
    """A valid timestamp to store: milliseconds >= 0, or -1 for none."""
    row_text = "" if index is None else f" at index {index}"
    if isinstance(value, bool) or not isinstance(value, int):
        try:
            value = value.__index__()
        except AttributeError:
            raise TypeError(
                f"timestamp_ms{row_text} is {type(value).__name__}, not an integer of "
                f"milliseconds; nothing was written"
            ) from None
    if not -1 <= value <= native.OFFSET_MAX:
        raise ConfigError(
            f"timestamp_ms{row_text} is {value}, outside [-1, {native.OFFSET_MAX}]; "
            f"nothing was written",
            name="timestamp_ms",
            value=value,
        )
    return int(value)


def _flatten_headers(
    headers: Sequence[Any],
) -> tuple[list[int], list[bytes], list[Any]]:
    counts: list[int] = []
    names: list[bytes] = []
    values: list[Any] = []
    for index, record_headers in enumerate(headers):
        of = "(str, bytes | None) pairs"
        pairs = (
            () if record_headers is None else as_column(record_headers, "headers", of)
        )
        if len(pairs) > native.HEADERS_MAX:
            raise RecordTooLargeError(
                f"record {index} has {len(pairs)} headers, more than "
                f"{native.HEADERS_MAX}; nothing was written",
                limit_name="headers",
                limit=native.HEADERS_MAX,
                size=len(pairs),
            )
        counts.append(len(pairs))
        for pair in pairs:
            try:
                name, value = pair
            except (TypeError, ValueError):
                raise TypeError(
                    f"a header of record {index} is not a (str, bytes | None) pair; "
                    f"nothing was written"
                ) from None
            if not isinstance(name, str):
                raise TypeError(
                    f"a header name of record {index} is {type(name).__name__}, not "
                    f"str; nothing was written"
                )
            check_payload_type(value, f"a header value of record {index}")
            names.append(_name_bytes(name, index))
            values.append(value)
    return counts, names, values


def _name_bytes(name: str, index: int) -> bytes:
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the header name {name[:100]!r} of record {index} has a lone "
            f"surrogate at {error.start}; nothing was written",
            name="headers",
            value=name,
        ) from None


def check_headers(rows: native.EncodedColumns, magic: int) -> None:
    """Raise `UnsupportedError` for headers in magic 0 or 1."""
    index = rows.first_with_headers
    if index >= 0 and magic < 2:
        raise UnsupportedError(
            f"record {index} has headers, which need message_format=2; this topic has "
            f"{magic}. Nothing was written"
        )


def as_column(items: Any, name: str, of: str) -> Column:
    """The items of any iterable, iterated once, as a tuple: the code of the caller, or
    another thread, could shorten a list after its length was checked."""
    return tuple(items if type(items) is list else as_items(name, items, of=of))


Column: TypeAlias = tuple[Any, ...]


def as_columns(
    values: Any, keys: Any, timestamps_ms: Any, headers: Any
) -> tuple[Column, Column | None, Column | None, Column | None]:
    """The columns of `append_many`, of one length.

    Raises:
        TypeError: an argument is not iterable, or is a single value.
        ConfigError: the columns differ in length.
    """
    value_list = as_column(values, "values", "bytes")
    columns: list[Column | None] = []
    # Not a dict: without memory, Python up to 3.11 may crash when it iterates over one.
    for name, of, items in (
        ("keys", "bytes", keys),
        ("timestamps_ms", "milliseconds", timestamps_ms),
        ("headers", "headers", headers),
    ):
        column = None if items is None else as_column(items, name, of)
        if column is not None and len(column) != len(value_list):
            raise ConfigError(
                f"{name} has {len(column)} elements, values has {len(value_list)}; "
                f"nothing was written",
                name=name,
                value=len(column),
            )
        columns.append(column)
    return value_list, columns[0], columns[1], columns[2]


def pack_rows(
    values: Iterable[Any],
    keys: Iterable[Any] | None,
    timestamps_ms: Iterable[Any] | None,
    headers: Iterable[Any] | None,
    *,
    magic: int,
    now_ms: int = -1,
) -> native.EncodedColumns:
    """Rows for C from lists of Python objects; all checks of them are done here.

    Callers' code may run here (iterables, subclasses, `__index__`), so this is done
    before any lock is taken. Records without a timestamp get `now_ms`, or get a time
    later (`Rows.set_time`).

    Raises:
        TypeError, ConfigError: a value, key, header or timestamp that cannot be stored.
        UnsupportedError: headers in magic 0 or 1.
    """
    value_list, key_list, stamp_list, header_list = as_columns(
        values, keys, timestamps_ms, headers
    )
    count = len(value_list)
    value_column = pack_column(value_list, "value")
    key_column = None if key_list is None else pack_column(key_list, "key")
    timestamps, untimed = None, []
    if stamp_list is not None:
        timestamps = native.times_array(stamp_list)
    if stamp_list is not None and timestamps is None:
        stamps = [
            None if t is None else check_timestamp(t, i)
            for i, t in enumerate(stamp_list)
        ]
        untimed = [i for i, t in enumerate(stamps) if t is None]
        timestamps = native.int64_array([t or 0 for t in stamps])
    header_count = header_key = header_value = None
    if header_list is not None:
        counts, names, header_values = _flatten_headers(header_list)
        if names:
            header_count = native.int32_array(counts)
            header_key = pack_column(names, "header name")
            header_value = pack_column(header_values, "header value")
    rows = native.EncodedColumns(
        count,
        key_column,
        value_column,
        timestamps=timestamps,
        untimed=untimed,
        header_count=header_count,
        header_key=header_key,
        header_value=header_value,
    )
    check_headers(rows, magic)
    rows.set_time(now_ms)
    return rows


def pack_one(
    value: bytes | None, key: bytes | None, timestamp_ms: int | None
) -> native.EncodedColumns:
    """Pack one record without headers, whose parts were checked, like `pack_rows`."""
    return native.EncodedColumns(
        1,
        None if key is None else pack_column((key,), "key"),
        pack_column((value,), "value"),
        timestamps=None
        if timestamp_ms is None
        else native.int64_array((timestamp_ms,)),
    )


def keyless_error(index: int) -> InvalidRecordError:
    """The error for a record without a key in a topic that is compacted."""
    return InvalidRecordError(
        f"record {index} has no key, and its topic is compacted (cleanup_policy): "
        f"compaction would remove it. An empty key, b'', is one; nothing was written",
        index=index,
    )


class Encoder:
    """Encodes rows according to one topic's settings. For one writer; not thread-safe.

    Each run reuses the memory that `encode` yielded before; between two calls it has
    none.
    """

    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.magic = config.message_format
        self.codec = CODECS.index(config.compression_type)
        self.level = compression.level_of(config, self.codec)
        self.log_append_time = config.message_timestamp_type == "LogAppendTime"
        self.is_plain = not self.codec
        self.needs_keys = config.compacts
        self.plain_attributes = LOG_APPEND_TIME_BIT if self.log_append_time else 0
        # While `encode` runs.
        self._buffer: native.Buffer | None = None

    def stored_timestamp(self, timestamp_ms: int | None, now_ms: int) -> int:
        """The timestamp to store, given the caller's."""
        if self.magic == 0:
            return -1
        return now_ms if timestamp_ms is None or self.log_append_time else timestamp_ms

    def rows_of_one(
        self, value: Any, key: Any, timestamp_ms: int
    ) -> native.EncodedColumns:
        """Rows for C of a single record without headers."""
        return native.EncodedColumns(
            1,
            None if key is None else pack_column((key,), "key"),
            pack_column((value,), "value"),
            timestamp_all=timestamp_ms,
        )

    @property
    def buffers_whole_call(self) -> bool:
        """Whether sizes are only known after encoding (compressed batches)."""
        return self.codec != 0

    def measure(self, rows: native.EncodedColumns) -> int:
        """The most bytes that `rows` take.

        Raises:
            InvalidRecordError: a record has no key, and the topic is compacted.
            RecordTooLargeError: a record exceeds ``max_message_bytes``.
        """
        if self.needs_keys and (keyless := rows.first_without_key) >= 0:
            raise keyless_error(keyless)
        limit = _INT32_MAX if self.codec else self.config.max_message_bytes
        try:
            return rows.measure(self.magic, limit)
        except native.NativeError as error:
            if error.status == native.E_HEADER_KEY:
                raise ConfigError(
                    f"a header name of record {error.offset} is not UTF-8; nothing "
                    f"was written",
                    name="headers",
                ) from error
            if error.status != native.E_TOO_LARGE:
                raise
            raise self._too_large(error.offset, error.found) from error

    def check_sizes(self, rows: native.EncodedColumns) -> None:
        """Raise `RecordTooLargeError` if a record cannot be stored. If only encoding
        can decide it, encode all: a large record may fit when it is compressed."""
        self.measure(rows)
        if self.codec:
            try:
                rows.measure(self.magic, self.config.max_message_bytes)
            except native.NativeError:
                mark = rows.mark()
                rows.set_time(0)
                # Use another encoder: this one belongs to the caller that appends.
                for _ in Encoder(self.config).encode(rows, 0, 0, 0):
                    pass
                rows.restore(mark)

    def _too_large(self, index: int, size: int) -> RecordTooLargeError:
        limit = self.config.max_message_bytes
        return RecordTooLargeError(
            f"record {index} takes {size} bytes, more than max_message_bytes={limit}; "
            f"nothing was written",
            limit_name="max_message_bytes",
            limit=limit,
            size=size,
        )

    def encode(
        self,
        rows: native.EncodedColumns,
        base_offset: int,
        now_ms: int,
        leader_epoch: int,
    ) -> Iterator[tuple[Any, int]]:
        """Runs of whole batches in order, until all rows are done: (pointer, size).
        The memory of a pointer is valid until the next one."""
        if self.log_append_time:
            rows.stamp(now_ms)
        try:
            if self.magic == 2:
                yield from self._encode_batches(rows, base_offset, now_ms, leader_epoch)
            elif self.codec:
                yield from self._encode_wrappers(rows, base_offset, now_ms)
            else:
                yield from self._encode_messages(rows, base_offset)
        finally:
            self._buffer = None

    def _room(self, capacity: int) -> native.Buffer:
        buffer = self._buffer
        if buffer is None or buffer.capacity < capacity:
            is_usual = capacity <= RUN_BYTES
            buffer = _buffers.take() if is_usual else native.Buffer(capacity)
            self._buffer = buffer
        return buffer

    def _encode_messages(
        self, rows: native.EncodedColumns, base_offset: int
    ) -> Iterator[tuple[Any, int]]:
        attributes = self.plain_attributes
        capacity = RUN_BYTES
        while rows.index < rows.count:
            buffer = self._room(capacity)
            try:
                size = rows.encode_messages(
                    self.magic,
                    attributes,
                    base_offset + rows.index,
                    buffer.c,
                    buffer.capacity,
                )
            except native.NativeError as error:
                capacity = _grown(error, buffer.capacity)
                continue
            yield buffer.c, size

    def _encode_batches(
        self,
        rows: native.EncodedColumns,
        base_offset: int,
        now_ms: int,
        leader_epoch: int,
    ) -> Iterator[tuple[Any, int]]:
        header = native.BATCH_HEADER_BYTES
        limit = self.config.max_message_bytes
        target = min(BATCH_BYTES_TARGET, max(limit, header + 16))
        capacity = target
        while rows.index < rows.count:
            first = rows.index
            buffer = self._room(max(capacity, 2 * BATCH_BYTES_TARGET))
            try:
                area = rows.encode_area(
                    rows.count if capacity == target else 1,
                    buffer.c + header,
                    capacity - header,
                )
            except native.NativeError as error:
                capacity = _grown(error, capacity)
                continue
            capacity = target
            _, count, base_timestamp, max_timestamp = rows.written
            if self.log_append_time:
                max_timestamp = now_ms
            attributes = self.plain_attributes
            packed = b""
            if self.codec:
                packed = self._compress(buffer.view[header : header + area])
                if header + len(packed) > limit and header + area <= limit:
                    packed = b""  # incompressible: it fits only uncompressed
                elif header + len(packed) > limit:
                    raise self._too_large(first, header + len(packed))
            if packed:
                buffer = self._room(header + len(packed))
                buffer.view[header : header + len(packed)] = packed
                area = len(packed)
                attributes |= self.codec
            size = native.seal_batch(
                buffer.c,
                buffer.capacity,
                base_offset=base_offset + first,
                record_count=count,
                base_timestamp=base_timestamp,
                max_timestamp=max_timestamp,
                attributes=attributes,
                payload_size=area,
                leader_epoch=leader_epoch,
            )
            yield buffer.c, size

    def _encode_wrappers(
        self, rows: native.EncodedColumns, base_offset: int, now_ms: int
    ) -> Iterator[tuple[Any, int]]:
        limit = self.config.max_message_bytes
        target = min(BATCH_BYTES_TARGET, max(limit, 64))
        capacity = target
        while rows.index < rows.count:
            first = rows.index
            buffer = self._room(capacity)
            mark = rows.mark()
            # Inner offsets: absolute in magic 0, counted from 0 in magic 1.
            inner_base = base_offset + first if self.magic == 0 else 0
            try:
                size = rows.encode_messages(
                    self.magic, 0, inner_base, buffer.c, capacity
                )
            except native.NativeError as error:
                capacity = _grown(error, capacity)
                continue
            capacity = target
            _, count, _, max_timestamp = rows.written
            if self.log_append_time:
                max_timestamp = now_ms
            packed = self._compress(buffer.view[:size])
            last_offset = base_offset + first + count - 1
            try:
                wrapper = wrap(
                    packed, self.magic, self._wrapper_bits(), last_offset,
                    max_timestamp, limit,
                )  # fmt: skip
            except RecordTooLargeError as error:
                # Incompressible: each record fits uncompressed, or not at all.
                rows.restore(mark)
                yield from self._encode_plain(rows, count, base_offset, error)
                continue
            yield native.pointer(wrapper), len(wrapper)

    def _wrapper_bits(self) -> int:
        return self.codec | self.plain_attributes

    def _encode_plain(
        self,
        rows: native.EncodedColumns,
        count: int,
        base_offset: int,
        too_large: RecordTooLargeError,
    ) -> Iterator[tuple[Any, int]]:
        attributes = self.plain_attributes
        for _ in range(count):
            buffer = self._room(self.config.max_message_bytes)
            first = rows.index
            try:
                size = rows.encode_messages(
                    self.magic,
                    attributes,
                    base_offset + first,
                    buffer.c,
                    self.config.max_message_bytes,
                    count_max=1,
                )
            except native.NativeError as error:
                raise self._too_large(first, too_large.size or 0) from error
            yield buffer.c, size

    def _compress(self, data: memoryview) -> bytes:
        return compression.compress(self.codec, data, self.magic, self.level)


def wrap(
    payload: bytes,
    magic: int,
    attributes: int,
    last_offset: int,
    timestamp: int,
    limit: int,
) -> bytes:
    """A wrapper message of magic 0 or 1 around a compressed payload."""
    rows = native.EncodedColumns(
        1, None, native.Slices.packed(payload, [len(payload)]), timestamp_all=timestamp
    )
    try:
        size = rows.measure(magic, limit)
    except native.NativeError as error:
        raise RecordTooLargeError(
            f"a compressed batch takes {error.found} bytes, more than "
            f"max_message_bytes={limit}; nothing was written",
            limit_name="max_message_bytes",
            limit=limit,
            size=error.found,
        ) from error
    out = bytearray(size)
    rows.encode_messages(magic, attributes, last_offset, native.pointer(out), size)
    return bytes(out)


def _grown(error: native.NativeError, capacity: int) -> int:
    """A larger capacity after E_NO_SPACE; raises any other error."""
    if error.status != native.E_NO_SPACE or capacity >= _INT32_MAX:
        raise error
    return min(capacity * 4, _INT32_MAX)
