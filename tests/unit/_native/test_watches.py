"""What inotify reports, as the core asks for it."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from logstore._native._ls import lib


def reported(fd: int) -> bytes:
    with contextlib.suppress(BlockingIOError):
        return os.read(fd, 1 << 16)
    return b""


def test_watch_reports_changes_of_a_directory(tmp_path: Path) -> None:
    """And refuses what is none."""
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
        assert reported(fd)  # that it is removed
        (tmp_path / "unseen").touch()
        assert reported(fd) == b""
        file = os.fsencode(tmp_path / "other")
        assert lib.ls_sys_add_watch(fd, file, entries) == -errno.ENOTDIR
        assert lib.ls_sys_add_watch(-1, file, entries) == -errno.EBADF
        for what in (0, lib.LS_WATCH_WRITES + 1, -1):
            assert lib.ls_sys_add_watch(fd, file, what) == -errno.EINVAL
    finally:
        os.close(fd)


def test_watch_reports_what_it_is_for_and_nothing_else(tmp_path: Path) -> None:
    """Renames into a directory; writes to a file, and the loss of its name; the close
    of one who could write."""
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
