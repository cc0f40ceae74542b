"""When appended records are synced: at once, after a number of them, or after some
time."""

from __future__ import annotations

import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.io.scheduler import Scheduler
from logstore.log.write.syncs import Syncs
from logstore.store.opening import open_store
from support.appending import is_durable_in_time
from support.damage import FaultyFiles, Unsynced
from support.values import append_one, append_records, config_of, fill, new_partition


def test_concurrent_durable_appends_share_syncs(tmp_path: Path) -> None:
    """Callers that arrive during a sync are served together by the next one."""
    files = FaultyFiles()
    threads, each = 8, 5
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        append_one(partition, durable=True)
        files.forget()
        files.before = lambda method, name: (
            time.sleep(0.01) if (method, name[-4:]) == ("sync", ".log") else None
        )
        seen: list[int] = []

        def work() -> None:
            for _ in range(each):
                offset = partition.append(b"x", durable=True)
                assert partition.durable_offset > offset
                seen.append(offset)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert sorted(seen) == list(range(1, 1 + threads * each))
        syncs = files.count("sync", ".log")
        assert each <= syncs < threads * each
        assert partition.durable_offset == partition.end_offset


def test_durable_append_of_what_is_durable_already_syncs_nothing(
    tmp_path: Path,
) -> None:
    """A flush with nothing to flush costs no sync."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        append_one(partition, durable=True)
        files.forget()
        partition.flush()
        partition.append_many([], durable=True)
        assert files.count("sync", ".log") == 0


def test_flush_messages_syncs_after_so_many_records(tmp_path: Path) -> None:
    """At most M records lie between durable and end."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, flush_messages=10)
        fill(partition, 9, call=1)
        assert files.count("sync", ".log") == 0
        append_one(partition)
        assert files.count("sync", ".log") == 1
        assert partition.durable_offset == 10
        append_records(partition, 35)
        assert partition.durable_offset == 45
        assert files.count("sync", ".log") == 2


def test_sync_beside_an_append_that_is_undone_later_counts(tmp_path: Path) -> None:
    """Records that are not durable at the append may be durable when it is undone."""
    files = FaultyFiles()
    syncing, go_on, is_over = threading.Event(), threading.Event(), threading.Event()
    config = logstore.TopicConfig(flush_messages=1 << 40, flush_ms=1 << 40)
    with open_store(tmp_path, _files=files) as store:
        partition = store.create_topic("orders", config=config)[0]
        partition.append_many([b"x"] * 10)
        flusher = threading.Thread(target=partition.flush)

        def before(method: str, name: str) -> None:
            if threading.current_thread() is flusher:
                if method == "sync" and name.endswith(".log"):
                    syncing.set()
                    assert go_on.wait(10)
            elif method in ("write", "truncate") and not is_over.is_set():
                raise KeyboardInterrupt  # also while it is undone

        files.before = before
        flusher.start()
        assert syncing.wait(10)
        with pytest.raises(KeyboardInterrupt):
            partition.append_many([b"y"] * 10)
        go_on.set()
        flusher.join(10)
        assert not flusher.is_alive()
        is_over.set()
        assert partition.append(b"z") == 10
        assert partition.durable_offset == 10


def test_flush_ms_syncs_without_a_further_append(tmp_path: Path) -> None:
    """Records become durable by themselves after S."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, flush_ms=5)
        for end in (3, 6):
            append_records(partition, 3)
            deadline = time.monotonic() + 20
            while partition.durable_offset < end and time.monotonic() < deadline:
                time.sleep(0.002)
            assert partition.durable_offset == end


def big_append(partition: logstore.Partition) -> int:
    """Append 20 MB that no codec makes smaller; returns the end."""
    return partition.append_many([random.randbytes(1_000_000) for _ in range(20)]).stop


@pytest.mark.parametrize("codec", ["none", "lz4"])
@pytest.mark.parametrize("magic", [1, 2])
def test_much_that_no_policy_syncs_is_synced_in_the_background(
    tmp_path: Path, magic: int, codec: str
) -> None:
    """A roll or a deletion then has little left to sync."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, magic, codec)
        append_one(partition)
        time.sleep(0.05)
        assert partition.durable_offset == 0
        end = big_append(partition)
        files.forget()
        for _ in range(2):
            # The next append finds that many bytes are not synced.
            append_one(partition)
            deadline = time.monotonic() + 20
            while partition.durable_offset < end and time.monotonic() < deadline:
                time.sleep(0.002)
            assert partition.durable_offset >= end
            end = big_append(partition)
        partition.flush()
        assert files.count("sync", ".log") <= 5


def test_little_that_no_policy_syncs_is_not_synced(tmp_path: Path) -> None:
    """Bytes that a caller has synced, and bytes of another segment, do not count."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        for _ in range(3):
            append_one(partition)
            big_append(partition)
            partition.flush()
            partition.roll()
            files.forget()
            for _ in range(10):
                partition.append(bytes(1_000))
            time.sleep(0.05)
            assert files.count("sync", ".log") == 0


@pytest.mark.parametrize("is_clean", [True, False])
def test_what_an_opening_found_durable_or_made_so_is_not_synced_again(
    tmp_path: Path, is_clean: bool
) -> None:
    """Such bytes do not count as bytes that no policy syncs."""
    with open_store(tmp_path, _files=FaultyFiles()) as store:
        partition = new_partition(store)
        big_append(partition)
        big_append(partition)
        if is_clean:
            partition.flush()
        copy = tmp_path / "copy"
        shutil.copytree(tmp_path, copy, ignore=shutil.ignore_patterns("copy"))
    files = FaultyFiles()
    with open_store(copy, _files=files) as store:
        partition = store.topic("orders")[0]
        assert partition.durable_offset == partition.end_offset > 1
        files.forget()
        for _ in range(10):
            append_one(partition)
        time.sleep(0.05)
        assert files.count("sync", ".log") == 0


def test_failed_sync_in_the_background_is_raised_by_the_next_append(
    tmp_path: Path,
) -> None:
    """This includes an early sync; nothing is acknowledged after it."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        end = big_append(partition)
        files.fail("sync", name=".log")
        deadline = time.monotonic() + 20
        with pytest.raises(logstore.errors.SyncFailedError):
            while time.monotonic() < deadline:
                end = append_one(partition) + 1
                time.sleep(0.002)
        files.heal()
        with pytest.raises(logstore.errors.SyncFailedError):
            append_one(partition)
        assert partition.end_offset == end


@pytest.mark.parametrize("error", [logstore.StorageError("full"), MemoryError()])
def test_early_sync_that_cannot_be_planned_is_planned_by_a_later_append(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An append needs no such sync; with no memory, nothing is appended."""
    call_later = Scheduler.call_later
    failures = 0

    def plan(self: Scheduler, delay_ms: int, task: Callable[[], None]) -> None:
        nonlocal failures
        if delay_ms == 0 and failures < 2:
            failures += 1
            raise error
        call_later(self, delay_ms, task)

    with open_store(tmp_path, _files=FaultyFiles()) as store:
        partition = new_partition(store)
        end = big_append(partition)
        monkeypatch.setattr(Scheduler, "call_later", plan)
        for _ in range(2):
            if isinstance(error, MemoryError):
                with pytest.raises(MemoryError):
                    append_one(partition)
            else:
                append_one(partition)
                end += 1
        assert failures == 2
        assert partition.end_offset == end
        assert partition.durable_offset == 0
        append_one(partition)
        assert is_durable_in_time(partition)


def test_shorter_flush_ms_counts_for_what_is_appended_next(tmp_path: Path) -> None:
    """The old settings may have planned a sync for an hour later; records appended
    under these are durable at once."""
    hour = 3_600_000
    with open_store(tmp_path, _files=Unsynced()) as store:
        partition = new_partition(store, flush_ms=hour)
        topic = store.topic("orders")
        for _ in range(2):
            append_one(partition)
            assert partition.durable_offset < partition.end_offset
            topic.configure(config_of(flush_ms=5))
            assert partition.durable_offset == partition.end_offset
            append_one(partition)
            assert is_durable_in_time(partition)
            topic.configure(config_of(flush_ms=hour))


def test_append_without_durable_syncs_nothing(tmp_path: Path) -> None:
    """An append only writes; syncs come by policy."""
    files = FaultyFiles()
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        append_one(partition)
        files.forget()
        fill(partition, 50, call=1)
        assert files.count("sync") == 0
        assert files.count("write", ".log") == 50


@pytest.mark.parametrize("call", ["append", "append_many", "flush"])
def test_log_that_is_cut_in_front_of_a_sync_takes_more_appends(
    tmp_path: Path, call: str
) -> None:
    """Another thread cuts between an append and the sync that it waits for: removed
    records need not be synced."""
    with open_store(tmp_path) as store:
        partition = new_partition(store)
        append_one(partition)
        append_one(partition)
        found: list[object] = []

        def work() -> None:
            if call == "append":
                found.append(partition.append(b"x", durable=True))
            elif call == "append_many":
                found.append(partition.append_many([b"x"] * 4, durable=True))
            else:
                found.append(partition.flush())

        turns: Any = partition._writer.syncs._turns  # type: ignore[union-attr]
        worker, end = threading.Thread(target=work), partition.end_offset
        with turns.take(0):
            worker.start()
            count = {"append": 1, "append_many": 4, "flush": 0}[call]
            deadline = time.monotonic() + 20
            while partition.end_offset < end + count or not turns.waiting:
                assert time.monotonic() < deadline
            cutter = threading.Thread(target=partition.truncate_to, args=(1,))
            cutter.start()
            cutter.join(20)
        worker.join(20)
        assert found == [{"append": 2, "append_many": range(2, 6), "flush": None}[call]]
        assert partition.end_offset == 1
        assert partition.append(b"x", durable=True) == 1
        assert partition.durable_offset == 2


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
@pytest.mark.parametrize("at", ["its begin", "its plan"])
def test_sync_by_time_that_has_no_memory_is_tried_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: str,
    error: type[Exception],
) -> None:
    """At its begin, or when it finds the partition busy and plans to come again: it is
    the only one that is planned, and would not come any more."""
    files = FaultyFiles()
    busy, failed = threading.Event(), threading.Event()
    call_later, flush_due = Scheduler.call_later, Syncs.flush_due

    def begin(syncs: Syncs) -> None:
        if at == "its begin" and not failed.is_set():
            failed.set()
            raise error
        flush_due(syncs)

    def plan(self: Scheduler, delay_ms: int, task: Callable[[], None]) -> None:
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main and not failed.is_set():
            failed.set()
            raise error
        call_later(self, delay_ms, task)

    def before(method: str, name: str) -> None:
        # The append continues when the sync has met it.
        if method == "write" and name.endswith(".log") and not busy.is_set():
            busy.set()
            assert failed.wait(20)

    monkeypatch.setattr(Syncs, "flush_due", begin)
    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store, flush_ms=5)
        if at == "its plan":
            monkeypatch.setattr(Scheduler, "call_later", plan)
            files.before = before
        append_one(partition)
        assert is_durable_in_time(partition)
        assert failed.is_set()


def test_close_from_inside_the_turn_to_sync_is_refused(tmp_path: Path) -> None:
    """A signal handler, for example, makes it: it would wait for the background thread,
    which may wait for this turn."""
    files = FaultyFiles()
    refused: list[logstore.errors.ReentrantCallError] = []

    def interrupt(method: str, _: str) -> None:
        if method == "sync":
            with pytest.raises(logstore.errors.ReentrantCallError) as caught:
                store.close()
            refused.append(caught.value)

    with open_store(tmp_path, _files=files) as store:
        partition = new_partition(store)
        partition.append(b"x")
        files.before = interrupt
        partition.flush()
        files.before = None
        assert len(refused) == 1
        assert partition.durable_offset == 1
        assert partition.append(b"y", durable=True) == 1
