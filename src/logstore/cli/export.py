"""`export`: records into a file of another kind."""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib
import os
from collections.abc import Iterator
from typing import Any, Final, Protocol, TextIO

import logstore
from logstore.cli.output import (
    Printer,
    Progress,
    json_line,
    json_text,
    payload_json,
)
from logstore.cli.records import record_json
from logstore.cli.sources import Found, Sources, sources_of

KINDS: Final = (".parquet", ".jsonl", ".csv", ".arrow")

_COLUMNS: Final = ("offset", "timestamp", "timestampType", "key", "value", "headers")
_CSV_HEAD: Final = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
)
_BATCH_RECORDS: Final = 65536


class _Sink(Protocol):
    """What batches of Arrow columns are written to."""

    def write_batch(self, batch: Any) -> None: ...

    def close(self) -> None: ...


def _pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise logstore.UnsupportedError(
            "parquet and arrow files need pyarrow; install it with "
            "`pip install 'pylogstore[arrow]'`, or export to .jsonl or .csv"
        ) from error


def run_export(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump export`."""
    target: str = args.to
    kind = os.path.splitext(target)[1].lower()
    if kind not in KINDS:
        raise logstore.ConfigError(
            f"--to {target}: the name ends with none of {', '.join(KINDS)}",
            name="--to",
            value=target,
        )
    if os.path.lexists(target) and not args.force:
        raise logstore.ConfigError(
            f"{target} is there; --force replaces it", name="--to", value=target
        )
    with sources_of(args) as sources:
        for name, error in sources.broken:
            printer.warn(f"{name}: {error}")
        # Under another name until it is whole.
        part = f"{target}.part"
        write = _write_arrow if kind in (".parquet", ".arrow") else _write_text
        try:
            with Progress("exporting", printer.err, unit=str) as progress:
                count = write(sources, args, printer, part, kind, progress)
            os.replace(part, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        if args.format == "jsonl":
            printer.json({"path": target, "records": count})
        else:
            printer.line(f"wrote {count} records to {target}")
        return 1 if sources.is_damaged else 0


def _total(sources: Sources) -> int:
    return sum(p.end_offset - p.start_offset for p in sources.partitions)


# ------------------------------------------------------------------ text


def _write_text(
    sources: Sources,
    args: argparse.Namespace,
    printer: Printer,
    path: str,
    kind: str,
    progress: Progress,
) -> int:
    total = _total(sources)
    records = sources.records(printer, args.first, args.stop, args.isolation)
    count = 0
    with open(path, "w", encoding="utf-8", newline="") as file:
        put = _csv_rows(file, args.payload) if kind == ".csv" else None
        for found in records:
            if put is not None:
                put(_csv_row(found, args.payload))
            else:
                file.write(json_line(record_json(found, args.payload)) + "\n")
            count += 1
            progress(count, max(total, count))
    return count


def _csv_rows(file: TextIO, payload: str) -> Any:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(_CSV_HEAD)
    return writer.writerow


def _csv_row(found: Found, payload: str) -> list[Any]:
    record = found.record
    key, value = (_csv_cell(data, payload) for data in (record.key, record.value))
    headers = [[name, payload_json(data, payload)] for name, data in record.headers]
    return [
        found.topic,
        found.partition,
        record.offset,
        record.timestamp_ms if record.timestamp_type >= 0 else None,
        record.timestamp_type.kafka_name,
        key,
        value,
        json_text(headers) if headers else None,
    ]


def _csv_cell(data: bytes | None, payload: str) -> Any:
    if payload == "none":
        return None if data is None else len(data)
    value = payload_json(data, payload)
    return value if value is None or isinstance(value, str) else json_text(value)


# ------------------------------------------------------------------ Arrow


def _write_arrow(
    sources: Sources,
    args: argparse.Namespace,
    printer: Printer,
    path: str,
    kind: str,
    progress: Progress,
) -> int:
    pa = _pyarrow("pyarrow")
    schema = _schema(pa)
    total, count = _total(sources), 0
    sink: _Sink
    if kind == ".parquet":
        parquet = _pyarrow("pyarrow.parquet")
        sink = parquet.ParquetWriter(path, schema, compression="zstd")
    else:
        sink = pa.ipc.new_file(path, schema)
    try:
        for batch in _arrow_batches(pa, schema, sources, args, printer):
            sink.write_batch(batch)
            count += batch.num_rows
            progress(count, max(total, count))
    finally:
        sink.close()
    return count


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


def _arrow_batches(
    pa: Any, schema: Any, sources: Sources, args: argparse.Namespace, printer: Printer
) -> Iterator[Any]:
    for partition in sources.partitions:
        reader = partition.read_arrow(
            sources.clamped(partition, args.first),
            args.stop,
            columns=_COLUMNS,
            batch_records=_BATCH_RECORDS,
            isolation=args.isolation,
        )
        for batch in reader:
            n = batch.num_rows
            columns = [
                pa.repeat(pa.scalar(partition.topic, pa.string()), n),
                pa.repeat(pa.scalar(partition.number, pa.int32()), n),
                *(batch.column(name) for name in _COLUMNS),
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
    if sources.files:
        yield from _batches_of_files(pa, schema, sources, args, printer)


def _batches_of_files(
    pa: Any, schema: Any, sources: Sources, args: argparse.Namespace, printer: Printer
) -> Iterator[Any]:
    rows: list[dict[str, Any]] = []
    for found in sources.records(printer, args.first, args.stop):
        record = found.record
        rows.append(
            {
                "topic": found.topic,
                "partition": found.partition,
                "offset": record.offset,
                "timestamp": (
                    record.timestamp_ms if record.timestamp_type >= 0 else None
                ),
                "timestampType": int(record.timestamp_type),
                "key": record.key,
                "value": record.value,
                "headers": [{"key": k, "value": v} for k, v in record.headers],
            }
        )
        if len(rows) == _BATCH_RECORDS:
            yield pa.RecordBatch.from_pylist(rows, schema=schema)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=schema)
