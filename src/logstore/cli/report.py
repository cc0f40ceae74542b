"""`report` and `metrics`: a store as one HTML file, or as numbers."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import PARTITIONS, command
from logstore.cli.output import Printer, Progress
from logstore.cli.paths import kind_of
from logstore.cli.schema import line
from logstore.cli.text import escape, relative, size_text

REPORT_EXAMPLES: Final = ["report data -o report.html", "report data > report.html"]
METRICS_EXAMPLES: Final = ["metrics data", "metrics data --format jsonl"]

# Its `report` and `metrics` are loaded when they are used.
_library: Any = logstore


def report_of(path: str, printer: Printer, **options: Any) -> logstore.types.Report:
    """Result of `logstore.report` for a path, with a bar if that takes long."""
    kind_of(os.path.abspath(path), path)
    with Progress("verifying", printer.err) as progress:
        result: logstore.types.Report = _library.report(
            path, on_progress=progress, **options
        )
    return result


def check_target(printer: Printer, output: str | None) -> None:
    """Refuse to print a page on a terminal, before anything is read for it.

    Raises:
        UsageError: standard output is a terminal, and `output` is not a file.
    """
    if output in (None, "-") and printer.out.isatty():
        raise click.UsageError(
            "a page cannot be written to a terminal: redirect standard output, or "
            "give -o FILE"
        )


def write_html(printer: Printer, html: str, output: str | None) -> None:
    """Write a page to a file, or to standard output."""
    data = html.encode("utf-8", "backslashreplace")
    if output is None or output == "-":
        printer.raw(data)
        return
    _replace(output, data)
    printer.warn(f"wrote {size_text(len(data))} to {output}", "ok")


def _replace(output: str, data: bytes) -> None:
    """Write a file under another name, then rename it: a reader (a web server) has the
    old page or the new one, whole, and a full disk leaves the old."""
    path = os.path.realpath(output)  # a link stays one
    try:
        old = os.stat(path)
    except FileNotFoundError:
        old = None
    if old is not None and not stat.S_ISREG(old.st_mode):
        with open(path, "wb") as file:  # a pipe, /dev/null
            file.write(data)
        return
    part = f"{path}.{os.getpid()}.tmp"
    try:
        with open(part, "wb") as file:
            file.write(data)
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old.st_mode))
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise


@command(
    "report",
    "Write a report of a store as one HTML page with charts.",
    REPORT_EXAMPLES,
    path=f"{PARTITIONS}. An existing FILE is replaced; without it, standard "
    "output must not be a terminal. The status is 1 if there are problems",
)
@options.path()
@options.output()
def report(path: str, output: str | None) -> int:
    """`logstore-dump report`."""
    printer = Printer()
    check_target(printer, output)
    result = report_of(path, printer)
    write_html(printer, result.to_html(), output)
    return 0 if result.ok else 1


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
