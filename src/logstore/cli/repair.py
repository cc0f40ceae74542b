"""`repair`: the expected losses, the question, and the report."""

from __future__ import annotations

import os
from typing import Any, Final

import click

import logstore
from logstore.cli import options
from logstore.cli.app import PARTITIONS, command, store_config
from logstore.cli.asking import answer_of, can_ask, refuse_unasked
from logstore.cli.findings import action_lines, problem_lines
from logstore.cli.losses import Loss, loss_of
from logstore.cli.output import Printer, Progress
from logstore.cli.schema import finding, line
from logstore.cli.tables import Column, print_table
from logstore.cli.text import counted, escape, grouped, relative, size_text

EXAMPLES: Final = [
    "repair data",
    "repair data --dry-run",
    "repair data/orders-0 --mode skip",
    "repair data/orders-0 --mode cut --quarantine /mnt/other/aside --yes",
    "repair data --mode skip --copy-to data.salvaged",
]
MODES: Final = ("cut", "skip")
_VERBS: Final = {True: "would do", False: "done"}
_COLUMNS: Final = (
    Column("mode", lambda loss: loss.mode),
    Column("partitions", lambda loss: loss.partitions, grouped, True),
    Column("offsets lost", lambda loss: loss.offsets, grouped, True),
    Column("records lost", lambda loss: loss.records_text),
    Column("bytes", lambda loss: loss.bytes, size_text, True),
)


@command(
    "repair",
    "Repair a damaged store or partition, and keep a copy of removed data (needs the "
    "writer's lock).",
    EXAMPLES,
    path=PARTITIONS,
)
@options.path()
@options.mode
@options.dry_run
@options.quarantine
@options.copy_to
@options.yes
@options.verbose
@options.output_format()
@options.permissions
@options.decompressed
def repair(path: str, **arguments: Any) -> int:
    """`logstore-dump repair`."""
    printer = Printer()
    if arguments["copy_alias"] is not None:
        if arguments["copy_to"] is not None:
            raise click.UsageError(
                "--to is an alias of --copy-to; give only one of them"
            )
        arguments["copy_to"] = arguments["copy_alias"]
    if arguments["dry_run"] and arguments["copy_to"] is not None:
        raise click.UsageError("--dry-run and --copy-to exclude each other")
    mode, is_confirmed = (
        arguments["mode"],
        arguments["yes"] or arguments["copy_to"] is not None,
    )
    if mode is None:
        mode, is_confirmed = _choose(path, arguments, printer, is_confirmed)
    if mode is None:
        return 1
    if arguments["dry_run"]:
        plan = _plan(path, mode, arguments, printer)
        _print(arguments, printer, plan)
        return 0 if plan.ok and not plan.actions else 1
    if not is_confirmed:
        plan = _plan(path, mode, arguments, printer)
        if plan.actions:
            _print(arguments, printer, plan)
            _ask_name(path, printer)
    report = _repair(path, mode, arguments, printer, dry_run=False)
    _print(arguments, printer, report)
    return 0 if report.ok else 1


def _plan(
    path: str, mode: str, arguments: dict[str, Any], printer: Printer
) -> logstore.types.RepairReport:
    return _repair(path, mode, arguments, printer, dry_run=True)


def _repair(
    path: str, mode: str, arguments: dict[str, Any], printer: Printer, *, dry_run: bool
) -> logstore.types.RepairReport:
    with Progress("checking" if dry_run else "repairing", printer.err) as progress:
        return logstore.repair(
            path,
            mode,
            arguments["quarantine"],
            dry_run=dry_run,
            to=None if dry_run else arguments["copy_to"],
            on_progress=progress,
            store_config=store_config(arguments),
        )


# ------------------------------------------------------------------ without a mode


def _choose(
    path: str, arguments: dict[str, Any], printer: Printer, is_confirmed: bool
) -> tuple[str | None, bool]:
    """Show what each mode would lose, and ask for one.

    Returns (mode, whether a person has confirmed it). No mode (None) means a dry run
    with something to do.
    """
    plans = {mode: _plan(path, mode, arguments, printer) for mode in MODES}
    losses = [loss_of(plan) for plan in plans.values()]
    if not any(loss.partitions for loss in losses):
        return "cut", is_confirmed  # or skip: nothing is taken out of a log
    _print_choice(arguments, printer, plans, losses)
    if arguments["dry_run"]:
        return None, False
    if is_confirmed or not can_ask(printer):
        raise click.ClickException(
            "nothing was changed: give --mode cut or --mode skip, and --yes if there "
            "is no terminal; --dry-run shows what each would do"
        )
    answer = answer_of(
        printer, f"Repair {_name(path)} with cut or skip? Anything else cancels: "
    )
    if answer not in MODES:
        raise click.ClickException(
            "nothing was changed: the answer was neither cut nor skip"
        )
    return answer, True


def _print_choice(
    arguments: dict[str, Any],
    printer: Printer,
    plans: dict[str, logstore.types.RepairReport],
    losses: list[Loss],
) -> None:
    if arguments["form"] == "jsonl":
        for plan, loss in zip(plans.values(), losses, strict=True):
            _print_json(printer, plan)
            printer.json(loss.to_json())
        return
    for mode, plan in plans.items():
        for text, _ in action_lines(plan.actions, verbose=arguments["verbose"]):
            printer.line(escape(relative(f"{mode} would do: {text}")))
    printer.line("")
    print_table(printer, _COLUMNS, losses)
    printer.line("")


def _name(path: str) -> str:
    return escape(os.path.basename(os.path.abspath(path)))


def _ask_name(path: str, printer: Printer) -> None:
    """Ask a person to type the name of the path that will be changed."""
    refuse_unasked(printer)
    name = os.path.basename(os.path.abspath(path))
    if answer_of(printer, f"Type {_name(path)} to continue: ") != name:
        raise click.ClickException("nothing was changed: the names differ")


# ------------------------------------------------------------------ the report


def _print_json(printer: Printer, report: logstore.types.RepairReport) -> None:
    value: dict[str, Any] = report.to_dict()
    about = {"mode": report.mode, "dry_run": report.dry_run}
    for action in value.pop("actions"):
        printer.json(finding("action", {**about, **action}))
    for problem in value.pop("remaining"):
        printer.json(finding("problem", problem))
    printer.json(
        line(
            "summary",
            ok=report.ok,
            mode=report.mode,
            dryRun=report.dry_run,
            quarantine=list(report.quarantine),
            actions=len(report.actions),
            problems=len(report.remaining),
        )
    )


def _print(
    arguments: dict[str, Any], printer: Printer, report: logstore.types.RepairReport
) -> None:
    if arguments["form"] == "jsonl":
        _print_json(printer, report)
        return
    how = _VERBS[report.dry_run]
    verbose = arguments["verbose"]
    for text, kept_at in action_lines(report.actions, verbose=verbose):
        printer.line(escape(relative(f"{how}: {text}")))
        if kept_at is not None:
            printer.line(f"  kept at {escape(relative(kept_at))}")
    if not report.dry_run:
        for text in problem_lines(report.remaining, verbose=verbose):
            printer.line(escape(relative(f"problem: {text}")), "problem")
    loss = loss_of(report)
    counts = f"{counted(len(report.actions), 'action')}, {loss.text}"
    remaining = counted(len(report.remaining), "problem")
    printer.line(f"{how}: {counts}" + ("" if report.dry_run else f", {remaining} left"))
