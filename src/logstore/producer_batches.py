"""Batches that a producer made, checked and given their offsets.

Magic and codec of each batch stay. Where the format allows it only the offset is
patched, which no checksum covers; wrappers of magic 0, and of magic 1 whose inner
offsets are not 0, 1, 2, ..., are written anew around their records.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from logstore import _binding as native
from logstore import compression
from logstore.config import TopicConfig
from logstore.decoding import Damage, damage_of, memoryview_slicer, open_payload
from logstore.encoder import LOG_APPEND_TIME_BIT, wrap
from logstore.errors import (
    CorruptRecordError,
    RecordTooLargeError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["assign"]

_OFFSET_AND_SIZE = struct.Struct(">qi")
_SCAN_COUNT = 256


def assign(
    buffer: ReadableBuffer,
    base_offset: int,
    leader_epoch: int,
    *,
    max_bytes: int,
    decompressed_max: int,
    append_time_ms: int | None,
    where: str,
) -> tuple[list[bytes], int]:
    """Check producer batches and give them offsets from `base_offset` on.

    `append_time_ms`: replaces the timestamps (magic 1 and 2); None: they stay.

    Returns (runs of whole batches, number of offsets taken).

    Raises:
        CorruptRecordError: a checksum, a structure, a partial last batch.
        UnsupportedError: a control batch, one of a transaction, an unknown magic.
        RecordTooLargeError: a batch beyond `max_bytes` or `decompressed_max`.
    """
    data = bytearray(memoryview(buffer).cast("B"))
    c = native.pointer(data)
    next_offset = base_offset
    runs: list[bytes] = []
    kept_from = 0
    pos = 0
    while pos < len(data):
        scan = native.scan_batches(
            c,
            len(data),
            pos=pos,
            checks=native.CHECK_CRC,
            count_max=_SCAN_COUNT,
        )
        for header in scan.headers:
            try:
                changed, count = _assign_one(
                    c, data, header, next_offset, leader_epoch, max_bytes,
                    decompressed_max, append_time_ms,
                )  # fmt: skip
            except Damage as damage:
                raise _refused(damage, header.pos, where) from damage
            if append_time_ms is not None and changed is None:
                native.restamp(c, header, append_time_ms)
            if changed is not None:
                runs += [bytes(data[kept_from : header.pos]), changed]
                kept_from = header.pos + header.size
            next_offset += count
        pos = scan.pos
        if scan.error is not None:
            raise _refused(damage_of(scan.error), pos, where)
        if scan.stop != native.STOP_FULL and pos < len(data):
            raise _refused(Damage("the last batch is partial", pos), pos, where)
    runs.append(bytes(data[kept_from:]))
    return [run for run in runs if run], next_offset - base_offset


def _refused(damage: Damage, pos: int, where: str) -> Exception:
    if damage.too_large is not None:
        return damage.too_large
    text = f"batch at byte {pos} of the buffer for {where}: {damage.reason}"
    if damage.unsupported:
        return UnsupportedError(f"{text}; nothing was written", position=pos)
    return CorruptRecordError(
        f"{text}; nothing was written",
        path=f"<append_batches to {where}>",
        position=pos,
        offset=max(damage.offset, 0),
    )


def _assign_one(
    c: object,
    data: bytearray,
    header: native.BatchHeader,
    offset: int,
    leader_epoch: int,
    max_bytes: int,
    decompressed_max: int,
    append_time_ms: int | None,
) -> tuple[bytes | None, int]:
    """Check one batch and patch its offset in place, or return it written anew.

    Returns (new bytes or None, records).
    """
    if header.is_control or header.is_transactional:
        kind = "a control batch" if header.is_control else "part of a transaction"
        raise Damage(
            f"it is {kind}, which only a broker can append",
            header.pos,
            unsupported=True,
        )
    if header.size > max_bytes:
        raise Damage(
            "too large",
            header.pos,
            too_large=RecordTooLargeError(
                f"a batch takes {header.size} bytes, more than max_message_bytes="
                f"{max_bytes}; nothing was written",
                limit_name="max_message_bytes",
                limit=max_bytes,
                size=header.size,
            ),
        )
    decoder = native.Decoder(1024)
    payload: bytes | bytearray | memoryview = b""
    if header.magic == 2 or header.codec:
        payload = open_payload(header, memoryview_slicer(data), decompressed_max)
        decoder.decode_payload(
            header, native.pointer(payload), len(payload), 0, native.OFFSET_MAX
        )
    else:
        _decode_plain(decoder, c, header)
    if decoder.error is not None:
        raise damage_of(decoder.error, header.pos)
    if header.magic == 2:
        _check_header_names(decoder, payload, header.pos)
    count = decoder.count
    offsets = decoder.unpack(decoder.offset)
    consecutive = bool(count) and offsets == list(range(offsets[0], offsets[0] + count))
    if header.magic == 2:
        if not count or not consecutive or offsets[0] != header.base_offset or (
            header.last_offset - header.base_offset + 1 != count
        ):  # fmt: skip
            raise Damage(
                f"its {count} records do not have the offsets 0, 1, 2, ...", header.pos
            )
        native.assign_offset(c, header, offset, leader_epoch)
        return None, count
    if not header.codec:
        native.assign_offset(c, header, offset, leader_epoch)
        return None, 1
    last = offset + count - 1
    newest = max(decoder.unpack(decoder.timestamp))
    if header.magic == 1 and consecutive and (
        header.max_timestamp == newest or append_time_ms is not None
    ):  # fmt: skip
        native.assign_offset(c, header, last, leader_epoch)
        return None, count
    first = offset if header.magic == 0 else 0
    renumbered = _renumber(payload, first)
    packed = compression.compress(
        header.codec,
        renumbered,
        header.magic,
        compression.level_of(_DEFAULTS, header.codec),
    )
    attributes = header.attributes & 0x0F
    if append_time_ms is not None and header.magic == 1:
        attributes, newest = attributes | LOG_APPEND_TIME_BIT, append_time_ms
    return wrap(packed, header.magic, attributes, last, newest, max_bytes), count


_DEFAULTS = TopicConfig()


def _check_header_names(
    decoder: native.Decoder, payload: bytes | bytearray | memoryview, pos: int
) -> None:
    """Raise `Damage` for a header name that is not UTF-8: it could not be read as it
    was written."""
    counts = decoder.unpack(decoder.header_count)
    if not any(counts):
        return
    c = native.pointer(payload)
    view = memoryview(payload)
    places = decoder.unpack(decoder.header_pos)
    for place, count in zip(places, counts, strict=True):
        if not count:
            continue
        for at, size, _, _ in native.decode_headers(c, len(payload), place, count):
            try:
                str(view[at : at + size], "utf-8")
            except UnicodeDecodeError:
                # Without the cause, which has the name in it.
                raise Damage("a header name is not UTF-8", pos) from None


def _decode_plain(
    decoder: native.Decoder, c: object, header: native.BatchHeader
) -> None:
    end = header.pos + header.size
    decoder.begin()
    decoder.decode(c, end, header.pos, 0, native.OFFSET_MAX, native.CHECK_CRC)


def _renumber(payload: ReadableBuffer, first: int) -> bytes:
    """Inner messages with other offsets, from `first` on; no checksum covers them."""
    out = bytearray(payload)
    pos = 0
    while pos < len(out):
        _, size = _OFFSET_AND_SIZE.unpack_from(out, pos)
        _OFFSET_AND_SIZE.pack_into(out, pos, first, size)
        first += 1
        pos += _OFFSET_AND_SIZE.size + size
    return bytes(out)
