"""What is printed: text, sizes, times, tables, progress."""

from __future__ import annotations

import io

import pytest

from logstore.cli.output import Printer, Progress
from logstore.cli.text import escape, quoted, size_text, time_text
from support.cli import Terminal


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
    """Control characters, bytes that are not UTF-8, and what turns text around."""
    assert quoted(data) == shown
    assert escape(shown).isprintable()


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    """With one digit behind the point."""
    assert size_text(size) == text


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
    """None is a dash; what no calendar has is a number."""
    assert time_text(milliseconds) == text


def test_progress_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """And gone at the end."""
    monkeypatch.setenv("TERM", "xterm")
    for screen in (Terminal(), io.StringIO()):
        with Progress("working", screen, delay_s=0) as progress:
            progress(1, 2)
        assert ("50%" in screen.getvalue()) == screen.isatty()
        assert screen.getvalue().strip("\r ").count("\n") == 0


def test_what_an_encoding_lacks_is_escaped() -> None:
    """Standard output in ASCII."""
    raw = io.BytesIO()
    printer = Printer(io.TextIOWrapper(raw, encoding="ascii"), io.StringIO())
    printer.line("Zürich")
    printer.flush()
    assert raw.getvalue() == b"Z\\xfcrich\n"
