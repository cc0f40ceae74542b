"""`groups reset`, `groups export`: set the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.asking import confirm, refuse_unasked
from logstore.cli.output import Printer
from logstore.cli.paths import check_store
from logstore.cli.schema import line
from logstore.cli.tables import Column, print_table
from logstore.cli.text import counted, escape, grouped, relative

_Changes = TypeVar("_Changes")

EXPORT_EXAMPLES: Final = [
    "groups export data --group billing --to kafka --dry-run",
    "groups export data --group billing --to kafka --yes",
]
RESET_EXAMPLES: Final = [
    "groups reset data --group billing --to earliest --dry-run",
    "groups reset data --group billing --to 2026-01-31T12:00:00Z --yes",
    "groups reset data --group billing --shift -100 --topics orders --yes",
]
_COLUMNS: Final = (
    Column(
        "partition",
        lambda one: (one.topic, one.partition),
        lambda key: f"{key[0]}-{key[1]}",
    ),
    Column(
        "before",
        lambda one: -1 if one.before is None else one.before,
        lambda value: "-" if value < 0 else grouped(value),
        True,
    ),
    Column("after", lambda one: one.after, grouped, True),
    Column("metadata", lambda one: one.metadata, spare=1),
)


@command(
    "groups export",
    "Commit the offsets of a group in the directory of a Kafka broker that is stopped "
    "(needs its lock).",
    EXPORT_EXAMPLES,
    path="a store, or the log directory of another broker, or a copy",
)
@options.path()
@options.group
@options.to_broker
@options.dry_run
@options.yes
@options.output_format()
@options.permissions
def export(path: str, **given: Any) -> int:
    """`logstore-dump groups export`."""
    printer = Printer()
    for each in (path, given["to"]):
        check_store(each)

    def change(
        dry_run: bool, planned: logstore.kafka.GroupExport | None
    ) -> logstore.kafka.GroupExport:
        return logstore.kafka.export_group(
            path,
            given["group"],
            to=given["to"],
            dry_run=dry_run,
            expected=None if planned is None else planned.changes,
            store_config=store_config(given),
        )

    def show(printer: Printer, done: logstore.kafka.GroupExport, dry_run: bool) -> bool:
        if given["form"] == "jsonl":
            for value in _objects(done.group, done.changes, dry_run):
                printer.json(value)
            return bool(done.changes)
        print_table(printer, _COLUMNS, done.changes)
        verb = "would be" if dry_run else "are"
        printer.line(
            escape(
                f"{counted(len(done.changes), 'offset')} of {done.group} {verb} "
                f"committed in __consumer_offsets-{done.offsets_partition} of "
                f"{relative(done.path)}"
            )
        )
        return bool(done.changes)

    return _confirmed(given, printer, change, show)


@command(
    "groups reset",
    "Reset the committed offsets of a group that has no live members.",
    RESET_EXAMPLES,
    path="a store",
)
@options.path()
@options.group
@options.to_offset
@options.shift
@options.topics
@options.dry_run
@options.yes
@options.permissions
@options.output_format()
def reset(path: str, **given: Any) -> int:
    """`logstore-dump groups reset`."""
    printer = Printer()
    check_store(path)
    group = given["group"]
    if (given["to"] is None) == (given["shift"] is None):
        raise click.UsageError("give either --to or --shift")

    def change(
        dry_run: bool, planned: list[logstore.types.OffsetChange] | None
    ) -> list[logstore.types.OffsetChange]:
        return logstore.reset_offsets(
            path,
            group,
            expected=planned,
            to=given["to"],
            shift=given["shift"],
            topics=given["topics"] or None,
            dry_run=dry_run,
            store_config=store_config(given),
        )

    def show(
        printer: Printer, changes: list[logstore.types.OffsetChange], dry_run: bool
    ) -> bool:
        if given["form"] == "jsonl":
            for value in _objects(group, changes, dry_run):
                printer.json(value)
        elif changes:
            print_table(printer, _COLUMNS, changes)
            verb = "would be" if dry_run else "are"
            count = counted(len(changes), "offset")
            printer.line(escape(f"{count} of {group} {verb} committed"))
        else:
            printer.line("no offsets to change")
        return bool(changes)

    return _confirmed(given, printer, change, show)


def _confirmed(
    given: dict[str, Any],
    printer: Printer,
    change: Callable[[bool, _Changes | None], _Changes],
    show: Callable[[Printer, _Changes, bool], bool],
) -> int:
    """Show what would be done, ask, and do exactly that.

    Args:
        change: called with whether it is a dry run, and the changes that were
            confirmed.
        show: prints changes; called with whether it is a dry run. Returns whether there
            are any.
    """
    dry_run = given["dry_run"]
    if dry_run or given["yes"]:
        show(printer, change(dry_run, None), dry_run)
    else:
        planned = change(True, None)
        refuse_unasked(printer)
        # On standard error, like the question: standard output gets the result.
        if not show(Printer(printer.err, printer.err), planned, True):
            return 0
        confirm(printer, f"Commit these offsets for {escape(given['group'])}?")
        show(printer, change(False, planned), False)
    printer.flush()
    return 0


def _objects(
    group: str, changes: Sequence[logstore.types.OffsetChange], dry_run: bool
) -> list[dict[str, Any]]:
    return [
        line(
            "commit",
            topic=one.topic,
            partition=one.partition,
            group=group,
            before=one.before,
            after=one.after,
            metadata=one.metadata,
            dryRun=dry_run,
        )
        for one in changes
    ]
