"""Files with several names, and the copies that replace them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.io.links import Links

LINKS = Links()


@pytest.fixture
def dir_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture
def file_fd(tmp_path: Path) -> Iterator[int]:
    """An open file, made under the name `file`."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def test_names_of_an_open_file_are_counted(
    tmp_path: Path, dir_fd: int, file_fd: int
) -> None:
    assert LINKS.links_of(file_fd, dir_fd, "file") == 1
    LINKS.link(dir_fd, "file", dir_fd, "other")
    assert LINKS.links_of(file_fd, dir_fd, "file") == 2
    assert LINKS.links(dir_fd, "file") == 2


@pytest.mark.parametrize("names", [0, 1])
def test_open_file_that_was_replaced_has_no_name(
    tmp_path: Path, dir_fd: int, file_fd: int, names: int
) -> None:
    """Its other names do not matter: bytes written to it are not in the directory."""
    if names:
        os.link(tmp_path / "file", tmp_path / "other")
    (tmp_path / "new").touch()
    (tmp_path / "new").rename(tmp_path / "file")
    assert LINKS.links_of(file_fd, dir_fd, "file") == 0
    assert LINKS.links(dir_fd, "file") == 1


def test_file_that_is_gone_is_an_error(
    tmp_path: Path, dir_fd: int, file_fd: int
) -> None:
    (tmp_path / "file").unlink()
    with pytest.raises(FileNotFoundError):
        LINKS.links_of(file_fd, dir_fd, "file")


def test_copy_has_the_mode_and_the_time_of_its_original(
    tmp_path: Path, file_fd: int
) -> None:
    os.fchmod(file_fd, 0o640)
    os.utime(file_fd, ns=(1, 1_600_000_000_123_456_789))
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        LINKS.set_mode_of(copy, file_fd)
        info = os.fstat(copy)
        assert info.st_mode & 0o7777 == 0o640
        assert info.st_mtime_ns == 1_600_000_000_123_456_789
    finally:
        os.close(copy)


def test_process_has_a_file_open_under_its_name(
    tmp_path: Path, dir_fd: int, file_fd: int
) -> None:
    """A process that does not exist here cannot be examined: it may have the file
    open."""
    source = "import sys; file = open(sys.argv[1]); print(flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", source, tmp_path / "file"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with child:
        assert child.stdout is not None
        child.stdout.readline()
        assert LINKS.has_open(child.pid, dir_fd, "file")
        assert not LINKS.has_open(child.pid, dir_fd, "other")
        child.kill()
    assert LINKS.has_open(1 << 30, dir_fd, "other")
