"""Sizes, times and counts for people."""

from __future__ import annotations

import pytest

from logstore.cli.text import (
    counted,
    encodable,
    escape,
    harmless,
    offsets_text,
    plural,
    quoted,
    readable,
    size_text,
    time_text,
)

KIB = 1024


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (KIB, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (KIB**2 - 1, "1,024.0 KiB"),
        (KIB**2, "1.0 MiB"),
        (KIB**3, "1.0 GiB"),
        (KIB**5, "1.0 PiB"),
        (5000 * KIB**5, "5,000.0 PiB"),
    ],
)
def test_size_has_the_largest_unit_that_it_reaches(count: int, expected: str) -> None:
    assert size_text(count) == expected


@pytest.mark.parametrize(
    ("first", "next_offset", "expected"),
    [(5, 5, "-"), (5, 6, "5"), (5, 7, "5..6"), (5, 4, "-"), (0, 1000, "0..999")],
)
def test_range_of_offsets_has_its_last_one(
    first: int, next_offset: int, expected: str
) -> None:
    assert offsets_text(first, next_offset) == expected


def test_counts_have_a_plural() -> None:
    words = ["entry", "batch", "index", "day", "loss", "record", "key"]
    plurals = ["entries", "batches", "indexes", "days", "losses", "records", "keys"]
    assert list(map(plural, words)) == plurals
    assert counted(1, "entry") == "1 entry"
    assert counted(0, "entry") == "no entries"
    assert counted(12_345, "record") == "12,345 records"


@pytest.mark.parametrize(
    ("time_ms", "expected"),
    [
        (-1, "-"),
        (-2, "-2"),
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123, "2023-11-14T22:13:20.123Z"),
        (1 << 62, str(1 << 62)),
    ],
)
def test_time_is_in_utc_as_far_as_a_calendar_has_it(
    time_ms: int, expected: str
) -> None:
    assert time_text(time_ms) == expected


def test_text_has_no_effect_on_a_terminal() -> None:
    assert escape("müll 1") == "müll 1"
    assert escape("a\n\t\x1b[31m\\") == r"a\n\t\x1b[31m\\"
    assert escape("\u202e\udcff") == r"\xe2\x80\xae\xff"
    assert harmless("C:\\a\x1b") == r"C:\a\x1b"
    assert quoted(b'a"\xff') == r'"a\"\xff"'
    assert readable(b"\\udcff \xff \xc3\xa4") == "\\udcff \\xff ä"
    assert encodable("a\ud800") == r"a\xed\xa0\x80"
