"""`index`: the entries of an index, snapshot, checkpoint or state file."""

from __future__ import annotations

import os
from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import command
from logstore.cli.kafka.command import check_kafka, dump_file
from logstore.cli.output import Printer
from logstore.cli.schema import camel, line, partition_of, timestamp_value
from logstore.cli.selection import shown
from logstore.cli.text import escape, time_text

EXAMPLES: Final = [
    "index data/orders-0/00000000000000000000.index",
    "index data/orders-0/00000000000000000000.timeindex --limit 5",
    "index data/recovery-point-offset-checkpoint --format jsonl",
    "index --kafka data/orders-0/00000000000000000000.index",
]


@command(
    "index",
    "Print the entries of an index, snapshot, checkpoint or state file.",
    EXAMPLES,
    path="an .index, .timeindex, .txnindex or .snapshot file, a checkpoint, or a file "
    "of logstore's own",
)
@options.path("FILE")
@options.skip
@options.limit
@options.output_format()
@options.times
@options.kafka
@options.kafka_release
@options.kafka_index
def index(path: str, **arguments: Any) -> int:
    """`logstore-dump index`."""
    check_kafka(arguments)
    if arguments["kafka"] and not path.endswith(".log"):
        return dump_file(path, arguments)
    contents = logstore.inspect_file(path)
    if contents.kind == "log":
        raise ValueError(
            f"{os.path.basename(path)} is a log; `logstore-dump batches` shows it"
        )
    printer = Printer()
    topic, number = partition_of(contents.path)
    for entry in shown(contents.entries, arguments["skip"], arguments["limit"]):
        values = _named(entry)
        if arguments["form"] == "jsonl":
            row = line("entry", topic=topic, partition=number, kind=contents.kind)
            row.update(_for_json(values, arguments["times"]))
            printer.json(row)
        else:
            printer.line(_entry_text(contents.kind, values))
    return 0


def _named(entry: Any) -> dict[str, Any]:
    """An entry as names and values."""
    if hasattr(entry, "_asdict"):
        return dict(entry._asdict())
    name, value = entry
    return {"name": name, "value": value}


def _for_json(values: dict[str, Any], times: str) -> dict[str, Any]:
    """Names in camel case; a time has no unit in its name."""
    return {
        camel(name.removesuffix("_ms")): (
            timestamp_value(value, times) if name.startswith("timestamp") else value
        )
        for name, value in values.items()
    }


def _entry_text(kind: str, values: dict[str, Any]) -> str:
    if kind in ("state", "metadata"):
        return f"{escape(str(values['name']))}: {escape(str(values['value']))}"
    parts = []
    for name, value in values.items():
        words = name.replace("_ms", "").replace("_", " ")
        if name.startswith("timestamp"):
            parts.append(f"{words} {value} ({time_text(value)})")
        else:
            parts.append(f"{words} {escape(str(value))}")
    return "  ".join(parts)
