"""Waiting for changes by other processes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.watch import ChangeReports, DirectoryWatch


class Counting(Files):
    """Counts the watches; refuses them, or is on another file system, if told so."""

    def __init__(self, error: int = 0, number: int = 0) -> None:
        self.error = error
        self.number = number
        self.made: list[int] = []

    def new_watch(self) -> int:
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        self.made.append(super().new_watch())
        return self.made[-1]

    def file_system(self, fd: int) -> int:
        return self.number or super().file_system(fd)


def watched(path: Path, files: Files | None = None) -> DirectoryWatch:
    """A watch of a partition's directory and its root, which has begun."""
    (path / "orders-0").mkdir()
    (path / "orders-0" / "log").write_bytes(b"begun")
    root = Directory.open_root(files or Files(), str(path))
    watch = DirectoryWatch(root.child("orders-0").with_parents())
    watch.wait(0, 0)
    return watch


def test_first_wait_returns_at_once(tmp_path: Path) -> None:
    """What was changed before it is not reported."""
    root = Directory.open_root(Files(), str(tmp_path))
    watch = DirectoryWatch([root])
    assert watch.wait(60, None)
    assert not watch.wait(60, 0.01)


@pytest.mark.parametrize("place", ["orders-0", "."])
def test_each_change_of_an_entry_is_reported(tmp_path: Path, place: str) -> None:
    """In the directory of a partition, and in that of the store; a read is none."""
    watch = watched(tmp_path)
    file = tmp_path / place / "file"
    changes = [
        lambda: file.write_bytes(b"made"),
        lambda: file.open("ab").write(b"appended"),
        lambda: file.rename(file.with_name("renamed")),
        lambda: file.with_name("renamed").unlink(),
    ]
    for change in changes:
        change()
        assert watch.wait(60, 10)
        assert not watch.wait(60, 0)
    (tmp_path / "orders-0" / "log").read_bytes()
    assert list((tmp_path / place).iterdir())
    assert not watch.wait(60, 0.01)


def test_many_changes_are_one_report(tmp_path: Path) -> None:
    """More of them than a read takes."""
    watch = watched(tmp_path)
    for number in range(3000):
        (tmp_path / "orders-0" / f"{number:0200}").touch()
    assert watch.wait(60, 10)
    assert not watch.wait(60, 0)


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC, errno.EOPNOTSUPP])
def test_system_without_watches_is_a_pause(tmp_path: Path, error: int) -> None:
    """There are some 128 for a user; then a reader looks now and then."""
    watch = watched(tmp_path, Counting(error))
    (tmp_path / "orders-0" / "log").write_bytes(b"changed")
    assert not watch.wait(0.001, None)
    assert not watch.wait(60, 0.001)


def test_network_file_system_is_not_watched(tmp_path: Path) -> None:
    """Changes by another host would not be reported."""
    files = Counting(number=next(iter(NETWORK)))
    watch = watched(tmp_path, files)
    assert files.made == []
    assert not watch.wait(0.001, None)


def test_directory_that_is_gone_is_not_watched(tmp_path: Path) -> None:
    """The next refresh says so; no descriptor is left open."""
    files = Counting()
    root = Directory.open_root(files, str(tmp_path))
    watch = DirectoryWatch([root, root.child("orders-0")])
    assert not watch.wait(0.001, None)
    (fd,) = files.made
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


def test_watch_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    """That of a follower that nobody reads any more."""
    files = Counting()
    watch = watched(tmp_path, files)
    (fd,) = files.made
    assert os.fstat(fd)
    del watch
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(fd)


def test_refused_watch_is_an_error_of_the_system(tmp_path: Path) -> None:
    """With its number."""
    files = Files()
    fd = files.new_watch()
    try:
        with pytest.raises(NotADirectoryError):
            (tmp_path / "file").touch()
            file = os.open(tmp_path / "file", os.O_RDONLY)
            try:
                files.watch(fd, file)
            finally:
                os.close(file)
        with pytest.raises(FileNotFoundError):
            files.watch(fd, 1 << 20)
    finally:
        os.close(fd)


def test_change_reports_tell_which_directories_have_changed(tmp_path: Path) -> None:
    """Each once, however often; without waiting."""
    reports = ChangeReports(Files())
    root = Directory.open_root(Files(), str(tmp_path))
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    a, b = reports.add(root.child("a")), reports.add(root.child("b"))
    assert a is not None
    assert b is not None
    assert reports.add(root.child("a")) == a
    assert reports.take() == set()
    for name in ("one", "two"):
        (tmp_path / "a" / name).write_bytes(b"x" * 10)
    assert reports.take() == {a}
    (tmp_path / "b" / ("long" * 60)).touch()
    (tmp_path / "a" / "one").unlink()
    assert reports.take() == {a, b}
    reports.remove(a)
    reports.remove(a)
    reports.take()
    (tmp_path / "a" / "three").touch()
    assert reports.take() == set()
    reports.close()
    reports.close()
    assert reports.fd == -1
    with pytest.raises(OSError):
        reports.take()


def test_change_reports_say_if_some_were_lost(tmp_path: Path) -> None:
    """The system keeps no more than a number of them."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    reports = ChangeReports(Files())
    for name in ("a", "b"):
        (tmp_path / name).touch()
    reports.add(Directory.open_root(Files(), str(tmp_path)))
    with open(tmp_path / "a", "ab") as one, open(tmp_path / "b", "ab") as two:
        for _ in range(limit // 2 + 2):  # the same one twice is reported once
            os.write(one.fileno(), b"x")
            os.write(two.fileno(), b"x")
    assert reports.take() is None
    assert reports.take() == set()


def test_change_reports_refuse_what_other_hosts_may_change(tmp_path: Path) -> None:
    """Their changes would not be reported."""
    files = Counting(number=next(iter(NETWORK)))
    reports = ChangeReports(files)
    assert reports.add(Directory.open_root(files, str(tmp_path))) is None
    with pytest.raises(OSError):
        ChangeReports(Counting(errno.EMFILE))
