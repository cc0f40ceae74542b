"""`verify`: all problems of stores, partitions and files."""

from __future__ import annotations

from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.findings import note_lines, problem_lines
from logstore.cli.output import Printer, Progress
from logstore.cli.report import check_target, report_of, write_html
from logstore.cli.schema import finding, line
from logstore.cli.text import counted, escape, relative, size_text

EXAMPLES: Final = [
    "verify data",
    "verify --deep data/orders-0 data/orders-1",
    "verify data/orders-0/00000000000000000000.log --format jsonl",
    "verify data --format html -o report.html",
]


@command(
    "verify",
    "Check files and list all problems; notes are not problems.",
    EXAMPLES,
    path="a store, a partition directory, or a file of one",
)
@options.path(many=True)
@options.deep
@options.threads
@options.verbose
@options.output_format("html")
@options.output()
@options.decompressed
def verify(paths: tuple[str, ...], **arguments: Any) -> int:
    """`logstore-dump verify`."""
    form, output = arguments["form"], arguments["output"]
    if output is not None and form != "html":
        raise click.UsageError("--output needs --format html")
    if form == "html" and len(paths) != 1:
        raise click.UsageError("--format html takes one PATH")
    printer = Printer()
    if form == "html":
        check_target(printer, output)
        result = report_of(
            paths[0],
            printer,
            deep=arguments["deep"],
            threads=arguments["threads"],
            store_config=store_config(arguments),
        )
        write_html(printer, result.to_html(), output)
        return 0 if result.ok else 1
    with Progress("verifying", printer.err) as progress:
        report = logstore.verify(
            paths,
            deep=arguments["deep"],
            on_progress=progress,
            threads=arguments["threads"],
            store_config=store_config(arguments),
        )
    if form == "jsonl":
        _print_json(printer, report)
    else:
        _print_text(printer, report, verbose=arguments["verbose"])
    return 0 if report.ok else 1


def _print_json(printer: Printer, report: logstore.types.VerifyReport) -> None:
    value = report.to_dict()
    for kind in ("note", "problem"):
        for item in value.pop(f"{kind}s"):
            printer.json(finding(kind, item))
    printer.json(
        line(
            "summary",
            **value,
            problems=len(report.problems),
            notes=len(report.notes),
        )
    )


def _print_text(
    printer: Printer, report: logstore.types.VerifyReport, *, verbose: bool
) -> None:
    """Print notes first and problems last, at the end of the output."""
    for text in note_lines(report.notes, verbose=verbose):
        printer.line(escape(relative(f"note: {text}")), "note")
    for text in problem_lines(report.problems, verbose=verbose):
        printer.line(escape(relative(f"problem: {text}")), "problem")
    how = "looked into" if report.deep else "checked"
    unopened = ""
    if report.unopened:
        unopened = f" ({counted(report.unopened, 'compressed batch')} not looked into)"
    printer.line(
        f"{how} {counted(report.segments, 'segment')}, "
        f"{counted(report.batches, 'batch')}, {counted(report.records, 'record')}, "
        f"{size_text(report.bytes)}{unopened}: "
        f"{counted(len(report.problems), 'problem')}, "
        f"{counted(len(report.notes), 'note')}",
        "ok" if report.ok else "problem",
    )
