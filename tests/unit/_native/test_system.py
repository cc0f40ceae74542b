"""System calls of the core, and the positions of records in a record area."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import logstore
from logstore import _native as native
from logstore._native import system
from logstore._native._ls import ffi, lib
from support.temporary import on_disk
from support.values import write_store


@pytest.fixture
def file() -> Iterator[int]:
    """A file with ten bytes, on a disk: one in memory knows no read without waiting."""
    with on_disk() as directory:
        fd = os.open(directory / "file", os.O_RDWR | os.O_CREAT)
        os.write(fd, b"0123456789")
        yield fd
        os.close(fd)


@pytest.mark.parametrize("size", [0, 1, 4, 10, 300_000])
def test_read_fills_a_buffer_up_to_the_end_of_the_file(file: int, size: int) -> None:
    """It does so with the interpreter lock, and, for a large buffer, without it."""
    out = ffi.new("uint8_t[]", size)
    for pos in (0, 3, 9, 10, 50):
        expected = b"0123456789"[pos : pos + size]
        assert lib.ls_sys_read(file, out, size, pos) == len(expected)
        assert bytes(ffi.buffer(out))[: len(expected)] == expected
        buffer = bytearray(size)
        assert native.read_at(file, buffer, pos) == len(expected)
        assert buffer[: len(expected)] == expected


def test_cached_read_gives_the_same_or_says_that_it_would_wait(file: int) -> None:
    """Data just written is cached, if the system can report that."""
    out = ffi.new("uint8_t[]", 10)
    n = lib.ls_sys_read_cached(file, out, 10, 0)
    if n >= 0:
        assert (n, bytes(ffi.buffer(out))) == (10, b"0123456789")
    else:
        assert -n in (errno.EAGAIN, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
    assert lib.ls_sys_read_cached(-1, out, 10, 0) < 0


@pytest.mark.parametrize("size", [0, 1, 7, 300_000])
def test_write_changes_the_bytes_at_its_position(file: int, size: int) -> None:
    """It reports how many bytes it has written."""
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
    path = os.readlink(f"/proc/self/fd/{file}")
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
    """Python callers get an `OSError` of its class."""
    out = ffi.new("uint8_t[]", 4)
    assert lib.ls_sys_read(-1, out, 4, 0) == -errno.EBADF
    assert lib.ls_sys_write(-1, out, 4, 0) == -errno.EBADF
    assert lib.ls_sys_write(file, out, 4, -1) == -errno.EINVAL
    assert lib.ls_sys_sync(-1) == -errno.EBADF
    assert lib.ls_sys_hold_lock(-1) == -errno.EBADF
    assert lib.ls_sys_sync_all(-1) == -errno.EBADF
    assert lib.ls_sys_open(-1, b"a", os.O_RDONLY, 0) == -errno.EBADF
    assert lib.ls_sys_open_file(-1, b"a", os.O_RDONLY, 0) == -errno.EBADF
    size = ffi.new("int64_t *")
    assert lib.ls_sys_read_name(-1, b"a", out, 4, size) == -errno.EBADF
    assert lib.ls_sys_close(-1) == -errno.EBADF
    assert lib.ls_sys_truncate(-1, 0) in (-errno.EBADF, -errno.EINVAL)
    assert lib.ls_sys_truncate(file, -1) == -errno.EINVAL
    assert lib.ls_sys_rename(-1, b"a", -1, b"b") == -errno.EBADF
    assert lib.ls_sys_unlink(-1, b"a") == -errno.EBADF
    assert lib.ls_sys_stat(-1, ffi.NULL, ffi.new("int64_t[8]")) == -errno.EBADF
    read_only = os.open(f"/proc/self/fd/{file}", os.O_RDONLY)
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
    sys.setswitchinterval(100)
    thread.start()
    try:
        yield gathered
    finally:
        stop.set()
        sys.setswitchinterval(interval)
        thread.join()


def test_short_calls_keep_the_interpreter_lock(file: int, turns: list[None]) -> None:
    """To get it back from a thread that runs Python takes a whole switch interval. A
    read is short if the system has the bytes in memory."""
    data, reads = bytearray(b"x" * 4096), 0
    for _ in range(1000):
        before = len(turns)
        native.crc32(data)
        native.write_at(file, data, 0)
        assert len(turns) == before
        # A busy system may be about to write the page.
        with contextlib.suppress(BlockingIOError):
            os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT)
            before = len(turns)
            native.read_at(file, data, 0)
            assert len(turns) == before
            reads += 1
    assert reads > 0


@pytest.mark.parametrize("call", ["crc32", "write", "read", "sync range"])
def test_long_calls_give_the_interpreter_lock_away(
    file: int, turns: list[None], call: str
) -> None:
    """Such calls have large buffers, or wait for the system."""
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


def test_calls_of_the_os_module_are_the_same_here(tmp_path: Path) -> None:
    """They agree for any name that a directory can have, and about a file's state."""
    name, other = "named \udcff é", "other"
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fd = native.open_at(folder, name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        os.write(fd, b"0123456789")
        native.truncate(fd, 4)
        native.sync_data(fd)
        native.sync_all(fd)
        os.symlink(name, tmp_path / "link")
        for numbers, found in (
            (native.stat(fd), os.fstat(fd)),
            (native.stat(folder), os.fstat(folder)),
            (native.stat(folder, name), os.stat(tmp_path / name)),
            (native.stat(folder, "link"), os.lstat(tmp_path / "link")),
        ):
            assert tuple(numbers) == (
                found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_dev,
                found.st_ino, found.st_uid, found.st_gid, found.st_mode,
            )  # fmt: skip
        native.rename(folder, name, folder, other)
        assert (tmp_path / other).read_bytes() == b"0123"
        native.unlink(folder, other)
        assert not (tmp_path / other).exists()
        native.close(fd)
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            native.close(fd)
    finally:
        os.close(folder)


@pytest.mark.parametrize("umask", [0o022, 0o777])
def test_file_that_is_made_has_its_mode_whatever_the_umask(
    tmp_path: Path, umask: int
) -> None:
    """An existing file keeps its mode."""
    folder, before = os.open(tmp_path, os.O_RDONLY), os.umask(umask)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        os.close(native.open_at(folder, "new", flags, 0o640, is_file=True))
        assert os.stat(tmp_path / "new").st_mode & 0o7777 == 0o640
        os.close(native.open_at(folder, "new", os.O_RDWR, is_file=True))
        assert os.stat(tmp_path / "new").st_mode & 0o7777 == 0o640
        with pytest.raises(FileExistsError):
            native.open_at(folder, "new", flags, 0o600, is_file=True)
    finally:
        os.umask(before)
        os.close(folder)


def test_only_regular_files_are_opened_or_read(tmp_path: Path) -> None:
    """No descriptor of another file stays."""
    (tmp_path / "directory").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    folder = os.open(tmp_path, os.O_RDONLY)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    before = os.listdir("/proc/self/fd")
    try:
        for name, error in (
            ("directory", errno.EINVAL),
            ("pipe", errno.EINVAL),
            ("link", errno.ELOOP),
            ("none", errno.ENOENT),
        ):
            for call in (
                lambda n=name: native.open_at(folder, n, flags, is_file=True),
                lambda n=name: native.read_name(folder, n, 10),
            ):
                with pytest.raises(OSError, match=os.strerror(error)) as caught:
                    call()
                assert (caught.value.errno, caught.value.filename) == (error, name)
        assert os.listdir("/proc/self/fd") == before
    finally:
        os.close(folder)


def test_small_file_is_read_whole_and_a_longer_one_not_at_all(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        for content, most, found in (
            (b"", 0, b""), (b"", 5, b""), (b"abc", 3, b"abc"), (b"abc", 9, b"abc"),
            (b"abc", 2, b""), (b"abc", 0, b""),
        ):  # fmt: skip
            (tmp_path / "file").write_bytes(content)
            assert native.read_name(folder, "file", most) == (len(content), found)
    finally:
        os.close(folder)


@pytest.mark.parametrize("call", ["open", "stat", "rename", "unlink"])
def test_refused_call_names_the_file_as_the_os_module_does(
    tmp_path: Path, call: str
) -> None:
    """A name with a zero byte reaches no system call."""
    folder = os.open(tmp_path, os.O_RDONLY)
    calls = {
        "open": (
            lambda name: native.open_at(folder, name, os.O_RDONLY),
            lambda name: os.open(name, os.O_RDONLY, dir_fd=folder),
        ),
        "stat": (
            lambda name: native.stat(folder, name),
            lambda name: os.stat(name, dir_fd=folder),
        ),
        "rename": (
            lambda name: native.rename(folder, name, folder, "to"),
            lambda name: os.rename(name, "to", src_dir_fd=folder, dst_dir_fd=folder),
        ),
        "unlink": (
            lambda name: native.unlink(folder, name),
            lambda name: os.unlink(name, dir_fd=folder),
        ),
    }
    try:
        for name in ("missing", "x" * 300):
            errors = []
            for one in calls[call]:
                with pytest.raises(OSError) as caught:
                    one(name)
                errors.append(caught.value)
            ours, theirs = errors
            assert type(ours) is type(theirs)
            assert str(ours) == str(theirs)
        (tmp_path / "zero").touch()
        with pytest.raises(ValueError, match="null byte"):
            calls[call][0]("zero\0")
        assert (tmp_path / "zero").exists()
    finally:
        os.close(folder)


class _Signalled:
    """A C core whose calls are ended by a signal, the first time each."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: object) -> int:
            self.seen.append(name)
            if self.seen.count(name) == 1:
                return -errno.EINTR
            result: int = getattr(lib, name)(*arguments)
            return result

        return call


def test_calls_that_a_signal_has_ended_are_made_again_but_for_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = _Signalled()
    monkeypatch.setattr(system, "lib", core)
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        fd = native.open_at(folder, "a", os.O_RDWR | os.O_CREAT)
        native.truncate(fd, 10)
        assert native.stat(fd)[0] == 10
        native.sync_data(fd)
        native.sync_all(fd)
        native.rename(folder, "a", folder, "b")
        native.unlink(folder, "b")
        assert os.listdir(tmp_path) == []
        assert set(Counter(core.seen).values()) == {2}
        native.close(fd)
        assert core.seen.count("ls_sys_close") == 1
        os.close(fd)
    finally:
        os.close(folder)


def test_interrupted_open_leaves_no_descriptor(tmp_path: Path) -> None:
    """The interrupt comes at any line of it."""
    folder = os.open(tmp_path, os.O_RDONLY)
    code = native.open_at.__code__
    before = set(os.listdir("/proc/self/fd"))
    (tmp_path / "file").touch()
    left = interrupts = 0

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal left
        if frame.f_code is code and event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace if frame.f_code is code or event == "call" else None

    try:
        for nth in itertools.count(1):
            left, fd = nth, -1
            sys.settrace(trace)
            try:
                fd = native.open_at(folder, "file", os.O_RDONLY)
            except KeyboardInterrupt:
                interrupts += 1
            finally:
                sys.settrace(None)
            if fd >= 0:
                os.close(fd)
                break
            assert set(os.listdir("/proc/self/fd")) == before
        assert interrupts >= 4
    finally:
        os.close(folder)


def test_audit_hooks_are_told_what_the_os_module_tells(tmp_path: Path) -> None:
    """The test runs in another process: a hook stays for ever."""
    script = (
        "import os, sys\n"
        "from logstore import _native as native\n"
        "folder = os.open(sys.argv[1], os.O_RDONLY)\n"
        "events = []\n"
        "ours = lambda: (\n"
        "    native.truncate(native.open_at(folder, 'a', os.O_RDWR | os.O_CREAT), 5),\n"
        "    native.rename(folder, 'a', folder, 'b'), native.unlink(folder, 'b'))\n"
        "theirs = lambda: (\n"
        "    os.ftruncate(os.open('a', os.O_RDWR | os.O_CREAT, dir_fd=folder), 5),\n"
        "    os.rename('a', 'b', src_dir_fd=folder, dst_dir_fd=folder),\n"
        "    os.unlink('b', dir_fd=folder))\n"
        "told = []\n"
        "def hook(event, args):\n"
        "    if event in ('open', 'os.truncate', 'os.rename', 'os.remove'):\n"
        "        told.append((event, args))\n"
        "sys.addaudithook(hook)\n"
        "ours()\n"
        "first, told = told, []\n"
        "theirs()\n"
        "shown = [[(e, [a & ~os.O_CLOEXEC if e == 'open' and a is args[2] else a\n"
        "               for a in args[e == 'os.truncate':]]) for e, args in some]\n"
        "         for some in (first, told)]\n"
        "assert len(first) == 4 and shown[0] == shown[1], shown\n"
    )
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True, timeout=60)


def test_thread_that_reads_gives_way_to_one_whose_system_call_is_over(
    file: int,
) -> None:
    """Otherwise the caller would wait for a whole switch interval after each call."""
    is_over = threading.Event()

    def call() -> None:
        for _ in range(20):
            native.stat(file)
        is_over.set()

    deadline = time.monotonic() + 60
    runs = itertools.takewhile(
        lambda run: not is_over.is_set() and time.monotonic() < deadline,
        ([None] for _ in itertools.count()),
    )
    caller = threading.Thread(target=call)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)
    try:
        caller.start()
        for _ in native.Flattened(runs):
            pass
        assert is_over.is_set()
    finally:
        sys.setswitchinterval(interval)
        caller.join()
    assert lib.ls_sys_returning_writers(0) == 0


def test_flattened_may_be_closed_by_another_thread_while_it_gives_way() -> None:
    """It has no runs then, and ends."""
    lib.ls_sys_returning_writers(1)
    try:
        for _ in range(20):
            items = native.Flattened([None] for _ in itertools.count())
            reader = threading.Thread(target=list, args=(items,))
            reader.start()
            time.sleep(0.002)
            items.close()
            reader.join(20)
            assert not reader.is_alive()
    finally:
        lib.ls_sys_returning_writers(-1)


def test_child_of_a_fork_gives_way_to_no_thread_of_its_parent() -> None:
    """One that was between its call and the interpreter lock does not exist there."""
    lib.ls_sys_returning_writers(3)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(lib.ls_sys_returning_writers(0))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert lib.ls_sys_returning_writers(0) == 3
    finally:
        lib.ls_sys_returning_writers(-3)


def test_record_of_a_record_area_is_located(tmp_path: Path) -> None:
    """By its number; no record is found past the last, nor in a damaged area."""
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
    """By its timestamp delta; no record is found later than all, nor in a damaged
    area."""
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
