"""Reads and writes of the core, and where a record is in a record area."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import logstore
from logstore import _native as native
from logstore._native._ls import ffi, lib
from support.values import write_store


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    """A file with ten bytes."""
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"0123456789")
    yield fd
    os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 4, 10, 300_000])
def test_read_fills_a_buffer_up_to_the_end_of_the_file(file: int, size: int) -> None:
    """With the interpreter lock, and, for a large buffer, without it."""
    out = ffi.new("uint8_t[]", size)
    for pos in (0, 3, 9, 10, 50):
        expected = b"0123456789"[pos : pos + size]
        assert lib.ls_sys_read(file, out, size, pos) == len(expected)
        assert bytes(ffi.buffer(out))[: len(expected)] == expected
        buffer = bytearray(size)
        assert native.read_at(file, buffer, pos) == len(expected)
        assert buffer[: len(expected)] == expected


def test_cached_read_gives_the_same_or_says_that_it_would_wait(file: int) -> None:
    """What was just written is cached, where the system can tell."""
    out = ffi.new("uint8_t[]", 10)
    n = lib.ls_sys_read_cached(file, out, 10, 0)
    if n >= 0:
        assert (n, bytes(ffi.buffer(out))) == (10, b"0123456789")
    else:
        assert -n in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
    assert lib.ls_sys_read_cached(-1, out, 10, 0) < 0


@pytest.mark.parametrize("size", [0, 1, 7, 300_000])
def test_write_changes_the_bytes_at_its_position(file: int, size: int) -> None:
    """And reports how many it has written."""
    data = b"x" * size
    assert lib.ls_sys_write(file, data, size, 3) == size
    assert native.write_at(file, memoryview(bytearray(data)), 3) == size
    expected = b"012" + data + b"0123456789"[3 + size :]
    assert os.pread(file, 1 << 20, 0) == expected


def test_sync_of_a_file_and_of_what_has_no_disk(file: int) -> None:
    assert lib.ls_sys_sync(file) == 0
    null = os.open("/dev/null", os.O_WRONLY)
    try:
        assert lib.ls_sys_sync(null) == -errno.EINVAL
    finally:
        os.close(null)


def test_record_lock_is_taken_again_and_excludes_other_processes(
    file: int, tmp_path: Path
) -> None:
    path = os.fspath(tmp_path / "file")
    script = (
        "import fcntl, sys\n"
        f"file = open({path!r}, 'r+b')\n"
        "fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "print('taken', flush=True)\n"
        "sys.stdin.read()\n"
    )

    def other() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    for _ in range(2):
        assert lib.ls_sys_hold_lock(file) == 0
    with other() as refused:
        assert refused.communicate(timeout=20)[0] == ""
    os.close(os.open(path, os.O_RDONLY))  # drops it, by the rules of these locks
    with other() as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        assert -lib.ls_sys_hold_lock(file) in (errno.EAGAIN, errno.EACCES)
        holder.communicate(timeout=20)
    assert lib.ls_sys_hold_lock(file) == 0


def test_refused_calls_return_the_error(file: int, tmp_path: Path) -> None:
    """As an `OSError` of its class where Python calls."""
    out = ffi.new("uint8_t[]", 4)
    assert lib.ls_sys_read(-1, out, 4, 0) == -errno.EBADF
    assert lib.ls_sys_write(-1, out, 4, 0) == -errno.EBADF
    assert lib.ls_sys_write(file, out, 4, -1) == -errno.EINVAL
    assert lib.ls_sys_sync(-1) == -errno.EBADF
    assert lib.ls_sys_hold_lock(-1) == -errno.EBADF
    read_only = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)) as caught:
            native.write_at(read_only, b"data", 0)
        assert caught.value.errno == errno.EBADF
    finally:
        os.close(read_only)
    with pytest.raises(IsADirectoryError):
        directory = os.open(tmp_path, os.O_RDONLY)
        try:
            native.read_at(directory, bytearray(4), 0)
        finally:
            os.close(directory)


@pytest.fixture
def turns() -> Iterator[list[None]]:
    """Grows whenever another thread has got the interpreter lock, which nothing but a
    call that gives it away lets it have."""
    gathered: list[None] = []
    stop = threading.Event()
    interval = sys.getswitchinterval()

    def take_turns() -> None:
        while not stop.is_set():
            gathered.append(None)
            time.sleep(0)

    thread = threading.Thread(target=take_turns)
    thread.start()
    sys.setswitchinterval(100)
    try:
        yield gathered
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_short_calls_keep_the_interpreter_lock(file: int, turns: list[None]) -> None:
    """To get it back from a thread that runs Python takes a whole switch interval."""
    data = bytearray(b"x" * 4096)
    before = len(turns)
    for _ in range(1000):
        native.crc32(data)
        native.write_at(file, data, 0)
        native.read_at(file, data, 0)
    assert len(turns) == before


@pytest.mark.parametrize("call", ["crc32", "write", "read", "sync range"])
def test_long_calls_give_the_interpreter_lock_away(
    file: int, turns: list[None], call: str
) -> None:
    """Those of large buffers, and those that wait for the system."""
    data = bytearray(8 << 20)
    calls = {
        "crc32": lambda: native.crc32(data),
        "write": lambda: native.write_at(file, data, 0),
        "read": lambda: native.read_at(file, data, 0),
        "sync range": lambda: native.write_back(file, 0, 10),
    }
    before, deadline = len(turns), time.monotonic() + 20
    while len(turns) == before and time.monotonic() < deadline:
        calls[call]()
    assert len(turns) > before


def test_record_of_a_record_area_is_located(tmp_path: Path) -> None:
    """By its number; there is none past the last, nor in a damaged area."""
    write_store(tmp_path, 5, magic=2)
    data = (tmp_path / "orders-0" / f"{0:020}.log").read_bytes()
    pointer = ffi.from_buffer("uint8_t[]", data)
    (batch,) = native.scan_batches(pointer, len(data)).headers
    area = data[batch.payload_pos : batch.size]
    pos, size = ffi.new("int64_t *"), ffi.new("int64_t *")
    end = 0
    for number in range(batch.record_count):
        assert lib.ls_locate_record(area, len(area), number, pos, size) == 0
        assert pos[0] == end
        end = pos[0] + size[0]
    assert end == len(area)
    for bad, number in ((area, batch.record_count), (b"", 0), (area[:-1], 4)):
        assert lib.ls_locate_record(bad, len(bad), number, pos, size) == lib.LS_E_RECORD
    assert lib.ls_locate_record(b"\xff" * 12, 12, 0, pos, size) == lib.LS_E_RECORD
    assert lib.ls_locate_record(b"\x01", 1, 0, pos, size) == lib.LS_E_RECORD


def test_first_record_of_a_record_area_since_a_time_is_located(tmp_path: Path) -> None:
    """By its timestamp delta; there is none later than all, nor in a damaged area."""
    with logstore.open(tmp_path) as store:
        config = logstore.TopicConfig(message_format=2)
        partition = store.create_topic("orders", partitions=1, config=config)[0]
        deltas = [0, 5, 300, 200, 90_000, 90_001]
        partition.append_many([b"v"] * 6, timestamps_ms=[1000 + d for d in deltas])
    data = (tmp_path / "orders-0" / f"{0:020}.log").read_bytes()
    pointer = ffi.from_buffer("uint8_t[]", data)
    (batch,) = native.scan_batches(pointer, len(data)).headers
    area = data[batch.payload_pos : batch.size]
    found = ffi.new("int64_t *")
    for delta in (-5, 0, 1, 5, 6, 250, 300, 301, 90_001, 90_002):
        assert lib.ls_locate_time(area, len(area), 6, delta, found) == 0
        assert found[0] == next((i for i, d in enumerate(deltas) if d >= delta), -1)
    assert lib.ls_locate_time(area, len(area), 7, 1 << 40, found) == lib.LS_E_RECORD
    for bad in (area[:-1], b"", b"\xff" * 12, b"\x01", b"\x10" + b"\xff" * 8):
        status = lib.ls_locate_time(bad, len(bad), 6, 1 << 40, found)
        assert status == lib.LS_E_RECORD


def test_watch_reports_changes_of_a_directory(tmp_path: Path) -> None:
    """And refuses what is none."""
    fd = lib.ls_sys_new_watch()
    try:
        assert lib.ls_sys_add_watch(fd, os.fsencode(tmp_path)) == 0
        with pytest.raises(BlockingIOError):
            os.read(fd, 4096)
        assert lib.ls_sys_wait_watch(fd, 0) == 0
        (tmp_path / "file").touch()
        assert lib.ls_sys_wait_watch(fd, 10_000) == 1
        assert lib.ls_sys_wait_watch(fd, 0) == 0
        (tmp_path / "other").touch()
        assert b"other" in os.read(fd, 4096)
        file = os.fsencode(tmp_path / "file")
        assert lib.ls_sys_add_watch(fd, file) == -errno.ENOTDIR
        assert lib.ls_sys_add_watch(-1, file) == -errno.EBADF
    finally:
        os.close(fd)


def test_look_examines_a_directory_and_files_beside_it_and_in_it(
    tmp_path: Path,
) -> None:
    """It follows no link; the numbers of a name that does not exist are 0 and -1."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "a").write_bytes(b"12")
    (tmp_path / "link").symlink_to(inside)
    fd, out = os.open(tmp_path, os.O_RDONLY), ffi.new("int64_t[]", [7] * 11)
    try:
        assert (
            lib.ls_sys_look(fd, b"inside\0a\0a\0", len(b"inside\0a\0a\0"), 1, 1, out)
            == 0
        )
        place, file = inside.stat(), (tmp_path / "a").stat()
        assert list(out) == [
            place.st_dev, place.st_ino, place.st_mtime_ns,
            file.st_ino, file.st_mtime_ns, file.st_ctime_ns, 2,
            0, -1, -1, -1,
        ]  # fmt: skip
        assert (
            lib.ls_sys_look(fd, b"none\0", len(b"none\0"), 0, 0, out) == -errno.ENOENT
        )
        assert lib.ls_sys_look(fd, b"a\0", len(b"a\0"), 0, 0, out) == -errno.ENOTDIR
        assert lib.ls_sys_look(fd, b"link\0", len(b"link\0"), 0, 0, out) in (
            -errno.ENOTDIR,
            -errno.ELOOP,
        )
        long = b"inside\0" + b"x" * 300 + b"\0"
        assert lib.ls_sys_look(fd, long, len(long), 0, 1, out) == -errno.ENAMETOOLONG
    finally:
        os.close(fd)
    assert lib.ls_sys_look(-1, b"inside\0", len(b"inside\0"), 0, 0, out) == -errno.EBADF
    for names, files in ((b"", 0), (b"inside", 0), (b"inside\0a", 1), (b"inside\0", 1)):
        assert lib.ls_sys_look(-1, names, len(names), 0, files, out) < 0
