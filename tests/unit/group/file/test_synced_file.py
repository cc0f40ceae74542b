"""An open file of a group, and its durability as known to the members."""

from __future__ import annotations

import pytest

from logstore import StorageError
from logstore.group.file.durable_point import FileId, GroupDurablePoint, SharedPoint
from logstore.group.file.slots import Slots
from logstore.group.file.synced_file import SyncedFile
from logstore.io.directory import Directory
from support.disk import MemoryDisk
from support.transactions import batch

NAME = ".logstore-group-g"
DATA = batch(0, [(b"k", b"v")], -1, control=False, sequence=-1)


def opened(disk: MemoryDisk) -> tuple[SyncedFile, Slots]:
    """The file as a member has it open; the first one creates it."""
    root = Directory.open_root(disk, "/store")
    is_new = not root.exists(NAME)
    fd = root.create(NAME) if is_new else root.open(NAME, write=True)
    return SyncedFile(root, NAME, fd), Slots(root, NAME, "g")


def test_file_is_named_by_its_first_batch(disk: MemoryDisk) -> None:
    """Its inode number may be reused."""
    file, slots = opened(disk)
    assert file.id == FileId(file.identity[1])
    file.begin(slots.point, DATA)
    assert file.id == FileId(file.identity[1], DATA[:8] + DATA[17:21])
    assert file.is_confirmed
    assert slots.point.now() == (file.id, 0, True, False, True)
    assert file.is_of(slots.point.now())
    assert not file.is_of(GroupDurablePoint(file.id, 0, is_of_this_boot=False))


@pytest.mark.parametrize(
    ("size", "is_synced"),
    [(0, False), (len(DATA), False), (len(DATA) + 1, True), (-1, True)],
)
def test_file_is_synced_unless_the_point_is_of_it(
    disk: MemoryDisk, size: int, *, is_synced: bool
) -> None:
    """The point is of another file, -1, or beyond the end: it was restored."""
    file, slots = opened(disk)
    file.begins_with(DATA)
    disk.write(file.fd, DATA, 0)
    other = FileId(file.id.inode, b"b" * 12)
    slots.point.set(other if size < 0 else file.id, max(size, 0), is_new=True)
    moments = disk.record()
    file.confirm(slots.point, len(DATA))
    assert file.is_confirmed
    assert bool(moments) == is_synced
    assert slots.point.now().size == (len(DATA) if is_synced else size)


def test_failed_sync_is_known_to_all_members(disk: MemoryDisk) -> None:
    """It is known until another file has a durable point."""
    file, slots = opened(disk)
    file.begin(slots.point, DATA)
    other, its_slots = opened(disk)
    other.begins_with(DATA)
    assert not other.doubts(its_slots.point.now())
    disk.fail("sync", name=NAME, times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.sync_for_all(slots.point)
    assert file.doubts(slots.point.now())
    assert other.doubts(its_slots.point.now())
    third, third_slots = opened(disk)
    third.begins_with(DATA)
    third_slots.point.set(FileId(9, b"c" * 12), 5, is_new=True)
    assert not third.doubts(third_slots.point.now())


def test_point_that_another_member_could_not_sync_does_not_count(
    disk: MemoryDisk,
) -> None:
    """A power failure would remove it, and later appends would look like damage."""
    file, slots = opened(disk)
    file.begins_with(DATA)
    disk.write(file.fd, DATA, 0)
    disk.fail("sync", name=slots.name, times=1)
    with pytest.raises(StorageError):
        file.confirm(slots.point, len(DATA))
    other, its_slots = opened(disk)
    other.begins_with(DATA)
    assert other.is_of(its_slots.point.now())
    moments = disk.record()
    other.confirm(its_slots.point, len(DATA))
    assert moments
    assert its_slots.point.now() == (file.id, len(DATA), True, False, True)


def test_doubt_is_durable_before_the_file_is_confirmed(disk: MemoryDisk) -> None:
    """A second durable point does that: it names the file that may be torn after a
    power failure."""
    file, slots = opened(disk)
    file.begins_with(DATA)
    disk.write(file.fd, DATA, 0)
    disk.fail("sync", times=2)
    with pytest.raises(OSError, match="Input/output"):
        file.confirm(slots.point, len(DATA))
    assert slots.point.now() == (file.id, 0, True, True, False)
    other, its_slots = opened(disk)
    other.begins_with(DATA)
    disk.fail("sync", name=slots.name, times=1)
    with pytest.raises(StorageError):
        other.confirm(its_slots.point, len(DATA))
    assert not other.is_confirmed
    other.confirm(its_slots.point, len(DATA))
    assert other.is_confirmed
    assert other.is_doubtful


def test_look_before_an_append_reads_the_point_once(
    disk: MemoryDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is confirmed already, or only now."""
    file, slots = opened(disk)
    file.begin(slots.point, DATA)
    disk.write(file.fd, DATA, 0)
    other, its_slots = opened(disk)
    other.begins_with(DATA)
    reads, now = list[SharedPoint](), SharedPoint.now

    def counted(shared: SharedPoint) -> GroupDurablePoint:
        reads.append(shared)
        return now(shared)

    monkeypatch.setattr(SharedPoint, "now", counted)
    for count in (1, 2):
        other.confirm(its_slots.point, len(DATA))
        assert (other.is_confirmed, len(reads)) == (True, count)
