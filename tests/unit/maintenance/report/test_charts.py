"""The drawings of a report."""

from __future__ import annotations

import pytest

from logstore.maintenance.report.charts import blocks_of
from logstore.maintenance.report.model import SegmentView


def segments(hurt: str, *, index: bool = False) -> list[SegmentView]:
    """One segment per character; an "x" is a damaged one."""
    return [
        SegmentView(
            10 * at,
            10 * at + 10,
            100,
            at,
            damage="broken" * (char == "x" and not index),
            index_damage="broken" * (char == "x" and index),
        )
        for at, char in enumerate(hurt)
    ]


@pytest.mark.parametrize("index", [False, True])
def test_damaged_segment_is_a_block_by_itself(index: bool) -> None:
    """Its neighbours make no difference."""
    text = "...x....xx......x......x" * 3
    found = segments(text, index=index)
    blocks = blocks_of(found, 5)
    assert [one for block in blocks for one in block] == found
    for block in blocks:
        if any(one.damage or one.index_damage for one in block):
            assert len(block) == 1
    assert len(blocks) < len(found)


def test_few_segments_are_blocks_by_themselves() -> None:
    found = segments(".....")
    assert blocks_of(found, 5) == [[one] for one in found]
    assert len(blocks_of(found, 4)) <= 5
    assert blocks_of([], 4) == []
