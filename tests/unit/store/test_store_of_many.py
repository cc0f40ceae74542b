"""Very many segments, and very many partitions: the cost of each for an opening.

A million is not made here: its cost is extrapolated, because the work and the memory
for one more stay the same from hundreds to thousands.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.store.opening import open_store
from support.damage import FaultyFiles, Unsynced
from support.values import append_one, config_of, fill, new_partition, value_of

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
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


class Written(Unsynced):
    """Counts the written bytes."""

    bytes_written = 0

    def write(self, fd: int, data: Any, pos: int) -> None:
        self.bytes_written += len(data)
        super().write(fd, data, pos)


def instructions_of(call: Callable[[], object]) -> int:
    """Instructions of Python that a call executes."""
    count = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    gc.disable()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return count


def cost_of(files: Written, calls: list[Callable[[], object]]) -> tuple[int, int]:
    """(instructions, written bytes) of the cheapest call: some calls also do work that
    is due from time to time."""
    counts, sizes = [], []
    for call in calls:
        files.bytes_written = 0
        counts.append(instructions_of(call))
        sizes.append(files.bytes_written)
    return min(counts), min(sizes)


def rolls(store: logstore.Store, count: int) -> list[Callable[[], object]]:
    """Appends that roll, in a log of `count` segments."""
    config = logstore.TopicConfig(segment_bytes=100)
    partition = store.create_topic("orders", config=config)[0]
    for _ in range(count):
        partition.append(b"x" * 60)
    return [lambda: partition.append(b"x" * 60)] * 5


def creations(store: logstore.Store, count: int) -> list[Callable[[], object]]:
    """Creations in a store of `count` topics."""
    for number in range(count):
        store.create_topic(f"topic-{number}")
    names = [f"new-{number}" for number in range(5)]
    return [lambda name=name: store.create_topic(name) for name in names]  # type: ignore[misc]


def deletions(store: logstore.Store, count: int) -> list[Callable[[], object]]:
    """Deletions inside a segment, in a topic of `count` partitions that were used."""
    topic = store.create_topic("orders", count)
    for partition in topic:
        partition.append_many([b"x", b"y"])
        partition.delete_before(1)
    for partition in topic.partitions[:5]:
        partition.append(b"z")
    return [lambda p=p: p.delete_before(2) for p in topic.partitions[:5]]  # type: ignore[misc]


def publications(store: logstore.Store, count: int) -> list[Callable[[], object]]:
    """Publications in a store that remembers `count` others."""
    partition = store.create_topic("orders", config=config_of(2))[0]
    for number in range(count):
        metadata = bytes(4096)
        store.publish([], identity=f"i{number}", sequence=1, metadata=metadata)
    calls: list[Callable[[], object]] = []
    for number in range(1, 6):
        with store.stage("me", number) as stage:
            stage.append_many(partition, [b"x"])
            staged = stage.finish()
        calls.append(
            lambda s=staged, n=number: store.publish([s], identity="me", sequence=n)  # type: ignore[misc]
        )
    return calls


@pytest.mark.parametrize("work", [rolls, creations, deletions, publications])
def test_call_costs_the_same_in_a_store_of_many(
    tmp_path: Path, work: Callable[[logstore.Store, int], list[Callable[[], object]]]
) -> None:
    """No call looks at all segments, topics, partitions or publications, or writes all
    of them."""
    costs = []
    for count in (5, 150):
        files = Written()
        config = logstore.StoreConfig(publish_for_others=False)
        path = tmp_path / str(count)
        with open_store(path, config=config, _files=files) as store:
            costs.append(cost_of(files, work(store, count)))
    (few, few_bytes), (many, many_bytes) = costs
    assert many < 1.2 * few
    assert many_bytes < 1.2 * few_bytes + 50


class _Heap(ctypes.Structure):
    """The answer of glibc about its memory."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
            "uordblks", "fordblks", "keepcost",
        )
    ]  # fmt: skip


def heap_of_c() -> Callable[[], _Heap] | None:
    """The call of the C library, or None if the library lacks it."""
    call = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if call is not None:
        call.restype = _Heap
    return call


@pytest.mark.parametrize(
    ("magic", "codec"), [(1, "none"), (1, "gzip"), *[(2, one) for one in CODECS]]
)
def test_partition_with_a_record_keeps_little_memory(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """20 KiB at most, whatever its codec: an encoder is not kept."""
    heap = heap_of_c()
    if heap is None:
        pytest.skip("the C library does not say how much memory is allocated")

    def in_use() -> int:
        gc.collect()
        found = heap()
        return int(found.uordblks + found.hblkhd + tracemalloc.get_traced_memory()[0])

    config = config_of(magic, codec, flush_ms=1 << 60)
    with open_store(tmp_path, _files=Unsynced()) as store:
        partitions = store.create_topic("orders", 60, config).partitions
        tracemalloc.start()
        try:
            for partition in partitions[:20]:
                partition.append(b"x")
            before = in_use()
            for partition in partitions[20:]:
                partition.append(b"x")
            each = (in_use() - before) / 40
        finally:
            tracemalloc.stop()
    assert 0 < each < 20 << 10
