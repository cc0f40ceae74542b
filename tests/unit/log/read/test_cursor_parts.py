"""The parts of a cursor: its buffers, the segments left, the position in one of
them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.errors import CorruptRecordError
from logstore.log.read.cursor import Buffers, Route, SegmentChunk, SegmentRead
from logstore.record.decoder import Damage
from logstore.segment import READ_BYTES, OffsetPosition, Segment
from support.values import config_of

SMALL, LARGE = 1000, 4 * READ_BYTES


def chunk_in(buffer: native.Buffer) -> SegmentChunk:
    segment: Any = None
    return SegmentChunk(segment, buffer, 0, 0, -1, 0, 0)


# ------------------------------------------------------------------ buffers


def test_first_buffer_may_be_smaller() -> None:
    """The next buffer has the full size: the first chunk was not enough."""
    buffers = Buffers(LARGE, SMALL)
    first = buffers.take(LARGE)
    assert first.capacity == SMALL
    buffers.give(first)
    second = buffers.after(chunk_in(first), first, LARGE)
    assert second.capacity == LARGE
    assert buffers.take(LARGE) is second


def test_buffer_is_no_larger_than_its_segment() -> None:
    """The caller of a fetch may ask for more bytes than there is memory."""
    buffers = Buffers(1 << 60, 1 << 60)
    first = buffers.take(SMALL)
    assert first.capacity == READ_BYTES
    buffers.give(first)
    assert buffers.after(chunk_in(first), first, SMALL) is first
    assert buffers.after(chunk_in(first), first, LARGE).capacity == LARGE


def test_buffer_holds_the_frame_of_a_batch() -> None:
    """The caller of a fetch may ask for one byte."""
    assert Buffers(1, 1).take(SMALL).capacity == 17


def test_buffer_is_used_again() -> None:
    """The next segment uses it, too; but a larger one, which a batch needed, stays."""
    buffers = Buffers()
    first = buffers.take(SMALL)
    assert buffers.take(SMALL) is first
    buffers.give(first)
    assert buffers.take(LARGE) is first
    larger = native.Buffer(LARGE)
    assert buffers.after(chunk_in(first), larger, SMALL) is larger
    assert buffers.take(SMALL) is larger


@pytest.mark.parametrize("is_pooled", [False, True])
def test_kept_buffer_is_never_free_again(is_pooled: bool) -> None:
    """A buffer in which no chunk was given is free again."""
    pool = native.BufferPool(LARGE, 4) if is_pooled else None
    buffers = Buffers(pool=pool, keeps=True)
    taken = [buffers.take(SMALL)]
    for _ in range(3):
        buffers.give(taken[-1])
        buffers.after(chunk_in(taken[-1]), taken[-1], SMALL)
        taken.append(buffers.take(SMALL))
        assert buffers.take(SMALL) is taken[-1]
    assert len(set(map(id, taken))) == 4
    assert [b.capacity for b in taken[1:]] == [LARGE if pool else READ_BYTES] * 3


# ------------------------------------------------------------------ segments left


def route_of(*bases: int, at: int = 0, end: int = 100, place: Any = None) -> Route:
    segments: Any = tuple(
        SimpleNamespace(base_offset=base, version=0, next_offset=0) for base in bases
    )
    return Route(segments, at, end, place)


def test_each_segment_is_entered_once_and_ends_where_the_next_begins() -> None:
    """The last one ends at the end of the read."""
    place, buffers = OffsetPosition(7, 41), Buffers()
    route = route_of(0, 40, 60, at=1, end=90, place=place)
    assert (len(route), route[1].base_offset, route.is_begun) == (2, 60, False)
    first = route.enter(buffers)
    assert (first.segment.base_offset, first.bound) == (40, 60)
    assert (len(route), route[0].base_offset, route.is_begun) == (1, 60, True)
    last = route.enter(buffers)
    assert (last.segment.base_offset, last.bound) == (60, 90)
    assert not route


@pytest.mark.parametrize(
    ("bases", "end", "offset", "has_next"),
    [
        ((0, 40), 90, 0, True),
        ((0, 40), 90, 89, True),
        ((0, 40), 90, 90, False),
        ((40,), 40, 0, False),  # the segment begins at the end of the read
        ((40,), 41, 0, True),
        ((), 90, 0, False),
    ],
)
def test_read_ends_where_no_record_can_be_left(
    bases: tuple[int, ...], end: int, offset: int, has_next: bool
) -> None:
    """The read is at its end, or no segments are left, or they begin at its end."""
    assert route_of(*bases, end=end).has_next(offset) == has_next


def test_segment_that_does_not_follow_breaks_the_route() -> None:
    """It is a part of another log, if the end of the previous segment is known."""
    route, buffers = route_of(0, 40, 60), Buffers()
    assert route.broken_at() is None
    route.enter(buffers)
    assert route.broken_at() is None  # unknown
    route.ended_at = 40
    assert route.broken_at() is None
    route.ended_at = 39
    assert route.broken_at() == 39
    route.enter(buffers)
    assert route.broken_at() is None  # the known end is of the segment before


# ------------------------------------------------------------------ one segment


# Stores of the present test: a segment does not keep its store.
_opened: list[logstore.Store] = []


@pytest.fixture(autouse=True)
def opened() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def segment_in(path: Path) -> Segment:
    """A sealed segment with the offsets 0 to 99, one for each batch of 122 bytes."""
    with logstore.open(path) as store:
        config = config_of(2, "none", index_interval_bytes=1000)
        partition = store.create_topic("t", config=config)[0]
        for number in range(100):
            partition.append(b"%03d" % number * 18)
        partition.roll()
    store = logstore.open(path, read_only=True)
    _opened.append(store)
    segment: Segment = store.topic("t")[0]._views.now(False).segments[0]
    return segment


def read_of(segment: Segment, bound: int = 100, place: Any = None) -> SegmentRead:
    return SegmentRead(segment, bound, Buffers(500, 500), (), bound, place)


def offsets_in(chunk: SegmentChunk) -> list[int]:
    return [h.base_offset for h in native.Headers(chunk.buffer.c, chunk.n, checks=0)]


def take_all(part: SegmentRead, offset: int, *, is_exact: bool = False) -> list[int]:
    """The offsets of the batches that a part reads, to the end of its segment."""
    found: list[int] = []
    while part.has_bytes(offset, is_exact=is_exact):
        chunk = part.read()
        walked = native.walk_batches(
            chunk.buffer.c,
            chunk.n,
            last_offset=chunk.last_offset,
            checks=chunk.checks,
        )
        found += offsets_in(chunk)
        part.advance(chunk, walked.pos, walked.stop, walked.last_offset, offset)
    return found


def test_chunks_of_a_segment_follow_each_other(tmp_path: Path) -> None:
    """The first chunk begins at the batch of an index entry, at the exact batch, or at
    a position."""
    segment = segment_in(tmp_path)
    from_entry = take_all(read_of(segment), 60)
    assert from_entry == list(range(from_entry[0], 100))
    assert 50 <= from_entry[0] <= 60
    assert take_all(read_of(segment), 60, is_exact=True) == list(range(60, 100))
    size = segment.size // 100
    place = OffsetPosition(70 * size, 69)
    assert take_all(read_of(segment, place=place), 60) == list(range(70, 100))
    part = read_of(segment)
    assert part.has_bytes(0, is_exact=False)
    part.move(place)
    assert take_all(part, 60) == list(range(70, 100))


def test_bytes_of_another_version_are_void(tmp_path: Path) -> None:
    """The walk begins again; from then on the data may have moved."""
    segment = segment_in(tmp_path)
    part = read_of(segment)
    assert part.has_bytes(60, is_exact=True)
    assert (part.version == segment.version, part.was_cut) == (True, False)
    segment.version += 1
    assert (part.version == segment.version, part.was_cut) == (False, True)
    part.restart()
    assert (part.version == segment.version, part.was_cut) == (True, True)
    assert take_all(part, 70, is_exact=True) == list(range(70, 100))


def test_segment_that_ends_too_early_is_damaged(tmp_path: Path) -> None:
    """The exceptions are a read that ends there, and a log that may have gaps and
    continues."""
    segment = segment_in(tmp_path)
    whole = read_of(segment)
    take_all(whole, 0)
    assert whole.end(100, is_last=False) == 100
    segment.next_offset = 105
    for bound, is_last in ((105, True), (105, False), (101, True)):
        short = read_of(segment, bound)
        take_all(short, 0)
        with pytest.raises(CorruptRecordError) as caught:
            short.end(100, is_last=is_last)
        assert (caught.value.offset, caught.value.position) == (100, segment.size)
    enough = read_of(segment)
    take_all(enough, 0)
    assert enough.end(100, is_last=False) == 100
    segment.is_contiguous = False
    gapped = read_of(segment, 105)
    take_all(gapped, 0)
    assert gapped.end(100, is_last=False) is None
    with pytest.raises(CorruptRecordError):
        gapped.end(100, is_last=True)


def test_batch_behind_the_end_of_its_segment_is_damage(tmp_path: Path) -> None:
    """The first such batch is the damage; not in a segment that grows, or that was
    cut."""
    segment = segment_in(tmp_path)
    part = read_of(segment)
    assert part.has_bytes(0, is_exact=False)
    chunk = part.read()
    offsets = offsets_in(chunk)
    part.check_bound(chunk, native.OFFSET_UNKNOWN, 0)
    part.check_bound(chunk, 99, 0)
    segment.next_offset = 200
    part.check_bound(chunk, 150, 0)
    segment.next_offset = 2
    part.check_bound(chunk, 99, 0)  # it had them when the read came to it
    late = read_of(segment)
    late.check_bound(chunk, 1, 0)
    with pytest.raises(Damage, match="offset 2 is past the end") as caught:
        late.check_bound(chunk, offsets[-1], 1)
    assert (caught.value.pos, caught.value.offset) == (2 * segment.size // 100, 1)
    segment.version += 1
    late.check_bound(chunk, offsets[-1], 1)


def test_batch_behind_the_read_is_checked(tmp_path: Path) -> None:
    """Its offset may be wrong, and hide wanted records."""
    segment = segment_in(tmp_path)
    size = segment.size // 100
    part = read_of(segment, 3)
    assert part.has_bytes(0, is_exact=False)
    chunk = part.read()
    part.check_beyond(chunk, 3 * size, 2, 3)
    part.check_beyond(chunk, chunk.n, 4, 5)  # it is not in the buffer
    with pytest.raises(CorruptRecordError, match="offset 3 does not follow offset 4"):
        part.check_beyond(chunk, 3 * size, 4, 5)
    segment.version += 1
    part.check_beyond(chunk, 3 * size, 4, 5)
