"""Sizes, counts, times and shares as people write them."""

from __future__ import annotations

import pytest

from logstore.log.frames.units import (
    count_text,
    duration_text,
    percent_text,
    size_text,
    time_text,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"),
     ((1 << 20) - 1, "1.0 MiB"), (5 << 60, "5.0 EiB"), (1 << 72, "4096.0 EiB")],
)  # fmt: skip
def test_sizes_are_for_people(value: int, text: str) -> None:
    """Units are binary."""
    assert size_text(value) == text


def test_counts_times_and_shares_are_for_people() -> None:
    """Texts have plurals, separators, and no calendar beyond its end."""
    assert count_text(1, "batch", "batches") == "1 batch"
    assert count_text(1234, "segment") == "1,234 segments"
    assert duration_text(90_000) == "2 minutes"
    assert duration_text(1000) == "1 second"
    assert duration_text(3) == "3 ms"
    assert percent_text(1, 1000) == "<1 %"
    assert percent_text(999, 1000) == ">99 %"
    assert percent_text(0, 0) == "0 %"
    assert time_text(0) == "1970-01-01 00:00:00"
    assert time_text(-1) == "-"
    assert time_text(1 << 62) == str(1 << 62)
