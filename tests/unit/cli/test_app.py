"""The arguments of `logstore-dump`: subcommands, options, help, errors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.params import parse_bound

SUBCOMMANDS = (
    "ls",
    "batches",
    "records",
    "index",
    "verify",
    "rebuild-index",
    "repair",
    "doctor",
    "stat",
    "tail",
    "export",
)


def subparsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of the subcommands by name."""
    for action in build_parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    raise AssertionError("no subcommands")


def test_the_subcommands_are_those_of_the_page() -> None:
    """A heading for each, in the same order."""
    assert tuple(subparsers()) == SUBCOMMANDS
    headings = re.findall(r"^## `([\w-]+)`$", DOCS.read_text("utf-8"), re.M)
    assert tuple(headings) == SUBCOMMANDS


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_the_options_of_a_subcommand_are_those_of_the_page(name: str) -> None:
    """Its section of docs/cli.md names each option, and no other; so the examples."""
    parser = subparsers()[name]
    text = DOCS.read_text("utf-8")
    section = text.split(f"## `{name}`\n")[1].split("\n## ")[0]
    rows = [row for row in section.splitlines() if row.startswith("| `-")]
    named = {
        option
        for row in rows
        for option in re.findall(r"`(--?[\w-]+)", row.split("|")[1])
    }
    known = {
        option
        for action in parser._actions
        for option in action.option_strings
        if option not in ("-h", "--help")
    }
    assert named == known
    examples = re.findall(r"^ +(logstore-dump .*)$", parser.epilog or "", re.M)
    assert examples
    for example in examples:
        assert f"    {example}\n" in section + "\n"
        build_parser().parse_args(_words(example)[1:])


def _words(command: str) -> list[str]:
    return [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]


@pytest.mark.parametrize(
    "arguments", [["--help"], *([name, "--help"] for name in SUBCOMMANDS)]
)
def test_help_exits_zero(run: Any, arguments: list[str]) -> None:
    """With the usage on standard output."""
    result = run(*arguments)
    assert result.status == 0
    assert result.out.startswith("usage: logstore-dump")


def test_version_is_the_library_s(run: Any) -> None:
    """And exit status 0."""
    result = run("--version")
    assert (result.status, result.out) == (0, f"logstore-dump {logstore.__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["records"],
        ["records", "x", "--limit", "-1"],
        ["records", "x", "--from", "yesterday"],
        ["records", "x", "--grep", "("],
        ["records", "x", "--payload", "xml"],
        ["records", "x", "--format", "xml"],
        ["export", "x"],
        ["tail", "x", "-n", "many"],
    ],
    ids=" ".join,
)
def test_unusable_arguments_exit_two(run: Any, arguments: list[str]) -> None:
    """With the reason on standard error."""
    result = run(*arguments)
    assert result.status == 2
    assert result.err
    assert not result.out


@pytest.mark.parametrize("name", [name for name in SUBCOMMANDS if name != "export"])
def test_a_path_that_is_not_there_exits_two(
    run: Any, tmp_path: Path, name: str
) -> None:
    """Every subcommand names it."""
    result = run(name, tmp_path / "missing")
    assert result.status == 2
    assert "missing" in result.err


@pytest.mark.parametrize("name", ["ls", "records", "batches", "stat", "tail", "verify"])
def test_a_directory_of_something_else_exits_two(
    run: Any, tmp_path: Path, name: str
) -> None:
    """It is not taken for an empty store."""
    (tmp_path / "pictures").mkdir()
    result = run(name, tmp_path)
    assert result.status == 2
    assert "neither a store nor a partition" in result.err


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("0", 0),
        ("123", 123),
        ("1600000000000ms", 1_600_000_000_000),
        ("2020-09-13T12:26:40Z", 1_600_000_000_000),
        ("2020-09-13T14:26:40+02:00", 1_600_000_000_000),
    ],
)
def test_bounds_are_offsets_or_times(text: str, bound: int) -> None:
    """A plain number is an offset, everything else says that it is a time."""
    found = parse_bound(text)
    milliseconds = found if isinstance(found, int) else found.timestamp() * 1000
    assert milliseconds == bound
