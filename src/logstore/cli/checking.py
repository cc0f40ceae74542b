"""`verify`, `rebuild-index`, `doctor` and `index`: files as they are."""

from __future__ import annotations

import argparse
import itertools
import os
from typing import Any

import logstore
from logstore.cli.output import (
    Printer,
    Progress,
    config_of,
    escape,
    size_text,
    time_text,
)


def run_verify(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump verify`."""
    with Progress("verifying", printer.err) as progress:
        report = logstore.verify(
            args.paths,
            deep=args.deep,
            on_progress=progress,
            threads=args.threads,
            store_config=config_of(args),
        )
    if args.format == "jsonl":
        value = report.to_dict()
        for kind in ("problem", "note"):
            for finding in value.pop(f"{kind}s"):
                printer.json({"type": kind, **finding})
        printer.json(
            {
                "type": "summary",
                **value,
                "problems": len(report.problems),
                "notes": len(report.notes),
            }
        )
        return 0 if report.ok else 1
    for problem in report.problems:
        printer.line(f"problem: {problem.kind}: {escape(problem.message)}")
    for note in report.notes:
        printer.line(f"note: {note.kind}: {escape(note.message)}")
    how = "looked into" if report.deep else "checked"
    printer.line(
        f"{how} {report.segments} segments, {report.batches} batches, "
        f"{report.records} records, {size_text(report.bytes)}: "
        f"{_count(len(report.problems), 'problem')}, "
        f"{_count(len(report.notes), 'note')}"
    )
    return 0 if report.ok else 1


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def run_rebuild_index(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump rebuild-index`."""
    config = config_of(args)
    for path in args.paths:
        for log, entries, times in logstore.rebuild_index(
            path, dry_run=args.dry_run, store_config=config
        ):
            if args.format == "jsonl":
                printer.json(
                    {
                        "path": log,
                        "entries": entries,
                        "timeEntries": times,
                        "dryRun": args.dry_run,
                    }
                )
                continue
            what = "would build" if args.dry_run else "built"
            printer.line(
                f"{what} {entries} offset and {times} time index entries of "
                f"{escape(log)}"
            )
    return 0


def run_doctor(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump doctor`."""
    diagnosis = logstore.doctor(args.path, write_test=args.write_test)
    for seen in diagnosis.observations:
        if args.format == "jsonl":
            printer.json(
                {
                    "kind": seen.kind,
                    "level": seen.level,
                    "message": seen.message,
                    "values": seen.values,
                }
            )
        else:
            printer.line(f"{seen.level}: {seen.kind}: {escape(seen.message)}")
    return 0 if diagnosis.ok else 1


def _named(entry: Any) -> dict[str, Any]:
    """An entry as names and values."""
    if hasattr(entry, "_asdict"):
        return dict(entry._asdict())
    name, value = entry
    return {"name": name, "value": value}


def run_index(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump index`."""
    contents = logstore.inspect_file(args.path)
    if contents.kind == "log":
        raise _NotAnIndexError(args.path)
    for entry in itertools.islice(contents.entries, args.limit):
        if args.format == "jsonl":
            printer.json({"kind": contents.kind, **_named(entry)})
        else:
            printer.line(_entry_text(contents.kind, _named(entry)))
    return 0


class _NotAnIndexError(ValueError):
    """A log was given."""

    def __init__(self, path: str) -> None:
        name = os.path.basename(path)
        super().__init__(f"{name} is a log; `logstore-dump batches` shows it")


def _entry_text(kind: str, values: dict[str, Any]) -> str:
    if kind in ("state", "metadata"):
        return f"{escape(str(values['name']))}: {escape(str(values['value']))}"
    parts = []
    for name, value in values.items():
        words = name.replace("_ms", "").replace("_", " ")
        if name.startswith("timestamp"):
            parts.append(f"{words} {value} ({time_text(value)})")
        else:
            parts.append(f"{words} {escape(str(value))}")
    return "  ".join(parts)
