"""`doctor`: the surroundings of a store."""

from __future__ import annotations

import os
from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import command
from logstore.cli.output import Printer
from logstore.cli.paths import STORE, kind_of
from logstore.cli.schema import line
from logstore.cli.text import escape, relative

EXAMPLES: Final = ["doctor data", "doctor data --write-test --format jsonl"]
# Problems come last, at the end of the output.
_ORDER: Final = {"ok": 0, "note": 1, "problem": 2}


@command(
    "doctor",
    "Check the environment of a store: file system, mount, permissions, limits.",
    EXAMPLES,
    path="a store",
)
@options.path()
@options.write_test
@options.output_format()
def doctor(path: str, **arguments: Any) -> int:
    """`logstore-dump doctor`."""
    full = os.path.abspath(path)
    if kind_of(full, path) != STORE:
        raise logstore.StoreNotFoundError(
            f"{path} is not a store; the store is its parent directory", path=full
        )
    report = logstore.doctor(path, write_test=arguments["write_test"])
    printer = Printer()
    seen = list(report.findings)
    if arguments["form"] == "jsonl":
        for finding in seen:
            values = {
                "kind": finding.kind,
                "level": finding.level,
                "message": finding.message,
                "values": finding.values,
            }
            printer.json(line("finding", topic=None, partition=None, **values))
    else:
        for finding in sorted(seen, key=lambda item: _ORDER.get(item.level, 0)):
            text = (
                f"{finding.level}: {finding.kind}: {escape(relative(finding.message))}"
            )
            printer.line(text, finding.level)
    return 0 if report.ok else 1
