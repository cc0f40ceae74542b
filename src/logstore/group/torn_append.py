"""What an append to a group's file leaves that was cut short, told from damage."""

from __future__ import annotations

from typing import Final

from logstore import _native as native

__all__ = ["may_be_torn", "whole_batch"]

_MAGIC_POS: Final = 16
_HEADER_BYTES: Final = 61


def may_be_torn(tail: bytes, offset: int) -> bool:
    """Whether some bytes may be what is left of an append: its first bytes, or zeros
    where a file system had no time to write them."""
    begin = offset.to_bytes(8, "big")
    head, magic = tail[:8], tail[_MAGIC_POS : _MAGIC_POS + 1]
    return (head == begin[: len(head)] or not any(head)) and magic in (
        b"",
        b"\0",
        b"\2",
    )


def whole_batch(data: bytes) -> int | None:
    """Where a whole batch of magic 2 begins, after the first byte; None: nowhere."""
    c = native.pointer(data)
    at = data.find(b"\2", 1 + _MAGIC_POS)
    while at >= 0:
        pos = at - _MAGIC_POS
        length = int.from_bytes(data[pos + 8 : pos + 12], "big", signed=True)
        if _HEADER_BYTES - 12 <= length <= len(data) - pos - 12:
            scan = native.scan_batches(
                c, len(data), pos=pos, last_offset=native.OFFSET_UNKNOWN, count_max=1
            )
            if scan.headers and scan.error is None:
                return pos
        at = data.find(b"\2", at + 1)
    return None
