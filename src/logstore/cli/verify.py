"""`verify`: all problems of stores, partitions and files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import command, store_config
from logstore.cli.output import Printer, Progress
from logstore.cli.report import html_of, written_html
from logstore.cli.schema import finding, line
from logstore.cli.text import counted, escape, grouped, plural, relative, size_text

EXAMPLES: Final = [
    "verify data",
    "verify --deep data/orders-0 data/orders-1",
    "verify data/orders-0/00000000000000000000.log --format jsonl",
    "verify data --format html -o report.html",
]

# Words for many notes of a kind; without them the first of the notes is printed.
_GROUPS: Final = {
    "zero-tail": ("index", "with zeros behind {} entries"),
    "torn-tail": ("log", "with a torn tail, which the next opening for writing cuts"),
    "missing-index": ("segment", "without a finished index"),
    "orphan": ("file", "without a log beside {}"),
    "in-use": ("place", "in use, and looked at again"),
    "foreign": ("directory", "that {} no partition"),
}
_PATH: Final = re.compile(r"(/[^/\s:;,]+)+")
_NUMBER: Final = re.compile(r"[0-9]+")


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
def verify(paths: tuple[str, ...], **given: Any) -> int:
    """`logstore-dump verify`."""
    form, output = given["form"], given["output"]
    if output is not None and form != "html":
        raise click.UsageError("--output is for --format html")
    if form == "html" and len(paths) != 1:
        raise click.UsageError("--format html takes one PATH")
    printer = Printer()
    with Progress("verifying", printer.err) as progress:
        report = logstore.verify(
            paths,
            deep=given["deep"],
            on_progress=progress,
            threads=given["threads"],
            store_config=store_config(given),
        )
    if form == "jsonl":
        _print_json(printer, report)
    elif form == "html":
        written_html(printer, html_of(paths[0]), output)
    else:
        _print_text(printer, report, verbose=given["verbose"])
    return 0 if report.ok else 1


def _print_json(printer: Printer, report: logstore.VerifyReport) -> None:
    value = report.to_dict()
    for kind in ("note", "problem"):
        for one in value.pop(f"{kind}s"):
            printer.json(finding(kind, one))
    printer.json(
        line(
            "summary",
            **value,
            problems=len(report.problems),
            notes=len(report.notes),
        )
    )


def _print_text(
    printer: Printer, report: logstore.VerifyReport, *, verbose: bool
) -> None:
    """Print notes first and problems last, at the end of the output."""
    for text in note_lines(report.notes, verbose=verbose):
        printer.line(escape(relative(f"note: {text}")), "note")
    for problem in report.problems:
        text = f"problem: {problem.kind}: {problem.message}"
        printer.line(escape(relative(text)), "problem")
    how = "looked into" if report.deep else "checked"
    printer.line(
        f"{how} {counted(report.segments, 'segment')}, "
        f"{counted(report.batches, 'batch')}, {counted(report.records, 'record')}, "
        f"{size_text(report.bytes)}: {counted(len(report.problems), 'problem')}, "
        f"{counted(len(report.notes), 'note')}",
        "ok" if report.ok else "problem",
    )


def note_lines(notes: Iterable[logstore.Note], *, verbose: bool) -> Iterator[str]:
    """A line for each note; notes with the same text about several files are one."""
    groups: dict[tuple[str, str], list[logstore.Note]] = {}
    for at, note in enumerate(notes):
        same = str(at) if verbose else _same(note.message)
        groups.setdefault((note.kind, same), []).append(note)
    for (kind, _), some in groups.items():
        yield f"{kind}: {_group_text(kind, some)}"


def _same(message: str) -> str:
    """A message without the parts that differ from file to file."""
    return _NUMBER.sub("#", _PATH.sub("", message))


def _group_text(kind: str, notes: list[logstore.Note]) -> str:
    if len(notes) == 1:
        return notes[0].message
    if kind not in _GROUPS or not _is_named(kind, notes[0].message):
        return f"{notes[0].message} (and {grouped(len(notes) - 1)} more like it)"
    word, rest = _GROUPS[kind]
    # "22 indexes with zeros behind their entries"
    text = rest.format("are" if kind == "foreign" else "their")
    text = text.replace("beside their", "beside them")
    return f"{grouped(len(notes))} {plural(word)} {text}"


def _is_named(kind: str, message: str) -> bool:
    """Whether the words for a kind fit: some kinds have several messages."""
    wanted = {"in-use": "being written to", "foreign": "is no partition"}
    return wanted.get(kind, "") in message
