"""`batches`: the batches in logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import LOGS, command
from logstore.cli.damage import DamageLog
from logstore.cli.kafka.command import check_kafka, dump_sources
from logstore.cli.output import Printer
from logstore.cli.params import Bound
from logstore.cli.records import (
    bar,
    bounds_of,
    opened_sources,
    with_bar,
)
from logstore.cli.schema import batch_line
from logstore.cli.selection import shown
from logstore.cli.sources import Sources
from logstore.cli.text import counted, escape, size_text, time_text

EXAMPLES: Final = [
    "batches data/orders-0",
    "batches data/orders-0/00000000000000000000.log",
    "batches data --topic orders --from 1000 --limit 20",
    "batches --kafka data/orders-0/00000000000000000000.log",
]

Located = tuple[str | None, int | None, "logstore.RecordBatch"]


def batch_text(topic: str | None, number: int | None, batch: Any) -> str:
    """A batch as a line of text."""
    parts = [] if topic is None else [escape(f"{topic}-{number}")]
    parts += [
        f"{batch.base_offset}..{batch.last_offset}",
        f"at {batch.position}",
        size_text(batch.size_bytes),
        f"magic {batch.magic}",
        batch.compression,
        counted(batch.record_count, "record"),
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


def _all_batches(
    sources: Sources, start: Bound, stop: Bound, isolation: str
) -> Iterator[Located]:
    for partition in sources.partitions:
        batches = sources.read(
            partition, start, stop, isolation, partition.read_batches
        )
        for batch in with_bar(sources, partition, batches, _offset_of):
            yield partition.topic, partition.number, batch
    for source in sources.files:
        with bar(sources, source.name or source.path) as progress:
            for batch in source.batches(source.asked(start, stop), progress):
                yield source.topic, source.partition, batch


def _offset_of(batch: logstore.RecordBatch) -> int:
    return batch.last_offset  # the first one of a wrapper is inside it


@command(
    "batches",
    "Print the batches: offsets, position, size, codec, producer.",
    EXAMPLES,
    path=LOGS,
)
@options.path()
@options.choice
@options.bounds
@options.hidden_until
@options.skip
@options.limit
@options.output_format()
@options.times
@options.isolation
@options.on_corruption
@options.kafka
@options.kafka_release
@options.kafka_max_bytes
@options.decompressed
def batches(path: str, **arguments: Any) -> int:
    """`logstore-dump batches`."""
    check_kafka(arguments)
    first, stop = bounds_of(arguments)
    printer = Printer()
    damage = DamageLog(printer, arguments["on_corruption"])
    with opened_sources(path, damage, arguments) as sources:
        if arguments["kafka"]:
            return dump_sources(sources, printer, arguments, deep=False)
        rows = _all_batches(sources, first, stop, arguments["isolation"])
        for topic, number, batch in shown(rows, arguments["skip"], arguments["limit"]):
            if arguments["form"] == "jsonl":
                printer.json(batch_line(topic, number, batch, arguments["times"]))
            else:
                printer.line(batch_text(topic, number, batch))
    printer.flush()
    return damage.finish()
