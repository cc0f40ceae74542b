"""Syncs of several files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from logstore import _native as native
from logstore._native._ls import ffi, lib
from support.temporary import on_disk


def synced(fds: Sequence[int], other: Callable[[int], int] | None = None) -> list[int]:
    """The results; `other` is called in the place of the sync of each file."""
    results = ffi.new("int32_t[]", len(fds))
    function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)(other or abs)
    address = ctypes.cast(function, ctypes.c_void_p).value if other else 0
    call = ffi.cast("ls_sync_function", address)
    assert lib.ls_sys_sync_files(list(fds), results, len(fds), call) == 0
    return list(results)


def test_files_are_synced_together_and_each_has_its_error() -> None:
    """There may be more files than threads; one of several system calls behaves in the
    same way."""
    with on_disk() as directory, contextlib.ExitStack() as stack:
        paths = [Path(directory, str(number)) for number in range(20)]
        files = [stack.enter_context(path.open("w+b")) for path in paths]
        fds = [file.fileno() for file in files]
        assert synced(fds) == [0] * 20
        reading, writing = os.pipe()
        fds[3], fds[11] = writing, 1 << 20
        expected = [0] * 20
        expected[3], expected[11] = -errno.EINVAL, -errno.EBADF
        assert synced(fds) == expected
        assert synced(fds[3:4]) == [-errno.EINVAL]
        assert synced([]) == []
        steps = native.Steps([native.Step(native.STEP_SYNC, -1)])
        assert steps.make(1) == (0, errno.EBADF)
        for mine, count in ((fds, 0), (fds[4:11], 1), (fds[3:4], 0), (fds[:3], 1)):
            steps.set_files(0, mine)
            assert steps.sync_results() == [errno.ECANCELED] * len(mine)
            assert steps.make(1) == (count, 0 if count else errno.EINVAL)
            assert steps.sync_results() == [-result for result in synced(mine)]
        steps.set_files(0, [])
        assert steps.make(1) == (0, errno.EBADF)
        os.close(reading)
        os.close(writing)


def test_files_of_a_call_are_synced_in_the_same_way_one_by_one() -> None:
    """Subclasses that replace the sync get one call for each file."""
    calls: list[int] = []

    def sync(fd: int) -> None:
        calls.append(fd)
        if fd != 5:
            raise OSError(fd, "failed")

    steps = native.Steps([native.Step(native.STEP_SYNC, 7)])
    steps.set_files(0, [5, 3, 4])
    error = steps.sync_one_by_one(sync)
    assert error is not None
    assert error.errno == 3
    assert calls == [5, 3, 4]
    assert steps.sync_results() == [0, 3, 4]
    steps.set_files(0, [5])
    assert steps.sync_one_by_one(sync) is None
    assert steps.sync_results() == [0]


def test_many_files_are_synced_at_the_same_time() -> None:
    """Each of these syncs waits until another one has begun."""
    barrier, met = threading.Barrier(2), list[int]()

    def wait(fd: int) -> int:
        try:
            barrier.wait(5)
        except threading.BrokenBarrierError:
            return -errno.ETIMEDOUT
        met.append(fd)
        return 0

    assert synced(range(20), wait) == [0] * 20
    assert sorted(met) == list(range(20))


def test_sync_that_a_signal_has_ended_is_made_again() -> None:
    calls: list[int] = []

    def sync(fd: int) -> int:
        calls.append(fd)
        return -errno.EINTR if calls.count(fd) < 3 else -fd

    assert synced([5, 0, 7], sync) == [-5, 0, -7]
    assert Counter(calls) == {5: 3, 0: 3, 7: 3}
