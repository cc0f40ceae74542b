"""An append is in the log, or it has raised, never both: without memory, in a deep
stack, inside another call."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native.locks import new_group
from logstore.io.scheduler import Scheduler
from logstore.log.write.segment_writer import SegmentWriter
from logstore.store.opening import open_store
from logstore.store.partition.partition import appends_of
from support.appending import CALLS, is_durable_in_time
from support.damage import Unsynced, logs_in
from support.values import (
    append_one,
    append_records,
    config_of,
    expected,
    new_partition,
    read_all,
)


def test_append_whose_sync_cannot_be_planned_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever can fail does so before the record is in: after that, a caller that
    tries again would append it twice. The next append plans its sync again."""

    def refuse(self: Scheduler, delay_ms: int, task: object) -> None:
        raise error

    with open_store(tmp_path, _files=Unsynced()) as store:
        append_one(store.create_topic("source", config=config_of(flush_ms=5))[0])
        batch = logs_in(tmp_path / "source-0")[0].read_bytes()
        calls: dict[str, Callable[[logstore.Partition], object]] = {
            **CALLS,
            "append_batches": lambda p: p.append_batches(batch),
        }
        for error in (RecursionError(), MemoryError(), KeyboardInterrupt()):
            for name, call in calls.items():
                topic = f"{name}-{type(error).__name__}"
                partition = store.create_topic(topic, 1, config_of(flush_ms=5))[0]
                with monkeypatch.context() as patch:
                    patch.setattr(Scheduler, "call_later", refuse)
                    for _ in range(2):
                        with pytest.raises(type(error)):
                            call(partition)
                        assert partition.end_offset == 0
                assert list(partition.read()) == []
                assert append_one(partition) == 0
                assert is_durable_in_time(partition)


def raises_in_deep_stack(call: Callable[[], object], spare: int) -> bool:
    """Whether a call finds too little room with `spare` more calls on the stack."""
    depth = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(depth + spare)
        call()
    except RecursionError:
        return True
    finally:
        sys.setrecursionlimit(before)
    return False


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_deep_stack_is_not_taken_for_damage(tmp_path: Path, codec: str) -> None:
    """This holds for a batch and for a state file."""
    config = logstore.TopicConfig(message_format=2, compression_type=codec)
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = store.create_topic("orders", 1, config)[0]
        append_records(partition, 4)
        with store.stage() as stage:
            stage.append_many(partition, [b"x"])
            store.publish([stage.finish()], identity="test", sequence=1)
        calls: list[Callable[[], object]] = [
            lambda: list(partition.read()),
            lambda: store.published("test"),
        ]
        for call in calls:
            outcomes = {raises_in_deep_stack(call, spare) for spare in range(3, 60)}
            assert outcomes == {True, False}


DEEP: dict[str, Callable[[logstore.Partition], object]] = {
    **CALLS,
    "durable": lambda p: append_one(p, durable=True),
    "append_many-durable": lambda p: append_records(p, 4, durable=True),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("magic", [1, 2])
@pytest.mark.parametrize("flush_messages", [1 << 40, 2])
@pytest.mark.parametrize("call", DEEP)
def test_append_in_a_deep_stack_is_in_or_has_raised(
    tmp_path: Path, call: str, flush_messages: int, magic: int
) -> None:
    """The two never come together, whichever of its calls finds no room, even a call of
    a sync; and the record is synced in time."""
    outcomes = set()
    settings: Any = {"flush_messages": flush_messages, "segment_bytes": 1000}
    # With index entries of each record, a sync goes deepest after its end.
    config = config_of(magic, flush_ms=5, index_interval_bytes=1, **settings)
    with open_store(tmp_path, _files=Unsynced()) as store:
        topic = store.create_topic("orders", 45, config)
        for spare, partition in enumerate(topic.partitions, 3):
            # All objects but the plan of a sync exist after this.
            append_one(partition)
            assert is_durable_in_time(partition)
            deep = functools.partial(DEEP[call], partition)
            has_raised = raises_in_deep_stack(deep, spare)
            assert has_raised == (partition.end_offset == 1), spare
            outcomes.add(has_raised)
            end = partition.end_offset
            assert append_one(partition) == end
            assert is_durable_in_time(partition)
            assert list(partition.read()) == expected(magic, 0, end + 1)
    assert outcomes == {True, False}


def no_memory(*arguments: object, **options: object) -> None:
    raise MemoryError


class Short(Unsynced):
    """Calls of the system, whose sync may have no memory."""

    is_short = False

    def sync(self, fd: int) -> None:
        if self.is_short:
            raise MemoryError


def test_append_that_is_in_does_not_raise_where_its_sync_has_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync is left to the next one, or to the thread that syncs in time; only a
    caller that asked for a sync, and got none, gets an error. After a sync there is no
    error."""
    files = Short()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, flush_messages=2)
        append_one(partition)
        files.is_short = True
        assert append_one(partition) == 1
        assert partition.durable_offset == 0
        with pytest.raises(MemoryError):
            append_one(partition, durable=True)
        assert partition.durable_offset == 0
        files.is_short = False
        with monkeypatch.context() as patch:
            patch.setattr(SegmentWriter, "write_indexes", no_memory)
            assert append_one(partition) == 3
            assert partition.durable_offset == 4
            assert append_one(partition, durable=True) == 4
            assert partition.durable_offset == 5
    assert read_all(tmp_path) == expected(1, 0, 5)


def test_append_inside_of_a_call_of_another_store_is_refused_before_it_is_in(
    tmp_path: Path,
) -> None:
    """Its sync could be: another thread may have the lock that it needs, and this one
    must not wait for that while it holds others. If the error came after the append,
    the caller would append again."""
    held = native.Mutex(5, "a lock of another store", new_group())
    config = logstore.TopicConfig(flush_messages=1)
    with logstore.open(tmp_path) as store:
        partition = store.create_topic("a", 1, config)[0]
        writer = appends_of(partition).writer()
        busy = threading.Event()

        def sync() -> None:
            with writer.sync_lock:
                busy.set()
                time.sleep(0.3)

        thread = threading.Thread(target=sync)
        thread.start()
        busy.wait()
        with held:
            with pytest.raises(
                logstore.errors.ReentrantCallError, match="nothing was writt"
            ):
                partition.append(b"x", durable=True)
            assert partition.end_offset == 0
            # This append is due to be synced, which is left to the store's thread.
            assert partition.append(b"y") == 0
        thread.join()
        partition.flush()
        assert [record.value for record in partition.read()] == [b"y"]
