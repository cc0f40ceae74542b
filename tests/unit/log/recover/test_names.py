"""The `.swap` files that count, by the own state or by the rule of brokers."""

from __future__ import annotations

import pytest

from logstore.io.layout import CLEANED, LOG, SWAP, segment_file
from logstore.log.recover.names import classify, committed_swaps

NAMES = [
    segment_file(0, LOG),
    segment_file(10, LOG),
    segment_file(20, LOG),
    segment_file(5, LOG) + CLEANED,
    segment_file(3, LOG) + SWAP,
    segment_file(10, LOG) + SWAP,
]


@pytest.mark.parametrize(
    ("swapping", "committed"),
    [
        (None, [3]),
        ((), [3, 10]),
        ((3,), [10]),
        ((10,), [3]),
        ((3, 10), []),
    ],
)
def test_own_state_alone_says_what_is_committed(
    swapping: tuple[int, ...] | None, committed: list[int]
) -> None:
    """Without a state, the lowest `.cleaned` file decides."""
    assert committed_swaps(NAMES, swapping) == committed
    names = classify(NAMES, {base: base + 5 for base in committed}, swapping)
    assert names.swaps == tuple(segment_file(b, LOG) + SWAP for b in committed)
    cleaned = segment_file(5, LOG) + CLEANED
    others = {segment_file(b, LOG) + SWAP for b in {3, 10} - set(committed)}
    assert set(names.leftovers) == {cleaned, *others}
    assert [base for base, end in names.logs.items() if end == SWAP] == committed


def test_swapped_segment_supersedes_those_up_to_its_end() -> None:
    """It supersedes at least the one with its name: a segment without a record ends at
    its base."""
    names = [segment_file(base, LOG) for base in (0, 10, 20)]
    for end, superseded in ((10, [10]), (11, [10]), (20, [10]), (21, [10, 20])):
        swap = segment_file(10, LOG) + SWAP
        found = classify([*names, swap], {10: end}, ())
        assert found.superseded == tuple(segment_file(b, LOG) for b in superseded)
        assert found.logs[10] == SWAP
        assert found.logs.keys() == {0, 10, 20} - set(superseded[1:])


def test_everything_counts_without_a_cleaned_file() -> None:
    names = [name for name in NAMES if not name.endswith(CLEANED)]
    assert committed_swaps(names) == committed_swaps(names, ()) == [3, 10]
