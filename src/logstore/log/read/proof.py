"""The proof of a position: the checksum of the batch that ends below it.

Two logs can have the same offsets and different records: copies that both grew, or the
log of a machine that was restored to an earlier state.
"""

from __future__ import annotations

import contextlib
from typing import Final

from logstore import _native as native
from logstore.errors import LogStoreError
from logstore.log.read.view import ChangedError, View
from logstore.segment import LOOKUP_BYTES

__all__ = ["disproves", "proof_of"]

_MAGIC_2: Final = 2
_HAS_DELETE_HORIZON: Final = 0x40


def _batch_at(view: View, offset: int) -> native.BatchHeader | None:
    """The first batch of a log that does not end before an offset; None: there is none,
    or it cannot be read now."""
    if not view.start_offset <= offset < view.log_end:
        return None
    with contextlib.suppress(LogStoreError, OSError, ChangedError):
        for segment in view.from_offset(offset):
            place = segment.seek(segment.locate(offset), offset)
            if place is not None:
                found = segment.first_header(place.pos, native.Buffer(LOOKUP_BYTES))
                return None if found is None else found[0]
    return None


def proof_of(view: View, position: int) -> int | None:
    """The checksum of the batch that ends directly below a position; None: there is
    none, as at the start of the log, inside of a batch, or after a gap."""
    header = _batch_at(view, position - 1)
    is_below = header is not None and header.last_offset == position - 1
    return header.crc if header is not None and is_below else None


def disproves(view: View, position: int, proof: int, *, may_be_compacted: bool) -> bool:
    """Whether the log has another batch below a position than the one with a checksum.

    It does not if retention or compaction has removed the batch, or a part of it.

    Args:
        may_be_compacted: compressed batches of magic 0 and 1 may have lost records.
    """
    header = _batch_at(view, position - 1)
    if header is None or header.crc == proof:
        return False
    if header.magic == _MAGIC_2:
        offsets = header.last_offset - header.base_offset + 1
        is_whole = header.record_count == offsets
        is_there = header.base_offset < position  # else compaction has left a gap
        return is_there and is_whole and not header.attributes & _HAS_DELETE_HORIZON
    # Of a wrapper, the first offset is not known without unpacking it.
    is_below = header.last_offset == position - 1
    return is_below and not (header.codec and may_be_compacted)
