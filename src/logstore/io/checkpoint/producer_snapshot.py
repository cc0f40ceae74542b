"""Kafka's producer snapshots, `.snapshot`: the producers of a log up to an offset.

A snapshot has the last batch of each producer. The offset is its name; the log itself
is authoritative. The format is in docs/format.md, "Producer snapshot".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import CorruptCheckpointError
from logstore.io.directory import Directory
from logstore.io.layout import SNAPSHOT, parse_segment_file, segment_file

__all__ = [
    "ProducerEntry",
    "format_snapshot",
    "parse_snapshot",
    "read_snapshot",
    "snapshot_offsets",
]

_VERSION: Final = 1
_HEADER: Final = struct.Struct(">hIi")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
_CRC_END: Final = 6


class ProducerEntry(NamedTuple):
    """One producer in a `.snapshot`.

    Attributes:
        last_sequence, last_offset, offset_delta: of its last batch: the sequence and
            the offset of the last record, and how many records are before that; -1,
            -1, 0 without a batch since its epoch was raised. The offset alone is -1 if
            the batch was deleted and only its sequence is known.
        timestamp: largest one of its last batch or marker, in ms.
        coordinator_epoch: of its last marker, or -1.
        current_txn_first_offset: of its open transaction, or -1.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int


def parse_snapshot(data: bytes, path: str) -> list[ProducerEntry]:
    """The entries of a producer snapshot.

    Raises:
        CorruptCheckpointError: wrong version, checksum or length.
    """
    reason = ""
    if len(data) < _HEADER.size:
        reason = f"it has {len(data)} bytes"
    else:
        version, crc, count = _HEADER.unpack_from(data)
        if version != _VERSION:
            reason = f"its version is {version}, not {_VERSION}"
        elif native.crc32c(memoryview(data)[_CRC_END:]) != crc:
            reason = "its checksum differs"
        elif len(data) != _HEADER.size + count * _ENTRY.size:
            reason = f"it has {len(data)} bytes for {count} entries"
    if reason:
        raise CorruptCheckpointError(
            f"producer snapshot {path} cannot be used: {reason}",
            path=path,
            reason=reason,
        )
    return [
        ProducerEntry(*fields) for fields in _ENTRY.iter_unpack(data[_HEADER.size :])
    ]


def format_snapshot(entries: Sequence[ProducerEntry]) -> bytes:
    """The content of a producer snapshot."""
    body = b"".join(_ENTRY.pack(*entry) for entry in entries)
    crc = native.crc32c(_COUNT.pack(len(entries)) + body)
    return _HEADER.pack(_VERSION, crc, len(entries)) + body


def read_snapshot(directory: Directory, offset: int) -> list[ProducerEntry]:
    """The entries of the snapshot at an offset of a partition.

    Raises:
        OSError: the system refuses; FileNotFoundError if it does not exist.
        CorruptCheckpointError: it is damaged.
    """
    name = segment_file(offset, SNAPSHOT)
    return parse_snapshot(directory.read_file(name), directory.path_of(name))


def snapshot_offsets(directory: Directory) -> list[int]:
    """The offsets of the snapshots in the directory of a partition, in order.

    Raises:
        OSError: the system refuses.
    """
    return sorted(
        parsed.base_offset
        for name in directory.names()
        if (parsed := parse_segment_file(name))
        and parsed.suffix == SNAPSHOT
        and not parsed.transition
    )
