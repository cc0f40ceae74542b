"""`rebuild-index`: offset and time indexes from the log."""

from __future__ import annotations

from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.output import Printer
from logstore.cli.schema import finding
from logstore.cli.text import counted, escape, relative

EXAMPLES: Final = ["rebuild-index data --dry-run", "rebuild-index data/orders-0"]


@command(
    "rebuild-index",
    "Build offset and time indexes from the log (needs the writer's lock).",
    EXAMPLES,
    path="a store, a partition directory, or a .log, .index or .timeindex file",
)
@options.path(many=True)
@options.dry_run
@options.output_format()
@options.permissions
def rebuild_index(paths: tuple[str, ...], **given: Any) -> int:
    """`logstore-dump rebuild-index`."""
    printer = Printer()
    dry_run = given["dry_run"]
    what = "would build" if dry_run else "built"
    for path in paths:
        built = logstore.rebuild_index(
            path, dry_run=dry_run, store_config=store_config(given)
        )
        for log, entries, times in built:
            if given["form"] == "jsonl":
                values = {
                    "path": log,
                    "entries": entries,
                    "time_entries": times,
                    "dry_run": dry_run,
                }
                printer.json(finding("index", values))
                continue
            printer.line(
                f"{what} {counted(entries, 'offset index entry')} and "
                f"{counted(times, 'time index entry')} of {escape(relative(log))}"
            )
    return 0
