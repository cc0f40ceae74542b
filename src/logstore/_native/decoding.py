"""From bytes to columns, and from columns to Python objects and Arrow buffers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

from logstore._native._ls import ffi, lib
from logstore._native._records import DecodedRecords, Record, TopicRecord, connect
from logstore._native.core import (
    CHECK_ALL,
    E_NO_SPACE,
    OFFSET_MAX,
    BatchHeader,
    NativeError,
    allocate,
    native_error,
    raw_header,
)

if TYPE_CHECKING:
    from logstore._native.segments import IndexCheck

# The module `_records` calls these (`pyrecords_functions`).
_CALLED: Final = (
    "ls_offset_index_floor",
    "ls_scan_batches",
    "ls_decode",
    "ls_decode_payload",
    "ls_decode_headers",
    "ls_locate_record",
    "ls_sys_read",
    "ls_append_records",
    "ls_sys_write",
    "ls_time_index_floor",
    "ls_locate_time",
    "ls_check_producer",
    "ls_place_batches",
    "ls_plan_append",
    "ls_sys_sync",
    "ls_sys_hold_lock",
    "ls_sys_returning_writers",
    "ls_has_producer",
    "ls_check_sequences",
    "ls_add_sequences",
    "ls_sys_look",
    "ls_encode_records",
)


def connect_core(**others: int) -> None:
    """Give the module `_records` the addresses of the core's functions.

    Args:
        others: for tests: addresses of functions that take the place of some.
    """
    connect(
        *(
            others.get(name) or int(ffi.cast("uintptr_t", ffi.addressof(lib, name)))
            for name in _CALLED
        )
    )


connect_core()


class RecordArrays:
    """Arrays with a place for each of `capacity` records, which C fills
    (``ls_columns``).

    Invariant: all arrays have `capacity` places, and `raw` points to them. Without
    headers, `header_pos` and `header_count` have the value None.
    """

    __slots__ = (
        "capacity",
        "header_count",
        "header_pos",
        "key_len",
        "key_pos",
        "offset",
        "raw",
        "timestamp",
        "timestamp_type",
        "value_len",
        "value_pos",
        "with_headers",
    )

    offset: Any
    timestamp: Any
    key_pos: Any
    key_len: Any
    value_pos: Any
    value_len: Any
    header_pos: Any
    header_count: Any
    timestamp_type: Any

    def __init__(self, capacity: int, *, with_headers: bool) -> None:
        self.raw = ffi.new("ls_columns *")
        self.with_headers = with_headers
        self._allocate(capacity)

    def _allocate(self, capacity: int) -> None:
        raw = self.raw
        self.capacity = raw.capacity = capacity
        for name, kind in (
            ("offset", "int64_t[]"),
            ("timestamp", "int64_t[]"),
            ("key_pos", "int32_t[]"),
            ("key_len", "int32_t[]"),
            ("value_pos", "int32_t[]"),
            ("value_len", "int32_t[]"),
            ("header_pos", "int32_t[]"),
            ("header_count", "int32_t[]"),
            ("timestamp_type", "int8_t[]"),
        ):
            if name.startswith("header") and not self.with_headers:
                setattr(self, name, None)
                continue
            array = allocate(kind, capacity)
            setattr(self, name, array)
            setattr(raw, name, array)

    def grow(self, needed: int) -> None:
        """Make room for at least `needed` records in place of the present ones."""
        self._allocate(max(needed, self.capacity) * 2)


class Decoder:
    """Decodes batches into arrays, and keeps the state of that walk; reused for many
    calls.

    After `decode` or `decode_payload`: `arrays` hold `count` records, `pos` is the end
    of the walk, `stop` its reason, `error` the damage met (after those records).

    Attributes:
        last_offset: of the batch that was walked over last. The next one must lie after
            it; the caller may set it.
    """

    __slots__ = (
        "_counted",
        "_walk",
        "arrays",
        "count",
        "error",
        "last_offset",
        "pos",
        "stop",
    )

    def __init__(self, capacity: int = 16384, *, with_headers: bool = True) -> None:
        self.arrays = RecordArrays(capacity, with_headers=with_headers)
        self._walk = ffi.new("ls_walk *")
        self._counted = ffi.new("ls_columns *", {"capacity": OFFSET_MAX})
        self.count = 0
        self.pos = 0
        self.stop = 0
        self.error: NativeError | None = None
        self.last_offset = -1

    def decode(
        self,
        data: Any,
        size: int,
        pos: int,
        start_offset: int,
        stop_offset: int,
        checks: int = CHECK_ALL,
    ) -> int:
        """Decode uncompressed batches of data[pos, size); return why it stopped."""
        walk = self._walk
        columns = self.arrays.raw
        walk.pos, walk.last_offset = pos, self.last_offset
        while True:
            columns.count = 0
            status = lib.ls_decode(
                data, size, checks, start_offset, stop_offset, columns, walk
            )
            if status != E_NO_SPACE:
                return self._finish(status, columns.count)
            # The arrays are empty. Batches without records may lie before this one.
            self.arrays.grow(int(walk.error.expected))

    def verify(
        self,
        data: Any,
        size: int,
        pos: int,
        checks: int,
        index_check: IndexCheck,
        *,
        with_columns: bool,
    ) -> int:
        """Decode all records as `decode`, and compare the indexes with their batches.
        Without columns the records are only checked and counted."""
        walk = self._walk
        columns = self.arrays.raw if with_columns else self._counted
        walk.pos, walk.last_offset = pos, self.last_offset
        while True:
            columns.count = 0
            status = lib.ls_verify(data, size, checks, columns, index_check.raw, walk)
            if status != E_NO_SPACE:
                return self._finish(status, columns.count)
            self.arrays.grow(int(walk.error.expected))

    def _finish(self, status: int, count: int) -> int:
        """Take over the results of a call."""
        walk = self._walk
        self.count = count
        self.pos = walk.pos
        self.last_offset = walk.last_offset
        self.error = None if status >= 0 else native_error(status, walk.error)
        self.stop = walk.stop if status >= 0 else 0
        return self.stop

    def decode_payload(
        self,
        header: BatchHeader,
        payload: Any,
        size: int,
        start_offset: int,
        stop_offset: int,
        checks: int = CHECK_ALL,
    ) -> int:
        """Decode the decompressed payload of one batch; return its first offset.

        `error` is set instead of raising, as in `decode`.
        """
        raw = raw_header(header)
        base = ffi.new("int64_t *", -1)
        error = ffi.new("ls_error *")
        columns = self.arrays.raw
        while True:
            columns.count = 0
            status = lib.ls_decode_payload(
                raw,
                payload,
                size,
                checks,
                start_offset,
                stop_offset,
                columns,
                base,
                error,
            )
            if status != E_NO_SPACE:
                break
            self.arrays.grow(int(error.expected))
        self.count = columns.count
        self.error = None if status >= 0 else native_error(status, error)
        return int(base[0])

    def check_producer(
        self, data: Any, size: int, *, max_bytes: int, timestamp_min: int
    ) -> tuple[int, int]:
        """(bytes, records) of the plain batches at the start of data[0, size): see
        ls_check_producer. The columns are used."""
        walk = ffi.new("ls_walk *")
        records = ffi.new("int64_t *")
        status = lib.ls_check_producer(
            data, size, max_bytes, timestamp_min, self.arrays.raw, walk, records
        )
        if status < 0:
            raise NativeError(status)
        return int(walk.pos), int(records[0])

    def unpack(self, column: Any, count: int | None = None) -> list[int]:
        """The first elements of a column (all) as a list."""
        n = self.count if count is None else count
        return ffi.unpack(column, n)  # type: ignore[no-any-return]

    @property
    def has_headers(self) -> bool:
        """Whether any of the records has headers."""
        counts = self.arrays.header_count
        return counts is not None and self.sum_lengths(counts, 0, self.count) > 0

    def sum_lengths(self, column: Any, begin: int, end: int) -> int:
        return int(lib.ls_sum_lengths(column + begin, end - begin))


class Columns(NamedTuple):
    """A run of decoded records: `decoder`'s columns point into `raw` (and `c`).

    Attributes:
        owner: keeps these bytes alive and unchanged, if the reader promises that; None:
            they are valid until the next run is requested.
    """

    decoder: Decoder
    c: Any
    raw: Any
    size: int
    owner: Any = None


@overload
def decoded_records(columns: Columns) -> Iterator[Record]: ...
@overload
def decoded_records(
    columns: Columns, topic: str, partition: int
) -> Iterator[TopicRecord]: ...
def decoded_records(
    columns: Columns, topic: str | None = None, partition: int = 0
) -> Iterator[Any]:
    """The records of decoded columns, which must not change until the iterator
    has ended. Each is made when it is asked for; with a topic, as a `TopicRecord`."""
    decoder, base, owner, size, _ = columns
    d = decoder.arrays

    def address(pointer: Any) -> int:
        return int(ffi.cast("uintptr_t", pointer))

    has_headers = decoder.has_headers
    return DecodedRecords(
        (decoder, owner),
        decoder.count,
        size,
        address(base),
        address(d.offset),
        address(d.timestamp),
        address(d.key_pos),
        address(d.key_len),
        address(d.value_pos),
        address(d.value_len),
        address(d.timestamp_type),
        address(d.header_pos) if has_headers else 0,
        address(d.header_count) if has_headers else 0,
        topic,
        partition,
    )


def decode_headers(
    data: Any, size: int, pos: int, count: int
) -> list[tuple[int, int, int, int]]:
    """(key position, key length, value position, value length or -1) of each header."""
    arrays = [ffi.new("int32_t[]", count) for _ in range(4)]
    error = ffi.new("ls_error *")
    kp, kn, vp, vn = arrays
    status = lib.ls_decode_headers(data, size, pos, count, kp, kn, vp, vn, error)
    if status < 0:
        raise native_error(status, error)
    columns = [ffi.unpack(a, count) for a in arrays] if count else []
    return list(zip(*columns, strict=True))


class ArrowRows:
    """Arrow columns that are being filled with records (``ls_arrow_rows``).

    The caller gives it memory, by address, and keeps that alive.

    Attributes:
        capacity: the most records.
    """

    __slots__ = ("_columns", "_raw", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._raw = ffi.new("ls_arrow_rows *")
        self._raw.capacity = capacity
        self._columns = {"key": self._raw.key, "value": self._raw.value}

    @property
    def count(self) -> int:
        """Records so far; all memory after them is not part of the columns."""
        return int(self._raw.count)

    @property
    def untimed(self) -> int:
        """Records without a timestamp so far."""
        return int(self._raw.untimed)

    def use_int64(self, name: str, address: int) -> None:
        """Memory for the column `offset` or `timestamp`."""
        setattr(self._raw, name, ffi.cast("int64_t *", address))

    def use_types(self, address: int) -> None:
        """Memory for the timestamp types, as int32."""
        self._raw.timestamp_type = ffi.cast("int32_t *", address)

    def use_timed(self, address: int) -> None:
        """Memory for the bits of timestamps that are not null."""
        self._raw.timed = ffi.cast("uint8_t *", address)

    def use_binary(self, name: str, validity: int, offsets: int) -> None:
        """Memory for the nulls and positions of `key` or `value`."""
        column = self._columns[name]
        column.validity = ffi.cast("uint8_t *", validity)
        column.offsets = ffi.cast("int32_t *", offsets)
        column.offsets[0] = 0

    def use_data(self, name: str, address: int, capacity: int) -> None:
        """Memory for the bytes of `key` or `value`; those so far are there."""
        column = self._columns[name]
        column.data_capacity = 0  # an interrupt may come between the two
        column.data = ffi.cast("uint8_t *", address)
        column.data_capacity = capacity

    def use_views(self, name: str, validity: int, views: int) -> None:
        """Memory for the nulls and views of `key` or `value`."""
        column = self._columns[name]
        column.validity = ffi.cast("uint8_t *", validity)
        column.views = ffi.cast("uint8_t *", views)

    def point_into(self, buffer: int) -> None:
        """The views that follow point into the buffer of this number."""
        for column in self._columns.values():
            column.buffer = buffer

    def used(self, name: str) -> int:
        """Bytes of `key` or `value` so far, of a binary column."""
        return int(self._columns[name].offsets[self.count])

    def room(self, name: str) -> int:
        """The most bytes of `key` or `value`, of a binary column."""
        return int(self._columns[name].data_capacity)

    def nulls(self, name: str) -> int:
        return int(self._columns[name].nulls)

    def apart(self, name: str) -> int:
        """How many values of `key` or `value` are not inside of their view."""
        return int(self._columns[name].apart)

    def fill(self, decoder: Decoder, data: Any, first: int, count: int) -> int:
        """Append records of a decoder whose positions are in `data`, while there is
        room; return how many."""
        taken = int(lib.ls_fill_rows(decoder.arrays.raw, first, count, data, self._raw))
        if taken < 0:
            raise NativeError(taken)
        return taken


def copy_bytes(out: int, source: int, size: int) -> None:
    """Copy memory that other objects own, by address."""
    ffi.memmove(ffi.cast("uint8_t *", out), ffi.cast("uint8_t *", source), size)


def address_of(data: Any) -> int:
    """The address that a pointer holds."""
    return int(ffi.cast("uintptr_t", data))


VIEW_BYTES: Final[int] = lib.LS_VIEW_BYTES
