"""The only module that calls the C core: buffers, numbers and structs, nothing else.

Every call releases the GIL. A negative status becomes `NativeError` (or is kept in
`Decoder.error` where records decoded before it must still be delivered); callers, who
know path and partition, turn it into the error that users see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore._native import _records
from logstore._native._ls import ffi, lib

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

OFFSET_MAX: Final = (1 << 63) - 1

CHECK_CRC: Final[int] = lib.LS_CHECK_CRC
CHECK_ORDER: Final[int] = lib.LS_CHECK_ORDER
CHECK_ALL: Final[int] = lib.LS_CHECK_CRC | lib.LS_CHECK_ORDER
CHECK_GAPLESS: Final[int] = lib.LS_CHECK_GAPLESS
OFFSET_UNKNOWN: Final[int] = lib.LS_OFFSET_UNKNOWN

STOP_END: Final[int] = lib.LS_STOP_END
STOP_PARTIAL: Final[int] = lib.LS_STOP_PARTIAL
STOP_ZEROS: Final[int] = lib.LS_STOP_ZEROS
STOP_FULL: Final[int] = lib.LS_STOP_FULL
STOP_COMPRESSED: Final[int] = lib.LS_STOP_COMPRESSED
STOP_OFFSET: Final[int] = lib.LS_STOP_OFFSET
STOP_ROLL_SIZE: Final[int] = lib.LS_STOP_ROLL_SIZE
STOP_ROLL_TIME: Final[int] = lib.LS_STOP_ROLL_TIME
STOP_ROLL_INDEX: Final[int] = lib.LS_STOP_ROLL_INDEX
STOP_ROLL_OFFSET: Final[int] = lib.LS_STOP_ROLL_OFFSET

E_NO_SPACE: Final[int] = lib.LS_E_NO_SPACE
E_CRC: Final[int] = lib.LS_E_CRC
E_OFFSET: Final[int] = lib.LS_E_OFFSET
E_MAGIC: Final[int] = lib.LS_E_MAGIC
E_CODEC: Final[int] = lib.LS_E_CODEC
E_TOO_LARGE: Final[int] = lib.LS_E_TOO_LARGE
E_HEADER_KEY: Final[int] = lib.LS_E_HEADER_KEY

_REASONS: Final[dict[int, str]] = {
    lib.LS_E_ARGUMENT: "bad argument to the native core",
    lib.LS_E_NO_SPACE: "a buffer is too small",
    lib.LS_E_CRC: "checksum differs",
    lib.LS_E_LENGTH: "a length is impossible",
    lib.LS_E_MAGIC: "magic is not 0, 1 or 2",
    lib.LS_E_CODEC: "codec is not known for this magic",
    lib.LS_E_RECORD: "a record contradicts its own length",
    lib.LS_E_VARINT: "a varint is longer than its type",
    lib.LS_E_OFFSET: "offsets do not increase or lie outside their batch",
    lib.LS_E_COUNT: "a record or header count cannot be true",
    lib.LS_E_NESTED: "a wrapper holds a compressed message or one of another magic",
    lib.LS_E_EMPTY: "a wrapper holds no record",
    lib.LS_E_TOO_LARGE: "a record is larger than the limit",
    lib.LS_E_HEADER_KEY: "a header name is null or not UTF-8",
}


class NativeError(Exception):
    """A negative status of the C core with its facts (see ``ls_error``)."""

    def __init__(
        self,
        status: int,
        pos: int = 0,
        offset: int = -1,
        expected: int = 0,
        found: int = 0,
    ) -> None:
        self.status = status
        self.pos = pos
        self.offset = offset
        self.expected = expected
        self.found = found
        super().__init__(self.reason)

    @property
    def reason(self) -> str:
        text = _REASONS.get(self.status, f"status {self.status}")
        if self.status == E_CRC:
            return f"{text}: stored {self.expected:#010x}, computed {self.found:#010x}"
        if self.expected or self.found:
            return f"{text} (expected {self.expected}, found {self.found})"
        return text

    @property
    def is_unsupported(self) -> bool:
        return self.status in (E_MAGIC, E_CODEC)


def statuses() -> dict[int, str]:
    """Every status of the C core and its words."""
    return dict(_REASONS)


def _native_error(status: int, error: Any) -> NativeError:
    return NativeError(status, error.pos, error.offset, error.expected, error.found)


class BatchHeader(NamedTuple):
    """The header of one batch, as ``ls_batch`` has it."""

    pos: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    leader_epoch: int
    record_count: int
    crc: int
    attributes: int
    payload_pos: int
    payload_size: int
    magic: int
    codec: int
    timestamp_type: int

    @property
    def is_control(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x20)

    @property
    def is_transactional(self) -> bool:
        return self.magic == 2 and bool(self.attributes & 0x10)


_HEADER_FIELDS = tuple(BatchHeader._fields)


def _header(raw: Any) -> BatchHeader:
    return BatchHeader(
        raw.pos,
        raw.size,
        raw.base_offset,
        raw.last_offset,
        raw.base_timestamp,
        raw.max_timestamp,
        raw.producer_id,
        raw.producer_epoch,
        raw.base_sequence,
        raw.leader_epoch,
        raw.record_count,
        raw.crc,
        raw.attributes,
        raw.payload_pos,
        raw.payload_size,
        raw.magic,
        raw.codec,
        raw.timestamp_type,
    )


def _raw_header(header: BatchHeader) -> Any:
    raw = ffi.new("ls_batch *")
    for name, value in zip(_HEADER_FIELDS, header, strict=True):
        setattr(raw, name, value)
    return raw


_allocate = ffi.new_allocator(should_clear_after_alloc=False)


class Buffer:
    """Memory that C writes to and files are read into.

    Attributes:
        c: pointer to the first byte.
        raw: the same as a buffer; slicing it gives bytes (a copy).
        view: the same as a writable memoryview.
    """

    __slots__ = ("c", "capacity", "raw", "view")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.c = _allocate("uint8_t[]", capacity)
        self.raw = ffi.buffer(self.c, capacity)
        self.view = memoryview(self.raw)


def pointer(data: ReadableBuffer) -> Any:
    """Pointer to the bytes of any buffer; keep both alive while it is used."""
    return ffi.from_buffer("uint8_t[]", data)


def address_pointer(address: int, kind: str = "uint8_t *") -> Any:
    """Pointer to memory that somebody else owns (an Arrow buffer)."""
    return ffi.cast(kind, address)


# ---------------------------------------------------------------- small functions


def crc32(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32 (IEEE) of a buffer, as ``zlib.crc32``."""
    c = pointer(data)
    return int(lib.ls_crc32(crc, c, len(c)))


def crc32c(data: ReadableBuffer, crc: int = 0) -> int:
    """CRC-32C (Castagnoli) of a buffer."""
    c = pointer(data)
    return int(lib.ls_crc32c(crc, c, len(c)))


def crc_hardware() -> tuple[bool, bool]:
    """Whether CRC-32 and CRC-32C run on hardware instructions here."""
    bits = lib.ls_crc_hardware()
    return bool(bits & 1), bool(bits & 2)


def murmur2(key: ReadableBuffer) -> int:
    """Kafka's murmur2 hash of a key, signed 32 bit."""
    c = pointer(key)
    return int(lib.ls_murmur2(c, len(c)))


def reserve(fd: int, pos: int, size: int) -> int:
    """fallocate with KEEP_SIZE; 0 or a negative errno."""
    return int(lib.ls_sys_reserve(fd, pos, size))


# ---------------------------------------------------------------- batches


class Scan(NamedTuple):
    """What one walk over batch headers found."""

    headers: list[BatchHeader]
    pos: int  # where the walk ended: the first byte not walked over
    last_offset: int
    stop: int
    error: NativeError | None


def scan_batches(
    data: Any,
    size: int,
    *,
    pos: int = 0,
    last_offset: int = -1,
    checks: int = CHECK_ALL,
    count_max: int = 1024,
) -> Scan:
    """Headers of up to `count_max` batches of data[pos, size).

    `data` is a pointer or a `Buffer`'s ``c``. Never raises for bad bytes: see `error`.
    """
    out = ffi.new("ls_batch[]", count_max)
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    status = lib.ls_scan_batches(data, size, checks, out, count_max, walk)
    error = _native_error(status, walk.error) if status < 0 else None
    headers = [_header(out[i]) for i in range(walk.count)]
    return Scan(headers, walk.pos, walk.last_offset, walk.stop, error)


def first_header(data: Any, size: int, *, pos: int = 0, checks: int) -> Scan:
    """The header of the batch at `pos` alone."""
    return scan_batches(data, size, pos=pos, checks=checks, count_max=1)


def seek_batch(
    data: Any, size: int, *, pos: int, last_offset: int, checks: int, offset: int
) -> tuple[int, Scan]:
    """Walk to the first batch whose last offset is at or after `offset`.

    Returns (its position or -1, the walk without headers).
    """
    out = _allocate("ls_batch[]", _SEEK_BATCHES)
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    while True:
        status = lib.ls_scan_batches(data, size, checks, out, _SEEK_BATCHES, walk)
        count = walk.count
        if count and out[count - 1].last_offset >= offset:
            low, high = 0, count - 1
            while low < high:
                middle = (low + high) // 2
                if out[middle].last_offset < offset:
                    low = middle + 1
                else:
                    high = middle
            found = int(out[low].pos)
            return found, Scan([], found, walk.last_offset, STOP_OFFSET, None)
        error = _native_error(status, walk.error) if status < 0 else None
        if error is not None or walk.stop != STOP_FULL:
            return -1, Scan([], walk.pos, walk.last_offset, walk.stop, error)


_SEEK_BATCHES: Final = 256


def walk_batches(
    data: Any, size: int, *, pos: int, last_offset: int, checks: int
) -> tuple[int, int, int, int, NativeError | None]:
    """Walk to the end without keeping headers.

    Returns (position, last offset, batches, stop, error).
    """
    walk = ffi.new("ls_walk *", {"pos": pos, "last_offset": last_offset})
    out = ffi.new("ls_batch[]", 64)
    batches = 0
    while True:
        status = lib.ls_scan_batches(data, size, checks, out, 64, walk)
        batches += walk.count
        if status < 0:
            error = _native_error(status, walk.error)
            return walk.pos, walk.last_offset, batches, walk.stop, error
        if walk.stop != STOP_FULL:
            return walk.pos, walk.last_offset, batches, walk.stop, None


# ---------------------------------------------------------------- decoding


class Decoder:
    """Columns of decoded records and the state of a walk, used again and again.

    After `decode` or `decode_payload`: `count` records stand in the columns, `pos` is
    where the walk ended, `stop` why, `error` the damage met (after those records).
    """

    __slots__ = (
        "_columns",
        "_keep",
        "_walk",
        "capacity",
        "count",
        "error",
        "header_count",
        "header_pos",
        "key_len",
        "key_pos",
        "offset",
        "pos",
        "stop",
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

    def __init__(self, capacity: int = 16384, *, with_headers: bool = True) -> None:
        self.with_headers = with_headers
        self._walk = ffi.new("ls_walk *")
        self._columns = ffi.new("ls_columns *")
        self.count = 0
        self.pos = 0
        self.stop = 0
        self.error: NativeError | None = None
        self._resize(capacity)
        self.begin()

    def _resize(self, capacity: int) -> None:
        self.capacity = capacity
        columns = self._columns
        columns.capacity = capacity
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
            array = _allocate(kind, capacity)
            setattr(self, name, array)
            setattr(columns, name, array)

    @property
    def last_offset(self) -> int:
        """Last offset of the batch walked over last."""
        return int(self._walk.last_offset)

    def begin(self, last_offset: int = -1) -> None:
        """Forget the walk so far; the next batch must lie after `last_offset`."""
        self._walk.last_offset = last_offset

    def decode(
        self,
        data: Any,
        size: int,
        pos: int,
        start_offset: int,
        stop_offset: int,
        checks: int = CHECK_ALL,
    ) -> int:
        """Decode uncompressed batches of data[pos, size); return the stop."""
        walk = self._walk
        columns = self._columns
        while True:
            walk.pos = pos
            columns.count = 0
            status = lib.ls_decode(
                data, size, checks, start_offset, stop_offset, columns, walk
            )
            if status != E_NO_SPACE:
                break
            self._resize(max(int(walk.error.expected), self.capacity) * 2)
        self.count = columns.count
        self.pos = walk.pos
        self.error = None if status >= 0 else _native_error(status, walk.error)
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
        raw = _raw_header(header)
        base = ffi.new("int64_t *", -1)
        error = ffi.new("ls_error *")
        columns = self._columns
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
            self._resize(max(int(error.expected), self.capacity) * 2)
        self.count = columns.count
        self.error = None if status >= 0 else _native_error(status, error)
        return int(base[0])

    def unpack(self, column: Any, count: int | None = None) -> list[int]:
        """The first elements of a column (all) as a list."""
        n = self.count if count is None else count
        return ffi.unpack(column, n)  # type: ignore[no-any-return]

    def sum_lengths(self, column: Any, begin: int, end: int) -> int:
        return int(lib.ls_sum_lengths(column + begin, end - begin))


def make_tuples(
    kind: type, decoder: Decoder, base: Any, headers: Any, types: Any, part: range
) -> list[Any]:
    """Objects of a tuple type for some of the records in a decoder's columns.

    Args:
        kind: a subclass of tuple: (offset, timestamp, key, value, headers, type).
        base: pointer to the bytes that the columns point into.
        headers, types: one object for all, or a list with one for each of `part`.
        part: which records, one after the other.
    """
    d = decoder
    first = part.start

    def at(pointer: Any) -> int:
        return int(ffi.cast("uintptr_t", pointer))

    return _records.make(
        kind,
        len(part),
        at(base),
        at(d.offset + first),
        at(d.timestamp + first),
        at(d.key_pos + first),
        at(d.key_len + first),
        at(d.value_pos + first),
        at(d.value_len + first),
        headers,
        types,
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
        raise _native_error(status, error)
    columns = [ffi.unpack(a, count) for a in arrays] if count else []
    return list(zip(*columns, strict=True))


def gather(
    data: Any,
    pos: Any,
    length: Any,
    count: int,
    out: Any,
    out_capacity: int,
    offsets: Any,
    validity: Any,
    at: int,
) -> int:
    """Append slices to an Arrow binary column; the number of nulls among them."""
    nulls = int(
        lib.ls_gather(
            data,
            pos,
            length,
            count,
            out,
            out_capacity,
            offsets,
            ffi.NULL if validity is None else validity,
            at,
        )
    )
    if nulls < 0:
        raise NativeError(nulls)
    return nulls


# ---------------------------------------------------------------- encoding


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
        """A list or tuple of bytes and None, copied; None where one is neither."""
        packed = _records.pack(items)  # type: ignore[arg-type]
        if packed is None:
            return None
        data, lengths = packed
        return cls(pointer(data), ffi.from_buffer("int32_t[]", lengths), None, packed)

    @classmethod
    def nulls(cls, count: int) -> Slices:
        """n nulls."""
        return cls.packed(b"\0", [-1] * count)

    @classmethod
    def from_arrow(
        cls,
        count: int,
        first: int,
        validity: int | None,
        offsets: int,
        data: int,
        *,
        large: bool,
        keep: Any,
    ) -> Slices:
        """Elements first .. first + count - 1 of an Arrow binary column, where they
        lie; the arguments are addresses of its buffers."""
        lengths = _allocate("int32_t[]", max(count, 1))
        positions = _allocate("int64_t[]", max(count, 1))
        status = lib.ls_slices_from_arrow(
            count,
            first,
            ffi.NULL if validity is None else ffi.cast("uint8_t *", validity),
            ffi.cast("void *", offsets),
            int(large),
            positions,
            lengths,
        )
        if status < 0:
            raise NativeError(status)
        return cls(ffi.cast("uint8_t *", data), lengths, positions, keep)

    def fill(self, raw: Any) -> None:
        raw.data = self.data
        raw.len = self.length
        raw.pos = ffi.NULL if self.pos is None else self.pos


class Rows:
    """Records to be written, as columns in C's form, and how far they are written.

    Attributes:
        count: records in all.
        index: the next one to be encoded.
    """

    __slots__ = ("_cursor", "_keep", "_raw", "_written", "count")

    def __init__(
        self,
        count: int,
        key: Slices | None,
        value: Slices | None,
        *,
        timestamps: Any = None,
        timestamp_all: int = -1,
        header_count: Any = None,
        header_key: Slices | None = None,
        header_value: Slices | None = None,
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
        self._keep = (key, value, timestamps, header_count, header_key, header_value)
        self._cursor = ffi.new("ls_cursor *")
        self._written = ffi.new("ls_written *")

    @property
    def index(self) -> int:
        return int(self._cursor.index)

    def stamp(self, timestamp: int) -> None:
        """Give all records the same timestamp."""
        self._raw.timestamp = ffi.NULL
        self._raw.timestamp_all = timestamp

    def mark(self) -> Any:
        """Where encoding stands, for `restore`."""
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
        """Bytes that all take, uncompressed. `NativeError` for one beyond max_bytes."""
        total = ffi.new("int64_t *")
        error = ffi.new("ls_error *")
        status = lib.ls_measure(self._raw, magic, max_bytes, total, error)
        if status < 0:
            raise _native_error(status, error)
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
    """Put the header before a magic 2 payload; return the size of the batch."""
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
    """Give a batch in place another offset (the last one, for a wrapper)."""
    status = lib.ls_assign_offset(data, _raw_header(header), offset, leader_epoch)
    if status < 0:
        raise NativeError(status)


def restamp(data: Any, header: BatchHeader, timestamp: int) -> None:
    """Give a batch in place the time of its append, in all its records."""
    status = lib.ls_restamp(data, _raw_header(header), timestamp)
    if status < 0:
        raise NativeError(status)


# ---------------------------------------------------------------- segments


class SegmentState:
    """What has to be known of a segment to append to it (``ls_segment_state``)."""

    __slots__ = ("raw",)

    def __init__(self, base_offset: int, created_ms: int = 0) -> None:
        self.raw = ffi.new("ls_segment_state *")
        raw = self.raw
        raw.base_offset = base_offset
        raw.last_offset = base_offset - 1
        raw.max_timestamp = -1
        raw.max_timestamp_offset = -1
        raw.first_timestamp = -1
        raw.time_last = -1
        raw.created_ms = created_ms

    def copy(self) -> SegmentState:
        other = SegmentState.__new__(SegmentState)
        other.raw = ffi.new("ls_segment_state *")
        other.raw[0] = self.raw[0]
        return other

    @property
    def size(self) -> int:
        return int(self.raw.size)

    @property
    def last_offset(self) -> int:
        return int(self.raw.last_offset)

    @property
    def max_timestamp(self) -> int:
        return int(self.raw.max_timestamp)

    @property
    def max_timestamp_offset(self) -> int:
        return int(self.raw.max_timestamp_offset)


class Planner:
    """Decides what of a run of batches belongs into a segment, with index entries.

    Holds the roll limits and the scratch memory of one writer.
    """

    __slots__ = (
        "_error",
        "_index",
        "_index_capacity",
        "_limits",
        "_message",
        "_plan",
        "_time",
        "_trial",
        "interval",
        "message",
    )

    def __init__(self, index_interval_bytes: int, limits: RollLimits | None) -> None:
        self.interval = index_interval_bytes
        self._limits: Any = ffi.NULL
        if limits is not None:
            self._limits = ffi.new("ls_roll_limits *")
            for name, value in zip(limits._fields, limits, strict=True):
                setattr(self._limits, name, value)
        self._index_capacity = 4096
        self._index = ffi.new("uint8_t[]", self._index_capacity * 8)
        self._time = ffi.new("uint8_t[]", self._index_capacity * 12)
        self._plan = ffi.new("ls_plan *")
        self._error = ffi.new("ls_error *")
        self._trial = ffi.new("ls_segment_state *")
        self._message = _allocate("uint8_t[]", MESSAGE_BYTES)
        self.message = memoryview(ffi.buffer(self._message, MESSAGE_BYTES))

    def plan_message(
        self,
        state: SegmentState,
        value: Any,
        key: Any,
        timestamp: int,
        now_ms: int,
        magic: int,
        attributes: int,
        max_bytes: int,
    ) -> int:
        """Encode one message as the next of the segment into `message`, and plan it.

        Returns its bytes; 0 where it does not fit `message` or `max_bytes`, or belongs
        into a new segment.
        """
        if value is None:
            value, value_len = ffi.NULL, -1
        else:
            if type(value) is not bytes:
                value = pointer(value)
            value_len = len(value)
        if key is None:
            key, key_len = ffi.NULL, -1
        else:
            if type(key) is not bytes:
                key = pointer(key)
            key_len = len(key)
        trial = self._trial
        trial[0] = state.raw[0]
        limits = self._limits
        limits.now_ms = now_ms
        status: int = lib.ls_append_message(
            key,
            key_len,
            value,
            value_len,
            timestamp,
            magic,
            attributes,
            max_bytes,
            limits,
            trial,
            self._message,
            MESSAGE_BYTES,
            self._index,
            self._time,
            self._plan,
            self._error,
        )
        return status

    def plan(
        self, state: SegmentState, data: Any, size: int, now_ms: int = 0
    ) -> tuple[int, int]:
        """Walk over data[0, size) as if appended to the segment.

        `state` stays as it is until `commit`. Returns (bytes that belong to the
        segment, stop).
        """
        trial = self._trial
        trial[0] = state.raw[0]
        limits = self._limits
        if limits:
            limits.now_ms = now_ms
        plan = self._plan
        status = lib.ls_plan_append(
            data,
            size,
            limits,
            self.interval,
            trial,
            self._index,
            self._index_capacity,
            self._time,
            self._index_capacity,
            plan,
            self._error,
        )
        if status < 0:
            raise _native_error(status, self._error)
        return plan.bytes, plan.stop

    @property
    def next_offset(self) -> int:
        """One past the last offset of what was planned."""
        return int(self._trial.last_offset) + 1

    def commit(self, state: SegmentState) -> tuple[bytes, bytes]:
        """Make the last plan true of `state`; the new entries of both indexes."""
        state.raw[0] = self._trial[0]
        plan = self._plan
        if not plan.index_count:
            return b"", b""
        index = ffi.buffer(self._index, plan.index_count * 8)[:]
        times = ffi.buffer(self._time, plan.time_count * 12)[:]
        return index, times


MESSAGE_BYTES: Final = 64 * 1024


class RollLimits(NamedTuple):
    """When a segment is full (``ls_roll_limits``)."""

    segment_bytes: int
    segment_ms: int
    now_ms: int
    index_interval_bytes: int
    index_entries_max: int
    time_entries_max: int


def offset_index_floor(
    entries: ReadableBuffer, count: int, relative_offset: int
) -> tuple[int, int, int]:
    """(slot, relative offset, position) of the greatest entry <= target; slot -1."""
    offset = ffi.new("int64_t *")
    pos = ffi.new("int64_t *")
    slot = lib.ls_offset_index_floor(
        pointer(entries), count, relative_offset, offset, pos
    )
    return slot, offset[0], pos[0]


def time_index_floor(
    entries: ReadableBuffer, count: int, timestamp: int
) -> tuple[int, int, int]:
    """(slot, timestamp, relative offset) of the greatest entry <= target; slot -1."""
    found = ffi.new("int64_t *")
    offset = ffi.new("int64_t *")
    slot = lib.ls_time_index_floor(pointer(entries), count, timestamp, found, offset)
    return slot, found[0], offset[0]


def offset_index_check(entries: ReadableBuffer, count: int, file_size: int) -> int:
    """The first slot that breaks the order or points outside the file, else `count`."""
    return int(lib.ls_offset_index_check(pointer(entries), count, file_size))


def time_index_check(entries: ReadableBuffer, count: int) -> int:
    """The first slot that breaks the order, else `count`."""
    return int(lib.ls_time_index_check(pointer(entries), count))


def partition_keys(keys: Slices, count: int, partitions: int) -> list[int]:
    """Kafka's partition of each key; -1 where the key is null."""
    raw = ffi.new("ls_slices *")
    keys.fill(raw)
    out = ffi.new("int32_t[]", max(count, 1))
    lib.ls_partition_keys(raw, count, partitions, out)
    return ffi.unpack(out, count)  # type: ignore[no-any-return]


def int64_array(values: Sequence[int]) -> Any:
    return ffi.new("int64_t[]", values)


def int32_array(values: Sequence[int]) -> Any:
    return ffi.new("int32_t[]", values)


def buffer_of(data: Any, size: int) -> memoryview:
    """The first `size` bytes behind a pointer (no copy)."""
    return memoryview(ffi.buffer(data, size))


def copy_int64(address: int, at: int, source: Any, first: int, count: int) -> None:
    """Copy int64 elements to element `at` of memory that somebody else owns."""
    ffi.memmove(
        ffi.cast("int64_t *", address) + at, source + first, count * INT64_BYTES
    )


INT64_BYTES: Final = 8


def copy_int8_to_int32(
    address: int, at: int, source: Any, first: int, count: int
) -> None:
    """Widen int8 elements into memory that somebody else owns."""
    lib.ls_widen(ffi.cast("int32_t *", address) + at, source + first, count)


def is_untimed(kinds: Any, first: int, count: int) -> bool:
    """Whether any of the timestamp types says that there is none (-1)."""
    return b"\xff" in ffi.buffer(kinds + first, count)[:]
