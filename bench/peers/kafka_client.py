"""aiokafka's builder and parser (Cython): batches in Kafka's format, in a plain file.

Its builder makes the batches in memory and `os.pwrite` writes them; no indexes, no
offsets to be continued. Its parser gets the whole file in memory and checks every
checksum.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS, Digest

_BATCH_BYTES = 1 << 20


def build_v2(keys: list[bytes], values: list[bytes]) -> Any:
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=_BATCH_BYTES,
    )
    append = builder.append
    for n, (key, value) in enumerate(zip(keys, values, strict=True)):
        append(n, timestamp=TIMESTAMP_MS, key=key, value=value, headers=[])
    return builder.build()


def build_v1(keys: list[bytes], values: list[bytes]) -> Any:
    builder = LegacyRecordBatchBuilder(
        magic=1, compression_type=0, batch_size=_BATCH_BYTES
    )
    append = builder.append
    for n, (key, value) in enumerate(zip(keys, values, strict=True)):
        append(n, timestamp=TIMESTAMP_MS, key=key, value=value)
    return builder.build()


def records_of(data: bytes) -> Any:
    """Every record in the batches of `data`, whose checksums are compared."""
    memory = MemoryRecords(data)
    while memory.has_next():
        batch = memory.next_batch()
        if not batch.validate_crc():
            raise AssertionError("a batch fails its checksum")
        yield from batch


class AppendMany(Contestant):
    name = "aiokafka builder v1"
    build = staticmethod(build_v1)

    def before(self) -> None:
        self.path = self.directory / "log"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def work(self) -> None:
        build, fd, pos = self.build, self.fd, 0
        for keys, values in self.workload.batches:
            pos += os.pwrite(fd, build(keys, values), pos)

    def after(self, result: Any) -> None:
        digest = Digest()
        records = [(r.key, r.value) for r in records_of(self.path.read_bytes())]
        digest.add([key for key, _ in records], [value for _, value in records])
        self.workload.check(digest, self.name)
        os.close(self.fd)
        self.path.unlink()


class AppendManyV2(AppendMany):
    name = "aiokafka builder v2"
    build = staticmethod(build_v2)


class Read(Contestant):
    name = "aiokafka parser v1"
    build = staticmethod(build_v1)

    def open(self) -> None:
        self.path: Path = self.directory / "log"
        with self.path.open("wb") as file:
            for keys, values in self.workload.batches:
                file.write(self.build(keys, values))

    def work(self) -> int:
        count = 0
        memory = MemoryRecords(self.path.read_bytes())
        while memory.has_next():
            batch = memory.next_batch()
            if not batch.validate_crc():
                raise AssertionError("a batch fails its checksum")
            for _ in batch:
                count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        digest = Digest()
        records = [(r.key, r.value) for r in records_of(self.path.read_bytes())]
        digest.add([key for key, _ in records], [value for _, value in records])
        self.workload.check(digest, self.name)


class ReadV2(Read):
    name = "aiokafka parser v2"
    build = staticmethod(build_v2)
