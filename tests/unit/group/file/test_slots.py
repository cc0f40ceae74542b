"""The lock file of a group: one member per slot, one holder per partition."""

from __future__ import annotations

import errno
import os
import signal
import struct
import time
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore.group.file import slots as slots_module
from logstore.group.file.slots import (
    MEMBERS_MAX,
    BusyError,
    LockFile,
    SlotInfo,
    Slots,
)
from logstore.io.directory import Directory
from logstore.io.files import Files, ProcessId

NAME = ".logstore-group-g"


def opened(root: Directory) -> Slots:
    return Slots(root, NAME, "g")


def test_group_without_members_has_no_lock_file(root: Directory) -> None:
    """Listing a group makes no file."""
    with pytest.raises(FileNotFoundError):
        LockFile(root, NAME)
    assert root.names() == []


def test_mutex_excludes_another_member_of_the_same_process(root: Directory) -> None:
    """The lock belongs to the open file, not to the process."""
    one, two = opened(root), opened(root)

    def inside() -> None:
        with pytest.raises(BusyError):
            two.locked(lambda: pytest.fail("both have it"), 0)

    one.locked(inside, 0)
    assert two.locked(lambda: 7, 0) == 7


def test_mutex_is_free_after_an_error(root: Directory) -> None:
    """The error may be of any type."""
    one, two = opened(root), opened(root)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        one.locked(interrupted, 0)
    assert two.locked(lambda: 7, 0) == 7


def test_mutex_is_waited_for(root: Directory) -> None:
    """It is waited for up to the given timeout."""
    one, two = opened(root), opened(root)
    ends = []

    def release_soon() -> None:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        ends.append(time.monotonic())

    one.locked(release_soon, 0)
    assert two.locked(time.monotonic, 5) >= ends[0]


def test_removed_lock_file_fences(root: Directory) -> None:
    """Two files of one name would be two groups."""
    one = opened(root)
    root.unlink(f"{NAME}.lock")
    with pytest.raises(logstore.errors.FencedError, match="removed or replaced"):
        one.locked(lambda: 7, 0)
    two = opened(root)
    with pytest.raises(
        logstore.errors.FencedError, match="removed or replaced"
    ) as caught:
        one.locked(lambda: 7, 0)
    assert caught.value.group == "g"
    assert two.locked(lambda: 7, 0) == 7


def test_slots_are_taken_lowest_first(root: Directory) -> None:
    """A slot is free again when its member has left."""
    members = [opened(root) for _ in range(3)]
    assert [one.join(100) for one in members] == [0, 1, 2]
    assert members[0].members() == [1, 2]
    assert members[2].is_alive(1)
    members[1].leave()
    assert not members[2].is_alive(1)
    assert opened(root).join(100) == 1


def test_slots_may_be_left_out(root: Directory) -> None:
    """Slots with another meaning are skipped although they are free."""
    one, two = opened(root), opened(root)
    assert one.join(100, {0, 2}) == 1
    assert two.join(100, range(MEMBERS_MAX)) is None
    assert two.join(100, {0}) == 2


def test_slots_are_limited(root: Directory, monkeypatch: pytest.MonkeyPatch) -> None:
    """None is free if all are taken."""
    monkeypatch.setattr(slots_module, "MEMBERS_MAX", 1)
    one, two = opened(root), opened(root)
    assert one.join(100) == 0
    assert two.join(100) is None


def test_member_says_who_it_is(root: Directory, monkeypatch: Any) -> None:
    """Its process, the time at which it joined, and the time of its last poll, by both
    clocks."""
    now = {"wall": 5_000, "at": 70.0}
    monkeypatch.setattr(Files, "now_ms", lambda _: now["wall"])
    monkeypatch.setattr(Files, "monotonic", lambda _: now["at"])
    one = opened(root)
    one.join(100)
    look = LockFile(root, NAME)
    info = look.info(0)
    assert info.process == Files().process_id()
    assert info.process.pid == os.getpid()
    assert (info.since_ms, info.interval_ms) == (5_000, 100)
    assert (info.polled_ms, info.polled_at_ms) == (5_000, 70_000)
    now.update(wall=9_000, at=70.009)
    one.polled()  # too soon to be written
    assert look.info(0) == info
    now.update(wall=4_000, at=70.011)  # the clock was put back
    one.polled()
    assert look.info(0).polled_ms == 4_000
    assert look.info(0).polled_at_ms == 70_011
    assert look.info(0).since_ms == 5_000


@pytest.mark.parametrize(
    ("at_ms", "stuck"), [(1000, None), (1110, None), (1111, 11), (2000, 900)]
)
def test_member_is_stuck_after_its_interval(at_ms: int, stuck: int | None) -> None:
    """Activity that it has not written yet counts; the time of day does not."""
    info = SlotInfo(0, ProcessId(1, 2, b""), 1000, 77, 1000, 100)
    assert info.stuck_ms(at_ms) == stuck
    assert info._replace(polled_at_ms=None).stuck_ms(at_ms) is None


def test_member_of_an_earlier_version_is_not_stuck(root: Directory) -> None:
    """It overwrites only the first times of the slot's former member; without such an
    entry, nothing is known."""
    one = opened(root)
    one.join(100)
    path = root.path_of(one.name)
    with open(path, "r+b") as file:
        file.seek(4096)
        file.write(struct.pack("<IIQ16sqq", 1, 100, 2, bytes(16), 8_000, 9_000))
    info = LockFile(root, NAME).info(0)
    assert (info.since_ms, info.polled_ms, info.polled_at_ms) == (8_000, 9_000, None)
    assert LockFile(root, NAME).info(7).polled_at_ms is None


def test_partition_has_one_holder(root: Directory) -> None:
    """The file has the slot of the holder."""
    one, two = opened(root), opened(root)
    one.join(100)
    two.join(100)
    look = LockFile(root, NAME)
    assert look.holder(7) is None
    assert one.take(7)
    assert not two.take(7)
    assert (look.holder(7), look.held_rows(), look.is_held(7)) == (0, [7], True)
    assert two.held_rows() == [7]
    one.release(7)
    assert not look.is_held(7)
    assert two.take(7)
    assert (look.holder(7), two.rows) == (1, {7})


def test_locks_of_many_rows_are_found(root: Directory) -> None:
    """They are found for each holder, and with gaps anywhere."""
    members = [opened(root) for _ in range(3)]
    for row in range(0, 300, 2):
        assert members[row % 3].take(row)
    assert LockFile(root, NAME).held_rows() == list(range(0, 300, 2))


def test_leaving_gives_everything_back(root: Directory) -> None:
    """The slot and the partitions."""
    one = opened(root)
    one.join(100)
    one.take(1)
    one.take(2)
    one.leave()
    look = LockFile(root, NAME)
    assert (look.members(), look.held_rows()) == ([], [])
    assert (one.slot, one.rows) == (None, set())


def test_end_of_a_process_frees_its_locks(root: Directory) -> None:
    """This includes SIGKILL."""
    ready, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        child = opened(root)
        child.join(100)
        child.take(3)
        os.write(begin, b".")
        time.sleep(60)
        os._exit(1)
    os.read(ready, 1)
    look = LockFile(root, NAME)
    assert (look.members(), look.held_rows()) == ([0], [3])
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (look.members(), look.held_rows()) == ([], [])


def test_turns_exclude(root: Directory) -> None:
    """One syncs, one publishes."""
    one, two = opened(root), opened(root)
    assert one.point.take_turn()
    assert not two.point.take_turn()
    assert two.take_publish_turn()
    assert not one.take_publish_turn()
    one.point.end_turn()
    two.end_publish_turn()
    assert two.point.take_turn()
    assert one.take_publish_turn()


def test_wake_is_reported(root: Directory) -> None:
    """Watchers of the lock file get a report; the end of a member is reported, too."""
    one, two = opened(root), opened(root)
    files = root.files
    watch = files.new_watch()
    files.watch(watch, one.fd, native.WATCH_WRITES)
    assert files.reports(watch) == []
    two.wake()
    assert files.wait_for_any([watch], 5)
    assert files.reports(watch)
    two.close()
    assert files.wait_for_any([watch], 5)
    assert files.reports(watch)
    assert files.reports(watch) == []
    files.close(watch)


def test_wake_needs_no_room(root: Directory) -> None:
    """The first byte of the file may find no room on a full disk: a member that leaves
    raises nothing, since the others check in any case."""
    one = opened(root)

    class Full(Files):
        def write(self, fd: int, data: Any, pos: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    one._file.files = Full()
    one.wake()


def test_names_are_reported_without_what_is_written(root: Directory) -> None:
    """Writes are not, so that commits do not wake every process."""
    files = root.files
    watch = files.new_watch()
    with root.use() as fd:
        files.watch(watch, fd, native.WATCH_NAMES)
    one = root.create("x")
    assert files.wait_for_any([watch], 5)
    assert files.reports(watch)
    files.write(one, b"x", 0)
    files.close(one)
    assert files.reports(watch) == []
    files.close(watch)


def test_failing_system_calls_are_named_errors(root: Directory) -> None:
    """Errors of locks, writes and reads are named."""
    one = opened(root)

    def refuse(*_: object) -> int:
        raise OSError(5, os.strerror(5))

    class Failing(Files):
        lock_byte = refuse  # type: ignore[assignment]
        write = refuse  # type: ignore[assignment]
        read = refuse  # type: ignore[assignment]

    one._file.files = Failing()
    with pytest.raises(logstore.StorageError, match="lock"):
        one.take(1)
    with pytest.raises(logstore.StorageError, match="write"):
        one.wake()
    with pytest.raises(logstore.StorageError, match="read"):
        one.point.now()


def test_constants_are_those_of_the_format() -> None:
    """docs/format.md has them."""
    assert (MEMBERS_MAX, slots_module.ROWS_MAX) == (1024, 2048)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("members", ()), ("held_rows", ()), ("is_alive", (3,)), ("is_held", (3,))],
)
def test_locks_that_cannot_be_looked_at_are_a_named_error(
    root: Directory,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    arguments: tuple[int, ...],
) -> None:
    slots = opened(root)
    monkeypatch.setattr(slots.files, "locked_bytes", _refuse)
    with pytest.raises(logstore.StorageError, match=r"locks of .*logstore-group-g"):
        getattr(slots, name)(*arguments)


def test_lock_file_that_cannot_be_read_is_a_named_error(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(root)
    looked = LockFile(root, NAME)
    monkeypatch.setattr(looked.files, "read", _refuse)
    with pytest.raises(logstore.StorageError, match=r"read .*logstore-group-g"):
        looked.info(0)


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOMEM, "no memory")
