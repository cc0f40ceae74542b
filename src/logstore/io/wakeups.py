"""The one way to wait until another thread or another process changes something.

The system reports changes of directories and files by inotify (Linux), and only changes
by processes of this host (`reports`). On a network file system, and if the system has
no more watches, a waiter wakes after a pause instead and looks for itself.
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
from logstore.io.reports import Inbox, Reports, reports_of
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
# Pauses if the system reports no changes: short at first, then longer and longer.
PAUSE_S_MIN: Final = 0.001
PAUSE_S_MAX: Final = 0.050


class Watch(NamedTuple):
    """A file or a directory to be watched.

    Attributes:
        at: a directory, or the descriptor of an open file.
        what: which changes; by default changes of a directory's entries.
        name: of a file in the directory; "": the directory itself.
    """

    at: Directory | int
    what: int = native.WATCH_ENTRIES
    name: str = ""


class Wakeups:
    """The events that a thread or an event loop waits for. Other threads may call
    only `wake`.

    Changes are noted from the start: look for them after each call of `wait`, not
    before it, and none is missed.

    Args:
        directories, watches: what is watched; nothing is if the system refuses one, and
            never if `watches` has the value None.
        signals: set by this process. If there are any, they alone wake, and nothing is
            watched: a store that writes knows of every change.
        is_wakeable: whether `wake` is called.
        bell: called by any thread when something was reported, and then after `take`
            again.
    """

    __slots__ = (
        "_files",
        "_inbox",
        "_is_wakeable",
        "_pause",
        "_reference",
        "_reports",
        "_signals",
    )

    def __init__(
        self,
        files: Files,
        directories: Iterable[Directory] = (),
        signals: Sequence[Signal] = (),
        watches: Iterable[Watch] | None = (),
        *,
        is_wakeable: bool = False,
        bell: Callable[[], object] | None = None,
    ) -> None:
        self._files = files
        self._pause = PAUSE_S_MIN
        self._signals = signals
        self._is_wakeable = is_wakeable
        self._inbox = Inbox(bell)
        self._reports: Reports | None = None
        if signals:
            self._register()
            return
        if watches is None:
            self._pause = 0.0  # there is nothing to look for
            return
        with contextlib.suppress(OSError):
            self._reports = reports_of(files)
            self._reference = self._reports.reference(self._inbox)
        for watch in (*map(Watch, directories), *watches):
            if self.add(watch) is None:
                self._end_reports()

    @property
    def fd(self) -> int:
        """Readable while there are reports, for anyone in this process: then `read`
        them; -1 if nothing is reported."""
        reports = self._reports
        return -1 if reports is None else reports.fd

    @property
    def is_reporting(self) -> bool:
        """Whether the system reports changes; if not, the caller looks for them."""
        return self.fd >= 0

    @property
    def is_inherited(self) -> bool:
        """Whether this is the child of a fork, and the reports are the parent's."""
        return self._reports is not None and self._reports.fd < 0

    @property
    def has_changes(self) -> bool:
        """Whether there are reports that were read and not taken."""
        return self._inbox.has_changes

    def add(self, watch: Watch) -> int | None:
        """Watch one more file or directory. Returns the number of its reports; None if
        the system does not report its changes."""
        if self._reports is None:
            return None
        try:
            if isinstance(watch.at, int):
                return self._add(self._reports, watch.at, watch)
            with watch.at.use() as fd:
                return self._add(self._reports, fd, watch)
        except OSError:
            return None

    def _add(self, reports: Reports, fd: int, watch: Watch) -> int:
        if self._files.file_system(fd) in NETWORK:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return reports.add(self._reference, fd, watch.what, watch.name)

    def remove(self, number: int) -> None:
        """Report no more changes of a file or directory that may be gone."""
        if self._reports is not None:
            self._reports.remove(self._reference, number)

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
        inbox, reports = self._inbox, self._reports
        if reports is not None and reports.fd >= 0:
            try:
                reports.wait(inbox, seconds)
            except OSError:
                return True
            return inbox.was_called() or inbox.has_changes
        if self._pause:
            seconds = self._pause if seconds is None else min(self._pause, seconds)
            self._pause = min(2 * self._pause, PAUSE_S_MAX)
        if not self._is_wakeable:
            assert seconds is not None
            time.sleep(max(seconds, 0.0))
            return True
        limit = -1 if seconds is None else max(seconds, 0.0)
        while not inbox.is_due and inbox.woken.acquire(timeout=limit):
            pass  # it may have been woken for a known change
        return inbox.was_called() or self._pause > 0

    def _wait_for_signal(self, seconds: float | None) -> bool:
        limit = _SIGNALLED_S_MAX if seconds is None else min(seconds, _SIGNALLED_S_MAX)
        if self._inbox.woken.acquire(timeout=max(limit, 0.0)):
            self._register()
            return True
        return limit == _SIGNALLED_S_MAX  # one may have been lost

    def _register(self) -> None:
        for signal in self._signals:
            signal.remove(self._inbox.woken)
            signal.add(self._inbox.woken)

    def restart_pauses(self) -> None:
        """Sleep for a short time first where changes are not reported."""
        if self._pause:
            self._pause = PAUSE_S_MIN

    def read(self) -> None:
        """Let all Wakeups of this process that wait have what was reported so far."""
        reports = self._reports
        if reports is not None and reports.fd >= 0:
            with contextlib.suppress(OSError):  # then all have a note of it
                reports.read()

    def take(self) -> Sequence[tuple[int, str]] | None:
        """(number of the watch, name of the entry or "") of each report since the last
        call; None: any file or directory may have changed."""
        reports = self._reports
        if reports is None or reports.fd < 0:
            return None
        try:
            reports.read()
        except OSError:
            return None  # all have a note of it
        return self._inbox.take()

    def taken_within(self, seconds: float) -> Sequence[tuple[int, str]] | None:
        """`wait` and `take` in one call. No reports: none came within this time."""
        if not self.is_reporting:
            return self.take() if self.wait(seconds) else ()
        self.wait(seconds)
        return self._inbox.take()

    def wake(self) -> None:
        """End the `wait` that is under way, or the next one."""
        self._inbox.call()

    def close(self) -> None:
        """Watch nothing, and wait for signals no longer."""
        self._end_reports()
        for signal in self._signals:
            signal.remove(self._inbox.woken)

    def _end_reports(self) -> None:
        reports, self._reports = self._reports, None
        if reports is not None:
            reports.remove(self._reference)
            del self._reference


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
        """Forget the thread, which does not exist in the child of a fork."""
        self._is_stopped = True
        self._thread = self.wakeups = None
