"""A log whose topic is deleted under a reader: a read that has begun continues, if the
log was not cut before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import TopicNotFoundError
from logstore.store.opening import open_store
from support.damage import Unsynced
from support.read_ways import COUNT, WAYS, append
from support.values import config_of


def test_read_of_a_topic_deleted_in_its_own_process_finishes(tmp_path: Path) -> None:
    """It continues with the files that it began with."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(1, segment_bytes=10_000))[0]
        append(p, b"old", COUNT)
        ways = [WAYS[way](p) for way in ("read", "batches", "arrow")]
        for records in ways:
            next(records)
        store.delete_topic("orders")
        for records in ways:
            assert len(list(records)) == COUNT - 1


CALLS: dict[str, Callable[[logstore.Partition], object]] = {
    "read": lambda p: p.read(),
    "follow": lambda p: p.follow(),
    "fetch": lambda p: p.fetch(0),
    "read_batches": lambda p: p.read_batches(),
    "read_arrow": lambda p: p.read_arrow(),
    "offset_for_time": lambda p: p.offset_for_time(0),
    "last_stable_offset": lambda p: p.last_stable_offset(),
    "start_offset": lambda p: p.start_offset,
    "end_offset": lambda p: p.end_offset,
    "durable_offset": lambda p: p.durable_offset,
    "segments": lambda p: p.segments,
    "mark": lambda p: p.mark(),
    "unchanged_below": lambda p: p.unchanged_below(logstore.types.LogMark("", 0)),
    "flush": lambda p: p.flush(),
    "retention": lambda p: p.apply_retention(dry_run=True),
}


@pytest.mark.parametrize("call", CALLS)
def test_new_call_on_a_deleted_topic_is_a_named_error(
    tmp_path: Path, call: str
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders")[0]
        p.append(b"x")
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            CALLS[call](p)


def test_follower_of_a_deleted_topic_gets_what_is_there_and_is_told(
    tmp_path: Path,
) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders")[0]
        p.append(b"first")
        follower = p.follow()
        assert next(follower).value == b"first"
        p.append(b"last")
        store.delete_topic("orders")
        assert next(follower).value == b"last"
        with pytest.raises(TopicNotFoundError):
            next(follower)


@pytest.mark.parametrize("durable_only", [False, True])
def test_follower_of_a_log_that_was_cut_and_deleted_gets_no_mixture(
    tmp_path: Path, durable_only: bool
) -> None:
    """The files that it began with still exist, but the files of the deleted log do
    not, from the cut on."""
    config = config_of(2, segment_bytes=2_000)
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config)[0]
        append(p, b"old", 20)
        p.flush()
        cut = p.segments[1].base_offset
        follower = p.follow(durable_only=durable_only)
        found = [next(follower).offset for _ in range(cut)]
        p.truncate_to(cut)
        append(p, b"new", 20)
        p.flush()
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            for record in follower:
                found.append(record.offset)
        assert found == list(range(cut))


def test_follower_that_waits_is_told_of_a_deletion_at_once(tmp_path: Path) -> None:
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders")[0]
        p.append(b"x")
        told: list[object] = []

        def follow() -> None:
            try:
                list(p.follow(timeout=30))
            except logstore.LogStoreError as error:
                told.append(type(error))

        thread = threading.Thread(target=follow)
        thread.start()
        time.sleep(0.1)
        store.delete_topic("orders")
        thread.join(10)
        assert told == [TopicNotFoundError]


@pytest.mark.parametrize("stop", [None, 1900])
@pytest.mark.parametrize("on_corruption", ["raise", "skip"])
@pytest.mark.parametrize("way", ["read", "read_batches", "read_arrow", "follow"])
def test_log_that_is_cut_and_then_deleted_is_gone_for_who_reads_it(
    tmp_path: Path, way: str, on_corruption: str, stop: int | None
) -> None:
    """Its own process keeps the files of a read that has begun, but they were cut: even
    a read up to the cut has more to read."""
    with open_store(tmp_path, _files=Unsynced()) as store:
        p = store.create_topic("orders", config=config_of(2))[0]
        append(p, b"old", COUNT)
        options: dict[str, Any] = {"on_corruption": on_corruption}
        if way != "follow":
            options["stop"] = stop
        elif stop is not None:
            options["timeout"] = 0.05
        if way == "read_arrow":
            options["batch_records"] = 10
        found = iter(getattr(p, way)(**options))
        next(found)
        p.truncate_to(1900)
        append(p, b"new", COUNT)
        store.delete_topic("orders")
        with pytest.raises(TopicNotFoundError):
            for each in found:
                assert "new" not in str(each)
