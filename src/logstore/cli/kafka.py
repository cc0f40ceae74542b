"""The text that Kafka's own tool prints about logs (``kafka-dump-log``).

The text is that of Kafka 3.9 for ``--deep-iteration --print-data-log``, except for the
brace that 3.9 prints after the checksum of a magic 0 or 1 record by mistake, and 4.x
does not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Final

import logstore
from logstore.cli.log_file import FileSource
from logstore.cli.output import Printer
from logstore.cli.text import escape

_SEQUENCE_MAX: Final = (1 << 31) - 1
_END_MARKERS: Final = ("ABORT", "COMMIT")


def dump_file(source: FileSource, printer: Printer, *, deep: bool) -> bool:
    """Print a log file as Kafka does; returns whether it is intact (up to its end)."""
    name = os.path.basename(source.path)
    # A value or a name must not send control sequences to a terminal.
    clean = escape if printer.out.isatty() else str
    printer.line(clean(f"Dumping {source.path}"))
    digits = name.partition(".")[0]
    base = int(digits) if digits.isascii() and digits.isdigit() else 0
    printer.line(f"Log starting offset: {base}")
    intact = True
    for entry in source.entries():
        if entry.batch is None:
            size = os.path.getsize(source.path)
            # Nothing follows a torn end.
            intact = intact and entry.is_torn
            printer.line(
                f"Found {size - entry.position} invalid bytes at the end of {name}"
            )
            return intact
        intact = intact and entry.damage is None
        printer.line(batch_line(entry.batch, entry.position, entry.damage is None))
        if deep and entry.damage is None:
            for line in record_lines(entry):
                printer.line(clean(line))
    return intact


def batch_line(batch: logstore.RecordBatch, position: int, is_valid: bool) -> str:
    """The line about a batch."""
    if batch.magic == 2:
        horizon = batch.delete_horizon_ms
        shown = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
        last = _sequence(batch.base_sequence, batch.last_offset - batch.base_offset)
        text = (
            f"baseOffset: {batch.base_offset} lastOffset: {batch.last_offset} "
            f"count: {batch.record_count} baseSequence: {batch.base_sequence} "
            f"lastSequence: {last} producerId: {batch.producer_id} "
            f"producerEpoch: {batch.producer_epoch} "
            f"partitionLeaderEpoch: {batch.leader_epoch} "
            f"isTransactional: {_boolean(batch.is_transactional)} "
            f"isControl: {_boolean(batch.is_control)} deleteHorizonMs: {shown}"
        )
    else:
        text = f"offset: {batch.last_offset}"
    return (
        f"{text} position: {position} {batch.timestamp_type.kafka_name}: "
        f"{batch.max_timestamp_ms} size: {batch.size_bytes} magic: {batch.magic} "
        f"compresscodec: {batch.compression} crc: {batch.crc} "
        f"isvalid: {_boolean(is_valid)}"
    )


def record_lines(entry: Any) -> Iterator[str]:
    """The lines about the records of a batch."""
    batch = entry.batch
    label = batch.timestamp_type.kafka_name
    if batch.is_control:
        control = batch.control_record()
        if control is not None:
            yield _control_line(batch, control, label)
        return
    checksums = entry.checksums()
    for at, record in enumerate(batch):
        parts = [
            f"| offset: {record.offset} {label}: {record.timestamp_ms} "
            f"keySize: {_size(record.key)} valueSize: {_size(record.value)}"
        ]
        if batch.magic == 2:
            sequence = _sequence(batch.base_sequence, record.offset - batch.base_offset)
            names = ",".join(name for name, _ in record.headers)
            parts.append(f"sequence: {sequence} headerKeys: [{names}]")
        else:
            parts.append(f"isValid: true crc: {checksums[at]}")
        if record.key is not None:
            parts.append(f"key: {record.key.decode('utf-8', 'replace')}")
        if record.value is not None:
            parts.append(f"payload: {record.value.decode('utf-8', 'replace')}")
        yield " ".join(parts)


def _control_line(batch: logstore.RecordBatch, control: Any, label: str) -> str:
    sequence = _sequence(batch.base_sequence, control.offset - batch.base_offset)
    text = (
        f"| offset: {control.offset} {label}: {control.timestamp_ms} "
        f"keySize: {_size(control.key)} valueSize: {_size(control.value)} "
        f"sequence: {sequence} headerKeys: []"
    )
    if control.type_name in _END_MARKERS:
        return (
            f"{text} endTxnMarker: {control.type_name} "
            f"coordinatorEpoch: {control.coordinator_epoch}"
        )
    return f"{text} controlType: {control.type_name}({control.type})"


def _sequence(base: int, delta: int) -> int:
    """A sequence number; 0 follows the largest int32."""
    if base < 0:
        return base
    number = base + delta
    return number if number <= _SEQUENCE_MAX else number - _SEQUENCE_MAX - 1


def _size(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _boolean(value: bool) -> str:
    return "true" if value else "false"
