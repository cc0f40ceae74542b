"""`ls`: the partitions and segments of a store."""

from __future__ import annotations

from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import PARTITIONS, command
from logstore.cli.damage import DamageLog
from logstore.cli.output import Printer
from logstore.cli.records import opened_sources
from logstore.cli.schema import line, timestamp_value
from logstore.cli.tables import Column, names_of, print_table, sorted_by
from logstore.cli.text import (
    counted,
    escape,
    grouped,
    offsets_text,
    relative,
    size_text,
    time_text,
)

EXAMPLES: Final = [
    "ls data",
    "ls data --segments",
    "ls data --topic 'orders*' --sort -size",
    "ls data/orders-0",
    "ls data --format jsonl",
]


class ListedPartition:
    """A partition and its segments at one moment."""

    def __init__(self, partition: logstore.Partition) -> None:
        self.topic, self.number = partition.topic, partition.number
        self.segments = partition.segments
        self.start = partition.start_offset
        self.end = partition.end_offset
        self.durable = partition.durable_offset
        self.size = sum(segment.size_bytes for segment in self.segments)
        self.last_ms = max((s.max_timestamp_ms for s in self.segments), default=-1)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.number}"

    def to_json(self, times: str) -> dict[str, Any]:
        return line(
            "partition",
            topic=self.topic,
            partition=self.number,
            startOffset=self.start,
            endOffset=self.end,
            durableOffset=self.durable,
            size=self.size,
            segments=[
                {
                    "baseOffset": segment.base_offset,
                    "nextOffset": segment.next_offset,
                    "size": segment.size_bytes,
                    "maxTimestamp": timestamp_value(segment.max_timestamp_ms, times),
                    "modified": timestamp_value(segment.modified_ms, times),
                    "isActive": segment.is_active,
                    "path": segment.path,
                }
                for segment in self.segments
            ],
        )


COLUMNS: Final = (
    Column(
        "partition", lambda row: (row.topic, row.number), lambda v: f"{v[0]}-{v[1]}"
    ),
    Column("start", lambda row: row.start, grouped, True, spare=2),
    Column("end", lambda row: row.end, grouped, True),
    Column("durable", lambda row: row.durable, grouped, True, spare=4),
    Column("segments", lambda row: len(row.segments), grouped, True, sum, 3),
    Column("size", lambda row: row.size, size_text, True, sum),
    Column("offsets", lambda row: row.end - row.start, grouped, True, sum, 5),
    Column("last time", lambda row: row.last_ms, time_text, False, max, 1),
)
SEGMENT_COLUMNS: Final = (
    Column(
        "segment",
        lambda s: (s.base_offset, s.is_active),
        lambda v: f"{v[0]:020d}{' *' * v[1]}",
    ),
    Column(
        "offsets",
        lambda s: (s.base_offset, s.next_offset),
        lambda v: offsets_text(*v, number=grouped),
    ),
    Column("size", lambda s: s.size_bytes, size_text, True, sum),
    Column("last time", lambda s: s.max_timestamp_ms, time_text, spare=1),
    Column("modified", lambda s: s.modified_ms, time_text, spare=2),
)


@command("ls", "List topics, partitions and segments.", EXAMPLES, path=PARTITIONS)
@options.path()
@options.choice
@options.segments
@options.sort(names_of(COLUMNS))
@options.output_format()
@options.times
def ls(path: str, **arguments: Any) -> int:
    """`logstore-dump ls`."""
    printer = Printer()
    damage = DamageLog(printer)
    with opened_sources(path, damage, arguments) as sources:
        listed = []
        for partition in sources.partitions:
            try:
                listed.append(ListedPartition(partition))
            except logstore.LogStoreError as error:
                damage.broken(partition.topic, partition.number, error)
        listed = sorted_by(listed, COLUMNS, arguments["sort"])
        if arguments["form"] == "jsonl":
            for row in listed:
                printer.json(row.to_json(arguments["times"]))
        elif sources.files:
            for source in sources.files:
                printer.line(escape(relative(source.path)))
        else:
            _print(printer, listed, arguments)
    printer.flush()
    return damage.finish()


def _print(
    printer: Printer, listed: list[ListedPartition], arguments: dict[str, Any]
) -> None:
    if not listed:
        printer.line("no partitions")
        return
    total = counted(len(listed), "partition")
    print_table(printer, COLUMNS, listed, total=total, sort=arguments["sort"])
    if not arguments["segments"] and len(listed) > 1:
        return
    for partition in listed:
        printer.line("")
        printer.line(escape(partition.name))
        total = counted(len(partition.segments), "segment")
        print_table(printer, SEGMENT_COLUMNS, partition.segments, total=total, indent=2)
