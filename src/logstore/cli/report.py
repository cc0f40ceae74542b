"""`report` and `metrics`: a store as one HTML file, or as numbers."""

from __future__ import annotations

import os
from typing import Any, Final

import logstore
from logstore.cli import options
from logstore.cli.app import command
from logstore.cli.output import Printer
from logstore.cli.paths import kind_of
from logstore.cli.schema import line
from logstore.cli.text import escape, relative, size_text

REPORT_EXAMPLES: Final = ["report data -o report.html", "report data > report.html"]
METRICS_EXAMPLES: Final = ["metrics data", "metrics data --format jsonl"]

# Its `report` and `metrics` are loaded when they are used.
_library: Any = logstore


def html_of(path: str) -> str:
    """The report of a store, as `logstore.report` makes it."""
    kind_of(os.path.abspath(path), path)
    made: str = _library.report(path).to_html()
    return made


def written_html(printer: Printer, html: str, output: str | None) -> None:
    """Write a page to a file, or to standard output."""
    data = html.encode("utf-8", "backslashreplace")
    if output in (None, "-"):
        printer.raw(data)
        return
    assert output is not None
    with open(output, "wb") as file:
        file.write(data)
    printer.warn(f"wrote {size_text(len(data))} to {output}", "ok")


@command(
    "report",
    "Write a report of a store as one HTML file with pictures.",
    REPORT_EXAMPLES,
    path="a store",
)
@options.path()
@options.output()
def report(path: str, output: str | None) -> int:
    """`logstore-dump report`."""
    written_html(Printer(), html_of(path), output)
    return 0


@command(
    "metrics",
    "Print the metrics of a store, in Prometheus' text format.",
    METRICS_EXAMPLES,
    path="a store",
)
@options.path()
@options.output_format()
def metrics(path: str, form: str) -> int:
    """`logstore-dump metrics`."""
    kind_of(os.path.abspath(path), path)
    values: dict[str, Any] = _library.metrics.of_directory(path)
    printer = Printer()
    if form == "jsonl":
        printer.json(line("metrics", topic=None, partition=None, metrics=values))
    else:
        for text in _library.metrics.text(values).splitlines():
            printer.line(escape(relative(text)) if "\x1b" in text else text)
    return 0
