"""Questions to a person before a command changes what is on disk."""

from __future__ import annotations

import sys

import click

from logstore.cli.output import Printer

__all__ = ["answer_of", "can_ask", "confirm", "refuse_unasked"]


def can_ask(printer: Printer) -> bool:
    """Whether a person can answer: input and output are a terminal."""
    return sys.stdin.isatty() and printer.err.isatty()


def answer_of(printer: Printer, question: str) -> str:
    """Write a question after the output so far, and read one line."""
    printer.flush()
    printer.err.write(question)
    printer.err.flush()
    return sys.stdin.readline().rstrip("\n")


def refuse_unasked(printer: Printer) -> None:
    """Raise `ClickException` if there is no terminal to ask at."""
    if not can_ask(printer):
        raise click.ClickException(
            "nothing was changed: repeat it with --yes, or with --dry-run to look only"
        )


def confirm(printer: Printer, question: str) -> None:
    """Ask for a yes. Raises `ClickException` for any other answer."""
    if answer_of(printer, f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise click.ClickException("nothing was changed")
