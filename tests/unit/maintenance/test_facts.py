"""The facts about a partition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from logstore.io.layout import TopicPartition
from logstore.io.segment_info import SegmentInfo
from logstore.maintenance.facts import PartitionFacts


def segment(base: int) -> SegmentInfo:
    values = {"base_offset": base, "next_offset": base + 10, "size_bytes": 100 + base}
    fields = {name: values.get(name, 0) for name in SegmentInfo._fields}
    return SegmentInfo(**cast(Any, fields))


@pytest.mark.parametrize(
    ("point", "bases"),
    [
        (0, [0, 10, 20]),
        (9, [0, 10, 20]),
        (10, [10, 20]),  # the segment before it was flushed whole
        (19, [10, 20]),
        (20, [20]),
        (99, [20]),  # the last one is read in any case
    ],
)
def test_segments_from_the_recovery_point_on_are_read_again(
    point: int, bases: list[int]
) -> None:
    context = cast(Any, SimpleNamespace(recovery_point=point))
    facts = PartitionFacts(
        TopicPartition("orders", 0),
        "/store/orders-0",
        context,
        segments=tuple(map(segment, (0, 10, 20))),
    )
    assert facts.unflushed == {base: 100 + base for base in bases}
    assert facts.name == "orders-0"
