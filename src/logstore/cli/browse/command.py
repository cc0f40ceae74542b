"""The subcommand `browse`: what must hold before a screen is drawn."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Final

import click

from logstore.cli import options
from logstore.cli.app import PARTITIONS, command, store_config
from logstore.cli.browse.catalog import BrowserCatalog, check_path
from logstore.cli.lazy import import_package
from logstore.cli.output import is_terminal

EXAMPLES: Final = [
    "browse data",
    "browse data --topic orders",
    "browse data/orders-0 --from 2024-05-01T00:00:00Z",
    "browse kafka --topic 'orders*'",
]


@command(
    "browse",
    "Browse topics, records, groups and damage in the terminal.",
    EXAMPLES,
    path=f"{PARTITIONS}. It needs Textual: pip install 'pylogstore[browse]'. "
    f"`?` shows the keys",
)
@options.path()
@options.choice
@options.first
@options.decompressed
def browse(path: str, **arguments: Any) -> int:
    """`logstore-dump browse`."""
    check_path(path)
    if not all(map(is_terminal, (sys.stdin, sys.stdout, sys.stderr))):
        raise click.UsageError(
            "browse needs a terminal, but standard input, output or error is not "
            "one; `logstore-dump records` prints to a pipe"
        )
    import_package("textual")
    browser = importlib.import_module("logstore.cli.browse.browser").Browser
    config = store_config(arguments)
    catalog = BrowserCatalog(path, arguments["topics"], arguments["numbers"], config)
    try:
        app = browser(catalog, config=config, start=arguments["first"])
        status = app.run()
    finally:
        catalog.close()
    return status if isinstance(status, int) else app.return_code or 0
