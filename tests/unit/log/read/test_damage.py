"""The end of a read of a log with gaps: no checksum covers an offset, and the batches
around the end show whether something is hidden before it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.log.read.corruption import DamagePolicy
from logstore.log.read.cursor import Cursor
from logstore.log.read.reader import decoded
from logstore.log.read.view import View
from logstore.record.decoder import ChunkReader
from support.damage import flip_bit, logs_in, move_batches

T = 1_700_000_000_000
PER_CALL = 4

READS = {
    "read": lambda p, stop: p.read(0, stop),
    "batches": lambda p, stop: (
        r for b in p.read_batches(0, stop) for r in b if r.offset < stop
    ),
    "arrow": lambda p, stop: p.read_arrow(0, stop).read_all()["offset"].to_pylist(),
    "get": lambda p, stop: [p.get(stop - 1)],
}
FORMATS = [(2, "none"), (2, "gzip"), (1, "gzip"), (0, "gzip")]


def write_compacted(path: Path, magic: int, codec: str) -> dict[int, int]:
    """Return the position of each batch of four records by its first offset. The
    records of offsets 8 and 9 are gone."""
    config = logstore.TopicConfig(
        message_format=magic,
        compression_type=codec,
        cleanup_policy="compact",
        index_interval_bytes=100,
    )
    with logstore.open(path) as store:
        partition = store.create_topic("t", config=config)[0]
        for first in range(0, 40, PER_CALL):
            numbers = range(first, first + PER_CALL)
            partition.append_many(
                [b"value %d" % number for number in numbers],
                [b"k%d" % number for number in numbers],
                timestamps_ms=[T + number for number in numbers] if magic else None,
            )
        partition.roll()
        for key in (b"k8", b"k9"):
            partition.append(b"newer", key=key)
        partition.roll()
        partition.append(b"end", key=b"end")
        partition.compact(force=True)
        batches = list(partition.read_batches(0, 40))
        return {batch.last_offset - PER_CALL + 1: batch.position for batch in batches}


def opened(path: Path) -> Any:
    return logstore.open(path, read_only=True)["t"][0]


def flip_offset(path: Path, position: int, value: int) -> None:
    bit = value.bit_length() - 1
    flip_bit(logs_in(path / "t-0")[0], 8 * (position + 7) + bit)


@pytest.mark.parametrize("way", READS.values(), ids=READS)
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_batch_whose_offsets_reach_into_the_next_one_at_the_stop_is_an_error(
    tmp_path: Path, way: Any, magic: int, codec: str
) -> None:
    """Its records would get wrong offsets, or be left out."""
    places = write_compacted(tmp_path, magic, codec)
    flip_offset(tmp_path, places[16], 2 if magic == 2 else 4)
    with pytest.raises(logstore.CorruptRecordError, match="offset"):
        list(way(opened(tmp_path), 20))


@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_batch_at_the_stop_that_lies_behind_the_next_one_is_an_error(
    tmp_path: Path, way: str, magic: int, codec: str
) -> None:
    """The batch states 44, and ends a read that should find 13. The next batch states
    16."""
    places = write_compacted(tmp_path, magic, codec)
    flip_offset(tmp_path, places[12], 32)
    with pytest.raises(logstore.CorruptRecordError):
        list(READS[way](opened(tmp_path), 20))


@pytest.mark.parametrize("way", ["read", "batches", "arrow"])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_wrong_offset_behind_the_stop_concerns_no_read_up_to_it(
    tmp_path: Path, way: str, magic: int, codec: str
) -> None:
    """There is no room before the stop; or the batch after the one at the stop has
    lower offsets than both, so that it is the wrong one."""
    places = write_compacted(tmp_path, magic, codec)
    flip_offset(tmp_path, places[16], 16)
    found = list(READS[way](opened(tmp_path), 12))
    assert len(found) == 10
    found = list(READS[way](opened(tmp_path), 10))
    assert len(found) == 8


@pytest.mark.parametrize("way", ["read", "batches", "get", "fetch"])
@pytest.mark.parametrize(("magic", "codec"), FORMATS)
def test_read_that_begins_in_a_batch_whose_offset_is_too_low_is_an_error(
    tmp_path: Path, way: str, magic: int, codec: str
) -> None:
    """The index leads to the batch, which seems to be before the start of the read: its
    entry has another offset, and from the entry before the order is seen."""
    places = write_compacted(tmp_path, magic, codec)
    flip_offset(tmp_path, places[12], 8)
    partition = opened(tmp_path)
    assert partition._log.segments[0].offset_entries().count > 3
    begin = {
        "read": lambda offset: list(partition.read(offset)),
        "batches": lambda offset: list(partition.read_batches(offset)),
        "get": partition.get,
        "fetch": partition.fetch,
    }[way]
    with pytest.raises(logstore.CorruptRecordError):
        begin(15)
    begin(16)


def test_lookup_of_an_intact_log_with_gaps_needs_one_call(tmp_path: Path) -> None:
    """The next batch is in the bytes that are read anyway; if an offset is wrong, it
    shows that a closer look is needed."""
    places = write_compacted(tmp_path, 2, "none")
    partition = opened(tmp_path)
    segment = partition._log.segments[0]
    segment.file.borrow()
    assert segment.find(13).value == b"value 13"
    assert segment.find_since(0, T + 13) == 13
    flip_offset(tmp_path, places[12], 2)
    partition = opened(tmp_path)
    segment = partition._log.segments[0]
    segment.file.borrow()
    assert segment.find(15) is None
    assert segment.find_since(0, T + 13) is None


def view_with(path: Path, *offsets: int) -> View:
    """A log that may have gaps: batches with one record each. It is not closed."""
    with logstore.open(path) as store:
        partition = store.create_topic("t")[0]
        for offset in offsets:
            partition.append(b"%03d" % offset)
    move_batches(logs_in(path / "t-0")[0], offsets)
    view: View = opened(path)._views.now(False)
    segment = view.segments[0]
    segment.is_contiguous, segment.next_offset = False, offsets[-1] + 1
    return view._replace(end_offset=segment.next_offset)


def offsets_of(cursor: Cursor, found: list[int]) -> None:
    for run in decoded(cursor, ChunkReader(1 << 20)):
        found += run.decoder.unpack(run.decoder.arrays.offset)[: run.decoder.count]


@pytest.mark.parametrize("per_read", [1, 2, 3])
def test_last_batch_of_a_chunk_is_compared_with_what_is_behind_it(
    tmp_path: Path, per_read: int
) -> None:
    """This does not depend on the number of batches in a read of bytes."""
    view, found = view_with(tmp_path, 0, 1, 9, 3, 4, 12), []
    size = view.segments[0].size // 6
    with pytest.raises(logstore.CorruptRecordError) as caught:
        offsets_of(Cursor(view, 0, 13, first_bytes=per_read * size), found)
    assert found == [0, 1]
    assert (caught.value.offset, caught.value.next_offset) == (2, 3)


def test_read_that_has_passed_over_records_names_the_first_of_them(
    tmp_path: Path,
) -> None:
    """Several batches have wrong offsets, which do not contradict each other."""
    view, told = view_with(tmp_path, 0, 1, 9, 10, 4, 5, 12), []
    found: list[int] = []
    policy = DamagePolicy(lambda one: not told.append(one))
    offsets_of(Cursor(view, 0, 13, policy), found)
    assert found == [0, 1, 9, 10, 12]
    assert [(one.first, one.next_offset, one.error.offset) for one in told] == [
        (2, 12, 2)
    ]
    with pytest.raises(logstore.CorruptRecordError) as caught:
        offsets_of(Cursor(view, 0, 13), [])
    assert (caught.value.offset, caught.value.next_offset) == (2, 12)
