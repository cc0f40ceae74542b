"""Promises of a durable commit of a group, if the file is replaced."""

from __future__ import annotations

import contextlib
import errno
import random
from pathlib import Path

import pytest

import logstore
from logstore.group.file import group_file as group_file_module
from logstore.io import layout
from logstore.io.files import Files
from logstore.io.stamps import FileInfo
from support.disk import MemoryDisk
from support.groups import T0, T1, OneMember, offset_in
from support.power_cut import cuts

NAME = ".logstore-group-g"


@pytest.fixture(autouse=True, params=[False, True], ids=["in steps", "at once"])
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both ways of making a commit."""
    monkeypatch.setattr(OneMember, "at_once", request.param)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is soon large enough to be rewritten."""
    monkeypatch.setattr(group_file_module, "_REWRITE_BYTES", 2000)


class OneNumber(Files):
    """Each new file has the inode number of the previous one, as on some file
    systems."""

    syncs = 0

    def stat(self, fd: int) -> FileInfo:
        return super().stat(fd)._replace(inode=7)

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        return super().stat_name(dir_fd, name)._replace(inode=7)

    def sync(self, fd: int) -> None:
        self.syncs += 1
        super().sync(fd)


def in_a_second_file(path: Path, files: Files) -> OneMember:
    """A member whose first file was durable to its end, and was replaced."""
    one = OneMember(path, files=files)
    for offset in range(100):
        before = one.file.end.size
        one.commit(offset, durable=True)
        if one.file.end.size < before:
            return one
    pytest.fail("it was not written anew")


def test_number_of_an_earlier_file_is_no_sync(tmp_path: Path) -> None:
    """The durable size of that file does not apply to this one."""
    files = OneNumber()
    one = in_a_second_file(tmp_path, files)
    for offset in range(3):
        before = files.syncs
        one.commit(offset, durable=True)
        assert files.syncs == before + 1


def test_number_of_an_earlier_file_is_no_damage(tmp_path: Path) -> None:
    """A torn append that a kill has left is cut off."""
    one = in_a_second_file(tmp_path, OneNumber())
    one.commit(5)
    offset, size = one.file._log.last_offset + 1, one.file.end.size
    one.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write(offset.to_bytes(8, "big") + bytes(8) + b"\2")
    assert offset_in(tmp_path, files=OneNumber()) == 5
    assert (tmp_path / NAME).stat().st_size == size


@pytest.mark.parametrize("is_read_first", [False, True])
def test_backup_that_was_put_back_is_synced(
    tmp_path: Path, *, is_read_first: bool
) -> None:
    """It may have the number of the file that it replaces, and its first records."""
    one = OneMember(tmp_path)
    one.commit(1, durable=True)
    backup = (tmp_path / NAME).read_bytes()
    for offset in range(2, 8):
        one.commit(offset, durable=True)
    one.close()
    (tmp_path / NAME).write_bytes(backup)
    files = OneNumber()
    other = OneMember(tmp_path, files=files)
    point = other.slots.point.now()
    other.slots.point.set(point.file._replace(inode=7), point.size, is_new=True)
    if is_read_first:
        assert other.offset() == 1
    for offset in (3, 4):
        before = files.syncs
        other.commit(offset, durable=True)
        assert files.syncs > before
    other.close()
    with (tmp_path / NAME).open("ab") as file:
        file.write((3).to_bytes(8, "big"))
    assert offset_in(tmp_path, files=OneNumber()) == 4


class Killed(BaseException):
    """The process has ended here."""


def kill_at_sync(disk: MemoryDisk, nth: int) -> None:
    """End a process before it syncs the directory for the nth time."""
    sync, left = disk.sync_directory, [nth]

    def sync_or_end(dir_fd: int) -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed
        sync(dir_fd)

    vars(disk)["sync_directory"] = sync_or_end


def check_survives(
    disk: MemoryDisk, offset: int, key: layout.TopicPartition = T0
) -> None:
    """A durable commit survives, whatever state a power failure leaves."""
    for seed in range(8):
        for words, nodes in cuts(disk.moment(), random.Random(seed), 8):
            found = offset_in("/store", key, files=MemoryDisk(nodes))
            assert found == offset, words


@pytest.mark.parametrize("nth", [1, 2])
def test_name_is_durable_after_a_kill(nth: int) -> None:
    """Sync 1 is by the member that made the file, sync 2 by the one that rewrites
    it."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    kill_at_sync(disk, nth)
    with pytest.raises(Killed):
        for offset in range(100):
            one.commit(offset)
    disk = disk.kill()
    other = OneMember("/store", files=disk)
    other.commit(500, durable=True)
    check_survives(disk, 500)


@pytest.mark.parametrize("durable_first", [False, True])
def test_name_is_durable_after_a_failed_sync(*, durable_first: bool) -> None:
    """The sync of the directory of a rewritten file fails: the next commit repeats
    it."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(0, durable=True)
    disk.fail("sync_directory", times=1)
    for offset in range(1, 100):
        before = one.file.end.size
        one.commit(offset, durable=durable_first)
        if one.file.end.size < before:
            break
    else:
        pytest.fail("it was not written anew")
    if not durable_first:
        one.commit(500, durable=True)
    check_survives(disk, offset if durable_first else 500)


def test_file_that_cannot_be_replaced_keeps_its_durable_point() -> None:
    """After a power failure later commits are torn, and no damage."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(0, durable=True)
    disk.fail("rename", errno.EIO)
    for offset in range(1, 60):
        one.commit(offset)
    assert one.file.end.size > group_file_module._REWRITE_BYTES
    assert one.slots.point.now().file == one.file._log._file.id
    for seed in range(8):
        for words, nodes in cuts(disk.moment(), random.Random(seed), 8):
            found = offset_in("/store", T0, files=MemoryDisk(nodes))
            assert 0 <= found < 60, words


def test_member_in_an_old_file_makes_the_new_name_durable() -> None:
    """Another member has renamed the new one, and was killed then."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one, other = OneMember("/store", files=disk), OneMember("/store", files=disk)
    one.commit(0, durable=True)
    other.commit(1)
    kill_at_sync(disk, 1)
    with pytest.raises(Killed):
        for offset in range(100):
            one.commit(offset)
    one.close()
    other.file.sync(other.slots, other.file.end)
    check_survives(disk, offset)


def test_directory_that_cannot_be_synced_fails_the_durable_commit() -> None:
    """It fails until the name of the file is durable."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    kill_at_sync(disk, 2)
    with pytest.raises(Killed):
        for offset in range(100):
            one.commit(offset)
    disk = disk.kill()
    other = OneMember("/store", files=disk)
    disk.fail("sync_directory")
    with pytest.raises(logstore.StorageError):
        other.commit(500, durable=True)
    disk.heal()
    other.commit(501, durable=True)
    check_survives(disk, 501)


@pytest.mark.parametrize("joins", ["before", "after", "after a kill"])
@pytest.mark.parametrize("fails", ["", "rename", "create"])
def test_durable_commit_is_behind_no_bytes_of_a_failed_sync(
    joins: str, fails: str
) -> None:
    """The sync was another member's: the system may have dropped the bytes, and does
    not report that at the next sync. So the file is rewritten; until that succeeds,
    nothing is durable."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one, other = OneMember("/store", files=disk), None
    one.commit(1, durable=True)
    if joins == "before":
        other = OneMember("/store", files=disk.process())
        other.commit(1, T1, durable=True)
    one.commit(2, durable=True)
    disk.fail("sync", name=NAME, times=1)
    with pytest.raises(logstore.errors.SyncFailedError):
        one.commit(3, durable=True)
    disk.heal()
    if joins == "after a kill":
        disk = disk.kill()
    if other is None:
        other = OneMember("/store", files=disk.process())
    if fails:
        assert isinstance(other.root.files, MemoryDisk)
        disk = other.root.files
        disk.fail(fails, name=f"{NAME}.tmp" if fails == "create" else "", times=1)
        with pytest.raises(logstore.errors.SyncFailedError):
            other.commit(49, T1, durable=True)
        disk.heal()
    other.commit(50, T1, durable=True)
    check_survives(disk, 50, T1)
    check_survives(disk, 3)


def test_failed_sync_of_a_compaction_is_known_to_the_others() -> None:
    """The old file stays, and another sync of it proves nothing."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(0, durable=True)
    disk.fail("sync", name=NAME, times=1)
    for offset in range(1, 100):
        one.commit(offset)
        if one.slots.point.now().is_doubtful:
            break
    else:
        pytest.fail("no sync of the old file has failed")
    other = OneMember("/store", files=disk.process())
    other.commit(50, T1, durable=True)
    check_survives(disk, 50, T1)


@pytest.mark.parametrize("method", ["read", "lock_byte", "write"])
@pytest.mark.parametrize("is_for_ever", [False, True])
def test_commit_that_is_appended_and_not_durable_says_so(
    monkeypatch: pytest.MonkeyPatch, *, method: str, is_for_ever: bool
) -> None:
    """An error after the append does not report that nothing was committed: the commit
    counts."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    for offset in (1, 2):
        one.commit(offset, durable=True)
    unlock, times = disk.unlock_byte, 1 << 60 if is_for_ever else 1

    def fail_from_now_on(fd: int, pos: int) -> None:
        """The failures begin after the append, at the end of the mutex."""
        unlock(fd, pos)
        disk.heal()
        disk.fail(method, name=f"{NAME}.lock", times=times)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "unlock_byte", fail_from_now_on)
        # A failure that can be retried is not reported.
        with contextlib.suppress(logstore.errors.SyncFailedError):
            one.commit(3, durable=True)
    disk.heal()
    assert offset_in("/store", files=disk.process()) == 3
    one.commit(4, durable=True)
    check_survives(disk, 4)


def test_turn_to_sync_that_cannot_be_taken_is_none_of_the_commit() -> None:
    """The file is due for a rewrite: the commit is there already."""
    disk = MemoryDisk()
    disk.make_root("/store")
    one = OneMember("/store", files=disk)
    one.commit(0, durable=True)
    lock = disk.lock_byte

    def refuse_turn(fd: int, pos: int) -> bool:
        if pos:
            raise OSError(errno.ENOLCK, "no locks")
        return lock(fd, pos)

    vars(disk)["lock_byte"] = refuse_turn
    for offset in range(1, 60):
        one.commit(offset)
        assert one.offset() == offset
    del vars(disk)["lock_byte"]
    one.commit(60, durable=True)
    check_survives(disk, 60)
