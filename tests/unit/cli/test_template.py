"""The format string of `records --template`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

import logstore
from logstore.cli.main import main
from logstore.cli.template import compiled
from support.cli import Terminal
from support.values import new_partition

RECORD = logstore.Record(
    7, 1_600_000_000_000, b"key", b"v\xff", (("h", b"1"), ("g", None))
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%o", b"7"),
        ("%t/%p", b"topic/3"),
        ("%k=%s", b"key=v\xff"),
        ("%K %S", b"3 2"),
        ("%T", b"1600000000000"),
        ("%h", b"h=1,g="),
        ("100%%", b"100%"),
        (r"a\tb\n\x41\\", b"a\tb\nA\\"),
        ("", b""),
        ("Zürich", "Zürich".encode()),
    ],
)
def test_fields_and_escapes(text: str, shown: bytes) -> None:
    """The fields are the same as of kcat's `-f`; bytes stay bytes."""
    assert compiled(text)("topic", 3, RECORD) == shown


def test_null_is_empty_and_its_length_is_minus_one() -> None:
    """kcat prints the same; the partition of a file is empty if its name gives none."""
    record = logstore.Record(0, -1, None, None, ())
    assert compiled("%k|%s|%K|%S|%t|%p")(None, None, record) == b"||-1|-1||"


@pytest.mark.parametrize("text", ["%q", "%", r"\q", "a%"])
def test_what_there_is_not_is_a_usage_error(text: str) -> None:
    """The message lists the existing fields."""
    with pytest.raises(click.UsageError):
        compiled(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (r"%q\n", r"'%q\n' has %q; the fields are %K, %S"),
        (r"%o\q", r"'%o\q' has \q; the escapes are \n, \t, \r, \0, \xNN and \\" "\n"),
    ],
)
def test_an_error_shows_the_format_as_it_was_typed(
    run: Any, partition: Path, text: str, shown: str
) -> None:
    """Each backslash once."""
    result = run("records", partition, "-f", text)
    assert (result.status, result.out) == (2, "")
    assert shown in result.err


@pytest.mark.parametrize("name", ["records", "tail"])
def test_a_template_is_no_json(run: Any, partition: Path, name: str) -> None:
    """Both together are an error, and neither is ignored."""
    given = ("--template", "%o", "--format", "jsonl")
    result = run(name, partition, *given)
    assert (result.status, result.out) == (2, "")
    assert "--template and --format jsonl exclude each other" in result.err
    assert run(name, partition, *given[:2], "--format", "text").status == 0


def test_bytes_reach_a_pipe_as_they_are(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """No line end is added."""
    with logstore.open(tmp_path) as store:
        new_partition(store).append_many([b"\x1b[2J", b"\xff"])
    assert main(["records", str(tmp_path), "-f", "%s;"]) == 0
    assert capfdbinary.readouterr().out == b"\x1b[2J;\xff;"


def test_a_terminal_gets_no_control_sequences(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only line ends and tabs are passed on."""
    monkeypatch.setenv("TERM", "xterm")
    with logstore.open(tmp_path) as store:
        new_partition(store).append(b"\x1b[2J\xff")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    assert run("records", tmp_path, "-f", r"%o\t%s\n").status == 0
    assert screen.getvalue() == "0\t\\x1b[2J\\xff\n"
