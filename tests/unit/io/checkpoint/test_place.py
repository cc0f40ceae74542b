"""Whether the directory of a store is a copy, according to its owner file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from logstore.io import layout
from logstore.io.checkpoint import checkpoints
from logstore.io.checkpoint.place import (
    FIELD,
    NOWHERE,
    is_elsewhere,
    is_known_copy,
    is_left_over,
)
from logstore.io.directory import Directory
from logstore.io.files import Files


class OnFileSystem(Files):
    """The system reports this UUID."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid

    def file_system_id(self, fd: int) -> str:
        return self.uuid


@pytest.mark.parametrize(
    ("recorded", "now", "expected"),
    [
        ("aa", "aa", False),
        ("aa", "bb", True),
        ("", "aa", False),  # an older kernel recorded it
        ("aa", "", False),
        ("", "", False),
    ],
)
def test_uuid_tells_only_if_it_is_known_on_both_sides(
    tmp_path: Path, recorded: str, now: str, expected: bool
) -> None:
    root = Directory.open_root(OnFileSystem(now), str(tmp_path))
    inode = tmp_path.stat().st_ino
    assert is_elsewhere([inode, recorded], root) is expected
    assert is_elsewhere([inode + 1, recorded], root)
    assert is_elsewhere(list(NOWHERE), root)
    root.close()


@pytest.mark.parametrize("recorded", [None, [], [1], "x", [1, "", 2]])
def test_owner_file_that_does_not_say_makes_no_copy(
    root: Directory, recorded: Any
) -> None:
    """A file of an earlier version does not record its place."""
    assert not is_elsewhere(recorded, root)


def test_file_with_two_names_is_left_over_in_a_copy_alone(
    tmp_path: Path, root: Directory
) -> None:
    def write(place: list[Any]) -> None:
        value = {"clean": True, "fingerprints": [], FIELD: place}
        checkpoints.write_state(root, layout.OWNER, value)

    (tmp_path / "file").touch()
    os.link(tmp_path / "file", tmp_path / "other")
    assert not is_known_copy(root)  # there is no owner file
    write([tmp_path.stat().st_ino, ""])
    assert not is_left_over(root, "file")
    write([tmp_path.stat().st_ino + 1, ""])
    assert is_known_copy(root)
    assert is_left_over(root, "file")
    (tmp_path / "other").unlink()
    assert not is_left_over(root, "file")
    with pytest.raises(FileNotFoundError):
        is_left_over(root, "other")
