"""Text of any characters as HTML."""

from __future__ import annotations

from logstore.log.frames.markup import Html, join, printable, tag

EVIL = "<img src=x onerror=alert(1)>\"'&\n\t\x1b[31m\u202e"


def test_markup_escapes_whatever_is_no_markup() -> None:
    """Text is escaped as a child, in a list, and as an attribute."""
    found = tag("p", EVIL, [EVIL, tag("b", 1)], title=EVIL)
    text = Html.__str__(found)
    assert "<img" not in text
    assert "<b>1</b>" in text
    assert text.count("&lt;img") == 3
    assert join("<", None, 2) == "&lt;2"
    assert tag("rect", x=1, hidden=True, y=None) == '<rect x="1" hidden/>'


def test_printable_shows_what_would_not_be_seen() -> None:
    """Control characters, bytes that are not UTF-8, and halves of surrogate pairs are
    shown."""
    assert printable("plain käse") == "plain käse"
    assert printable("a\n\x00\u202eb") == "a\\n\\x00\\xe2\\x80\\xaeb"
    assert printable("\udcff") == "\\xff"
    assert printable("\ud800") == "\\xed\\xa0\\x80"
