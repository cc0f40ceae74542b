"""The digests of sealed segments."""

from __future__ import annotations

from typing import Any, cast

import pytest
import xxhash

from logstore.config import TopicConfig
from logstore.io.checkpoint.segment_digest import read_digest
from logstore.io.directory import Directory
from logstore.io.file_cache import Descriptors
from logstore.io.layout import LOG, segment_file
from logstore.log.write.context import LogContext
from logstore.log.write.sealed_digests import SealedDigests
from logstore.segment import Segment
from support.transactions import batch

FIRST, SECOND = (
    batch(base, [(b"k", b"value")] * 5, -1, control=False, timestamp_ms=1000 + base)
    for base in (0, 5)
)


def digests(directory: Directory) -> SealedDigests:
    services = cast(Any, None)  # it asks its store for nothing
    context = LogContext(
        services, directory, "orders", 0, TopicConfig(), log_id="",
        is_contiguous=True, foreign_end=0,
    )  # fmt: skip
    return SealedDigests(context, set())


def segment(directory: Directory, data: bytes, base: int = 0) -> Segment:
    """A segment whose file has these bytes; its size is that of `FIRST`."""
    directory.write_file(segment_file(base, LOG), data)
    descriptors = Descriptors(directory.files, 8)
    return Segment(directory, descriptors, base, len(FIRST), base + 5)


def test_digest_is_that_of_the_file(directory: Directory) -> None:
    made = digests(directory).make(segment(directory, FIRST))
    assert made is not None
    assert (made.base_offset, made.next_offset, made.size) == (0, 5, len(FIRST))
    assert (made.max_timestamp, made.max_timestamp_offset) == (1000, 4)
    assert made.xxh3 == xxhash.xxh3_128(FIRST).hexdigest()


@pytest.mark.parametrize(
    "data",
    [FIRST + SECOND, FIRST[:-1], FIRST[:-1] + b"\2", FIRST + b"\0", b""],
    ids=["longer", "shorter", "changed", "zeros", "empty"],
)
def test_segment_that_is_not_what_was_sealed_gets_none(
    directory: Directory, data: bytes
) -> None:
    """A digest would vouch for the current bytes. It is not tried again."""
    found, one = digests(directory), segment(directory, data)
    assert found.make(one) is None
    found.write_all((one, one))
    assert read_digest(directory, 0) is None
    assert list(found.missing((one, one))) == []


def test_active_segment_gets_none_and_a_dropped_one_loses_its_own(
    directory: Directory,
) -> None:
    found, sealed = digests(directory), segment(directory, FIRST)
    active = segment(directory, SECOND, 5)
    assert list(found.missing((sealed, active))) == [sealed]
    found.write_all((sealed, active))
    assert read_digest(directory, 0) is not None
    assert read_digest(directory, 5) is None
    found.drop([sealed])
    assert read_digest(directory, 0) is None
    assert list(found.missing((sealed, active))) == [sealed]
