"""Walks over the batches of segments for a compaction: maps their keys, and puts what
stays of them into a new file. Each call of a step reads one buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

from logstore import _native as native
from logstore.config import TopicConfig
from logstore.log.read.damage import check_wrapper, make_batch
from logstore.record.compression import compress, level_of
from logstore.record.decoder import Damage, open_payload
from logstore.record.encoder import wrap
from logstore.segment import Segment

__all__ = ["BatchWalk", "BUFFER_BYTES"]

# Read and written at once.
BUFFER_BYTES: Final = 1 << 20
_INT32_MAX: Final = (1 << 31) - 1


class BatchWalk:
    """Reads the segments of one compaction. For one thread.

    Attributes:
        core: the map, and the decisions of the C core.
        memory_bytes: of memory that were in use at once, at the most.
    """

    def __init__(
        self,
        core: native.Compaction,
        config: TopicConfig,
        decompressed_max: int,
    ) -> None:
        """Args:
        decompressed_max: limit on one decompressed batch, in bytes.
        """
        self.core = core
        self._config = config
        self._decompressed_max = decompressed_max
        self._buffer = native.Buffer(BUFFER_BYTES)
        self._out = native.Buffer(BUFFER_BYTES)
        # The system gives memory when it is first written to: of a large `_out`, which
        # has room for all that a batch may leave, often only a part.
        self._filled = BUFFER_BYTES
        self.memory_bytes = 0
        self._note_memory()

    def _note_memory(self, payload_bytes: int = 0) -> None:
        """Note the memory in use, and the payloads of a compressed batch."""
        buffers = self._buffer.capacity + self._filled
        used = self.core.memory_bytes + buffers + payload_bytes
        self.memory_bytes = max(self.memory_bytes, used)

    def map_segment(self, segment: Segment) -> Generator[int, None, bool]:
        """Put the keys of a segment into the map. Returns False if it is full.

        Raises:
            CorruptRecordError, UnsupportedError, RecordTooLargeError: a batch cannot
                be read.
        """
        file_pos, last_offset = segment.start
        while file_pos < segment.size:
            n = segment.read(self._buffer.view, file_pos)
            pos, stop = 0, native.STOP_COMPRESSED
            while stop == native.STOP_COMPRESSED:
                walked = self.core.map_batches(
                    self._buffer.c,
                    n,
                    pos=pos,
                    last_offset=last_offset,
                    checks=segment.checks,
                )
                # In a new segment they would be the offsets of other records.
                segment.check_end(walked.last_offset, file_pos + pos)
                pos, last_offset, stop = walked.pos, walked.last_offset, walked.stop
                if walked.error is not None:
                    raise self._error(segment, walked.error, file_pos, last_offset)
                if stop == native.STOP_FULL:
                    return False
                if stop == native.STOP_COMPRESSED:
                    header = self._header(n, pos)
                    self._check_compressed(segment, header, file_pos, last_offset)
                    if not self._map_compressed(segment, header, file_pos):
                        return False
                    pos, last_offset = pos + header.size, header.last_offset
            self._next_buffer(segment, n, pos, stop, file_pos, last_offset)
            file_pos += pos
            yield n
        self.core.map.reached(segment.next_offset)
        return True

    def _map_compressed(
        self, segment: Segment, header: native.BatchHeader, file_pos: int
    ) -> bool:
        """Put the keys of one batch into the map. False: it is full."""
        payload = self._decompressed(segment, header, file_pos)
        try:
            return self.core.map_payload(header, payload, segment.checks)
        except native.NativeError as error:
            error.pos = header.pos
            offset = segment.base_offset - 1
            raise self._error(segment, error, file_pos, offset) from error

    def filter_segment(
        self, segment: Segment, write: Callable[[memoryview | bytes], None]
    ) -> Generator[int, None, None]:
        """Hand what stays of a segment to `write`, whole batches in order; the memory
        is valid until that returns.

        Raises: as `map_segment`; what `write` raises.
        """
        file_pos, last_offset = segment.start
        while file_pos < segment.size:
            n = segment.read(self._buffer.view, file_pos)
            pos, stop = 0, native.STOP_FULL
            while stop in (native.STOP_FULL, native.STOP_COMPRESSED):
                walked = self.core.filter_batches(
                    self._buffer.c,
                    n,
                    self._out,
                    pos=pos,
                    last_offset=last_offset,
                    checks=segment.checks,
                )
                segment.check_end(walked.last_offset, file_pos + pos)
                if walked.bytes:
                    self._filled = max(self._filled, walked.bytes)
                    write(self._out.view[: walked.bytes])
                pos, last_offset, stop = walked.pos, walked.last_offset, walked.stop
                if walked.error is not None:
                    raise self._error(segment, walked.error, file_pos, last_offset)
                if stop == native.STOP_FULL and walked.needed > self._out.capacity:
                    self._out = native.Buffer(walked.needed)
                    self._filled = BUFFER_BYTES
                if stop == native.STOP_COMPRESSED:
                    header = self._header(n, pos)
                    self._check_compressed(segment, header, file_pos, last_offset)
                    made = self._filtered(segment, header, file_pos, last_offset)
                    if made:
                        write(made)
                    pos, last_offset = pos + header.size, header.last_offset
            self._next_buffer(segment, n, pos, stop, file_pos, last_offset)
            file_pos += pos
            yield n

    def _check_compressed(
        self,
        segment: Segment,
        header: native.BatchHeader,
        file_pos: int,
        last_offset: int,
    ) -> None:
        """Raise if a compressed batch ends after its segment, or if a wrapper, whose
        first offset only its messages tell, does not follow the batch before."""
        pos = file_pos + header.pos
        segment.check_end(header.last_offset, pos)
        if header.base_offset < 0:
            limit = min(self._decompressed_max, _INT32_MAX)
            batch = make_batch(segment, header, self._buffer, pos, limit)
            check_wrapper(segment, batch, last_offset)

    def _next_buffer(
        self,
        segment: Segment,
        n: int,
        pos: int,
        stop: int,
        file_pos: int,
        last_offset: int,
    ) -> None:
        """Make the buffers as large as the next batch needs; later, small again."""
        before = self._buffer
        self._buffer = segment.next_buffer(
            before, n, pos, stop, file_pos, last_offset + 1
        )
        self._note_memory()
        if self._buffer is before and before.capacity > BUFFER_BYTES and pos:
            self._buffer = native.Buffer(BUFFER_BYTES)
        if self._out.capacity > self._buffer.capacity:
            self._out = native.Buffer(BUFFER_BYTES)
            self._filled = BUFFER_BYTES

    def _header(self, n: int, pos: int) -> native.BatchHeader:
        """The header of the batch at a place of the buffer, which was checked."""
        scan = native.scan_batches(
            self._buffer.c, n, pos=pos, last_offset=-1, checks=0, count_max=1
        )
        return scan.headers[0]

    def _decompressed(
        self, segment: Segment, header: native.BatchHeader, file_pos: int
    ) -> bytes | bytearray | memoryview:
        limit = min(self._decompressed_max, _INT32_MAX)
        try:
            payload = open_payload(header, self._buffer.raw, limit)
        except Damage as damage:
            error = segment.error_of(damage, file_pos, segment.base_offset)
            raise error from None
        # Beside it: its compressed bytes, and before that a copy of a whole wrapper.
        copied = header.payload_size + (header.size if header.magic < 2 else 0)
        self._note_memory(len(payload) + copied)
        return payload

    def _filtered(
        self,
        segment: Segment,
        header: native.BatchHeader,
        file_pos: int,
        last_offset: int,
    ) -> bytes | memoryview:
        """The rest of a compressed batch; b"" for nothing."""
        payload = self._decompressed(segment, header, file_pos)
        try:
            verdict, inside, made = self.core.filter_payload(
                header, payload, segment.checks
            )
        except native.NativeError as error:
            error.pos = header.pos
            raise self._error(segment, error, file_pos, last_offset) from error
        if verdict == native.VERDICT_REMOVE:
            return b""
        if verdict == native.VERDICT_KEEP:
            return self._buffer.view[header.pos : header.pos + header.size]
        if verdict == native.VERDICT_EMPTY:
            return native.seal_header(made, b"")
        level = level_of(self._config, header.codec)
        packed = compress(header.codec, inside, header.magic, level)
        self._note_memory(len(payload) + len(inside) + 2 * len(packed))
        if header.magic == 2:
            return native.seal_header(made, packed)
        return wrap(
            packed,
            header.magic,
            header.attributes,
            made.last_offset,
            made.max_timestamp,
            _INT32_MAX,
        )

    def _error(
        self,
        segment: Segment,
        error: native.NativeError,
        file_pos: int,
        last_offset: int,
    ) -> Exception:
        damage = Damage(error.reason, error.pos, unsupported=error.is_unsupported)
        return segment.error_of(damage, file_pos, last_offset + 1)
