"""The one way to wait until another thread or another process changes something.

The system reports changes of directories and files by inotify (Linux), and only changes
by processes of this host. On a network file system, and if the system has no more
watches, a waiter wakes after a pause instead and looks for itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from logstore import _native as native
from logstore._native.locks import Signal, wait_for_end
from logstore.errors import StorageError
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import NETWORK
from logstore.io.service_calls import begin_call, end_call

__all__ = [
    "INTERVAL_S_MIN",
    "PAUSE_S_MAX",
    "PAUSE_S_MIN",
    "WATCHED_S_MAX",
    "ServiceThread",
    "Wakeups",
    "Watch",
]

# The longest sleep while changes are reported: not every file system reports all of
# them. A look costs less than a millisecond.
WATCHED_S_MAX: Final = 1.0
# The same for signals: an interrupt of the thread that sets one may lose it.
_SIGNALLED_S_MAX: Final = 0.25
# A process that appends records one by one must not wake a reader for each of them.
INTERVAL_S_MIN: Final = 0.0005
# The pauses where nothing is reported: a short one at first, then longer and longer.
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.050

# Instances of inotify that are not in use. To end one that has watched anything takes
# the system 20 ms, and a user may have 128 of them.
_unused: list[native.OpenFile] = []
_UNUSED_MAX: Final = 8


def _reports_of(files: Files) -> native.OpenFile:
    """Something that reports changes. Raises: `OSError`."""
    if type(files).new_watch is Files.new_watch:
        with contextlib.suppress(IndexError):
            return _unused.pop()
    return native.OpenFile(files.new_watch(), None)


class Watch(NamedTuple):
    """A file or a directory to be watched.

    Attributes:
        at: a directory, or the descriptor of an open file.
        what: which changes; by default those of the entries of a directory.
        name: of a file in the directory; "": the directory itself.
    """

    at: Directory | int
    what: int = native.WATCH_ENTRIES
    name: str = ""


class Wakeups:
    """What one thread or one event loop waits for. Only `wake` may be called by others.

    Changes are noted from the start: look for them after each call of `wait`, not
    before it, and none is missed.

    Args:
        directories, watches: what is watched; nothing is if the system refuses one, and
            never if `watches` is None: that takes one descriptor less.
        signals: set by this process. If there are any, they alone wake, and nothing is
            watched: a store that writes knows of every change.
        is_wakeable: whether `wake` is called; that takes one more descriptor.

    Raises:
        OSError: there is no descriptor for `wake`.
    """

    __slots__ = (
        "_event",
        "_file",
        "_files",
        "_numbers",
        "_pause",
        "_signals",
        "_woken",
    )

    def __init__(
        self,
        files: Files,
        directories: Iterable[Directory] = (),
        signals: Sequence[Signal] = (),
        watches: Iterable[Watch] | None = (),
        *,
        is_wakeable: bool = False,
    ) -> None:
        self._files = files
        self._pause = PAUSE_S_MIN
        self._signals = signals
        self._woken = threading.Lock()
        self._event: native.OpenFile | None = None
        self._file: native.OpenFile | None = None
        self._numbers: set[int] = set()
        if is_wakeable:
            self._event = native.OpenFile(files.new_event(), None)
        if signals:
            self._woken.acquire()
            self._register()
            return
        if watches is None:
            self._pause = 0.0  # there is nothing to look for
            return
        with contextlib.suppress(OSError):
            self._file = _reports_of(files)
        for watch in (*map(Watch, directories), *watches):
            if self.add(watch) is None:
                self._end_reports()

    @property
    def fd(self) -> int:
        """Readable while there are reports; -1 if nothing is reported."""
        file = self._file
        return -1 if file is None else file.fd

    @property
    def is_reporting(self) -> bool:
        """Whether the system reports changes; else the user looks for them."""
        return self._file is not None

    def add(self, watch: Watch) -> int | None:
        """Watch one more file or directory. Returns the number of its reports; None if
        the system does not report its changes."""
        if self._file is None:
            return None
        try:
            if isinstance(watch.at, int):
                return self._add(self._file.fd, watch.at, watch)
            with watch.at.use() as at:
                return self._add(self._file.fd, at, watch)
        except OSError:
            return None

    def _add(self, fd: int, at: int, watch: Watch) -> int:
        if self._files.file_system(at) in NETWORK:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        number = self._files.watch(fd, at, watch.what, watch.name)
        self._numbers.add(number)
        return number

    def remove(self, number: int) -> None:
        """Report no more changes of a file or directory that may be gone."""
        if self._file is not None:
            self._numbers.discard(number)
            with contextlib.suppress(OSError):
                self._files.unwatch(self._file.fd, number)

    def wait(self, seconds: float | None = None) -> bool:
        """Sleep until there are reports, or a signal, or `wake` was called.

        Args:
            seconds: the longest sleep; None: no limit. It may be shorter, except while
                changes are reported.

        Returns:
            Whether something may have changed. Reports stay until they are taken.
        """
        if self._signals:
            return self._wait_for_signal(seconds)
        event, file = self._event, self._file
        if file is None and self._pause:
            seconds = self._pause if seconds is None else min(self._pause, seconds)
            self._pause = min(2 * self._pause, PAUSE_S_MAX)
        if seconds is not None:
            seconds = max(seconds, 0.0)
        fds = [one.fd for one in (event, file) if one is not None]
        if fds:
            ready = self._files.wait_for_any(fds, seconds)
            if event is not None and event.fd in ready:
                self._files.clear_event(event.fd)
            return bool(ready) or (file is None and self._pause > 0)
        assert seconds is not None
        time.sleep(seconds)
        return True

    def _wait_for_signal(self, seconds: float | None) -> bool:
        limit = _SIGNALLED_S_MAX if seconds is None else min(seconds, _SIGNALLED_S_MAX)
        if self._woken.acquire(timeout=max(limit, 0.0)):
            self._register()
            return True
        return limit == _SIGNALLED_S_MAX  # one may have been lost

    def _register(self) -> None:
        for signal in self._signals:
            signal.remove(self._woken)
            signal.add(self._woken)

    def restart_pauses(self) -> None:
        """Sleep for a short time first where changes are not reported."""
        if self._pause:
            self._pause = PAUSE_S_MIN

    def take(self) -> Sequence[tuple[int, str]] | None:
        """(number of the watch, name of the entry or "") of each report since the last
        call; None: any file or directory may have changed."""
        with contextlib.suppress(OSError):
            return None if self._file is None else self._files.reports(self._file.fd)
        return None

    def taken_within(self, seconds: float) -> Sequence[tuple[int, str]] | None:
        """`wait` and `take` in one call, for one that is not wakeable. No reports: none
        came within this time."""
        file = self._file
        if file is None:
            return self.take() if self.wait(seconds) else ()
        with contextlib.suppress(OSError):
            return self._files.reports_within(file.fd, max(seconds, 0.0))
        return None

    def wake(self) -> None:
        """End the `wait` that is under way, or the next one."""
        event = self._event
        if event is not None:
            self._files.set_event(event.fd)

    def wait_for_name(
        self, at: Directory, name: str, seconds: float, looks: int
    ) -> None:
        """Look for a name in a directory every `seconds`, at most `looks` times, until
        it is there or `wake` is called."""
        assert self._event is not None
        fd = self._event.fd
        with at.use() as at_fd:
            if not self._files.wait_for_name(fd, at_fd, name, seconds, looks):
                self._files.clear_event(fd)

    def close(self) -> None:
        """Release the descriptors, and wait for signals no longer."""
        self._end_reports()
        self._event = None
        for signal in self._signals:
            signal.remove(self._woken)

    def _end_reports(self) -> None:
        """Let another one use what has reported changes."""
        file, self._file = self._file, None
        if file is None or type(self._files).new_watch is not Files.new_watch:
            return
        try:
            for number in self._numbers:
                # The watch of a file that is gone has ended.
                with contextlib.suppress(OSError):
                    self._files.unwatch(file.fd, number)
            self._files.reports(file.fd)
        except OSError:
            return
        if len(_unused) < _UNUSED_MAX:
            _unused.append(file)


# A child of a fork would take reports that are its parent's.
os.register_at_fork(after_in_child=_unused.clear)


class ServiceThread:
    """A thread that calls a method at its start, and each time after a wait.

    The thread keeps only this object alive while it waits: it ends when the object of
    the method is gone.

    Args:
        root: the directory of the store.
        what: the thread serves: "requests".
        method: called with no lock held, and again after an error, or if it returns
            True; then after `pause_s`.
        log_error: gets that error.
        pause_s: how long after it, in seconds.
        sleep: how the thread waits.
        sleeps_first: before it calls the method, it waits.

    Attributes:
        wakeups: end the wait; None: the thread was not started, or has ended.
    """

    def __init__(
        self,
        root: Directory,
        what: str,
        method: Callable[[], object],
        log_error: Callable[[BaseException], None],
        pause_s: float,
        sleep: Callable[[Wakeups], object] = Wakeups.wait,
        *,
        sleeps_first: bool = False,
    ) -> None:
        self._root = root
        self._what = what
        self._method = weakref.WeakMethod(method, lambda _: self.wake())
        self._log_error = log_error
        self._pause_s = pause_s
        self._sleep = sleep
        self._is_due = not sleeps_first
        self.wakeups: Wakeups | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    def start(self, *watches: Watch) -> None:
        """Start the thread, which wakes by changes of `watches`, too, if there are any.

        Raises:
            StorageError: it cannot be started.
        """
        files, name = self._root.files, f"{self._what} in {self._root.path}"
        try:
            watched = watches or None
            self.wakeups = Wakeups(files, watches=watched, is_wakeable=True)
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            self._thread = self.wakeups = None
            raise StorageError(
                f"no thread for the {name}: {error}. Without it those of other "
                f"processes are not served. See the limits of the process for threads, "
                f"memory and open files",
                errno=getattr(error, "errno", None),
                path=self._root.path,
                action="start a thread for",
            ) from error

    def _run(self) -> None:
        while not self._is_stopped:
            is_again: object = False
            try:
                begin_call()
                method = self._method()
                if method is None:
                    return
                if self._is_due:
                    is_again = method()
            except BaseException as error:
                # It has another try, also if there was no memory to say so.
                with contextlib.suppress(BaseException):
                    self._log_error(error)
                with contextlib.suppress(BaseException):
                    time.sleep(self._pause_s)
                continue
            finally:
                self._is_due, method = True, None
                end_call()
            wakeups = self.wakeups
            if wakeups is not None and not self._is_stopped:
                with contextlib.suppress(BaseException):
                    if is_again is True:
                        wakeups.wait(self._pause_s)
                    else:
                        self._sleep(wakeups)

    def wake(self) -> None:
        """Let the thread call the method once more."""
        wakeups = self.wakeups
        if wakeups is not None:
            wakeups.wake()

    def stop(self) -> None:
        """End the thread, after the call that it may be in. May be called again."""
        self._is_stopped = True
        thread = self._thread
        if thread is None:
            return
        self.wake()
        wakeups = self.wakeups
        if thread is not threading.current_thread():
            wait_for_end(thread)
            if wakeups is not None:
                wakeups.close()
        self.abandon()

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._is_stopped = True
        self._thread = self.wakeups = None
