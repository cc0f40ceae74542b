"""Rows with untrusted keys and values."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from logstore.cli.browse.lines import clean, fitted, preview, wrapped
from support.browsing import HOSTILE


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        (b"", '""'),
        (b"null", '"null"'),
        (b'""', '""""'),
        (b"apples", "apples"),
        (b"a\nb\tc", r"a\nb\tc"),
        (b"\x1b[31mred\x9b1m", r"\x1b[31mred\x9b1m"),
        (b"[bold]not bold[/bold]", "[bold]not bold[/bold]"),
        ("\u202eabc\u200b".encode(), r"\xe2\x80\xaeabc\xe2\x80\x8b"),
        ("\u2620\ufe0f".encode(), "\u2620" + r"\xef\xb8\x8f"),
        (b"\xff\xfe", r"\xff\xfe"),
    ],
)
def test_preview_is_harmless_and_unambiguous(
    data: bytes | None, text: str | None
) -> None:
    """Null is no text; a text that looks like it has quotation marks."""
    assert preview(data) == text


@pytest.mark.parametrize("data", HOSTILE)
def test_nothing_of_a_stranger_reaches_the_terminal(data: bytes) -> None:
    """Any bytes become printable text, cut to the width in cells."""
    text = preview(data) or ""
    assert text.isprintable()
    for width in (0, 1, 2, 7, 80):
        assert cell_len(fitted(text, width)) == width
    for piece in wrapped(clean(data.decode("utf-8", "surrogateescape"))[:5000], 30):
        assert cell_len(piece) <= 32
        assert piece.isprintable()


def test_preview_cuts_between_characters() -> None:
    """A character is left out if a part of it would be shown as bytes."""
    text = preview(b"a" + "\u00e4".encode() * 10_000)
    assert text is not None
    assert set(text) == {"a", "\u00e4"}


def test_marks_do_not_pile_up() -> None:
    """Two on a letter are kept; a thousand would cover the rows above."""
    assert clean("e\u0301\u0302") == "e\u0301\u0302"
    assert clean("e" + "\u0301" * 4) == "e\u0301\u0301" + r"\xcc\x81\xcc\x81"


def test_wrapped_text_is_the_text() -> None:
    """This holds even for characters that take two cells, which no line splits."""
    for text in ("", "x" * 100, "\u6f22\u5b57" * 33, "a\u6f22" * 20):
        pieces = wrapped(text, 11)
        assert "".join(pieces) == text
        assert all(cell_len(piece) <= 11 for piece in pieces)
