"""A bounded set of open segment files, and of index contents kept in memory.

Owned by a store, used by its segments. A file is closed when it is the one used least
recently and nobody is reading it at this moment, never under somebody who reads it: the
system may give the number of a closed descriptor to another file at once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

from logstore._files import Directory, FileInfo, Files
from logstore.errors import StoreClosedError
from logstore.layout import INDEX, TIME_INDEX

__all__ = ["Descriptors", "OpenFile"]

_INDEX_BYTES_MAX: Final = 64 << 20


class OpenFile:
    """An open file and how many use it now.

    Invariant: the descriptor is closed when `is_dropped` and `users` is 0, once.
    """

    __slots__ = ("fd", "is_dropped", "users")

    def __init__(self, fd: int, users: int) -> None:
        self.fd = fd
        self.users = users
        self.is_dropped = False


class Descriptors:
    """Open files by owner (its serial number). Any thread may call the methods."""

    def __init__(self, files: Files, max_open: int) -> None:
        self.files = files
        self.max_open = max_open
        self._lock = threading.Lock()
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._indexes: OrderedDict[tuple[int, str], tuple[Any, int]] = OrderedDict()
        self._index_bytes = 0
        self._closed = False
        # Owners that are gone, until somebody has the lock.
        self._gone: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._open)

    def borrow(
        self,
        owner: int,
        directory: Directory,
        names: tuple[str, ...],
        is_it: Callable[[FileInfo], bool] | None = None,
    ) -> OpenFile:
        """The file of an owner, opened under the first of `names` that is there and, if
        given, of which `is_it` is true.

        To be followed by `give_back`.

        Raises:
            OSError: as opening does; ESTALE where it is another file.
            StoreClosedError: after `close`.
        """
        with self._lock:
            if self._closed:
                raise StoreClosedError(f"the store of {directory.path} is closed")
            self._drop_gone()
            found = self._open.get(owner)
            if found is None:
                self._evict(self.max_open - 1)
                found = OpenFile(_open_first(directory, names, is_it), 0)
                self._open[owner] = found
            else:
                self._open.move_to_end(owner)
            found.users += 1
            return found

    def give_back(self, file: OpenFile) -> None:
        """End one use of a file."""
        with self._lock:
            file.users -= 1
            self._close_if_free(file)
            self._drop_gone()

    def adopt(self, owner: int, fd: int) -> OpenFile:
        """Take over an open descriptor, in use until `give_back`."""
        with self._lock:
            self._drop(owner)
            file = self._open[owner] = OpenFile(fd, 1)
            return file

    def forget(self, owner: int) -> None:
        """Let go of the file of an owner that is gone, and of its indexes.

        It never waits: the garbage collector calls it, at any line of any thread, and
        so perhaps of the one that holds the lock. Then the next call does it.
        """
        self._gone.append(owner)
        if self._lock.acquire(blocking=False):
            try:
                self._drop_gone()
            finally:
                self._lock.release()

    def abandon(self) -> None:
        """After a fork, in the child: the lock may be held by a thread that is gone.

        The files stay open: they are the parent's, and the bookkeeping cannot be
        trusted.
        """
        self._lock = threading.Lock()
        self._closed = True
        self._open = OrderedDict()

    def close(self) -> None:
        """Close every file, those in use as soon as they are not."""
        with self._lock:
            self._closed = True
            for owner in list(self._open):
                self._drop(owner)
            self._indexes.clear()
            self._index_bytes = 0

    def _drop_gone(self) -> None:
        while self._gone:
            owner = self._gone.popleft()
            self._drop(owner)
            for kind in (INDEX, TIME_INDEX):
                self._drop_index((owner, kind))

    def _drop(self, owner: int) -> None:
        file = self._open.pop(owner, None)
        if file is not None:
            file.is_dropped = True
            self._close_if_free(file)

    def _close_if_free(self, file: OpenFile) -> None:
        if file.is_dropped and file.users == 0 and file.fd >= 0:
            fd, file.fd = file.fd, -1
            with contextlib.suppress(OSError):
                self.files.close(fd)

    def _evict(self, room: int) -> None:
        if len(self._open) <= room:
            return
        for owner in [o for o, file in self._open.items() if file.users == 0]:
            self._drop(owner)
            if len(self._open) <= room:
                return

    # -- index contents

    def index(self, owner: int, kind: str) -> Any:
        with self._lock:
            found = self._indexes.get((owner, kind))
            if found is None:
                return None
            self._indexes.move_to_end((owner, kind))
            return found[0]

    def keep_index(self, owner: int, kind: str, entries: Any, size: int) -> None:
        with self._lock:
            self._drop_index((owner, kind))
            self._indexes[owner, kind] = entries, size
            self._index_bytes += size
            while self._index_bytes > _INDEX_BYTES_MAX and len(self._indexes) > 1:
                self._drop_index(next(iter(self._indexes)))

    def _drop_index(self, key: tuple[int, str]) -> None:
        found = self._indexes.pop(key, None)
        if found is not None:
            self._index_bytes -= found[1]


def _open_first(
    directory: Directory,
    names: tuple[str, ...],
    is_it: Callable[[FileInfo], bool] | None,
) -> int:
    error: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for name in dict.fromkeys(names):
        try:
            fd = directory.open(name)
        except FileNotFoundError:
            continue
        try:
            if is_it is None or is_it(directory.files.stat(fd)):
                return fd
        except BaseException:
            directory.files.close(fd)
            raise
        directory.files.close(fd)
        error = OSError(errno.ESTALE, os.strerror(errno.ESTALE))
    raise error
