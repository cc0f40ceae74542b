"""Syncs of several files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import threading
from collections import Counter
from pathlib import Path

from logstore import _native as native
from logstore._native._ls import ffi, lib
from support.temporary import on_disk


def test_files_are_synced_together_and_each_has_its_error() -> None:
    """Also more of them than there are threads."""
    with on_disk() as directory, contextlib.ExitStack() as stack:
        paths = [Path(directory, str(number)) for number in range(20)]
        files = [stack.enter_context(path.open("w+b")) for path in paths]
        fds = [file.fileno() for file in files]
        results = ffi.new("int32_t[]", [1] * 20)
        assert lib.ls_sys_sync_files(fds, results, 20, ffi.NULL) == 0
        assert list(results) == [0] * 20
        reading, writing = os.pipe()
        fds[3], fds[11] = writing, 1 << 20
        expected = [0] * 20
        expected[3], expected[11] = errno.EINVAL, errno.EBADF
        assert native.sync_files(fds) == expected
        assert native.sync_files(fds[3:4]) == [errno.EINVAL]
        assert native.sync_files([]) == []
        os.close(reading)
        os.close(writing)


def test_many_files_are_synced_at_the_same_time() -> None:
    """Each of these syncs waits until another one has begun."""
    barrier, met = threading.Barrier(2), list[int]()
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)

    def wait(fd: int) -> int:
        try:
            barrier.wait(5)
        except threading.BrokenBarrierError:
            return -errno.ETIMEDOUT
        met.append(fd)
        return 0

    function = kind(wait)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert native.sync_files(range(20), address or 0) == [0] * 20
    assert sorted(met) == list(range(20))


def test_sync_that_a_signal_has_ended_is_made_again() -> None:
    calls: list[int] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32)

    def sync(fd: int) -> int:
        calls.append(fd)
        return -errno.EINTR if calls.count(fd) < 3 else -fd

    function = kind(sync)
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert native.sync_files([5, 0, 7], address or 0) == [5, 0, 7]
    assert Counter(calls) == {5: 3, 0: 3, 7: 3}
