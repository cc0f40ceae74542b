"""Batches in their form on disk: one (`RecordBatch`), or a buffer of them (`Chunk`)."""

from __future__ import annotations

import contextlib
import itertools
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from logstore import _native as native
from logstore.config import CODECS
from logstore.errors import CorruptRecordError, LogStoreError, UnsupportedError
from logstore.record.decoder import (
    ChunkReader,
    Damage,
    damage_of,
    memoryview_slicer,
    open_payload,
    slicer_of,
)
from logstore.record.record import TIMESTAMP_TYPES, Record

__all__ = ["Chunk", "ControlRecord", "RecordBatch"]

# Bytes of the smallest record of magic 2 (docs/format.md, "Record batch of magic 2").
RECORD_BYTES_MIN: Final = 7


class ControlRecord(NamedTuple):
    """The content of a control batch (docs/format.md, "Control records").

    Attributes:
        type: 0 ABORT, 1 COMMIT, others as Kafka's KRaft defines them.
        coordinator_epoch: that of a COMMIT or ABORT marker, else -1.
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


class RecordBatch:
    """One batch in its form on disk. Iterating gives its records.

    A magic 2 batch, a compressed wrapper of magic 0 or 1, or one uncompressed message
    of magic 0 or 1 (a batch of one). Iterating over a control batch gives no records;
    see `control_record`.

    Attributes:
        base_offset, last_offset: first and last offset (inclusive).
        next_offset: one past the last.
        magic, compression: 0 to 2; codec name.
        timestamp_type, max_timestamp_ms: see `TimestampType`; -1 for none.
        record_count: records in it (compaction may leave fewer than offsets, or none).
        leader_epoch, producer_id, producer_epoch, base_sequence: -1 if unknown.
        is_transactional, is_control: magic 2.
        crc: checksum as stored; it was checked when the batch was read.
        position: its first byte in the segment file.
        size_bytes: its whole length.
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
        checks: int = native.CHECK_ALL,
    ) -> None:
        """`data` is the batch's bytes; `header` was scanned from them (pos 0); `named`
        converts damage to the error that users see. `checks`, from its segment: how the
        offset of a wrapper must agree with the offsets of its messages."""
        self.header = header
        self._named = named
        self._limit = limit
        self._payload: Any = None
        self.buffer = memoryview(data)
        self.position = position
        self.size_bytes = header.size
        self.magic = header.magic
        self.compression = CODECS[header.codec]
        self.timestamp_type = TIMESTAMP_TYPES[header.timestamp_type]
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
            # A wrapper states neither the number of its records nor the first offset.
            payload = self._open()
            decoder = native.Decoder(256)
            c = native.pointer(payload)
            base = decoder.decode_payload(
                header, c, len(payload), 0, native.OFFSET_MAX, checks
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

    def _records(self) -> Iterator[Record]:
        if self.magic < 2 and not self.header.codec:
            payload: Any = self.buffer.obj
            c = native.pointer(payload)
            decoder = native.Decoder(1)
            decoder.decode(c, len(payload), 0, 0, native.OFFSET_MAX)
        else:
            payload = self._open()
            c = native.pointer(payload)
            # The count is from the header; the payload limits the memory.
            room = len(payload) // RECORD_BYTES_MIN
            decoder = native.Decoder(max(min(self.record_count, room), 1))
            decoder.decode_payload(
                self.header, c, len(payload), 0, native.OFFSET_MAX, native.CHECK_ALL
            )
        if decoder.error is not None:
            raise self._named(damage_of(decoder.error, 0))
        return native.decoded_records(
            native.Columns(decoder, c, slicer_of(payload), len(payload))
        )

    def __iter__(self) -> Iterator[Record]:
        return iter(()) if self.is_control else self._records()

    def __len__(self) -> int:
        return 0 if self.is_control else self.record_count

    def control_record(self) -> ControlRecord | None:
        """The content of a control batch; None for any other (and an emptied one)."""
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


class _Decided:
    """The batches of transactions that a chunk delivers, by their last offset."""

    __slots__ = ("_delivered", "undecided")

    def __init__(self, delivered: dict[int, bool]) -> None:
        self._delivered = delivered
        # It ends before the first such batch.
        self.undecided: CorruptRecordError | UnsupportedError | None = None

    def __call__(self, header: native.BatchHeader) -> bool:
        return self._delivered[header.last_offset]

    def begin_again(self, view: Any, offset: int) -> None:
        """A chunk is a copy: it does not change."""


class Chunk:
    """Whole batches of one segment, as `Partition.fetch` returns them.

    Attributes:
        buffer: memoryview over the batches in their form on disk. The first may begin
            below the requested offset.
        next_offset: where to fetch next: one past the last offset in `buffer`.

    Iterating gives the records from the requested offset on, the same ones each time.
    """

    __slots__ = (
        "_before",
        "_checks",
        "_delivered",
        "_limit",
        "_raise",
        "_start",
        "_stop",
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
        delivered: dict[int, bool] | None = None,
        before: int = native.OFFSET_UNKNOWN,
        checks: int = native.CHECK_ALL,
    ) -> None:
        self.buffer = memoryview(data)
        self._before = before
        self._checks = checks
        self.next_offset = next_offset
        self._start = start
        self._stop = stop
        self._limit = limit
        self._raise = raise_damage
        self._delivered = delivered

    def __iter__(self) -> Iterator[Record]:
        capacity = min(16384, len(self.buffer) // 12 + 1)
        batch_filter = None if self._delivered is None else _Decided(self._delivered)
        reader = ChunkReader(self._limit, batch_filter=batch_filter, capacity=capacity)
        data = self.buffer.obj
        runs = reader.columns(
            native.pointer(data),
            data,
            len(self.buffer),
            self._before,
            self._checks,
            self._start,
            self._stop,
        )
        first = self._start
        try:
            for columns in runs:
                first = (
                    int(columns.decoder.arrays.offset[columns.decoder.count - 1]) + 1
                )
                yield from native.decoded_records(columns)
        except Damage as damage:
            if damage.offset < 0:
                damage.offset = first
            raise self._raise(damage) from damage

    def first(self, limit: int) -> Chunk:
        """The same chunk with only its first `limit` records: `next_offset` is one past
        the last of them. The bytes in `buffer` do not change."""
        records = iter(self)
        head = list(itertools.islice(records, limit))
        # Ignore damage after them: a later read reports it.
        with contextlib.suppress(LogStoreError):
            if next(records, None) is None:
                return self
        chunk = Chunk.__new__(Chunk)
        for name in self.__slots__:
            setattr(chunk, name, getattr(self, name))
        chunk._stop = chunk.next_offset = head[-1].offset + 1 if head else self._start
        return chunk

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"Chunk({len(self.buffer)} bytes, next_offset={self.next_offset})"
