"""An append-only file, with entries and with batches in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from logstore import _native as native
from logstore.io.checkpoint import append_file
from logstore.io.checkpoint.append_file import AppendCalls, AppendFile
from logstore.io.checkpoint.entries import (
    end_of,
    first_entry,
    later_entries,
    later_entry,
)
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.stamps import FileInfo, stamp_bytes
from support.damage import FaultyFiles
from support.transactions import batch

NAME = "file"


class Codec(NamedTuple):
    """Consecutive entries of one kind, and a function that returns how many of some
    bytes at a position of the file are whole entries."""

    entries: list[bytes]
    whole: Callable[[int, bytes], int]

    @property
    def data(self) -> bytes:
        return b"".join(self.entries)


def _entries() -> Codec:
    found = [first_entry(b'{"first":1}')]
    ends = [end_of(found[0], None)]
    for number in range(8):
        found.append(later_entry(ends[-1], b'{"n":%d}' % 10**number))
        ends.append(ends[-1].after(found[-1]))

    def whole(pos: int, data: bytes) -> int:
        if not pos:
            return len(found[0]) if data.startswith(found[0]) else 0
        (end,) = (end for end in ends if end.size == pos)
        while data and later_entries(data, end) is None:
            data = data[:-1]
        return len(data)

    return Codec(found, whole)


def _batches() -> Codec:
    found = [
        batch(n, [(b"k", b"v" * 10 * n)], -1, control=False, sequence=-1)
        for n in range(9)
    ]

    def whole(pos: int, data: bytes) -> int:
        return native.walk_batches(native.pointer(data), len(data)).pos

    return Codec(found, whole)


CODECS = {"entries": _entries(), "batches": _batches()}


@pytest.fixture(params=CODECS)
def codec(request: pytest.FixtureRequest) -> Codec:
    return CODECS[request.param]


@pytest.fixture
def files() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def root(tmp_path: Path, files: FaultyFiles) -> Directory:
    return Directory.open_root(files, str(tmp_path))


def made(root: Directory, data: bytes) -> AppendFile:
    """A file with some bytes, open for writing."""
    root.write_file(NAME, data)
    return AppendFile(root, NAME, root.open(NAME, write=True))


def taken(file: AppendFile, codec: Codec, pos: int = 0) -> list[int]:
    """How many bytes are whole at each reading."""
    found: list[int] = []

    def take_in(data: bytes) -> int:
        found.append(codec.whole(pos + sum(found), data))
        return found[-1]

    size = file.size_now()
    assert size is not None
    file.read_on(pos, size, take_in, 1 << 20)
    return found


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("read_bytes", [1, 100, 1 << 20])
def test_what_was_appended_is_read_from_an_end_on(
    root: Directory, codec: Codec, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    """The reads may be of any size, and the last entry may be torn."""
    monkeypatch.setattr(append_file, "_READ_BYTES", read_bytes)
    begin = len(codec.entries[0])
    for torn in (b"", codec.entries[0][:-1]):
        file = made(root, codec.data + torn)
        assert sum(taken(file, codec)) == len(codec.data)
        assert sum(taken(file, codec, begin)) == len(codec.data) - begin


def test_torn_entry_is_read_when_it_is_whole(root: Directory, codec: Codec) -> None:
    """Another process may be in the middle of writing it."""
    *before, last = codec.entries
    end = len(codec.data) - len(last)
    file = made(root, b"".join(before) + last[:20])
    assert sum(taken(file, codec)) == end
    root.files.write(file.fd, last, end)
    assert taken(file, codec, end) == [len(last)]


def test_entry_beyond_the_largest_one_is_none(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length is not trusted: no memory for all the bytes after it is taken."""
    monkeypatch.setattr(append_file, "_READ_BYTES", 10)
    file, sizes = made(root, bytes(1000)), list[int]()

    def none(data: bytes) -> int:
        sizes.append(len(data))
        return 0

    file.read_on(0, 1000, none, 100)
    assert sizes == [10, 20, 40, 80, 160]


def test_file_that_got_shorter_is_read_to_its_end(root: Directory) -> None:
    file = made(root, b"abcdef")
    assert file.read(4, 10) == b"ef"
    assert file.read(9, 1) == b""
    seen: list[bytes] = []
    file.read_on(2, 100, lambda data: seen.append(data) or 0, 100)
    assert seen == [b"cdef"]


def test_file_that_was_replaced_or_removed_has_no_size_now(root: Directory) -> None:
    """Its bytes can still be read; the file that has the name now counts."""
    file = made(root, b"abc")
    assert file.size_now() == file.size == 3
    root.files.write(file.fd, b"d", 3)
    assert file.size_now() == 4
    other = AppendFile.written(root, NAME, b"other")
    assert file.size_now() == 4
    other.take_name()
    assert file.size_now() is None
    assert other.size_now() == 5
    assert file.read(0, 9) == b"abcd"
    root.unlink(NAME)
    with pytest.raises(FileNotFoundError):
        other.size_now()


# ---------------------------------------------------------------- --- rewriting it


def test_written_file_is_durable_before_it_has_its_name(
    root: Directory, files: FaultyFiles, codec: Codec
) -> None:
    """Another program's file under the temporary name is not written to."""
    made(root, b"old")
    root.write_file(f"{NAME}.tmp", b"left over")
    files.forget()
    file = AppendFile.written(root, NAME, codec.data)
    file.take_name()
    order = [call for call, _ in files.calls if call in ("write", "sync", "rename")]
    assert order == ["write", "sync", "rename"]
    assert root.read_file(NAME) == codec.data


@pytest.mark.parametrize("call", ["create", "write", "sync"])
def test_file_that_cannot_be_written_leaves_the_old_one(
    root: Directory, files: FaultyFiles, call: str
) -> None:
    made(root, b"old")
    files.fail(call, errno.ENOSPC, times=1)
    with pytest.raises(OSError, match="No space"):
        AppendFile.written(root, NAME, b"new")
    assert root.read_file(NAME) == b"old"


def test_file_is_closed_with_its_last_reference(root: Directory) -> None:
    """Calls of the file count as references."""
    made(root, b"")
    before = len(os.listdir("/proc/self/fd"))
    calls = AppendCalls(AppendFile(root, NAME, root.open(NAME, write=True)))
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del calls
    assert len(os.listdir("/proc/self/fd")) == before


# ---------------------------------------------------------------- appending


@pytest.mark.parametrize("kind", [Files, FaultyFiles])
@pytest.mark.parametrize("by_stamp", [False, True])
def test_entries_are_appended_where_the_file_was_left(
    tmp_path: Path, codec: Codec, kind: type[Files], *, by_stamp: bool
) -> None:
    """In one call of the core, or one by one; another write is noticed."""
    root = Directory.open_root(kind(), str(tmp_path))
    first, *others = codec.entries
    file = made(root, first)
    calls, end = AppendCalls(file, by_stamp=by_stamp), len(first)
    for entry in others:
        stamp = root.stamp(NAME)
        assert stamp is not None
        calls.set(entry, end, stamp_bytes(stamp) if by_stamp else None)
        assert calls.make(calls.end) == (calls.end, None)
        end += len(entry)
    assert root.read_file(NAME) == codec.data
    root.files.write(file.fd, b"x", end)
    assert calls.make(calls.end) == (calls.look, None)
    assert root.read_file(NAME) == codec.data + b"x"


@pytest.mark.parametrize("change", ["replaced", "removed", "grown", "shorter"])
def test_nothing_is_appended_to_a_file_that_has_changed(
    root: Directory, change: str
) -> None:
    """The caller reads it again."""
    file = made(root, b"abc")
    calls = AppendCalls(file)
    if change == "replaced":
        root.write_file(NAME, b"abc")
    elif change == "removed":
        root.unlink(NAME)
    elif change == "grown":
        root.files.write(file.fd, b"d", 3)
    else:
        file.cut_to(2)
    before = file.read(0, 9)
    calls.set(b"entry", 3)
    assert calls.make(calls.end) == (calls.look, None)
    assert file.read(0, 9) == before


class Recorded(Files):
    """Names the calls of steps in order."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def lock_byte(self, fd: int, pos: int) -> bool:
        self.made.append("lock")
        return super().lock_byte(fd, pos)

    def unlock_byte(self, fd: int, pos: int) -> None:
        self.made.append("unlock")
        super().unlock_byte(fd, pos)

    def stat_name(self, dir_fd: int, name: str) -> FileInfo:
        self.made.append("look")
        return super().stat_name(dir_fd, name)

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        self.made.append(f"write {bytes(data).decode()}")
        super().write(fd, data, pos)

    def sync(self, fd: int) -> None:
        self.made.append("sync")
        super().sync(fd)


def test_calls_around_an_append_are_made_in_order(tmp_path: Path) -> None:
    """Calls come before it, between its write and its sync, and after it; each part
    works alone."""
    files = Recorded()
    file = made(Directory.open_root(files, str(tmp_path)), b"abc")
    lock, unlock = (
        native.Step(kind, file.fd, 5) for kind in (native.STEP_LOCK, native.STEP_UNLOCK)
    )
    after = native.Step(native.STEP_WRITE, file.fd, 100, b"after")
    calls = AppendCalls(file, before=[lock], between=[unlock], after=[after])
    calls.set(b"d", 3)
    files.made.clear()
    assert calls.make(calls.end) == (calls.end, None)
    order = ["lock", "look", "write d", "unlock", "sync", "write after"]
    assert files.made == order
    files.made.clear()
    assert calls.make(calls.sync + 1, calls.write) == (calls.sync + 1, None)
    assert files.made == order[2:5]


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (0, "lock_byte"),
        (1, "read"),
        (2, "stat_name"),
        (3, "write"),
        (4, "sync"),
        (5, "unlock_byte"),
    ],
)
def test_replaced_call_is_made_in_the_place_of_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """A test that lets a call fail then lets it fail in the code that users run."""
    root = Directory.open_root(Files(), str(tmp_path))
    file = made(root, b"abc")
    before = [
        native.Step(native.STEP_LOCK, file.fd, 5),
        native.Step(native.STEP_BYTES, file.fd, 0, b"ab"),
    ]
    after = [native.Step(native.STEP_UNLOCK, file.fd, 5)]
    calls = AppendCalls(file, before=before, after=after)
    calls.set(b"d", 3)

    def refused(*_: object) -> NoReturn:
        raise OSError(errno.EIO, name)

    with monkeypatch.context() as patch:
        patch.setattr(Files, name, refused)
        done, error = calls.make(calls.end)
    assert (done, str(error)) == (number, f"[Errno 5] {name}")
    file.undo(3)
    assert calls.make(calls.end) == (calls.end, None)


@pytest.mark.parametrize(
    ("call", "number"), [("stat_name", 0), ("write", 1), ("sync", 2)]
)
def test_refused_call_is_the_last_one_that_is_made(
    root: Directory, files: FaultyFiles, codec: Codec, call: str, number: int
) -> None:
    """A write that has failed in part can be undone; then the append is repeated."""
    first, second = codec.entries[:2]
    file = made(root, first)
    calls = AppendCalls(file)
    calls.set(second, len(first))
    short = 7 if call == "write" else -1
    files.fail(call, errno.EIO, times=1, short=short)
    done, error = calls.make(calls.end)
    assert done == number
    assert error is not None
    assert error.errno == errno.EIO
    if call == "write":
        assert file.size_now() == len(first) + 7
        assert sum(taken(file, codec)) == len(first)
        file.undo(len(first))
    if call != "sync":
        assert root.read_file(NAME) == first
        assert calls.make(calls.end) == (calls.end, None)
    assert root.read_file(NAME) == first + second


def test_undo_that_fails_leaves_it_to_the_next_writer(
    root: Directory, files: FaultyFiles
) -> None:
    """A cut reports it."""
    file = made(root, b"abcdef")
    files.fail("truncate", errno.EIO)
    file.undo(3)
    with pytest.raises(OSError, match="Input/output"):
        file.cut_to(3)
    files.heal()
    assert file.size_now() == 6
    file.cut_to(3)
    assert root.read_file(NAME) == b"abc"
