"""Waits until another process changes a directory or a file: for readers that follow
its log, and for processes that ask each other to publish. `DirectoryWatch` and
`FileWatch` let one thread sleep, `RenameWatch` has a thread, and `ChangeReports` tells
an event loop.

The system reports changes by inotify (Linux). It reports only those made on this host,
so on a network file system, and if it has no more watches, they must look by time.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from logstore import _native as native
from logstore._native.locks import logger, wait_for_end
from logstore.errors import StorageError
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import kind_of
from logstore.io.layout import LOCK

__all__ = [
    "INTERVAL_S_MIN",
    "WATCHED_S_MAX",
    "ChangeReports",
    "DirectoryWatch",
    "FileWatch",
    "RenameWatch",
]

# The longest sleep while changes are reported: not every file system reports all of
# them. A look costs less than a millisecond.
WATCHED_S_MAX: Final = 1.0
# A process that appends records one by one must not wake a reader for each of them.
INTERVAL_S_MIN: Final = 0.0005
# How often to look where the system does not report changes: of a file, of names.
_UNREPORTED_S: Final = 0.01
_LIST_S: Final = 0.05
# The pause after an error.
_PAUSE_S: Final = 0.05


class DirectoryWatch:
    """A watch of some directories; for one thread.

    Attributes:
        directories: those to be watched.
    """

    __slots__ = ("_file", "_is_begun", "_woken", "directories")

    def __init__(self, directories: Iterable[Directory]) -> None:
        self.directories = tuple(dict.fromkeys(directories))
        self._file: native.OpenFile | None = None
        self._is_begun = False
        self._woken = 0.0

    def wait(self, pause: float, limit: float | None) -> bool:
        """Return when an entry of a directory was changed since the last call, or
        after a while. False: no change was reported.

        Args:
            pause: how long to sleep if changes are not reported at all, in seconds.
            limit: sleep no longer than this; None: no limit.
        """
        if not self._is_begun:
            self._is_begun = True
            with contextlib.suppress(OSError):
                self._file = self._begin()
            if self._file is not None:
                return True  # there may have been changes before
        if self._file is None:
            time.sleep(pause if limit is None else min(pause, limit))
            return False
        seconds = WATCHED_S_MAX if limit is None else min(WATCHED_S_MAX, limit)
        is_changed = self.directories[0].files.wait_for_change(self._file.fd, seconds)
        if is_changed and time.monotonic() - self._woken < INTERVAL_S_MIN:
            time.sleep(INTERVAL_S_MIN)
        self._woken = time.monotonic()
        return is_changed

    def _begin(self) -> native.OpenFile | None:
        first = self.directories[0]
        if kind_of(first)[1]:
            return None
        file = native.OpenFile(first.files.new_watch(), None)
        for directory in self.directories:
            with directory.use() as fd:
                directory.files.watch(file.fd, fd)
        return file


class ChangeReports:
    """Reports changes in any number of directories, without waiting; for one thread.

    Raises: as each method, `OSError` if the system refuses, or has no more watches.
    """

    __slots__ = ("_file", "_files")

    def __init__(self, files: Files) -> None:
        self._files = files
        self._file = native.OpenFile(files.new_watch(), None)

    @property
    def fd(self) -> int:
        """Readable when there are reports; -1 after `close`."""
        return self._file.fd

    def add(self, directory: Directory) -> int | None:
        """Report its changes from now on, under the number that is returned; None: its
        file system does not report those that other hosts make."""
        if kind_of(directory)[1]:
            return None
        with directory.use() as fd:
            return self._files.watch(self._file.fd, fd)

    def remove(self, number: int) -> None:
        """Report no more changes of a directory. It may have been removed."""
        with contextlib.suppress(OSError):
            self._files.unwatch(self._file.fd, number)

    def take(self) -> set[int] | None:
        """The numbers of directories that have changed since the last call; None: any
        may have changed."""
        return self._files.take_changes(self._file.fd)

    def close(self) -> None:
        """Release the descriptor. May be called again."""
        self._file.close()


class FileWatch:
    """Waits until a file is written to or unlinked, or the lock of its store may have
    fallen; for one thread at a time, and one file after the other: the system takes
    long to end a watch (20 ms), and little to begin another in it.

    The lock falls when its file is closed, also by the death of its holder; closing it
    is what is reported, a moment before.

    Attributes:
        is_held: the lock was held when its user last looked, who says so, and no report
            was of its file since. Never where changes are not reported.
    """

    def __init__(self, root: Directory) -> None:
        self._files = root.files
        self._file: native.OpenFile | None = None
        self._lock = 0
        self._is_held = False
        # Without it, `wait` sleeps.
        with contextlib.suppress(OSError):
            file = native.OpenFile(self._files.new_watch(), None)
            with root.use() as root_fd:
                self._lock = self._files.watch(
                    file.fd, root_fd, native.WATCH_CLOSES, LOCK
                )
            self._file = file

    @property
    def is_held(self) -> bool:
        return self._is_held and self._file is not None

    @is_held.setter
    def is_held(self, is_held: bool) -> None:
        self._is_held = is_held

    def forget(self) -> None:
        """Of what was reported before, `wait` does not tell, but `is_held` does: the
        end of a file is reported, too, when it is closed."""
        if self._file is not None:
            try:
                self._take(self._file, 0)
            except OSError:
                self._file = None

    def _take(self, file: native.OpenFile, seconds: float) -> bool:
        found = self._files.wait_for_change_of(file.fd, self._lock, seconds)
        if found > 1:
            self._is_held = False
        return found > 0

    def begin(self, fd: int) -> None:
        """Wait for an open file, too, as long as it has a name."""
        if self._file is not None:
            try:
                self._files.watch(self._file.fd, fd, native.WATCH_FILE)
            except OSError:
                self._file = None

    def wait(self, seconds: float) -> bool:
        """Return after a change, which may be of a file of before, or in time: False if
        no change was reported."""
        if self._file is None:
            time.sleep(min(seconds, _UNREPORTED_S))
            return False
        # Of a millisecond that is not over, the rest is slept too.
        return self._take(self._file, max(seconds, 0.001))


class RenameWatch:
    """A thread that calls a method when files were renamed into a directory, and once
    at its start.

    The thread keeps only this object alive: it ends when the object of the method is
    gone.

    Args:
        method: called with no lock held; an error is logged, and it is called again.

    Attributes:
        is_begun: whether the thread was started, and not ended since.
        is_reporting: whether the system tells of renames; else the method is called
            every 50 ms.
    """

    def __init__(self, root: Directory, method: Callable[[], object]) -> None:
        self._root = root
        self._files = root.files
        self._method = weakref.WeakMethod(method)
        self._file: native.OpenFile | None = None
        self._event: native.OpenFile | None = None
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def is_begun(self) -> bool:
        return self._event is not None

    @property
    def is_reporting(self) -> bool:
        return self._file is not None

    def start(self) -> None:
        """Start the thread.

        Raises:
            StorageError: it cannot be started.
        """
        name = f"requests in {self._root.path}"
        try:
            self._event = native.OpenFile(self._files.new_event(), None)
            with contextlib.suppress(OSError):
                file = native.OpenFile(self._files.new_watch(), None)
                with self._root.use() as fd:
                    self._files.watch(file.fd, fd, native.WATCH_RENAMES)
                self._file = file
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        except (OSError, RuntimeError) as error:
            self._thread = None
            raise StorageError(
                f"no thread for the {name}: {error}. Without it nothing is published "
                f"for others. See the limits of the process for threads, memory and "
                f"open files",
                errno=getattr(error, "errno", None),
                path=self._root.path,
                action="start a thread for",
            ) from error

    def names(self) -> Sequence[str] | None:
        """The names that files were renamed to since the last call; None if that is
        not known: then the directory is to be listed."""
        file = self._file
        if file is None:
            return None
        try:
            return self._files.reported_names(file.fd)
        except OSError:
            return None

    def _run(self) -> None:
        while not self._is_stopped:
            method = self._method()
            if method is None:
                return
            try:
                method()
            except BaseException as error:
                # It has another try, also if there was no memory to say so.
                with contextlib.suppress(BaseException):
                    logger.exception("requests cannot be served", error=error)
                    time.sleep(_PAUSE_S)
                continue
            finally:
                method = None
            with contextlib.suppress(BaseException):
                self._sleep()

    def _sleep(self) -> None:
        """Until there is a report, or the end."""
        event, file = self._event, self._file
        if event is None or self._is_stopped:
            return
        if file is None:
            ready = self._files.wait_for_any([event.fd], _LIST_S)
        else:
            ready = self._files.wait_for_any([event.fd, file.fd], None)
        if event.fd in ready:
            self._files.clear_event(event.fd)

    def wake(self) -> None:
        """Call the method once more."""
        event = self._event
        if event is not None:
            self._files.set_event(event.fd)

    def stop(self) -> None:
        """End the thread, after the call that it may be in. May be called again."""
        self._is_stopped = True
        thread, event = self._thread, self._event
        if thread is None or event is None:
            return
        self._files.set_event(event.fd)
        if thread is not threading.current_thread():
            wait_for_end(thread)
        self._thread = self._event = self._file = None

    def abandon(self) -> None:
        """In the child of a fork: the thread does not exist there."""
        self._is_stopped = True
        self._thread = self._event = self._file = None
