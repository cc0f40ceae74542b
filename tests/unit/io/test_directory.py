"""Directories: files with several names, which are written to in one of them alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.io.directory import Directory
from logstore.io.files import Files, Waitable


class Busy(Files):
    """Another process makes a copy, until there were some waits."""

    def __init__(self, waits: int) -> None:
        self.left = waits

    def lock_file(self, fd: int) -> bool:
        return not self.left and super().lock_file(fd)

    def wait(self, waiter: Waitable, seconds: float | None) -> bool:
        if self.left == 1 << 60:
            raise KeyboardInterrupt
        self.left -= 1
        return False


def linked(path: Path) -> Path:
    """A file, with the name `other` beside; returns that."""
    (path / "file").write_bytes(b"abc")
    os.link(path / "file", path / "other")
    return path / "other"


def test_file_with_two_names_is_copied_when_another_process_has_copied(
    tmp_path: Path,
) -> None:
    """The waits are calls of `Files`: a test, or a simulated process, can end them."""
    other, files = linked(tmp_path), Busy(3)
    root = Directory.open_root(files, str(tmp_path))
    fd = root.open("file", write=True)
    files.write(fd, b"X", 0)
    files.close(fd)
    assert files.left == 0
    assert ((tmp_path / "file").read_bytes(), other.read_bytes()) == (b"Xbc", b"abc")


def test_wait_for_the_copy_of_another_process_that_is_interrupted_leaves_nothing(
    tmp_path: Path,
) -> None:
    other = linked(tmp_path)
    count = len(os.listdir("/proc/self/fd"))
    root = Directory.open_root(Busy(1 << 60), str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        root.open("file", write=True)
    del root
    assert os.listdir(tmp_path) in (["file", "other"], ["other", "file"])
    assert os.path.samefile(tmp_path / "file", other)
    assert len(os.listdir("/proc/self/fd")) == count
