"""A group's file that is damaged, or belongs to another log, is an error of every call
that reads it: no call takes it for a new group, or returns an older offset."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import logstore
from logstore.group.file.group_file import GroupFile
from logstore.io import layout
from logstore.io.directory import Directory
from logstore.io.files import Files
from support.damage import logs_in
from support.groups import T0, OneMember, consumer, drain, store_with


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A group with the committed offsets 10, 20, and 30, one after the other; all of
    its file is durable."""
    store_with(tmp_path / "s", 1, 100)
    with consumer(tmp_path / "s") as one:
        drain(one)
        for offset in (10, 20, 30):
            one.commit({T0: offset})
    member = OneMember(tmp_path / "s")
    member.slots.locked(lambda: member.file.refresh_held(member.slots), 10)
    member.commit(30, durable=True)
    member.close()
    return tmp_path / "s"


def group_file(path: Path) -> Path:
    return path / layout.group_file("g")


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 65]) + data[at + 1 :]


DAMAGES: dict[str, Callable[[Path, bytes], bytes]] = {
    "first batch": lambda path, data: flipped(data, 40),
    "batch in the middle": lambda path, data: flipped(data, len(data) // 2),
    "last batch": lambda path, data: flipped(data, len(data) - 3),
    "last batch removed": lambda path, data: data[:-20],
    "text": lambda path, data: b"somebody else's file\n" * 9,
    "log of a partition": lambda path, data: logs_in(path / "t-0")[0].read_bytes(),
    "batches behind garbage": lambda path, data: data[:-1] + bytes(20) + data,
}


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, path: Path) -> Path:
    file = group_file(path)
    # In place: the lock file knows the identity of the file.
    file.write_bytes(DAMAGES[request.param](path, file.read_bytes()))
    return path


def read(path: Path) -> Any:
    root = Directory.open_root(Files(), str(path))
    file = GroupFile(root, layout.group_file("g"), "g")
    try:
        return file.refresh()
    finally:
        file.close()
        root.close()


def committed(path: Path) -> Any:
    with consumer(path) as one:
        return one.committed(T0)


def polled(path: Path) -> Any:
    with consumer(path) as one:
        return one.poll(timeout_ms=1000)


def exported(path: Path) -> Any:
    return logstore.kafka.export_group(
        path, "g", to=path.parent / "broker", dry_run=True
    )


def reset(path: Path) -> Any:
    return logstore.reset_offsets(path, "g", to="latest", dry_run=False)


def reset_dry(path: Path) -> Any:
    return logstore.reset_offsets(path, "g", to="latest", dry_run=True)


@pytest.mark.parametrize("call", [read, committed, polled, exported, reset, reset_dry])
def test_damaged_file_is_an_error_of_each_call(
    damaged: Path, call: Callable[[Path], Any]
) -> None:
    """The error has its own class, and the file is unchanged."""
    before = group_file(damaged).read_bytes()
    with pytest.raises(
        logstore.errors.CorruptCheckpointError, match="the group's file"
    ):
        call(damaged)
    assert group_file(damaged).read_bytes() == before


def test_damaged_file_is_a_problem_of_the_list(damaged: Path) -> None:
    """Its group is not shown with an older offset."""
    found = logstore.groups(damaged)
    assert list(found) == []
    [problem] = found.problems
    assert "is damaged at byte" in problem


def test_member_that_lives_is_told_of_damage(path: Path) -> None:
    """It gets the error as soon as it reads the file."""
    with consumer(path) as one:
        drain(one)
        file = group_file(path)
        file.write_bytes(file.read_bytes() + b"x" * 16 + b"\2" + b"x" * 60)
        with pytest.raises(
            logstore.errors.CorruptCheckpointError, match="no append began"
        ):
            one.committed(T0)


@pytest.mark.parametrize("size", [1, 30, 90])
def test_append_that_was_cut_short_is_no_damage(tmp_path: Path, size: int) -> None:
    """It may be in progress, or was never finished."""
    one, other = OneMember(tmp_path), OneMember(tmp_path)
    one.commit(1)
    assert other.offset() == 1
    file = tmp_path / layout.group_file("g")
    whole = file.read_bytes()
    one.commit(2)
    batch = file.read_bytes()[len(whole) :]
    assert len(batch) > size
    file.write_bytes(whole + batch[:size])
    third = OneMember(tmp_path)
    assert third.offset() == 1
    for member in (one, other, third):
        member.close()


def test_positions_of_a_copy_are_lowered_with_the_lock_of_the_group(path: Path) -> None:
    """The lock is the mutex of its members."""
    copy = path.parent / "copy"
    with logstore.open(path) as store:
        store["t"][0].truncate_to(20)
    shutil.copytree(path, copy)
    locks = {file.name for file in copy.glob("*.lock")}
    with logstore.open(copy) as store:
        store["t"][0].append(b"new")
    assert {file.name for file in copy.glob("*.lock")} == locks
    with consumer(copy) as one:
        assert one.committed(T0) == logstore.OffsetAndMetadata(20)
