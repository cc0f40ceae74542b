"""From arguments to an exit status: all subcommands together."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import click

import logstore
from logstore.cli import (  # noqa: F401  (each adds its subcommands)
    batches,
    compact,
    doctor,
    group_changes,
    group_list,
    handover,
    index,
    ls,
    rebuild,
    records,
    repair,
    report,
    shell,
    snapshot,
    stat,
    verify,
)
from logstore.cli.advice import error_text
from logstore.cli.app import PROGRAM, ClosedPipeError, cli, usage_text
from logstore.cli.browse import command as _browse  # noqa: F401
from logstore.cli.export import command as _export  # noqa: F401
from logstore.cli.kafka import command as _kafka  # noqa: F401
from logstore.cli.output import Printer

CLEAN: Final = 0
PROBLEMS: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130


def run(argv: Sequence[str] | None = None) -> int:
    """The work of `logstore.cli.main.main`, with click installed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = cli.main(arguments, PROGRAM, standalone_mode=False)
        sys.stdout.flush()
    except (BrokenPipeError, ClosedPipeError):
        _forget_output()
        return CLEAN
    except (click.exceptions.Abort, KeyboardInterrupt):
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        return INTERRUPTED
    except SystemExit as end:  # the shell requests completions
        return end.code if isinstance(end.code, int) else UNUSABLE
    except click.UsageError as error:
        message, hint = usage_text(error)
        return _failed(message, UNUSABLE, hint)
    except click.ClickException as error:
        return _failed(error.format_message(), UNUSABLE)
    except logstore.CorruptionError as error:
        return _failed(str(error), PROBLEMS)
    except (logstore.LogStoreError, OSError, ValueError) as error:
        return _failed(error_text(error), UNUSABLE)
    return status if isinstance(status, int) else CLEAN


def _failed(message: str, status: int, hint: str = "") -> int:
    """Print an error, escaped as a whole, and below it a hint."""
    printer = Printer()
    try:
        printer.warn(message)
        if hint:
            printer.err.write(f"{hint}\n")
    except BrokenPipeError:
        _forget_output()
    return status


def _forget_output() -> None:
    """Leave nothing to be written when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
