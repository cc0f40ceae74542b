"""What inotify reports, as the core waits for it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from logstore import _native as native
from logstore._native._ls import lib


def test_watch_reports_changes_of_a_directory(tmp_path: Path) -> None:
    """And refuses what is none."""
    fd = lib.ls_sys_new_watch()
    try:
        entries = lib.LS_WATCH_ENTRIES
        number = lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), entries)
        assert number > 0
        with pytest.raises(BlockingIOError):
            os.read(fd, 4096)
        assert lib.ls_sys_wait_watch(fd, 0, 0) == 0
        (tmp_path / "file").touch()
        assert lib.ls_sys_wait_watch(fd, 10_000, 0) == 1
        assert lib.ls_sys_wait_watch(fd, 0, 0) == 0
        (tmp_path / "other").touch()
        assert b"other" in os.read(fd, 4096)
        assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path), entries) == number
        assert lib.ls_sys_remove_watch(fd, number) == 0
        assert lib.ls_sys_remove_watch(fd, number) == -errno.EINVAL
        os.read(fd, 4096)  # that it is removed
        (tmp_path / "unseen").touch()
        with pytest.raises(BlockingIOError):
            os.read(fd, 4096)
        file = os.fsencode(tmp_path / "file")
        assert lib.ls_sys_add_watch(fd, file, entries) == -errno.ENOTDIR
        assert lib.ls_sys_add_watch(-1, file, entries) == -errno.EBADF
        for what in (0, lib.LS_WATCH_WRITES + 1, -1):
            assert lib.ls_sys_add_watch(fd, file, what) == -errno.EINVAL
    finally:
        os.close(fd)


def test_watch_tells_whether_a_report_is_of_one_of_them(tmp_path: Path) -> None:
    """Also among many, and with names; and if some were lost, it may have been."""
    fd = lib.ls_sys_new_watch()
    (tmp_path / "a").touch()
    (tmp_path / "d").mkdir()
    try:
        file = os.fsencode(tmp_path / "a")
        mine = lib.ls_sys_add_watch(fd, file, lib.LS_WATCH_FILE)
        folder = os.fsencode(tmp_path / "d")
        other = lib.ls_sys_add_watch(fd, folder, lib.LS_WATCH_NAMES)
        assert lib.ls_sys_wait_watch(fd, 0, mine) == 0
        for number in range(500):
            (tmp_path / "d" / f"a longer name {number}").touch()
        assert lib.ls_sys_wait_watch(fd, 0, mine) == 1
        for number in range(500):
            (tmp_path / "d" / f"another name {number}").touch()
            if number == 250:
                (tmp_path / "a").write_bytes(b"x")
        assert lib.ls_sys_wait_watch(fd, 0, mine) == 2
        assert lib.ls_sys_wait_watch(fd, 0, mine) == 0
        (tmp_path / "a").write_bytes(b"y")
        assert lib.ls_sys_wait_watch(fd, 0, other) == 1
        assert native.wait_watch(fd, 0, mine) == 0
        queue = Path("/proc/sys/fs/inotify/max_queued_events").read_text()
        for number in range(int(queue) // 2 + 10):
            os.rename(tmp_path / "d" / "another name 1", tmp_path / "d" / str(number))
            os.rename(tmp_path / "d" / str(number), tmp_path / "d" / "another name 1")
        assert native.wait_watch(fd, 0, mine) == 2
    finally:
        os.close(fd)


def test_watch_reports_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    """Renames into a directory; writes to a file, and the loss of its name; the close
    of one who could write."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.touch()

    def reports(what: int, path: Path, change: Callable[[], object]) -> int:
        fd = lib.ls_sys_new_watch()
        try:
            assert lib.ls_sys_add_watch(fd, os.fsencode(path), what) > 0
            change()
            return int(lib.ls_sys_wait_watch(fd, 0, 0))
        finally:
            os.close(fd)

    renames, of_file = lib.LS_WATCH_RENAMES, lib.LS_WATCH_FILE
    closes = lib.LS_WATCH_CLOSES
    assert reports(renames, tmp_path, lambda: other.write_bytes(b"x")) == 0
    assert reports(renames, tmp_path, lambda: other.rename(tmp_path / "new")) == 1
    assert reports(of_file, file, lambda: file.read_bytes()) == 0
    assert reports(of_file, file, lambda: file.write_bytes(b"y")) == 1
    assert reports(closes, file, lambda: file.read_bytes()) == 0
    assert reports(closes, file, lambda: file.open("ab").close()) == 1
    names, writes = lib.LS_WATCH_NAMES, lib.LS_WATCH_WRITES
    assert reports(names, tmp_path, lambda: file.write_bytes(b"z")) == 0
    assert reports(names, tmp_path, other.touch) == 1
    assert reports(names, tmp_path, other.unlink) == 1
    assert reports(writes, file, lambda: file.read_bytes()) == 0
    assert reports(writes, file, lambda: file.write_bytes(b"z")) == 1
    assert reports(writes, file, lambda: file.open("ab").close()) == 1
    assert reports(of_file, file, file.unlink) == 1
