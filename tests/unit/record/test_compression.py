"""Streams of every codec that take more than one piece: whole, cut, and too large."""

from __future__ import annotations

import gzip
import random
import tracemalloc

import pytest

from logstore.config import CODECS
from logstore.errors import RecordTooLargeError
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
            continue  # the framing has no end of its own
        with pytest.raises(CodecError):
            opened(codec, stream[:cut])


def _is_between_chunks(stream: bytes, cut: int) -> bool:
    pos = 16
    while pos < cut:
        pos += 4 + int.from_bytes(stream[pos : pos + 4], "big")
    return pos == cut


def test_gzip_members_are_read_one_behind_another() -> None:
    """As Java's reader does, also over the pieces of the input; what is no member
    behind the last is left alone."""
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
    """Two readers at once have room in a small service; nothing is taken for a limit
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
