"""Writes docs/logstore-dump.1, the manual page, from the subcommands' definitions.

python docs/make_man.py
"""

from __future__ import annotations

import importlib
from pathlib import Path

PAGE = Path(__file__).with_name("logstore-dump.1")


def main() -> None:
    cli = importlib.import_module("logstore.cli.run").cli
    manual = importlib.import_module("logstore.cli.manual").manual
    PAGE.write_text(manual(cli), encoding="utf-8")


if __name__ == "__main__":
    main()
