"""`repair`: the plan, the question, and the report."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

import logstore
from logstore.cli.output import Printer, Progress, config_of, escape, size_text

_TELL = {True: "would do", False: "done"}


def run_repair(args: argparse.Namespace, printer: Printer) -> int:
    """`logstore-dump repair`."""
    if args.dry_run and args.to is not None:
        raise _UnusableError("--dry-run and --to exclude each other")
    if not (args.dry_run or args.yes or args.to is not None):
        plan = _repair(args, printer, dry_run=True)
        if plan.actions:
            _print(args, printer, plan)
            _ask(args, printer)
    report = _repair(args, printer, dry_run=args.dry_run)
    _print(args, printer, report)
    return 0 if report.ok and not (args.dry_run and report.actions) else 1


def _repair(
    args: argparse.Namespace, printer: Printer, *, dry_run: bool
) -> logstore.RepairReport:
    with Progress("checking" if dry_run else "repairing", printer.err) as progress:
        return logstore.repair(
            args.path,
            args.mode,
            args.quarantine,
            dry_run=dry_run,
            to=args.to,
            on_progress=progress,
            store_config=config_of(args),
        )


def _ask(args: argparse.Namespace, printer: Printer) -> None:
    """Have the name of what is to be changed typed, by a person."""
    name = os.path.basename(os.path.abspath(args.path))
    if not (sys.stdin.isatty() and printer.err.isatty()):
        raise _UnusableError(
            "nothing was changed: repeat it with --yes, or with --dry-run to look only"
        )
    printer.flush()
    printer.err.write(f"Type {escape(name)} to go on: ")
    printer.err.flush()
    if sys.stdin.readline().rstrip("\n") != name:
        raise _UnusableError("nothing was changed: that is not its name")


class _UnusableError(ValueError):
    """The command cannot be done as it was given."""


def _print(
    args: argparse.Namespace, printer: Printer, report: logstore.RepairReport
) -> None:
    if args.format == "jsonl":
        value: dict[str, Any] = report.to_dict()
        for action in value.pop("actions"):
            printer.json({"type": "action", "dry_run": report.dry_run, **action})
        for problem in value.pop("remaining"):
            printer.json({"type": "problem", **problem})
        counts = {"actions": len(report.actions), "problems": len(report.remaining)}
        printer.json({"type": "summary", **value, **counts})
        return
    how = _TELL[report.dry_run]
    for action in report.actions:
        printer.line(f"{how}: {action.label}: {escape(action.message)}")
        if action.kept_at is not None:
            printer.line(f"  kept at {escape(action.kept_at)}")
    if not report.dry_run:
        for problem in report.remaining:
            printer.line(f"problem: {problem.kind}: {escape(problem.message)}")
    taken = size_text(sum(action.bytes for action in report.actions))
    tail = "" if report.dry_run else f", {len(report.remaining) or 'no'} problems left"
    printer.line(f"{how}: {len(report.actions)} actions, {taken} out of the log{tail}")
