"""Appends of a shared store that are refused, late or closed: their errors are true,
and no request or file is left."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
import logstore.aio
from logstore import Partition, Store, TopicConfig
from logstore.io import layout
from logstore.log.write.calls import Append
from logstore.store.hand_in import requester
from support import handing_in
from support.handing_in import DEAF, SERVING, Later
from support.values import config_of

# Fixtures.
path, owner = handing_in.path, handing_in.owner


def requester_of(shared: Store) -> requester.Requester:
    sharing = shared._sharing
    assert sharing is not None
    return sharing._requester


def staged_files(path: str) -> list[str]:
    return [name for name in os.listdir(path) if name.startswith(layout.STAGED_PREFIX)]


COMPACTS = TopicConfig(message_format=2, cleanup_policy="compact")
HEADERS = [("h", b"x")]


def published(store: Store, partition: Partition, value: bytes) -> None:
    with store.stage() as stage:
        stage.append_many(partition, [value])
    submitted = stage.finish()
    store.submit([submitted], identity="me", sequence=1)


KEYLESS: dict[str, Callable[[Store, Partition, bytes], object]] = {
    "append": lambda store, p, batch: p.append(b"v"),
    "append_many": lambda store, p, batch: p.append_many([b"v"]),
    "headers": lambda store, p, batch: p.append(b"v", headers=HEADERS),
    "topic": lambda store, p, batch: store.topic("a").append(b"v", partition=0),
    "batches": lambda store, p, batch: p.append_batches(batch),
    "submit": lambda store, p, batch: published(store, p, b"v"),
}


@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("way", KEYLESS)
def test_record_without_a_key_is_refused_by_a_topic_that_is_compacted_now(
    path: str, owner: Store, way: str, codec: str
) -> None:
    """The process that hands in has not seen the change of the settings: compaction
    would remove acknowledged records."""
    other = owner.create_topic("other", config=config_of(2))
    other.append(b"v")
    batch = Path(path, "other-0", f"{0:020d}.log").read_bytes()
    coded = TopicConfig(message_format=2, compression_type=codec)
    owner.topic("a").configure(coded)
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        partition.append(b"first", b"k")
        owner.topic("a").configure(COMPACTS)
        with pytest.raises(logstore.errors.InvalidRecordError, match="has no key"):
            KEYLESS[way](shared, partition, batch)
        assert partition.append(b"last", b"") == 1
        assert [record.value for record in partition.read()] == [b"first", b"last"]


def test_what_was_staged_without_keys_is_refused_by_a_topic_that_is_compacted_now(
    path: str, owner: Store
) -> None:
    """This includes a file that is as large as a segment."""
    topic = owner.topic("a")
    staged = []
    for count in (1, 200):
        with owner.stage() as stage:
            stage.append_many(
                topic[0], [bytes(100_000)] * count, [b"k"] * (count - 1) + [None]
            )
            staged.append(stage.finish())
    topic.configure(COMPACTS)
    for one in staged:
        with pytest.raises(logstore.errors.InvalidRecordError, match="has no key"):
            owner.publish([one])
    assert topic[0].end_offset == 0


def test_request_whose_place_is_used_again_is_not_withdrawn(
    path: str, owner: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is slow: another one takes its answer, and 64 more requests follow, so
    that only its own thread knows of it."""
    slow, go_on, said = threading.Event(), threading.Event(), list[Any]()
    real = requester.state_of
    with logstore.open(path, shared=True, hand_in_timeout_ms=300) as shared:
        partition = shared.topic("a")[0]
        partition.append(b"first")
        mine = requester_of(shared)
        too_late = mine._too_late

        def late(*arguments: Any) -> Any:
            slow.set()
            go_on.wait()
            return too_late(*arguments)

        def append() -> None:
            try:
                said.append(partition.append(b"slow"))
            except logstore.PublicationTimeoutError as error:
                said.append(error.outcome)

        monkeypatch.setattr(mine, "_too_late", late)
        thread = threading.Thread(target=append)
        with owner._publishing.publisher.lock:
            thread.start()
            slow.wait()
        monkeypatch.setattr(mine, "_too_late", too_late)
        for number in range(80):
            partition.append(b"%d" % number)
        go_on.set()
        thread.join()
        found = [record.value for record in partition.read()].count(b"slow")
    assert (said, found) in (([1], 1), (["not written"], 0))
    assert real is requester.state_of


def test_many_threads_find_places(path: str, owner: Store) -> None:
    """A thread that is answered frees its place at any time."""
    errors: list[BaseException] = []
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]

        def append() -> None:
            try:
                for number in range(10):
                    partition.append(b"%d" % number)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=append) for _ in range(80)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors
        assert partition.end_offset == 800


def test_wait_counts_from_the_call_of_a_task(path: str) -> None:
    """The wait in the queue of the thread counts, too."""
    with (
        logstore.open(path, config=DEAF),
        logstore.open(path, shared=True) as shared,
    ):
        mine = requester_of(shared)
        asked = Append((), b"", {})
        begun = [mine.begin(asked, 60_000, time.monotonic()) for _ in range(64)]
        with pytest.raises(logstore.PublicationTimeoutError) as caught:
            mine.begin(asked, 60_000, time.monotonic() - 60)
        assert caught.value.outcome == "not written"
        late = requester.time.monotonic() - 120
        assert len(begun) == 64
        with pytest.raises(logstore.PublicationTimeoutError):
            mine.begin(asked, 1_000, late)


def test_tasks_are_told_together(path: str) -> None:
    """There are more of them than slots."""

    async def work() -> list[Any]:
        async with await logstore.aio.open(
            path, shared=True, hand_in_timeout_ms=200
        ) as shared:
            partition = shared.topic("a")[0]
            appends = [partition.append(b"v") for _ in range(150)]
            return list(await asyncio.gather(*appends, return_exceptions=True))

    with logstore.open(path, config=SERVING) as owner:
        with owner._publishing.publisher.lock:
            outcomes = Later(lambda: asyncio.run(work())).get()
        assert owner.topic("a")[0].end_offset == 0
    assert {type(one) for one in outcomes} == {logstore.PublicationTimeoutError}
    assert {one.outcome for one in outcomes} == {"not written"}


def test_store_is_closed_while_a_request_is_made(path: str, owner: Store) -> None:
    """The thread that makes it holds a lock, and the closing one holds another."""
    shared = logstore.open(path, shared=True)
    partition = shared.topic("a")[0]
    partition.append(b"v")
    mine, is_held = requester_of(shared), threading.Event()

    def hold() -> None:
        with mine._lock:
            is_held.set()
            time.sleep(0.1)

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    shared.close()
    thread.join()
    assert mine._file is None
    with pytest.raises(logstore.errors.StoreClosedError):
        partition.append(b"w")


def test_close_from_inside_the_making_of_a_request_is_refused(
    path: str, owner: Store
) -> None:
    shared = logstore.open(path, shared=True)
    mine = requester_of(shared)
    with mine._lock, pytest.raises(logstore.errors.ReentrantCallError, match="inside"):
        mine._taken_out()
    shared.close()


@pytest.mark.parametrize("way", ["conflict", "late"])
def test_large_append_that_is_not_written_leaves_no_file(path: str, way: str) -> None:
    """The outcome shows that the file is not needed."""
    large = [bytes(1_000_000)] * 10
    with (
        logstore.open(path, config=SERVING) as owner,
        logstore.open(path, shared=True, hand_in_timeout_ms=500) as shared,
    ):
        partition = shared.topic("a")[0]
        if way == "conflict":
            with pytest.raises(logstore.errors.OffsetConflictError):
                partition.append_many(large, expected_offset=7)
        else:

            def late() -> None:
                with pytest.raises(logstore.PublicationTimeoutError) as caught:
                    partition.append_many(large)
                assert caught.value.outcome == "not written"

            with owner._publishing.publisher.lock:
                Later(late).get()
        assert staged_files(path) == []
        assert owner.topic("a")[0].end_offset == 0


@pytest.mark.parametrize("expected", [-1, 5, 1 << 62])
def test_expected_offset_is_refused_as_by_a_writer(
    path: str, owner: Store, expected: int
) -> None:
    """This holds even for no records."""
    with logstore.open(path, shared=True) as shared:
        for store in (owner, shared):
            partition = store.topic("a")[0]
            with pytest.raises(logstore.errors.OffsetConflictError):
                partition.append(b"v", expected_offset=expected)
            with pytest.raises(logstore.errors.OffsetConflictError):
                partition.append_many([], expected_offset=expected)
            assert partition.append(b"v") in (0, 1)
            end = partition.end_offset
            nothing = partition.append_many([], expected_offset=end)
            assert (nothing.start, nothing.stop) == (end, end)


@pytest.mark.parametrize("has_owner", [False, True])
def test_copy_of_hard_links_takes_no_request_of_the_original(
    path: str, tmp_path: Path, has_owner: bool
) -> None:
    """The original continues with its own files."""
    copy = str(tmp_path / "copy")
    with logstore.open(path, shared=True) as shared:
        partition = shared.topic("a")[0]
        assert partition.append(b"0") == 0
        held = logstore.open(path, lock_timeout_ms=60_000) if has_owner else None
        before = Path(path, ".logstore-lock").stat().st_ino
        shutil.copytree(path, copy, copy_function=os.link)
        with logstore.open(copy, shared=True) as other:
            assert other.topic("a")[0].append(b"of the copy") == 1
        assert partition.append(b"1") == 1
        with logstore.open(copy) as other:
            assert other.topic("a")[0].end_offset == 2
        if held is not None:
            assert partition.append(b"2") == 2
            held.close()
        assert Path(path, ".logstore-lock").stat().st_ino == before
        assert Path(copy, ".logstore-lock").stat().st_ino != before
        with logstore.open(path, lock_timeout_ms=60_000) as store:
            expected = [b"0", b"1", b"2"][: 2 + has_owner]
            assert [r.value for r in store.topic("a")[0].read()] == expected
            assert partition.append(b"last") == 2 + has_owner
    assert not any(name.startswith(".logstore-process") for name in os.listdir(copy))
