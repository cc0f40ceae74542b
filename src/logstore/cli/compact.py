"""`compact`: keeps the last record of each key of compacted topics."""

from __future__ import annotations

from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.damage import CLEAN, PROBLEMS, UNUSABLE
from logstore.cli.output import Printer, Progress
from logstore.cli.paths import check_store
from logstore.cli.schema import line
from logstore.cli.text import counted, escape, size_text

EXAMPLES: Final = ["compact data --dry-run", "compact data --all"]


@command(
    "compact",
    "Compact the topics of a store whose cleanup policy has 'compact' (needs the "
    "writer's lock).",
    EXAMPLES,
    path="a store",
)
@options.path()
@options.dry_run
@click.option(
    "--all",
    "force",
    is_flag=True,
    help="Also compact topics with little uncompacted data.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(min=6 << 20),
    default=64 << 20,
    show_default=True,
    help="Memory for keys, in bytes; with less, the log is rewritten more often.",
)
@click.option(
    "--max-bytes-per-s",
    type=click.IntRange(min=1),
    help="Read at most this many bytes per second.",
)
@options.output_format()
@options.permissions
def compact(path: str, **arguments: Any) -> int:
    """`logstore-dump compact`: one partition after the other."""
    printer = Printer()
    check_store(path)
    status = CLEAN
    config, dry_run = store_config(arguments), arguments["dry_run"]
    with logstore.open(
        path, read_only=dry_run, create=False, config=config, lock_timeout_ms=1_000
    ) as store:
        for topic in store:
            if not topic.config.compacts:
                continue
            for number in topic.numbers:
                try:
                    partition = topic[number]
                    report = _compact(partition, arguments, printer)
                except logstore.errors.StoreClosedError:
                    raise
                except logstore.LogStoreError as error:
                    printer.warn(str(error))
                    is_damage = isinstance(error, logstore.CorruptionError)
                    status = max(status, PROBLEMS if is_damage else UNUSABLE)
                    continue
                _print(printer, partition, report, arguments)
    printer.flush()
    return status


def _compact(
    partition: logstore.Partition, arguments: dict[str, Any], printer: Printer
) -> logstore.types.CompactionReport:
    with Progress(f"compacting {partition.name}", printer.err) as bar:

        def show(progress: logstore.types.CompactionProgress) -> None:
            bar(progress.bytes_read, progress.bytes_total)

        return partition.compact(
            force=arguments["force"],
            max_memory=arguments["max_memory"],
            max_bytes_per_s=arguments["max_bytes_per_s"],
            dry_run=arguments["dry_run"],
            on_progress=show,
        )


def _print(
    printer: Printer,
    partition: logstore.Partition,
    report: logstore.types.CompactionReport,
    arguments: dict[str, Any],
) -> None:
    if arguments["form"] == "jsonl":
        values = {
            "topic": partition.topic,
            "partition": partition.number,
            "before": report.before,
            "after": report.after,
            "removed": report.removed,
            "tombstones": report.tombstones,
            "dirtyRatio": report.dirty_ratio,
            "segments": report.segments,
            "memory": report.memory,
            "dryRun": arguments["dry_run"],
        }
        printer.json(line("compaction", **values))
        return
    verb = "would remove" if arguments["dry_run"] else "removed"
    printer.line(
        escape(
            f"{partition.name}: {verb} {counted(report.removed, 'record')} "
            f"({counted(report.tombstones, 'tombstone')}) from "
            f"{counted(report.segments, 'segment')}; {size_text(report.before)} become "
            f"{size_text(report.after)}; {report.dirty_ratio:.0%} were not compacted"
        )
    )
