"""Batches of idempotent producers, as a client sends them."""

from __future__ import annotations

import gzip
import struct
import time

import crc32c

from support.hostile import record, varint

__all__ = ["sent"]


def sent(
    producer_id: int,
    epoch: int,
    sequence: int,
    count: int = 1,
    *,
    timestamp_ms: int | None = None,
    codec: int = 0,
    attributes: int = 0,
) -> bytes:
    """A batch of magic 2 whose values are the sequences of its records.

    Args:
        timestamp_ms: of all records; now by default.
        codec: 0 none, 1 gzip.
    """
    when = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    payload = b""
    for number in range(count):
        value = b"%d" % ((sequence + number) % 2**31)
        fields = b"\0" + varint(0) + varint(number) + varint(-1)
        payload += record(fields + varint(len(value)) + value + varint(0))
    if codec:
        payload = gzip.compress(payload, mtime=0)
    covered = struct.pack(
        ">hiqqqhii", attributes | codec, count - 1, when, when, producer_id, epoch,
        sequence, count,
    ) + payload  # fmt: skip
    head = struct.pack(">qiib", 0, len(covered) + 9, -1, 2)
    return head + struct.pack(">I", crc32c.crc32c(covered)) + covered
