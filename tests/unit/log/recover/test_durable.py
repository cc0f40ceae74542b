"""Bytes of a log that are written again, and copies of them."""

from __future__ import annotations

import pytest

from logstore.io.directory import Directory
from logstore.log.recover.durable import begins, copy_bytes, cut_for_good, make_durable
from support.disk import MemoryDisk

DATA = bytes(range(256)) * 1000  # more bytes than one comparison takes


@pytest.fixture
def directory(disk: MemoryDisk) -> Directory:
    """A directory with the file `log`."""
    directory = Directory.open_root(disk, "/store")
    directory.write_file("log", DATA)
    return directory


@pytest.mark.parametrize(
    ("copy", "expected"),
    [
        (DATA[100:200_000], True),
        (DATA[100:150], True),  # it was not finished
        (b"", True),
        (DATA[100:200_000] + b"\0", False),
        (DATA[100:199_999] + b"\0", False),
        (DATA[101:200_000], False),
    ],
)
def test_copy_is_one_as_far_as_it_goes(
    directory: Directory, copy: bytes, expected: bool
) -> None:
    """A longer copy is of other bytes: the range ends before."""
    directory.write_file("copy", copy)
    with directory.opened("log") as fd:
        assert begins(directory, "copy", fd, 100, 200_000) is expected
        assert not begins(directory, "none", fd, 100, 200_000)


def test_longer_copy_is_none_though_the_file_goes_on_alike(
    directory: Directory,
) -> None:
    directory.write_file("copy", DATA[100:2000])
    with directory.opened("log") as fd:
        assert begins(directory, "copy", fd, 100, 2000)
        assert not begins(directory, "copy", fd, 100, 1999)


@pytest.mark.parametrize(("begin", "end"), [(0, 7), (5, 255_000), (9, 9)])
def test_bytes_are_copied_to_a_place(
    directory: Directory, begin: int, end: int
) -> None:
    directory.write_file("to", b"....")
    with directory.opened("log") as fd, directory.opened("to", write=True) as to_fd:
        assert copy_bytes(directory, fd, begin, end, to_fd, 2) == end - begin
    assert directory.read_file("to") == b".." + DATA[begin:end] + b".."[end - begin :]


def test_copy_ends_where_the_file_ends(directory: Directory) -> None:
    directory.write_file("to", b"")
    with directory.opened("log") as fd, directory.opened("to", write=True) as to_fd:
        size = len(DATA)
        assert copy_bytes(directory, fd, size - 3, size + 10, to_fd) == 3


def test_cut_is_made_and_synced_also_if_the_file_is_as_short_already(
    disk: MemoryDisk, directory: Directory
) -> None:
    """A cut before it may not be on the disk."""
    for size in (500, 500, 10):
        disk.calls = []
        with directory.opened("log", write=True) as fd:
            cut_for_good(disk, fd, size)
        methods = [method for method, _ in disk.calls]
        assert methods.count("truncate") == 2
        assert methods.index("sync") > methods.index("truncate") + 1
        disk.calls = None
        assert directory.read_file("log") == DATA[:size]


def test_all_past_the_durable_point_is_written_again(
    disk: MemoryDisk, directory: Directory
) -> None:
    disk.calls = []
    make_durable(directory, "log", 1000, 400)
    methods = [method for method, _ in disk.calls]
    disk.calls = None
    assert directory.read_file("log") == DATA[:1000]
    assert methods.index("write") < methods.index("truncate") < methods.index("sync")
    assert "sync_directory" in methods[methods.index("sync") :]
