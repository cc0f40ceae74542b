"""`records` and `tail`: the records in logs."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

import click

import logstore
from logstore.cli import options
from logstore.cli.app import LOGS, command, store_config
from logstore.cli.damage import DamageLog
from logstore.cli.kafka.command import check_kafka, dump_sources
from logstore.cli.output import Printer, Progress, is_terminal
from logstore.cli.params import Bound, FromEnd, bound_text, is_reversed
from logstore.cli.schema import dumps, parsed_json, payload_value, record_line
from logstore.cli.selection import EVERY_RECORD, Selection, selection_of, shown
from logstore.cli.sources import Sources
from logstore.cli.template import compiled
from logstore.cli.text import decode, escape, grouped, quoted, time_text

_POLL_SECONDS: Final = 0.1
_STEP: Final = 100  # records or batches between two looks at the clock
_Item = TypeVar("_Item")

EXAMPLES: Final = [
    "records data/orders-0",
    "records data/orders-0 --from 1000 --until 2000",
    "records data --topic 'orders*' --topic clicks --from -10",
    "records data --topic orders --from 2024-05-01T00:00:00Z --skip 5 --limit 10",
    "records data/orders-0 --grep 'user-00[12]' --payload json",
    "records data --topic orders --key user-001 --assume-partitioner kafka",
    "records data --key user-001 --last 1",
    "records data/orders-0 --format jsonl --time iso",
    "records data/orders-0 -f '%t %p %o %k %s\\n'",
    "records data --on-corruption skip",
    "records --kafka data/orders-0/00000000000000000000.log",
    "records --kafka --offsets-decoder kafka/__consumer_offsets-2",
]
TAIL_EXAMPLES: Final = [
    "tail data/orders-0",
    "tail -f -n 0 data",
    "tail -n 100 data --topic orders",
]


class ShownRecord(NamedTuple):
    """A record and its place; topic, partition: None if the path lacks them."""

    topic: str | None
    partition: int | None
    record: logstore.Record


def payload_text(data: bytes | None, payload: str) -> str:
    """A key or value for the text format."""
    if data is None:
        return "null"
    if payload in ("hex", "base64"):
        return str(payload_value(data, payload))
    if payload == "none":
        return f"({grouped(len(data))} bytes)"
    if payload == "json":
        parsed = parsed_json(data)
        if parsed is not None and not parsed.startswith('"'):
            return escape(parsed)
        if parsed is not None:
            return quoted(decode(data).strip()[1:-1].encode("utf-8", "replace"))
    return quoted(data)


def record_text(row: ShownRecord, payload: str) -> str:
    """A record as a line of text."""
    record = row.record
    parts = []
    if row.topic is not None:
        parts.append(escape(f"{row.topic}-{row.partition}"))
    parts += [
        str(record.offset),
        time_text(record.timestamp_ms),
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


@dataclasses.dataclass(frozen=True, slots=True)
class Style:
    """How records are printed."""

    form: str
    payload: str
    times: str
    template: str | None = None

    def printing(self, printer: Printer) -> Callable[[ShownRecord], None]:
        """A function that prints a record."""
        if self.template is not None:
            return self._by_template(printer, self.template)
        if self.form == "jsonl":
            return lambda row: printer.raw(
                dumps(record_line(*row, self.payload, self.times)) + b"\n"
            )
        return lambda row: printer.line(record_text(row, self.payload))

    @staticmethod
    def _by_template(printer: Printer, text: str) -> Callable[[ShownRecord], None]:
        render = compiled(text)
        if not is_terminal(printer.out):
            return lambda row: printer.raw(render(*row))

        def shown(row: ShownRecord) -> None:
            # Print line ends and tabs unchanged; escape other control characters.
            parts = re.split(r"([\n\t])", decode(render(*row)))
            clean = "".join(p if p in ("\n", "\t") else escape(p) for p in parts)
            printer.raw(clean.encode("utf-8", "backslashreplace"))

        return shown


def chosen_records(
    sources: Sources, start: Bound, stop: Bound, isolation: str
) -> Iterator[ShownRecord]:
    """The records that the selection of the sources has, partition after partition,
    with a bar if it takes long."""
    selection = sources.selection
    for partition in sources.partitions:
        topic, number = partition.topic, partition.number
        records = sources.read(partition, start, stop, isolation, partition.read)
        for record in selection.of(with_bar(sources, partition, records, _offset_of)):
            yield ShownRecord(topic, number, record)
    for source in sources.files:
        with bar(sources, source.name or source.path) as progress:
            records = source.records(start, stop, progress, selection)
            for record in selection.of(records):
                yield ShownRecord(source.topic, source.partition, record)


def _offset_of(record: logstore.Record) -> int:
    return record.offset


def with_bar(
    sources: Sources,
    partition: logstore.Partition,
    items: Iterator[_Item],
    offset_of: Callable[[_Item], int],
) -> Iterator[_Item]:
    """Pass on the items read from a partition, with a bar if it takes long.

    The bar runs from the first item to the end of the log. The work before the first
    item (finding a place from the end) is quick.
    """
    with bar(sources, partition.name, "offsets") as progress:
        low = end = 0
        for count, item in enumerate(items):
            if count == 0:
                low, end = offset_of(item), partition.end_offset
            if count % _STEP == 0:
                total = max(end - low, 1)
                progress(min(offset_of(item) - low, total), total)
            yield item


def bar(sources: Sources, name: str, unit: str = "bytes") -> Progress:
    """A bar for reading a partition or file; none if all records are printed on a
    terminal: that is progress enough."""
    progress = Progress(f"reading {name}", unit=unit)
    if sources.damage.prints_to_terminal and sources.selection.matches is None:
        progress.hide()
    return progress


@command("records", "Print the records.", EXAMPLES, path=LOGS)
@options.path()
@options.choice
@options.bounds
@options.hidden_until
@options.skip
@options.limit
@options.key
@options.last
@options.grep
@options.output_format()
@options.template("-f")
@options.payload
@options.times
@options.isolation
@options.on_corruption
@options.kafka
@options.kafka_release
@options.kafka_records
@options.kafka_max_bytes
@options.decompressed
def records(path: str, **arguments: Any) -> int:
    """`logstore-dump records`."""
    check_kafka(arguments)
    first, stop = bounds_of(arguments)
    selection = selection_of(arguments)
    printer = Printer()
    damage = DamageLog(printer, arguments["on_corruption"])
    put = style_of(arguments).printing(printer)
    with opened_sources(path, damage, arguments, selection) as sources:
        if selection.assumes_kafka and sources.files:
            raise click.UsageError(
                "--assume-partitioner needs a store or a partition; PATH is a file"
            )
        if arguments["kafka"]:
            return dump_sources(sources, printer, arguments, deep=True)
        rows = chosen_records(sources, first, stop, arguments["isolation"])
        is_any = False
        for row in shown(rows, arguments["skip"], arguments["limit"]):
            put(row)
            is_any = True
        if not is_any and selection.assumes_kafka:
            printer.warn(_not_where_kafka_puts_it(sources), "note")
    printer.flush()
    return damage.finish()


def _not_where_kafka_puts_it(sources: Sources) -> str:
    names = ", ".join(partition.name for partition in sources.partitions)
    if not names:
        return "Kafka's partitioner would send the key to another partition"
    return (
        f"no such record in {names}, to which Kafka's partitioner would send the key; "
        f"without --assume-partitioner all partitions are read"
    )


def bounds_of(arguments: dict[str, Any]) -> tuple[Bound, Bound]:
    """``--from``, and ``--until`` or its other name.

    Raises:
        click.UsageError: both names, or nothing can lie between the bounds.
    """
    first: Bound = arguments["first"]
    stop: Bound = arguments["stop"]
    alias: Bound = arguments.get("stop_alias")
    if stop is not None and alias is not None:
        raise click.UsageError("--to is an alias of --until; give only one of them")
    stop = alias if stop is None else stop
    if is_reversed(first, stop):
        raise click.UsageError(
            f"--from {bound_text(first)} is after --until {bound_text(stop)}: there is "
            f"nothing between them"
        )
    return first, stop


def style_of(arguments: dict[str, Any]) -> Style:
    """How records are printed, by the options.

    Raises:
        click.UsageError: both a template and another format than text.
    """
    form, template = arguments["form"], arguments["template"]
    if template is not None and form != "text":
        raise click.UsageError(
            f"--template and --format {form} exclude each other: give one of them"
        )
    return Style(form, arguments["payload"], arguments["times"], template)


def opened_sources(
    path: str,
    damage: DamageLog,
    arguments: dict[str, Any],
    selection: Selection = EVERY_RECORD,
) -> Sources:
    """Open the sources of a subcommand that reads records."""
    return Sources(
        path,
        damage,
        topics=arguments["topics"],
        numbers=arguments["numbers"],
        raw=arguments.get("kafka", False),
        selection=selection,
        config=store_config(arguments),
    )


# ------------------------------------------------------------------ tail


@command(
    "tail",
    "Print the last records of each partition; with -f, wait for new ones.",
    TAIL_EXAMPLES,
    path=LOGS,
)
@options.path()
@options.choice
@options.records
@options.follow
@options.output_format()
@options.template()
@options.payload
@options.times
@options.isolation
@options.on_corruption
@options.decompressed
def tail(path: str, **arguments: Any) -> int:
    """`logstore-dump tail`."""
    printer = Printer()
    damage = DamageLog(printer, arguments["on_corruption"])
    put = style_of(arguments).printing(printer)
    with opened_sources(path, damage, arguments) as sources:
        if sources.files and arguments["follow"]:
            raise click.UsageError(
                "tail -f follows partitions and stores, not single files"
            )
        count, isolation = arguments["records"], arguments["isolation"]
        for source in sources.files:
            with bar(sources, source.name or source.path) as progress:
                # Until all of it is known: the last records begin relative to its end.
                last_ones = list(source.records(FromEnd(count), None, progress))
            for record in last_ones:
                put(ShownRecord(source.topic, source.partition, record))
        ends = {p.name: p.end_offset for p in sources.partitions}
        for partition in sources.partitions:
            end = ends[partition.name]
            last = sources.read(
                partition, FromEnd(count), end, isolation, partition.read
            )
            for record in with_bar(sources, partition, last, _offset_of):
                put(ShownRecord(partition.topic, partition.number, record))
        if arguments["follow"]:
            _follow(sources, ends, isolation, put, printer)
    printer.flush()
    return damage.finish()


def _follow(
    sources: Sources,
    ends: dict[str, int],
    isolation: str,
    put: Callable[[ShownRecord], None],
    printer: Printer,
) -> None:
    """Print appended records, until interrupted."""
    committed = isolation == "read_committed"
    while True:
        printer.flush()
        any_read = False
        for partition in sources.partitions:
            offset, end = ends[partition.name], partition.end_offset
            if offset < partition.start_offset:
                printer.warn(
                    f"{partition.name}: offsets {offset} to "
                    f"{partition.start_offset - 1} were deleted before they were read"
                )
                offset = partition.start_offset
            records = sources.read(partition, offset, end, isolation, partition.read)
            for record in records:
                put(ShownRecord(partition.topic, partition.number, record))
                offset, any_read = record.offset + 1, True
            # Records that are not committed yet may still be delivered.
            ends[partition.name] = offset if committed else max(offset, end)
        if not any_read:
            time.sleep(_POLL_SECONDS)


__all__ = ["ShownRecord", "records", "tail"]
