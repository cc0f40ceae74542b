"""`handover check`: a directory before another program takes it over."""

from __future__ import annotations

from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.output import Printer, Progress
from logstore.cli.paths import check_store
from logstore.cli.schema import finding, line
from logstore.cli.text import counted, escape, relative

EXAMPLES: Final = [
    "handover check data --release 2.8 --retention-ms -1",
    "handover check kafka --from-kafka --format jsonl",
]
# The worst comes last, at the end of the output.
_ORDER: Final = {"ok": 0, "warns": 1, "changes": 2, "loses": 3, "refuses": 4}
_STYLES: Final = {"ok": "ok", "warns": "note", "changes": "note"}


@command(
    "handover check",
    "Show what a Kafka broker would do with a store, or logstore with a broker's "
    "directory.",
    EXAMPLES,
    path="a store, which is the log directory of a broker",
)
@options.path()
@options.handover
@options.output_format()
@options.decompressed
def check(path: str, **arguments: Any) -> int:
    """`logstore-dump handover check`."""
    check_store(path)
    if arguments["from_kafka"] and arguments["to_kafka"]:
        raise click.UsageError("--from-kafka and --to-kafka exclude each other")
    direction = False if arguments["to_kafka"] else None
    printer = Printer()
    with Progress("reading", printer.err) as progress:
        report = logstore.kafka.check_handover(
            path,
            from_kafka=True if arguments["from_kafka"] else direction,
            release=arguments["release"],
            cluster_id=arguments["cluster_id"],
            node_id=arguments["node_id"],
            retention_ms=arguments["retention_ms"],
            retention_bytes=arguments["retention_bytes"],
            on_progress=progress,
            store_config=store_config(arguments),
        )
    if arguments["form"] == "jsonl":
        value = report.to_dict()
        for row in value.pop("findings"):
            printer.json(finding("handover", row))
        count = len(report.problems)
        printer.json(line("summary", **value, problems=count))
    else:
        for seen in sorted(report.findings, key=lambda item: _ORDER[item.effect]):
            text = f"{seen.effect}: {seen.kind}: {escape(relative(seen.message))}"
            printer.line(text, _STYLES.get(seen.effect, "problem"))
        who = "logstore" if report.to == "logstore" else f"Kafka {report.release}"
        printer.line(
            f"to {who}: {counted(len(report.problems), 'problem')}, "
            f"{counted(len(report.findings), 'finding')}",
            "ok" if report.ok else "problem",
        )
    return 0 if report.ok else 1
