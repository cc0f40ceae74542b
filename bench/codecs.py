"""cramjam in place of lz4 and zstandard: as fast, with the promises of a codec?

    python -m bench.codecs [--rounds N]

cramjam is a dependency in any case, for snappy. Both ways do the work of one batch with
the promises of `logstore.record.compression`: blocks of 64 KiB in lz4, output that is
never more than a limit, damage that is found. They take turns in one process, and their
CPU time is measured; a row has the median of the ratios of their rates, below 1 if
cramjam is slower.
"""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import cramjam
import xxhash
import zstandard

from logstore.record import compression

LZ4, ZSTD = compression.LZ4, compression.ZSTD
SIZES: Final = {"1 kB": 1_000, "16 kB": 16_000, "1 MB": 1_000_000}
LIMIT: Final = 256 << 20  # as a store has by default
LEVELS: Final = ((LZ4, 9), (LZ4, 12), (ZSTD, 1), (ZSTD, 3), (ZSTD, 9))
NAMES: Final = {LZ4: "lz4", ZSTD: "zstd"}
_BLOCK_BYTES: Final = 64 << 10
_PLAIN: Final = 1 << 31  # of a block of lz4 that is not compressed
_UINT32 = struct.Struct("<I")
_ROUND_S: Final = 0.02

Work = Callable[[], object]


def text(size: int) -> bytes:
    """Words by chance, which a codec makes a third of."""
    chance = random.Random(size)
    words = [chance.randbytes(3).hex().encode() for _ in range(400)]
    return b" ".join(chance.choices(words, k=size // 7 + 1))[:size]


# ------------------------------------------------------------------- lz4 by cramjam

# Its functions for frames hold the interpreter's lock while they compress, and make
# blocks of 4 MiB, for which each reader in Java takes memory. So the frame is made
# here, from its functions for blocks. These have no levels (2.14 ignores them): there
# the frames remain.
_HEADER: Final = b"\x04\x22\x4d\x18\x60\x40"


def lz4_compress(data: bytes, level: int) -> bytes:
    """A frame as `compression.compress` makes it."""
    if level > 9:
        frames = cramjam.lz4.Compressor(level - 9, False, False)
        frames.compress(data)
        return bytes(frames.finish())
    view = memoryview(data)
    check = xxhash.xxh32_intdigest(_HEADER[4:]) >> 8 & 0xFF
    parts = [_HEADER, bytes([check])]
    for begin in range(0, len(view), _BLOCK_BYTES):
        plain = view[begin : begin + _BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(plain, store_size=False))
        if len(packed) < len(plain):
            parts += [_UINT32.pack(len(packed)), packed]
        else:
            parts += [_UINT32.pack(len(plain) | _PLAIN), bytes(plain)]
    parts.append(bytes(4))
    return b"".join(parts)


def _lz4_blocks(frame: memoryview) -> Iterator[tuple[bool, memoryview]]:
    """The blocks of a frame, and whether each is plain."""
    if bytes(frame[:4]) != _HEADER[:4]:
        raise compression.CodecError("lz4 frame has no magic")
    end = 4 + compression._lz4_descriptor_bytes(frame)
    if xxhash.xxh32_intdigest(frame[4:end]) >> 8 & 0xFF != frame[end]:
        raise compression.CodecError("lz4 header checksum differs")
    at = end + 1
    has_checksums = bool(frame[4] & 0x10)
    while True:
        if len(frame) < at + 4:
            raise compression.CodecError("lz4 frame ends early")
        (word,) = _UINT32.unpack_from(frame, at)
        if word == 0:
            return
        size = word & (_PLAIN - 1)
        block = frame[at + 4 : at + 4 + size]
        if len(block) < size:
            raise compression.CodecError("lz4 frame ends early")
        yield bool(word & _PLAIN), block
        at += 4 + size + (4 if has_checksums else 0)


def lz4_decompress(data: memoryview, limit: int) -> bytearray:
    """The content of a frame with independent blocks."""
    blocks = list(_lz4_blocks(data))
    block_bytes = 1 << 8 + 2 * (data[5] >> 4 & 7)
    out = bytearray(min(len(blocks) * block_bytes, limit))
    view = memoryview(out)
    end = 0
    for is_plain, block in blocks:
        if is_plain:
            size = len(block)
            view[end : end + size] = block
        else:
            with view[end : end + block_bytes] as room:
                size = cramjam.lz4.decompress_block_into(block, room, len(room))
        end += size
    view.release()
    del out[end:]
    return out


# ------------------------------------------------------------------ zstd by cramjam


def zstd_compress(data: bytes, level: int) -> bytes:
    return bytes(cramjam.zstd.compress(data, level))


def zstd_decompress(data: memoryview, limit: int) -> bytearray:
    """The content of a stream whose frames state their sizes, like cramjam's: without a
    size it would have to be decompressed twice, or into memory for the largest possible
    content of its blocks."""
    compression._check_zstd_frames(data)
    size = zstandard.frame_content_size(data)
    out = bytearray(min(size, limit))
    cramjam.zstd.decompress_into(data, out)
    return out


# ----------------------------------------------------------------------- comparison

_COMPRESS: Final = {LZ4: lz4_compress, ZSTD: zstd_compress}
_DECOMPRESS: Final = {LZ4: lz4_decompress, ZSTD: zstd_decompress}


def pairs(codec: int, level: int, data: bytes) -> dict[str, tuple[Work, Work]]:
    """The functions to compare: ours, cramjam's. Each reads its own output."""
    ours = memoryview(compression.compress(codec, data, 2, level))
    theirs = memoryview(_COMPRESS[codec](data, level))
    if compression.decompress(codec, theirs, 2, LIMIT) != data:
        raise AssertionError("cramjam's stream has other bytes")
    if _DECOMPRESS[codec](theirs, LIMIT) != data:
        raise AssertionError("cramjam gives other bytes")
    return {
        "compress": (
            lambda: compression.compress(codec, data, 2, level),
            lambda: _COMPRESS[codec](data, level),
        ),
        "decompress": (
            lambda: compression.decompress(codec, ours, 2, LIMIT),
            lambda: _DECOMPRESS[codec](theirs, LIMIT),
        ),
    }


def seconds_of(work: Work, times: int) -> float:
    begin = time.thread_time()
    for _ in range(times):
        work()
    return (time.thread_time() - begin) / times


def compare(one: Work, other: Work, rounds: int) -> tuple[float, float, float]:
    """Median seconds of both, and the median of the ratios of their rates."""
    times = max(int(_ROUND_S / seconds_of(one, 3)), 1)
    found = []
    for number in range(rounds + 2):
        order = (one, other) if number % 2 else (other, one)
        took = {work: seconds_of(work, times) for work in order}
        if number >= 2:  # the first ones take memory that is new to the process
            found.append((took[one], took[other]))
    ratio = statistics.median(a / b for a, b in found)
    return *(statistics.median(column) for column in zip(*found, strict=True)), ratio


def locked_share(work: Work) -> float:
    """The part of a call for which other threads do not run."""
    is_done = threading.Event()
    longest, before = 0.0, time.perf_counter()
    begin = before

    def run() -> None:
        work()
        is_done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not is_done.is_set():
        time.sleep(0.0005)
        now = time.perf_counter()
        longest, before = max(longest, now - before), now
    thread.join()
    return longest / (time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description="cramjam beside lz4 and zstandard")
    parser.add_argument("--rounds", type=int, default=21)
    rounds = parser.parse_args().rounds
    print("| codec, level | batch | work | logstore, us | cramjam, us | cramjam |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for codec, level in LEVELS:
        for name, size in SIZES.items():
            for work, both in pairs(codec, level, text(size)).items():
                ours, theirs, ratio = compare(*both, rounds)
                row = f"| {NAMES[codec]} {level} | {name} | {work} "
                print(f"{row}| {ours * 1e6:.4g} | {theirs * 1e6:.4g} | {ratio:.2f} |")
    large = text(40_000_000)
    print("\nThe part of a call that holds the interpreter's lock, 40 MB:")
    frames = cramjam.lz4.Compressor(9, False, False)
    calls: dict[str, Work] = {
        "lz4, cramjam's frames": lambda: frames.compress(large),
        "lz4, cramjam's blocks": lambda: cramjam.lz4.compress_block(large),
        "zstd, cramjam": lambda: cramjam.zstd.compress(large, 3),
        "zstd, logstore": lambda: compression.compress(ZSTD, large, 2, 3),
        "lz4, logstore": lambda: compression.compress(LZ4, large, 2, 9),
    }
    for name, call in calls.items():
        print(f"{name}: {locked_share(call):.2f}")


if __name__ == "__main__":
    main()
