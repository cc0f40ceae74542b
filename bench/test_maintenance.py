"""Verifying a store, rebuilding indexes, recovering, opening.

A log of 800,000 records (200,000 for recovery) of 8 + 100 bytes in batches of 1,000, in
the page cache, closed cleanly but for recovery; one thread. Rates of all but the last
are bytes of `.log` per second.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.mark.parametrize(
    "case", ["verify", "verify_v2", "verify_deep", "verify_deep_v2"]
)
def test_verify(contest: Callable[[str], None], case: str) -> None:
    """Frames, checksums, offsets, indexes and checkpoints; deep: records, too."""
    contest(case)


@pytest.mark.parametrize("case", ["rebuild_index", "rebuild_index_v2"])
def test_rebuild_index(contest: Callable[[str], None], case: str) -> None:
    """Both index files are rebuilt, with the same bytes as the writer's."""
    contest(case)


@pytest.mark.parametrize("case", ["recheck", "recheck_v2", "recover", "recover_v2"])
def test_recovery(contest: Callable[[str], None], case: str) -> None:
    """A log of which nothing was synced: checked; and made durable."""
    contest(case)


def test_open_clean(contest: Callable[[str], None]) -> None:
    """Open for writing after a clean stop, look at the end of the log, close."""
    contest("open_clean")
