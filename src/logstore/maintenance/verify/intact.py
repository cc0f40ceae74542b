"""Finding the next intact batch after a damaged one."""

from __future__ import annotations

import struct
from typing import Final

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG
from logstore.log.resync import Sound, next_sound_batch
from logstore.segment import Segment

BUFFER_BYTES: Final = 1 << 20
LOOKUP_BYTES: Final = 16 * 1024
FRAME: Final = struct.Struct(">qi")  # offset, length of the rest


class RawSegment(Segment):
    """A segment whose `.log` file has any name."""

    __slots__ = ("name",)

    def __init__(
        self,
        directory: Directory,
        descriptors: Descriptors,
        name: str,
        base: int,
        size: int,
    ) -> None:
        super().__init__(directory, descriptors, base, size, native.OFFSET_MAX)
        self.name = name

    def file(self, suffix: str) -> str:
        return self.name if suffix == LOG else super().file(suffix)

    def _names(self) -> tuple[str, ...]:
        return (self.name,)


def next_sound(
    segment: Segment, pos: int, last: int, following: int | None = None
) -> Sound | None:
    """The next intact batch after a damaged one at `pos`; None if there is none up to
    the end of the file. Its offsets lie after `last`, and in the segment.

    `following`: the first offset after the segment, if it is known.
    """
    at = _skip_zeros(segment, pos)
    behind = -1 if following is None else following
    return next_sound_batch(segment, at, last + 1, following=behind)


def _skip_zeros(segment: Segment, pos: int) -> int:
    """The position at which a search can begin: zeros are not a batch, and a batch
    begins with at most eleven of them."""
    begin = native.Buffer(FRAME.size)
    if any(begin.raw[: segment.read(begin.view, pos)]):
        return pos
    scratch = native.Buffer(BUFFER_BYTES)
    at = pos
    while at < segment.size:
        n = segment.read(scratch.view, at)
        rest = len(scratch.raw[:n].lstrip(b"\0"))
        if rest or n == 0:
            return max(pos, at + n - rest - FRAME.size)
        at += n
    return segment.size
