"""Looks of the core at a directory, and at files in it and next to it."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any

from logstore._native._ls import ffi, lib


def test_look_examines_a_directory_and_files_beside_it_and_in_it(
    tmp_path: Path,
) -> None:
    """It follows no link; the numbers of a name that does not exist are 0 and -1. It
    says whether all is what another look has found."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "link").symlink_to(inside)
    fd, out = os.open(tmp_path, os.O_RDONLY), ffi.new("int64_t[]", [7] * 15)

    def look(name: bytes, names: bytes, count: int, before: Any = ffi.NULL) -> int:
        return lib.ls_sys_look(fd, name, names, len(names), count, before, out)

    try:
        names = b"../a\0.\0a\0"
        now_ms = time.time_ns() // 1_000_000
        assert look(b"inside", names, 3) == 0
        place, file = inside.stat(), (tmp_path / "a").stat()
        assert abs(out[0] - now_ms) < 60_000
        assert list(out)[1:] == [
            place.st_dev, place.st_ino,
            file.st_ino, file.st_mtime_ns, file.st_ctime_ns, 2,
            place.st_ino, place.st_mtime_ns, place.st_ctime_ns, place.st_size,
            0, -1, -1, -1,
        ]  # fmt: skip
        before = ffi.buffer(out)[8:]
        assert look(b"inside", names, 3, before) == 1
        for at in range(len(before)):
            other = bytearray(before)
            other[at] ^= 1
            assert look(b"inside", names, 3, bytes(other)) == 0
        assert look(b"link", names, 3, before) in (-errno.ENOTDIR, -errno.ELOOP)
        assert look(b"none", names, 3, before) == -errno.ENOENT
        (inside / "a").touch()
        assert look(b"inside", names, 3, before) == 0
        assert look(b".", b"a\0", 1) == 0
        root = tmp_path.stat()
        assert list(out)[1:4] == [root.st_dev, root.st_ino, file.st_ino]
        assert look(b"none", b"", 0) == -errno.ENOENT
        assert look(b"a", b"", 0) == -errno.ENOTDIR
        assert look(b"link", b"", 0) in (-errno.ENOTDIR, -errno.ELOOP)
        assert look(b"inside", b"x" * 300 + b"\0", 1) == -errno.ENAMETOOLONG
        for names, count in ((b"", 1), (b"a", 1), (b"a\0", 2)):
            assert look(b"inside", names, count) == -errno.EINVAL
    finally:
        os.close(fd)
    assert look(b"inside", b"", 0) == -errno.EBADF


def test_second_look_finds_the_same_by_long_names_and_is_refused_as_the_first(
    tmp_path: Path,
) -> None:
    """The directory may have to be opened for it or not; the results are there."""
    name = "d" * 255
    (tmp_path / name / ("f" * 255)).parent.mkdir()
    (tmp_path / name / ("f" * 255)).touch()
    (tmp_path / name / "g").touch()
    fd, out = os.open(tmp_path, os.O_RDONLY), ffi.new("int64_t[7]")

    def look(names: bytes, before: Any = ffi.NULL) -> int:
        ffi.memmove(out, bytes(56), 56)
        return lib.ls_sys_look(fd, name.encode(), names, len(names), 1, before, out)

    try:
        for file in (b"f" * 255, b"g", b".", b"../" + name.encode(), b"none"):
            assert look(file + b"\0") == 0
            before = ffi.buffer(out)[8:]
            assert look(file + b"\0", before) == 1
            assert ffi.buffer(out)[8:] == before
            assert out[0] > 0
        assert look(b"g\0", before) == 0
        for wrong in (b"", b"g", b"x" * 300, b"x" * 300 + b"\0"):
            assert look(wrong, before) == look(wrong) < 0
    finally:
        os.close(fd)
