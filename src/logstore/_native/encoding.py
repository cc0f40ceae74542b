"""From columns of records to bytes of batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from logstore._native import _records
from logstore._native._ls import ffi, lib
from logstore._native.core import (
    OFFSET_MAX,
    BatchHeader,
    NativeError,
    allocate,
    native_error,
    pointer,
    raw_header,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Slices:
    """n byte strings for C: data, lengths (-1 null) and, unless packed, positions."""

    __slots__ = ("data", "keep", "length", "pos")

    def __init__(self, data: Any, length: Any, pos: Any = None, keep: Any = None):
        self.data = data
        self.length = length
        self.pos = pos
        self.keep = keep

    @classmethod
    def packed(cls, data: ReadableBuffer, lengths: Sequence[int]) -> Slices:
        """Strings that follow one another in `data`."""
        return cls(pointer(data), ffi.new("int32_t[]", lengths), None, data)

    @classmethod
    def of_bytes(cls, items: Sequence[Any]) -> Slices | None:
        """A list or tuple of bytes and None, which are not copied; None if an item is
        neither."""
        pointed = _records.point(items)  # type: ignore[arg-type]
        if pointed is None:
            return None
        _, address, positions, lengths = pointed
        return cls(
            ffi.cast("uint8_t *", address),
            ffi.from_buffer("int32_t[]", lengths),
            ffi.from_buffer("int64_t[]", positions),
            pointed,
        )

    @classmethod
    def from_arrow(
        cls,
        count: int,
        first: int,
        validity: tuple[int, int],
        offsets: tuple[int, int],
        data: tuple[int, int],
        *,
        large: bool,
        keep: Any,
    ) -> Slices:
        """Elements first .. first + count - 1 of an Arrow binary column, without a
        copy; the arguments are (address, bytes) of its buffers, (0, 0) for none.

        Raises:
            NativeError: E_LENGTH if they point outside a buffer, E_TOO_LARGE for an
                element of 2 GiB or more.
        """
        lengths = allocate("int32_t[]", max(count, 1))
        positions = allocate("int64_t[]", max(count, 1))
        column = ffi.new("ls_arrow_binary *")
        column.validity = ffi.cast("uint8_t *", validity[0])
        column.validity_bytes = validity[1]
        column.offsets = ffi.cast("uint8_t *", offsets[0])
        column.offsets_bytes = offsets[1]
        column.data_bytes = data[1]
        column.large = int(large)
        error = ffi.new("ls_error *")
        status = lib.ls_slices_from_arrow(
            column, first, count, positions, lengths, error
        )
        if status < 0:
            raise native_error(status, error)
        return cls(ffi.cast("uint8_t *", data[0]), lengths, positions, keep)

    def fill(self, raw: Any) -> None:
        raw.data = self.data
        raw.len = self.length
        raw.pos = ffi.NULL if self.pos is None else self.pos


_START: Final = ffi.new("ls_cursor *")  # where every encoding begins


class EncodedColumns:
    """Records to be written, as columns in C's form, and the progress of the encoding.

    Attributes:
        count: number of all records.
        index: the next record to encode.
    """

    __slots__ = ("_cursor", "_keep", "_raw", "_untimed", "_written", "count")

    def __init__(
        self,
        count: int,
        key: Slices | None,
        value: Slices | None,
        *,
        timestamps: Any = None,
        timestamp_all: int = -1,
        untimed: Sequence[int] = (),
        header_count: Any = None,
        header_key: Slices | None = None,
        header_value: Slices | None = None,
        keep: Any = None,
    ) -> None:
        self.count = count
        raw = self._raw = ffi.new("ls_records *")
        raw.count = count
        if key is not None:
            key.fill(raw.key)
        if value is not None:
            value.fill(raw.value)
        if timestamps is not None:
            raw.timestamp = timestamps
        raw.timestamp_all = timestamp_all
        if header_count is not None:
            raw.header_count = header_count
            if header_key is not None:
                header_key.fill(raw.header_key)
            if header_value is not None:
                header_value.fill(raw.header_value)
        self._untimed = untimed
        self._keep = (
            key, value, timestamps, header_count, header_key, header_value, keep,
        )  # fmt: skip
        self._cursor = ffi.new("ls_cursor *")
        self._written = ffi.new("ls_written *")

    @property
    def address(self) -> int:
        """Address of the columns, for `PreparedAppend.append_rows`."""
        return int(ffi.cast("uintptr_t", self._raw))

    @property
    def index(self) -> int:
        return int(self._cursor.index)

    @property
    def first_with_headers(self) -> int:
        """The first record that has headers; -1 if none has."""
        counts = self._keep[3]
        if counts is None:
            return -1
        return next((i for i in range(self.count) if counts[i]), -1)

    @property
    def first_without_key(self) -> int:
        """The first record that has no key; -1 if all have one."""
        lengths = self._raw.key.len
        if not lengths:
            return 0 if self.count else -1
        return int(lib.ls_first_null(lengths, self.count))

    def set_time(self, now_ms: int) -> None:
        """Set the time of the records without a timestamp."""
        self._raw.timestamp_all = now_ms
        for index in self._untimed:
            self._raw.timestamp[index] = now_ms

    def stamp(self, timestamp: int) -> None:
        """Set the same timestamp for all records."""
        self._raw.timestamp = ffi.NULL
        self._raw.timestamp_all = timestamp

    def rewind(self) -> None:
        """Encode again from the first record."""
        self._cursor[0] = _START[0]

    def mark(self) -> Any:
        """The position of the encoding, for `restore`."""
        mark = ffi.new("ls_cursor *")
        mark[0] = self._cursor[0]
        return mark

    def restore(self, mark: Any) -> None:
        """Go back to a mark and encode again from there."""
        self._cursor[0] = mark[0]

    @property
    def written(self) -> tuple[int, int, int, int]:
        """(bytes, records, base timestamp, max timestamp) of the last call."""
        w = self._written
        return w.bytes, w.count, w.base_timestamp, w.max_timestamp

    def measure(self, magic: int, max_bytes: int) -> int:
        """Bytes of all records, uncompressed; `NativeError` for one above max_bytes."""
        total = ffi.new("int64_t *")
        error = ffi.new("ls_error *")
        status = lib.ls_measure(self._raw, magic, max_bytes, total, error)
        if status < 0:
            raise native_error(status, error)
        return int(total[0])

    def encode_messages(
        self,
        magic: int,
        attributes: int,
        base_offset: int,
        out: Any,
        capacity: int,
        count_max: int = OFFSET_MAX,
    ) -> int:
        """Write messages of magic 0 or 1 while they fit; return the bytes."""
        status = lib.ls_encode_messages(
            self._raw,
            self._cursor,
            count_max,
            magic,
            attributes,
            base_offset,
            out,
            capacity,
            self._written,
        )
        if status < 0:
            raise NativeError(status)
        return int(self._written.bytes)

    def encode_area(self, count_max: int, out: Any, capacity: int) -> int:
        """Write a magic 2 record area while it fits; return the bytes."""
        status = lib.ls_encode_area(
            self._raw, self._cursor, count_max, out, capacity, self._written
        )
        if status < 0:
            raise NativeError(status)
        return int(self._written.bytes)


def seal_batch(
    out: Any,
    capacity: int,
    *,
    base_offset: int,
    record_count: int,
    base_timestamp: int,
    max_timestamp: int,
    attributes: int,
    payload_size: int,
    leader_epoch: int,
) -> int:
    """Write the header in front of a magic 2 payload; return the size of the batch."""
    raw = ffi.new("ls_batch *")
    raw.magic = 2
    raw.base_offset = base_offset
    raw.last_offset = base_offset + record_count - 1
    raw.base_timestamp = base_timestamp
    raw.max_timestamp = max_timestamp
    raw.producer_id = -1
    raw.producer_epoch = -1
    raw.base_sequence = -1
    raw.leader_epoch = leader_epoch
    raw.record_count = record_count
    raw.attributes = attributes
    raw.payload_pos = BATCH_HEADER_BYTES
    raw.payload_size = payload_size
    status = lib.ls_seal_batch(out, capacity, raw)
    if status < 0:
        raise NativeError(status)
    return int(raw.size)


BATCH_HEADER_BYTES: Final = 61


def assign_offset(
    data: Any, header: BatchHeader, offset: int, leader_epoch: int
) -> None:
    """Set the offset of a batch in place (the last offset, for a wrapper)."""
    status = lib.ls_assign_offset(data, raw_header(header), offset, leader_epoch)
    if status < 0:
        raise NativeError(status)


def has_producer(data: Any, size: int) -> bool:
    """Whether one of some whole batches, which were checked, is of a producer that
    numbers its records."""
    return bool(lib.ls_has_producer(data, size))


def place_batches(
    data: Any, size: int, offset: int, leader_epoch: int, timestamp: int
) -> None:
    """Set consecutive offsets in the plain batches of data[0, size), in place, and the
    time of append, unless that is negative."""
    status = lib.ls_place_batches(data, size, offset, leader_epoch, timestamp)
    if status < 0:
        raise NativeError(status)


def restamp(data: Any, header: BatchHeader, timestamp: int) -> None:
    """Set the time of append in all records of a batch, in place."""
    status = lib.ls_restamp(data, raw_header(header), timestamp)
    if status < 0:
        raise NativeError(status)


def partition_keys(keys: Slices | None, count: int, partitions: int, out: int) -> None:
    """Kafka's partition of each key; -1 for a null key.

    Args:
        keys: None if all keys are null.
        out: address of `count` int32.
    """
    raw = ffi.new("ls_slices *")
    if keys is not None:
        keys.fill(raw)
    lib.ls_partition_keys(raw, count, partitions, ffi.cast("int32_t *", out))
