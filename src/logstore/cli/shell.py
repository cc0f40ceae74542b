"""`completion` and `man`: shell completions and the manual page of the command."""

from __future__ import annotations

from typing import Any, Final

import click
from click.shell_completion import get_completion_class

from logstore.cli.app import PROGRAM, cli, command
from logstore.cli.manual import manual
from logstore.cli.output import Printer

VARIABLE: Final = "_LOGSTORE_DUMP_COMPLETE"


@command(
    "completion",
    "Print a script that completes subcommands, options and topics in a shell.",
    [
        "completion bash >> ~/.bash_completion",
        "completion zsh > ~/.zfunc/_logstore-dump",
        "completion fish > ~/.config/fish/completions/logstore-dump.fish",
    ],
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """`logstore-dump completion`."""
    completion_class: Any = get_completion_class(shell)
    shell_completion = completion_class(cli, {}, PROGRAM, VARIABLE)
    # Not `source()`, which starts bash to ask for its version.
    Printer().line(shell_completion.source_template % shell_completion.source_vars())
    return 0


@command("man", "Print the manual page.", ["man | man -l -"])
def man() -> int:
    """`logstore-dump man`."""
    Printer().raw(manual(cli).encode())
    return 0
