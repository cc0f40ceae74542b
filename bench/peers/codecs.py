"""The codecs alone: the record areas of the same batches, compressed and decompressed.

Each library is called as one would call it for one batch, with the settings that a
topic has by default; no records are encoded, decoded, checked or written.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import ClassVar

import cramjam
import lz4.frame
import zstandard

from bench.ours import encoded_batches
from bench.rounds import Contestant

__all__ = [
    "Gunzip",
    "Gzip",
    "Lz4",
    "Snappy",
    "Unlz4",
    "Unsnappy",
    "Unzstd",
    "Zstd",
]

_BATCH_HEADER_BYTES = 61


def _gzip(data: bytes) -> bytes:
    deflater = zlib.compressobj(-1, zlib.DEFLATED, 31)
    return deflater.compress(data) + deflater.flush()


def _gunzip(data: bytes) -> bytes:
    return zlib.decompress(data, 31)


def _snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def _unsnappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.decompress_raw(data))


def _lz4(data: bytes) -> bytes:
    found: bytes = lz4.frame.compress(
        data,
        block_size=lz4.frame.BLOCKSIZE_MAX64KB,
        block_linked=False,
        store_size=False,
    )
    return found


def _unlz4(data: bytes) -> bytes:
    found: bytes = lz4.frame.decompress(data)
    return found


def _zstd(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(data)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


_Codec = Callable[[bytes], bytes]
COMPRESS: dict[str, _Codec] = {
    "gzip": _gzip, "snappy": _snappy, "lz4": _lz4, "zstd": _zstd,
}  # fmt: skip
DECOMPRESS: dict[str, _Codec] = {
    "gzip": _gunzip, "snappy": _unsnappy, "lz4": _unlz4, "zstd": _unzstd,
}  # fmt: skip


class _Alone(Contestant):
    codec: ClassVar[str]

    def open(self) -> None:
        batches = encoded_batches(self.directory, self.workload, 2)
        self.plain = [batch[_BATCH_HEADER_BYTES:] for batch in batches]


class _Compressing(_Alone):
    def work(self) -> list[bytes]:
        compress = COMPRESS[self.codec]
        return [compress(data) for data in self.plain]

    def after(self, result: list[bytes]) -> None:
        if [DECOMPRESS[self.codec](data) for data in result] != self.plain:
            raise AssertionError(f"{self.name} gave other bytes")


class _Decompressing(_Alone):
    def open(self) -> None:
        super().open()
        self.compressed = [COMPRESS[self.codec](data) for data in self.plain]

    def work(self) -> list[bytes]:
        decompress = DECOMPRESS[self.codec]
        return [decompress(data) for data in self.compressed]

    def after(self, result: list[bytes]) -> None:
        if result != self.plain:
            raise AssertionError(f"{self.name} gave other bytes")


class Gzip(_Compressing):
    name = "gzip alone"
    codec = "gzip"


class Gunzip(_Decompressing):
    name = "gzip alone"
    codec = "gzip"


class Snappy(_Compressing):
    name = "snappy alone"
    codec = "snappy"


class Unsnappy(_Decompressing):
    name = "snappy alone"
    codec = "snappy"


class Lz4(_Compressing):
    name = "lz4 alone"
    codec = "lz4"


class Unlz4(_Decompressing):
    name = "lz4 alone"
    codec = "lz4"


class Zstd(_Compressing):
    name = "zstd alone"
    codec = "zstd"


class Unzstd(_Decompressing):
    name = "zstd alone"
    codec = "zstd"
