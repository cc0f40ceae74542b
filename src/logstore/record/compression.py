"""Codecs of batches: bytes in, bytes out, never more than a limit.

Well-kept libraries write and read the streams themselves (docs/benchmarks.md, "Codecs",
says why these); Kafka's own parts are here (docs/format.md, "Compression": xerial
framing of snappy, the header checksum of lz4 in magic 0).
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import cramjam
import lz4.frame
import xxhash
import zstandard

from logstore.config import CODECS
from logstore.errors import RecordTooLargeError, UnsupportedError

if TYPE_CHECKING:
    from logstore.config import TopicConfig

__all__ = ["CodecError", "compress", "decompress"]

GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES: Final = 16
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_INT32 = struct.Struct(">i")

_LZ4_MAGIC: Final = b"\x04\x22\x4d\x18"
_GZIP_WINDOW: Final = 31
# Added to the binary logarithm of a window: the stream has the header of gzip. The
# bytes of the window that zlib keeps free.
_GZIP_HEADER: Final = 16
_DEFLATE_AHEAD: Final = 262
# Kafka's readers refuse larger windows by default, and so does the zstd tool.
_ZSTD_WINDOW_MAX: Final = 1 << 27
_ZSTD_RLE: Final = 1
# The magics of skippable frames are 0x184D2A50 to 0x184D2A5F, little-endian.
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"

# The bytes taken from a library at once: each makes its output twice, in pieces and as
# a whole, and lz4 allocates memory for the most it may return.
_PIECE_BYTES: Final = 1 << 20
_GZIP_PIECE_BYTES: Final = 1 << 16  # of input: zlib copies the unused part

# Contexts of zstd that are not in use: making one takes 4 % of the time of a batch. A
# call takes one out, so that no other thread, signal handler or forked process has it,
# and puts it back unless it failed. A context keeps its memory, which grows with the
# batch, the level and the window that a stream states, so large ones are not kept.
_SPARES_MAX: Final = 4
_ZSTD_KEPT_BYTES: Final = 4 << 20
_zstd_compressors: deque[tuple[int, zstandard.ZstdCompressor]] = deque(
    maxlen=_SPARES_MAX
)
_zstd_decompressors: deque[zstandard.ZstdDecompressor] = deque(maxlen=_SPARES_MAX)


class CodecError(Exception):
    """A compressed stream is damaged; the caller knows its place."""


def compress(codec: int, data: bytes | memoryview, magic: int, level: int) -> bytes:
    """Compress the record area of a batch, or the messages of a wrapper.

    Args:
        codec: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        data: the bytes to compress.
        magic: of the batch: lz4 has another header checksum in magic 0.
        level: Kafka's level for that codec (no effect for snappy).
    """
    if codec == GZIP:
        deflater = _deflater(level, len(data))
        return deflater.compress(data) + deflater.flush()
    if codec == SNAPPY:
        return _xerial_compress(memoryview(data))
    if codec == LZ4:
        # Kafka's level 9 is the fast compressor, which this library calls 0.
        frame: bytes = lz4.frame.compress(
            data,
            compression_level=0 if level <= 9 else level - 9,
            block_size=lz4.frame.BLOCKSIZE_MAX64KB,
            block_linked=False,
            content_checksum=False,
            block_checksum=False,
            store_size=False,
        )
        return frame if magic else _with_header_checksum(frame, broken=True)
    if codec == ZSTD:
        return _zstd_compress(data, level)
    raise UnsupportedError(f"codec {codec} is not one of {', '.join(CODECS)}")


def _deflater(level: int, size: int) -> zlib._Compress:
    """A compressor of gzip with no more memory than `size` bytes need: it finds all
    matches that a larger one would. With 256 KiB for each small batch, other objects
    are placed between the pieces of this memory, which is then not used again."""
    window = min(max((size + _DEFLATE_AHEAD).bit_length(), 9), 15)
    memory = min(max(size.bit_length() - 5, 1), zlib.DEF_MEM_LEVEL)
    return zlib.compressobj(level, zlib.DEFLATED, _GZIP_HEADER + window, memory)


def level_of(config: TopicConfig, codec: int) -> int:
    """The compression level that a topic's settings have for a codec."""
    return {
        GZIP: config.compression_gzip_level,
        LZ4: config.compression_lz4_level,
        ZSTD: config.compression_zstd_level,
    }.get(codec, 0)


def decompress(
    codec: int, data: memoryview, magic: int, limit: int
) -> bytes | bytearray:
    """Decompress the payload of a batch.

    Args:
        codec: 1 gzip, 2 snappy (xerial or raw), 3 lz4, 4 zstd.
        data: the whole compressed stream.
        magic: of the batch.
        limit: the most bytes of output.

    Raises:
        CodecError: the stream is damaged or ends early.
        RecordTooLargeError: the output exceeds `limit` bytes; it was stopped there.
        UnsupportedError: codec 5 to 7.
    """
    try:
        if codec == GZIP:
            return _gunzip(data, limit)
        if codec == SNAPPY:
            return _snappy_decompress(data, limit)
        if codec == LZ4:
            return _lz4_decompress(data, magic, limit)
        if codec == ZSTD:
            return _zstd_decompress(data, limit)
    except (RecordTooLargeError, RecursionError):
        raise  # the latter, a RuntimeError, means that the stack was too deep already
    except (zlib.error, RuntimeError, cramjam.DecompressionError) as error:
        raise CodecError(f"{CODECS[codec]} stream is damaged: {error}") from error
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd stream is damaged: {error}") from error
    except (EOFError, ValueError, OSError) as error:
        raise CodecError(f"{CODECS[codec]} stream is damaged: {error}") from error
    raise UnsupportedError(f"codec {codec} is not one of {', '.join(CODECS)}")


def _too_large(codec: int, limit: int) -> RecordTooLargeError:
    return RecordTooLargeError(
        f"a {CODECS[codec]} batch decompresses to more than "
        f"max_batch_decompressed_bytes={limit}; raise that limit in StoreConfig to "
        f"read it",
        limit_name="max_batch_decompressed_bytes",
        limit=limit,
    )


class _Output:
    """The output of a stream, piece by piece, and never more than `limit` bytes.

    A single piece is returned without a copy; several pieces grow in place, so that the
    peak is an eighth above the size.
    """

    def __init__(self, codec: int, limit: int) -> None:
        self._codec = codec
        self._limit = limit
        self.room = limit
        self._first: bytes | bytearray = b""
        self._more: bytearray | None = None

    def expect(self, size: int) -> None:
        """Raise RecordTooLargeError if `size` more bytes exceed the limit."""
        if size > self.room:
            raise _too_large(self._codec, self._limit)

    def add(self, piece: bytes | bytearray) -> None:
        """Keep these bytes; raise RecordTooLargeError if they exceed the limit."""
        self.expect(len(piece))
        self.room -= len(piece)
        if self._more is not None:
            self._more += piece
        elif not self._first:
            self._first = piece
        elif piece:
            self._more = bytearray(self._first)
            self._first = b""
            self._more += piece

    def whole(self) -> bytes | bytearray:
        """All bytes."""
        return self._first if self._more is None else self._more


def _gunzip(data: memoryview, limit: int) -> bytes | bytearray:
    # Kafka writes one member; Java's reader also reads further ones.
    out = _Output(GZIP, limit)
    pos = 0
    while True:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        while not inflater.eof:
            piece = data[pos : pos + _GZIP_PIECE_BYTES]
            if not piece:
                raise CodecError("gzip stream ends early")
            out.add(inflater.decompress(piece, min(out.room + 1, _PIECE_BYTES)))
            pos += len(piece) - len(inflater.unused_data or inflater.unconsumed_tail)
        if bytes(data[pos : pos + 2]) != b"\x1f\x8b":
            return out.whole()


def _xerial_compress(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01")
    for begin in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(
            cramjam.snappy.compress_raw(data[begin : begin + _XERIAL_BLOCK_BYTES])
        )
        out += _INT32.pack(len(block)) + block
    return bytes(out)


def _snappy_length(block: memoryview) -> int:
    """The length that a raw snappy block states for its output (its first varint)."""
    value = 0
    for index in range(min(5, len(block))):
        byte = block[index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    raise CodecError("snappy block has no length")


def _snappy_blocks(data: memoryview) -> Iterator[memoryview]:
    """The raw blocks of a stream, in xerial's framing or without any. In the place of a
    block another stream of xerial's may begin: Java's reader continues with it."""
    if bytes(data[:8]) != _XERIAL_MAGIC:
        yield data
        return
    pos = 0
    while pos < len(data):
        if bytes(data[pos : pos + 8]) == _XERIAL_MAGIC:
            if len(data) - pos < _XERIAL_HEADER_BYTES:
                raise CodecError("xerial header ends early")
            pos += _XERIAL_HEADER_BYTES
            continue
        if len(data) - pos < 4:
            raise CodecError("xerial chunk has no length")
        (size,) = _INT32.unpack_from(data, pos)
        pos += 4
        if size < 0 or size > len(data) - pos:
            raise CodecError(f"xerial chunk claims {size} of {len(data) - pos} bytes")
        yield data[pos : pos + size]
        pos += size


def _snappy_size(block: memoryview, end: int, limit: int) -> int:
    """Bytes that a raw block decompresses to, after the `end` bytes before it."""
    size = _snappy_length(block)
    if size > limit - end:
        raise _too_large(SNAPPY, limit)
    # A block of n bytes cannot give more than about 32 n. A far larger length is damage
    # and is detected before memory is taken for it.
    if size > 64 * len(block) + 64:
        raise CodecError(f"snappy block of {len(block)} bytes claims {size}")
    return size


def _snappy_decompress(data: memoryview, limit: int) -> bytearray:
    total = 0
    # The stated sizes come first, so that each block is decompressed to its place. One
    # that cannot be true is reported below, after the blocks before it.
    with contextlib.suppress(CodecError, RecordTooLargeError):
        for block in _snappy_blocks(data):
            total += _snappy_size(block, total, limit)
    out = bytearray(total)
    view = memoryview(out)
    end = 0
    for block in _snappy_blocks(data):
        size = _snappy_size(block, end, limit)
        count = cramjam.snappy.decompress_raw_into(block, view[end : end + size])
        if count != size:
            raise CodecError(f"snappy block has {count} bytes, not {size}")
        end += size
    return out


def _lz4_descriptor_bytes(frame: bytes | memoryview) -> int:
    """Length of the frame descriptor without its checksum: FLG, BD, content size."""
    if len(frame) < 7:
        raise CodecError("lz4 frame ends early")
    flags = frame[4]
    return 2 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)


def _with_header_checksum(frame: bytes | memoryview, *, broken: bool) -> bytes:
    """The frame with its header checksum in the form of magic 0 (`broken`) or of lz4.

    Kafka's old clients included the four bytes of the frame magic (KAFKA-3160).
    """
    end = 4 + _lz4_descriptor_bytes(frame)
    if len(frame) <= end:
        raise CodecError("lz4 frame ends early")
    hashed = frame[:end] if broken else frame[4:end]
    checksum = (xxhash.xxh32_intdigest(bytes(hashed), seed=0) >> 8) & 0xFF
    return bytes(frame[:end]) + bytes([checksum]) + bytes(frame[end + 1 :])


def _lz4_decompress(data: memoryview, magic: int, limit: int) -> bytes | bytearray:
    if bytes(data[:4]) != _LZ4_MAGIC:
        raise CodecError("lz4 frame has no magic")
    # Magic 0: both forms of the checksum are accepted, as in Kafka.
    frame = _with_header_checksum(data, broken=False) if magic == 0 else data
    rest = memoryview(frame)
    out = _Output(LZ4, limit)
    context = lz4.frame.create_decompression_context()
    is_end = False
    while not is_end:
        want = min(out.room + 1, _PIECE_BYTES)
        piece, consumed, is_end = lz4.frame.decompress_chunk(context, rest, want)
        out.add(piece)
        rest = rest[consumed:]
        if not is_end and not piece and not consumed:
            raise CodecError("lz4 frame ends early")
    return out.whole()


def _check_zstd_frames(data: memoryview) -> None:
    """Raise unless `data` ends at the end of a zstd frame (RFC 8878, 3.1.1), or of a
    skippable one (3.1.2), whose content means nothing.

    The streaming reader takes the end of its input for the end of the stream, so it
    would accept a truncated stream as a shorter one.
    """
    pos = 0
    while pos < len(data):
        frame = data[pos:]
        if bytes(frame[1:4]) == _ZSTD_SKIPPABLE and frame[0] & 0xF0 == 0x50:
            if len(frame) < 8:
                raise CodecError("zstd stream ends early")
            pos += 8 + int.from_bytes(frame[4:8], "little")
            continue
        parameters = zstandard.get_frame_parameters(frame)
        block_pos = zstandard.frame_header_size(frame)
        last = False
        while not last:
            header = int.from_bytes(frame[block_pos : block_pos + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            block_pos += 3 + (1 if kind == _ZSTD_RLE else size)
            if block_pos > len(frame):
                raise CodecError("zstd stream ends early")
        pos += block_pos + (4 if parameters.has_checksum else 0)
    if pos != len(data):
        raise CodecError("zstd stream ends early")


def _zstd_compress(data: bytes | memoryview, level: int) -> bytes:
    spare = None
    with contextlib.suppress(IndexError):
        spare = _zstd_compressors.pop()
    if spare is None or spare[0] != level:
        compressor = zstandard.ZstdCompressor(level=level, write_content_size=False)
        spare = level, compressor
    stream: bytes = spare[1].compress(data)
    if spare[1].memory_size() <= _ZSTD_KEPT_BYTES:
        _zstd_compressors.append(spare)
    return stream


def _zstd_decompress(data: memoryview, limit: int) -> bytes | bytearray:
    _check_zstd_frames(data)
    try:
        decompressor = _zstd_decompressors.pop()
    except IndexError:
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    out = _Output(ZSTD, limit)
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while piece := reader.read(min(out.room + 1, _PIECE_BYTES)):
            out.add(piece)
    if decompressor.memory_size() <= _ZSTD_KEPT_BYTES:
        _zstd_decompressors.append(decompressor)
    return out.whole()
