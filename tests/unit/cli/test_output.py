"""Printed output: text, sizes, times, tables, colour, progress."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.cli.output import Printer, Progress
from logstore.cli.text import (
    counted,
    escape,
    offsets_text,
    quoted,
    relative,
    size_text,
    time_text,
)
from support.cli import Terminal
from support.damage import flip_bit, logs_in


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (b"plain", '"plain"'),
        (b"", '""'),
        ("Zürich 東京".encode(), '"Zürich 東京"'),
        (b"a\nb\tc\rd", r'"a\nb\tc\rd"'),
        (b'say "hi" \\ bye', r'"say \"hi\" \\ bye"'),
        (b"\x1b[2J", r'"\x1b[2J"'),
        (b"\xff\xfe", r'"\xff\xfe"'),
        ("\u009b".encode(), r'"\xc2\x9b"'),
        ("\u202e".encode(), r'"\xe2\x80\xae"'),
    ],
)
def test_text_does_nothing_to_a_terminal(data: bytes, shown: str) -> None:
    """Control characters, bytes that are not UTF-8, and characters that reverse
    text."""
    assert quoted(data) == shown
    assert escape(shown).isprintable()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    """They have one decimal place."""
    assert size_text(size) == text


@pytest.mark.parametrize(
    ("number", "word", "text"),
    [
        (0, "record", "no records"),
        (1, "batch", "1 batch"),
        (2, "batch", "2 batches"),
        (3, "index", "3 indexes"),
        (9999, "entry", "9,999 entries"),
        (10000, "offset index entry", "10,000 offset index entries"),
        (1234567, "day", "1,234,567 days"),
    ],
)
def test_counts_have_plurals(number: int, word: str, text: str) -> None:
    """The digits are grouped."""
    assert counted(number, word) == text


def test_numbers_have_the_same_groups_everywhere(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows of `ls` and `stat` have them, and the bars."""
    with logstore.open(tmp_path) as store:
        store.create_topic("t")[0].append_many([b"v"] * 2700)
    row = run("ls", tmp_path).lines[1].split()
    assert row[:5] == ["t-0", "0", "2,700", "2,700", "1"]
    assert "2,700" in row[7]
    assert "0..2,699" in run("ls", tmp_path).out
    text = run("stat", tmp_path).out
    assert not re.search(r"\b\d{4}\b(?!-)", text), text
    assert text.count("2,700") == 5
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with Progress("working", screen, "records", delay_s=0) as progress:
        progress(2700, 5000)
    assert "2,700 records" in screen.getvalue()
    lines = run("records", tmp_path, "--from", "2,698").lines
    assert [line.split()[1] for line in lines] == ["2698", "2699"]


def test_messages_repeat_what_was_typed() -> None:
    """A backslash stays one; control characters are escaped."""
    screen = io.StringIO()
    Printer(io.StringIO(), screen).warn("a\\b \x1b[2J\n")
    assert screen.getvalue() == "logstore-dump: a\\b \\x1b[2J\\n\n"


def test_ranges_of_offsets_are_closed() -> None:
    """The last offset is included."""
    assert [offsets_text(*r) for r in ((3, 3), (3, 4), (3, 9))] == ["-", "3", "3..8"]


def test_paths_below_the_working_directory_are_relative(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other paths stay unchanged, also with the same beginning."""
    monkeypatch.chdir(tmp_path)
    text = f"{tmp_path}/data/a.log is bad; {tmp_path}; /x{tmp_path}/b; {tmp_path}-c/d"
    expected = f"data/a.log is bad; .; /x{tmp_path}/b; {tmp_path}-c/d"
    assert relative(text) == expected


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (-1, "-"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_600_000_000_001, "2020-09-13T12:26:40.001Z"),
        (1 << 62, str(1 << 62)),
    ],
)
def test_times_are_in_utc(milliseconds: int, text: str) -> None:
    """None is a dash; a time outside of the calendar is a number."""
    assert time_text(milliseconds) == text


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has share, rate and time left, and is removed at the end."""
    monkeypatch.setenv("TERM", "xterm")
    for screen in (Terminal(), io.StringIO()):
        with Progress("working", screen, delay_s=0) as progress:
            progress(1 << 20, 1 << 21)
        text = screen.getvalue()
        assert ("50%" in text) == screen.isatty()
        assert ("1.0 MiB" in text) == screen.isatty()
        assert ("/s" in text) == screen.isatty()
        if screen.isatty():
            assert text.endswith("\x1b[2K")  # the line is erased
        else:
            assert text == ""


def test_progress_is_not_shown_for_what_is_quick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dumb terminal shows none, at any duration."""
    monkeypatch.setenv("TERM", "xterm")
    screen = Terminal()
    with Progress("working", screen) as progress:
        progress(1, 2)
    monkeypatch.setenv("TERM", "dumb")
    with Progress("working", screen, delay_s=0) as progress:
        progress(1, 2)
    assert screen.getvalue() == ""


def test_progress_has_no_colour_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar moves, in the terminal's own colour."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    with Progress("working", screen, delay_s=0) as progress:
        progress(1, 2)
    assert "50%" in screen.getvalue()
    assert "\x1b[3" not in screen.getvalue()


def test_what_an_encoding_lacks_is_escaped() -> None:
    """Standard output in ASCII; JSON stays UTF-8."""
    raw = io.BytesIO()
    printer = Printer(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    printer.line("Zürich")
    printer.json({"a": "Zürich"})
    printer.flush()
    assert raw.getvalue() == b"Z\\xfcrich\n" + '{"a":"Zürich"}\n'.encode()


@pytest.mark.parametrize("no_color", [False, True])
def test_problems_are_red_on_a_terminal(
    partition: Path, monkeypatch: pytest.MonkeyPatch, run: Any, no_color: bool
) -> None:
    """They are not red with NO_COLOR, nor in a pipe."""
    flip_bit(logs_in(partition)[0], 8 * 30)
    assert "\x1b" not in run("verify", partition).out
    monkeypatch.setenv("TERM", "xterm")
    if no_color:
        monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    monkeypatch.setattr("sys.stdout", screen)
    assert run("verify", partition).status == 1
    assert ("\x1b[31mproblem: " in screen.getvalue()) != no_color
    assert ("\x1b" in screen.getvalue()) != no_color


def test_a_table_in_a_pipe_is_not_cut(run: Any, tmp_path: Path) -> None:
    """A line has the whole of a long name."""
    name = "a" * 200
    with logstore.open(tmp_path) as store:
        store.create_topic(name, partitions=2)
    lines = run("ls", tmp_path).lines
    assert [line.split()[0] for line in lines[1:3]] == [f"{name}-0", f"{name}-1"]


def test_a_line_is_not_printed_into_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar is removed before a warning or a line, and drawn again below it."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Terminal()
    printer = Printer(screen, screen)
    with Progress("working", screen, delay_s=0) as progress:
        progress(1, 4)
        printer.warn("look")
        progress(2, 4)
        printer.line("done")
    text = screen.getvalue()
    erased = "\x1b[1A\x1b[2K"
    assert f"{erased}logstore-dump: look\n" in text
    assert f"{erased}done\n" in text
    assert text.index("25%") < text.index("look") < text.index("50%")
    assert text.endswith("done\n")
