"""Records read as far as their structure holds, whatever a checksum says.

`logstore._native` decodes all records of a batch or none. Of damage,
the records before it are of use, and messages with wrong checksums, too.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import RecordTooLargeError
from logstore.record import compression
from logstore.record.decoder import Damage
from logstore.record.record import TIMESTAMP_TYPES, Record

__all__ = ["LogMessage", "messages", "records"]

_FRAME: Final = struct.Struct(">qi")
_MESSAGE: Final = struct.Struct(">Ibb")  # checksum, magic, attributes
_MESSAGE_MIN: Final = 14
_CODEC_MASK, _APPEND_TIME = 7, 8
_NO_TIME: Final = -1


class LogMessage(NamedTuple):
    """A message of magic 0 or 1.

    Attributes:
        crc: its checksum as stored.
        is_valid: whether that is the checksum of its bytes.
    """

    record: Record
    crc: int
    is_valid: bool


class _Bytes:
    """Takes values from the bytes of a record."""

    __slots__ = ("_data", "pos")

    def __init__(self, data: bytes, pos: int = 0) -> None:
        self._data = data
        self.pos = pos

    @property
    def left(self) -> int:
        return len(self._data) - self.pos

    def take(self, size: int) -> bytes:
        if size < 0 or size > self.left:
            raise Damage(f"a record states {size} bytes, and {self.left} are left", 0)
        self.pos += size
        return self._data[self.pos - size : self.pos]

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big", signed=True)

    def varint(self, bits: int) -> int:
        value = 0
        for shift in range(0, bits + 6, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= (1 << bits) - 1
                return value >> 1 ^ -(value & 1)
        raise Damage(f"a number of a record has more than {bits} bits", 0)

    def blob(self, size: int) -> bytes | None:
        return None if size < 0 else self.take(size)


def _decompressed(codec: int, magic: int, payload: bytes, limit: int) -> bytes:
    if codec == 0:
        return payload
    try:
        return bytes(compression.decompress(codec, memoryview(payload), magic, limit))
    except compression.CodecError as error:
        raise Damage(str(error), 0) from error
    except RecordTooLargeError as error:
        raise Damage(str(error), 0, too_large=error) from error


def records(header: native.BatchHeader, data: bytes, limit: int) -> Iterator[Record]:
    """The records of a batch of magic 2, control records among them.

    Args:
        header: scanned from `data`, the batch's bytes.
        limit: most bytes that it may decompress to.

    Raises:
        Damage: the payload cannot be decompressed, or its structure is broken: after
            the records before that.
    """
    kind = TIMESTAMP_TYPES[header.timestamp_type]
    append_time = header.max_timestamp if header.timestamp_type == 1 else None
    payload = data[header.payload_pos : header.payload_pos + header.payload_size]
    source = _Bytes(_decompressed(header.codec, 2, payload, limit))
    for number in range(1, header.record_count + 1):
        inner = _Bytes(source.take(source.varint(32)))
        inner.take(1)
        timestamp = header.base_timestamp + inner.varint(64)
        offset = header.base_offset + inner.varint(32)
        key, value = inner.blob(inner.varint(32)), inner.blob(inner.varint(32))
        headers = []
        for _ in range(inner.varint(32)):
            name = inner.take(inner.varint(32)).decode("utf-8", "replace")
            headers.append((name, inner.blob(inner.varint(32))))
        if inner.left:
            raise Damage(f"a record has {inner.left} bytes left over", 0)
        if number == header.record_count and source.left:
            raise Damage(f"{source.left} bytes follow the last record of a batch", 0)
        timestamp = timestamp if append_time is None else append_time
        yield Record(offset, timestamp, key, value, tuple(headers), kind)


def messages(data: bytes, limit: int) -> list[LogMessage]:
    """The messages of a batch of magic 0 or 1: one, or the messages in a wrapper.

    Args:
        data: the batch's bytes.
        limit: most bytes that it may decompress to.

    Raises:
        Damage: the payload cannot be decompressed, or a structure is broken.
    """
    offset, _ = _FRAME.unpack_from(data)
    outer = data[_FRAME.size :]
    _, magic, attributes = _MESSAGE.unpack_from(outer)
    codec = attributes & _CODEC_MASK
    wrapper = _message(outer, offset, None)
    if not codec:
        return [wrapper]
    value, kind = wrapper.record.value, wrapper.record.timestamp_type
    if value is None:
        raise Damage("a wrapper has a null value", 0)
    append_time = wrapper.record.timestamp_ms if kind == 1 else None
    inner = _inner(_decompressed(codec, magic, value, limit))
    if not inner:
        raise Damage("a wrapper has no messages", 0)
    # In magic 1 the offsets count from the first one; a wrapper has the last one.
    shift = 0
    if magic == 1 and offset:
        shift = offset - inner[-1][0]
        if shift < 0:
            raise Damage(
                f"a wrapper has offset {offset}, and its last message {inner[-1][0]}", 0
            )
    inner_messages = []
    for inner_offset, bytes_ in inner:
        _, inner_magic, inner_attributes = _MESSAGE.unpack_from(bytes_)
        if inner_magic != magic:
            raise Damage(f"a message of magic {inner_magic} is in one of {magic}", 0)
        if inner_attributes & _CODEC_MASK:
            raise Damage("a message in a wrapper is compressed", 0)
        inner_messages.append(_message(bytes_, inner_offset + shift, append_time))
    return inner_messages


def _inner(payload: bytes) -> list[tuple[int, bytes]]:
    """(offset, bytes) of the messages in a wrapper; a torn last one is left out."""
    frames, pos = [], 0
    while pos + _FRAME.size <= len(payload):
        offset, size = _FRAME.unpack_from(payload, pos)
        pos += _FRAME.size
        if size < _MESSAGE_MIN:
            raise Damage(f"a message states {size} bytes; it has {_MESSAGE_MIN}", 0)
        if pos + size > len(payload):
            break
        frames.append((offset, payload[pos : pos + size]))
        pos += size
    return frames


def _message(data: bytes, offset: int, append_time: int | None) -> LogMessage:
    """A message, from its bytes but for its offset and its size."""
    crc, magic, attributes = _MESSAGE.unpack_from(data)
    source = _Bytes(data, _MESSAGE.size)
    timestamp, kind = _NO_TIME, _NO_TIME
    if magic == 1:
        timestamp, kind = source.number(8), attributes >> 3 & 1
    if append_time is not None:
        timestamp, kind = append_time, 1
    key, value = source.blob(source.number(4)), source.blob(source.number(4))
    record = Record(offset, timestamp, key, value, (), TIMESTAMP_TYPES[kind])
    return LogMessage(record, crc, zlib.crc32(data[4:]) == crc)
