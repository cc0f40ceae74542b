"""Streams of every codec that take more than one piece: whole, cut, and too large."""

from __future__ import annotations

import gzip
import os
import random
import struct
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import pytest
import xxhash
import zstandard

from logstore.config import CODECS
from logstore.errors import RecordTooLargeError
from logstore.record import compression
from logstore.record.compression import CodecError, compress, decompress

GZIP, SNAPPY, LZ4, ZSTD = (CODECS.index(n) for n in ("gzip", "snappy", "lz4", "zstd"))
# Beyond a piece of output (1 MiB) and a piece of input (64 KiB), with each codec.
SIZE = 3_500_000
every_codec = pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])


def text(size: int) -> bytes:
    source = random.Random(size)
    words = [source.randbytes(6) for _ in range(500)]
    return b"".join(source.choices(words, k=size // 6 + 1))[:size]


def opened(codec: int, stream: bytes, limit: int = SIZE) -> bytes:
    return bytes(decompress(codec, memoryview(stream), 2, limit))


@every_codec
@pytest.mark.parametrize("size", [0, 1, 65_537, 1 << 20, (1 << 20) + 1, SIZE])
def test_stream_comes_out_as_it_went_in(codec: int, size: int) -> None:
    data = text(size)
    assert opened(codec, compress(codec, data, 2, 3)) == data


@every_codec
def test_limit_is_to_the_byte(codec: int) -> None:
    data = text(SIZE)
    stream = compress(codec, data, 2, 3)
    assert opened(codec, stream, SIZE) == data
    for limit in (SIZE - 1, 1 << 20, (1 << 20) - 1, 100, 0):
        with pytest.raises(RecordTooLargeError) as caught:
            opened(codec, stream, limit)
        assert caught.value.limit == limit


@every_codec
def test_stream_that_ends_early_is_damage(codec: int) -> None:
    stream = compress(codec, text(SIZE), 2, 3)
    source = random.Random(codec)
    cuts = {source.randrange(20, len(stream)) for _ in range(40)} | {len(stream) - 1}
    for cut in cuts:
        if codec == SNAPPY and _is_between_chunks(stream, cut):
            continue  # the framing has no end mark
        with pytest.raises(CodecError):
            opened(codec, stream[:cut])


def _is_between_chunks(stream: bytes, cut: int) -> bool:
    pos = 16
    while pos < cut:
        pos += 4 + int.from_bytes(stream[pos : pos + 4], "big")
    return pos == cut


def test_xerial_streams_are_read_one_behind_another() -> None:
    """Java's reader does the same, at block boundaries."""
    parts = [text(size) for size in (70_000, 0, 1, 300)]
    stream = b"".join(compress(SNAPPY, part, 2, 3) for part in parts)
    assert opened(SNAPPY, stream) == b"".join(parts)
    with pytest.raises(CodecError, match="header"):
        opened(SNAPPY, stream + compress(SNAPPY, b"", 2, 3)[:12])
    with pytest.raises(RecordTooLargeError):
        opened(SNAPPY, stream, sum(map(len, parts)) - 1)


@pytest.mark.parametrize("low", [0x0, 0xF])
def test_skippable_frames_of_zstd_are_left_out(low: int) -> None:
    """Before the data, between two frames, and after; a cut one is damage."""
    skip = struct.pack("<II", 0x184D2A50 + low, 6) + b"hidden"
    one, two = text(5000), text(300)
    first, second = (zstandard.ZstdCompressor().compress(part) for part in (one, two))
    stream = skip + first + skip + skip + second + skip
    assert opened(ZSTD, stream) == one + two
    for cut in (1, 7, len(skip) - 3):
        with pytest.raises(CodecError):
            opened(ZSTD, stream[:-cut])
        with pytest.raises(CodecError):
            opened(ZSTD, skip[:-cut])


def test_gzip_members_are_read_one_behind_another() -> None:
    """Java's reader does the same, even across pieces of the input; bytes after the
    last member that are not a member are ignored."""
    parts = [text(size) for size in (70_000, 0, 1, SIZE // 2, 300)]
    stream = b"".join(gzip.compress(part) for part in parts)
    assert opened(GZIP, stream) == b"".join(parts)
    assert opened(GZIP, stream + b"rest") == b"".join(parts)
    with pytest.raises(CodecError):
        opened(GZIP, stream + b"\x1f\x8b")
    with pytest.raises(RecordTooLargeError):
        opened(GZIP, stream, sum(map(len, parts)) - 1)


@every_codec
@pytest.mark.parametrize("limit", [32 << 20, 31 << 20])
def test_large_stream_takes_little_more_memory_than_it_has(
    codec: int, limit: int
) -> None:
    """Two readers at once fit into a small service; no memory is allocated for a limit
    that a stream does not use."""
    size = 32 << 20
    stream = compress(codec, bytes(size), 2, 3)
    tracemalloc.start()
    try:
        if limit < size:
            with pytest.raises(RecordTooLargeError):
                opened_raw(codec, stream, limit)
        else:
            assert opened_raw(codec, stream, limit) == size
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.3 * size


def opened_raw(codec: int, stream: bytes, limit: int) -> int:
    return len(decompress(codec, memoryview(stream), 2, limit))


def test_small_stream_takes_no_memory_for_the_limit() -> None:
    for codec in (GZIP, SNAPPY, LZ4, ZSTD):
        stream = compress(codec, text(300), 2, 3)
        tracemalloc.start()
        try:
            assert opened_raw(codec, stream, 256 << 20) == 300
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 << 20


@every_codec
def test_result_stays_when_the_codec_is_used_again(codec: int) -> None:
    """Later calls do not write to the memory of a result."""
    first, second = text(90_000), text(90_001)
    stream = compress(codec, first, 2, 3)
    kept = bytes(stream)
    content = decompress(codec, memoryview(stream), 2, SIZE)
    assert opened(codec, compress(codec, second, 2, 3)) == second
    assert stream == kept
    assert bytes(content) == first


@every_codec
def test_threads_use_a_codec_at_once(codec: int) -> None:
    parts = [text(50_000 + 1_000 * n) for n in range(16)]

    def work(n: int) -> bool:
        data = parts[n % 16]
        return opened(codec, compress(codec, data, 2, 1 + n % 3)) == data

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(160)))


@pytest.mark.parametrize("frames", [1, 2])
def test_zstd_frame_may_end_with_its_checksum(frames: int) -> None:
    """The checksum is optional; a cut in it is damage like any other."""
    data = text(SIZE // 100)
    packer = zstandard.ZstdCompressor(write_checksum=True)
    stream = packer.compress(data) * frames
    assert opened(ZSTD, stream) == data * frames
    for cut in range(1, 5):
        with pytest.raises(CodecError, match="ends early"):
            opened(ZSTD, stream[:-cut])


def test_zstd_level_is_that_of_the_call() -> None:
    """Earlier calls with another level, whose context is kept, have no effect."""
    data = text(100_000)
    alone = {
        level: zstandard.ZstdCompressor(level, write_content_size=False).compress(data)
        for level in (1, 19)
    }
    assert alone[1] != alone[19]
    for level in (1, 19, 19, 1, 1, 19):
        assert compress(ZSTD, data, 2, level) == alone[level]


def test_zstd_context_is_not_kept_by_a_failed_call() -> None:
    """A failed call does not harm later calls."""
    data = text(100_000)
    stream = compress(ZSTD, data, 2, 3)
    assert opened(ZSTD, stream) == data
    damaged = bytearray(stream)
    damaged[len(stream) // 2 :] = bytes(len(stream) - len(stream) // 2)
    before = len(compression._zstd_decompressors)
    for broken, limit in ((bytes(damaged), SIZE), (stream, 100)):
        with pytest.raises((CodecError, RecordTooLargeError)):
            opened(ZSTD, broken, limit)
    assert len(compression._zstd_decompressors) <= before
    assert opened(ZSTD, stream) == data


def test_zstd_context_of_a_large_batch_is_not_kept() -> None:
    """A level, or a window size in a stream, must not keep memory allocated."""
    compression._zstd_compressors.clear()
    compression._zstd_decompressors.clear()
    stream = compress(ZSTD, text(SIZE), 2, 19)
    assert not compression._zstd_compressors
    # A frame with a window of 128 MiB and a raw block of 5 bytes.
    wide = b"\x28\xb5\x2f\xfd\x00\x88" + (5 << 3 | 1).to_bytes(3, "little") + b"hello"
    assert opened(ZSTD, wide) == b"hello"
    assert not compression._zstd_decompressors
    assert opened(ZSTD, stream) == text(SIZE)


@pytest.mark.parametrize("level", [1, 9, 12, 17])
def test_lz4_header_checksum_of_magic_0_alone_includes_the_frame_magic(
    level: int,
) -> None:
    """KAFKA-3160; all other bytes of the stream are the same in all magics."""
    data = text(100_000)
    old, new = (compress(LZ4, data, magic, level) for magic in (0, 1))
    assert compress(LZ4, data, 2, level) == new
    assert (old[:6], old[7:]) == (new[:6], new[7:])
    assert old[6] == xxhash.xxh32_intdigest(old[:6]) >> 8 & 0xFF
    assert new[6] == xxhash.xxh32_intdigest(new[4:6]) >> 8 & 0xFF


def test_codecs_work_in_a_forked_process() -> None:
    data = text(100_000)
    streams = {
        codec: compress(codec, data, 2, 3) for codec in (GZIP, SNAPPY, LZ4, ZSTD)
    }
    process = os.fork()
    if process == 0:
        good = False
        try:
            good = all(
                opened(codec, stream) == data and compress(codec, data, 2, 3) == stream
                for codec, stream in streams.items()
            )
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
    for codec, stream in streams.items():
        assert opened(codec, stream) == data
