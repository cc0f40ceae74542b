"""Suggestions for unknown subcommands and options."""

from __future__ import annotations

import shlex
from typing import Any

import click
import pytest

from logstore.cli import suggestions
from logstore.cli.app import ORDER, cli
from logstore.cli.run import run as _run

assert _run  # every subcommand is defined

# Subcommands that change a store; the others only read.
CHANGING = set(suggestions.HARMLESS)
HARMLESS = {"--dry-run", "--help"}


def named(suggestion: str) -> tuple[str, list[str]]:
    """(the subcommand that a suggestion names, its other words)."""
    words = shlex.split(suggestion)
    for count in (2, 1):
        if " ".join(words[:count]) in cli.commands:
            return " ".join(words[:count]), words[count:]
    return "", words


def of_every_command() -> list[str]:
    """The suggestions for subcommands, and suggestions for options that name a
    subcommand."""
    others = [one for many in suggestions._OPTIONS for one in many]
    return [*suggestions._COMMANDS, *(o for o in others if not o.startswith("-"))]


@pytest.mark.parametrize("suggestion", of_every_command())
def test_a_suggestion_is_there_and_changes_nothing(suggestion: str) -> None:
    """A subcommand that can change something is suggested with --dry-run or --help; the
    suggested options exist."""
    name, words = named(suggestion)
    options = {o for o in words if o.startswith("-")}
    if not name:
        assert options <= {"--help", "--version"}
        return
    known = {o for param in cli.commands[name].params for o in param.opts}
    assert options - {"--help"} <= known
    assert name not in CHANGING or options & HARMLESS


@pytest.mark.parametrize("name", sorted(CHANGING))
def test_a_slip_in_a_name_leads_to_no_change(name: str) -> None:
    """Any letter left out, doubled, or swapped with the next one."""
    for at in range(1, len(name)):
        for typed in (
            name[:at] + name[at + 1 :],
            name[:at] + name[at : at + 1] * 2 + name[at + 1 :],
            name[:at] + name[at : at + 2][::-1] + name[at + 2 :],
        ):
            if typed == name:
                continue
            hint = suggestions.for_command(typed, ORDER)
            if "did you mean" not in hint:
                continue
            found, words = named(hint.removeprefix("; did you mean ").rstrip("?"))
            assert found not in CHANGING or HARMLESS & set(words), typed


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("cat consume get read show", "records?"),
        ("topics describe list", "ls?"),
        ("lag members", "groups describe?"),
        ("consumers", "groups list?"),
        ("fix recover reapir", "repair --dry-run?"),
        ("rebuild", "rebuild-index --dry-run?"),
        ("recrods", "records?"),
        ("desribe", "ls?"),
        ("check fsck vrify", "verify?"),
        ("handover", "handover check?"),
    ],
)
def test_a_word_is_answered_with_what_was_meant(
    run: Any, words: str, meant: str
) -> None:
    """It covers names in other tools, and typing errors; the status is 2."""
    for word in words.split():
        result = run(word, "x")
        assert result.status == 2
        assert f"no subcommand '{word}'; did you mean {meant}\n" in result.err


@pytest.mark.parametrize("word", ["xyzzy", "co", "c", "q", "a-b", "snap"])
def test_a_word_that_says_nothing_is_answered_with_what_there_is(
    run: Any, word: str
) -> None:
    """The answer lists all subcommands; similar letters alone are no reason for a
    suggestion."""
    assert "; there are ls, stat, records" in run(word).err


def test_the_first_of_two_words_is_answered_with_those_that_follow(run: Any) -> None:
    """The answer is a listing, not a suggestion."""
    said = "there are groups list, groups describe, groups reset, groups export\n"
    assert said in run("groups", "data").err


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("produce", "does not append records"),
        ("delete", "does not delete records or topics"),
        ("create-topic", "does not create or change topics"),
    ],
)
def test_what_it_does_not_do_is_answered_with_what_does(
    run: Any, word: str, said: str
) -> None:
    """There is no suggestion."""
    err = run(word).err
    assert said in err
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("records x --payloda hex", "no option --payloda; did you mean --payload?"),
        ("records x --limt 3", "no option --limt; did you mean --limit?"),
        ("records x --offset 3", "did you mean --from?"),
        ("records x -c 3", "did you mean --limit?"),
        ("tail x -c 3", "did you mean --records?"),
        ("records x --tail 3", "did you mean --last?"),
        ("records x --json", "did you mean --format jsonl?"),
        ("records x --follow", "did you mean tail -f?"),
        ("ls x --grep a", "did you mean records --grep RE?"),
        ("verify x --fix", "did you mean repair --dry-run?"),
        ("ls x --lag", "did you mean groups describe?"),
        ("records -b localhost:9092 x", "PATH is the directory"),
        ("records x --from-beginning", "logs are read from the start"),
        ("--versoin", "did you mean --version?"),
    ],
)
def test_an_option_is_answered_with_what_was_meant(
    run: Any, arguments: str, said: str
) -> None:
    """It covers names in other tools, and typing errors; the status is 2."""
    result = run(*arguments.split())
    assert (result.status, said in result.err) == (2, True), result.err


@pytest.mark.parametrize(
    "arguments",
    [
        "records x --too 3",  # not: --to, --topic
        "repair x --yse",
        "export x --forec",
        "doctor x --write-tset",
        "ls x --zzz",
        "ls x -q",
    ],
)
def test_no_option_is_suggested_that_writes_or_only_looks_alike(
    run: Any, arguments: str
) -> None:
    """Options that replace a file, skip a question or write are never suggested."""
    result = run(*arguments.split())
    assert result.status == 2
    assert "did you mean" not in result.err


def test_suggested_options_are_options_of_some_subcommand() -> None:
    """No suggestion names a removed option."""
    known = {
        option
        for command in cli.commands.values()
        for param in command.params
        if isinstance(param, click.Option) and not param.hidden
        for option in param.opts
    }
    for many in suggestions._OPTIONS:
        for one in many:
            # `--topics` of `groups reset`, ...
            assert not one.startswith("-") or one.split()[0] in known, one
