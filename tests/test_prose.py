"""The prose of the project is plain: few of the phrases that tools/prose.py counts."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import pytest

PROSE = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "prose.py"))
PER_1000_WORDS = 3
KINDS = ("README", "docs", "docstrings", "comments", "errors", "help")


@functools.cache
def found() -> dict[str, tuple[int, int]]:
    """(words, phrases) of each kind of text. Not at the import: each process that runs
    tests imports this."""
    counted: dict[str, tuple[int, int]] = PROSE["count"](PROSE["all_texts"]())
    return counted


def test_all_kinds_of_text_are_counted() -> None:
    """A kind that is not found is not checked either."""
    assert found().keys() == set(KINDS)
    assert sum(words for words, _ in found().values()) > 80_000


@pytest.mark.parametrize("kind", KINDS)
def test_prose_is_plain(kind: str) -> None:
    """`python tools/prose.py --list` shows the phrases."""
    words, matches = found()[kind]
    assert 1000 * matches / words < PER_1000_WORDS


# (turns in 1,000 words, turns and phrases, docstrings with a bad first word): no room
# gets worse. The goal is 3, 4 and 0.
CEILINGS = {
    "C": (0.1, 0.1, 0),
    "_native": (0.0, 0.0, 0),
    "aio": (0.0, 0.0, 0),
    "broker": (0.0, 0.0, 0),
    "cli": (0.2, 0.2, 0),
    "connector": (0.2, 0.2, 0),
    "group": (0.1, 0.2, 0),
    "io": (0.1, 0.2, 0),
    "log": (0.1, 0.2, 0),
    "maintenance": (0.3, 0.3, 0),
    "record": (0.1, 0.1, 0),
    "root": (0.1, 0.1, 0),
    "store": (0.1, 0.2, 0),
    "tests": (0.1, 0.2, 0),
}


def test_no_room_gets_worse() -> None:
    """`python tools/prose.py --turns PATH` shows what is counted."""
    found = PROSE["count_by_room"]()
    assert found.keys() == CEILINGS.keys()
    worse = {}
    for room, (words, turns, both, first) in found.items():
        rates = round(1000 * turns / words, 2), round(1000 * both / words, 2), first
        if any(a > b for a, b in zip(rates, CEILINGS[room], strict=True)):
            worse[room] = rates
    assert worse == {}


@pytest.mark.parametrize(
    "text",
    [
        "Nobody knows it.",
        "an error where there is none",
        "What lies there is kept.",
        "It is made anew, beside the log.",
        "The offset is told.",
        "what was written down",
    ],
)
def test_phrase_is_found(text: str) -> None:
    """One of each sort."""
    one = PROSE["Text"]("docs", Path("x.md"), 1, text)
    assert list(PROSE["matches_of"](one))


@pytest.mark.parametrize(
    "text",
    [
        "The directory where segments are stored.",
        "Returns None if there is no record.",
        "`nobody` and ``what lies`` are code.",
        "The log ends after the last valid batch.",
    ],
)
def test_plain_sentence_is_not(text: str) -> None:
    """Places, conditions, code."""
    one = PROSE["Text"]("docs", Path("x.md"), 1, text)
    assert not list(PROSE["matches_of"](one))
