"""Walks over headers, from Python."""

from __future__ import annotations

import pytest
from unit._native.kafka_bytes import plain_batch

from logstore import _native as native

COUNTS = (3, 2, 4, 1)
BASES = (10, 13, 15, 19)
BATCHES = [plain_batch(base, n) for base, n in zip(BASES, COUNTS, strict=True)]
DATA = b"".join(BATCHES)


@pytest.mark.parametrize("offset", range(8, 20))
@pytest.mark.parametrize("with_header", [False, True])
def test_batch_that_is_sought_comes_with_the_end_of_the_one_before(
    offset: int, with_header: bool
) -> None:
    """-1 is what the walk began with."""
    number = next(n for n in range(4) if BASES[n] + COUNTS[n] > offset)
    pos, scan = native.seek_batch(
        native.pointer(DATA), len(DATA), pos=0, last_offset=-1,
        checks=native.CHECK_ALL, offset=offset, with_header=with_header,
    )  # fmt: skip
    assert pos == scan.pos == sum(map(len, BATCHES[:number]))
    assert scan.last_offset == (BASES[number] - 1 if number else -1)
    assert [h.base_offset for h in scan.headers] == [BASES[number]] * with_header


def test_batch_that_is_not_there_ends_the_walk_behind_the_last_one() -> None:
    pos, scan = native.seek_batch(
        native.pointer(DATA), len(DATA), pos=0, last_offset=-1,
        checks=native.CHECK_ALL, offset=20,
    )  # fmt: skip
    assert (pos, scan.pos, scan.last_offset) == (-1, len(DATA), 19)
    assert scan.stop == native.STOP_END
    assert scan.error is None
