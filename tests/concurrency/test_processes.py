"""Several processes: one writer, many readers, forks and kills."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import logstore
from support.values import (
    append_one,
    expected,
    fill,
    new_partition,
    read_all,
    write_store,
)

FORK = multiprocessing.get_context("fork")


def in_child(target: Callable[..., Any], *args: Any) -> Any:
    """Result of `target(*args)` in a forked child."""
    here, there = FORK.Pipe()

    def run(out: Connection) -> None:
        try:
            out.send(target(*args))
        except BaseException as error:
            out.send((type(error).__name__, getattr(error, "holder_pid", None)))

    # A daemon: one that hangs must not keep the interpreter from ending.
    child = FORK.Process(target=run, args=(there,), daemon=True)
    child.start()
    there.close()
    try:
        assert here.poll(30), "the child hangs"
        result = here.recv()
        child.join(30)
        assert child.exitcode == 0
    finally:
        child.kill()
        here.close()
    return result


PRELUDE = """
import os, sys, time
import logstore
from support.values import *
path = sys.argv[1]
"""


def script(code: str, path: Path, **options: Any) -> subprocess.Popen[str]:
    """Another Python that runs `code` on a store."""
    tests = Path(__file__).parents[1]
    source = Path(logstore.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{tests}"}
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, str(path)],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def open_and_close(path: Path) -> str:
    logstore.open(path, lock_timeout_ms=0).close()
    return "opened"


def test_second_writer_in_another_process_is_told_the_holder(tmp_path: Path) -> None:
    """It gets StoreLockedError at once, with the pid of the holder; readers can open
    the store."""
    with logstore.open(tmp_path) as store:
        fill(new_partition(store), 5)
        assert in_child(open_and_close, tmp_path) == ("StoreLockedError", os.getpid())
        assert in_child(read_all, tmp_path) == expected(1, 0, 5)
    assert in_child(open_and_close, tmp_path) == "opened"


def test_lock_is_free_when_its_holder_was_killed(tmp_path: Path) -> None:
    """The lock is released with the process, whatever the lock file contains."""
    code = """
store = logstore.open(path)
fill(new_partition(store), 20, call=1)
print("ready", flush=True)
sys.stdin.read()
"""
    with script(code, tmp_path) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path)
        assert caught.value.holder_pid == writer.pid
        assert str(writer.pid) in str(caught.value)
        os.kill(writer.pid, signal.SIGSTOP)
        with pytest.raises(logstore.StoreLockedError):
            logstore.open(tmp_path)
        assert read_all(tmp_path) == expected(1, 0, 20)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait(30)
    with logstore.open(tmp_path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 20)


def kafkas_lock_is_free(path: Path) -> bool:
    """Whether a broker could take its lock on a store."""
    with (path / ".lock").open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def test_second_lock_keeps_writers_out_where_the_first_was_dropped(
    tmp_path: Path,
) -> None:
    """The system drops Kafka's lock when this process closes the file once more, as a
    copy of the directory does. The second lock stays, and the next sync takes Kafka's
    lock again, which keeps a broker out, too."""
    path = tmp_path / "data"
    with logstore.open(path) as store:
        partition = new_partition(store)
        fill(partition, 5)
        assert not in_child(kafkas_lock_is_free, path)
        for number in range(2):
            shutil.copytree(path, tmp_path / f"copy-{number}")
            assert in_child(kafkas_lock_is_free, path)
            assert in_child(open_and_close, path) == ("StoreLockedError", os.getpid())
            append_one(partition, durable=True)
            assert not in_child(kafkas_lock_is_free, path)
            assert in_child(open_and_close, path) == ("StoreLockedError", os.getpid())
    assert in_child(open_and_close, path) == "opened"
    assert read_all(path) == expected(1, 0, 7)


def test_writer_whose_dropped_lock_another_program_took_syncs_nothing(
    tmp_path: Path,
) -> None:
    """A broker that came in meanwhile may write to the same files: no record is
    reported as durable, and the partition takes no more."""
    code = """
import fcntl
file = open(path + "/.lock", "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("taken", flush=True)
sys.stdin.read()
"""
    store = logstore.open(tmp_path)
    partition = new_partition(store)
    fill(partition, 5)
    partition.flush()
    (tmp_path / ".lock").open("rb").close()
    with script(code, tmp_path) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "taken\n"
        assert append_one(partition) == 5
        with pytest.raises(
            logstore.errors.SyncFailedError, match=f"process {other.pid}"
        ):
            partition.flush()
        assert partition.durable_offset == 5
        for call in (append_one, lambda p: append_one(p, durable=True)):
            with pytest.raises(logstore.errors.SyncFailedError):
                call(partition)
        store.close()  # its cause was raised before
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path)
        assert caught.value.holder_pid == other.pid
        other.kill()
    with logstore.open(tmp_path) as store:
        assert list(store.topic("orders")[0].read()) == expected(1, 0, 6)


def forked_uses(store: logstore.Store, partition: logstore.Partition) -> list[str]:
    """The errors that each use of an inherited store raises."""
    found = []
    for use in (
        store.topics,
        lambda: store.topic("orders"),
        lambda: store.create_topic("new"),
        lambda: partition.append(b"x"),
        lambda: partition.append_many([b"x"]),
        lambda: partition.flush(),
        lambda: partition.read(),
        lambda: partition.end_offset,
        lambda: partition.roll(),
        lambda: partition.delete_before(0),
    ):
        try:
            use()
            found.append("nothing")
        except Exception as error:
            found.append(type(error).__name__)
    store.close()
    return found


@pytest.mark.parametrize("read_only", [False, True])
def test_store_inherited_by_a_fork_refuses_everything(
    tmp_path: Path, read_only: bool
) -> None:
    """In the child every use is a ForkedError; the parent does not notice."""
    write_store(tmp_path, 5)
    with logstore.open(tmp_path, read_only=read_only) as store:
        partition = store.topic("orders")[0]
        if not read_only:
            append_one(partition)
        assert set(in_child(forked_uses, store, partition)) == {"ForkedError"}
        if read_only:
            assert list(partition.read()) == expected(1, 0, 5)
            return
        # The child's close must not have dropped the parent's lock.
        assert in_child(open_and_close, tmp_path) == ("StoreLockedError", os.getpid())
        assert append_one(partition, durable=True) == 6
        assert list(partition.read()) == expected(1, 0, 7)
    assert read_all(tmp_path) == expected(1, 0, 7)


def test_fork_can_open_the_store_when_the_parent_has_closed_it(tmp_path: Path) -> None:
    """A child may be the next writer, also if it inherited the old store."""
    store = logstore.open(tmp_path)
    append_one(new_partition(store))
    store.close()
    assert in_child(open_and_close, tmp_path) == "opened"


def test_fork_while_other_threads_append_does_not_hang(tmp_path: Path) -> None:
    """Locks that another thread held at the fork are not waited for in the child."""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store)
        stop = threading.Event()

        def work() -> None:
            while not stop.is_set():
                append_one_safely(partition)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(10):
                assert in_child(open_and_close, tmp_path)[0] == "StoreLockedError"
                in_child(store.close)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        count = partition.end_offset
    assert len(read_all(tmp_path)) == count


def append_one_safely(partition: logstore.Partition) -> None:
    partition.append(b"x", durable=True)


def test_reader_in_another_process_follows_across_rolls(tmp_path: Path) -> None:
    """A reader in a fresh process gets every record once, while segments are rolled."""
    code = """
with logstore.open(path, read_only=True) as store:
    records = []
    print("ready", flush=True)
    for record in store.topic("orders")[0].follow(timeout=30):
        records.append(record)
        if len(records) == 600:
            break
    assert records == expected(1, 0, 600)
"""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=2000)
        append_one(partition)
        with script(code, tmp_path) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            while partition.end_offset < 600:
                append_one(partition)
                time.sleep(0.0005)
            assert reader.wait(60) == 0


def test_follower_in_another_process_survives_retention(tmp_path: Path) -> None:
    """It gets each record once and in order, or an error that its place was deleted."""
    code = """
with logstore.open(path, read_only=True) as store:
    partition = store.topic("orders")[0]
    offset, gaps = 0, 0
    print("ready", flush=True)
    while offset < 1500:
        try:
            for record in partition.follow(offset, timeout=20):
                assert record == record_of(offset, 1), (record, offset)
                offset = record.offset + 1
                if offset == 1500:
                    break
            else:
                sys.exit(f"nothing more at {offset}")
        except logstore.OffsetOutOfRangeError as error:
            assert error.start > offset, error
            offset, gaps = error.start, gaps + 1
    print("done", gaps, flush=True)
"""
    with logstore.open(tmp_path) as store:
        partition = new_partition(store, segment_bytes=1000, file_delete_delay_ms=5000)
        append_one(partition)
        with script(code, tmp_path) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            while partition.end_offset < 1500:
                fill(partition, 20, call=1)
                partition.delete_before(max(0, partition.end_offset - 150))
            assert reader.stdout.readline().startswith("done")
            assert reader.wait(30) == 0


@pytest.mark.parametrize("seed", range(4))
def test_killed_writer_loses_nothing_that_it_was_told_of(
    tmp_path: Path, seed: int
) -> None:
    """SIGKILL at any moment: every offset that was returned is there, in order, nothing
    is invented, and the log continues."""
    code = f"""
store = logstore.open(path)
config = config_of({seed % 3}, segment_bytes=3000, flush_messages=50)
partition = store.create_topic("orders", config=config, exist_ok=True)[0]
while True:
    os.write(1, b"%d\\n" % (append_records(partition, 7)[-1] + 1))
"""
    told = 0
    for _ in range(3):
        with script(code, tmp_path) as writer:
            assert writer.stdout is not None
            lines = [writer.stdout.readline()]
            for _ in range(20 + 13 * seed):
                lines.append(writer.stdout.readline())
            writer.kill()
            lines += writer.stdout.readlines()
            whole = [line for line in lines if line.endswith("\n")]
            told = int(whole[-1])
        found = read_all(tmp_path)
        assert len(found) >= told
        assert found == expected(seed % 3, 0, len(found))
    with logstore.open(tmp_path) as store:
        partition = store.topic("orders")[0]
        assert list(partition.read()) == found
        assert append_one(partition) == len(found)


def test_exit_without_close_flushes_or_loses_nothing_from_the_system(
    tmp_path: Path,
) -> None:
    """A program that forgets to close ends without a hang; its records are there."""
    code = """
store = logstore.open(path)
fill(new_partition(store, flush_ms=3_600_000), 20)
"""
    for ending in ("", "os._exit(0)", "sys.exit()"):
        path = tmp_path / (ending or "end").strip("()")
        with script(code + ending, path) as writer:
            assert writer.wait(30) == 0
        assert read_all(path) == expected(1, 0, 20)
        with logstore.open(path) as store:
            assert append_one(store.topic("orders")[0]) == 20


def test_file_size_limit_is_an_error_and_not_a_signal(tmp_path: Path) -> None:
    """RLIMIT_FSIZE is a full disk: DiskFullError, the log unchanged."""
    code = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
store = logstore.open(path)
partition = new_partition(store)
try:
    while True:
        fill(partition, 10)
except logstore.DiskFullError:
    pass
count = partition.end_offset
assert list(partition.read()) == expected(1, 0, count)
print(count, flush=True)
os._exit(0)
"""
    with script(code, tmp_path) as writer:
        assert writer.stdout is not None
        count = int(writer.stdout.read())
        assert writer.wait(30) == 0
    assert count > 50
    assert read_all(tmp_path) == expected(1, 0, count)
