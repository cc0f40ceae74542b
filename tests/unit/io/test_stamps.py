"""Looks at a directory and files: one call of the core, or separate calls."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from logstore import _native
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.stamps import NO_FILE, Look, LookNames, settled, stamp_bytes
from support.damage import FaultyFiles

NAMES = LookNames("../a", "b", ".", "../none", "none", "c")
FIRST = LookNames("../a", "b")


@pytest.fixture(params=[Files, FaultyFiles])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Directory:
    """An open directory with a file, and a directory with a file and a link."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (inside / "b").write_bytes(b"345")
    (inside / "c").symlink_to(inside / "b")
    return Directory.open_root(request.param(), str(tmp_path))


def numbers(path: Path) -> tuple[int, int, int, int]:
    """Numbers that a look finds for a file."""
    info = path.lstat()
    return info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def test_look_has_the_stamps_of_a_directory_and_of_files_in_and_beside_it(
    root: Directory, tmp_path: Path
) -> None:
    """A look follows no link, and a missing file is no error."""
    inside, before = tmp_path / "inside", Files().now_ms()
    look = root.child("inside").look(NAMES)
    place = inside.stat()
    assert look.place == (place.st_dev, place.st_ino)
    assert look.stamps() == {
        "../a": numbers(tmp_path / "a"),
        "b": numbers(inside / "b"),
        ".": numbers(inside),
        "../none": None,
        "none": None,
        "c": numbers(inside / "c"),
    }
    assert before <= look.begun_ms <= Files().now_ms()
    assert look.first(FIRST).stamps() == dict([*look.stamps().items()][:2])
    slow = Directory.open_root(FaultyFiles(), str(tmp_path)).child("inside")
    assert slow.look(NAMES).data == look.data
    stamps = root.look(LookNames("a", ".")).stamps()
    assert stamps == {"a": numbers(tmp_path / "a"), ".": numbers(tmp_path)}


CHANGES: dict[str, Callable[[Path], object]] = {
    "file": lambda path: (path / "inside" / "b").write_bytes(b"3456"),
    "file beside it": lambda path: (path / "a").write_bytes(b"3"),
    "time that is put back": lambda path: os.utime(path / "a", ns=(5, 5)),
    "new file": lambda path: (path / "inside" / "none").touch(),
    "new file beside it": lambda path: (path / "none").touch(),
    "removed file": lambda path: (path / "inside" / "b").unlink(),
    "other name": lambda path: (path / "inside" / "x").touch(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_look_is_the_one_before_unless_something_has_changed(
    root: Directory, tmp_path: Path, change: str
) -> None:
    directory = root.child("inside")
    before = directory.look(NAMES)
    assert directory.look(NAMES, before) is before
    time.sleep(0.03)  # a later change alters the times
    CHANGES[change](tmp_path)
    now = directory.look(NAMES, before)
    assert now is not before
    assert now.data != before.data
    assert directory.look(NAMES, now) is now


def test_look_at_other_names_is_not_the_one_before(root: Directory) -> None:
    """The looks differ even if they have found the same."""
    directory = root.child("inside")
    first, copy = directory.look(FIRST), LookNames(*FIRST.names)
    assert directory.look(NAMES, first) is not first
    assert directory.look(copy, first) is not first
    assert directory.look(copy, first).data == first.data


def test_look_at_no_directory_is_an_error(root: Directory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "inside")
    for name, error in (
        ("none", FileNotFoundError),
        ("a", NotADirectoryError),
        ("link", OSError),
    ):
        with pytest.raises(error):
            root.child(name).look(NAMES)
    with pytest.raises(OSError):
        _native.look(-1, "inside", b"", 0, None)


def test_times_settle_when_a_later_change_must_alter_them() -> None:
    """A time from shortly before the files were examined up to the end of that is
    recent; one of the future is used unchanged: the clock was set back."""
    files: Any = type("Clock", (), {"now_ms": lambda self: 10_050})()
    for time_ms, is_settled in (
        (9_979, True), (9_981, False), (10_000, False), (10_050, False), (10_051, True),
    ):  # fmt: skip
        stamps = ((1, 10_000, 5, 1), NO_FILE, (2, 0, time_ms * 1_000_000, 1))
        data = bytes(16) + b"".join(map(stamp_bytes, stamps))
        look = Look(LookNames("a", "b", "c"), data, 10_000)
        assert look.has_settled(files) == is_settled
        assert (settled(time_ms * 1_000_000, 10_000, files) >= 0) == is_settled
