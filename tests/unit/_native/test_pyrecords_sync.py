"""Syncs that threads share, and durable appends: each is one step of C."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native.decoding import connect_core
from logstore.io.layout import LOCK
from logstore.log.write.durable_point import DurablePointWriter
from logstore.log.write.syncs import Syncs
from support.values import values

NEVER = 1 << 60


class Calls:
    """Counts what the steps leave to Python, and may act in its place.

    Attributes:
        names: of the methods that were called.
        instead: functions that are called in place of methods.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self.instead: dict[str, Callable[..., Any]] = {}
        for name in ("sync_usual", "finish", "failed"):
            monkeypatch.setattr(Syncs, name, self._counting(name))

    def _counting(self, name: str) -> Callable[..., Any]:
        method = getattr(Syncs, name)

        def call(*args: Any) -> Any:
            self.names.append(name)
            return self.instead.get(name, method)(*args)

        return call


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Calls of the logs that are opened from now on."""
    return Calls(monkeypatch)


@pytest.fixture
def partition(tmp_path: Path, calls: Calls) -> Iterator[logstore.Partition]:
    """A partition with steps prepared for appends and for syncs."""
    with logstore.open(tmp_path / "data") as store:
        config = logstore.TopicConfig(flush_messages=NEVER, flush_ms=NEVER)
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        for _ in range(2):
            partition.append(b"x", durable=True)
        calls.names.clear()
        yield partition


def writer_of(partition: logstore.Partition) -> Any:
    return partition._writer


# ---------------------------------------------------------------- Durations


def test_durations_count_sum_and_keep_the_largest() -> None:
    durations = native.Durations()
    assert durations.get() == (0, 0.0, 0.0)
    for seconds in (0.5, 2, 0.25):
        durations.add(seconds)
    assert durations.get() == (3, 2.75, 2.0)
    with pytest.raises(TypeError):
        durations.add("1")  # type: ignore[arg-type]
    assert durations.get() == (3, 2.75, 2.0)


# ---------------------------------------------------------------- steps


def test_durable_appends_need_no_python(
    partition: logstore.Partition, calls: Calls
) -> None:
    syncs = writer_of(partition)._log.active.sync_times
    before = syncs.get()[0]
    for number in range(2, 40):
        assert partition.append(b"y", durable=True) == number
        assert partition.durable_offset == partition.end_offset == number + 1
    assert calls.names == []
    assert syncs.get()[0] == before + 38
    assert values(partition) == [b"x"] * 2 + [b"y"] * 38


def test_flush_behind_prepared_appends_needs_no_python(
    partition: logstore.Partition, calls: Calls
) -> None:
    for _ in range(3):
        partition.append(b"y")
        assert partition.durable_offset < partition.end_offset
        partition.flush()
        assert partition.durable_offset == partition.end_offset
    assert partition.append_many([b"z"] * 10, durable=True) == range(5, 15)
    assert partition.durable_offset == 15
    assert calls.names == []


def test_what_is_synced_is_what_the_durable_point_records(
    partition: logstore.Partition,
) -> None:
    point: DurablePointWriter = writer_of(partition)._log.point
    for _ in range(5):
        partition.append(b"y", durable=True)
    partition.append(b"not yet")
    assert point.synced.last_offset == partition.durable_offset - 1 == 6
    state = writer_of(partition)._log.active.writer.state
    assert point.synced.raw.base_offset == state.raw.base_offset
    assert 0 < point.synced.size < state.size


def test_index_entries_are_written_when_some_have_come_together(
    partition: logstore.Partition, calls: Calls
) -> None:
    """They are written at the latest for the durable point, which counts them."""
    active = writer_of(partition)._log.active
    written = active.writer.index.written
    for _ in range(70):
        partition.append(b"y" * 5000, durable=True)
    assert calls.names == ["finish"]
    assert active.writer.index.written >= written + 64
    partition.append(b"y" * 5000, durable=True)
    assert active.writer.index.written < active.writer.index.count
    writer_of(partition)._log.point_due()
    assert active.writer.index.written == active.writer.index.count


def test_first_sync_after_a_durable_point_plans_the_next_one(
    partition: logstore.Partition, calls: Calls
) -> None:
    log = writer_of(partition)._log
    assert log.point.is_scheduled
    log.point_due()
    assert not log.point.is_scheduled
    partition.append(b"y", durable=True)
    assert calls.names == ["finish"] or calls.names == ["sync_usual"]
    assert log.point.is_scheduled
    partition.append(b"y", durable=True)
    assert len(calls.names) == 1


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_threads_beside_rolls_and_readers(tmp_path: Path, magic: int) -> None:
    """Each record is durable when its append returns, whichever code appended it."""
    config = logstore.TopicConfig(
        message_format=magic, segment_bytes=20_000, flush_ms=NEVER
    )
    with logstore.open(tmp_path / "data") as store:
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        wrong: list[object] = []
        found: list[int] = []

        def append(name: int) -> None:
            for number in range(60):
                value = b"%d %d" % (name, number) + b"." * 300
                if number % 7 == 6:
                    offset = partition.append_many([value], durable=True)[0]
                else:
                    offset = partition.append(value, durable=True)
                if partition.durable_offset <= offset:
                    wrong.append(offset)
                found.append(offset)

        def follow() -> None:
            records = partition.follow(0, timeout=20, limit=360, durable_only=True)
            wrong.extend(r for n, r in enumerate(records) if r.offset != n)

        follower = threading.Thread(target=follow)
        follower.start()
        threads = [threading.Thread(target=append, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        follower.join(60)
        assert not follower.is_alive()
        assert wrong == []
        assert sorted(found) == list(range(360))
        everything = values(partition)
    with logstore.open(tmp_path / "data") as store:
        assert values(store.topic("orders")[0]) == everything


def test_appends_after_a_truncation_are_synced(partition: logstore.Partition) -> None:
    point: DurablePointWriter = writer_of(partition)._log.point
    partition.append(b"y", durable=True)
    partition.truncate_to(1)
    assert point.synced.raw.base_offset == -1
    for number in range(1, 4):
        assert partition.append(b"z", durable=True) == number
        assert partition.durable_offset == number + 1


# ---------------------------------------------------------------- during a sync


@contextlib.contextmanager
def beside_each_sync(work: Callable[[], object]) -> Iterator[None]:
    """Another thread does some work while a sync of C is under way, which has given
    the interpreter's lock away."""

    def sync(fd: int) -> int:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
        os.fdatasync(fd)
        return 0

    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(sync)
    connect_core(ls_sys_sync=ctypes.cast(function, ctypes.c_void_p).value or 0)
    try:
        yield
    finally:
        connect_core()


@pytest.mark.parametrize("magic", [1, 2])
def test_sync_during_which_the_log_rolls_covers_what_was_marked(
    tmp_path: Path, magic: int, calls: Calls
) -> None:
    """After a sync nothing is read that another thread may have replaced meanwhile: the
    writer and its indexes are used only if they are still the marked ones."""
    config = logstore.TopicConfig(
        message_format=magic, segment_bytes=2_000, flush_ms=NEVER
    )
    with logstore.open(tmp_path / "data") as store:
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        for _ in range(3):
            partition.append(b"x", durable=True)
        log = writer_of(partition)._log
        assert log.active.prepared is not None
        calls.names.clear()

        def roll() -> None:
            segments = len(partition.segments)
            while len(partition.segments) == segments:
                partition.append(b"y" * 900)

        with beside_each_sync(roll):
            offset = partition.append(b"z", durable=True)
        assert calls.names == ["finish"]
        assert partition.durable_offset > offset
        assert len(partition.segments) > 1
        partition.append(b"z", durable=True)
        assert partition.durable_offset == partition.end_offset
        found = values(partition)
        assert found[offset] == b"z"
    with logstore.open(tmp_path / "data") as store:
        assert values(store.topic("orders")[0]) == found


def test_sync_during_which_nothing_is_prepared_any_more_ends_the_usual_way(
    partition: logstore.Partition, calls: Calls
) -> None:
    """A log that rests or is closed has no writer when the sync is over."""
    prepared = writer_of(partition)._log.active.prepared
    with beside_each_sync(prepared.clear):
        assert partition.append(b"y", durable=True) == 2
    assert calls.names == ["finish"]
    assert partition.durable_offset == 3
    for number in range(3, 6):
        assert partition.append(b"z", durable=True) == number
    assert partition.durable_offset == 6


def test_finalizer_that_lets_the_log_rest_in_front_of_a_sync_is_survived(
    partition: logstore.Partition, calls: Calls
) -> None:
    """An allocation may start the garbage collector, and so any code. A step reads a
    log after that, and after the question whether it is prepared: the state of a log
    that rests is freed. (The address sanitizer sees a mistake here.)"""
    prepared = writer_of(partition)._log.active.prepared
    sync = writer_of(partition).syncs.shared.sync
    thresholds, done = gc.get_threshold(), []

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            gc.set_threshold(*thresholds)
            prepared.clear()
            done.append(True)

    for threshold in range(1, 40):
        partition.append(b"y", durable=True)
        end = partition.append(b"y") + 1
        gc.collect()
        Cycle()
        gc.set_threshold(threshold)
        sync(end)
        gc.set_threshold(*thresholds)
        assert partition.durable_offset == end
    assert len(done) > 2
    assert "sync_usual" in calls.names


def test_sync_beside_another_append_needs_no_python(
    partition: logstore.Partition, calls: Calls
) -> None:
    """The prepared part is the marked one: the step continues."""
    with beside_each_sync(lambda: partition.append(b"beside")):
        assert partition.append(b"y", durable=True) == 2
    assert calls.names == []
    assert (partition.durable_offset, partition.end_offset) == (3, 4)


# ---------------------------------------------------------------- failures


def test_failed_sync_is_not_tried_again_though_a_signal_hides_the_failure(
    partition: logstore.Partition, calls: Calls
) -> None:
    """Data that the system may have dropped does not become durable by a later sync."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    calls.instead["failed"] = interrupted
    log = writer_of(partition)._log
    file = os.dup(log.active.writer.fd)
    null = os.open("/dev/null", os.O_RDWR)  # takes all, and syncs nothing
    os.dup2(null, log.active.writer.fd)
    os.close(null)
    with pytest.raises(KeyboardInterrupt):
        partition.append(b"y", durable=True)
    os.dup2(file, log.active.writer.fd)
    os.close(file)
    calls.instead.clear()
    for _ in range(2):
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.flush()
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.append(b"y", durable=True)
    assert partition.durable_offset == 2


def test_sync_that_fails_is_not_tried_again(partition: logstore.Partition) -> None:
    """Its caller gets an error about possible loss, and so does each later one."""
    log = writer_of(partition)._log
    file = os.dup(log.active.writer.fd)
    null = os.open("/dev/null", os.O_RDWR)  # takes all, and syncs nothing
    os.dup2(null, log.active.writer.fd)
    os.close(null)
    before = log.active.sync_times.get()
    with pytest.raises(
        logstore.errors.SyncFailedError, match="offset 2 to 2 may be"
    ) as found:
        partition.append(b"y", durable=True)
    assert found.value.errno == errno.EINVAL
    os.dup2(file, log.active.writer.fd)
    os.close(file)
    for _ in range(2):
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.append(b"y", durable=True)
        with pytest.raises(logstore.errors.SyncFailedError):
            partition.flush()
    assert log.active.sync_times.get() == before
    assert partition.durable_offset == 2


def test_nothing_is_synced_for_a_store_that_another_program_has_locked(
    tmp_path: Path, partition: logstore.Partition
) -> None:
    path = tmp_path / "data" / LOCK
    os.close(os.open(path, os.O_RDONLY))  # drops the record lock of this process
    script = (
        f"import fcntl, sys; file = open({os.fspath(path)!r}, 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "print('taken', flush=True); sys.stdin.read()"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        with pytest.raises(
            logstore.errors.SyncFailedError, match=f"process {other.pid}"
        ):
            partition.append(b"y", durable=True)
        other.communicate(timeout=20)
    assert partition.durable_offset == 2


def test_record_lock_that_was_dropped_is_taken_again(
    tmp_path: Path, partition: logstore.Partition
) -> None:
    path = tmp_path / "data" / LOCK
    os.close(os.open(path, os.O_RDONLY))
    partition.append(b"y", durable=True)
    script = (
        f"import fcntl; file = open({os.fspath(path)!r}, 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    tried = subprocess.run([sys.executable, "-c", script], capture_output=True)
    assert b"BlockingIOError" in tried.stderr


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OSError])
def test_error_behind_the_sync_does_not_hide_that_it_was_done(
    partition: logstore.Partition,
    calls: Calls,
    error: type[Exception],
) -> None:
    """Without memory or stack, the work after it waits for the next sync; another error
    is raised."""
    log = writer_of(partition)._log
    log.point_due()  # so that the next sync has something to do
    partition.append(b"prepares")

    def fail(*_: object) -> None:
        raise error

    calls.instead["finish"] = fail
    if error is OSError:
        with pytest.raises(OSError):
            partition.append(b"y", durable=True)
    else:
        assert partition.append(b"y", durable=True) == 3
        assert partition.durable_offset == 4
        assert not log.point.is_scheduled
    calls.instead.clear()
    partition.append(b"z", durable=True)
    assert partition.durable_offset == 5
    assert log.point.is_scheduled


def test_deep_stack_appends_or_raises_before(partition: logstore.Partition) -> None:
    """Whatever rest of the stack there is, a record whose append raised is not in."""
    count = 0

    def dive() -> None:
        nonlocal count
        with contextlib.suppress(RecursionError):
            dive()
        if count < 60:
            end = partition.end_offset
            try:
                partition.append(b"y", durable=True)
                count += 1
            except RecursionError:
                assert partition.end_offset == end

    dive()
    assert count == 60
    assert partition.end_offset == partition.durable_offset == 62


def test_handler_that_raises_while_its_thread_waits_for_a_turn(
    partition: logstore.Partition,
) -> None:
    """The record is in the log, and the next sync covers it."""
    turns = writer_of(partition).syncs._turns
    working, over = threading.Event(), threading.Event()

    def work() -> None:
        with turns.take(0):
            working.set()
            deadline = time.monotonic() + 20
            while not turns.waiting and time.monotonic() < deadline:
                time.sleep(0.002)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            assert over.wait(20)

    def handle(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handle)
    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert working.wait(20)
        with pytest.raises(InterruptedError):
            partition.append(b"y", durable=True)
    finally:
        over.set()
        signal.signal(signal.SIGUSR1, before)
        worker.join(20)
    assert (partition.end_offset, partition.durable_offset) == (3, 2)
    assert partition.append(b"z", durable=True) == 3
    assert partition.durable_offset == 4


def test_child_of_a_fork_appends_nothing(partition: logstore.Partition) -> None:
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            partition.append(b"child", durable=True)
        except logstore.errors.ForkedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    assert partition.append(b"y", durable=True) == 2
    assert partition.durable_offset == 3


def test_closed_store_takes_no_durable_append(tmp_path: Path) -> None:
    store = logstore.open(tmp_path / "data")
    partition = store.create_topic("orders")[0]
    for _ in range(2):
        partition.append(b"x", durable=True)
    store.close()
    with pytest.raises(logstore.errors.StoreClosedError):
        partition.append(b"y", durable=True)


def test_arguments_that_do_not_fit_are_refused(partition: logstore.Partition) -> None:
    syncs = writer_of(partition).syncs
    prepared, lock = writer_of(partition).appends.prepared, writer_of(partition).lock
    right = (
        print, print, print, prepared, syncs._turns, lock, None, native.Durations(), (),
        0, 0, 0,
    )  # fmt: skip
    native.SharedSync(*right)
    for at in range(3, len(right)):
        wrong: list[Any] = list(right)
        wrong[at] = object()
        with pytest.raises(TypeError):
            native.SharedSync(*wrong)
    with pytest.raises(TypeError):
        syncs.shared.append(b"y")
    with pytest.raises(OverflowError):
        syncs.shared.sync(1 << 63)
    with pytest.raises(TypeError):
        syncs.shared.sync("1")
