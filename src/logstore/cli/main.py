"""`logstore-dump`: from arguments to an exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from typing import Final

import logstore
from logstore.cli.arguments import build_parser
from logstore.cli.output import Printer

CLEAN: Final = 0
PROBLEMS: Final = 1
UNUSABLE: Final = 2
INTERRUPTED: Final = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run `logstore-dump` and return its exit status.

    0 clean, 1 problems found, 2 unusable arguments or unreadable path, 130 interrupted.
    A pipe that was closed ends it quietly with 0.

    Args:
        argv: the arguments; None: those of the process.
    """
    try:
        args = build_parser().parse_args(argv)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else UNUSABLE
    printer = Printer()
    try:
        status: int = args.command(args, printer)
        printer.flush()
    except BrokenPipeError:
        _forget_output()
        return CLEAN
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):
            printer.flush()
        return INTERRUPTED
    except logstore.CorruptionError as error:
        printer.warn(str(error))
        return PROBLEMS
    except (logstore.LogStoreError, OSError, ValueError) as error:
        printer.warn(str(error))
        return UNUSABLE
    return status


def _forget_output() -> None:
    """Have nothing left to be written when the interpreter ends."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


if __name__ == "__main__":
    sys.exit(main())
