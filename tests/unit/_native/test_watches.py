"""Reports of inotify, as the core requests them."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import _native as native
from logstore._native import system
from logstore._native._ls import ffi, lib


def reported(fd: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 1 << 16)
    return b""


def test_watch_reports_changes_of_a_directory(tmp_path: Path) -> None:
    """It refuses a path that is no directory."""
    fd = lib.ls_sys_new_watch()
    try:
        entries = lib.LS_WATCH_ENTRIES
        number = lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), entries)
        assert number > 0
        assert reported(fd) == b""
        (tmp_path / "other").touch()
        assert b"other" in reported(fd)
        assert reported(fd) == b""
        assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), entries) == number
        assert lib.ls_sys_remove_watch(fd, number) == 0
        assert lib.ls_sys_remove_watch(fd, number) == -errno.EINVAL
        assert reported(fd)  # the report of its removal
        (tmp_path / "unseen").touch()
        assert reported(fd) == b""
        file = os.fsencode(tmp_path / "other")
        assert lib.ls_sys_add_watch(fd, file, entries) == -errno.ENOTDIR
        assert lib.ls_sys_add_watch(-1, file, entries) == -errno.EBADF
        for what in (0, lib.LS_WATCH_ENDED, entries | 0x20000000, -1):
            assert lib.ls_sys_add_watch(fd, file, what) == -errno.EINVAL
    finally:
        os.close(fd)


def test_watch_reports_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    """Reports are of renames into a directory; of writes to a file, and the loss of its
    name; of the close of a descriptor that could write."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.touch()

    def reports(what: int, path: Path, change: Callable[[], object]) -> bool:
        fd = lib.ls_sys_new_watch()
        try:
            assert lib.ls_sys_add_watch(fd, os.fsencode(path), what) > 0
            change()
            return reported(fd) != b""
        finally:
            os.close(fd)

    renames, of_file = lib.LS_WATCH_RENAMES, lib.LS_WATCH_FILE
    closes = lib.LS_WATCH_CLOSES
    assert not reports(renames, tmp_path, lambda: other.write_bytes(b"x"))
    assert reports(renames, tmp_path, lambda: other.rename(tmp_path / "new"))
    assert not reports(of_file, file, lambda: file.read_bytes())
    assert reports(of_file, file, lambda: file.write_bytes(b"y"))
    assert not reports(closes, file, lambda: file.read_bytes())
    assert reports(closes, file, lambda: file.open("ab").close())
    names, writes = lib.LS_WATCH_NAMES, lib.LS_WATCH_WRITES
    assert not reports(names, tmp_path, lambda: file.write_bytes(b"z"))
    assert reports(names, tmp_path, other.touch)
    assert reports(names, tmp_path, other.unlink)
    assert not reports(writes, file, lambda: file.read_bytes())
    assert reports(writes, file, lambda: file.write_bytes(b"z"))
    assert reports(writes, file, lambda: file.open("ab").close())
    assert reports(of_file, file, file.unlink)


def test_reports_are_waited_for_and_read_in_one_call(tmp_path: Path) -> None:
    """It returns the reports that fit; an empty result when the time is over."""
    fd = lib.ls_sys_new_watch()
    out = ffi.new("uint8_t[]", 300)
    try:
        assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), lib.LS_WATCH_NAMES) > 0
        assert lib.ls_sys_read_reports(fd, -1, 0, out, 300) == 0
        for number in range(20):
            (tmp_path / f"some file {number}").touch()
        size = lib.ls_sys_read_reports(fd, -1, 60_000, out, 300)
        assert 0 < size <= 300
        assert b"some file 0" in bytes(ffi.buffer(out, size))
        assert b"some file 19" in native.read_reports(fd, 60.0)
        assert native.read_reports(fd, 0.0) == native.read_reports(fd, -1.0) == b""
        begun = time.monotonic()
        assert native.read_reports(fd, 0.02) == b""
        assert time.monotonic() - begun >= 0.02
        (tmp_path / "other").touch()
        assert lib.ls_sys_read_reports(fd, -1, 60_000, out, 1) == -errno.EINVAL
    finally:
        os.close(fd)
    file = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            native.read_reports(file, 60.0)
    finally:
        os.close(file)


def test_wait_for_reports_ends_at_an_event(tmp_path: Path) -> None:
    """A wait without a limit ends, too; the event is cleared, and reports are read with
    it."""
    fd, event = lib.ls_sys_new_watch(), os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), lib.LS_WATCH_NAMES) > 0
        os.eventfd_write(event, 1)
        assert native.read_reports(fd, None, event) == b""
        assert native.read_reports(fd, 0.01, event) == b""
        os.eventfd_write(event, 1)
        (tmp_path / "other").touch()
        assert b"other" in native.read_reports(fd, None, event)
        with pytest.raises(BlockingIOError):
            os.eventfd_read(event)
    finally:
        os.close(fd)
        os.close(event)


def test_watches_of_one_directory_report_the_changes_of_both(tmp_path: Path) -> None:
    """The second one adds to the first."""
    fd = lib.ls_sys_new_watch()
    try:
        for what in (lib.LS_WATCH_RENAMES, lib.LS_WATCH_CLOSES):
            assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), what) == 1
        (tmp_path / "a").write_bytes(b"x")
        assert reported(fd)
        (tmp_path / "a").rename(tmp_path / "b")
        assert reported(fd)
    finally:
        os.close(fd)


def test_wait_for_reports_goes_on_after_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the rest of the time; an interrupt ends it."""
    real, results = lib.ls_sys_read_reports, list[int]()

    class Noted:
        def __getattr__(self, name: str) -> object:
            return getattr(lib, name)

        def ls_sys_read_reports(self, *arguments: object) -> int:
            results.append(real(*arguments))
            return results[-1]

    monkeypatch.setattr(system, "lib", Noted())
    fd = lib.ls_sys_new_watch()
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    me = threading.main_thread().ident
    assert me is not None

    def told() -> None:
        for _ in range(50):
            signal.pthread_kill(me, signal.SIGUSR1)
            time.sleep(0.002)

    thread = threading.Thread(target=told)
    try:
        begun = time.monotonic()
        thread.start()
        assert native.read_reports(fd, 0.05) == b""
        assert time.monotonic() - begun >= 0.05
        thread.join()
        assert -errno.EINTR in results
    finally:
        signal.signal(signal.SIGUSR1, before)
        os.close(fd)
