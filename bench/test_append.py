"""Appending: lists, Arrow, one record per call, and one durable record per call.

Records of 8 + 100 bytes, warm, into a partition that is open and has taken one batch;
no sync unless the case is about syncs. Every round writes a new log, and all that it
wrote is read back and compared afterwards, outside of the time.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize("case", ["append_many", "append_many_v2"])
def test_append_many(contest: Callable[[str], None], case: str) -> None:
    """200,000 records, 1,000 per call as lists of bytes; no sync; one thread."""
    contest(case)


@pytest.mark.parametrize("case", ["append_arrow", "append_arrow_v2"])
def test_append_arrow(contest: Callable[[str], None], case: str) -> None:
    """200,000 records, 1,000 per Arrow record batch; no sync; one thread."""
    contest(case)


@pytest.mark.parametrize("case", ["append_batches", "append_batches_v1"])
def test_append_batches(contest: Callable[[str], None], case: str) -> None:
    """200,000 records, 1,000 per batch, as a producer sends them; no sync."""
    contest(case)


@pytest.mark.parametrize("case", ["append", "append_v2"])
def test_append_one(contest: Callable[[str], None], case: str) -> None:
    """One record per call, written when it returns; no sync; one thread."""
    contest(case)


@pytest.mark.parametrize("case", ["durable", "durable_8", "durable_64"])
def test_append_durable(contest: Callable[[str], None], case: str) -> None:
    """One record per call, synced when it returns; one, 8 or 64 threads."""
    contest(case)
