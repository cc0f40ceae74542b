"""Values of other sizes, and compressed batches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

SIZES = ("10b", "1k", "10k", "1m")
CODECS = ("gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("work", ["append_many", "read", "append_arrow", "read_arrow"])
def test_value_size(contest: Callable[[str], None], work: str, size: str) -> None:
    """Values of 10 bytes to 1 MiB; about 50 MB in each round, but less of 10 bytes."""
    contest(f"{work}_{size}")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("work", ["append", "read_arrow"])
def test_codec(contest: Callable[[str], None], work: str, codec: str) -> None:
    """100,000 records of magic 2 in compressed batches of 1,000."""
    contest(f"{work}_{codec}")
