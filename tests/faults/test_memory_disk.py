"""The disk in memory behaves like a real one, and loses the right changes at a power
cut."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import tempfile
from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from logstore.io.directory import Directory
from logstore.io.files import Files
from support.disk import MemoryDisk, disk_of
from support.disk_changes import tree
from support.power_cut import cuts

names = st.sampled_from(["a", "b", "c"])
which = st.integers(0, 3)
operations = st.one_of(
    st.tuples(st.just("create"), names, st.booleans()),
    st.tuples(st.just("open"), names, st.booleans()),
    st.tuples(st.just("make_directory"), names),
    st.tuples(st.just("remove_directory"), names),
    st.tuples(st.just("open_directory"), names),
    st.tuples(st.just("rename"), names, names),
    st.tuples(st.just("unlink"), names),
    st.tuples(st.just("stat_name"), names),
    st.tuples(st.just("list")),
    st.tuples(st.just("write"), which, st.binary(max_size=9), st.integers(0, 20)),
    st.tuples(st.just("read"), which, st.integers(0, 12), st.integers(0, 20)),
    st.tuples(st.just("truncate"), which, st.integers(0, 25)),
    st.tuples(st.just("size"), which),
    st.tuples(st.just("sync"), which),
    st.tuples(st.just("sync_directory")),
    st.tuples(st.just("close"), which),
)  # fmt: skip


class _Side:
    """One of the two systems, with its open descriptors."""

    def __init__(self, files: Files, path: str) -> None:
        self.files = files
        files.make_root(path)
        self.root = files.open_root(path)
        self.open: list[int] = []

    def fd(self, number: int) -> int:
        if not self.open:
            raise OSError(errno.EBADF, "nothing is open")
        return self.open[number % len(self.open)]

    def do(self, what: str, *args: Any) -> Any:
        """Make a call; its result, or its error."""
        files, root = self.files, self.root
        try:
            if what == "create":
                self.open.append(files.create(root, args[0], exclusive=args[1]))
            elif what == "open":
                self.open.append(files.open(root, args[0], write=args[1]))
            elif what == "open_directory":
                files.close(files.open_directory(root, args[0]))
            elif what == "stat_name":
                info = files.stat_name(root, args[0])
                return info.is_file, info.is_directory, info.is_file and info.size
            elif what in ("list", "sync_directory"):
                return getattr(files, what)(root)
            elif what == "read":
                buffer = bytearray(args[1])
                return files.read(self.fd(args[0]), buffer, args[2]), bytes(buffer)
            elif what == "close":
                fd = self.fd(args[0])
                self.open.remove(fd)
                files.close(fd)
            elif what in ("write", "truncate", "size", "sync"):
                return getattr(files, what)(self.fd(args[0]), *args[1:])
            else:
                return getattr(files, what)(root, *args)
        except OSError as error:
            return errno.errorcode[error.errno or 0]
        return None


@given(st.lists(operations, max_size=40))
def test_same_calls_give_the_same_as_on_a_real_disk(steps: list[tuple]) -> None:
    """Results, errors, names and contents are the same as the system's at each step."""
    with tempfile.TemporaryDirectory() as folder:
        real = _Side(Files(), f"{folder}/x")
        disk = MemoryDisk()
        memory = _Side(disk, "/x")
        for step in steps:
            if step[0] == "open":
                # The engine writes to no descriptor that it opened for reading.
                step = ("open", step[1], True)
            assert memory.do(*step) == real.do(*step), step
        found = {
            os.path.relpath(os.path.join(at, name), folder): None
            for at, folders, files in os.walk(folder)
            for name in [*folders, *files]
        }
        contents = disk.tree()
        assert contents.keys() == found.keys()
        for path, data in contents.items():
            if data != b"/":
                with open(f"{folder}/{path}", "rb") as file:
                    assert file.read() == data
        for fd in [*real.open, real.root]:
            os.close(fd)


def _written(disk: MemoryDisk, name: str, data: bytes) -> int:
    root = disk.open_root("/s")
    fd = disk.create(root, name)
    disk.write(fd, data, 0)
    return fd


def _new() -> MemoryDisk:
    disk = MemoryDisk()
    disk.make_root("/s")
    return disk


def test_only_what_was_synced_survives() -> None:
    """A file needs syncs of its bytes and its name; one of them is not enough."""
    disk = _new()
    fd = _written(disk, "a", b"abc")
    assert tree(disk.medium.base) == {"s": b"/"}
    disk.sync(fd)
    assert tree(disk.medium.base) == {"s": b"/"}
    disk.sync_directory(disk.open_root("/s"))
    assert tree(disk.medium.base) == {"s": b"/", "s/a": b"abc"}
    other = _new()
    _written(other, "a", b"abc")
    other.sync_directory(other.open_root("/s"))
    assert tree(other.medium.base) == {"s": b"/", "s/a": b""}


def test_ext4_sync_of_any_file_saves_all_names() -> None:
    """Names and lengths are in one journal on ext4."""
    disk = MemoryDisk(model="ext4")
    disk.make_root("/s")
    _written(disk, "a", b"abc")
    disk.sync(_written(disk, "b", b"xy"))
    assert tree(disk.medium.base) == {"s": b"/", "s/a": b"", "s/b": b"xy"}


def test_failed_sync_loses_what_reads_still_show() -> None:
    """No later sync saves the lost bytes; writing them again does."""
    disk = _new()
    fd = _written(disk, "a", bytes(range(1, 50)))
    disk.sync_directory(disk.open_root("/s"))
    disk.fail("sync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        disk.sync(fd)
    disk.sync(fd)
    assert disk.tree()["s/a"] == bytes(range(1, 50))
    assert tree(disk.medium.base)["s/a"] != bytes(range(1, 50))
    disk.write(fd, bytes(range(1, 50)), 0)
    disk.sync(fd)
    assert tree(disk.medium.base)["s/a"] == bytes(range(1, 50))


def test_full_disk_writes_what_fits() -> None:
    """A reservation counts as used space, and removed bytes are free again."""
    disk = _new()
    fd = _written(disk, "a", b"12345")
    disk.fill(4)
    with pytest.raises(OSError, match="No space"):
        disk.write(fd, b"abcdefgh", 5)
    assert disk.tree()["s/a"] == b"12345abcd"
    assert disk.free_bytes(fd) == 0
    disk.truncate(fd, 2)
    assert disk.free_bytes(fd) == 7
    assert disk.reserve(fd, 2, 7)
    assert disk.free_bytes(fd) == 0
    disk.write(fd, b"1234567", 2)


def test_lock_is_of_a_process_until_it_dies() -> None:
    """Locks behave like POSIX record locks: closing any descriptor releases them,
    too."""
    disk = _new()
    fd = _written(disk, "lock", b"")
    assert disk.lock(fd) is None
    other = disk.process()
    again = other.open(other.open_root("/s"), "lock")
    assert other.lock(again) == disk.pid
    disk.kill()
    assert other.lock(again) is None
    other.close(again)
    third = other.process()
    assert third.lock(third.open(third.open_root("/s"), "lock")) is None


def test_nth_call_fails_and_nothing_else() -> None:
    """Calls are counted from the request on, on files of the name."""
    disk = disk_of([("s/a.log", b"a"), ("s/b.log", b"b")])
    root = Directory.open_root(disk, "/s")
    disk.fail("read", errno.ENOMEM, nth=2, times=1, name="a.log")
    assert root.read_file("a.log") == b"a"
    assert root.read_file("b.log") == b"b"
    with pytest.raises(OSError, match="memory"):
        root.read_file("a.log")
    assert root.read_file("a.log") == b"a"


# ---------------------------------------------------------------- a toy that is caught


class Toy:
    """A log of lines in one file, and the number of durable ones in another.

    `bug` names a required step that is left out.
    """

    def __init__(self, disk: MemoryDisk, bug: str) -> None:
        self.disk, self.bug = disk, bug
        self.promised = 0
        disk.make_root("/toy")
        self.root = disk.open_root("/toy")
        self.fd = disk.create(self.root, "log", exclusive=False)
        if bug != "no directory sync":
            disk.sync_directory(self.root)
        self.pos = 0

    def append(self, line: bytes) -> None:
        data = line + b"\n"
        self.disk.write(self.fd, data, self.pos)
        self.pos += len(data)
        self._sync()
        if self.promised:  # the first line needs no count
            self._replace("count", b"%03d" % (self.promised + 1))
        self.promised += 1

    def _sync(self) -> None:
        if self.bug == "no sync":
            return
        try:
            self.disk.sync(self.fd)
        except OSError:
            if self.bug != "sync again":
                raise
            self.disk.sync(self.fd)

    def _replace(self, name: str, data: bytes) -> None:
        fd = self.disk.create(self.root, name + ".tmp", exclusive=False)
        self.disk.write(fd, data, 0)
        if self.bug != "rename before sync":
            self.disk.sync(fd)
        self.disk.close(fd)
        self.disk.rename(self.root, name + ".tmp", name)
        self.disk.sync_directory(self.root)


def _toy_problem(found: dict[str, bytes], promised: int) -> str:
    lines = found.get("toy/log", b"").split(b"\n")
    if lines[:promised] != [b"line"] * promised:
        return "a line is lost"
    count = found.get("toy/count", b"001")
    if not count.isdigit() or int(count) < promised:
        return "the count is lost"
    return ""


def _toy_problems(bug: str) -> set[str]:
    """Problems found in the states that power cuts leave of a working toy."""
    disk, rng = MemoryDisk(), random.Random(1)
    moments = disk.record()
    toy = Toy(disk, bug)
    found = set()
    if bug == "sync again":
        disk.fail("sync", errno.EIO, nth=2, times=1)
    for _ in range(4):
        moments.clear()
        promised = toy.promised
        toy.append(b"line")
        for moment in moments:
            for _, nodes in cuts(moment, rng, 12):
                found.add(_toy_problem(tree(nodes), promised))
        for _, nodes in cuts(disk.moment(), rng, 12):
            found.add(_toy_problem(tree(nodes), toy.promised))
    return found - {""}


@pytest.mark.parametrize(
    "bug",
    ["no sync", "no directory sync", "rename before sync", "sync again"],
)
def test_classic_bugs_of_a_toy_are_caught(bug: str) -> None:
    """They would be caught in a real store as well."""
    assert _toy_problems(bug)


def test_toy_without_a_bug_is_sound() -> None:
    """Right states are not reported as wrong."""
    assert _toy_problems("") == set()


def test_killed_process_can_do_nothing_more() -> None:
    """Its descriptors are closed, and the disk continues without it."""
    disk = _new()
    fd = _written(disk, "a", b"1")
    other = disk.kill()
    calls: list[Callable[[], object]] = [
        lambda: disk.write(fd, b"2", 0),
        lambda: disk.open_root("/s"),
    ]
    for call in calls:
        with pytest.raises(OSError):
            call()
    with contextlib.suppress(OSError):
        disk.close(fd)
    assert other.tree()["s/a"] == b"1"


@pytest.mark.parametrize("size", [0, 3])
def test_ext4_what_was_written_past_a_durable_cut_never_comes(size: int) -> None:
    """A sync of any file saves the size of every other; the bytes beyond it, not
    written yet, are no longer there to be written."""
    disk = MemoryDisk(model="ext4")
    disk.make_root("/s")
    root = disk.open_root("/s")
    one, other = disk.create(root, "one"), disk.create(root, "other")
    disk.write(one, b"12345678", 0)
    disk.truncate(one, size)
    disk.sync(other)
    disk.sync(one)
    assert tree(disk.medium.base)["s/one"] == b"12345678"[:size]
