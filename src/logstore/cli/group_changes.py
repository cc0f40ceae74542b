"""`groups reset`, `groups export`: set the committed offsets of a group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar

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

_Result = TypeVar("_Result")
# The changes of a result, and where they are committed, if that has to be said.
_Parts: TypeAlias = "tuple[Sequence[logstore.types.OffsetChange], str]"

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
        lambda change: (change.topic, change.partition),
        lambda key: f"{key[0]}-{key[1]}",
    ),
    Column(
        "before",
        lambda change: -1 if change.before is None else change.before,
        lambda value: "-" if value < 0 else grouped(value),
        True,
    ),
    Column("after", lambda change: change.after, grouped, True),
    Column("metadata", lambda change: change.metadata, spare=1),
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
def export(path: str, **arguments: Any) -> int:
    """`logstore-dump groups export`."""
    printer = Printer()
    for each in (path, arguments["to"]):
        check_store(each)

    def change(
        dry_run: bool, planned: logstore.kafka.GroupExport | None
    ) -> logstore.kafka.GroupExport:
        return logstore.kafka.export_group(
            path,
            arguments["group"],
            to=arguments["to"],
            dry_run=dry_run,
            expected=None if planned is None else planned.changes,
            store_config=store_config(arguments),
        )

    def parts(done: logstore.kafka.GroupExport) -> _Parts:
        log = f"__consumer_offsets-{done.offsets_partition}"
        return done.changes, f" in {log} of {relative(done.path)}"

    return _confirmed(arguments, printer, change, parts)


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
def reset(path: str, **arguments: Any) -> int:
    """`logstore-dump groups reset`."""
    printer = Printer()
    check_store(path)
    if (arguments["to"] is None) == (arguments["shift"] is None):
        raise click.UsageError("give either --to or --shift")

    def change(
        dry_run: bool, planned: list[logstore.types.OffsetChange] | None
    ) -> list[logstore.types.OffsetChange]:
        return logstore.reset_offsets(
            path,
            arguments["group"],
            expected=planned,
            to=arguments["to"],
            shift=arguments["shift"],
            topics=arguments["topics"] or None,
            dry_run=dry_run,
            store_config=store_config(arguments),
        )

    return _confirmed(arguments, printer, change, lambda changes: (changes, ""))


def _confirmed(
    arguments: dict[str, Any],
    printer: Printer,
    change: Callable[[bool, _Result | None], _Result],
    parts: Callable[[_Result], _Parts],
) -> int:
    """Show what would be done, ask, and do exactly that.

    Args:
        change: called with whether it is a dry run, and the changes that were
            confirmed.
        parts: of such a result.
    """
    dry_run = arguments["dry_run"]
    if dry_run or arguments["yes"]:
        _show(printer, arguments, parts(change(dry_run, None)), dry_run)
    else:
        planned = change(True, None)
        refuse_unasked(printer)
        # On standard error, like the question: standard output gets the result.
        _show(Printer(printer.err, printer.err), arguments, parts(planned), True)
        if not parts(planned)[0]:
            return 0
        confirm(printer, f"Commit these offsets for {escape(arguments['group'])}?")
        _show(printer, arguments, parts(change(False, planned)), False)
    printer.flush()
    return 0


def _show(
    printer: Printer, arguments: dict[str, Any], parts: _Parts, dry_run: bool
) -> None:
    """Print changes, which are made, or would be."""
    changes, place = parts
    if arguments["form"] == "jsonl":
        for change in changes:
            printer.json(_object(arguments["group"], change, dry_run))
    elif changes:
        print_table(printer, _COLUMNS, changes)
        verb = "would be" if dry_run else "are"
        count = counted(len(changes), "offset")
        printer.line(escape(f"{count} of {arguments['group']} {verb} committed{place}"))
    else:
        printer.line("no offsets to change")


def _object(
    group: str, change: logstore.types.OffsetChange, dry_run: bool
) -> dict[str, Any]:
    return line(
        "commit",
        topic=change.topic,
        partition=change.partition,
        group=group,
        before=change.before,
        after=change.after,
        metadata=change.metadata,
        dryRun=dry_run,
    )
