"""System calls of the core that are made together."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore import _native as native
from logstore._native._ls import ffi, lib
from logstore.io.files import Files


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file with ten bytes."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"0123456789")
    yield fd
    os.close(fd)


def made(folder: int, *steps: native.Step) -> tuple[int, int]:
    """(how many of some calls had the right result, the error of the next one)."""
    return native.Steps(steps).make(len(steps))


def stamped(folder: int, name: str, **other: int) -> native.Step:
    """A file has its present stamp, except for `other`."""
    try:
        found = os.stat(name, dir_fd=folder)
    except (OSError, ValueError):
        found = os.fstat(folder)
    names = ("st_ino", "st_mtime_ns", "st_ctime_ns", "st_size")
    stamp = [other.get(name, getattr(found, name)) for name in names]
    data = struct.pack("=Q3q", *stamp) + name.encode()
    return native.Step(native.STEP_STAMP, folder, data=data)


@pytest.fixture
def folder(file: int, tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_steps_are_made_until_one_has_another_result(
    file: int, folder: int, tmp_path: Path
) -> None:
    """Each kind of call is right and wrong; no call after the wrong one is made."""
    found = os.fstat(file)
    other = os.open(tmp_path / "file", os.O_RDWR)

    def named(**more: Any) -> native.Step:
        numbers = {"device": found.st_dev, "inode": found.st_ino, "data": b"file"}
        return native.Step(native.STEP_FILE, folder, **{**numbers, **more})

    lock = native.Step(native.STEP_LOCK, file, 5)
    unlock = native.Step(native.STEP_UNLOCK, file, 5)
    taken = native.Step(native.STEP_LOCK, other, 5)
    right = [
        lock,
        named(),
        named(size=10),
        stamped(folder, "file"),
        native.Step(native.STEP_BYTES, file, 2, b"234"),
        native.Step(native.STEP_WRITE, file, 10, b"abc"),
        native.Step(native.STEP_SYNC, file),
        unlock,
        taken,
        native.Step(native.STEP_UNLOCK, other, 5),
    ]
    assert made(folder, *right) == (len(right), 0)
    assert (tmp_path / "file").read_bytes() == b"0123456789abc"
    write = native.Step(native.STEP_WRITE, file, 0, b"X")
    for wrong in (
        named(size=12),
        named(device=found.st_dev + 1),
        named(inode=found.st_ino + 1),
        named(data=b"none"),
        native.Step(native.STEP_BYTES, file, 2, b"235"),
        native.Step(native.STEP_BYTES, file, 12, b"cd"),
        stamped(folder, "file", st_size=12),
        stamped(folder, "file", st_mtime_ns=1),
        stamped(folder, "file", st_ctime_ns=1),
        stamped(folder, "file", st_ino=1),
        stamped(folder, "none"),
        taken,
    ):
        assert made(folder, lock, wrong, write) == (1, 0), wrong
    os.close(other)
    null = os.open("/dev/null", os.O_RDWR)
    for step, error in (
        (native.Step(native.STEP_LOCK, -1, 5), errno.EBADF),
        (native.Step(native.STEP_UNLOCK, -1, 5), errno.EBADF),
        (named(data=b"x" * 300), errno.ENAMETOOLONG),
        (native.Step(native.STEP_BYTES, -1, 0, b"x"), errno.EBADF),
        (native.Step(native.STEP_BYTES, file, 0, bytes(257)), errno.EINVAL),
        (native.Step(native.STEP_WRITE, -1, 0, b"x"), errno.EBADF),
        (native.Step(native.STEP_SYNC, null), errno.EINVAL),
        (stamped(folder, "x" * 300), errno.ENAMETOOLONG),
        (native.Step(99, file), errno.EINVAL),
    ):
        assert made(folder, lock, step, write) == (1, error), step
    os.close(null)
    assert (tmp_path / "file").read_bytes() == b"0123456789abc"
    assert made(folder) == (0, 0)


@pytest.mark.parametrize("data", [b"", bytes(32), bytes(33) + b"x"])
def test_stamp_without_a_name_that_ends_is_refused(
    file: int, folder: int, data: bytes
) -> None:
    """No byte after the argument is looked at."""
    steps = native.Steps([native.Step(native.STEP_BYTES, folder)])
    steps.set_bytes(0, data)
    steps._c[0].kind = native.STEP_STAMP
    assert steps.make(1) == (0, errno.EINVAL)


class ByCall(Files):
    """Makes each call separately."""


def test_stamp_is_compared_in_the_same_way_call_by_call(file: int, folder: int) -> None:
    steps = native.Steps([stamped(folder, "file"), stamped(folder, "none")])
    assert ByCall().make_steps(steps, 2) == (1, None)
    assert Files().make_steps(steps, 2) == (1, None)
    steps.set_stamp(0, bytes(native.STAMP_BYTES))
    assert ByCall().make_steps(steps, 1) == (0, None)
    assert Files().make_steps(steps, 1) == (0, None)
    steps.set_stamp(0, stamped(folder, "file").data[: native.STAMP_BYTES])
    assert Files().make_steps(steps, 1) == (1, None)
    assert steps[0] == stamped(folder, "file")._replace(size=steps[0].size)


def test_steps_can_be_changed_and_read(file: int, folder: int) -> None:
    """A call may make only the first of them."""
    name = native.Step(native.STEP_FILE, folder, data=b"file", device=1, inode=2)
    write = native.Step(native.STEP_WRITE, file, 4, b"x")
    steps = native.Steps([write, name, write])
    steps.set_bytes(0, b"yz", 6)
    steps.set_append(1, b"abc", 9)
    assert steps[2] == write._replace(data=b"abc", pos=9, size=3)
    steps.set_bytes(2, b"abc", 4)
    assert [steps[number] for number in range(len(steps))] == [
        write._replace(data=b"yz", pos=6, size=2),
        name._replace(size=9),
        write._replace(data=b"abc", size=3),
    ]
    assert steps.make(1) == (1, 0)
    assert os.pread(file, 20, 0) == b"012345yz89"
    shared = bytearray(b"tu")
    steps.set_bytes(0, shared)
    shared[:] = b"vw"
    assert type(steps[0].data) is bytes
    assert steps[0].data == b"vw"
    assert steps.make(1) == (1, 0)
    assert os.pread(file, 20, 0) == b"012345vw89"
    with pytest.raises(ValueError, match="null byte"):
        native.Steps([name._replace(data=b"a\0b")])
    with pytest.raises(ValueError, match="null byte"):
        native.Steps([stamped(folder, "a\0b")])


def test_steps_of_the_core_have_their_numbers() -> None:
    """The numbers are the same for the callers as in C; the error has a separate
    place."""
    assert (lib.LS_STEP_LOCK, lib.LS_STEP_UNLOCK) == (
        native.STEP_LOCK,
        native.STEP_UNLOCK,
    )
    assert (lib.LS_STEP_FILE, lib.LS_STEP_BYTES) == (
        native.STEP_FILE,
        native.STEP_BYTES,
    )
    assert (lib.LS_STEP_WRITE, lib.LS_STEP_SYNC) == (
        native.STEP_WRITE,
        native.STEP_SYNC,
    )
    assert lib.LS_STEP_STAMP == native.STEP_STAMP
    assert lib.LS_STEP_BYTES_MAX == 256
    error = ffi.new("int32_t *", 7)
    assert lib.ls_sys_steps(ffi.NULL, 0, error) == 0
    assert error[0] == 0
