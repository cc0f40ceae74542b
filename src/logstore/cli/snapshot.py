"""`snapshot`: a copy of a store at one moment."""

from __future__ import annotations

from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.damage import CLEAN, PROBLEMS
from logstore.cli.output import Printer, Progress
from logstore.cli.paths import check_store
from logstore.cli.schema import line
from logstore.cli.text import counted, escape, relative, size_text

EXAMPLES: Final = ["snapshot data backup", "snapshot data /mnt/other/backup --no-links"]


@command(
    "snapshot",
    "Copy a store consistently to a new directory, even while it is written to.",
    EXAMPLES,
    path="a store",
)
@options.path()
@click.argument("target", metavar="DEST", type=click.Path())
@click.option(
    "--no-links",
    is_flag=True,
    help="Copy all bytes; without it, sealed segments become hard links on the same "
    "file system.",
)
@options.output_format()
@options.permissions
def snapshot(path: str, target: str, **arguments: Any) -> int:
    """`logstore-dump snapshot`: by the owner of the store, or with its lock."""
    printer = Printer()
    check_store(path)
    config = store_config(arguments)
    with (
        logstore.open(path, read_only=True, config=config) as store,
        Progress("copying", printer.err) as bar,
    ):

        def show(progress: logstore.types.SnapshotProgress) -> None:
            bar(progress.bytes_done, progress.bytes_total)

        report = store.snapshot(
            target, links=not arguments["no_links"], on_progress=show
        )
    _print(printer, report, arguments)
    printer.flush()
    return PROBLEMS if report.damaged else CLEAN


def _print(
    printer: Printer, report: logstore.types.SnapshotReport, arguments: dict[str, Any]
) -> None:
    if arguments["form"] == "jsonl":
        values = {
            "path": report.path,
            "topics": report.topics,
            "partitions": report.partitions,
            "segments": report.segments,
            "groups": report.groups,
            "identities": report.identities,
            "bytes": report.bytes,
            "bytesLinked": report.bytes_linked,
            "damaged": [str(key) for key in report.damaged],
        }
        printer.json(line("snapshot", topic=None, partition=None, **values))
        return
    for key in report.damaged:
        printer.line(
            f"problem: {escape(str(key))} is damaged or missing, and so is its copy"
        )
    printer.line(
        escape(
            relative(
                f"{report.path}: {counted(report.topics, 'topic')}, "
                f"{counted(report.partitions, 'partition')}, "
                f"{counted(report.segments, 'segment')}, "
                f"{counted(report.groups, 'group')}; {size_text(report.bytes)}, "
                f"{size_text(report.bytes_linked)} of it in hard links"
            )
        )
    )
