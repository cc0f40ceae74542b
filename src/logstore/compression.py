"""Codecs of batches: bytes in, bytes out, never more than a limit.

The streams themselves are made and read by well-kept libraries; what is Kafka's own
(docs/format.md, "Compression": xerial framing of snappy, the header checksum of lz4 in
magic 0) is here.
"""

from __future__ import annotations

import struct
import zlib
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
# Kafka's readers refuse larger windows by default, and so does the zstd tool.
_ZSTD_WINDOW_MAX: Final = 1 << 27
_ZSTD_RLE: Final = 1


class CodecError(Exception):
    """A compressed stream is damaged; the caller knows where it stands."""


def compress(codec: int, data: bytes | memoryview, magic: int, level: int) -> bytes:
    """Compress the record area of a batch, or the messages of a wrapper.

    Args:
        codec: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
        data: what to compress.
        magic: of the batch: lz4 has another header checksum in magic 0.
        level: Kafka's for that codec (no effect for snappy).
    """
    if codec == GZIP:
        deflater = zlib.compressobj(level, zlib.DEFLATED, _GZIP_WINDOW)
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
        return _with_header_checksum(frame, broken=magic == 0)
    if codec == ZSTD:
        compressor = zstandard.ZstdCompressor(level=level, write_content_size=False)
        return compressor.compress(data)
    raise UnsupportedError(f"codec {codec} is not one of {', '.join(CODECS)}")


def level_of(config: TopicConfig, codec: int) -> int:
    """The compression level that a topic asks for."""
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
        data: the compressed stream, whole.
        magic: of the batch.
        limit: the most bytes that may come out.

    Raises:
        CodecError: the stream is damaged or ends early.
        RecordTooLargeError: more than `limit` bytes would come out; stopped there.
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
        raise  # the latter, a RuntimeError, is of a stack that is too deep already
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


def _gunzip(data: memoryview, limit: int) -> bytes:
    # One member is what Kafka writes; Java's reader goes on with further ones.
    parts: list[bytes] = []
    room = limit
    rest: bytes | memoryview = data
    while True:
        inflater = zlib.decompressobj(_GZIP_WINDOW)
        part = inflater.decompress(rest, room + 1)
        if len(part) > room:
            raise _too_large(GZIP, limit)
        if not inflater.eof:
            raise CodecError("gzip stream ends early")
        parts.append(part)
        room -= len(part)
        rest = inflater.unused_data
        if rest[:2] != b"\x1f\x8b":
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _xerial_compress(data: memoryview) -> bytes:
    out = bytearray(_XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01")
    for begin in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(
            cramjam.snappy.compress_raw(data[begin : begin + _XERIAL_BLOCK_BYTES])
        )
        out += _INT32.pack(len(block)) + block
    return bytes(out)


def _snappy_length(block: memoryview) -> int:
    """The length that a raw snappy block says it has (its first varint)."""
    value = 0
    for index in range(min(5, len(block))):
        byte = block[index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value
    raise CodecError("snappy block has no length")


def _snappy_block(block: memoryview, room: int, limit: int) -> bytes:
    size = _snappy_length(block)
    if size > room:
        raise _too_large(SNAPPY, limit)
    # A block of n bytes cannot stand for more than 32 n or so; a length that is far
    # beyond is damage, and is found out before memory is taken for it.
    if size > 64 * len(block) + 64:
        raise CodecError(f"snappy block of {len(block)} bytes claims {size}")
    out = bytes(cramjam.snappy.decompress_raw(block, output_len=size))
    if len(out) != size:
        raise CodecError(f"snappy block has {len(out)} bytes, not {size}")
    return out


def _snappy_decompress(data: memoryview, limit: int) -> bytes:
    if bytes(data[:8]) != _XERIAL_MAGIC:
        return _snappy_block(data, limit, limit)
    if len(data) < _XERIAL_HEADER_BYTES:
        raise CodecError("xerial header ends early")
    parts: list[bytes] = []
    room = limit
    pos = _XERIAL_HEADER_BYTES
    while pos < len(data):
        if len(data) - pos < 4:
            raise CodecError("xerial chunk has no length")
        (size,) = _INT32.unpack_from(data, pos)
        pos += 4
        if size < 0 or size > len(data) - pos:
            raise CodecError(f"xerial chunk claims {size} of {len(data) - pos} bytes")
        part = _snappy_block(data[pos : pos + size], room, limit)
        parts.append(part)
        room -= len(part)
        pos += size
    return b"".join(parts)


def _lz4_descriptor_bytes(frame: bytes | memoryview) -> int:
    """Length of the frame descriptor without its checksum: FLG, BD, content size."""
    if len(frame) < 7:
        raise CodecError("lz4 frame ends early")
    flags = frame[4]
    return 2 + (8 if flags & 0x08 else 0) + (4 if flags & 0x01 else 0)


def _with_header_checksum(frame: bytes | memoryview, *, broken: bool) -> bytes:
    """The frame with its header checksum as magic 0 (`broken`) or as lz4 has it.

    Kafka's old clients hashed the four bytes of the frame magic along (KAFKA-3160).
    """
    end = 4 + _lz4_descriptor_bytes(frame)
    if len(frame) <= end:
        raise CodecError("lz4 frame ends early")
    hashed = frame[:end] if broken else frame[4:end]
    checksum = (xxhash.xxh32_intdigest(bytes(hashed), seed=0) >> 8) & 0xFF
    return bytes(frame[:end]) + bytes([checksum]) + bytes(frame[end + 1 :])


def _lz4_decompress(data: memoryview, magic: int, limit: int) -> bytes:
    if bytes(data[:4]) != _LZ4_MAGIC:
        raise CodecError("lz4 frame has no magic")
    # Both forms of the checksum are read in magic 0, as Kafka does.
    frame = _with_header_checksum(data, broken=False) if magic == 0 else data
    decompressor = lz4.frame.LZ4FrameDecompressor()
    out: bytes = decompressor.decompress(frame, max_length=limit + 1)
    if len(out) > limit:
        raise _too_large(LZ4, limit)
    if not decompressor.eof:
        raise CodecError("lz4 frame ends early")
    return out


def _check_zstd_frames(data: memoryview) -> None:
    """Raise unless `data` ends where a zstd frame ends (RFC 8878, 3.1.1).

    The streaming reader takes the end of its input for the end of the stream, so a
    stream that was cut would pass for a shorter one.
    """
    pos = 0
    while pos < len(data):
        frame = data[pos:]
        parameters = zstandard.get_frame_parameters(frame)
        at = zstandard.frame_header_size(frame)
        last = False
        while not last:
            header = int.from_bytes(frame[at : at + 3], "little")
            last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == _ZSTD_RLE else size)
            if at > len(frame):
                raise CodecError("zstd stream ends early")
        pos += at + (4 if parameters.has_checksum else 0)
    if pos != len(data):
        raise CodecError("zstd stream ends early")


def _zstd_decompress(data: memoryview, limit: int) -> bytes:
    _check_zstd_frames(data)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    parts: list[bytes] = []
    room = limit
    with decompressor.stream_reader(data, read_across_frames=True) as reader:
        while part := reader.read(min(room + 1, 1 << 20)):
            if len(part) > room:
                raise _too_large(ZSTD, limit)
            room -= len(part)
            parts.append(part)
    return b"".join(parts)
