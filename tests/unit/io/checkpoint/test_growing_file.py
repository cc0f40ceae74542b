"""State files that are written whole, and by appended entries."""

from __future__ import annotations

import errno
import itertools
import os
from pathlib import Path
from typing import Any

import pytest

from logstore.errors import CorruptCheckpointError
from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.append_file import SyncedFiles
from logstore.io.checkpoint.entries import split_entries
from logstore.io.checkpoint.growing_file import GrowingFile
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.damage import FaultyFiles


class ByCall(Files):
    """Makes each call separately, since one of them is replaced."""

    def sync(self, fd: int) -> None:
        super().sync(fd)


class Failing(Files):
    """Fails the next call of a method, once."""

    failing = ""

    def _fail(self, method: str) -> None:
        if self.failing == method:
            self.failing = ""
            raise OSError(errno.ENOSPC, "no space")

    def write(self, fd: int, data: bytes | memoryview, pos: int) -> None:
        if self.failing == "write":
            super().write(fd, data[: len(data) // 2], pos)
        self._fail("write")
        super().write(fd, data, pos)

    def sync(self, fd: int) -> None:
        self._fail("sync")
        super().sync(fd)


def settings(**topics: Any) -> dict[str, Any]:
    return {"topics": {name: {"partitions": count} for name, count in topics.items()}}


def text(change: dict[str, Any]) -> str:
    return checkpoints.state_text(change)


def read(root: Directory) -> dict[str, Any]:
    value = checkpoints.read_state(root, layout.TOPICS)
    assert value is not None
    return {name: topic["partitions"] for name, topic in value["topics"].items()}


def new(path: Path) -> tuple[Directory, GrowingFile, Failing]:
    files = Failing()
    root = Directory.open_root(files, str(path))
    file = GrowingFile(root, layout.TOPICS)
    assert not file.append(text(settings(a=1)))  # not before it was written whole
    file.replace(checkpoints.state_text(settings(a=1, b=1)))
    return root, file, files


def test_change_is_appended_and_read(tmp_path: Path) -> None:
    """A topic is added, replaced, removed; the rest of the file stays unchanged."""
    root, file, _ = new(tmp_path)
    data = (tmp_path / layout.TOPICS).read_bytes()
    assert file.append(text(settings(c=1)))
    assert file.append(text(settings(a=3)))
    assert file.append(text({"topics": {"b": None, "unknown": None}}))
    assert read(root) == {"a": 3, "c": 1}
    assert (tmp_path / layout.TOPICS).read_bytes().startswith(data)
    assert file.has_entries
    file.replace(checkpoints.state_text(settings(z=1)))
    assert (read(root), file.has_entries) == ({"z": 1}, False)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_failed_append_is_followed_by_a_write_of_the_whole_file(
    tmp_path: Path, call: str
) -> None:
    """Bytes that the failed append left have no effect."""
    root, file, files = new(tmp_path)
    assert file.append(text(settings(c=1)))
    files.failing = call
    with pytest.raises(OSError, match="no space"):
        file.append(text(settings(d=1)))
    assert read(root) in ({"a": 1, "b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1, "d": 1})
    assert not file.append(text(settings(e=1)))
    file.replace(checkpoints.state_text(settings(e=1)))
    assert file.append(text(settings(f=1)))
    assert read(root) == {"e": 1, "f": 1}


def test_long_file_takes_no_more_entries(tmp_path: Path) -> None:
    """Such a file must be written whole: reading it costs twice its content at the
    most."""
    root, file, _ = new(tmp_path)
    count = 0
    while file.append(text(settings(**{f"topic-{count}": 1}))):
        count += 1
    size = (tmp_path / layout.TOPICS).stat().st_size
    assert 64 << 10 < size < 66 << 10
    assert len(read(root)) == count + 2


def test_entry_beyond_the_largest_file_that_is_read_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is then written whole, which may be shorter."""
    root, file, _ = new(tmp_path)
    assert file.append(text(settings(c=1)))
    size = (tmp_path / layout.TOPICS).stat().st_size
    monkeypatch.setattr(checkpoints, "STATE_BYTES_MAX", size + len(text(settings(d=1))))
    assert not file.append(text(settings(d=1)))
    assert len(read(root)) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"topics": 5},
        {"topics": {"a": 5}},
        {"topics": {"a": {}}},
        {"topics": {"../a": {"partitions": 1}}},
        {"other": {}},
        {"topics": {"a": {"partitions": 2_000_000}}},
    ],
)
def test_entry_that_cannot_be_applied_is_an_error(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Its checksum is right: a program has written it so."""
    root, file, _ = new(tmp_path)
    assert file.append(text(change))
    with pytest.raises(CorruptCheckpointError):
        checkpoints.read_state(root, layout.TOPICS)


@pytest.mark.parametrize("is_torn", [False, True])
def test_entries_are_taken_back(tmp_path: Path, is_torn: bool) -> None:
    """Whole entries are removed, and one that a failed write has left in part. Then the
    file accepts entries as before."""
    root, file, _ = new(tmp_path)
    assert file.append(text(settings(c=1)))
    end = file.end
    assert end is not None
    assert file.append(text(settings(d=1)))
    if is_torn:
        with (tmp_path / layout.TOPICS).open("ab") as other:
            other.write(b"xxh64 torn")
    assert file.cut_to(end)
    assert read(root) == {"a": 1, "b": 1, "c": 1}
    assert file.append(text(settings(e=1)))
    assert read(root) == {"a": 1, "b": 1, "c": 1, "e": 1}


def test_entries_of_another_file_are_not_taken_back(tmp_path: Path) -> None:
    """The file was written whole since, or is shorter."""
    root, file, _ = new(tmp_path)
    end = file.end
    assert end is not None
    file.replace(checkpoints.state_text(settings(a=1)))
    assert not file.cut_to(end)
    assert read(root) == {"a": 1}
    assert not file.append(text(settings(b=1)))
    file.replace(checkpoints.state_text(settings(a=1)))
    now = file.end
    assert now is not None
    assert not file.cut_to(now._replace(size=now.size + 1))


def test_only_files_that_grow_have_entries(tmp_path: Path) -> None:
    """In any other file, an entry after the first one is damage."""
    root = Directory.open_root(Files(), str(tmp_path))
    file = GrowingFile(root, layout.PUBLISHED)
    file.replace(checkpoints.state_text({"published": []}))
    assert checkpoints.read_state(root, layout.PUBLISHED) is not None
    assert file.append(text({"published": []}))
    with pytest.raises(CorruptCheckpointError, match="checksum"):
        checkpoints.read_state(root, layout.PUBLISHED)


def opened(
    path: Path, *, stays_open: bool, files: Files | None = None
) -> tuple[Directory, GrowingFile]:
    path.mkdir(exist_ok=True)
    root = Directory.open_root(files or Files(), str(path))
    file = GrowingFile(root, layout.TOPICS, is_sealed=True, stays_open=stays_open)
    file.replace(text(settings(a=1)))
    return root, file


def test_file_that_stays_open_gets_the_same_bytes(tmp_path: Path) -> None:
    """They equal the bytes of a file opened for each entry; also with the calls of
    tests."""
    found = []
    for stays_open, files in itertools.product((False, True), (Files(), ByCall())):
        path = tmp_path / f"{len(found)}"
        root, file = opened(path, stays_open=stays_open, files=files)
        for count in range(1, 20):
            assert file.append(text(settings(b=count)))
            assert read(root) == {"a": 1, "b": count}
        found.append((path / layout.TOPICS).read_bytes())
    assert len(set(found)) == 1


@pytest.mark.parametrize("stays_open", [False, True])
@pytest.mark.parametrize("change", ["written to", "shorter", "replaced", "touched"])
def test_file_that_another_program_has_changed_takes_no_entry(
    tmp_path: Path, change: str, *, stays_open: bool
) -> None:
    """It must be written whole; then it takes entries again."""
    root, file = opened(tmp_path, stays_open=stays_open)
    assert file.append(text(settings(b=1)))
    path = tmp_path / layout.TOPICS
    other = path.read_bytes()
    if change == "written to":
        path.write_bytes(other + b"x")
    elif change == "shorter":
        path.write_bytes(other[:-1])
    elif change == "replaced":
        (tmp_path / "other").write_bytes(other)
        (tmp_path / "other").rename(path)
    else:
        os.utime(path, ns=(5, 5))
    before = path.read_bytes()
    assert not file.append(text(settings(c=1)))
    assert path.read_bytes() == before
    assert not file.is_known
    file.replace(text(settings(a=2)))
    assert file.append(text(settings(d=1)))
    assert read(root) == {"a": 2, "d": 1}


@pytest.mark.parametrize("stays_open", [False, True])
def test_file_that_is_gone_is_the_error_of_the_system(
    tmp_path: Path, *, stays_open: bool
) -> None:
    """An entry has no file to follow; the next write is of the whole file."""
    _, file = opened(tmp_path, stays_open=stays_open)
    assert file.append(text(settings(b=1)))
    (tmp_path / layout.TOPICS).unlink()
    with pytest.raises(FileNotFoundError):
        file.append(text(settings(c=1)))
    assert not file.is_known


@pytest.mark.parametrize("done", [1, 2, 3])
def test_entry_of_a_file_that_stays_open_fails_as_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    """After a failed write or sync the next write is of the whole file. A failed seal
    loses nothing."""
    root, file = opened(tmp_path, stays_open=True)
    assert file.append(text(settings(b=1)))
    real = Files.make_steps

    def failing(self: Files, steps: Any, count: int, begin: int) -> Any:
        real(self, steps, done)
        return done, OSError(errno.EIO, "failed")

    monkeypatch.setattr(Files, "make_steps", failing)
    if done == 3:
        assert file.append(text(settings(c=1)))
        assert read(root) == {"a": 1, "b": 1, "c": 1}
    else:
        with pytest.raises(OSError, match="failed"):
            file.append(text(settings(c=1)))
        assert not file.is_known
    monkeypatch.undo()
    assert file.append(text(settings(d=1))) == (done == 3)


@pytest.mark.parametrize("stays_open", [False, True])
def test_seal_that_cannot_be_written_is_missing(
    tmp_path: Path, *, stays_open: bool
) -> None:
    """The entry is durable, and the next one is appended."""
    files = FaultyFiles()
    root, file = opened(tmp_path, stays_open=stays_open, files=files)
    files.fail("write", errno.ENOSPC, nth=2, times=1, short=5)
    for topic in "bc":
        assert file.append(text(settings(**{topic: 1})))
    assert file.end is not None
    assert file.end.is_sealed
    assert read(root) == {"a": 1, "b": 1, "c": 1}


@pytest.mark.parametrize("stays_open", [False, True])
def test_entry_is_there_if_the_stamp_behind_it_cannot_be_told(
    tmp_path: Path, *, stays_open: bool
) -> None:
    """It is durable. The next one is not appended: the file is written whole."""
    files = FaultyFiles()
    root, file = opened(tmp_path, stays_open=stays_open, files=files)
    files.fail("stat", errno.EIO, nth=2, times=1)
    assert file.append(text(settings(b=1)))
    assert file.end is not None
    assert file.end.stamp is None
    before = (tmp_path / layout.TOPICS).read_bytes()
    assert not file.append(text(settings(c=1)))
    assert (tmp_path / layout.TOPICS).read_bytes() == before
    assert read(root) == {"a": 1, "b": 1}


@pytest.mark.parametrize("by_call", [False, True])
@pytest.mark.parametrize("stays_open", [False, True])
def test_other_files_are_synced_with_an_entry(
    tmp_path: Path, *, stays_open: bool, by_call: bool
) -> None:
    """Its bytes equal the bytes of an entry that is synced alone."""
    found = []
    for way in ("alone", "together"):
        files = FaultyFiles() if by_call else Files()
        _, file = opened(tmp_path / way, stays_open=stays_open, files=files)
        with (tmp_path / "other").open("wb") as other:
            others = SyncedFiles([other.fileno()] if way == "together" else [])
            assert others.are_synced == (way == "alone")
            assert file.append(text(settings(b=1)), others)
            assert others.are_synced
            assert others.is_all_synced == (way == "together")
        assert file.append(text(settings(c=1)))
        found.append((tmp_path / way / layout.TOPICS).read_bytes())
    assert found[0] == found[1]


@pytest.mark.parametrize("by_call", [False, True])
@pytest.mark.parametrize("bad", ["other", "own", "none"])
def test_entry_has_no_seal_if_another_file_cannot_be_synced(
    tmp_path: Path, *, bad: str, by_call: bool
) -> None:
    """All syncs are made, and each reports its error."""

    class Failing(Files):
        def sync(self, fd: int) -> None:
            if fd == failing:
                raise OSError(errno.EINVAL, "failed")
            super().sync(fd)

    failing = -1
    _, file = opened(
        tmp_path / "s", stays_open=True, files=Failing() if by_call else Files()
    )
    assert file.append(text(settings(b=1)))
    reading, writing = os.pipe()
    with (tmp_path / "other").open("wb") as good:
        fds = [good.fileno(), writing if bad == "other" else good.fileno()]
        others = SyncedFiles(fds)
        if bad == "own":
            calls = file._calls
            assert calls is not None
            failing = calls.file.fd
            if not by_call:
                pytest.skip("a file that is written to can be synced")
        if bad == "none":
            assert file.append(text(settings(c=1)), others)
        else:
            with pytest.raises(OSError):
                file.append(text(settings(c=1)), others)
            assert not file.is_known
        assert others.errors == [0, errno.EINVAL if bad == "other" else 0]
        assert others.is_all_synced == (bad == "none")
    os.close(reading)
    os.close(writing)
    _, end = split_entries((tmp_path / "s" / layout.TOPICS).read_bytes())
    assert end.is_sealed == (bad == "none")


@pytest.mark.parametrize("call", ["stat_name", "write"])
def test_entry_that_cannot_be_begun_is_an_error(tmp_path: Path, call: str) -> None:
    """The next write is of the whole file. Other files are not synced."""
    files = FaultyFiles()
    _, file = opened(tmp_path, stays_open=True, files=files)
    files.fail(call, errno.EIO, times=1)
    with (tmp_path / "other").open("wb") as other:
        others = SyncedFiles([other.fileno()])
        with pytest.raises(OSError, match="Input/output"):
            file.append(text(settings(b=1)), others)
        assert others.errors == [errno.ECANCELED]
        assert not file.is_known
        assert not file.append(text(settings(b=1)), others)
        assert not others.are_synced


def test_open_file_is_closed_when_it_is_forgotten(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    root, file = opened(tmp_path, stays_open=True)
    assert file.append(text(settings(b=1)))
    assert len(os.listdir("/proc/self/fd")) == before + 2
    file.forget()
    assert len(os.listdir("/proc/self/fd")) == before + 1
    root.close()
    assert len(os.listdir("/proc/self/fd")) == before
