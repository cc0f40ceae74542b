"""Builders and parsers of Kafka's Python clients: batches in a plain file.

The builder makes the batches in memory and `os.pwrite` writes them; no indexes, no
offsets to be continued. The parser gets the whole file in memory and checks every
checksum. aiokafka's are in Cython, kafka-python's in Python; both have the same calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from bench.rounds import Contestant
from bench.workload import TIMESTAMP_MS

__all__ = ["Builder", "Parser"]

# A first record may be larger; no case has a batch beyond it otherwise.
_BATCH_BYTES = 1 << 20


class _Client(Contestant):
    """A client library and a format.

    Attributes:
        magic: of the batches.
        builder: its class of builders for that magic.
        memory_records: its parser of a buffer of batches.
    """

    magic: ClassVar[int]
    builder: ClassVar[Any]
    memory_records: ClassVar[Any]
    path: Path

    def build(self, keys: list[bytes], values: list[bytes]) -> Any:
        """One batch."""
        if self.magic == 2:
            builder = self.builder(
                magic=2,
                compression_type=0,
                is_transactional=0,
                producer_id=-1,
                producer_epoch=-1,
                base_sequence=-1,
                batch_size=_BATCH_BYTES,
            )
        else:
            builder = self.builder(magic=1, compression_type=0, batch_size=_BATCH_BYTES)
        append = builder.append
        for n, (key, value) in enumerate(zip(keys, values, strict=True)):
            append(n, timestamp=TIMESTAMP_MS, key=key, value=value, headers=[])
        return builder.build()

    def batches(self) -> Iterator[Any]:
        """The batches in the file, whose checksums are compared."""
        memory = self.memory_records(self.path.read_bytes())
        while memory.has_next():
            batch = memory.next_batch()
            if not batch.validate_crc():
                raise AssertionError("a batch fails its checksum")
            yield batch

    def check(self) -> None:
        records = (record for batch in self.batches() for record in batch)
        self.workload.check_pairs(((r.key, r.value) for r in records), self.name)


class Builder(_Client):
    """Builds each batch and writes it."""

    def before(self) -> None:
        self.path = self.directory / "log"
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)

    def work(self) -> None:
        build, fd, pos = self.build, self.fd, 0
        for keys, values in self.workload.batches:
            pos += os.pwrite(fd, build(keys, values), pos)

    def after(self, result: Any) -> None:
        self.check()
        os.close(self.fd)
        self.path.unlink()


class Parser(_Client):
    """Reads the file and touches key and value of each record."""

    def open(self) -> None:
        self.path = self.directory / "log"
        with self.path.open("wb") as file:
            for keys, values in self.workload.batches:
                file.write(self.build(keys, values))

    def work(self) -> int:
        count = 0
        for batch in self.batches():
            for record in batch:
                _, _ = record.key, record.value
                count += 1
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        self.check()
