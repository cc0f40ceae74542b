"""The last batch that a state vouches for: whether it is still in the log shows how
much of the log is unchanged, after another program has written."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from logstore.errors import LogStoreError
from logstore.io.directory import Directory
from logstore.io.layout import LOG, segment_file

__all__ = ["LogTail"]

# Of each batch: offset, length of the rest, 4 bytes, magic.
_FRAME: Final = struct.Struct(">qi4xb")
_FRAME_END: Final = 12
_MAGIC_2: Final = 2
# The checksum follows the length in magic 0 and 1, and the magic in magic 2.
_CRC: Final = struct.Struct(">I")
_CRC_OLD: Final = 12
_CRC_NEW: Final = 17
_LAST_DELTA: Final = struct.Struct(">i")
_LAST_DELTA_AT: Final = 23
_HEAD_BYTES: Final = 27
# Batches that are walked over from the last index entry on; more, and there is no tail.
_WALK_MAX: Final = 4096


class LogTail(NamedTuple):
    """One batch of a segment.

    Attributes:
        last_offset: its last offset.
        position: its first byte in the file.
        crc: its checksum, as stored.
    """

    last_offset: int
    position: int
    crc: int

    @classmethod
    def find(
        cls, directory: Directory, base_offset: int, position: int, size: int
    ) -> LogTail | None:
        """The last batch of the first `size` bytes of a segment's log; None if it
        is unknown.

        Args:
            position: that of a batch, at the end or not far before it.
        """
        try:
            with directory.opened(segment_file(base_offset, LOG)) as fd:
                for _ in range(_WALK_MAX):
                    batch = _read(directory, fd, position)
                    if batch is None or batch[1] > size:
                        return None
                    if batch[1] == size:
                        return batch[0]
                    position = batch[1]
        except (OSError, LogStoreError):
            return None
        return None

    def stands(self, directory: Directory, base_offset: int) -> bool:
        """Whether the segment still has this batch at its place.

        Raises:
            OSError: as the system gives it.
        """
        try:
            with directory.opened(segment_file(base_offset, LOG)) as fd:
                batch = _read(directory, fd, self.position)
                size = directory.files.size(fd)
        except FileNotFoundError:
            return False
        return batch is not None and batch[0] == self and batch[1] <= size


def _read(directory: Directory, fd: int, position: int) -> tuple[LogTail, int] | None:
    """The batch at a position, and its end."""
    head = bytearray(_HEAD_BYTES)
    n = directory.files.read(fd, head, position)
    if n < _FRAME.size:
        return None
    offset, length, magic = _FRAME.unpack_from(head)
    end = position + _FRAME_END + length
    if length <= 0 or not 0 <= magic <= _MAGIC_2 or offset < 0:
        return None
    if magic < _MAGIC_2:
        return LogTail(offset, position, _CRC.unpack_from(head, _CRC_OLD)[0]), end
    if n < _HEAD_BYTES:
        return None
    last = offset + _LAST_DELTA.unpack_from(head, _LAST_DELTA_AT)[0]
    return LogTail(last, position, _CRC.unpack_from(head, _CRC_NEW)[0]), end
