"""The newest batches of a log, in memory: what a look at a log has just read.

A follower delivers them without reading them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from logstore import _native as native
from logstore.record.decoder import ChunkReader

__all__ = ["VerifiedTail", "tail_columns"]


class VerifiedTail(NamedTuple):
    """Whole batches at the end of a log, whose checksums were verified, and which were
    part of the log when the look that read them ended.

    Attributes:
        start_offset, end_offset: their offsets, half open, without gaps.
        buffer: has them, and never changes.
        pos, size: their place in the buffer, half open.
        checks: of their segment.
    """

    start_offset: int
    end_offset: int
    buffer: native.Buffer
    pos: int
    size: int
    checks: int

    def has(self, start: int, stop: int) -> bool:
        """Whether it has every record with start <= offset < stop, of which there is
        one at least."""
        return self.start_offset <= start < stop <= self.end_offset


def tail_columns(
    tail: VerifiedTail, start: int, stop: int, reader: ChunkReader
) -> Iterator[native.Columns]:
    """Runs of decoded records with start <= offset < stop; as `ChunkReader.columns`.

    Raises:
        Damage: after the records before it.
    """
    return reader.columns(
        tail.buffer.c,
        tail.buffer.raw,
        tail.size,
        tail.start_offset - 1,
        tail.checks,
        start,
        stop,
        pos=tail.pos,
    )
