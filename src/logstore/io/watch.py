"""Waits until another process changes a directory, for readers that follow its log:
`DirectoryWatch` lets one thread sleep, `ChangeReports` tells an event loop.

The system reports changes by inotify (Linux). It reports only those made on this host,
so on a network file system, and if it has no more watches, they must look by time.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from typing import Final

from logstore import _native as native
from logstore.io.directory import Directory
from logstore.io.files import Files
from logstore.io.filesystem import kind_of

__all__ = ["INTERVAL_S_MIN", "WATCHED_S_MAX", "ChangeReports", "DirectoryWatch"]

# The longest sleep while changes are reported: not every file system reports all of
# them. A look costs less than a millisecond.
WATCHED_S_MAX: Final = 1.0
# A process that appends records one by one must not wake a reader for each of them.
INTERVAL_S_MIN: Final = 0.0005


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
