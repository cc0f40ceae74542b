"""Very many segments, and very many partitions: the cost of each for an opening.

A million is not made here: its cost is extrapolated, because the work and the memory
for one more stay the same from hundreds to thousands.
"""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.values import append_one, fill, new_partition, value_of

FEW = 300
MANY = 1500


def make_segments(path: Path, count: int) -> Path:
    """A log of a broker's with one record in each segment, closed cleanly."""
    with open_store(path, _files=Unsynced()) as store:
        append_one(new_partition(store, magic=2))
    directory = path / "orders-0"
    batch = (directory / f"{0:020d}.log").read_bytes()
    for name in [*directory.iterdir(), *path.glob(".logstore-*")]:
        name.unlink()
    for offset in range(count):
        # The offset is not under the checksum of a batch of magic 2.
        data = offset.to_bytes(8, "big") + batch[8:]
        (directory / f"{offset:020d}.log").write_bytes(data)
        # A broker makes these for each segment, however small it is.
        (directory / f"{offset:020d}.index").write_bytes(b"")
        (directory / f"{offset:020d}.timeindex").write_bytes(b"")
    points = path / "recovery-point-offset-checkpoint"
    points.write_text(f"0\n1\norders 0 {count}\n")
    (path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":-1}')
    return path


class Cost:
    """System calls, and peak memory, of the block."""

    def __init__(self, files: FaultyFiles) -> None:
        self.files = files

    def __enter__(self) -> Cost:
        self.files.forget()
        tracemalloc.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.calls = sum(self.files.counts.values())
        self.listings = self.files.counts["list"]


def opening(path: Path, read_only: bool) -> Cost:
    """Cost of opening a store and a log in it, and of reading one record."""
    files = FaultyFiles()
    with Cost(files) as cost:
        with open_store(path, read_only=read_only, _files=files) as store:
            partition = store.topic("orders")[0]
            offset = partition.end_offset // 2
            (found,) = partition.read(offset, offset + 1)
            assert found.value == value_of(0)
    return cost


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("is_own", [False, True], ids=["broker's", "own"])
def test_each_segment_costs_an_opening_the_same(
    tmp_path: Path, is_own: bool, read_only: bool
) -> None:
    """Few calls and little memory for one more, however many there are."""
    costs = []
    for count in (FEW, MANY):
        path = make_segments(tmp_path / str(count), count)
        if is_own:
            with logstore.open(path) as store:
                store.topic("orders")[0].roll()
        with logstore.open(path, read_only=True) as store:
            partition = store.topic("orders")[0]
            assert len(partition.segments) == count + is_own
            assert partition.end_offset == count
        costs.append(opening(path, read_only))
    few, many = costs
    assert (many.calls - few.calls) / (MANY - FEW) <= 10
    assert (many.peak - few.peak) / (MANY - FEW) < 4000
    assert many.listings == few.listings


def test_each_partition_costs_an_opening_one_call(tmp_path: Path) -> None:
    """The call checks whether its name is a directory; unused partitions are not read,
    and a name and a few numbers are kept."""
    costs = []
    for count in (FEW, MANY):
        path = tmp_path / str(count)
        with open_store(path, _files=Unsynced()) as store:
            topic = store.create_topic("orders", count)
            fill(topic[count - 1], 5)
        files = FaultyFiles()
        with Cost(files) as cost:
            with open_store(path, _files=files) as store:
                assert store.topic("orders")[count - 1].end_offset == 5
        costs.append(cost)
    few, many = costs
    assert (many.calls - few.calls) / (MANY - FEW) <= 1
    assert many.listings == few.listings
    assert (many.peak - few.peak) / (MANY - FEW) < 1000


def test_files_of_the_store_are_read_once_for_all_its_partitions(
    tmp_path: Path,
) -> None:
    """They name each partition: if they were read for each, the cost would be
    quadratic."""
    costs = []
    for count in (FEW // 10, FEW):
        path = tmp_path / str(count)
        with open_store(path, _files=Unsynced()) as store:
            for partition in store.create_topic("orders", count):
                append_one(partition)
        files = FaultyFiles()
        with (
            Cost(files) as cost,
            open_store(path, read_only=True, _files=files) as store,
        ):
            assert sum(p.end_offset for p in store.topic("orders")) == count
        costs.append(cost)
    few, many = costs
    assert many.listings - few.listings <= FEW - FEW // 10  # each lists its own
    # Three lookups of its identity and one for a verdict are among them.
    assert (many.calls - few.calls) / (FEW - FEW // 10) <= 64
