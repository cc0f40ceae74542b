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

    def parts(done: logstore.kafka.GroupExport) -> _Parts:
        log = f"__consumer_offsets-{done.offsets_partition}"
        return done.changes, f" in {log} of {relative(done.path)}"

    return _confirmed(given, printer, change, parts)


@command(
    "groups reset",
    "Commit other offsets for a group of a store, which has no member that lives.",
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
    if (given["to"] is None) == (given["shift"] is None):
        raise click.UsageError("give one of --to and --shift")

    def change(
        dry_run: bool, planned: list[logstore.types.OffsetChange] | None
    ) -> list[logstore.types.OffsetChange]:
        return logstore.reset_offsets(
            path,
            given["group"],
            expected=planned,
            to=given["to"],
            shift=given["shift"],
            topics=given["topics"] or None,
            dry_run=dry_run,
            store_config=store_config(given),
        )

    return _confirmed(given, printer, change, lambda changes: (changes, ""))


def _confirmed(
    given: dict[str, Any],
    printer: Printer,
    change: Callable[[bool, _Result | None], _Result],
    parts: Callable[[_Result], _Parts],
) -> int:
    """Show what would be done, ask, and do exactly that.

    Args:
        change: called with whether it is a dry run, and the result that was confirmed.
        parts: of such a result.
    """
    dry_run = given["dry_run"]
    if dry_run or given["yes"]:
        _show(printer, given, parts(change(dry_run, None)), dry_run)
    else:
        planned = change(True, None)
        refuse_unasked(printer)
        # Where the question is: standard output may be a file, and gets the result.
        _show(Printer(printer.err, printer.err), given, parts(planned), True)
        if not parts(planned)[0]:
            return 0
        confirm(printer, f"Commit these offsets for {escape(given['group'])}?")
        _show(printer, given, parts(change(False, planned)), False)
    printer.flush()
    return 0


def _show(
    printer: Printer, given: dict[str, Any], parts: _Parts, dry_run: bool
) -> None:
    """Print changes, which are made, or would be."""
    changes, place = parts
    if given["form"] == "jsonl":
        for one in changes:
            printer.json(_object(given["group"], one, dry_run))
    elif changes:
        print_table(printer, _COLUMNS, changes)
        verb = "would be" if dry_run else "are"
        count = counted(len(changes), "offset")
        printer.line(escape(f"{count} of {given['group']} {verb} committed{place}"))
    else:
        printer.line("no offsets to change")


def _object(
    group: str, one: logstore.types.OffsetChange, dry_run: bool
) -> dict[str, Any]:
    return line(
        "commit",
        topic=one.topic,
        partition=one.partition,
        group=group,
        before=one.before,
        after=one.after,
        metadata=one.metadata,
        dryRun=dry_run,
    )
