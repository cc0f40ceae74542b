"""`rebuild-index`: offset, time and transaction indexes from the log."""

from __future__ import annotations

from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.damage import CLEAN, PROBLEMS, UNUSABLE
from logstore.cli.output import Printer, Progress
from logstore.cli.schema import finding
from logstore.cli.text import counted, escape, relative

EXAMPLES: Final = ["rebuild-index data --dry-run", "rebuild-index data/orders-0"]


@command(
    "rebuild-index",
    "Build offset, time and transaction indexes from the log (needs the writer's "
    "lock).",
    EXAMPLES,
    path="a store, a partition directory, or a .log file or an index of one",
)
@options.path(many=True)
@options.dry_run
@options.output_format()
@options.permissions
def rebuild_index(paths: tuple[str, ...], **arguments: Any) -> int:
    """`logstore-dump rebuild-index`: all paths, and then the indexes not built."""
    printer = Printer()
    failures: list[logstore.LogStoreError] = []
    for path in paths:
        try:
            with Progress("reading", printer.err) as progress:
                built = logstore.rebuild_index(
                    path,
                    dry_run=arguments["dry_run"],
                    on_damage=failures.append,
                    on_progress=progress,
                    store_config=store_config(arguments),
                )
        except logstore.LogStoreError as error:
            failures.append(error)
            continue
        for row in built:
            _print(printer, row, arguments)
    for failure in failures:
        printer.warn(str(failure))
    return max(map(_status, failures), default=CLEAN)


def _print(
    printer: Printer, row: logstore.types.BuiltIndexes, arguments: dict[str, Any]
) -> None:
    log, entries, times = row
    if arguments["form"] == "jsonl":
        values = {
            "path": log,
            "entries": entries,
            "time_entries": times,
            "aborted_transactions": row.aborted_transactions,
            "dry_run": arguments["dry_run"],
        }
        printer.json(finding("index", values))
        return
    what = "would build" if arguments["dry_run"] else "built"
    text = f"{counted(entries, 'offset index entry')} and "
    text += counted(times, "time index entry")
    if row.aborted_transactions:
        aborted = counted(row.aborted_transactions, "aborted transaction")
        text += f", and {aborted},"
    printer.line(f"{what} {text} of {escape(relative(log))}")


def _status(error: logstore.LogStoreError) -> int:
    return PROBLEMS if isinstance(error, logstore.CorruptionError) else UNUSABLE
