"""`logstore-dump`: the entry point, which needs only Python."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

UNUSABLE: Final = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run `logstore-dump` and return its exit status.

    0 clean, 1 problems found, 2 unusable arguments or unreadable path, 130 interrupted.
    A pipe that was closed ends it quietly with 0. The process continues.

    Args:
        argv: the arguments; None: the process's arguments.
    """
    try:
        module = importlib.import_module("logstore.cli.run")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "click":
            raise
        sys.stderr.write(
            "logstore-dump: this command needs click; install it with "
            "`pip install pylogstore`\n"
        )
        return UNUSABLE
    status: int = module.run(argv)
    return status
