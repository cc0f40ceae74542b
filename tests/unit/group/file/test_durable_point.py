"""The durable point of a group's file, as its members share it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from logstore import StorageError
from logstore.group.file.durable_point import FileId, SharedPoint
from logstore.group.file.slots import Slots
from logstore.io.directory import Directory
from logstore.io.files import Files, ProcessId

NAME = ".logstore-group-g"
FILE = FileId(5, b"a" * 12)


def opened(root: Directory) -> SharedPoint:
    return Slots(root, NAME, "g").point


def test_durable_point_is_of_one_file(root: Directory) -> None:
    """It also belongs to one start of the machine."""
    one = opened(root)
    assert one.now()[:3] == (FileId(), 0, False)
    one.set(FILE, 7, is_new=True)
    assert opened(root).now()[:3] == (FILE, 7, True)


def test_point_is_that_of_the_bytes_whichever_were_read_before(
    root: Directory,
) -> None:
    """Bytes equal to the last ones are not parsed again; others are."""
    shared, found = opened(root), list[tuple[bytes, int]]()
    for size in (5, 5, 7):
        shared.set(FILE, size, is_new=size == 5)
        found.append((shared.data(), size))
    for data, size in [*found, *reversed(found), (bytes(len(found[0][0])), 0)]:
        assert shared.of(data).size == size


@pytest.mark.parametrize("first", [FILE.first, b"b" * 12])
def test_new_durable_point_is_in_the_place_of_all_before(
    root: Directory, first: bytes
) -> None:
    """Numbers of files are reused: the point of an earlier file does not apply."""
    one = opened(root)
    one.set(FILE, 7, is_new=True)
    one.set(FILE, 90)
    one.set(FileId(), 0, is_new=True)
    assert one.now()[:3] == (FileId(), 0, True)
    one.set(FileId(FILE.inode, first), 8, is_new=True)
    assert one.now()[:3] == (FileId(FILE.inode, first), 8, True)


def test_later_durable_point_of_another_file_does_not_count(root: Directory) -> None:
    """This holds even if the number is the same."""
    one = opened(root)
    one.set(FILE, 7, is_new=True)
    one.set(FileId(FILE.inode, b"b" * 12), 90)
    assert one.now()[:3] == (FILE, 7, True)
    one.set(FILE, 80)
    assert one.now()[:3] == (FILE, 80, True)


@pytest.mark.parametrize("is_known", [False, True])
def test_doubt_is_seen_by_all_until_the_next_durable_point(
    root: Directory, *, is_known: bool
) -> None:
    """Data that was durable before stays durable."""
    one, other = opened(root), opened(root)
    if is_known:
        one.set(FILE, 7, is_new=True)
        one.set(FILE, 9)
    one.doubt(FILE)
    one.doubt(FILE)
    assert other.now() == (FILE, 9 if is_known else 0, True, True, False)
    other.set(FILE, 20, is_new=True)
    assert one.now() == (FILE, 20, True, False, True)


def test_doubt_ends_with_the_start_of_the_machine(tmp_path: Path) -> None:
    """All data that is read then is on disk."""
    first = opened(Directory.open_root(Files(), str(tmp_path)))
    first.set(FILE, 6, is_new=True)
    first.doubt(FILE)
    second = opened(Directory.open_root(NextBoot(), str(tmp_path)))
    assert second.now() == (FILE, 6, False, False, False)


class OneSyncFails(Files):
    """The first sync fails, and drops nothing that is read."""

    failures = 1

    def sync(self, fd: int) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(fd)


@pytest.mark.parametrize("change", ["set", "doubt"])
def test_durable_point_whose_sync_failed_says_so(tmp_path: Path, change: str) -> None:
    """It is read by all members, and a power failure may take it."""
    one = opened(Directory.open_root(OneSyncFails(), str(tmp_path)))
    with pytest.raises(StorageError):
        one.set(FILE, 7, is_new=True) if change == "set" else one.doubt(FILE)
    assert one.now() == (FILE, 7 * (change == "set"), True, change == "doubt", False)
    one.set(FILE, 8, is_new=True)
    assert one.now() == (FILE, 8, True, False, True)


def test_doubt_can_be_made_durable(tmp_path: Path) -> None:
    """The member does not know whether the one that doubted has done it."""
    files = Counted()
    one = opened(Directory.open_root(files, str(tmp_path)))
    one.set(FILE, 7, is_new=True)
    one.doubt(FILE)
    before, syncs = one.data(), files.syncs
    opened(Directory.open_root(files, str(tmp_path))).sync()
    assert one.data() == before
    assert files.syncs == syncs + 1


class Counted(Files):
    """Counts syncs."""

    syncs = 0

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


class NextBoot(Files):
    def process_id(self) -> ProcessId:
        return super().process_id()._replace(boot=bytes(range(16)))


def test_durable_point_of_an_earlier_start_is_known(tmp_path: Path) -> None:
    """Data appended since the sync may be in any state then."""
    first = opened(Directory.open_root(Files(), str(tmp_path)))
    first.set(FILE, 6, is_new=True)
    first.set(FILE, 7)
    second = opened(Directory.open_root(NextBoot(), str(tmp_path)))
    assert second.now()[:3] == (FILE, 7, False)
