"""The manual page, from the definitions of the subcommands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import click

import logstore
from logstore.cli.app import Command, CommandGroup

_HEAD: Final = """\
.\\" Written by docs/make_man.py from the definitions of the subcommands.
.TH LOGSTORE-DUMP 1 "" "pylogstore {version}" "User Commands"
.SH NAME
logstore-dump \\- inspect stores and partitions of logstore and of Kafka
.SH SYNOPSIS
.B logstore-dump
.I SUBCOMMAND
[OPTIONS] PATH
.SH DESCRIPTION
"""
_TAIL: Final = """\
.SH EXIT STATUS
.TP
.B 0
clean; also with notes: a torn tail, a log in use
.TP
.B 1
problems found, or damage met while reading
.TP
.B 2
unusable arguments, unreadable path, or no log directory
.TP
.B 130
interrupted
.SH ENVIRONMENT
.TP
.B NO_COLOR
if it is set, nothing is coloured
"""


def manual(group: click.Command) -> str:
    """The page in the format of man(7)."""
    assert isinstance(group, CommandGroup)
    context = click.Context(group, info_name="logstore-dump")
    parts = [_HEAD.format(version=logstore.__version__), _text(group.help or "")]
    parts.append(".SH SUBCOMMANDS\n")
    for name in group.list_commands(context):
        subcommand = group.get_command(context, name)
        if isinstance(subcommand, Command):
            parts += _subcommand(subcommand, click.Context(subcommand, context, name))
    return "".join([*parts, _TAIL])


def _subcommand(subcommand: Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(subcommand.collect_usage_pieces(context))
    yield f".SS {_escaped(f'{subcommand.name} {usage}')}\n"
    yield _text(subcommand.help or "")
    for parameter in subcommand.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f".TP\n.B {_escaped(record[0])}\n{_escaped(record[1])}\n"
    if subcommand.examples:
        yield ".PP\nExamples:\n.PP\n.nf\n"
        for example in subcommand.examples:
            yield f"    {_escaped(f'logstore-dump {example}')}\n"
        yield ".fi\n"


def _text(text: str) -> str:
    paragraphs = text.split("\n\n")
    return ".PP\n".join(_escaped(" ".join(p.split())) + "\n" for p in paragraphs)


def _escaped(text: str) -> str:
    r"""Text in which groff finds no command: ``\``, ``-``, and ``.`` or ``'`` at the
    start of a line are escaped."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
