"""Reading: all records in order, single ones at random offsets, offsets of times.

A log of 200,000 records of 8 + 100 bytes in batches of 1,000, from the page cache, one
thread, every checksum compared. Keys, values, timestamps and offsets of all records are
compared with the written ones, outside of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("case", ["read", "read_v2"])
def test_read_records(contest: Callable[[str], None], case: str) -> None:
    """Python `Record` objects of the whole log."""
    contest(case)


@pytest.mark.parametrize(
    "case",
    [
        "read_arrow",
        "read_arrow_v2",
        "read_arrow_views",
        "read_arrow_views_v2",
        "read_arrow_threads",
        "read_arrow_views_threads",
    ],
)
def test_read_arrow(contest: Callable[[str], None], case: str) -> None:
    """Arrow record batches (offset, timestamp, key, value) of the whole log."""
    contest(case)


@pytest.mark.parametrize(
    "case",
    ["get", "get_v2", "get_segments", "get_segments_v2", "get_segments_few_files"],
)
def test_get(contest: Callable[[str], None], case: str) -> None:
    """The record at each of 5,000 random offsets, in one segment or in 10,000."""
    contest(case)


@pytest.mark.parametrize(
    "case",
    ["time", "time_v2", "time_segments", "time_segments_v2", "time_segments_few_files"],
)
def test_offset_for_time(contest: Callable[[str], None], case: str) -> None:
    """The offset of each of 5,000 random times, in one segment or in 10,000."""
    contest(case)
