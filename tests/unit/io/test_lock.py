"""The lock of a store, among the threads of one process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from unittest import mock

import pytest

import logstore
from faults.tracing import PENDING, make_pending
from logstore import _native as native
from logstore._native.locks import RANK_CLOSE, new_group
from logstore.io import lock
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.lock import StoreLock


def test_lock_is_released_though_another_thread_opens_a_store(tmp_path: Path) -> None:
    """The thread that closes a store holds a lock of it; the lock of the process, which
    the other thread holds for a moment, is in another group."""
    root = Directory.open_root(Files(), str(tmp_path))
    held = StoreLock(root)
    is_taken, may_end = threading.Event(), threading.Event()

    def open_slowly() -> None:
        with lock._guard:
            is_taken.set()
            may_end.wait()

    other = threading.Thread(target=open_slowly)
    other.start()
    is_taken.wait()
    timer = threading.Timer(0.05, may_end.set)
    timer.start()
    with native.Mutex(RANK_CLOSE, "a store that is closed", new_group()):
        held.release()
    assert may_end.is_set()
    assert not held.is_held
    other.join()
    timer.join()
    StoreLock(root).release()


def test_lock_on_a_file_that_lost_its_name_is_taken_again(tmp_path: Path) -> None:
    """Two processes that open a copy made of hard links are not both its writer: the
    lock on the file that has the name counts."""

    class Replaced(Files):
        is_done = False

        def lock(self, fd: int) -> int | None:
            if not self.is_done:
                self.is_done = True
                new = tmp_path / "new"
                new.touch()
                new.rename(tmp_path / ".lock")
            return super().lock(fd)

    (tmp_path / ".lock").touch()
    held = StoreLock(Directory.open_root(Replaced(), str(tmp_path)))
    assert held.file is not None
    assert os.path.samestat(os.fstat(held.file.fd), (tmp_path / ".lock").stat())
    with pytest.raises(logstore.StoreLockedError):
        StoreLock(Directory.open_root(Files(), str(tmp_path)))
    held.release()


def test_lock_of_a_linked_copy_that_another_process_replaces_is_refused(
    tmp_path: Path,
) -> None:
    """The other process is its writer, though this one had seen the original's lock."""
    original, copy = tmp_path / "original", tmp_path / "copy"
    with logstore.open(original) as store:
        store.create_topic("t").append(b"x")
    shutil.copytree(original, copy, copy_function=os.link)
    other: list[logstore.Store] = []

    class Slow(Files):
        def create(self, dir_fd: int, name: str, *, exclusive: bool = True) -> int:
            if name == ".lock" and not other:
                other.append(logstore.open(copy))
            return super().create(dir_fd, name, exclusive=exclusive)

    root = Directory.open_root(Slow(), str(copy))
    alone = mock.patch.object(lock, "_alone", lambda work: work())
    with alone, pytest.raises(logstore.StoreLockedError):
        StoreLock(root)
    other[0].close()
    logstore.open(original).close()


def test_another_process_is_refused_before_it_takes_the_lock_of_a_broker(
    tmp_path: Path,
) -> None:
    """An owner takes its dropped lock again at its next sync: a lock that another
    logstore holds for a moment would look like a second writer."""

    class Counted(Files):
        taken = 0

        def lock(self, fd: int) -> int | None:
            self.taken += 1
            return super().lock(fd)

    (tmp_path / ".lock").touch()
    with (tmp_path / ".lock").open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        files = Counted()
        with pytest.raises(logstore.StoreLockedError):
            StoreLock(Directory.open_root(files, str(tmp_path)))
    assert not files.taken


def test_release_from_inside_another_one_is_refused(tmp_path: Path) -> None:
    """It would wait for itself."""
    held = StoreLock(Directory.open_root(Files(), str(tmp_path)))
    with lock._guard, pytest.raises(logstore.errors.ReentrantCallError):
        held.release()
    assert held.is_held
    held.release()


def test_stores_are_opened_and_closed_by_many_threads(tmp_path: Path) -> None:
    """Each thread has a separate store; no close is refused."""
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for _ in range(20):
                with logstore.open(tmp_path / str(number)):
                    time.sleep(0)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_interrupt_leaves_the_guard_of_the_process_free(tmp_path: Path) -> None:
    """The interrupt comes at any instruction of taking and releasing a lock, for other
    threads too."""

    class Interrupt(BaseException):
        pass

    files = (lock.__file__, contextlib.__file__)

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_filename in files:
            raise Interrupt

    def work(root: Directory) -> None:
        StoreLock(root).release()

    handler = signal.signal(PENDING, handle)
    kept: list[Interrupt] = []
    try:
        for at in range(1, 300):
            seen = 0
            # One whose lock was taken when the interrupt came stays locked.
            (tmp_path / str(at)).mkdir()
            root = Directory.open_root(Files(), str(tmp_path / str(at)))

            def trace(frame: FrameType, event: str, _: object, at: int = at) -> object:
                nonlocal seen
                if frame.f_code.co_filename not in files:
                    return None
                frame.f_trace_opcodes = True
                seen += event == "opcode"
                if event == "opcode" and seen == at:
                    make_pending()
                return trace

            sys.settrace(trace)
            try:
                work(root)
            except Interrupt as error:
                kept.append(error)  # a caller may: its frames live on
            finally:
                sys.settrace(None)
            with lock._guard.attempt() as is_free:
                assert is_free
    finally:
        signal.signal(PENDING, handler)
    assert kept
