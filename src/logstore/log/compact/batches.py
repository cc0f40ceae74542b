"""Walks over the batches of segments for a compaction: maps their keys, and copies the
remaining records to a new file. Each call of a step reads one buffer.
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
from logstore.record.file_walk import FileWalk, WalkProgress
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
        self._buffer = native.Buffer(BUFFER_BYTES)  # of the walk over a segment
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
        walk = FileWalk(segment, segment.start, self._buffer)
        while walk.read():
            stop = native.STOP_COMPRESSED
            while stop == native.STOP_COMPRESSED:
                walked = self.core.map_batches(
                    walk.buffer.c,
                    walk.n,
                    pos=walk.at,
                    last_offset=walk.last_offset,
                    checks=segment.checks,
                )
                # In a new segment they would be the offsets of other records.
                _check_end(segment, walk, walked.last_offset)
                stop = walked.stop
                self._take(walk, walked)
                if stop == native.STOP_FULL:
                    return False
                if stop == native.STOP_COMPRESSED:
                    header = self._compressed(segment, walk)
                    if not self._map_compressed(segment, walk, header):
                        return False
                    walk.take_batch(header)
            yield walk.n
        self.core.map.reached(segment.next_offset)
        return True

    def _map_compressed(
        self, segment: Segment, walk: FileWalk, header: native.BatchHeader
    ) -> bool:
        """Put the keys of one batch into the map. False: it is full."""
        payload = self._decompressed(walk, header)
        try:
            return self.core.map_payload(header, payload, segment.checks)
        except native.NativeError as error:
            error.pos = header.pos
            raise walk.error(error, walk.last_offset + 1) from error

    def filter_segment(
        self, segment: Segment, write: Callable[[memoryview | bytes], None]
    ) -> Generator[int, None, None]:
        """Pass the remaining records of a segment to `write`, as whole batches in
        order; the memory is valid until that returns.

        Raises: as `map_segment`; what `write` raises.
        """
        walk = FileWalk(segment, segment.start, self._buffer)
        while walk.read():
            stop = native.STOP_FULL
            while stop in (native.STOP_FULL, native.STOP_COMPRESSED):
                walked = self.core.filter_batches(
                    walk.buffer.c,
                    walk.n,
                    self._out,
                    pos=walk.at,
                    last_offset=walk.last_offset,
                    checks=segment.checks,
                )
                _check_end(segment, walk, walked.last_offset)
                if walked.bytes:
                    self._filled = max(self._filled, walked.bytes)
                    write(self._out.view[: walked.bytes])
                stop = walked.stop
                self._take(walk, walked)
                if stop == native.STOP_FULL and walked.needed > self._out.capacity:
                    self._out = native.Buffer(walked.needed)
                    self._filled = BUFFER_BYTES
                if stop == native.STOP_COMPRESSED:
                    header = self._compressed(segment, walk)
                    made = self._filtered(segment, walk, header)
                    if made:
                        write(made)
                    walk.take_batch(header)
            yield walk.n

    def _take(self, walk: FileWalk, walked: WalkProgress) -> None:
        """Continue after a call. The buffers become as large as the next batch needs,
        and small again after it."""
        pos = walk.pos
        walk.take(walked)
        self._buffer = walk.buffer
        self._note_memory()
        if walk.pos > pos:
            if walk.buffer.capacity > BUFFER_BYTES:
                self._buffer = native.Buffer(BUFFER_BYTES)
                walk.use(self._buffer)
            if self._out.capacity > BUFFER_BYTES:
                self._out = native.Buffer(BUFFER_BYTES)
                self._filled = BUFFER_BYTES

    def _compressed(self, segment: Segment, walk: FileWalk) -> native.BatchHeader:
        """The header of the compressed batch at the place of a walk, which was checked.

        Raises:
            CorruptRecordError: the batch ends after its segment, or is a wrapper, whose
                first offset is only in its messages, and does not follow the batch
                before.
        """
        scan = native.first_header(walk.buffer.c, walk.n, pos=walk.at, checks=0)
        header = scan.headers[0]
        pos = walk.pos + header.pos
        _check_end(segment, walk, header.last_offset)
        if header.base_offset < 0:
            limit = min(self._decompressed_max, _INT32_MAX)
            first = max(segment.base_offset, walk.last_offset + 1)
            batch = make_batch(segment, header, walk.buffer, pos, limit, first)
            check_wrapper(segment, batch, walk.last_offset)
        return header

    def _decompressed(
        self, walk: FileWalk, header: native.BatchHeader
    ) -> bytes | bytearray | memoryview:
        limit = min(self._decompressed_max, _INT32_MAX)
        try:
            payload = open_payload(header, walk.buffer.raw, limit)
        except Damage as damage:
            first = walk.last_offset + 1
            raise walk.file.error_of(damage, walk.pos, first) from None
        # In memory at the same time: its compressed bytes, and before that a copy of a
        # whole wrapper.
        copied = header.payload_size + (header.size if header.magic < 2 else 0)
        self._note_memory(len(payload) + copied)
        return payload

    def _filtered(
        self, segment: Segment, walk: FileWalk, header: native.BatchHeader
    ) -> bytes | memoryview:
        """The rest of a compressed batch; b"" for nothing."""
        payload = self._decompressed(walk, header)
        try:
            verdict, inside, made = self.core.filter_payload(
                header, payload, segment.checks
            )
        except native.NativeError as error:
            error.pos = header.pos
            raise walk.error(error, walk.last_offset + 1) from error
        if verdict == native.VERDICT_REMOVE:
            return b""
        if verdict == native.VERDICT_KEEP:
            return walk.buffer.view[header.pos : header.pos + header.size]
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


def _check_end(segment: Segment, walk: FileWalk, last_offset: int) -> None:
    """`Segment.check_end` of the batches from the place of a walk on."""
    before = walk.last_offset
    segment.check_end(last_offset, walk.buffer, walk.n, walk.at, walk.pos, before)
