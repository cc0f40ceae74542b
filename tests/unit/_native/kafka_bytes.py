"""Kafka's bytes made again, in plain Python, and thin callers of the C core.

Bytes that the C core writes are compared with the bytes of these functions, and the
other way round. They are slow and short on purpose.
"""

import ctypes
import mmap
import struct
import zlib
from typing import Any, NamedTuple

import crc32c

from logstore._native._ls import ffi, lib

T = 1700000000000
CRC = lib.LS_CHECK_CRC
ORDER = lib.LS_CHECK_ORDER
ALL = CRC | ORDER
GAPLESS = ALL | lib.LS_CHECK_GAPLESS
UNKNOWN = lib.LS_OFFSET_UNKNOWN
OFFSET_MAX = 2**63 - 1
COLUMNS = (
    ("offset", "int64_t"),
    ("timestamp", "int64_t"),
    ("key_pos", "int32_t"),
    ("key_len", "int32_t"),
    ("value_pos", "int32_t"),
    ("value_len", "int32_t"),
    ("header_pos", "int32_t"),
    ("header_count", "int32_t"),
    ("timestamp_type", "int8_t"),
)


# ------------------------------------------------------------------ bytes


def sized(data: bytes | None) -> bytes:
    """An int32 length and the bytes, as in magic 0 and 1."""
    return (
        struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data
    )


def message(
    offset: int,
    key: bytes | None,
    value: bytes | None,
    *,
    magic: int = 1,
    timestamp: int = T,
    attributes: int = 0,
) -> bytes:
    body = struct.pack(">bB", magic, attributes)
    if magic == 1:
        body += struct.pack(">q", timestamp)
    body += sized(key) + sized(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def varint(value: int) -> bytes:
    v = (value << 1) ^ (value >> 63)
    out = bytearray()
    while v >= 0x80:
        out.append(v & 0x7F | 0x80)
        v >>= 7
    out.append(v)
    return bytes(out)


def short(data: bytes | None) -> bytes:
    """A varint length and the bytes, as in magic 2."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(
    delta: int,
    key: bytes | None,
    value: bytes | None,
    *,
    timestamp_delta: int = 0,
    headers: Any = (),
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(delta) + short(key) + short(value)
    body += varint(len(headers)) + b"".join(short(k) + short(v) for k, v in headers)
    return varint(len(body)) + body


def batch(
    base_offset: int,
    area: bytes,
    count: int,
    *,
    last_delta: int | None = None,
    attributes: int = 0,
    base_timestamp: int = T,
    max_timestamp: int = T,
    epoch: int = -1,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    covered = struct.pack(
        ">hiqqqhii",
        attributes,
        count - 1 if last_delta is None else last_delta,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    covered += area
    head = struct.pack(">qiibI", base_offset, len(covered) + 9, epoch, 2, 0)[:17]
    return head + struct.pack(">I", crc32c.crc32c(covered)) + covered


def plain_batch(base_offset: int, count: int, **kwargs: Any) -> bytes:
    """A batch of `count` small records whose values contain their offsets."""
    area = b"".join(
        record(i, b"k%d" % i, b"value %d" % (base_offset + i)) for i in range(count)
    )
    return batch(base_offset, area, count, **kwargs)


def fix_crc(entry: bytes) -> bytes:
    """The same entry with its correct checksum."""
    if entry[16] == 2:
        return entry[:17] + struct.pack(">I", crc32c.crc32c(entry[21:])) + entry[21:]
    return entry[:12] + struct.pack(">I", zlib.crc32(entry[16:])) + entry[16:]


def patched(entry: bytes, pos: int, data: bytes) -> bytes:
    return entry[:pos] + data + entry[pos + len(data) :]


# ------------------------------------------------------------------ guarded memory


class Guarded:
    """Bytes in memory with unreadable pages before and after.

    The bytes end at the beginning of the page after them (or begin at the end of the
    one before), so that a read outside ends the process.
    """

    def __init__(self, capacity: int) -> None:
        page = mmap.PAGESIZE
        self.room = -(-max(capacity, 1) // page) * page
        self._map = mmap.mmap(-1, self.room + 2 * page)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for address in (base, base + page + self.room):
            if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(page), 0) != 0:
                raise OSError(ctypes.get_errno(), "mprotect")
        self.begin = ffi.cast("uint8_t *", base + page)

    def at_end(self, data: bytes) -> Any:
        start = self.begin + (self.room - len(data))
        ffi.memmove(start, data, len(data))
        return start

    def at_begin(self, data: bytes) -> Any:
        ffi.memmove(self.begin, data, len(data))
        return self.begin


# ------------------------------------------------------------------ callers


class Outcome(NamedTuple):
    """Result of a walk: `status` negative, or `stop`."""

    status: int
    stop: int
    items: list[Any]
    pos: int
    last_offset: int
    error: Any


class Record(NamedTuple):
    offset: int
    timestamp: int
    kind: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


def pointer(data: Any) -> Any:
    return ffi.from_buffer(data) if isinstance(data, bytes | bytearray) else data


def new_walk(pos: int = 0, last_offset: int = -1) -> Any:
    walk = ffi.new("ls_walk *")
    walk.pos = pos
    walk.last_offset = last_offset
    return walk


def scan(
    data: Any,
    size: int | None = None,
    *,
    checks: int = ALL,
    capacity: int = 1000,
    walk: Any = None,
) -> Outcome:
    size = len(data) if size is None else size
    walk = new_walk() if walk is None else walk
    out = ffi.new("ls_batch[]", max(capacity, 1))
    status = lib.ls_scan_batches(pointer(data), size, checks, out, capacity, walk)
    batches = [ffi.new("ls_batch *", out[i]) for i in range(walk.count)]
    return ended(status, walk, batches)


def ended(status: int, walk: Any, items: list[Any]) -> Outcome:
    """The outcome of a walk, with an error that outlives it."""
    error = ffi.new("ls_error *", walk.error)
    return Outcome(status, walk.stop, items, walk.pos, walk.last_offset, error)


class Columns:
    def __init__(self, capacity: int, *, optional: bool = True) -> None:
        self.raw = ffi.new("ls_columns *")
        self.raw.capacity = capacity
        self.arrays = []
        for name, kind in COLUMNS:
            if not optional and name in (
                "header_pos",
                "header_count",
                "timestamp_type",
            ):
                continue
            array = ffi.new(f"{kind}[]", capacity)
            self.arrays.append(array)
            setattr(self.raw, name, array)

    def records(self, data: Any, size: int) -> list[Record]:
        raw = self.raw
        data = pointer(data)
        content = bytes(ffi.buffer(data, size)) if size else b""

        def part(pos: int, length: int) -> bytes | None:
            if length < 0:
                return None
            assert 0 <= pos <= pos + length <= size
            return content[pos : pos + length]

        found = []
        for i in range(raw.count):
            headers: tuple[Any, ...] = ()
            if raw.header_count:
                headers = read_headers(
                    data, size, raw.header_pos[i], raw.header_count[i]
                )
            found.append(
                Record(
                    raw.offset[i],
                    raw.timestamp[i],
                    raw.timestamp_type[i] if raw.timestamp_type else 0,
                    part(raw.key_pos[i], raw.key_len[i]),
                    part(raw.value_pos[i], raw.value_len[i]),
                    headers,
                )
            )
        return found


def read_headers(data: Any, size: int, pos: int, count: int) -> tuple[Any, ...]:
    arrays = [ffi.new("int32_t[]", max(count, 1)) for _ in range(4)]
    error = ffi.new("ls_error *")
    status = lib.ls_decode_headers(pointer(data), size, pos, count, *arrays, error)
    assert status == 0, (status, error.pos)
    content = bytes(ffi.buffer(pointer(data), size)) if size else b""
    key_pos, key_len, value_pos, value_len = arrays
    return tuple(
        (
            content[key_pos[i] : key_pos[i] + key_len[i]],
            None
            if value_len[i] < 0
            else content[value_pos[i] : value_pos[i] + value_len[i]],
        )
        for i in range(count)
    )


def decode(
    data: Any,
    size: int | None = None,
    *,
    checks: int = ALL,
    start: int = 0,
    stop: int = OFFSET_MAX,
    capacity: int = 1000,
    walk: Any = None,
    optional: bool = True,
) -> Outcome:
    size = len(data) if size is None else size
    walk = new_walk() if walk is None else walk
    columns = Columns(capacity, optional=optional)
    status = lib.ls_decode(pointer(data), size, checks, start, stop, columns.raw, walk)
    assert walk.count == columns.raw.count
    return ended(status, walk, columns.records(data, size))


def count_batches(data: Any, size: int | None = None, **kwargs: Any) -> Outcome:
    """`scan`, without headers."""
    size = len(data) if size is None else size
    walk = kwargs.pop("walk", None) or new_walk()
    checks = kwargs.pop("checks", ALL)
    assert not kwargs
    status = lib.ls_scan_batches(pointer(data), size, checks, ffi.NULL, 0, walk)
    assert walk.count == walk.batches
    return ended(status, walk, [None] * walk.count)


def count_records(data: Any, size: int | None = None, **kwargs: Any) -> Outcome:
    """`decode`, without columns; indexes that are empty are compared."""
    size = len(data) if size is None else size
    walk = kwargs.pop("walk", None) or new_walk()
    checks = kwargs.pop("checks", ALL)
    assert not kwargs
    columns = ffi.new("ls_columns *", {"capacity": OFFSET_MAX})
    check = ffi.new("ls_index_check *")
    status = lib.ls_verify(pointer(data), size, checks, columns, check, walk)
    assert walk.count == columns.count
    return ended(status, walk, [None] * walk.count)


def decode_payload(
    header: Any,
    payload: Any,
    size: int | None = None,
    *,
    checks: int = ALL,
    start: int = 0,
    stop: int = OFFSET_MAX,
    capacity: int = 1000,
) -> Outcome:
    size = len(payload) if size is None else size
    columns = Columns(capacity)
    base = ffi.new("int64_t *", -77)
    error = ffi.new("ls_error *")
    status = lib.ls_decode_payload(
        header,
        pointer(payload),
        size,
        checks,
        start,
        stop,
        columns.raw,
        base,
        error,
    )
    return Outcome(status, 0, columns.records(payload, size), 0, base[0], error)


def header_of(entry: bytes, checks: int = ALL) -> Any:
    """The parsed header of one whole entry, in separate memory."""
    found = scan(entry, checks=checks)
    assert found.status == 0, found.status
    assert len(found.items) == 1
    return found.items[0]


class Records:
    """An `ls_records` made from Python values; `spread` puts each element elsewhere."""

    def __init__(
        self,
        rows: Any,
        *,
        timestamps: list[int] | None = None,
        timestamp_all: int = T,
        headers: list[Any] | None = None,
        spread: bool = False,
    ) -> None:
        self.keep: list[Any] = []
        self.raw = ffi.new("ls_records *")
        self.raw.count = len(rows)
        self._fill(self.raw.key, [row[0] for row in rows], spread)
        self._fill(self.raw.value, [row[1] for row in rows], spread)
        self.raw.timestamp_all = timestamp_all
        if timestamps is not None:
            self.raw.timestamp = self._array("int64_t", timestamps)
        if headers is not None:
            self.raw.header_count = self._array("int32_t", [len(h) for h in headers])
            flat = [pair for h in headers for pair in h]
            self._fill(self.raw.header_key, [k for k, _ in flat], spread)
            self._fill(self.raw.header_value, [v for _, v in flat], spread)

    def _array(self, kind: str, values: list[int]) -> Any:
        array = ffi.new(f"{kind}[]", values or [0])
        self.keep.append(array)
        return array

    def _fill(self, slices: Any, values: list[bytes | None], spread: bool) -> None:
        data = bytearray()
        positions = []
        for value in reversed(values) if spread else values:
            data += b"~" if spread else b""
            positions.append(len(data))
            data += value or b""
        if spread:
            positions.reverse()
            slices.pos = self._array("int64_t", positions)
        slices.data = self._array("uint8_t", list(data))
        if any(value is not None for value in values):
            lengths = [-1 if value is None else len(value) for value in values]
            slices.len = self._array("int32_t", lengths)


class Writer:
    """A cursor over `Records` and the memory that is written to."""

    def __init__(self, records: Records, capacity: int) -> None:
        self.records = records
        self.cursor = ffi.new("ls_cursor *")
        self.written = ffi.new("ls_written *")
        self.capacity = capacity
        self.memory = Guarded(capacity)
        self.out = self.memory.begin + (self.memory.room - capacity)

    def messages(
        self,
        magic: int = 1,
        *,
        base_offset: int = 0,
        attributes: int = 0,
        count_max: int = OFFSET_MAX,
    ) -> tuple[int, bytes]:
        status = lib.ls_encode_messages(
            self.records.raw,
            self.cursor,
            count_max,
            magic,
            attributes,
            base_offset,
            self.out,
            self.capacity,
            self.written,
        )
        return status, bytes(ffi.buffer(self.out, self.written.bytes))

    def area(self, *, count_max: int = OFFSET_MAX) -> tuple[int, bytes]:
        status = lib.ls_encode_area(
            self.records.raw,
            self.cursor,
            count_max,
            self.out,
            self.capacity,
            self.written,
        )
        return status, bytes(ffi.buffer(self.out, self.written.bytes))


# ------------------------------------------------------------------ segments

FREE = {
    "segment_bytes": 2**31 - 1,
    "segment_ms": 2**62,
    "now_ms": T,
    "index_interval_bytes": 4096,
    "index_entries_max": 2**31,
    "time_entries_max": 2**31,
    "is_in_parts": 0,
}


FIELDS = (
    "base_offset",
    "size",
    "last_offset",
    "bytes_since",
    "max_timestamp",
    "max_timestamp_offset",
    "first_timestamp",
    "created_ms",
    "index_entries",
    "time_entries",
    "time_last",
)


def new_state(base_offset=0, **fields):
    values = {
        "last_offset": base_offset - 1,
        "max_timestamp": -1,
        "max_timestamp_offset": -1,
        "first_timestamp": -1,
        "time_last": -1,
        "created_ms": T,
    }
    values.update(fields, base_offset=base_offset)
    return ffi.new("ls_segment_state *", values)


def as_dict(state):
    return {name: getattr(state, name) for name in FIELDS}


def plan(data, state, limits=None, *, interval=4096, capacity=1000, size=None):
    """ls_plan_append; (status, plan, index pairs, time pairs)."""
    size = len(data) if size is None else size
    index = ffi.new("uint8_t[]", 8 * capacity)
    times = ffi.new("uint8_t[]", 12 * capacity)
    out = ffi.new("ls_plan *")
    error = ffi.new("ls_error *")
    raw = ffi.NULL if limits is None else ffi.new("ls_roll_limits *", FREE | limits)
    status = lib.ls_plan_append(
        ffi.from_buffer(data),
        size,
        raw,
        interval,
        state,
        index,
        capacity,
        times,
        capacity,
        out,
        error,
    )
    pairs = list(struct.iter_unpack(">ii", ffi.buffer(index, 8 * out.index_count)))
    stamps = list(struct.iter_unpack(">qi", ffi.buffer(times, 12 * out.time_count)))
    return status, out, pairs, stamps
