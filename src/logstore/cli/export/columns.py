"""Records as the columns of parquet and Arrow files."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import logstore
from logstore.cli.lazy import import_package
from logstore.cli.log_file import FileSource
from logstore.cli.params import Bound
from logstore.cli.sources import Sources

_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
_BATCH_RECORDS: Final = 65536


class ColumnWriter:
    """Writes Arrow batches into one file. A context manager."""

    def __init__(self, kind: str, file: BinaryIO) -> None:
        self._pa = import_package("pyarrow")
        self.schema = _schema(self._pa)
        self._sink: Any
        if kind == "parquet":
            parquet = import_package("pyarrow.parquet")
            self._sink = parquet.ParquetWriter(file, self.schema, compression="zstd")
        else:
            self._sink = self._pa.ipc.new_file(file, self.schema)

    def __enter__(self) -> ColumnWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.close()

    def add(self, topic: str | None, number: int | None, batch: Any) -> int:
        """Write the records of a batch of `partition_batches`; returns how many."""
        pa, n = self._pa, batch.num_rows
        columns = [
            pa.repeat(pa.scalar(topic, pa.string()), n),
            pa.repeat(pa.scalar(number, pa.int32()), n),
            *(batch.column(name) for name in _COLUMNS),
        ]
        self._sink.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        return int(n)

    def add_rows(self, source: FileSource, records: list[logstore.Record]) -> int:
        """Write records of a single file; returns how many."""
        rows = [_row(source, record) for record in records]
        batch = self._pa.RecordBatch.from_pylist(rows, schema=self.schema)
        self._sink.write_batch(batch)
        return len(rows)


def partition_batches(
    sources: Sources,
    partition: logstore.Partition,
    start: Bound,
    stop: Bound,
    isolation: str,
) -> Iterator[Any]:
    """The Arrow batches of a partition, over damage."""
    reading = functools.partial(
        partition.read_arrow, columns=_COLUMNS, batch_records=_BATCH_RECORDS
    )
    return sources.read(partition, start, stop, isolation, reading)


def _schema(pa: Any) -> Any:
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.schema(
        [
            pa.field("topic", pa.string()),
            pa.field("partition", pa.int32()),
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("timestamp", pa.timestamp("ms", tz="UTC")),
            pa.field("timestampType", pa.int32(), nullable=False),
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("headers", pa.list_(header)),
        ]
    )


def _row(source: FileSource, record: logstore.Record) -> dict[str, Any]:
    return {
        "topic": source.topic,
        "partition": source.partition,
        "offset": record.offset,
        "timestamp": None if record.timestamp_ms == -1 else record.timestamp_ms,
        "timestampType": int(record.timestamp_type),
        "key": record.key,
        "value": record.value,
        "headers": [{"key": k, "value": v} for k, v in record.headers],
    }
