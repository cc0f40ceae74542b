"""Parquet through pyarrow: columns in a file, plain, not compressed.

A file can be read when it is closed, and is never appended to. It keeps page checksums
neither by default nor here.
"""

from __future__ import annotations

from typing import Any

import pyarrow.parquet as parquet

from bench.rounds import Contestant
from bench.workload import Digest

__all__ = ["Append", "Read"]

_ROW_GROUP_RECORDS = 65_536


class _Parquet(Contestant):
    def open(self) -> None:
        self.path = self.directory / "log.parquet"
        self.arrow = list(self.workload.arrow_batches())

    def write(self) -> None:
        schema = self.arrow[0].schema
        with parquet.ParquetWriter(
            self.path, schema, compression="none", use_dictionary=False
        ) as writer:
            for batch in self.arrow:
                writer.write_batch(batch, row_group_size=_ROW_GROUP_RECORDS)

    def check(self) -> None:
        digest = Digest()
        with parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches():
                digest.add_arrow(batch)
        self.workload.check(digest, self.name)


class Append(_Parquet):
    """The same Arrow batches, into one file."""

    name = "parquet writer"

    def work(self) -> None:
        self.write()

    def after(self, result: Any) -> None:
        self.check()
        self.path.unlink()


class Read(_Parquet):
    """All batches of the file, both columns, with one thread."""

    name = "parquet reader"

    def open(self) -> None:
        super().open()
        self.write()

    def work(self) -> int:
        count = 0
        with parquet.ParquetFile(self.path) as file:
            for batch in file.iter_batches(_ROW_GROUP_RECORDS, use_threads=False):
                count += batch.num_rows
        return count

    def after(self, result: int) -> None:
        self.workload.check_count(result, self.name)

    def close(self) -> None:
        self.check()
