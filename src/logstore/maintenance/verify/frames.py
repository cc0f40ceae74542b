"""A log file from batch to batch by the sizes that they state, as Kafka's own tools
walk: what a checksum or a field says does not stop them, an impossible size does.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

from logstore import _native as native
from logstore.maintenance.verify import unchecked
from logstore.record.batch import RECORD_BYTES_MIN
from logstore.record.decoder import (
    Damage,
    damage_of,
    memoryview_slicer,
    open_payload,
    slicer_of,
)
from logstore.record.file_walk import FRAME_BYTES
from logstore.record.record import Record
from logstore.segment import Segment

__all__ = ["FRAME", "LogFrame", "LogFrames", "looks_torn"]

# Base offset, and the length of the bytes after these two.
FRAME: Final = struct.Struct(">qi")

# Bytes that are read at once: in order, and after `seek`.
_WINDOW_BYTES: Final = 1 << 20
_LOOK_BYTES: Final = 16 * 1024
# The head of a batch of magic 2, up to its records.
_HEAD_BYTES: Final = 61
# The least that the size of a batch counts.
_SIZE_MIN: Final = 14
_MAGIC_MAX: Final = 2
_CRC_BATCH_POS, _CRC_BATCH_BEGIN = 17, 21
_CRC_MESSAGE_POS, _CRC_MESSAGE_BEGIN = 12, 16


def looks_torn(frame: bytes, remaining: int) -> bool:
    """Whether the last bytes of a file begin as an incomplete batch, or with zeros:
    other bytes were never a batch."""
    if remaining <= FRAME_BYTES or not frame.strip(b"\0"):
        return True
    offset, length = FRAME.unpack_from(frame)
    magic = frame[FRAME_BYTES - 1]
    return offset >= 0 and magic <= _MAGIC_MAX and length + FRAME.size > remaining


class LogFrame:
    """The bytes of a `.log` file that state to be a batch.

    Attributes:
        position: its first byte in the file.
        size_bytes: its whole length, as it states; all of it is in the file.
        head: the bytes from there on: 61 of them, or less if the file has less.
    """

    __slots__ = ("_frames", "head", "position", "size_bytes")

    def __init__(
        self, frames: LogFrames, position: int, size_bytes: int, head: bytes
    ) -> None:
        self._frames = frames
        self.position = position
        self.size_bytes = size_bytes
        self.head = head

    @property
    def magic(self) -> int:
        """The number of its format; 0 to 2 are known."""
        return self.head[FRAME_BYTES - 1]

    def read(self) -> bytes:
        """Read all of its bytes.

        Raises:
            StorageError: they cannot be read.
            CorruptRecordError: the file has become shorter.
        """
        return self._frames._bytes(self.position, self.size_bytes)

    @property
    def path(self) -> str:
        """Path of its file."""
        return self._frames.path

    def is_valid(self) -> bool:
        """Whether its checksum is that of its bytes.

        Raises:
            StorageError, CorruptRecordError: as `read`.
        """
        data = memoryview(self.read())
        if self.magic < 2:
            stored = int.from_bytes(data[_CRC_MESSAGE_POS:_CRC_MESSAGE_BEGIN], "big")
            return zlib.crc32(data[_CRC_MESSAGE_BEGIN:]) == stored
        if self.size_bytes < _HEAD_BYTES:
            return False
        stored = int.from_bytes(data[_CRC_BATCH_POS:_CRC_BATCH_BEGIN], "big")
        return native.crc32c(data[_CRC_BATCH_BEGIN:]) == stored

    def _header(self, data: bytes) -> native.BatchHeader:
        scan = native.first_header(native.pointer(data), len(data), checks=0)
        if scan.error is not None:
            raise self._frames._error_of(damage_of(scan.error, 0), self.position)
        if not scan.headers:
            reason = f"a batch of {self.size_bytes} bytes has an incomplete header"
            raise self._frames._error_of(Damage(reason, 0), self.position)
        return scan.headers[0]

    def records(self) -> Iterator[Record]:
        """The records of a batch of magic 2, control records among them, also if its
        checksum is wrong; those before damage come before the error.

        Raises:
            CorruptRecordError: its fields contradict each other.
            RecordTooLargeError: it decompresses to more than the limit.
            UnsupportedError: it is of an unknown format.
            StorageError: it cannot be read.
        """
        data = self.read()
        header = self._header(data)
        try:
            if self.is_valid():
                yield from self._decoded(header, data)
            else:
                yield from unchecked.records(header, data, self._frames.limit)
        except Damage as damage:
            raise self._frames._error_of(damage, self.position) from damage

    def _decoded(self, header: native.BatchHeader, data: bytes) -> Iterator[Record]:
        payload = open_payload(header, memoryview_slicer(data), self._frames.limit)
        size = len(payload)
        c = native.pointer(payload)
        # The count is from the header; limit the memory by what fits in the payload.
        decoder = native.Decoder(
            max(min(header.record_count, size // RECORD_BYTES_MIN), 1)
        )
        decoder.decode_payload(header, c, size, 0, native.OFFSET_MAX, native.CHECK_ALL)
        if decoder.error is None:
            yield from native.decoded_records(
                native.Columns(decoder, c, slicer_of(payload), size)
            )
        else:
            yield from unchecked.records(header, data, self._frames.limit)

    def messages(self) -> list[unchecked.LogMessage]:
        """The messages of a batch of magic 0 or 1, also if checksums are wrong.

        Raises:
            CorruptRecordError, RecordTooLargeError, UnsupportedError, StorageError: as
                `records`.
        """
        try:
            return unchecked.messages(self.read(), self._frames.limit)
        except Damage as damage:
            raise self._frames._error_of(damage, self.position) from damage


class LogFrames(Iterator[LogFrame]):
    """The frames of a `.log` file, one after the other.

    They end before a batch that is not whole, and before zeros up to the end; a size
    that no batch can have is a `CorruptRecordError`.

    Attributes:
        position: where the next frame begins.
        size_bytes: of the file, at the call.
        limit: most bytes that one batch may decompress to.
    """

    def __init__(self, segment: Segment, limit: int) -> None:
        self.position = 0
        self.size_bytes = segment.size
        self.limit = limit
        self.path = segment.path
        self._segment = segment
        self._end = segment.size
        self._window = b""
        self._begin = 0
        self._room = _WINDOW_BYTES

    def seek(self, position: int, size: int | None = None) -> None:
        """Continue at a byte of the file, as if it ended `size` bytes after it."""
        self.position = position
        end = self.size_bytes if size is None else position + size
        self._end = min(end, self.size_bytes)
        self._room = _LOOK_BYTES

    def __next__(self) -> LogFrame:
        """
        Raises:
            CorruptRecordError: a size that no batch has, or the file became shorter.
            StorageError: it cannot be read.
        """
        position = self.position
        if position >= self._end - FRAME_BYTES:
            raise StopIteration
        head = self._bytes(position, min(_HEAD_BYTES, self.size_bytes - position))
        size = FRAME.unpack_from(head)[1]
        if size < _SIZE_MIN:
            if self._is_zero(position):
                raise StopIteration
            reason = f"a batch states {size} bytes; the minimum is {_SIZE_MIN}"
            raise self._error_of(Damage(reason, 0), position)
        size += FRAME.size
        if size > self._end - position:
            raise StopIteration
        self.position = position + size
        return LogFrame(self, position, size, head)

    @property
    def is_torn(self) -> bool:
        """Whether a crash, or a writer at work, leaves such bytes as follow: none, a
        part of a batch, or zeros."""
        left = self._end - self.position
        frame = self._bytes(self.position, max(min(FRAME_BYTES, left), 0))
        return looks_torn(frame, left)

    def _is_zero(self, position: int) -> bool:
        """Whether only zeros follow."""
        while position < self._end:
            piece = self._bytes(position, min(_LOOK_BYTES, self._end - position))
            if piece.strip(b"\0"):
                return False
            position += len(piece)
        return True

    def _bytes(self, position: int, size: int) -> bytes:
        index = position - self._begin
        if index < 0 or index + size > len(self._window):
            room = max(size, min(self._room, self.size_bytes - position))
            self._room = min(2 * self._room, _WINDOW_BYTES)
            buffer = bytearray(room)
            done = self._segment.read(memoryview(buffer), position)
            if done < size:
                reason = f"the file ends at byte {position + done} now"
                raise self._error_of(Damage(reason, 0), position)
            self._window, self._begin, index = bytes(buffer[:done]), position, 0
        return self._window[index : index + size]

    def _error_of(self, damage: Damage, position: int) -> Exception:
        return self._segment.error_of(damage, position, 0)
