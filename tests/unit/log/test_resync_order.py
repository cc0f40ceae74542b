"""The decision which of two batches has the wrong offset, and where reading
continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.resync import have_changed_places, is_contradicted, next_in_order
from logstore.segment import Segment
from support.damage import logs_in, move_batches


@pytest.mark.parametrize(
    ("before", "ahead", "behind", "beyond", "have"),
    [
        (9, (11, 11), (10, 10), 12, True),
        (9, (11, 11), (10, 10), 11, True),  # nothing is missing before the second
        (9, (20, 20), (12, 12), 30, True),
        (9, (20, 20), (12, 12), 13, False),  # the next one is below the first
        (9, (20, 20), (12, 12), 20, False),
        (9, (20, 20), (12, 12), None, False),
        (9, (11, 11), (11, 11), 12, False),  # the same batch twice
        (9, (11, 14), (12, 15), 20, False),
        (9, (4, 4), (11, 11), 12, False),
    ],
)
def test_batches_have_changed_places_if_either_may_be_the_wrong_one(
    before: int, ahead: Any, behind: Any, beyond: int | None, have: bool
) -> None:
    """The one with higher offsets is first, and the next batch does not contradict
    it."""
    assert have_changed_places(before, ahead, behind, beyond) == have


@pytest.fixture
def stores() -> Iterator[contextlib.ExitStack]:
    """Stores that stay open during a test: an unreferenced store is closed."""
    with contextlib.ExitStack() as stack:
        yield stack


def segment_of(
    stores: contextlib.ExitStack, path: Path, *offsets: int
) -> tuple[Segment, list[int]]:
    """A segment in which the batches, of one record each, have these offsets; and the
    positions of the batches."""
    with logstore.open(path) as store:
        partition = store.create_topic("t")[0]
        for offset in offsets:
            partition.append(b"%03d" % offset)
    places = move_batches(logs_in(path / "t-0")[0], offsets)
    store = stores.enter_context(logstore.open(path, read_only=True))
    view = store["t"][0]._views.now(False)
    segment: Segment = view.segments[0]
    segment.is_contiguous, segment.next_offset = False, 100
    return segment, places


@pytest.mark.parametrize(
    ("offsets", "offset", "next_offset"),
    [
        ((0, 9, 2, 3), 1, 2),  # the second one has a wrong offset
        ((0, 2, 1, 3), 1, 3),  # it has changed places
        ((0, 2, 1), 1, None),
    ],
)
def test_reading_continues_at_the_first_batch_that_is_not_contradicted(
    stores: contextlib.ExitStack,
    tmp_path: Path,
    offsets: tuple[int, ...],
    offset: int,
    next_offset: int | None,
) -> None:
    """The damage is in the second batch."""
    segment, places = segment_of(stores, tmp_path, *offsets)
    batch = next_in_order(segment, places[1], offset)
    assert (batch and batch.header.base_offset) == next_offset


def test_batch_that_is_contradicted_is_not_the_next_one(
    stores: contextlib.ExitStack, tmp_path: Path
) -> None:
    """It comes after a damaged batch."""
    segment, places = segment_of(stores, tmp_path, 0, 1, 9, 3, 4)
    data = bytearray(Path(segment.path).read_bytes())
    data[places[2] - 1] ^= 1
    Path(segment.path).write_bytes(data)
    batch = next_in_order(segment, places[1], 1)
    assert batch is not None
    assert batch.header.base_offset == 3
    assert not is_contradicted(segment, batch, 0)
