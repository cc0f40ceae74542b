"""`records`, `tail` and `batches`: what is in logs."""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

import logstore
from logstore.cli import kafka
from logstore.cli.output import (
    Printer,
    escape,
    payload_json,
    payload_text,
    size_text,
    time_text,
)
from logstore.cli.sources import (
    Bound,
    FileSource,
    Found,
    Sources,
    milliseconds_of,
    sources_of,
)

_POLL_SECONDS: Final = 0.1


def record_text(found: Found, payload: str) -> str:
    """A record as a line of text."""
    record = found.record
    parts = []
    if found.topic is not None:
        parts.append(escape(f"{found.topic}-{found.partition}"))
    parts += [
        str(record.offset),
        time_text(record.timestamp_ms) if record.timestamp_type >= 0 else "-",
        f"key={payload_text(record.key, payload)}",
        f"value={payload_text(record.value, payload)}",
    ]
    if record.headers:
        pairs = (
            f"{escape(name)}={payload_text(value, payload)}"
            for name, value in record.headers
        )
        parts.append(f"headers=[{', '.join(pairs)}]")
    return " ".join(parts)


def record_json(found: Found, payload: str) -> dict[str, Any]:
    """A record as a value for JSON."""
    record = found.record
    value: dict[str, Any] = {
        "topic": found.topic,
        "partition": found.partition,
        "offset": record.offset,
        "timestamp": record.timestamp_ms,
        "timestampType": record.timestamp_type.kafka_name,
    }
    if payload == "none":
        value["keySize"] = None if record.key is None else len(record.key)
        value["valueSize"] = None if record.value is None else len(record.value)
        value["headers"] = [[name, None] for name, _ in record.headers]
        return value
    value["key"] = payload_json(record.key, payload)
    value["value"] = payload_json(record.value, payload)
    value["headers"] = [
        [name, payload_json(data, payload)] for name, data in record.headers
    ]
    return value


def matching(records: Iterator[Found], pattern: str | None) -> Iterator[Found]:
    """The records whose key or value has a match."""
    if pattern is None:
        yield from records
        return
    search = re.compile(pattern.encode("utf-8", "surrogateescape")).search
    for found in records:
        record = found.record
        if any(
            data is not None and search(data) for data in (record.key, record.value)
        ):
            yield found


def _print_record(found: Found, args: argparse.Namespace, printer: Printer) -> None:
    if args.format == "jsonl":
        printer.json(record_json(found, args.payload))
    else:
        printer.line(record_text(found, args.payload))


def run_records(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump records`."""
    with sources_of(args) as sources:
        if args.kafka:
            return _dump_files(sources, printer, deep=True)
        _tell_broken(sources, printer)
        records = sources.records(
            printer, args.first, args.stop, isolation=args.isolation
        )
        for found in itertools.islice(matching(records, args.grep), args.limit):
            _print_record(found, args, printer)
        return 1 if sources.is_damaged else 0


def _tell_broken(sources: Sources, printer: Printer) -> None:
    for name, error in sources.broken:
        printer.warn(f"{name}: {error}")


def _dump_files(sources: Sources, printer: Printer, *, deep: bool) -> int:
    sound = [kafka.dump_file(source, printer, deep=deep) for source in sources.files]
    return 0 if all(sound) else 1


# ------------------------------------------------------------------ batches


def batch_json(name: str | None, batch: logstore.RecordBatch) -> dict[str, Any]:
    """A batch as a value for JSON."""
    return {
        "partition": name,
        "baseOffset": batch.base_offset,
        "lastOffset": batch.last_offset,
        "position": batch.position,
        "size": batch.size_bytes,
        "magic": batch.magic,
        "codec": batch.compression,
        "records": batch.record_count,
        "timestampType": batch.timestamp_type.kafka_name,
        "maxTimestamp": batch.max_timestamp_ms,
        "leaderEpoch": batch.leader_epoch,
        "producerId": batch.producer_id,
        "producerEpoch": batch.producer_epoch,
        "baseSequence": batch.base_sequence,
        "isTransactional": batch.is_transactional,
        "isControl": batch.is_control,
        "deleteHorizonMs": batch.delete_horizon_ms,
        "crc": batch.crc,
    }


def batch_text(name: str | None, batch: logstore.RecordBatch) -> str:
    """A batch as a line of text."""
    parts = [] if name is None else [escape(name)]
    parts += [
        f"{batch.base_offset}..{batch.last_offset}",
        f"at {batch.position}",
        size_text(batch.size_bytes),
        f"magic {batch.magic}",
        batch.compression,
        f"{batch.record_count} record{'' if batch.record_count == 1 else 's'}",
    ]
    if batch.timestamp_type >= 0:
        label = batch.timestamp_type.kafka_name
        parts.append(f"{label} {time_text(batch.max_timestamp_ms)}")
    if batch.producer_id >= 0:
        parts.append(
            f"producer {batch.producer_id} epoch {batch.producer_epoch} "
            f"sequence {batch.base_sequence}"
        )
    if batch.is_transactional:
        parts.append("transactional")
    if batch.is_control:
        control = batch.control_record()
        parts.append(f"control {control.type_name if control else 'emptied'}")
    parts.append(f"crc {batch.crc:#010x}")
    return "  ".join(parts)


def _batches(
    sources: Sources, args: argparse.Namespace, printer: Printer
) -> Iterator[tuple[str | None, logstore.RecordBatch]]:
    for partition in sources.partitions:
        first = sources.clamped(partition, args.first)
        for batch in partition.read_batches(first, args.stop):
            yield partition.name, batch
    for source in sources.files:
        name = None if source.topic is None else f"{source.topic}-{source.partition}"
        for batch in _file_batches(source, args, printer):
            yield name, batch


def _file_batches(
    source: FileSource, args: argparse.Namespace, printer: Printer
) -> Iterator[logstore.RecordBatch]:
    begun = False
    for batch in source.batches(printer):
        begun = begun or _reaches(batch, args.first, is_start=True)
        if not begun:
            continue
        if args.stop is not None and _reaches(batch, args.stop, is_start=False):
            return
        yield batch


def _reaches(batch: logstore.RecordBatch, bound: Bound, *, is_start: bool) -> bool:
    """Whether a batch reaches an offset or time (a stop: begins at or after it)."""
    if bound is None:
        return True
    if isinstance(bound, int):
        return (batch.last_offset if is_start else batch.base_offset) >= bound
    return batch.max_timestamp_ms >= milliseconds_of(bound)


def run_batches(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump batches`."""
    with sources_of(args) as sources:
        if args.kafka:
            return _dump_files(sources, printer, deep=False)
        _tell_broken(sources, printer)
        batches = _batches(sources, args, printer)
        for name, batch in itertools.islice(batches, args.limit):
            if args.format == "jsonl":
                printer.json(batch_json(name, batch))
            else:
                printer.line(batch_text(name, batch))
        return 1 if sources.is_damaged else 0


# ------------------------------------------------------------------ tail


def last_records(
    partition: logstore.Partition, count: int, isolation: str
) -> list[logstore.Record]:
    """The last records of a partition, oldest first."""
    start, end = partition.start_offset, partition.end_offset
    reach = count
    while count:
        first = max(end - reach, start)
        kept = deque(partition.read(first, end, isolation=isolation), maxlen=count)
        if len(kept) == count or first == start:
            return list(kept)
        # Compaction and transactions leave offsets without a record.
        reach *= 4
    return []


def run_tail(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump tail`."""
    with sources_of(args) as sources:
        _tell_broken(sources, printer)
        if sources.files and args.follow:
            raise logstore.ConfigError(
                "tail -f follows partitions and stores, not single files",
                name="--follow",
            )
        for source in sources.files:
            kept = deque(source.records(None, None, printer), maxlen=args.records)
            for record in kept:
                found = Found(source.topic, source.partition, record)
                _print_record(found, args, printer)
        ends = {p.name: p.end_offset for p in sources.partitions}
        for partition in sources.partitions:
            for record in last_records(partition, args.records, args.isolation):
                found = Found(partition.topic, partition.number, record)
                _print_record(found, args, printer)
                ends[partition.name] = max(ends[partition.name], record.offset + 1)
        if args.follow:
            _follow(sources.partitions, ends, args, printer)
        return 1 if sources.is_damaged else 0


def _follow(
    partitions: list[logstore.Partition],
    ends: dict[str, int],
    args: argparse.Namespace,
    printer: Printer,
) -> None:
    """Print what is appended, until interrupted."""
    committed = args.isolation == "read_committed"
    while True:
        printer.flush()
        any_read = False
        for partition in partitions:
            at, end = ends[partition.name], partition.end_offset
            if at < partition.start_offset:
                printer.warn(
                    f"{partition.name}: offsets {at} to {partition.start_offset - 1} "
                    f"were deleted before they were read"
                )
                at = partition.start_offset
            for record in partition.read(at, end, isolation=args.isolation):
                found = Found(partition.topic, partition.number, record)
                _print_record(found, args, printer)
                at, any_read = record.offset + 1, True
            # What is not committed yet may still come.
            ends[partition.name] = at if committed else max(at, end)
        if not any_read:
            time.sleep(_POLL_SECONDS)
