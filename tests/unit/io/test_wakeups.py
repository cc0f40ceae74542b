"""Waiting for changes by other threads and processes."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logstore import StorageError
from logstore import _native as native
from logstore._native.locks import Signal
from logstore.io import wakeups as module
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.wakeups import ServiceThread, Wakeups, Watch

LONG_S = 60.0


class Counting(Files):
    """Counts the watches; refuses calls, or is on another file system, on request."""

    def __init__(self, refused: str = "", error: int = 0, number: int = 0) -> None:
        self.refused = refused
        self.error = error
        self.number = number
        self.made: list[int] = []

    def _check(self, call: str) -> None:
        if call == self.refused:
            raise OSError(self.error, os.strerror(self.error))

    def new_watch(self) -> int:
        self._check("new_watch")
        self.made.append(super().new_watch())
        return self.made[-1]

    def watch(self, fd: int, at: int, *more: Any) -> int:
        self._check("watch")
        return super().watch(fd, at, *more)

    def new_event(self) -> int:
        self._check("new_event")
        return super().new_event()

    def file_system(self, fd: int) -> int:
        return self.number or super().file_system(fd)


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


@pytest.fixture
def root(tmp_path: Path) -> Directory:
    return root_in(tmp_path, Files())


def root_in(path: Path, files: Files) -> Directory:
    """A directory with another one in it, which has a file."""
    (path / "orders-0").mkdir()
    (path / "orders-0" / "log").write_bytes(b"begun")
    return Directory.open_root(files, str(path))


# ------------------------------------------------------------------ reports


@pytest.mark.parametrize("place", ["orders-0", "."])
def test_each_change_of_an_entry_is_reported(root: Directory, place: str) -> None:
    """In a directory and in the one above it; a read is no change."""
    path = Path(root.path)
    wakeups = Wakeups(root.files, [root.child("orders-0"), root])
    file = path / place / "file"
    changes = [
        lambda: file.write_bytes(b"made"),
        lambda: file.open("ab").write(b"appended"),
        lambda: file.rename(file.with_name("renamed")),
        lambda: file.with_name("renamed").unlink(),
    ]
    for change in changes:
        assert not wakeups.wait(0)
        change()
        assert wakeups.wait(10)
        assert wakeups.wait(10)  # until it is taken
        assert wakeups.take()
    (path / "orders-0" / "log").read_bytes()
    assert list((path / place).iterdir())
    assert not wakeups.wait(0.01)
    assert wakeups.take() == []


def test_many_reports_are_taken_at_once(root: Directory) -> None:
    """There are more of them than one read takes."""
    wakeups = Wakeups(root.files, [root.child("orders-0")])
    names = [f"{number:0200}" for number in range(3000)]
    for name in names:
        os.mkdir(Path(root.path, "orders-0", name))
    assert wakeups.wait(10)
    assert [name for _, name in wakeups.take() or ()] == names
    assert not wakeups.wait(0)


class Apart(Files):
    """Its waits are separate calls."""

    def wait_for_any(self, fds: Any, seconds: float | None) -> Any:
        return super().wait_for_any(fds, seconds)


@pytest.mark.parametrize("kind", [Files, Apart])
def test_reports_are_waited_for_and_taken_in_one_call(
    tmp_path: Path, kind: type[Files]
) -> None:
    """Many reports take several calls; the result is empty when the time is over."""
    root = root_in(tmp_path, kind())
    wakeups = Wakeups(root.files, [root.child("orders-0")])
    for seconds in (0.01, 0, -1.0):
        assert list(wakeups.taken_within(seconds) or ()) == []
    names = [f"{number:0200}" for number in range(50)]
    for name in names:
        os.mkdir(Path(root.path, "orders-0", name))
    found: list[str] = []
    while len(found) < 50:
        reports = wakeups.taken_within(LONG_S)
        assert reports
        found += [name for _, name in reports]
    assert found == names
    assert not wakeups.wait(0)


def test_reports_that_cannot_be_taken_may_be_of_anything(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If nothing is reported, it pauses, and the user looks."""

    def read_reports(fd: int, seconds: float, event: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    wakeups = Wakeups(root.files, [root])
    with monkeypatch.context() as patched:
        patched.setattr(native, "read_reports", read_reports)
        assert wakeups.taken_within(LONG_S) is None
    nothing = Wakeups(Counting("new_watch", errno.EMFILE), [root])
    assert nothing.taken_within(LONG_S) is None


def test_reports_tell_which_directory_has_changed(root: Directory) -> None:
    """A directory is reported until it is removed."""
    for name in ("a", "b"):
        Path(root.path, name).mkdir()
    wakeups = Wakeups(root.files)
    a, b = (wakeups.add(Watch(root.child(name))) for name in ("a", "b"))
    assert a is not None
    assert b is not None
    assert wakeups.add(Watch(root.child("a"))) == a
    Path(root.path, "a", "x").touch()
    assert set(wakeups.take() or ()) == {(a, "x")}
    Path(root.path, "b", "long" * 60).touch()
    Path(root.path, "a", "x").unlink()
    assert set(wakeups.take() or ()) == {(a, "x"), (b, "long" * 60)}
    wakeups.remove(a)
    wakeups.remove(a)
    wakeups.take()
    Path(root.path, "a", "y").touch()
    assert wakeups.take() == []


def test_files_are_watched_for_what_is_asked(root: Directory) -> None:
    """Files are given by name or by descriptor."""
    path = Path(root.path, "file")
    path.touch()
    wakeups = Wakeups(root.files, watches=[Watch(root, native.WATCH_CLOSES, "file")])
    with path.open("ab") as file:
        assert not wakeups.wait(0)
    assert wakeups.wait(10)
    with path.open("rb") as file:
        written = wakeups.add(Watch(file.fileno(), native.WATCH_WRITES))
        wakeups.take()
        path.write_bytes(b"x")
        assert (written, "") in (wakeups.take() or ())


def test_reports_for_which_there_was_no_room_may_be_of_anything(
    root: Directory,
) -> None:
    """The system keeps only a limited number of them."""
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    wakeups = Wakeups(root.files, [root])
    one, two = (os.open(Path(root.path, n), os.O_CREAT | os.O_RDWR) for n in "ab")
    for _ in range(limit // 2 + 2):  # the same one twice is reported once
        os.write(one, b"x")
        os.write(two, b"x")
    assert wakeups.take() is None
    assert wakeups.take() == []
    for _ in range(limit // 2 + 2):
        os.write(one, b"x")
        os.write(two, b"x")
    while (taken := wakeups.taken_within(0)) is not None:
        assert taken
    assert wakeups.taken_within(0) == []
    os.close(one)
    os.close(two)


@pytest.mark.parametrize("call", ["new_watch", "watch"])
@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENOSPC, errno.EOPNOTSUPP])
def test_waiter_pauses_where_the_system_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, error: int
) -> None:
    """A user has some 128 watches; without one, a reader looks after longer and longer
    pauses, and no descriptor is left open."""
    files = Counting(call, error)
    wakeups = Wakeups(files, [root_in(tmp_path, files)])
    assert not wakeups.is_reporting
    assert wakeups.fd == -1
    assert wakeups.take() is None
    assert not any(map(is_open, files.made))
    sleeps: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleeps.append))
    assert wakeups.wait(LONG_S)
    assert wakeups.wait(0)
    for _ in range(6):
        assert wakeups.wait()
    assert sleeps == [0.001, 0, 0.004, 0.008, 0.016, 0.032, 0.05, 0.05]
    wakeups.restart_pauses()
    wakeups.wait()
    assert sleeps[8:] == [0.001]


def test_network_file_system_is_not_watched(tmp_path: Path) -> None:
    """Changes by another host would not be reported."""
    files = Counting(number=next(iter(NETWORK)))
    root = root_in(tmp_path, files)
    assert not Wakeups(files, [root]).is_reporting
    wakeups = Wakeups(files)
    assert wakeups.add(Watch(root)) is None


def test_directory_that_is_gone_is_not_watched(root: Directory) -> None:
    """Its reader notices it at its next look."""
    gone = root.child("gone")
    wakeups = Wakeups(root.files)
    assert wakeups.add(Watch(gone)) is None
    assert wakeups.is_reporting
    assert not Wakeups(root.files, [root, gone]).is_reporting


def test_descriptors_are_closed_with_the_last_reference(tmp_path: Path) -> None:
    """The follower is unreferenced, or `close` closes them."""
    files = Counting()
    root = root_in(tmp_path, files)
    one, two = Wakeups(files, [root]), Wakeups(files, [root], is_wakeable=True)
    assert len(files.made) == 2
    assert all(map(is_open, files.made))
    del one
    two.close()
    two.close()
    assert not any(map(is_open, files.made))
    two.wake()
    assert two.wait(0)


def test_refused_watch_is_an_error_of_the_system(tmp_path: Path) -> None:
    """The error has its number."""
    files = Files()
    fd = files.new_watch()
    (tmp_path / "file").touch()
    file = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        with pytest.raises(NotADirectoryError):
            files.watch(fd, file)
        with pytest.raises(FileNotFoundError):
            files.watch(fd, 1 << 20)
    finally:
        os.close(fd)
        os.close(file)


# ------------------------------------------------------------------ signals


def test_signal_since_the_last_wait_is_not_missed(root: Directory) -> None:
    """Any of the signals counts; nothing is watched, and no descriptor is open."""
    one, two = Signal(), Signal()
    wakeups = Wakeups(root.files, [root], [one, two])
    assert wakeups.fd == -1
    assert not wakeups.wait(0.01)
    for signal in (one, two, one):
        signal.set()
        assert wakeups.wait(0)
        assert not wakeups.wait(0)
    one.set()
    two.set()
    assert wakeups.wait(0)
    assert not wakeups.wait(0)


def test_signal_ends_the_wait_of_another_thread(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait ends at once."""
    monkeypatch.setattr(module, "_SIGNALLED_S_MAX", LONG_S)
    signal = Signal()
    wakeups = Wakeups(root.files, signals=[signal])
    timer = threading.Timer(0.02, signal.set)
    timer.start()
    begun = time.monotonic()
    assert wakeups.wait(LONG_S)
    assert time.monotonic() - begun < LONG_S
    timer.join()


def test_waiter_for_signals_looks_now_and_then(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt of the thread that sets one may have lost it."""
    monkeypatch.setattr(module, "_SIGNALLED_S_MAX", 0.02)
    wakeups = Wakeups(root.files, signals=[Signal()])
    assert wakeups.wait(LONG_S)
    assert wakeups.wait()
    assert not wakeups.wait(0.01)


def test_closed_wakeups_are_not_signalled(root: Directory) -> None:
    """A writer must not keep a signal without a waiter."""
    signal = Signal()
    wakeups = Wakeups(root.files, signals=[signal])
    assert len(signal.waiters) == 1
    wakeups.close()
    assert len(signal.waiters) == 0


# ------------------------------------------------------------------ threads


class Service:
    """Counts the calls of its method, which may fail."""

    def __init__(self, root: Directory, **options: Any) -> None:
        self.calls = threading.Semaphore(0)
        self.error: BaseException | None = None
        self.logged: list[BaseException] = []
        self.thread = ServiceThread(
            root, "requests", self.work, self.logged.append, 0.001, **options
        )

    def work(self) -> None:
        self.calls.release()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def is_called(self, seconds: float = LONG_S) -> bool:
        return self.calls.acquire(timeout=seconds)


@pytest.fixture
def service(root: Directory) -> Iterator[Service]:
    service = Service(root)
    yield service
    service.thread.stop()


def test_thread_serves_at_its_start_and_when_it_is_woken(service: Service) -> None:
    """The method is called at no other time, until the thread is stopped, which may be
    twice."""
    service.thread.start()
    assert service.is_called()
    assert not service.is_called(0.02)
    service.thread.wake()
    assert service.is_called()
    assert not service.is_called(0.02)
    service.thread.stop()
    service.thread.stop()
    service.thread.wake()
    assert not service.is_called(0.02)
    assert service.thread.wakeups is None


def test_thread_wakes_by_what_it_watches(root: Directory) -> None:
    """It is called again as long as the reports are not read."""
    service = Service(root)
    service.thread.start(Watch(root, native.WATCH_RENAMES))
    assert service.is_called()
    Path(root.path, "a").touch()
    assert not service.is_called(0.02)
    Path(root.path, "a").rename(Path(root.path, "b"))
    assert service.is_called()
    wakeups = service.thread.wakeups
    assert wakeups is not None
    assert [name for _, name in wakeups.take() or ()] == ["b"]
    service.thread.stop()


@pytest.mark.parametrize(
    "files",
    [Counting("watch", errno.ENOSPC), Counting(number=next(iter(NETWORK)))],
    ids=["refused", "network"],
)
def test_thread_serves_by_time_where_nothing_is_reported(
    tmp_path: Path, files: Counting
) -> None:
    """The thread calls it every 50 ms."""
    root = root_in(tmp_path, files)
    service = Service(root)
    service.thread.start(Watch(root, native.WATCH_RENAMES))
    for _ in range(8):
        assert service.is_called()
    service.thread.stop()


def test_thread_goes_on_after_an_error(service: Service) -> None:
    """The thread is not woken for that; the error is logged."""
    service.error = error = MemoryError()
    service.thread.start()
    assert service.is_called()
    assert service.is_called()
    assert service.logged == [error]


def test_thread_pauses_after_an_error_that_cannot_be_logged(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the pause it would use a whole processor for as long as the error
    lasts."""
    pauses: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=pauses.append))

    def log_error(error: BaseException) -> None:
        raise MemoryError

    service.thread._log_error = log_error
    service.error = OSError()
    service.thread.start()
    assert service.is_called()
    assert service.is_called()
    assert pauses == [0.001]


def test_thread_ends_with_the_object_that_it_serves(root: Directory) -> None:
    """The thread does not keep it alive, and does not wait for a change to end."""
    service = Service(root)
    service.thread.start()
    assert service.is_called()
    thread = service.thread._thread
    assert thread is not None
    while service.thread.wakeups is None:
        time.sleep(0.001)
    del service
    gc.collect()
    thread.join(LONG_S)
    assert not thread.is_alive()


def test_thread_may_stop_itself(root: Directory) -> None:
    """A store may be closed by a call in its thread."""
    service = Service(root)
    service.error = SystemExit()
    thread = service.thread
    service.work = thread.stop  # type: ignore[method-assign]
    thread.start()
    thread.stop()
    assert thread.wakeups is None


def test_thread_that_cannot_be_started_is_a_named_error(
    root: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the missing resource, and the limits to check."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    service = Service(root)
    with pytest.raises(StorageError, match="no thread for the requests in") as caught:
        service.thread.start()
    assert caught.value.filename == root.path
    assert service.thread.wakeups is None
    service.thread.stop()
