"""The partition of `__consumer_offsets` that has a group: Java's hash of its id."""

from __future__ import annotations

import pytest

import logstore
from logstore.broker.placement import java_hash, partition_of_group


def test_hash_is_that_of_java() -> None:
    """Text beyond the first plane is hashed by its UTF-16."""
    assert java_hash("") == 0
    assert java_hash("hello") == 99162322
    assert java_hash("東京" * 9) == -1653326541
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("\U0001f600") == 0xD83D * 31 + 0xDE00
    assert partition_of_group("polygenelubricants", 50) == 0
    assert partition_of_group("hello", 50) == 99162322 % 50
    with pytest.raises(logstore.ConfigError, match="0 partitions"):
        partition_of_group("g", 0)
