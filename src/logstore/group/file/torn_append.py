"""What an append to a group's file leaves that was cut short, told from damage."""

from __future__ import annotations

from typing import Final

from logstore import _native as native
from logstore.record.batch_search import possible_batches

__all__ = ["may_be_torn", "whole_batch"]

_MAGIC_POS: Final = 16


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
    for at, is_whole in possible_batches(data, native.pointer(data)):
        if is_whole and at and data[at + _MAGIC_POS] == 2:
            return at
    return None
