"""A `.log` file of any name, as a segment."""

from __future__ import annotations

import struct
from typing import Final

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG
from logstore.segment import Segment

BUFFER_BYTES: Final = 1 << 20
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

    def file_names(self) -> tuple[str, ...]:
        return (self.name,)
