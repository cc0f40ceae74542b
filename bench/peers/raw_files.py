"""System calls and checksums alone: what is left when nothing is done about a log."""

from __future__ import annotations

import mmap
import os
import zlib
from typing import Any, ClassVar

from bench.ours import (
    LOOKUPS,
    check_random,
    encoded_batches,
    random_offsets,
    run_threads,
)
from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS

_READ_BYTES = 256 * 1024


def message(offset: int, key: bytes, value: bytes) -> bytes:
    """A message of magic 1 in its form on disk."""
    body = b"".join(
        [
            b"\x01\x00",
            TIMESTAMP_MS.to_bytes(8, "big"),
            len(key).to_bytes(4, "big"),
            key,
            len(value).to_bytes(4, "big"),
            value,
        ]
    )
    return b"".join(
        [
            offset.to_bytes(8, "big"),
            (len(body) + 4).to_bytes(4, "big"),
            zlib.crc32(body).to_bytes(4, "big"),
            body,
        ]
    )


class _Raw(Contestant):
    """Has the messages ready, as bytes, before it is timed."""

    def open(self) -> None:
        pairs = zip(self.workload.keys, self.workload.values, strict=True)
        self.messages = [message(n, k, v) for n, (k, v) in enumerate(pairs)]
        self.size = len(self.messages[0])

    def before(self) -> None:
        self.path = self.directory / "log"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def after(self, result: Any) -> None:
        if self.path.read_bytes() != b"".join(self.messages):
            raise AssertionError(f"{self.name} wrote something else")
        os.close(self.fd)
        self.path.unlink()


class PwriteBatches(_Raw):
    """One pwrite per batch of 1,000 ready-made messages."""

    name = "os.pwrite per batch"

    def open(self) -> None:
        super().open()
        step = len(self.workload.batches[0][0])
        self.blocks = [
            b"".join(self.messages[i : i + step])
            for i in range(0, len(self.messages), step)
        ]

    def work(self) -> None:
        fd, pos = self.fd, 0
        for block in self.blocks:
            pos += os.pwrite(fd, block, pos)


class PwriteBatchesV2(PwriteBatches):
    """The same with the bytes of magic 2, which logstore encoded before."""

    name = "os.pwrite per batch, magic 2"

    def open(self) -> None:
        self.blocks = encoded_batches(self.directory, self.workload, 2)
        self.messages = self.blocks


class WriteBatches(PwriteBatches):
    """The same with `os.write`, at the end of the file."""

    name = "os.write per batch"

    def work(self) -> None:
        fd = self.fd
        for block in self.blocks:
            os.write(fd, block)


class PwriteOne(_Raw):
    """One pwrite per ready-made message."""

    name = "os.pwrite loop"

    def work(self) -> None:
        fd, pos = self.fd, 0
        pwrite = os.pwrite
        for data in self.messages:
            pos += pwrite(fd, data, pos)


class PwriteSync(_Raw):
    """One pwrite and one fdatasync per ready-made message."""

    name = "pwrite + fdatasync"
    threads: ClassVar[int] = 1

    def work(self) -> None:
        run_threads(self.threads, self._write)

    def _write(self, thread: int) -> None:
        fd, size = self.fd, self.size
        for i in range(thread, len(self.messages), self.threads):
            os.pwrite(fd, self.messages[i], i * size)
            os.fdatasync(fd)


class PwriteSync8(PwriteSync):
    name = "pwrite + fdatasync, 8 threads"
    threads = 8


class PwriteSync64(PwriteSync):
    name = "pwrite + fdatasync, 64 threads"
    threads = 64


class _RawFile(_Raw):
    """The file is written once; rounds read it from the page cache."""

    def open(self) -> None:
        super().open()
        super().before()
        os.pwrite(self.fd, b"".join(self.messages), 0)
        os.fdatasync(self.fd)
        self.bytes = self.size * len(self.messages)

    def before(self) -> None:
        pass

    def after(self, result: Any) -> None:
        pass

    def close(self) -> None:
        os.close(self.fd)


class Pread(_RawFile):
    """A pread of one message at its known position; its checksum is not checked."""

    name = "os.pread"

    def open(self) -> None:
        super().open()
        self.offsets = random_offsets(LOOKUPS, self.workload.count)

    def amount(self) -> int:
        return LOOKUPS

    def work(self) -> list[bytes]:
        fd, size = self.fd, self.size
        return [os.pread(fd, size, i * size)[42:] for i in self.offsets]

    def after(self, result: list[bytes]) -> None:
        check_random(self, result)


class CachedRead(_RawFile):
    """The file, read in pieces that stay in the processor's cache."""

    name = "os.preadv, cached"

    def open(self) -> None:
        super().open()
        # Whole pages: if a copy begins 1 to 63 bytes after its source, by the lowest 12
        # bits of their addresses, some processors take four times as long.
        self.view = memoryview(mmap.mmap(-1, _READ_BYTES))

    def work(self) -> int:
        pos = 0
        while n := os.preadv(self.fd, [self.view], pos):
            pos += n
        return pos

    def after(self, result: int) -> None:
        if result != self.bytes:
            raise AssertionError(f"{self.name} read {result} bytes")


class CachedReadThreads(CachedRead):
    """Two threads, each with half of the file: what two cores can read at all."""

    name = "os.preadv, cached, 2 threads"
    threads: ClassVar[int] = 2

    def open(self) -> None:
        super().open()
        self.views = [self.view, memoryview(mmap.mmap(-1, _READ_BYTES))]
        self.sizes = [0, 0]

    def work(self) -> int:
        run_threads(self.threads, self._read)
        return sum(self.sizes)

    def _read(self, thread: int) -> None:
        fd, view = self.fd, self.views[thread]
        half = self.bytes // 2
        begin, end = (0, half) if thread == 0 else (half, self.bytes)
        pos = begin
        while pos < end:
            pos += os.preadv(fd, [view[: end - pos]], pos)
        self.sizes[thread] = pos - begin


class CachedBytes(CachedRead):
    """The same, as a rate of bytes."""

    def amount(self) -> int:
        return self.bytes


class MemoryCopy(_Raw):
    """The bytes of the file, copied once within memory that is warm."""

    name = "memcpy"

    def open(self) -> None:
        super().open()
        self.source = b"".join(self.messages)
        self.target = bytearray(len(self.source))

    def before(self) -> None:
        pass

    def work(self) -> None:
        self.target[:] = self.source

    def after(self, result: Any) -> None:
        if self.target != self.source:
            raise AssertionError(f"{self.name} gave other bytes")


class Crc32(CachedBytes):
    """zlib.crc32 over the file, read in the same way."""

    name = "zlib.crc32"

    def work(self) -> int:
        crc, pos = 0, 0
        while n := os.preadv(self.fd, [self.view], pos):
            crc = zlib.crc32(self.view[:n], crc)
            pos += n
        return crc

    def after(self, result: int) -> None:
        if result != zlib.crc32(b"".join(self.messages)):
            raise AssertionError(f"{self.name} gave {result:#010x}")


__all__ = [
    "CachedBytes",
    "CachedRead",
    "CachedReadThreads",
    "Crc32",
    "MemoryCopy",
    "Pread",
    "PwriteBatches",
    "PwriteBatchesV2",
    "PwriteOne",
    "PwriteSync",
    "PwriteSync8",
    "PwriteSync64",
    "WriteBatches",
]
