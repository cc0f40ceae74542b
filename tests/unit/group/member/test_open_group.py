"""A group's files are changed with the mutex, after the end of the file was read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from logstore.errors import CommitFailedError
from logstore.group.file.slots import BusyError
from logstore.group.file.state import GroupState
from logstore.group.member import open_group as module
from logstore.group.member.open_group import OpenGroup
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[OpenGroup, OpenGroup]]:
    """One group, open twice."""
    root, name = Directory.open_root(Files(), str(tmp_path)), layout.group_file("g")
    both = OpenGroup(root, name, "g"), OpenGroup(root, name, "g")
    yield both
    for each in both:
        each.close()
    root.close()


def test_work_with_the_mutex_sees_what_others_have_appended(
    two: tuple[OpenGroup, OpenGroup],
) -> None:
    one, other = two
    seen: list[int] = []

    def append() -> None:
        state = GroupState(one.file.state.generation + 1)
        one.append(state=state)

    def look() -> None:
        seen.append(other.file.state.generation)

    one.locked(append)
    other.locked_within(0, look)
    one.locked(append)
    other.locked(look)
    one.locked(append)
    other.try_locked(look)
    assert seen == [1, 2, 3]


def test_mutex_that_another_one_has(
    two: tuple[OpenGroup, OpenGroup], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll continues without it, a commit names the processes of the members."""
    monkeypatch.setattr(module, "_WAIT_S", 0.02)
    one, other = two
    assert other.slots.join(1000) == 0
    called: list[int] = []

    def meanwhile() -> None:
        one.try_locked(lambda: called.append(1))
        with pytest.raises(BusyError):
            one.locked_within(0, lambda: called.append(2))
        with pytest.raises(CommitFailedError, match=r"\[[0-9]+\] holds it") as caught:
            one.locked(lambda: called.append(3))
        assert caught.value.group == "g"

    other.locked(meanwhile)
    assert called == []
