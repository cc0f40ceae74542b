"""Directories: files with several names, of which a write changes only one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.files import Files, Waitable, keeps


class Busy(Files):
    """Another process makes a copy, which takes a number of waits."""

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
    """A file that also has the name `other`; returns that."""
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


class Meanwhile(Files):
    """Does something once, after a file was opened and before its names are counted."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_done = False

    def links_of(self, fd: int, dir_fd: int, name: str) -> int:
        if not self.is_done:
            self.is_done = True
            self.replace(name)
        return super().links_of(fd, dir_fd, name)

    def replace(self, name: str) -> None:
        """Another process opens the file, too, and gives it a new inode."""
        other = Directory.open_root(Files(), str(self.path))
        os.close(other.open(name, write=True))


def _shared(path: Path) -> tuple[Path, Path]:
    original, copy = path / "original", path / "copy"
    original.mkdir()
    copy.mkdir()
    (original / "f").write_bytes(b"0123")
    os.link(original / "f", copy / "f")
    return original, copy


def test_open_of_a_name_that_is_replaced_meanwhile_gives_the_new_file(
    tmp_path: Path,
) -> None:
    """By then the original has one name again, and is not the new file."""
    original, copy = _shared(tmp_path)
    files = Meanwhile(copy)
    fd = Directory.open_root(files, str(copy)).open("f", write=True)
    assert files.is_done
    os.write(fd, b"xx")
    os.close(fd)
    assert (original / "f").read_bytes() == b"0123"
    assert (copy / "f").read_bytes() == b"xx23"


def test_open_of_a_file_with_several_names_gives_a_copy_of_it(tmp_path: Path) -> None:
    """Bytes written through one name are not read through the others, unless the caller
    wants that."""
    original, copy = _shared(tmp_path)
    root = Directory.open_root(Files(), str(copy))
    fd = root.open("f", write=True, keep_links=True)
    os.write(fd, b"a")
    os.close(fd)
    assert (original / "f").read_bytes() == (copy / "f").read_bytes() == b"a123"
    fd = root.open("f", write=True)
    os.write(fd, b"b")
    os.close(fd)
    assert (original / "f").read_bytes() == b"a123"
    assert (copy / "f").read_bytes() == b"b123"


def _replaced(method: str) -> type[Files]:
    """A subclass that replaces one method by an equal one."""
    own = getattr(Files, method)

    def replaced(self: Files, *args: Any, **named: Any) -> Any:
        return own(self, *args, **named)

    return type("Other", (Files,), {method: replaced})


@pytest.mark.parametrize(
    ("method", "is_kept"),
    [("rename", True), ("now_ms", False), ("stat", False), ("__getattribute__", False)],
)
def test_methods_are_kept_unless_one_of_them_is_replaced(
    method: str, is_kept: bool
) -> None:
    """Other differences of a class have no effect."""
    assert keeps(Files, ("now_ms", "stat"))
    assert keeps(_replaced(method), ("now_ms", "stat")) == is_kept


@pytest.mark.parametrize(("method", "is_called"), [("rename", False), ("read", True)])
def test_small_file_is_read_by_methods_if_one_of_these_is_replaced(
    tmp_path: Path, method: str, is_called: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one call of C reads it."""
    (tmp_path / "file").write_bytes(b"content")
    calls = []
    read_name = native.read_name

    def counted(*args: Any) -> tuple[int, bytes]:
        calls.append(args)
        return read_name(*args)

    monkeypatch.setattr(native, "read_name", counted)
    directory = Directory.open_root(_replaced(method)(), str(tmp_path))
    assert directory.read_small("file", 100) == (7, b"content")
    assert bool(calls) != is_called


@pytest.mark.parametrize("directories", [False, True])
def test_names_are_all_there_while_another_list_is_under_way(
    tmp_path: Path, directories: bool
) -> None:
    """By the same descriptor, as another thread, or a child of this process, has it."""
    expected = [f"{number:02}" for number in range(30)]
    for name in expected:
        (tmp_path / name).mkdir()
    root = Directory.open_root(Files(), str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    with root.use() as fd, os.scandir(fd) as other:
        next(other)
        assert (root.directories() if directories else root.names()) == expected
        assert len(list(other)) == 29
    assert len(os.listdir("/proc/self/fd")) == before
