"""The command `logstore-dump`: its group, its help, its errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

import logstore
from logstore.cli import suggestions

_SUMMARY: Final = f"""\
Inspect stores, partitions and single files of logstore and of Kafka. PATH is a store
(a Kafka log directory is one), a partition directory or one file. All subcommands
except {", ".join(suggestions.HARMLESS)} and doctor --write-test only read, and may run
while a writer or a broker is running."""
_STATUS: Final = """\
Exit status: 0 clean (also with notes), 1 problems found, 2 unusable arguments or
unreadable path, 130 interrupted. `logstore-dump SUBCOMMAND --help` has examples."""
PROGRAM: Final = "logstore-dump"
# The kinds of path that PATH may be.
LOGS: Final = "a store, a partition directory or a .log file"
PARTITIONS: Final = "a store or a partition directory"
# The order of the help and of docs/cli.md.
ORDER: Final = (
    "ls",
    "stat",
    "records",
    "batches",
    "tail",
    "browse",
    "index",
    "kafka-dump-log",
    "export",
    "groups list",
    "groups describe",
    "groups reset",
    "groups export",
    "verify",
    "doctor",
    "handover check",
    "repair",
    "rebuild-index",
    "compact",
    "snapshot",
    "report",
    "metrics",
    "completion",
    "man",
)
_FLAGS: Final = ("group_access", "allow_shared_directory", "allow_network_filesystem")
# Where a context keeps the first word of a subcommand of two, for a shell.
_FIRST_WORD: Final = "logstore.cli.first_word"
_LIMIT: Final = "max_batch_decompressed_bytes"


class _Suggesting(click.Command):
    """A command that answers an unknown option with the one that was meant.

    Click suggests by letters alone, and hidden options, too.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            name = error.option_name
            hint = suggestions.for_option(name, self._shown(ctx))
            raise click.UsageError(f"no option {name}{hint}", ctx) from None

    def _shown(self, ctx: click.Context) -> list[str]:
        return [
            name
            for param in self.get_params(ctx)
            if isinstance(param, click.Option) and not param.hidden
            for name in param.opts
        ]


class Command(_Suggesting):
    """A subcommand: its help ends with examples that can be pasted.

    Attributes:
        examples: without ``logstore-dump``.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            formatter.write_paragraph()
            formatter.write("Examples:\n")
            for example in self.examples:
                formatter.write(f"  logstore-dump {example}\n")


class ClosedPipeError(Exception):
    """The reader of the output has closed its pipe (`| head`)."""


class CommandGroup(_Suggesting, click.Group):
    """All subcommands, in the order of the documentation."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in ORDER if name in self.commands]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if " ".join(args[:2]) in self.commands:
            args = [" ".join(args[:2]), *args[2:]]
        name = args[0] if args else ""
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            if ctx.resilient_parsing:  # a shell completes the word after it
                ctx.meta[_FIRST_WORD] = name
                return None, None, args
            hint = suggestions.for_command(name, self.list_commands(ctx))
            raise click.UsageError(f"no subcommand '{name}'{hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        # A shell completes one word: of `groups export` the first, and then the second.
        first = ctx.meta.get(_FIRST_WORD)
        words = [name.split() for name in self.list_commands(ctx)]
        if first is not None:
            words = [name[1:] for name in words if name[0] == first and len(name) > 1]
        known = dict.fromkeys(name[0] for name in words)
        options = [] if first else super().shell_complete(ctx, incomplete)
        return [
            *(CompletionItem(word) for word in known if word.startswith(incomplete)),
            *(item for item in options if str(item.value).startswith("-")),
        ]

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ClosedPipeError from error  # click would exit with status 1

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(_STATUS)


@click.group(
    "logstore-dump",
    cls=CommandGroup,
    help=_SUMMARY,
    invoke_without_command=True,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
)
@click.version_option(logstore.__version__, message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def command(
    name: str, summary: str, examples: Sequence[str], *, path: str = ""
) -> Callable[[Callable[..., int]], click.Command]:
    """Make a function a subcommand. It returns the exit status.

    Args:
        summary: a sentence.
        examples: command lines without the program's name.
        path: what the argument PATH may be.
    """
    name_of = "FILE" if name == "index" else "PATH"
    text = f"{summary}\n\n{name_of} is {path}." if path else summary

    def decorate(function: Callable[..., int]) -> click.Command:
        subcommand = click.command(
            name, cls=Command, help=text, examples=examples, short_help=summary
        )(function)
        cli.add_command(subcommand)
        return subcommand

    return decorate


def store_config(arguments: dict[str, Any]) -> logstore.StoreConfig:
    """The settings of the store that the subcommand has options for. There is no
    compaction in the background."""
    settings: dict[str, Any] = {name: arguments.get(name) or None for name in _FLAGS}
    settings["compaction_ms"] = 0
    settings[_LIMIT] = arguments.get(_LIMIT)
    return logstore.StoreConfig(**{k: v for k, v in settings.items() if v is not None})


def usage_text(error: click.UsageError) -> tuple[str, str]:
    """(an error of the arguments in one line, where to look)."""
    message = error.format_message().rstrip(".")
    where = PROGRAM if error.ctx is None else error.ctx.command_path
    return message, f"Try '{where} --help'"
