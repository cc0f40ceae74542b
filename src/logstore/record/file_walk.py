"""Walks over the batches of a file, a buffer of them at a time.

C code walks over the bytes in memory (`native.scan_batches`, a decoder, a compaction).
`FileWalk` does the rest for all of them: it chooses which bytes to read next, makes the
buffer larger for a large batch, and makes errors with the position in the file.
"""

from __future__ import annotations

import struct
from typing import Final, Protocol

from logstore import _native as native
from logstore.record.decoder import Damage, damage_of

__all__ = ["BatchFile", "FileWalk", "WalkProgress", "larger_buffer"]

# Base offset, length of the bytes after these two, magic.
FRAME: Final = struct.Struct(">qi4xb")
# The length of a frame excludes the offset and the length itself.
LENGTH_END: Final = 12
FRAME_BYTES: Final = 17
# A part of a batch is considerable from this part of a read on: 1 / 32.
_AGAIN: Final = 32


def _frame_bytes(buffer: native.Buffer, n: int, pos: int = 0) -> int:
    """Length of the batch at `pos` of a buffer with `n` bytes, from its frame, which is
    not trusted; 0 if the buffer does not hold the frame."""
    if n - pos < FRAME_BYTES:
        return 0
    return int(FRAME.unpack_from(buffer.raw, pos)[1]) + LENGTH_END


def larger_buffer(buffer: native.Buffer, n: int, room: int) -> native.Buffer | None:
    """A buffer for the batch at the start of a buffer of `n` bytes, if it does not fit.
    None: it fits, or it is longer than the `room` bytes that the file has for it."""
    length = _frame_bytes(buffer, n)
    return native.Buffer(length) if buffer.capacity < length <= room else None


class BatchFile(Protocol):
    """A file of batches, such as a segment."""

    size: int

    def read(self, view: memoryview, pos: int) -> int:
        """Fill `view` from byte `pos`, not past `size`; return the bytes read."""

    def error_of(self, damage: Damage, file_pos: int, offset: int) -> Exception:
        """The error for damage in a buffer that was read at `file_pos`; `offset` is the
        first one not delivered."""

    def missing(self, position: int, offset: int) -> Exception:
        """The error for a file that ends, or is empty, at `position`."""


class WalkProgress(Protocol):
    """How far a call has walked over a buffer; `native.Scan` is one."""

    @property
    def pos(self) -> int: ...
    @property
    def last_offset(self) -> int: ...
    @property
    def stop(self) -> int: ...
    @property
    def error(self) -> native.NativeError | None: ...


class FileWalk:
    """The place of one walk, and the bytes there. For one thread.

    `read` reads the next bytes. The caller walks over them in one or more calls of C,
    and reports where each call ended (`take`, `advance`).

    A batch that a read ends in must be read again. With batches of 1 MiB and a buffer
    of twice that, this is half of each read. So if a considerable part of a batch was
    read, the next read is of as many batches as fit into the buffer, if they all have
    its length. If that is wrong, the walk reads less, or reads again.

    Attributes:
        buffer: its first `n` bytes were read last.
        pos: of its first byte in the file.
        at: where the next call begins in the buffer.
        last_offset: of the batch before; `native.OFFSET_UNKNOWN` if it is unknown.
        checks: how the batches are checked.
        is_filled: whether the buffer has the bytes that the next `read` would read.
        into: the part of the buffer that it would read them into.

    Args:
        place: (pos, last_offset) where the walk begins.
        end: position at which it ends; None: at the end of the file.
    """

    __slots__ = (
        "_batch_bytes",
        "_end",
        "at",
        "buffer",
        "checks",
        "file",
        "into",
        "is_filled",
        "last_offset",
        "n",
        "pos",
    )

    def __init__(
        self,
        file: BatchFile,
        place: tuple[int, int],
        buffer: native.Buffer,
        *,
        checks: int = native.CHECK_ALL,
        end: int | None = None,
    ) -> None:
        self.file = file
        self.checks = checks
        self.is_filled = False
        self.pos, self.last_offset = place
        self.n = self.at = 0
        self._end = end
        self._batch_bytes = 0  # 0: reads fill their buffer
        self.use(buffer)

    @property
    def end(self) -> int:
        """Position in the file where the walk ends. A file that is cut ends earlier."""
        size = self.file.size
        return size if self._end is None else min(size, self._end)

    def use(self, buffer: native.Buffer) -> None:
        """Read into a buffer from now on."""
        view, length = buffer.view, self._batch_bytes
        if 0 < length < len(view):
            view = view[: len(view) // length * length]
        if self._end is not None:
            view = view[: max(self._end - self.pos, 0)]
        self.buffer, self.into = buffer, view

    def read(self) -> bool:
        """Read the next bytes into the buffer. False: the walk has reached its end.

        Raises: as `read` of the file.
        """
        if self.is_filled:
            self.is_filled = False
            return True
        if self.pos >= self.end:
            return False
        self.n, self.at = self.file.read(self.into, self.pos), 0
        return True

    def headers(self, checks: int) -> native.Headers:
        """The headers of the batches in the buffer, for `take` after the last one."""
        return native.Headers(
            self.buffer.c,
            self.n,
            pos=self.at,
            last_offset=self.last_offset,
            checks=checks,
        )

    def take(self, walked: WalkProgress, offset: int | None = None) -> None:
        """Continue after a call: in the buffer, if the call's output was full or the
        next batch is compressed; else as `advance`.

        Args:
            offset: the first one not delivered, for an error; None: the one after the
                batches of the call.

        Raises:
            CorruptRecordError, UnsupportedError, RecordTooLargeError: the damage that
                the call has found; else as `advance`.
        """
        offset = walked.last_offset + 1 if offset is None else offset
        if walked.error is not None:
            raise self.error(walked.error, offset)
        if walked.stop in (native.STOP_FULL, native.STOP_COMPRESSED):
            self.at, self.last_offset = walked.pos, walked.last_offset
        else:
            self.advance(walked.pos, walked.stop, walked.last_offset, offset)

    def take_batch(self, header: native.BatchHeader) -> None:
        """Continue in the buffer after a batch."""
        self.at, self.last_offset = header.pos + header.size, header.last_offset

    def advance(self, consumed: int, stop: int, last_offset: int, offset: int) -> None:
        """Continue after the first `consumed` bytes of the buffer, which becomes larger
        if the next batch needs that.

        Args:
            stop: why no more: native.STOP_*.
            last_offset: where the last batch of them ends.
            offset: the first one not delivered, for an error.

        Raises:
            CorruptRecordError: the walk cannot continue although the file does.
        """
        buffer, before = self.buffer, self._batch_bytes
        if stop != native.STOP_END:
            self._batch_bytes = 0
        if stop == native.STOP_PARTIAL:
            if not consumed and 0 < before < buffer.capacity:
                self.use(buffer)
                return  # a batch may be there if the whole buffer is filled
            if self.n - consumed >= max(self.n // _AGAIN, FRAME_BYTES):
                self._batch_bytes = _frame_bytes(buffer, self.n, consumed)
        self.pos, self.last_offset = self.pos + consumed, last_offset
        # The few bytes after the last batch of a buffer may be zeros that begin an
        # offset: zeros are significant only at the start of a buffer.
        room = 0 if consumed else self.end - self.pos
        if room > 0:
            larger = larger_buffer(buffer, self.n, room)
            if larger is None or stop != native.STOP_PARTIAL:
                raise self.file.missing(self.pos, offset)
            buffer = larger
        self.use(buffer)

    def error(self, error: native.NativeError, offset: int) -> Exception:
        """The error for damage in the buffer; `offset` is the first one not delivered,
        used if the damage has no offset."""
        return self.file.error_of(damage_of(error), self.pos, offset)
