"""Far segments that cannot be read, and logs that change while they are read."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import logstore
from logstore.config import TopicConfig
from logstore.errors import (
    CorruptRecordError,
    OffsetOutOfRangeError,
    StorageError,
    StoreClosedError,
)
from logstore.io.read_ahead import FarPlace
from logstore.io.segment_place import Placed
from support.far import BLOCK_BYTES, MemoryPlace, far_store, serve

Read: TypeAlias = "Callable[[logstore.Partition, int], Iterator[logstore.Record]]"


def batches(partition: logstore.Partition, start: int) -> Iterator[logstore.Record]:
    for batch in partition.read_batches(start):
        yield from (record for record in batch if record.offset >= start)


def fetches(partition: logstore.Partition, start: int) -> Iterator[logstore.Record]:
    while chunk := partition.fetch(start, 100_000):
        yield from chunk
        start = chunk.next_offset


READS: dict[str, Read] = {
    "read": lambda partition, start: partition.read(start),
    "batches": batches,
    "fetch": fetches,
    "follow": lambda partition, start: partition.follow(start, timeout=0.05),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return far_store(tmp_path_factory.mktemp("far") / "s", 300_000, 1000)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> MemoryPlace:
    place = MemoryPlace()
    serve(monkeypatch, place)
    return place


@pytest.fixture
def partition(path: Path, place: MemoryPlace) -> Iterator[logstore.Partition]:
    with logstore.open(path, read_only=True) as store:
        yield store.topic("one")[0]


def taken_until(
    records: Iterator[logstore.Record], kind: type[Exception]
) -> tuple[list[int], Exception]:
    """Return (the offsets before an error, the error)."""
    offsets = []
    with pytest.raises(kind) as caught:
        for record in records:
            offsets.append(record.offset)
    return offsets, caught.value


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_failed_request_ends_the_read_where_its_bytes_are(
    partition: logstore.Partition, place: MemoryPlace, read: Read
) -> None:
    """All records before the missing bytes are delivered; the read can be tried again
    from there."""
    segment = partition._log.segments[5]
    limit = segment.size // 2

    def failing(asked: Placed, pos: int) -> None:
        if asked.base_offset == segment.base_offset and pos > limit:
            raise OSError(errno.ETIMEDOUT, "no answer")

    place.before = failing
    offsets, error = taken_until(read(partition, 0), StorageError)
    assert isinstance(error, StorageError)
    assert (error.filename, error.errno) == (segment.path, errno.ETIMEDOUT)
    assert offsets == list(range(len(offsets)))
    # At most the requests of one read are lost to the failure.
    first_lost = segment.locate(offsets[-1] + 1).pos
    assert first_lost > limit - 256 * 1024 - 2 * BLOCK_BYTES
    assert segment.base_offset - 300 < offsets[-1] < segment.next_offset
    assert taken_until(read(partition, offsets[-1] + 1), StorageError)[0] == []
    place.before = lambda asked, pos: None
    rest = [record.offset for record in read(partition, offsets[-1] + 1)]
    assert offsets + rest == list(range(len(partition)))


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_short_answer_is_damage_where_the_bytes_end(
    partition: logstore.Partition, place: MemoryPlace, read: Read
) -> None:
    """A short answer is treated like a file that is too short; the next read requests
    it again."""
    list(partition.read(limit=1))
    segment = partition._log.segments[5]
    place.cut[segment.file.serial] = segment.size // 2
    offsets, error = taken_until(read(partition, 0), CorruptRecordError)
    assert isinstance(error, CorruptRecordError)
    assert (error.path, error.offset) == (segment.path, offsets[-1] + 1)
    assert offsets == list(range(len(offsets)))
    place.cut.clear()
    rest = [record.offset for record in read(partition, offsets[-1] + 1)]
    assert offsets + rest == list(range(len(partition)))


def test_store_closed_meanwhile_ends_the_read(path: Path, place: MemoryPlace) -> None:
    """A read of files ends in the same way: at the latest when it needs more bytes."""
    with logstore.open(path, read_only=True) as store:
        records = store.topic("one")[0].read()
        for _ in range(300):
            next(records)
    offsets, _ = taken_until(records, StoreClosedError)
    assert offsets == list(range(300, 300 + len(offsets)))
    assert len(offsets) < 1000


Change: TypeAlias = "Callable[[logstore.Partition], object]"
CHANGES: dict[str, Change] = {
    "cut": lambda partition: partition.truncate_to(partition.segments[7].base_offset),
    "cut in a segment": lambda partition: partition.truncate_to(
        partition.segments[7].base_offset + 100
    ),
    "deleted": lambda partition: partition.delete_before(
        partition.segments[7].base_offset
    ),
    "compacted": lambda partition: partition.compact(),
}


def outcome(partition: logstore.Partition, change: Change, read: Read) -> list[Any]:
    """The offsets of a read during which the log is changed, and its error."""
    records = read(partition, 0)
    found: list[Any] = []
    try:
        for record in records:
            found.append(record.offset)
            if len(found) == 400:
                change(partition)
    except OffsetOutOfRangeError as error:
        found.append(str(error))
    return found


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_of_the_log_is_seen_as_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, read: Read
) -> None:
    """The records and the error are the same, whatever was requested ahead."""
    found = []
    for number in range(2):
        config = TopicConfig(segment_bytes=100_000, cleanup_policy="compact")
        with logstore.open(tmp_path / str(number)) as store:
            partition = store.create_topic("t", config=config)[0]
            for key in range(1200):
                partition.append(b"%01000d" % key, key=b"%d" % (key % 900))
            with monkeypatch.context() as patch:
                if number:
                    place = MemoryPlace()
                    serve(patch, place, guard=False)
                found.append(outcome(partition, change, read))
            if number:
                assert place.requests
    assert found[0] == found[1]


def flip(data: bytearray) -> None:
    data[len(data) // 2] ^= 1


def zero(data: bytearray) -> None:
    middle = len(data) // 2
    data[middle : middle + 5000] = bytes(5000)


def swap(data: bytearray) -> None:
    """Two batches of one record each change their places."""
    size = 12 + int.from_bytes(data[8:12], "big")
    at = len(data) // size // 2 * size
    one, other = data[at : at + size], data[at + size : at + 2 * size]
    data[at : at + 2 * size] = other + one


def outcome_of_damage(
    read: Callable[[Any], Iterator[Any]], partition: Any
) -> list[Any]:
    found: list[Any] = []
    try:
        found += (record.offset for record in read(partition))
    except CorruptRecordError as error:
        found.append((error.position, error.offset, error.next_offset, str(error)))
    return found


DAMAGED: dict[str, Callable[[Any], Iterator[Any]]] = {
    "raise": lambda p: p.read(),
    "raise in a batch": lambda p: iter([p.get(160)]),
    "skip": lambda p: p.read(on_corruption="skip"),
    "skip, fetch": lambda p: iter(p.fetch(0, 300_000, on_corruption="skip")),
    "skip, batches": lambda p: (
        record for batch in p.read_batches(on_corruption="skip") for record in batch
    ),
}


@pytest.mark.parametrize("read", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("damage", [flip, zero, swap], ids=["flip", "zero", "swap"])
def test_damage_is_met_as_in_files(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[bytearray], None],
    read: Callable[[Any], Iterator[Any]],
) -> None:
    """The records and the error are the same, and reading continues at the same
    offset."""
    path = tmp_path / "s"
    with logstore.open(path) as store:
        config = TopicConfig(segment_bytes=100_000)
        partition = store.create_topic("t", config=config)[0]
        for key in range(400):
            partition.append(b"%01000d" % key)
        log = Path(partition._log.segments[1].path)
    data = bytearray(log.read_bytes())
    damage(data)
    log.write_bytes(data)
    found = []
    for is_far in (False, True):
        place = MemoryPlace()
        with monkeypatch.context() as patch:
            if is_far:
                serve(patch, place)
            with logstore.open(path, read_only=True) as store:
                found.append(outcome_of_damage(read, store.topic("t")[0]))
        assert bool(place.requests) == is_far
    assert found[0] == found[1]


def test_lookups_are_few_requests(
    path: Path, partition: logstore.Partition, place: MemoryPlace
) -> None:
    """A lookup requests an index, which is kept, and a block; nothing is read ahead."""
    end = len(partition)
    with logstore.open(path, read_only=True) as store:
        times = [record.timestamp for record in store.topic("one")[0].read()]
    place.requests.clear()
    place.index_requests = 0
    for offset in range(100, end - 400, 300):
        assert partition.get(offset).offset == offset
    count = len(range(100, end - 400, 300))
    assert len(place.requests) <= count
    assert place.index_requests <= 12
    assert all(request.size == BLOCK_BYTES for request in place.requests)
    place.requests.clear()
    wanted = times[end // 2]
    assert partition.offset_for_time(wanted) == times.index(wanted)
    # The largest time of each segment before it, and the batch.
    assert len(place.requests) <= 4 * 12


def test_first_record_is_two_requests(
    partition: logstore.Partition, place: MemoryPlace
) -> None:
    """The requests are for its buffer, and one block ahead of it."""
    place.block_bytes = FarPlace.block_bytes
    assert [record.offset for record in partition.read(limit=1)] == [0]
    assert len(place.requests) <= 2


def test_first_record_from_small_blocks_is_few_requests(
    partition: logstore.Partition, place: MemoryPlace
) -> None:
    """The requests are the blocks of one buffer, and at most the blocks in flight ahead
    of it, which each block of the buffer doubles. How many begin before the read ends
    depends on the machine."""
    assert [record.offset for record in partition.read(limit=1)] == [0]
    assert len(place.requests) <= 256 * 1024 // BLOCK_BYTES + place.in_flight
