"""The proof of a position: the checksum of the batch that ends below it.

Two logs can have the same offsets and different records: copies that both grew, or the
log of a machine that was restored to an earlier state.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, NamedTuple

from logstore import _native as native
from logstore.errors import LogStoreError
from logstore.log.read.view import ChangedError, View
from logstore.segment import OffsetPosition, Segment

__all__ = ["ProofFinder", "disproves"]

_MAGIC_2: Final = 2
_HAS_DELETE_HORIZON: Final = 0x40
# Up to this many reads look for the next position, before the index is used.
_NEAR_READS: Final = 4


class _Batch(NamedTuple):
    """A batch of a log, and its place.

    Attributes:
        view: the log when the batch was found.
        first: for each offset from this one up to its last one, it is the first batch
            that does not end before that offset.
        pos: of its first byte in the segment.
    """

    view: View
    segment: Segment
    header: native.BatchHeader
    first: int
    pos: int


def _batch_at(view: View, offset: int) -> _Batch | None:
    """The first batch of a log that does not end before an offset; None: it does not
    exist, or cannot be read now."""
    if not view.start_offset <= offset < view.log_end:
        return None
    with contextlib.suppress(LogStoreError, OSError, ChangedError):
        for segment in view.from_offset(offset):
            located_batch = segment.seek(None, offset)
            if located_batch is not None:
                return _Batch(
                    view, segment, located_batch[1], offset, located_batch[0].pos
                )
    return None


def _batch_after(batch: _Batch, view: View, offset: int) -> _Batch | None:
    """The same, if it is a known batch or one soon after it in its segment; None:
    unknown.

    Args:
        view: the present log; nothing was cut or compacted since the batch was found.
    """
    segment, header = batch.segment, batch.header
    if not max(view.start_offset, batch.first) <= offset < view.log_end:
        return None
    if offset <= header.last_offset:
        return batch
    place = OffsetPosition(batch.pos + header.size, header.last_offset)
    with contextlib.suppress(LogStoreError, OSError):
        located_batch = segment.seek(place, offset, _NEAR_READS)
        if located_batch is not None:
            place, header = located_batch
            return _Batch(view, segment, header, place.last_offset + 1, place.pos)
    return None


def _proof_in(batch: _Batch | None, position: int) -> int | None:
    """The proof of a position from the batch at the offset below it."""
    is_below = batch is not None and batch.header.last_offset == position - 1
    return batch.header.crc if batch is not None and is_below else None


class ProofFinder:
    """Finds the proofs of the positions of one reader, which mostly lie in the batch of
    the position before, or in the next one."""

    __slots__ = ("_batch",)

    def __init__(self) -> None:
        # That of the last position. It is valid until the log is cut.
        self._batch: _Batch | None = None

    def forget(self) -> None:
        """Look for the next position in the log at that time."""
        self._batch = None

    def find(
        self,
        position: int,
        seen: View | None,
        now: Callable[[], View],
        *,
        is_read: bool,
    ) -> int | None:
        """The checksum of the batch that ends directly below a position; None: there is
        none, as at the start of the log, inside of a batch, or after a gap.

        Args:
            seen: the last view of the log, if there is one.
            now: finds out how the log is now.
            is_read: the reader has read up to the position since the last `forget`: if
                the log was cut below it, it finds that out by itself.
        """
        batch, view = self._batch, seen
        if (
            # The same batch of the same view: most positions are inside of one.
            batch is not None
            and batch.view is seen
            and is_read
            and max(batch.first, seen.start_offset) < position
            and position <= min(batch.header.last_offset + 1, seen.log_end)
        ):
            header = batch.header
            return header.crc if header.last_offset == position - 1 else None
        if batch is not None and (view is None or position > view.log_end):
            view = batch.view
        if (
            view is None
            or position > view.log_end
            or not (is_read or view.source.is_as_it_was(view.life, view.cuts.serial))
        ):
            view = now()
        batch_below: _Batch | None = None
        if batch is not None and _is_same(batch.view, view):
            batch_below = _batch_after(batch, view, position - 1)
        if batch_below is None:
            batch_below = _batch_at(view, position - 1)
        self._batch = batch_below
        return _proof_in(batch_below, position)


def _is_same(view: View, other: View) -> bool:
    """Whether nothing was cut or compacted between two views of a log."""
    return (view.life, view.cuts.serial, view.compactions) == (
        other.life,
        other.cuts.serial,
        other.compactions,
    )


def disproves(view: View, position: int, proof: int, *, may_be_compacted: bool) -> bool:
    """Whether the log has another batch below a position than the one with a checksum.

    It does not if retention or compaction has removed the batch, or a part of it.

    Args:
        may_be_compacted: compressed batches of magic 0 and 1 may have lost records.
    """
    batch = _batch_at(view, position - 1)
    if batch is None or batch.header.crc == proof:
        return False
    header = batch.header
    if header.magic == _MAGIC_2:
        offsets = header.last_offset - header.base_offset + 1
        is_whole = header.record_count == offsets
        is_there = header.base_offset < position  # else compaction has left a gap
        return is_there and is_whole and not header.attributes & _HAS_DELETE_HORIZON
    # Of a wrapper, the first offset is not known without unpacking it.
    is_below = header.last_offset == position - 1
    return is_below and not (header.codec and may_be_compacted)
