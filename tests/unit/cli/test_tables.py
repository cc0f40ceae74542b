"""Tables fit the terminal, and name the omitted columns; in a pipe they are
complete."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.output import Printer
from logstore.cli.tables import Column, print_table
from support.cli import Terminal

COLUMNS = (
    Column("name", lambda row: row[0]),
    Column("size", lambda row: row[1], str, True, sum),
    Column("time", lambda row: row[2], spare=2),
    Column("place", lambda row: row[3], spare=1),
)
ROWS = [
    ("orders-0", 7, "2026-01-01T00:00:00Z", "here"),
    ("a-topic-whose-name-is-longer-than-a-line-of-some-terminals-17", 12345, "-", "x"),
    ("東京東京東京東京東京東京東京東京東京東京東京東京-3", 1, "-", "x"),
]


def printed(
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    screen: io.StringIO,
    rows: Any = ROWS,
    **options: Any,
) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    printer = Printer(screen, screen)
    print_table(printer, COLUMNS, rows, total="3 of them", **options)
    return screen.getvalue().splitlines()


def note(lines: list[str]) -> str:
    """The lines below a table, as one."""
    found = re.search(r"\(with.*\)", re.sub(r"\x1b\[[0-9]*m", "", " ".join(lines)))
    return found[0] if found else ""


def cells(line: str) -> int:
    """The columns of a terminal that a line takes."""
    plain = re.sub(r"\x1b\[[0-9]*m", "", line)
    return sum(2 if char in "東京" else 1 for char in plain)


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 120])
@pytest.mark.parametrize("indent", [0, 2])
def test_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, width: int, indent: int
) -> None:
    """No line is longer; names and numbers stay, and the end of a name."""
    lines = printed(monkeypatch, width, Terminal(), indent=indent)
    assert max(map(cells, lines)) <= width
    assert "orders-0" in lines[1]
    assert re.search(r"-17 +12345", lines[2])
    assert re.search(r"-3 +1", lines[3])
    is_whole = "place" in lines[0] and "…" not in "".join(lines)
    assert is_whole is (width == 120)
    assert is_whole is not note(lines).endswith("a pipe gets all)")


def test_what_is_left_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The columns, in the order of their omission; and that names are shortened."""
    lines = printed(monkeypatch, 60, Terminal())
    assert note(lines).startswith("(without time and with shortened names, to fit")
    lines = printed(monkeypatch, 30, Terminal(), ROWS[:1])
    assert note(lines).startswith("(without time, to fit")
    lines = printed(monkeypatch, 90, Terminal())
    assert note(lines).startswith("(with shortened names, to fit")


def test_the_column_that_rows_are_sorted_by_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another one is omitted instead."""
    lines = printed(monkeypatch, 62, Terminal(), sort="-time")
    assert "time" in lines[0]
    assert "place" not in lines[0]


def test_a_pipe_gets_every_column_however_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no note, and nothing is bold."""
    lines = printed(monkeypatch, 20, io.StringIO())
    assert len(lines) == 5
    assert lines[0].split() == ["name", "size", "time", "place"]
    assert ROWS[1][0] in lines[2]
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize("no_color", [False, True])
def test_heads_and_totals_are_bold_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, no_color: bool
) -> None:
    """NO_COLOR removes all control sequences."""
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    lines = printed(monkeypatch, 200, Terminal())
    bold = [line.startswith("\x1b[1m") for line in lines]
    assert bold == [not no_color, False, False, False, not no_color]
    assert ("\x1b" in "".join(lines)) is not no_color


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", ["ls", "groups describe"])
def test_tables_of_a_store_fit(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, name: str
) -> None:
    """Names of topics and groups may be long; the same note is printed once."""
    with logstore.open(tmp_path) as store:
        for topic in ("orders", "a-long-name-" * 10):
            store.create_topic(topic, partitions=2)[0].append(b"x")
        with logstore.Consumer(tmp_path, group="billing-" * 12) as consumer:
            consumer.assign([logstore.TopicPartition("orders", 0)])
            consumer.commit({logstore.TopicPartition("orders", 0): 1})
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    options = ["--segments"] if name == "ls" else []
    assert run(*name.split(), tmp_path, *options).status == 0
    lines = screen.getvalue().splitlines()
    lines = [line for line in lines if not line.startswith("a-long-name-a-long")]
    assert max(map(cells, lines)) <= width
    notes = re.findall(r"\(with[^)]*\)", re.sub(r"\s+", " ", screen.getvalue()))
    assert len(notes) == len(set(notes)) > 0
