"""A stage and the objects that it returns are good for one publication, for any
caller."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore import ConfigError, LogStoreError, Partition, StorageError, Store
from logstore.errors import RecordTooLargeError, ReentrantCallError, UnsupportedError
from logstore.io.files import Files
from logstore.maintenance.verify import verify
from logstore.store.opening import open_store
from support import one_stage
from support.one_stage import stage, staged_files
from support.values import config_of, values

# Fixtures.
partition, store, way = one_stage.partition, one_stage.store, one_stage.way


@pytest.mark.parametrize("size", [1, 100_000])
def test_finished_stage_returns_the_same_again(
    store: Store, partition: Partition, size: int
) -> None:
    """Each record is published once, however often the result is requested."""
    with store.stage("me", 1) as opened:
        for number in range(20):
            opened.append_many(partition, [b"%d" % number + b"." * size])
        first = opened.finish()
        assert opened.finish() is first
    assert opened.finish() is first
    assert first.records == 20
    store.publish([first], identity="me", sequence=1)
    assert opened.finish() is first
    assert [v[:2].rstrip(b".") for v in values(partition)] == [
        b"%d" % number for number in range(20)
    ]


def test_stage_that_is_over_takes_no_more_records(
    store: Store, partition: Partition
) -> None:
    """A stage that is finished, discarded, or left with or without an error raises a
    named error each time."""
    finished = store.stage()
    finished.append_many(partition, [b"x"])
    staged = finished.finish()
    discarded = store.stage()
    discarded.append_many(partition, [b"x" * 100_000])
    discarded.discard()
    with store.stage() as left:
        left.append_many(partition, [b"x"])
    with pytest.raises(ZeroDivisionError), store.stage() as failed:
        raise ZeroDivisionError
    for number, over in enumerate((finished, discarded, left, failed)):
        for _ in range(2):
            with pytest.raises(ConfigError, match="Make a new one"):
                over.append_many(partition, [b"more"])
            with pytest.raises(ConfigError, match="Make a new one"):
                over.append_many(partition, [])
            with pytest.raises(ConfigError, match="Make a new one"):
                over.__enter__()
        if number in (1, 3):
            with pytest.raises(ConfigError, match="discarded"):
                over.finish()
    assert finished.finish() is staged
    store.publish([staged, left.finish()])
    assert values(partition) == [b"x", b"x"]
    assert staged_files(store) == []


def test_stage_is_entered_once(store: Store, partition: Partition) -> None:
    with store.stage() as opened:
        with pytest.raises(ConfigError, match="entered before"), opened:
            pass
        opened.append_many(partition, [b"x"])
        store.publish([opened.finish()])
    assert values(partition) == [b"x"]


def test_discard_again_and_behind_the_publication_is_harmless(
    store: Store, partition: Partition
) -> None:
    with store.stage() as opened:
        opened.append_many(partition, [b"x" * 100_000])
        staged = opened.finish()
    store.publish([staged])
    opened.discard()
    store.discard_staged([staged])
    opened.discard()
    assert values(partition) == [b"x" * 100_000]
    assert verify(store.path, deep=True).ok


def test_staged_is_published_once(store: Store, partition: Partition) -> None:
    """The value is twice in a list, and given again when it is in the log: nothing more
    gets in."""
    staged = stage(store, partition, b"a", b"b")
    with pytest.raises(ConfigError, match="twice"):
        store.publish([staged, staged])
    assert partition.end_offset == 0
    store.publish(iter([staged]))
    with pytest.raises(StorageError, match="published or removed"):
        store.publish([staged])
    assert values(partition) == [b"a", b"b"]


def test_exhausted_iterator_publishes_nothing(
    store: Store, partition: Partition
) -> None:
    once = iter([stage(store, partition)])
    store.publish(once)
    assert store.publish(once).records == 0
    assert partition.end_offset == 1


class Failing(Files):
    """Fails a write of staged records, then continues."""

    fails = False

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        if self.fails:
            self.fails = False
            raise OSError(28, "no space")
        super().write(fd, data, pos)


def test_stage_whose_write_failed_is_over(tmp_path: Path) -> None:
    """The contents of its files are unknown: it cannot be finished without some of
    them."""
    files = Failing()
    with open_store(tmp_path / "store", _files=files) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        for call in ("append", "finish"):
            opened = store.stage()
            opened.append_many(partition, [b"first"])
            files.fails = True
            with pytest.raises(StorageError):
                if call == "append":
                    opened.append_many(partition, [b"x" * 200_000])
                else:
                    opened.finish()
            for _ in range(2):
                with pytest.raises(ConfigError, match="failed"):
                    opened.finish()
                with pytest.raises(ConfigError, match="failed"):
                    opened.append_many(partition, [b"second"])
            opened.discard()
        assert staged_files(store) == []


def test_refused_records_leave_a_stage_as_it_was(
    store: Store, partition: Partition
) -> None:
    """If any part of a call cannot be encoded, none of it is staged."""
    config = config_of(2, max_message_bytes=500)
    small = store.create_topic("small", 1, config)[0]
    old = store.create_topic("old", 1, config_of(0))[0]
    with store.stage() as opened:
        opened.append_many(partition, [b"a"])
        with pytest.raises(TypeError):
            opened.append_many(partition, [1])  # type: ignore[list-item]
        with pytest.raises(RecordTooLargeError):
            opened.append_many(small, [b"x", b"x" * 1000])
        with pytest.raises(UnsupportedError):
            opened.append_many(old, [b"x"])
        opened.append_many(partition, [b"b"])
        opened.append_many(small, [b"c"])
        store.publish([opened.finish()])
    assert values(partition) == [b"a", b"b"]
    assert values(small) == [b"c"]


def test_append_that_ends_half_way_ends_the_stage(
    store: Store, partition: Partition
) -> None:
    """A reader that fails after its first batch publishes nothing."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("value", pa.binary())])

    def batches() -> Iterator[Any]:
        yield pa.record_batch([pa.array([b"first"])], schema)
        raise ZeroDivisionError

    with store.stage() as opened:
        with pytest.raises(ZeroDivisionError):
            opened.append_arrow(
                partition, pa.RecordBatchReader.from_batches(schema, batches())
            )
        with pytest.raises(ConfigError, match="half-way"):
            opened.finish()


def test_stage_may_be_used_by_what_makes_its_records(
    store: Store, partition: Partition
) -> None:
    """A reader may stage a line itself; one that finishes the stage gets an error."""
    pa = pytest.importorskip("pyarrow")
    schema = pa.schema([("value", pa.binary())])
    opened = store.stage()

    def batches() -> Iterator[Any]:
        yield pa.record_batch([pa.array([b"first"])], schema)
        opened.append_many(partition, [b"between"])
        yield pa.record_batch([pa.array([b"second"])], schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert opened.append_arrow(partition, reader) == 2
    store.publish([opened.finish()])
    assert values(partition) == [b"first", b"between", b"second"]


class Calling(Files):
    """Calls a stage from inside its own write."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.met: list[BaseException] = []

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            try:
                call()
            except LogStoreError as error:
                self.met.append(error)
        super().write(fd, data, pos)


def test_call_from_inside_a_call_changes_nothing(tmp_path: Path) -> None:
    """A finalizer may make the call, which the garbage collector runs anywhere."""
    files = Calling()
    with open_store(tmp_path / "store", _files=files) as store:
        partition = store.create_topic("t", 1, config_of(2))[0]
        opened = store.stage()
        files.calls = [
            lambda: opened.append_many(partition, [b"inner"]),
            opened.finish,
            opened.discard,
        ]
        opened.append_many(partition, [b"x" * 200_000, b"last"])
        assert [type(error) for error in files.met] == [ReentrantCallError] * 3
        store.publish([opened.finish()])
        assert values(partition) == [b"x" * 200_000, b"last"]


def test_forgotten_stage_gives_its_descriptor_back(
    store: Store, partition: Partition
) -> None:
    gc.collect()  # leftovers of other tests
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        store.stage().append_many(partition, [b"x" * 200_000])
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before
