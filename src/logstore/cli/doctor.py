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
def doctor(path: str, **given: Any) -> int:
    """`logstore-dump doctor`."""
    full = os.path.abspath(path)
    if kind_of(full, path) != STORE:
        raise logstore.StoreNotFoundError(
            f"{path} is not a store; the store is its parent directory", path=full
        )
    report = logstore.doctor(path, write_test=given["write_test"])
    printer = Printer()
    seen = list(report.findings)
    if given["form"] == "jsonl":
        for one in seen:
            values = {
                "kind": one.kind,
                "level": one.level,
                "message": one.message,
                "values": one.values,
            }
            printer.json(line("finding", topic=None, partition=None, **values))
    else:
        for one in sorted(seen, key=lambda one: _ORDER.get(one.level, 0)):
            text = f"{one.level}: {one.kind}: {escape(relative(one.message))}"
            printer.line(text, one.level)
    return 0 if report.ok else 1
