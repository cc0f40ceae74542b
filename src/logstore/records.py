"""Records and batches as values, and the way from bytes on disk to them.

`read_chunk` is the one decoder of runs of batches: the columns it yields become
`Record` objects here and Arrow columns in `logstore.arrow`.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from logstore import _binding as native
from logstore import compression
from logstore.config import CODECS
from logstore.errors import RecordTooLargeError

if TYPE_CHECKING:
    from typing import TypeAlias

    from _typeshed import ReadableBuffer

    Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]

__all__ = [
    "Chunk",
    "ControlRecord",
    "Damage",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "TimestampType",
]


class TimestampType(enum.IntEnum):
    """What the timestamp of a record means."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    @property
    def kafka_name(self) -> str:
        """Kafka's word for it: CreateTime, LogAppendTime or NoTimestampType."""
        return _KAFKA_NAMES[self]


_KAFKA_NAMES = {
    TimestampType.NO_TIMESTAMP: "NoTimestampType",
    TimestampType.CREATE_TIME: "CreateTime",
    TimestampType.LOG_APPEND_TIME: "LogAppendTime",
}
_TIMESTAMP_TYPES = {int(t): t for t in TimestampType}


class Record(NamedTuple):
    """One record of a partition: a plain value, compared and hashed by content.

    Attributes:
        offset: its place in the partition.
        timestamp_ms: Unix milliseconds; -1 where there is none (magic 0).
        key: bytes, or None for a null key (an empty key is ``b""``).
        value: bytes, or None for a null value.
        headers: (name, value or None) pairs in the order written; magic 2 only.
        timestamp_type: whose clock the timestamp is.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_type: TimestampType = TimestampType.CREATE_TIME


class RecordMetadata(NamedTuple):
    """Where a record went. `timestamp_ms` is what was stored (-1 in magic 0)."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class ControlRecord(NamedTuple):
    """The content of a control batch (docs/format.md, "Control records").

    Attributes:
        type: 0 ABORT, 1 COMMIT, others as Kafka's KRaft defines them.
        coordinator_epoch: of a COMMIT or ABORT marker, else -1.
    """

    offset: int
    timestamp_ms: int
    type: int
    coordinator_epoch: int
    key: bytes
    value: bytes | None

    @property
    def type_name(self) -> str:
        """ABORT, COMMIT, or KRaft's name of the type; UNKNOWN for any other."""
        return _CONTROL_NAMES.get(self.type, "UNKNOWN")


ABORT: Final = 0
COMMIT: Final = 1
_CONTROL_NAMES = {
    0: "ABORT",
    1: "COMMIT",
    2: "LEADER_CHANGE",
    3: "SNAPSHOT_HEADER",
    4: "SNAPSHOT_FOOTER",
    5: "KRAFT_VERSION",
    6: "KRAFT_VOTERS",
}
_CONTROL_KEY = struct.Struct(">hh")
_END_MARKER = struct.Struct(">hi")


class Damage(Exception):
    """A batch that cannot be read, before anybody has said in which file.

    Attributes:
        reason: what contradicts what.
        pos: where the batch begins in the buffer.
        offset: the first offset that is not delivered; -1 unknown.
        next_offset: first offset past the batch, where its frame is sound.
        unsupported: it is not understood, which is no damage.
        too_large: the limit it is beyond, as the error to raise.
    """

    def __init__(
        self,
        reason: str,
        pos: int,
        offset: int = -1,
        *,
        next_offset: int | None = None,
        unsupported: bool = False,
        too_large: RecordTooLargeError | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.pos = pos
        self.offset = offset
        self.next_offset = next_offset
        self.unsupported = unsupported
        self.too_large = too_large


def damage_of(error: native.NativeError, pos: int | None = None) -> Damage:
    """Damage that C found. The offset in the frame is no help: no checksum covers it,
    and a wrapper's is its last."""
    return Damage(
        error.reason,
        error.pos if pos is None else pos,
        unsupported=error.is_unsupported,
    )


class Columns(NamedTuple):
    """A run of decoded records: `decoder`'s columns point into `raw` (and `c`)."""

    decoder: native.Decoder
    c: Any
    raw: Any
    size: int


class ChunkReader:
    """Decodes a buffer of batches, compressed or not, into columns.

    After `columns` is exhausted: `pos` is where it ended and `stop` why; damage is
    raised as `Damage` after all records before it were yielded.

    Args:
        limit: most bytes that one batch may decompress to.
        wanted: for batches of transactions, tells whether to deliver one
            (``read_committed``); None delivers all. It may raise `StopReading`.
        capacity: records decoded at a time; more where one batch has more.
    """

    def __init__(
        self,
        limit: int,
        *,
        with_headers: bool = True,
        wanted: Callable[[native.BatchHeader], bool] | None = None,
        capacity: int = 16384,
    ) -> None:
        self.limit = limit
        self.decoder = native.Decoder(capacity, with_headers=with_headers)
        self.wanted = wanted
        self.pos = 0
        self.stop = native.STOP_END
        self.ended = False
        self.checks = native.CHECK_ALL

    def begin(self, last_offset: int, checks: int) -> None:
        """The next batch has to lie after `last_offset`, of which `checks` says how."""
        self.decoder.begin(last_offset)
        self.checks = checks
        self.ended = False

    def columns(
        self, c: Any, raw: Any, size: int, pos: int, start: int, stop: int
    ) -> Iterator[Columns]:
        """Records with start <= offset < stop of the batches in c[pos, size)."""
        if self.wanted is not None:
            yield from self._columns_wanted(c, raw, size, pos, start, stop)
            return
        decoder = self.decoder
        while True:
            reason = decoder.decode(c, size, pos, start, stop, self.checks)
            pos = self.pos = decoder.pos
            self.stop = reason
            error = decoder.error
            if decoder.count:
                yield Columns(decoder, c, raw, size)
            if error is not None:
                raise damage_of(error)
            if reason == native.STOP_FULL:
                continue
            if reason != native.STOP_COMPRESSED:
                return
            last_offset = decoder.last_offset
            scan = native.scan_batches(
                c,
                size,
                pos=pos,
                last_offset=last_offset,
                checks=self.checks,
                count_max=1,
            )
            if scan.error is not None:
                raise damage_of(scan.error)
            header = scan.headers[0]
            yield from self._one(header, raw, start, stop, last_offset)
            decoder.begin(header.last_offset)
            pos = self.pos = header.pos + header.size

    def _one(
        self, header: native.BatchHeader, raw: Any, start: int, stop: int, before: int
    ) -> Iterator[Columns]:
        """The records of one compressed batch; the one before ended at `before`."""
        decoder = self.decoder
        payload = open_payload(header, raw, self.limit)
        c = native.pointer(payload)
        checks = self.checks
        base = decoder.decode_payload(header, c, len(payload), start, stop, checks)
        error = decoder.error
        gapless = checks & native.CHECK_GAPLESS and before != native.OFFSET_UNKNOWN
        if error is None and gapless and base != before + 1:
            raise Damage(
                f"a batch begins at offset {base} where {before + 1} must follow",
                header.pos,
                before + 1,
            )
        if decoder.count:
            yield Columns(decoder, c, _slicer(payload), len(payload))
        if error is not None:
            damage = damage_of(error, header.pos)
            damage.next_offset = header.last_offset + 1
            raise damage

    def _plain(
        self, header: native.BatchHeader, c: Any, raw: Any, start: int, stop: int
    ) -> Iterator[Columns]:
        """The records of one uncompressed batch."""
        decoder = self.decoder
        decoder.begin(native.OFFSET_UNKNOWN)
        end = header.pos + header.size
        decoder.decode(c, end, header.pos, start, stop, self.checks)
        if decoder.count:
            yield Columns(decoder, c, raw, end)
        if decoder.error is not None:
            raise damage_of(decoder.error)

    def _columns_wanted(
        self, c: Any, raw: Any, size: int, pos: int, start: int, stop: int
    ) -> Iterator[Columns]:
        wanted = self.wanted
        assert wanted is not None
        last_offset = self.decoder.last_offset
        while True:
            scan = native.scan_batches(
                c, size, pos=pos, last_offset=last_offset, checks=self.checks
            )
            for header in scan.headers:
                self.pos = header.pos
                if max(header.base_offset, last_offset + 1) >= stop:
                    self.stop = native.STOP_OFFSET
                    return
                deliver = header.last_offset >= start and not header.is_control
                if header.is_transactional and not header.is_control:
                    try:
                        deliver = wanted(header) and deliver
                    except StopReading:
                        self.ended = True
                        self.stop = native.STOP_OFFSET
                        return
                if deliver and header.codec:
                    yield from self._one(header, raw, start, stop, last_offset)
                elif deliver:
                    yield from self._plain(header, c, raw, start, stop)
                last_offset = header.last_offset
            pos = self.pos = scan.pos
            if scan.error is not None:
                raise damage_of(scan.error)
            self.stop = scan.stop
            if scan.stop != native.STOP_FULL:
                return


class StopReading(Exception):
    """Nothing from here on may be delivered (the last stable offset is reached)."""


def _slicer(payload: bytes | bytearray | memoryview) -> Any:
    """Something whose slices are bytes."""
    return payload if isinstance(payload, bytes) else memoryview_slicer(payload)


class memoryview_slicer:
    """Slices of a buffer as bytes."""

    __slots__ = ("_view",)

    def __init__(self, data: ReadableBuffer) -> None:
        self._view = memoryview(data)

    def __getitem__(self, part: slice) -> bytes:
        return bytes(self._view[part])


def open_payload(
    header: native.BatchHeader, raw: Any, limit: int
) -> bytes | bytearray | memoryview:
    """The decompressed payload of a batch whose checksum is known to be right.

    Raises:
        Damage: the codec finds the stream damaged, or beyond `limit` bytes.
    """
    if header.payload_size < 0:
        raise Damage("a wrapper has a null value", header.pos)
    begin = header.pos + header.payload_pos
    payload: bytes = raw[begin : begin + header.payload_size]
    if header.codec == 0 or (header.magic == 2 and header.record_count == 0):
        return payload
    try:
        return compression.decompress(
            header.codec, memoryview(payload), header.magic, limit
        )
    except compression.CodecError as error:
        raise Damage(
            str(error), header.pos, next_offset=header.last_offset + 1
        ) from error
    except RecordTooLargeError as error:
        raise Damage(
            str(error),
            header.pos,
            next_offset=header.last_offset + 1,
            too_large=error,
        ) from error


def iter_records(columns: Columns) -> Iterator[Record]:
    """The same one by one: a few are made at first, then more and more at a time, so
    that whoever wants one record does not wait for two thousand."""
    count, done, step = columns.decoder.count, 0, _FIRST_RECORDS
    while done < count:
        end = min(done + step, count)
        yield from make_records(columns, range(done, end))
        done, step = end, step * 8


_FIRST_RECORDS: Final = 8


def make_records(columns: Columns, part: range | None = None) -> list[Record]:
    """`Record` objects of decoded columns: of all records, or of `part`."""
    d, c, raw, size = columns
    part = part or range(d.count)
    begin = part.start
    counts = d.unpack(d.header_count + begin, len(part))
    headers: Any = ()
    if any(counts):
        headers = [
            read_headers(c, raw, size, pos, n) if n else ()
            for pos, n in zip(
                d.unpack(d.header_pos + begin, len(part)), counts, strict=True
            )
        ]
    kinds = d.unpack(d.timestamp_type + begin, len(part))
    types: Any = _TIMESTAMP_TYPES[kinds[0]]
    if kinds.count(kinds[0]) != len(part):
        types = [_TIMESTAMP_TYPES[kind] for kind in kinds]
    return native.make_tuples(Record, d, c, headers, types, part)


def read_headers(c: Any, raw: Any, size: int, pos: int, count: int) -> Headers:
    """The headers of one record."""
    try:
        return tuple(
            (
                # As Kafka's consumer does with names that are not UTF-8.
                str(raw[kp : kp + kn], "utf-8", "replace"),
                raw[vp : vp + vn] if vn >= 0 else None,
            )
            for kp, kn, vp, vn in native.decode_headers(c, size, pos, count)
        )
    except native.NativeError as error:
        raise damage_of(error) from error


class RecordBatch:
    """One batch as it is on disk. Iterating gives its records.

    A magic 2 batch, a compressed wrapper of magic 0 or 1, or one uncompressed message
    of magic 0 or 1 (a batch of one). A control batch iterates to nothing; see
    `control_record`.

    Attributes:
        base_offset, last_offset: first and last offset (inclusive).
        next_offset: one past the last.
        magic, compression: 0 to 2; codec name.
        timestamp_type, max_timestamp_ms: see `TimestampType`; -1 for none.
        record_count: records in it (compaction may leave fewer than offsets, or none).
        leader_epoch, producer_id, producer_epoch, base_sequence: -1 where unknown.
        is_transactional, is_control: magic 2.
        crc: checksum as stored; it was checked when the batch was read.
        position: byte in the segment file where it begins.
        size_bytes: its length, whole.
        buffer: memoryview of its bytes; valid as long as the batch.
    """

    __slots__ = (
        "_limit",
        "_named",
        "_payload",
        "base_offset",
        "base_sequence",
        "base_timestamp_ms",
        "buffer",
        "compression",
        "crc",
        "delete_horizon_ms",
        "header",
        "is_control",
        "is_transactional",
        "last_offset",
        "leader_epoch",
        "magic",
        "max_timestamp_ms",
        "next_offset",
        "position",
        "producer_epoch",
        "producer_id",
        "record_count",
        "size_bytes",
        "timestamp_type",
    )

    def __init__(
        self,
        header: native.BatchHeader,
        data: bytes,
        position: int,
        limit: int,
        named: Callable[[Damage], Exception],
    ) -> None:
        """`data` is the batch's bytes; `header` was scanned from them (pos 0); `named`
        makes the error that users see of damage."""
        self.header = header
        self._named = named
        self._limit = limit
        self._payload: Any = None
        self.buffer = memoryview(data)
        self.position = position
        self.size_bytes = header.size
        self.magic = header.magic
        self.compression = CODECS[header.codec]
        self.timestamp_type = _TIMESTAMP_TYPES[header.timestamp_type]
        self.base_timestamp_ms = header.base_timestamp
        self.max_timestamp_ms = header.max_timestamp
        self.crc = header.crc
        self.leader_epoch = header.leader_epoch
        self.producer_id = header.producer_id
        self.producer_epoch = header.producer_epoch
        self.base_sequence = header.base_sequence
        self.is_control = header.is_control
        self.is_transactional = header.is_transactional
        self.delete_horizon_ms: int | None = (
            header.base_timestamp
            if header.magic == 2 and header.attributes & 0x40
            else None
        )
        self.last_offset = header.last_offset
        self.next_offset = header.last_offset + 1
        self.base_offset = header.base_offset
        self.record_count = header.record_count
        if header.record_count < 0:
            # A wrapper tells neither how many records it has nor the first offset.
            payload = self._open()
            decoder = native.Decoder(256)
            c = native.pointer(payload)
            base = decoder.decode_payload(
                header, c, len(payload), 0, native.OFFSET_MAX, native.CHECK_ALL
            )
            if decoder.error is not None:
                raise self._named(damage_of(decoder.error, 0))
            self.base_offset = base
            self.record_count = decoder.count

    def _open(self) -> Any:
        if self._payload is None:
            try:
                self._payload = open_payload(
                    self.header, memoryview_slicer(self.buffer), self._limit
                )
            except Damage as damage:
                raise self._named(damage) from damage
        return self._payload

    def _records(self) -> list[Record]:
        decoder = native.Decoder(max(self.record_count, 1))
        if self.magic < 2 and not self.header.codec:
            payload: Any = self.buffer.obj
            c = native.pointer(payload)
            decoder.decode(c, len(payload), 0, 0, native.OFFSET_MAX)
        else:
            payload = self._open()
            c = native.pointer(payload)
            decoder.decode_payload(
                self.header, c, len(payload), 0, native.OFFSET_MAX, native.CHECK_ALL
            )
        if decoder.error is not None:
            raise self._named(damage_of(decoder.error, 0))
        if not decoder.count:
            return []
        try:
            return make_records(Columns(decoder, c, _slicer(payload), len(payload)))
        except Damage as damage:
            raise self._named(damage) from damage

    def __iter__(self) -> Iterator[Record]:
        return iter(() if self.is_control else self._records())

    def __len__(self) -> int:
        return 0 if self.is_control else self.record_count

    def control_record(self) -> ControlRecord | None:
        """What a control batch says; None for other batches (and an emptied one)."""
        if not self.is_control:
            return None
        for record in self._records():
            key = record.key or b""
            if len(key) < _CONTROL_KEY.size:
                damage = Damage("a control record has no type", 0, record.offset)
                raise self._named(damage)
            version, kind = _CONTROL_KEY.unpack_from(key)
            if version < 0:
                reason = f"a control record has version {version}"
                raise self._named(Damage(reason, 0, record.offset))
            epoch = -1
            value = record.value
            if kind in (ABORT, COMMIT) and value and len(value) >= _END_MARKER.size:
                epoch = _END_MARKER.unpack_from(value)[1]
            return ControlRecord(
                record.offset, record.timestamp_ms, kind, epoch, key, value
            )
        return None

    def __repr__(self) -> str:
        return (
            f"RecordBatch(base_offset={self.base_offset}, "
            f"last_offset={self.last_offset}, magic={self.magic}, "
            f"compression={self.compression!r}, record_count={self.record_count}, "
            f"position={self.position}, size_bytes={self.size_bytes})"
        )


class Chunk:
    """Whole batches of one segment, as `Partition.fetch` returns them.

    Attributes:
        buffer: memoryview over the batches as they are on disk. The first may begin
            below the offset that was asked for.
        next_offset: where to fetch next: one past the last offset in `buffer`.

    Iterating gives the records from the offset that was asked for on.
    """

    __slots__ = (
        "_limit",
        "_raise",
        "_start",
        "_stop",
        "_wanted",
        "buffer",
        "next_offset",
    )

    def __init__(
        self,
        data: bytes,
        start: int,
        stop: int,
        next_offset: int,
        limit: int,
        raise_damage: Callable[[Damage], Exception],
        wanted: Callable[[native.BatchHeader], bool] | None = None,
    ) -> None:
        self.buffer = memoryview(data)
        self.next_offset = next_offset
        self._start = start
        self._stop = stop
        self._limit = limit
        self._raise = raise_damage
        self._wanted = wanted

    def __iter__(self) -> Iterator[Record]:
        capacity = min(16384, len(self.buffer) // 12 + 1)
        reader = ChunkReader(self._limit, wanted=self._wanted, capacity=capacity)
        data = self.buffer.obj
        c = native.pointer(data)
        runs = reader.columns(c, data, len(self.buffer), 0, self._start, self._stop)
        try:
            for columns in runs:
                yield from iter_records(columns)
        except Damage as damage:
            raise self._raise(damage) from damage

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"Chunk({len(self.buffer)} bytes, next_offset={self.next_offset})"


_BYTES_LIKE: Final = (bytes, bytearray, memoryview)


def check_payload_type(value: object, what: str, index: int | None = None) -> None:
    """Raise `TypeError` unless `value` may be a key or value."""
    if type(value) is bytes or value is None:
        return
    if isinstance(value, _BYTES_LIKE):
        return
    at = "" if index is None else f" at index {index}"
    raise TypeError(
        f"{what}{at} is {type(value).__name__}, not bytes, bytearray, memoryview or "
        f"None; nothing was written"
    )


def as_bytes(value: Any) -> bytes | None:
    """Bytes of an accepted key or value (a memoryview of any shape is flattened)."""
    return value if value is None or type(value) is bytes else bytes(value)


def pack_column(items: Sequence[Any], what: str) -> native.Slices:
    """A column of keys or values for C.

    Raises:
        TypeError: an element is no bytes-like object and not None.
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
