"""A chunk of whole batches, as `Partition.fetch` returns it."""

from __future__ import annotations

from pathlib import Path

import pytest

import logstore
from support.values import config_of, expected, fill


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 4, 7, 8, 9])
@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_chunk_with_a_limit_ends_behind_its_last_record(
    tmp_path: Path, codec: str, limit: int
) -> None:
    """It may end inside of a batch; the next fetch continues with the next record."""
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("orders", config=config_of(2, codec))[0]
        fill(partition, 9, call=4)
        chunk = partition.fetch(1)
        records = expected(2, 1, 9)
        first = chunk.first(limit)
        assert list(first) == records[:limit]
        assert list(first) == records[:limit]  # the same each time
        assert first.next_offset == min(1 + limit, 9)
        assert bytes(first.buffer) == bytes(chunk.buffer)
        assert list(chunk) == records
