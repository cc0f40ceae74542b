"""Waiting for the lock of a store: for which holders, how long, and in which order."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

import logstore
from logstore.io import lock_record
from logstore.io.checkpoint.entries import first_entry
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.lock import StoreLock, description
from logstore.io.lock_record import (
    KEEPING,
    OWNER,
    TAKING,
    LockRecord,
    Purpose,
    state_of,
)
from logstore.io.lock_wait import let_waiter_first, take_lock

HOLDER = """
import sys
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.lock import StoreLock
from logstore.io.lock_record import Purpose
root = Directory.open_root(Files(), sys.argv[1])
held = StoreLock(root, Purpose(sys.argv[2], sys.argv[3] == "others"))
print("held", flush=True)
if sys.argv[4] == "lets go":
    while not held.record.is_awaited:
        pass
else:
    sys.stdin.read(1)
held.release()
print("released", flush=True)
sys.stdin.read()
"""
BROKER = """
import fcntl, sys
file = open(sys.argv[1] + "/.lock", "a+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def running(code: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line."""
    with subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()


def holder(
    path: Path, doing: str = OWNER, others: str = "", ends: str = "when it is told"
) -> contextlib.AbstractContextManager[subprocess.Popen[str]]:
    return running(HOLDER, str(path), doing, others, ends)


def tell(process: subprocess.Popen[str]) -> None:
    """Let a holder give the lock back."""
    assert process.stdin is not None
    process.stdin.write("x")
    process.stdin.flush()


@pytest.fixture
def root(tmp_path: Path) -> Directory:
    return Directory.open_root(Files(), str(tmp_path))


def test_holder_describes_itself(tmp_path: Path, root: Directory) -> None:
    """The error and its message have the process, program, machine and time of the
    holder."""
    before = time.time_ns() // 1_000_000
    with holder(tmp_path, others="others") as process:
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path, lock_timeout_ms=0)
        found = caught.value.holder
        assert found is not None
        assert caught.value.holder_pid == found.pid == process.pid
        assert (found.host, found.doing) == (os.uname().nodename, OWNER)
        assert found.program == "python"
        assert found.publishes_for_others
        assert found.since is not None
        assert before <= found.since <= time.time_ns() // 1_000_000
        assert f"process {process.pid} (python on " in str(caught.value)
        assert "publishes for others" in str(caught.value)
        assert state_of(root).holder == found
    assert state_of(root)[:3] == (None, False, False)


def test_time_of_the_end_is_known(tmp_path: Path, root: Directory) -> None:
    """The time is known for a holder that released the lock, not for one that was
    killed."""
    before = time.time_ns() // 1_000_000
    logstore.open(tmp_path).close()
    until = state_of(root).until
    assert until is not None
    assert before <= until <= time.time_ns() // 1_000_000
    with holder(tmp_path) as process:
        assert state_of(root).until is None
        process.kill()
        process.wait()
        assert state_of(root).until is None


def test_holder_that_is_killed_is_described_no_more(
    tmp_path: Path, root: Directory
) -> None:
    """A description counts as long as its process holds a lock on a byte of the
    file."""
    with holder(tmp_path) as process:
        process.kill()
        process.wait()
        assert (tmp_path / ".logstore-lock").read_bytes()[64:70] == b"xxh64 "
        assert state_of(root).holder is None
        logstore.open(tmp_path, lock_timeout_ms=0).close()


def test_broker_is_told_from_logstore_at_once(tmp_path: Path) -> None:
    """A broker has no record."""
    logstore.open(tmp_path).close()
    with running(BROKER, str(tmp_path)) as process:
        with pytest.raises(logstore.StoreLockedError, match="another program") as told:
            logstore.open(tmp_path, lock_timeout_ms=0)
        assert told.value.holder == logstore.errors.Holder(process.pid)


def test_process_that_takes_the_lock_is_no_other_program(
    tmp_path: Path, root: Directory
) -> None:
    """Between the lock and the record, a locked byte shows this."""
    record = LockRecord(root, may_create=True)
    record.begin()
    with running(BROKER, str(tmp_path)):
        assert state_of(root)[:3] == (None, True, False)
        with pytest.raises(logstore.StoreLockedError) as told:
            logstore.open(tmp_path, lock_timeout_ms=0)
        assert told.value.holder is not None
        assert told.value.holder.doing == TAKING
    record.close()


@pytest.mark.parametrize("timeout_ms", [0, 50])
def test_owner_is_waited_for_no_longer_than_asked(
    tmp_path: Path, timeout_ms: int
) -> None:
    with holder(tmp_path):
        begun = time.monotonic()
        with pytest.raises(logstore.StoreLockedError) as caught:
            logstore.open(tmp_path, lock_timeout_ms=timeout_ms)
        assert time.monotonic() - begun >= timeout_ms / 1000
        assert ("waited for 50 ms" in str(caught.value)) == bool(timeout_ms)
        with logstore.open(tmp_path, read_only=True):
            pass


def test_owner_that_ends_is_followed(tmp_path: Path) -> None:
    """By any waiter, however many there are."""
    paths: list[str] = []

    def open_it() -> None:
        with logstore.open(tmp_path, lock_timeout_ms=60_000) as store:
            paths.append(store.path)

    with holder(tmp_path) as process:
        waiter = threading.Thread(target=open_it)
        waiter.start()
        time.sleep(0.15)
        assert not paths
        tell(process)
        waiter.join()
    assert len(paths) == 1


def test_process_does_not_wait_for_itself(tmp_path: Path) -> None:
    with logstore.open(tmp_path):
        begun = time.monotonic()
        with pytest.raises(logstore.StoreLockedError, match="this process"):
            logstore.open(tmp_path, lock_timeout_ms=60_000)
        assert time.monotonic() - begun < 30


def test_holder_for_a_moment_is_asked_to_let_go(
    tmp_path: Path, root: Directory
) -> None:
    """The request is a lock on a byte, which the holder sees."""
    with holder(tmp_path, KEEPING, ends="lets go"):
        take_lock(root, Purpose(OWNER, timeout_ms=60_000)).release()
    assert not state_of(root).is_awaited


def test_owner_is_not_asked_to_let_go(tmp_path: Path, root: Directory) -> None:
    """A later short-term holder is asked."""
    with holder(tmp_path) as process:
        done = threading.Event()

        def wait() -> None:
            take_lock(root, Purpose(OWNER, timeout_ms=60_000)).release()
            done.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.15)
        assert not state_of(root).is_awaited
        assert not done.is_set()
        tell(process)
        waiter.join()
    assert done.is_set()


def test_waiter_goes_first(tmp_path: Path, root: Directory) -> None:
    """A process that takes the lock for a moment leaves it to one that waits to own the
    store, and waits for that no longer than 200 ms: it may be stopped."""
    let_waiter_first(root)
    waiter = LockRecord(root, may_create=True)
    assert waiter.wait_for_lock()
    begun = time.monotonic()
    held = take_lock(root, Purpose(KEEPING))
    assert time.monotonic() - begun >= 0.2
    held.release()
    with holder(tmp_path):
        begun = time.monotonic()
        with pytest.raises(logstore.StoreLockedError):
            take_lock(root, Purpose(KEEPING))
        assert time.monotonic() - begun < 0.2
    waiter.end_wait()
    assert not state_of(root).is_awaited


def test_stopped_taker_delays_others_once(tmp_path: Path, root: Directory) -> None:
    """It has the byte of processes that take the lock, and not the lock."""
    stopped = LockRecord(root, may_create=True)
    stopped.begin()
    held = StoreLock(root)
    assert state_of(root).holder is not None
    held.release()
    stopped.close()
    assert state_of(root)[:3] == (None, False, False)


def test_holder_is_described_though_the_last_one_is_dying(
    tmp_path: Path, root: Directory
) -> None:
    """The dying holder's lock is released, but the byte that marks its record as valid
    is not yet."""
    dying = LockRecord(root, may_create=True)
    assert dying._set(lock_record._VALID)
    timer = threading.Timer(0.01, dying.close)
    timer.start()
    held = StoreLock(root)
    timer.join()
    found = state_of(root).holder
    assert found is not None
    assert found.pid == os.getpid()
    held.release()


def test_nobody_waits_for_a_byte_that_cannot_be_locked(tmp_path: Path) -> None:
    """Some file systems have no such locks."""

    class Refusing(Files):
        def lock_byte(self, fd: int, pos: int) -> bool:
            raise OSError(errno.ENOLCK, "refused")

    with mock.patch.object(lock_record, "time", wraps=time) as clock:
        held = StoreLock(Directory.open_root(Refusing(), str(tmp_path)))
        held.release()
    assert not clock.sleep.called


def test_long_wait_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning contains the holder, its start, and the length of the wait."""
    with (
        holder(tmp_path) as process,
        caplog.at_level(logging.WARNING, logger="logstore"),
        pytest.raises(logstore.StoreLockedError),
    ):
        logstore.open(tmp_path, lock_timeout_ms=1_400)
    (told,) = [record.getMessage() for record in caplog.records]
    assert f"process {process.pid} (python on " in told
    assert told.endswith("waiting for it for 1.4 s")


def test_interrupted_wait_leaves_nothing_locked(
    tmp_path: Path, root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    from logstore.io import lock_wait

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with holder(tmp_path, KEEPING):
        monkeypatch.setattr(lock_wait.Wakeups, "wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            take_lock(root, Purpose(OWNER, timeout_ms=60_000))
        assert not state_of(root).is_awaited


def test_child_of_a_fork_holds_no_record(tmp_path: Path, root: Directory) -> None:
    """The parent's record ends with the parent's lock."""
    store = logstore.open(tmp_path)
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    store.close()
    assert state_of(root)[:3] == (None, False, False)
    os.close(write)
    os.waitpid(pid, 0)
    os.close(read)


def test_child_of_a_fork_holds_no_lock_that_another_thread_was_taking(
    tmp_path: Path, root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variables of that thread stay in the child, but the thread does not: the lock
    falls when the parent is killed."""
    read, write = os.pipe()
    parent = os.fork()
    if not parent:
        os.close(write)
        taken = threading.Event()
        monkeypatch.setattr(
            LockRecord, "show", lambda *_: (taken.set(), time.sleep(99))
        )
        threading.Thread(target=lambda: StoreLock(root), daemon=True).start()
        taken.wait()
        if os.fork():
            os._exit(0)
        os.read(read, 1)
        os._exit(0)
    try:
        os.waitpid(parent, 0)
        # The child may not have begun.
        take_lock(root, Purpose(timeout_ms=10_000)).release()
        assert state_of(root)[:3] == (None, False, False)
    finally:
        os.close(write)
        os.close(read)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x" * 4096,
        bytes(64) + b"xxh64 0000000000000000\n{}\n",
        bytes(64) + first_entry(b'{"version":1}'),
        bytes(64) + first_entry(b'{"version":1,"pid":1,"since_ms":999999999999999999}'),
    ],
)
def test_record_that_says_nothing_is_still_one(
    tmp_path: Path, root: Directory, content: bytes
) -> None:
    """Its lock counts. Its content may be half written."""
    held = StoreLock(root)
    (tmp_path / ".logstore-lock").write_bytes(content)
    found = state_of(root).holder
    assert found == logstore.errors.Holder(doing=OWNER)
    assert description(found) == ""
    held.release()


@pytest.mark.parametrize("kind", ["directory", "link"])
def test_record_that_cannot_be_written_is_done_without(
    tmp_path: Path, root: Directory, kind: str
) -> None:
    """It excludes no process."""
    place = tmp_path / ".logstore-lock"
    if kind == "directory":
        place.mkdir()
    else:
        place.symlink_to(tmp_path / "elsewhere")
    with logstore.open(tmp_path) as store:
        store.create_topic("orders")[0].append(b"v")
    assert state_of(root)[:3] == (None, False, False)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("value", [-1, 1.5, "1", None])
def test_timeout_is_a_number_of_milliseconds(tmp_path: Path, value: object) -> None:
    with pytest.raises((logstore.ConfigError, TypeError)):
        logstore.open(tmp_path, lock_timeout_ms=value)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())
