"""The lines about batches, from their heads alone: also of damaged ones."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

import logstore

__all__ = ["Head", "batch_line", "boolean", "following", "head_of"]

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_BATCH: Final = struct.Struct(">qiibIhiqqqhii")
_MESSAGE: Final = struct.Struct(">qiIbbq")
_LABELS: Final = ("CreateTime", "LogAppendTime")
_SEQUENCE_MAX: Final = (1 << 31) - 1


class Head(NamedTuple):
    """The head of a batch.

    Attributes:
        base: the first offset; -1 in magic 0 and 1, which do not have it.
        label: of timestamps.
        records: how many; -1 in magic 0 and 1.
        horizon: None without one.
    """

    position: int
    size: int
    magic: int
    crc: int
    codec: int
    label: str
    base: int
    last: int
    time: int
    records: int = -1
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    sequence: int = -1
    is_transactional: bool = False
    is_control: bool = False
    horizon: int | None = None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; -1 if its producer does not number records."""
        if self.sequence == -1:
            return -1
        return following(self.sequence, self.last - self.base)


def head_of(frame: Any) -> Head:
    """The head of a `LogFrame`.

    Raises:
        CorruptRecordError: the file has no whole head, or there is no such codec.
    """
    head, magic = frame.head, int.from_bytes(frame.head[16:17], "big", signed=True)
    if len(head) < (_BATCH if magic >= 2 else _MESSAGE).size - 8 * (magic == 0):
        raise _damaged(frame, f"the file ends with the first {len(head)} bytes of it")
    if magic >= 2:
        (
            base, _, epoch, _, crc, attributes, delta, base_time, time, producer,
            producer_epoch, sequence, count,
        ) = _BATCH.unpack_from(head)  # fmt: skip
        parsed_head = Head(
            frame.position,
            frame.size_bytes,
            magic,
            crc,
            attributes & 7,
            _LABELS[attributes >> 3 & 1],
            base,
            _int64(base + delta),
            time,
            count,
            epoch,
            producer,
            producer_epoch,
            sequence,
            bool(attributes & 0x10),
            bool(attributes & 0x20),
            base_time if attributes & 0x40 else None,
        )
    else:
        offset, _, crc, _, attributes, time = _MESSAGE.unpack(
            head[: _MESSAGE.size].ljust(_MESSAGE.size, b"\0")
        )
        label = "NoTimestampType" if magic < 1 else _LABELS[attributes >> 3 & 1]
        parsed_head = Head(
            frame.position,
            frame.size_bytes,
            magic,
            crc,
            attributes & 7,
            label,
            -1,
            offset,
            -1 if magic < 1 else time,
        )
    if parsed_head.codec >= len(CODECS):
        raise _damaged(frame, f"it has the unknown codec {parsed_head.codec}")
    return parsed_head


def _damaged(frame: Any, reason: str) -> logstore.CorruptRecordError:
    return logstore.CorruptRecordError(
        f"a batch is damaged: {reason}",
        path=frame.path,
        position=frame.position,
        offset=0,
    )


def _int64(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def following(sequence: int, delta: int) -> int:
    """A sequence number further on; 0 follows the largest int32."""
    number = sequence + delta
    return number if number <= _SEQUENCE_MAX else number - _SEQUENCE_MAX - 1


def batch_line(head: Head, is_valid: bool, release: str) -> str:
    """The line about a batch."""
    codec = CODECS[head.codec]
    horizon = ""
    if release == "2.8":
        codec = codec.upper()
    elif head.horizon is None:
        horizon = " deleteHorizonMs: OptionalLong.empty"
    else:
        horizon = f" deleteHorizonMs: OptionalLong[{head.horizon}]"
    if head.magic >= 2:
        text = (
            f"baseOffset: {head.base} lastOffset: {head.last} "
            f"count: {head.records} baseSequence: {head.sequence} "
            f"lastSequence: {head.last_sequence} producerId: {head.producer_id} "
            f"producerEpoch: {head.producer_epoch} "
            f"partitionLeaderEpoch: {head.leader_epoch} "
            f"isTransactional: {boolean(head.is_transactional)} "
            f"isControl: {boolean(head.is_control)}{horizon}"
        )
    else:
        text = f"offset: {head.last}"
    return (
        f"{text} position: {head.position} {head.label}: {head.time} "
        f"size: {head.size} magic: {head.magic} compresscodec: {codec} "
        f"crc: {head.crc} isvalid: {boolean(is_valid)}"
    )


def boolean(value: bool) -> str:
    """Text of a boolean in Java."""
    return "true" if value else "false"
